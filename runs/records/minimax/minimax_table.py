"""The least error of K exponentials for a power law, beside the closed form that predicts it.

python runs/records/minimax/minimax_table.py writes table.json beside this file, in a few minutes of
one core. For each exponent, last lag and number of terms: the certified largest relative error, its
ratio to the closed form, how level the errors are, and the milliseconds of one call.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import loggamma
from tqdm import tqdm

from plkernel.analysis.exponentials import ACCURACY_FLOOR, power_law_target
from plkernel.analysis.fit import certificate, minimax
from plkernel.common import cli
from plkernel.common.environment import environment
from plkernel.common.files import save_json

OUT = Path(__file__).resolve().parent / "table.json"
BETAS = (0.5, 0.7, 0.87, 1.0, 1.15, 1.24, 1.5, 1.75, 2.0)
MAX_LAGS = (64, 512, 2048, 16384, 65536, 1_000_000)
MOST_TERMS = 24
REPEATS = 3


def closed_form_error(beta: float, max_lag: float, terms: int) -> float:
    """2 |Gamma(beta + 2 pi i K / ln(4 T))| / Gamma(beta): about the least largest relative error of
    K terms for t**-beta on [1, T].

    Twice the first Fourier coefficient of the ripple of evenly log-spaced terms, at the spacing
    ln(4 T) / K that fits the lags. Found by comparison, not proved.
    """
    frequency = 2 * np.pi * terms / np.log(4 * max_lag)
    ripple = loggamma(beta + 1j * frequency).real - loggamma(beta)
    return float(2 * np.exp(ripple))


def most_terms(beta: float, max_lag: float) -> int:
    """Return the largest number of terms whose error float64 can tell from none."""
    terms = 1
    while terms < MOST_TERMS and closed_form_error(beta, max_lag, terms + 1) > ACCURACY_FLOOR:
        terms += 1
    return terms


def row(beta: float, max_lag: int, terms: int) -> dict[str, Any]:
    """Return one fit: the fastest of a few calls, which are equal to the last bit."""
    target = power_law_target(beta, max_lag)
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        kernel = minimax(target, terms)
        seconds.append(time.perf_counter() - start)
    found = certificate(kernel, target)
    return {
        "beta": beta,
        "max_lag": max_lag,
        "terms": terms,
        "error": found.largest,
        "lower_bound": found.smallest,
        "alternations": found.alternations,
        "ratio_to_closed_form": found.largest / closed_form_error(beta, max_lag, terms),
        "milliseconds": 1000 * min(seconds),
    }


def table(
    betas: Sequence[float] = BETAS, max_lags: Sequence[int] = MAX_LAGS, out: Path = OUT
) -> None:
    """Fit every exponent and last lag with every number of terms that float64 supports.

    Args:
        betas: Exponents.
        max_lags: Last lags.
        out: JSON file for the record.
    """
    cases = [
        (beta, max_lag, terms)
        for beta in betas
        for max_lag in max_lags
        for terms in range(1, most_terms(beta, max_lag) + 1)
    ]
    minimax(power_law_target(1.15, 512), 2)  # loads what the first call loads
    progress = tqdm(cases, desc="minimax", disable=None, file=sys.stderr)
    rows = [row(*case) for case in progress]
    save_json(out, {"environment": environment(1), "rows": rows})
    print(f"written: {out}", flush=True)


if __name__ == "__main__":
    cli.main(table, prog="python runs/records/minimax/minimax_table.py")
