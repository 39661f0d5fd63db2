"""Initialisations of training frameworks, as their code does them."""

import math
from collections.abc import Callable
from typing import Any

from plkernel.models.init.distributions import ZERO, Distribution, cut, normal, rescaled, uniform
from plkernel.models.init.plan import (
    Fill,
    Number,
    Parameter,
    Rules,
    Sizes,
    add,
    fan_in_normal,
    fan_in_uniform,
    scheme,
    xavier_normal,
    xavier_uniform,
)

ROOT_2 = math.sqrt(2)
CEREBRAS = "code:Cerebras Model Zoo, github.com/Cerebras/modelzoo; heads are tied there by default"
FOUNDRY = "code:LLM Foundry (MPT), github.com/mosaicml/llm-foundry; heads are tied there"
LM_ENGINE = "code:lm-engine, github.com/open-lm-engine/lm-engine"
MEGATRON = "code:Megatron-LM, github.com/NVIDIA/Megatron-LM"
NANOTRON = "code:nanotron, github.com/huggingface/nanotron"
OLMO = "code:OLMo, github.com/allenai/OLMo"
TORCHTITAN = "code:torchtitan, github.com/pytorch/torchtitan"
TRANSFORMERS = "code:Hugging Face transformers, github.com/huggingface/transformers"

DEEP_NORMAL = "N(std) everywhere, output projections over sqrt(2 L)."
for source, name, std in (
    (FOUNDRY, "llm_foundry_baseline", 0.02),
    (LM_ENGINE, "lm_engine_normal", 0.02),
    (MEGATRON, "megatron_default", 0.02),
    (NANOTRON, "nanotron_random_init", 0.025),
    (TRANSFORMERS, "transformers_gpt2", 0.02),
):
    add(source, name, DEEP_NORMAL, lambda s, std=std: Rules(normal(std), output=normal(std / s.deep)))
for source, name in ((OLMO, "olmo_normal"), (TRANSFORMERS, "transformers_default")):
    add(source, name, "N(std) everywhere, whatever the depth.", lambda s, std=0.02: Rules(normal(std)))


def small(s: Sizes, share: float | None = None, **asks: Any) -> Rules:
    """N(sqrt(2 / (5 d))), Xavier's std of a matrix that widens by 4; outputs times `share`, or over sqrt(2 L)."""
    std = math.sqrt(2 / (5 * s.width))
    return Rules(normal(std), output=normal(std / s.deep if share is None else std * share), **asks)


add(
    CEREBRAS,
    "cerebras_default",
    "T(std, 2), output projections over sqrt(2 L), an untied head N(std).",
    lambda s, std=0.02: Rules(cut(std, 2), output=cut(std / s.deep, 2), head=normal(std)),
)


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

    Logits times logits_alpha / m, an untied head N(0.02). Feed-forward widths are in the proportion of this model.
    embedding_multiplier: 1 in the code, about 10 where it was tuned.
    """
    m = s.ratio(base_width)
    matrices = cut(std / math.sqrt(m), 2), cut(std / (math.sqrt(m) * s.deep), 2)
    rates = {"input": 1 / m, "output": 1 / m}
    forward = {"embedding": embedding_multiplier, "logits": logits_alpha / m}
    return Rules(cut(std, 2), *matrices, normal(0.02), learning_rate=rates, forward=forward)


def foundry(
    name: str, about: str, matrix: Callable[..., Callable[[Parameter], Distribution]], gain: float, source: str
) -> None:
    """`matrix` of a gain everywhere, fused matrices taken apart first; outputs over sqrt(2 L)."""

    def rules(s: Sizes, gain: float = gain) -> Rules:
        every = matrix(gain)
        return Rules(every, output=lambda p: every(p).times(1 / s.deep))

    about = f"{about}; output projections over sqrt(2 L)."
    add(f"{FOUNDRY} ({source})", f"llm_foundry_{name}", about, rules)


RELU, UNSET = "gain: sqrt(2) for ReLU", "init_gain must be set; default 0.0 gives all-zero weights"
EMBEDDING = "of an embedding d"
foundry("kaiming_normal", f"N(gain / sqrt(fan_in)), {EMBEDDING}", fan_in_normal, ROOT_2, f"MPT default; {RELU}")
foundry(
    "kaiming_uniform",
    f"U(gain sqrt(3 / fan_in)), {EMBEDDING}",
    lambda gain: fan_in_uniform(math.sqrt(3) * gain),
    ROOT_2,
    RELU,
)
foundry("xavier_normal", f"N(gain sqrt(2 / (fan_in + fan_out))), {EMBEDDING} and V", xavier_normal, 1.0, UNSET)
foundry("xavier_uniform", f"U(gain sqrt(6 / (fan_in + fan_out))), {EMBEDDING} and V", xavier_uniform, 1.0, UNSET)
add(
    FOUNDRY,
    "llm_foundry_small_init",
    "N(sqrt(2 / (5 d))) everywhere, whatever the inner width; output projections over sqrt(2 L).",
    lambda s: small(s, 1 / s.deep),
)
add(
    FOUNDRY,
    "llm_foundry_neox_init",
    "N(sqrt(2 / (5 d))) everywhere, output projections N(2 / (L sqrt(d))), which is more up to L = 3.",
    lambda s: small(s, 1 / (s.layers / math.sqrt(10))),
)
add(
    LM_ENGINE,
    "lm_engine_fan_in",
    "N(fan_in**-0.5), output projections over sqrt(2 L); embedding and head N(std).",
    lambda s, std=0.02: Rules(normal(std), fan_in_normal(), fan_in_normal((2 * s.layers) ** -0.5)),
)


@scheme(LM_ENGINE)
def lm_engine_mup(
    s: Sizes,
    *,
    std: float = 0.02,
    base_width: float = 256,
    embedding_multiplier: float = 1,
    residual_multiplier: float = 1,
) -> Rules:
    """muP as lm-engine has it: hidden matrices over sqrt(m), outputs over sqrt(2 L) besides, logits times 1/m.

    With params_group_method=mup: the rate over m for all of a block but norms and biases, decays and convolutions too,
    which then also get the weight decay they are spared otherwise.
    """
    m = s.ratio(base_width)
    head_norm = ".ln_x."  # norm of an RWKV's heads
    own: Number = lambda p: 1.0 if head_norm in p.name else 1 / m  # noqa: E731
    return Rules(
        normal(std),
        normal(std / math.sqrt(m)),
        normal(std / math.sqrt(2 * s.layers * m)),
        learning_rate={"input": 1 / m, "output": 1 / m, "own": own},
        weight_decay={"own": lambda p: float(head_norm not in p.name)},
        forward={"logits": 1 / m, "embedding": embedding_multiplier, "residual": residual_multiplier},
    )


@scheme("code:MaxText, github.com/AI-Hypercomputer/maxtext")
def maxtext(s: Sizes, *, tied: bool = False) -> Rules:
    """Mixer N(fan_in**-0.5), queries over sqrt(d_head) besides; feed-forward and head J(fan_in**-0.5); whatever depth.

    Embedding N(d**-0.5). tied: head and embedding are one matrix (logits_via_embedding), N(d**-0.5), and logits are
    divided by sqrt(d).
    """

    def dense(p: Parameter) -> Distribution:
        return rescaled(p.fan_in**-0.5)

    embedding, matrix, query = normal(s.width**-0.5), fan_in_normal(), normal((s.width * s.head_size) ** -0.5)
    return Rules(
        embedding,
        matrix,
        matrix,
        embedding if tied else rescaled(s.width**-0.5),
        {"query": query, "ffn_gate": dense, "ffn_up": dense, "ffn_router": dense, "ffn_out": dense},
        forward={"logits": s.width**-0.5} if tied else {},
    )


add(
    f"{MEGATRON} (is_hybrid_model)",
    "megatron_hybrid",
    "As megatron_default with sqrt(L) where L counts residual branches: for blocks of a mixer alone.",
    lambda s, std=0.02: Rules(normal(std), output=normal(std / math.sqrt(s.layers * s.branches))),
)


@scheme(f"{MEGATRON} (--init-method-xavier-uniform, as intended)")
def megatron_xavier_uniform(s: Sizes) -> Rules:
    """U(sqrt(6 / (fan in + fan out))) everywhere, of the matrices as they are stored: fused, where they are fused.

    The fans of an embedding are d and V.
    """
    return Rules(lambda p: uniform(math.sqrt(6 / (p.fan_in + p.part[1] * p.fan_out))))


@scheme(f"{MEGATRON} (use_mup)")
def megatron_mup(s: Sizes, *, std: float = 0.02, base_width: float = 256) -> Rules:
    """muP as Megatron has it: hidden matrices over sqrt(m), their Adam rate and eps over m, logits times 1/m."""
    m = s.ratio(base_width)
    hidden = {"input": 1 / m, "output": 1 / m}
    matrices = (normal(std / math.sqrt(m)), normal(std / math.sqrt(2 * s.layers * m)))
    return Rules(normal(std), *matrices, learning_rate=hidden, eps=hidden, forward={"logits": 1 / m})


@scheme(NANOTRON)
def nanotron_spectral_mup(s: Sizes) -> Rules:
    """Matrices, head too, N(fan_in**-0.5 min(1, sqrt(fan_out / fan_in))) at a rate of fan_out / fan_in; embedding N(1).

    The rates are those of the paper for SGD, which the code gives its Adam. Learning rates do not carry over from width
    to width: changes of activations in the blocks of our SSM grow as width**0.4 to width**0.7; `spectral` has the rule
    for Adam. Each part of a fused matrix is a matrix; nanotron counts their outputs together. It refuses biases; ours
    are 0.
    """

    def ratio(p: Parameter) -> float:
        return p.fan_out / p.fan_in

    def spectral(p: Parameter) -> Distribution:
        return normal(p.fan_in**-0.5 * min(1.0, math.sqrt(ratio(p))))

    rates: dict[str, Number] = {"input": ratio, "output": ratio, "head": ratio}
    return Rules(normal(1), spectral, spectral, spectral, learning_rate=rates)


add(
    OLMO,
    "olmo_mitchell",
    "T(fan_in**-0.5, 3); output projections of block l T((2 fan_in (l + 1))**-0.5, 3), fan_in the inner width.",
    lambda s, cutoff=3: Rules(
        cut(s.width**-0.5, cutoff), output=lambda p: cut((2 * p.fan_in * p.depth) ** -0.5, cutoff)
    ),
)


@scheme(OLMO)
def olmo_full_megatron(s: Sizes, *, std: float = 0.02, scale_embedding: bool = False) -> Rules:
    """T(std, 3), output projections over sqrt(2 L), head T(d**-0.5, 3).

    scale_embedding: the embedding has std sqrt(d) instead.
    """
    embedding = std * (math.sqrt(s.width) if scale_embedding else 1)
    return Rules(cut(embedding, 3), cut(std, 3), cut(std / s.deep, 3), cut(s.width**-0.5, 3))


# The truncated normals of torchtitan have bounds of +-2 in absolute terms, so that at a standard deviation of 0.02 they
# are plain normals; only the head is cut where it shows, at 3 deviations. A tied head would have filled the embedding.


def titan(s: Sizes, std: float, scaled: Fill) -> Rules:
    """Embedding N(1), head T(d**-0.5, 3), N(std), and `scaled` out of the mixer and for w2, w3 and the router."""
    return Rules(normal(1), normal(std), scaled, cut(s.width**-0.5, 3), {"ffn_up": scaled, "ffn_router": scaled})


@scheme(TORCHTITAN)
def torchtitan_gpt_oss(s: Sizes, *, std: float = 0.02) -> Rules:
    """GPT-OSS: every matrix of block l N(std / sqrt(2 (l + 1))), router too; head T(d**-0.5, 3).

    Its biases of experts and its attention sinks, which our models do not have, are drawn like the matrices.
    """
    block: Fill = lambda p: normal(std / math.sqrt(2 * p.depth))  # noqa: E731
    return Rules(normal(std), block, block, cut(s.width**-0.5, 3))


add(
    f"{TORCHTITAN} (Llama3/4, DeepSeekV3, Qwen3)",
    "torchtitan_llama",
    "Embedding N(1); N(std), and N(std / sqrt(2 (l + 1))) out of the mixer and for w2, w3 and the router.",
    lambda s, std=0.02: titan(s, std, lambda p: normal(std / math.sqrt(2 * p.depth))),
)
add(
    f"{TORCHTITAN} (before adbaa061, depth_init=False)",
    "torchtitan_depth_init_total",
    "As torchtitan_llama, with the depth L of the model in the place of l + 1.",
    lambda s, std=0.02: titan(s, std, normal(std / s.deep)),
)


@scheme(TRANSFORMERS)
def transformers_clip(s: Sizes, *, std: float = 0.02) -> Rules:
    """d**-0.5 with the depth on the way in: mixer inputs and ffn output over sqrt(2 L), ffn inputs over sqrt(2).

    The mixer's output has no depth factor. std: of the embedding.
    """
    flat = s.width**-0.5
    deep, up, out = normal(flat / s.deep), normal(flat / math.sqrt(2)), normal(flat)
    return Rules(normal(std), deep, out, out, {"ffn_gate": up, "ffn_up": up, "ffn_router": up, "ffn_out": deep})


add(
    TRANSFORMERS,
    "transformers_modernbert",
    "T(std, 2), output projections and head over sqrt(2 L). Its heads of classification are T(d**-0.5, 2).",
    lambda s, std=0.02: Rules(cut(std, 2), None, cut(std / s.deep, 2), cut(std / s.deep, 2)),
)


@scheme(TRANSFORMERS)
def transformers_t5(s: Sizes, *, tied: bool = True) -> Rules:
    """Embedding and head N(1), matrices N(fan_in**-0.5), queries over sqrt(d_head) besides, logits times d**-0.5.

    The dot product has no 1/sqrt(d_head) of its own: what reads the memory carries it. In an SSM that is C, whose
    d_state**-0.5 is already its fan_in**-0.5. tied: the logits are scaled, as in the code where head and embedding are
    one matrix; false for its models with a head of their own.
    """
    matrix, query = fan_in_normal(), normal((s.width * s.head_size) ** -0.5)
    forward = {"logits": s.width**-0.5} if tied else {}
    return Rules(normal(1), matrix, matrix, roles={"query": query}, forward=forward)


add(
    TRANSFORMERS,
    "transformers_gemma",
    "N(std) everywhere, the embedding's output times sqrt(d), norms (1 + w) x with w = 0; the head is tied there.",
    lambda s, std=0.02: Rules(
        normal(std), norm=ZERO, forward={"embedding": math.sqrt(s.width)}, needs={"norm_offset": True}
    ),
)


@scheme(TRANSFORMERS)
def transformers_mamba(s: Sizes, *, std: float = 0.1, rescale: bool = False) -> Rules:
    """N(0.1), output projections U(fan_in**-0.5); the head is tied there.

    rescale: divide the output projections by sqrt(L), L counting residual branches (rescale_prenorm_residual).
    """
    return Rules(normal(std), output=fan_in_uniform((s.layers * s.branches) ** -0.5 if rescale else 1.0))
