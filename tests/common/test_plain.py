"""Values from anyone's files: the limits hold, and what keeps them is read unchanged."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from plkernel.common.files import (
    LARGEST_INTEGER,
    MOST_NESTED,
    check_regular,
    checked,
    load_json,
    load_object,
    parse_json,
    parse_toml,
    read_lines,
    shown,
)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_what_keeps_the_limits_is_read_as_it_is() -> None:
    value = {"a": [1, -LARGEST_INTEGER, LARGEST_INTEGER, 1e300, True, None, "x"], "deep": nested(MOST_NESTED - 1)}
    assert parse_json(json.dumps(value).encode(), "here") == value
    assert parse_toml(b"a.b = [1, 2]\nc = 1979-05-27", "here")["a"] == {"b": [1, 2]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(nested(MOST_NESTED + 1)).encode(), "here: nested deeper than 64 lists and tables"),
        (b"[" * 100_000, "here: nested deeper than 64 lists and tables"),
        (b'{"a":' * 100_000, "here: nested deeper than 64 lists and tables"),
        (b'{"a": [0, 9223372036854775808]}', "here: a.1: whole numbers must lie between -9223372036854775807 and"),
        (b"9" * 30, "here: whole numbers must lie between"),
        (b"1" * 10_000, "here: not readable as JSON"),
        (b"{", "here: not readable as JSON"),
        (b"\xff", "here: not readable as JSON"),
        (b"", "here: not readable as JSON"),
    ],
)
def test_json_beyond_the_limits_is_one_line(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as error:
        parse_json(content, "here")
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = " + b"[" * 5000 + b"]" * 5000, "here: nested deeper than 64 lists and tables"),
        (b"a." * MOST_NESTED + b"a = 1", "here: nested deeper than 64 lists and tables"),
        (b"a = 9223372036854775808", "here: a: whole numbers must lie between"),
        (b"a = ", "here: not valid TOML"),
        (b"\xff", "here: not valid TOML"),
    ],
)
def test_toml_beyond_the_limits_is_one_line(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse_toml(content, "here")


@pytest.mark.parametrize("key", ["a.", "a\t. ", '"a b".', "'a' . "])
@pytest.mark.parametrize("table", ["{}a = 1", "[{}a]", "b = {{{}a = 1}}"])
def test_a_key_that_is_too_deep_is_refused_before_it_is_parsed(key: str, table: str) -> None:
    deepest = MOST_NESTED - 2
    assert parse_toml(table.format(key * deepest).encode(), "here")
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"^here: nested deeper than 64"):
        parse_toml(table.format(key * 100_000).encode(), "here")
    assert time.perf_counter() - start < 5, "the time of parsing it grows with the square of its length, to minutes"


@pytest.mark.parametrize(
    "text", ["#" + "a" * 10**6, "#" + '"' * 10**6, "#" + "'a" * 10**6, "#" + "a." * 30 + " " * 10**6]
)
def test_a_long_text_is_not_looked_through_more_than_once(text: str) -> None:
    start = time.perf_counter()
    assert parse_toml(text.encode(), "here") == {}
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("row", ["null", "3", "[]", '"a"'])
def test_rows_are_objects(row: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{{}}\n{row}\n")
    with pytest.raises(ValueError, match=r"rows.jsonl: line 2: holds .*, expected an object"):
        read_lines(path)


def test_an_object_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    assert load_json(tmp_path / "a.json") == [1]
    with pytest.raises(ValueError, match=r"a.json: holds a list, expected an object"):
        load_object(tmp_path / "a.json")


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name, message in {
        "pipe": "is a pipe or device",
        "zero": "is a pipe or device",
        ".": "is a folder",
        "none": "no such file",
        "pipe/x": "no such file",
        "a\0b": "embedded null",
    }.items():
        with pytest.raises(ValueError, match=message):
            check_regular(tmp_path / name)


def test_a_value_is_shown_in_a_line() -> None:
    assert shown({"a": [1, 2.5, "x"]}) == "{'a': [1, 2.5, 'x']}"
    for value in ("a" * 20_000, list(range(10_000)), 10**100, 10**10_000, nested(50), {str(i): i for i in range(999)}):
        assert len(shown(value)) < 400


def test_deep_values_are_walked_without_recursion() -> None:
    with pytest.raises(ValueError, match="nested deeper"):
        checked(nested(5000), "here")
