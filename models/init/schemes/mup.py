"""Parametrisations under which the best learning rate does not depend on width: muP, spectral, u-muP.

Their rates are for Adam. Those of muP and of the spectral condition for SGD are there as well, `sgd`, for optimisers of
your own made with `Plan.param_groups`; a run here has AdamW, and refuses them.
"""

import math
from collections.abc import Mapping

from plkernel.models.init.distributions import ZERO, Distribution, normal, uniform
from plkernel.models.init.plan import Fill, Number, Parameter, Role, Rules, Sizes, fan_in_normal, fan_in_uniform, scheme

TENSOR_PROGRAMS = "arXiv 2203.03466"
VECTORS: tuple[Role, ...] = ("norm", "norm_bias", "bias")
IN_STACK: tuple[Role, ...] = (*VECTORS, "gate", "own")
STD = 0.0625
FIRST_HALVES = ("_w1", ".w1", ".a1", ".v1", ".g1")
"""Endings of the names of the first halves of RWKV's low-rank pairs."""


def mup_rates(m: float, sgd: bool, head: float) -> dict[str, Number]:
    """Learning-rate multipliers of embedding, matrices, head, vectors and the model's own; the tables' heads differ.

    Adam moves every entry by about its rate: 1 / m where a sum over the width follows, 1 elsewhere. SGD: matrices 1,
    what goes from a fixed width to a growing one m. The first half of a low-rank pair is like a head without a
    multiplier, 1 / m for both.
    """

    def vector(p: Parameter) -> float:
        return m if sgd and max(p.shape, default=1) > 1 else 1.0

    def own(p: Parameter) -> float:
        return 1 / m if p.name.endswith(FIRST_HALVES) else vector(p)

    if sgd:
        return {"embedding": m, "position": m, "head": head, "own": own, **{role: vector for role in VECTORS}}
    return {"input": 1 / m, "output": 1 / m, "head": head, "own": own}


def mup_decays(rates: Mapping[str, Number], m: float, head: float, sgd: bool, everything: bool) -> dict[str, Number]:
    """1 over the rate, so that a step shrinks weights by learning rate times weight decay whatever the width.

    head: that of the head, where the tables differ. everything: also of what is no matrix.
    """
    tables: dict[str, Number] = {"embedding": 1 / m, "position": 1 / m} if sgd else {"input": m, "output": m}
    rest: dict[str, Number] = {role: inverse(rates.get(role, 1.0)) for role in IN_STACK} if everything else {}
    return {**tables, "head": head, **rest}


def inverse(rate: Number) -> Number:
    """1 over a rate, so that (learning rate times weight decay) is the same for every parameter."""
    return (lambda p: 1 / rate(p)) if callable(rate) else 1 / rate


@scheme(f"paper:Tensor Programs V, {TENSOR_PROGRAMS}, Table 8, as the mup package runs it")
def mup_table8(
    s: Sizes,
    *,
    base_width: float = 256,
    std: float = STD,
    embedding_std: float = 1.0,
    output_multiplier: float = 1.0,
    zero_readout: bool = False,
    sgd: bool = False,
    uniform_draws: bool = False,
    decay_everything: bool = False,
) -> Rules:
    """muP with logits over m = d / base_width: hidden N(std / sqrt(m)) at rate 1 / m, head N(std) at rate 1.

    Weight decay of the hidden matrices is multiplied by m, which undoes their rate. Biases are U(sqrt(m / fan_in)),
    PyTorch's at the base width. The default std is 256**-0.5, fan_in**-0.5 of a square matrix at any width.
    zero_readout: the head and the queries start at zero, which the paper advises. The first half of a low-rank pair
    goes from a growing to a fixed width, as a head does, and has no multiplier of its own: it is trained at 1 / m.
    sgd: the rates for SGD: embedding, head and vectors m, hidden matrices 1; not for a run here, which has AdamW.
    uniform_draws: what the package's set_base_shapes makes of PyTorch's own draws: hidden U(fan_in**-0.5), head
    U(sqrt(m / fan_in)); std is then not used. decay_everything: weight decay on biases, gains and the model's own
    (decays among them) as well, times 1 over their rate, as the package's MuAdamW and MuSGD have it.
    """
    m = s.ratio(base_width)
    if uniform_draws and std != STD:
        raise ValueError(f"std {std:g} does not go with uniform_draws, whose bounds follow from the fans: leave it out")
    hidden: Fill = fan_in_uniform() if uniform_draws else normal(std / math.sqrt(m))
    head: Fill = fan_in_uniform(math.sqrt(m)) if uniform_draws else normal(std)
    rates = mup_rates(m, sgd, head=m if sgd else 1.0)
    return Rules(
        normal(embedding_std),
        hidden,
        hidden,
        ZERO if zero_readout else head,
        roles={"query": ZERO} if zero_readout else {},
        bias=lambda p: uniform(math.sqrt(m / p.fan_in)),
        learning_rate=rates,
        weight_decay=mup_decays(rates, m, 1 / m if sgd else 1.0, sgd, decay_everything),
        forward={"logits": output_multiplier / m},
        optimizer="sgd" if sgd else "adam",
    )


@scheme(f"paper:Tensor Programs V, {TENSOR_PROGRAMS}, Table 3")
def mup_table3(
    s: Sizes,
    *,
    base_width: float = 256,
    embedding_std: float = 1.0,
    zero_readout: bool = False,
    sgd: bool = False,
    uniform_draws: bool = False,
    decay_everything: bool = False,
) -> Rules:
    """muP without multipliers: hidden N(fan_in**-0.5), head N(sqrt(base_width) / d), both at rate 1 / m.

    From equal functions the same training as mup_table8: its head over m, gradients m times as large, the rate of Adam
    1 / m of its rate (of SGD 1 / m**2), hence eps and weight decay of the head times m. Gradients must not be clipped:
    their norm is another. Weight decay of the hidden matrices is multiplied by m, as there. zero_readout,
    decay_everything: as there. uniform_draws: hidden U(fan_in**-0.5), head and biases as there, so that equal seeds
    start from equal functions; otherwise biases start at zero. sgd: embedding and vectors m, hidden matrices 1,
    head 1 / m.
    """
    m = s.ratio(base_width)
    hidden = fan_in_uniform() if uniform_draws else fan_in_normal()
    head: Fill = fan_in_uniform(math.sqrt(m) / m) if uniform_draws else normal(math.sqrt(base_width) / s.width)
    rates = mup_rates(m, sgd, head=1 / m)
    return Rules(
        normal(embedding_std),
        hidden,
        hidden,
        ZERO if zero_readout else head,
        roles={"query": ZERO} if zero_readout else {},
        bias=(lambda p: uniform(math.sqrt(m / p.fan_in))) if uniform_draws else ZERO,
        learning_rate=rates,
        eps={} if sgd else {"head": m},
        weight_decay=mup_decays(rates, m, m, sgd, decay_everything),
        optimizer="sgd" if sgd else "adam",
    )


@scheme("paper:A Spectral Condition for Feature Learning, arXiv 2310.17813")
def spectral(s: Sizes, *, base_width: float = 256, sgd: bool = False) -> Rules:
    """Spectral norms sqrt(fan_out / fan_in): N(fan_in**-0.5 min(1, sqrt(fan_out / fan_in))), rate base_width / fan_in.

    An update, too, has this norm. Adam moves every entry by about its rate, so the norm is rate sqrt(fan_in fan_out),
    which gives 1 / fan_in; base_width only makes the rate of a matrix of that width 1. The embedding, N(1), and vectors
    have a fan_in of 1 and keep the rate. sgd: fan_out / fan_in, the paper's own table: d of the embedding, of biases
    and gains. What is the model's own, decays among them, keeps the rate in both. Weight decay is as given, as in
    nanotron's code of this parametrisation: AdamW multiplies it by a weight's rate, so that the wider a matrix is, the
    less a step shrinks it. In mup_table8 that does not depend on the width.
    """
    s.ratio(base_width)

    def matrix(p: Parameter) -> Distribution:
        return normal(p.fan_in**-0.5 * min(1.0, math.sqrt(p.fan_out / p.fan_in)))

    def rate(p: Parameter) -> float:
        return (p.fan_out if sgd else base_width) / p.fan_in

    def column(p: Parameter) -> float:
        return float(max(p.shape, default=1)) if sgd else 1.0

    one_hot = float(s.width) if sgd else 1.0
    rates: dict[str, Number] = {"input": rate, "output": rate, "head": rate, "embedding": one_hot, "position": one_hot}
    rates |= {role: column for role in VECTORS}
    return Rules(normal(1.0), matrix, matrix, matrix, learning_rate=rates, optimizer="sgd" if sgd else "adam")


@scheme("paper:u-muP, arXiv 2407.17465, and the unit-scaling package")
def u_mup(s: Sizes, *, residual_mult: float = 1.0, residual_attn_ratio: float = 1.0) -> Rules:
    """Every weight N(1): the operations carry the scale; tau of every branch in `forward`, rates by fan and depth.

    Linear layers multiply by fan_in**-0.5, the head by 1 / fan_in, a branch joins as (x + tau f) / sqrt(1 + tau**2).
    Weight decay is independent of a weight's own rate. residual_mult: share of all branches against the embedding;
    residual_attn_ratio: of mixers against feed-forward layers.
    """

    def matrix(p: Parameter) -> float:
        return (p.fan_in * s.layers) ** -0.5

    def in_stack(p: Parameter) -> float:
        return 1.0 if p.layer is None else s.layers**-0.5

    decayed: dict[str, Number] = {"embedding": s.width**-0.5, "position": s.width**-0.5}
    decayed |= {"input": matrix, "output": matrix}
    return Rules(
        normal(1.0),
        learning_rate={**decayed, **{role: in_stack for role in IN_STACK}},
        weight_decay={role: inverse(rate) for role, rate in decayed.items()},
        forward=branch_scales(s, residual_mult, residual_attn_ratio),
        needs={"unit_scaled": True},
    )


def branch_scales(s: Sizes, mult: float, ratio: float) -> dict[str, float]:
    """tau of each branch, "mixer.0", "ffn.0", ...: alpha / sqrt(B / 2 + sum of alpha**2 of the branches before).

    alpha_ffn = mult sqrt(2 / (1 + ratio**2)), alpha_mixer = ratio alpha_ffn, B branches in all; where blocks have a
    mixer alone, all alphas are mult and B stands for B / 2.
    """
    ffn = mult * math.sqrt(2 / (1 + ratio**2))
    kinds = [("mixer", ratio * ffn), ("ffn", ffn)] if s.branches > 1 else [("mixer", mult)]
    scales, total = {}, float(s.layers)
    for layer in range(s.layers):
        for kind, alpha in kinds:
            scales[f"{kind}.{layer}"] = alpha / math.sqrt(total)
            total += alpha**2
    return scales
