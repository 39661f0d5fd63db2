"""Shared ground: mistakes in one line, whole files, values within limits, consent, memory."""

import errno
import hashlib
import json
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plkernel.commands import experiment, train
from plkernel.commands.corpus import corpus
from plkernel.commands.export import export
from plkernel.commands.fit import command as fit
from plkernel.commands.gallery import gallery
from plkernel.commands.inspect import command as inspect
from plkernel.commands.load import load as load_model
from plkernel.commands.measure import command as measure
from plkernel.commands.probe import probe
from plkernel.commands.report import report
from plkernel.common import cli, environment, files, options
from plkernel.config import reading


def refused(run: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error with which a command exits with code 2."""
    with pytest.raises(SystemExit) as stop:
        run()
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out, printed.err.count("\n")) == (2, "", 1), printed.err
    return printed.err


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (fit, ["--betta", "1"], "--betta, 1; did you mean --beta?"),
        (fit, ["--beta", "abc"], "error: --beta must be a number, got 'abc'; see --help"),
        (fit, ["--beta=abc"], "error: --beta must be a number, got 'abc'; see --help"),
        (fit, ["--max_lag", "1.5"], "error: --max-lag must be a whole number, got '1.5'"),
        (fit, ["--beta"], "error: --beta must be a number, got nothing; see --help"),
        (measure, ["a", "--lags", "1", "x"], "--lags must be 2 whole numbers, got '1' 'x'"),
        (report, ["a", "--formats", "gif"], "--formats must be one of pdf, png, svg, got 'gif'"),
        (report, ["a", "--formats"], "--formats must be one of pdf, png, svg, got nothing"),
        (fit, ["--no-figur"], "--no-figur; did you mean --figure or --no-figure?"),
        (
            fit,
            ["--max-lag", "9", "--max_lag=8"],
            "--max-lag must be given once, with all of its values, got it 2 times",
        ),
        (fit, ["--gain", "emma"], "--gain must be one of none, ema, lru, clamp, got 'emma'"),
        (gallery, ["--max-lag", "31"], "max_lag must be 32 to 65,536"),
        (export, [], "MODEL must be given: Folder of a run"),
        (
            corpus,
            ["stdlib", "--separator", "ab"],
            "separator must be one byte, a single character from U+0000 to U+00FF, got 'ab'",
        ),
        (report, ["PLACE"], "error: folder PLACE: no such file or folder; did you mean NEAR?"),
        (inspect, ["PLACE"], "error: model PLACE: no such file or folder; did you mean NEAR?"),
    ],
)
def test_wrong_arguments_are_one_line(
    command: Callable[..., None],
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "quick").mkdir()
    place = str(tmp_path / "quik" / "x")
    near = str(tmp_path / "quick")
    error = refused(
        lambda: cli.main(command, [place if one == "PLACE" else one for one in arguments]), capsys
    )
    assert message.replace("PLACE", place).replace("NEAR", near) in error


def test_help_has_a_word_for_each_value_and_none_for_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    for command in (export, fit, measure):
        with pytest.raises(SystemExit):
            cli.main(command, ["--help"], prog="test")
    shown = capsys.readouterr().out
    for part in (
        "usage: test [-h] MODEL OUT [--dtype {float32,bfloat16,float16}]",
        "usage: test [-h] [OPTIONS] NAME ...",
        "--beta FLOAT ",
        "--lags INT INT ",
        "(default: coherent)",
        "beta as plkernel.measure finds it on lags 1..500, or what target names",
    ):
        assert part in shown, part
    assert "{None" not in shown
    assert "(default: None)" not in shown


def test_how_commands_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def long() -> None:
        raise ValueError(f"key: got {'x ' * 10_000}: use y")

    def interrupted() -> None:
        raise KeyboardInterrupt("saved")

    error = refused(lambda: cli.main(long, [], prog="test"), capsys)
    assert (error[:22], error[-10:], len(error) < 1100) == (
        "error: key: got x x x ",
        "x : use y\n",
        True,
    )
    assert cli.nearest("q", [f"name-{i}" for i in range(500)]).endswith("and 476 more")
    with pytest.raises(SystemExit) as stop:
        cli.main(interrupted, [], prog="test")
    assert (stop.value.code, capsys.readouterr().err) == (130, "\ninterrupted: saved\n")
    monkeypatch.setenv("PLKERNEL_DEBUG", "1")
    with pytest.raises(ValueError, match="use y"):
        cli.main(long, [], prog="test")


def test_control_characters_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    def command(name: str = "\x1b[31mred") -> None:
        print(f"{name}\x7f\x9b\r\t\xe9\udc9b\ud800")
        print(f"{name}\r.", file=sys.stderr)
        logging.StreamHandler().emit(logging.makeLogRecord({"msg": name}))
        for drawn in (
            "\r50%",
            "\n\x1b[A",
            "\r    \r",
            "\x1b[A\x1b[31m\n",
        ):  # the last by no progress bar
            sys.stderr.write(drawn)
        raise ValueError(f"name {name}")

    with pytest.raises(SystemExit):
        cli.report_errors(lambda: cli.main(command, [], prog="test"))
    red = "\\x1b[31mred"
    assert capsys.readouterr() == (
        f"{red}\\x7f\\x9b\\x0d\t\xe9\\udc9b\\ud800\n",
        f"{red}\\x0d.\n{red}\n\r50%\n\x1b[A\r    \r\\x1b[A\\x1b[31m\nerror: name {red}\n",
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("else"),
    ],
)
def test_no_memory_is_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise error

    with pytest.raises(RuntimeError if str(error) == "else" else SystemExit):
        cli.main(command, [], prog="test")
    if str(error) != "else":
        assert capsys.readouterr().err.startswith(f"error: out of memory, {type(error).__name__}")


def test_a_record_names_the_command_of_its_process_or_of_the_study_that_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(environment.COMMAND, raising=False)
    monkeypatch.setattr(sys, "argv", ["sweep.py", "--out", "two words"])
    assert environment.environment(1)["command"].endswith(" --out 'two words'")
    monkeypatch.setenv(environment.COMMAND, "plkernel experiment demo")
    assert environment.environment(1)["command"] == "plkernel experiment demo"


@pytest.mark.parametrize(
    ("module", "command"),
    [
        (None, "python sweep.py"),
        ("plkernel.commands.experiment", "python -m plkernel.experiment"),
    ],
)
def test_a_script_and_a_module_are_named_as_one_would_type_them(
    module: str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = None if module is None else SimpleNamespace(name=module)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec, raising=False)
    monkeypatch.setattr(sys, "argv", ["sweep.py", "--out", "two words"])
    assert environment.command_line() == f"{command} --out 'two words'"


def test_words_for_a_type_leave_out_none_alone() -> None:
    assert options.kind(float | None) == "a number"
    assert options.kind(float | bytes | None) == "a number or another value"


def test_a_source_tree_without_git_has_a_digest_but_no_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    state = environment.source_state()
    assert (state["commit"], state["dirty"]) == (None, None)
    assert re.fullmatch("[0-9a-f]{16}", state["source"])


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_tree_is_dirty_where_code_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed README, a record or a note is no change of the code; the digest is of what computes
    a run.
    """
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "plkernel/common/environment.py"))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for name in (
        "plkernel/training/loop.py",
        "plkernel/results/page.py",
        "README.md",
        "runs/a.toml",
    ):
        (path := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)

    def changed(name: str) -> tuple[bool, bool]:
        environment.source_digest.cache_clear()
        before = environment.source_state()["source"]
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("2")
        environment.source_digest.cache_clear()
        state = environment.source_state()
        return state["dirty"], state["source"] != before

    assert (
        changed("README.md")
        == changed("runs/a.toml")
        == changed("runs/records/note.md")
        == (False, False)
    )
    assert changed("plkernel/results/page.py") == (True, False)
    assert changed("plkernel/training/new.py") == (True, True)

    before = environment.source_digest()
    folder = tmp_path / "plkernel/training"
    (folder / "new.py").rename(folder / "other.py")
    environment.source_digest.cache_clear()
    assert environment.source_digest() != before, "the name of a file belongs to the digest"
    environment.source_digest.cache_clear()

    assert environment.source_state()["commit"] is not None
    (tmp_path / ".git/index").write_text("damaged")
    state = environment.source_state()
    assert (state["commit"], state["dirty"]) == (None, None), "files may differ from the commit"


@pytest.mark.parametrize(
    ("command", "arguments", "option"),
    [
        (measure, ["missing.txt"], "--out"),
        (inspect, ["missing.txt"], "--json"),
        (probe, ["missing.txt"], "--json"),
        (export, ["file"], ""),
        (load_model, ["file"], ""),
        (train.command, ["spec"], "--out"),
        (experiment.command, ["spec"], "--out"),
    ],
)
def test_outputs_are_checked_before_the_work(
    command: Callable[..., None],
    arguments: list[str],
    option: str,
    tiny_spec: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_bytes(b"no model")
    place = tmp_path / "file" / "out.pth"
    known = {"file": str(tmp_path / "file"), "spec": str(tiny_spec(corpus="missing.txt"))}
    given = [*(known.get(one, one) for one in arguments), *filter(None, [option]), str(place)]
    start = reading.main if "spec" in arguments else cli.main
    error = refused(lambda: start(command, given), capsys)
    assert f"{option[2:] or 'out'} {place}: cannot be written (a file is in the way)" in error


def test_a_corpus_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a").write_bytes(b"aabb" * 50)
    (tmp_path / "texts" / "b").write_bytes(b"ccdd" * 50)
    cli.main(corpus, [str(tmp_path / "texts"), "--separator", r"\x61"])
    rows = dict(re.findall(r"^(\w+(?: \w+)*)  +(\S.*)$", capsys.readouterr().out, re.MULTILINE))
    assert (rows["size"], rows["documents"]) == ("401", "2")
    assert hashlib.sha256(Path(rows["path"]).read_bytes()).hexdigest() == rows["sha256"]
    expected = -sum(count / 401 * math.log2(count / 401) for count in (101, 100, 100, 100))
    assert float(rows["unigram entropy bits per byte"]) == pytest.approx(expected, rel=1e-12)


def test_a_full_disk_is_said_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "fit.json"
    path.write_text("as it was")
    monkeypatch.setattr(os, "fsync", full)
    error = refused(lambda: cli.report_errors(lambda: files.atomic_write(path, "x")), capsys)
    assert error == f"error: {path}: No space left on device\n"
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [
        ("fit.json", "as it was")
    ]


WRITER = """
import sys, time
from pathlib import Path
from plkernel.common.files import atomic
with atomic(Path(sys.argv[1])) as path, path.open("wb") as out:
    out.write(b"half")
    out.flush()
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_killed_writer_leaves_the_old_file_and_no_remains(tmp_path: Path) -> None:
    path, kept = tmp_path / "fit.json", tmp_path / ".fit.json.original"
    kept.write_text("of somebody else")
    path.write_text("old")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"ready\n"
    assert path.read_text() == "old"
    files.atomic_write(path, "whole")
    assert len(list(tmp_path.iterdir())) == 3, "the temporary file of a living writer stays"
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    files.atomic_write(path, "whole again")
    assert sorted(tmp_path.iterdir()) == [kept, path]
    assert path.read_text() == "whole again"


def nested(depth: int) -> list[Any]:
    return json.loads("[" * depth + "]" * depth)


def test_values_within_the_limits_are_read_as_they_are(tmp_path: Path) -> None:
    value = {
        "a": [1, 1 - 2**63, 2**63 - 1, 1e300, True, None, "x"],
        "deep": nested(files.MOST_NESTED - 1),
    }
    files.save_json(tmp_path / "a.json", value | {"nan": float("nan")})
    assert files.load_object(tmp_path / "a.json") == value | {"nan": None}
    assert files.parse_toml(b"a.b = [1, 2]\nc = 1979-05-27", "here")["a"] == {"b": [1, 2]}
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert files.read_lines(tmp_path / "rows.jsonl") == [{"a": 1}, {"a": 2}], (
        "the last line was not finished"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.json",
            json.dumps(nested(files.MOST_NESTED + 1)).encode(),
            "must be nested at most 64 lists",
        ),
        ("a.json", b'{"a":' * 100_000, "must be nested at most 64 lists and tables deep"),
        (
            "a.json",
            b'{"a": [0, 9223372036854775808]}',
            "(a.1: whole numbers must lie between -2**63 + 1",
        ),
        ("a.json", b"1" * 10_000, "not readable as JSON"),
        ("a.json", b"\xff", "not readable as JSON"),
        (
            "a.toml",
            b"a = " + b"[" * 5000 + b"]" * 5000,
            "must be nested at most 64 lists and tables deep",
        ),
        ("a.toml", b"a = 9223372036854775808", "(a: whole numbers must lie between"),
        ("a.toml", b"a = ", "not readable as TOML"),
    ],
    ids=lambda value: value[:20] if isinstance(value, bytes) else None,
)
def test_values_beyond_the_limits_are_one_line(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: .*{re.escape(message)}") as error:
        files.load_json(path) if name == "a.json" else files.parse_toml(content, str(path))
    assert len(str(error.value)) < 300


def test_strange_files_and_rows_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "rows.jsonl").write_text("{}\nnull\n")
    for name, message in {
        "pipe": "got a pipe or device",
        "link": "got a pipe or device",
        ".": "got a folder",
        "pipe/x": "no such file",
        "a\0b": "no such file",
    }.items():
        with pytest.raises(ValueError, match=message):
            files.check_regular(tmp_path / name)
    with pytest.raises(ValueError, match="got a folder"):
        files.load_json(tmp_path)
    with pytest.raises(ValueError, match=r"rows.jsonl: line 2 must hold an object, got None"):
        files.read_lines(tmp_path / "rows.jsonl")
    with pytest.raises(
        ValueError,
        match=r"link must be a plain file or a folder, got a symbolic link to /dev/zero; remove it",
    ):
        files.refuse_links(tmp_path / "rows.jsonl", tmp_path / "link")
    for value in ("a" * 20_000, list(range(10_000)), nested(50)):
        assert len(files.shown(value)) < 400


def test_code_is_imported_with_consent_alone() -> None:
    with pytest.raises(ValueError, match=r"init 'a:b' runs third-party code; .* pass --trust-code"):
        cli.check_consent({"init": "a:b"}, trusted=False)
    cli.check_consent({"init": "a:b"}, trusted=True)
    for name, message in {
        "nowhere:x": "No module named 'nowhere'",
        "math:hipot": "module 'math' has no attribute 'hipot'",
        "math:pi": "must be something to call, got float",
    }.items():
        with pytest.raises(ValueError, match=f"init '{name}'.* {message}"):
            cli.imported(name, "init")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_memory_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.ones(1 << 28, np.uint8)  # gone at once
    assert environment.peak_anonymous() > 0.9 * (1 << 28)
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\nfile 600000\n")
    monkeypatch.setattr(environment, "GROUP", tmp_path)
    assert environment.available_memory() == 700_000
    (tmp_path / "memory.max").write_text("max\n")
    assert (environment.available_memory() or 0) > 1e6
