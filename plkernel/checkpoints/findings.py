"""What is wrong with decays, or looks so: each finding has a name, the tensor, and what was seen in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plkernel.checkpoints.formulas import Floats, Given
from plkernel.checkpoints.layers import Layer, half_lives
from plkernel.checkpoints.starts import NAMES, Start

LONGEST = 1e6  # tokens: beyond any training context
LARGEST_SHIFT = 0.02
"""Of a half-life, by rounding: more than this is a finding."""
LESS_THAN_FLOAT32 = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Finding:
    """One thing seen in one tensor, or in the half-lives of one module."""

    name: str
    tensor: str
    seen: str


def findings(layers: Sequence[Layer]) -> list[Finding]:
    """Everything that is wrong with the tensors of all layers and with the half-lives that follow from them."""
    last = max((layer.number for layer in layers), default=0)
    found: dict[Finding, None] = {}  # a tensor that several layers share is reported once
    for layer in layers:
        for role, tensor in layer.tensors.items():
            start = layer.reader.starts.get(role)
            found |= dict.fromkeys(_of_tensor(layer.names[role], tensor, start, layer.number, last + 1))
        found |= dict.fromkeys(_of_half_lives(layer))
        found |= dict.fromkeys(_of_dtype(layer))
        found |= dict.fromkeys(_of_fixed(layer))
    return list(found)


def _of_tensor(name: str, tensor: Tensor, start: Start | None, number: int, count: int) -> Iterator[Finding]:
    values = tensor.to(torch.float64).numpy()
    for kind, where in (("NaN", np.isnan(values)), ("-inf", np.isneginf(values)), ("+inf", np.isposinf(values))):
        if where.any():
            yield Finding(kind, name, _share(where))
    if start is not None and values.size > 1 and _alike(values, start(values.shape, number, count), tensor.dtype):
        yield Finding("initialisation", name, f"still is {NAMES[start]}")
    elif not values.any():
        yield Finding("zeros", name, f"all {values.size:,} numbers are zero")
    elif values.size > 1 and (values == values.flat[0]).all():
        yield Finding("all equal", name, f"all {values.size:,} numbers are {values.flat[0]:g}")


def _alike(values: Floats, expected: Floats, dtype: torch.dtype) -> bool:
    """Whether numbers are equal but for rounding to `dtype`, in whatever order of operations."""
    eps = max(torch.finfo(dtype).eps, 1e-6)
    return bool(np.allclose(values, expected, rtol=eps, atol=eps))


def _of_half_lives(layer: Layer) -> Iterator[Finding]:
    tokens, subject = half_lives(layer.rates), _subject(layer)
    if (short := tokens < 1.0).any():
        yield Finding(
            "below one token", subject, f"half-lives of {_share(short)}, the shortest {np.nanmin(tokens):.3g}"
        )
    if (long := tokens > LONGEST).any():
        yield Finding("above a million tokens", subject, f"half-lives of {_share(long)}, up to {np.nanmax(tokens):.3g}")
    if (grows := layer.rates < 0).any():
        yield Finding("grows", subject, f"{_share(grows)} grow with time: their decay is above 1")


def _of_dtype(layer: Layer) -> Iterator[Finding]:
    """Half-lives that rounding has shifted, as far as can be judged.

    Numbers in float32 are rounded to what config.json has models loaded in. Numbers rounded already lie anywhere within
    half a unit of their last place.
    """
    wanted = _dtype(layer.config.get("dtype", layer.config.get("torch_dtype")))
    for role, tensor in layer.tensors.items():
        if tensor.dtype in LESS_THAN_FLOAT32:
            wide = tensor.double()
            half = torch.finfo(tensor.dtype).eps / 2 * 2.0 ** wide.abs().clamp_min(1e-30).log2().floor()
            shift = max(_shift(layer, role, wide + half), _shift(layer, role, wide - half))
            seen = f"{_name(tensor.dtype)} leaves half-lives uncertain by up to {shift:.1%}"
        elif wanted is not None:
            cast = tensor.to(wanted)
            shift = _shift(layer, role, cast)
            merged = len(np.unique(layer.rates_of({**layer.tensors, role: cast})))
            seen = (
                f"config.json has it loaded in {_name(wanted)}, which shifts half-lives by up to {shift:.1%} and "
                f"leaves {merged:,} of {len(np.unique(layer.rates)):,} distinct ones"
            )
        else:
            continue
        if shift > LARGEST_SHIFT:
            yield Finding("dtype", layer.names[role], seen)


def _shift(layer: Layer, role: str, tensor: Tensor) -> float:
    """The largest relative change of a half-life when `role` holds other numbers."""
    other = layer.rates_of({**layer.tensors, role: tensor})
    known = np.isfinite(layer.rates) & (layer.rates > 0)
    with np.errstate(divide="ignore"):
        changes = np.abs(layer.rates[known] / other[known] - 1.0)
    return float(np.nan_to_num(changes, nan=np.inf).max(initial=0.0))


def _of_fixed(layer: Layer) -> Iterator[Finding]:
    """Decays that are fixed by definition, and are others."""
    given = Given({}, layer.config, layer.number)
    if layer.reader.fixed is None or given.setting("num_attention_heads") is None:
        return
    expected = layer.reader.fixed(given)
    same = expected.shape == layer.rates.shape
    eps = max(torch.finfo(tensor.dtype).eps for tensor in layer.tensors.values())
    if not same or not np.allclose(layer.rates, expected, rtol=max(eps, 1e-5), atol=0.0):
        yield Finding("not as defined", _subject(layer), "the slopes are not those that config.json defines")


def _subject(layer: Layer) -> str:
    """The tensors that half-lives follow from; of a layer that has none, itself."""
    return " with ".join(layer.names.values()) or layer.module


def _share(where: NDArray[np.bool_]) -> str:
    return f"{np.count_nonzero(where):,} of {where.size:,}"


def _dtype(name: object) -> torch.dtype | None:
    """One of LESS_THAN_FLOAT32 by its name."""
    return next((dtype for dtype in LESS_THAN_FLOAT32 if name == _name(dtype)), None)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
