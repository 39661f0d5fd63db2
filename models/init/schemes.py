"""Initialisations by name: of training frameworks as their code does them, of papers and reports,
and of RWKV.

`add` takes a scheme that is one line, the decorator `scheme` one that needs a function. The first
argument of their functions are the sizes `s`, all others are the scheme's free constants.
"""

import math
from collections.abc import Callable
from typing import Any, cast

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
from plkernel.models.init.plan import Fill, Number, Parameter, Role, Rules, Sizes, add, scheme

By = Callable[[Parameter], Distribution]
Draw = Callable[[float], Distribution]
CEREBRAS = "code:Cerebras Model Zoo, github.com/Cerebras/modelzoo; heads are tied there by default"
FOUNDRY = "code:LLM Foundry (MPT), github.com/mosaicml/llm-foundry; heads are tied there"
LM_ENGINE = "code:lm-engine, github.com/open-lm-engine/lm-engine"
MEGATRON = "code:Megatron-LM, github.com/NVIDIA/Megatron-LM"
NANOTRON = "code:nanotron, github.com/huggingface/nanotron"
OLMO = "code:OLMo, github.com/allenai/OLMo"
TORCHTITAN = "code:torchtitan, github.com/pytorch/torchtitan"
TRANSFORMERS = "code:Hugging Face transformers, github.com/huggingface/transformers"
STD = 0.0625
HIDDEN = ("input", "output")
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
    return Rules(normal(std), output=normal(std / s.deep if share is None else std * share), **asks)


def hidden(number: Number) -> dict[str, Number]:
    """The same multiplier for all matrices of the blocks."""
    return dict.fromkeys(HIDDEN, number)


# One number or two.

for source, name, std in (
    (FOUNDRY, "llm_foundry_baseline", 0.02),
    (LM_ENGINE, "lm_engine_normal", 0.02),
    (MEGATRON, "megatron_default", 0.02),
    (NANOTRON, "nanotron_random_init", 0.025),
    (TRANSFORMERS, "transformers_gpt2", 0.02),
):
    about = "N(std) everywhere, output projections over sqrt(2 L)."
    add(source, name, about, lambda s, std=std: Rules(normal(std), output=normal(std / s.deep)))
for source, name in ((OLMO, "olmo_normal"), (TRANSFORMERS, "transformers_default")):
    add(
        source,
        name,
        "N(std) everywhere, whatever the depth.",
        lambda s, std=0.02: Rules(normal(std)),
    )
add(
    CEREBRAS,
    "cerebras_default",
    "T(std, 2), output projections over sqrt(2 L), an untied head N(std).",
    lambda s, std=0.02: Rules(cut(std, 2), output=cut(std / s.deep, 2), head=normal(std)),
)
add(
    TRANSFORMERS,
    "transformers_modernbert",
    "T(std, 2), output projections and head over sqrt(2 L). Its heads of classification are"
    " T(d**-0.5, 2).",
    lambda s, std=0.02: Rules(cut(std, 2), None, cut(std / s.deep, 2), cut(std / s.deep, 2)),
)
add(
    f"{MEGATRON} (is_hybrid_model)",
    "megatron_hybrid",
    "As megatron_default with sqrt(L) where L counts residual branches: for blocks of a mixer"
    " alone.",
    lambda s, std=0.02: Rules(normal(std), output=normal(std / math.sqrt(s.layers * s.branches))),
)
add(
    OLMO,
    "olmo_mitchell",
    "T(fan_in**-0.5, 3); output projections of block l T((2 fan_in (l + 1))**-0.5, 3), fan_in the"
    " inner width.",
    lambda s, cutoff=3: Rules(
        cut(s.width**-0.5, cutoff), output=lambda p: cut((2 * p.fan_in * p.depth) ** -0.5, cutoff)
    ),
)
add(
    "paper:GPT-2",
    "gpt2",
    "N(0.02), output projections over sqrt(2 L), positions N(0.01); the head is tied, or drawn like"
    " the embedding.",
    lambda s, std=0.02, position_std=0.01: Rules(
        normal(std), output=normal(std / s.deep), roles={"position": normal(position_std)}
    ),
)
add(
    "tech report:DeepSeek-V2 and V3",
    "deepseek_v3",
    "N(0.006) everywhere; width_aware: N(0.5 / sqrt(d)), which is 0.006 at the width of V3, 7168.",
    lambda s, std=0.006, width_aware=False: Rules(
        normal(0.5 / math.sqrt(s.width) if width_aware else std)
    ),
)
add(
    "paper:Spike No More, arXiv 2312.16903",
    "spike_scaled_embed",
    "N(sqrt(2 / (5 d))), output projections over sqrt(2 L), and the embedding's output times"
    " sqrt(d).",
    lambda s: small(s, forward={"embedding": math.sqrt(s.width)}),
)
add(
    TRANSFORMERS,
    "transformers_gemma",
    "N(std) everywhere, the embedding's output times sqrt(d), norms (1 + w) x with w = 0; the head"
    " is tied there.",
    lambda s, std=0.02: Rules(
        normal(std),
        norm=ZERO,
        forward={"embedding": math.sqrt(s.width)},
        needs={"norm_offset": True},
    ),
)
add(
    f"{MEGATRON} (--init-method-xavier-uniform, as intended)",
    "megatron_xavier_uniform",
    "U(sqrt(6 / (fan in + fan out))) everywhere, of the matrices as they are stored: fused, where"
    " they are fused.\n\nThe fans of an embedding are d and V.",
    lambda s: Rules(lambda p: uniform(math.sqrt(6 / (p.fan_in + p.part[1] * p.fan_out)))),
)
add(
    LM_ENGINE,
    "lm_engine_fan_in",
    "N(fan_in**-0.5), output projections over sqrt(2 L); embedding and head N(std).",
    lambda s, std=0.02: Rules(normal(std), fan_in(normal), fan_in(normal, (2 * s.layers) ** -0.5)),
)
add(
    FOUNDRY,
    "llm_foundry_small_init",
    "N(sqrt(2 / (5 d))) everywhere, whatever the inner width; output projections over sqrt(2 L).",
    lambda s: small(s, 1 / s.deep),
)
add(
    FOUNDRY,
    "llm_foundry_neox_init",
    "N(sqrt(2 / (5 d))) everywhere, output projections N(2 / (L sqrt(d))), which is more up to L"
    " = 3.",
    lambda s: small(s, 1 / (s.layers / math.sqrt(10))),
)


def foundry(
    name: str, about: str, fans: Callable[[Draw, float], By], draw: Draw, gain: float, source: str
) -> None:
    """Add `draw` by fans everywhere, fused matrices taken apart first; output projections over
    sqrt(2 L).
    """

    def rules(s: Sizes, gain: float = gain) -> Rules:
        every = fans(draw, (math.sqrt(3) if draw is uniform else 1.0) * gain)
        return Rules(every, output=lambda p: every(p).times(1 / s.deep))

    about = f"{about}; output projections over sqrt(2 L)."
    add(f"{FOUNDRY} ({source})", f"llm_foundry_{name}", about, rules)


RELU, UNSET = "gain: sqrt(2) for ReLU", "init_gain must be set; default 0.0 gives all-zero weights"
EMBEDDING, ROOT_2 = "of an embedding d", math.sqrt(2)
foundry(
    "kaiming_normal",
    f"N(gain / sqrt(fan_in)), {EMBEDDING}",
    fan_in,
    normal,
    ROOT_2,
    f"MPT default; {RELU}",
)
foundry("kaiming_uniform", f"U(gain sqrt(3 / fan_in)), {EMBEDDING}", fan_in, uniform, ROOT_2, RELU)
foundry(
    "xavier_normal",
    f"N(gain sqrt(2 / (fan_in + fan_out))), {EMBEDDING} and V",
    xavier,
    normal,
    1.0,
    UNSET,
)
foundry(
    "xavier_uniform",
    f"U(gain sqrt(6 / (fan_in + fan_out))), {EMBEDDING} and V",
    xavier,
    uniform,
    1.0,
    UNSET,
)


# Frameworks.


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
    matrices = cut(std / math.sqrt(m), 2), cut(std / (math.sqrt(m) * s.deep), 2)
    forward = {"embedding": embedding_multiplier, "logits": logits_alpha / m}
    return Rules(cut(std, 2), *matrices, normal(0.02), learning_rate=hidden(1 / m), forward=forward)


@scheme("code:MaxText, github.com/AI-Hypercomputer/maxtext")
def maxtext(s: Sizes, *, tied: bool = False) -> Rules:
    """Mixer N(fan_in**-0.5), queries over sqrt(d_head) besides; feed-forward and head
    J(fan_in**-0.5); whatever depth.

    Embedding N(d**-0.5). tied: head and embedding are one matrix (logits_via_embedding),
    N(d**-0.5), and logits are divided by sqrt(d).
    """
    embedding, matrix, dense = normal(s.width**-0.5), fan_in(normal), fan_in(rescaled)
    roles: dict[Role, Fill] = {
        "query": normal((s.width * s.head_size) ** -0.5),
        **dict.fromkeys(FFN, dense),
    }
    head, forward = (
        (embedding, {"logits": s.width**-0.5}) if tied else (rescaled(s.width**-0.5), {})
    )
    return Rules(embedding, matrix, matrix, head, roles, forward=forward)


@scheme(f"{MEGATRON} (use_mup)")
def megatron_mup(s: Sizes, *, std: float = 0.02, base_width: float = 256) -> Rules:
    """muP as Megatron has it: hidden matrices over sqrt(m), their Adam rate and eps over m, logits
    times 1/m.
    """
    m = s.ratio(base_width)
    matrices, rates = (
        (normal(std / math.sqrt(m)), normal(std / math.sqrt(2 * s.layers * m))),
        hidden(1 / m),
    )
    return Rules(normal(std), *matrices, learning_rate=rates, eps=rates, forward={"logits": 1 / m})


@scheme(NANOTRON)
def nanotron_spectral_mup(s: Sizes) -> Rules:
    """Matrices, head too, N(fan_in**-0.5 min(1, sqrt(fan_out / fan_in))) at a rate of fan_out /
    fan_in; embedding N(1).

    The rates are those of the paper for SGD, which the code gives its Adam. Learning rates do not
    carry over from width to width: changes of activations in the blocks of our SSM grow as
    width**0.4 to width**0.7; `spectral` has the rule for Adam. Each part of a fused matrix is a
    matrix; nanotron counts their outputs together. It refuses biases; ours are 0.
    """
    rates: dict[str, Number] = dict.fromkeys((*HIDDEN, "head"), lambda p: p.fan_out / p.fan_in)
    return Rules(normal(1), by_spectrum, by_spectrum, by_spectrum, learning_rate=rates)


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
    scaled: Fill = (
        (lambda p: normal(std / math.sqrt(2 * p.depth))) if depth_init else normal(std / s.deep)
    )
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
    block: Fill = lambda p: normal(std / math.sqrt(2 * p.depth))  # noqa: E731
    return Rules(normal(std), block, block, cut(s.width**-0.5, 3))


@scheme(TRANSFORMERS)
def transformers_clip(s: Sizes, *, std: float = 0.02) -> Rules:
    """d**-0.5 with the depth on the way in: mixer inputs and ffn output over sqrt(2 L), ffn inputs
    over sqrt(2).

    The mixer's output has no depth factor. std: of the embedding.
    """
    flat = s.width**-0.5
    deep, up, out = normal(flat / s.deep), normal(flat / math.sqrt(2)), normal(flat)
    return Rules(
        normal(std),
        deep,
        out,
        out,
        {"ffn_gate": up, "ffn_up": up, "ffn_router": up, "ffn_out": deep},
    )


@scheme(TRANSFORMERS)
def transformers_t5(s: Sizes, *, tied: bool = True) -> Rules:
    """Embedding and head N(1), matrices N(fan_in**-0.5), queries over sqrt(d_head) besides, logits
    times d**-0.5.

    The dot product has no 1/sqrt(d_head) of its own: what reads the memory carries it. In an SSM
    that is C, whose d_state**-0.5 is already its fan_in**-0.5. tied: the logits are scaled, as in
    the code where head and embedding are one matrix; false for its models with a head of their own.
    """
    matrix, query = fan_in(normal), normal((s.width * s.head_size) ** -0.5)
    forward = {"logits": s.width**-0.5} if tied else {}
    return Rules(normal(1), matrix, matrix, roles={"query": query}, forward=forward)


@scheme(TRANSFORMERS)
def transformers_mamba(s: Sizes, *, std: float = 0.1, rescale: bool = False) -> Rules:
    """N(0.1), output projections U(fan_in**-0.5); the head is tied there.

    rescale: divide the output projections by sqrt(L), L counting residual branches
    (rescale_prenorm_residual).
    """
    return Rules(
        normal(std), output=fan_in(uniform, (s.layers * s.branches) ** -0.5 if rescale else 1.0)
    )


# Papers and reports.


@scheme(
    "paper:the standard parametrisation of arXiv 2203.03466; torch.nn.Linear and torch.nn.Embedding"
)
def sp_torch_default(s: Sizes, *, normal_draws: bool = False) -> Rules:
    """PyTorch's defaults: embedding N(1), matrices and biases U(fan_in**-0.5).

    normal_draws: the standard parametrisation as papers write it, embedding N(d**-0.5), matrices
    N(fan_in**-0.5), biases 0.
    """
    linear = fan_in(normal if normal_draws else uniform)
    if normal_draws:
        return Rules(normal(s.width**-0.5), linear, linear, linear)
    return Rules(normal(1.0), linear, linear, linear, bias=linear)


@scheme("paper:Trinity")
def trinity(s: Sizes) -> Rules:
    """T(0.5 / sqrt(d), 3) everywhere, embedding output times sqrt(d), gain L**-0.5 in the norm
    after every branch.
    """
    return Rules(
        cut(0.5 / math.sqrt(s.width), 3),
        norm=lambda p: (
            constant(s.layers**-0.5) if "post" in p.name else ONE
        ),  # as in blocks.0.join1.post_norm.weight
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
    needs = {"placement": "post", "residual": (2 * s.layers) ** 0.25}
    roles: dict[Role, Fill] = {"value": scaled, "ffn_gate": scaled, "ffn_up": scaled}
    return Rules(xavier(normal), output=scaled, roles=roles, needs=needs)


def mup_rates(m: float, head: float) -> dict[str, Number]:
    """Learning rates of Adam, which moves every entry by about its rate: 1 / m where a sum over the
    width follows.

    The first half of a low-rank pair is like a head without a multiplier; the tables' heads differ.
    """
    first = ("_w1", ".w1", ".a1", ".v1", ".g1")
    return {
        **hidden(1 / m),
        "head": head,
        "own": lambda p: 1 / m if p.name.endswith(first) else 1.0,
    }


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
    a square matrix at any width. zero_readout: the head and the queries start at zero, which the
    paper advises. The first half of a low-rank pair goes from a growing to a fixed width, as a head
    does, and has no multiplier of its own: it is trained at 1 / m. uniform_draws: what the
    package's set_base_shapes makes of PyTorch's own draws: hidden U(fan_in**-0.5), head U(sqrt(m /
    fan_in)); std is then not used.
    """
    m = s.ratio(base_width)
    if uniform_draws and std != STD:
        raise ValueError(
            f"std {std:g} does not go with uniform_draws, whose bounds follow from the fans: leave"
            " it out"
        )
    matrix: Fill = fan_in(uniform) if uniform_draws else normal(std / math.sqrt(m))
    head: Fill = fan_in(uniform, math.sqrt(m)) if uniform_draws else normal(std)
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

    An update, too, has this norm. Adam moves every entry by about its rate, so the norm is rate
    sqrt(fan_in fan_out), which gives 1 / fan_in; base_width only makes the rate of a matrix of that
    width 1. The embedding, N(1), and vectors have a fan_in of 1 and keep the rate. Weight decay is
    as given, as in nanotron's code of this parametrisation: AdamW multiplies it by a weight's rate,
    so that the wider a matrix is, the less a step shrinks it. In mup_table8 that does not depend on
    the width.
    """
    s.ratio(base_width)
    rates: dict[str, Number] = dict.fromkeys((*HIDDEN, "head"), lambda p: base_width / p.fan_in)
    return Rules(normal(1.0), by_spectrum, by_spectrum, by_spectrum, learning_rate=rates)


@scheme("paper:u-muP, arXiv 2407.17465, and the unit-scaling package")
def u_mup(s: Sizes, *, residual_mult: float = 1.0, residual_attn_ratio: float = 1.0) -> Rules:
    """Every weight N(1): the operations carry the scale; tau of every branch in `forward`, rates by
    fan and depth.

    Linear layers multiply by fan_in**-0.5, the head by 1 / fan_in, a branch joins as (x + tau f) /
    sqrt(1 + tau**2). Weight decay is independent of a weight's own rate. residual_mult: share of
    all branches against the embedding; residual_attn_ratio: of mixers against feed-forward layers.
    """
    ends, vectors = ("embedding", "position"), ("norm", "norm_bias", "bias", "own")
    by_depth: Number = lambda p: 1.0 if p.layer is None else s.layers**-0.5  # noqa: E731
    return Rules(
        normal(1.0),
        learning_rate={
            **dict.fromkeys(ends, s.width**-0.5),
            **dict.fromkeys(vectors, by_depth),
            **hidden(lambda p: (p.fan_in * s.layers) ** -0.5),
        },
        weight_decay={
            **dict.fromkeys(ends, 1 / s.width**-0.5),
            **hidden(lambda p: 1 / (p.fan_in * s.layers) ** -0.5),
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
    scales, total = {}, float(s.layers)
    for layer in range(s.layers):
        for kind, alpha in kinds:
            scales[f"{kind}.{layer}"] = alpha / math.sqrt(total)
            total += alpha**2
    return scales


# RWKV: its vectors (token shifts, decays, u, gains of the heads' norm) and low-rank maps are
# functions of channel and layer, see `distributions`; every scheme leaves them as the official code
# has them. On an SSM the matrices alone act: B is the value, C_proj starts at zero, gate and up of
# the feed-forward layer are ffn.key.


def official(s: Sizes, twice: str, **roles: Distribution) -> Rules:
    """Embedding U(1e-4), matrices O(1), keys O(0.1), outputs 0, head O(0.5 sqrt(V / d)), O(0.5)
    where V <= d.

    The model's own parameters whose name ends in `twice` are trained at twice the rate.
    """
    return Rules(
        uniform(1e-4),
        orthogonal(1.0),
        ZERO,
        orthogonal(0.5 * math.sqrt(max(1.0, s.vocabulary / s.width))),
        roles=cast(dict[Role, Fill], {"key": orthogonal(0.1), **roles}),
        learning_rate={"own": lambda p: 2.0 if p.name.endswith(twice) else 1.0},
        needs={"norm": "layer", "embedding_norm": True},
    )


@scheme("code:BlinkDL/RWKV-LM, v5 and v6 since 2024-04-24; arXiv 2404.05892")
def rwkv_blinkdl(s: Sizes) -> Rules:
    """Today's code: embedding U(1e-4), matrices O(1), keys and gates O(0.1), outputs 0; decays at
    twice the rate.
    """
    return official(s, "time_decay", mixer_gate=orthogonal(0.1), ffn_router=ZERO)


@scheme("code:BlinkDL/RWKV-LM, RWKV-v7/train_temp at 118e451; arXiv 2503.14456")
def rwkv7_official(s: Sizes) -> Rules:
    """Goose: embedding U(1e-4), matrices O(1), keys O(0.1), outputs 0, low-rank maps 0 and O(0.1).

    Decays rise along the channels and zigzag in every head; w0, which they follow from, has twice
    the rate. Weight decay acts on matrices and the embedding alone.
    """
    return official(s, ".w0")


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
        weight_decay=dict.fromkeys(("norm", "norm_bias", "bias", "own"), 1.0),
        needs={"norm": "rms", "tied": True},
    )
