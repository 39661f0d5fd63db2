"""python -m plkernel.measure: how mutual information decays in a corpus, with intervals and a verdict."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from plkernel import __version__
from plkernel.analysis.mutual_information.curve import BLOCKS, MAX_LAG
from plkernel.analysis.mutual_information.information import Estimator
from plkernel.analysis.mutual_information.measurement import STATED, Measurement, Protocol, Range, Unit, measure_corpus
from plkernel.analysis.mutual_information.power_law_fit import DRIFT_MULTIPLE, PowerLaw, local_slopes
from plkernel.analysis.mutual_information.words import VOCABULARY, word_symbols
from plkernel.common import cli
from plkernel.common.cli import text_table
from plkernel.common.files import atomic_write, check_folder, save_json, unescape
from plkernel.data import corpora
from plkernel.data.ray_counts import Engine, counting
from plkernel.data.synthetic import synthetic_corpus

THREADS_PER_CORE = 8  # more only take memory
SHOWN_LAGS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
BITS = 1 / np.log(2)


def measure(
    names: Annotated[tuple[str, ...], tyro.conf.Positional],
    estimator: Estimator = "jackknife",
    unit: Unit = "byte",
    lags: tuple[int, int] = STATED,
    max_lag: int = MAX_LAG,
    protocol: Protocol = "default",
    blocks: int = BLOCKS,
    vocabulary: int | None = None,
    max_bytes: int | None = None,
    separator: str = r"\n",
    column: str | None = None,
    follow_links: bool = False,
    threads: int = os.cpu_count() or 1,
    engine: Engine = "local",
    out: Path = Path("runs/out/measure"),
    figure: bool = True,
) -> None:
    """Measure how mutual information decays with the lag, I(d) ~ d**-beta, and say whether it is a power law at all.

    Prints I(d), exponents on several ranges of lags with jackknife intervals, and a verdict; writes measure.json and a
    figure for each corpus, and one comparison when there are several. The exponent depends on the range, on the grid
    of lags and on the estimator, so all three are stated with it.

    Args:
        names: Corpora: stdlib, bible:en, synthetic:beta=1.0, synthetic:lags, hf:NAME, a file or folder (see
            plkernel.corpus).
        estimator: jackknife: plug-in less what the shuffled corpus would show and less what the jackknife finds beyond
            that, as blocks must be longer than the memory; shuffle: less the first alone, too little for data with
            memory; plugin, miller-madow and grassberger depend on the size of the corpus.
        unit: byte; or word: the most frequent words as symbols, lags in words.
        lags: First and last lag of the stated range.
        max_lag: Longest lag measured.
        protocol: published: add the published choices, plug-in on lags 1..500 without correction.
        blocks: Blocks of the jackknife.
        vocabulary: Symbols with --unit word, at most 256, and 256 if left out; rarer words share the last.
        max_bytes: Stop after so many bytes of each corpus.
        separator: The byte between two documents; escapes such as \\n, \\0 and \\xff are understood.
        column: The text column of .parquet, .jsonl, .csv and hf: data; 'text' unless named.
        follow_links: Read symbolic links that lead out of a folder too, and linked folders.
        threads: Lags counted at the same time; no result depends on it.
        engine: ray: count on a Ray cluster (extra dist), with the same result.
        out: Folder for measure.json and the figures.
        figure: Draw the figures.
    """
    _check(names, lags, max_lag, threads)
    _check_vocabulary(vocabulary, unit)
    check_folder(out, "out")
    options: dict[str, Any] = {"separator": unescape(separator), "column": column, "follow_links": follow_links}
    loaded = {name: corpora.load(name, max_bytes=max_bytes, **options) for name in names}  # all before any is measured
    found = []
    with counting(engine) as count:
        for name, corpus in loaded.items():
            data = corpus.bytes if unit == "byte" else word_symbols(corpus.bytes, vocabulary or VOCABULARY).codes
            with cli.progress_bar(name) as progress:
                result = measure_corpus(
                    corpus,
                    data,
                    unit=unit,
                    estimator=estimator,
                    stated=lags,
                    max_lag=max_lag,
                    blocks=blocks,
                    protocol=protocol,
                    exact=_exact(name, unit),
                    threads=threads,
                    count=count,
                    progress=progress,
                )
            found.append(result)
            print(render(result), end="\n\n", flush=True)
    if len(found) > 1:
        print(comparison(found), end="\n\n", flush=True)
    save_json(out / "measure.json", {"plkernel": __version__, "corpora": [item.to_dict() for item in found]})
    print(f"written: {out / 'measure.json'}", flush=True)
    if figure:
        _draw(found, out)


def render(found: Measurement) -> str:
    """What is printed of one corpus: its curve at some lags, the exponents, and the verdict."""
    curve, unit = found.information, found.information.unit
    title = (
        f"{found.corpus.name}: {curve.size:,} {unit}s, {curve.symbols} different ({found.corpus.source})\n"
        f"floor {curve.floor[0] * BITS:.2e} bits, what the shuffled corpus shows; drift {curve.drift * BITS:.2e} bits, "
        f"what it shows with each of {len(curve.replicates[0])} blocks shuffled; estimator '{curve.estimator}'"
    )
    parts = [title, _curve_table(found), _exponents(found), f"verdict: {found.verdict.sentence}"]
    if (clear := curve.last_above(DRIFT_MULTIPLE * curve.drift)) < curve.lags[-1]:
        parts.append(
            f"drift: beyond lag {clear} half of I or more is blocks of different composition, not their memory"
        )
    if dropped := [lag for lag, value in zip(curve.lags, curve.values, strict=True) if value <= 0]:
        parts.append(f"dropped: {len(dropped)} lags where I is zero or negative: {_few(dropped)}")
    return "\n\n".join(parts)


def _curve_table(found: Measurement) -> str:
    curve = found.information
    nearest = [
        int(np.argmin(np.abs(np.log(np.divide(curve.lags, lag))))) for lag in SHOWN_LAGS if lag <= curve.lags[-1]
    ]
    places = list(dict.fromkeys(nearest))
    errors = curve.standard_errors()
    slope_lags, slopes, slope_errors = local_slopes(curve)
    local = {int(lag): f"{s:.2f} +- {e:.2f}" for lag, s, e in zip(slope_lags, slopes, slope_errors, strict=True)}
    rows = [
        [
            f"{curve.lags[i]}",
            f"{curve.values[i] * BITS:.3e}",
            f"{errors[i] * BITS:.1e}",
            f"{curve.values[i] / curve.floor[i]:.2f}",
            f"{found.correlation.values[i]:.4f}",
            local.get(curve.lags[i], "-"),
        ]
        for i in places
    ]
    return text_table(["lag", "I, bits", "error", "I / floor", "correlation", "local slope"], rows)


def _exponents(found: Measurement) -> str:
    header = ["exponent on", "beta", "95 % interval", "R²", "curvature (p)", "lags", "dropped"]
    exact = any(row.exact is not None for row in found.rows)
    rows = [
        [
            row.label,
            f"{row.law.beta:.3f}",
            f"{row.law.low:.3f} to {row.law.high:.3f}",
            f"{row.law.r_squared:.3f}",
            f"{row.law.curvature:+.3f} ({row.law.curvature_p:.1g})",
            f"{row.law.used}",
            f"{len(row.law.dropped)}",
            *([f"{row.exact:.3f}" if row.exact is not None else "-"] if exact else []),
        ]
        for row in found.rows
    ]
    return text_table([*header, *(["exact"] if exact else [])], rows)


def comparison(found: Sequence[Measurement]) -> str:
    """One line for each corpus: the exponent on the stated range and what the curve is."""
    rows = [
        [
            item.corpus.name,
            f"{item.information.size:,}",
            f"{item.information.values[0] * BITS:.3f}",
            *_interval(item.law),
            f"{item.verdict.first_lag}..{item.verdict.last_lag}",
            item.verdict.kind,
        ]
        for item in found
    ]
    unit = f"{found[0].information.unit}s"
    return text_table(["corpus", unit, "I(1), bits", "beta", "95 % interval", "stands out", "shape"], rows)


def _interval(law: PowerLaw | None) -> tuple[str, str]:
    return (f"{law.beta:.3f}", f"{law.low:.3f} to {law.high:.3f}") if law else ("-", "-")


def _few(lags: Sequence[int]) -> str:
    shown = ", ".join(map(str, lags[:12]))
    return f"{shown}, ... {lags[-1]}" if len(lags) > 12 else shown


def _exact(name: str, unit: Unit) -> Callable[[Any], Any] | None:
    """The exact curve of a synthetic corpus."""
    kind, _, rest = name.partition(":")
    return synthetic_corpus(rest).mutual_information if (kind, unit) == ("synthetic", "byte") else None


def _draw(found: Sequence[Measurement], out: Path) -> None:
    from plkernel.analysis.figures.decay import comparison_figure, decay_figure
    from plkernel.analysis.figures.style import rendered

    drawings = {}
    for item in found:
        exact = (item.information.lags, item.exact) if item.exact else None
        title = f"{item.corpus.name}, {item.information.size:,} {item.information.unit}s"
        drawings[_slug(item.corpus.name)] = decay_figure(item.information, item.law, title=title, exact=exact)
    if len(found) > 1:
        curves = {item.corpus.name: item.information for item in found}
        laws = {item.corpus.name: item.law for item in found if item.law}
        drawings["comparison"] = comparison_figure(curves, laws)
    for name, drawing in drawings.items():
        for kind, content in rendered(drawing).items():
            atomic_write(out / f"{name}.{kind}", content)
        print(f"figure:  {out / name}.pdf, .png, .svg", flush=True)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "corpus"


def _check(names: Sequence[str], lags: Range, max_lag: int, threads: int) -> None:
    if not names:
        raise ValueError("names: give at least one corpus, e.g. stdlib")
    if not 1 <= lags[0] < lags[1] <= max_lag:
        raise ValueError(f"lags {lags[0]} {lags[1]}: must ascend from 1 or more and stay within --max-lag {max_lag}")
    most = THREADS_PER_CORE * (os.cpu_count() or 1)
    if not 1 <= threads <= most:
        raise ValueError(f"threads must lie between 1 and {most}, {THREADS_PER_CORE} for each core here, got {threads}")


def _check_vocabulary(vocabulary: int | None, unit: Unit) -> None:
    if vocabulary is None:
        return
    if unit != "word":
        raise ValueError(f"vocabulary {vocabulary} belongs to unit 'word', got unit {unit!r}: leave it out")
    if not 2 <= vocabulary <= VOCABULARY:
        raise ValueError(f"vocabulary must be from 2 to {VOCABULARY}, so that a code is one byte, got {vocabulary}")


if __name__ == "__main__":
    cli.main(measure)
