"""Initialisations of Eagle and Finch by name: the official code at three dates, the paper as printed, a naive one.

With l the block of L, i the channel of D, r0 = l / (L - 1) (0 where L = 1) and r1 = 1 - l / L, all of them take
    mu = 1 - (i / D)**r1 for x, w, k and the channel mixing, less 0.3 r0 for v; 1 - (i / D)**(r1 / 2) for r and g
    time_decay = -6 + 5 (i / (D - 1))**(0.7 + 1.3 r0)
    u = r0 (1 - i / (D - 1)) + 0.1 ((i + 1) mod 3 - 1)
    ln_x.weight = ((1 + l) / L)**0.7; other norms 1, biases 0; att.output, ffn.value and ffn.receptance 0
(Eagle stores 1 - mu), and differ in the embedding, the matrices and the low-rank maps, and in details of mu and u:

    rwkv_blinkdl             today's code, both versions: embedding U(+-1e-4); matrices orthogonal, att.key and att.gate
                             with gain 0.1; low-rank w1 0, w2 U(+-0.01); Finch's channel mixing 1 - (i / D)**(r1**3)
    rwkv_eagle_code_2023     Eagle as it was trained: embedding U(+-lr); ffn.key orthogonal with gain sqrt(F / D)
    rwkv_finch_code_2024_02  the same for Finch, with low-rank w1 and w2 both U(+-1e-4)
    rwkv_eagle_paper         arXiv 2404.05892, Appendix I: embedding U(+-lr); ffn.key orthogonal with gain F / D, the
    rwkv_finch_paper         square matrices U(+-D**-0.5), the head with gain 0.5, u without its -1 (mean 0.1)

The head is orthogonal with gain 0.5 sqrt(256 / D), 0.5 where D >= 256 (the paper: 0.5).

    rwkv_naive               what these are compared with in a published ablation: the embedding N(0, 1) is the head
                             too, matrices U(+-fan_in**-0.5) as PyTorch makes them, ffn.value Xavier with gain 0.5,
                             RMSNorm for LayerNorm, weight decay on every parameter. Of mu, time_decay, u, ln_x and the
                             low-rank maps the ablation says nothing: they are those of rwkv_blinkdl
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plkernel.models.init.base import generator_for
from plkernel.models.rwkv import BYTES, RWKV, NormName, RWKVConfig

ZERO = ("att.output.weight", "ffn.value.weight", "ffn.receptance.weight")


@dataclass(frozen=True)
class Scheme:
    """What tells one scheme from another; the defaults are the code of 2023."""

    versions: tuple[int, ...]
    embedding: float | None = None  # bound of the uniform draw; None: the peak learning rate
    low_rank: tuple[float, float] = (1e-4, 1e-4)  # bounds of w1 and w2
    small: tuple[str, ...] = ()  # matrices with gain 0.1
    widening: float = 0.5  # gain (F / D)**widening of ffn.key
    orthogonal: bool = True  # square matrices; otherwise U(+-D**-0.5)
    wide_head: bool = True  # head gain 0.5 sqrt(256 / D) where D < 256; otherwise 0.5
    u_offset: int = 1  # u holds 0.1 ((i + 1) mod 3 - u_offset)
    ffn_power: int = 1  # the channel mixing has mu = 1 - (i / D)**(r1**ffn_power) in Finch
    torch_default: bool = False  # embedding N(0, 1), matrices U(+-fan_in**-0.5), ffn.value Xavier with gain 0.5
    tied: bool = False  # the model needs one matrix for embedding and head
    norm: NormName = "layer"  # the model needs this norm
    decay_everything: bool = False  # the optimiser decays every parameter, not true matrices only


SCHEMES = {
    "rwkv_blinkdl": Scheme((5, 6), 1e-4, (0.0, 0.01), ("att.key.weight", "att.gate.weight"), 0.0, ffn_power=3),
    "rwkv_eagle_code_2023": Scheme((5,)),
    "rwkv_finch_code_2024_02": Scheme((6,)),
    "rwkv_eagle_paper": Scheme((5,), widening=1.0, orthogonal=False, wide_head=False, u_offset=0),
    "rwkv_finch_paper": Scheme((6,), widening=1.0, orthogonal=False, wide_head=False, u_offset=0),
    "rwkv_naive": Scheme(
        (5, 6),
        low_rank=(0.0, 0.01),
        ffn_power=3,
        torch_default=True,
        tied=True,
        norm="rms",
        decay_everything=True,
    ),
}
DEFAULT_SCHEME = "rwkv_blinkdl"


def check_scheme(scheme: str, version: int) -> None:
    """ValueError for an unknown scheme, or one that belongs to the other version (5 Eagle, 6 Finch)."""
    if scheme not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, got {scheme!r}")
    if version not in SCHEMES[scheme].versions:
        fitting = ", ".join(name for name, rules in SCHEMES.items() if version in rules.versions)
        raise ValueError(f"scheme {scheme!r} is not for RWKV-{version}: use one of {fitting}")


@torch.no_grad()
def initialise_(model: RWKV, seed: int, scheme: str = DEFAULT_SCHEME, *, learning_rate: float = 6e-4) -> RWKV:
    """Fill every parameter of `model` in place by the scheme of this name, and return the model.

    Each random parameter has its own generator of (seed, name), so a deeper model has the same first matrices.
    `learning_rate` is the peak of the run, which bounds the embedding in all schemes but rwkv_blinkdl; 6e-4 is that of
    the published models (the script released with the code builds its first weights with 1e-5).

    Raises ValueError for an unknown scheme, one that belongs to the other version, or one that needs another `tied` or
    `norm` than the model has.
    """
    check_scheme(scheme, model.config.version)
    rules = SCHEMES[scheme]
    for option in ("tied", "norm"):
        if getattr(model.config, option) != getattr(rules, option):
            raise ValueError(
                f"scheme {scheme!r} is for a model with {option} = {getattr(rules, option)!r}, "
                f"got {getattr(model.config, option)!r}"
            )
    for name, parameter in model.named_parameters():
        if "time_" in name and not name.endswith(("_w1", "_w2")):
            fixed = channel_vector(name, model.config, rules)
            parameter.copy_(fixed.view(parameter.shape))
        elif parameter.ndim == 1:
            parameter.fill_(norm_constant(name, model.config.layers))
        else:
            parameter.copy_(draw(name, parameter, rules, generator_for(seed, name), learning_rate))
    return model


def channel_vector(name: str, config: RWKVConfig, rules: Scheme) -> Tensor:
    """The values (D,) in float64 of a token-shift vector, time_decay or time_faaaa; `name` as in the state dict."""
    _, block, branch, vector = name.split(".")
    r0 = int(block) / (config.layers - 1) if config.layers > 1 else 0.0
    r1 = 1 - int(block) / config.layers
    i = torch.arange(config.dim, dtype=torch.float64)
    if vector == "time_decay":
        return -6 + 5 * (i / (config.dim - 1)) ** (0.7 + 1.3 * r0)
    if vector == "time_faaaa":
        return r0 * (1 - i / (config.dim - 1)) + 0.1 * ((i + 1) % 3 - rules.u_offset)
    stream = vector[-1]
    if branch == "ffn":
        power = r1**rules.ffn_power if config.version == 6 else r1
    else:
        power = r1 / 2 if stream in "rg" else r1
    share = (i / config.dim) ** power + (0.3 * r0 if stream == "v" else 0.0)
    return share if config.version == 5 else 1 - share


def norm_constant(name: str, layers: int) -> float:
    """The value of every entry of a norm's weight or bias."""
    if name.endswith("bias"):
        return 0.0
    return ((1 + int(name.split(".")[1])) / layers) ** 0.7 if name.endswith("ln_x.weight") else 1.0


def draw(name: str, like: Tensor, rules: Scheme, generator: torch.Generator, learning_rate: float) -> Tensor:
    """A matrix or low-rank map in the shape of `like`, on the CPU in float32, so every device gets the same values."""
    out = torch.empty(like.shape)
    if name.endswith(("_w1", "_w2")):
        bound = rules.low_rank[int(name[-1]) - 1]
        return out.uniform_(-bound, bound, generator=generator)
    if rules.torch_default:
        return as_torch_draws(name, out, generator)
    if name.endswith(ZERO):
        return out.zero_()
    if name == "emb.weight":
        bound = learning_rate if rules.embedding is None else rules.embedding
        return out.uniform_(-bound, bound, generator=generator)
    rows, columns = like.shape
    if name == "head.weight":
        gain = 0.5 * math.sqrt(max(1.0, BYTES / columns)) if rules.wide_head else 0.5
    elif rows > columns:
        gain = (rows / columns) ** rules.widening
    elif not rules.orthogonal:
        return out.uniform_(-(columns**-0.5), columns**-0.5, generator=generator)
    else:
        gain = 0.1 if name.endswith(rules.small) else 1.0
    return nn.init.orthogonal_(out, gain, generator=generator)


def as_torch_draws(name: str, out: Tensor, generator: torch.Generator) -> Tensor:
    """N(0, 1) for the embedding, Xavier U(+-0.5 (6 / (in + out))**0.5) for ffn.value, else U(+-in**-0.5); in place."""
    if name == "emb.weight":
        return out.normal_(generator=generator)
    if name.endswith("ffn.value.weight"):
        return nn.init.xavier_uniform_(out, gain=0.5, generator=generator)
    return out.uniform_(-(out.shape[1] ** -0.5), out.shape[1] ** -0.5, generator=generator)
