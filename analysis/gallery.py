"""Memory kernels of published layers at initialisation, coherent and rms, beside a power law.

A channel with decay a and input gain g holds the input of t steps ago with weight g a**t. With
equal projections the layer's kernel is the sum of these; with random signs of mean zero, as at
initialisation, the root of the sum of squares.

Gates and steps that depend on the input stand at their bias, where they are on average at first;
of complex decays the magnitudes count, so these kernels are envelopes. Short convolutions
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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaincinv

from plkernel.analysis.exponentials import Floats, power_law, power_law_target, score
from plkernel.analysis.figures.style import COLOURS, INK, PAGE_WIDTH, decades, style
from plkernel.analysis.nodes import POWERS, Summation, falling_exponent, gain_at
from plkernel.analysis.parametrisations import (
    exp_sigmoid_rate,
    gate_rate,
    half_open_rate,
    lightning_rates,
    retnet_rates,
    root_rate,
    rwkv7_levels,
    rwkv_levels,
    softplus,
    stepped_rate,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEFT = 0.01
"""The share of a kernel's value at lag 1 that ends its effective memory."""
LAGS = range(32, 65537)
"""Last lags of a comparison: every lag is scored."""
SLOPE_POINTS = 200
"""Lags, evenly spaced in their logarithm, over which a slope is taken."""
BLOCK = 1 << 18
"""Lags times nodes that are computed at once, which bounds memory: 2 MB."""
AT_MOST = "at most"
"""After the name of a family whose decays are upper bounds."""
MARKERS = "os^D"
"""Of the curves of a family, which are told apart without colours too."""
SOLID: dict[str, Any] = {"lw": 1.3}
DOTTED: dict[str, Any] = {"lw": 0.8, "ls": (0, (1.6, 1.1))}
LEGEND: dict[str, Any] = {
    "fontsize": 6,
    "handlelength": 1.2,
    "labelspacing": 0.2,
    "borderaxespad": 0.1,
    "borderpad": 0.2,
    "frameon": True,
    "framealpha": 0.8,
    "edgecolor": "none",
}
"""The look of the legend of a panel: small, on what is drawn."""
STEPS = (1e-3, 1e-1)
"""Range of the log-uniform step size dt in S4D, Mamba and the delta nets."""


@dataclass(frozen=True)
class Initialisation:
    """The decays of a layer at initialisation, one entry of each array for each node.

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
        """ln of the kernel at `lags` (T,).

        coherent  ln sum_i share_i g_i a_i**t
        rms       ln sqrt(sum_i share_i g_i**2 a_i**(2t))
        """
        power = POWERS[kernel]
        t = np.asarray(lags, dtype=float)
        rates = power * self.rates
        weights = self.shares * self.gains**power
        slowest = rates.min()  # taken out, so that nothing underflows
        block = max(1, BLOCK // rates.size)
        sums = []
        for start in range(0, t.size, block):
            decayed = np.exp(np.outer(t[start : start + block], slowest - rates))
            sums.append(decayed @ weights)
        return np.asarray(np.log(np.concatenate(sums)) - slowest * t) / power


def profile(start: Initialisation, beta: float, max_lag: int) -> dict[str, Any]:
    """Hold an initialisation against t**-beta on t = 1..max_lag.

    Returns a dictionary of

    initialisation    its name, family, origin and half-lives
    scores            of the coherent kernel on every lag
    slope, slope_rms  log-log slopes of the coherent and of the rms kernel over SLOPE_POINTS lags of
                      `slope_lags`
    memory            the real lag at which the share LEFT of the coherent kernel's value at lag 1
                      is left

    Raises ValueError unless that is a target: beta positive, LAGS lags, a fall that float64 holds.
    """
    from scipy.optimize import brentq

    if max_lag not in LAGS:
        raise ValueError(
            f"max_lag must be {LAGS[0]} to {LAGS[-1]:,}, got {max_lag}; every lag is scored"
        )
    lags = power_law_target(beta, max_lag).integer_lags()
    grid = np.geomspace(*slope_lags(max_lag), SLOPE_POINTS)
    log_kernel = start.log_kernel(lags)
    slopes = -falling_exponent(grid, [start.log_kernel(grid), start.log_kernel(grid, "rms")])
    end = 2 - math.log(LEFT) / start.rates.min()  # nothing decays slower than the slowest
    memory = brentq(
        lambda t: start.log_kernel([t])[0] - log_kernel[0] - math.log(LEFT), 1, end, xtol=1e-9
    )
    facts = ("name", "family", "origin", "half_lives")
    scores = score(log_kernel - log_kernel[0], power_law(lags, beta), lags)
    return {
        "initialisation": {name: getattr(start, name) for name in facts},
        "scores": asdict(scores),
        "slope": float(slopes[0]),
        "slope_rms": float(slopes[1]),
        "memory": float(memory),
    }


def slope_lags(max_lag: int) -> tuple[float, float]:
    """4 and max_lag / 4: first and last lag of the slopes, clear of the first steps and the end."""
    return 4.0, max_lag / 4


class InitialDecays(NamedTuple):
    """A layer at initialisation; `rates`, `gains` and `shares` broadcast to one entry a node.

    fastest, slowest  the rates that the formula allows; those of `rates` where they are None
    """

    name: str
    family: str
    rates: Floats
    gains: Floats | float = 1.0
    shares: Floats | float = 1.0
    fastest: float | None = None
    slowest: float | None = None


def initialisations() -> list[Initialisation]:
    """Every initialisation with its origin, family by family."""
    origins = tomllib.loads(Path(__file__).with_name("gallery.toml").read_text(encoding="utf-8"))
    starts = []
    for decays in _decays():
        key = re.sub("-(first|middle|last)$", "", decays.name)  # of the layers of one model
        starts.append(_initialisation(decays, origins[key]))
    families = [start.family for start in starts]
    return sorted(starts, key=lambda start: families.index(start.family))


def _initialisation(decays: InitialDecays, origin: dict[str, str]) -> Initialisation:
    """The nodes of a layer, flat, and its shortest and longest half-life."""
    fastest = decays.rates.max() if decays.fastest is None else decays.fastest
    slowest = decays.rates.min() if decays.slowest is None else decays.slowest
    half_lives = (math.log(2) / fastest, math.log(2) / slowest if slowest else math.inf)
    parts = np.broadcast_arrays(decays.rates, decays.gains, decays.shares)
    rates, gains, shares = (np.ravel(values) for values in parts)
    return Initialisation(
        decays.name, decays.family, origin, half_lives, rates, gains, shares / shares.sum()
    )


def _quantiles(count: int) -> tuple[Floats, Floats]:
    """Levels in (0, 1) at which quantiles are taken, and their Gauss-Legendre weights.

    Means over `count` quantiles so weighted are nearly exact for smooth integrands: of the kernels
    here, within 3e-4.
    """
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) / 2, weights / 2


def _decays() -> Iterator[InitialDecays]:
    """Every layer of the gallery at initialisation; families in the order of the figure."""
    yield from _poles()
    yield from _stepped()
    yield from _rings()
    yield from _gates()
    yield from _of_layers()
    yield from _lstm_gates()


def _steps() -> tuple[Floats, Floats]:
    """Quantiles of the log-uniform step size dt, and their weights."""
    levels, weights = _quantiles(32)
    return np.exp(np.log(STEPS[0]) + np.log(STEPS[1] / STEPS[0]) * levels), weights


def _poles() -> Iterator[InitialDecays]:
    """S4D: poles p under zero-order hold, of rates -Re(p) dt and gains |exp(p dt) - 1| / |p|.

    Source: arXiv 2206.11893.
    """
    steps, weights = _steps()
    for name, poles in (
        ("s4d-real", -np.arange(1, 33) + 0j),
        ("s4d-lin", -0.5 + 1j * np.pi * np.arange(32)),
    ):
        exponents = np.outer(poles, steps)
        yield InitialDecays(
            name,
            "S4D",
            -exponents.real,
            np.abs(np.expm1(exponents) / poles[:, None]),
            weights,
            fastest=-poles.real.min() * STEPS[1],
            slowest=-poles.real.max() * STEPS[0],
        )


def _stepped() -> Iterator[InitialDecays]:
    """Rates A dt with a log-uniform dt: Mamba, and delta nets."""
    steps, weights = _steps()
    few, of_few = _quantiles(16)
    many, of_many = _quantiles(64)
    delta = f"delta rules, {AT_MOST}"
    for name, family, speeds, shares, gains, slowest, fastest in (
        ("mamba-1", "Mamba", np.arange(1, 17), np.ones(16), steps, 1.0, 16.0),
        ("mamba-2", "Mamba", 1 + 15 * few, of_few, steps, 1.0, 16.0),
        ("gdn-fla", delta, 16 * many, of_many, 1.0, 0.0, 16.0),  # rates go down to nearly none
        ("kda", delta, 1 + 15 * many, of_many, 1.0, 1.0, 16.0),
    ):
        yield InitialDecays(
            name,
            family,
            np.outer(speeds, steps),
            gains,
            np.outer(shares, weights),
            fastest=fastest * STEPS[1],
            slowest=slowest * STEPS[0],
        )
    levels, shares = _quantiles(512)
    speeds = 0.01 + 15.99 * levels
    step = float(softplus(np.float64(1.0)))
    rates = stepped_rate(np.log(speeds), np.ones(512))
    yield InitialDecays(
        "gdn-qwen3-next", delta, rates, 1.0, shares, fastest=16 * step, slowest=0.01 * step
    )


def _rings() -> Iterator[InitialDecays]:
    """Decays |a| drawn from a ring: LRU and RG-LRU, arXiv 2303.06349, lemma 3.2."""
    levels, shares = _quantiles(256)
    ring = -np.log(np.sqrt(0.9**2 + (0.999**2 - 0.9**2) * levels))
    fast = -math.log(0.9)
    slow = -math.log(0.999)
    griffin = "RG-LRU (Griffin)"
    for name, family, rates, fastest, slowest in (
        ("lru", "LRU", -np.log(np.sqrt(levels)), math.inf, 0.0),
        ("rg-lru-paper", griffin, -np.log(0.9 + 0.099 * levels) / 2, fast / 2, slow / 2),
        ("rg-lru-code", griffin, 4 * ring, 4 * fast, 4 * slow),
    ):
        yield InitialDecays(name, family, rates, gain_at(rates, "lru"), shares, fastest, slowest)


def _gates() -> Iterator[InitialDecays]:
    """Heads and gates for which nothing is drawn."""
    yield InitialDecays("retnet", "RetNet", retnet_rates(8))
    yield InitialDecays("mlstm", "mLSTM and GLA", gate_rate(np.linspace(3.0, 6.0, 4)))
    yield InitialDecays("gla", "mLSTM and GLA", root_rate(np.zeros(1)))
    yield InitialDecays("rwkv6-fla", "RWKV-5 and 6", np.exp(np.zeros(1)))


def _lstm_gates() -> Iterator[InitialDecays]:
    """Gates of which 256 channels stand at the quantiles of their distribution."""
    levels = (np.arange(256) + 0.5) / 256
    for name, rates in (
        ("chrono", gate_rate(np.log(1 + 2046 * levels))),
        ("inverse-gamma", gammaincinv(0.56, levels)[::-1]),
    ):
        yield InitialDecays(name, "gates of LSTMs", rates, gain_at(rates, "ema"))


def _of_layers() -> Iterator[InitialDecays]:
    """The first, a middle and the last layer of deep models."""
    for layer, depth, of_eighty in (("first", 0.0, 0), ("middle", 12 / 23, 40), ("last", 1.0, 78)):
        yield InitialDecays(
            f"lightning-{layer}", "lightning attention", lightning_rates(64, 80, of_eighty)
        )
        yield InitialDecays(f"rwkv-{layer}", "RWKV-5 and 6", np.exp(rwkv_levels(1024, depth)))
        open_half = half_open_rate(np.full(1, depth * 23 / 24))
        yield InitialDecays(f"hgrn-{layer}", "HGRN", open_half, gain_at(open_half, "ema"))
        rates = exp_sigmoid_rate(rwkv7_levels(1024, depth))
        yield InitialDecays(f"rwkv7-{layer}", f"RWKV-7, {AT_MOST}", rates)


ROOM_FOR_NAMES = 150.0
"""Below the least value that is drawn, for the legends."""


def _above(least: float, log_kernel: NDArray[np.float64]) -> NDArray[np.float64]:
    """A kernel from its logarithm, without what lies below `least`."""
    kernel = np.exp(log_kernel)
    return np.where(kernel < least, np.nan, kernel)


def gallery_figure(
    starts: Sequence[Initialisation], slopes: Sequence[float], beta: float, max_lag: int
) -> "Figure":
    """A panel for each family: kernels over lag, 1 at lag 1, coherent solid and rms dotted.

    t**-beta is drawn in grey. Beside each name stands one of `slopes`, that of its coherent kernel;
    both kernels of a name have its colour and its marker.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    groups = [(family, list(one)) for family, one in groupby(starts, lambda start: start.family)]
    lags = np.geomspace(1, max_lag, 200)
    told = iter(slopes)
    least = max_lag**-beta / 20
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 1.65 * len(groups) / 4 + 0.75))
        grid = figure.subplots(len(groups) // 4, 4, sharex=True, sharey=True)
        for axes, (family, members) in zip(grid.flat, groups, strict=True):
            target = axes.plot(lags, power_law(lags, beta), color=INK, lw=4.5, alpha=0.2)
            axes.set_title(family, fontweight="bold", pad=3)
            for start, colour, marker in zip(members, cycle(COLOURS), cycle(MARKERS), strict=False):
                rms = start.log_kernel(lags, "rms")
                coherent = start.log_kernel(lags)
                label = f"{start.name}  {next(told):.2f}"
                look = {"color": colour, "marker": marker, "ms": 2.6, "markevery": (20, 40)}
                axes.plot(lags, _above(least, rms - rms[0]), **look, **DOTTED)
                axes.plot(lags, _above(least, coherent - coherent[0]), **look, **SOLID, label=label)
            axes.legend(loc="lower left", **LEGEND)
        grid[0, 0].set(
            xscale="log", yscale="log", xlim=(1, max_lag), ylim=(least / ROOM_FOR_NAMES, 1.5)
        )
        decades(grid[0, 0].xaxis, grid[0, 0].yaxis)
        for axes in grid[-1]:
            axes.set_xlabel("lag t (steps)")
        for axes in grid[:, 0]:
            axes.set_ylabel("k(t) / k(1)")
        lines = [f"target t**-{beta:g}", "coherent, with its slope", "rms (random signs)"]
        looks = [Line2D([], [], color=INK, **kind) for kind in (SOLID, DOTTED)]
        figure.legend([*target, *looks], lines, loc="outside lower center", ncols=3)
    return figure
