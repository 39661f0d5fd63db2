"""The leaves of a tree: bytes whose distance in the sequence hides that in the tree."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.sequences.law import Bytes, Floats
from plkernel.analysis.sequences.potts import potts_information


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
