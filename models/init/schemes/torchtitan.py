"""torchtitan: https://github.com/pytorch/torchtitan.

Its truncated normals have bounds of +-2 in absolute terms, so that at a standard deviation of 0.02 they are plain
normals; only the head is cut where it shows, at 3 deviations. A tied head would have filled the embedding as well.
"""

import math

from plkernel.models.init.distributions import Distribution, cut, normal
from plkernel.models.init.planning import scheme
from plkernel.models.init.rules import Parameter, Rules, Sizes

SOURCE = "code:torchtitan"


@scheme(SOURCE)
def torchtitan_gpt_oss(s: Sizes, *, std: float = 0.02) -> Rules:
    """GPT-OSS: every matrix of block l N(std / sqrt(2 (l + 1))), router too; head T(d**-0.5, 3).

    Its biases of experts and its attention sinks, which our models do not have, are drawn like the matrices.
    """

    def block(p: Parameter) -> Distribution:
        return normal(std / math.sqrt(2 * p.depth))

    return Rules(normal(std), block, block, cut(s.width**-0.5, 3))


@scheme(SOURCE + " (Llama3/4, DeepSeekV3, Qwen3)")
def torchtitan_llama(s: Sizes, *, std: float = 0.02, embedding_std: float = 1) -> Rules:
    """Embedding N(1); N(std), and N(std / sqrt(2 (l + 1))) out of the mixer and for w2, w3 and the router."""

    def scaled(p: Parameter) -> Distribution:
        return normal(std / math.sqrt(2 * p.depth))

    flat, head = normal(std), cut(s.width**-0.5, 3)
    return Rules(normal(embedding_std), flat, scaled, head, {"ffn_up": scaled, "ffn_router": scaled})


@scheme(SOURCE + " (before adbaa061, depth_init=False)")
def torchtitan_depth_init_total(s: Sizes, *, std: float = 0.02, embedding_std: float = 1) -> Rules:
    """As torchtitan_llama, with the depth L of the model in the place of l + 1."""
    flat, scaled, head = normal(std), normal(std / math.sqrt(2 * s.layers)), cut(s.width**-0.5, 3)
    return Rules(normal(embedding_std), flat, scaled, head, {"ffn_up": scaled, "ffn_router": scaled})
