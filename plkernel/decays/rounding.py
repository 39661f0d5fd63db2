"""Memory of a recurrent state that is stored in half precision after every step.

Without input a state is s <- round(a s), with p bits of significand, the first one included: 24 in
float32, 11 in float16, 8 in bfloat16, 4 and 3 in the two kinds of float8. Let s = m 2**e with
1 <= m < 2. It stays as it is where a step takes less than half a unit in the last place,

    (1 - a) m < 2**-p, and if m = 1, below which units are half as large, 1 - a <= 2**-(p+1),

so states of every size freeze if 1 - a <= 2**-(p+1): from a half-life of about ln 2 * 2**(p+1)
steps on (355 in bfloat16, 2,839 in float16). For shorter half-lives a step is
rounded to whole units, up or down by its size: below m = 2**-p / (1 - a) the state freezes there,
above it falls too fast or too slowly. `kept` follows it step by step.

Of half-lives so short that one step takes a state of 1 below the smallest normal number, nothing
is left to be rounded: they count as held.

A state that is stored at the ends of chunks alone is rounded that often. Inputs that vary from
step to step act as a dither, which makes the error smaller; stochastic rounding has none on the
average. A constant input is no dither: the state, on its way from 0 to s* = input / (1 - a), stops
where a step takes it less than half a unit, short of s* by a share of at most

    2**-p / (1 - a),

which is 36 % in bfloat16 at a half-life of 64, where a state without input decays as it should.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
"""Types of a state by the names that plkernel has for them."""
SHORT_NAMES = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp8": "float8_e4m3",
}
SIZES = 64
"""Significands at which a state begins, evenly spaced in their logarithm over an octave."""
TOLERANCE = 0.05
"""A half-life is held if, over states of all sizes, 45 to 55 of 100 are left after it."""
MOST_STEPS = 200_000
"""Half-lives beyond this are not followed step by step; no type but float32 is this exact."""


@dataclass(frozen=True)
class StoredHalfLives:
    """Half-lives of layers or heads, and what a stored state makes of them.

    half_lives   in steps
    kept         share of the state that is left after one of them, 0.5 if it is held
    frozen_from  half-lives from here on never decay
    """

    dtype: str
    half_lives: Floats
    kept: Floats
    frozen_from: float

    @property
    def frozen(self) -> NDArray[np.bool_]:
        """True where the state never decays, whatever its size."""
        return self.half_lives >= self.frozen_from

    @property
    def held(self) -> NDArray[np.bool_]:
        """True where half of the state is left after a half-life, within TOLERANCE."""
        return np.abs(self.kept - 0.5) <= TOLERANCE

    @property
    def lost_share(self) -> float:
        """Share of the half-lives that a state of this type does not hold; NaN of none."""
        return float(np.mean(~self.held)) if self.half_lives.size else math.nan

    @property
    def sentence(self) -> str:
        """One sentence for a terminal."""
        number = self.half_lives.size
        lost = int(np.sum(~self.held))
        told = f"a state stored as {self.dtype} after every step"
        if not lost:
            return f"{told} holds all {number} half-lives"
        shortest = float(self.half_lives[~self.held].min())
        told += f" does not hold {lost} of {number} half-lives, from {shortest:,.3g} steps on"
        frozen = int(np.sum(self.frozen))
        if frozen:
            told += f"; {frozen} never decay (half-lives of {self.frozen_from:,.0f} or more)"
        return told


def dtype_name(name: str) -> str:
    """The full name of a type of a state; ValueError for others.

    >>> dtype_name("bf16")
    'bfloat16'
    """
    full = SHORT_NAMES.get(name, name)
    if full not in DTYPES:
        valid = ", ".join([*DTYPES, *SHORT_NAMES])
        raise ValueError(f"state_dtype must be one of {valid}, got {name!r}")
    return full


def significand_bits(dtype: str) -> int:
    """Bits of the significand, with the first one, which is not stored: 8 of bfloat16."""
    return 1 - round(math.log2(torch.finfo(DTYPES[dtype_name(dtype)]).eps))


def frozen_from(dtype: str) -> float:
    """The half-life from which on a state of p bits never decays, in steps.

    -ln 2 / ln(1 - 2**-(p+1)), about ln 2 * 2**(p+1).

    >>> round(frozen_from("bfloat16")), round(frozen_from("float16"))
    (355, 2839)
    """
    smallest_step = 2.0 ** -(significand_bits(dtype) + 1)
    return -math.log(2.0) / math.log1p(-smallest_step)


def _gone_below(dtype: str) -> float:
    """The half-life below which a state of 1 has no normal number any more after one step."""
    smallest = math.log2(torch.finfo(DTYPES[dtype_name(dtype)]).tiny)
    return 1.0 / (1.0 - smallest)


def kept(half_lives: ArrayLike, dtype: str) -> Floats:
    """Share of a state that is left after one half-life, 0.5 without rounding.

    half_lives  (n,) in steps, above 0; a step multiplies by a = 2**(-1 / half-life)

    A mean over SIZES sizes of the state at the beginning, from rounding to nearest alone: the
    product is exact and then rounded. Half-lives are rounded up to whole steps, and the share is
    brought back to the half-life by the exact decay of the rest. It is 0.5 where a step takes the
    state below the smallest normal number, as nothing is left then. Raises ValueError for
    half-lives that are not above 0.
    """
    name = dtype_name(dtype)
    given = np.asarray(half_lives, dtype=np.float64)
    if given.ndim != 1 or not (given > 0).all():
        raise ValueError(f"half_lives must be a vector of numbers above 0, got {half_lives!r}")
    different, places = np.unique(given, return_inverse=True)
    shares = np.ones_like(different)
    is_decaying = different < frozen_from(name)
    is_gone = different < _gone_below(name)
    followed = is_decaying & ~is_gone & (different <= MOST_STEPS)
    shares[is_decaying & ~followed] = 0.5
    if followed.any():
        shares[followed] = _followed(different[followed], DTYPES[name])
    return shares[places]


def _followed(half_lives: Floats, dtype: torch.dtype) -> Floats:
    """`kept` of half-lives in ascending order, step by step."""
    steps = np.ceil(half_lives).astype(np.int64)
    decay = torch.from_numpy(2.0 ** (-1.0 / half_lives))[:, None]
    sizes = 2.0 ** (np.arange(SIZES) / SIZES)
    begun = torch.from_numpy(sizes).to(dtype).to(torch.float64)
    state = begun.repeat(half_lives.size, 1)
    shares = np.empty(half_lives.size)
    done = 0
    for step in range(1, int(steps[-1]) + 1):
        state[done:] = (decay[done:] * state[done:]).to(dtype).to(torch.float64)
        while done < half_lives.size and steps[done] == step:
            beyond = steps[done] - half_lives[done]
            to_the_half_life = 2.0 ** (beyond / half_lives[done])
            shares[done] = float((state[done] / begun).mean()) * to_the_half_life
            done += 1
    return shares


def stored(rates: ArrayLike, dtype: str) -> StoredHalfLives:
    """Effect of a state stored as `dtype` on decay rates -ln a per step.

    rates: any shape, finite and not below 0; a rate of 0 never decays in any type and counts as
    not held.
    """
    name = dtype_name(dtype)
    flat = np.asarray(rates, dtype=np.float64).ravel()
    is_usable = np.isfinite(flat) & (flat >= 0)
    if not is_usable.all():
        raise ValueError(f"rates must be finite and not below 0, got {flat[~is_usable][0]:g}")
    with np.errstate(divide="ignore"):
        half_lives = math.log(2.0) / flat
    shares = np.ones_like(half_lives)
    decaying = np.isfinite(half_lives)
    shares[decaying] = kept(half_lives[decaying], name)
    return StoredHalfLives(name, half_lives, shares, frozen_from(name))
