"""Mixtures of lags: each byte copies one of those before it, or is drawn anew.

Like `PottsCorpus` they have the pair law (1 - q(d)) p_i p_j + q(d) p_i [i = j], here with uniform p, and so its formula
for the information; unlike there, the best prediction of the next byte is known too.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_toeplitz
from scipy.special import entr

from plkernel.analysis.sequences.law import (
    BLOCK,
    Bytes,
    Floats,
    Windows,
    check,
    check_common,
    check_whole,
    known_bytes,
)
from plkernel.analysis.sequences.potts import potts_information

ROUNDS = 60
LIFETIMES = 20
"""So many mean lengths of a chain of copies are generated and thrown away before the first byte."""
SAMPLE = 1 << 19


@dataclass(frozen=True)
class LagMixture:
    """Each byte copies the one k before it with probability `copies[k-1]`, or is redrawn from `symbols` equal ones.

    A mixture transition distribution (Raftery, JRSS B 47:528, 1985). Two bytes d apart stem from the same draw with
    probability q(d) = sum_k copies[k-1] q(|d - k|), q(0) = 1. `copies` (K,) not negative, of a sum below 1.
    """

    copies: tuple[float, ...]
    symbols: int
    size: int
    seed: int = 0

    @cached_property
    def _chances(self) -> Floats:
        return np.asarray(self.copies, dtype=np.float64)

    @cached_property
    def _near(self) -> Floats:
        """q(0..K), (K + 1,)."""
        return self.correlation(np.arange(len(self.copies) + 1))

    def correlation(self, lags: ArrayLike) -> Floats:
        """q(d) at `lags` (L,), by fixed-point iteration to rounding: a contraction by the sum of `copies`."""
        from scipy.signal import fftconvolve  # half a second to load, for those who name such a corpus

        longest = max(len(self.copies), int(np.max(lags)))
        q = np.append(1.0, np.zeros(longest))
        for _ in range(int(np.ceil(np.log(1e-17) / np.log(self._chances.sum())))):
            mirrored = np.append(q[len(self.copies) : 0 : -1], q)
            q[1:] = fftconvolve(mirrored, self._chances)[len(self.copies) :][:longest]
        return np.asarray(q[np.asarray(lags)])

    def mutual_information(self, lags: ArrayLike) -> Floats:
        """I(d) in nats at `lags` (L,)."""
        return potts_information(self.correlation(lags), np.full(self.symbols, 1 / self.symbols))

    def sequence(self) -> Bytes:
        """The bytes (size,): chains of copies followed back to their draws, all at once by pointer doubling."""
        rng, here = np.random.default_rng(self.seed), np.arange(self._burn + self.size)
        lag = self._lags(rng, here.size)
        source = _followed(here - np.where(lag > here, 0, lag))
        return rng.integers(0, self.symbols, here.size, np.uint8)[source][self._burn :]

    def blocks(self) -> Iterator[Bytes]:
        """Another draw of the same law than `sequence`, in consecutive pieces of 128 KiB: memory is bounded.

        A shorter one is the beginning of a longer one.
        """
        rng = np.random.default_rng(self.seed)
        past = rng.integers(0, self.symbols, len(self.copies), np.uint8)
        for start in range(-math.ceil(self._burn / BLOCK) * BLOCK, self.size, BLOCK):
            data = self._continued(past, rng)
            past = data[-past.size :]
            if start >= 0:
                yield data[past.size :][: self.size - start]

    def _continued(self, past: Bytes, rng: np.random.Generator) -> Bytes:
        """`past` (K,) and the next BLOCK bytes: copies are followed to a draw in this block, or into the past."""
        lag = np.concatenate([np.zeros(past.size, np.int64), self._lags(rng, BLOCK)])
        drawn = rng.integers(0, self.symbols, BLOCK, np.uint8)
        return np.concatenate([past, drawn])[_followed(np.arange(lag.size) - lag)]

    @property
    def _burn(self) -> int:
        reach = self._chances @ np.arange(1, self._chances.size + 1) / (1 - self._chances.sum())
        return int(LIFETIMES * reach)

    def _lags(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """How far back `count` bytes copy from, 0 for a new draw."""
        lag = np.searchsorted(self._chances.cumsum(), rng.random(count), side="right") + 1
        return np.where(lag > self._chances.size, 0, lag)

    def losses(self, windows: Windows, given: int | None = None) -> Floats:
        """`Predictor.losses`, with K = len(copies) and c bytes given, by

            P(x) = 1 / S + sum_{k<=c} a_k ([x[t+1-k] = x] - 1 / S) ,  sum_{j<=c} a_j q(|i - j|) = q(i), i = 1..c .

        For c >= K these a are the `copies` and P is exact, as it is for c = 1. Between, P is the best that is linear in
        the bytes given, which say a little about those that are not: on average within 2e-5 bits of Bayes' rule
        wherever both were enumerated, where copies from beyond c, spread evenly, would cost up to 1 bit.
        """
        known, steps = known_bytes(windows, self.symbols, given), windows.shape[1] - 1
        before, after, most = windows[:, :-1], windows[:, 1:], min(known, len(self.copies))
        share = (before < self.symbols) / self.symbols  # 0 where a byte is no symbol and says nothing
        found, weights = np.full(after.shape, 1 / self.symbols), np.zeros(0)
        for count, weights in enumerate(linear_weights(self._near[: most + 1]), start=1):  # as a window begins
            alike = (before[:, :count] == after[:, count - 1 : count]) - share[:, :count]
            found[:, count - 1] += alike[:, ::-1] @ weights
        for lag, weight in enumerate(weights, start=1):
            source = slice(most + 1 - lag, steps + 1 - lag)
            found[:, most:] += weight * ((before[:, source] == after[:, most:]) - share[:, source])
        return -np.log2(found)

    def bits_per_byte(self) -> float:
        """The mean entropy of the next byte's distribution, over 512 KiB of `blocks`."""
        from scipy.signal import oaconvolve

        longest = self._chances.size
        data = np.concatenate(list(replace(self, size=SAMPLE + longest).blocks()))
        bits = 0.0
        for symbol in range(self.symbols):
            copied = oaconvolve(data == symbol, self._chances)[longest - 1 : data.size - 1]
            bits += entr(copied + (1 - self._chances.sum()) / self.symbols).mean() / math.log(2)
        return float(bits)


def linear_weights(correlation: Floats) -> Iterator[Floats]:
    """a (c,) that solve sum_{j<=c} a_j q(|i - j|) = q(i), i = 1..c, for c = 1..C; `correlation` is q(0..C), q(0) = 1.

    Levinson's recursion (Durbin, Rev. Inst. Int. Stat. 28:233, 1960).
    """
    weights, error = np.zeros(0), 1.0
    for count in range(1, correlation.size):
        last = (correlation[count] - weights @ correlation[count - 1 : 0 : -1]) / error
        weights = np.append(weights - last * weights[::-1], last)
        error *= 1 - last**2
        yield weights


def _followed(source: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the chains source[source[..]] end, all at once by pointer doubling."""
    while np.any((further := source[source]) != source):
        source = further
    return source


def decaying_copies(alpha: float, longest: int, redrawn: float) -> tuple[float, ...]:
    """Chances (longest,) of copying from k before, ~ k**-alpha, that leave `redrawn` for a new draw."""
    weights = np.arange(1.0, longest + 1) ** -alpha
    return tuple(((1 - redrawn) * weights / weights.sum()).tolist())


def power_law_copies(beta: float, first: float, longest: int, symbols: int) -> tuple[float, ...]:
    """Chances (longest,) of copying under which I(d) = first * d**-beta nats, exactly, at d = 1..longest.

    q(d) by inverting the information, then the Toeplitz system of q for `copies`. ValueError where it has no solution
    that is a probability.
    """
    wanted, shares = first * np.arange(1.0, longest + 1) ** -beta, np.full(symbols, 1 / symbols)
    q = np.sqrt(2 * wanted / (symbols - 1))  # what small ones give; ln I rises by about 2 ln q
    for _ in range(ROUNDS):
        q *= np.sqrt(wanted / potts_information(q, shares))
    copies = solve_toeplitz(np.append(1.0, q[:-1]), q)
    if copies.min() < 0 or copies.sum() >= 1:
        raise ValueError(f"beta {beta:g}, first {first:g}: no mixture of lags has this information")
    return tuple(copies.tolist())


@dataclass(frozen=True)
class LagCorpus:
    """Each byte copies the one d before it, d = 1..longest, with a probability ~ d**-alpha, or is drawn anew.

    alpha    exponent of the copies, from 0 on; also that of the optimal predictor's weights
    longest  lag, 1 to 16384
    redrawn  probability of a new draw, from 0.01 to below 1
    symbols  size of the alphabet; the bytes are 0..symbols-1
    size     bytes in the sequence
    seed     of the generator; a shorter sequence is the beginning of a longer one

    Raises ValueError for parameters outside these ranges.

    >>> corpus = LagCorpus(longest=16, size=1000)
    >>> corpus.correlation([1, 4, 16]).round(4).tolist()
    [0.4135, 0.3051, 0.2041]
    """

    alpha: float = 1.0
    longest: int = 256
    redrawn: float = 0.2
    symbols: int = 16
    size: int = 10_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        check(0 <= self.alpha < math.inf, "alpha", self.alpha, "a number of at least 0")
        check_whole("longest", self.longest, 1, 16384)
        check(0.01 <= self.redrawn < 1, "redrawn", self.redrawn, "from 0.01 to below 1")
        check_common(self.symbols, self.size, self.seed)

    @cached_property
    def mixture(self) -> LagMixture:
        """The same with every chance written out."""
        return LagMixture(decaying_copies(self.alpha, self.longest, self.redrawn), self.symbols, self.size, self.seed)

    def correlation(self, lags: ArrayLike) -> Floats:
        """q(d) at `lags` (L,)."""
        return self.mixture.correlation(lags)

    def mutual_information(self, lags: ArrayLike) -> Floats:
        """I(d) in nats at `lags` (L,)."""
        return self.mixture.mutual_information(lags)

    def blocks(self) -> Iterator[Bytes]:
        """The sequence in consecutive pieces of 128 KiB."""
        return self.mixture.blocks()

    def losses(self, windows: Windows, given: int | None = None) -> Floats:
        """`LagMixture.losses`."""
        return self.mixture.losses(windows, given)

    def bits_per_byte(self) -> float:
        """`LagMixture.bits_per_byte`."""
        return self.mixture.bits_per_byte()
