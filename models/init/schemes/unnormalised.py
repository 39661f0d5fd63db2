"""Initialisations that take the place of norms: Fixup, T-Fixup, ReZero, SkipInit."""

import math

from plkernel.models.init.distributions import ZERO, normal
from plkernel.models.init.planning import scheme
from plkernel.models.init.rules import Rules, Sizes
from plkernel.models.init.schemes.fans import fan_in_normal, fan_in_uniform, xavier_normal, xavier_uniform


@scheme("paper:Fixup, arXiv 1901.09321")
def fixup(s: Sizes, *, matrices: float = 2, embedding_std: float = 1.0) -> Rules:
    """He times B**(-1 / (2 k - 2)), B branches of k matrices; the last matrix of a branch and the head are zero.

    Every branch has a factor, 1 at first, and a scalar bias before every layer; there are no norms. k = matrices: 2
    gives B**-0.5, 3 gives B**-0.25.
    """
    if matrices < 2:
        raise ValueError(f"matrices must be at least 2, got {matrices}")
    branches = s.layers * s.branches
    he = fan_in_normal(math.sqrt(2) * branches ** (-1 / (2 * matrices - 2)))
    return Rules(normal(embedding_std), he, ZERO, ZERO, needs={"norm": "none", "gate": True, "scalar_bias": True})


@scheme("paper:T-Fixup, ICML 2020")
def t_fixup(s: Sizes, *, encoder: bool = False, normal_draws: bool = False) -> Rules:
    """Xavier, times (9 L)**-0.25 on values, feed-forward and outputs; embedding N(d**-0.5) times the same; no norms.

    Queries, keys, gates of the mixer and routers keep a factor of 1. Trained without warm-up. encoder: the factor of
    the blocks is 0.67 L**-0.25. Xavier is uniform; normal_draws: normal, of the same std.
    """
    down = (9 * s.layers) ** -0.25
    factor = 0.67 * s.layers**-0.25 if encoder else down
    xavier = xavier_normal if normal_draws else xavier_uniform
    scaled = xavier(factor)
    return Rules(
        normal(s.width**-0.5 * down),
        xavier(),
        scaled,
        xavier(),
        roles={"value": scaled, "ffn_gate": scaled, "ffn_up": scaled},
        needs={"norm": "none"},
    )


@scheme("paper:ReZero, arXiv 2003.04887")
def rezero(s: Sizes) -> Rules:
    """x + g f(x) with one g = 0 per branch and no norms; weights as PyTorch makes them: N(1) and U(fan_in**-0.5)."""
    linear = fan_in_uniform()
    return Rules(normal(1.0), linear, linear, linear, gate=ZERO, needs={"norm": "none", "gate": True})


@scheme("paper:SkipInit, arXiv 2002.10444")
def skip_init(s: Sizes) -> Rules:
    """As rezero, with He's N(sqrt(2 / fan_in)) for embedding (fan_in = d) and matrices; the head U(fan_in**-0.5)."""
    he = fan_in_normal(math.sqrt(2))
    return Rules(he, he, he, fan_in_uniform(), gate=ZERO, needs={"norm": "none", "gate": True})
