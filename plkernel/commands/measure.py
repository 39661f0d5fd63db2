"""python -m plkernel.measure: how mutual information decays in a corpus, with a verdict."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from plkernel import __version__
from plkernel.analysis.information import laws
from plkernel.analysis.information.alphabets import fewest_pairs, pairs_suffice
from plkernel.analysis.information.counts import check_data
from plkernel.analysis.information.estimate import BLOCKS, MAX_LAG, DecayCurve, Estimator
from plkernel.analysis.information.laws import (
    STATED,
    Measurement,
    local_slopes,
    measure_corpus,
)
from plkernel.api.texts import measure
from plkernel.common import cli
from plkernel.common.cli import counted, text_table
from plkernel.common.files import (
    FigureFormat,
    check_apart,
    check_folder,
    end_of_name,
    save_figure,
    save_json,
    unescape,
)
from plkernel.data import corpora
from plkernel.data.names import byte_count, check_outside, known_sequence
from plkernel.data.symbols import (
    MeasuredAs,
    SymbolText,
    check_measured,
    check_reading,
    is_vector_file,
    of_text,
    read_vector,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["command", "measure", "render"]

SHOWN_LAGS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Lags of the table in the terminal, as near as measured ones are."""
BITS = 1 / np.log(2)
"""Bits of a nat."""


def command(
    names: Annotated[tuple[str, ...], tyro.conf.Positional],
    estimator: Estimator | None = None,
    tokenizer: Path | None = None,
    measured: MeasuredAs = "bytes",
    lags: tuple[int, int] = STATED,
    max_lag: int = MAX_LAG,
    blocks: int = BLOCKS,
    max_bytes: str | None = None,
    separator: str = r"\n",
    column: str | None = None,
    threads: int = os.cpu_count() or 1,
    out: Path = Path("runs/out/measure"),
    figure: bool = True,
    formats: tuple[FigureFormat, ...] = ("png",),
) -> None:
    """Measure how mutual information decays with the lag and say whether it follows a power law.

    The command prints the information I(d) at lags d, exponents of I(d) ~ d**-beta on several
    ranges of lags with jackknife intervals, and a verdict. It writes measure.json, a figure of each
    corpus, and for several corpora a figure that compares them.

    With a tokenizer it says how many bytes a token of the text has, and tells lags in bytes and in
    tokens. Where there are too many different symbols for a table of their pairs, it measures how
    often two equal ones stand d apart, which is a lower bound of their information.

    Args:
        names: The corpora to measure: stdlib, bible:en, synthetic:beta=1.0, hf:NAME, a file or a
            folder; plkernel.corpus --help lists all kinds. Also a file .npy of integers, each of
            which is a symbol.
        estimator: How the bias of the plug-in estimate is treated. shuffle subtracts the shuffle
            floor, which is the estimate for the shuffled corpus; jackknife also subtracts the bias
            that the jackknife finds beyond the floor; plugin subtracts nothing, and its result
            depends on the size of the corpus. repeats has no table of pairs. If left out,
            jackknife for bytes and wherever there are ten pairs for each cell of their table, and
            repeats for other symbols.
        tokenizer: A tokenizer file such as tokenizer.json, or a folder that has it.
        measured: What is measured of a text, bytes or tokens.
        lags: First and last lag of the range whose exponent is stated. The last one is at most
            max_lag.
        max_lag: The longest lag that is measured.
        blocks: Number of blocks of the jackknife.
        max_bytes: Read at most this many bytes of each text, such as 500000 or 1MB.
        separator: The byte between two documents. Escapes such as \\n, \\0 and \\xff are
            understood.
        column: Name of the text column in .parquet, .jsonl, .csv and hf: data; 'text' if left out.
        threads: Number of lags that are counted at the same time. The result does not depend on it.
        out: Folder for measure.json and the figures.
        figure: Draw the figures.
        formats: Formats of the figures. A pdf takes about as long as everything else for a small
            corpus.
    """
    if not names:
        raise ValueError("names must hold at least one corpus, got none; for example stdlib")
    stated = laws.check_range(None if lags == STATED else lags, max_lag)
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    check_folder(out, "out")
    check_apart({"out": out / "measure.json"}, names)
    check_outside({"out": out}, names)
    most = None if max_bytes is None else byte_count(str(max_bytes))
    reading: Any = {"max_bytes": most, "separator": unescape(separator), "column": column}
    check_measured(tokenizer, measured)
    loaded = {name: _read(name, tokenizer, measured, reading) for name in names}
    _check_all(loaded, max_lag, blocks)
    options: Any = {
        "estimator": estimator,
        "stated": stated,
        "max_lag": max_lag,
        "blocks": blocks,
        "threads": threads,
    }
    results: list[Measurement] = []
    for name, text in loaded.items():
        found = _measured(name, text, options)
        results.append(found)
        print(render(found), end="\n\n", flush=True)
        values = [item.to_dict() for item in results]
        save_json(out / "measure.json", {"plkernel": __version__, "corpora": values})
    if len(results) > 1:
        print(comparison_table(results), end="\n\n", flush=True)
    print(f"written: {out / 'measure.json'}", flush=True)
    if figure:
        save_figures(results, out, formats)


def _read(
    name: str, tokenizer: Path | None, measured: MeasuredAs, reading: dict[str, Any]
) -> SymbolText:
    """The text called `name`, its tokens, or the integers in a file of numpy."""
    if not is_vector_file(name):
        corpus = corpora.load(name, **reading)
        with cli.headed(f"{name}: "):
            if tokenizer is None:
                return of_text(corpus, corpus.bytes)
            with cli.progress_bar(f"{name}, tokens") as progress:
                return of_text(corpus, corpus.bytes, tokenizer, measured, progress)
    what = f"{name}, which holds numbers and no text"
    if tokenizer is not None:
        raise ValueError(f"tokenizer must be left out for {what}, got {str(tokenizer)!r}")
    check_reading(what, reading)
    with cli.progress_bar(f"{name}, symbols") as progress:
        return read_vector(name, progress)


def _check_all(texts: Mapping[str, SymbolText], max_lag: int, blocks: int) -> None:
    """Raise ValueError, before the first is measured, for a text that cannot be."""
    for name, text in texts.items():
        with cli.headed(f"{name}: "):
            check_data(text.data, max_lag, blocks, wide=True)


def _measured(name: str, text: SymbolText, options: dict[str, Any]) -> Measurement:
    """The measurement of one text, beside the exact information where its law is known."""
    sequence = known_sequence(name) if text.unit == "byte" else None
    exact = sequence.mutual_information if sequence else None
    with cli.headed(f"{name}: "), cli.progress_bar(name) as progress:
        return measure_corpus(
            text.corpus,
            text.data,
            exact=exact,
            unit=text.unit,
            tokens=text.tokens,
            progress=progress,
            **options,
        )


def comparison_table(results: Sequence[Measurement]) -> str:
    """A row for each corpus: its exponent with the interval, and the shape of its decay."""
    rows = []
    for item in results:
        law = item.law
        beta = f"{law.beta:.3f}" if law else "-"
        interval = f"{law.low:.3f} to {law.high:.3f}" if law else "-"
        rows.append([item.corpus.name, beta, interval, item.verdict.kind])
    return text_table(["corpus", "beta", "95 % interval", "shape"], rows)


def save_figures(
    results: Sequence[Measurement], out: Path, formats: Sequence[FigureFormat]
) -> None:
    """Write a figure of each corpus, named after it, and one that compares several."""
    taken = ["comparison"]
    for item in results:
        words = re.sub(r"[^\w.]+", "-", item.corpus.name)
        stem = end_of_name(words).strip("-.") or "corpus"
        taken.append(stem)
        times = taken.count(stem)
        name = stem if times == 1 else f"{stem}-{times}"
        save_figure(out, name, item.plot, formats)
    if len(results) > 1:
        save_figure(out, "comparison", lambda: _comparison(results), formats)


def _comparison(results: Sequence[Measurement]) -> "Figure":
    """The curves of several corpora, and the power laws of those that have one."""
    from plkernel.analysis.figures.decay import comparison_figure

    curves = {item.corpus.name: item.information for item in results}
    power_laws = {
        item.corpus.name: item.law
        for item in results
        if item.law and item.verdict.kind == "power law"
    }
    return comparison_figure(curves, power_laws)


def render(result: Measurement) -> str:
    """The report of one corpus: its curve at some lags, the exponents, the verdict and cautions."""
    curve = result.information
    unit = curve.unit
    blocks = len(curve.replicates[0])
    floor = "what the shuffled corpus shows"
    drift = f"what it shows with each of {blocks} blocks shuffled"
    if result.estimator == "repeats":
        floor = "what noise exceeds once in a thousand lags"
        drift = f"what the ends of each of {blocks} blocks share"
    title = (
        f"{result.corpus.name}: {curve.size:,} {unit}s, {curve.symbols:,} different"
        f" ({result.corpus.source})\nfloor {curve.floor[0] * BITS:.2e} bits, {floor}; drift"
        f" {curve.drift * BITS:.2e} bits, {drift}; estimator '{curve.estimator}'"
    )
    dropped = sum(value <= 0 for value in curve.values)
    left_out = counted(dropped, "lag", "lags")
    parts = [
        title,
        _lag_table(result),
        _exponent_table(result),
        f"verdict: {result.verdict.sentence}",
        tokens_sentence(result),
        repeats_sentence(result),
        *result.structure,
        horizon_sentence(result),
        drift_sentence(curve),
        f"dropped: {left_out} where I is zero or negative" if dropped else None,
    ]
    return "\n\n".join(part for part in parts if part)


def tokens_sentence(result: Measurement) -> str | None:
    """The length of a token, and how far the text remembers in bytes and in tokens."""
    length = result.tokens
    if length is None:
        return None
    found = f"tokens: {length}, {length.tokens:,} of them by {length.tokenizer}"
    last = result.verdict.last_lag
    if not last:
        return found
    in_bytes = float(last)
    in_tokens = float(last)
    if result.information.unit == "token":
        in_bytes = float(length.in_bytes(last))
    else:
        in_tokens = float(length.in_tokens(last))
    return (
        f"{found}; the last lag that stands out is {in_bytes:,.0f} bytes or {in_tokens:,.1f} tokens"
    )


def repeats_sentence(result: Measurement) -> str | None:
    """The estimator that took the place of the information of pairs, and the reason."""
    curve = result.information
    if curve.estimator != "repeats":
        return None
    unit = curve.unit
    found = (
        f"repeats: I is what it tells that two {unit}s d apart are equal, a lower bound of the"
        " information"
    )
    if pairs_suffice(curve.size, curve.symbols):
        return (
            f"{found}; where {unit}s persist, counts of their pairs show memory that is not there"
        )
    return (
        f"{found}; {curve.symbols:,} different {unit}s are too many for a table of their pairs,"
        f" which needs {fewest_pairs(curve.symbols):,} {unit}s"
    )


def _lag_table(result: Measurement) -> str:
    """Information, its error and the local slope at the measured lags nearest to SHOWN_LAGS."""
    curve = result.information
    errors = curve.standard_errors()
    slopes = {
        lag: f"{slope:.2f} +- {error:.2f}"
        for lag, slope, error in zip(*local_slopes(curve), strict=True)
    }
    shown = [lag for lag in SHOWN_LAGS if lag <= curve.lags[-1]]
    ratios = [np.divide(curve.lags, lag) for lag in shown]
    nearest = [int(np.argmin(np.abs(np.log(ratio)))) for ratio in ratios]
    places = list(dict.fromkeys(nearest))  # several may be nearest to one
    rows = []
    for i in places:
        lag = curve.lags[i]
        rows.append(
            [
                f"{lag}",
                f"{curve.values[i] * BITS:.3e}",
                f"{errors[i] * BITS:.1e}",
                f"{curve.values[i] / curve.floor[i]:.2f}",
                f"{result.correlation.values[i]:.4f}",
                slopes.get(lag, "-"),
            ]
        )
    header = ["lag", "I, bits", "error", "I / floor", "correlation", "local slope"]
    other = result.other_lags()
    if other is not None:
        unit, lags_in_unit = other
        header[0] = f"lag, {curve.unit}s"
        header.insert(1, unit)
        for row, i in zip(rows, places, strict=True):
            row.insert(1, f"{lags_in_unit[i]:.1f}")
    return text_table(header, rows)


def _exponent_table(result: Measurement) -> str:
    """The exponent on each range, with its interval and fit; the exact one where it is known."""
    header = ["exponent on", "beta", "95 % interval", "R²", "curvature (p)", "lags", "dropped"]
    rows = []
    for label, law, _ in result.rows:
        rows.append(
            [
                label,
                f"{law.beta:.3f}",
                f"{law.low:.3f} to {law.high:.3f}",
                f"{law.r_squared:.3f}",
                _curvature(law),
                f"{law.used}",
                f"{len(law.dropped)}",
            ]
        )
    known = [exact for *_, exact in result.rows]
    if any(exact is not None for exact in known):
        header.append("exact")
        for row, exact in zip(rows, known, strict=True):
            row.append("-" if exact is None else f"{exact:.3f}")
    return text_table(header, rows)


def _curvature(law: laws.PowerLaw) -> str:
    """The curvature and its p; a dash where so few lags are left that it is not known."""
    if math.isnan(law.curvature):
        return "-"
    return f"{law.curvature:+.3f} ({law.curvature_p:.1g})"


def horizon_sentence(result: Measurement) -> str | None:
    """That memory may reach farther than what was measured, where it stands out to the end."""
    longest = result.information.lags[-1]
    if result.verdict.last_lag != longest:
        return None
    return (
        f"horizon: I stands out at {longest:,}, the longest lag measured; longer ones were not"
        " looked at, which --max-lag does"
    )


def drift_sentence(curve: DecayCurve) -> str | None:
    """The lag from which blocks of different composition explain half of I, as `drift_from`."""
    clear = laws.drift_from(curve)
    if clear is None:
        return None
    return (
        f"drift: beyond lag {clear} half of I or more is blocks of different composition, not"
        " memory"
    )


if __name__ == "__main__":
    cli.main(command)
