"""Write best.json and its figure: the best exponent of each corpus, beside the exponents that one may expect.

python runs/records/memory-dose/best.py [FOLDER]    into this folder unless given
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from plkernel.analysis.figures.style import rendered
from plkernel.analysis.information.laws import log_log_slope
from plkernel.common.files import atomic_write, save_json
from plkernel.data.synthetic import predictor_of
from plkernel.results.figures import Sweep, sweep_figure
from plkernel.results.statistics import quadratic_optimum
from plkernel.results.study import Study, read_study

HERE = Path(__file__).resolve().parent
LAGS = (2, 256)  # over which the exponents of the information are taken
STEPS = (200, None)  # at which the optimum is sought; None is the end


def sweep(study: Study, block: tuple[str, str], step: int | None) -> Sweep:
    """Return the differences of a block to its uniform arm by exponent, and their optimum with Fieller's interval."""
    levels = {arm: study.levels(arm) for arm in study.arms}
    arms = [arm for arm in study.arms if (levels[arm]["corpus"], levels[arm]["decays"]) == block]
    losses = {
        arm: {run.seed: run.result.final_val_bpb if step is None else run.at_step(step) for run in study.finished(arm)}
        for arm in arms
    }
    uniform = next(losses[arm] for arm in arms if "exponent" not in levels[arm])
    differences = {
        float(levels[arm]["exponent"]): {seed: losses[arm][seed] - uniform[seed] for seed in uniform}
        for arm in arms
        if "exponent" in levels[arm]
    }
    corpus: Any = predictor_of(study.finished(arms[0])[0].config["corpus"]["name"])
    lags = np.unique(np.geomspace(*LAGS, 40).round().astype(int))
    information = float(log_log_slope(lags, corpus.mutual_information(lags)))
    values = (float(corpus.alpha), information, information / 2)
    names = ("of the best predictor", "of the information", "half of that")
    expected = {name: (value,) * 3 for name, value in zip(names, values, strict=True)}
    title = f"{block[0]}, decays {block[1]}" + ("" if step is None else f", step {step}")
    return Sweep(title, differences, quadratic_optimum(differences), expected)


def main(out: Path = HERE) -> None:
    """Read the record and write the file and the figure into a folder."""
    study, rows, ends = read_study(HERE), [], []
    blocks = dict.fromkeys((study.levels(arm)["corpus"], study.levels(arm)["decays"]) for arm in study.arms)
    for corpus, decays in blocks:
        for step in STEPS:
            found = sweep(study, (corpus, decays), step)
            expected = {name: at for name, (at, _, _) in found.expected.items()}
            where = {"corpus": corpus, "decays": decays, "step": step}
            best = {**asdict(found.best), "levels": sorted(found.differences)}
            rows.append({**where, "best": best, "expected": expected})
            ends += [found] if step is None else []
    save_json(out / "best.json", {"lags_of_the_information": LAGS, "rows": rows})
    for kind, content in rendered(sweep_figure(ends, columns=2)).items():
        atomic_write(out / f"best.{kind}", content)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
