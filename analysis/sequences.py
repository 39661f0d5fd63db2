"""Sequences of a known law: their bytes, exact information, and best possible prediction."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Windows = NDArray[np.integer[Any]]

BLOCK = 1 << 17
"""Bytes generated at a time."""
SMALL = 0.01
"""Below this (1 + x) ln(1 + x) - x is taken from its series: nine terms give all digits."""
UNSEEN = 1e-17
"""Error of a fixed point at which iteration ends, below the rounding of 1."""
LIFETIMES = 20
"""So many mean lengths of a chain of copies are generated and thrown away before the first byte."""
ROUNDING = 1e-14
"""Nats of a chain from which down only rounding is left."""
CHANCES = 4096
"""Transition probabilities of a Markov chain are multiples of one over this."""
SLOWEST = 0.999
"""The largest second eigenvalue of a chain: memory of some thousand bytes."""


class Predictor(Protocol):
    """The prediction of each next byte by the law that the bytes were drawn from.

    No model is better on average.
    """

    def losses(self, windows: Windows, given: int | None = None, first: int = 0) -> Floats:
        """-log2 P(x[t+1] | x[t], x[t-1] .. x[t+1-c]) in bits, t = first..T-1, (n, T - first).

        Windows x are (n, T + 1). c is `given`, but at most the t + 1 bytes that the window has;
        None for all of them. A byte in the context that is no symbol, such as a separator, counts
        as not known. Raises ValueError where one is to be predicted.
        """

    def bits_per_byte(self) -> float:
        """The mean loss in the long run, the whole past given."""


LIMITS: dict[str, tuple[float, float, str]] = {
    "symbols": (2, 256, "a whole number from 2 to 256"),
    "size": (1, math.inf, "a whole number of at least 1"),
    "seed": (0, math.inf, "a whole number of at least 0"),
    "beta": (math.nextafter(0, 1), sys.float_info.max, "a positive number"),
    "base": (math.nextafter(1, 2), 1e6, "above 1"),
    "channels": (1, 256, "a whole number from 1 to 256"),
    "alpha": (0, sys.float_info.max, "a number of at least 0"),
    "longest": (1, 16384, "a whole number from 1 to 16384"),
    "shortest": (1, 16384, "a whole number from 1 to 16384"),
    "redrawn": (0.01, math.nextafter(1, 0), "from 0.01 to below 1"),
    "spread": (0.01, 1000, "from 0.01 to 1000"),
}
"""Least and largest value of each parameter of a law, and these in words."""


class Sequence:
    """Common part of all sequences.

    `symbols` different bytes 0..symbols-1, `size` of them, from the seed `seed`. The same
    parameters give the same bytes (generator PCG64), and a shorter sequence is the beginning of a
    longer one. Raises ValueError for parameters outside `LIMITS`.
    """

    symbols: int
    size: int
    seed: int

    def __post_init__(self) -> None:
        for name, (least, most, wanted) in LIMITS.items():
            value = getattr(self, name, least)
            if not least <= value <= most or ("whole" in wanted and not isinstance(value, int)):
                raise ValueError(f"{name} must be {wanted}, got {value}")

    def _endless(self) -> Iterator[Bytes]:
        """Blocks of BLOCK bytes."""
        raise NotImplementedError

    def correlation(self, lags: ArrayLike) -> Floats:
        """q(d) at `lags` (L,): how much symbols d apart correlate.

        In the law P(x_t = i, x_{t+d} = j) = (1 - q(d)) p_i p_j + q(d) p_i [i = j], p_i = 1 / S, it
        is every non-trivial singular value of P(i,j;d) / sqrt(p_i p_j).
        """
        raise NotImplementedError

    def mutual_information(self, lags: ArrayLike) -> Floats:
        """I(d) in nats between bytes `lags` apart, exact, shape (L,)."""
        return potts_information(self.correlation(lags), self.symbols)

    def blocks(self) -> Iterator[Bytes]:
        """The sequence, uint8, in consecutive pieces of 128 KiB, the last one shorter.

        Memory does not grow with size. Every call starts anew.
        """
        for start, data in zip(range(0, self.size, BLOCK), self._endless(), strict=False):
            yield data[: self.size - start]

    def sequence(self) -> Bytes:
        """All `blocks` in one, (size,)."""
        return np.concatenate(list(self.blocks()))

    def _given(self, windows: Windows, given: int | None) -> int:
        """Return `given`, at most the T that windows (n, T + 1) have.

        Raises ValueError as `Predictor.losses`.
        """
        most = int(windows[:, 1:].max()) if windows.shape[0] else 0
        if most >= self.symbols:
            raise ValueError(
                f"windows must hold bytes of this corpus, 0..{self.symbols - 1}, got byte {most}"
            )
        steps = windows.shape[1] - 1
        return steps if given is None else min(given, steps)


def potts_information(correlation: ArrayLike, symbols: int) -> Floats:
    """I(q) in nats of two symbols that correlate by q, of P_ij = (1-q) p_i p_j + q p_i [i = j].

        I = sum_i p_i (q + (1-q) p_i) ln((q + (1-q) p_i) / p_i) + (1 - sum_i p_i**2) (1-q) ln(1-q)

    correlation  q, (L,), values in [0, 1)
    symbols      how many there are, each of the share p_i = 1 / symbols

    In this formula the terms of first order in q cancel, and with them all digits of a small I.
    With P_ij = p_i p_j (1 + x_ij), x_ii = q (1 - p_i) / p_i and x_ij = -q elsewhere, sum_ij p_i p_j
    x_ij = 0, so that I = sum_ij p_i p_j h(x_ij) with h(x) = (1 + x) ln(1 + x) - x, no term of which
    is negative. It is evaluated so.

    >>> float(potts_information([1e-9], 2)[0])
    5e-19
    """

    def divergence(x: Floats) -> Floats:
        """(1 + x) ln(1 + x) - x for x > -1, to full relative precision."""
        series = np.polyval([(-1.0) ** n / (n * (n - 1)) for n in range(10, 1, -1)], x) * x**2
        return np.where(np.abs(x) < SMALL, series, (1 + x) * np.log1p(x) - x)

    q = np.asarray(correlation, dtype=float)
    shares = np.full(symbols, 1 / symbols)
    alike = shares**2 @ divergence(np.outer((1 - shares) / shares, q))
    return np.asarray(alike + (1 - shares @ shares) * divergence(-q))


@dataclass(frozen=True)
class PottsCorpus(Sequence):
    """The pair law of a Potts model.

    Channel k = 0..channels-1 holds one symbol and draws it anew in a step with probability 1 -
    exp(-1/tau_k), tau_k = base**k steps. Each step shows one channel, number k with probability w_k
    ~ tau_k**(-beta/4), the w_k adding up to 1. Two steps d apart show the same draw with
    probability

        q(d) = sum_k w_k**2 exp(-d/tau_k),

    independent draws otherwise. For lags far from both 1 and the longest tau, q falls as
    d**(-beta/2) and the mutual information, which is quadratic in a small q, as d**-beta. Within a
    finite range it does not: compare estimates with `mutual_information` on the same lags and never
    with the nominal beta (0.5 gives a log-log slope of 0.64 over 1..500, log-spaced lags, 16
    symbols).

    beta           nominal exponent of the mutual information
    symbols, size, seed  as of any `Sequence`
    base           ratio of the lifetimes of neighbouring channels
    channels       number of channels

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
        """q(d) = sum_k w_k**2 exp(-d/tau_k) at `lags`, shape (L,), each at least 1."""
        decayed = np.exp(-np.outer(np.asarray(lags, dtype=float), 1 / self.lifetimes))
        return np.asarray(decayed @ self.weights**2)

    def _endless(self) -> Iterator[Bytes]:
        """Simulate what is shown.

        A channel last shown g steps ago has redrawn with probability 1 - exp(-g/tau_k). Steps are
        sorted by channel, each channel led by what the block before left of it, so one pass serves
        all.
        """
        rng = np.random.default_rng(self.seed)
        shares = np.full(self.symbols, 1 / self.symbols)
        # Of each channel the step when it was last shown, from the start of the next block, and its
        # symbol then.
        seen = np.zeros(self.channels, np.int64)
        held = _draw(rng, shares, self.channels)
        every = np.arange(self.channels, dtype=np.uint8)
        while True:
            steps = np.concatenate([seen, np.arange(BLOCK)])
            shown = np.concatenate([every, _draw(rng, self.weights, BLOCK)])
            order = np.argsort(shown, kind="stable")
            carried = order < self.channels
            gaps = np.diff(steps[order], prepend=0)
            redrawn = rng.standard_exponential(order.size) * self.lifetimes[shown[order]] < gaps
            source = np.cumsum(redrawn | carried) - 1
            symbols = _draw(rng, shares, source[-1] + 1)
            symbols[source[carried]] = held
            out = np.empty_like(shown)
            out[order] = symbols[source]
            last = np.cumsum(np.bincount(shown)) - 1
            seen = steps[order[last]] - BLOCK
            held = symbols[source[last]]
            yield out[self.channels :]


def _draw(rng: np.random.Generator, shares: Floats, count: int) -> Bytes:
    """`count` independent indices, number i with probability shares[i]."""
    return np.searchsorted(np.cumsum(shares)[:-1], rng.random(count), side="right").astype(np.uint8)


@dataclass(frozen=True)
class LagCorpus(Sequence):
    """Each byte copies the one d before it, d = shortest..longest, with a probability ~ d**-alpha.

    Otherwise the byte is drawn anew. A mixture transition distribution (Raftery, JRSS B 47:528,
    1985). Two bytes d apart stem from the same draw with probability q(d) = sum_k chances[k-1]
    q(|d - k|), q(0) = 1. Pair law and information are those of a Potts sequence; unlike there, the
    best prediction of the next byte is known too.

    alpha                exponent of the copies, from 0 on; also that of the optimal predictor's
                         weights
    longest              lag, 1 to 16384
    redrawn              probability of a new draw, from 0.01 to below 1
    symbols, size, seed  as of any `Sequence`
    shortest             lag, 1 to longest

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
    shortest: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shortest > self.longest:
            raise ValueError(
                f"shortest must be at most longest, {self.longest}, got {self.shortest}"
            )

    @property
    def has_tiny_powers(self) -> bool:
        """True where k**-alpha has lost its digits, or is 0, from the shortest lag on.

        Chances are of powers relative to the first then.
        """
        return bool(float(self.shortest) ** -self.alpha < np.finfo(np.float64).tiny)

    @cached_property
    def chances(self) -> Floats:
        """Chances (K,) of copying the byte k before, k = 1..K, ~ k**-alpha.

        `redrawn` remains for a new draw.
        """
        lags = np.arange(float(self.shortest), self.longest + 1)
        weights = lags**-self.alpha
        if self.has_tiny_powers:
            weights = (lags / self.shortest) ** -self.alpha
        padded = np.append(np.zeros(self.shortest - 1), weights)
        return np.asarray((1 - self.redrawn) * padded / padded.sum())

    @cached_property
    def _near(self) -> Floats:
        """q(0..K), (K + 1,)."""
        return self.correlation(np.arange(self.chances.size + 1))

    def correlation(self, lags: ArrayLike) -> Floats:
        """q(d) at `lags` (L,), by fixed-point iteration to rounding.

        It is a contraction by the sum of the chances.
        """
        # For those alone who name such a corpus; scipy.signal takes half a second to load.
        from scipy.fft import irfft, next_fast_len, rfft

        far = self.chances.size
        longest = max(far, int(np.max(lags)))
        size = next_fast_len(2 * far + longest, real=True)
        chances = rfft(self.chances, size)
        q = np.append(1.0, np.zeros(longest))
        rounds = np.log(UNSEEN) / np.log(self.chances.sum())
        for _ in range(int(np.ceil(rounds))):
            mirrored = np.append(q[far:0:-1], q)
            q[1:] = irfft(rfft(mirrored, size) * chances, size)[far:][:longest]
        return np.asarray(q[np.asarray(lags)])

    def _endless(self) -> Iterator[Bytes]:
        """Draw every byte, and let those that copy point at their source until it is a draw."""
        rng = np.random.default_rng(self.seed)
        far = self.chances.size
        past = rng.integers(0, self.symbols, far, np.uint8)
        reach = self.chances @ np.arange(1, far + 1) / (1 - self.chances.sum())
        warming = math.ceil(int(LIFETIMES * reach) / BLOCK)
        while True:
            copied = np.searchsorted(self.chances.cumsum(), rng.random(BLOCK), side="right") + 1
            lag = np.concatenate([np.zeros(far, np.int64), np.where(copied > far, 0, copied)])
            drawn = np.concatenate([past, rng.integers(0, self.symbols, BLOCK, np.uint8)])
            source = np.arange(lag.size) - lag
            # To a draw in this block, or into the past:
            further = source[source]
            while np.any(further != source):
                source = further
                further = source[source]
            data = drawn[source]
            past = data[-far:]
            if warming <= 0:
                yield data[far:]
            warming -= 1

    def losses(self, windows: Windows, given: int | None = None, first: int = 0) -> Floats:
        """`Predictor.losses`, with K = len(chances) and c bytes given, by

            P(x) = 1 / S + sum_{k<=c} a_k ([x[t+1-k] = x] - 1 / S) ,
            sum_{j<=c} a_j q(|i - j|) = q(i),  i = 1..c .

        For c >= K these a are the chances and P is exact, as it is for c = 1. Between, P is the
        best that is linear in the bytes given, which say a little about those that are not: on
        average within 2e-5 bits of Bayes' rule wherever both were enumerated, where copies from
        beyond c, spread evenly, would cost up to 1 bit.
        """
        known = self._given(windows, given)
        steps = windows.shape[1] - 1
        before = windows[:, :-1]
        after = windows[:, 1:]
        most = min(known, self.chances.size)
        # 1 / S, and 0 where a byte is no symbol and says nothing.
        share = (before < self.symbols) / self.symbols
        chance = np.full(after.shape, 1 / self.symbols)
        # As a window begins, each byte has one more before it; then all have `most`.
        weights = np.zeros(0)
        for count, weights in enumerate(linear_weights(self._near[: most + 1]), start=1):
            if count > first:
                alike = (before[:, :count] == after[:, count - 1 : count]) - share[:, :count]
                chance[:, count - 1] += alike[:, ::-1] @ weights
        begin = max(most, first)
        for lag, weight in enumerate(weights, start=1):
            source = slice(begin + 1 - lag, steps + 1 - lag)
            alike = (before[:, source] == after[:, begin:]) - share[:, source]
            chance[:, begin:] += weight * alike
        return -np.log2(chance[:, first:])

    def bits_per_byte(self) -> float:
        """The mean entropy of the next byte's distribution, over 512 KiB of `blocks`."""
        from scipy.fft import irfft, next_fast_len, rfft
        from scipy.special import entr

        longest = self.chances.size
        data = replace(self, size=(1 << 19) + longest).sequence()
        size = next_fast_len(data.size + longest - 1, real=True)
        chances = rfft(self.chances, size)
        bits = 0.0
        for symbol in range(self.symbols):
            alike = rfft(data == symbol, size)
            copied = irfft(alike * chances, size)[longest - 1 : data.size - 1]
            bits += entr(copied + (1 - self.chances.sum()) / self.symbols).mean() / math.log(2)
        return float(bits)


def linear_weights(correlation: Floats) -> Iterator[Floats]:
    """a (c,) that solve sum_{j<=c} a_j q(|i - j|) = q(i), i = 1..c, for c = 1..C one after another.

    correlation: q(0..C), q(0) = 1. Levinson's recursion (Durbin, Rev. Inst. Int. Stat. 28:233,
    1960).
    """
    weights = np.zeros(0)
    error = 1.0
    for count in range(1, correlation.size):
        last = (correlation[count] - weights @ correlation[count - 1 : 0 : -1]) / error
        weights = np.append(weights - last * weights[::-1], last)
        error *= 1 - last**2
        yield weights


@dataclass(frozen=True)
class MarkovChain(Sequence):
    """A chain of `symbols` states whose transitions are drawn from Dirichlet(`spread`).

    They are the same for every seed. Its information falls exponentially and has no Potts form: the
    negative control. Raises ValueError also where so small a `spread` has made a chain that does
    not forget.
    """

    symbols: int = 16
    spread: float = 0.3
    size: int = 10_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = np.sort(np.abs(np.linalg.eigvals(self.transitions / CHANCES)))
        second = sizes[-2]
        if not second < SLOWEST:
            raise ValueError(
                f"spread must be larger with {self.symbols} symbols, so that the chain forgets, got"
                f" {self.spread}"
            )

    @cached_property
    def transitions(self) -> NDArray[np.int64]:
        """(S, S), rows adding up to CHANCES."""
        rng = np.random.default_rng(self.symbols)
        rows = rng.dirichlet(np.full(self.symbols, self.spread), self.symbols)
        return rng.multinomial(CHANCES, rows)

    @cached_property
    def stationary(self) -> Floats:
        """(S,): the left eigenvector of eigenvalue 1."""
        values, vectors = np.linalg.eig(self.transitions.T / CHANCES)
        leading = np.abs(np.real(vectors[:, np.argmax(np.real(values))]))
        return np.asarray(leading / leading.sum())

    def mutual_information(self, lags: ArrayLike) -> Floats:
        """I(d) = sum_ij pi_i P^d_ij ln(P^d_ij / pi_j) in nats at `lags` (L,); 0 below rounding."""
        # A state that the chain leaves for good has share 0, and no byte of a pair is one.
        lasting = np.flatnonzero(self.stationary > 0)
        shares = self.stationary[lasting]
        nats = []
        for lag in np.atleast_1d(lags):
            step = np.linalg.matrix_power(self.transitions / CHANCES, int(lag))
            step = step[np.ix_(lasting, lasting)]
            ratio = np.divide(step, shares, out=np.ones_like(step), where=step > 0)
            nats.append(shares @ np.sum(step * np.log(ratio), axis=1))
        return np.where(np.array(nats) <= ROUNDING, 0.0, nats)

    def bits_per_byte(self) -> float:
        """-sum_ij pi_i P_ij log2 P_ij, the entropy rate."""
        from scipy.special import entr

        return float(self.stationary @ entr(self.transitions / CHANCES).sum(axis=1)) / math.log(2)

    def losses(self, windows: Windows, given: int | None = None, first: int = 0) -> Floats:
        """`Predictor.losses`: by the transition from the last byte.

        By the stationary shares where that byte is unknown.
        """
        known = self._given(windows, given)
        with np.errstate(divide="ignore"):
            bits = -np.log2(np.vstack([self.transitions / CHANCES, self.stationary]))
        unknown = self.symbols  # the row of the stationary shares
        if known:
            rows: Any = np.minimum(windows[:, :-1].astype(np.intp), unknown)
        else:
            rows = unknown
        return np.asarray(bits[rows, windows[:, 1:]][:, first:])

    def _endless(self) -> Iterator[Bytes]:
        """Each byte by a draw of CHANCES, in a table of those that follow the byte before."""
        rng = np.random.default_rng(self.seed)
        every = np.arange(self.symbols, dtype=np.uint8)
        follow = [np.repeat(every, row).tobytes() for row in self.transitions]
        state = int(rng.choice(self.symbols, p=self.stationary))
        while True:
            states = []
            for draw in rng.integers(0, CHANCES, BLOCK).tolist():
                state = follow[state][draw]
                states.append(state)
            yield np.frombuffer(bytes(states), np.uint8)
