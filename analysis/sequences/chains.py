"""Controls without a power law: a Markov chain, whose memory is one byte, and independent symbols."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr

from plkernel.analysis.sequences.law import BLOCK, Bytes, Floats, Windows, check, check_common, known_bytes

CHANCES = 4096
"""Transition probabilities of a Markov chain are multiples of one over this."""
SLOWEST = 0.999
"""The largest second eigenvalue of a chain: memory of some thousand bytes."""
ROUNDING = 1e-14
"""Nats below which the information of a chain is rounding."""


@dataclass(frozen=True)
class MarkovChain:
    """A chain of `symbols` states whose transitions are drawn from Dirichlet(`spread`), the same for every seed.

    Its information falls exponentially and has no Potts form: the negative control. Raises ValueError for parameters
    out of range, and where so small a `spread` has made a chain that does not forget.
    """

    symbols: int = 16
    spread: float = 0.3
    size: int = 10_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_common(self.symbols, self.size, self.seed)
        check(0.01 <= self.spread <= 1000, "spread", self.spread, "from 0.01 to 1000")
        second = np.sort(np.abs(np.linalg.eigvals(self.transitions / CHANCES)))[-2]
        check(second < SLOWEST, "spread", self.spread, f"larger: with {self.symbols} symbols this chain never forgets")

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
        """I(d) = sum_ij pi_i P^d_ij ln(P^d_ij / pi_j) in nats at `lags` (L,); 0 where that is lost in rounding."""
        return np.array([self._information(int(lag)) for lag in np.atleast_1d(lags)])

    def _information(self, lag: int) -> float:
        step = np.linalg.matrix_power(self.transitions / CHANCES, lag)
        ratio = np.divide(step, self.stationary, out=np.ones_like(step), where=step > 0)
        found = float(self.stationary @ np.sum(step * np.log(ratio), axis=1))
        return found if found > ROUNDING else 0.0

    def bits_per_byte(self) -> float:
        """-sum_ij pi_i P_ij log2 P_ij, the entropy rate."""
        return float(self.stationary @ entr(self.transitions / CHANCES).sum(axis=1)) / math.log(2)

    def losses(self, windows: Windows, given: int | None = None) -> Floats:
        """`Predictor.losses`: by the transition from the last byte, or by the stationary shares where it is unknown."""
        known = known_bytes(windows, self.symbols, given)
        last = np.minimum(windows[:, :-1].astype(np.intp), self.symbols if known else 0)
        with np.errstate(divide="ignore"):
            bits = -np.log2(np.vstack([self.transitions / CHANCES, self.stationary]))
        return np.asarray(bits[last if known else self.symbols, windows[:, 1:]])

    def blocks(self) -> Iterator[Bytes]:
        """The sequence, from the stationary distribution on, in consecutive pieces of 128 KiB."""
        rng = np.random.default_rng(self.seed)
        follow = [np.repeat(np.arange(self.symbols, dtype=np.uint8), row).tobytes() for row in self.transitions]
        state = int(rng.choice(self.symbols, p=self.stationary))
        for start in range(0, self.size, BLOCK):
            draws = rng.integers(0, CHANCES, BLOCK).tolist()
            data = bytes([state := follow[state][draw] for draw in draws])
            yield np.frombuffer(data, np.uint8)[: self.size - start]

    def sequence(self) -> Bytes:
        """All `blocks` in one, (size,)."""
        return np.concatenate(list(self.blocks()))


@dataclass(frozen=True)
class Independent:
    """Bytes drawn one by one from `symbols` equal ones: nothing to predict."""

    symbols: int = 16
    size: int = 10_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_common(self.symbols, self.size, self.seed)

    def mutual_information(self, lags: ArrayLike) -> Floats:
        """Zero at `lags` (L,)."""
        return np.zeros(np.atleast_1d(lags).shape)

    def bits_per_byte(self) -> float:
        """log2 S."""
        return math.log2(self.symbols)

    def losses(self, windows: Windows, given: int | None = None) -> Floats:
        """`Predictor.losses`: log2 S everywhere."""
        known_bytes(windows, self.symbols, given)
        return np.full((windows.shape[0], windows.shape[1] - 1), self.bits_per_byte())

    def blocks(self) -> Iterator[Bytes]:
        """The sequence in consecutive pieces of 128 KiB."""
        rng = np.random.default_rng(self.seed)
        for start in range(0, self.size, BLOCK):
            yield rng.integers(0, self.symbols, BLOCK, np.uint8)[: self.size - start]
