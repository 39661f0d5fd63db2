"""Text columns of local tables and of data sets on the hub as blocks of bytes, streamed in Arrow batches."""

import glob
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plkernel.common.cli import nearest
from plkernel.data.files import Blocks, Chunk, chunks, compressed
from plkernel.data.hub_errors import one_line
from plkernel.data.json_rows import check_rows

FORMATS = {".parquet": "parquet", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}
DEFAULT_COLUMN = "text"
ROWS = 1000


@dataclass(frozen=True)
class Query:
    """One text column of one data set: what `datasets.load_dataset` needs, and what to call it in errors.

    `arguments` go into every call; `probing` only into the one that looks at splits and columns, `reading`
    only into the one that reads.
    """

    label: str
    arguments: dict[str, Any]
    column: str
    split: str | None = None
    probing: dict[str, Any] = field(default_factory=dict)
    reading: dict[str, Any] = field(default_factory=dict)


def table_format(path: Path) -> str | None:
    """'parquet', 'json' or 'csv' by the suffix, that of a compression put aside; None for any other file."""
    return FORMATS.get((Path(path.stem) if compressed(path) else path).suffix.lower())


def table_blocks(path: Path, separator: bytes, column: str) -> Blocks:
    """The text column of a `.parquet`, `.jsonl` or `.csv` file; each row that is not null is a document.

    Raises ValueError when there is no such column, it is not text, or the file is damaged.
    """
    with path.open("rb"):  # a file that cannot be read is better reported by the system
        pass
    kind = table_format(path)
    if kind == "json":
        check_rows(chunks(path), f"corpus file {path}")
    arguments = {"path": kind, "data_files": glob.escape(str(path.resolve()))}
    probing = {"nrows": 1} if kind == "csv" else {}
    reading = _csv_as_text(column) if kind == "csv" else {}
    yield from column_blocks(Query(f"corpus file {path}", arguments, column, None, probing, reading), separator)


def column_blocks(query: Query, separator: bytes) -> Blocks:
    """The one way from `datasets` to bytes: look at splits and columns, then stream the text column alone.

    Raises ValueError or OSError in one line, whatever `datasets` raises.
    """
    with one_line(query.label), _quiet():
        splits = _open(query, query.probing)
        split = _choose_split(list(splits), query.split)
        _check_column(_columns(splits[split]), query.column)
        rows = _open_column(query)[split].with_format("arrow")
        for table in rows.iter(batch_size=ROWS):
            for chunk in table.column(query.column).chunks:
                yield text_block(chunk, separator)


def text_block(array: Any, separator: bytes) -> Chunk:
    """An Arrow array of text as one block, a separator before each value, nulls left out.

    Takes any of Arrow's types of text and bytes, sliced or not; raises ValueError for other types. One pass
    of compiled code writes values and separators, and its whole buffer is taken over.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not _is_text(array.type):
        raise ValueError(f"the column holds {array.type}, not text; name another with --column")
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    # 64-bit offsets: the separators may carry a full 32-bit array over its limit of 2 GiB.
    values = array.cast(pa.large_binary()).drop_null()
    empty, before = (pa.scalar(value, pa.large_binary()) for value in (b"", separator))
    joined = pc.binary_join_element_wise(empty, values, before)
    if not len(joined):
        return Chunk(np.zeros(0, np.uint8), np.zeros(0, np.int64))
    _, ends, data = joined.buffers()
    offsets = np.frombuffer(ends, np.int64)[joined.offset : joined.offset + len(joined) + 1]
    return Chunk(np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]], offsets[:-1] - offsets[0])


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_string_view)
    return any(test(kind) for test in tests)


def _open(query: Query, options: dict[str, Any]) -> Any:
    from datasets import load_dataset

    return load_dataset(**query.arguments, streaming=True, **options)


def _open_column(query: Query) -> Any:
    """Only parquet can leave out other columns while reading; the rest refuses the option."""
    if query.reading:
        return _open(query, query.reading)
    try:
        return _open(query, {"columns": [query.column]})
    except (TypeError, ValueError):
        return _open(query, {})


def _choose_split(splits: list[str], wanted: str | None) -> str:
    if wanted is None:
        wanted = splits[0] if len(splits) == 1 else "train"
    if wanted not in splits:
        raise ValueError(f"no split {wanted!r}; {nearest(wanted, splits)}")
    return wanted


def _columns(rows: Any) -> list[str]:
    """Column names; a format without a schema (csv) shows them in its first row only."""
    if rows.column_names is not None:
        return list(rows.column_names)
    return [name for row in rows.take(1) for name in row]


def _check_column(columns: list[str], wanted: str) -> None:
    if not columns:
        raise ValueError("empty: no rows")
    if wanted not in columns:
        raise ValueError(f"no column {wanted!r}; name the text with --column, one of: {', '.join(columns)}")


def _csv_as_text(column: str) -> dict[str, Any]:
    """Options under which "NA" stays a word and "007" keeps its zeros."""
    from datasets import Features, Value

    return {"features": Features({column: Value("string")}), "usecols": [column], "keep_default_na": False}


@contextmanager
def _quiet() -> Iterator[None]:
    """No log lines and bars from `datasets`: its errors come as exceptions too, and the bar is ours.

    Nor does it count: each opening of a file on this disk would send a request to a server of the hub and, without a
    network, wait some seconds for it.
    """
    import datasets

    level, hidden = datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled()
    counting = datasets.config.HF_UPDATE_DOWNLOAD_COUNTS
    try:
        datasets.logging.set_verbosity(logging.CRITICAL + 1)
        datasets.disable_progress_bars()
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
        yield
    finally:
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = counting
        datasets.logging.set_verbosity(level)
        if not hidden:
            datasets.enable_progress_bars()
