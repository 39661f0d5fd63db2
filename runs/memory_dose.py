"""Which exponent is best for a model on mixtures of lags, beside the three that one may expect: memory-dose, read.

    python runs/memory_dose.py [--study FOLDER] [--out FOLDER]

Reads the finished runs of runs/memory-dose.toml, or of its record, prints a line for each corpus, for decays that are
learnt and that stay, and for two steps, and writes best.json and the figure to FOLDER, runs/records/memory-dose unless
given.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from plkernel.analysis.figures.style import rendered
from plkernel.analysis.figures.sweep import Sweep, sweep_figure
from plkernel.analysis.information.laws import log_log_slope
from plkernel.analysis.sequences import LagCorpus
from plkernel.analysis.statistics.optimum import Optimum, quadratic_optimum
from plkernel.common import cli
from plkernel.common.cli import text_table
from plkernel.common.files import atomic_write, save_json
from plkernel.data.synthetic import predictor_of
from plkernel.records.study import Study, read_study

HERE = Path(__file__).resolve().parent
OUT = HERE / "records" / "memory-dose"
LAGS = (2, 256)
"""Over which the exponents of the information are taken."""
PREDICTOR, INFORMATION, HALF = "of the best predictor", "of the information", "half of that"
STEPS = (200, None)
"""At these the optimum is sought; None is the end."""


def memory_dose(study: Path = OUT, out: Path = OUT) -> None:
    """The best exponent of every corpus with Fieller's interval, beside those of its law.

    Args:
        study: Folder of the study, or of its record.
        out: Folder for best.json and the figure.
    """
    found = read_study(study)
    sweeps = {(block, step): sweep(found, block, step) for block in blocks(found) for step in STEPS}
    rows = [
        {
            "corpus": corpus,
            "decays": decays,
            "step": step,
            "best": asdict(one.best),
            "expected": {name: at for name, (at, _, _) in one.expected.items()},
        }
        for ((corpus, decays), step), one in sweeps.items()
    ]
    save_json(out / "best.json", {"lags_of_the_information": LAGS, "rows": rows})
    ends = [one for (_, step), one in sweeps.items() if step is None]
    for kind, content in rendered(sweep_figure(ends, columns=2)).items():
        atomic_write(out / f"best.{kind}", content)
    header = ["corpus", "decays", "step", "best", "95 % interval", PREDICTOR, INFORMATION, HALF]
    print(f"{text_table(header, [line(row) for row in rows])}\n\nwritten: {out}", flush=True)


def blocks(study: Study) -> list[tuple[str, str]]:
    """The corpora and what becomes of their decays, in the order of the study."""
    return list(dict.fromkeys((study.levels(arm)["corpus"], study.levels(arm)["decays"]) for arm in study.arms))


def sweep(study: Study, block: tuple[str, str], step: int | None) -> Sweep:
    """The differences of a block to its uniform arm by exponent, and their optimum."""
    arms = [arm for arm in study.arms if (study.levels(arm)["corpus"], study.levels(arm)["decays"]) == block]
    losses = {arm: {run.seed: loss(run, step) for run in study.finished(arm)} for arm in arms}
    uniform = next(losses[arm] for arm in arms if "exponent" not in study.levels(arm))
    differences = {
        float(study.levels(arm)["exponent"]): {seed: losses[arm][seed] - uniform[seed] for seed in uniform}
        for arm in arms
        if "exponent" in study.levels(arm)
    }
    corpus = predictor_of(study.finished(arms[0])[0].config["corpus"]["name"])
    if not isinstance(corpus, LagCorpus):
        raise ValueError(f"corpus of {arms[0]}: expected a mixture of lags, which alone has these exponents")
    title = f"{block[0]}, decays {block[1]}" + ("" if step is None else f", step {step}")
    return Sweep(title, differences, quadratic_optimum(differences), expected(corpus))


def loss(run: Any, step: int | None) -> float:
    """Validation bits per byte of a run at a step, or at its end."""
    value: float = run.result.final_val_bpb if step is None else run.at_step(step)
    return value


def expected(corpus: LagCorpus) -> dict[str, tuple[float, float, float]]:
    """The exponents that one may expect; exact, so that their intervals are points."""
    lags = np.unique(np.geomspace(*LAGS, 40).round().astype(int))
    information = log_log_slope(lags, corpus.mutual_information(lags))
    values = {PREDICTOR: corpus.alpha, INFORMATION: information, HALF: information / 2}
    return {name: (float(value),) * 3 for name, value in values.items()}


def line(row: dict[str, Any]) -> list[str]:
    """A row as a line of the table."""
    best = Optimum(**{**row["best"], "levels": tuple(row["best"]["levels"])})
    step = "the end" if row["step"] is None else str(row["step"])
    return [
        row["corpus"],
        row["decays"],
        step,
        f"{best.at:.2f}",
        best.bounds(),
        *(f"{row['expected'][name]:.2f}" for name in (PREDICTOR, INFORMATION, HALF)),
    ]


if __name__ == "__main__":
    cli.main(memory_dose, prog="python runs/memory_dose.py")
