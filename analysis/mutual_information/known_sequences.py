"""More sequences whose mutual information is known at every lag: mixtures of lags, trees, Markov chains.

With `PottsCorpus` they are what `runs/interval_coverage.py` tries the intervals on. The first two have its pair law,
(1 - q(d)) p_i p_j + q(d) p_i [i = j], with uniform p, and so its formula for the information.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_toeplitz
from scipy.signal import fftconvolve

from plkernel.analysis.mutual_information.potts import potts_information

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]

ROUNDS = 60
CHANCES = 4096
"""Transition probabilities of a Markov chain are multiples of one over this."""
LIFETIMES = 20
"""So many mean lengths of a chain of copies are generated and thrown away before the first byte."""


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

    def correlation(self, lags: ArrayLike) -> Floats:
        """q(d) at `lags` (L,), by fixed-point iteration to rounding: a contraction by the sum of `copies`."""
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
        chances, rng = self._chances, np.random.default_rng(self.seed)
        reach = chances @ np.arange(1, chances.size + 1) / (1 - chances.sum())
        burn = int(LIFETIMES * reach)
        here = np.arange(burn + self.size)
        lag = np.searchsorted(chances.cumsum(), rng.random(here.size), side="right") + 1
        source = np.where((lag > chances.size) | (lag > here), here, here - lag)
        while np.any((further := source[source]) != source):
            source = further
        return rng.integers(0, self.symbols, here.size, np.uint8)[source][burn:]


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
class TreeLeaves:
    """The leaves, left to right, of a tree in which a child takes its parent's symbol with probability `kept`.

    Otherwise it draws one of `symbols` equal ones; every node has `branches` children (Lin & Tegmark, Entropy 19:299,
    2017). Two leaves whose last common ancestor is h levels up share a draw with probability kept**(2h), and

        q(d) = sum_h kept**(2h) P(h; d) ,  P(h; d) the share of the pairs of leaves d apart with that ancestor.
    """

    branches: int
    kept: float
    symbols: int
    size: int
    seed: int = 0

    @property
    def depth(self) -> int:
        """Levels between root and leaves."""
        levels = 1
        while self.branches**levels < self.size:
            levels += 1
        return levels

    def correlation(self, lags: ArrayLike) -> Floats:
        """q(d) at `lags` (L,), averaged over the positions of this sequence."""
        lags = np.asarray(lags)
        within = [np.zeros(lags.shape)]
        for level in range(1, self.depth + 1):
            whole, rest = divmod(self.size, self.branches**level)
            pairs = whole * np.maximum(0, self.branches**level - lags) + np.maximum(0, rest - lags)
            within.append(pairs / (self.size - lags))
        shares = np.diff(within, axis=0)
        return np.asarray(self.kept ** (2.0 * np.arange(1, self.depth + 1)) @ shares)

    def mutual_information(self, lags: ArrayLike) -> Floats:
        """I(d) in nats at `lags` (L,)."""
        return potts_information(self.correlation(lags), np.full(self.symbols, 1 / self.symbols))

    def sequence(self) -> Bytes:
        """The bytes (size,)."""
        rng = np.random.default_rng(self.seed)
        nodes = rng.integers(0, self.symbols, 1, np.uint8)
        for _ in range(self.depth):
            nodes = np.repeat(nodes, self.branches)
            fresh = rng.random(nodes.size) >= self.kept
            nodes[fresh] = rng.integers(0, self.symbols, int(fresh.sum()), np.uint8)
        return nodes[: self.size]


@dataclass(frozen=True)
class MarkovChain:
    """A chain of `symbols` states whose transitions are drawn from Dirichlet(`spread`), the same for every seed.

    Its information falls exponentially and has no Potts form: the negative control.
    """

    symbols: int
    spread: float
    size: int
    seed: int = 0

    @cached_property
    def transitions(self) -> NDArray[np.int64]:
        """(S, S), rows adding up to CHANCES."""
        rng = np.random.default_rng(self.symbols)
        return rng.multinomial(CHANCES, rng.dirichlet(np.full(self.symbols, self.spread), self.symbols))

    @cached_property
    def stationary(self) -> Floats:
        """(S,): the left eigenvector of eigenvalue 1."""
        values, vectors = np.linalg.eig(self.transitions.T / CHANCES)
        leading = np.abs(np.real(vectors[:, np.argmax(np.real(values))]))
        return np.asarray(leading / leading.sum())

    def mutual_information(self, lags: ArrayLike) -> Floats:
        """I(d) = sum_ij pi_i P^d_ij ln(P^d_ij / pi_j) in nats at `lags` (L,)."""
        return np.array([self._information(int(lag)) for lag in np.atleast_1d(lags)])

    def _information(self, lag: int) -> float:
        step = np.linalg.matrix_power(self.transitions / CHANCES, lag)
        ratio = np.divide(step, self.stationary, out=np.ones_like(step), where=step > 0)
        return max(0.0, float(self.stationary @ np.sum(step * np.log(ratio), axis=1)))

    def sequence(self) -> Bytes:
        """The bytes (size,), from the stationary distribution on."""
        rng = np.random.default_rng(self.seed)
        follow = [np.repeat(np.arange(self.symbols), row).tolist() for row in self.transitions]
        state = int(rng.choice(self.symbols, p=self.stationary))
        data = np.empty(self.size, np.uint8)
        for place, draw in enumerate(rng.integers(0, CHANCES, self.size).tolist()):
            data[place] = state = follow[state][draw]
        return data
