"""Local files as blocks of bytes: plain and compressed ones byte for byte, text columns of tables row by row."""

import bz2
import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
LONGEST_FIELD = 2**31 - 1


class Chunk(NamedTuple):
    """Bytes (n,), and the ascending positions (k,) where documents start: a separator stands at each."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]


Blocks = Generator[Chunk, None, None]


def file_blocks(path: Path, separator: bytes) -> Blocks:
    """Read one file as one document, in blocks of at most 8 MiB; `.gz .bz2 .xz .zst` are unpacked.

    Raises ValueError for damaged compressed data and for archives, OSError for a file that cannot be read.
    """
    if ARCHIVES & {path.suffix.lower(), Path(path.stem).suffix.lower()}:
        raise ValueError(f"corpus file {path}: an archive of several files; unpack it and name the folder instead")
    yield Chunk(np.frombuffer(separator, np.uint8), np.zeros(1, np.int64))
    with opened(path) as handle:
        for data in iter(lambda: handle.read(CHUNK), b""):
            yield Chunk(np.frombuffer(data, np.uint8), np.zeros(0, np.int64))


def _open_zst(path: Path) -> Any:
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"), CHUNK)


OPENERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": partial(lzma.open, format=lzma.FORMAT_XZ),
    ".zst": _open_zst,
}


def compressed(path: Path) -> bool:
    """True if the suffix is that of a compressed stream."""
    return path.suffix.lower() in OPENERS


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
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


def table_format(path: Path) -> str | None:
    """'parquet', 'json' or 'csv' by the suffix, that of a compression put aside; None for any other file."""
    return FORMATS.get((Path(path.stem) if compressed(path) else path).suffix.lower())


def table_blocks(path: Path, separator: bytes, column: str) -> Blocks:
    """Read the text column of a `.parquet`, `.jsonl` or `.csv` file; each row that is not null is a document.

    Raises ValueError when there is no such column, it is not text, or the file is damaged.
    """
    with one_line(f"corpus file {path}"), opened(path) as handle:
        if table_format(path) == "parquet":
            import pyarrow.parquet as pq

            table = pq.ParquetFile(handle)
            check_column(table.schema_arrow.names, column)
            for batch in table.iter_batches(ROWS, columns=[column]):
                yield text_block(batch.column(0), separator)
            return
        texts = _json_texts(handle, column) if table_format(path) == "json" else _csv_texts(handle, column)
        while batch := list(islice(texts, ROWS)):
            yield documents(batch, separator)


def _json_texts(handle: BinaryIO, column: str) -> Iterator[bytes]:
    names = dict[str, None]()
    for number, line in enumerate(handle, start=1):
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
            yield value.encode()
        if number == ROWS:
            check_column(list(names), column)
    check_column(list(names), column)


def _csv_texts(handle: BinaryIO, column: str) -> Iterator[bytes]:
    """All fields are text: "NA" stays a word and "007" keeps its zeros."""
    csv.field_size_limit(LONGEST_FIELD)
    with io.TextIOWrapper(handle, encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines, strict=True)
        header = next(rows, [])
        check_column(header, column)
        place = header.index(column)
        for row in rows:
            if len(row) > len(header):
                raise ValueError(f"line {rows.line_num} has {len(row)} fields, the header {len(header)}")
            if len(row) > place:  # an empty line has none
                yield row[place].encode()


def check_column(names: list[str], wanted: str) -> None:
    """Raise ValueError that lists the columns there are unless `wanted` is one of them."""
    if not names:
        raise ValueError("empty: no rows")
    if wanted not in names:
        raise ValueError(f"no column {wanted!r}; name the text with --column, one of: {', '.join(names)}")


def not_text(kind: object) -> str:
    """Message of a column of another type."""
    return f"the column holds {kind}, not text; name another with --column"


def documents(texts: Iterable[bytes], separator: bytes) -> Chunk:
    """Join texts to one block, a separator before each."""
    parts = [separator + text for text in texts]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    return Chunk(np.frombuffer(b"".join(parts), np.uint8), np.append(0, ends)[:-1])


def text_block(array: Any, separator: bytes) -> Chunk:
    """Join an Arrow array of text to one block, a separator before each value, nulls left out.

    Takes any of Arrow's types of text and bytes, sliced or not; raises ValueError for other types. One pass
    of compiled code writes values and separators, and its whole buffer is taken over.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    types = pa.types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_string_view)
    if not any(test(array.type) for test in tests):
        raise ValueError(not_text(array.type))
    # 64-bit offsets: the separators may carry a full 32-bit array over its limit of 2 GiB.
    values = array.cast(pa.large_binary()).drop_null()
    empty, before = (pa.scalar(value, pa.large_binary()) for value in (b"", separator))
    joined = pc.binary_join_element_wise(empty, values, before)
    if not len(joined):
        return Chunk(np.zeros(0, np.uint8), np.zeros(0, np.int64))
    _, ends, data = joined.buffers()
    offsets = np.frombuffer(ends, np.int64)[joined.offset : joined.offset + len(joined) + 1]
    return Chunk(np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]], offsets[:-1] - offsets[0])


@contextmanager
def one_line(label: str, explain: Callable[[Exception], str] = str) -> Iterator[None]:
    """Turn every error of a reader into ValueError or OSError with one line that starts with `label`.

    The readers behind have exceptions of their own. All that they say concerns the data asked for, so none is worth a
    traceback (which stays available as the cause).
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename:  # the system names what it cannot read
            raise
        text = " ".join(explain(error).split()) or type(error).__name__
        text = text if text.startswith(label) else f"{label}: {text}"
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(text if len(text) <= LONGEST_ERROR else f"{text[: LONGEST_ERROR - 3]}...") from error
