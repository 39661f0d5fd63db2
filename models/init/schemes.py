"""Initialisations by name: of training frameworks as their code does them, of papers and reports,
and of RWKV.

Each is a function, registered under its name and described by its docstring. Its first argument
are the sizes `s`, all others are the scheme's free constants. It returns `Rules(embedding, input,
output, head, roles, ...)`. N, T, J, U, O and C are the distributions of
`plkernel.models.init.distributions`; d, L, V and l are width, layers, vocabulary and the number of
a block.
"""

import math
from collections.abc import Callable
from typing import Any

from plkernel.models.init.distributions import (
    ONE,
    ZERO,
    Distribution,
    constant,
    cut,
    normal,
    orthogonal,
    rescaled,
    uniform,
)
from plkernel.models.init.plan import DistributionOf, NumberOf, Rules, scheme
from plkernel.models.init.roles import Parameter, Role, Sizes
from plkernel.models.init.rwkv_vectors import DECAYS_OF_GOOSE
from plkernel.models.rwkv_nodes import SPECTRUM

By = Callable[[Parameter], Distribution]
"""A distribution that follows from the fans or the depth of a parameter."""
Draw = Callable[[float], Distribution]
"""A distribution by its scale, such as `normal`."""
CEREBRAS = "code:Cerebras Model Zoo, github.com/Cerebras/modelzoo; heads are tied there by default"
FOUNDRY = "code:LLM Foundry (MPT), github.com/mosaicml/llm-foundry; heads are tied there"
LM_ENGINE = "code:lm-engine, github.com/open-lm-engine/lm-engine"
MEGATRON = "code:Megatron-LM, github.com/NVIDIA/Megatron-LM"
NANOTRON = "code:nanotron, github.com/huggingface/nanotron"
OLMO = "code:OLMo, github.com/allenai/OLMo"
SPIKE = "paper:Spike No More, arXiv 2312.16903"
TORCHTITAN = "code:torchtitan, github.com/pytorch/torchtitan"
TRANSFORMERS = "code:Hugging Face transformers, github.com/huggingface/transformers"
STD = 0.0625
"""256**-0.5, which is fan_in**-0.5 at the base width of mup_table8."""
ROOT_2 = math.sqrt(2)
HIDDEN = ("input", "output")
"""Groups of roles of the matrices of the blocks."""
FIRST_HALVES = ("_w1", ".w1", ".a1", ".v1", ".g1")
"""Ends of the names of the first maps of an RWKV's low-rank pairs."""
FFN: tuple[Role, ...] = ("ffn_gate", "ffn_up", "ffn_router", "ffn_out")


def fan_in(draw: Draw, gain: float = 1.0) -> By:
    """gain fan_in**-0.5. Of normal: LeCun's at gain 1, He's at sqrt(2); of uniform: PyTorch's
    linear layer at 1.
    """
    return lambda p: draw(gain * p.fan_in**-0.5)


def xavier(draw: Draw, gain: float = 1.0) -> By:
    """Xavier's standard deviation gain sqrt(2 / (fan_in + fan_out)); bounds of uniform take sqrt(3)
    of it as gain.
    """
    return lambda p: draw(gain * math.sqrt(2 / (p.fan_in + p.fan_out)))


def by_spectrum(p: Parameter) -> Distribution:
    """N(fan_in**-0.5 min(1, sqrt(fan_out / fan_in))), of spectral norm sqrt(fan_out / fan_in)."""
    return normal(p.fan_in**-0.5 * min(1.0, math.sqrt(p.fan_out / p.fan_in)))


def small(s: Sizes, share: float | None = None, **asks: Any) -> Rules:
    """N(sqrt(2 / (5 d))), Xavier's std of a matrix that widens by 4; outputs times `share`, or over
    sqrt(2 L).
    """
    std = math.sqrt(2 / (5 * s.width))
    output = std / s.deep if share is None else std * share
    return Rules(normal(std), output=normal(output), **asks)


def hidden(number: NumberOf) -> dict[str, NumberOf]:
    """The same multiplier for all matrices of the blocks."""
    return dict.fromkeys(HIDDEN, number)


def flat(std: float) -> Rules:
    """N(std) everywhere."""
    return Rules(normal(std))


def by_total_depth(s: Sizes, std: float) -> Rules:
    """N(std), output projections over sqrt(2 L)."""
    return Rules(normal(std), output=normal(std / s.deep))


# Frameworks.


@scheme(CEREBRAS)
def cerebras_default(s: Sizes, *, std: float = 0.02) -> Rules:
    """T(std, 2), output projections over sqrt(2 L), an untied head N(std)."""
    return Rules(cut(std, 2), output=cut(std / s.deep, 2), head=normal(std))


@scheme(CEREBRAS)
def cerebras_mup(
    s: Sizes,
    *,
    std: float = 0.08,
    base_width: float = 256,
    embedding_multiplier: float = 1,
    logits_alpha: float = 1,
) -> Rules:
    """muP: T(0.08, 2), hidden matrices over sqrt(m), outputs over sqrt(2 L) besides, rates over m.

    Logits times logits_alpha / m, an untied head N(0.02). Feed-forward widths are in the proportion
    of this model. embedding_multiplier: 1 in the code, about 10 where it was tuned.
    """
    m = s.ratio(base_width)
    return Rules(
        cut(std, 2),
        cut(std / math.sqrt(m), 2),
        cut(std / (math.sqrt(m) * s.deep), 2),
        normal(0.02),
        learning_rate=hidden(1 / m),
        forward={"embedding": embedding_multiplier, "logits": logits_alpha / m},
    )


@scheme(FOUNDRY)
def llm_foundry_baseline(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, output projections over sqrt(2 L)."""
    return by_total_depth(s, std)


@scheme(FOUNDRY)
def llm_foundry_small_init(s: Sizes) -> Rules:
    """N(sqrt(2 / (5 d))) everywhere, whatever the inner width; output projections over sqrt(2
    L).
    """
    return small(s, 1 / s.deep)


@scheme(FOUNDRY)
def llm_foundry_neox_init(s: Sizes) -> Rules:
    """N(sqrt(2 / (5 d))) everywhere, output projections N(2 / (L sqrt(d))), which is more up to L =
    3.
    """
    return small(s, 1 / (s.layers / math.sqrt(10)))


def divided(every: By, s: Sizes) -> Rules:
    """The same law for all, output projections over sqrt(2 L); fused matrices are taken apart
    first.
    """
    return Rules(every, output=lambda p: every(p).times(1 / s.deep))


@scheme(f"{FOUNDRY} (MPT default; gain: sqrt(2) for ReLU)")
def llm_foundry_kaiming_normal(s: Sizes, *, gain: float = ROOT_2) -> Rules:
    """N(gain / sqrt(fan_in)), of an embedding d; output projections over sqrt(2 L)."""
    return divided(fan_in(normal, gain), s)


@scheme(f"{FOUNDRY} (gain: sqrt(2) for ReLU)")
def llm_foundry_kaiming_uniform(s: Sizes, *, gain: float = ROOT_2) -> Rules:
    """U(gain sqrt(3 / fan_in)), of an embedding d; output projections over sqrt(2 L)."""
    return divided(fan_in(uniform, math.sqrt(3) * gain), s)


@scheme(f"{FOUNDRY} (init_gain must be set; default 0.0 gives all-zero weights)")
def llm_foundry_xavier_normal(s: Sizes, *, gain: float = 1.0) -> Rules:
    """N(gain sqrt(2 / (fan_in + fan_out))), of an embedding d and V; output projections over
    sqrt(2 L).
    """
    return divided(xavier(normal, gain), s)


@scheme(f"{FOUNDRY} (init_gain must be set; default 0.0 gives all-zero weights)")
def llm_foundry_xavier_uniform(s: Sizes, *, gain: float = 1.0) -> Rules:
    """U(gain sqrt(6 / (fan_in + fan_out))), of an embedding d and V; output projections over
    sqrt(2 L).
    """
    return divided(xavier(uniform, math.sqrt(3) * gain), s)


@scheme(LM_ENGINE)
def lm_engine_normal(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, output projections over sqrt(2 L)."""
    return by_total_depth(s, std)


@scheme(LM_ENGINE)
def lm_engine_fan_in(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(fan_in**-0.5), output projections over sqrt(2 L); embedding and head N(std)."""
    return Rules(normal(std), fan_in(normal), fan_in(normal, (2 * s.layers) ** -0.5))


@scheme(f"{LM_ENGINE} (params_group_method=mup)")
def lm_engine_mup(
    s: Sizes,
    *,
    std: float = 0.02,
    base_width: float = 256,
    embedding_multiplier: float = 1,
    residual_multiplier: float = 1,
) -> Rules:
    """muP as lm-engine has it: hidden matrices over sqrt(m), outputs over sqrt(2 L) besides, logits
    times 1/m.

    The learning rate over m is that of all of a block but norms and biases, decays and convolutions
    too, which then also get the weight decay they are spared otherwise. embedding_multiplier
    multiplies the embedding's output, residual_multiplier every branch.
    """
    m = s.ratio(base_width)

    def is_norm(p: Parameter) -> bool:
        return ".ln_x." in p.name  # of an RWKV's heads

    return Rules(
        normal(std),
        normal(std / math.sqrt(m)),
        normal(std / math.sqrt(2 * s.layers * m)),
        learning_rate={**hidden(1 / m), "own": lambda p: 1.0 if is_norm(p) else 1 / m},
        weight_decay={"own": lambda p: 0.0 if is_norm(p) else 1.0},
        forward={
            "logits": 1 / m,
            "embedding": embedding_multiplier,
            "residual": residual_multiplier,
        },
    )


@scheme("code:MaxText, github.com/AI-Hypercomputer/maxtext")
def maxtext(s: Sizes, *, tied: bool = False) -> Rules:
    """Mixer N(fan_in**-0.5), queries over sqrt(d_head) besides; feed-forward and head
    J(fan_in**-0.5); whatever depth.

    Embedding N(d**-0.5). tied: head and embedding are one matrix (logits_via_embedding),
    N(d**-0.5), and logits are divided by sqrt(d).
    """
    embedding = normal(s.width**-0.5)
    matrix = fan_in(normal)
    dense = fan_in(rescaled)
    roles: dict[Role, DistributionOf] = {
        "query": normal((s.width * s.head_size) ** -0.5),
        **dict.fromkeys(FFN, dense),
    }
    if tied:
        return Rules(embedding, matrix, matrix, embedding, roles, forward={"logits": s.width**-0.5})
    return Rules(embedding, matrix, matrix, rescaled(s.width**-0.5), roles)


@scheme(MEGATRON)
def megatron_default(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, output projections over sqrt(2 L)."""
    return by_total_depth(s, std)


@scheme(f"{MEGATRON} (is_hybrid_model)")
def megatron_hybrid(s: Sizes, *, std: float = 0.02) -> Rules:
    """As megatron_default with sqrt(L) where L counts residual branches: for blocks of a mixer
    alone.
    """
    return Rules(normal(std), output=normal(std / math.sqrt(s.layers * s.branches)))


@scheme(f"{MEGATRON} (--init-method-xavier-uniform, as intended)")
def megatron_xavier_uniform(s: Sizes) -> Rules:
    """U(sqrt(6 / (fan in + fan out))) everywhere, of the matrices as they are stored: fused, where
    they are fused.

    The fans of an embedding are d and V.
    """

    def every(p: Parameter) -> Distribution:
        _, parts = p.part
        return uniform(math.sqrt(6 / (p.fan_in + parts * p.fan_out)))

    return Rules(every)


@scheme(f"{MEGATRON} (use_mup)")
def megatron_mup(s: Sizes, *, std: float = 0.02, base_width: float = 256) -> Rules:
    """muP as Megatron has it: hidden matrices over sqrt(m), their Adam rate and eps over m, logits
    times 1/m.
    """
    m = s.ratio(base_width)
    return Rules(
        normal(std),
        normal(std / math.sqrt(m)),
        normal(std / math.sqrt(2 * s.layers * m)),
        learning_rate=hidden(1 / m),
        eps=hidden(1 / m),
        forward={"logits": 1 / m},
    )


@scheme(NANOTRON)
def nanotron_random_init(s: Sizes, *, std: float = 0.025) -> Rules:
    """N(std) everywhere, output projections over sqrt(2 L)."""
    return by_total_depth(s, std)


@scheme(NANOTRON)
def nanotron_spectral_mup(s: Sizes) -> Rules:
    """Matrices, head too, N(fan_in**-0.5 min(1, sqrt(fan_out / fan_in))) at a learning rate of
    fan_out / fan_in; embedding N(1).

    The rates are those of the paper for SGD, which the code gives its Adam. Learning rates do not
    carry over from width to width: changes of activations in the blocks of our SSM grow as
    width**0.4 to width**0.7; `spectral` has the rule for Adam. Each part of a fused matrix is a
    matrix; nanotron counts their outputs together. It refuses biases; ours are 0.
    """
    rates: dict[str, NumberOf] = dict.fromkeys((*HIDDEN, "head"), lambda p: p.fan_out / p.fan_in)
    return Rules(normal(1), by_spectrum, by_spectrum, by_spectrum, learning_rate=rates)


@scheme(OLMO)
def olmo_normal(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, whatever the depth."""
    return flat(std)


@scheme(OLMO)
def olmo_mitchell(s: Sizes, *, cutoff: float = 3) -> Rules:
    """T(fan_in**-0.5, 3); output projections of block l T((2 fan_in (l + 1))**-0.5, 3), fan_in the
    inner width.
    """

    def output(p: Parameter) -> Distribution:
        return cut((2 * p.fan_in * p.depth) ** -0.5, cutoff)

    return Rules(cut(s.width**-0.5, cutoff), output=output)


@scheme(OLMO)
def olmo_full_megatron(s: Sizes, *, std: float = 0.02, scale_embedding: bool = False) -> Rules:
    """T(std, 3), output projections over sqrt(2 L), head T(d**-0.5, 3).

    scale_embedding: the embedding has std sqrt(d) instead.
    """
    embedding = std * (math.sqrt(s.width) if scale_embedding else 1)
    return Rules(cut(embedding, 3), cut(std, 3), cut(std / s.deep, 3), cut(s.width**-0.5, 3))


# The truncated normals of torchtitan have bounds of +-2 in absolute terms, so that at a standard
# deviation of 0.02 they are plain normals; only the head is cut where it shows, at 3 deviations. A
# tied head would have filled the embedding.


@scheme(f"{TORCHTITAN} (Llama3/4, DeepSeekV3, Qwen3)")
def torchtitan_llama(s: Sizes, *, std: float = 0.02, depth_init: bool = True) -> Rules:
    """Embedding N(1); N(std), and N(std / sqrt(2 (l + 1))) out of the mixer and for w2, w3 and the
    router.

    Head T(d**-0.5, 3). depth_init: false puts the depth L of the model in the place of l + 1
    (before adbaa061).
    """

    def scaled(p: Parameter) -> Distribution:
        return normal(std / math.sqrt(2 * (p.depth if depth_init else s.layers)))

    return Rules(
        normal(1),
        normal(std),
        scaled,
        cut(s.width**-0.5, 3),
        {"ffn_up": scaled, "ffn_router": scaled},
    )


@scheme(TORCHTITAN)
def torchtitan_gpt_oss(s: Sizes, *, std: float = 0.02) -> Rules:
    """GPT-OSS: every matrix of block l N(std / sqrt(2 (l + 1))), router too; head T(d**-0.5, 3).

    Its biases of experts and its attention sinks, which our models do not have, are drawn like the
    matrices.
    """

    def block(p: Parameter) -> Distribution:
        return normal(std / math.sqrt(2 * p.depth))

    return Rules(normal(std), block, block, cut(s.width**-0.5, 3))


@scheme(TRANSFORMERS)
def transformers_default(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, whatever the depth."""
    return flat(std)


@scheme(TRANSFORMERS)
def transformers_gpt2(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, output projections over sqrt(2 L)."""
    return by_total_depth(s, std)


@scheme(TRANSFORMERS)
def transformers_modernbert(s: Sizes, *, std: float = 0.02) -> Rules:
    """T(std, 2), output projections and head over sqrt(2 L). Its heads of classification are
    T(d**-0.5, 2).
    """
    deep = cut(std / s.deep, 2)
    return Rules(cut(std, 2), output=deep, head=deep)


@scheme(TRANSFORMERS)
def transformers_gemma(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, the embedding's output times sqrt(d), norms (1 + w) x with w = 0; the head
    is tied there.
    """
    return Rules(
        normal(std),
        norm=ZERO,
        forward={"embedding": math.sqrt(s.width)},
        needs={"norm_offset": True},
    )


@scheme(TRANSFORMERS)
def transformers_clip(s: Sizes, *, std: float = 0.02) -> Rules:
    """d**-0.5 with the depth on the way in: mixer inputs and ffn output over sqrt(2 L), ffn inputs
    over sqrt(2).

    The mixer's output has no depth factor. std: of the embedding.
    """
    std_out = s.width**-0.5
    out = normal(std_out)
    deep = normal(std_out / s.deep)
    up = normal(std_out / ROOT_2)
    roles: dict[Role, DistributionOf] = {
        "ffn_gate": up,
        "ffn_up": up,
        "ffn_router": up,
        "ffn_out": deep,
    }
    return Rules(normal(std), deep, out, out, roles)


@scheme(TRANSFORMERS)
def transformers_t5(s: Sizes, *, tied: bool = True) -> Rules:
    """Embedding and head N(1), matrices N(fan_in**-0.5), queries over sqrt(d_head) besides, logits
    times d**-0.5.

    The dot product has no 1/sqrt(d_head) of its own: what reads the memory carries it. In an SSM
    that is C, whose d_state**-0.5 is already its fan_in**-0.5. tied: the logits are scaled, as in
    the code where head and embedding are one matrix; false for its models with a head of their own.
    """
    matrix = fan_in(normal)
    return Rules(
        normal(1),
        matrix,
        matrix,
        roles={"query": normal((s.width * s.head_size) ** -0.5)},
        forward={"logits": s.width**-0.5} if tied else {},
    )


@scheme(TRANSFORMERS)
def transformers_mamba(s: Sizes, *, std: float = 0.1, rescale: bool = False) -> Rules:
    """N(0.1), output projections U(fan_in**-0.5); the head is tied there.

    rescale: divide the output projections by sqrt(L), L counting residual branches
    (rescale_prenorm_residual).
    """
    gain = (s.layers * s.branches) ** -0.5 if rescale else 1.0
    return Rules(normal(std), output=fan_in(uniform, gain))


# Papers and reports.


@scheme(
    "paper:the standard parametrisation of arXiv 2203.03466; torch.nn.Linear and torch.nn.Embedding"
)
def sp_torch_default(s: Sizes, *, normal_draws: bool = False) -> Rules:
    """PyTorch's defaults: embedding N(1), matrices and biases U(fan_in**-0.5).

    normal_draws: the standard parametrisation as papers write it, embedding N(d**-0.5), matrices
    N(fan_in**-0.5), biases 0.
    """
    if normal_draws:
        linear = fan_in(normal)
        return Rules(normal(s.width**-0.5), linear, linear, linear)
    linear = fan_in(uniform)
    return Rules(normal(1.0), linear, linear, linear, bias=linear)


@scheme("paper:GPT-2")
def gpt2(s: Sizes, *, std: float = 0.02, position_std: float = 0.01) -> Rules:
    """N(0.02), output projections over sqrt(2 L), positions N(0.01); the head is tied, or drawn
    like the embedding.
    """
    return Rules(normal(std), output=normal(std / s.deep), roles={"position": normal(position_std)})


@scheme("tech report:DeepSeek-V2")
def deepseek_v2(s: Sizes, *, std: float = 0.006) -> Rules:
    """N(0.006) everywhere, which the report uses at width 5120."""
    return flat(std)


@scheme("tech report:DeepSeek-V3")
def deepseek_v3(s: Sizes, *, std: float = 0.006, width_aware: bool = False) -> Rules:
    """N(0.006) everywhere; width_aware: N(0.5 / sqrt(d)), which is 0.006 at the width of V3,
    7168.
    """
    return flat(0.5 / math.sqrt(s.width) if width_aware else std)


@scheme(SPIKE)
def spike_scaled_embed(s: Sizes) -> Rules:
    """N(sqrt(2 / (5 d))), output projections over sqrt(2 L), and the embedding's output times
    sqrt(d).
    """
    return small(s, forward={"embedding": math.sqrt(s.width)})


@scheme(SPIKE)
def spike_embed_ln(s: Sizes) -> Rules:
    """N(sqrt(2 / (5 d))), output projections over sqrt(2 L), and a LayerNorm after the embedding.

    That norm brings the embedding to unit scale while its std is far above sqrt(eps).
    """
    return small(s, needs={"norm": "layer", "embedding_norm": True})


@scheme("paper:Trinity")
def trinity(s: Sizes) -> Rules:
    """T(0.5 / sqrt(d), 3) everywhere, embedding output times sqrt(d), gain L**-0.5 in the norm
    after every branch.
    """

    def gain(p: Parameter) -> Distribution:
        after = "post" in p.name  # as in blocks.0.join1.post_norm.weight
        return constant(s.layers**-0.5) if after else ONE

    return Rules(
        cut(0.5 / math.sqrt(s.width), 3),
        norm=gain,
        forward={"embedding": math.sqrt(s.width)},
        needs={"placement": "sandwich"},
    )


@scheme("paper:DeepNet, arXiv 2203.00555, decoder")
def deepnorm_decoder(s: Sizes) -> Rules:
    """Xavier, times b = (8 L)**-0.25 on values, feed-forward and outputs, with post-norm LN(a x +
    f), a = (2 L)**0.25.

    Queries, keys, gates of the mixer and routers keep b = 1. The paper leaves embedding and head
    open: Xavier here.
    """
    scaled = xavier(normal, (8 * s.layers) ** -0.25)
    return Rules(xavier(normal), output=scaled, roles=in_branches(scaled), needs=deepnorm_needs(s))


@scheme("code:torchscale 0.3.0, github.com/microsoft/torchscale, as it runs, decoder")
def deepnorm_torchscale(s: Sizes) -> Rules:
    """As deepnorm_decoder, with U(fan_in**-0.5) for Xavier, embedding and head N(d**-0.5).

    The Xavier of that code is in a function which nothing calls.
    """
    ends = normal(s.width**-0.5)
    scaled = fan_in(uniform, (8 * s.layers) ** -0.25)
    return Rules(ends, fan_in(uniform), scaled, ends, in_branches(scaled), needs=deepnorm_needs(s))


def deepnorm_needs(s: Sizes) -> dict[str, Any]:
    """Post-norm LN(a x + f), a = (2 L)**0.25."""
    return {"placement": "post", "residual": (2 * s.layers) ** 0.25}


def in_branches(scaled: DistributionOf) -> dict[Role, DistributionOf]:
    """The matrices besides outputs that DeepNet and T-Fixup scale down: not queries, keys, gates of
    the mixer and routers.
    """
    return {"value": scaled, "ffn_gate": scaled, "ffn_up": scaled}


@scheme("paper:Transformers without Tears, arXiv 1910.05895, and its code")
def small_init_scalenorm_fixnorm(s: Sizes) -> Rules:
    """N(sqrt(2 / (5 d))), ScaleNorm with g = sqrt(d), embedding and head of FixNorm.

    FixNorm makes the rows of the embedding of length g and those of the head of length 1, so the
    scale of their draws, U(0.01) as in the code, does not matter; the head is tied there. The paper
    draws the matrices of attention alone so.
    """
    std = normal(math.sqrt(2 / (5 * s.width)))
    return Rules(
        uniform(0.01),
        std,
        std,
        norm=constant(math.sqrt(s.width)),
        needs={"norm": "scale", "fixnorm": True},
    )


@scheme("paper:DS-Init, arXiv 1908.11365")
def ds_init(s: Sizes, *, alpha: float = 1.0) -> Rules:
    """Xavier's U(alpha sqrt(6 / (fan_in + fan_out)) / sqrt(l + 1)) on all matrices of block l,
    counted from 0.

    Embedding and head are left to the framework: N(1) and U(fan_in**-0.5), as in sp_torch_default.
    """

    def by_depth(p: Parameter) -> Distribution:
        return xavier(uniform, alpha * math.sqrt(3 / p.depth))(p)

    return Rules(normal(1.0), by_depth, by_depth, fan_in(uniform))


@scheme(
    "paper:The Principles of Deep Learning Theory, arXiv 2106.10165; partial Jacobians, arXiv"
    " 2111.12143"
)
def critical_he(s: Sizes) -> Rules:
    """Criticality: linear maps and the head N(fan_in**-0.5), feed-forward matrices
    N(sqrt(2 / fan_in)), embedding N(1).

    That is right for ReLU. Squared ReLU is not scale-free (a pre-activation of std s has the second
    moment 3 / 2 s**4), so an RWKV is better tuned on data
    (`plkernel.models.init.tune_jacobians_`). Before a norm, with x + f(x), any std is critical.
    """
    linear = fan_in(normal)
    he = fan_in(normal, ROOT_2)
    roles: dict[Role, DistributionOf] = {"ffn_gate": he, "ffn_up": he, "ffn_out": he}
    return Rules(normal(1.0), linear, linear, linear, roles)


@scheme("paper:Fixup, arXiv 1901.09321")
def fixup(s: Sizes, *, matrices: float = 2) -> Rules:
    """He times B**(-1 / (2 k - 2)), B branches of k matrices; the last matrix of a branch and the
    head are zero.

    Every branch has a factor, 1 at first, and a scalar bias before every layer; there are no norms.
    k = matrices: 2 gives B**-0.5, 3 gives B**-0.25.
    """
    if matrices < 2:
        raise ValueError(f"matrices must be at least 2, got {matrices}")
    branches = s.layers * s.branches
    he = fan_in(normal, ROOT_2 * branches ** (-1 / (2 * matrices - 2)))
    needs = {"norm": "none", "gate": True, "scalar_bias": True}
    return Rules(normal(1.0), he, ZERO, ZERO, needs=needs)


@scheme("paper:T-Fixup, Huang et al., ICML 2020, decoder")
def t_fixup(s: Sizes) -> Rules:
    """Xavier, times (9 L)**-0.25 on values, feed-forward and outputs; embedding N(d**-0.5) times
    the same; no norms.

    Queries, keys, gates of the mixer and routers keep a factor of 1. Trained without warm-up.
    """
    down = (9 * s.layers) ** -0.25
    plain = xavier(uniform, math.sqrt(3))
    scaled = xavier(uniform, math.sqrt(3) * down)
    return Rules(
        normal(s.width**-0.5 * down),
        plain,
        scaled,
        plain,
        in_branches(scaled),
        needs={"norm": "none"},
    )


@scheme("paper:ReZero, arXiv 2003.04887")
def rezero(s: Sizes) -> Rules:
    """x + g f(x) with one g = 0 for every branch and no norms; weights as PyTorch makes them: N(1)
    and U(fan_in**-0.5).
    """
    linear = fan_in(uniform)
    needs = {"norm": "none", "gate": True}
    return Rules(normal(1.0), linear, linear, linear, gate=ZERO, needs=needs)


@scheme("paper:SkipInit, arXiv 2002.10444")
def skip_init(s: Sizes) -> Rules:
    """As rezero, with He's N(sqrt(2 / fan_in)) for embedding (fan_in = d) and matrices; the head
    U(fan_in**-0.5).
    """
    needs = {"norm": "none", "gate": True}
    return Rules(fan_in(normal, ROOT_2), head=fan_in(uniform), gate=ZERO, needs=needs)


def mup_rates(m: float, head: float) -> dict[str, NumberOf]:
    """Learning rates of Adam, which moves every entry by about its rate: 1 / m where a sum over the
    width follows.

    The first half of a low-rank pair is like a head without a multiplier; the tables' heads differ.
    """

    def own(p: Parameter) -> float:
        return 1 / m if p.name.endswith(FIRST_HALVES) else 1.0

    return {**hidden(1 / m), "head": head, "own": own}


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
    """muP with logits over m = d / base_width: hidden N(std / sqrt(m)) at rate 1 / m, head N(std)
    at rate 1.

    Weight decay of the hidden matrices is multiplied by m, which undoes their rate. Biases are
    U(sqrt(m / fan_in)), PyTorch's at the base width. The default std is 256**-0.5, fan_in**-0.5 of
    a square matrix at any width. zero_readout: the head and the queries are zero, which the
    paper advises. The first half of a low-rank pair goes from a growing to a fixed width, as a head
    does, and has no multiplier of its own: it is trained at 1 / m. uniform_draws: what the
    package's set_base_shapes makes of PyTorch's own draws: hidden U(fan_in**-0.5), head U(sqrt(m /
    fan_in)); std is then not used.
    """
    m = s.ratio(base_width)
    if uniform_draws and std != STD:
        raise ValueError(
            "std must be left out with uniform_draws, whose bounds follow from the fans, got"
            f" {std:g}"
        )
    matrix: DistributionOf = fan_in(uniform) if uniform_draws else normal(std / math.sqrt(m))
    head: DistributionOf = fan_in(uniform, math.sqrt(m)) if uniform_draws else normal(std)
    return Rules(
        normal(embedding_std),
        matrix,
        matrix,
        ZERO if zero_readout else head,
        roles={"query": ZERO} if zero_readout else {},
        bias=lambda p: uniform(math.sqrt(m / p.fan_in)),
        learning_rate=mup_rates(m, 1.0),
        weight_decay=hidden(m),
        forward={"logits": output_multiplier / m},
    )


@scheme("paper:Tensor Programs V, arXiv 2203.03466, Table 3")
def mup_table3(
    s: Sizes, *, base_width: float = 256, embedding_std: float = 1.0, zero_readout: bool = False
) -> Rules:
    """muP without multipliers: hidden N(fan_in**-0.5), head N(sqrt(base_width) / d), both at rate 1
    / m.

    From equal functions the same training as mup_table8: its head over m, gradients m times as
    large, the rate of Adam 1 / m of its rate, hence eps and weight decay of the head times m.
    Gradients must not be clipped: their norm is another. Weight decay of the hidden matrices is
    multiplied by m, as there. zero_readout: as there.
    """
    m = s.ratio(base_width)
    return Rules(
        normal(embedding_std),
        fan_in(normal),
        fan_in(normal),
        ZERO if zero_readout else normal(math.sqrt(base_width) / s.width),
        roles={"query": ZERO} if zero_readout else {},
        learning_rate=mup_rates(m, 1 / m),
        eps={"head": m},
        weight_decay={**hidden(m), "head": m},
    )


@scheme("paper:A Spectral Condition for Feature Learning, arXiv 2310.17813")
def spectral(s: Sizes, *, base_width: float = 256) -> Rules:
    """Spectral norms sqrt(fan_out / fan_in): N(fan_in**-0.5 min(1, sqrt(fan_out / fan_in))), rate
    base_width / fan_in.

    An update, too, has this norm. Adam moves every entry by about its learning rate r, so the norm
    is r sqrt(fan_in fan_out), which gives 1 / fan_in; base_width only makes the rate of a matrix of
    that width 1. The embedding, N(1), and vectors have a fan_in of 1 and keep the learning rate.
    Weight decay is as given, as in nanotron's code of this parametrisation: AdamW multiplies it by
    a weight's rate, so that the wider a matrix is, the less a step shrinks it. In mup_table8 that
    does not depend on the width.
    """
    s.ratio(base_width)
    rates: dict[str, NumberOf] = dict.fromkeys((*HIDDEN, "head"), lambda p: base_width / p.fan_in)
    return Rules(normal(1.0), by_spectrum, by_spectrum, by_spectrum, learning_rate=rates)


@scheme("paper:u-muP, arXiv 2407.17465, and the unit-scaling package")
def u_mup(s: Sizes, *, residual_mult: float = 1.0, residual_attn_ratio: float = 1.0) -> Rules:
    """Every weight N(1): the operations carry the scale; tau of every branch in `forward`, rates by
    fan and depth.

    Linear layers multiply by fan_in**-0.5, the head by 1 / fan_in, a branch joins as (x + tau f) /
    sqrt(1 + tau**2). Weight decay is independent of a weight's own learning rate. residual_mult:
    share of all branches against the embedding; residual_attn_ratio: of mixers against feed-forward
    layers.
    """

    def by_depth(p: Parameter) -> float:
        return 1.0 if p.layer is None else s.layers**-0.5

    def by_fan_and_depth(p: Parameter) -> float:
        return (p.fan_in * s.layers) ** -0.5

    return Rules(
        normal(1.0),
        learning_rate={
            "embedding": s.width**-0.5,
            "position": s.width**-0.5,
            "norm": by_depth,
            "norm_bias": by_depth,
            "bias": by_depth,
            "own": by_depth,
            **hidden(by_fan_and_depth),
        },
        weight_decay={
            "embedding": 1 / s.width**-0.5,
            "position": 1 / s.width**-0.5,
            **hidden(lambda p: 1 / by_fan_and_depth(p)),
        },
        forward=branch_scales(s, residual_mult, residual_attn_ratio),
        needs={"unit_scaled": True},
    )


def branch_scales(s: Sizes, mult: float, ratio: float) -> dict[str, float]:
    """tau of each branch, "mixer.0", "ffn.0", ...: alpha / sqrt(B / 2 + sum of alpha**2 of the
    branches before).

    alpha_ffn = mult sqrt(2 / (1 + ratio**2)), alpha_mixer = ratio alpha_ffn, B branches in all;
    where blocks have a mixer alone, all alphas are mult and B stands for B / 2.
    """
    ffn = mult * math.sqrt(2 / (1 + ratio**2))
    kinds = [("mixer", ratio * ffn), ("ffn", ffn)] if s.branches > 1 else [("mixer", mult)]
    scales = {}
    total = float(s.layers)
    for layer in range(s.layers):
        for kind, alpha in kinds:
            scales[f"{kind}.{layer}"] = alpha / math.sqrt(total)
            total += alpha**2
    return scales


# RWKV: its vectors (token shifts, decays, u, gains of the heads' norm) and low-rank maps are
# functions of channel and layer, see `rwkv_vectors`; every scheme leaves them as the official code
# has them. On an SSM the matrices alone act: B is the value, C_proj starts at zero, gate and up of
# the feed-forward layer are ffn.key.


RWKV_CODE = "code:BlinkDL/RWKV-LM, github.com/BlinkDL/RWKV-LM"
APPENDIX = "paper:Eagle and Finch, arXiv 2404.05892, Appendix I, as printed"


def official(
    vectors: str,
    embedding: float,
    matrix: DistributionOf,
    head: DistributionOf,
    roles: dict[Role, DistributionOf],
    twice: str | tuple[str, ...] = "",
    longest: float = 0.0,
) -> Rules:
    """Embedding U(embedding), output projections 0, all else as given.

    The model's own parameters whose name ends in `twice`, or one of these, are trained at twice the
    learning rate.
    """

    def own_rate(p: Parameter) -> float:
        return 2.0 if twice and p.name.endswith(twice) else 1.0

    return Rules(
        uniform(embedding),
        matrix,
        ZERO,
        head,
        roles,
        learning_rate={"own": own_rate},
        needs={"norm": "layer", "embedding_norm": True},
        vectors=vectors,
        longest=longest,
    )


def wide_head(s: Sizes) -> Distribution:
    """O(0.5 sqrt(V / d)), O(0.5) where V <= d."""
    return orthogonal(0.5 * math.sqrt(max(1.0, s.vocabulary / s.width)))


@scheme(f"{RWKV_CODE}, v5 and v6 since 2024-04-24; arXiv 2404.05892")
def rwkv_blinkdl(s: Sizes) -> Rules:
    """Today's code: embedding U(1e-4), matrices O(1), keys and gates O(0.1), outputs 0, head
    O(0.5 sqrt(V / d)), O(0.5) where V <= d; decays at twice the rate.
    """
    roles: dict[Role, DistributionOf] = {
        "key": orthogonal(0.1),
        "mixer_gate": orthogonal(0.1),
        "ffn_router": ZERO,
    }
    return official("rwkv_blinkdl", 1e-4, orthogonal(1.0), wide_head(s), roles, "time_decay")


@scheme(f"{RWKV_CODE}, RWKV-v7/train_temp at 118e451; arXiv 2503.14456")
def rwkv7_official(s: Sizes) -> Rules:
    """Goose: embedding U(1e-4), matrices O(1), keys O(0.1), outputs 0, head as in rwkv_blinkdl,
    low-rank maps 0 and O(0.1).

    Decays rise along the channels and zigzag in every head; w0, which they follow from, has twice
    the learning rate. Weight decay acts on matrices and the embedding alone.
    """
    roles: dict[Role, DistributionOf] = {"key": orthogonal(0.1)}
    return official("rwkv7_official", 1e-4, orthogonal(1.0), wide_head(s), roles, DECAYS_OF_GOOSE)


@scheme("paper:PoST, arXiv 2604.07658, and its code, github.com/SiLifen/PoST at a898663")
def rwkv7_post(s: Sizes, *, longest: float = 512, even: bool = True) -> Rules:
    """As rwkv7_official, with decays up to a time constant of `longest` bytes: w0 rises evenly over
    the channels of a layer, from logit(1 / (0.6065 longest)) to 1/2, and zigzags in every head.

    Shortest time constant 2.65 bytes, both without the zigzag. even: 0 lets w0 rise as in the
    official code, by a power of the channel. The paper takes the training context for `longest`,
    and does not double the learning rate of the zigzag, which it holds apart.
    """
    least, most = SPECTRUM
    if not least < longest <= most:
        raise ValueError(
            f"longest must be above {least:.3g} bytes and at most {math.floor(most)}, as the zigzag"
            f" of heads lengthens it to what a float32 decay holds, got {longest:g}"
        )
    ramp = "rwkv7_post" if even else "rwkv7_official"
    roles: dict[Role, DistributionOf] = {"key": orthogonal(0.1)}
    head = wide_head(s)
    return official(ramp, 1e-4, orthogonal(1.0), head, roles, DECAYS_OF_GOOSE, longest)


def as_in_code(s: Sizes, vectors: str, learning_rate: float) -> Rules:
    """The code that trained Eagle and Finch: matrices O(1), wider O(sqrt(fan_out / fan_in))."""

    def matrix(p: Parameter) -> Distribution:
        return orthogonal(math.sqrt(max(1.0, p.fan_out / p.fan_in)))

    return official(vectors, learning_rate, matrix, wide_head(s), {"ffn_router": ZERO})


@scheme(f"{RWKV_CODE} at 34eedfd, 2023-11, which trained Eagle")
def rwkv_eagle_code_2023(s: Sizes, *, learning_rate: float = 6e-4) -> Rules:
    """Embedding U(learning_rate), matrices O(1), wider ones O(sqrt(fan_out / fan_in)), outputs 0,
    head as in rwkv_blinkdl.

    learning_rate: the peak of the run; the released script builds its first weights with 1e-5.
    """
    return as_in_code(s, "rwkv_eagle_code_2023", learning_rate)


@scheme(f"{RWKV_CODE} at 62572c9, 2024-02, which trained Finch")
def rwkv_finch_code_2024_02(s: Sizes, *, learning_rate: float = 6e-4) -> Rules:
    """As rwkv_eagle_code_2023, with low-rank maps U(1e-4)."""
    return as_in_code(s, "rwkv_finch_code_2024_02", learning_rate)


def as_printed(vectors: str, learning_rate: float) -> Rules:
    """Appendix I: wider matrices O(fan_out / fan_in), others U(fan_in**-0.5), head O(0.5)."""

    def matrix(p: Parameter) -> Distribution:
        if p.fan_out > p.fan_in:
            return orthogonal(p.fan_out / p.fan_in)
        return uniform(p.fan_in**-0.5)

    return official(vectors, learning_rate, matrix, orthogonal(0.5), {"ffn_router": ZERO})


@scheme(f"{APPENDIX} for Eagle")
def rwkv_eagle_paper(s: Sizes, *, learning_rate: float = 6e-4) -> Rules:
    """Embedding U(learning_rate), wider matrices O(fan_out / fan_in), others U(fan_in**-0.5), head
    O(0.5), outputs 0.

    No version of the code does this. learning_rate: the peak of the run.
    """
    return as_printed("rwkv_eagle_paper", learning_rate)


@scheme(f"{APPENDIX} for Finch")
def rwkv_finch_paper(s: Sizes, *, learning_rate: float = 6e-4) -> Rules:
    """As rwkv_eagle_paper, with low-rank maps U(1e-4)."""
    return as_printed("rwkv_finch_paper", learning_rate)


@scheme("notes:the naive side of a published ablation of RWKV-6")
def rwkv_naive(s: Sizes) -> Rules:
    """Embedding N(1), tied to the head, matrices U(fan_in**-0.5), ffn.value Xavier with gain 0.5,
    RMSNorm.

    Weight decay acts on every parameter. Vectors and low-rank maps are those of today's official
    code: the ablation says nothing of them. On a model with a head of its own, that is N(1) as
    well.
    """
    return Rules(
        normal(1.0),
        fan_in(uniform),
        fan_in(uniform),
        roles={"ffn_out": xavier(uniform, 0.5 * math.sqrt(3))},
        weight_decay=dict.fromkeys(("norm", "norm_bias", "bias", "gate", "own"), 1.0),
        needs={"norm": "rms", "tied": True},
    )
