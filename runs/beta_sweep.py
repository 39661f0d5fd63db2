"""The exponent that helps most beside the exponent that the text has: runs/beta-sweep.toml, trained and read.

    python runs/beta_sweep.py [--study FOLDER] [--out FOLDER]    finished runs are not repeated

Prints a line per text and writes best.json, the figure and the study's rows to FOLDER, runs/records/beta-sweep unless
given. A record is read instead of training: --study runs/records/beta-sweep.
"""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plkernel.analysis.figures.style import rendered
from plkernel.analysis.figures.sweep import Sweep, sweep_figure
from plkernel.analysis.information.measurement import measure_corpus
from plkernel.analysis.statistics.optimum import quadratic_optimum
from plkernel.common import cli
from plkernel.common.cli import text_table
from plkernel.common.environment import environment
from plkernel.common.files import atomic_write, save_json
from plkernel.config.reading import load_spec
from plkernel.data import corpora
from plkernel.records.layout import ROWS
from plkernel.records.study import read_study
from plkernel.results.comparison import Comparison, compare
from plkernel.results.table import save_record
from plkernel.study.schedule import run_experiment

HERE = Path(__file__).resolve().parent
SPEC = HERE / "beta-sweep.toml"
STUDY = HERE / "out" / "beta-sweep"
OUT = HERE / "records" / "beta-sweep"
MEASURED, MEASURED_LAGS = "measured in the text", (1, 500)
HEADER = ["text", "best beta", "95 % interval", "gain at the best, bits per byte", "measured beta, lags 1..500"]


def beta_sweep(study: Path = STUDY, out: Path = OUT, workers: int | None = None) -> None:
    """Train the sweep, find the best beta of every text with its interval, and measure the text's own.

    Args:
        study: Folder of the study, whose finished runs are taken as they are, or of its record.
        out: Folder for best.json, the figure and the rows.
        workers: Runs at a time; as many as there are cores if left out.
    """
    if not (study / ROWS).exists():
        failed = run_experiment(load_spec(SPEC), study, workers)
        if failed:
            raise ValueError(f"did not finish: {', '.join(failed)}; see log.txt in their folders under {study}")
    comparison = compare(read_study(study))
    sweeps = [sweep(comparison, name) for name in texts(comparison)]
    if out.resolve() != study.resolve():
        save_record(comparison.study, out)
    save_json(out / "best.json", {"environment": environment(1), "texts": [row(found) for found in sweeps]})
    for kind, content in rendered(sweep_figure(sweeps)).items():
        atomic_write(out / f"best.{kind}", content)
    print(f"\n{text_table(HEADER, list(map(line, sweeps)))}\n\nwritten: {out}", flush=True)


def texts(comparison: Comparison) -> list[str]:
    """The levels of the factor corpus."""
    return list(dict.fromkeys(comparison.study.levels(arm.name)["corpus"] for arm in comparison.arms))


def sweep(comparison: Comparison, text: str) -> Sweep:
    """The differences of one text to its uniform arm by beta, their optimum, and the measured exponent."""
    study = comparison.study
    arms = [arm for arm in comparison.others if study.levels(arm.name)["corpus"] == text]
    found = {float(study.levels(arm.name)["beta"]): dict(arm.differences["final_val_bpb"].per_seed) for arm in arms}
    section = study.finished(arms[0].name)[0].config["corpus"]
    corpus = corpora.load(section["name"], max_bytes=section["max_bytes"])
    if corpus.sha256 != section["sha256"]:
        raise ValueError(f"corpus {section['name']!r} is not what the runs were trained on (other sha256)")
    law = measure_corpus(corpus, corpus.bytes, stated=MEASURED_LAGS).law
    measured = (law.beta, law.low, law.high) if law else None
    expected = {MEASURED: measured} if measured else {}
    return Sweep(str(section["name"]), found, quadratic_optimum(found), expected)


def row(found: Sweep) -> dict[str, Any]:
    """A sweep for JSON."""
    differences = {f"{beta:g}": {str(seed): v for seed, v in by.items()} for beta, by in found.differences.items()}
    return {
        "corpus": found.name,
        "best": asdict(found.best),
        "measured": found.expected.get(MEASURED),
        "measured_lags": MEASURED_LAGS,
        "differences": differences,
    }


def line(found: Sweep) -> list[str]:
    """A sweep as a line of the table."""
    gain = min(sum(by.values()) / len(by) for by in found.differences.values())
    measured = "{:.2f} ({:.2f} to {:.2f})".format(*found.expected[MEASURED]) if found.expected else "-"
    at = "none" if math.isnan(found.best.at) else f"{found.best.at:.2f}"
    return [found.name, at, found.best.bounds(), f"{gain:+.4f}", measured]


if __name__ == "__main__":
    cli.main(beta_sweep, prog="python runs/beta_sweep.py")
