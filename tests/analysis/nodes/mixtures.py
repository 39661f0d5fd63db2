"""Mixtures of lags with copies of any chances, which no name of a corpus has."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import solve_toeplitz

from plkernel.analysis.exponentials import Floats
from plkernel.analysis.sequences import LagCorpus, potts_information


@dataclass(frozen=True)
class Mixture(LagCorpus):
    """Copies the byte k before with probability `copies[k-1]`."""

    copies: tuple[float, ...] = ()

    @cached_property
    def chances(self) -> Floats:
        """(K,)."""
        return np.array(self.copies)


def power_law_copies(beta: float, first: float, longest: int, symbols: int) -> tuple[float, ...]:
    """Chances of copying under which I(d) = first * d**-beta nats at d = 1..longest: q(d) inverted,
    then Toeplitz.
    """
    wanted = first * np.arange(1.0, longest + 1) ** -beta
    q = np.sqrt(2 * wanted / (symbols - 1))  # what small ones give; ln I rises by about 2 ln q
    for _ in range(60):
        q *= np.sqrt(wanted / potts_information(q, symbols))
    copies = solve_toeplitz(np.append(1.0, q[:-1]), q)
    assert copies.min() > 0
    return tuple(copies.tolist())
