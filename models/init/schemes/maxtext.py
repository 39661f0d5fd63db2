"""MaxText: https://github.com/AI-Hypercomputer/maxtext."""

import math

from plkernel.models.init.distributions import Distribution, normal, rescaled
from plkernel.models.init.planning import scheme
from plkernel.models.init.rules import Parameter, Rules, Sizes
from plkernel.models.init.schemes.fans import fan_in_normal


@scheme("code:MaxText")
def maxtext(s: Sizes, *, scale: float = 1, tied: bool = False) -> Rules:
    """Mixer N(fan_in**-0.5), queries over sqrt(d_head) besides; feed-forward and head J(fan_in**-0.5); whatever depth.

    Embedding N(d**-0.5). scale: multiplies the VARIANCE of the feed-forward matrices (dense_init_scale). tied: head and
    embedding are one matrix (logits_via_embedding), N(d**-0.5), and logits are divided by sqrt(d).
    """

    def dense(p: Parameter) -> Distribution:
        return rescaled(math.sqrt(scale / p.fan_in))

    embedding, head = normal(s.width**-0.5), rescaled(s.width**-0.5)
    query = normal((s.width * s.head_size) ** -0.5)
    return Rules(
        embedding,
        fan_in_normal(),
        fan_in_normal(),
        embedding if tied else head,
        {"query": query, "ffn_gate": dense, "ffn_up": dense, "ffn_router": dense, "ffn_out": dense},
        forward={"logits": s.width**-0.5} if tied else {},
    )
