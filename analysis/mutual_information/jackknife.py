"""The delete-a-block jackknife: the bias of an estimate, its error, and replicates of the estimate without that bias.

An estimate v of n observations in G blocks of m_g, and v_(-g) the same estimate with block g left out. Blocks must be
longer than the memory of the observations: what two blocks have in common is in neither correction nor error.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def jackknife_error(replicates: NDArray[Any]) -> Floats:
    """Standard errors (...) of what has the delete-one replicates (..., G): sqrt((G-1)/G sum_g (v_(-g) - mean)^2).

    Kunsch (Annals of Statistics 17:1217, 1989), section 2.
    """
    blocks = replicates.shape[-1]
    return np.sqrt((blocks - 1) * replicates.var(axis=-1))


def without_bias(estimates: Floats, sizes: NDArray[Any]) -> Floats:
    """v_J = G v - sum_g (1 - m_g/n) v_(-g), and what stands for it with each block left out, both (..., 1 + G).

    `estimates` (..., 1 + G) are v and the v_(-g), `sizes` (..., G) the m_g. With equal blocks this is Quenouille's
    G v - (G-1) mean_g v_(-g); with any, a bias of c/n is removed entirely (Busing, Meijer & van der Leeden, Statistics
    and Computing 9:3, 1999, eq. 6). v_J is the mean, weighted by m_g, of the pseudo-values h_g v - (h_g - 1) v_(-g),
    h_g = n/m_g; a replicate is that mean without one of them, v_(-g) + (v_J - v) h_g / (h_g - 1), so that
    `jackknife_error` of the replicates is the error of v_J.
    """
    shares = sizes / sizes.sum(axis=-1, keepdims=True)
    value, left = estimates[..., :1], estimates[..., 1:]
    shift = np.sum((1 - shares) * (value - left), axis=-1, keepdims=True)
    return np.concatenate([value + shift, left + shift / (1 - shares)], axis=-1)
