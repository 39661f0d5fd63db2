"""A checkpoint as names and arrays, whatever its files are, and the types that numbers may have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plkernel.decays.families import Floats

MOST_DIMENSIONS = 8
"""Dimensions of a tensor of decays."""
TYPES: dict[str, tuple[str, str, float]] = {
    "F64": ("float64", "<f8", 2.0**-52),
    "F32": ("float32", "<f4", 2.0**-23),
    "F16": ("float16", "<f2", 2.0**-10),
    "BF16": ("bfloat16", "<u2", 2.0**-7),
    "F8_E5M2": ("float8_e5m2", "u1", 2.0**-2),
    "F8_E4M3": ("float8_e4m3fn", "u1", 2.0**-3),
}
"""Types of .safetensors files: torch's name, how numpy reads the bytes, and the distance from 1 to
the next number.
"""
EPS = {name: eps for name, _, eps in TYPES.values()}
"""Distances from 1 to the next number, by torch's name of the type."""


def widened(raw: Any, dtype: str) -> Floats:
    """Numbers as numpy has read them (see TYPES) in float64; `dtype` is torch's name of their type.

    numpy has no bfloat16 and no float8: their bits are read as integers. bfloat16 is the upper half
    of a float32, float8_e5m2 that of a float16.
    """
    values = raw
    if dtype == "bfloat16":
        values = (raw.astype(np.uint32) << 16).view(np.float32)
    elif dtype == "float8_e5m2":
        values = (raw.astype(np.uint16) << 8).view(np.float16)
    elif dtype == "float8_e4m3fn":
        values = _of_float8_e4m3fn(raw)
    with np.errstate(invalid="ignore"):  # of NaN
        wide: Floats = values.astype(np.float64)
    return wide


def _of_float8_e4m3fn(raw: Any) -> Floats:
    """Numbers of bytes with a sign, 4 bits of exponent (bias 7) and 3 of mantissa.

    NaN where all bits but the sign are set.
    """
    exponent = (raw >> 3 & 15).astype(int)
    mantissa = (raw & 7) / 8
    normal = np.ldexp(1 + mantissa, exponent - 7)
    subnormal = np.ldexp(mantissa, -6)
    size = np.where(exponent > 0, normal, subnormal)
    signed = np.where(raw & 128, -size, size)
    return np.where(raw & 127 == 127, np.nan, signed)


@dataclass(frozen=True)
class Stored:
    """A tensor of decays, widened to float64, and the name in torch of the type it is stored in.

    raw  the numbers as they are stored, where these are -exp(values)
    """

    values: Floats
    dtype: str
    raw: Floats | None = None

    @property
    def eps(self) -> float:
        """Distance from 1 to the next number of the stored type."""
        return EPS[self.dtype]


@dataclass(frozen=True)
class Checkpoint:
    """Names of the tensors of a checkpoint, its config.json, and how to read a tensor.

    config.json is empty if there is none.

    size     how many numbers a tensor holds, by its name, known before they are read
    read     a tensor, by its name; ValueError unless it holds floating-point numbers
    numbers  how many numbers all tensors hold together, at most; two in a byte of whole numbers,
             as quantised weights have
    part     name of the dictionary in the file that was read, if it is one of several
    copies   names of the others with weights of the same names, as an average of the model
    """

    names: tuple[str, ...]
    config: Mapping[str, Any]
    size: Callable[[str], int]
    read: Callable[[str], Stored]
    numbers: Callable[[], int]
    part: str = ""
    copies: tuple[str, ...] = ()
