"""Files and plain values at their limits, what is written where, and the words for differences."""

import errno
import json
import math
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plkernel.common import files
from plkernel.common.delivery import check_outputs, deliver

Shown = pytest.CaptureFixture[str]


def figure() -> Any:
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(1, 1))
    drawn.subplots().plot([0, 1])
    return drawn


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b was 1, is now 2"]),
        ({"a": 1, "c": 3}, {"b": 2, "c": 3}, ["a was 1, is now None", "b was None, is now 2"]),
        ({"a": 1.0}, {"a": 1.0 + 9e-13}, []),
        ({"a": 1.0}, {"a": 1.0 + 2e-12}, ["a was 1.0, is now 1.000000000002"]),
        ({"a": 1.0}, {"a": 1.5}, ["a was 1.0, is now 1.5"]),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1.0}, {"a": None}, ["a was 1.0, is now None"]),
        ({"a": "x"}, {"a": 1.0}, ["a was 'x', is now 1.0"]),
        ({"a": {"b": 1}}, {"a": None}, ["a was {'b': 1}, is now None"]),
        ({}, {}, []),
        ([1, 2], [1, 3], [" was [1, 2], is now [1, 3]"]),
    ],
)
def test_differences_are_named_by_their_place(old: Any, new: Any, lines: list[str]) -> None:
    assert files.differences(old, new) == lines


def test_last_digits_of_floats_are_no_difference() -> None:
    third = 1 / 3
    assert not files.differences({"a": third}, {"a": math.nextafter(third, 1)})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", ""), ("\\", "\\"), ("a", "a"), (r"\n", "\n"), (r"\xff", "\xff"), (r"\0", "\0")],
)
def test_a_separator_is_read_as_typed_in_a_shell(text: str, expected: str) -> None:
    assert files.unescape(text) == expected


@pytest.mark.parametrize("text", ["\u0100\u0100", r"\x", r"\xg"])
def test_what_is_no_separator_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="separator must be one byte such as"):
        files.unescape(text)


def test_names_of_runs_and_of_arms_at_rates(tmp_path: Path) -> None:
    assert files.run_folder(tmp_path, "arm", 3) == tmp_path / "arm" / "seed-3"
    rates = {0.003: "0.003", 1.0: "1", 2.0: "2", 1.5: "1.5", 1e-05: "1e-05"}
    for rate, text in rates.items():
        assert files.name_at("arm", rate) == f"arm_rate-{text}"


@pytest.mark.parametrize(
    ("content", "whole", "expected"),
    [
        (b"", False, []),
        (b"", True, []),
        (b'{"a": 1}\n', True, [{"a": 1}]),
        (b'{"a": 1}\n{"a": 2}', False, [{"a": 1}]),
        (b'{"a": 1}', False, []),
    ],
)
def test_rows_are_read_up_to_the_last_whole_line(
    content: bytes, whole: bool, expected: list[dict[str, int]], tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    assert files.read_lines(tmp_path / "rows.jsonl", whole) == expected
    assert files.read_lines(tmp_path / "missing.jsonl", whole) == []


def test_a_file_that_must_be_whole_ends_in_a_line_feed(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": 2}')
    with pytest.raises(ValueError, match="its last line must be whole, got one that is cut off"):
        files.read_lines(tmp_path / "rows.jsonl", whole=True)
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a\n{}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl: line 2: not readable as JSON"):
        files.read_lines(tmp_path / "rows.jsonl")


def test_a_file_of_as_many_bytes_as_are_allowed_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert files.read_bytes(tmp_path / "a", 5) == b"12345"
    with pytest.raises(ValueError, match="must have at most 4 bytes, got 5"):
        files.read_bytes(tmp_path / "a", 4)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}', encoding="utf-8-sig")
    assert files.load_json(tmp_path / "a.json") == {"a": 1}
    assert files.parse_toml(b"\xef\xbb\xbfa = 1\n", "spec") == {"a": 1}


@pytest.mark.parametrize("value", [2**63 - 1, 1 - 2**63, -1.0e300, True])
def test_numbers_of_64_bits_are_read(value: Any, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([value]))
    assert files.load_json(tmp_path / "a.json") == [value]


@pytest.mark.parametrize("value", [2**63, -(2**63)])
def test_numbers_beyond_64_bits_are_refused(value: int, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"a": [0, value]}))
    with pytest.raises(ValueError, match=r"a\.1: whole numbers must lie between"):
        files.load_json(tmp_path / "a.json")


@pytest.mark.parametrize("form", ["[{}]", '{{"a": {}}}'])
def test_lists_and_tables_are_nested_64_deep(form: str, tmp_path: Path) -> None:
    def of_depth(depth: int) -> str:
        text = "0"
        for _ in range(depth):
            text = form.format(text)
        return text

    (tmp_path / "a.json").write_text(of_depth(64))
    assert files.load_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(of_depth(65))
    with pytest.raises(ValueError, match="must be nested at most 64 lists and tables deep"):
        files.load_json(tmp_path / "a.json")


def test_a_written_file_is_whole_readable_by_all_and_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In folders that are made for it; the temporary one is gone."""
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    path = tmp_path / "new" / "folder" / "a"
    files.atomic_write(path, "text")
    assert path.read_text() == "text"
    assert len(flushed) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with files.atomic(tmp_path / "a") as new:
            new.write_text("half")
            raise KeyError("stopped")

    with pytest.raises(KeyError):
        fail()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (OSError(errno.ENOSPC, "full"), "asked"),
        (OSError(errno.EROFS, "read-only"), "asked"),
        (OSError(errno.EIO, "broken"), None),
        (OSError(errno.EACCES, "denied", "temporary"), "asked"),
        (OSError(errno.ENOSPC, "full", "other"), "other"),
    ],
    ids=str,
)
def test_errors_of_a_temporary_file_name_the_one_that_was_asked_for(
    error: OSError, named: str | None
) -> None:
    def fail() -> None:
        with files.naming(Path("asked"), Path("temporary")):
            raise error

    with pytest.raises(OSError) as caught:  # noqa: PT011
        fail()
    assert caught.value.filename == named
    assert caught.value.errno == error.errno


def test_places_that_cannot_be_written_are_told_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files.check_file(None, "json")
    files.check_folder(None, "out")
    files.check_file(tmp_path / "file", "json")
    files.check_file(tmp_path / "new" / "folder" / "a", "json")
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "a check leaves nothing"
    with pytest.raises(OSError, match=f"json must be a file, got the folder {tmp_path}"):
        files.check_file(tmp_path, "json")
    for check, place in (
        (files.check_folder, tmp_path / "file" / "x"),
        (files.check_file, tmp_path / "file" / "x"),
    ):
        with pytest.raises(OSError, match=rf"out {place}: cannot be written \(a file is in the"):
            check(place, "out")


def test_names_that_no_file_system_takes_are_told_with_the_option(tmp_path: Path) -> None:
    files.check_file(tmp_path / ("n" * 255), "json")
    files.check_folder(tmp_path / ("n" * 255), "out")
    for place in (tmp_path / ("ä" * 128), tmp_path / ("n" * 256) / "a"):
        for check in (files.check_file, files.check_folder):
            with pytest.raises(OSError, match="out must have names of at most 255 bytes, got '"):
                check(place, "out")


@pytest.mark.parametrize("name", ["n" * 255, "ä" * 127, "\udcff" * 255])
def test_a_file_of_a_long_name_is_written_and_what_it_left_is_removed(
    name: str, tmp_path: Path
) -> None:
    with files.atomic(tmp_path / name) as temporary:
        temporary.write_text("")
        left = temporary.with_name(temporary.name.replace(f".{os.getpid()}.", ".4194305."))
    left.write_text("")  # of a process that cannot be
    files.atomic_write(tmp_path / name, "text")
    assert list(tmp_path.iterdir()) == [tmp_path / name]
    assert (tmp_path / name).read_text() == "text"


def test_a_study_is_no_run(tmp_path: Path) -> None:
    files.refuse_study(tmp_path, "path")
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(ValueError, match="shows; none of its runs are here"):
        files.refuse_study(tmp_path, "path")
    for seed in (1, 0):
        place = tmp_path / "arm" / f"seed-{seed}" / "config.json"
        place.parent.mkdir(parents=True)
        place.write_text("{}")
    with pytest.raises(ValueError, match=f"such as {tmp_path / 'arm' / 'seed-0'}$"):
        files.refuse_study(tmp_path, "path")


def test_links_and_pipes_are_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    files.refuse_links(tmp_path, tmp_path / "file", tmp_path / "missing")
    for name, kind in {"pipe": "a pipe or device", "link": "a symbolic link to nowhere"}.items():
        with pytest.raises(ValueError, match=f"{name} must be .*, got {kind}"):
            files.refuse_links(tmp_path / "file", tmp_path / name)


def test_figures_are_written_once_in_each_format(tmp_path: Path, capsys: Shown) -> None:
    drawn = []

    def draw() -> Any:
        drawn.append(figure())
        return drawn[-1]

    files.save_figure(tmp_path, "name", draw, ())
    assert not drawn
    assert capsys.readouterr().out == ""
    files.save_figure(tmp_path, "name", draw, ("png", "svg", "png"))
    assert len(drawn) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["name.png", "name.svg"]
    assert capsys.readouterr().out == f"figure:  {tmp_path / 'name'}.png, .svg\n"


def test_the_result_of_a_command_is_printed_and_written(tmp_path: Path, capsys: Shown) -> None:
    def unwanted() -> Any:
        raise AssertionError("nobody asked for a figure")

    deliver("text", {"a": math.nan}, unwanted, None, None)
    assert capsys.readouterr().out == "text\n"
    json_file, picture = tmp_path / "a.json", tmp_path / "a.svg"
    deliver("text", {"a": math.nan, "b": 1}, figure, json_file, picture)
    assert files.load_json(json_file) == {"a": None, "b": 1}
    assert b"<svg" in picture.read_bytes()
    said = capsys.readouterr().out
    assert said == f"text\n\nwritten: {json_file}\n\nwritten: {picture}\n"


def test_files_are_written_also_where_nobody_reads_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe without a reader, which a buffer of the program shows when it is flushed alone."""
    ends = os.pipe()
    os.close(ends[0])
    json_file, picture = tmp_path / "a.json", tmp_path / "a.svg"
    stream = os.fdopen(ends[1], "w", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        with pytest.raises(BrokenPipeError):
            deliver("text", {"b": 1}, figure, json_file, picture)
    with pytest.raises(BrokenPipeError):
        stream.close()
    assert files.load_json(json_file) == {"b": 1}
    assert b"<svg" in picture.read_bytes()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with the files of a run, beside one of weights."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (files.CONFIG, files.ENVIRONMENT, files.CHECKPOINT, "model.safetensors"):
        (folder / name).write_text("{}")
    (tmp_path / "link.json").symlink_to(folder / files.CONFIG)
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "run/config.json",
        "run/../run/environment.json",
        "run/metrics.jsonl",
        "run/result.json",
        "run/checkpoint.safetensors",
        "run/model.safetensors",
        "link.json",
    ],
)
def test_files_that_a_model_is_read_from_are_not_written(
    name: str, run: Path, tmp_path: Path
) -> None:
    """Whether the model is given as its folder or as a file in it."""
    for model in (run, run / files.CHECKPOINT):
        with pytest.raises(ValueError, match="json must be another file than those that are read"):
            check_outputs(tmp_path / name, None, files.files_of(model))


def test_other_files_may_be_written_beside_a_model(run: Path, tmp_path: Path) -> None:
    """Those of a run's training only in a run."""
    (run / "inspect.json").write_text("an earlier one")
    check_outputs(run / "inspect.json", run / "a.pdf", files.files_of(run))
    (run / files.ENVIRONMENT).unlink()
    check_outputs(run / files.RESULT, None, files.files_of(run))
    check_outputs(tmp_path / files.CONFIG, None, files.files_of(run))


def test_outputs_are_other_files_than_what_is_read_and_than_each_other(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("mine")
    os.link(text, tmp_path / "same")
    new = tmp_path / "a.pdf"
    for output in (text, tmp_path / "same"):
        with pytest.raises(ValueError, match="out must be another file than those that are read"):
            files.check_apart({"out": output}, ["stdlib", None, str(text)])
    with pytest.raises(
        ValueError, match=r"json and figure must be two files, got .*a.pdf for both"
    ):
        check_outputs(new, new)
    files.check_apart({"json": new, "figure": None}, [text, tmp_path])
    files.check_apart({"out": Path(os.devnull)}, [os.devnull])


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_outputs(None, Path("a.gif")), "figure must end in .pdf, .png, .svg, got"),
        (lambda: check_outputs(None, None, windows=(0, 1)), "windows must be at least 1, got 0"),
    ],
)
def test_outputs_and_options_below_their_least_are_refused(
    check: Callable[[], None], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check()


def test_outputs_and_options_at_their_least_are_taken(tmp_path: Path) -> None:
    check_outputs(tmp_path / "a.json", tmp_path / "a.pdf", windows=(1, 1), tokens=(None, 2))
    with pytest.raises(OSError, match="json must be a file, got the folder"):
        check_outputs(tmp_path, None)
    (tmp_path / "a.png").mkdir()
    with pytest.raises(OSError, match="figure must be a file, got the folder"):
        check_outputs(None, tmp_path / "a.png")


def test_a_folder_inside_of_one_that_may_not_be_entered_is_refused(tmp_path: Path) -> None:
    """As nobody where the tests are run by root, who may enter all."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(OSError, match=r"^cache .*/b: cannot be written \(Permission denied\)"):
            files.check_folder(closed / "a" / "b", "cache")
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "No space left on device"), (errno.EACCES, ""), (None, "")],
)
def test_a_folder_without_room_says_so_and_nothing_else(
    number: int | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        assert number is not None
        raise OSError(number, os.strerror(number))

    if number is not None:
        monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    expected = f"no file can be written in {tmp_path}: {said}" if said else ""
    assert files.lack_of_room(tmp_path) == expected
    assert files.lack_of_room(tmp_path, files.DISK_FULL) == expected
    assert list(tmp_path.iterdir()) == []


def test_an_input_in_the_home_folder_is_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    text = tmp_path / "measure.json"
    text.write_text("a text")
    with pytest.raises(ValueError, match="out must be another file than those that are read"):
        files.check_apart({"out": text}, ["~/measure.json"])
