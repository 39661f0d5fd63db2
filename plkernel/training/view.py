"""A model at one time for `plkernel.inspect`: half-lives, kernels, one evaluation; two times of it as tables."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plkernel.analysis.exponentials import Floats
from plkernel.common.cli import text_table
from plkernel.common.files import read_lines
from plkernel.common.layout import METRICS
from plkernel.config.condition import from_config
from plkernel.config.schema import CorpusSpec
from plkernel.data import corpora
from plkernel.data.windows import Bytes, check_length
from plkernel.memory.diagnostics import Memory, Saturation, Truncation, kernel_exponents, memory_of, slope_range
from plkernel.models.rwkv7 import RWKV7
from plkernel.results.study import Evaluation, State, validated
from plkernel.training.build import Model, build, initialise_
from plkernel.training.evaluate import Diagnosis, diagnose, kernels, memory

BATCH = 4
UNTRAINED_CONTEXT = 512  # of a model that was not trained here
NAMED = {"shortest": 0, "median": 3, "longest": 6}
"""Places among the quantiles of half-lives."""
TIMES = ("at initialisation", "now")


@dataclass(frozen=True)
class View:
    """The memory of the blocks of a model at one time, in bytes, and the figures of one evaluation.

    measured: of an RWKV-7, the exponents of its impulse responses, erasing included; empty for others.
    """

    memory: Memory
    figures: Diagnosis
    measured: Sequence[float] = ()

    @property
    def half_lives(self) -> list[dict[str, float]]:
        """The shortest, median and longest of every block, by name."""
        known = self.memory.half_lives[0].tolist() if self.memory.has_half_lives else []
        return [{name: block[place] for name, place in NAMED.items()} for block in known]

    @property
    def exponents(self) -> list[float]:
        """x of the law t**-x that the kernel of every block follows; empty where too few lags are known."""
        known = self.memory.has_kernels and slope_range(self.memory.lags)
        return self.memory.exponents()[0].tolist() if known else []

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        lags, blocks = self.memory.lags, self.memory.kernels[0].tolist() if self.memory.has_kernels else []
        slopes: dict[str, Any] = {"exponents": self.exponents, "exponents_over_lags": slope_range(lags)}
        if self.measured:
            slopes["measured_exponents"] = list(self.measured)
        return {
            "half_lives": self.half_lives,
            "kernel": {"lags": lags.tolist(), "blocks": blocks, **slopes},
            "bits_per_byte": self.figures.bits_per_byte,
            **self.figures.to_row(),
        }

    def cells(self, block: int) -> list[str]:
        """Half-lives and amplification of a block, in words."""
        lives = self.half_lives[block].values() if self.half_lives else ()
        growth = self.figures.amplification
        words = " / ".join(f"{value:.0f}" if value >= 1000 else f"{value:.3g}" for value in lives)
        return [words or "-", f"{growth.per_block[block]:.3f}" if growth else "-"]

    def summary(self) -> dict[str, str]:
        """The figures of all blocks together, in words."""
        seen, growth = self.figures.saturation, self.figures.amplification
        uniform = f"in nats (uniform: {math.log(256):.3f})"
        return {
            "bits per byte": f"{self.figures.bits_per_byte:.4f}",
            f"loss {uniform}": f"{seen.loss:.3f}",
            "logits": f"{seen.logit_min:+.1f} .. {seen.logit_max:+.1f}",
            "largest probability, mean": f"{seen.largest_probability:.3f}",
            "largest probability, maximum": f"{seen.peak_probability:.3f}",
            f"entropy {uniform}": f"{seen.entropy:.3f}",
            "saturated positions": f"{seen.saturated_share:.1%}",
            "amplification per block, geometric mean": f"{growth.mean:.3f}" if growth else "-",
        }


def view(model: Model, windows: Tensor) -> View:
    """The memory of `model` up to the length of `windows` (n, context + 1), and one evaluation on them."""
    half_lives = [values.numpy() for values in model.half_lives()]
    known = memory_of([memory(half_lives, kernels(model, windows.shape[1] - 1))])
    return View(known, diagnose(model, windows, BATCH, torch.device("cpu")), measured_exponents(model, known.lags))


def measured_exponents(model: Model, lags: Floats) -> list[float]:
    """The exponents of the impulse responses of an RWKV-7; none for models that never erase, or with too few lags."""
    if not isinstance(model, RWKV7) or not slope_range(lags):
        return []
    rows = np.stack([row.numpy() for row in model.responses(torch.tensor(lags, dtype=torch.long))])
    exponents: list[float] = kernel_exponents(lags, rows).tolist()
    return exponents


def at_initialisation(config: dict[str, Any]) -> Model | None:
    """The model of a run before its first step, from its config.json.

    None if it was not trained here, and where code that is not imported here had a part in it.
    """
    if "seed" not in config or (condition := from_config(config)).code:
        return None
    return initialise_(build(condition), condition, config["seed"])


def recorded(folder: Path) -> tuple[int, View, View]:
    """The step of a run's last evaluation, and the model at the first and at the last, from the rows alone.

    For models of other people's code, which is not imported to look at them. ValueError where there is no such row.
    """
    path = folder / METRICS
    rows = [validated(path, Evaluation, row) for row in read_lines(path)] if path.exists() else []
    if not rows:
        raise ValueError(f"{path}: holds no evaluation of the run yet")
    views = []
    for row in (rows[0], rows[-1]):
        state = validated(path, State, row)
        if not state.get("saturation") or row["val_bpb"] is None:
            raise ValueError(f"{path}: the row of step {row['step']} does not say how saturated its predictions were")
        figures = Diagnosis(row["val_bpb"], np.empty((0, 0)), Saturation.from_dict(state["saturation"]), None)
        views.append(View(memory_of([state]), figures))
    return rows[-1]["step"], views[0], views[1]


def calibrated_gains(folder: Path) -> list[float]:
    """The factors of a run's calibration, from its first row; none where its scheme asks for none."""
    rows = read_lines(folder / METRICS)
    gains: list[float] = rows[0].get("calibration", {}).get("gains", []) if rows else []
    return gains


def validation_text(config: dict[str, Any], corpus: str | None, option: str = "corpus") -> tuple[str, Bytes, int]:
    """The name of the corpus, its validation split, and the context of the run, for which the split is long enough.

    option: of the command, for messages. Raises ValueError when the run's corpus has other bytes here, or none is named
    for a model that was not trained here.
    """
    known = config.get("corpus", {})
    if corpus is None and not known:
        raise ValueError(f"{option} must be given for a model that was not trained here, as in --{option} stdlib")
    options = {key: value for key, value in known.items() if key in CorpusSpec.model_fields}
    section = CorpusSpec.model_validate(options) if corpus is None else CorpusSpec(name=corpus)
    text = corpora.load(section.name, **section.reading)
    if corpus is None and text.sha256 != known["sha256"]:
        raise ValueError(
            f"corpus {section.name!r} is not what the run was trained on (other sha256): name one with --{option}"
        )
    data = text.splits(section.validation, section.test).validation
    context = config.get("train", {}).get("context", UNTRAINED_CONTEXT)
    check_length(data, context, f"the validation split of corpus {section.name!r}")
    return section.name, data, context


def truncated(curve: Truncation) -> str:
    """The worth of the last bytes, as a table."""
    rows = [
        [f"{given:,}", f"{bpb:.4f}", f"{cost:+.4f} +- {1.96 * error:.4f}" if error else "-"]
        for given, bpb, cost, error in zip(curve.given, curve.bpb, curve.cost, curve.standard_error, strict=True)
    ]
    title = f"bits per byte at {curve.windows:,} bytes with only so many bytes given before them, and the cost (95 %):"
    return f"{title}\n{text_table(['given', 'bits per byte', 'cost'], rows)}"


def render(start: View | None, now: View, note: str = "") -> str:
    """All tables as text; `note` follows the bits per byte."""
    blocks, span = range(now.memory.blocks), slope_range(now.memory.lags)
    tables = []
    if blocks:
        header = ["block", "half-lives at initialisation", "now", "amplification at initialisation", "now"]
        each = [(start.cells(block) if start else ["-", "-"], now.cells(block)) for block in blocks]
        cells = [[str(block), old[0], new[0], old[1], new[1]] for block, (old, new) in enumerate(each)]
        tables.append(text_table(header, cells))
    if span and now.memory.has_kernels:
        unknown = [math.nan] * len(blocks)
        columns: dict[str, Sequence[float]] = {
            "x at initialisation": (start and start.exponents) or unknown,
            "now": now.exponents,
        }
        if now.measured:
            columns |= {
                "measured at initialisation": (start and start.measured) or unknown,
                "measured now": now.measured,
            }
        rows = [
            [f"{block}", *("-" if math.isnan(x) else f"{x:.3f}" for x in xs)]
            for block, *xs in zip(blocks, *columns.values(), strict=True)
        ]
        erasing = "; measured with erasing, which kernels leave out" if now.measured else ""
        title = f"kernels fall as t**-x over lags {span[0]:g} to {span[1]:g} bytes{erasing}:"
        tables.append(f"{title}\n{text_table(['block', *columns], rows)}")
    first, last = start.summary() if start else {}, now.summary()
    rows = [[name + note * (name == "bits per byte"), first.get(name, "-"), last[name]] for name in last]
    return "\n\n".join([*tables, text_table(["", *TIMES], rows)])
