"""RWKV: the official code at four dates, the paper as printed, and a naive start; arXiv 2404.05892, Appendix I.

The vectors (token shifts, decays, u, gains of the heads' norm) and low-rank maps of an RWKV are exact functions of
channel and layer, which differ by version: `Rules.own` names it. On an SSM the matrices alone act: B is the value,
C_proj starts at zero, gate and up of the feed-forward layer are ffn.key.

In all but rwkv_naive, attention output, ffn.value and ffn.receptance start at zero, and the head is orthogonal with
gain 0.5 sqrt(V / d), 0.5 where V <= d (the paper: 0.5 always).
"""

import math
from typing import Any

from plkernel.models.init.distributions import ZERO, Distribution, normal, orthogonal, uniform
from plkernel.models.init.plan import Fill, Role, Rules, Sizes, fan_in_uniform, scheme, xavier_uniform

EVERYTHING: tuple[Role, ...] = ("norm", "norm_bias", "bias", "gate", "own")


def official(embedding: float, matrix: Fill, head: Distribution, own: str, roles: Any = None, twice: str = "") -> Rules:
    """Embedding U, matrices, outputs 0; parameters whose name ends in `twice` are trained at twice the rate."""
    return Rules(
        uniform(embedding),
        matrix,
        ZERO,
        head,
        roles={"ffn_router": ZERO, **(roles or {})},
        learning_rate={"own": lambda p: 2.0 if twice and p.name.endswith(twice) else 1.0},
        needs={"norm": "layer", "embedding_norm": True},
        own=own,
    )


def wide_head(s: Sizes) -> Distribution:
    """O(0.5 sqrt(V / d)), O(0.5) where V <= d."""
    return orthogonal(0.5 * math.sqrt(max(1.0, s.vocabulary / s.width)))


@scheme("code:BlinkDL/RWKV-LM, v5 and v6 since 2024-04-24")
def rwkv_blinkdl(s: Sizes) -> Rules:
    """Today's code: embedding U(1e-4), matrices O(1), keys and gates O(0.1), outputs 0; decays at twice the rate."""
    roles = {"key": orthogonal(0.1), "mixer_gate": orthogonal(0.1)}
    return official(1e-4, orthogonal(1.0), wide_head(s), "rwkv_blinkdl", roles, "time_decay")


@scheme("code:BlinkDL/RWKV-LM, RWKV-v7/train_temp at 118e451; arXiv 2503.14456")
def rwkv7_official(s: Sizes) -> Rules:
    """Goose: embedding U(1e-4), matrices O(1), keys O(0.1), outputs 0, low-rank maps 0 and O(0.1).

    Decays rise along the channels and zigzag in every head; w0, which they follow from, has twice the rate. Weight
    decay acts on matrices and the embedding alone.
    """
    roles = {"key": orthogonal(0.1), "ffn_router": orthogonal(1.0)}
    return official(1e-4, orthogonal(1.0), wide_head(s), "rwkv7_official", roles, ".w0")


def as_in_code(s: Sizes, own: str, rate: float) -> Rules:
    """The code that trained Eagle and Finch: wider matrices O(sqrt(fan_out / fan_in)), others O(1)."""
    return official(rate, lambda p: orthogonal(max(1.0, p.fan_out / p.fan_in) ** 0.5), wide_head(s), own)


@scheme("code:BlinkDL/RWKV-LM at 34eedfd, 2023-11, which trained Eagle")
def rwkv_eagle_code_2023(s: Sizes, *, learning_rate: float = 6e-4) -> Rules:
    """Embedding U(learning_rate), matrices O(1), wider ones O(sqrt(fan_out / fan_in)), outputs 0.

    learning_rate: the peak of the run; the released script builds its first weights with 1e-5.
    """
    return as_in_code(s, "rwkv_eagle_code_2023", learning_rate)


@scheme("code:BlinkDL/RWKV-LM at 62572c9, 2024-02, which trained Finch")
def rwkv_finch_code_2024_02(s: Sizes, *, learning_rate: float = 6e-4) -> Rules:
    """As rwkv_eagle_code_2023, with low-rank maps U(1e-4)."""
    return as_in_code(s, "rwkv_finch_code_2024_02", learning_rate)


def as_printed(own: str, rate: float) -> Rules:
    """Appendix I: wider matrices O(fan_out / fan_in), others as PyTorch makes them, head O(0.5)."""
    matrix: Fill = lambda p: orthogonal(p.fan_out / p.fan_in) if p.fan_out > p.fan_in else fan_in_uniform()(p)  # noqa: E731
    return official(rate, matrix, orthogonal(0.5), own)


@scheme("paper:Eagle and Finch, arXiv 2404.05892, Appendix I, as written for Eagle")
def rwkv_eagle_paper(s: Sizes, *, learning_rate: float = 6e-4) -> Rules:
    """Embedding U(learning_rate), wider matrices O(fan_out / fan_in), others U(fan_in**-0.5), head O(0.5), outputs 0.

    No version of the code does this. learning_rate: the peak of the run.
    """
    return as_printed("rwkv_eagle_paper", learning_rate)


@scheme("paper:Eagle and Finch, arXiv 2404.05892, Appendix I, as written for Finch")
def rwkv_finch_paper(s: Sizes, *, learning_rate: float = 6e-4) -> Rules:
    """As rwkv_eagle_paper, with low-rank maps U(1e-4)."""
    return as_printed("rwkv_finch_paper", learning_rate)


@scheme("notes:the naive side of a published ablation of RWKV-6")
def rwkv_naive(s: Sizes) -> Rules:
    """Embedding N(1), tied to the head, matrices U(fan_in**-0.5), ffn.value Xavier with gain 0.5, RMSNorm.

    Weight decay acts on every parameter. Vectors and low-rank maps are those of today's official code: the ablation
    says nothing of them. On a model with a head of its own, that is N(1) as well.
    """
    return Rules(
        normal(1.0),
        fan_in_uniform(),
        fan_in_uniform(),
        roles={"ffn_out": xavier_uniform(0.5)},
        weight_decay=dict.fromkeys(EVERYTHING, 1.0),
        needs={"norm": "rms", "tied": True},
    )
