"""Initialisations of papers and technical reports, on models that keep their norms."""

import math

from plkernel.models.init.distributions import ONE, Distribution, constant, cut, normal, uniform
from plkernel.models.init.planning import scheme
from plkernel.models.init.rules import Calibrate, Parameter, Rules, Sizes
from plkernel.models.init.schemes.fans import fan_in_normal, fan_in_uniform, xavier_normal, xavier_uniform


@scheme("paper:the standard parametrisation of arXiv 2203.03466; torch.nn.Linear and torch.nn.Embedding")
def sp_torch_default(s: Sizes, *, normal_draws: bool = False) -> Rules:
    """What PyTorch does by itself: embedding N(1), matrices and biases U(fan_in**-0.5).

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
    return Rules(
        normal(std),
        normal(std),
        normal(std / math.sqrt(2 * s.layers)),
        normal(std),
        roles={"position": normal(position_std)},
    )


@scheme("paper:Trinity")
def trinity(s: Sizes, *, gain: float = 0.5) -> Rules:
    """T(0.5 / sqrt(d), 3) everywhere, embedding output times sqrt(d), gain L**-0.5 in the norm after every branch."""
    everywhere = cut(gain / math.sqrt(s.width), 3)

    def norm(p: Parameter) -> Distribution:
        return constant(s.layers**-0.5) if is_post_norm(p) else ONE

    return Rules(
        everywhere,
        everywhere,
        everywhere,
        everywhere,
        norm=norm,
        forward={"embedding": math.sqrt(s.width)},
        needs={"placement": "sandwich"},
    )


def is_post_norm(p: Parameter) -> bool:
    """Whether this norm follows a branch of a sandwich: its name says post, as in blocks.0.post1.weight."""
    return "post" in p.name


@scheme("tech report:DeepSeek-V2")
def deepseek_v2(s: Sizes, *, std: float = 0.006) -> Rules:
    """N(0.006) everywhere, which the report uses at width 5120."""
    return Rules(normal(std), normal(std), normal(std), normal(std))


@scheme("tech report:DeepSeek-V3")
def deepseek_v3(s: Sizes, *, std: float = 0.006, width_aware: bool = False) -> Rules:
    """N(0.006) everywhere; width_aware: N(0.5 / sqrt(d)), which is 0.006 at the report's width of 7168."""
    std = 0.5 / math.sqrt(s.width) if width_aware else std
    return Rules(normal(std), normal(std), normal(std), normal(std))


@scheme("paper:Spike No More, arXiv 2312.16903")
def spike_scaled_embed(s: Sizes, *, fold: bool = False) -> Rules:
    """N(sqrt(2 / (5 d))), output projections over sqrt(2 L), and the embedding's output times sqrt(d).

    fold: the embedding itself N(sqrt(2 / 5)), with no multiplier: the same start, but another step under Adam.
    """
    std = small(s)
    return Rules(
        normal(std * math.sqrt(s.width) if fold else std),
        normal(std),
        normal(std / math.sqrt(2 * s.layers)),
        normal(std),
        forward={} if fold else {"embedding": math.sqrt(s.width)},
    )


@scheme("paper:Spike No More, arXiv 2312.16903")
def spike_embed_ln(s: Sizes) -> Rules:
    """N(sqrt(2 / (5 d))), output projections over sqrt(2 L), and a LayerNorm after the embedding.

    That norm brings the embedding to unit scale only while its std is far above sqrt(eps).
    """
    std = small(s)
    return Rules(
        normal(std), normal(std), normal(std / math.sqrt(2 * s.layers)), normal(std), needs={"embedding_norm": True}
    )


def small(s: Sizes) -> float:
    """sqrt(2 / (5 d)): Xavier's std of a feed-forward matrix that widens by 4."""
    return math.sqrt(2 / (5 * s.width))


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


def deepnorm(a: float, b: float) -> Rules:
    """Xavier with b where DeepNet has it, and LN(a x + f)."""
    xavier, scaled = xavier_normal(), xavier_normal(b)
    return Rules(
        xavier,
        xavier,
        scaled,
        xavier,
        roles={"value": scaled, "ffn_gate": scaled, "ffn_up": scaled},
        needs={"placement": "post", "residual": a},
    )


@scheme("code:torchscale 0.3.0 as it runs, decoder")
def deepnorm_torchscale(s: Sizes) -> Rules:
    """As deepnorm_decoder, with U(fan_in**-0.5) for Xavier, embedding and head N(d**-0.5).

    The Xavier of that code is in a function which nothing calls.
    """
    b = (8 * s.layers) ** -0.25
    scaled = fan_in_uniform(b)
    return Rules(
        normal(s.width**-0.5),
        fan_in_uniform(),
        scaled,
        normal(s.width**-0.5),
        roles={"value": scaled, "ffn_gate": scaled, "ffn_up": scaled},
        needs=deepnorm_decoder(s).needs,
    )


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
        uniform(0.01),
        roles={"ffn_gate": ffn, "ffn_up": ffn, "ffn_router": ffn, "ffn_out": ffn},
        norm=constant(math.sqrt(s.width)),
        needs={"norm": "scale", "fixnorm": True},
    )


@scheme("paper:DS-Init, arXiv 1908.11365")
def ds_init(s: Sizes, *, alpha: float = 1.0) -> Rules:
    """Xavier's U(alpha sqrt(6 / (fan_in + fan_out)) / sqrt(l + 1)) on all matrices of block l, counted from 0.

    Embedding and head are left to the framework: N(1) and U(fan_in**-0.5), as in sp_torch_default.
    """

    def by_depth(p: Parameter) -> Distribution:
        return xavier_uniform(alpha / math.sqrt((p.layer or 0) + 1))(p)

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
    he = fan_in_normal(math.sqrt(mlp_variance))
    return Rules(
        normal(1.0),
        fan_in_normal(),
        fan_in_normal(),
        fan_in_normal(),
        roles={"ffn_gate": he, "ffn_up": he, "ffn_out": he},
        calibration=Calibrate(target) if target else None,
    )
