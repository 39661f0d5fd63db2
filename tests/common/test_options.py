"""Options of a command: placeholders, kinds of values, empty paths, mistakes in one sentence."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import tyro

from plkernel.common import options


@pytest.mark.parametrize(
    ("hint", "shown", "words"),
    [
        (int, "INT", "a whole number"),
        (float, "FLOAT", "a number"),
        (Path, "PATH", "a path"),
        (str, "TEXT", "a text"),
        (bytes, "VALUE", "another value"),
        (Literal["a", "b"], "{a,b}", "one of a, b"),
        (int | Literal["a"], "VALUE", "a whole number or a"),
        (tuple[int, ...], "[INT ...]", "a whole number"),
        (tuple[int, int], "INT INT", "2 whole numbers"),
        (tuple[float, float, float], "FLOAT FLOAT FLOAT", "3 numbers"),
        (tuple[int, str], "INT TEXT", "a whole number and a text"),
        (tuple[bytes, bytes], "VALUE VALUE", "2 values"),
    ],
)
def test_a_type_has_a_placeholder_and_a_kind(hint: Any, shown: str, words: str) -> None:
    assert options.placeholder(hint) == shown
    assert options.kind(hint) == words
    assert options.kind(hint | None) == words
    assert options.kind(Annotated[hint | None, "note"]) == words


def command(
    names: Annotated[tuple[str, ...], tyro.conf.Positional],
    place: Annotated[Path, tyro.conf.Positional] = Path("a"),
    out: Path | None = None,
    files: tuple[Path, ...] = (),
    text: str = "",
    is_on: bool = False,
    may_stand_alone: tuple[Path, ...] | None = None,
) -> None:
    """A command."""


def settings(name: str) -> Any:
    hint = options.signature(command).parameters[name].annotation
    return next((one for one in getattr(hint, "__metadata__", ()) if hasattr(one, "metavar")), None)


def test_help_shows_names_of_arguments_and_types_of_options() -> None:
    metavars = {"names": "NAME ...", "place": "[PLACE]", "out": "PATH", "files": "[PATH ...]"}
    assert {name: settings(name).metavar for name in metavars} == metavars
    assert settings("text").metavar == "TEXT"
    assert settings("is_on") is None
    assert [settings(name).help_behavior_hint for name in ("names", "out", "files")] == [""] * 3
    assert settings("text").help_behavior_hint != ""


@pytest.mark.parametrize(
    ("given", "option"),
    [
        (["--out", ""], "--out"),
        (["--out="], "--out"),
        (["--files", ""], "--files"),
        (["a", ""], "place"),
        ([""], "place"),
    ],
)
def test_an_empty_path_is_refused_by_its_name(given: list[str], option: str) -> None:
    with pytest.raises(ValueError, match=f"^{option} must be a path, got ''; '.' is the working"):
        options.check_empty_paths(command, given)


@pytest.mark.parametrize(
    "given", [["--text", ""], ["--text="], ["--out", "a"], ["--out=a"], ["a", "b"], []]
)
def test_other_empty_values_and_paths_with_letters_pass(given: list[str]) -> None:
    options.check_empty_paths(command, given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--files"], "^--files must be a path, got nothing"),
        (["a", "--files", "--is-on"], "^--files must be a path, got nothing"),
        (["--files", "b", "--text", "c"], None),
        (["--files=b", "--text", "c"], None),
        (["--files", "-1"], None),
        (["--files", "--help"], None),
        (["--may-stand-alone"], None),
        (["--may_stand_alone", "--is-on"], None),
        ([], None),
    ],
)
def test_an_option_of_several_values_has_one(given: list[str], message: str | None) -> None:
    if message is None:
        options.check_given_values(command, given)
    else:
        with pytest.raises(ValueError, match=message):
            options.check_given_values(command, given)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Error parsing --out: it cannot read 'a'", "--out must be a path, got 'a'"),
        ("Error parsing --text: it cannot read 'a' 'b'", "--text must be a text, got 'a' 'b'"),
        ("Missing value for argument '--out'", "--out must be a path, got nothing"),
        (
            "Missing value for argument '--text'",
            "--text must be a text, got nothing; --text=TEXT takes one that begins with -",
        ),
        ("invalid choice 'x' for argument '--text'", "--text must be a text, got 'x'"),
        (
            "Missing from here: MODEL Folder of a run. (required)",
            "MODEL must be given: Folder of a run",
        ),
        ("Error parsing --unknown: 'a'", None),
        ("something else", None),
    ],
)
def test_mistakes_are_told_in_the_words_of_the_command(message: str, expected: str | None) -> None:
    assert options.mistake(message, command) == expected
