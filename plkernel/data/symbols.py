"""Symbols that are measured: bytes of a text, its tokens, or integers of any alphabet."""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from plkernel.analysis.information.counts import Symbols, numbered
from plkernel.analysis.information.estimate import Unit
from plkernel.analysis.information.laws import Named
from plkernel.analysis.information.tokens import TokenLength, token_length
from plkernel.data.tokenised import first_line, read_tokenizer, tokenised

SUFFIX = ".npy"
"""Of a file of numpy with one array."""
MeasuredAs = Literal["bytes", "tokens"]
"""The symbols of a text that are measured."""
READING = {"max_bytes": None, "separator": "\n", "column": None}
"""Options of reading a corpus by its name, as of `corpora.load`, and their values if not given."""


@dataclass(frozen=True)
class SymbolText:
    """A sequence to be measured.

    corpus  its origin
    data    (n,) numbers of its symbols
    unit    what a symbol is
    tokens  how long tokens are, where the text has a tokenizer
    """

    corpus: Any
    data: Symbols
    unit: Unit = "byte"
    tokens: TokenLength | None = None


def of_text(
    corpus: Any,
    data: NDArray[np.uint8],
    tokenizer: str | Path | None = None,
    measured: MeasuredAs = "bytes",
    progress: Callable[[float], Any] | None = None,
) -> SymbolText:
    """The bytes `data` of a text, or with `measured` tokens the tokens of `tokenizer`.

    progress: called with the share of the text tokenised since the last call. Warns of bytes that
    the tokenizer leaves out. Raises ValueError for tokens without a tokenizer, and as
    `read_tokenizer` does.
    """
    check_measured(tokenizer, measured)
    if tokenizer is None:
        return SymbolText(corpus, data)
    found = tokenised(data, read_tokenizer(tokenizer), progress=progress)
    if found.dropped:
        warnings.warn(
            f"tokenizer {tokenizer}: {found.dropped:,} of {data.size:,} bytes belong to no token,"
            " as spaces between words; tokens are measured without them",
            stacklevel=2,
        )
    length = token_length(found.ends, str(tokenizer))
    if measured == "tokens":
        return SymbolText(corpus, numbered(found.ids), "token", length)
    return SymbolText(corpus, data, "byte", length)


def check_measured(tokenizer: str | Path | None, measured: MeasuredAs) -> None:
    """Raise ValueError unless `measured` is known, and tokens have a tokenizer."""
    if measured not in get_args(MeasuredAs):
        raise ValueError(f"measured must be bytes or tokens, got {measured!r}")
    if measured == "tokens" and tokenizer is None:
        raise ValueError(
            "measured must be bytes without a tokenizer, got 'tokens'; give the tokenizer, such as"
            " tokenizer.json of a model"
        )


def check_reading(what: str, reading: Mapping[str, Any]) -> None:
    """Raise ValueError for a given option of `READING`, as `what` is not read as a corpus."""
    for name, default in READING.items():
        if reading[name] != default:
            raise ValueError(f"{name} must be left out for {what}, got {reading[name]!r}")


def of_vector(
    data: NDArray[Any], name: str, source: str, progress: Callable[[float], Any] | None = None
) -> SymbolText:
    """A vector (n,) of integers, each of which is a symbol; ValueError for anything else.

    progress: called with the share of the symbols numbered since the last call.
    """
    if data.ndim != 1 or data.dtype.kind not in "iu":
        is_whole = data.dtype.kind in "iu"
        hint = ".ravel() makes a vector" if is_whole else ".astype(int) makes integers"
        raise ValueError(
            f"{name} must hold a vector of integers, got {data.dtype} of shape {data.shape}; {hint}"
        )
    return SymbolText(Named(name, source), numbered(data, progress), "symbol")


def is_vector_file(name: str | Path) -> bool:
    """True if `name` is that of an existing file of numpy."""
    path = Path(os.path.expanduser(name))
    return path.suffix.lower() == SUFFIX and path.is_file()


def read_vector(path: str | Path, progress: Callable[[float], Any] | None = None) -> SymbolText:
    """The integers (n,) in a file of numpy; progress as of `of_vector`.

    Nothing in the file is executed. Raises ValueError for anything else in it.
    """
    place = Path(os.path.expanduser(path))
    try:
        found = np.load(place, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy raises errors of many kinds for a broken header
        raise ValueError(
            f"{path}: is no file of numpy with a vector of integers ({first_line(error)});"
            " numpy.save writes one"
        ) from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise ValueError(
            f"{path}: must hold one vector of integers, got an archive of numpy.savez;"
            " numpy.save writes a vector"
        )
    return of_vector(np.asarray(found), str(path), str(place.resolve()), progress)
