"""Files as blocks of bytes, kept byte for byte; compressed ones are unpacked on the way."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 23
ARCHIVES = {".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar"}


class Chunk(NamedTuple):
    """Bytes (n,), and the ascending positions (k,) where documents start: a separator stands at each."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]


Blocks = Generator[Chunk, None, None]


def file_blocks(path: Path, separator: bytes) -> Blocks:
    """One file as one document, in blocks of at most 8 MiB; `.gz .bz2 .xz .zst` are unpacked.

    Raises ValueError for damaged compressed data and for archives, OSError for a file that cannot be read.
    """
    if ARCHIVES & {path.suffix.lower(), Path(path.stem).suffix.lower()}:
        raise ValueError(f"corpus file {path}: an archive of several files; unpack it and name the folder instead")
    yield Chunk(np.frombuffer(separator, np.uint8), np.zeros(1, np.int64))
    for chunk in chunks(path):
        yield Chunk(np.frombuffer(chunk, np.uint8), np.zeros(0, np.int64))


def compressed(path: Path) -> bool:
    """Whether the suffix is that of a compressed stream."""
    return path.suffix.lower() in OPENERS


def chunks(path: Path) -> Iterator[bytes]:
    """The content of a file, unpacked, in blocks of at most 8 MiB; ValueError for damaged compressed data."""
    # Opened plainly even when compressed: a file that cannot be read must not be reported as damaged.
    with path.open("rb") as plain:
        if not compressed(path):
            yield from iter(lambda: plain.read(CHUNK), b"")
            return
    try:
        with OPENERS[path.suffix.lower()](path) as handle:
            yield from iter(lambda: handle.read(CHUNK), b"")
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"corpus file {path}: damaged {path.suffix} data ({error}); get the file anew") from error


def _open_zst(path: Path) -> AbstractContextManager[Any]:
    import pyarrow

    return pyarrow.input_stream(str(path), compression="zstd")


OPENERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": partial(lzma.open, format=lzma.FORMAT_XZ),
    ".zst": _open_zst,
}
