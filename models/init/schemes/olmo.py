"""OLMo: https://github.com/allenai/OLMo."""

import math

from plkernel.models.init.distributions import Distribution, cut, normal
from plkernel.models.init.planning import scheme
from plkernel.models.init.rules import Parameter, Rules, Sizes

SOURCE = "code:OLMo"


@scheme(SOURCE)
def olmo_normal(s: Sizes, *, std: float = 0.02, embedding_std: float = 0, cutoff: float = 0) -> Rules:
    """N(std) everywhere, whatever the depth.

    embedding_std: another one for the embedding, 0 for the same. cutoff: draw T(std, cutoff) instead; 0 cuts nowhere.
    """

    def drawn(scale: float) -> Distribution:
        return cut(scale, cutoff) if cutoff else normal(scale)

    return Rules(drawn(embedding_std or std), drawn(std), drawn(std), drawn(std))


@scheme(SOURCE)
def olmo_mitchell(s: Sizes, *, cutoff: float = 3) -> Rules:
    """T(fan_in**-0.5, 3); output projections of block l T((2 fan_in (l + 1))**-0.5, 3), fan_in the inner width."""
    flat = cut(s.width**-0.5, cutoff)

    def output(p: Parameter) -> Distribution:
        return cut((2 * p.fan_in * p.depth) ** -0.5, cutoff)

    return Rules(flat, flat, output, flat)


@scheme(SOURCE)
def olmo_full_megatron(
    s: Sizes, *, std: float = 0.02, embedding_std: float = 0, scale_embedding: bool = False, cutoff: float = 3
) -> Rules:
    """T(std, 3), output projections over sqrt(2 L), head T(d**-0.5, 3).

    embedding_std: another one for the embedding, 0 for the same; scale_embedding: std sqrt(d) for it instead.
    """
    embedding = embedding_std or std * (math.sqrt(s.width) if scale_embedding else 1)
    output = cut(std / math.sqrt(2 * s.layers), cutoff)
    return Rules(cut(embedding, cutoff), cut(std, cutoff), output, cut(s.width**-0.5, cutoff))
