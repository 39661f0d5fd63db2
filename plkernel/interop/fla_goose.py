"""Goose in the layout of flash-linear-attention's RWKV7ForCausalLM: model.safetensors and config.json in one folder.

Names differ, low-rank maps are linear maps (out, in), and w0, a0 and v0 are the biases of their second. The eps of the
heads' group norm is the head size times that of every norm, N 1e-5, where RWKV has 64e-5. Since GroupNorm(o, 64e-5) =
GroupNorm(s o, N 1e-5) with s = sqrt(N / 64), and o is linear in the values, the value matrices are written times s and
r_k, which multiplies values beside the norm, over s: exact in binary for heads of 16, 64 or 256, else rounded once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from plkernel.interop.fla import OUTER, WEIGHTS, tensors_of
from plkernel.interop.official import State, from_official, to_official
from plkernel.models.layers import BYTES, NORM_EPS
from plkernel.models.rwkv import RWKV
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.rwkv_shared import GROUP_NORM_EPS

FIRST = {"ln0.weight": "pre_norm.weight", "ln0.bias": "pre_norm.bias"}
LATER = {
    "att.v0": "attn.v_lora.lora.2.bias",
    "att.v1": "attn.v_lora.lora.0.weight",
    "att.v2": "attn.v_lora.lora.2.weight",
}
BLOCK = {
    "ln1.weight": "attn_norm.weight",
    "ln1.bias": "attn_norm.bias",
    "ln2.weight": "ffn_norm.weight",
    "ln2.bias": "ffn_norm.bias",
    **{f"att.x_{stream}": f"attn.x_{stream}" for stream in "rwkvag"},
    **{f"att.{name}": f"attn.{name}" for name in ("k_k", "k_a", "r_k")},
    **{f"att.{one}0": f"attn.{one}_lora.lora.2.bias" for one in "wa"},
    **{f"att.{one}1": f"attn.{one}_lora.lora.0.weight" for one in "wag"},
    **{f"att.{one}2": f"attn.{one}_lora.lora.2.weight" for one in "wag"},
    "att.receptance.weight": "attn.r_proj.weight",
    "att.key.weight": "attn.k_proj.weight",
    "att.value.weight": "attn.v_proj.weight",
    "att.output.weight": "attn.o_proj.weight",
    "att.ln_x.weight": "attn.g_norm.weight",
    "att.ln_x.bias": "attn.g_norm.bias",
    "ffn.x_k": "ffn.x_k",
    "ffn.key.weight": "ffn.key.weight",
    "ffn.value.weight": "ffn.value.weight",
}
FLAT = ("att.k_k", "att.k_a", "att.w0", "att.a0", "att.v0", "ffn.x_k")

# Options that fix the function, the value under which it is Goose, and what a file that leaves them out means.
FIXED: dict[str, tuple[Any, Any]] = {
    "model_type": ("rwkv7", None),
    "hidden_act": ("sqrelu", "sqrelu"),
    "norm_first": (True, True),
    "norm_bias": (True, True),
    "norm_eps": (NORM_EPS, NORM_EPS),
    "attn": (None, None),
    "vocab_size": (BYTES, 32000),
}


def to_fla_goose(model: RWKV7) -> tuple[dict[str, Any], State]:
    """Content of config.json and tensors of model.safetensors."""
    state, config = to_official(model), model.config
    tensors = {there: state[ours] for ours, there in OUTER.items()}
    for i in range(config.layers):
        for ours, there in _block_names(i).items():
            value = _changed(ours, state[f"blocks.{i}.{ours}"], scale_of(config.head_size))
            tensors[f"model.layers.{i}.{there}"] = value.contiguous()
    return config_of(config), tensors


def config_of(config: RWKV7Config) -> dict[str, Any]:
    """config.json of a Goose: what fixes the function, and the bytes that are no tokens of beginning and end."""
    names = ("decay_low_rank_dim", "a_low_rank_dim", "v_low_rank_dim", "gate_low_rank_dim")
    return {
        "architectures": ["RWKV7ForCausalLM"],
        **{name: value for name, (value, _) in FIXED.items()},
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers,
        "head_dim": config.head_size,
        "num_heads": config.heads,
        "intermediate_size": config.hidden,
        **dict(zip(names, config.ranks, strict=True)),
        "fuse_norm": False,  # fused, its removal keys are normalised with another eps
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def from_fla_goose(folder: Path) -> RWKV:
    """The Goose in a folder of that layout, in float32; ValueError naming what is damaged or not a Goose over bytes."""
    tensors = tensors_of(folder, FIXED, "Goose")
    try:
        return from_official(official_names(tensors))
    except ValueError as error:
        raise ValueError(f"{folder / WEIGHTS}: {error}") from error


def official_names(tensors: Mapping[str, Tensor]) -> State:
    """The tensors of an RWKV7ForCausalLM under official names; ValueError naming one that is missing or foreign."""
    left = dict(tensors)
    layers = len({name.split(".")[2] for name in left if name.startswith("model.layers.")})
    heads = left.get("model.layers.0.attn.r_k")
    if heads is not None and heads.ndim != 2:
        raise ValueError(f"model.layers.0.attn.r_k: shape {tuple(heads.shape)}, expected (heads, head size)")
    places = dict(OUTER)
    for i in range(layers):
        places |= {f"blocks.{i}.{ours}": f"model.layers.{i}.{there}" for ours, there in _block_names(i).items()}
    missing = [there for there in places.values() if there not in left]
    if missing or heads is None:
        raise ValueError(f"tensors are missing: {', '.join(missing[:3] or ['model.layers.0.attn.r_k'])}")
    found = {ours: left.pop(there).float() for ours, there in places.items()}
    if left:
        raise ValueError(f"tensors that RWKV7ForCausalLM does not have: {', '.join(sorted(left)[:3])}")
    scale = 1 / scale_of(heads.shape[1])
    return {name: _changed(name.split(".", 2)[-1], value, scale) for name, value in found.items()}


def scale_of(head_size: int) -> float:
    """s: what values are multiplied by, so that a group norm with their eps gives what ours gives."""
    return (head_size * NORM_EPS / GROUP_NORM_EPS) ** 0.5


def _changed(name: str, value: Tensor, scale: float) -> Tensor:
    """How the numbers of one tensor of a block are laid out there; with 1 / scale also the way back."""
    if name[:-1] in ("att.w", "att.a", "att.v", "att.g") and name[-1] in "12":
        return value.t() if value.ndim == 2 else value
    if name in FLAT:
        return value.flatten()
    factor = {"att.value.weight": scale, "att.r_k": 1 / scale}.get(name)
    return value.clone() if factor is None else value.float() * factor


def _block_names(block: int) -> dict[str, str]:
    return {**FIRST, **BLOCK} if block == 0 else {**BLOCK, **LATER}
