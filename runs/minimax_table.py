"""The least error of K exponentials for a power law against the closed form that predicts it.

    python runs/minimax_table.py [FOLDER]    a few minutes on one core; FOLDER is runs/records/minimax unless given

For each exponent, last lag and number of terms: the certified largest relative error, its ratio to the closed form of
`plkernel.analysis.exponentials.closed_form_error`, how level the errors are, and the milliseconds of one call.
Writes FOLDER/table.json.
"""

import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from plkernel.analysis.exponentials import closed_form_error, most_terms, power_law_target
from plkernel.analysis.fit import certificate, minimax
from plkernel.common.cli import report_errors
from plkernel.common.environment import environment
from plkernel.common.files import save_json

OUT = Path(__file__).resolve().parent / "records" / "minimax"
BETAS = (0.5, 0.7, 0.87, 1.0, 1.15, 1.24, 1.5, 1.75, 2.0)
MAX_LAGS = (64, 512, 2048, 16384, 65536, 1_000_000)
MOST_TERMS = 24
REPEATS = 3


def row(beta: float, max_lag: int, terms: int) -> dict[str, Any]:
    """One fit: the fastest of a few calls, which are equal to the last bit."""
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


def main() -> None:
    """Every exponent, last lag and number of terms that float64 supports."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    cases = [
        (beta, max_lag, terms)
        for beta in BETAS
        for max_lag in MAX_LAGS
        for terms in range(1, min(MOST_TERMS, most_terms(beta, max_lag)) + 1)
    ]
    minimax(power_law_target(1.15, 512), 2)  # loads what the first call loads
    rows = [row(*case) for case in tqdm(cases, desc="minimax", disable=None, file=sys.stderr)]
    save_json(out / "table.json", {"environment": environment(1), "rows": rows})
    print(f"written: {out / 'table.json'}", flush=True)


if __name__ == "__main__":
    report_errors(main)
