"""The part of the report page that says what training did to the memory of the arms, and to their outputs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from plkernel.common.imports import is_code
from plkernel.common.numbers import written
from plkernel.memory.diagnostics import Memory
from plkernel.results.comparison import Block, Comparison, blocks
from plkernel.results.figures import MOST_PANELS
from plkernel.results.memory import Change, changes
from plkernel.results.page.charts import captions
from plkernel.results.page.charts.memory import half_lives, kernels
from plkernel.results.page.charts.published import published_chart
from plkernel.results.page.document import Cell, Group, Line, PageSection, Part, Table, folded, number, prose, section
from plkernel.results.page.parts import arm_name, aside, group_title
from plkernel.results.published import reading

Blocks = Sequence[tuple[Block, Sequence[Change]]]
DRAWN = {
    "Kernels": (kernels, captions.KERNELS_OF, captions.KERNELS, attrgetter("has_kernels")),
    "Half-lives": (half_lives, captions.HALF_LIVES_OF, captions.HALF_LIVES, attrgetter("has_half_lives")),
}


def memory_sections(comparison: Comparison) -> list[PageSection]:
    """Kernels, half-lives and outputs before and after training; nothing of what the rows do not hold."""
    found = [(block, changes(comparison, block)) for block in blocks(comparison)]
    parts = [
        *_charts(found, "Kernels"),
        *_exponents(comparison, found),
        *_charts(found, "Half-lives"),
        *_half_lives(comparison, found),
        *_outputs(comparison, found),
        prose("soft", _left_out(found)),
    ]
    return section("Memory before and after training", *parts)


def _left_out(found: Blocks) -> Iterator[str]:
    """A sentence for every kind of other people's models whose runs recorded no memory."""
    kinds = {(arm.kind, what) for _, arms in found for arm in arms for what in arm.unknown if is_code(arm.kind)}
    for kind in sorted({kind for kind, _ in kinds}):
        missing = " and ".join(sorted(what for of, what in kinds if of == kind))
        yield f"Left out: {missing} of {kind}, which the model does not say; its code is not imported for a report."


def published_sections(comparison: Comparison) -> list[PageSection]:
    """The published figures from this study's rows, where its three conditions are among the arms."""
    read = reading(comparison)
    return section("The published figures, redrawn", published_chart(comparison, read)) if read else []


def _charts(found: Blocks, title: str) -> list[Part]:
    """The chart of the first block in view, those of further blocks to be opened."""
    shown = []
    draw, description, caption, has = DRAWN[title]
    for block, arms in found:
        known = [(slot, one) for slot, one in enumerate(arms) if has(one)]
        if known:
            said = f"{caption}{captions.left_out(len(known), MOST_PANELS)}"
            where = f"{block.title}: " if block.title else ""
            shown.append((group_title(block), draw(known[:MOST_PANELS], f"{where}{description}", said)))
    return [one if at == 0 else folded(_headed(title, where), one) for at, (where, one) in enumerate(shown)]


def _headed(title: str, where: Cell) -> Cell:
    """The title before what it is of."""
    first, *others = where.lines
    return Cell((Line(f"{title}: {first.text}"), *others))


def _exponents(comparison: Comparison, found: Blocks) -> list[Part]:
    ranges = {arm.slope_range for _, arms in found for arm in arms if arm.slope_range}
    if not ranges:
        return []
    first, last = min(low for low, _ in ranges), max(high for _, high in ranges)
    caption = (
        f"How steeply kernels fall: x of t**-x by least squares over the lags {first:g} to {last:g} bytes on log-log "
        "axes, mean over blocks and seeds, under it the standard deviation over seeds (of the means over blocks). "
        "Beside it every block after training, from the first, mean over seeds."
    )
    header = ["arm", "at initialisation", "after training", "change", "by block"]
    groups = _grouped(comparison, found, _exponent_row, lambda arm: arm.slope_range is not None)
    return [aside(comparison, "Slopes of kernels in numbers", Table.of(header, groups, caption))]


def _exponent_row(arm: Change) -> list[Any]:
    before, after = arm.before.exponents(), arm.after.exponents()
    columns = [values.mean(axis=1) for values in (before, after, after - before)]
    each = ", ".join(f"{value:.2f}" for value in after.mean(axis=0))
    return [*map(_over_seeds, columns, (".2f", ".2f", "+.2f")), number(_minus(each))]


def _over_seeds(values: np.ndarray, form: str) -> Cell:
    """The mean over seeds, under it their standard deviation where there are two or more."""
    spread = [f"\N{PLUS-MINUS SIGN} {values.std(ddof=1):.3f}"] if len(values) > 1 else []
    return number(_minus(written(values.mean(), form)), *spread)


def _half_lives(comparison: Comparison, found: Blocks) -> list[Part]:
    header = ["arm", *(f"{name}, {time}" for name in ("shortest", "median", "longest") for time in ("before", "after"))]
    known = _grouped(comparison, found, _half_life_row, lambda arm: arm.has_half_lives)
    caption = "Half-lives in bytes at initialisation and after training: geometric means over blocks and seeds."
    return [folded("Half-lives in numbers", Table.of(header, known, caption))] if known else []


def _half_life_row(arm: Change) -> list[Any]:
    before, after = (_central(memory) for memory in (arm.before, arm.after))
    return [number(_half_life(values[index])) for index in (0, 3, 6) for values in (before, after)]


def _central(memory: Memory) -> np.ndarray:
    return np.asarray(np.exp(np.log(memory.half_lives).mean(axis=(0, 1))))


def _outputs(comparison: Comparison, found: Blocks) -> list[Part]:
    """Saturation of the predictions, and how much the residual stream grows."""
    grows = any(output.get("amplification") for _, arms in found for arm in arms for output in arm.after_outputs)
    names = ["saturated positions", "range of logits", "entropy in nats", *(["growth per block"] if grows else [])]
    header = ["arm", *(f"{name}, {time}" for name in names for time in ("before", "after"))]
    known = _grouped(comparison, found, lambda arm: _output_row(arm, grows), lambda arm: arm.has_outputs)
    caption = (
        "Predictions on the validation windows at initialisation and after training, means over seeds. At a saturated "
        "position one byte has a probability above 0.99; guessing uniformly has the entropy ln 256 = 5.545 nats."
    )
    growth = " Growth: root mean square of the residual stream after a block over that before it, geometric mean."
    if not known:
        return []
    return [aside(comparison, "Predictions in numbers", Table.of(header, known, caption + growth * grows))]


def _output_row(arm: Change, grows: bool) -> list[Any]:
    both = (arm.before_outputs, arm.after_outputs)
    row: list[Any] = []
    for form, value in (
        ("{:.1%}", lambda output: output["saturation"]["saturated_share"]),
        ("{:.1f}", lambda output: output["saturation"]["logit_max"] - output["saturation"]["logit_min"]),
        ("{:.2f}", lambda output: output["saturation"]["entropy"]),
    ):
        row += [number(form.format(np.mean([value(output) for output in outputs]))) for outputs in both]
    return [*row, *map(_growth, both)] if grows else row


def _growth(outputs: Iterable[Mapping[str, Any]]) -> Cell:
    factors = [output["amplification"] for output in outputs if output.get("amplification")]
    return number(f"{np.exp(np.mean(np.log(factors))):.3f}" if factors else "-")


def _grouped(
    comparison: Comparison, found: Blocks, row: Callable[[Change], list[Any]], known: Callable[[Change], bool]
) -> list[Group]:
    """The name and the row of every arm that has what the row takes, block by block."""
    groups = [
        (group_title(block), [[arm_name(comparison, block, arm.arm), *row(arm)] for arm in arms if known(arm)])
        for block, arms in found
    ]
    return [(title, rows) for title, rows in groups if rows]


def _half_life(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")
