"""Real bytes by name: every corpus becomes one flat, memory-mapped file with a JSON beside it.

The JSON holds the sha256 of the bytes, which is taken anew whenever a file is opened; a damaged one
is built again.
"""

import hashlib
import os
import re
import sys
import warnings
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plkernel.common import cli
from plkernel.common.cli import counted
from plkernel.common.files import atomic, check_folder, load_object, save_json, shown
from plkernel.data.names import Source, find_source

LONGEST_STEM = 60
"""Letters of a corpus in the name of its flat file."""
FORMAT = 1
"""Part of every cache key: to be raised when the same source would give other bytes."""


class Splits(NamedTuple):
    """Contiguous blocks of one corpus, each (n,) uint8; no window crosses from one to the next."""

    train: NDArray[np.uint8]
    validation: NDArray[np.uint8]
    test: NDArray[np.uint8]


@dataclass(frozen=True)
class Corpus:
    """A corpus as one flat file of bytes.

    name       as asked for: 'stdlib', a path, 'hf:NAME', ...
    source     where the bytes come from
    path       the flat file, one byte per symbol
    size       bytes
    sha256     of the file
    documents  how many begin in it; one separator byte stands between two of them
    """

    name: str
    source: str
    path: Path
    size: int
    sha256: str
    documents: int

    @property
    def bytes(self) -> np.memmap[Any, np.dtype[np.uint8]]:
        """The bytes (size,) uint8, mapped from the file, read-only; OSError when it is gone."""
        return np.memmap(self.path, np.uint8, mode="r", shape=(self.size,))

    def splits(self, validation: float = 0.05, test: float = 0.05) -> Splits:
        """Train | validation | test, in this order; the fractions are of all bytes, rounded down.

        Raises ValueError unless the fractions are at least 0 and something is left to train on.
        """
        if not (validation >= 0 and test >= 0 and validation + test < 1):
            raise ValueError(
                "validation and test must be shares of the corpus, together below 1, got"
                f" {validation} and {test}"
            )
        test_start = self.size - int(self.size * test)
        validation_start = test_start - int(self.size * validation)
        return Splits(*np.split(self.bytes, [validation_start, test_start]))


def cache_folder() -> Path:
    """$PLKERNEL_CACHE, else plkernel under $XDG_CACHE_HOME, else ~/.cache/plkernel.

    A relative XDG_CACHE_HOME is ignored, as its specification asks for. Raises ValueError for a
    user's home that is not known.
    """
    own = os.environ.get("PLKERNEL_CACHE")
    if own:
        return _expanded(own, "PLKERNEL_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME")
    if shared:
        folder = _expanded(shared, "XDG_CACHE_HOME")
        if folder.is_absolute():
            return folder / "plkernel"
    return _expanded("~/.cache", "cache folder (PLKERNEL_CACHE)") / "plkernel"


def _expanded(name: str, what: str) -> Path:
    """The path `name` with the home of a user for a first ~; ValueError where that is not known."""
    expanded = os.path.expanduser(name)
    if expanded.startswith("~"):
        raise ValueError(
            f"{what} must be the path of a folder, got {name!r}, whose home is unknown"
        )
    return Path(expanded)


def load(
    name: str | Path,
    *,
    max_bytes: int | None = None,
    separator: str = "\n",
    column: str | None = None,
    cache: Path | None = None,
) -> Corpus:
    """Load the corpus called `name` from the cache, or build it there, as plkernel.corpus does.

    name       'stdlib', a preset ('wiki-pt', 'fineweb'), 'hf:NAME[:CONFIG[:SPLIT]]',
               'bible:LANGUAGE', 'synthetic:beta=1.0', 'synthetic:lags', or a file or folder
    max_bytes  stop after so many bytes, wherever that falls
    separator  the byte between two documents, as one character from U+0000 to U+00FF
    column     the text column of tables and data sets, 'text' unless named
    cache      folder of the flat files, `cache_folder()` unless named

    Text with a byte order mark is read as UTF-8 without it. Warns of files whose syntax or
    compressed bytes would be read. Raises ValueError or OSError, in one line, when there is no such
    corpus, it is empty or cannot be read; nothing of it is kept then.
    """
    name = str(name)
    _check_options(max_bytes, separator, column, cache)
    if max_bytes is not None:
        max_bytes = int(max_bytes)  # of numpy, it would not go into the digest
    source, path = _located(name, max_bytes, separator, column, cache)
    for note in source.notes:
        warnings.warn(f"corpus {name}: {note}", stacklevel=2)
    return replace(_cached(path) or _build(name, source, path, max_bytes), name=name)


def _check_options(max_bytes: Any, separator: Any, column: Any, cache: Any) -> None:
    """Raise ValueError for options of `load` that are of another type."""
    is_whole = isinstance(max_bytes, Integral) and not isinstance(max_bytes, bool)
    if max_bytes is not None and not is_whole:
        raise ValueError(f"max_bytes must be a whole number, got {shown(max_bytes)}")
    if not isinstance(separator, str):
        raise ValueError(f"separator must be one character, got {shown(separator)}")
    if column is not None and not isinstance(column, str):
        raise ValueError(f"column must be the name of one, got {shown(column)}")
    if cache is not None and (not isinstance(cache, str | os.PathLike) or not str(cache)):
        raise ValueError(f"cache must be the path of a folder, got {shown(cache)}")


def size_ahead(name: str, *, max_bytes: int | None = None, **options: Any) -> int | None:
    """Bytes of the corpus that `load` would give with these options; None if not known.

    Nothing is read, written or fetched, but for what the cache holds of a corpus of unknown size.
    Raises ValueError, as `load` does, when there is no such corpus.
    """
    source, path = _located(name, max_bytes, **options)
    if source.size is None:
        corpus = _cached(path)
        return corpus.size if corpus else None
    return source.size if max_bytes is None else min(source.size, max_bytes)


def _located(
    name: str,
    max_bytes: int | None,
    separator: str = "\n",
    column: str | None = None,
    cache: Path | None = None,
) -> tuple[Source, Path]:
    """The source of a corpus, and its flat file in the cache."""
    if max_bytes is not None and max_bytes < 1:
        raise ValueError(f"max_bytes must be at least 1, got {shown(max_bytes)}")
    if len(separator) != 1 or ord(separator) > 0xFF:
        raise ValueError(
            "separator must be one byte, a single character from U+0000 to U+00FF, got"
            f" {separator!r}"
        )
    folder = (cache_folder() if cache is None else Path(cache)).resolve()
    byte = separator.encode("latin-1")
    source = find_source(name, byte, column or "text", folder)
    digest = source.digest(format=FORMAT, max_bytes=max_bytes, separator=byte.hex())
    words = re.sub(r"[^A-Za-z0-9.]+", "_", source.label)
    stem = words[-LONGEST_STEM:].strip("_.")
    return source, folder / f"{stem}-{digest}.bin"


def _cached(path: Path) -> Corpus | None:
    """The corpus in the flat file `path`, if its JSON is there and the bytes are as written."""
    try:
        values = load_object(path.with_suffix(".json"))
        values.pop("verified", None)  # of earlier versions
        corpus = Corpus(**{**values, "path": path})
        with path.open("rb") as handle:
            whole = hashlib.file_digest(handle, "sha256").hexdigest() == corpus.sha256
            return corpus if whole and handle.tell() == corpus.size else None
    except (ValueError, TypeError, OSError):
        return None


def _build(name: str, source: Source, path: Path, max_bytes: int | None) -> Corpus:
    """Write the flat file of a corpus and its JSON, unless another process does it meanwhile."""
    from filelock import FileLock

    check_folder(path.parent, "cache folder (PLKERNEL_CACHE)")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.stem}.lock")
    with FileLock(lock), ExitStack() as ended:
        ended.callback(lock.unlink, missing_ok=True)
        corpus = _cached(path)
        if corpus:  # another process has built it in the meantime
            return corpus
        description = path.with_suffix(".json")
        if path.exists() and description.exists():
            cli.note(f"corpus {name!r}: {path} is damaged, built again")
        description.unlink(missing_ok=True)
        corpus = _written(name, source, path, max_bytes)
        save_json(description, asdict(corpus))  # last: only a whole file has one
    return corpus


def _written(name: str, source: Source, path: Path, max_bytes: int | None) -> Corpus:
    """Write the blocks of `source` to `path`, at most `max_bytes`; atomic.

    Separators stand between documents only. A bar appears on a terminal's standard error after two
    seconds.
    """
    from tqdm.auto import tqdm

    limits = [value for value in (source.size, max_bytes) if value is not None]
    total = min(limits, default=None)
    digest = hashlib.sha256()
    size = 0
    documents = 0
    skip = 1  # the first separator is skipped
    bar = tqdm(
        desc=name,
        total=total,
        file=sys.stderr,
        unit="B",
        unit_scale=True,
        delay=2.0,
        leave=False,
        disable=cli.no_bar(),
    )
    with closing(source.blocks()) as blocks, bar, atomic(path) as new, new.open("wb") as out:
        for block, starts in blocks:
            keep = len(block) if max_bytes is None else min(len(block), max_bytes - size + skip)
            if keep:
                data = block[skip:keep].data
                out.write(data)
                digest.update(data)
                bar.update(len(data))
                size += len(data)
                documents += int(np.searchsorted(starts, keep))
                skip = 0
            if size == max_bytes:
                break
        if size < max(documents, 1):  # nothing, or separators only
            found = counted(documents, "document", "documents")
            raise ValueError(
                f"corpus {name!r} must hold text, got none in {found}; name another"
                " corpus, or give the column with its text by the option column"
            )
    return Corpus(name, source.label, path, size, digest.hexdigest(), documents)
