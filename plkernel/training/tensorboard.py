"""A run in TensorBoard: its curves, and its row in the table of hyperparameters."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plkernel.common.imports import is_code
from plkernel.config.condition import DEFAULT_SCHEMES
from plkernel.config.schema import IN_THE_STUDY, Arm
from plkernel.memory.diagnostics import kernel_exponents, slope_range
from plkernel.models import NOT_CAUSAL

Row = Mapping[str, Any]
LEAKING = "bpb_" + NOT_CAUSAL.replace(", ", "_").replace(" ", "_")
ENDINGS = ("final_val_bpb", "best_val_bpb", "test_bpb")
NODES = ("node_rates", "node_multipliers")
ELSEWHERE = {*IN_THE_STUDY, *NODES, "scheme", "learning_rate", "rates", "model", "corpus"}
"""Options of an arm that are no columns of their own."""


class Curves:
    """Bits per byte against step and bytes; saturation, amplification and speed; half-lives and kernels.

    Losses at step 0, 8 bits per byte where nothing is learnt yet, are tagged when_started: on the curves' axis they
    would flatten all the rest. At the end follow the hyperparameters with their result.
    """

    def __init__(self, folder: Path, causal: bool, rows: Sequence[Row]) -> None:
        """rows: those of metrics.jsonl that the run goes on from; later points are taken back."""
        from torch.utils.tensorboard import SummaryWriter

        first = rows[-1]["step"] + 1 if rows else 0
        self.name = "bpb" if causal else LEAKING
        self.writer = SummaryWriter(str(folder), purge_step=first)
        for row in rows:  # points against bytes are purged by their position
            self._versus(row, first)

    def add(self, row: Row, timing: Row, half_lives: Sequence[np.ndarray]) -> None:
        """Add one evaluation: its rows of metrics.jsonl and timing.jsonl, and the half-lives of every block."""
        step, watched = row["step"], row["saturation"]
        names = ("entropy", "largest_probability", "saturated_share")
        scalars = {f"watch/{name}": watched[name] for name in names}
        scalars["watch/logit_range"] = watched["logit_max"] - watched["logit_min"]
        scalars["watch/learning_rate"] = row["learning_rate"]
        scalars["watch/bytes_per_second"] = timing["bytes_per_second"]
        for split in ("train", "val"):
            if (loss := row[f"{split}_bpb"]) is not None:
                scalars[f"{split}/{self.name}" if step else f"when_started/{split}_{self.name}"] = loss
        if "excess_bpb" in row:
            scalars["val/excess_bpb" if step else "when_started/excess_bpb"] = row["excess_bpb"]
        for block, value in enumerate(row.get("amplification", ())):
            scalars[f"watch/amplification_block_{block}"] = value
        if (kernel := row.get("kernel")) and slope_range(kernel["lags"]):
            for block, value in enumerate(kernel_exponents(kernel["lags"], kernel["blocks"])):
                scalars[f"weights/kernel_exponent_block_{block}"] = float(value)
        for tag, value in scalars.items():
            self.writer.add_scalar(tag, value, step)
        for block, values in enumerate(half_lives):
            self.writer.add_histogram(f"weights/log2_half_life_block_{block}", np.log2(values), step)
        self._versus(row)
        self.writer.flush()

    def _versus(self, row: Row, first: int = 0) -> None:
        """Add the losses of one evaluation after step 0 against bytes, from the position `first` on."""
        for split in ("train", "val"):
            if row["step"] and row["bytes"] >= first and (loss := row[f"{split}_bpb"]) is not None:
                self.writer.add_scalar(f"versus_bytes/{split}_{self.name}", loss, row["bytes"])

    def close(self, config: Row, result: Row) -> None:
        """Add the hyperparameters of the run beside its result, and end the file."""
        from torch.utils.tensorboard.summary import hparams

        metrics = {f"when_ended/{name}": result[name] for name in ENDINGS}
        for summary in hparams(columns(config), metrics):  # in the run's own file: another would look like two runs
            self.writer._get_file_writer().add_summary(summary, result["steps"])
        for tag, value in metrics.items():
            self.writer.add_scalar(tag, value, result["steps"])
        self.writer.close()


def columns(config: Row) -> dict[str, str | float]:
    """The hyperparameters of a run by name, from its config.json; a column is of one type in all runs."""
    model, arm, train = config["model"], config["arm_options"], config["train"]
    patching = model["patching"]
    leak = f" ({NOT_CAUSAL})" if patching["mode"] == "published" else ""
    known: dict[str, Any] = {name: config[name] for name in ("arm", "seed")}
    known |= {name: train[name] for name in ("learning_rate", "weight_decay", "batch", "context")}
    known |= {name: model[name] for name in ("kind", "dim", "layers", "gain", "parameters")}
    if is_code(model["kind"]):
        known |= {"dim": 0, "layers": 0, "gain": "-"}  # unknown
    known["patching"] = "none" if patching["size"] == 1 else f"{patching['mode']}, {patching['size']} bytes{leak}"
    known["corpus"] = config["corpus"]["name"]
    known["scheme"] = arm.get("scheme") or DEFAULT_SCHEMES.get(model["kind"], "its own")
    for name, option in Arm.model_fields.items():
        if name not in ELSEWHERE:
            value = arm.get(name)
            numeric = isinstance(option.default, float)
            known[name] = value if numeric else "-" if value is None else str(value)
    return known
