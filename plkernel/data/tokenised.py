"""Texts as tokens: the numbers that a tokenizer gives, and the bytes that each of them covers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plkernel.common.cli import existing

Bytes = NDArray[np.uint8]

FILE = "tokenizer.json"
"""Its name in the folder of a model."""
PIECE = 1 << 20
"""Bytes that are tokenised at a time; a piece ends behind a line break where it has one."""
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""Stands for a byte that is not UTF-8."""
SURROGATES = dict.fromkeys(range(0xDC80, 0xDD00), UNKNOWN)
"""The characters that Python decodes such bytes to, one for each."""


@dataclass(frozen=True)
class Tokens:
    """A text as tokens.

    ids      (n,) numbers of the tokens
    ends     (n,) bytes of the text up to the end of each token, ascending
    dropped  bytes of the text that belong to no token
    """

    ids: NDArray[np.int64]
    ends: NDArray[np.int64]
    dropped: int = 0


Encode = Callable[[str], tuple[Iterable[int], Iterable[tuple[int, int]]]]
"""A text to the numbers of its tokens, and to the characters (first, last + 1) of each."""


def read_tokenizer(path: str | Path) -> Encode:
    """The tokenizer in a file such as tokenizer.json, or in a folder that has one of that name.

    Nothing in it is executed. Truncation and padding, which the file may ask for, are switched off,
    and no special tokens are added. Raises ValueError for a file that is none, and where the
    package tokenizers is missing.
    """
    place = existing(Path(path), "tokenizer")
    if place.is_dir():
        place = existing(place / FILE, "tokenizer")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(
            f"tokenizer {path}: package tokenizers must be installed to read it, got none; pip"
            ' install "plkernel[tokens]"'
        ) from error
    try:
        tokenizer = Tokenizer.from_file(str(place))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the package is no Exception
        raise ValueError(
            f"tokenizer {place}: is no file of the package tokenizers ({first_line(error)});"
            f" give the {FILE} of a model, or measure its tokens, saved by numpy.save"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str) -> tuple[Iterable[int], Iterable[tuple[int, int]]]:
        try:
            found = tokenizer.encode(text, add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the package is no Exception
            raise ValueError(
                f"tokenizer {place}: cannot encode this text ({first_line(error)}); give a"
                " tokenizer that knows its characters, or has a token for unknown ones"
            ) from error
        return found.ids, found.offsets

    return encode


def first_line(error: BaseException) -> str:
    """First line of an error; its kind where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def tokenised(
    data: Bytes,
    encode: Encode,
    piece: int = PIECE,
    progress: Callable[[float], Any] | None = None,
) -> Tokens:
    """The bytes `data` (n,) as tokens, a piece after the other.

    progress: called with the share of the text done since the last call.

    What stands between two tokens, as spaces do that a tokenizer drops, counts with the token
    behind it. A character that becomes several tokens is divided evenly among them.
    """
    ids: list[NDArray[np.int64]] = []
    ends: list[NDArray[np.int64]] = []
    before = 0
    dropped = 0
    for text, widths in _pieces(data, piece):
        numbers, spans = encode(text)
        reached = np.concatenate([[0], np.cumsum(widths)])
        places = np.array(list(spans), dtype=np.int64).reshape(-1, 2)
        ids.append(np.array(numbers, dtype=np.int64))
        ends.append(before + _ends(places, reached))
        dropped += int(widths[~_covered(places, widths.size)].sum())
        before += int(reached[-1])
        if progress is not None:
            progress(int(reached[-1]) / data.size)
    if not ids:
        return Tokens(np.zeros(0, np.int64), np.zeros(0, np.int64))
    return Tokens(np.concatenate(ids), np.concatenate(ends), dropped)


def _covered(spans: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """Which of `count` characters a token covers, of spans (n, 2)."""
    opened = np.bincount(spans[:, 0], minlength=count + 1)
    closed = np.bincount(spans[:, 1], minlength=count + 1)
    return np.asarray(np.cumsum(opened - closed)[:count] > 0)


def _ends(spans: NDArray[np.int64], reached: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes up to the end of each token (n,), ascending.

    spans    (n, 2) first character of a token and the one behind it
    reached  bytes up to each character
    """
    first, behind = spans.T
    # Tokens of one character have the same span: each is number `place` of `count` in its run.
    is_new = np.append(True, np.any(spans[1:] != spans[:-1], axis=1))[: len(spans)]
    run = np.cumsum(is_new) - 1
    starts = np.flatnonzero(is_new)
    place = np.arange(len(spans)) - starts[run] + 1
    count = np.bincount(run)[run]
    start = reached[first]
    ends = start + (reached[behind] - start) * place // count
    return np.asarray(np.maximum.accumulate(ends))


def _pieces(data: Bytes, piece: int) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Pieces of a text in UTF-8, and the bytes of each character in the text."""
    start = 0
    while start < data.size:
        stop = min(start + piece, data.size)
        if stop < data.size:
            stop = _cut(data, start, stop)
        yield characters(data[start:stop])
        start = stop


def _cut(data: Bytes, start: int, stop: int) -> int:
    """The end of a piece: behind its last line break, or else before a whole character."""
    breaks = np.flatnonzero(data[start:stop] == ord("\n"))
    if breaks.size:
        return start + int(breaks[-1]) + 1
    for back in range(4):  # a character has four bytes at most, all but the first 10xxxxxx
        is_first = (data[stop - back] & 0xC0) != 0x80
        if is_first and stop - back > start:
            return stop - back
    return stop


def characters(data: Bytes) -> tuple[str, NDArray[np.int64]]:
    """`data` as UTF-8, and how many bytes each character has there, which add up to all.

    A byte that is not UTF-8 becomes a replacement character.

    >>> text, widths = characters(np.frombuffer(b"a\\xc3\\xa9\\xff", np.uint8))
    >>> len(text), widths.tolist()
    (3, [1, 2, 1])
    """
    escaped = data.tobytes().decode("utf-8", errors="surrogateescape")
    codes = np.frombuffer(escaped.encode("utf-32-le", errors="surrogatepass"), np.uint32)
    widths = np.ones(codes.size, np.int64)
    for limit in (0x80, 0x800, 0x10000):  # from which on UTF-8 takes 2, 3 and 4 bytes
        widths += codes >= limit
    widths[(codes >= min(SURROGATES)) & (codes <= max(SURROGATES))] = 1
    return escaped.translate(SURROGATES), widths
