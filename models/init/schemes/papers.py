"""Initialisations of papers and technical reports, on models that keep their norms."""

import math

from plkernel.models.init.distributions import ONE, ZERO, constant, cut, normal, uniform
from plkernel.models.init.plan import (
    Calibrate,
    Fill,
    Role,
    Rules,
    Sizes,
    fan_in_normal,
    fan_in_uniform,
    scheme,
    xavier_normal,
    xavier_uniform,
)

NORMLESS = "Initialisations that take the place of norms: Fixup, T-Fixup, ReZero, SkipInit."


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
def trinity(s: Sizes, *, gain: float = 0.5) -> Rules:
    """T(0.5 / sqrt(d), 3) everywhere, embedding output times sqrt(d), gain L**-0.5 in the norm after every branch."""
    return Rules(
        cut(gain / math.sqrt(s.width), 3),
        norm=lambda p: constant(s.layers**-0.5) if "post" in p.name else ONE,  # as in blocks.0.join1.post_norm.weight
        forward={"embedding": math.sqrt(s.width)},
        needs={"placement": "sandwich"},
    )


@scheme("tech report:DeepSeek-V2")
def deepseek_v2(s: Sizes, *, std: float = 0.006) -> Rules:
    """N(0.006) everywhere, which the report uses at width 5120."""
    return Rules(normal(std))


@scheme("tech report:DeepSeek-V3")
def deepseek_v3(s: Sizes, *, std: float = 0.006, width_aware: bool = False) -> Rules:
    """N(0.006) everywhere; width_aware: N(0.5 / sqrt(d)), which is 0.006 at the report's width of 7168."""
    return Rules(normal(0.5 / math.sqrt(s.width) if width_aware else std))


@scheme("paper:Spike No More, arXiv 2312.16903")
def spike_scaled_embed(s: Sizes, *, fold: bool = False) -> Rules:
    """N(sqrt(2 / (5 d))), output projections over sqrt(2 L), and the embedding's output times sqrt(d).

    fold: the embedding itself N(sqrt(2 / 5)), with no multiplier: the same start, but another step under Adam.
    """
    std, root = small(s), math.sqrt(s.width)
    matrices = (normal(std), normal(std / s.deep), normal(std))
    return Rules(normal(std * root if fold else std), *matrices, forward={} if fold else {"embedding": root})


@scheme("paper:Spike No More, arXiv 2312.16903")
def spike_embed_ln(s: Sizes) -> Rules:
    """N(sqrt(2 / (5 d))), output projections over sqrt(2 L), and a LayerNorm after the embedding.

    That norm brings the embedding to unit scale only while its std is far above sqrt(eps).
    """
    return Rules(normal(small(s)), output=normal(small(s) / s.deep), needs={"embedding_norm": True})


def small(s: Sizes) -> float:
    """sqrt(2 / (5 d)): Xavier's std of a feed-forward matrix that widens by 4."""
    return math.sqrt(2 / (5 * s.width))


def in_branches(scaled: Fill) -> dict[Role, Fill]:
    """The matrices besides outputs that DeepNet and T-Fixup scale down: not queries, keys, mixer gates and routers."""
    return {"value": scaled, "ffn_gate": scaled, "ffn_up": scaled}


def deepnorm(a: float, b: float) -> Rules:
    """Xavier with b where DeepNet has it, and LN(a x + f)."""
    needs = {"placement": "post", "residual": a}
    return Rules(xavier_normal(), output=xavier_normal(b), roles=in_branches(xavier_normal(b)), needs=needs)


@scheme("paper:DeepNet, arXiv 2203.00555, decoder")
def deepnorm_decoder(s: Sizes, *, cross_attention: bool = False) -> Rules:
    """Xavier, times b = (8 L)**-0.25 on values, feed-forward and outputs, with post-norm LN(a x + f), a = (2 L)**0.25.

    Queries, keys, gates of the mixer and routers keep b = 1. The paper leaves embedding and head open: Xavier here.
    cross_attention: the decoder of an encoder-decoder model, planned by itself: b = (12 L)**-0.25, a = (3 L)**0.25.
    """
    if cross_attention:
        return deepnorm((3 * s.layers) ** 0.25, (12 * s.layers) ** -0.25)
    return deepnorm((2 * s.layers) ** 0.25, (8 * s.layers) ** -0.25)


@scheme("paper:DeepNet, arXiv 2203.00555, encoder")
def deepnorm_encoder(s: Sizes, *, decoder_layers: float = 0) -> Rules:
    """As deepnorm_decoder, for an encoder of L blocks beside a decoder of M = decoder_layers.

    a = 0.81 (L**4 M)**(1 / 16), b = 0.87 (L**4 M)**(-1 / 16). 0: an encoder alone, whose a and b are those of a decoder
    alone. Plan each half by itself, model.encoder with this and model.decoder with deepnorm_decoder.
    """
    if not decoder_layers:
        return deepnorm_decoder(s)
    both = (s.layers**4 * decoder_layers) ** (1 / 16)
    return deepnorm(0.81 * both, 0.87 / both)


@scheme("code:torchscale 0.3.0 as it runs, decoder")
def deepnorm_torchscale(s: Sizes) -> Rules:
    """As deepnorm_decoder, with U(fan_in**-0.5) for Xavier, embedding and head N(d**-0.5).

    The Xavier of that code is in a function which nothing calls.
    """
    scaled, ends = fan_in_uniform((8 * s.layers) ** -0.25), normal(s.width**-0.5)
    return Rules(ends, fan_in_uniform(), scaled, ends, in_branches(scaled), needs=deepnorm_decoder(s).needs)


@scheme("paper:Transformers without Tears, arXiv 1910.05895, and its code")
def small_init_scalenorm_fixnorm(s: Sizes, *, attention_only: bool = False) -> Rules:
    """N(sqrt(2 / (5 d))), ScaleNorm with g = sqrt(d), embedding and head of FixNorm.

    FixNorm uses rows of unit length, so the scale of the embedding, U(0.01) as in the code, does not matter. The head
    is tied, or drawn like the embedding. attention_only: as the paper has it, feed-forward matrices stay Xavier.
    """
    std = normal(small(s))
    ffn = xavier_normal() if attention_only else std
    return Rules(
        uniform(0.01),
        std,
        std,
        roles={"ffn_gate": ffn, "ffn_up": ffn, "ffn_router": ffn, "ffn_out": ffn},
        norm=constant(math.sqrt(s.width)),
        needs={"norm": "scale", "fixnorm": True},
    )


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
    return Rules(normal(1.0), linear, linear, linear, calibration=Calibrate(target))


@scheme("paper:The Principles of Deep Learning Theory, arXiv 2106.10165; partial Jacobians, arXiv 2111.12143")
def critical_he(s: Sizes, *, mlp_variance: float = 2.0, target: float = 0.0) -> Rules:
    """Criticality: linear maps and the head N(fan_in**-0.5), feed-forward matrices N(sqrt(2 / fan_in)), embedding N(1).

    mlp_variance: 2 is right for ReLU. Squared ReLU is not scale-free (a pre-activation of std s has the second moment
    3 / 2 s**4), so an RWKV is better tuned on data. Before a norm, with x + f(x), any std is critical. target: where
    given, the gains are tuned as in auto_init, to this partial Jacobian norm of every branch.
    """
    linear, he = fan_in_normal(), fan_in_normal(math.sqrt(mlp_variance))
    ffn: dict[Role, Fill] = {"ffn_gate": he, "ffn_up": he, "ffn_out": he}
    return Rules(normal(1.0), linear, linear, linear, ffn, calibration=Calibrate(target) if target else None)


@scheme("paper:Fixup, arXiv 1901.09321", NORMLESS)
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


@scheme("paper:T-Fixup, ICML 2020", NORMLESS)
def t_fixup(s: Sizes, *, encoder: bool = False, normal_draws: bool = False) -> Rules:
    """Xavier, times (9 L)**-0.25 on values, feed-forward and outputs; embedding N(d**-0.5) times the same; no norms.

    Queries, keys, gates of the mixer and routers keep a factor of 1. Trained without warm-up. encoder: the factor of
    the blocks is 0.67 L**-0.25. Xavier is uniform; normal_draws: normal, of the same std.
    """
    down = (9 * s.layers) ** -0.25
    xavier = xavier_normal if normal_draws else xavier_uniform
    scaled, embedding = xavier(0.67 * s.layers**-0.25 if encoder else down), normal(s.width**-0.5 * down)
    return Rules(embedding, xavier(), scaled, xavier(), in_branches(scaled), needs={"norm": "none"})


@scheme("paper:ReZero, arXiv 2003.04887", NORMLESS)
def rezero(s: Sizes) -> Rules:
    """x + g f(x) with one g = 0 per branch and no norms; weights as PyTorch makes them: N(1) and U(fan_in**-0.5)."""
    linear = fan_in_uniform()
    return Rules(normal(1.0), linear, linear, linear, gate=ZERO, needs={"norm": "none", "gate": True})


@scheme("paper:SkipInit, arXiv 2002.10444", NORMLESS)
def skip_init(s: Sizes) -> Rules:
    """As rezero, with He's N(sqrt(2 / fan_in)) for embedding (fan_in = d) and matrices; the head U(fan_in**-0.5)."""
    he = fan_in_normal(math.sqrt(2))
    return Rules(he, head=fan_in_uniform(), gate=ZERO, needs={"norm": "none", "gate": True})
