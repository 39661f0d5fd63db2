"""Measure a text: bytes, a vector of symbols, or a corpus by its name."""

import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.information.counts import SYMBOLS
from plkernel.analysis.information.estimate import BLOCKS, MAX_LAG, Estimator
from plkernel.analysis.information.laws import (
    Measurement,
    Named,
    Range,
    check_range,
    measure_corpus,
)
from plkernel.analysis.nodes import check_numbers, check_numbers_or_none
from plkernel.common import cli
from plkernel.common.files import brief
from plkernel.data import corpora
from plkernel.data.names import known_sequence
from plkernel.data.symbols import (
    READING,
    MeasuredAs,
    SymbolText,
    check_measured,
    check_reading,
    is_vector_file,
    of_text,
    of_vector,
    read_vector,
)

Text = bytes | bytearray | memoryview | str | Path | NDArray[Any]
"""Bytes and vectors of integers from 0 to 255 are the text; a string or path names a corpus, as for
plkernel.corpus.
"""

load_corpus = corpora.load

LONGEST_NAME = 255
"""Characters of the longest name of a file, on the usual file systems."""


def measure(
    text: Text,
    *,
    lags: Range | None = None,
    max_lag: int = MAX_LAG,
    estimator: Estimator | None = None,
    tokenizer: str | Path | None = None,
    measured: MeasuredAs = "bytes",
    blocks: int = BLOCKS,
    max_bytes: int | None = None,
    separator: str = "\n",
    column: str | None = None,
    threads: int | None = None,
) -> Measurement:
    """Measure the mutual information I(d) of symbols d apart, and its exponent in I(d) ~ d**-beta.

    text       bytes, a vector (n,) of integers, each of which is a symbol and those from 0 to 255
               bytes, or the name of a corpus or of a file .npy; a string is a name or a path
    lags       first and last lag, in symbols, of the exponent `law`; 1 to 500, or to max_lag if
               that is less
    max_lag    the longest lag of the curve
    estimator  jackknife unless given; for symbols that are not bytes, with fewer than ten pairs for
               each cell of their table, repeats, a lower bound of I(d)
    tokenizer  a tokenizer file such as tokenizer.json, of a text: `tokens` of the result says how
               many bytes a token has, and lags stand in both units. plkernel.place takes it as
               step=found.tokens.bytes_per_token
    measured   bytes, or tokens, of a text with a tokenizer
    blocks     how many the jackknife leaves out one by one
    max_bytes, separator, column
               how a text is read by its name, as of `load_corpus`
    threads    lags that are counted at the same time, as many as there are processors unless given

    In the result, `information` has lags (L,), values (L,) in nats and intervals; `law.beta`,
    `law.low` and `law.high` are the exponent with its 95 % interval, None in place of `law` if
    nothing decays; `verdict.sentence` says if the curve is a power law; `structure` tells of a
    period, lines and copies in the text; `exact` (L,) is the true information of a corpus whose law
    its name states. Raises ValueError for a text that is too short for `max_lag`, and for an
    estimator that counts pairs where symbols are too many for that.

    >>> import numpy as np
    >>> text = np.random.default_rng(0).integers(0, 4, 50_000)
    >>> measure(text, max_lag=20, lags=(1, 20)).verdict.kind
    'none'
    """
    check_numbers(numbers.Integral, max_lag=max_lag, blocks=blocks)
    check_numbers_or_none(numbers.Integral, threads=threads)
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    max_lag = int(max_lag)  # small integers of numpy would overflow
    blocks = int(blocks)
    stated = check_range(lags, max_lag)
    place = None if tokenizer is None else path_of(tokenizer, "tokenizer")
    reading = {"max_bytes": max_bytes, "separator": separator, "column": column}
    with cli.in_python(measure):
        found = _read_symbols(text, place, measured, reading)
    is_named = isinstance(text, str | Path) and found.unit == "byte"
    sequence = known_sequence(str(text)) if is_named else None
    options: Any = {
        "stated": stated,
        "max_lag": max_lag,
        "estimator": estimator,
        "blocks": blocks,
        "exact": sequence.mutual_information if sequence else None,
        "unit": found.unit,
        "tokens": found.tokens,
        "threads": threads or os.cpu_count() or 1,
    }
    with cli.progress_bar(found.corpus.name) as progress:
        return measure_corpus(found.corpus, found.data, progress=progress, **options)


def _read_symbols(
    text: Text, tokenizer: Path | None, measured: MeasuredAs, reading: Mapping[str, Any]
) -> SymbolText:
    """The symbols of a text, of its tokens, or of a vector of integers of any alphabet."""
    if not isinstance(text, str | Path):
        check_reading("bytes and vectors, which are measured as they are", reading)
    elif is_vector_file(text):
        check_reading(f"{text}, which holds numbers and no text", reading)
    vector = _vector(text)
    check_measured(tokenizer, measured)
    if vector is None:
        corpus, data = read_text(text, reading)
        if tokenizer is None:
            return of_text(corpus, data)
        with cli.progress_bar(f"{corpus.name}, tokens") as progress:
            return of_text(corpus, data, tokenizer, measured, progress)
    if tokenizer is not None:
        raise ValueError(
            "tokenizer must be left out for a vector of integers, each of which is a symbol, got"
            f" {tokenizer}"
        )
    return vector


def _is_bytes(text: Any) -> bool:
    """True for bytes, and for a view of them: others show larger numbers, a table, or parts."""
    if isinstance(text, memoryview):
        return text.itemsize == 1 and text.ndim == 1 and text.c_contiguous
    return isinstance(text, bytes | bytearray)


def _vector(text: Any) -> SymbolText | None:
    """A vector of integers that are not all bytes, or a file of numpy; None for anything else."""
    if isinstance(text, str | Path):
        if not is_vector_file(text):
            return None
        with cli.progress_bar(f"{text}, symbols") as progress:
            return read_vector(text, progress)
    if _is_bytes(text):
        return None
    data = array_of(text)
    if data.ndim != 1 or data.dtype.kind not in "iu" or not data.size:
        return None
    if data.min() >= 0 and data.max() < SYMBOLS:
        return None
    with cli.progress_bar("array, symbols") as progress:
        return of_vector(data, "array", "given", progress)


def read_text(
    text: Text, reading: Mapping[str, Any] = READING
) -> tuple[Named | corpora.Corpus, NDArray[np.uint8]]:
    """Origin of a text and its symbols (n,), uint8.

    reading: how a corpus is read by its name. Raises ValueError that says what would work for
    anything else.
    """
    if isinstance(text, str | Path):
        if _is_content(str(text)):
            raise ValueError(
                "text must be bytes, a vector of integers, or the name of a corpus, got a string of"
                f" {len(str(text)):,} characters, which is no name; give the text itself as"
                " text.encode()"
            )
        corpus = corpora.load(text, **reading)
        return corpus, np.asarray(corpus.bytes)
    data = np.frombuffer(text, np.uint8) if _is_bytes(text) else array_of(text)
    if data.ndim != 1 or data.dtype.kind not in "iu":
        got = f"{data.dtype} of shape {data.shape}"
        if data.ndim == 2 and data.dtype.kind in "iu":
            got += (
                "; ravel() makes one text of its rows, and functions of"
                " plkernel.probing.predictions, such as influence, take windows (n, T+1)"
            )
        raise ValueError(
            f"text must be bytes, a vector of integers, or the name of a corpus, got {got}"
        )
    if data.size and not 0 <= data.min() <= data.max() < SYMBOLS:
        raise ValueError(
            f"text must hold integers from 0 to {SYMBOLS - 1}, got {data.min()} to {data.max()}:"
            f" np.unique(text, return_inverse=True)[1] renumbers up to {SYMBOLS} different ones"
        )
    is_array = isinstance(text, np.ndarray | memoryview) and not _is_bytes(text)
    origin = Named("array" if is_array else "bytes", "given")
    return origin, data.astype(np.uint8, copy=False)


def _is_content(name: str) -> bool:
    """True for a string that no file or corpus is called by: of several lines, or too long."""
    is_too_long = any(len(part) > LONGEST_NAME for part in name.split("/"))
    return ("\n" in name or is_too_long) and not os.path.exists(name)


def array_of(text: Any) -> NDArray[Any]:
    """A vector, also a tensor of torch on any device, as an array.

    Raises ValueError for what numpy does not take.
    """
    if getattr(text, "is_meta", False):
        raise ValueError(
            "text must hold numbers, got a tensor on the meta device; give one on the CPU"
        )
    if np.ma.is_masked(text):
        raise ValueError("text must not be masked, got an array with a mask, which has no effect")
    held = text.detach().cpu() if hasattr(text, "detach") else text
    try:
        return np.asarray(held)
    except (TypeError, ValueError, RuntimeError) as error:
        is_tensor = held is not text
        got = f"{text.dtype} of shape {tuple(text.shape)}" if is_tensor else brief(text)
        raise ValueError(
            "text must be bytes, a vector of integers, or the name of a corpus, got"
            f" {got} ({cli.told(error)})"
        ) from None


def path_of(value: Any, name: str) -> Path:
    """`value` as a path; ValueError that names the argument unless it is one."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise ValueError(f"{name} must be a path, got {brief(value)}")
    return Path(value)
