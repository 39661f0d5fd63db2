"""The parameter that gives wanted decays, of any function that rises or falls: by bisection."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Decays = Callable[[Tensor], Tensor]
"""A function from a parameter to its decays, number by number."""
HALVINGS = 120
"""Of an interval of 2**15 or less, down to 2**-105: of a number near 1 there is nothing left."""
EXPONENTS = range(-24, 15)
"""Powers of two between which the ends of the function are looked for, on both sides of 0."""
LINEAR_TO = 32.0
"""Up to this size multiples of 1/2 are tried too, since most parameters are that small."""
UNEVEN = 1e-6
"""A step against the direction of the others by this is rounding, as of float32."""
PRECISION = 1e-3
"""Share of the rate, or of the decay if that is smaller, by which a decay may miss."""
ELSEWHERE = "; or solve f(x) = exp(-rates) yourself, with the rates of the nodes"
"""Advice for a function that cannot be inverted here."""


def decays_of(function: Decays, x: Tensor) -> Tensor:
    """The decays of a parameter by other people's function; ValueError unless of its shape."""
    try:
        found: Any = function(x)
    except Exception as error:  # of whatever kind other people's code raises
        first = str(error).partition("\n")[0][:300]
        raise ValueError(
            f"parametrisation: the function raised {type(error).__name__}: {first}"
        ) from error
    if not isinstance(found, Tensor):
        raise ValueError(
            "parametrisation: the function must give a tensor of decays, got"
            f" {type(found).__name__}"
        )
    if found.shape != x.shape or not found.is_floating_point():
        raise ValueError(
            "parametrisation: the function must give a decay for every number, of shape"
            f" {tuple(x.shape)}, got {found.dtype} of shape {tuple(found.shape)}"
        )
    return found.detach().to(x.device)


def levels_of(function: Decays, rates: Tensor) -> Tensor:
    """The x at which the decays of `function` are exp(-rates); of the shape of `rates`, float64.

    Raises ValueError for a function that both rises and falls, or does not reach such decays, and
    where the decays at the x that was found are others.
    """
    wanted = torch.exp(-rates)
    ends = _ends(function, rates)
    _check_reached(ends, wanted, rates)
    low = ends.low
    high = ends.high
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        is_past = (decays_of(function, middle) > wanted) == ends.rises
        high = torch.where(is_past, middle, high)
        low = torch.where(is_past, low, middle)
    _check_found(function, low, wanted, rates)
    return low


@dataclass(frozen=True)
class _Ends:
    """Where decays are between 0 and 1, number by number, and whether they rise between."""

    low: Tensor
    high: Tensor
    at_low: Tensor
    at_high: Tensor

    @property
    def rises(self) -> Tensor:
        return self.at_high > self.at_low


def _grid() -> list[float]:
    """Numbers at which a function is tried, ascending."""
    powers = [2.0**k for k in EXPONENTS]
    halves = [k / 2 for k in range(1, int(2 * LINEAR_TO) + 1)]
    positive = {*powers, *halves}
    return sorted({0.0, *positive, *(-x for x in positive)})


def _ends(function: Decays, rates: Tensor) -> _Ends:
    """The interval of x in which decays are between 0 and 1, on which they rise or fall."""
    grid = _grid()
    nothing = torch.full_like(rates, math.nan)
    # None of these is changed in place, so that all may begin as one tensor.
    low = nothing
    high = nothing
    outside_low = nothing
    outside_high = nothing
    before = nothing  # the decay at the last x that had one
    previous = nothing  # the last x
    never = torch.zeros_like(rates, dtype=torch.bool)
    has_risen = never
    has_fallen = never
    is_torn = never
    for number in grid:
        x = torch.full_like(rates, number)
        decays = decays_of(function, x).to(rates.dtype)
        is_decay = (decays >= 0) & (decays <= 1)  # not NaN
        is_first = is_decay & low.isnan()
        is_torn = is_torn | (is_decay & ~outside_high.isnan())
        low = torch.where(is_first, x, low)
        outside_low = torch.where(is_first, previous, outside_low)
        has_ended = ~is_decay & ~low.isnan() & outside_high.isnan()
        outside_high = torch.where(has_ended, x, outside_high)
        has_risen = has_risen | (is_decay & (decays > before + UNEVEN))
        has_fallen = has_fallen | (is_decay & (decays < before - UNEVEN))
        high = torch.where(is_decay, x, high)
        before = torch.where(is_decay, decays, before)
        previous = x
    if low.isnan().any():
        raise ValueError(
            "parametrisation: the function must give decays from 0 to 1, got none for a number"
            f" from {grid[0]:g} to {grid[-1]:g}"
        )
    if is_torn.any() or (has_risen & has_fallen).any():
        raise ValueError(
            "parametrisation: the function must rise or fall wherever its decays are between 0 and"
            f" 1, got one that does both{ELSEWHERE}"
        )
    first = _edge(function, outside_low, low)
    last = _edge(function, outside_high, high)
    return _Ends(first, last, decays_of(function, first), decays_of(function, last))


def _edge(function: Decays, outside: Tensor, inside: Tensor) -> Tensor:
    """The last x with a decay from `inside` towards `outside`, where that is a number."""
    outside = torch.where(outside.isnan(), inside, outside)
    for _ in range(HALVINGS):
        middle = outside + (inside - outside) / 2
        decays = decays_of(function, middle)
        is_inside = (decays >= 0) & (decays <= 1)
        inside = torch.where(is_inside, middle, inside)
        outside = torch.where(is_inside, outside, middle)
    return inside


def _check_reached(ends: _Ends, wanted: Tensor, rates: Tensor) -> None:
    """ValueError for a decay beyond those that the function has."""
    least = torch.minimum(ends.at_low, ends.at_high)
    most = torch.maximum(ends.at_low, ends.at_high)
    out = ~((wanted >= least) & (wanted <= most))
    if out.any():
        half_life = math.log(2) / float(rates[out][0])
        raise ValueError(
            f"half-lives of nodes must be of decays from {float(least[out][0]):.6g} to"
            f" {float(most[out][0]):.6g}, which the function reaches, got {half_life:.4g} steps"
            f" (decay {float(wanted[out][0]):.6g})"
        )


def _check_found(function: Decays, x: Tensor, wanted: Tensor, rates: Tensor) -> None:
    """ValueError where the decays at `x` are not those that are wanted."""
    decays = decays_of(function, x).to(rates.dtype)
    allowed = PRECISION * torch.minimum(wanted, -torch.expm1(-rates))
    out = ~((decays - wanted).abs() <= allowed)
    if out.any():
        raise ValueError(
            "parametrisation: every decay of the function must follow from its own number alone,"
            " without jumps and in the type of what it is given, float64; got a decay of"
            f" {float(decays[out][0]):.9g} at {float(x[out][0]):.9g}, where"
            f" {float(wanted[out][0]):.9g} was looked for{ELSEWHERE}"
        )
