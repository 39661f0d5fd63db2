"""Published layers with heads and gates at their start: RetNet, lightning attention, mLSTM, GLA, RWKV-5 to 7, HGRN.

Most pass a norm of each head, which gives every head variance 1 and so acts as a gain. Such layers have an entry for
the recurrence alone and one, called `-normed`, for what leaves the norm.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from plkernel.analysis.exponentials.sums import Floats
from plkernel.analysis.initialisations.gallery import Initialisation, Origin, initialisation
from plkernel.analysis.initialisations.published import head_norm
from plkernel.analysis.initialisations.published_deltas import AT_MOST
from plkernel.analysis.nodes.node_set import gain_at

RETNET_HEADS, MLSTM_HEADS = 8, 4
RWKV_DEPTH, RWKV_WIDTH, RWKV_HEAD = 24, 1024, 64
HGRN_DEPTH = 24
LIGHTNING_DEPTH, LIGHTNING_HEADS = 80, 64
XLSTM_HEADS, XLSTM_CAP = 8, 15.0
ALONE = "1"


def heads() -> Iterator[Initialisation]:
    """RetNet, the mLSTM of xLSTM at two sizes, and GLA."""
    retention = Origin(
        formula="a = 1 - 2^(-5-h), h = 0..7",
        gain=ALONE,
        assumed="8 heads",
        paper="arXiv 2307.08621",
        code="microsoft/torchscale: torchscale/architecture/retnet.py",
    )
    memory = Origin(
        formula="a = sigmoid(b), b evenly spaced on 3..6 over the heads",
        gain=ALONE,
        assumed="4 heads; input gates at their bias, 0",
        paper="arXiv 2405.04517",
        code="NX-AI/xlstm: xlstm/blocks/mlstm/cell.py",
    )
    capped = replace(
        memory,
        formula="a = sigmoid(15 tanh(b / 15)), b evenly spaced on 3..6 over the heads",
        assumed="8 heads; input gates at their bias, -10",
        paper="arXiv 2503.13427",
        code="huggingface/transformers: models/xlstm/modeling_xlstm.py",
    )
    linear = Origin(
        formula="a = sigmoid(0)^(1/16)",
        gain=ALONE,
        assumed="gates at their bias, 0",
        paper="arXiv 2312.06635",
        code="fla-org/flash-linear-attention: fla/layers/gla.py",
    )
    yield from _with_norm("retnet", "RetNet", retention, -np.log1p(-(2.0 ** (-5 - np.arange(RETNET_HEADS)))))
    yield from _with_norm("mlstm", "mLSTM and GLA", memory, np.log1p(np.exp(-np.linspace(3, 6, MLSTM_HEADS))))
    biases = XLSTM_CAP * np.tanh(np.linspace(3, 6, XLSTM_HEADS) / XLSTM_CAP)
    yield initialisation("xlstm-7b", "mLSTM and GLA", capped, np.log1p(np.exp(-biases)))
    yield initialisation("gla", "mLSTM and GLA", linear, np.log(2) / 16)


def lightning() -> Iterator[Initialisation]:
    """Lightning attention, whose decays are fixed: first, middle and last of MiniMax-Text-01's layers that have it."""
    origin = Origin(
        formula="a = exp(-2^(-8 h / H) (1 - l / (L - 1))), h = 1..H",
        gain=ALONE,
        assumed=f"H = {LIGHTNING_HEADS} heads, L = {LIGHTNING_DEPTH} layers, every eighth of another kind; not learnt",
        paper="arXiv 2501.08313",
        code="huggingface/transformers: models/minimax/modeling_minimax.py",
    )
    slopes = np.exp2(-8.0 * np.arange(1, LIGHTNING_HEADS + 1) / LIGHTNING_HEADS)
    for place, index in (("first", 0), ("middle", 40), ("last", 78)):
        rates = slopes * (1 - index / (LIGHTNING_DEPTH - 1 + 1e-5) + 1e-5)
        layer = replace(origin, layer=f"{index + 1} of {LIGHTNING_DEPTH}")
        yield initialisation(f"lightning-{place}", "lightning attention", layer, rates)


def _with_norm(name: str, family: str, origin: Origin, rates: Floats, size: int = 1) -> Iterator[Initialisation]:
    """A recurrence without gain, and what leaves the norm of heads of `size` channels."""
    formula = "sqrt(1 - a^2)" if size == 1 else "1 / sqrt(mean of 1 / (1 - a^2))"
    normed = replace(origin, gain=f"norm of each head: {formula}")
    yield initialisation(name, family, origin, rates)
    yield initialisation(f"{name}-normed", family, normed, rates, head_norm(rates, size))


def rwkv() -> Iterator[Initialisation]:
    """RWKV-5 and 6, which start with the same decays: first, middle and last layer."""
    family = "RWKV-5 and 6"
    origin = Origin(
        formula="a = exp(-exp(-6 + 5 (i / (D - 1))^(0.7 + 1.3 l / (L - 1)))), i = 0..D-1",
        gain=ALONE,
        assumed=f"L = {RWKV_DEPTH} layers, D = {RWKV_WIDTH} channels, heads of {RWKV_HEAD}",
        paper="arXiv 2404.05892",
        code="BlinkDL/RWKV-LM: RWKV-v5/src/model.py",
    )
    for place, index in (("first", 0), ("middle", RWKV_DEPTH // 2), ("last", RWKV_DEPTH - 1)):
        power, layer = 0.7 + 1.3 * index / (RWKV_DEPTH - 1), f"{index + 1} of {RWKV_DEPTH}"
        rates = np.exp(-6 + 5 * np.linspace(0, 1, RWKV_WIDTH) ** power)
        pair = _with_norm(f"rwkv-{place}", family, replace(origin, layer=layer), rates, RWKV_HEAD)
        yield from pair if place == "middle" else [next(pair)]
    zero = replace(
        origin,
        formula="a = exp(-exp(0))",
        assumed="the bias of the decay's low-rank map, 0 in every channel",
        code="fla-org/flash-linear-attention: fla/layers/rwkv6.py",
    )
    yield initialisation("rwkv6-fla", family, zero, 1.0)


def rwkv7() -> Iterator[Initialisation]:
    """RWKV-7 by its decays alone, which also zigzag inside every head: first, middle and last layer."""
    origin = Origin(
        formula="a = exp(-exp(-1/2) sigmoid(-5.5 + 6 (i / (D - 1))^(1 + (l / (L - 1))^0.3) + 2.5 z |z|)), i = 0..D-1, "
        "z = -1..1 in each head",
        gain=ALONE,
        assumed=f"L = {RWKV_DEPTH} layers, D = {RWKV_WIDTH} channels, heads of {RWKV_HEAD}; nothing erased",
        paper="arXiv 2503.14456",
        code="BlinkDL/RWKV-LM: RWKV-v7/train_temp/src/model.py",
    )
    z = np.tile(np.linspace(-1, 1, RWKV_HEAD), RWKV_WIDTH // RWKV_HEAD)
    for place, index in (("first", 0), ("middle", RWKV_DEPTH // 2), ("last", RWKV_DEPTH - 1)):
        power = 1 + (index / (RWKV_DEPTH - 1)) ** 0.3
        level = -5.5 + 6 * np.linspace(0, 1, RWKV_WIDTH) ** power + 2.5 * z * np.abs(z)
        layer = replace(origin, layer=f"{index + 1} of {RWKV_DEPTH}")
        pair = _with_norm(f"rwkv7-{place}", f"RWKV-7, {AT_MOST}", layer, np.exp(-0.5) / (1 + np.exp(-level)), RWKV_HEAD)
        yield from pair if place == "middle" else [next(pair)]


def hgrn() -> Iterator[Initialisation]:
    """HGRN, where all channels of a layer start with one decay: first, middle and last layer, and all together."""
    family = "HGRN"
    origin = Origin(
        formula="|a| = b + (1 - b) f, lower bound b = l / L",
        gain="1 - |a|",
        assumed=f"L = {HGRN_DEPTH} layers, parameters of the bounds equal, gate f = 1/2; magnitudes only",
        paper="arXiv 2311.04823",
        code="fla-org/flash-linear-attention: fla/models/hgrn/modeling_hgrn.py",
    )
    rates = -np.log((1 + np.arange(HGRN_DEPTH) / HGRN_DEPTH) / 2)
    for place, index in (("first", 0), ("middle", HGRN_DEPTH // 2), ("last", HGRN_DEPTH - 1)):
        layer = replace(origin, layer=f"{index + 1} of {HGRN_DEPTH}")
        yield initialisation(f"hgrn-{place}", family, layer, rates[index], gain_at(rates[index], "ema"))
    together = replace(origin, layer="all layers together")
    yield initialisation("hgrn-all", family, together, rates, gain_at(rates, "ema"))
