"""Texts as blocks of bytes: files, plain or compressed; text columns of tables and data sets."""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import os
import socket
import sqlite3
import urllib.request
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from unittest.mock import patch
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from plkernel.common.cli import nearest, shortened

CHUNK = 1 << 23
"""Bytes of a file that are read at once."""
SEARCHED = 4096
"""Bytes at the start of a file in which zeros are looked for."""
FEWEST_SEARCHED = 256
"""In fewer, a zero may stand anywhere by chance."""
ARCHIVES = {".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar"}
"""Suffixes of archives of several files, which are not read."""
FORMATS = {".parquet": "parquet", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}
"""Formats of tables by suffix."""
ROWS = 1000
"""Rows of a table that become one block."""
MOST_UNPACKED = 1 << 28
"""Bytes that any compressed file may unpack to."""
MOST_RATIO = 100
"""Times its size that a compressed file may unpack to beyond that: text has 2 to 50."""


class Chunk(NamedTuple):
    """Bytes (n,) uint8, and ascending positions (k,) of the separators at which documents start."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]


Blocks = Generator[Chunk, None, None]
"""A corpus as it is read, block by block."""


def one_document(pieces: Iterable[Any], separator: bytes) -> Blocks:
    """Blocks of one document from `pieces`, buffers of bytes."""
    yield documents([b""], separator)
    for data in pieces:
        yield Chunk(np.frombuffer(data, np.uint8), np.zeros(0, np.int64))


def documents(texts: Iterable[bytes], separator: bytes) -> Chunk:
    """Join texts to one block, a separator before each."""
    parts = [separator + text for text in texts]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return Chunk(np.frombuffer(b"".join(parts), np.uint8), ends[:-1])


def text_block(array: Any, separator: bytes) -> Chunk:
    """Join an Arrow array of text or bytes to one block, nulls left out.

    Raises ValueError for other types.
    """
    import pyarrow as pa

    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if kind == pa.null():  # a table without a single text, as one of many files may be
        return documents([], separator)
    if kind not in (
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.string_view(),
        pa.binary_view(),
    ):
        raise ValueError(
            f"the column must hold text, got {kind}; name another with the option column"
        )
    return documents(array.cast(kind).cast(pa.large_binary()).drop_null().to_pylist(), separator)


def file_blocks(path: Path, separator: bytes, column: str) -> Blocks:
    """Read one file.

    A table is a document for each row whose text `column` is not null, any other is one document. A
    `.gz .bz2 .xz .zst` file is unpacked on the way. Memory is bounded. Raises ValueError for
    archives, tables without that column or without text in it, and files that unpack to more than
    MOST_UNPACKED bytes and MOST_RATIO times their size; OSError for a file that cannot be read or
    unpacked; in one line.
    """
    if ARCHIVES & {path.suffix.lower(), Path(path.stem).suffix.lower()}:
        raise ValueError(
            f"corpus file {path}: an archive of several files; unpack it and name the folder"
            " instead"
        )
    with reader_errors(f"corpus file {path}"), _opened(path) as handle:
        match table_format(path):
            case "parquet":
                import pyarrow.parquet as pq

                table = pq.ParquetFile(handle)
                _check_column(table.schema_arrow.names, column)
                for batch in table.iter_batches(ROWS, columns=[column]):
                    yield text_block(batch.column(0), separator)
            case None:
                yield from one_document(plain_text(handle), separator)
            case kind:
                _check_utf8(handle)
                texts_of = _json_texts if kind == "json" else _csv_texts
                for batch in _batches(texts_of(handle, column)):
                    yield documents(batch, separator)


def _batches(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Lists of ROWS rows, the last one shorter."""
    left = iter(rows)
    return iter(lambda: list(islice(left, ROWS)), [])


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a file, unpacked where its suffix says that it is compressed."""
    if not is_compressed(path):
        with path.open("rb") as handle:
            yield handle
        return
    with OPENERS[path.suffix.lower()](path) as stream:
        unpacked = _Unpacked(stream, max(MOST_UNPACKED, MOST_RATIO * path.stat().st_size))
        yield io.BufferedReader(unpacked, CHUNK)


class _Unpacked(io.RawIOBase):
    """The bytes that a stream unpacks to; ValueError beyond `most` bytes."""

    def __init__(self, stream: Any, most: int) -> None:
        self.stream = stream
        self.most = most
        self.count = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self.stream.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self.stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self.stream.tell())

    def readinto(self, buffer: Any) -> int:
        if self.count > self.most:  # of what was read before, so that a start can be had
            raise ValueError(
                f"unpacks to more than {self.most:,} bytes, more than {MOST_RATIO} times its size"
                " and so hardly text; give max_bytes to read its start"
            )
        data = self.stream.read(len(buffer))
        self.count += len(data)
        buffer[: len(data)] = data
        return len(data)


MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by their byte order mark; that of UTF-32 begins as that of UTF-16 does."""
COMPRESSED = {
    b"\x1f\x8b": ("gzip", ".gz"),
    b"BZh": ("bzip2", ".bz2"),
    b"\xfd7zXZ": ("xz", ".xz"),
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst"),
    b"PK\x03\x04": ("zip", None),
}
"""Compressed streams by their first bytes: name, and the suffix with which they are unpacked."""
NUMPY = b"\x93NUMPY"
"""The first bytes of an array that numpy saved."""
SYNTAX = {
    ".json": "JSON; with one object a line and the suffix .jsonl the texts alone are read",
    ".tsv": "a table; with commas and the suffix .csv the texts alone are read",
    ".xml": "XML",
    ".html": "HTML",
    ".htm": "HTML",
}
"""Format of a file of text by suffix, where its syntax is measured with the text."""


def marked_encoding(start: bytes) -> str | None:
    """The encoding that the byte order mark at the start of a text names; None without one."""
    return next((name for mark, name in MARKS.items() if start.startswith(mark)), None)


def start_of(path: Path, size: int = 8) -> bytes:
    """The first bytes of a file; 8 are enough for every mark."""
    with path.open("rb") as handle:
        return handle.read(size)


def caution(path: Path) -> str | None:
    """Say what else than text would be read from a file; None for a table or plain text."""
    if table_format(path) or is_compressed(path):
        return None
    start = start_of(path)
    for mark, (name, suffix) in COMPRESSED.items():
        if start.startswith(mark):
            way = f"name it *{suffix}" if suffix else "unpack it"
            return f"{path.name} is compressed ({name}) and is read as it is: {way} to read text"
    if start.startswith(NUMPY):
        return (
            f"{path.name} is an array of numpy and its bytes are read: plkernel.measure reads the"
            " numbers of a file *.npy"
        )
    encoding = marked_encoding(start)
    if encoding not in (None, MARKS[codecs.BOM_UTF8]):
        return f"{path.name} has the byte order mark of {encoding} and is read as UTF-8"
    written = SYNTAX.get(path.suffix.lower())
    if written:
        return f"{path.name} is read with its syntax: {written}"
    if path.suffix.lower() == ".bin" and _holds_wide_numbers(start_of(path, SEARCHED)):
        return (
            f"{path.name} looks like numbers of two bytes or more, such as token ids, and is read"
            " byte by byte: plkernel.measure reads token ids of a file *.npy"
        )
    return None


def _holds_wide_numbers(start: bytes) -> bool:
    """True if zeros stand at some places of every four bytes, as the upper bytes of numbers do."""
    if len(start) < FEWEST_SEARCHED:
        return False
    zeros = [start[place::4].count(0) for place in range(4)]
    return max(zeros) > len(start) / 4 / 10 and max(zeros) > 4 * min(zeros)


def plain_text(handle: BinaryIO) -> Iterator[bytes]:
    """Pieces of a file as they are, or in UTF-8 where a byte order mark tells the encoding."""
    pieces = iter(lambda: handle.read(CHUNK), b"")
    first = next(pieces, b"")
    encoding = marked_encoding(first)
    if encoding is None:
        yield first
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder(encoding)()
    yield decoder.decode(first).encode()
    for piece in pieces:
        yield decoder.decode(piece).encode()
    yield decoder.decode(b"", final=True).encode()


def table_format(path: Path) -> str | None:
    """'parquet', 'json' or 'csv' by the suffix before that of a compression; None for others."""
    unpacked = Path(path.stem) if is_compressed(path) else path
    return FORMATS.get(unpacked.suffix.lower())


def is_compressed(path: Path) -> bool:
    """True if the suffix is that of a compressed stream."""
    return path.suffix.lower() in OPENERS


def _open_zst(path: Path) -> Any:
    """The bytes that a .zst file unpacks to."""
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"), CHUNK)


OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": partial(lzma.open, format=lzma.FORMAT_XZ),
    ".zst": _open_zst,
}


def _check_utf8(handle: io.BufferedReader) -> None:
    """ValueError for a table of text whose byte order mark is that of another encoding."""
    encoding = marked_encoding(handle.peek(4))
    if encoding not in (None, MARKS[codecs.BOM_UTF8]):
        raise ValueError(f"a table must be in UTF-8, got {encoding}; save it as UTF-8")


def _json_texts(handle: BinaryIO, column: str) -> Iterator[bytes]:
    """Texts of `column`, which one row at least must have; null and a row without are no text."""
    names = dict[str, None]()
    for number, line in enumerate(handle, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            value = row.get(column)
        except (ValueError, RecursionError, AttributeError) as error:
            raise ValueError(
                f"line {number} must be a JSON object, got {error}; mend or remove it"
            ) from error
        names.update(dict.fromkeys(row))
        if isinstance(value, str):
            yield _encoded(value, number)
        elif value is not None:
            raise ValueError(
                f"line {number}: {column} must be text, got {type(value).__name__}; name another"
                " with the option column"
            )
    if names:  # an empty file has no text, like an empty text
        _check_column(list(names), column)


def _encoded(text: str, line: int) -> bytes:
    """The text in UTF-8. JSON may hold half of a surrogate pair, which is no character."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"line {line}: character {error.start} of the text is {text[error.start]!a}, half"
            " of a surrogate pair, which has no UTF-8; remove it"
        ) from error


def _csv_texts(handle: BinaryIO, column: str) -> Iterator[bytes]:
    """Texts of `column`. All fields are text: "NA" stays a word and "007" keeps its zeros."""
    csv.field_size_limit(2**31 - 1)
    with io.TextIOWrapper(handle, encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines, strict=True)
        try:
            yield from _column_texts(rows, column)
        except csv.Error as error:
            raise ValueError(
                f"line {rows.line_num} must be a row of CSV, got {error}; mend its quotes"
            ) from error


def _column_texts(rows: Any, column: str) -> Iterator[bytes]:
    """Texts of `column` in the rows of a reader of csv, the header first."""
    header = next((row for row in rows if row), None)  # empty lines before it are no rows
    if header is None:
        return  # an empty file has no text, like an empty text
    _check_column(header, column)
    place = header.index(column)
    width = len(header)
    for row in rows:
        if len(row) > width:
            raise ValueError(
                f"line {rows.line_num}: a row must have at most the {width} fields of the"
                f" header, got {len(row)}; quote the commas of its text"
            )
        if len(row) > place:  # an empty line has none
            yield row[place].encode()


def _check_column(names: list[str], wanted: str) -> None:
    """ValueError unless the text column is among those of a table."""
    if wanted not in names:
        raise ValueError(
            f"column must be one of {', '.join(names)}, got {wanted!r}; name the one with the text"
            " with the option column"
        )


@contextmanager
def reader_errors(label: str) -> Iterator[None]:
    """Turn every error of a reader into a ValueError or OSError of one line, headed by `label`.

    The readers behind raise exceptions of their own, all of them about the data asked for.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename:  # the system names the file
            raise
        text = str(error) or type(error).__name__
        if not text.startswith(label):
            text = f"{label}: {text}"
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(shortened(text, 400)) from error


def bible_blocks(path: Path, identifier: str, separator: bytes) -> Blocks:
    """Read the verses of one translation in order, each a document; the database stays as it is."""
    query = "SELECT vText FROM bible WHERE bbName = ? ORDER BY bNumber, cNumber, vNumber"
    address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    with (
        reader_errors(f"corpus file {path}"),
        closing(sqlite3.connect(address, uri=True)) as connection,
    ):
        connection.text_factory = bytes
        for batch in _batches(connection.execute(query, (identifier,))):
            yield documents([text for (text,) in batch if text], separator)


def hub_blocks(
    name: str, config: str | None, split: str | None, separator: bytes, column: str
) -> Blocks:
    """Read the text column of the data set `name` of the Hugging Face hub in Arrow batches.

    Without a network it is read from the cache of `datasets`. Nothing the data set brings along is
    ever executed. Raises OSError without either, ValueError for an unknown name, configuration,
    split or column, in one line.
    """
    import datasets
    import huggingface_hub

    offline = not reachable()
    label = f"hf:{name}:{config}" if config else f"hf:{name}"
    with (
        reader_errors(label),
        # Both read the environment once, at import.
        patch.object(datasets.config, "HF_HUB_OFFLINE", offline),
        patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", offline),
    ):
        try:
            splits = datasets.load_dataset(name, config, streaming=True)
        except ConnectionError as error:
            raise OSError(
                f"{endpoint()} cannot be reached and the data set is not in the local cache:"
                " connect to a network, set HF_ENDPOINT to a mirror, or unset HF_HUB_OFFLINE; a"
                " local .parquet, .jsonl or .csv file needs none"
            ) from error
        split = split or (next(iter(splits)) if len(splits) == 1 else "train")
        if split not in splits:
            raise ValueError(
                f"split must be one of the data set, got {split!r}; {nearest(split, splits)}"
            )
        rows = splits[split]
        names = rows.column_names or list(next(iter(rows.take(1)), {}))
        _check_column(list(names), column)
        # Only parquet can leave out other columns while reading.
        with suppress(TypeError, ValueError):
            rows = datasets.load_dataset(name, config, streaming=True, columns=[column])[split]
        for table in rows.with_format("arrow").iter(batch_size=ROWS):
            for chunk in table.column(column).chunks:
                yield text_block(chunk, separator)


def reachable() -> bool:
    """True if the hub may be asked and its name resolves; `datasets` alone would retry for 24 s."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE"):
            return False
    parts = urlsplit(endpoint())
    with suppress(OSError):
        proxy = parts.scheme in urllib.request.getproxies()  # then the proxy resolves names
        return proxy or bool(socket.getaddrinfo(parts.hostname, parts.port or 443))
    return False


def endpoint() -> str:
    """The address of the hub: $HF_ENDPOINT or the public one."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
