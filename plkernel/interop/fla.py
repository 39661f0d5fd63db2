"""Finch in the layout of flash-linear-attention's RWKV6ForCausalLM: model.safetensors and config.json in one folder.

The function is the same, under other names: the streams stand in the order r, w, k, v, g (x060: w, k, v, r, g), the
low-rank maps are linear maps (out, in), and `time_decay` is the bias of the last one. One number is not free there:
the group norm of the heads takes the eps of every norm, 1e-5, where RWKV has 64e-5. Since
GroupNorm(o, 64 eps) = GroupNorm(o / 8, eps), and o is linear in the values, the value matrix is written divided by 8,
which is exact in binary. There is no class for Eagle.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from plkernel.common.files import atomic_save, load_json, save_json
from plkernel.interop.official import State, from_official, to_official
from plkernel.models.layers import BYTES, NORM_EPS
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv_shared import GROUP_NORM_EPS

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
VALUE_SCALE = (GROUP_NORM_EPS / NORM_EPS) ** 0.5  # 8
STREAMS = ("r", "w", "k", "v", "g")
TO_STREAMS = (3, 0, 1, 2, 4)  # where r, w, k, v, g stand among the official w, k, v, r, g
FROM_STREAMS = (1, 2, 3, 0, 4)

OUTER = {
    "emb.weight": "model.embeddings.weight",
    "ln_out.weight": "model.norm.weight",
    "ln_out.bias": "model.norm.bias",
    "head.weight": "lm_head.weight",
}
FIRST = {"ln0.weight": "pre_norm.weight", "ln0.bias": "pre_norm.bias"}
BLOCK = {
    "ln1.weight": "attn_norm.weight",
    "ln1.bias": "attn_norm.bias",
    "ln2.weight": "ffn_norm.weight",
    "ln2.bias": "ffn_norm.bias",
    "att.time_maa_x": "attn.x_proj.0.mu",
    "att.time_maa_w1": "attn.x_proj.0.linear.weight",
    "att.time_maa_w2": "attn.x_proj.2.weight",
    "att.time_decay": "attn.w_proj.linear.lora.2.bias",
    "att.time_decay_w1": "attn.w_proj.linear.lora.0.weight",
    "att.time_decay_w2": "attn.w_proj.linear.lora.2.weight",
    "att.time_faaaa": "attn.bonus",
    "att.receptance.weight": "attn.r_proj.linear.weight",
    "att.key.weight": "attn.k_proj.linear.weight",
    "att.value.weight": "attn.v_proj.linear.weight",
    "att.gate.weight": "attn.g_proj.linear.weight",
    "att.output.weight": "attn.o_proj.weight",
    "att.ln_x.weight": "attn.g_norm.weight",
    "att.ln_x.bias": "attn.g_norm.bias",
    "ffn.time_maa_k": "ffn.key.mu",
    "ffn.time_maa_r": "ffn.receptance.mu",
    "ffn.key.weight": "ffn.key.linear.weight",
    "ffn.receptance.weight": "ffn.receptance.linear.weight",
    "ffn.value.weight": "ffn.value.weight",
}
X_BIAS = "attn.x_bias"  # the five mu of the token shift in one tensor

# Options that fix the function, the value under which it is Finch, and what a file that leaves them out means.
FIXED: dict[str, tuple[Any, Any]] = {
    "model_type": ("rwkv6", None),
    "expand_k": (1.0, 0.5),
    "expand_v": (1.0, 1.0),
    "hidden_act": ("sqrelu", "sqrelu"),
    "norm_first": (True, True),
    "norm_bias": (True, True),
    "norm_eps": (NORM_EPS, NORM_EPS),
    "attn": (None, None),
    "vocab_size": (BYTES, 32000),
}

Change = Callable[[Tensor], Tensor]


def _flat(tensor: Tensor) -> Tensor:
    return tensor.flatten()


def _first_map(tensor: Tensor) -> Tensor:
    """(D, 5R) to (5R, D), the streams in their order."""
    return tensor.t().unflatten(0, (5, -1))[list(TO_STREAMS)].flatten(0, 1)


def _first_map_back(tensor: Tensor) -> Tensor:
    return tensor.unflatten(0, (5, -1))[list(FROM_STREAMS)].flatten(0, 1).t()


def _second_map(tensor: Tensor) -> Tensor:
    """(5, R, D) to (D, 5R), the streams in their order."""
    return tensor[list(TO_STREAMS)].flatten(0, 1).t()


def _second_map_back(tensor: Tensor) -> Tensor:
    return tensor.t().unflatten(0, (5, -1))[list(FROM_STREAMS)]


# How a tensor's numbers are laid out there, and back; the others differ in name only.
CHANGES: dict[str, tuple[Change, Change]] = {
    "att.time_maa_x": (_flat, _flat),
    "att.time_decay": (_flat, _flat),
    "ffn.time_maa_k": (_flat, _flat),
    "ffn.time_maa_r": (_flat, _flat),
    "att.time_decay_w1": (torch.t, torch.t),
    "att.time_decay_w2": (torch.t, torch.t),
    "att.time_maa_w1": (_first_map, _first_map_back),
    "att.time_maa_w2": (_second_map, _second_map_back),
    "att.value.weight": (lambda tensor: tensor / VALUE_SCALE, lambda tensor: tensor.float() * VALUE_SCALE),
}


def to_fla(model: RWKV) -> tuple[dict[str, Any], State]:
    """Content of config.json and tensors of model.safetensors for a Finch; ValueError for another model."""
    if model.config.version == 5:
        raise ValueError("kind 'rwkv5': flash-linear-attention has no class for Eagle; use --format official")
    state = to_official(model)
    tensors = {there: state[ours] for ours, there in OUTER.items()}
    for i in range(model.config.layers):
        for ours, there in _block_names(i).items():
            change, _ = CHANGES.get(ours, (torch.clone, None))
            tensors[f"model.layers.{i}.{there}"] = change(state[f"blocks.{i}.{ours}"]).contiguous()
        shares = [state[f"blocks.{i}.att.time_maa_{stream}"].flatten() for stream in STREAMS]
        tensors[f"model.layers.{i}.{X_BIAS}"] = torch.stack(shares)
    return config_of(model.config), tensors


def config_of(config: RWKVConfig) -> dict[str, Any]:
    """config.json of a Finch: what fixes the function, and the bytes that are no tokens of beginning and end."""
    return {
        "architectures": ["RWKV6ForCausalLM"],
        **{name: value for name, (value, _) in FIXED.items()},
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers,
        "num_heads": config.heads,
        "intermediate_size": config.hidden,
        "proj_low_rank_dim": config.mix_rank,
        "gate_low_rank_dim": config.decay_rank,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def from_fla(folder: Path) -> RWKV:
    """The Finch in a folder of that layout, in float32; ValueError naming what is damaged or not a Finch over bytes."""
    tensors = tensors_of(folder, FIXED, "Finch")
    try:
        return from_official(official_names(tensors))
    except ValueError as error:
        raise ValueError(f"{folder / WEIGHTS}: {error}") from error


def model_type(folder: Path) -> Any:
    """What config.json says that the folder holds; ValueError where it is no object."""
    config = load_json(folder / CONFIG)
    if not isinstance(config, dict):
        raise ValueError(f"{folder / CONFIG}: expected a JSON object")
    return config.get("model_type")


def tensors_of(folder: Path, fixed: Mapping[str, tuple[Any, Any]], model: str) -> State:
    """The tensors of a folder under their names there, a tied head among them; ValueError as in `check_config`."""
    config = load_json(folder / CONFIG)
    check_config(folder / CONFIG, config, fixed, model)
    tensors = read_tensors(folder / WEIGHTS)
    if config.get("tie_word_embeddings", False) and OUTER["emb.weight"] in tensors:
        tensors[OUTER["head.weight"]] = tensors[OUTER["emb.weight"]]
    return tensors


def check_config(path: Path, config: Any, fixed: Mapping[str, tuple[Any, Any]], model: str) -> None:
    """ValueError unless the options of config.json give the function that our `model` computes."""
    if not isinstance(config, dict):
        raise ValueError(f"{path}: expected a JSON object")
    for name, (needed, default) in fixed.items():
        found = config.get(name, default)
        if found != needed:
            raise ValueError(f"{path}: {name} is {found!r}, but plkernel's {model} needs {needed!r}")


def read_tensors(path: Path) -> State:
    """The tensors of a safetensors file; ValueError when it is damaged or absent."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file (weights in several parts or in pickles are not read)")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: damaged ({error})") from error


def official_names(tensors: Mapping[str, Tensor]) -> State:
    """The tensors of an RWKV6ForCausalLM under official names; ValueError naming one that is missing or foreign."""
    left = dict(tensors)
    layers = len({name.split(".")[2] for name in left if name.startswith("model.layers.")})
    state = {ours: _take(left, there) for ours, there in OUTER.items()}
    for i in range(layers):
        for ours, there in _block_names(i).items():
            name = f"model.layers.{i}.{there}"
            _, back = CHANGES.get(ours, (None, torch.clone))
            state[f"blocks.{i}.{ours}"] = _changed(name, _take(left, name), back)
        name = f"model.layers.{i}.{X_BIAS}"
        shares = _take(left, name)
        if shares.ndim != 2 or len(shares) != len(STREAMS):
            raise ValueError(f"{name}: shape {tuple(shares.shape)}, expected (5, hidden_size)")
        for stream, share in zip(STREAMS, shares, strict=True):
            state[f"blocks.{i}.att.time_maa_{stream}"] = share
    if left:
        raise ValueError(f"tensors that RWKV6ForCausalLM does not have: {', '.join(sorted(left)[:3])}")
    return state


def write_fla(folder: Path, config: Mapping[str, Any], tensors: State) -> None:
    """Write both files, each atomically; transformers needs to be told that the tensors are of torch."""
    try:
        atomic_save(folder / WEIGHTS, lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    except SafetensorError as error:
        raise OSError(f"{folder / WEIGHTS} cannot be written: {error}") from error
    save_json(folder / CONFIG, config)


def _block_names(block: int) -> dict[str, str]:
    return {**FIRST, **BLOCK} if block == 0 else BLOCK


def _take(tensors: State, name: str) -> Tensor:
    if name not in tensors:
        raise ValueError(f"tensors are missing: {name}")
    return tensors.pop(name)


def _changed(name: str, tensor: Tensor, change: Change) -> Tensor:
    try:
        return change(tensor)
    except (RuntimeError, IndexError) as error:
        raise ValueError(f"{name}: shape {tuple(tensor.shape)} does not divide into the five streams") from error
