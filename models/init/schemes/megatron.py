"""Megatron-LM: https://github.com/NVIDIA/Megatron-LM."""

import math

from plkernel.models.init.distributions import Distribution, normal, uniform
from plkernel.models.init.planning import scheme
from plkernel.models.init.rules import Parameter, Rules, Sizes

SOURCE = "code:Megatron-LM"


@scheme(SOURCE)
def megatron_default(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, output projections over sqrt(2 L)."""
    return Rules(normal(std), normal(std), normal(std / math.sqrt(2 * s.layers)), normal(std))


@scheme(SOURCE + " (is_hybrid_model)")
def megatron_hybrid(s: Sizes, *, std: float = 0.02) -> Rules:
    """As megatron_default with sqrt(L) where L counts residual branches: for blocks of a mixer alone."""
    return Rules(normal(std), normal(std), normal(std / math.sqrt(s.layers * s.branches)), normal(std))


@scheme(SOURCE + " (--init-method-xavier-uniform, as intended)")
def megatron_xavier_uniform(s: Sizes) -> Rules:
    """U(sqrt(6 / (fan in + fan out))) everywhere, of the matrices as they are stored: fused, where they are fused.

    The fans of an embedding are d and V.
    """

    def xavier(p: Parameter) -> Distribution:
        return uniform(math.sqrt(6 / (p.fan_in + p.part[1] * p.fan_out)))

    return Rules(xavier, xavier, xavier, xavier)


@scheme(SOURCE + " (use_mup)")
def megatron_mup(s: Sizes, *, std: float = 0.02, base_width: float = 256) -> Rules:
    """muP as Megatron has it: hidden matrices over sqrt(m), their Adam rate and eps over m, logits times 1/m."""
    m = s.ratio(base_width)
    hidden = {"input": 1 / m, "output": 1 / m}
    return Rules(
        normal(std),
        normal(std / math.sqrt(m)),
        normal(std / math.sqrt(2 * s.layers * m)),
        normal(std),
        learning_rate=hidden,
        eps=hidden,
        forward={"logits": 1 / m},
    )
