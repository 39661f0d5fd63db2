"""A run in TensorBoard: its curves, and its row in the table of hyperparameters."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plkernel.common.files import load_json
from plkernel.common.imports import is_code
from plkernel.common.layout import SPEC
from plkernel.config.condition import DEFAULT_SCHEMES
from plkernel.config.schema import IN_THE_STUDY, Arm
from plkernel.memory.diagnostics import kernel_exponents, slope_range
from plkernel.models.words import NOT_CAUSAL

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Row = Mapping[str, Any]
Value = str | float
LEAKING = "bpb_" + NOT_CAUSAL.replace(", ", "_").replace(" ", "_")
ENDINGS = {
    "final_val_bpb": "final validation, bits per byte",
    "best_val_bpb": "best validation, bits per byte",
    "test_bpb": "test, bits per byte",
}
GROUP, STARTED = "when_ended", "when_started"
FIRST = ("arm", "gain", "learning_rate", "patching", "seed")
"""Columns that are shown before any is chosen, where no study says what varies; TensorBoard shows five."""
ABSENT = "-"
OF_THE_MODEL = ("kind", "dim", "layers", "gain", "parameters")
UNKNOWN: dict[str, Value] = {"dim": 0, "layers": 0, "gain": ABSENT}  # of other people's models
OF_THE_TRAINING = ("learning_rate", "weight_decay", "batch", "context")
OTHERWISE = (*IN_THE_STUDY, "placement", "scheme", "scheme_options", "learning_rate", "rates", "model", "corpus")
NODES_AS_NUMBERS = ("node_rates", "node_multipliers")
OPTIONS = [name for name in Arm.model_fields if name not in (*OTHERWISE, *NODES_AS_NUMBERS)]
"""Options of an arm that are columns of their own; the others are told by another column, or change no number."""


class Curves:
    """Bits per byte against step, bytes and seconds; saturation, amplification and speed; half-lives and kernels.

    Losses at step 0, 8 bits per byte where nothing is learnt yet, stand apart: on the curves' axis they would flatten
    all the rest. At the end the hyperparameters with their result.
    """

    def __init__(self, folder: Path, causal: bool, rows: Sequence[tuple[Row, Row]]) -> None:
        """rows: those of the two files that the run goes on from; what TensorBoard shows beyond them is taken back."""
        from torch.utils.tensorboard import SummaryWriter

        first = rows[-1][0]["step"] + 1 if rows else 0
        self.folder, self.name = folder, "bpb" if causal else LEAKING
        self.writer = SummaryWriter(str(folder), purge_step=first)
        for row, timing in rows:
            self._versus(row, timing, first)  # taken back with the rest: bytes and seconds stand where steps do

    def add(self, row: Row, timing: Row, half_lives: Sequence[np.ndarray]) -> None:
        """Add one evaluation: its rows of metrics.jsonl and timing.jsonl, and the half-lives of every block."""
        step = row["step"]
        for split, loss in _losses(row):
            self.writer.add_scalar(f"{split}/{self.name}" if step else f"{STARTED}/{split}_{self.name}", loss, step)
        self._versus(row, timing)
        for tag, value in _watched(row, timing):
            self.writer.add_scalar(tag, value, step)
        for index, values in enumerate(half_lives):
            self.writer.add_histogram(f"weights/log2_half_life_block_{index}", np.log2(values), step)
        self.writer.flush()

    def _versus(self, row: Row, timing: Row, first: int = 0) -> None:
        """The losses of one evaluation after step 0 against bytes and seconds, from the position `first` on."""
        for axis, position in (("bytes", row["bytes"]), ("seconds", round(timing["seconds"]))):
            if row["step"] and position >= first:
                for split, loss in _losses(row):
                    self.writer.add_scalar(f"versus_{axis}/{split}_{self.name}", loss, position)

    def close(self, config: Row, result: Row) -> None:
        """Add the hyperparameters of the run beside its result, and end the file."""
        write_hparams(self.writer, config, result, first_columns(self.folder))
        self.writer.close()


def _losses(row: Row) -> Iterator[tuple[str, float]]:
    yield from ((split, loss) for split in ("train", "val") if (loss := row[f"{split}_bpb"]) is not None)


def _watched(row: Row, timing: Row) -> Iterator[tuple[str, float]]:
    """Everything of an evaluation beside its losses."""
    if "excess_bpb" in row:
        yield "val/excess_bpb" if row["step"] else f"{STARTED}/excess_bpb", row["excess_bpb"]
    saturation = row["saturation"]
    for name in ("entropy", "largest_probability", "saturated_share"):
        yield f"watch/{name}", saturation[name]
    yield "watch/logit_range", saturation["logit_max"] - saturation["logit_min"]
    yield "watch/learning_rate", row["learning_rate"]
    yield "watch/bytes_per_second", timing["bytes_per_second"]
    for index, value in enumerate(row.get("amplification", ())):
        yield f"watch/amplification_block_{index}", value
    kernel = row.get("kernel") or {"lags": (), "blocks": ()}
    if slope_range(kernel["lags"]) is not None:
        for index, value in enumerate(kernel_exponents(kernel["lags"], kernel["blocks"])):
            yield f"weights/kernel_exponent_block_{index}", float(value)


def columns(config: Row) -> dict[str, Value]:
    """The hyperparameters of a run by name, from its config.json: numbers or texts, by the name alone."""
    model, arm, train = config["model"], config["arm_options"], config["train"]
    patching, label = model["patching"], f" ({NOT_CAUSAL})" if model["patching"]["mode"] == "published" else ""
    size = patching["size"]
    return {
        "arm": config["arm"],
        "seed": config["seed"],
        "corpus": config["corpus"]["name"],
        **{name: model[name] for name in OF_THE_MODEL},
        **(UNKNOWN if is_code(model["kind"]) else {}),
        "patching": "none" if size == 1 else f"{patching['mode']}, {size} bytes{label}",
        "scheme": arm.get("scheme") or DEFAULT_SCHEMES.get(model["kind"], "its own"),
        "placement": arm.get("placement") or "of the scheme",
        **{name: train[name] for name in OF_THE_TRAINING},
        **{name: _option(name, arm.get(name)) for name in OPTIONS},
    }


def _option(name: str, value: Any) -> Value:
    """A number where the option always is one, else text: a column of both would be sorted as neither."""
    if isinstance(Arm.model_fields[name].default, float):
        return float(value)
    if value is None:
        return ABSENT
    return f"{value:g}" if isinstance(value, float) else str(value)


def first_columns(folder: Path) -> tuple[str, ...]:
    """The columns to show before any is chosen: of a run in a study the arm and what varies between arms.

    Few columns leave room for the results, which TensorBoard puts behind them.
    """
    path = folder.parents[1] / SPEC
    if not path.exists():
        return FIRST
    arms = []
    for arm in load_json(path)["arms"].values():
        train = {name: value for name, value in (arm.get("train") or {}).items() if value is not None}
        arms.append({**arm, **(arm.get("model") or {}), **train})
    names = (*OF_THE_MODEL, "patching", "corpus", "scheme", "placement", *OF_THE_TRAINING, *OPTIONS)
    return ("arm", *(name for name in dict.fromkeys(names) if any(arm.get(name) != arms[0].get(name) for arm in arms)))


def write_hparams(writer: "SummaryWriter", config: Row, result: Row, first: Sequence[str] = FIRST) -> None:
    """Add the run's columns and its results to the events of the run itself, at its last step; `first` stand first."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from torch.utils.tensorboard.summary import hparams

    metrics = {f"{GROUP}/{name}": result[name] for name in ENDINGS}
    known = columns(config)
    order = dict.fromkeys((*(name for name in first if name in known), *known))
    experiment, start, end = hparams({name: known[name] for name in order}, metrics)
    data = experiment.value[0].metadata.plugin_data
    content = HParamsPluginData.FromString(data.content)
    for column in content.experiment.hparam_infos:
        column.differs = column.name in first
    for metric in content.experiment.metric_infos:
        metric.display_name = ENDINGS[metric.name.tag.removeprefix(f"{GROUP}/")]
    data.content = content.SerializeToString()
    for summary in (experiment, start, end):
        writer._get_file_writer().add_summary(summary, result["steps"])
    for tag, value in metrics.items():
        writer.add_scalar(tag, value, result["steps"])
