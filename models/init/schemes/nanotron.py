"""nanotron: https://github.com/huggingface/nanotron."""

import math

from plkernel.models.init.distributions import Distribution, normal
from plkernel.models.init.planning import scheme
from plkernel.models.init.rules import Parameter, Rules, Sizes

SOURCE = "code:nanotron"


@scheme(SOURCE)
def nanotron_random_init(s: Sizes, *, std: float = 0.025, depth: bool = True) -> Rules:
    """N(0.025) everywhere, output projections over sqrt(2 L). depth: false leaves that out (scaling method NONE)."""
    return Rules(normal(std), normal(std), normal(std / (math.sqrt(2 * s.layers) if depth else 1)), normal(std))


@scheme(SOURCE)
def nanotron_spectral_mup(s: Sizes, *, fused: bool = False) -> Rules:
    """Matrices, head too, N(fan_in**-0.5 min(1, sqrt(fan_out / fan_in))) at a rate of fan_out / fan_in; embedding N(1).

    The rates are those of the paper for SGD, which the code gives its Adam. Learning rates do not carry over from width
    to width: changes of activations in the blocks of our SSM grow as width**0.4 to width**0.7; `spectral` has the rule
    for Adam. fused: count the outputs of a fused matrix together, as nanotron does; otherwise each part is a matrix.
    nanotron refuses biases here; ours are 0.
    """

    def fan_out(p: Parameter) -> int:
        return p.fan_out * (p.part[1] if fused else 1)

    def spectral(p: Parameter) -> Distribution:
        return normal(p.fan_in**-0.5 * min(1.0, math.sqrt(fan_out(p) / p.fan_in)))

    def rate(p: Parameter) -> float:
        return fan_out(p) / p.fan_in

    rates = {"input": rate, "output": rate, "head": rate}
    return Rules(normal(1), spectral, spectral, spectral, learning_rate=rates)
