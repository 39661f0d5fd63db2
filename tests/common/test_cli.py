"""Words for a terminal: hints, tables, numbers, the bar, and how a command ends."""

import errno
import logging
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plkernel.common import cli

Shown = pytest.CaptureFixture[str]


def test_the_nearest_name_is_meant_where_it_is_near() -> None:
    assert cli.nearest("abcde", ["abcdx", "other"]) == "did you mean 'abcdx'?"
    assert cli.nearest("abc", ["xyz", "uvw"]) == "valid: uvw, xyz"
    assert cli.nearest("ab12", ["abxy", "q"]) == "valid: abxy, q", "half of the letters are few"
    names = [f"name-{number:02}" for number in range(25)]
    assert cli.nearest("q", names[:24]).endswith("name-23")
    assert cli.nearest("q", names).endswith("name-23 and 1 more")
    assert cli.nearest("q", []) == "there is none"


def test_patterns_must_match_an_arm() -> None:
    cli.check_patterns("only", ["a*", "b"], ["abc", "b"])
    cli.check_patterns("only", [], [])
    with pytest.raises(ValueError, match="only must match an arm, got 'c'; valid: abc, b"):
        cli.check_patterns("only", ["a*", "c"], ["abc", "b"])


def test_a_missing_path_hints_at_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("results", "dangling"):
        assert cli.existing(tmp_path / name, "folder") == tmp_path / name
    missing = f"folder {tmp_path / 'result' / 'a'}: no such file or folder"
    with pytest.raises(
        ValueError, match=f"^{missing}; did you mean {tmp_path / 'results'}"
    ) as near:
        cli.existing(tmp_path / "result" / "a", "folder")
    assert str(near.value).endswith("?")
    with pytest.raises(ValueError, match=r"no such file or folder$"):
        cli.existing(tmp_path / "qqq", "folder")
    with pytest.raises(ValueError, match=r"^folder a{300}: File name too long$"):
        cli.existing(Path("a" * 300), "folder")


def test_a_path_is_missing_also_in_a_folder_that_may_not_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    monkeypatch.setattr("os.listdir", refuse)
    with pytest.raises(ValueError, match=r"^folder .*/qqq: no such file or folder$"):
        cli.existing(tmp_path / "qqq", "folder")


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("a  b\n c", 9, "a b c"),
        ("x" * 10, 10, "x" * 10),
        ("0123456789ABCDEF", 15, "01234 ... BCDEF"),
    ],
)
def test_a_line_is_shortened_in_its_middle(text: str, most: int, expected: str) -> None:
    found = cli.shortened(text, most)
    assert found == expected
    assert len(found) <= most


def test_errors_of_other_code_are_one_line_of_300_characters() -> None:
    assert cli.told(ValueError("a\nb")) == "ValueError: a b"
    assert cli.told(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(cli.told(ValueError("x" * 999))) == 300


@pytest.mark.parametrize(
    ("value", "form", "sizes", "text"),
    [
        (0.5, ".2f", (), "0.50"),
        (-0.004, "+.2f", (), "0.00"),
        (-0.0, ".2f", (), "0.00"),
        (0.004, ".2f", (0.004,), "0.0040"),
        (0.5, "+.2f", (0.0001,), "+0.50000"),
        (0.5, "+.2f", (-0.0001,), "+0.50000"),
        (0.5, ".2f", (math.nan,), "0.50"),
        (0.5, ".2f", (math.inf, 0.0), "0.50"),
        (1e-12, ".2f", (1e-12,), "0.000000000"),
        (0.004, ".2f", (0.004, 0.00004), "0.004000"),
    ],
)
def test_a_number_has_more_digits_where_a_size_would_read_as_zero(
    value: float, form: str, sizes: tuple[float, ...], text: str
) -> None:
    assert cli.written(value, form, *sizes) == text


def test_a_table_pads_to_its_widest_cells() -> None:
    table = cli.text_table(["a", "bb"], [["xyz", "1"], ["", "1000"]])
    assert table.splitlines() == ["a      bb", "---------", "xyz     1", "     1000"]
    assert cli.text_table(["a", "b"], []).splitlines() == ["a  b", "----"]
    assert [cli.counted(n, "run", "runs") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


class Bar:
    """Stands in for the bar of tqdm."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.n = 0.0
        self.is_closed = False

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def update(self, share: float) -> None:
        self.n += share


def test_a_bar_of_shares_ends_at_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It appears on a terminal alone, after two seconds, and is gone in the end."""
    made: list[Bar] = []

    def bar(**settings: Any) -> Bar:
        made.append(Bar(settings))
        return made[-1]

    monkeypatch.setattr("tqdm.auto.tqdm", bar)
    with cli.progress_bar("name") as progress:
        progress(0.25)
        assert made[0].n == 0.25
        progress(0.9)
        assert made[0].n == 1.0
        assert not made[0].is_closed
    assert made[0].is_closed
    form = made[0].settings.pop("bar_format")
    assert form == "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    assert made[0].settings == {
        "desc": "name",
        "total": 1.0,
        "delay": 2.0,
        "leave": False,
        "disable": None,
        "file": sys.stderr,
    }


def test_nothing_is_shown_where_python_has_no_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    """As in pythonw, in a daemon and after 2>&-; tqdm would fail after two seconds."""
    made: list[Bar] = []

    def bar(**settings: Any) -> Bar:
        made.append(Bar(settings))
        return made[-1]

    monkeypatch.setattr("tqdm.auto.tqdm", bar)
    assert cli.no_bar() is None
    monkeypatch.setattr(sys, "stderr", None)
    with cli.progress_bar("name") as progress:
        progress(0.5)
    assert made[0].settings["disable"] is True
    cli.note("a note")
    cli.line_beside_bars("a line", sys.stderr)
    assert capsys.readouterr().out == ""


def test_a_note_stands_on_standard_error(capsys: Shown) -> None:
    cli.note("a note")
    cli.line_beside_bars("a line", sys.stdout)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("a line\n", "a note\n")


def test_the_bar_of_a_long_call_in_python_needs_no_standard_error() -> None:
    """With tqdm itself, whose delay has passed."""
    code = """
import time
import tqdm.auto
from plkernel.common import cli

whole = tqdm.auto.tqdm
tqdm.auto.tqdm = lambda **given: whole(**{**given, "delay": 0.1})
with cli.progress_bar("name") as progress:
    for _ in range(4):
        time.sleep(0.1)
        progress(0.25)
print("done")
"""
    closed = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code]
    ran = subprocess.run(closed, stdout=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "done\n")


def trial_in_python(text: str, seeds: int = 3, max_lag: int = 9) -> None:
    """A function whose command has options of the same names."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("give fewer --seeds", "give fewer seeds="),
        ("give --max-lag 20 or more", "give max_lag=20 or more"),
        ("name another --text, or --record", "name another text=, or --record"),
        ("llama-gguf-split --merge a--seeds", "llama-gguf-split --merge a--seeds"),
    ],
)
def test_options_are_named_as_the_arguments_of_a_function(text: str, expected: str) -> None:
    assert cli.python_words(text, trial_in_python) == expected


def test_an_error_in_python_keeps_its_kind_and_names_arguments() -> None:
    class OwnError(ValueError):
        pass

    with pytest.raises(OwnError, match=r"^give fewer seeds=$"), cli.in_python(trial_in_python):
        raise OwnError("give fewer --seeds")
    with pytest.raises(UnicodeDecodeError, match="can't decode"), cli.in_python(trial_in_python):
        b"\xff".decode()


def ended(error: BaseException, shown: Shown) -> tuple[int, str]:
    """Exit status and standard error of a command that raises."""

    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as stop:
        cli.report_errors(command)
    return int(str(stop.value.code)), shown.readouterr().err


def test_errors_of_the_system_name_their_place(capsys: Shown) -> None:
    for error, line in (
        (OSError(errno.EACCES, "Permission denied", "a.txt"), "a.txt: Permission denied"),
        (OSError(errno.ENOSPC, "No space left"), "standard output: No space left"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError("told in words"), "told in words"),
        (FloatingPointError("overflow"), "overflow"),
        (ValueError("a\x1bb"), "a\\x1bb"),
        (MemoryError(), "out of memory, MemoryError"),
        (RuntimeError("can't start new thread"), "out of memory, RuntimeError: can't start new"),
    ):
        status, said = ended(error, capsys)
        assert status == 2
        assert said.startswith(f"error: {line}")
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
            "OutOfMemoryError",
        ),
        (RuntimeError("CUDA error: out of memory\nCompile with"), "RuntimeError"),
    ],
)
def test_a_model_too_large_for_a_gpu_is_one_line(
    error: Exception, line: str, capsys: Shown
) -> None:
    status, said = ended(error, capsys)
    assert status == 2
    assert said.startswith(f"error: out of memory, {line}: CUDA ")
    assert said.count("\n") == 1
    quoted = f"arm a did not finish: {error}"
    assert ended(ValueError(quoted), capsys)[1].startswith("error: arm a did not finish: CUDA")


def part_with_options(dim: int = 1, out: Path | None = None) -> None:
    """Show a part."""
    print(dim, out)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--dim", "2", "--dim", "3"], "--dim must be given once, with all of its values, got it"),
        (["--out", ""], "--out must be a path, got ''; '.' is the working folder"),
        (["--dim", "a"], "--dim must be a whole number, got 'a'; see --help"),
    ],
)
def test_a_part_of_a_command_takes_options_as_a_command_does(
    given: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    monkeypatch.setattr(sys, "argv", ["test", "part", *given])
    with pytest.raises(SystemExit) as stop:
        cli.main_of({"part": part_with_options}, "Parts.")
    assert stop.value.code == cli.EXIT_BAD_INPUT
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"error: {message}")


def test_the_part_of_a_command_is_one_that_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    monkeypatch.setattr(sys, "argv", ["test", "prat"])
    with pytest.raises(SystemExit):
        cli.main_of({"part": part_with_options}, "Parts.")
    expected = "subcommand must be one of the command's, got 'prat'; did you mean 'part'?"
    assert capsys.readouterr().err == f"error: {expected}\n"


def test_an_interrupt_says_what_it_was_told(capsys: Shown) -> None:
    assert ended(KeyboardInterrupt(), capsys) == (130, "\ninterrupted\n")
    assert ended(KeyboardInterrupt("saved\x1b"), capsys) == (130, "\ninterrupted: saved\\x1b\n")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs terminals of POSIX")
@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("a"), 2), (KeyboardInterrupt("saved"), 130)]
)
def test_the_exit_code_does_not_need_the_terminal(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> None:
        raise error

    far, near = os.openpty()
    os.close(far)
    with open(near, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with pytest.raises(SystemExit) as stop:
            cli.report_errors(command)
    assert stop.value.code == status


def test_a_fault_of_the_program_is_no_mistake_of_the_user() -> None:
    def command() -> None:
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"):
        cli.report_errors(command)


def test_a_closed_pipe_ends_a_command_without_a_word() -> None:
    program = (
        "from plkernel.common import cli\n"
        "def command():\n"
        "    for _ in range(100_000): print('line')\n"
        "cli.report_errors(command)"
    )
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (130, b"")


def test_warnings_are_one_line(capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def command() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, category, name, line, *_: sys.stderr.write(
                warnings.formatwarning(message, category, name, line)
            )
            warnings.warn("take care", stacklevel=1)

    cli.report_errors(command)
    assert capsys.readouterr().err == "warning: take care\n"


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", "\\xe9\\u20ac"), ("latin-1", "\xe9\\u20ac"), ("utf-8", "é€")]
)
def test_what_a_terminal_cannot_encode_is_shown_as_escapes(encoding: str, shown: str) -> None:
    written: list[str] = []

    def write(text: str) -> int:
        written.append(text)
        return len(text)

    stream = cli._Escaping(SimpleNamespace(encoding=encoding, write=write, name="here"))
    assert stream.write("é€") == len(shown)
    assert written == [shown]
    assert stream.name == "here"
    assert cli._Escaping(stream).plain is stream.plain


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a:b", True), ("a.b:c.d", True), ("ssm", False), (None, False)],
)
def test_a_name_with_a_colon_is_code(name: str | None, expected: bool) -> None:
    assert cli.is_code(name) is expected


def test_code_is_run_with_consent_alone() -> None:
    cli.check_consent({}, False)
    cli.check_consent({"kind": "a:b"}, True)
    with pytest.raises(ValueError, match="kind 'a:b', init 'c:d' runs third-party code"):
        cli.check_consent({"kind": "a:b", "init": "c:d"}, False)
    assert cli.imported("os:path.join", "init") is os.path.join


def test_a_module_that_ends_as_it_is_imported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script without a guard of its last line: the command would end, without a word."""
    (tmp_path / "ends_at_once.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"^kind 'ends_at_once:Model': importing .* SystemExit: 0"):
        cli.imported("ends_at_once:Model", "kind")


def test_only_a_closed_terminal_is_passed_over() -> None:
    """A full disk under the output of a run is not."""
    with cli.without_terminal():
        raise OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="No space left"), cli.without_terminal():
        raise OSError(errno.ENOSPC, "No space left")


def test_logging_goes_through_the_escapes(capsys: Shown) -> None:
    def command() -> None:
        logging.StreamHandler().emit(logging.makeLogRecord({"msg": "\x07"}))

    cli.report_errors(command)
    assert capsys.readouterr().err == "\\x07\n"


def test_the_middle_of_a_number_that_nobody_reads_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    digits = "1" * 300
    rates = "16,32,64,128,256,512,1024,2048,4096,8192,16384"
    kept = f"12,345 of {'9' * 20} in /{digits} and 0.{digits} of {rates}"

    def command() -> None:
        raise ValueError(f"seeds must be at most {digits}, got {10**99:,} and {kept}")

    with pytest.raises(SystemExit):
        cli.report_errors(command)
    error = capsys.readouterr().err
    assert error == f"error: seeds must be at most 11111111...111, got 1,000,00...000 and {kept}\n"


def narrow_command(beta: float = 1.15, projection_range: int = 500) -> None:
    """Fit a power law.

    Args:
        beta: Exponent of the power law.
        projection_range: Lags of the projection.
    """
    print(beta, projection_range)


def narrow_output(columns: int, *given: str) -> subprocess.CompletedProcess[str]:
    """What a process prints on a terminal of so many columns; it may take a minute."""
    code = (
        "from plkernel.common import cli; from tests.common.test_cli import narrow_command;"
        f" cli.main(narrow_command, {list(given)}, prog='test')"
    )
    variables = {**os.environ, "COLUMNS": str(columns)}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, env=variables, check=False, timeout=60
    )


def test_help_on_a_terminal_of_a_few_columns_ends_and_has_all_words() -> None:
    help_of = {columns: narrow_output(columns, "--help").stdout for columns in (1, 40)}
    assert help_of[1] == help_of[40], "in 4 columns or less help was never done"
    for word in ("--projection-range INT", "Exponent of the power law"):
        assert word in " ".join(help_of[1].replace("│", " ").split())


@pytest.mark.parametrize("columns", [1, 40, 200, None])
def test_a_mistake_is_told_in_whole_words_on_any_terminal(
    columns: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose width is as it was for what comes after, and unsaid where nothing said it."""
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    long = f"--{'a-long-name-' * 4}x"
    with pytest.raises(ValueError, match=f"^Unrecognized options: {long}; see --help$"):
        cli.parse(narrow_command, [long], "test")
    assert os.environ.get("COLUMNS") == (None if columns is None else str(columns))
