"""Options of a command from its signature: placeholders in --help, and mistakes in one sentence."""

import inspect
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

# What a value of a type is called: in --help, in a message, and where there are several of them.
PLACEHOLDERS = {int: "INT", float: "FLOAT", Path: "PATH", str: "TEXT"}
KINDS = {int: "a whole number", float: "a number", Path: "a path", str: "a text"}
PLURALS = {int: "whole numbers", float: "numbers", Path: "paths", str: "texts"}

QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
"""The values that a message of tyro quotes."""
UNREADABLE = re.compile(r"Error parsing (?P<option>--[\w.-]+): (?P<reason>.*)")
"""Words of tyro on a value that its type cannot be made of; the reason quotes the value."""
# And what it says of a value that is no choice, of none, and of an argument that is left out.
UNKNOWN = re.compile(r"invalid choice (?P<reason>'.*') for argument '(?P<option>--[\w.-]+)'")
MISSING = re.compile(r"Missing value for argument '(?P<option>--[\w.-]+)'(?P<reason>)")
ABSENT = re.compile(r"Missing from .*?: (?P<name>[A-Z_]+) (?P<about>.*?)\.? \(required\)")


def signature(command: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of `command` with a placeholder for each value that --help shows.

    A positional argument is called by its name in capitals. An option that may be left out has no
    word for None, neither as a value nor as its default, of which the docstring tells.
    """
    import tyro

    given = inspect.signature(command)
    hints = get_type_hints(getattr(command, "func", command), include_extras=True)
    parameters = []
    for name, parameter in given.parameters.items():
        if name not in hints or "AppendAction" in str(parameter.annotation):
            parameters.append(parameter)
            continue
        settings: dict[str, Any] = {}
        hint = hints[name]
        plain = _plain(hint)
        if tyro.conf.Positional in getattr(hint, "__metadata__", ()):
            settings["metavar"] = _positional(name, plain, parameter)
        elif plain is not bool:
            settings["metavar"] = placeholder(plain)
        default = parameter.default
        may_be_empty = default is parameter.empty and get_origin(plain) is tuple
        if default is None or default == () or may_be_empty:
            settings["help_behavior_hint"] = ""
        shown = Annotated[hint, tyro.conf.arg(**settings)] if settings else hint
        parameters.append(parameter.replace(annotation=shown))
    return given.replace(parameters=parameters)


def _positional(name: str, plain: Any, parameter: inspect.Parameter) -> str:
    """Return NAME, in brackets where it may be left out, with dots where it may be repeated."""
    word = name.upper()
    if get_origin(plain) is tuple:
        word = f"{word.removesuffix('S')} ..."
    return word if parameter.default is parameter.empty else f"[{word}]"


def _called(name: str, hint: Any) -> str:
    """The name of an option where its annotation gives it another than the parameter's."""
    names = (getattr(one, "name", None) for one in getattr(hint, "__metadata__", ()))
    return next((one for one in names if one), name)


def _plain(hint: Any) -> Any:
    """Return a type without its annotations and without None."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        others = [one for one in get_args(hint) if one is not NoneType]
        return _plain(others[0]) if len(others) == 1 else Union[tuple(others)]  # noqa: UP007
    return hint


def placeholder(hint: Any) -> str:
    """Return what stands for a value of this type in --help.

    >>> placeholder(float), placeholder(Literal["ema", "lru"]), placeholder(tuple[int, ...])
    ('FLOAT', '{ema,lru}', '[INT ...]')
    """
    items = get_args(hint)
    if get_origin(hint) is Literal:
        return f"{{{','.join(map(str, items))}}}"
    if get_origin(hint) is tuple and items[-1] is Ellipsis:
        return f"[{placeholder(items[0])} ...]"
    if get_origin(hint) is tuple:
        return " ".join(map(placeholder, items))
    return PLACEHOLDERS.get(hint, "VALUE")


def kind(hint: Any) -> str:
    """Return what a value of this type is, in words.

    >>> kind(float | None), kind(tuple[int, int]), kind(int | Literal["auto"])
    ('a number', '2 whole numbers', 'a whole number or auto')
    """
    hint = _plain(hint)
    items = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(kind, items))
    if get_origin(hint) is Literal and len(items) == 1:
        return str(items[0])
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, items))}"
    if get_origin(hint) is tuple and items[-1] is Ellipsis:
        return kind(items[0])
    if get_origin(hint) is tuple and len(set(items)) == 1:
        return f"{len(items)} {PLURALS.get(items[0], 'values')}"
    if get_origin(hint) is tuple:
        return " and ".join(map(kind, items))
    return KINDS.get(hint, "another value")


def unbroken(docstring: str | None) -> str:
    """Return a docstring in which the description of each argument is one line, for --help to wrap.

    >>> print(unbroken('''Fit.
    ...
    ...     Args:
    ...         beta: Exponent of
    ...             the law.
    ... '''))
    Fit.
    <BLANKLINE>
    Args:
        beta: Exponent of the law.
    """
    text, heading, arguments = inspect.cleandoc(docstring or "").partition("\n\nArgs:\n")
    return text + heading + re.sub(r"\n {8,}(?=\S)", " ", arguments)


def check_empty_paths(command: Callable[..., Any], given: Sequence[str]) -> None:
    """Raise ValueError for a path of no letters, as of an unset variable of a shell.

    Python takes it for the working folder.
    """
    import tyro

    hints = get_type_hints(getattr(command, "func", command), include_extras=True)
    paths = [name for name, hint in hints.items() if _holds_paths(_plain(hint))]
    flags = {f"--{name.replace('_', '-')}": name for name in paths}
    positional = [
        name for name in paths if tyro.conf.Positional in getattr(hints[name], "__metadata__", ())
    ]
    for before, word in pairwise(["", *given]):
        name, is_joined, value = word.replace("_", "-").partition("=")
        empty = None
        if name in flags and is_joined and not value:
            empty = name
        elif not word and before in flags:
            empty = before
        elif not word and positional and not before.startswith("--"):
            empty = positional[0]
        if empty:
            raise ValueError(f"{empty} must be a path, got ''; '.' is the working folder")


def check_given_values(command: Callable[..., Any], given: Sequence[str]) -> None:
    """Raise ValueError for an option of several values that is given without any.

    To tyro it is an empty list, as where the option is left out. One whose type has None besides
    may stand alone, which then differs from leaving it out.
    """
    hints = get_type_hints(getattr(command, "func", command), include_extras=True)
    lists = {name: hint for name, hint in hints.items() if _is_list(hint)}
    flags = {f"--{_called(name, hint).replace('_', '-')}": hint for name, hint in lists.items()}
    for word, following in pairwise([*given, "--"]):
        hint = flags.get(word.replace("_", "-"))
        ends_here = following.startswith("--") and following != "--help"
        if hint is not None and ends_here:
            raise ValueError(f"{word} must be {kind(hint)}, got nothing; leave it out instead")


def _is_list(hint: Any) -> bool:
    """True for the type of any number of values, without None."""
    if get_origin(hint) is Annotated:
        return _is_list(get_args(hint)[0])
    return get_origin(hint) is tuple and get_args(hint)[-1] is Ellipsis


def _holds_paths(hint: Any) -> bool:
    """True for a path, and for what may be one or holds some."""
    return hint is Path or any(_holds_paths(one) for one in get_args(hint))


def mistake(message: str, command: Callable[..., Any]) -> str | None:
    """Return a message of tyro as `--option must be ..., got ...`, for an option of `command`.

    None for a message of another kind.
    """
    absent = ABSENT.match(message)
    if absent:
        return f"{absent['name']} must be given: {absent['about']}"
    found = UNREADABLE.match(message) or UNKNOWN.match(message) or MISSING.match(message)
    if found is None:
        return None
    name = found["option"].removeprefix("--").replace("-", "_")
    hints = get_type_hints(getattr(command, "func", command), include_extras=True)
    called = {_called(own, hint): hint for own, hint in hints.items()}
    hint = called.get(name)
    if hint is None:
        return None
    got = " ".join(QUOTED.findall(found["reason"])) or "nothing"
    told = f"{found['option']} must be {kind(hint)}, got {got}"
    if got == "nothing" and _plain(hint) is str:
        told += f"; {found['option']}=TEXT takes one that begins with -"
    return told
