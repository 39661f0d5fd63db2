"""The decays a = exp(-rate) that float32 holds, in which models compute them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from plkernel.analysis.nodes.node_set import Aim

SLOWEST, FASTEST = 2.0**-24, 126 * math.log(2)
"""Rates per step that a float32 decay holds: 1 - 2**-24 is the largest float32 below 1, and half a step further on
(2**-25) exp(-rate) is 1; 2**-126 is the least that has all its digits, and below 2**-150 exp(-rate) is 0. In half-lives
1/126 to 2**24 ln 2 = 1.16e7 steps."""
HALF_LIVES = math.log(2) / FASTEST, math.log(2) / SLOWEST
LARGEST_MULTIPLIER = 2.0**64
"""A norm squares what it gets, and float32 ends at 2**128."""
BISECTIONS = 60
SMALLEST_BETA, LARGEST_BETA = 1e-3, 1e3


def check_half_lives(named: Mapping[str, float], step: int) -> None:
    """ValueError for a half-life, in bytes, that a decay per `step` bytes does not hold."""
    shortest, longest = HALF_LIVES
    for name, value in named.items():
        if not shortest * step <= value <= longest * step:
            raise ValueError(
                f"{name} {value:g} is no half-life that a float32 decay holds{_per(step)}: use {half_lives_text(step)}"
            )


def check_quantiles(aim: Aim, max_lag: float, loss: float, step: int) -> None:
    """ValueError where decays per `step` bytes do not hold the quantile nodes of `aim` up to `max_lag` bytes."""
    lags = max_lag / step
    if lags <= 1 or held(*aim.rate_range(lags, loss)):
        return
    betas = quantile_betas(aim, lags, loss)
    remedy = (
        f"a beta from {rounded_up(betas[0]):.3g} to {-rounded_up(-betas[1]):.3g}"
        if betas
        else "a shorter max_lag or a larger loss"
    )
    raise ValueError(
        f"beta {aim.beta:g} with loss {loss:g} and max_lag {max_lag:g} places half-lives beyond "
        f"{half_lives_text(step)}, which is what float32 decays hold{_per(step)}: use {remedy}"
    )


def check_rates(name: str, rates: Sequence[float], step: int) -> None:
    """ValueError for a rate per byte that a decay per `step` bytes does not hold."""
    wrong = [rate for rate in rates if not held(rate * step, rate * step)]
    if wrong:
        raise ValueError(
            f"{name}: {wrong[0]:g} per byte is no rate that a float32 decay holds{_per(step)}: use "
            f"{SLOWEST / step:.3g} to {FASTEST / step:.3g}, half-lives of {half_lives_text(step)}"
        )


def check_multipliers(name: str, value: float, largest: float) -> None:
    """ValueError where the option `name` of this value makes a multiplier whose square float32 does not hold."""
    if not largest <= LARGEST_MULTIPLIER:
        raise ValueError(
            f"{name} {value:g} makes the largest multiplier of the projection {largest:.3g}, whose square float32 does "
            f"not hold: use at most {value * (LARGEST_MULTIPLIER / largest):.3g}"
        )


def held(slowest: float, fastest: float) -> bool:
    """Whether float32 decays hold the rates between these two, per step."""
    return SLOWEST <= slowest <= fastest <= FASTEST


def half_lives_text(step: float = 1.0) -> str:
    """The range of half-lives in words, in bytes where a step is `step` of them: rounded inwards."""
    shortest, longest = HALF_LIVES
    return f"{rounded_up(shortest * step):.3g} to {-rounded_up(-longest * step):.3g} bytes"


def quantile_betas(aim: Aim, max_lag: float, loss: float) -> tuple[float, float] | None:
    """The least and the largest beta whose quantile nodes float32 decays hold, max_lag in steps; None where none does.

    Rates at both ends grow with beta (`Aim.rate_range`).
    """

    def end(which: int, limit: float) -> float:
        low, high = math.log(SMALLEST_BETA), math.log(LARGEST_BETA)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            above = replace(aim, beta=math.exp(middle)).rate_range(max_lag, loss)[which] > limit
            low, high = (low, middle) if above else (middle, high)
        return math.exp(high if which == 0 else low)

    least, most = end(0, SLOWEST), end(1, FASTEST)
    return (least, most) if least <= most else None


def rounded_up(value: float) -> float:
    """To three digits, not below `value`."""
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return math.ceil(value / unit) * unit


def _per(step: int) -> str:
    return f" (patches of {step} bytes)" if step > 1 else ""
