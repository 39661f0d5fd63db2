"""The memory kernel that a layer starts with, coherent and rms, held against a power law: published layers and ours.

A channel with decay a and input gain g holds the input of t steps ago with weight g a**t. With equal projections the
layer's kernel is the sum of these; with random signs of mean zero, as models start, the root of the sum of squares.

Gates and steps that depend on the input stand at their bias, where they are on average at the start; of complex decays
the magnitudes count, so these kernels are envelopes. Short convolutions and terms for the newest input are left out.
Delta rules also forget by erasing what they overwrite, as much as keys are alike: their decays are upper bounds.
"""

import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import cycle, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.exponentials import Floats, integer_lags, power_law, power_law_target, score
from plkernel.analysis.figures.style import COLOURS, INK, PAGE_WIDTH, style
from plkernel.analysis.nodes import Gain, Placement, Projection, Summation, gain_at, place

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEFT = 0.01
"""The share of a kernel's value at lag 1 that ends its effective memory."""
MIN_LAG, MAX_LAG = 32, 65536
AT_MOST = "at most"
CHANNELS, STUDIED_BETA = 256, 1.15
CHRONO_LAG, SHAPE = 2048, 0.56
"""The longest dependency of chrono gates, and the shape of the inverse gamma distribution of time scales."""
CODE = "plkernel: analysis/nodes.py"
STEPS = (1e-3, 1e-1)
"""Range of the log-uniform step size dt in S4D, S5, Mamba and the delta nets."""
HGRN_DEPTH, LIGHTNING_DEPTH, LIGHTNING_HEADS = 24, 80, 64
RWKV_DEPTH, RWKV_WIDTH, RWKV_HEAD = 24, 1024, 64
GAINS: dict[Gain, tuple[str, str]] = {
    "none": ("1", "no gain"),
    "lru": ("sqrt(1 - a^2)", "LRU gain"),
    "ema": ("1 - a", "EMA gain"),
}
CONDITIONS: tuple[tuple[str, Placement, Projection], ...] = (
    ("1", "log-spaced", "uniform"),
    ("2", "log-spaced", "published"),
    ("3", "concentrated", "published"),
    ("missing", "concentrated", "uniform"),
)
"""The three published conditions and the cell their design leaves out, as node set and shape of the projection."""
OURS: tuple[tuple[str, Gain, float, Summation], ...] = (
    ("none", "none", 0.5, "coherent"),
    ("lru", "lru", 0.5, "coherent"),
    ("ema", "ema", 0.5, "coherent"),
    ("uniform-ema", "ema", 1.0, "coherent"),
    ("rms-ema", "ema", 0.5, "rms"),
)
"""Quantile nodes: name, gain, tempering, kernel."""
ORIGIN = ("formula", "gain", "assumed", "paper", "code")
RMS_DASHES: Any = (0, (1.6, 1.1))
LEGEND: dict[str, Any] = {"loc": "lower left", "fontsize": 6, "frameon": True, "framealpha": 0.8, "handlelength": 1.2}
LEGEND |= {"labelspacing": 0.2, "borderaxespad": 0.1, "borderpad": 0.2, "handletextpad": 0.5}


@dataclass(frozen=True)
class Initialisation:
    """The decays that a layer starts with, one entry of `rates`, `gains` and `shares` for each node.

    origin      the decay (formula) and input gain in words, what had to be fixed to get numbers (assumed), the paper
                that states them, the file (code) they were read from, and the layer of a model where layers differ
    half_lives  shortest and longest that the formula allows, in steps
    rates       decay rates -ln a per step
    gains       the factor on a channel's input, the shape of the projection included
    shares      the share of the layer's channels that a node stands for; they add up to 1

    Random parameters are nodes at quantiles of their distribution, weighted by the share, so that both kernels are
    expectations over the draw: the average of a wide layer.
    """

    name: str
    family: str
    origin: dict[str, str]
    half_lives: tuple[float, float]
    rates: tuple[float, ...]
    gains: tuple[float, ...]
    shares: tuple[float, ...]

    def log_coherent(self, lags: ArrayLike) -> Floats:
        """ln sum_i share_i g_i a_i**t at `lags`, shape (T,): equal projections."""
        return _log_sum(np.array(self.rates), np.multiply(self.shares, self.gains), lags)

    def log_rms(self, lags: ArrayLike) -> Floats:
        """ln sqrt(sum_i share_i g_i**2 a_i**(2t)) at `lags`, shape (T,): random projections of mean zero."""
        return _log_sum(2 * np.asarray(self.rates), np.multiply(self.shares, np.square(self.gains)), lags) / 2

    def memory(self) -> float:
        """The real lag t at which the coherent kernel is `LEFT` times its value at lag 1."""
        floor = self.log_coherent([1.0])[0] + np.log(LEFT)
        low, high = 1.0, 1.0 - float(np.log(LEFT)) / min(self.rates)  # nothing decays slower than the slowest
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.log_coherent([middle])[0] > floor else (low, middle)
        return high


def _log_sum(rates: Floats, weights: Floats, lags: ArrayLike) -> Floats:
    """ln sum_i weights_i exp(-rates_i t), five times as fast as `ExponentialSum` for thousands of nodes."""
    slowest, t = rates.min(), np.asarray(lags, dtype=float)
    block = max(1, (1 << 18) // rates.size)
    sums = [np.exp(np.outer(t[i : i + block], slowest - rates)) @ weights for i in range(0, t.size, block)]
    return np.log(np.concatenate(sums)) - slowest * t


def profile(start: Initialisation, beta: float, max_lag: int) -> dict[str, Any]:
    """Hold an initialisation against t**-beta on t = 1..max_lag.

    Returns its name, family, origin and half-lives (initialisation), the scores of the coherent kernel on every lag,
    the log-log slopes of the coherent and of the rms kernel over 200 log-spaced lags of `slope_lags` (slope,
    slope_rms), and the lag at which 1 % of the coherent kernel's value at lag 1 is left (memory).
    """
    lags, grid = integer_lags(max_lag), np.geomspace(*slope_lags(max_lag), 200)
    kernels = (start.log_coherent(grid), start.log_rms(grid))
    coherent, rms = (float(np.polyfit(np.log(grid), values, 1)[0]) for values in kernels)
    log_kernel = start.log_coherent(lags)
    scores = score(log_kernel - log_kernel[0], power_law(lags, beta), lags)
    named = {name: getattr(start, name) for name in ("name", "family", "origin", "half_lives")}
    slopes = {"slope": coherent, "slope_rms": rms}
    return {"initialisation": named, "scores": asdict(scores), **slopes, "memory": start.memory()}


def slope_lags(max_lag: int) -> tuple[float, float]:
    """First and last lag of the slopes: 4 and max_lag / 4, clear of the first steps and of the end."""
    return 4.0, max_lag / 4


def initialisations(beta: float, max_lag: int) -> list[Initialisation]:
    """Every initialisation, family by family; only ours depend on the target t**-beta, t = 1..max_lag.

    Raises ValueError unless that is a target: beta positive, 32 to 65,536 lags, a fall that float64 holds.
    """
    if not MIN_LAG <= max_lag <= MAX_LAG:
        bound = f"at least {MIN_LAG}" if max_lag < MIN_LAG else f"at most {MAX_LAG}"
        raise ValueError(f"max_lag must be {bound}, got {max_lag}: every lag is scored, and slopes need a range")
    power_law_target(beta, max_lag)
    return [*_state_spaces(), *_heads_and_gates(), *_delta_rules(), *_placements(beta, max_lag)]


@cache
def origins() -> dict[str, dict[str, str]]:
    """The origins in `gallery.toml` by name."""
    text = Path(__file__).with_name("gallery.toml").read_text(encoding="utf-8")
    return {name: {**origin, "layer": "all"} for name, origin in tomllib.loads(text).items()}


def initialisation(
    name: str,
    family: str,
    rates: ArrayLike,
    gains: ArrayLike = 1.0,
    shares: ArrayLike = 1.0,
    ends: tuple[float, float] | None = None,
    origin: dict[str, str] | None = None,
) -> Initialisation:
    """An `Initialisation` from arrays of any one shape; gains and shares broadcast to `rates`.

    ends: fastest and slowest rate that the formula allows, where `rates` are quantiles inside them. origin: that of
    `name` in `gallery.toml` unless given.
    """
    flat = np.asarray(rates, dtype=float).ravel()
    spread, parts = (np.broadcast_to(np.ravel(values), flat.shape) for values in (gains, shares))
    fastest, slowest = ends or (float(flat.max()), float(flat.min()))
    arrays = [tuple(values.tolist()) for values in (flat, spread, parts / parts.sum())]
    half_lives = (math.log(2) / fastest, math.log(2) / slowest if slowest else math.inf)
    return Initialisation(name, family, origin or origins()[name], half_lives, *arrays)


@cache
def quantiles(count: int) -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes on (0, 1) and their weights: the levels at which quantiles of a distribution are taken.

    Means over `count` quantiles so weighted are nearly exact for smooth integrands: of the kernels here, within 3e-4.
    """
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) / 2, weights / 2


def step_sizes() -> tuple[Floats, Floats]:
    """Quantiles of the log-uniform step size dt and their weights, each of shape (32,)."""
    levels, weights = quantiles(32)
    first, last = np.log(STEPS)
    return np.exp(first + (last - first) * levels), weights


def hippo_normal_poles(size: int) -> NDArray[np.complexfloating[Any, Any]]:
    """The poles -1/2 + i w, w < 0, of HiPPO-N, the normal part of HiPPO-LegS: shape (size // 2,).

    -1/2 on its diagonal, skew-symmetric beside it, -sqrt((2n+1)(2k+1))/2 below. Source: S5 (arXiv 2208.04933), 2.3.
    """
    scale = np.sqrt(2 * np.arange(size) + 1)
    lower = np.tril(np.outer(scale, scale) / 2, -1)
    return -0.5 + 1j * np.linalg.eigvalsh(1j * (lower - lower.T))[: size // 2]


def _with_norm(
    name: str, family: str, rates: Floats, size: int = 1, origin: dict[str, str] | None = None
) -> list[Initialisation]:
    """A recurrence without gain, and its output after a norm over heads of `size` channels, which acts as a gain.

    Each head's output then has variance 1 for white input. With one decay in a head that is the LRU's gain.
    """
    alone = initialisation(name, family, rates, origin=origin)
    formula = "sqrt(1 - a^2)" if size == 1 else "1 / sqrt(mean of 1 / (1 - a^2))"
    normed = {**alone.origin, "gain": f"norm of each head: {formula}"}
    variances = (-1 / np.expm1(-2 * rates)).reshape(-1, size).mean(axis=1)
    gains = np.repeat(1 / np.sqrt(variances), size)
    return [alone, initialisation(f"{name}-normed", family, rates, gains, origin=normed)]


def _layers(source: str, depth: int, last: int) -> Iterator[tuple[str, int, dict[str, str]]]:
    """First, middle and last layer of a model whose layers differ: name, index and origin."""
    for name, index in (("first", 0), ("middle", depth // 2), ("last", last)):
        yield f"{source}-{name}", index, {**origins()[source], "layer": f"{index + 1} of {depth}"}


def _state_spaces() -> Iterator[Initialisation]:
    """S4D and S5; Mamba, whose input gain is dt itself; LRU on the disc and on a thin ring; Griffin's RG-LRU.

    Poles p under zero-order hold have the rates -Re(p) dt and gains |exp(p dt) - 1| / |p| (arXiv 2206.11893).
    """
    steps, weights = step_sizes()
    for name, poles in (
        ("s4d-real", -np.arange(1, 33) + 0j),
        ("s4d-lin", -0.5 + 1j * np.pi * np.arange(32)),
        ("s5", hippo_normal_poles(32)),
    ):
        exponents = np.outer(poles, steps)
        rates, gains = -exponents.real, np.abs(np.expm1(exponents) / poles[:, None])
        ends = (-poles.real.min() * STEPS[1], -poles.real.max() * STEPS[0])
        yield initialisation(name, "S4D and S5", rates, gains, np.broadcast_to(weights, rates.shape), ends)

    for name, scales, shares, last in (
        ("mamba-1", np.arange(1, 17), np.ones(16), 16.0),
        ("mamba-2", 1 + 15 * quantiles(16)[0], quantiles(16)[1], 16.0),
        ("mamba-3", np.full(1, math.log(2)), np.ones(1), math.log(2)),
    ):
        ends = (last * STEPS[1], min(1.0, last) * STEPS[0])
        gains, parts = np.tile(steps, scales.size), np.outer(shares, weights)
        yield initialisation(name, "Mamba", np.outer(scales, steps), gains, parts, ends)

    levels, shares = quantiles(256)
    fast, slow = -math.log(0.9), -math.log(0.999)
    ring = -np.log(np.sqrt(0.9**2 + (0.999**2 - 0.9**2) * levels))  # arXiv 2303.06349, lemma 3.2
    for name, family, rates, ends in (
        ("lru", "LRU", -np.log(np.sqrt(levels)), (math.inf, 0.0)),
        ("lru-ring", "LRU", ring, (fast, slow)),
        ("rg-lru-paper", "RG-LRU (Griffin)", -np.log(0.9 + 0.099 * levels) / 2, (fast / 2, slow / 2)),
        ("rg-lru-code", "RG-LRU (Griffin)", 4 * ring, (4 * fast, 4 * slow)),
    ):
        yield initialisation(name, family, rates, gain_at(rates, "lru"), shares, ends)


def _heads_and_gates() -> Iterator[Initialisation]:
    """RetNet, the mLSTM of xLSTM at two sizes, GLA, lightning attention, RWKV-5 and 6, HGRN."""
    yield from _with_norm("retnet", "RetNet", -np.log1p(-(2.0 ** (-5 - np.arange(8)))))
    yield from _with_norm("mlstm", "mLSTM and GLA", np.log1p(np.exp(-np.linspace(3, 6, 4))))
    yield initialisation("xlstm-7b", "mLSTM and GLA", np.log1p(np.exp(-(15.0 * np.tanh(np.linspace(3, 6, 8) / 15.0)))))
    yield initialisation("gla", "mLSTM and GLA", np.log(2) / 16)
    slopes = np.exp2(-8.0 * np.arange(1, LIGHTNING_HEADS + 1) / LIGHTNING_HEADS)
    for name, index, origin in _layers("lightning", LIGHTNING_DEPTH, LIGHTNING_DEPTH - 2):
        rates = slopes * (1 - index / (LIGHTNING_DEPTH - 1 + 1e-5) + 1e-5)
        yield initialisation(name, "lightning attention", rates, origin=origin)
    for name, index, origin in _layers("rwkv", RWKV_DEPTH, RWKV_DEPTH - 1):
        rates = np.exp(-6 + 5 * np.linspace(0, 1, RWKV_WIDTH) ** (0.7 + 1.3 * index / (RWKV_DEPTH - 1)))
        yield from _with_norm(name, "RWKV-5 and 6", rates, RWKV_HEAD, origin)[: 2 if "middle" in name else 1]
    yield initialisation("rwkv6-fla", "RWKV-5 and 6", 1.0)
    rates = -np.log((1 + np.arange(HGRN_DEPTH) / HGRN_DEPTH) / 2)
    gains = gain_at(rates, "ema")
    for name, index, origin in _layers("hgrn", HGRN_DEPTH, HGRN_DEPTH - 1):
        yield initialisation(name, "HGRN", rates[index], gains[index], origin=origin)
    every = {**origins()["hgrn"], "layer": "all layers together"}
    yield initialisation("hgrn-all", "HGRN", rates, gains, origin=every)


def _delta_rules() -> Iterator[Initialisation]:
    """Gated delta nets as two libraries start them, Kimi Delta Attention, Gated DeltaNet-2, RWKV-7 by its decays."""
    (steps, weights), (levels, shares) = step_sizes(), quantiles(64)  # of rates that go down to nearly none
    first, last = (edge * math.log1p(math.e) for edge in (0.01, 16.0))
    fine, parts = quantiles(512)
    both, drawn = np.outer(shares, weights), np.outer(1 + 15 * levels, steps)
    for name, rates, weight, ends in (
        ("gdn-fla", np.outer(16 * levels, steps), both, (16 * STEPS[1], 0.0)),
        ("gdn-qwen3-next", first + (last - first) * fine, parts, (last, first)),
        ("kda", drawn, both, (16 * STEPS[1], STEPS[0])),
        ("gdn-2", drawn, both, (16 * STEPS[1], STEPS[0])),
    ):
        yield initialisation(name, f"delta rules, {AT_MOST}", rates, 1.0, weight, ends)
    z = np.tile(np.linspace(-1, 1, RWKV_HEAD), RWKV_WIDTH // RWKV_HEAD)
    for name, index, origin in _layers("rwkv7", RWKV_DEPTH, RWKV_DEPTH - 1):
        power = 1 + (index / (RWKV_DEPTH - 1)) ** 0.3
        level = -5.5 + 6 * np.linspace(0, 1, RWKV_WIDTH) ** power + 2.5 * z * np.abs(z)
        rates = np.exp(-0.5) / (1 + np.exp(-level))
        yield from _with_norm(name, f"RWKV-7, {AT_MOST}", rates, RWKV_HEAD, origin)[: 2 if "middle" in name else 1]


def _placements(beta: float, max_lag: int) -> Iterator[Initialisation]:
    """Gates of LSTMs, and placements of this package: the published conditions under every gain, and the power law.

    The gates' input gates start at 1 - a. Chrono: a = sigmoid(b), exp(b) uniform on 1..2047; inverse gamma: a =
    exp(-1 / T), whose mean over channels is (1 + t)**-0.56; both at the middle quantiles. The study does not state its
    gain. Ours are quantile nodes up to `max_lag` with half of the law in the decays and half in the projection
    (tempering 1/2), under each gain for the coherent kernel; with all of it in the decays; and for the rms kernel. The
    projection joins the gain: it is part of what a channel contributes.
    """
    from scipy.special import gammaincinv

    def placed(name: str, family: str, origin: Sequence[str] = (), **options: Any) -> Initialisation:
        kernel = place(CHANNELS, **options).kernel()
        given = {**dict(zip(ORIGIN, origin, strict=True)), "layer": "all"} if origin else None
        return initialisation(name, family, kernel.rates, kernel.weights, origin=given)

    levels = (np.arange(CHANNELS) + 0.5) / CHANNELS
    chrono = np.log(2) / np.log1p(1 / (1 + (CHRONO_LAG - 2) * levels))
    for gate, half_lives in (("chrono", chrono), ("inverse-gamma", np.log(2) / gammaincinv(SHAPE, levels)[::-1])):
        rates = np.log(2) / half_lives
        yield initialisation(gate, "gates of LSTMs", rates, gain_at(rates, "ema"))
    for gain, (words, title) in GAINS.items():
        for name, placement, projection in CONDITIONS:
            formula = f"half-lives {placement}; C {'uniform' if projection == 'uniform' else '~ lambda^0.15'}"
            left_out = "; the cell its design leaves out" if name == "missing" else ""
            origin = (formula, words, f"{CHANNELS} channels, this gain{left_out}", "EXP-013", CODE)
            options: dict[str, Any] = {"placement": placement, "projection": projection, "beta": STUDIED_BETA}
            yield placed(f"exp013-{name}-{gain}", f"EXP-013, {title}", origin, gain=gain, **options)
    for name, gain, tempering, kernel in OURS:
        formula = f"half-lives at quantiles of the {kernel} law; C {'uniform' if tempering == 1 else 'the rest'}"
        assumed = f"{CHANNELS} channels, tempering {tempering:g}, for t**-{beta:g} on 1..{max_lag}"
        options = {"placement": "quantile", "beta": beta, "max_lag": max_lag, "kernel": kernel, "tempering": tempering}
        origin = (formula, GAINS[gain][0], assumed, "this package", CODE)
        yield placed(f"ours-{name}", "power law", origin, gain=gain, **options)


def gallery_figure(starts: Sequence[Initialisation], slopes: Sequence[float], beta: float, max_lag: int) -> "Figure":
    """A panel for each family: kernels over lag, 1 at lag 1, coherent solid and rms dotted; t**-beta in grey.

    Beside each name stands one of `slopes`, that of its coherent kernel.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    groups = {family: list(members) for family, members in groupby(starts, lambda start: start.family)}
    rows, lags, told = len(groups) // 4, np.geomspace(1, max_lag, 200), iter(slopes)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 1.65 * rows + 0.75))
        grid = figure.subplots(rows, 4, sharex=True, sharey=True)
        for axes, (family, members) in zip(grid.flat, groups.items(), strict=True):
            target = axes.plot(lags, power_law(lags, beta), color=INK, lw=4.5, alpha=0.2)
            axes.set_title(family, fontweight="bold", pad=3)
            for start, colour in zip(members, cycle(COLOURS), strict=False):
                rms, coherent = (np.exp(log - log[0]) for log in (start.log_rms(lags), start.log_coherent(lags)))
                dotted = axes.plot(lags, rms, color=colour, lw=0.8, ls=RMS_DASHES)
                solid = axes.plot(lags, coherent, color=colour, lw=1.3, label=f"{start.name}  {next(told):.2f}")
            axes.legend(**LEGEND).get_frame().set_linewidth(0)
        grid[0, 0].set(xscale="log", yscale="log", xlim=(1, max_lag), ylim=(max_lag**-beta / 80, 1.5))
        for axis in (grid[0, 0].xaxis, grid[0, 0].yaxis):
            axis.set_major_locator(LogLocator(numticks=7))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(lambda value, _: f"{value:g}".replace("e-0", "e-"))
        for axes in grid[-1]:
            axes.set_xlabel("lag t (steps)")
        for axes in grid[:, 0]:
            axes.set_ylabel("k(t) / k(1)")
        lines = [f"target t**-{beta:g}", "coherent, with its slope", "rms (random signs)"]
        figure.legend([*target, *solid, *dotted], lines, loc="outside lower center", ncols=3)
    return figure
