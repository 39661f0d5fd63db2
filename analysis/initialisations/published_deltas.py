"""Published delta rules at their start: gated delta nets and Kimi Delta Attention.

They also forget by erasing what they overwrite, as much as keys are alike, so that their decays are upper bounds.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from plkernel.analysis.initialisations.gallery import Initialisation, Origin, initialisation
from plkernel.analysis.initialisations.published import DRAWN, STEPS, quantiles, step_sizes

AT_MOST = "at most"
FAMILY = f"delta rules, {AT_MOST}"
WRITTEN = "1/2, the writing strength at its bias"


def deltas() -> Iterator[Initialisation]:
    """Gated delta nets as two libraries start them, Kimi Delta Attention, and the delta net that took its decay."""
    steps, weights = step_sizes()
    net = Origin(
        formula="a = exp(-A dt), A uniform on 0..16",
        gain=WRITTEN,
        assumed=f"one A and one dt for each head; {DRAWN}, its bias",
        paper="arXiv 2412.06464",
        code="fla-org/flash-linear-attention: fla/layers/gated_deltanet.py",
    )
    levels, shares = quantiles(64)  # of rates that go down to nearly none
    both = np.outer(shares, weights)
    yield initialisation("gdn-fla", FAMILY, net, np.outer(16 * levels, steps), 1.0, both, (16 * STEPS[1], 0.0))
    ones = replace(
        net,
        formula="a = exp(-A softplus(1)), A uniform on 0.01..16",
        assumed="one A for each head; the bias of dt is 1",
        code="huggingface/transformers: models/qwen3_next/modeling_qwen3_next.py",
    )
    first, last = (edge * math.log1p(math.e) for edge in (0.01, 16.0))
    fine, parts = quantiles(512)
    rates = first + (last - first) * fine
    yield initialisation("gdn-qwen3-next", FAMILY, ones, rates, 1.0, parts, (last, first))
    attention = replace(
        net,
        formula="a = exp(-A dt), A uniform on 1..16",
        assumed=f"one A for each head, one dt for each channel; {DRAWN}, its bias",
        paper="arXiv 2510.26692",
        code="fla-org/flash-linear-attention: fla/layers/kda.py",
    )
    rates, ends = np.outer(1 + 15 * levels, steps), (16 * STEPS[1], STEPS[0])
    yield initialisation("kda", FAMILY, attention, rates, 1.0, both, ends)
    second = replace(
        attention,
        gain="1/2, the writing gate at its bias",
        paper="arXiv 2605.22791",
        code="fla-org/flash-linear-attention: fla/layers/gdn2.py",
    )
    yield initialisation("gdn-2", FAMILY, second, rates, 1.0, both, ends)
