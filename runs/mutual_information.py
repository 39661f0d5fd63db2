"""How far measured exponents can be trusted: the studies behind docs/evidence/measured.md.

    python runs/mutual_information.py accuracy    exponents of sequences of known information, 10 MB
    python runs/mutual_information.py stability   what the size of the sample does to each estimator
    python runs/mutual_information.py texts       six texts, the default and the published protocol side by side
    python runs/mutual_information.py all         all three

Each writes its rows to runs/records/measure. `stability` and `texts` need the extra `text`. How often intervals
cover is measured by runs/interval_coverage.py.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from plkernel.analysis.figures.decay import comparison_figure, decay_figure
from plkernel.analysis.figures.style import rendered
from plkernel.analysis.information.curve import FEWEST_BLOCKS, decay_curves, log_lags
from plkernel.analysis.information.estimate import ESTIMATORS
from plkernel.analysis.information.laws import fit_power_law, log_log_slope
from plkernel.analysis.information.measurement import measure_corpus
from plkernel.analysis.sequences import PottsCorpus
from plkernel.common.cli import nearest, report_errors
from plkernel.common.environment import environment
from plkernel.common.files import atomic_write, save_json
from plkernel.data import corpora

OUT = Path(__file__).resolve().parent / "records" / "measure"
THREADS = os.cpu_count() or 1
LAGS = log_lags(500)

ACCURACY_BETAS = (0.5, 0.7, 0.9, 1.15, 1.4, 1.7, 2.0)
CLEAR = 8.0
TEXTS = ("bible:en", "bible:en:k", "bible:en:3", "bible:en:4", "bible:pt", "stdlib")
STABILITY_TEXTS = (*TEXTS[:5], "bible:ru", "bible:hi", "stdlib")
SIZES = (300_000, 1_000_000, 5_000_000)
MOST_PIECES = 12


def accuracy() -> dict[str, Any]:
    """Estimated against exact exponent on the lags whose exact information exceeds eight floors."""
    rows = []
    for beta in progress(ACCURACY_BETAS, "accuracy"):
        for seed in range(3):
            corpus = PottsCorpus(beta=beta, size=10_000_000, seed=seed)
            curve, _ = decay_curves(sequence(corpus), LAGS, threads=THREADS)
            exact = corpus.mutual_information(LAGS)
            clear = exact > CLEAR * np.array(curve.floor)
            law = fit_power_law(curve, (1, int(LAGS[clear][-1])))
            truth = log_log_slope(LAGS[clear], exact[clear])
            found = {"estimate": law.beta, "standard_error": law.standard_error, "dropped": len(law.dropped)}
            rows.append({"nominal": beta, "seed": seed, "last_lag": law.last_lag, "exact": truth, **found})
    return {"size": 10_000_000, "symbols": 16, "multiple_of_floor": CLEAR, "rows": rows}


def stability() -> dict[str, Any]:
    """Exponents on lags 1..500 of disjoint pieces of a text, by size of the piece and estimator: mean and spread."""
    rows = []
    for name in progress(STABILITY_TEXTS, "stability"):
        data = corpora.load(name).bytes
        for size in SIZES:
            for estimator in ESTIMATORS:
                curves = [
                    decay_curves(piece, LAGS, estimator=estimator, blocks=FEWEST_BLOCKS, threads=THREADS)[0]
                    for piece in pieces(data, size)
                ]
                betas = [fit_power_law(curve, (1, 500)).beta for curve in curves]
                used = min(size, data.size)
                row = {"corpus": name, "size": int(used), "pieces": len(betas), "estimator": estimator}
                rows.append({**row, "beta": float(np.mean(betas)), "deviation": float(np.std(betas))})
    return {"lags": [1, 500], "rows": rows}


def texts() -> dict[str, Any]:
    """Exponents of six texts on several ranges by both protocols; the figures beside the rows.

    `equal_weights` is the exponent on 50 log-spaced lags of 1..500 that count the same, as the literature takes it.
    """
    found, equal = [], []
    for name in progress(TEXTS, "texts"):
        corpus = corpora.load(name)
        found.append(measure_corpus(corpus, corpus.bytes, protocol="published", threads=THREADS))
        spaced, _ = decay_curves(corpus.bytes, LAGS, threads=THREADS)
        equal.append(fit_power_law(spaced, (1, LAGS[-1]), weights=np.ones(LAGS.size)).to_dict())
    curves = {item.corpus.name: item.information for item in found}
    laws = {item.corpus.name: item.law for item in found if item.law}
    draw("texts", comparison_figure(curves, laws))
    first = found[0]
    draw("bible-en", decay_figure(first.information, first.law, title=f"bible:en, {first.information.size:,} bytes"))
    summaries = [summary(item.to_dict()) for item in found]
    return {"texts": [{**text, "equal_weights": law} for text, law in zip(summaries, equal, strict=True)]}


def summary(measured: dict[str, Any]) -> dict[str, Any]:
    """A measurement without its replicates, which are many, and without paths of this machine."""
    for curve in ("information", "correlation"):
        del measured[curve]["replicates"]
    del measured["corpus"]["path"]
    return measured


def pieces(data: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """At most MOST_PIECES disjoint pieces of `size` bytes, spread over the data; all of it when it is shorter."""
    count = max(1, min(MOST_PIECES, data.size // size))
    for start in np.linspace(0, max(0, data.size - size), count).astype(int):
        yield data[start : start + size]


def sequence(corpus: PottsCorpus) -> np.ndarray:
    """The whole sequence."""
    return np.concatenate(list(corpus.blocks()))


def progress(items: Any, name: str) -> Any:
    """A bar over items."""
    return tqdm(items, desc=name, disable=None, file=sys.stderr)


def draw(name: str, figure: Any) -> None:
    """The figure beside the rows."""
    for kind, content in rendered(figure).items():
        if kind != "pdf":
            atomic_write(OUT / f"{name}.{kind}", content)


STUDIES: dict[str, Callable[[], dict[str, Any]]] = {
    "accuracy": accuracy,
    "stability": stability,
    "texts": texts,
}


def main() -> None:
    """Run the studies named on the command line."""
    names = sys.argv[1:] or ["--help"]
    if set(names) & {"-h", "--help"}:
        print(__doc__)
        return
    names = list(STUDIES) if names == ["all"] else names
    for name in names:
        if name not in STUDIES:
            raise ValueError(f"study {name!r}: {nearest(name, [*STUDIES, 'all'])}")
    place = environment(THREADS)  # before the first record changes the checkout
    for name in names:
        save_json(OUT / f"{name}.json", {"environment": place, **STUDIES[name]()})
        print(f"written: {OUT / name}.json", flush=True)


if __name__ == "__main__":
    report_errors(main)
