"""Published recurrent layers at their start: decay rates and input gains of state-space and gated linear layers.

Gates and steps that depend on the input stand at their bias, where they are on average at the start; of complex decays
the magnitudes count, so these kernels are envelopes. Short convolutions and terms for the newest input are left out.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.exponentials.sums import Floats
from plkernel.analysis.initialisations.gallery import Initialisation, Origin, initialisation
from plkernel.analysis.nodes.node_set import gain_at

Complexes = NDArray[np.complexfloating[Any, Any]]

STEPS = (1e-3, 1e-1)
"""Range of the log-uniform step size dt in S4D, S5 and Mamba."""
DRAWN = "dt log-uniform on 0.001..0.1"
HOLD = "zero-order hold, |exp(p dt) - 1| / |p|"


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


def ring(smallest: float, largest: float) -> tuple[Floats, Floats]:
    """Magnitudes uniform in area on the ring smallest < r < largest, and their weights; each of shape (256,).

    Source: LRU (arXiv 2303.06349), lemma 3.2.
    """
    levels, weights = quantiles(256)
    return np.sqrt(smallest**2 + (largest**2 - smallest**2) * levels), weights


def zero_order_hold(poles: Complexes, steps: Floats) -> tuple[Floats, Floats]:
    """Rates -Re(p) dt and magnitudes |exp(p dt) - 1| / |p| of the input gain, for every pole p with every step dt.

    poles (N,) with negative real parts, steps (H,); both results (N, H). Source: S4D (arXiv 2206.11893), section 2.
    """
    exponents = np.outer(poles, steps)
    return -exponents.real, np.abs(np.expm1(exponents) / poles[:, None])


def hippo_normal_poles(size: int) -> Complexes:
    """The poles -1/2 + i w of HiPPO-N, those with w < 0 from each conjugate pair; shape (size // 2,).

    The normal part of the HiPPO-LegS matrix: -1/2 on the diagonal, and skew-symmetric beside it, with
    -sqrt((2n+1)(2k+1))/2 below. Source: S5 (arXiv 2208.04933), section 2.3.
    """
    scale = np.sqrt(2 * np.arange(size) + 1)
    lower = np.tril(np.outer(scale, scale) / 2, -1)
    return -0.5 + 1j * np.linalg.eigvalsh(1j * (lower - lower.T))[: size // 2]


def head_norm(rates: ArrayLike, size: int) -> Floats:
    """Gains that a norm over heads of `size` channels leaves: each head's output has variance 1 for white input.

    1 / sqrt(mean over the head of 1 / (1 - a**2)); with one decay in a head that is sqrt(1 - a**2), the LRU's gain.
    """
    variances = -1 / np.expm1(-2 * np.asarray(rates, dtype=float))
    return np.repeat(1 / np.sqrt(variances.reshape(-1, size).mean(axis=1)), size)


def s4() -> Iterator[Initialisation]:
    """S4D-Real, S4D-Lin and S5."""
    steps, weights = step_sizes()
    paper, family = "arXiv 2206.11893", "S4D and S5"
    real = Origin(
        formula="a = exp(-n dt), n = 1..32",
        gain=HOLD,
        assumed=f"state 64, of which the code keeps half; {DRAWN}",
        paper=paper,
        code="state-spaces/s4: src/models/sequence/kernels/dplr.py",
    )
    linear = Origin(
        formula="|a| = exp(-dt / 2), poles p = -1/2 + i pi n, n = 0..31",
        gain=HOLD,
        assumed=f"state 64; {DRAWN}; magnitudes only",
        paper=paper,
        code="state-spaces/s4: models/s4/s4d.py",
    )
    s5 = Origin(
        formula="|a| = exp(-dt / 2), poles p of HiPPO-N",
        gain=HOLD,
        assumed=f"state 256 in 8 blocks; {DRAWN}, one for each state; magnitudes only",
        paper="arXiv 2208.04933",
        code="lindermanlab/S5: s5/ssm_init.py, run_train.py",
    )
    for name, origin, poles in (
        ("s4d-real", real, -np.arange(1, 33) + 0j),
        ("s4d-lin", linear, -0.5 + 1j * np.pi * np.arange(32)),
        ("s5", s5, hippo_normal_poles(32)),
    ):
        rates, gains = zero_order_hold(poles, steps)
        ends = (-poles.real.min() * STEPS[1], -poles.real.max() * STEPS[0])
        yield initialisation(name, family, origin, rates, gains, np.broadcast_to(weights, rates.shape), ends)


def mamba() -> Iterator[Initialisation]:
    """Mamba, Mamba-2 and Mamba-3, whose input gain is dt itself."""
    steps, weights = step_sizes()
    ends = (16 * STEPS[1], STEPS[0])
    first = Origin(
        formula="a = exp(-n dt), n = 1..16",
        gain="dt",
        assumed=f"state 16; {DRAWN}, its bias",
        paper="arXiv 2312.00752",
        code="state-spaces/mamba: mamba_ssm/modules/mamba_simple.py",
    )
    rates = np.outer(np.arange(1, 17), steps)
    yield initialisation("mamba-1", "Mamba", first, rates, np.tile(steps, 16), np.tile(weights, 16), ends)
    second = Origin(
        formula="a = exp(-A dt), A uniform on 1..16",
        gain="dt",
        assumed=f"one A and one dt for each head; {DRAWN}, its bias",
        paper="arXiv 2405.21060",
        code="state-spaces/mamba: mamba_ssm/modules/mamba2.py",
    )
    levels, shares = quantiles(16)
    rates = np.outer(1 + 15 * levels, steps)
    yield initialisation("mamba-2", "Mamba", second, rates, np.tile(steps, 16), np.outer(shares, weights), ends)
    third = Origin(
        formula="a = exp(-softplus(0) dt)",
        gain="dt",
        assumed=f"the rate, which depends on the input, and the trapezoid at their bias, 0; {DRAWN}, its bias",
        paper="arXiv 2603.15569",
        code="fla-org/flash-linear-attention: fla/layers/mamba3.py",
    )
    rates = math.log(2) * steps
    ends = (math.log(2) * STEPS[1], math.log(2) * STEPS[0])
    yield initialisation("mamba-3", "Mamba", third, rates, steps, weights, ends)


def rings() -> Iterator[Initialisation]:
    """LRU on the unit disc and on a thin ring; RG-LRU (Griffin) as its paper states it and as its code has it."""
    for name, smallest, largest in (("lru", 0.0, 1.0), ("lru-ring", 0.9, 0.999)):
        magnitudes, shares = ring(smallest, largest)
        origin = Origin(
            formula=f"|a| uniform in area on the ring {smallest:g}..{largest:g}",
            gain="sqrt(1 - |a|^2)",
            assumed="magnitudes only",
            paper="arXiv 2303.06349",
            code="minimal-LRU: lru/model.py",
        )
        ends = (-math.log(smallest) if smallest else math.inf, abs(math.log(largest)))
        yield _ring(name, "LRU", origin, -np.log(magnitudes), shares, ends)
    levels, uniform = quantiles(256)
    stated = Origin(
        formula="a = (a^c)^r, a^c uniform on 0.9..0.999",
        gain="sqrt(1 - a^2)",
        assumed="both gates at their bias, r = 1/2",
        paper="arXiv 2402.19427",
        code="section 2.4 of the paper",
    )
    ends = (-math.log(0.9) / 2, -math.log(0.999) / 2)
    yield _ring("rg-lru-paper", "RG-LRU (Griffin)", stated, -np.log(0.9 + 0.099 * levels) / 2, uniform, ends)
    magnitudes, shares = ring(0.9, 0.999)
    coded = replace(
        stated,
        formula="a = R^(c r), c = 8, R uniform in area on 0.9..0.999",
        code="google-deepmind/recurrentgemma: recurrentgemma/torch/layers.py",
    )
    yield _ring("rg-lru-code", "RG-LRU (Griffin)", coded, -4 * np.log(magnitudes), shares, (8 * ends[0], 8 * ends[1]))


def _ring(
    name: str, family: str, origin: Origin, rates: Floats, shares: Floats, ends: tuple[float, float]
) -> Initialisation:
    return initialisation(name, family, origin, rates, gain_at(rates, "lru"), shares, ends)
