"""Write best.json and its figure: the best exponent of each corpus, beside the exponents that one may expect.

python runs/records/memory-dose/best.py [FOLDER]    into this folder unless given
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from plkernel.analysis.figures.style import COLOURS, INK, PAGE_WIDTH, rendered, style
from plkernel.analysis.information.laws import log_log_slope
from plkernel.common.files import atomic_write, save_json
from plkernel.data.synthetic import predictor_of
from plkernel.results.statistics import quadratic_optimum
from plkernel.results.study import Study, read_study

HERE = Path(__file__).resolve().parent
LAGS = (2, 256)  # over which the exponents of the information are taken
STEPS = (200, None)  # at which the optimum is sought; None is the end


def sweep(study: Study, block: tuple[str, str], step: int | None) -> dict[str, Any]:
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
    expected = dict(zip(("of the best predictor", "of the information", "half of that"), values, strict=True))
    return {"block": block, "differences": differences, "best": quadratic_optimum(differences), "expected": expected}


def figure_of(sweeps: list[dict[str, Any]]) -> Figure:
    """Draw a panel per sweep: seeds thin, their means, the parabola of the means, and the exponents."""
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 0.6 + len(sweeps)))
        grid = figure.subplots(-(-len(sweeps) // 2), 2, sharey=True, squeeze=False).flat
        for panel, one in zip(grid, sweeps, strict=True):
            levels, best = np.array(sorted(one["differences"])), one["best"]
            values = np.array([[*one["differences"][level].values()] for level in levels])
            fine = np.linspace(levels[0], levels[-1], 100)
            panel.plot(levels, values, color=INK, lw=0.5, alpha=0.4)
            panel.plot(levels, values.mean(axis=1), "o", color=INK, ms=3, label="mean over seeds")
            panel.plot(fine, np.polyval(np.polyfit(levels, values.mean(axis=1), 2), fine), color=INK, label="parabola")
            panel.axhline(0, color=INK, lw=0.5, ls=":")
            points = [levels[0], levels[-1], *one["expected"].values()]
            panel.set(xlim=(min(points) - 0.05, max(points) + 0.05), title="{}, decays {}".format(*one["block"]))
            panel.axvspan(*np.clip([best.low, best.high], *panel.get_xlim()), color=COLOURS[1], alpha=0.15, lw=0)
            exponents = {"best for the model": best.at, **one["expected"]}
            for index, (name, at) in zip((1, 2, 0, 3), exponents.items(), strict=True):
                panel.axvline(at, color=COLOURS[index], lw=1.2, label=name)
        figure.supxlabel("exponent", fontsize=8)
        figure.supylabel("bits per byte minus uniform", fontsize=8)
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def main(out: Path = HERE) -> None:
    """Read the record and write the file and the figure into a folder."""
    study, rows, ends = read_study(HERE), [], []
    blocks = dict.fromkeys((study.levels(arm)["corpus"], study.levels(arm)["decays"]) for arm in study.arms)
    for corpus, decays in blocks:
        for step in STEPS:
            found = sweep(study, (corpus, decays), step)
            where = {"corpus": corpus, "decays": decays, "step": step}
            best = {**asdict(found["best"]), "levels": sorted(found["differences"])}
            rows.append({**where, "best": best, "expected": found["expected"]})
            ends += [found] if step is None else []
    save_json(out / "best.json", {"lags_of_the_information": LAGS, "rows": rows})
    for kind, content in rendered(figure_of(ends)).items():
        atomic_write(out / f"best.{kind}", content)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
