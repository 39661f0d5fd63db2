"""Charts of memory: what far bytes are worth, kernels and half-lives before training and after."""

from collections.abc import Mapping, Sequence

import numpy as np

from plkernel.analysis.exponentials import Floats, power_law
from plkernel.analysis.figures.context import Influenced, Truncated
from plkernel.analysis.statistics.differences import student_interval
from plkernel.analysis.trained.memory import Memory
from plkernel.common.numbers import written
from plkernel.results.comparison import CONFIDENCE
from plkernel.results.memory import Change
from plkernel.results.page.charts.axes import Axis, Tick, linear, logarithmic, path
from plkernel.results.page.charts.frames import (
    BAND,
    BEFORE,
    BOX,
    LAW,
    LINE,
    SEED,
    THIN_BEFORE,
    Chart,
    Panel,
    Shape,
    Trace,
    band,
    dots,
    line,
)

HALF_BOX, ASIDE = 0.16, 0.2
FAINTEST = 1e-6
"""Of the largest influence: less is not shown."""
VANISHED = 100
"""Kernels are shown down to so much below the law."""


def truncation(arms: Mapping[str, tuple[int, Truncated]], description: str, caption: str) -> Chart:
    """Bits per byte against the bytes given, and what is lost against the whole context; `arms` with their slots."""
    whole = {name: (slot, one.given, one.bpb) for name, (slot, one) in arms.items()}
    lost = {name: (slot, one.given[:-1], one.cost[:, :-1]) for name, (slot, one) in arms.items()}
    known = next((one for _, one in arms.values() if one.floor is not None), None)
    floor = np.array(known.floor) if known is not None else None
    given = known.given if known is not None else ()
    panels = [_given("bits per byte", whole, given, floor)]
    if all(len(one.given) > 1 for _, one in arms.values()):
        above = None if floor is None else (floor - floor[-1])[:-1]
        panels.append(_given("bits per byte lost by the rest", lost, given[:-1], above))
    return Chart(tuple(panels), tuple((slot, name) for name, (slot, _) in arms.items()), description, caption)


def influence(arms: Mapping[str, tuple[int, Influenced]], description: str, caption: str) -> Chart:
    """Change of the prediction in bits against the lag of a byte that is another, and I(d) of a known law."""
    means = {name: student_interval(one.bits, CONFIDENCE) for name, (_, one) in arms.items()}
    known = next((one for _, one in arms.values() if one.information is not None), None)
    text = list(known.information or ()) if known is not None else []
    every = np.concatenate([*(mean for mean, _, _ in means.values()), text])
    largest = float(every.max(initial=FAINTEST))
    smallest = float(every[every > FAINTEST * largest].min(initial=largest))
    lags = [lag for _, one in arms.values() for lag in one.lags]
    x = logarithmic(min(lags), max(lags), "lag d (bytes)", base=2)
    y = logarithmic(smallest / 1.3, largest * 1.3, "change of the prediction, bits")
    traces = [
        _given_trace(name, slot, one.lags, means[name], x, y, len(one.bits) > 1, (".3g", "bits at lag {:,}"))
        for name, (slot, one) in arms.items()
    ]
    law = () if known is None else (Trace(0, "I(d) of the text", (line(x, y, known.lags, text, LAW),)),)
    return Chart(
        (Panel("", x, y, (*law, *traces)),),
        tuple((slot, name) for name, (slot, _) in arms.items()),
        description,
        caption,
    )


def _given(
    label: str, arms: Mapping[str, tuple[int, Sequence[int], Floats]], given: Sequence[int], floor: Floats | None
) -> Panel:
    means = {name: student_interval(values, CONFIDENCE) for name, (_, _, values) in arms.items()}
    every = np.concatenate([mean for mean, _, _ in means.values()])
    edges = [edge for mean, _, half in means.values() for edge in (mean - half, mean + half)]
    lowest = floor[floor > 0] if floor is not None else np.array([])
    values = np.concatenate([every, lowest, *edges])
    values = values[np.isfinite(values)]
    decades = bool(every.min() > 0) and every.max() > 20 * every.min()
    room = 0.05 * float(np.ptp(values))
    y = (
        logarithmic(float(every.min()) / 1.3, float(every.max()) * 1.3, label)
        if decades
        else linear(float(values.min()) - room, float(values.max()) + room, label)
    )
    lengths = [length for _, of, _ in arms.values() for length in of]
    x = logarithmic(min(lengths), max(lengths), "bytes given", base=2)
    traces = [
        _given_trace(name, slot, of, means[name], x, y, len(values) > 1) for name, (slot, of, values) in arms.items()
    ]
    best = () if floor is None else (Trace(0, "the best there is", (line(x, y, given, floor.tolist(), LAW),)),)
    return Panel("", x, y, (*best, *traces))


def _given_trace(
    name: str,
    slot: int,
    given: Sequence[int],
    found: tuple[Floats, ...],
    x: Axis,
    y: Axis,
    several: bool,
    words: tuple[str, str] = (".4f", "given {:,} bytes"),
) -> Trace:
    mean, _, half = found
    region = [band(x, y, given, (mean - half).tolist(), (mean + half).tolist(), BAND)] if several else []
    form, after = words
    texts = [
        f"{name}: {written(value, form)} {after.format(at)}" for at, value in zip(given, mean.tolist(), strict=True)
    ]
    drawn = line(x, y, given, mean.tolist(), LINE, name)
    return Trace(slot, name, (*region, drawn, *dots(x, y, given, mean.tolist(), texts)))


def kernels(arms: Sequence[tuple[int, Change]], description: str, caption: str) -> Chart:
    """A panel per arm: kernels over lag before training and after, and the law of the arm."""
    lowest = min(float((one.before.lags[-1] / one.before.lags[0]) ** -one.exponent) for _, one in arms)
    found = [values for _, one in arms for memory in (one.before, one.after) for values in memory.log_kernels()]
    smallest = min(
        (float(np.exp(values[np.isfinite(values)].min())) for values in found if np.isfinite(values).any()), default=1
    )
    y = logarithmic(max(smallest / 1.5, lowest / VANISHED), 1.6, "k(t) / k(1)")
    panels = tuple(_kernel(slot, one, y) for slot, one in arms)
    return Chart(panels, (), description, caption)


def _kernel(slot: int, one: Change, y: Axis) -> Panel:
    lags = one.before.lags
    x = logarithmic(float(lags[0]), float(lags[-1]), "lag t (bytes)", most=4)
    law = line(x, y, lags.tolist(), power_law(lags / lags[0], one.exponent).tolist(), LAW, f"t**-{one.exponent:g}")
    before, after = (
        _kernel_lines(memory, x, y, kinds)
        for memory, kinds in (
            (one.before, (THIN_BEFORE, BEFORE, "at initialisation")),
            (one.after, (SEED, LINE, "after training")),
        )
    )
    return Panel(one.name, x, y, (Trace(slot, one.name, (law, *before, *after)),))


def _kernel_lines(memory: Memory, x: Axis, y: Axis, kinds: tuple[str, str, str]) -> list[Shape]:
    blocks, lags = memory.log_kernels(), memory.lags.tolist()
    each = [line(x, y, lags, np.exp(block).tolist(), kinds[0]) for block in blocks] if len(blocks) > 1 else []
    return [*each, line(x, y, lags, np.exp(blocks.mean(axis=0)).tolist(), kinds[1], kinds[2])]


def half_lives(arms: Sequence[tuple[int, Change]], description: str, caption: str) -> Chart:
    """A panel per arm: a box for every block of the model before training, and one after."""
    every = np.concatenate([m.half_life_quantiles() for _, one in arms for m in (one.before, one.after)])
    y = logarithmic(float(every.min()) / 1.3, float(every.max()) * 1.3, "half-life (bytes)")
    return Chart(tuple(_boxes(slot, one, y) for slot, one in arms), (), description, caption)


def _boxes(slot: int, one: Change, y: Axis) -> Panel:
    blocks = one.after.blocks
    plain = linear(-0.6, blocks - 0.4, "block")
    places = range(0, blocks, 1 + (blocks - 1) // 8)
    x = Axis(plain.low, plain.high, "block", False, tuple(Tick(plain.percent(at), str(at)) for at in places))
    shapes = [
        shape
        for memory, aside, kinds in ((one.before, -ASIDE, ("box before", BEFORE)), (one.after, ASIDE, (BOX, LINE)))
        for block, quantiles in enumerate(memory.half_life_quantiles().tolist())
        for shape in _box(x, y, block + aside, quantiles, kinds)
    ]
    return Panel(one.name, x, y, (Trace(slot, one.name, tuple(shapes)),))


def _box(x: Axis, y: Axis, at: float, quantiles: Sequence[float], kinds: tuple[str, str]) -> list[Shape]:
    shortest, _, low, median, high, _, longest = quantiles
    left, middle, right = (x.place(at + side) for side in (-HALF_BOX, 0.0, HALF_BOX))
    corners = [(left, y.place(low)), (right, y.place(low)), (right, y.place(high)), (left, y.place(high))]
    text = f"{shortest:.3g} to {longest:.3g} bytes, median {median:.3g}"
    return [
        Shape(f"{kinds[1]} solid", path([(middle, y.place(shortest)), (middle, y.place(longest))]), text),
        Shape(kinds[0], path(corners, closed=True), text),
        Shape(f"{kinds[1]} solid", path([(left, y.place(median)), (right, y.place(median))]), text),
    ]
