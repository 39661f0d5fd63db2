"""How often 95 % intervals cover, on sequences of exactly known information, before and after the
jackknife.

python runs/records/measure/interval_coverage.py measures 40 sequences of each process, hours on one
core. Rows go to runs/out/coverage, one for each process and seed, and finished ones are not
repeated. When all are there the table is printed and written, with the verdicts on sequences that
follow a power law, to coverage.json beside this file.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_toeplitz
from scipy.signal import fftconvolve
from tqdm import tqdm

from plkernel.analysis.information.counts import block_edges
from plkernel.analysis.information.estimate import (
    BLOCKS,
    DecayCurve,
    decay_curves,
    log_lags,
    without_bias,
)
from plkernel.analysis.information.laws import fit_power_law, judge, log_log_slope
from plkernel.analysis.intervals import critical_value
from plkernel.analysis.sequences import MarkovChain, PottsCorpus, potts_information
from plkernel.common import cli
from plkernel.common.cli import text_table
from plkernel.common.environment import environment
from plkernel.common.files import load_json, save_json

HERE = Path(__file__).resolve().parent
ROWS = HERE.parents[1] / "out" / "coverage"
RECORD = HERE / "coverage.json"
SEEDS = 40
LAGS = log_lags(1000, 20)
VERDICT_LAGS = log_lags(1000)
RANGES = ((1, 100), (100, 1000))
FEWEST_LAGS = 4
METHODS = ("shuffle", "jackknife")
PLUGIN = "jackknife of the plug-in"
"""Without the floor taken off first. Measured where it matters: symbols without memory, many of
them rare.
"""
LEAD = 2.0
"""The difference of the criterion from which another shape was called better before its chance was
known.
"""
ROUNDS = 60
LIFETIMES = 20
"""So many mean lengths of a chain of copies are generated and thrown away before the first byte."""


@dataclass(frozen=True)
class Zipf:
    """Independent symbols, number i with a share ~ i**-1.3: no information at any lag."""

    symbols: int
    size: int
    seed: int

    def sequence(self) -> np.ndarray:
        """The bytes (size,)."""
        shares = np.arange(1, self.symbols + 1) ** -1.3
        rng = np.random.default_rng(self.seed)
        return rng.choice(self.symbols, self.size, p=shares / shares.sum()).astype(np.uint8)

    def mutual_information(self, lags: np.ndarray) -> np.ndarray:
        """Zero."""
        return np.zeros(len(lags))


@dataclass(frozen=True)
class LagMixture:
    """Each byte copies the one k before it with probability copies[k-1], or is drawn anew.

    `plkernel.analysis.sequences.LagCorpus` with any chances `copies` (K,), of a sum below 1, and a
    draw of its own.
    """

    copies: tuple[float, ...]
    symbols: int
    size: int
    seed: int = 0

    @cached_property
    def _chances(self) -> np.ndarray:
        return np.asarray(self.copies, dtype=np.float64)

    def correlation(self, lags: ArrayLike) -> np.ndarray:
        """q(d) = sum_k copies[k-1] q(|d - k|), q(0) = 1, at `lags` (L,), iterated to rounding."""
        far = self._chances.size
        longest = max(far, int(np.max(lags)))
        q = np.append(1.0, np.zeros(longest))
        for _ in range(int(np.ceil(np.log(1e-17) / np.log(self._chances.sum())))):
            mirrored = np.append(q[far:0:-1], q)
            q[1:] = fftconvolve(mirrored, self._chances)[far:][:longest]
        return np.asarray(q[np.asarray(lags)])

    def mutual_information(self, lags: ArrayLike) -> np.ndarray:
        """I(d) in nats at `lags` (L,)."""
        return potts_information(self.correlation(lags), self.symbols)

    def sequence(self) -> np.ndarray:
        """The bytes (size,): chains of copies followed back to their draws, all at once."""
        far = self._chances.size
        reach = self._chances @ np.arange(1, far + 1) / (1 - self._chances.sum())
        warming = int(LIFETIMES * reach)
        rng = np.random.default_rng(self.seed)
        here = np.arange(warming + self.size)
        lag = np.searchsorted(self._chances.cumsum(), rng.random(here.size), side="right") + 1
        lag = np.where(lag > far, 0, lag)
        source = followed(here - np.where(lag > here, 0, lag))
        return rng.integers(0, self.symbols, here.size, np.uint8)[source][warming:]


def followed(source: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the chains source[source[..]] end, by pointer doubling."""
    further = source[source]
    while np.any(further != source):
        source = further
        further = source[source]
    return source


def decaying_copies(alpha: float, longest: int, redrawn: float) -> tuple[float, ...]:
    """Return chances (longest,) of copying from k before, ~ k**-alpha, that leave `redrawn`."""
    weights = np.arange(1.0, longest + 1) ** -alpha
    return tuple(((1 - redrawn) * weights / weights.sum()).tolist())


def power_law_copies(beta: float, first: float, longest: int, symbols: int) -> tuple[float, ...]:
    """Return chances (longest,) of copying under which I(d) = first * d**-beta nats, exactly.

    q(d) by inverting the information, then the Toeplitz system of q for the chances. Raises
    ValueError where it has no solution that is a probability.
    """
    wanted = first * np.arange(1.0, longest + 1) ** -beta
    q = np.sqrt(2 * wanted / (symbols - 1))  # what small ones give; ln I rises by about 2 ln q
    for _ in range(ROUNDS):
        q *= np.sqrt(wanted / potts_information(q, symbols))
    copies = solve_toeplitz(np.append(1.0, q[:-1]), q)
    if copies.min() < 0 or copies.sum() >= 1:
        raise ValueError(f"beta {beta:g}, first {first:g}: no mixture of lags has this information")
    return tuple(copies.tolist())


@dataclass(frozen=True)
class TreeLeaves:
    """The leaves, left to right, of a tree in which a child takes its parent's symbol with
    probability `kept`, or draws one of `symbols` equal ones.

    Every node has `branches` children (Lin & Tegmark, Entropy 19:299, 2017). Two leaves whose last
    common ancestor is h levels up share a draw with probability kept**(2h), and

        q(d) = sum_h kept**(2h) P(h; d) ,

    P(h; d) the share of the pairs of leaves d apart with that ancestor.
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

    def correlation(self, lags: ArrayLike) -> np.ndarray:
        """q(d) at `lags` (L,), averaged over the positions of this sequence."""
        lags = np.asarray(lags)
        within = [np.zeros(lags.shape)]
        for level in range(1, self.depth + 1):
            whole, rest = divmod(self.size, self.branches**level)
            pairs = whole * np.maximum(0, self.branches**level - lags) + np.maximum(0, rest - lags)
            within.append(pairs / (self.size - lags))
        shares = np.diff(within, axis=0)
        return np.asarray(self.kept ** (2.0 * np.arange(1, self.depth + 1)) @ shares)

    def mutual_information(self, lags: ArrayLike) -> np.ndarray:
        """I(d) in nats at `lags` (L,)."""
        return potts_information(self.correlation(lags), self.symbols)

    def sequence(self) -> np.ndarray:
        """The bytes (size,)."""
        rng = np.random.default_rng(self.seed)
        nodes = rng.integers(0, self.symbols, 1, np.uint8)
        for _ in range(self.depth):
            nodes = np.repeat(nodes, self.branches)
            fresh = rng.random(nodes.size) >= self.kept
            nodes[fresh] = rng.integers(0, self.symbols, int(fresh.sum()), np.uint8)
        return nodes[: self.size]


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
"""Memory that a block is short beside: up to 8192 bytes, and copies of copies over thousands,
against blocks of 2.5 and 5 kB; and trees with q(d) ~ d^-0.5 and d^-0.15, so that sum_k q(k)^2 grows
with the lags up to the whole length.
"""
LAWS: dict[str, tuple[int, Callable[[int], Any]]] = {
    "power law 0.8": (
        1,
        lambda seed: LagMixture(power_law_copies(0.8, 0.05, 1000, 16), 16, 1_000_000, seed),
    ),
    "power law 1.2": (
        1,
        lambda seed: LagMixture(power_law_copies(1.2, 0.3, 1000, 16), 16, 1_000_000, seed),
    ),
    "Potts 0.8, 40 channels": (8, potts(0.8, 1_000_000, base=1.5, channels=40)),
}
"""Sequences whose information is a power law from the first lag on, and that lag."""
STUDIES = {**PROCESSES, **LIMITS, **{name: make for name, (_, make) in LAWS.items()}}


def coverage(
    seeds: int = SEEDS,
    workers: int = 1,
    only: tuple[str, ...] = tuple(STUDIES),
    rows: Path = ROWS,
    out: Path = RECORD,
) -> None:
    """Measure every process, print the tables, write the record.

    Args:
        seeds: Sequences of each process.
        workers: Sequences measured at a time, one core each.
        only: Some of the processes; the record is written when the rows of all are there.
        rows: Folder for the rows, one file for each process and seed.
        out: JSON file for the record.
    """
    place = environment(workers)
    tasks = [
        (name, seed)
        for seed in range(seeds)
        for name in only
        if not row_file(rows, name, seed).exists()
    ]
    with ProcessPoolExecutor(workers) as pool:
        waiting = [pool.submit(measure_one, rows, *task) for task in tasks]
        for done in tqdm(as_completed(waiting), "coverage", len(waiting), disable=None):
            done.result()
    files = {name: [row_file(rows, name, seed) for seed in range(seeds)] for name in STUDIES}
    missing = [name for name, of in files.items() if not all(file.exists() for file in of)]
    if missing:
        print(f"rows to come: {', '.join(missing)}")
        return
    found = {name: [load_json(file) for file in of] for name, of in files.items()}
    record = {
        "environment": place,
        "seeds": seeds,
        "blocks": BLOCKS,
        "lags": LAGS.tolist(),
        "rows": [
            {"process": name, "limit": name in LIMITS, **summary(found[name])}
            for name in (*PROCESSES, *LIMITS)
        ],
        "laws": [{"process": name, **law_summary(found[name])} for name in LAWS],
    }
    save_json(out, record)
    print(tables(record), f"\nwritten: {out}", flush=True)


def row_file(rows: Path, name: str, seed: int) -> Path:
    """Where the row of one sequence is kept."""
    return rows / f"{name.replace(' ', '-')}-{seed}.json"


def measure_one(rows: Path, name: str, seed: int) -> None:
    """Measure one sequence and save its row."""
    if name in LAWS:
        first, make = LAWS[name]
        row = law_row(make(seed), first)
    else:
        row = row_of(STUDIES[name](seed))
    save_json(row_file(rows, name, seed), row)


def row_of(source: Any) -> dict[str, Any]:
    """Errors of I(d) and of the exponents by each method, in floors, with standard errors."""
    data = source.sequence()
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


def measured(data: np.ndarray, plugin: bool = False) -> tuple[dict[str, DecayCurve], DecayCurve]:
    """The curve by each method, the jackknife applied to those of the others; the correlation."""
    shuffle, correlation = decay_curves(data, LAGS, estimator="shuffle")
    sizes = np.diff(
        np.minimum(block_edges(data.size, int(LAGS[-1]), BLOCKS), (data.size - LAGS)[:, None])
    )
    found = dict(zip(METHODS, (shuffle, corrected(shuffle, sizes)), strict=True))
    if plugin:
        found[PLUGIN] = corrected(decay_curves(data, LAGS, estimator="plugin")[0], sizes)
    return found, correlation


def corrected(curve: DecayCurve, sizes: np.ndarray) -> DecayCurve:
    """What `decay_curves` does for 'jackknife', to the values and replicates of any curve."""
    values = without_bias(np.column_stack([curve.values, curve.replicates]), sizes)
    return replace(curve, values=tuple(values[:, 0]), replicates=tuple(map(tuple, values[:, 1:])))


def exponent(curve: DecayCurve, exact: np.ndarray, limits: tuple[int, int]) -> list[float] | None:
    """Estimate minus truth and standard error, on a range up to where the truth meets the floor."""
    inside = (limits[0] <= LAGS) & (limits[1] >= LAGS)
    clear = np.logical_and.accumulate(exact > curve.floor) & inside
    if clear.sum() < FEWEST_LAGS:
        return None
    law = fit_power_law(curve, (int(LAGS[clear][0]), int(LAGS[clear][-1])))
    used = clear & ~np.isin(LAGS, law.dropped)
    return rounded([law.beta - log_log_slope(LAGS[used], exact[used]), law.standard_error])


def correlation_row(curve: DecayCurve, source: Any) -> dict[str, Any] | None:
    """The correlation over the exact one where that exceeds its floor, and relative errors."""
    if isinstance(source, Zipf | MarkovChain):  # not one correlation at a lag
        return None
    exact = source.correlation(LAGS)
    clear = exact > np.asarray(curve.floor)
    ratio, error = (
        np.asarray(curve.values)[clear] / exact[clear],
        curve.standard_errors()[clear] / exact[clear],
    )
    return {"lags": LAGS[clear].tolist(), "ratio": rounded(ratio), "error": rounded(error)}


def law_row(source: Any, first: int) -> dict[str, Any]:
    """The verdict, and whether the criterion alone would have preferred another shape."""
    curve, _ = decay_curves(source.sequence(), VERDICT_LAGS[first <= VERDICT_LAGS])
    verdict = judge(curve)
    law = next(fit for fit in verdict.models if fit.name == "power law")
    chances = {"chi_squared_p": law.chi_squared_p, "excess_p": law.excess_p}
    line = fit_power_law(curve, (verdict.first_lag, verdict.last_lag))
    return {"kind": verdict.kind, "excess": law.excess, **chances, "curvature_p": line.curvature_p}


def rounded(values: Any) -> list[float]:
    """Four significant digits, which is more than the errors have."""
    return [float(f"{value:.4g}") for value in np.asarray(values, dtype=float)]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One process: coverage and bias of I(d) at each lag, of the exponents, the correlation."""
    critical = critical_value(BLOCKS)
    methods = {}
    for name in rows[0]["methods"]:
        off, error = (
            np.array([row["methods"][name][key] for row in rows]) for key in ("off", "error")
        )
        exponents = list(zip(*(row["methods"][name]["exponents"] for row in rows), strict=True))
        methods[name] = {
            "covered": np.mean(np.abs(off) <= critical * error, axis=0).tolist(),
            "off": rounded(off.mean(axis=0)),
            "deviation": rounded(off.std(axis=0, ddof=1)),
            "error": rounded(error.mean(axis=0)),
            "exponents": {
                f"{a}..{b}": of_exponent(e, critical)
                for (a, b), e in zip(RANGES, exponents, strict=True)
            },
        }
    exact = np.mean([row["exact_over_floor"] for row in rows], axis=0)
    correlations = [
        row["correlation"] for row in rows if row["correlation"] and row["correlation"]["lags"]
    ]
    return {
        "size": rows[0]["size"],
        "exact_over_floor": rounded(exact),
        "methods": methods,
        "correlation": of_correlation(correlations, critical)
        if len(correlations) == len(rows)
        else None,
    }


def of_exponent(rows: Sequence[list[float] | None], critical: float) -> dict[str, Any] | None:
    """Coverage, mean error and its spread, mean standard error, and the rows."""
    if None in rows:
        return None
    off, error = np.array(rows).T
    covered = float(np.mean(np.abs(off) <= critical * error))
    return {
        "covered": covered,
        "off": off.mean(),
        "deviation": off.std(ddof=1),
        "error": error.mean(),
        "rows": rows,
    }


def of_correlation(rows: list[dict[str, Any]], critical: float) -> dict[str, Any]:
    """Estimate over exact correlation and coverage, on the lags above the floor in every row."""
    count = min(len(row["lags"]) for row in rows)
    ratio, error = (np.array([row[key][:count] for row in rows]) for key in ("ratio", "error"))
    covered = np.mean(np.abs(ratio - 1) <= critical * error, axis=0)
    return {
        "lags": rows[0]["lags"][:count],
        "ratio": rounded(ratio.mean(axis=0)),
        "covered": covered.tolist(),
    }


def law_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How often the verdict denies a power law, and how often the criterion alone would have."""
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
        parts.append(
            f"{method}\n"
            + text_table(["process", "I(d), mean", "least", "1..100", "100..1000"], lines)
        )
    laws = [
        [row["process"], f"{row['denied_before']:.2f}", f"{row['denied']:.2f}"]
        for row in record["laws"]
    ]
    return "\n\n".join([*parts, text_table(["denied to be a power law", "before", "now"], laws)])


def line(row: dict[str, Any], method: str) -> list[str]:
    """Mean and least coverage over lags, and that of the exponents."""
    found = row["methods"][method]
    exponents = [f"{e['covered']:.2f}" if e else "-" for e in found["exponents"].values()]
    return [
        row["process"],
        f"{np.mean(found['covered']):.3f}",
        f"{min(found['covered']):.2f}",
        *exponents,
    ]


if __name__ == "__main__":
    cli.main(coverage, prog="python runs/records/measure/interval_coverage.py")
