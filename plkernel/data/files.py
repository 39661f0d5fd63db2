"""Local files as blocks of bytes: plain and compressed ones byte for byte, text columns of tables row by row."""

import bz2
import csv
import gzip
import io
import json
import lzma
import sqlite3
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 23
ARCHIVES = {".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar"}
FORMATS = {".parquet": "parquet", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}
DEFAULT_COLUMN = "text"
ROWS = 1000
LONGEST_ERROR = 400


class Chunk(NamedTuple):
    """Bytes (n,) uint8, and the ascending positions (k,) where documents start: a separator stands at each."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]


Blocks = Generator[Chunk, None, None]


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
    """Join an Arrow array of text or bytes to one block, nulls left out. Raises ValueError for other types."""
    import pyarrow as pa

    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if kind not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()):
        raise ValueError(not_text(kind))
    return documents(array.cast(kind).cast(pa.large_binary()).drop_null().to_pylist(), separator)


def file_blocks(path: Path, separator: bytes, column: str) -> Blocks:
    """Read one file: a table is a document for each row whose text `column` is not null, any other is one document.

    A `.gz .bz2 .xz .zst` file is unpacked on the way. Memory is bounded. Raises ValueError for damaged data, archives
    and tables without that column or without text in it, OSError for a file that cannot be read; in one line.
    """
    if ARCHIVES & {path.suffix.lower(), Path(path.stem).suffix.lower()}:
        raise ValueError(f"corpus file {path}: an archive of several files; unpack it and name the folder instead")
    with one_line(f"corpus file {path}"), _opened(path) as handle:
        match table_format(path):
            case "parquet":
                import pyarrow.parquet as pq

                table = pq.ParquetFile(handle)
                check_column(table.schema_arrow.names, column)
                for batch in table.iter_batches(ROWS, columns=[column]):
                    yield text_block(batch.column(0), separator)
            case None:
                yield from one_document(iter(lambda: handle.read(CHUNK), b""), separator)
            case kind:
                for texts in (_json_texts if kind == "json" else _csv_texts)(handle, column):
                    yield documents(map(str.encode, texts), separator)


def table_format(path: Path) -> str | None:
    """'parquet', 'json' or 'csv' by the suffix, that of a compression put aside; None for any other file."""
    return FORMATS.get((Path(path.stem) if compressed(path) else path).suffix.lower())


def compressed(path: Path) -> bool:
    """True if the suffix is that of a compressed stream."""
    return path.suffix.lower() in OPENERS


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, unpacked on the way; ValueError for damaged compressed data."""
    with path.open("rb") as plain:  # also if compressed: a file that cannot be read is not reported as damaged
        if not compressed(path):
            yield plain
            return
    try:
        with OPENERS[path.suffix.lower()](path) as handle:
            yield handle
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"corpus file {path}: damaged {path.suffix} data ({error}); get the file anew") from error


def _open_zst(path: Path) -> Any:
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"), CHUNK)


OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": partial(lzma.open, format=lzma.FORMAT_XZ),
    ".zst": _open_zst,
}


def _json_texts(handle: BinaryIO, column: str) -> Iterator[list[str]]:
    """Texts of `column`, in lists; the names of columns are those of the first 1000 rows."""
    names, numbered = dict[str, None](), enumerate(handle, start=1)
    while lines := list(islice(numbered, ROWS)):
        texts = []
        for number, line in lines:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number} is no JSON object ({error})") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object: expected one in each line")
            names.update(dict.fromkeys(row))
            value = row.get(column)
            if not isinstance(value, str | None):
                raise ValueError(f"line {number}: {not_text(type(value).__name__)}")
            if value is not None:
                texts.append(value)
        check_column(list(names), column)
        yield texts
    check_column(list(names), column)


def _csv_texts(handle: BinaryIO, column: str) -> Iterator[list[str]]:
    """Texts of `column`, in lists. All fields are text: "NA" stays a word and "007" keeps its zeros."""
    csv.field_size_limit(2**31 - 1)
    with io.TextIOWrapper(handle, encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines, strict=True)
        header = next(rows, [])
        check_column(header, column)
        place, width = header.index(column), len(header)
        while batch := list(islice(rows, ROWS)):
            if max(map(len, batch)) > width:
                longest = max(map(len, batch))
                raise ValueError(f"up to line {rows.line_num}: a row has {longest} fields, the header {width}")
            yield [row[place] for row in batch if len(row) > place]  # an empty line has none


def check_column(names: list[str], wanted: str) -> None:
    """Raise ValueError that lists the columns there are unless `wanted` is one of them."""
    if not names:
        raise ValueError("empty: no rows")
    if wanted not in names:
        raise ValueError(f"no column {wanted!r}; name the text with --column, one of: {', '.join(names)}")


def not_text(kind: object) -> str:
    """Message of a column of another type."""
    return f"the column holds {kind}, not text; name another with --column"


@contextmanager
def one_line(label: str, explain: Callable[[Exception], str] = str) -> Iterator[None]:
    """Turn every error of a reader into ValueError or OSError with one line that starts with `label`.

    The readers behind raise exceptions of their own, all of them about the data asked for.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename:  # the system names the file
            raise
        text = " ".join(explain(error).split()) or type(error).__name__
        text = text if text.startswith(label) else f"{label}: {text}"
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(text if len(text) <= LONGEST_ERROR else f"{text[: LONGEST_ERROR - 3]}...") from error


def bible_blocks(path: Path, identifier: str, separator: bytes) -> Blocks:
    """Read the verses of one translation in the order of the canon, each a document, byte for byte as stored (UTF-8).

    Verses without text are left out. Nothing is written, not even a journal or a lock beside the database. Raises
    ValueError when `path` is damaged or is no such database.
    """
    query = "SELECT vText FROM bible WHERE bbName = ? ORDER BY bNumber, cNumber, vNumber"
    address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    with one_line(f"corpus file {path}"), closing(sqlite3.connect(address, uri=True)) as connection:
        connection.text_factory = bytes
        rows = connection.execute(query, (identifier,))
        while batch := rows.fetchmany(ROWS):
            yield documents([text for (text,) in batch if text], separator)
