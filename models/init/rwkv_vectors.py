"""The vectors and low-rank maps of an RWKV: known functions of channel and layer.

With l the block of L, i the channel of D, r0 = l / (L - 1) (0 where L = 1) and r1 = 1 - l / L,
Eagle and Finch take

    mu          1 - (i / D)**r1 for x, w and k and in the channel mixing, less 0.3 r0 for v;
                1 - (i / D)**(r1 / 2) for r and g
    time_decay  -6 + 5 (i / (D - 1))**(0.7 + 1.3 r0)
    u           r0 (1 - i / (D - 1)) + 0.1 ((i + 1) mod 3 - 1)
    ln_x        gain ((1 + l) / L)**0.7, bias 0

Eagle stores 1 - mu. The versions differ in u, whose -1 the paper does not print; in Finch's channel
mixing, which is 1 - (i / D)**(r1**3) today; and in Finch's low-rank maps, see `VERSIONS`.

Goose takes, with y = i / (D - 1) and z = x |x|, x from -1 to 1 along every head,

    mu          1 - (i / D)**(p r1), p = 0.2 for r and g, 0.7 for k and v, 0.9 for w and a;
                1 - (i / D)**(r1**4) in the channel mixing
    w0          -5.5 + 6 y**(1 + r0**0.3) + 2.5 z
    a0          -0.19 + 0.3 z + 0.4 (y - 1/2)
    v0          0.73 - 0.4 (y - 1/2)
    k_k         0.71 - 0.1 (y - 1/2)
    k_a, r_k    1.02 and -0.04
    ln_x        as Eagle and Finch

and low-rank maps of 0 and of orthogonal rows of length 0.1 (columns 0.1 sqrt(rank / D) long where
the rank is larger).

`rwkv7_post` takes another ramp for the -5.5 + 6 y**(1 + r0**0.3) of w0, with L = logit(1 / (c T)),
c = exp(-1/2) and T the longest time constant in bytes: L + (1/2 - L) y, or that power of y. Where
decays are ordered (`plkernel.models.spectrum`) the levels hold the ramp, and w0 is 2.5 z alone.

Sources: the official code of v5 and v6 at 34eedfd (2023-11), 62572c9 (2024-02) and since
2024-04-24, of v7 at 118e451, and arXiv 2404.05892, Appendix I; arXiv 2604.07658 and its code,
github.com/SiLifen/PoST at a898663.
"""

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from plkernel.analysis.parametrisations import inverse_softplus
from plkernel.models.init.distributions import ZERO, Distribution, constant, orthogonal, uniform
from plkernel.models.rwkv_nodes import HIGHEST, ZIGZAG, level_of
from plkernel.models.spectrum import zigzag

if TYPE_CHECKING:
    from plkernel.models.rwkv import RWKVConfig
    from plkernel.models.rwkv7 import RWKV7Config

    Config = RWKVConfig | RWKV7Config


class Version(NamedTuple):
    """Initialisation of an RWKV by one version of code or paper.

    models         which of RWKV-5 (Eagle), 6 (Finch) and 7 (Goose)
    low_rank       bounds of the uniform low-rank maps w1 and w2 of Finch
    offset         k of 0.1 ((i + 1) mod 3 - k) in u
    channel_power  p of 1 - (i / D)**(r1**p) in Finch's channel mixing
    """

    models: tuple[int, ...]
    low_rank: tuple[float, float] = (1e-4, 1e-4)
    offset: int = 1
    channel_power: int = 1


VERSIONS = {
    "rwkv_blinkdl": Version(models=(5, 6), low_rank=(0.0, 0.01), channel_power=3),
    "rwkv7_official": Version(models=(7,)),
    "rwkv7_post": Version(models=(7,)),
    "rwkv_eagle_code_2023": Version(models=(5,)),
    "rwkv_finch_code_2024_02": Version(models=(6,)),
    "rwkv_eagle_paper": Version(models=(5,), offset=0),
    "rwkv_finch_paper": Version(models=(6,), offset=0),
}
"""By the name of the scheme that has them."""
OFFICIAL = {"RWKV": "rwkv_blinkdl", "RWKV7": "rwkv7_official"}
"""Today's official code of every kind of model, which all other schemes keep."""
SHIFT_POWERS = {"r": 0.2, "g": 0.2, "k": 0.7, "v": 0.7, "w": 0.9, "a": 0.9}
"""p of Goose's token shift, by stream."""
DECAYS_OF_GOOSE = (".w0", ".ordered.theta", ".ordered.delta")
"""Ends of the names of what RWKV-7's decays follow from, the last two where they are ordered."""


def of_rwkv(name: str, config: "Config", version: str, longest: float = 0.0) -> Distribution:
    """The distribution of a parameter of an RWKV that is the model's own.

    `name` is as in the state dict. longest: the longest time constant of RWKV-7's ramp, as the
    scale of its distribution; 0 for the official ramp.
    """
    if ".ln_x." in name:
        if name.endswith("bias"):
            return ZERO
        return constant(((1 + block_number(name)) / config.layers) ** 0.7)
    if name.endswith(DECAYS_OF_GOOSE):
        return Distribution("vector", scale=longest, version=version)
    is_low_rank = name.endswith(("1", "2"))
    if not is_low_rank:
        return Distribution("vector", version=version)
    first = name.endswith("1")  # of the two maps
    if config.version == 7:
        ranks = cast("RWKV7Config", config).ranks
        stream = name[-2]
        rank = ranks["wavg".index(stream)]
        return ZERO if first else orthogonal(0.1 * max(1.0, rank / config.dim) ** 0.5)
    bounds = VERSIONS[version].low_rank
    return uniform(bounds[0] if first else bounds[1])


def initial_vector(name: str, config: "Config", version: str, longest: float = 0.0) -> Tensor:
    """The values (D,) in float64 of a token-shift vector, decays, u or another vector.

    `name` is as in the state dict, `longest` as in `of_rwkv`.
    """
    if config.version == 7:
        goose = cast("RWKV7Config", config)
        if name.endswith(DECAYS_OF_GOOSE):
            return goose_decays(name, goose, version, longest)
        return goose_vector(name, goose)
    return eagle_finch_vector(name, config, VERSIONS[version])


def block_number(name: str) -> int:
    """l of blocks.l.att.x_r."""
    return int(name.split(".")[1])


def depths(name: str, config: "Config") -> tuple[float, float]:
    """r0 = l / (L - 1), from 0 in the first block to 1 in the last, and r1 = 1 - l / L."""
    block = block_number(name)
    r0 = block / (config.layers - 1) if config.layers > 1 else 0.0
    return r0, 1 - block / config.layers


def eagle_finch_vector(name: str, config: "Config", version: Version) -> Tensor:
    """Token shifts, decays and u of RWKV-5 and 6."""
    _, _, branch, kind = name.split(".")
    r0, r1 = depths(name, config)
    i = torch.arange(config.dim, dtype=torch.float64, device="cpu")
    if kind == "time_decay":
        return -6 + 5 * (i / (config.dim - 1)) ** (0.7 + 1.3 * r0)
    if kind == "time_faaaa":
        return r0 * (1 - i / (config.dim - 1)) + 0.1 * ((i + 1) % 3 - version.offset)
    stream = kind[-1]
    power = r1
    if branch == "ffn":
        if config.version == 6:
            power = r1**version.channel_power
    elif stream in "rg":
        power = r1 / 2
    share = (i / config.dim) ** power
    if stream == "v":
        share = share + 0.3 * r0
    return share if config.version == 5 else 1 - share


def goose_decays(name: str, config: "RWKV7Config", version: str, longest: float) -> Tensor:
    """w0 of RWKV-7, or where decays are ordered what is left of it, and theta or delta."""
    r0, _ = depths(name, config)
    i = torch.arange(config.dim, dtype=torch.float64, device="cpu")
    y = i / (config.dim - 1)
    low = level_of(longest) if longest else -5.5
    power = 1.0 if version == "rwkv7_post" else 1 + r0**0.3
    ramp = low + (HIGHEST - low) * y**power
    if name.endswith(".theta"):
        return ramp[:1]
    if name.endswith(".delta"):
        return inverse_softplus(ramp.diff())
    beside = ZIGZAG * zigzag(i, config.head_size)
    return beside if config.parametrisation == "ordered" else ramp + beside


def goose_vector(name: str, config: "RWKV7Config") -> Tensor:
    """Token shifts and other vectors of RWKV-7, without its decays."""
    _, _, branch, kind = name.split(".")
    _, r1 = depths(name, config)
    i = torch.arange(config.dim, dtype=torch.float64, device="cpu")
    if kind.startswith("x_"):
        power = r1**4 if branch == "ffn" else SHIFT_POWERS[kind[-1]] * r1
        return 1 - (i / config.dim) ** power
    y = i / (config.dim - 1)
    z = zigzag(i, config.head_size)
    return {
        "a0": -0.19 + 0.3 * z + 0.4 * (y - 0.5),
        "v0": 0.73 - 0.4 * (y - 0.5),
        "k_k": 0.71 - 0.1 * (y - 0.5),
        "k_a": torch.full_like(i, 1.02),
        "r_k": torch.full_like(i, -0.04),
    }[kind]
