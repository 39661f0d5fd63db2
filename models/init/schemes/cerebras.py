"""Cerebras Model Zoo: https://github.com/Cerebras/modelzoo. Heads are tied there by default; one of its own is N."""

import math

from plkernel.models.init.distributions import Distribution, cut, normal
from plkernel.models.init.planning import scheme
from plkernel.models.init.rules import Number, Parameter, Rules, Sizes

SOURCE = "code:Cerebras"


@scheme(SOURCE)
def cerebras_default(s: Sizes, *, std: float = 0.02) -> Rules:
    """T(std, 2), output projections over sqrt(2 L), an untied head N(std)."""
    return Rules(cut(std, 2), cut(std, 2), cut(std / math.sqrt(2 * s.layers), 2), normal(std))


@scheme(SOURCE)
def cerebras_mup(
    s: Sizes,
    *,
    std: float = 0.08,
    head_std: float = 0.02,
    base_width: float = 256,
    base_feed_forward: float = 0,
    embedding_multiplier: float = 1,
    logits_alpha: float = 1,
) -> Rules:
    """muP with a ratio m of widths and another, m_ff, of feed-forward widths, which the feed-forward output obeys.

    T(0.08, 2), hidden matrices over sqrt(m) or sqrt(m_ff), outputs over sqrt(2 L) besides, rates over m or m_ff, logits
    times logits_alpha / m. head_std: of an untied head, N. base_feed_forward: 0 for base_width in the proportion of
    this model, so that m_ff = m. embedding_multiplier: 1 in the code, about 10 where it was tuned.
    """
    m, depth = s.ratio(base_width), math.sqrt(2 * s.layers)
    if base_feed_forward < 0:
        raise ValueError(f"base_feed_forward must be positive, or 0 for m_ff = m, got {base_feed_forward}")

    def m_ff(p: Parameter) -> float:
        return p.fan_in / base_feed_forward if base_feed_forward else m

    def down(p: Parameter) -> Distribution:
        return cut(std / (math.sqrt(m_ff(p)) * depth), 2)

    rates: dict[str, Number] = {"input": 1 / m, "output": 1 / m, "ffn_out": lambda p: 1 / m_ff(p)}
    return Rules(
        cut(std, 2),
        cut(std / math.sqrt(m), 2),
        cut(std / (math.sqrt(m) * depth), 2),
        normal(head_std),
        {"ffn_out": down},
        learning_rate=rates,
        forward={"embedding": embedding_multiplier, "logits": logits_alpha / m},
    )
