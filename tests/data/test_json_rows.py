import json

import pytest

from plkernel.data import corpora
from plkernel.data.json_rows import MOST_NESTED, check_rows

DEEP = b"[" * 20_000 + b"]" * 20_000


@pytest.mark.parametrize(
    "rows",
    [
        b"null\n",
        b'null\n{"text": "a"}\n',
        b'{"text": "a"}\nnull\n',
        b'{"text": "a"} null',
        b'{"text": ' + DEEP + b"}\n",
        b'{"a":' * 20_000,
    ],
)
def test_rows_that_end_the_process_of_pyarrow_are_refused(rows, tmp_path):
    """The first, second and fifth ended this one by a segmentation fault before they were looked at."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(rows)
    with pytest.raises(ValueError, match=r"rows.jsonl: (a row is null|nested deeper than 500)"):
        corpora.load(str(path))


@pytest.mark.parametrize(
    "row",
    [
        {"text": None},
        {"text": "null"},
        {"text": "\nnull\n"},
        {"text": '"null'},
        {"text": "\\"},
        {"text": "[" * 600},
        {"text": '\\"' + "{" * 600},
        {"text": [None, {"null": None}]},
    ],
)
def test_what_stands_inside_a_row_is_let_through(row):
    check_rows([json.dumps(row).encode() + b"\n"] * 3, "here")
    check_rows([json.dumps([row, row], indent=1).encode()], "here")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_nothing_depends_on_how_the_file_is_cut(size):
    whole = b'{"text": "a [ null \\" b", "deep": [[1], null]}\n\n' * 20
    pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
    check_rows(pieces, "here")
    with pytest.raises(ValueError, match="here: a row is null"):
        check_rows([*pieces, b"null"], "here")
    with pytest.raises(ValueError, match="nested deeper"):
        check_rows([*pieces, b"[" * MOST_NESTED, b"[\n"], "here")
