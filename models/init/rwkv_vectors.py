"""The vectors of Eagle and Finch that are exact functions of channel and block, in every version of the initialisation.

With l the block of L, i the channel of D, r0 = l / (L - 1) (0 where L = 1) and r1 = 1 - l / L, all versions take
    mu = 1 - (i / D)**r1 for x, w, k and the channel mixing, less 0.3 r0 for v; 1 - (i / D)**(r1 / 2) for r and g
    time_decay = -6 + 5 (i / (D - 1))**(0.7 + 1.3 r0)
    u = r0 (1 - i / (D - 1)) + 0.1 ((i + 1) mod 3 - 1)
    ln_x.weight = ((1 + l) / L)**0.7
(Eagle stores 1 - mu.) They differ in u, whose -1 the paper does not print (mean 0.1); in Finch's channel mixing, today
1 - (i / D)**(r1**3); and in the low-rank maps w1 and w2: U(1e-4) both, today 0 and U(0.01).
Sources: the official code at three dates and arXiv 2404.05892, Appendix I; see `plkernel.models.init.schemes.rwkv`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from plkernel.models.rwkv import RWKVConfig


@dataclass(frozen=True)
class Version:
    """What tells one version from another: `models` 5 (Eagle) and 6 (Finch), bounds of w1 and w2, the offset of u in
    0.1 ((i + 1) mod 3 - offset), and the exponent of r1 in Finch's channel mixing."""

    models: tuple[int, ...]
    low_rank: tuple[float, float] = (1e-4, 1e-4)
    u_offset: int = 1
    ffn_power: int = 1


VERSIONS = {
    "rwkv_blinkdl": Version((5, 6), (0.0, 0.01), ffn_power=3),
    "rwkv_eagle_code_2023": Version((5,)),
    "rwkv_finch_code_2024_02": Version((6,)),
    "rwkv_eagle_paper": Version((5,), u_offset=0),
    "rwkv_finch_paper": Version((6,), u_offset=0),
}


def check_version(name: str, model: int) -> None:
    """ValueError for a version that belongs to the other model (5 Eagle, 6 Finch)."""
    if model not in VERSIONS[name].models:
        fitting = ", ".join(other for other, version in VERSIONS.items() if model in version.models)
        raise ValueError(f"scheme {name!r} is not for RWKV-{model}: use one of {fitting}")


def channel_vector(name: str, config: RWKVConfig, version: Version) -> Tensor:
    """The values (D,) in float64 of a token-shift vector, time_decay or time_faaaa; `name` as in the state dict."""
    _, block, branch, vector = name.split(".")
    r0 = int(block) / (config.layers - 1) if config.layers > 1 else 0.0
    r1 = 1 - int(block) / config.layers
    i = torch.arange(config.dim, dtype=torch.float64)
    if vector == "time_decay":
        return -6 + 5 * (i / (config.dim - 1)) ** (0.7 + 1.3 * r0)
    if vector == "time_faaaa":
        return r0 * (1 - i / (config.dim - 1)) + 0.1 * ((i + 1) % 3 - version.u_offset)
    stream = vector[-1]
    if branch == "ffn":
        power = r1**version.ffn_power if config.version == 6 else r1
    else:
        power = r1 / 2 if stream in "rg" else r1
    share = (i / config.dim) ** power + (0.3 * r0 if stream == "v" else 0.0)
    return share if config.version == 5 else 1 - share


def head_norm(name: str, layers: int) -> float:
    """The value of every entry of ln_x, by its name in the state dict: bias 0, weight ((1 + l) / L)**0.7."""
    return 0.0 if name.endswith("bias") else ((1 + int(name.split(".")[1])) / layers) ** 0.7
