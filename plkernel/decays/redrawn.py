"""Decays that were drawn anew since an earlier checkpoint, or have another order or form.

Each tensor of each layer is tested, as one that was drawn anew hides among those that were kept.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from plkernel.analysis.parametrisations import softplus
from plkernel.decays.families import Family, Floats
from plkernel.decays.findings import HALF_PRECISION, Finding, official_starts
from plkernel.decays.rates import Layer
from plkernel.decays.tensors import Stored, rounded

TOGETHER = 0.01
ALONE = 0.02
"""Probabilities of a false alarm of the two tests of `_drawn_anew`, for all tensors of a model."""
CHANCE = 0.01
"""Probability of a correlation of independent numbers that is taken for one."""
MOST_MOVED = 2.0
"""Spreads of a tensor that training moves its numbers by, at most, in all layers alike."""
MOST_MOVED_ALONE = 0.5
"""Spreads by which the numbers of one layer may move where those of others stay."""
FEWEST = 8
"""Numbers of a tensor that is tested alone: of fewer, a correlation says too little."""
ALIKE = 0.9
"""Correlation with the numbers of another layer that is no chance."""

CONVERTED: dict[str, Callable[[Floats], Floats]] = {
    "{}": lambda x: x,
    "-exp({})": lambda x: -np.exp(x),
    "exp({})": np.exp,
    "-({})": lambda x: -x,
    "-exp(-exp({}))": lambda x: -np.exp(-np.exp(x)),
    "exp(-exp({}))": lambda x: np.exp(-np.exp(x)),
    "-exp(exp({}))": lambda x: -np.exp(np.exp(x)),
    "-exp(-({}))": lambda x: -np.exp(-x),
    "log({})": lambda x: np.log(np.where(x > 0, x, np.nan)),
    "log(-({}))": lambda x: np.log(np.where(x < 0, -x, np.nan)),
    "softplus({})": softplus,
}
"""Forms in which converters store decays, the likeliest first."""
WHY = {
    ("-exp({})", "{}"): "-exp was not applied",
    ("-exp({})", "exp({})"): "the sign is missing",
    ("-exp({})", "-exp(-exp({}))"): "-exp was applied twice",
    ("-exp({})", "-exp(exp({}))"): "the exponential was applied twice",
    ("{}", "-exp({})"): "-exp was not taken back",
    ("{}", "exp({})"): "the exponential was not taken back",
}
"""Faults, by the right form and the one that is there."""
SINGLE = np.finfo(np.float32)
"""The type in which converters compute."""
MOST_ROUNDINGS = 8.0
"""In the exponentials of a converter, which computes in float32."""
SAME = 1e-6
"""Spreads of a tensor within which movements are called the same, beside their rounding."""
LEAST_MOVED = 0.05
"""The least movement that is told, in spreads of the tensor. The first step of an optimizer such as
Adam moves numbers by the learning rate alone, which is less.
"""
LEAST_KNOWN = 100.0
"""The least movement that is told, times the difference that is allowed."""
UNLIKE = 4.0
"""Times the variance about an official initialisation now that it may have had before."""


@dataclass(frozen=True)
class Pair:
    """The numbers of one tensor before and now, (n,), as far as both are finite.

    old, new  relative to the official initialisation, where both are nearer to it than to their
              mean
    """

    name: str
    kind: tuple[str, str]
    old: Floats
    new: Floats

    @property
    def products(self) -> tuple[float, float, float]:
        """Sums of x y, x**2 and y**2 relative to the means."""
        x = self.old - self.old.mean()
        y = self.new - self.new.mean()
        return float(x @ y), float(x @ x), float(y @ y)

    @property
    def correlation(self) -> float:
        """Of the numbers before and now."""
        return _correlation(*self.products)

    @property
    def correlation_of_ranks(self) -> float:
        """Correlation of the numbers' ranks, which a few large movements hardly change."""
        return Pair(self.name, self.kind, _ranks(self.old), _ranks(self.new)).correlation


def _ranks(values: Floats) -> Floats:
    """The place of each number (n,) among them in ascending order."""
    return np.argsort(np.argsort(values)).astype(float)


def redrawn(before: Sequence[Layer], now: Sequence[Layer]) -> Iterator[Finding]:
    """Findings on the tensors of `now`, given the same layers `before`.

    another form       a tensor is the numbers before in another form, as exp(A_log) in A_log
    another order      a tensor has the same numbers in other places, or those of another layer
    initialised again  it is an official initialisation, and was not before; or the numbers before
                       explain nothing of those now, in all layers together or in this one
    moved as one       (notable) all its numbers have moved by the same amount or factor
    """
    told: set[str] = set()
    for found in (
        *_in_another_form(before, now),
        *_in_another_order(before, now),
        *_started_again(before, now),
        *_moved_as_one(before, now),
    ):
        if found.tensor not in told:
            told.add(found.tensor)
            yield found
    pairs = [pair for pair in _pairs(before, now) if pair.name not in told]
    kinds: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        kinds.setdefault(pair.kind, []).append(pair)
    for alike in kinds.values():
        for pair in _drawn_anew(alike, len(kinds)):
            yield _told(pair, alike)


def _tensors(
    before: Sequence[Layer], now: Sequence[Layer]
) -> Iterator[tuple[str, Layer, str, Stored, Stored]]:
    """Of each learned tensor its name, layer and role, and the tensors before and now, once."""
    seen: set[str] = set()
    for old, new in zip(before, now, strict=True):
        if new.family.fixed is not None:
            continue
        for role, stored in new.tensors.items():
            name = new.names[role]
            other = old.tensors.get(role)
            if other is None or other.values.size != stored.values.size or name in seen:
                continue
            seen.add(name)
            yield name, new, role, other, stored


def _in_another_form(before: Sequence[Layer], now: Sequence[Layer]) -> Iterator[Finding]:
    """Tensors that a converter has stored in another form than the one that their name stands for.

    That form is -exp of the numbers before where the file has its numbers so, else these numbers.
    """
    for name, _, role, old, new in _tensors(before, now):
        right = "{}" if new.raw is None else "-exp({})"
        stored = new.values if new.raw is None else new.raw
        x = old.values.ravel()
        y = stored.ravel()
        if not (np.isfinite(x).all() and np.isfinite(y).all() and x.size > 1 and np.ptp(x) > 0):
            continue
        if _is(right, x, y, new.eps):
            continue
        for form in CONVERTED:
            if _is(form, x, y, new.eps):
                words = f"is {form.format(role)} of the numbers before, not {right.format(role)}"
                why = WHY.get((right, form))
                yield Finding("another form", name, f"{words}: {why}" if why else words)
                break


def _is(form: str, x: Floats, y: Floats, precision: float) -> bool:
    """True if y is a form of x, to what rounding leaves.

    That is float32's in one or two exponentials, and `precision` in what is stored.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        expected = CONVERTED[form](x)
        computed = MOST_ROUNDINGS * SINGLE.eps * (1.0 + np.abs(x) + np.exp(x))
        slack = (computed + precision) * np.abs(expected) + SINGLE.tiny
        return bool((np.abs(y - expected) <= slack).all())


def _in_another_order(before: Sequence[Layer], now: Sequence[Layer]) -> Iterator[Finding]:
    """Tensors with the same numbers in another order, or with those of another layer before."""
    places: dict[tuple[str, str, bytes], str] = {}
    known = []
    for name, layer, role, old, new in _tensors(before, now):
        x, y = _in_one_type(old, new)
        places.setdefault((layer.family.name, role, x.tobytes()), name)
        known.append((name, layer.family, role, x, y))
    for name, family, role, x, y in known:
        if np.array_equal(x, y, equal_nan=True):
            continue
        other = places.get((family.name, role, y.tobytes()))
        if other is not None:
            yield Finding("another order", name, f"has the numbers that {other} had before")
        elif np.array_equal(np.sort(x), np.sort(y)):
            count = np.count_nonzero(x != y)
            words = f"the same numbers as before in another order: {count:,} of {x.size:,} moved"
            yield Finding("another order", name, words)


def _in_one_type(old: Stored, new: Stored) -> tuple[Floats, Floats]:
    """The numbers of both as the narrower half type of them holds these."""
    types = (old.dtype, new.dtype)

    def narrowed(values: Floats) -> Floats:
        for dtype in HALF_PRECISION:
            if dtype in types:
                values = rounded(values, dtype)
        if "float32" in types:
            values = values.astype(np.float32).astype(float)
        return values + 0.0  # -0 becomes 0

    return narrowed(old.values.ravel()), narrowed(new.values.ravel())


def _started_again(before: Sequence[Layer], now: Sequence[Layer]) -> Iterator[Finding]:
    """Tensors that are as official code initialises them, and were not before."""
    counts = [1 + max(layer.number for layer in layers) for layers in (before, now)]
    for old, new in zip(before, now, strict=True):
        started = official_starts(new, counts[1])
        were = official_starts(old, counts[0])
        for role, words in started.items():
            if role not in were and role in old.tensors:
                seen = f"is {words}, and was not before"
                yield Finding("initialised again", new.names[role], seen)


def _moved_as_one(before: Sequence[Layer], now: Sequence[Layer]) -> Iterator[Finding]:
    """Tensors of FEWEST or more numbers that are those before plus a constant, or times one.

    Gradients move each number by another amount, so this is the work of a converter, or of weight
    decay where no gradient came.
    """
    for name, _, _, old, new in _tensors(before, now):
        x, y = old.values.ravel(), new.values.ravel()
        if x.size < FEWEST or not (np.isfinite(x).all() and np.isfinite(y).all()):
            continue
        spread = float(x.std())
        if spread == 0.0 or np.ptp(y) == 0.0:
            continue
        largest = max(1.0, float(np.abs(x).max()), float(np.abs(y).max()))
        allowed = SAME * spread + (old.eps + new.eps) * largest
        least = max(LEAST_MOVED * spread, LEAST_KNOWN * allowed)
        shift = float((y - x).mean())
        factor = float(x @ y / (x @ x))
        forms = {
            f"plus {shift:.6g}": (x + shift, abs(shift)),
            f"times {factor:.6g}": (factor * x, abs(factor - 1.0) * float(np.abs(x).max())),
        }
        for words, (expected, moved) in forms.items():
            if moved >= least and np.abs(y - expected).max() <= allowed:
                seen = f"all numbers are those before {words}, which training does not do"
                yield Finding("moved as one", name, seen, "notable")
                break


def _pairs(before: Sequence[Layer], now: Sequence[Layer]) -> list[Pair]:
    """The tensors that vary before and now."""
    count = 1 + max(layer.number for layer in now)
    pairs = []
    for name, layer, role, old, new in _tensors(before, now):
        x, y = old.values.ravel(), new.values.ravel()
        finite = np.isfinite(x) & np.isfinite(y)
        if not finite.any():
            continue
        x, y = _from_start(x, y, layer.family, role, (new.values.shape, layer.number, count))
        x, y = x[finite], y[finite]
        if x.size > 1 and np.ptp(x) > 0 and np.ptp(y) > 0:
            pairs.append(Pair(name, (layer.family.name, role), x, y))
    return pairs


def _from_start(
    x: Floats, y: Floats, family: Family, role: str, place: tuple[tuple[int, ...], int, int]
) -> tuple[Floats, Floats]:
    """x and y relative to an official initialisation that explains most of both, or as they are.

    A pattern that all layers begin with would make them alike, whatever was learned. It stays where
    one of them has moved from it far less than the other, as early in training.
    """
    shape, _, _ = place
    if not shape:
        return x, y
    for _, start in family.starts.get(role, ()):
        expected = start(*place).ravel()
        with np.errstate(invalid="ignore"):
            left = [float(np.nanvar(one - expected)) for one in (x, y)]
            whole = [float(np.nanvar(one)) for one in (x, y)]
        explained = left[0] < whole[0] / 2 and left[1] < whole[1] / 2
        if explained and max(left) < UNLIKE * min(left):
            return x - expected, y - expected
    return x, y


def _drawn_anew(alike: Sequence[Pair], kinds: int) -> list[Pair]:
    """The tensors of one kind, of all layers, that were drawn anew.

    Independent movements by s spreads leave a correlation of 1 / sqrt(1 + s**2) with the numbers
    before, whose Fisher transform has a standard error of 1 / sqrt(n - 3) for n numbers. Tested is

    together    whether the correlation of all layers is below that of MOST_MOVED: then those are
                drawn anew which say nothing of the numbers before
    one by one  whether a tensor of FEWEST or more is below that of another layer, by more than the
                range of as many equal ones, and below that of MOST_MOVED_ALONE

    with a probability of a false alarm of TOGETHER and ALONE, over all kinds. Measured in 400
    models a cell, all tensors moved independently by so many spreads; found is one tensor of 12
    layers that was drawn anew, in 200 models:

    heads  false alarms, 4, 12 and 24 layers                   found, others moved by
           up to 0.5   1                  2 spreads            0.1    0.5    1 spread
    4      0           0                  1.3, 0.5, 0.8 %      0      0      0
    8      0           0.5, 0, 0.5 %      3.0, 2.0, 2.8 %      55 %   34 %   7 %
    16     0           0, 1.0, 0.3 %      3.8, 2.5, 3.8 %      96 %   89 %   24 %
    64     0           0                  1.8, 1.8, 2.0 %      97 %   99 %   99 %

    With 4 heads it cannot be told of one tensor, and of all layers together in about half of
    the models.
    """
    if _are_together_below(alike, TOGETHER / kinds):
        return [pair for pair in alike if pair.correlation < _by_chance(pair.old.size)]
    tested = [pair for pair in alike if pair.old.size >= FEWEST]
    if not tested:
        return []
    return [
        pair
        for pair, is_so in zip(tested, _below_alone(tested, ALONE / kinds), strict=True)
        if is_so and pair.correlation_of_ranks < _by_chance(pair.old.size)
    ]


def _are_together_below(alike: Sequence[Pair], level: float) -> bool:
    """True if the correlation of all layers is below that of MOST_MOVED, at this level."""
    from scipy.special import ndtri

    degrees = sum(pair.old.size - 1 for pair in alike)
    if degrees <= 2:
        return False
    products = np.sum([pair.products for pair in alike], 0)
    together = _fisher(_correlation(*products.tolist()))
    error = 1.0 / np.sqrt(degrees - 2)
    return bool(together < _fisher(_after(MOST_MOVED)) + ndtri(level) * error)


def _below_alone(tested: Sequence[Pair], level: float) -> np.ndarray:
    """Which tensors are far below MOST_MOVED, or below another and MOST_MOVED_ALONE; (L,)."""
    from scipy.special import ndtri

    z = np.array([_fisher(pair.correlation) for pair in tested])
    errors = 1.0 / np.sqrt(np.array([pair.old.size for pair in tested]) - 3.0)
    below = (z - z[:, None]) / np.hypot(errors, errors[:, None])
    outside = below.max(axis=1) > -ndtri(level / max(1, len(z) * (len(z) - 1)))
    margin = ndtri(level / len(z)) * errors
    low = z < _fisher(_after(MOST_MOVED_ALONE)) + margin
    far = z < _fisher(_after(MOST_MOVED)) + margin
    result: np.ndarray = (outside & low) | far
    return result


def _after(spreads: float) -> float:
    """Correlation with the numbers before, after an independent movement."""
    return float(1.0 / np.sqrt(1.0 + spreads**2))


def _fisher(correlation: float) -> float:
    """artanh of a correlation, whose error hardly depends on it; finite also of 1 and -1."""
    return float(np.arctanh(np.clip(correlation, -1.0 + 1e-15, 1.0 - 1e-15)))


def _by_chance(count: int) -> float:
    """Correlation that `count` independent numbers exceed with the probability CHANCE."""
    from scipy.special import stdtrit

    if count < 3:
        return 1.0
    t = float(stdtrit(count - 2, 1.0 - CHANCE))
    return float(t / np.sqrt(count - 2 + t * t))


def _correlation(both: float, before: float, now: float) -> float:
    """sum x y / sqrt(sum x**2 sum y**2) of these sums; 1 where one of the last two is 0."""
    scale = np.sqrt(before * now)
    return float(both / scale) if scale > 0 else 1.0


def _told(pair: Pair, alike: Sequence[Pair]) -> Finding:
    """Say how little the numbers before explain, and the layer whose they look like."""
    share = max(0.0, pair.correlation) ** 2
    words = f"the numbers before explain {share:.0%} of the variance of those now"
    for other in alike:
        if other is not pair and other.old.size == pair.new.size >= FEWEST:
            like = Pair(pair.name, pair.kind, other.old, pair.new).correlation
            if like > ALIKE:
                words += f", and those of {other.name} {like**2:.0%}"
                return Finding("another order", pair.name, words)
    return Finding("initialised again", pair.name, f"{words}: they were drawn anew")
