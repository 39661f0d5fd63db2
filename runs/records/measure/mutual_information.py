"""How far measured exponents can be trusted: the studies behind docs/evidence/measured.md.

python runs/records/measure/mutual_information.py STUDY .. writes STUDY.json beside this file:

    accuracy    exponents of sequences of known information, 10 MB
    stability   what the size of the sample does to each estimator
    texts       six texts, the default and the published protocol side by side; with figures

The last two need the extra `text`. interval_coverage.py measures how often intervals cover. The
record of `stability` has two estimators more, Miller-Madow and Grassberger, which plkernel no
longer has.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal
from unittest.mock import patch

import numpy as np
import tyro
from tqdm import tqdm

from plkernel.analysis.figures.decay import comparison_figure, decay_figure
from plkernel.analysis.figures.style import rendered
from plkernel.analysis.information import laws
from plkernel.analysis.information.counts import FEWEST_BLOCKS
from plkernel.analysis.information.estimate import (
    ESTIMATORS,
    DecayCurve,
    decay_curves,
    log_lags,
)
from plkernel.analysis.information.laws import (
    PowerLaw,
    fit_power_law,
    log_log_slope,
    measure_corpus,
)
from plkernel.analysis.sequences import PottsCorpus
from plkernel.common import cli
from plkernel.common.environment import environment
from plkernel.common.files import atomic_write, save_json
from plkernel.data import corpora

HERE = Path(__file__).resolve().parent
THREADS = os.cpu_count() or 1
LAGS = log_lags(500)
ACCURACY_BETAS = (0.5, 0.7, 0.9, 1.15, 1.4, 1.7, 2.0)
CLEAR = 8.0
"""Multiple of the floor above which exact information is compared."""
TEXTS = ("bible:en", "bible:en:k", "bible:en:3", "bible:en:4", "bible:pt", "stdlib")
STABILITY_TEXTS = (*TEXTS[:5], "bible:ru", "bible:hi", "stdlib")
SIZES = (300_000, 1_000_000, 5_000_000)
MOST_PIECES = 12
Study = Literal["accuracy", "stability", "texts"]


def measurements(
    studies: Annotated[tuple[Study, ...], tyro.conf.Positional],
    size: int = 10_000_000,
    seeds: int = 3,
    texts: tuple[str, ...] = (),
    out: Path = HERE,
) -> None:
    """Run studies of measured exponents.

    Args:
        studies: Which ones.
        size: Bytes of the sequences of `accuracy`.
        seeds: Sequences of each exponent in `accuracy`.
        texts: Texts instead of those of the record.
        out: Folder for the records and figures.
    """
    place = environment(THREADS)  # before the first record changes the checkout
    for name in studies:
        if name == "accuracy":
            found = accuracy(size, seeds)
        elif name == "stability":
            found = stability(texts or STABILITY_TEXTS)
        else:
            found = of_texts(texts or TEXTS, out)
        save_json(out / f"{name}.json", {"environment": place, **found})
        print(f"written: {out / name}.json", flush=True)


def accuracy(size: int, seeds: int) -> dict[str, Any]:
    """Estimated against exact exponents, on lags whose exact information exceeds eight floors."""
    rows = []
    for beta in progress(ACCURACY_BETAS, "accuracy"):
        for seed in range(seeds):
            corpus = PottsCorpus(beta=beta, size=size, seed=seed)
            curve, _ = decay_curves(corpus.sequence(), LAGS, threads=THREADS)
            exact = corpus.mutual_information(LAGS)
            clear = exact > CLEAR * np.array(curve.floor)
            law = fit_power_law(curve, (1, int(LAGS[clear][-1])))
            rows.append(
                {
                    "nominal": beta,
                    "seed": seed,
                    "last_lag": law.last_lag,
                    "exact": log_log_slope(LAGS[clear], exact[clear]),
                    "estimate": law.beta,
                    "standard_error": law.standard_error,
                    "dropped": len(law.dropped),
                }
            )
    return {"size": size, "symbols": 16, "multiple_of_floor": CLEAR, "rows": rows}


def stability(names: tuple[str, ...]) -> dict[str, Any]:
    """Exponents on lags 1..500 of disjoint pieces of a text, by size and estimator."""
    rows = []
    for name in progress(names, "stability"):
        data = corpora.load(name).bytes
        for size in SIZES:
            for estimator in ESTIMATORS:
                betas = []
                for piece in pieces(data, size):
                    curve, _ = decay_curves(
                        piece, LAGS, estimator=estimator, blocks=FEWEST_BLOCKS, threads=THREADS
                    )
                    betas.append(fit_power_law(curve, (1, 500)).beta)
                rows.append(
                    {
                        "corpus": name,
                        "size": int(min(size, data.size)),
                        "pieces": len(betas),
                        "estimator": estimator,
                        "beta": float(np.mean(betas)),
                        "deviation": float(np.std(betas)),
                    }
                )
    return {"lags": [1, 500], "rows": rows}


def of_texts(names: tuple[str, ...], out: Path) -> dict[str, Any]:
    """Exponents of texts on several ranges and by the published choices, and two figures.

    `equal_weights` is the exponent on 50 log-spaced lags of 1..500 that count the same, as the
    literature takes it.
    """
    measured = []
    rows = []
    for name in progress(names, "texts"):
        corpus = corpora.load(name)
        found = measure_corpus(corpus, corpus.bytes, threads=THREADS)
        measured.append(found)
        spaced, _ = decay_curves(corpus.bytes, LAGS, threads=THREADS)
        row = summary(found.to_dict())
        row["fits"] += published(corpus.bytes)
        row["equal_weights"] = asdict(equally_weighted(spaced))
        rows.append(row)
    curves = {found.corpus.name: found.information for found in measured}
    fitted = {found.corpus.name: found.law for found in measured if found.law}
    draw(out, "texts", comparison_figure(curves, fitted))
    first = measured[0]
    title = f"{first.corpus.name}, {first.information.size:,} bytes"
    figure = decay_figure(first.information, first.law, title=title)
    draw(out, first.corpus.name.replace(":", "-"), figure)
    return {"texts": rows}


def published(data: np.ndarray) -> list[dict[str, Any]]:
    """The published choices on every lag of 1..500 and on log-spaced ones: the plug-in, and equal
    weights.
    """
    rows = []
    for grid, lags in (("every lag", np.arange(1, 501)), ("log-spaced", LAGS)):
        curve, _ = decay_curves(data, lags, estimator="plugin", threads=THREADS)
        label = f"published, lags 1..500, {grid}"
        rows.append({"label": label, **asdict(equally_weighted(curve)), "exact": None})
    return rows


def equally_weighted(curve: DecayCurve) -> PowerLaw:
    """The exponent on lags 1..500 that all count the same, which plkernel itself does not offer."""
    with patch.object(laws, "octave_weights", lambda lags: np.ones(len(lags))):
        return fit_power_law(curve, (1, 500))


def summary(measured: dict[str, Any]) -> dict[str, Any]:
    """A measurement without its replicates, which are many, and without paths of this machine."""
    for curve in ("information", "correlation"):
        del measured[curve]["replicates"]
    measured["corpus"].pop("path", None)
    return measured


def pieces(data: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """At most MOST_PIECES disjoint pieces of `size` bytes, spread over the data; all of it when it
    is shorter.
    """
    count = max(1, min(MOST_PIECES, data.size // size))
    for start in np.linspace(0, max(0, data.size - size), count).astype(int):
        yield data[start : start + size]


def progress(items: Sequence[Any], name: str) -> Any:
    """Show a bar over items."""
    return tqdm(items, desc=name, disable=None, file=sys.stderr)


def draw(folder: Path, name: str, figure: Any) -> None:
    """Write a figure as PNG and SVG."""
    for kind, content in rendered(figure, ("png", "svg")).items():
        atomic_write(folder / f"{name}.{kind}", content)


if __name__ == "__main__":
    cli.main(measurements, prog="python runs/records/measure/mutual_information.py")
