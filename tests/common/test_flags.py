"""What command lines say of mistakes: one line that names the option and what was meant."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import tyro

from plkernel.commands.bench import scan
from plkernel.commands.export import export
from plkernel.commands.fit import fit
from plkernel.commands.gallery import gallery
from plkernel.commands.generate import generate
from plkernel.commands.init import show
from plkernel.commands.measure import measure
from plkernel.common import cli, flags


def refused(run: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed of a mistake: one line on standard error, exit code 2."""
    with pytest.raises(SystemExit) as stop:
        run()
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
    return printed.err


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (fit, ["--betta", "1"], "unknown option --betta; did you mean --beta?"),
        (fit, ["--beta", "x"], "--beta: expected a number, got 'x'"),
        (fit, ["--beta"], "--beta: expected a number, got nothing"),
        (fit, ["--beta", "--grid", "3"], "--beta: expected a number, got nothing"),
        (fit, ["--grid=2.5"], "--grid: expected a whole number, got '2.5'"),
        (fit, ["--no-figur"], "unknown option --no-figur; did you mean --no-figure?"),
        (fit, ["-x"], "unknown option -x; --help lists the options"),
        (fit, ["1.15"], "'1.15' belongs to no option; see --help"),
        (fit, ["--method", "mimax"], "got 'mimax'; did you mean 'minimax'?"),
        (measure, ["stdlib", "--lags", "1"], "--lags: expected 2 whole numbers, got 1"),
        (measure, ["stdlib", "--unit", "wrd"], "--unit: expected one of byte, word, got 'wrd'; did you mean 'word'?"),
        (measure, ["stdlib", "--figure", "False"], "'False' belongs to no option; see --help"),
        (gallery, ["--only", "s4", "--max-lag", "many"], "--max-lag: expected a whole number, got 'many'"),
        (generate, ["run", "--byts", "3"], "unknown option --byts; did you mean --bytes?"),
        (generate, [], "MODEL missing; see --help"),
        (export, ["run"], "OUT missing; see --help"),
        (export, ["run", "out", "other"], "'other' belongs to no option"),
        (show, ["mup", "--option", "std=1", "--dim", "wide"], "--dim: expected a whole number, got 'wide'"),
        (scan, ["--shapes", "1", "2"], "--shapes: expected"),
    ],
)
def test_mistakes_are_one_line(
    command: Callable[..., None], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(lambda: cli.main(command, arguments), capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["shwo"], "no subcommand 'shwo'; did you mean 'show'?"), (["show", "--betta"], "unknown option --betta")],
)
def test_subcommands(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    commands = {"show": show, "fit": fit}
    assert message in refused(lambda: cli.main_of(commands, "two", arguments), capsys)


def test_what_runs_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """Right arguments reach the command, and what it prints to standard error is not held back."""
    taken = []

    def command(
        names: Annotated[tuple[str, ...], tyro.conf.Positional], beta: float | None = None, figure: bool = True
    ) -> None:
        import sys

        print("at work", file=sys.stderr)
        taken.append((names, beta, figure))

    cli.main(command, ["a", "b", "--beta", "-1e-3", "--no-figure"], prog="test")
    assert taken == [(("a", "b"), -1e-3, False)]
    assert capsys.readouterr().err == "at work\n"


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (int, ["1_000"], 1000),
        (float | None, ["None"], None),
        (float | None, ["1e-3"], 1e-3),
        (tuple[int, ...], [], ()),
        (tuple[int, int] | None, ["1", "2"], (1, 2)),
        (Literal["a", "b"] | None, ["b"], "b"),
        (Literal["a"] | Literal["b", "c"] | None, ["c"], "c"),
        (dict[str, float] | None, ["std", "0.1", "depth", "2"], {"std": 0.1, "depth": 2.0}),
        (bool | None, ["True"], True),
        (Path, ["x"], Path("x")),
    ],
)
def test_values_of_texts(kind: Any, given: Sequence[str], value: Any) -> None:
    found = flags.value_of(kind, given)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (tuple[int, int], ["1", "x"], "expected a whole number, got 'x'"),
        (dict[str, float], ["std"], "expected pairs of a name and a number, got std"),
        (bool | None, ["maybe"], "expected true or false, got 'maybe'"),
        (int, ["None"], "expected a whole number, got 'None'"),
    ],
)
def test_texts_that_are_no_values(kind: Any, given: Sequence[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flags.value_of(kind, given)


def test_long_messages_keep_both_ends(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise ValueError(f"key: got {'x ' * 10_000}: use y")

    error = refused(lambda: cli.main(command, [], prog="test"), capsys)
    assert error.startswith("error: key: got x x")
    assert error.endswith("x : use y\n")
    assert len(error) < 1100
    assert cli.nearest("q", [f"name-{i}" for i in range(500)]).endswith("and 476 more")


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (tuple[int, ...], "INT ..."),
        (tuple[int, float], "INT FLOAT"),
        (dict[str, int] | None, "NAME INT ..."),
        (Literal["a", "b"], "{a,b}"),
    ],
)
def test_help_shows_what_stands_after_an_option(kind: Any, shown: str) -> None:
    assert flags.metavar(kind) == shown
