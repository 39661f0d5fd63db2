"""Sequences of bytes whose mutual information is known exactly, at every lag, in closed form."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plkernel.analysis.sequences.law import BLOCK, Floats, check, check_common, check_whole

CELLS = 1 << 12
SMALL = 0.01
LONGEST_LIFETIME = 1e15


@dataclass(frozen=True)
class PottsCorpus:
    """P(x_t = i, x_{t+d} = j) = (1 - q(d)) p_i p_j + q(d) p_i [i = j], the pair law of a Potts model.

    Channel k = 0..channels-1 holds one symbol and redraws it from p in a step with probability 1 - exp(-1/tau_k),
    tau_k = base**k steps. Each step shows one channel, number k with probability w_k ~ tau_k**(-beta/4), the w_k
    adding up to 1. Two steps d apart show the same draw with probability

        q(d) = sum_k w_k**2 exp(-d/tau_k),

    independent draws otherwise. For lags far from both 1 and the longest tau, q falls as d**(-beta/2) and the
    mutual information, which is quadratic in a small q, as d**-beta. Within a finite range it does not: compare
    estimates with `mutual_information` on the same lags and never with the nominal beta (0.5 gives a log-log slope
    of 0.64 over 1..500, log-spaced lags, 16 symbols).

    beta           nominal exponent of the mutual information
    symbols        size of the alphabet; the bytes are 0..symbols-1
    size           bytes in the sequence
    seed           of the generator, PCG64; a shorter sequence is the beginning of a longer one
    base           ratio of the lifetimes of neighbouring channels
    channels       how many there are
    probabilities  p, `symbols` positive numbers that add up to 1; None for 1/symbols each

    Raises ValueError for parameters outside these ranges.

    >>> corpus = PottsCorpus(beta=1.0)
    >>> corpus.mutual_information([1, 10, 100]).round(6).tolist()
    [0.028778, 0.003852, 0.000354]
    """

    beta: float
    symbols: int = 16
    size: int = 10_000_000
    seed: int = 0
    base: float = 2.0
    channels: int = 14
    probabilities: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check(0 < self.beta < math.inf, "beta", self.beta, "a positive number")
        check_common(self.symbols, self.size, self.seed)
        check(1 < self.base < math.inf, "base", self.base, "above 1")
        longest = math.floor(math.log(LONGEST_LIFETIME) / math.log(self.base))
        check_whole("channels", self.channels, 1, min(1 + longest, 256))
        shares = self.shares
        check(shares.shape == (self.symbols,), "number of probabilities", shares.size, f"symbols, {self.symbols}")
        check(shares.min() > 0, "smallest probability", shares.min(), "above 0")
        check(abs(shares.sum() - 1) < 1e-9, "sum of probabilities", shares.sum(), "1")

    @property
    def shares(self) -> Floats:
        """p, shape (symbols,)."""
        return np.full(self.symbols, 1 / self.symbols) if self.probabilities is None else np.array(self.probabilities)

    @property
    def lifetimes(self) -> Floats:
        """tau_k = base**k in steps, shape (channels,)."""
        return np.asarray(float(self.base) ** np.arange(self.channels), dtype=np.float64)

    @property
    def weights(self) -> Floats:
        """w_k ~ tau_k**(-beta/4), adding up to 1, shape (channels,)."""
        weights = self.lifetimes ** (-self.beta / 4)
        return weights / weights.sum()

    def correlation(self, lags: ArrayLike) -> Floats:
        """q(d) = sum_k w_k**2 exp(-d/tau_k) at `lags`, shape (L,), each at least 1; ValueError for others.

        Every non-trivial singular value of P(i,j;d) / sqrt(p_i p_j) equals it.
        """
        lags = np.asarray(lags, dtype=float)
        if lags.ndim != 1 or not np.all(lags >= 1):
            raise ValueError(f"lags must be a vector of numbers from 1 on, got {lags}")
        return np.asarray(np.exp(-np.outer(lags, 1 / self.lifetimes)) @ self.weights**2)

    def mutual_information(self, lags: ArrayLike) -> Floats:
        """I(d) in nats between bytes `lags` apart, exact, shape (L,)."""
        return potts_information(self.correlation(lags), self.shares)

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """The sequence, uint8, in consecutive pieces of 128 KiB, the last one shorter: memory does not grow with size.

        The same parameters give the same bytes. Every call starts anew.
        """
        rng = np.random.Generator(np.random.PCG64(self.seed))
        channels = _Channels(np.zeros(self.channels, np.int64), _draw(rng, self.shares, self.channels))
        for start in range(0, self.size, BLOCK):
            yield self._block(rng, channels)[: self.size - start]

    def _block(self, rng: np.random.Generator, channels: "_Channels") -> NDArray[np.uint8]:
        """The next BLOCK bytes; `channels` is moved on in place.

        Only what is shown is simulated: a channel last shown g steps ago has since redrawn its symbol with probability
        1 - exp(-g/tau_k), independently of everything before. Steps are sorted by channel, each channel led by what
        the block before left of it, so that one pass serves all channels.
        """
        steps = np.concatenate([channels.seen, np.arange(BLOCK)])
        shown = np.concatenate([np.arange(self.channels, dtype=np.uint8), _draw(rng, self.weights, BLOCK)])
        order = np.argsort(shown, kind="stable")
        carried = order < self.channels
        gaps = np.diff(steps[order], prepend=0)
        redrawn = rng.standard_exponential(order.size) * self.lifetimes[shown[order]] < gaps
        source = np.cumsum(redrawn | carried) - 1
        symbols = _draw(rng, self.shares, source[-1] + 1)
        symbols[source[carried]] = channels.symbols
        out = np.empty_like(shown)
        out[order] = symbols[source]
        last = np.cumsum(np.bincount(shown)) - 1
        channels.seen[:] = steps[order[last]] - BLOCK
        channels.symbols[:] = symbols[source[last]]
        return out[self.channels :]


class _Channels(NamedTuple):
    """Per channel the step, counted from the start of the next block, when it was last shown, and its symbol then."""

    seen: NDArray[np.int64]
    symbols: NDArray[np.uint8]


def potts_information(correlation: ArrayLike, shares: Floats) -> Floats:
    """I(q) = sum_i p_i (q + (1-q) p_i) ln((q + (1-q) p_i) / p_i) + (1 - sum_i p_i**2) (1-q) ln(1-q) in nats.

    The mutual information of P_ij = (1-q) p_i p_j + q p_i [i = j]; `correlation` q has shape (L,), values in [0, 1),
    `shares` p shape (S,). Derivation: P_ij = p_i p_j (1 + x_ij), x_ii = q (1 - p_i) / p_i and x_ij = -q elsewhere;
    because sum_ij p_i p_j x_ij = 0, I = sum_ij p_i p_j h(x_ij) with h(x) = (1 + x) ln(1 + x) - x, no term of which
    is negative. It is evaluated so: in the formula above the terms of first order in q cancel, and with them all
    digits of a small I.

    >>> float(potts_information([1e-9], np.array([0.5, 0.5]))[0])
    5e-19
    """
    q = np.asarray(correlation, dtype=float)
    alike = shares**2 @ _divergence(np.outer((1 - shares) / shares, q))
    return np.asarray(alike + (1 - shares @ shares) * _divergence(-q))


def _divergence(x: Floats) -> Floats:
    """(1 + x) ln(1 + x) - x for x > -1, to full relative precision."""
    series = np.polyval([(-1.0) ** n / (n * (n - 1)) for n in range(10, 1, -1)], x) * x**2
    return np.where(np.abs(x) < SMALL, series, (1 + x) * np.log1p(x) - x)


def _draw(rng: np.random.Generator, shares: Floats, count: int) -> NDArray[np.uint8]:
    """`count` independent indices, number i with probability shares[i].

    The inverse of the distribution function, looked up in a table but for the few cells that hold a jump of it:
    half the time of `np.searchsorted` for all.
    """
    edges = np.cumsum(shares)[:-1]
    table = np.searchsorted(edges, np.arange(CELLS + 1) / CELLS, side="right").astype(np.uint8)
    uniform = rng.random(count)
    cells = (uniform * CELLS).astype(np.int64)
    drawn = table[cells]
    unsure = np.flatnonzero(table[cells + 1] != drawn)
    drawn[unsure] = np.searchsorted(edges, uniform[unsure], side="right")
    return drawn
