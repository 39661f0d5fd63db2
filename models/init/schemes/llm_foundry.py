"""LLM Foundry (MPT): https://github.com/mosaicml/llm-foundry. Heads are tied there.

All divide output projections by sqrt(2 L), neox_init by L / sqrt(10), and take fused matrices apart first.
"""

import math
from collections.abc import Callable

from plkernel.models.init.distributions import Distribution, normal, uniform
from plkernel.models.init.planning import scheme
from plkernel.models.init.rules import Parameter, Rules, Sizes
from plkernel.models.init.schemes.fans import fan_in_normal, fan_in_uniform, xavier_normal, xavier_uniform

SOURCE = "code:LLM Foundry"


def foundry(s: Sizes, matrix: Callable[[Parameter], Distribution], divisor: float = 0) -> Rules:
    """`matrix` everywhere, output projections over `divisor`, where that is 0 over sqrt(2 L)."""
    share = 1 / (divisor or math.sqrt(2 * s.layers))
    return Rules(matrix, matrix, lambda p: matrix(p).times(share), matrix)


@scheme(SOURCE)
def llm_foundry_baseline(
    s: Sizes, *, std: float = 0.02, embedding_std: float = 0, embedding_bound: float = 0, divisor: float = 0
) -> Rules:
    """N(std) everywhere, output projections over sqrt(2 L).

    embedding_std, embedding_bound: N or U of this for embedding and head instead, the first before the second; 0 is
    neither. divisor: of the output projections, 0 for sqrt(2 L), 1 for none (init_div_is_residual).
    """
    ends = uniform(embedding_bound) if embedding_bound and not embedding_std else normal(embedding_std or std)
    output = normal(std / (divisor or math.sqrt(2 * s.layers)))
    return Rules(ends, normal(std), output, ends)


@scheme(SOURCE)
def llm_foundry_small_init(s: Sizes) -> Rules:
    """N(sqrt(2 / (5 d))) everywhere, whatever the inner width; output projections over sqrt(2 L)."""
    return foundry(s, lambda p: normal(math.sqrt(2 / (5 * s.width))))


@scheme(SOURCE)
def llm_foundry_neox_init(s: Sizes) -> Rules:
    """N(sqrt(2 / (5 d))) everywhere, output projections N(2 / (L sqrt(d))), which is more up to L = 3."""
    return foundry(s, lambda p: normal(math.sqrt(2 / (5 * s.width))), s.layers / math.sqrt(10))


@scheme(SOURCE + " (MPT default: fan_in, relu)")
def llm_foundry_kaiming_normal(s: Sizes, *, gain: float = math.sqrt(2)) -> Rules:
    """N(gain / sqrt(fan_in)), of an embedding d; output projections over sqrt(2 L). gain: sqrt(2) for ReLU."""
    return foundry(s, fan_in_normal(gain))


@scheme(SOURCE)
def llm_foundry_kaiming_uniform(s: Sizes, *, gain: float = math.sqrt(2)) -> Rules:
    """U(gain sqrt(3 / fan_in)), of an embedding d; output projections over sqrt(2 L). gain: sqrt(2) for ReLU."""
    return foundry(s, fan_in_uniform(math.sqrt(3) * gain))


@scheme(SOURCE + " (init_gain must be set; default 0.0 gives all-zero weights)")
def llm_foundry_xavier_normal(s: Sizes, *, gain: float = 1) -> Rules:
    """N(gain sqrt(2 / (fan_in + fan_out))), of an embedding d and V; output projections over sqrt(2 L)."""
    return foundry(s, xavier_normal(gain))


@scheme(SOURCE + " (init_gain must be set; default 0.0 gives all-zero weights)")
def llm_foundry_xavier_uniform(s: Sizes, *, gain: float = 1) -> Rules:
    """U(gain sqrt(6 / (fan_in + fan_out))), of an embedding d and V; output projections over sqrt(2 L)."""
    return foundry(s, xavier_uniform(gain))
