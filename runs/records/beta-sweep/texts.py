"""The exponents of the texts of runs/beta-sweep.toml, from which the arm `own` has its own.

python runs/records/beta-sweep/texts.py measures the bytes that each text of the spec has, all of
them, and writes texts.json and a figure of their curves beside this file. It stops where the
exponent that an arm has is not the one measured, to two decimals.
"""

import os
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from plkernel.analysis.figures.decay import comparison_figure
from plkernel.analysis.figures.style import rendered
from plkernel.analysis.information.laws import Measurement, measure_corpus
from plkernel.common import cli
from plkernel.common.environment import environment
from plkernel.common.files import atomic_write, save_json
from plkernel.config.reading import load_spec
from plkernel.data import corpora

HERE = Path(__file__).resolve().parent
SPEC = HERE.parents[1] / "beta-sweep.toml"
THREADS = os.cpu_count() or 1


def texts(out: Path = HERE) -> None:
    """Measure the texts of the study.

    Args:
        out: Folder for the record and its figure.
    """
    place = environment(THREADS)  # before the record changes the checkout
    spec = load_spec(SPEC)
    rows = []
    curves = {}
    own = {name.removeprefix("own_"): name for name in spec.arms if name.startswith("own_")}
    for text, arm in tqdm(own.items(), desc="texts", disable=None, file=sys.stderr):
        condition = spec.condition(arm)
        corpus = corpora.load(condition.corpus.name, max_bytes=condition.corpus.max_bytes)
        found = measure_corpus(corpus, corpus.bytes, threads=THREADS)
        rows.append({"text": text, **row(found)})
        curves[text] = found.information
        if round(rows[-1]["beta"], 2) != condition.arm.beta:
            raise ValueError(
                f"beta of arm {arm} must be the exponent measured, {rows[-1]['beta']:.2f}, got"
                f" {condition.arm.beta}"
            )
    save_json(out / "texts.json", {"environment": place, "texts": rows})
    for kind, content in rendered(comparison_figure(curves, {}), ("png", "svg")).items():
        atomic_write(out / f"texts.{kind}", content)
    print(f"written: {out / 'texts.json'}")


def row(found: Measurement) -> dict[str, Any]:
    """What a text is, its exponent on lags 1..500 and what stands out."""
    law = found.law
    if law is None:
        raise ValueError(f"{found.corpus.name} must have an exponent on lags 1..500, got none")
    return {
        "corpus": found.corpus.name,
        "size": found.corpus.size,
        "sha256": found.corpus.sha256,
        "beta": law.beta,
        "low": law.low,
        "high": law.high,
        "lags": [law.first_lag, law.last_lag],
        "last_lag": found.verdict.last_lag,
        "verdict": found.verdict.sentence,
    }


if __name__ == "__main__":
    cli.main(texts, prog="python runs/records/beta-sweep/texts.py")
