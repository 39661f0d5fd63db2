"""The memory kernel that a published layer starts with, coherent and rms, held against a power law.

A channel with decay a and input gain g holds the input of t steps ago with weight g a**t. With
equal projections the layer's kernel is the sum of these; with random signs of mean zero, as models
start, the root of the sum of squares.

Gates and steps that depend on the input stand at their bias, where they are on average at the
start; of complex decays the magnitudes count, so these kernels are envelopes. Short convolutions
and terms for the newest input are left out. Delta rules also forget by erasing what they overwrite,
as much as keys are alike: their decays are upper bounds.
"""

import math
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, gammaincinv

from plkernel.analysis.exponentials import Floats, power_law, power_law_target, score
from plkernel.analysis.figures.style import COLOURS, INK, PAGE_WIDTH, decades, style
from plkernel.analysis.nodes import Summation, falling_exponent, gain_at

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEFT = 0.01
"""The share of a kernel's value at lag 1 that ends its effective memory."""
LAGS = range(32, 65537)
AT_MOST = "at most"
STEPS = (1e-3, 1e-1)
"""Range of the log-uniform step size dt in S4D, Mamba and the delta nets."""


@dataclass(frozen=True)
class Initialisation:
    """The decays that a layer starts with, one entry of `rates`, `gains` and `shares` for each
    node.

    origin      formula, assumptions and source, from `gallery.toml`
    half_lives  shortest and longest that the formula allows, in steps
    rates       decay rates -ln a per step
    gains       the factor on a channel's input
    shares      the share of the layer's channels that a node stands for; they add up to 1

    Random parameters are nodes at quantiles of their distribution, weighted by the share, so that
    both kernels are expectations over the draw: the average of a wide layer.
    """

    name: str
    family: str
    origin: dict[str, str]
    half_lives: tuple[float, float]
    rates: Floats
    gains: Floats
    shares: Floats

    def log_kernel(self, lags: ArrayLike, kernel: Summation = "coherent") -> Floats:
        """ln sum_i share_i g_i a_i**t at `lags` (T,), or ln sqrt(sum_i share_i g_i**2 a_i**(2t)) of
        an `rms` kernel.
        """
        power, t = 2 if kernel == "rms" else 1, np.asarray(lags, dtype=float)
        rates, weights = power * self.rates, self.shares * self.gains**power
        slowest, block = rates.min(), max(1, (1 << 18) // rates.size)
        sums = [
            np.exp(np.outer(t[i : i + block], slowest - rates)) @ weights
            for i in range(0, t.size, block)
        ]
        return np.asarray(np.log(np.concatenate(sums)) - slowest * t) / power


def profile(start: Initialisation, beta: float, max_lag: int) -> dict[str, Any]:
    """Hold an initialisation against t**-beta on t = 1..max_lag.

    Returns its name, family, origin and half-lives (initialisation), the scores of the coherent
    kernel on every lag, the log-log slopes of the coherent and of the rms kernel over 200
    log-spaced lags of `slope_lags` (slope, slope_rms), and the real lag at which 1 % of the
    coherent kernel's value at lag 1 is left (memory). Raises ValueError unless that is a target:
    beta positive, 32 to 65,536 lags, a fall that float64 holds.
    """
    from scipy.optimize import brentq

    if max_lag not in LAGS:
        raise ValueError(
            f"max_lag must be {LAGS[0]} to {LAGS[-1]:,}, got {max_lag}: every lag is scored"
        )
    lags, grid = (
        power_law_target(beta, max_lag).integer_lags(),
        np.geomspace(*slope_lags(max_lag), 200),
    )
    log_kernel = start.log_kernel(lags)
    slopes = -falling_exponent(grid, [start.log_kernel(grid), start.log_kernel(grid, "rms")])
    end = 2 - math.log(LEFT) / start.rates.min()  # nothing decays slower than the slowest
    memory = brentq(
        lambda t: start.log_kernel([t])[0] - log_kernel[0] - math.log(LEFT), 1, end, xtol=1e-9
    )
    return {
        "initialisation": {
            name: getattr(start, name) for name in ("name", "family", "origin", "half_lives")
        },
        "scores": asdict(score(log_kernel - log_kernel[0], power_law(lags, beta), lags)),
        "slope": float(slopes[0]),
        "slope_rms": float(slopes[1]),
        "memory": float(memory),
    }


def slope_lags(max_lag: int) -> tuple[float, float]:
    """First and last lag of the slopes: 4 and max_lag / 4, clear of the first steps and of the
    end.
    """
    return 4.0, max_lag / 4


def initialisations() -> list[Initialisation]:
    """Every initialisation with its origin, family by family."""
    origins = tomllib.loads(Path(__file__).with_name("gallery.toml").read_text(encoding="utf-8"))
    starts = []
    for name, family, rates, gains, *drawn in (*_drawn(), *_fixed()):
        shares, (fastest, slowest) = drawn or (1.0, (rates.max(), rates.min()))
        origin = origins[re.sub("-(first|middle|last)$", "", name)]
        half_lives = (math.log(2) / fastest, math.log(2) / slowest if slowest else math.inf)
        flat, spread, parts = (
            np.ravel(values) for values in np.broadcast_arrays(rates, gains, shares)
        )
        starts.append(
            Initialisation(name, family, origin, half_lives, flat, spread, parts / parts.sum())
        )
    families = [start.family for start in starts]
    return sorted(starts, key=lambda start: families.index(start.family))


def _quantiles(count: int) -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes on (0, 1) and their weights: the levels at which quantiles of a
    distribution are taken.

    Means over `count` quantiles so weighted are nearly exact for smooth integrands: of the kernels
    here, within 3e-4.
    """
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) / 2, weights / 2


def _drawn() -> Iterator[tuple[Any, ...]]:
    """Name, family, rates, gains, shares, and fastest and slowest rate of layers whose parameters
    are drawn.

    Poles p under zero-order hold have the rates -Re(p) dt and gains |exp(p dt) - 1| / |p| (arXiv
    2206.11893).
    """
    levels, weights = _quantiles(32)
    steps = np.exp(np.log(STEPS[0]) + np.log(STEPS[1] / STEPS[0]) * levels)
    for name, poles in (
        ("s4d-real", -np.arange(1, 33) + 0j),
        ("s4d-lin", -0.5 + 1j * np.pi * np.arange(32)),
    ):
        exponents, ends = (
            np.outer(poles, steps),
            (-poles.real.min() * STEPS[1], -poles.real.max() * STEPS[0]),
        )
        yield (
            name,
            "S4D",
            -exponents.real,
            np.abs(np.expm1(exponents) / poles[:, None]),
            weights,
            ends,
        )

    (few, of_few), (many, of_many), delta = (
        _quantiles(16),
        _quantiles(64),
        f"delta rules, {AT_MOST}",
    )
    for name, family, scales, shares, gains, first, last in (
        ("mamba-1", "Mamba", np.arange(1, 17), np.ones(16), steps, 1.0, 16.0),
        ("mamba-2", "Mamba", 1 + 15 * few, of_few, steps, 1.0, 16.0),
        ("gdn-fla", delta, 16 * many, of_many, 1.0, 0.0, 16.0),  # rates go down to nearly none
        ("kda", delta, 1 + 15 * many, of_many, 1.0, 1.0, 16.0),
    ):
        ends = (last * STEPS[1], first * STEPS[0])
        yield name, family, np.outer(scales, steps), gains, np.outer(shares, weights), ends
    softplus, (levels, shares) = math.log1p(math.e), _quantiles(512)
    yield (
        "gdn-qwen3-next",
        delta,
        softplus * (0.01 + 15.99 * levels),
        1.0,
        shares,
        (16 * softplus, 0.01 * softplus),
    )

    levels, shares = _quantiles(256)
    ring = -np.log(np.sqrt(0.9**2 + (0.999**2 - 0.9**2) * levels))  # arXiv 2303.06349, lemma 3.2
    fast, slow = -math.log(0.9), -math.log(0.999)
    for name, family, rates, ends in (
        ("lru", "LRU", -np.log(np.sqrt(levels)), (math.inf, 0.0)),
        (
            "rg-lru-paper",
            "RG-LRU (Griffin)",
            -np.log(0.9 + 0.099 * levels) / 2,
            (fast / 2, slow / 2),
        ),
        ("rg-lru-code", "RG-LRU (Griffin)", 4 * ring, (4 * fast, 4 * slow)),
    ):
        yield name, family, rates, gain_at(rates, "lru"), shares, ends


def _fixed() -> Iterator[tuple[Any, ...]]:
    """Name, family, rates and gains of layers that nothing is drawn for, and of gates at quantiles
    of 256 channels.
    """
    heads, levels, ramp = np.arange(1, 65), (np.arange(256) + 0.5) / 256, np.linspace(0, 1, 1024)
    zigzag = np.tile(np.linspace(-1, 1, 64), 16)
    yield "retnet", "RetNet", -np.log1p(-(2.0 ** (-4 - heads[:8]))), 1.0
    yield "mlstm", "mLSTM and GLA", np.log1p(np.exp(-np.linspace(3, 6, 4))), 1.0
    yield "gla", "mLSTM and GLA", np.full(1, math.log(2) / 16), 1.0
    yield "rwkv6-fla", "RWKV-5 and 6", np.ones(1), 1.0
    for layer, part, at in (("first", 0.0, 0), ("middle", 12 / 23, 40), ("last", 1.0, 78)):
        rates = np.exp2(-heads / 8) * (1 - at / (79 + 1e-5) + 1e-5)
        yield f"lightning-{layer}", "lightning attention", rates, 1.0
        yield f"rwkv-{layer}", "RWKV-5 and 6", np.exp(-6 + 5 * ramp ** (0.7 + 1.3 * part)), 1.0
        rates = -np.log((1 + part * 23 / 24 * np.ones(1)) / 2)
        yield f"hgrn-{layer}", "HGRN", rates, gain_at(rates, "ema")
        level = -5.5 + 6 * ramp ** (1 + part**0.3) + 2.5 * zigzag * np.abs(zigzag)
        yield f"rwkv7-{layer}", f"RWKV-7, {AT_MOST}", math.exp(-0.5) * expit(level), 1.0
    gates = {
        "chrono": np.log1p(1 / (1 + 2046 * levels)),
        "inverse-gamma": gammaincinv(0.56, levels)[::-1],
    }
    for name, rates in gates.items():
        yield name, "gates of LSTMs", rates, gain_at(rates, "ema")


def gallery_figure(
    starts: Sequence[Initialisation], slopes: Sequence[float], beta: float, max_lag: int
) -> "Figure":
    """A panel for each family: kernels over lag, 1 at lag 1, coherent solid and rms dotted;
    t**-beta in grey.

    Beside each name stands one of `slopes`, that of its coherent kernel.
    """
    from matplotlib.figure import Figure

    groups = [(family, list(one)) for family, one in groupby(starts, lambda start: start.family)]
    lags, told = np.geomspace(1, max_lag, 200), iter(slopes)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 1.65 * len(groups) / 4 + 0.75))
        grid = figure.subplots(len(groups) // 4, 4, sharex=True, sharey=True)
        for axes, (family, members) in zip(grid.flat, groups, strict=True):
            target = axes.plot(lags, power_law(lags, beta), color=INK, lw=4.5, alpha=0.2)
            axes.set_title(family, fontweight="bold", pad=3)
            for start, colour in zip(members, cycle(COLOURS), strict=False):
                rms, coherent = (
                    np.exp(log - log[0])
                    for log in (start.log_kernel(lags, "rms"), start.log_kernel(lags))
                )
                dotted = axes.plot(lags, rms, color=colour, lw=0.8, ls=(0, (1.6, 1.1)))
                solid = axes.plot(
                    lags, coherent, color=colour, lw=1.3, label=f"{start.name}  {next(told):.2f}"
                )
            look: dict[str, Any] = {
                "fontsize": 6,
                "handlelength": 1.2,
                "labelspacing": 0.2,
                "borderaxespad": 0.1,
            }
            axes.legend(
                loc="lower left",
                frameon=True,
                framealpha=0.8,
                edgecolor="none",
                borderpad=0.2,
                **look,
            )
        grid[0, 0].set(
            xscale="log", yscale="log", xlim=(1, max_lag), ylim=(max_lag**-beta / 80, 1.5)
        )
        decades(grid[0, 0].xaxis, grid[0, 0].yaxis)
        for axes in grid[-1]:
            axes.set_xlabel("lag t (steps)")
        for axes in grid[:, 0]:
            axes.set_ylabel("k(t) / k(1)")
        lines = [f"target t**-{beta:g}", "coherent, with its slope", "rms (random signs)"]
        figure.legend([*target, *solid, *dotted], lines, loc="outside lower center", ncols=3)
    return figure
