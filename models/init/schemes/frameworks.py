"""Initialisations of training frameworks, as their code does them."""

import math
from collections.abc import Callable

from plkernel.models.init.distributions import ZERO, Distribution, cut, normal, rescaled, uniform
from plkernel.models.init.plan import (
    Number,
    Parameter,
    Rules,
    Sizes,
    fan_in_normal,
    fan_in_uniform,
    scheme,
    xavier_normal,
    xavier_uniform,
)

Register = Callable[[Callable[..., Rules]], Callable[..., Rules]]
Fans = Callable[[Parameter], Distribution]


def framework(name: str, about: str) -> Callable[..., Register]:
    """The decorator of one framework's schemes; called with what the source says beside its name."""
    return lambda detail="": scheme(f"code:{name}{detail}", about)


def deep_normal(s: Sizes, std: float) -> Rules:
    """N(std), output projections over sqrt(2 L)."""
    return Rules(normal(std), output=normal(std / s.deep))


cerebras = framework(
    "Cerebras",
    "Cerebras Model Zoo: https://github.com/Cerebras/modelzoo. Heads are tied there by default; one of its own is N.",
)


@cerebras()
def cerebras_default(s: Sizes, *, std: float = 0.02) -> Rules:
    """T(std, 2), output projections over sqrt(2 L), an untied head N(std)."""
    return Rules(cut(std, 2), output=cut(std / s.deep, 2), head=normal(std))


@cerebras()
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
    m = s.ratio(base_width)
    if base_feed_forward < 0:
        raise ValueError(f"base_feed_forward must be positive, or 0 for m_ff = m, got {base_feed_forward}")

    def m_ff(p: Parameter) -> float:
        return p.fan_in / base_feed_forward if base_feed_forward else m

    rates: dict[str, Number] = {"input": 1 / m, "output": 1 / m, "ffn_out": lambda p: 1 / m_ff(p)}
    return Rules(
        cut(std, 2),
        cut(std / math.sqrt(m), 2),
        cut(std / (math.sqrt(m) * s.deep), 2),
        normal(head_std),
        {"ffn_out": lambda p: cut(std / (math.sqrt(m_ff(p)) * s.deep), 2)},
        learning_rate=rates,
        forward={"embedding": embedding_multiplier, "logits": logits_alpha / m},
    )


foundry = framework("LLM Foundry", "LLM Foundry (MPT): https://github.com/mosaicml/llm-foundry. Heads are tied there.")
INIT_GAIN = " (init_gain must be set; default 0.0 gives all-zero weights)"


def over_depth(s: Sizes, matrix: Fans, divisor: float = 0) -> Rules:
    """`matrix` everywhere, fused matrices taken apart first; outputs over `divisor`, or sqrt(2 L) if it is 0."""
    share = 1 / (divisor or s.deep)
    return Rules(matrix, output=lambda p: matrix(p).times(share))


@foundry()
def llm_foundry_baseline(
    s: Sizes, *, std: float = 0.02, embedding_std: float = 0, embedding_bound: float = 0, divisor: float = 0
) -> Rules:
    """N(std) everywhere, output projections over sqrt(2 L).

    embedding_std, embedding_bound: N or U of this for embedding and head instead, the first before the second; 0 is
    neither. divisor: of the output projections, 0 for sqrt(2 L), 1 for none (init_div_is_residual).
    """
    ends = uniform(embedding_bound) if embedding_bound and not embedding_std else normal(embedding_std or std)
    return Rules(ends, normal(std), normal(std / (divisor or s.deep)))


@foundry()
def llm_foundry_small_init(s: Sizes) -> Rules:
    """N(sqrt(2 / (5 d))) everywhere, whatever the inner width; output projections over sqrt(2 L)."""
    return over_depth(s, lambda p: normal(math.sqrt(2 / (5 * s.width))))


@foundry()
def llm_foundry_neox_init(s: Sizes) -> Rules:
    """N(sqrt(2 / (5 d))) everywhere, output projections N(2 / (L sqrt(d))), which is more up to L = 3."""
    return over_depth(s, lambda p: normal(math.sqrt(2 / (5 * s.width))), s.layers / math.sqrt(10))


@foundry(" (MPT default: fan_in, relu)")
def llm_foundry_kaiming_normal(s: Sizes, *, gain: float = math.sqrt(2)) -> Rules:
    """N(gain / sqrt(fan_in)), of an embedding d; output projections over sqrt(2 L). gain: sqrt(2) for ReLU."""
    return over_depth(s, fan_in_normal(gain))


@foundry()
def llm_foundry_kaiming_uniform(s: Sizes, *, gain: float = math.sqrt(2)) -> Rules:
    """U(gain sqrt(3 / fan_in)), of an embedding d; output projections over sqrt(2 L). gain: sqrt(2) for ReLU."""
    return over_depth(s, fan_in_uniform(math.sqrt(3) * gain))


@foundry(INIT_GAIN)
def llm_foundry_xavier_normal(s: Sizes, *, gain: float = 1) -> Rules:
    """N(gain sqrt(2 / (fan_in + fan_out))), of an embedding d and V; output projections over sqrt(2 L)."""
    return over_depth(s, xavier_normal(gain))


@foundry(INIT_GAIN)
def llm_foundry_xavier_uniform(s: Sizes, *, gain: float = 1) -> Rules:
    """U(gain sqrt(6 / (fan_in + fan_out))), of an embedding d and V; output projections over sqrt(2 L)."""
    return over_depth(s, xavier_uniform(gain))


lm_engine = framework("lm-engine", "lm-engine: https://github.com/open-lm-engine/lm-engine.")


@lm_engine()
def lm_engine_normal(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, output projections over sqrt(2 L)."""
    return deep_normal(s, std)


@lm_engine()
def lm_engine_fan_in(s: Sizes, *, std: float = 0.02, fan_in_embedding: bool = False) -> Rules:
    """N(fan_in**-0.5), output projections over sqrt(2 L); embedding and head N(std).

    fan_in_embedding: N(d**-0.5) for the embedding (embedding_init_method=fan_in), which does not reach the head.
    """
    embedding = normal(s.width**-0.5 if fan_in_embedding else std)
    return Rules(embedding, fan_in_normal(), fan_in_normal((2 * s.layers) ** -0.5), normal(std))


@lm_engine()
def lm_engine_mup(
    s: Sizes,
    *,
    std: float = 0.02,
    base_width: float = 256,
    embedding_multiplier: float = 1,
    residual_multiplier: float = 1,
    mup_groups: bool = True,
) -> Rules:
    """muP as lm-engine has it: hidden matrices over sqrt(m), outputs over sqrt(2 L) besides, logits times 1/m.

    mup_groups (params_group_method=mup): the rate over m for all of a block but norms and biases, decays and
    convolutions too, which then also get the weight decay they are spared otherwise.
    """
    m = s.ratio(base_width)
    head_norm = ".ln_x."  # norm of an RWKV's heads
    rates: dict[str, Number] = {
        "input": 1 / m,
        "output": 1 / m,
        "own": lambda p: 1.0 if head_norm in p.name else 1 / m,
    }
    return Rules(
        normal(std),
        normal(std / math.sqrt(m)),
        normal(std / math.sqrt(2 * s.layers * m)),
        learning_rate=rates if mup_groups else {},
        weight_decay={"own": lambda p: float(head_norm not in p.name)} if mup_groups else {},
        forward={"logits": 1 / m, "embedding": embedding_multiplier, "residual": residual_multiplier},
    )


@framework("MaxText", "MaxText: https://github.com/AI-Hypercomputer/maxtext.")()
def maxtext(s: Sizes, *, scale: float = 1, tied: bool = False) -> Rules:
    """Mixer N(fan_in**-0.5), queries over sqrt(d_head) besides; feed-forward and head J(fan_in**-0.5); whatever depth.

    Embedding N(d**-0.5). scale: multiplies the VARIANCE of the feed-forward matrices (dense_init_scale). tied: head and
    embedding are one matrix (logits_via_embedding), N(d**-0.5), and logits are divided by sqrt(d).
    """

    def dense(p: Parameter) -> Distribution:
        return rescaled(math.sqrt(scale / p.fan_in))

    embedding, head = normal(s.width**-0.5), rescaled(s.width**-0.5)
    query = normal((s.width * s.head_size) ** -0.5)
    return Rules(
        embedding,
        fan_in_normal(),
        fan_in_normal(),
        embedding if tied else head,
        {"query": query, "ffn_gate": dense, "ffn_up": dense, "ffn_router": dense, "ffn_out": dense},
        forward={"logits": s.width**-0.5} if tied else {},
    )


megatron = framework("Megatron-LM", "Megatron-LM: https://github.com/NVIDIA/Megatron-LM.")


@megatron()
def megatron_default(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, output projections over sqrt(2 L)."""
    return deep_normal(s, std)


@megatron(" (is_hybrid_model)")
def megatron_hybrid(s: Sizes, *, std: float = 0.02) -> Rules:
    """As megatron_default with sqrt(L) where L counts residual branches: for blocks of a mixer alone."""
    return Rules(normal(std), output=normal(std / math.sqrt(s.layers * s.branches)))


@megatron(" (--init-method-xavier-uniform, as intended)")
def megatron_xavier_uniform(s: Sizes) -> Rules:
    """U(sqrt(6 / (fan in + fan out))) everywhere, of the matrices as they are stored: fused, where they are fused.

    The fans of an embedding are d and V.
    """
    return Rules(lambda p: uniform(math.sqrt(6 / (p.fan_in + p.part[1] * p.fan_out))))


@megatron(" (use_mup)")
def megatron_mup(s: Sizes, *, std: float = 0.02, base_width: float = 256) -> Rules:
    """muP as Megatron has it: hidden matrices over sqrt(m), their Adam rate and eps over m, logits times 1/m."""
    m = s.ratio(base_width)
    hidden = {"input": 1 / m, "output": 1 / m}
    matrices = (normal(std / math.sqrt(m)), normal(std / math.sqrt(2 * s.layers * m)))
    return Rules(normal(std), *matrices, learning_rate=hidden, eps=hidden, forward={"logits": 1 / m})


nanotron = framework("nanotron", "nanotron: https://github.com/huggingface/nanotron.")


@nanotron()
def nanotron_random_init(s: Sizes, *, std: float = 0.025, depth: bool = True) -> Rules:
    """N(0.025) everywhere, output projections over sqrt(2 L). depth: false leaves that out (scaling method NONE)."""
    return deep_normal(s, std) if depth else Rules(normal(std))


@nanotron()
def nanotron_spectral_mup(s: Sizes, *, fused: bool = False) -> Rules:
    """Matrices, head too, N(fan_in**-0.5 min(1, sqrt(fan_out / fan_in))) at a rate of fan_out / fan_in; embedding N(1).

    The rates are those of the paper for SGD, which the code gives its Adam. Learning rates do not carry over from width
    to width: changes of activations in the blocks of our SSM grow as width**0.4 to width**0.7; `spectral` has the rule
    for Adam. fused: count the outputs of a fused matrix together, as nanotron does; otherwise each part is a matrix.
    nanotron refuses biases here; ours are 0.
    """

    def ratio(p: Parameter) -> float:
        return p.fan_out * (p.part[1] if fused else 1) / p.fan_in

    def spectral(p: Parameter) -> Distribution:
        return normal(p.fan_in**-0.5 * min(1.0, math.sqrt(ratio(p))))

    rates: dict[str, Number] = {"input": ratio, "output": ratio, "head": ratio}
    return Rules(normal(1), spectral, spectral, spectral, learning_rate=rates)


olmo = framework("OLMo", "OLMo: https://github.com/allenai/OLMo.")


@olmo()
def olmo_normal(s: Sizes, *, std: float = 0.02, embedding_std: float = 0, cutoff: float = 0) -> Rules:
    """N(std) everywhere, whatever the depth.

    embedding_std: another one for the embedding, 0 for the same. cutoff: draw T(std, cutoff) instead; 0 cuts nowhere.
    """
    ends, matrices = (cut(one, cutoff) if cutoff else normal(one) for one in (embedding_std or std, std))
    return Rules(ends, matrices, matrices, matrices)


@olmo()
def olmo_mitchell(s: Sizes, *, cutoff: float = 3) -> Rules:
    """T(fan_in**-0.5, 3); output projections of block l T((2 fan_in (l + 1))**-0.5, 3), fan_in the inner width."""
    return Rules(cut(s.width**-0.5, cutoff), output=lambda p: cut((2 * p.fan_in * p.depth) ** -0.5, cutoff))


@olmo()
def olmo_full_megatron(
    s: Sizes, *, std: float = 0.02, embedding_std: float = 0, scale_embedding: bool = False, cutoff: float = 3
) -> Rules:
    """T(std, 3), output projections over sqrt(2 L), head T(d**-0.5, 3).

    embedding_std: another one for the embedding, 0 for the same; scale_embedding: std sqrt(d) for it instead.
    """
    embedding = embedding_std or std * (math.sqrt(s.width) if scale_embedding else 1)
    output, head = cut(std / s.deep, cutoff), cut(s.width**-0.5, cutoff)
    return Rules(cut(embedding, cutoff), cut(std, cutoff), output, head)


torchtitan = framework("torchtitan", "torchtitan: https://github.com/pytorch/torchtitan.")
# Its truncated normals have bounds of +-2 in absolute terms, so that at a standard deviation of 0.02 they are plain
# normals; only the head is cut where it shows, at 3 deviations. A tied head would have filled the embedding as well.


@torchtitan()
def torchtitan_gpt_oss(s: Sizes, *, std: float = 0.02) -> Rules:
    """GPT-OSS: every matrix of block l N(std / sqrt(2 (l + 1))), router too; head T(d**-0.5, 3).

    Its biases of experts and its attention sinks, which our models do not have, are drawn like the matrices.
    """

    def block(p: Parameter) -> Distribution:
        return normal(std / math.sqrt(2 * p.depth))

    return Rules(normal(std), block, block, cut(s.width**-0.5, 3))


@torchtitan(" (Llama3/4, DeepSeekV3, Qwen3)")
def torchtitan_llama(s: Sizes, *, std: float = 0.02, embedding_std: float = 1) -> Rules:
    """Embedding N(1); N(std), and N(std / sqrt(2 (l + 1))) out of the mixer and for w2, w3 and the router."""

    def scaled(p: Parameter) -> Distribution:
        return normal(std / math.sqrt(2 * p.depth))

    ends = (normal(embedding_std), normal(std), scaled, cut(s.width**-0.5, 3))
    return Rules(*ends, {"ffn_up": scaled, "ffn_router": scaled})


@torchtitan(" (before adbaa061, depth_init=False)")
def torchtitan_depth_init_total(s: Sizes, *, std: float = 0.02, embedding_std: float = 1) -> Rules:
    """As torchtitan_llama, with the depth L of the model in the place of l + 1."""
    scaled = normal(std / s.deep)
    ends = (normal(embedding_std), normal(std), scaled, cut(s.width**-0.5, 3))
    return Rules(*ends, {"ffn_up": scaled, "ffn_router": scaled})


transformers = framework(
    "transformers", "Hugging Face transformers: https://github.com/huggingface/transformers, one model family each."
)


@transformers()
def transformers_default(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere: the initializer_range of most models."""
    return Rules(normal(std))


@transformers()
def transformers_gpt2(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, output projections over sqrt(2 L); the head is tied there."""
    return deep_normal(s, std)


@transformers()
def transformers_clip(s: Sizes, *, std: float = 0.02, factor: float = 1) -> Rules:
    """d**-0.5 with the depth on the way in: mixer inputs and ffn output over sqrt(2 L), ffn inputs over sqrt(2).

    The mixer's output has no depth factor. std: of the embedding; factor: multiplies all of them.
    """
    flat = factor * s.width**-0.5
    deep, up, out = normal(flat / s.deep), normal(flat / math.sqrt(2)), normal(flat)
    embedding = normal(factor * std)
    return Rules(embedding, deep, out, out, {"ffn_gate": up, "ffn_up": up, "ffn_router": up, "ffn_out": deep})


@transformers()
def transformers_modernbert(s: Sizes, *, std: float = 0.02, cutoff: float = 2) -> Rules:
    """T(std, 2), output projections and head over sqrt(2 L). Its heads of classification are T(d**-0.5, 2)."""
    flat, deep = cut(std, cutoff), cut(std / s.deep, cutoff)
    return Rules(flat, flat, deep, deep)


@transformers()
def transformers_t5(s: Sizes, *, factor: float = 1, tied: bool = True) -> Rules:
    """Embedding and head N(1), matrices N(fan_in**-0.5), queries over sqrt(d_head) besides, logits times d**-0.5.

    The dot product has no 1/sqrt(d_head) of its own: what reads the memory carries it. In an SSM that is C, whose
    d_state**-0.5 is already its fan_in**-0.5. factor: multiplies every standard deviation. tied: the logits are scaled,
    as in the code where head and embedding are one matrix; false for its models with a head of their own.
    """
    matrix = fan_in_normal(factor)
    query = normal(factor * (s.width * s.head_size) ** -0.5)
    forward = {"logits": s.width**-0.5} if tied else {}
    return Rules(normal(factor), matrix, matrix, roles={"query": query}, forward=forward)


@transformers()
def transformers_gemma(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, the embedding's output times sqrt(d), norms (1 + w) x with w = 0; the head is tied there."""
    return Rules(normal(std), norm=ZERO, forward={"embedding": math.sqrt(s.width)}, needs={"norm_offset": True})


@transformers()
def transformers_mamba(s: Sizes, *, std: float = 0.1, rescale: bool = False) -> Rules:
    """N(0.1), output projections U(fan_in**-0.5); the head is tied there.

    rescale: divide the output projections by sqrt(L), L counting residual branches (rescale_prenorm_residual).
    """
    return Rules(normal(std), output=fan_in_uniform((s.layers * s.branches) ** -0.5 if rescale else 1.0))
