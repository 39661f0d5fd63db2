"""How often 95 % intervals cover, on sequences of exactly known information, before and after the jackknife.

    python runs/interval_coverage.py [--seeds 40] [--workers 1] [--only NAME ...]    finished seeds are not repeated

Rows go to runs/out/coverage, one per process and seed; when all are there the table is printed and written, with the
verdicts on sequences that follow a power law, to runs/records/measure/coverage.json.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from plkernel.analysis.information.counts import block_edges
from plkernel.analysis.information.curve import BLOCKS, DecayCurve, decay_curves, log_lags
from plkernel.analysis.information.estimate import without_bias
from plkernel.analysis.information.laws import fit_power_law, judge, log_log_slope
from plkernel.analysis.sequences import (
    LagMixture,
    MarkovChain,
    PottsCorpus,
    TreeLeaves,
    decaying_copies,
    power_law_copies,
)
from plkernel.analysis.statistics.differences import critical_value
from plkernel.common import cli
from plkernel.common.cli import text_table
from plkernel.common.environment import environment
from plkernel.common.files import load_json, save_json

HERE = Path(__file__).resolve().parent
ROWS = HERE / "out" / "coverage"
RECORD = HERE / "records" / "measure" / "coverage.json"
SEEDS = 40
LAGS = log_lags(1000, 20)
VERDICT_LAGS = log_lags(1000)
RANGES = ((1, 100), (100, 1000))
FEWEST_LAGS = 4
METHODS = ("shuffle", "jackknife")
PLUGIN = "jackknife of the plug-in"
"""Without the floor taken off first. Measured where it matters: symbols without memory, many of them rare."""
LEAD = 2.0
"""The difference of the criterion from which another shape was called better before its chance was known."""


@dataclass(frozen=True)
class Zipf:
    """Independent symbols, number i with a share ~ i**-1.3: no information at any lag."""

    symbols: int
    size: int
    seed: int

    def sequence(self) -> np.ndarray:
        """The bytes."""
        shares = np.arange(1, self.symbols + 1) ** -1.3
        return (
            np.random.default_rng(self.seed).choice(self.symbols, self.size, p=shares / shares.sum()).astype(np.uint8)
        )

    def mutual_information(self, lags: np.ndarray) -> np.ndarray:
        """Zero."""
        return np.zeros(len(lags))


def potts(beta: float, size: int, **more: Any) -> Callable[[int], PottsCorpus]:
    """The package's own sequences."""
    return lambda seed: PottsCorpus(beta=beta, size=size, seed=seed, **more)


def mixture(copies: tuple[float, ...], symbols: int, size: int) -> Callable[[int], LagMixture]:
    """Copies of a byte further back."""
    return lambda seed: LagMixture(copies, symbols, size, seed)


FAR_COPIES = (0.5, *(0.0,) * 298, 0.3)
PROCESSES: dict[str, Callable[[int], Any]] = {
    "Potts 0.5": potts(0.5, 1_000_000),
    "Potts 1.0": potts(1.0, 1_000_000),
    "Potts 1.5": potts(1.5, 1_000_000),
    "mixture of lags 1.3": mixture(decaying_copies(1.3, 2000, 0.1), 32, 2_000_000),
    "mixture of lags 1.6": mixture(decaying_copies(1.6, 1000, 0.1), 32, 1_000_000),
    "copies from 1 and 300": mixture(FAR_COPIES, 16, 1_000_000),
    "tree of 2, 0.75": lambda seed: TreeLeaves(2, 0.75, 16, 2**20, seed),
    "tree of 3, 0.70": lambda seed: TreeLeaves(3, 0.70, 16, 3**13, seed),
    "Markov chain": lambda seed: MarkovChain(8, 0.3, 500_000, seed),
    "independent": lambda seed: Zipf(64, 50_000, seed),
}
LIMITS: dict[str, Callable[[int], Any]] = {
    "Potts 0.5, 100 kB": potts(0.5, 100_000),
    "mixture of lags 1.3, 200 kB": mixture(decaying_copies(1.3, 2000, 0.1), 32, 200_000),
    "tree of 2, 0.84": lambda seed: TreeLeaves(2, 0.84, 16, 2**20, seed),
    "tree of 2, 0.95": lambda seed: TreeLeaves(2, 0.95, 16, 2**20, seed),
}
"""Memory that a block is short beside: up to 8192 bytes, and copies of copies over thousands, against blocks of 2.5 and
5 kB; and trees with q(d) ~ d^-0.5 and d^-0.15, so that sum_k q(k)^2 grows with the lags up to the whole length."""
LAWS: dict[str, tuple[int, Callable[[int], Any]]] = {
    "power law 0.8": (1, lambda seed: LagMixture(power_law_copies(0.8, 0.05, 1000, 16), 16, 1_000_000, seed)),
    "power law 1.2": (1, lambda seed: LagMixture(power_law_copies(1.2, 0.3, 1000, 16), 16, 1_000_000, seed)),
    "Potts 0.8, 40 channels": (8, potts(0.8, 1_000_000, base=1.5, channels=40)),
}
"""Sequences whose information is a power law from the first lag on, and that lag."""
STUDIES = {**PROCESSES, **LIMITS, **{name: make for name, (_, make) in LAWS.items()}}


def coverage(seeds: int = SEEDS, workers: int = 1, only: Sequence[str] = tuple(STUDIES)) -> None:
    """Measure every process, print the tables, write the record.

    Args:
        seeds: Sequences of each process.
        workers: Sequences measured at a time, one core each.
        only: Some of the processes; the record is written when the rows of all are there.
    """
    place = environment(workers)
    tasks = [(name, seed) for seed in range(seeds) for name in only if not row_file(name, seed).exists()]
    with ProcessPoolExecutor(workers) as pool:
        waiting = [pool.submit(measure_one, *task) for task in tasks]
        for done in tqdm(as_completed(waiting), "coverage", len(waiting), disable=None):
            done.result()
    missing = [name for name in STUDIES if not all(row_file(name, seed).exists() for seed in range(seeds))]
    if missing:
        print(f"rows to come: {', '.join(missing)}")
        return
    rows = {name: [load_json(row_file(name, seed)) for seed in range(seeds)] for name in STUDIES}
    record = {
        "environment": place,
        "seeds": seeds,
        "blocks": BLOCKS,
        "lags": LAGS.tolist(),
        "rows": [{"process": name, "limit": name in LIMITS, **summary(rows[name])} for name in (*PROCESSES, *LIMITS)],
        "laws": [{"process": name, **law_summary(rows[name])} for name in LAWS],
    }
    save_json(RECORD, record)
    print(tables(record), f"\nwritten: {RECORD}", flush=True)


def row_file(name: str, seed: int) -> Path:
    """Where the row of one sequence is kept."""
    return ROWS / f"{name.replace(' ', '-')}-{seed}.json"


def measure_one(name: str, seed: int) -> None:
    """Measure one sequence and save its row."""
    if name in LAWS:
        first, make = LAWS[name]
        row = law_row(make(seed), first)
    else:
        row = row_of(STUDIES[name](seed))
    save_json(row_file(name, seed), row)


def row_of(source: Any) -> dict[str, Any]:
    """Errors of I(d) in floors with their standard errors, and of the exponents, by each method."""
    data = sequence(source)
    curves, correlation = measured(data, isinstance(source, Zipf))
    exact, floor = source.mutual_information(LAGS), curves["shuffle"].floor[0]
    return {
        "size": data.size,
        "exact_over_floor": rounded(exact / floor),
        "methods": {
            name: {
                "off": rounded((np.asarray(curve.values) - exact) / floor),
                "error": rounded(curve.standard_errors() / floor),
                "exponents": [exponent(curve, exact, limits) for limits in RANGES],
            }
            for name, curve in curves.items()
        },
        "correlation": correlation_row(correlation, source),
    }


def sequence(source: Any) -> np.ndarray:
    """The bytes of a process."""
    return np.concatenate(list(source.blocks())) if isinstance(source, PottsCorpus) else source.sequence()


def measured(data: np.ndarray, plugin: bool = False) -> tuple[dict[str, DecayCurve], DecayCurve]:
    """The curve by each method, the jackknife applied to replicates of the others; and the correlation."""
    shuffle, correlation = decay_curves(data, LAGS, estimator="shuffle")
    sizes = np.diff(np.minimum(block_edges(data.size, int(LAGS[-1]), BLOCKS), (data.size - LAGS)[:, None]))
    found = dict(zip(METHODS, (shuffle, corrected(shuffle, sizes)), strict=True))
    if plugin:
        found[PLUGIN] = corrected(decay_curves(data, LAGS, estimator="plugin")[0], sizes)
    return found, correlation


def corrected(curve: DecayCurve, sizes: np.ndarray) -> DecayCurve:
    """What `decay_curves` does for 'jackknife', to the values and replicates of any curve."""
    values = without_bias(np.column_stack([curve.values, curve.replicates]), sizes)
    return replace(curve, values=tuple(values[:, 0]), replicates=tuple(map(tuple, values[:, 1:])))


def exponent(curve: DecayCurve, exact: np.ndarray, limits: tuple[int, int]) -> list[float] | None:
    """Estimate less truth and standard error, on the lags of a range up to where the truth falls below the floor."""
    inside = (limits[0] <= LAGS) & (limits[1] >= LAGS)
    clear = np.logical_and.accumulate(exact > curve.floor) & inside
    if clear.sum() < FEWEST_LAGS:
        return None
    law = fit_power_law(curve, (int(LAGS[clear][0]), int(LAGS[clear][-1])))
    used = clear & ~np.isin(LAGS, law.dropped)
    return rounded([law.beta - log_log_slope(LAGS[used], exact[used]), law.standard_error])


def correlation_row(curve: DecayCurve, source: Any) -> dict[str, Any] | None:
    """The correlation over the exact one at the lags where that exceeds its floor, and relative standard errors."""
    if not hasattr(source, "correlation"):
        return None
    exact = source.correlation(LAGS)
    clear = exact > np.asarray(curve.floor)
    ratio, error = np.asarray(curve.values)[clear] / exact[clear], curve.standard_errors()[clear] / exact[clear]
    return {"lags": LAGS[clear].tolist(), "ratio": rounded(ratio), "error": rounded(error)}


def law_row(source: Any, first: int) -> dict[str, Any]:
    """The verdict, and whether the criterion alone would have preferred another shape."""
    curve, _ = decay_curves(sequence(source), VERDICT_LAGS[first <= VERDICT_LAGS])
    verdict = judge(curve)
    law = next(fit for fit in verdict.models if fit.name == "power law")
    chances = {"chi_squared_p": law.chi_squared_p, "excess_p": law.excess_p}
    line = fit_power_law(curve, (verdict.first_lag, verdict.last_lag))
    return {"kind": verdict.kind, "excess": law.excess, **chances, "curvature_p": line.curvature_p}


def rounded(values: Any) -> list[float]:
    """Four significant digits, which is more than the errors have."""
    return [float(f"{value:.4g}") for value in np.asarray(values, dtype=float)]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One process: coverage and bias of I(d) at each lag, coverage of the exponents, and the correlation."""
    critical = critical_value(BLOCKS)
    methods = {}
    for name in rows[0]["methods"]:
        off, error = (np.array([row["methods"][name][key] for row in rows]) for key in ("off", "error"))
        exponents = list(zip(*(row["methods"][name]["exponents"] for row in rows), strict=True))
        methods[name] = {
            "covered": np.mean(np.abs(off) <= critical * error, axis=0).tolist(),
            "off": rounded(off.mean(axis=0)),
            "deviation": rounded(off.std(axis=0, ddof=1)),
            "error": rounded(error.mean(axis=0)),
            "exponents": {f"{a}..{b}": of_exponent(e, critical) for (a, b), e in zip(RANGES, exponents, strict=True)},
        }
    exact = np.mean([row["exact_over_floor"] for row in rows], axis=0)
    correlations = [row["correlation"] for row in rows if row["correlation"] and row["correlation"]["lags"]]
    return {
        "size": rows[0]["size"],
        "exact_over_floor": rounded(exact),
        "methods": methods,
        "correlation": of_correlation(correlations, critical) if len(correlations) == len(rows) else None,
    }


def of_exponent(rows: Sequence[list[float] | None], critical: float) -> dict[str, Any] | None:
    """Coverage, mean error and its spread, mean standard error, and the rows."""
    if None in rows:
        return None
    off, error = np.array(rows).T
    covered = float(np.mean(np.abs(off) <= critical * error))
    return {"covered": covered, "off": off.mean(), "deviation": off.std(ddof=1), "error": error.mean(), "rows": rows}


def of_correlation(rows: list[dict[str, Any]], critical: float) -> dict[str, Any]:
    """Mean of the estimate over the exact correlation and coverage, over all lags above the floor in every row."""
    count = min(len(row["lags"]) for row in rows)
    ratio, error = (np.array([row[key][:count] for row in rows]) for key in ("ratio", "error"))
    covered = np.mean(np.abs(ratio - 1) <= critical * error, axis=0)
    return {"lags": rows[0]["lags"][:count], "ratio": rounded(ratio.mean(axis=0)), "covered": covered.tolist()}


def law_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How often the verdict denies a power law that is one, and how often the criterion alone would have."""
    bent = np.array([row["curvature_p"] for row in rows]) < 0.01
    return {
        "denied": float(np.mean([row["kind"] != "power law" for row in rows])),
        "denied_before": float(np.mean(bent | (np.array([row["excess"] for row in rows]) > LEAD))),
        "rows": rows,
    }


def tables(record: dict[str, Any]) -> str:
    """Coverage of I(d) and of the exponents by each method, and the verdicts."""
    parts = []
    for method in (*METHODS, PLUGIN):
        lines = [line(row, method) for row in record["rows"] if method in row["methods"]]
        parts.append(f"{method}\n" + text_table(["process", "I(d), mean", "least", "1..100", "100..1000"], lines))
    laws = [[row["process"], f"{row['denied_before']:.2f}", f"{row['denied']:.2f}"] for row in record["laws"]]
    return "\n\n".join([*parts, text_table(["denied to be a power law", "before", "now"], laws)])


def line(row: dict[str, Any], method: str) -> list[str]:
    """Mean and least coverage over lags, and that of the exponents."""
    found = row["methods"][method]
    exponents = [f"{e['covered']:.2f}" if e else "-" for e in found["exponents"].values()]
    return [row["process"], f"{np.mean(found['covered']):.3f}", f"{min(found['covered']):.2f}", *exponents]


if __name__ == "__main__":
    cli.main(coverage)
