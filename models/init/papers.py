"""Initialisations of papers and technical reports, on models that keep their norms."""

import math

from plkernel.models.init.distributions import ONE, ZERO, constant, cut, normal, uniform
from plkernel.models.init.frameworks import small
from plkernel.models.init.plan import (
    Fill,
    Number,
    Parameter,
    Role,
    Rules,
    Sizes,
    add,
    fan_in_normal,
    fan_in_uniform,
    scheme,
    xavier_normal,
    xavier_uniform,
)

SPIKE = "paper:Spike No More, arXiv 2312.16903"
VECTORS: tuple[Role, ...] = ("norm", "norm_bias", "bias")
IN_STACK: tuple[Role, ...] = (*VECTORS, "gate", "own")
STD = 0.0625
FIRST_HALVES = ("_w1", ".w1", ".a1", ".v1", ".g1")
"""Endings of the names of the first halves of RWKV's low-rank pairs."""


@scheme("paper:the standard parametrisation of arXiv 2203.03466; torch.nn.Linear and torch.nn.Embedding")
def sp_torch_default(s: Sizes, *, normal_draws: bool = False) -> Rules:
    """PyTorch's defaults: embedding N(1), matrices and biases U(fan_in**-0.5).

    normal_draws: the standard parametrisation as papers write it, embedding N(d**-0.5), matrices N(fan_in**-0.5),
    biases 0.
    """
    if normal_draws:
        return Rules(normal(s.width**-0.5), fan_in_normal(), fan_in_normal(), fan_in_normal())
    linear = fan_in_uniform()
    return Rules(normal(1.0), linear, linear, linear, bias=linear)


@scheme("paper:GPT-2")
def gpt2(s: Sizes, *, std: float = 0.02, position_std: float = 0.01) -> Rules:
    """N(0.02), output projections over sqrt(2 L), positions N(0.01); the head is tied, or drawn like the embedding."""
    return Rules(normal(std), output=normal(std / s.deep), roles={"position": normal(position_std)})


@scheme("paper:Trinity")
def trinity(s: Sizes) -> Rules:
    """T(0.5 / sqrt(d), 3) everywhere, embedding output times sqrt(d), gain L**-0.5 in the norm after every branch."""
    return Rules(
        cut(0.5 / math.sqrt(s.width), 3),
        norm=lambda p: constant(s.layers**-0.5) if "post" in p.name else ONE,  # as in blocks.0.join1.post_norm.weight
        forward={"embedding": math.sqrt(s.width)},
        needs={"placement": "sandwich"},
    )


add(
    "tech report:DeepSeek-V2",
    "deepseek_v2",
    "N(0.006) everywhere, which the report uses at width 5120.",
    lambda s, std=0.006: Rules(normal(std)),
)


@scheme("tech report:DeepSeek-V3")
def deepseek_v3(s: Sizes, *, std: float = 0.006, width_aware: bool = False) -> Rules:
    """N(0.006) everywhere; width_aware: N(0.5 / sqrt(d)), which is 0.006 at the report's width of 7168."""
    return Rules(normal(0.5 / math.sqrt(s.width) if width_aware else std))


add(
    SPIKE,
    "spike_scaled_embed",
    "N(sqrt(2 / (5 d))), output projections over sqrt(2 L), and the embedding's output times sqrt(d).",
    lambda s: small(s, forward={"embedding": math.sqrt(s.width)}),
)


@scheme(SPIKE)
def spike_embed_ln(s: Sizes) -> Rules:
    """N(sqrt(2 / (5 d))), output projections over sqrt(2 L), and a LayerNorm after the embedding.

    That norm brings the embedding to unit scale only while its std is far above sqrt(eps).
    """
    return small(s, needs={"embedding_norm": True})


def in_branches(scaled: Fill) -> dict[Role, Fill]:
    """The matrices besides outputs that DeepNet and T-Fixup scale down: not queries, keys, mixer gates and routers."""
    return {"value": scaled, "ffn_gate": scaled, "ffn_up": scaled}


@scheme("paper:DeepNet, arXiv 2203.00555, decoder")
def deepnorm_decoder(s: Sizes) -> Rules:
    """Xavier, times b = (8 L)**-0.25 on values, feed-forward and outputs, with post-norm LN(a x + f), a = (2 L)**0.25.

    Queries, keys, gates of the mixer and routers keep b = 1. The paper leaves embedding and head open: Xavier here.
    """
    scaled = xavier_normal((8 * s.layers) ** -0.25)
    needs = {"placement": "post", "residual": (2 * s.layers) ** 0.25}
    return Rules(xavier_normal(), output=scaled, roles=in_branches(scaled), needs=needs)


@scheme("code:torchscale 0.3.0 as it runs, decoder")
def deepnorm_torchscale(s: Sizes) -> Rules:
    """As deepnorm_decoder, with U(fan_in**-0.5) for Xavier, embedding and head N(d**-0.5).

    The Xavier of that code is in a function which nothing calls.
    """
    scaled, ends = fan_in_uniform((8 * s.layers) ** -0.25), normal(s.width**-0.5)
    return Rules(ends, fan_in_uniform(), scaled, ends, in_branches(scaled), needs=deepnorm_decoder(s).needs)


@scheme("paper:Transformers without Tears, arXiv 1910.05895, and its code")
def small_init_scalenorm_fixnorm(s: Sizes) -> Rules:
    """N(sqrt(2 / (5 d))), ScaleNorm with g = sqrt(d), embedding and head of FixNorm.

    FixNorm uses rows of unit length, so the scale of the embedding, U(0.01) as in the code, does not matter. The head
    is tied, or drawn like the embedding.
    """
    std = normal(math.sqrt(2 / (5 * s.width)))
    return Rules(uniform(0.01), std, std, norm=constant(math.sqrt(s.width)), needs={"norm": "scale", "fixnorm": True})


@scheme("paper:DS-Init, arXiv 1908.11365")
def ds_init(s: Sizes, *, alpha: float = 1.0) -> Rules:
    """Xavier's U(alpha sqrt(6 / (fan_in + fan_out)) / sqrt(l + 1)) on all matrices of block l, counted from 0.

    Embedding and head are left to the framework: N(1) and U(fan_in**-0.5), as in sp_torch_default.
    """
    by_depth: Fill = lambda p: xavier_uniform(alpha / math.sqrt((p.layer or 0) + 1))(p)  # noqa: E731
    return Rules(normal(1.0), by_depth, by_depth, fan_in_uniform())


@scheme("paper:AutoInit, arXiv 2206.13568")
def auto_init(s: Sizes, *, target: float = 1.0) -> Rules:
    """N(fan_in**-0.5) with embedding N(1); then one gain per block is tuned on data.

    A run tunes the gains by itself, on the windows of its first step; from Python see
    plkernel.models.init.block_gains. target: the partial Jacobian norm of every branch; 1 doubles the squared length
    of gradients at every block, 1 / L keeps their growth over L blocks near e.
    """
    linear = fan_in_normal()
    return Rules(normal(1.0), linear, linear, linear, calibration=target)


@scheme("paper:The Principles of Deep Learning Theory, arXiv 2106.10165; partial Jacobians, arXiv 2111.12143")
def critical_he(s: Sizes) -> Rules:
    """Criticality: linear maps and the head N(fan_in**-0.5), feed-forward matrices N(sqrt(2 / fan_in)), embedding N(1).

    That is right for ReLU. Squared ReLU is not scale-free (a pre-activation of std s has the second moment 3 / 2 s**4),
    so an RWKV is better tuned on data, as in auto_init. Before a norm, with x + f(x), any std is critical.
    """
    linear, he = fan_in_normal(), fan_in_normal(math.sqrt(2))
    return Rules(normal(1.0), linear, linear, linear, {"ffn_gate": he, "ffn_up": he, "ffn_out": he})


@scheme("paper:Fixup, arXiv 1901.09321")
def fixup(s: Sizes, *, matrices: float = 2) -> Rules:
    """He times B**(-1 / (2 k - 2)), B branches of k matrices; the last matrix of a branch and the head are zero.

    Every branch has a factor, 1 at first, and a scalar bias before every layer; there are no norms. k = matrices: 2
    gives B**-0.5, 3 gives B**-0.25.
    """
    if matrices < 2:
        raise ValueError(f"matrices must be at least 2, got {matrices}")
    branches = s.layers * s.branches
    he = fan_in_normal(math.sqrt(2) * branches ** (-1 / (2 * matrices - 2)))
    return Rules(normal(1.0), he, ZERO, ZERO, needs={"norm": "none", "gate": True, "scalar_bias": True})


@scheme("paper:T-Fixup, ICML 2020")
def t_fixup(s: Sizes) -> Rules:
    """Xavier, times (9 L)**-0.25 on values, feed-forward and outputs; embedding N(d**-0.5) times the same; no norms.

    Queries, keys, gates of the mixer and routers keep a factor of 1. Trained without warm-up.
    """
    down = (9 * s.layers) ** -0.25
    scaled, embedding = xavier_uniform(down), normal(s.width**-0.5 * down)
    return Rules(embedding, xavier_uniform(), scaled, xavier_uniform(), in_branches(scaled), needs={"norm": "none"})


@scheme("paper:ReZero, arXiv 2003.04887")
def rezero(s: Sizes) -> Rules:
    """x + g f(x) with one g = 0 per branch and no norms; weights as PyTorch makes them: N(1) and U(fan_in**-0.5)."""
    linear = fan_in_uniform()
    return Rules(normal(1.0), linear, linear, linear, gate=ZERO, needs={"norm": "none", "gate": True})


@scheme("paper:SkipInit, arXiv 2002.10444")
def skip_init(s: Sizes) -> Rules:
    """As rezero, with He's N(sqrt(2 / fan_in)) for embedding (fan_in = d) and matrices; the head U(fan_in**-0.5)."""
    he = fan_in_normal(math.sqrt(2))
    return Rules(he, head=fan_in_uniform(), gate=ZERO, needs={"norm": "none", "gate": True})


def mup_rates(m: float, head: float) -> dict[str, Number]:
    """Learning rates of Adam, which moves every entry by about its rate: 1 / m where a sum over the width follows.

    The first half of a low-rank pair is like a head without a multiplier; the tables' heads differ.
    """

    def own(p: Parameter) -> float:
        return 1 / m if p.name.endswith(FIRST_HALVES) else 1.0

    return {"input": 1 / m, "output": 1 / m, "head": head, "own": own}


@scheme("paper:Tensor Programs V, arXiv 2203.03466, Table 8, as the mup package runs it")
def mup_table8(
    s: Sizes,
    *,
    base_width: float = 256,
    std: float = STD,
    embedding_std: float = 1.0,
    output_multiplier: float = 1.0,
    zero_readout: bool = False,
    uniform_draws: bool = False,
) -> Rules:
    """muP with logits over m = d / base_width: hidden N(std / sqrt(m)) at rate 1 / m, head N(std) at rate 1.

    Weight decay of the hidden matrices is multiplied by m, which undoes their rate. Biases are U(sqrt(m / fan_in)),
    PyTorch's at the base width. The default std is 256**-0.5, fan_in**-0.5 of a square matrix at any width.
    zero_readout: the head and the queries start at zero, which the paper advises. The first half of a low-rank pair
    goes from a growing to a fixed width, as a head does, and has no multiplier of its own: it is trained at 1 / m.
    uniform_draws: what the package's set_base_shapes makes of PyTorch's own draws: hidden U(fan_in**-0.5), head
    U(sqrt(m / fan_in)); std is then not used.
    """
    m = s.ratio(base_width)
    if uniform_draws and std != STD:
        raise ValueError(f"std {std:g} does not go with uniform_draws, whose bounds follow from the fans: leave it out")
    hidden: Fill = fan_in_uniform() if uniform_draws else normal(std / math.sqrt(m))
    head: Fill = fan_in_uniform(math.sqrt(m)) if uniform_draws else normal(std)
    return Rules(
        normal(embedding_std),
        hidden,
        hidden,
        ZERO if zero_readout else head,
        roles={"query": ZERO} if zero_readout else {},
        bias=lambda p: uniform(math.sqrt(m / p.fan_in)),
        learning_rate=mup_rates(m, 1.0),
        weight_decay={"input": m, "output": m},
        forward={"logits": output_multiplier / m},
    )


@scheme("paper:Tensor Programs V, arXiv 2203.03466, Table 3")
def mup_table3(s: Sizes, *, base_width: float = 256, embedding_std: float = 1.0, zero_readout: bool = False) -> Rules:
    """muP without multipliers: hidden N(fan_in**-0.5), head N(sqrt(base_width) / d), both at rate 1 / m.

    From equal functions the same training as mup_table8: its head over m, gradients m times as large, the rate of Adam
    1 / m of its rate, hence eps and weight decay of the head times m. Gradients must not be clipped: their norm is
    another. Weight decay of the hidden matrices is multiplied by m, as there. zero_readout: as there.
    """
    m = s.ratio(base_width)
    return Rules(
        normal(embedding_std),
        fan_in_normal(),
        fan_in_normal(),
        ZERO if zero_readout else normal(math.sqrt(base_width) / s.width),
        roles={"query": ZERO} if zero_readout else {},
        learning_rate=mup_rates(m, 1 / m),
        eps={"head": m},
        weight_decay={"input": m, "output": m, "head": m},
    )


@scheme("paper:A Spectral Condition for Feature Learning, arXiv 2310.17813")
def spectral(s: Sizes, *, base_width: float = 256) -> Rules:
    """Spectral norms sqrt(fan_out / fan_in): N(fan_in**-0.5 min(1, sqrt(fan_out / fan_in))), rate base_width / fan_in.

    An update, too, has this norm. Adam moves every entry by about its rate, so the norm is rate sqrt(fan_in fan_out),
    which gives 1 / fan_in; base_width only makes the rate of a matrix of that width 1. The embedding, N(1), and vectors
    have a fan_in of 1 and keep the rate. Weight decay is as given, as in nanotron's code of this parametrisation: AdamW
    multiplies it by a weight's rate, so that the wider a matrix is, the less a step shrinks it. In mup_table8 that does
    not depend on the width.
    """
    s.ratio(base_width)
    matrix: Fill = lambda p: normal(p.fan_in**-0.5 * min(1.0, math.sqrt(p.fan_out / p.fan_in)))  # noqa: E731
    rates: dict[str, Number] = dict.fromkeys(("input", "output", "head"), lambda p: base_width / p.fan_in)
    return Rules(normal(1.0), matrix, matrix, matrix, learning_rate=rates)


@scheme("paper:u-muP, arXiv 2407.17465, and the unit-scaling package")
def u_mup(s: Sizes, *, residual_mult: float = 1.0, residual_attn_ratio: float = 1.0) -> Rules:
    """Every weight N(1): the operations carry the scale; tau of every branch in `forward`, rates by fan and depth.

    Linear layers multiply by fan_in**-0.5, the head by 1 / fan_in, a branch joins as (x + tau f) / sqrt(1 + tau**2).
    Weight decay is independent of a weight's own rate. residual_mult: share of all branches against the embedding;
    residual_attn_ratio: of mixers against feed-forward layers.
    """

    def in_stack(p: Parameter) -> float:
        return 1.0 if p.layer is None else s.layers**-0.5

    ends: dict[str, Number] = {"embedding": s.width**-0.5, "position": s.width**-0.5}
    undone: dict[str, Number] = {name: 1 / s.width**-0.5 for name in ends}
    matrices: dict[str, Number] = dict.fromkeys(("input", "output"), lambda p: (p.fan_in * s.layers) ** -0.5)
    return Rules(
        normal(1.0),
        learning_rate={**ends, **matrices, **dict.fromkeys(IN_STACK, in_stack)},
        weight_decay={**undone, **dict.fromkeys(matrices, lambda p: 1 / (p.fan_in * s.layers) ** -0.5)},
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
