"""What became of the decays of a checkpoint since one before: drawn anew, or in another order.

Each tensor of each layer is tested, as one that was drawn anew hides among those that were kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from plkernel.decays.families import Family, Floats
from plkernel.decays.findings import HALF_PRECISION, Finding, official_starts
from plkernel.decays.rates import Layer
from plkernel.decays.tensors import Stored, rounded

KEPT = 0.5
"""Correlation with the numbers before from which on they explain a quarter or more of the variance:
training moves decays, and does not forget them."""
MOST_KEPT = 0.9
"""Correlation from which on even four numbers were kept."""
LEVEL = 0.01
"""Probability of a false alarm, of all tests together."""
FEWEST = 4
"""Numbers of a tensor that is tested alone."""


@dataclass(frozen=True)
class Pair:
    """The numbers of one tensor before and now, (n,), as far as both are finite.

    old, new  relative to the official start, where both are nearer to it than to their mean
    """

    name: str
    kind: tuple[str, str]
    old: Floats
    new: Floats

    @property
    def products(self) -> tuple[float, float, float]:
        """Sums of x y, x**2 and y**2 relative to the means."""
        x, y = self.old - self.old.mean(), self.new - self.new.mean()
        return float(x @ y), float(x @ x), float(y @ y)

    @property
    def correlation(self) -> float:
        """Of the numbers before and now."""
        return _correlation(*self.products)

    @property
    def moved(self) -> float:
        """Variance of the difference."""
        return float(np.var(self.new - self.old, ddof=1))


def redrawn(before: Sequence[Layer], now: Sequence[Layer]) -> Iterator[Finding]:
    """What is wrong with the tensors of `now`, given the same layers `before`.

    another order      a tensor has the same numbers in other places, or those of another layer
    initialised again  it is an official initialisation, and was not before; or the numbers before
                       explain nothing of those now, in all layers together or in this one
    """
    told: set[str] = set()
    for found in (*_in_another_order(before, now), *_started_again(before, now)):
        if found.tensor not in told:
            told.add(found.tensor)
            yield found
    pairs = [pair for pair in _pairs(before, now) if pair.name not in told]
    kinds: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        kinds.setdefault(pair.kind, []).append(pair)
    for alike in kinds.values():
        for pair in _drawn_anew(alike, len(pairs)):
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
            name, other = new.names[role], old.tensors.get(role)
            if other is None or other.values.size != stored.values.size or name in seen:
                continue
            seen.add(name)
            yield name, new, role, other, stored


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
    x, y = old.values.ravel(), new.values.ravel()
    for dtype in HALF_PRECISION:
        if dtype in (old.dtype, new.dtype):
            x, y = rounded(x, dtype), rounded(y, dtype)
    if "float32" in (old.dtype, new.dtype):
        x, y = x.astype(np.float32).astype(float), y.astype(np.float32).astype(float)
    return x + 0.0, y + 0.0  # -0 becomes 0


def _started_again(before: Sequence[Layer], now: Sequence[Layer]) -> Iterator[Finding]:
    """Tensors that are as official code starts them, and were not before."""
    counts = [1 + max(layer.number for layer in layers) for layers in (before, now)]
    for old, new in zip(before, now, strict=True):
        started, were = official_starts(new, counts[1]), official_starts(old, counts[0])
        for role, words in started.items():
            if role not in were and role in old.tensors:
                seen = f"is {words}, and was not before"
                yield Finding("initialised again", new.names[role], seen)


def _pairs(before: Sequence[Layer], now: Sequence[Layer]) -> list[Pair]:
    """The tensors that vary before and now."""
    count = 1 + max(layer.number for layer in now)
    pairs = []
    for name, layer, role, old, new in _tensors(before, now):
        x, y = old.values.ravel(), new.values.ravel()
        finite = np.isfinite(x) & np.isfinite(y)
        x, y = _from_start(x, y, layer.family, role, (new.values.shape, layer.number, count))
        x, y = x[finite], y[finite]
        if x.size > 1 and np.ptp(x) > 0 and np.ptp(y) > 0:
            pairs.append(Pair(name, (layer.family.name, role), x, y))
    return pairs


def _from_start(
    x: Floats, y: Floats, family: Family, role: str, place: tuple[tuple[int, ...], int, int]
) -> tuple[Floats, Floats]:
    """x and y relative to an official start that explains most of both, or as they are.

    A pattern that all layers begin with would make them alike, whatever was learned. It stays where
    one of them has moved from it far less than the other, as early in training.
    """
    for _, start in family.starts.get(role, ()) if place[0] else ():
        expected = start(*place).ravel()
        with np.errstate(invalid="ignore"):
            left = [float(np.nanvar(one - expected)) for one in (x, y)]
            whole = [float(np.nanvar(one)) for one in (x, y)]
        explained = left[0] < whole[0] / 2 and left[1] < whole[1] / 2
        if explained and max(left) < 4.0 * min(left):
            return x - expected, y - expected
    return x, y


def _drawn_anew(alike: Sequence[Pair], tests: int) -> list[Pair]:
    """The tensors of one kind, of all layers, that were drawn anew."""
    together = _correlation(*np.sum([pair.products for pair in alike], axis=0).tolist())
    if together < KEPT:
        return [pair for pair in alike if pair.correlation < KEPT]
    from scipy.special import fdtrc

    found = []
    for pair in alike:
        kept = [one for one in alike if one is not pair and one.correlation >= KEPT]
        if pair.old.size < FEWEST or not kept or pair.correlation >= _least_kept(pair.old.size):
            continue
        degrees = [one.old.size - 1 for one in kept]
        usual = float(np.average([one.moved for one in kept], weights=degrees))
        ratio = pair.moved / usual if usual > 0 else np.inf
        chance = float(fdtrc(pair.old.size - 1, sum(degrees), ratio)) if ratio < np.inf else 0.0
        if chance < LEVEL / tests:
            found.append(pair)
    return found


def _least_kept(count: int) -> float:
    """Correlation below which `count` numbers may well be independent, at 1 %.

    From KEPT, that of many, to MOST_KEPT.
    """
    from scipy.special import stdtrit

    t = float(stdtrit(count - 2, 1.0 - LEVEL))
    return min(MOST_KEPT, max(KEPT, t / np.sqrt(count - 2 + t * t)))


def _correlation(both: float, before: float, now: float) -> float:
    scale = np.sqrt(before * now)
    return float(both / scale) if scale > 0 else 1.0


def _told(pair: Pair, alike: Sequence[Pair]) -> Finding:
    """How little the numbers before explain, and the layer whose they look like."""
    share = max(0.0, pair.correlation) ** 2
    words = f"the numbers before explain {share:.0%} of the variance of those now"
    for other in alike:
        if other is not pair and other.old.size == pair.new.size >= 2 * FEWEST:
            like = Pair(pair.name, pair.kind, other.old, pair.new).correlation
            if like > MOST_KEPT:
                words += f", and those of {other.name} {like**2:.0%}"
                return Finding("another order", pair.name, words)
    return Finding("initialised again", pair.name, f"{words}: they were drawn anew")
