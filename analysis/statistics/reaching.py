"""How much earlier an arm reaches the final value of the baseline."""

from collections.abc import Mapping
from dataclasses import dataclass

from plkernel.analysis.statistics.bands import Curve
from plkernel.analysis.statistics.differences import Estimate, mean_interval


@dataclass(frozen=True)
class Speedup:
    """How much earlier an arm reaches the baseline's final value, in fractions of the baseline's run.

    per_seed  0.25: after three quarters of the run; negative: later than the baseline, where the arm ran longer;
              None: not reached
    mean      over the seeds, with its t interval; None unless every seed reached it
    """

    per_seed: Mapping[int, float | None]
    mean: Estimate | None

    @property
    def reached(self) -> int:
        """The number of seeds that reached the baseline's final value."""
        return sum(value is not None for value in self.per_seed.values())


def steps_to_reach(curve: Curve, level: float) -> float | None:
    """The position from which the curve stays at or below `level`, linearly interpolated; None if it ends above.

    Noise takes a curve below a level and back. What counts is the last crossing, the one that is not undone: the
    first would favour the noisier curve. A curve that is never above gives its first position. A value that is
    not finite counts as above, and the position after it is then taken whole. Raises ValueError for no values.
    """
    if not curve:
        raise ValueError("curve: got no values, give at least one")
    positions = sorted(curve)
    above = [index for index, at in enumerate(positions) if not curve[at] <= level]
    if not above:
        return float(positions[0])
    if above[-1] == len(positions) - 1:
        return None
    before, after = positions[above[-1]], positions[above[-1] + 1]
    share = (curve[before] - level) / (curve[before] - curve[after])
    return before + share * (after - before) if 0.0 <= share <= 1.0 else float(after)


def speedup(arm: Mapping[int, Curve], baseline: Mapping[int, Curve], confidence: float = 0.95) -> Speedup:
    """1 - (position where the arm reaches the baseline's final value) / (the baseline's last position), by seed.

    Positions count from zero, steps or bytes. Paired over the seeds that both have; t interval over seeds where
    all of them reach the level.

    A description, no test: when both ran equally long no seed can be slower than 0, so an interval above zero
    says nothing about whether arms differ. That is for the paired difference of final values, and seeds that do
    not reach the level have no place in a mean. Raises ValueError when no seed is shared or a baseline is empty
    or ends at position 0.
    """
    shared = sorted(set(arm) & set(baseline))
    if not shared:
        raise ValueError("seeds: arm and baseline have none in common, nothing to pair")
    per_seed = {seed: _earlier(arm[seed], baseline[seed]) for seed in shared}
    reached = [value for value in per_seed.values() if value is not None]
    return Speedup(per_seed, mean_interval(reached, confidence) if len(reached) == len(shared) else None)


def _earlier(curve: Curve, baseline: Curve) -> float | None:
    last = max(baseline, default=0)
    if last <= 0:
        raise ValueError(f"baseline: its last position is {last}, give curves that end after 0")
    reached = steps_to_reach(curve, baseline[last])
    return None if reached is None else 1.0 - reached / last
