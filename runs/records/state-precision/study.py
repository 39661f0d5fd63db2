"""The cost of a recurrent state stored in half precision for models that were trained in float32.

python runs/records/state-precision/study.py trains every condition of a record at every seed, reads
held-out text with the state stored in four ways, and adds a line to losses.jsonl in the folder of
the record; rows that are there are not made again. --models ssm trains one kind of model, so that
two processes may share the work. --power FILE --seeds 0 1 2 3 4 5 writes the power of the
hypotheses for the spread of a pilot, whose rows FILE has, to registered.json. --report-only writes
table.json, with the verdicts on hypotheses.toml, and state.png and .svg, which show all records,
and losses.png and .svg of a record that compares losses of conditions.

--record state-precision-gdn is of gated delta nets; it was declared when the first rows were there.
--record state-precision-gdn-own has the initialisations that people use for them, and compares the
losses of conditions too; it was declared when the rows of both others were there.

The text is Python's library, half of it dense, half of it sparse: there seven zero bytes stand
behind every byte, so that little is to be written between two bytes of text. Blocks of both
alternate in training; evaluation is of either, on bytes of text alone.
"""

import json
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from plkernel.common import cli
from plkernel.common.environment import environment
from plkernel.common.files import atomic_write, read_lines, save_json
from plkernel.config.condition import Condition
from plkernel.config.reading import parse_spec
from plkernel.data import corpora
from plkernel.data.windows import fixed_windows
from plkernel.probing.stored_states import Storage, stored_losses
from plkernel.results.claims import power
from plkernel.results.judging import Judged, judged, read_hypotheses
from plkernel.results.power import ASSUMED
from plkernel.results.rows import Row
from plkernel.training.checkpoint import open_model
from plkernel.training.evaluate import token_losses
from plkernel.training.loop import open_run, run_training

HERE = Path(__file__).resolve().parent
RECORDS = HERE.parent
CONTEXT = 128
TIMES = 16
"""Length of the windows of evaluation in contexts."""
EDGES = [0, *(CONTEXT * 2**power for power in range(5))]
BANDS = ["within", "1-2", "2-4", "4-8", "8-16"]
"""Ranges of positions between EDGES, in contexts."""
WINDOWS = 6
"""Windows of evaluation of each kind of text."""
EVERY = 8
"""Bytes in sparse text for each byte that is text."""
BLOCK = 2048
"""Bytes of dense and of sparse text that alternate in training."""
TRAINING_TEXT = 6_000_000
"""Bytes of the library that training is drawn from; evaluation is on those behind them."""
STORAGES = (
    Storage("float32"),
    Storage("bfloat16"),
    Storage("float16"),
    Storage("bfloat16", stochastic=True),
)
GATED_DELTA = {"dim": 32, "layers": 2, "heads": 8, "head_size": 8}
MODELS: dict[str, dict[str, Any]] = {
    "ssm": {"kind": "ssm", "dim": 64, "layers": 2, "gain": "ema"},
    "rwkv7": {"kind": "rwkv7", "dim": 32, "layers": 2, "head_size": 32},
    "mamba2": {
        "kind": "transformers:Mamba2ForCausalLM",
        "config": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 16,
            "n_groups": 1,
            "chunk_size": 16,
        },
    },
    "gdn": {"kind": "plkernel.models.gated_delta:gated_delta", "config": GATED_DELTA},
    "gdn-bounded": {
        "kind": "plkernel.models.gated_delta:gated_delta",
        "config": {**GATED_DELTA, "lower_bound": -5.0},
    },
}
"""A further model is one more entry here and in CONDITIONS."""
TRAIN: dict[str, Any] = {
    "context": CONTEXT,
    "batch": 16,
    "steps": 400,
    "learning_rate": 4e-3,
    "warmup": 20,
    "final_fraction": 0.05,
    "eval_every": 400,
    "eval_windows": 32,
    "test_windows": 32,
}
SHORTEST = 1.2
EXACT = "float32"
EITHER_WAY = ", either way"
LOSS = "loss"
PILOT = "pilot/losses.jsonl"


@dataclass(frozen=True)
class Trained:
    """One condition: a kind of model, and its initialisation.

    begun    the longest half-life in bytes of log-spaced ones, or a name of PUBLISHED
    carried  trained with the state of the window before, rather than from a blank one
    """

    model: str
    begun: int | str
    carried: bool = False

    @property
    def name(self) -> str:
        name = f"{self.model}, {self.begun}"
        return f"{name}, carried" if self.carried else name


CONDITIONS = {
    "state-precision": (
        Trained("ssm", 64),
        Trained("ssm", 1024),
        Trained("ssm", 16384),
        Trained("ssm", 16384, carried=True),
        Trained("rwkv7", 16384),
        Trained("mamba2", 16384),
    ),
    "state-precision-gdn": (Trained("gdn", 16384),),
    "state-precision-gdn-own": (
        Trained("gdn", "qwen3-next"),
        Trained("gdn", "fla"),
        Trained("gdn-bounded", "fla"),
        Trained("gdn-bounded", 16384),
    ),
}
"""Of every record, a folder of its own with its own hypotheses."""
COMPARED = {"state-precision-gdn-own": ("state-precision-gdn", "gdn, 16384")}
"""Records that compare the losses of conditions, with the record and condition of the baseline."""
GATED_DELTA_INIT = "plkernel.models.init.gated_delta:"
PUBLISHED = {
    ("gdn", "qwen3-next"): f"{GATED_DELTA_INIT}qwen3_next_",
    ("gdn", "fla"): f"{GATED_DELTA_INIT}flash_linear_attention_",
    ("gdn-bounded", "fla"): f"{GATED_DELTA_INIT}flash_linear_attention_bounded_",
}
"""Initialisations of other people, by the kind of model and their name."""
LOG_SPACED = {
    "mamba2": "plkernel.models.init.mamba2:log_spaced_",
    "gdn": "plkernel.models.init.mamba2:log_spaced_",
    "gdn-bounded": f"{GATED_DELTA_INIT}log_spaced_",
}
"""Log-spaced initialisations of kinds that are named as module:attribute."""


def spread_out(text: np.ndarray) -> np.ndarray:
    """Sparse text: EVERY - 1 zero bytes behind each byte."""
    spaced = np.zeros((text.size, EVERY), np.uint8)
    spaced[:, 0] = text
    return spaced.ravel()


def mixed(text: np.ndarray) -> np.ndarray:
    """Blocks of dense and of sparse text in turns, all of the text once."""
    piece = BLOCK + BLOCK // EVERY
    blocks = []
    for start in range(0, text.size - piece + 1, piece):
        dense, sparse = np.split(text[start : start + piece], [BLOCK])
        blocks += [dense, spread_out(sparse)]
    return np.concatenate(blocks)


def texts() -> tuple[np.ndarray, dict[str, Tensor]]:
    """The bytes of training, and windows (n,T+1) of evaluation by the kind of text."""
    library = np.asarray(corpora.load("stdlib").bytes)
    held_out = library[TRAINING_TEXT:]
    length = TIMES * CONTEXT
    dense = fixed_windows(held_out, length, WINDOWS)
    few = fixed_windows(held_out, length // EVERY, WINDOWS).numpy()
    sparse = np.stack([spread_out(row)[: length + 1] for row in few.astype(np.uint8)])
    windows = {"dense": dense, "sparse": torch.from_numpy(sparse.astype(np.int64))}
    return mixed(library[:TRAINING_TEXT]), windows


def condition_of(one: Trained, corpus: Path) -> Condition:
    """The condition of plkernel for one of CONDITIONS, trained on a file."""
    arm: dict[str, Any]
    if isinstance(one.begun, str):
        arm = {"init": PUBLISHED[one.model, one.begun]}
    else:
        lengths = {"shortest": SHORTEST, "longest": float(one.begun)}
        if one.model in LOG_SPACED:
            arm = {"init": LOG_SPACED[one.model], "init_options": lengths}
        else:
            arm = {"placement": "log-spaced", **lengths}
    values = {
        "name": "state-precision",
        "baseline": "arm",
        "seeds": [0],
        "corpus": {"name": str(corpus)},
        "model": MODELS[one.model],
        "train": {**TRAIN, "carry": True} if one.carried else TRAIN,
        "arms": {"arm": arm},
    }
    return parse_spec(values, "state-precision", trusted=True).condition("arm")


def by_band(bits: np.ndarray, counted: np.ndarray) -> list[float]:
    """Mean bits (n,T) of the positions that count, for every range of positions."""
    means = []
    for start, stop in pairwise(EDGES):
        part = bits[:, start:stop]
        means.append(float(part[counted[:, start:stop]].mean()))
    return means


def row_of(one: Trained, seed: int, corpus: Path, windows: Mapping[str, Tensor]) -> dict[str, Any]:
    """Train one condition at one seed, and read the held-out text in all storages."""
    with tempfile.TemporaryDirectory() as folder:
        task = open_run(condition_of(one, corpus), seed, Path(folder), checked=True)
        result = run_training(task, progress_bar=False)
        model, _, _ = open_model(Path(folder), trusted=True)
    kinds = list(windows)
    together = torch.cat([windows[kind] for kind in kinds])
    bits = stored_losses(model, together, STORAGES, seed)
    whole = token_losses(model, together[:1], 1)
    losses: dict[str, dict[str, list[float]]] = {}
    for number, kind in enumerate(kinds):
        own = slice(number * WINDOWS, (number + 1) * WINDOWS)
        counted = windows[kind][:, 1:].numpy() != 0
        losses[kind] = {
            storage.name: by_band(bits[place, own], counted)
            for place, storage in enumerate(STORAGES)
        }
    return {
        "condition": one.name,
        "seed": seed,
        "losses": losses,
        "steps_against_parallel": float(np.abs(bits[0, :1] - whole).max()),
        "validation": result["final_val_bpb"],
        "half_lives": [np.quantile(of, (0, 0.5, 1)).tolist() for of in model.half_lives()],
        "parameters": sum(values.numel() for values in model.parameters()),
        "environment": environment(1),
    }


def train(
    conditions: Sequence[Trained], seeds: Sequence[int], models: Sequence[str], out: Path
) -> None:
    """Add the rows that are missing to the file `out`."""
    torch.set_num_threads(1)
    training, windows = texts()
    present = read_lines(out) if out.exists() else []
    done = {(row["condition"], row["seed"]) for row in present}
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "mixed.bin"
        training.tofile(corpus)
        for seed in seeds:
            for one in conditions:
                if one.model not in models or (one.name, seed) in done:
                    continue
                row = row_of(one, seed, corpus, windows)
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{one.name}, seed {seed}: {row['validation']:.4f}", flush=True)


def judge_rows(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for each storage, seed and group; a group is condition, kind of text and positions.

    A storage "either way" has the loss in float32 and the distance of its own from that: whether
    rounding raises or lowers a loss may depend on the seed.
    """
    found = []
    for row in rows:
        for kind, of_storage in row["losses"].items():
            for place, band in enumerate(BANDS):
                group = f"{row['condition']}, {kind}, {band}"
                exact = of_storage[EXACT][place]
                for storage, bands in of_storage.items():
                    value = bands[place]
                    found.append(Row(storage, row["seed"], value, None, group))
                    if storage != EXACT:
                        apart = exact + abs(value - exact)
                        name = f"{storage}{EITHER_WAY}"
                        found.append(Row(name, row["seed"], apart, None, group))
    return found


def loss_rows(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row in float32 for each condition, seed and group: validation, or text and positions."""
    found = []
    for row in rows:
        losses = {f"{LOSS}, validation": row["validation"]}
        for kind, of_storage in row["losses"].items():
            for band, value in zip(BANDS, of_storage[EXACT], strict=True):
                losses[f"{LOSS}, {kind}, {band}"] = value
        found += [
            Row(row["condition"], row["seed"], value, None, group)
            for group, value in losses.items()
        ]
    return found


def compared_rows(record: str, own: Sequence[Mapping[str, Any]], file: str) -> list[Row]:
    """`loss_rows` of a record and of its baseline, whose rows are in `file`; empty without one."""
    if record not in COMPARED:
        return []
    origin, condition = COMPARED[record]
    others = [row for row in read_lines(RECORDS / origin / file) if row["condition"] == condition]
    return loss_rows([*others, *own])


def differences(rows: Sequence[Row], arm: str, against: str, group: str) -> list[float]:
    """Bits per byte of one storage minus another in one group, seed by seed."""
    own = {row.seed: row.value for row in rows if (row.arm, row.size) == (arm, group)}
    base = {row.seed: row.value for row in rows if (row.arm, row.size) == (against, group)}
    return [own[seed] - base[seed] for seed in own]


def powers(folder: Path, pilot: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The power of every hypothesis with `seeds`, for the spread of the pilot.

    True differences are 0 for equal, and for higher and lower twice the margin or half of what the
    pilot showed, whichever is farther from 0.
    """
    own = read_lines(pilot)
    rows = [*judge_rows(own), *compared_rows(folder.name, own, PILOT)]
    stating = read_hypotheses(folder / "hypotheses.toml")
    found = []
    for one in stating.hypotheses:
        values = differences(rows, one.arm, one.against or EXACT, one.size)
        members = sum(other.family == one.family for other in stating.hypotheses)
        spread = statistics.stdev(values)
        mean = statistics.fmean(values)
        true = ASSUMED[one.claim] * one.margin
        if one.claim == "higher":
            true = max(true, mean / 2)
        if one.claim == "lower":
            true = min(true, mean / 2)
        chance = power(
            one.claim, one.margin, true, spread, len(seeds), members, one.alpha, len(values)
        )
        found.append(
            {
                "name": one.name,
                "pilot_mean": mean,
                "sd": spread,
                "true": true,
                "power": None if math.isnan(chance) else chance,
            }
        )
    return found


def register(folder: Path, pilot: Path, seeds: Sequence[int]) -> None:
    """Write the hypotheses of a record with their power to registered.json."""
    stating = read_hypotheses(folder / "hypotheses.toml")
    content: dict[str, Any] = {
        "seeds": list(seeds),
        "hypotheses": [one.model_dump(mode="json") for one in stating.hypotheses],
        "pilot_seeds": sorted({row["seed"] for row in read_lines(pilot)}),
        "power": powers(folder, pilot, seeds),
    }
    save_json(folder / "registered.json", content)
    for one in content["power"]:
        print(
            f"{one['power']:.2f}  mean {one['pilot_mean']:+.4f}, sd {one['sd']:.4f}  {one['name']}"
        )


def table_of(folder: Path) -> dict[str, Any]:
    """Differences and hypotheses for table.json: those on states, then on losses."""
    own = read_lines(folder / "losses.jsonl")
    stating = read_hypotheses(folder / "hypotheses.toml")
    on_losses = tuple(one for one in stating.hypotheses if one.size.startswith(f"{LOSS}, "))
    on_states = tuple(one for one in stating.hypotheses if one not in on_losses)
    result = judged(judge_rows(own), EXACT, stating.model_copy(update={"hypotheses": on_states}))
    content: dict[str, Any] = {
        "rows": state_differences(result),
        "hypotheses": verdicts_of(result),
    }
    losses = compared_rows(folder.name, own, "losses.jsonl")
    if losses:
        _, baseline = COMPARED[folder.name]
        stated = stating.model_copy(update={"hypotheses": on_losses})
        result = judged(losses, baseline, stated)
        content["losses"] = loss_differences(result)
        content["hypotheses"] += verdicts_of(result)
    return content


def interval_of(difference: Any) -> dict[str, Any]:
    """A mean difference with its 95 % interval, and the seeds behind it."""
    return {name: getattr(difference, name) for name in ("mean", "low", "high", "n")}


def state_differences(result: Judged) -> list[dict[str, Any]]:
    """Differences to float32 with 95 % intervals."""
    rows = []
    for one in result.compared:
        *condition, kind, band = one.size.split(", ")
        rows.append(
            {
                "condition": ", ".join(condition),
                "text": kind,
                "positions": band,
                "storage": one.arm,
                **interval_of(one.difference),
            }
        )
    return rows


def loss_differences(result: Judged) -> list[dict[str, Any]]:
    """Differences of conditions to the baseline, in float32, with 95 % intervals."""
    rows = []
    for one in result.compared:
        rows.append(
            {
                "condition": one.arm,
                "baseline": result.baseline,
                "where": one.size.removeprefix(f"{LOSS}, "),
                **interval_of(one.difference),
            }
        )
    return rows


def verdicts_of(result: Judged) -> list[dict[str, Any]]:
    """Hypotheses with what became of them."""
    verdicts = []
    for stated in result.stated:
        judgement = result.verdicts[stated.name]
        verdicts.append(
            {
                **stated.model_dump(mode="json"),
                "mean": judgement.mean,
                "low": judgement.low,
                "high": judgement.high,
                "test": judgement.test,
                "verdict": judgement.verdict,
            }
        )
    return verdicts


def float32_losses(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean bits per byte in float32 by condition (without blanks), kind of text and positions."""
    found: dict[str, Any] = {}
    for condition in dict.fromkeys(row["condition"] for row in rows):
        own = [row["losses"] for row in rows if row["condition"] == condition]
        found[condition.replace(" ", "")] = {
            kind: dict(
                zip(
                    BANDS,
                    np.mean([of[kind][EXACT] for of in own], axis=0).tolist(),
                    strict=True,
                )
            )
            for kind in own[0]
        }
    return found


def every_row() -> list[dict[str, Any]]:
    """The rows of all records that have some."""
    files = [RECORDS / name / "losses.jsonl" for name in CONDITIONS]
    return [row for file in files if file.exists() for row in read_lines(file)]


def report(folder: Path) -> None:
    """Write table.json of a record from its rows and hypotheses, and the figures."""
    from figure import figure, initialisations

    from plkernel.analysis.figures.style import rendered

    rows = read_lines(folder / "losses.jsonl")
    sizes = [row["parameters"] for row in rows]
    content = table_of(folder)
    content["float32"] = float32_losses(rows)
    content["parameters"] = {"fewest": min(sizes), "most": max(sizes)}
    save_json(folder / "table.json", {**content, "environment": rows[0]["environment"]})
    for one in content["hypotheses"]:
        print(
            f"{one['verdict']:10} {one['mean']:+.4f} ({one['low']:+.4f} to {one['high']:+.4f})"
            f"  {one['name']}"
        )
    for kind, data in rendered(figure(every_row()), ("png", "svg")).items():
        atomic_write(HERE / f"state.{kind}", data)
    if folder.name in COMPARED:
        _, baseline = COMPARED[folder.name]
        drawn = initialisations(every_row(), baseline)
        for kind, data in rendered(drawn, ("png", "svg")).items():
            atomic_write(folder / f"losses.{kind}", data)


def state_precision(
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5),
    models: tuple[str, ...] = tuple(MODELS),
    record: Literal[
        "state-precision", "state-precision-gdn", "state-precision-gdn-own"
    ] = "state-precision",
    out: Path | None = None,
    power: Path | None = None,
    report_only: bool = False,
) -> None:
    """Train and evaluate what is missing.

    Args:
        seeds: Seeds of training and of stochastic rounding.
        models: Some of the kinds of models instead of all.
        record: Folder beside that of this script, with hypotheses and conditions of its own.
        out: File to which rows are added; the one of the record if not given.
        power: Rows of a pilot; writes registered.json for these seeds instead of training.
        report_only: Write table.json and the figure instead of training.
    """
    folder = RECORDS / record
    if power is not None:
        register(folder, power, seeds)
    elif report_only:
        report(folder)
    else:
        train(CONDITIONS[record], seeds, models, out or folder / "losses.jsonl")


if __name__ == "__main__":
    cli.main(state_precision, prog="python runs/records/state-precision/study.py")
