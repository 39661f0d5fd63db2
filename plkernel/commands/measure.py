"""python -m plkernel.measure: how mutual information decays in a corpus, with intervals and a
verdict.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from plkernel import __version__
from plkernel.analysis.information import laws
from plkernel.analysis.information.counts import check_data
from plkernel.analysis.information.estimate import BLOCKS, MAX_LAG, DecayCurve, Estimator
from plkernel.analysis.information.laws import (
    DRIFT_MULTIPLE,
    STATED,
    Measurement,
    local_slopes,
    measure_corpus,
)
from plkernel.analysis.information.periods import UNITS
from plkernel.api import measure
from plkernel.common import cli
from plkernel.common.cli import text_table
from plkernel.common.files import check_folder, save_figure, save_json, unescape
from plkernel.config.study import heading
from plkernel.data import corpora
from plkernel.data.names import byte_count, known_sequence

__all__ = ["command", "measure", "render"]

SHOWN_LAGS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
BITS = 1 / np.log(2)
MOSTLY = 0.8
"""The share of one byte at one phase from which it is said to be mostly that byte."""


def command(
    names: Annotated[tuple[str, ...], tyro.conf.Positional],
    estimator: Estimator = "jackknife",
    lags: tuple[int, int] = STATED,
    max_lag: int = MAX_LAG,
    blocks: int = BLOCKS,
    max_bytes: str | None = None,
    separator: str = r"\n",
    column: str | None = None,
    threads: int = os.cpu_count() or 1,
    out: Path = Path("runs/out/measure"),
    figure: bool = True,
) -> None:
    """Measure how mutual information decays with the lag, I(d) ~ d**-beta, and say whether it is a
    power law at all.

    Prints I(d), exponents on several ranges of lags with jackknife intervals, and a verdict; writes
    measure.json, a figure for each corpus, and a comparison of several.

    Args:
        names: Corpora: stdlib, bible:en, synthetic:beta=1.0, hf:NAME, a file or folder (see
            plkernel.corpus).
        estimator: jackknife: plug-in less what the shuffled corpus shows and the jackknife finds
            beyond that; shuffle:
            less the first alone; plugin depends on the size of the corpus.
        lags: First and last lag of the stated range; unless given, 1 and at most max_lag.
        max_lag: Longest lag measured.
        blocks: Blocks of the jackknife.
        max_bytes: Stop after so many bytes of each corpus, such as 500000 or 1MB.
        separator: The byte between two documents; escapes such as \\n, \\0 and \\xff are
            understood.
        column: The text column of .parquet, .jsonl, .csv and hf: data; 'text' unless named.
        threads: Lags counted at the same time; no result depends on it.
        out: Folder for measure.json and the figures.
        figure: Draw the figures.
    """
    if not names:
        raise ValueError("names: give at least one corpus, e.g. stdlib")
    stated = laws.check_range(None if lags == STATED else lags, max_lag)
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    check_folder(out, "out")
    most = None if max_bytes is None else byte_count(str(max_bytes))
    reading: Any = {"max_bytes": most, "separator": unescape(separator), "column": column}
    loaded = {name: corpora.load(name, **reading) for name in names}
    for name, corpus in loaded.items():  # all before the first is measured
        with heading(f"{name}: "):
            check_data(corpus.bytes, max_lag, blocks)
    options: Any = {"estimator": estimator, "stated": stated, "max_lag": max_lag, "blocks": blocks}
    results = []
    for name, corpus in loaded.items():
        sequence = known_sequence(name)
        options["exact"] = sequence.mutual_information if sequence else None
        with heading(f"{name}: "), cli.progress_bar(name) as progress:
            results.append(
                measure_corpus(corpus, corpus.bytes, threads=threads, progress=progress, **options)
            )
        print(render(results[-1]), end="\n\n", flush=True)
        save_json(
            out / "measure.json",
            {"plkernel": __version__, "corpora": [item.to_dict() for item in results]},
        )
    if len(results) > 1:
        rows = []
        for name, law, kind in (
            (item.corpus.name, item.law, item.verdict.kind) for item in results
        ):
            rows.append(
                [
                    name,
                    *([f"{law.beta:.3f}", f"{law.low:.3f} to {law.high:.3f}"] if law else "--"),
                    kind,
                ]
            )
        print(
            text_table(["corpus", "beta", "95 % interval", "shape"], rows), end="\n\n", flush=True
        )
    print(f"written: {out / 'measure.json'}", flush=True)
    if not figure:
        return
    taken = ["comparison"]
    for item in results:
        taken.append(stem := re.sub(r"[^\w.]+", "-", item.corpus.name).strip("-.") or "corpus")
        save_figure(
            out, f"{stem}-{times}" if (times := taken.count(stem)) > 1 else stem, item.plot()
        )
    if len(results) > 1:
        from plkernel.analysis.figures.decay import comparison_figure

        curves = {item.corpus.name: item.information for item in results}
        known = {
            item.corpus.name: item.law
            for item in results
            if item.law and item.verdict.kind == "power law"
        }
        save_figure(out, "comparison", comparison_figure(curves, known))


def render(result: Measurement) -> str:
    """The report of one corpus: its curve at some lags, the exponents, the verdict and cautions."""
    curve = result.information
    title = (
        f"{result.corpus.name}: {curve.size:,} bytes, {curve.symbols} different"
        f" ({result.corpus.source})\nfloor {curve.floor[0] * BITS:.2e} bits, what the shuffled"
        f" corpus shows; drift {curve.drift * BITS:.2e} bits, what it shows with each of"
        f" {len(curve.replicates[0])} blocks shuffled; estimator '{curve.estimator}'"
    )
    near = [
        int(np.argmin(np.abs(np.log(np.divide(curve.lags, lag)))))
        for lag in SHOWN_LAGS
        if lag <= curve.lags[-1]
    ]
    errors = curve.standard_errors()
    local = {
        lag: f"{slope:.2f} +- {error:.2f}"
        for lag, slope, error in zip(*local_slopes(curve), strict=True)
    }
    lags = []
    for i in dict.fromkeys(near):
        cells = [f"{curve.lags[i]}", f"{curve.values[i] * BITS:.3e}", f"{errors[i] * BITS:.1e}"]
        cells += [f"{curve.values[i] / curve.floor[i]:.2f}", f"{result.correlation.values[i]:.4f}"]
        lags.append([*cells, local.get(curve.lags[i], "-")])
    header = [
        "exponent on",
        "beta",
        "95 % interval",
        "R²",
        "curvature (p)",
        "lags",
        "dropped",
        "exact",
    ]
    fits = []
    for label, law, exact in result.rows:
        bend = f"{law.curvature:+.3f} ({law.curvature_p:.1g})"
        cells = [
            label,
            f"{law.beta:.3f}",
            f"{law.low:.3f} to {law.high:.3f}",
            f"{law.r_squared:.3f}",
            bend,
        ]
        fits.append(
            [*cells, f"{law.used}", f"{len(law.dropped)}", "-" if exact is None else f"{exact:.3f}"]
        )
    shown = len(header) - all(exact is None for *_, exact in result.rows)
    parts = [
        title,
        text_table(["lag", "I, bits", "error", "I / floor", "correlation", "local slope"], lags),
        text_table(header[:shown], [cells[:shown] for cells in fits]),
        f"verdict: {result.verdict.sentence}",
    ]
    parts += [sentence for sentence in (period_sentence(result), drift_sentence(curve)) if sentence]
    if dropped := sum(value <= 0 for value in curve.values):
        parts.append(f"dropped: {dropped} lags where I is zero or negative")
    return "\n\n".join(parts)


def period_sentence(result: Measurement) -> str | None:
    """The period of the bytes, what it may be, and what to do about it."""
    period = result.period
    if period is None:
        return None
    found = f"period: the composition of the text repeats every {period.length} bytes"
    left_out = (
        f"it explains {period.strength * BITS:.2g} bits at lag {period.length}, and what it"
        " explains is not part of I above"
    )
    if period.length <= UNITS and period.blank > MOSTLY:
        name = {2: "UTF-16 or numbers of 16 bits", 4: "UTF-32 or numbers of 32 bits"}.get(
            period.length, f"symbols of {period.length} bytes"
        )
        return (
            f"{found}, and one of them is mostly 0: {name}; {left_out}, and only multiples of"
            f" {period.length} are measured. Convert text to UTF-8 (iconv -f UTF-16 -t UTF-8)"
        )
    if period.length <= UNITS:
        return (
            f"{found}: symbols of several bytes; {left_out}, and only multiples of"
            f" {period.length} are measured"
        )
    return f"{found}: lines or records of the same, or nearly the same, length; {left_out}"


def drift_sentence(curve: DecayCurve) -> str | None:
    """The lag from which blocks of different composition explain half of I, where they do.

    None where the drift is smaller than the error of I, so that noise alone is left.
    """
    clear = curve.last_above(DRIFT_MULTIPLE * curve.drift)
    if clear == curve.lags[-1]:
        return None
    following = curve.lags.index(clear) + 1 if clear else 0
    if curve.drift < curve.standard_errors()[following]:
        return None
    return (
        f"drift: beyond lag {clear} half of I or more is blocks of different composition, not"
        " memory"
    )


if __name__ == "__main__":
    cli.main(command)
