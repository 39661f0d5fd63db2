"""Hugging Face transformers: https://github.com/huggingface/transformers, one model family each."""

import math

from plkernel.models.init.distributions import ZERO, cut, normal
from plkernel.models.init.planning import scheme
from plkernel.models.init.rules import Rules, Sizes
from plkernel.models.init.schemes.fans import fan_in_normal, fan_in_uniform

SOURCE = "code:transformers"


@scheme(SOURCE)
def transformers_default(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere: the initializer_range of most models."""
    return Rules(normal(std), normal(std), normal(std), normal(std))


@scheme(SOURCE)
def transformers_gpt2(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, output projections over sqrt(2 L); the head is tied there."""
    return Rules(normal(std), normal(std), normal(std / math.sqrt(2 * s.layers)), normal(std))


@scheme(SOURCE)
def transformers_clip(s: Sizes, *, std: float = 0.02, factor: float = 1) -> Rules:
    """d**-0.5 with the depth on the way in: mixer inputs and ffn output over sqrt(2 L), ffn inputs over sqrt(2).

    The mixer's output has no depth factor. std: of the embedding; factor: multiplies all of them.
    """
    flat = factor * s.width**-0.5
    deep, up = normal(flat / math.sqrt(2 * s.layers)), normal(flat / math.sqrt(2))
    embedding, out = normal(factor * std), normal(flat)
    return Rules(embedding, deep, out, out, {"ffn_gate": up, "ffn_up": up, "ffn_router": up, "ffn_out": deep})


@scheme(SOURCE)
def transformers_modernbert(s: Sizes, *, std: float = 0.02, cutoff: float = 2) -> Rules:
    """T(std, 2), output projections and head over sqrt(2 L). Its heads of classification are T(d**-0.5, 2)."""
    flat, deep = cut(std, cutoff), cut(std / math.sqrt(2 * s.layers), cutoff)
    return Rules(flat, flat, deep, deep)


@scheme(SOURCE)
def transformers_t5(s: Sizes, *, factor: float = 1, tied: bool = True) -> Rules:
    """Embedding and head N(1), matrices N(fan_in**-0.5), queries over sqrt(d_head) besides, logits times d**-0.5.

    The dot product has no 1/sqrt(d_head) of its own: what reads the memory carries it. In an SSM that is C, whose
    d_state**-0.5 is already its fan_in**-0.5. factor: multiplies every standard deviation. tied: the logits are scaled,
    as in the code where head and embedding are one matrix; false for its models with a head of their own.
    """

    matrix = fan_in_normal(factor)
    query = normal(factor * (s.width * s.head_size) ** -0.5)
    forward = {"logits": s.width**-0.5} if tied else {}
    return Rules(normal(factor), matrix, matrix, normal(factor), {"query": query}, forward=forward)


@scheme(SOURCE)
def transformers_gemma(s: Sizes, *, std: float = 0.02) -> Rules:
    """N(std) everywhere, the embedding's output times sqrt(d), norms (1 + w) x with w = 0; the head is tied there."""
    flat = normal(std)
    forward = {"embedding": math.sqrt(s.width)}
    return Rules(flat, flat, flat, flat, norm=ZERO, forward=forward, needs={"norm_offset": True})


@scheme(SOURCE)
def transformers_mamba(s: Sizes, *, std: float = 0.1, rescale: bool = False) -> Rules:
    """N(0.1), output projections U(fan_in**-0.5); the head is tied there.

    rescale: divide the output projections by sqrt(L), L counting residual branches (rescale_prenorm_residual).
    """
    output = fan_in_uniform((s.layers * s.branches) ** -0.5 if rescale else 1.0)
    return Rules(normal(std), normal(std), output, normal(std))
