"""The conditions of the published study under every input gain, and the power-law initialisation of this package."""

from collections.abc import Iterator

import numpy as np

from plkernel.analysis.initialisations.gallery import Initialisation, Origin, initialisation
from plkernel.analysis.initialisations.published import mamba, rings, s4
from plkernel.analysis.initialisations.published_deltas import deltas
from plkernel.analysis.initialisations.published_heads import heads, hgrn, lightning, rwkv, rwkv7
from plkernel.analysis.nodes.node_set import Gain, Nodes, Summation, gain_at
from plkernel.analysis.nodes.placement import Placement, Projection, place
from plkernel.analysis.nodes.quantile import HORIZON

CHANNELS = 256
STUDIED_BETA = 1.15
GAINS: dict[Gain, str] = {"none": "1", "lru": "sqrt(1 - a^2)", "ema": "1 - a"}
TITLES: dict[Gain, str] = {"none": "no gain", "lru": "LRU gain", "ema": "EMA gain"}
CONDITIONS: dict[str, tuple[Placement, Projection]] = {
    "1": ("log-spaced", "uniform"),
    "2": ("log-spaced", "published"),
    "3": ("concentrated", "published"),
    "missing": ("concentrated", "uniform"),
}
"""The three published conditions and the cell their design leaves out, as node set and shape of the projection."""


def initialisations(beta: float, max_lag: int) -> list[Initialisation]:
    """Every initialisation, family by family; only ours depend on the target t**-beta, t = 1..max_lag."""
    published = (s4(), mamba(), rings(), heads(), lightning(), rwkv(), hgrn(), deltas(), rwkv7(), gates())
    families = (*published, *map(conditions, GAINS), ours(beta, max_lag))
    return [item for family in families for item in family]


def gates() -> Iterator[Initialisation]:
    """Forget gates of recurrent networks: chrono initialisation, and time scales from an inverse gamma distribution.

    Their input gates start at 1 - a. Both are placements of an arm too.
    """
    chrono = Origin(
        formula="a = sigmoid(b), exp(b) uniform on 1..T - 1",
        gain=GAINS["ema"],
        assumed=f"T = {HORIZON:g} steps; {CHANNELS} channels at the quantiles",
        paper="arXiv 1804.11188",
        code="plkernel: analysis/nodes/placement.py",
    )
    scales = Origin(
        formula="a = exp(-1 / T), T inverse gamma of shape 0.56 and scale 1",
        gain=GAINS["ema"],
        assumed=f"the second layer, frozen there; {CHANNELS} channels at the quantiles",
        paper="arXiv 2009.12727",
        code="plkernel: analysis/nodes/placement.py",
    )
    named: tuple[tuple[str, Placement, Origin], ...] = (
        ("chrono", "chrono", chrono),
        ("inverse-gamma", "inverse-gamma", scales),
    )
    for name, placement, origin in named:
        yield _from_nodes(name, "gates of LSTMs", origin, place(CHANNELS, placement=placement, gain="ema"))


def conditions(gain: Gain) -> Iterator[Initialisation]:
    """The published conditions under one gain, which the study does not state."""
    shapes = {"uniform": "C uniform", "published": "C ~ lambda^0.15"}
    for name, (placement, projection) in CONDITIONS.items():
        nodes = place(CHANNELS, placement=placement, projection=projection, gain=gain, beta=STUDIED_BETA)
        origin = Origin(
            formula=f"half-lives {placement}; {shapes[projection]}",
            gain=GAINS[gain],
            assumed=f"{CHANNELS} channels, this gain"
            + ("; the cell its design leaves out" if name == "missing" else ""),
            paper="EXP-013",
            code="plkernel: analysis/nodes/placement.py",
        )
        yield _from_nodes(f"exp013-{name}-{gain}", f"EXP-013, {TITLES[gain]}", origin, nodes)


def ours(beta: float, max_lag: int) -> Iterator[Initialisation]:
    """Quantile nodes up to `max_lag`, with half of the law in the decays and half in the projection (tempering 1/2).

    Under each gain for the coherent kernel; with all of it in the decays; and for the rms kernel.
    """
    kinds: tuple[tuple[str, Gain, float, Summation], ...] = (
        ("none", "none", 0.5, "coherent"),
        ("lru", "lru", 0.5, "coherent"),
        ("ema", "ema", 0.5, "coherent"),
        ("uniform-ema", "ema", 1.0, "coherent"),
        ("rms-ema", "ema", 0.5, "rms"),
    )
    for name, gain, tempering, kernel in kinds:
        nodes = place(
            CHANNELS,
            placement="quantile",
            gain=gain,
            beta=beta,
            tempering=tempering,
            kernel=kernel,
            max_lag=max_lag,
        )
        origin = Origin(
            formula=f"half-lives at quantiles of the {kernel} law; C " + ("uniform" if tempering == 1 else "the rest"),
            gain=GAINS[gain],
            assumed=f"{CHANNELS} channels, tempering {tempering:g}, for t**-{beta:g} on 1..{max_lag}",
            paper="this package",
            code="plkernel: analysis/nodes/quantile.py",
        )
        yield _from_nodes(f"ours-{name}", "power law", origin, nodes)


def _from_nodes(name: str, family: str, origin: Origin, nodes: Nodes) -> Initialisation:
    """The nodes' projection joins their gain: it is part of what a channel contributes."""
    weights = np.multiply(nodes.projection, gain_at(nodes.rates, nodes.gain))
    return initialisation(name, family, origin, nodes.rates, weights)
