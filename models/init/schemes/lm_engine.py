"""lm-engine: https://github.com/open-lm-engine/lm-engine."""

import math

from plkernel.models.init.distributions import normal
from plkernel.models.init.planning import scheme
from plkernel.models.init.rules import Number, Parameter, Rules, Sizes
from plkernel.models.init.schemes.fans import fan_in_normal

SOURCE = "code:lm-engine"


@scheme(SOURCE)
def lm_engine_normal(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, output projections over sqrt(2 L)."""
    return Rules(normal(std), normal(std), normal(std / math.sqrt(2 * s.layers)), normal(std))


@scheme(SOURCE)
def lm_engine_fan_in(s: Sizes, *, std: float = 0.02, fan_in_embedding: bool = False) -> Rules:
    """N(fan_in**-0.5), output projections over sqrt(2 L); embedding and head N(std).

    fan_in_embedding: N(d**-0.5) for the embedding (embedding_init_method=fan_in), which does not reach the head.
    """

    embedding = normal(s.width**-0.5 if fan_in_embedding else std)
    return Rules(embedding, fan_in_normal(), fan_in_normal((2 * s.layers) ** -0.5), normal(std))


@scheme(SOURCE)
def lm_engine_mup(
    s: Sizes,
    *,
    std: float = 0.02,
    base_width: float = 256,
    embedding_multiplier: float = 1,
    residual_multiplier: float = 1,
    mup_groups: bool = True,
) -> Rules:
    """muP as lm-engine has it: hidden matrices over sqrt(m), outputs over sqrt(2 L) besides, logits times 1/m.

    mup_groups (params_group_method=mup): the rate over m for all of a block but norms and biases, decays and
    convolutions too, which then also get the weight decay they are spared otherwise.
    """
    m = s.ratio(base_width)

    def own(p: Parameter) -> float:
        return 1.0 if is_norm(p) else 1 / m

    rates: dict[str, Number] = {"input": 1 / m, "output": 1 / m, "own": own}
    decays: dict[str, Number] = {"own": lambda p: 0.0 if is_norm(p) else 1.0}
    return Rules(
        normal(std),
        normal(std / math.sqrt(m)),
        normal(std / math.sqrt(2 * s.layers * m)),
        normal(std),
        learning_rate=rates if mup_groups else {},
        weight_decay=decays if mup_groups else {},
        forward={"logits": 1 / m, "embedding": embedding_multiplier, "residual": residual_multiplier},
    )


def is_norm(p: Parameter) -> bool:
    """Whether a parameter of role `own` belongs to the norm of an RWKV's heads."""
    return ".ln_x." in p.name
