"""Layers of somebody's own: which parameters are decays, and how their rates follow from these.

A statement gives a pattern of parameter names the name of a form of `plkernel.apply`, or in Python
any function. A file of TOML can name forms alone: nothing in it is executed.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np

from plkernel.analysis.parametrisations import ABOVE_ZERO, FORMS
from plkernel.common import cli
from plkernel.common.files import brief, check_regular, parse_toml, shown
from plkernel.decays.families import (
    Family,
    Floats,
    Given,
    in_order,
    of_parametrised,
    plain_name,
    rate_of,
)

Decays = Mapping[str, Any]
"""By pattern of a parameter's name: the name of a form; a function from tensors to decays; or a
table of `form` and what it needs beside, by pattern or as a number.
"""
FORM = "form"
"""The key of a form in the table of a statement."""
MAIN = "x"
"""The name in a form of the parameter that a pattern matches."""
_COMPILED_OR_SHARDED = "(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)"
WRAPPER = re.compile(rf"^(?:(?:module|{_COMPILED_OR_SHARDED})\.)+|(?<=\.){_COMPILED_OR_SHARDED}\.")
"""Parts that torch.compile, DDP, FSDP and activation checkpointing add to the names of tensors.

DDP adds `module`, a word that others use too: it counts around the whole model alone.
"""
EXAMPLE = '{"*.decay": "sigmoid"}'
"""A value of `decays`, for messages."""
TABLE = "decays"
"""The table of a TOML file."""
LIKELY = re.compile(
    r"decays?|rates?|lambdas?|nu|tau|gamma|alpha|forget|time|timescales?|half|lives|life|log|A|a"
    r"|dt|eig|eigenvalues?|poles?",
    re.IGNORECASE,
)
"""Words in the names of parameters that may be decays."""
NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A part of a name that is a number."""
PARAMETRIZATIONS = "parametrizations"
"""A word in patterns that are meant for what a parametrization makes a parameter of."""
GUESS = "sigmoid"
"""The form that a suggestion has, which a name of a parameter does not tell."""
MOST_SHOWN = 3
"""Patterns that a suggestion has, at most."""
LEVELS = ("theta", "delta")
"""Last parts of the names of the parameters of `plkernel.models.spectrum.Ordered`."""


class Misfit(ValueError):
    """Numbers that do not go together as stated, or a function that gives no decays."""


class UnknownDecays(ValueError):
    """No decays are known under these names of tensors."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names = names


@dataclass(frozen=True)
class Statement:
    """The form of decays of the parameters whose names match a pattern.

    form    name of a form, or a function
    beside  patterns or numbers of what the form needs beside, by its name there
    """

    pattern: str
    form: str | Callable[..., Any]
    beside: Mapping[str, str | float]

    @property
    def formula(self) -> str:
        """The decay a of the parameter that the pattern matches, in words."""
        if not isinstance(self.form, str):
            return f"a = f({', '.join((MAIN, *self.beside))}), a function"
        form = FORMS[self.form]
        for option, words in form.takes.items():
            if option in self.beside:
                return f"a = {words}"
        return f"a = {form.words}"

    @property
    def matches(self) -> re.Pattern[str]:
        """The pattern as an expression with a group for each star.

        All stars but the last take as little as they can, and are not tried again: a pattern of
        many stars takes no longer than its length times that of a name.
        """
        first, *others = map(re.escape, self.pattern.split("*"))
        if not others:
            return re.compile(first)
        *middle, last = others
        stars = "".join(f"(?>(.*?){text})" for text in middle)
        return re.compile(f"{first}{stars}(.*){last}", re.DOTALL)

    def same_as(self, other: "Statement") -> bool:
        """True if both state the same of a parameter that both match."""
        return self.form == other.form and self.beside == other.beside


def statements(decays: Decays | None) -> list[Statement]:
    """The statements of `decays`; none for None.

    Raises ValueError for what are no forms by pattern.
    """
    if decays is None:
        return []
    if not isinstance(decays, Mapping) or not decays:
        raise ValueError(
            f"decays must be forms by pattern of parameter names, such as {EXAMPLE}, got"
            f" {shown(decays)}"
        )
    return [_statement(pattern, value) for pattern, value in decays.items()]


def _statement(pattern: Any, value: Any) -> Statement:
    """The statement of one pattern; ValueError for anything but a form or a table with one."""
    if not isinstance(pattern, str) or not pattern:
        raise ValueError(
            f"decays must have patterns of parameter names as keys, such as '*.decay', got"
            f" {shown(pattern)}"
        )
    table = dict(value) if isinstance(value, Mapping) else {FORM: value}
    form = table.pop(FORM, None)
    where = f"decays {pattern!r}"
    if isinstance(form, str):
        _check_form(where, form, table, pattern)
    elif not callable(form):
        raise ValueError(
            f"{where} must be the name of a form, a function, or a table with {FORM!r}, got"
            f" {shown(value)}; forms are {', '.join(FORMS)}"
        )
    for role, one in table.items():
        _check_beside(f"{where}: {role}", role, one, pattern)
    return Statement(pattern, form, table)


def _check_form(where: str, form: str, beside: Mapping[str, Any], pattern: str) -> None:
    """ValueError for an unknown form, and for what it does not take or lacks."""
    if form not in FORMS:
        raise ValueError(
            f"{where} must be the name of a form, got {form!r}; {cli.nearest(form, FORMS)}; in"
            f" Python, as in plkernel.inspect(path, decays={{{pattern!r}: f}}), a function f from x"
            " to a is one too"
        )
    needs = FORMS[form].needs
    takes = FORMS[form].takes
    missing = [one for one in needs if one not in beside]
    if missing:
        words = ", ".join(f'{one} = "*.{one}"' for one in missing)
        raise ValueError(
            f"{where} must give {' and '.join(missing)}, which the form {form!r} needs, got"
            f' {shown(form)} alone; write {{ {FORM} = "{form}", {words} }} with the name of yours'
        )
    unknown = [one for one in beside if one not in (*needs, *takes)]
    if unknown:
        allowed = ", ".join((FORM, *needs, *takes))
        raise ValueError(f"{where} must have no keys but {allowed}, got {shown(unknown[0])}")


def _check_beside(where: str, role: Any, value: Any, pattern: str) -> None:
    """ValueError unless it is a finite number, or a pattern that `pattern` fills."""
    if not isinstance(role, str) or not role.isidentifier() or role == MAIN:
        raise ValueError(
            f"{where} must be the name of an argument other than {MAIN!r}, got {shown(role)}"
        )
    if isinstance(value, str) and value:
        if value.count("*") > pattern.count("*"):
            raise ValueError(
                f"{where} must have no more stars than {pattern!r}, got {value!r}; each stands for"
                " what the star in that place stands for"
            )
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not isfinite(value):
        raise ValueError(
            f"{where} must be a pattern of parameter names or a finite number, got {shown(value)}"
        )
    if role in ABOVE_ZERO and value <= 0:
        raise ValueError(f"{where} must be above 0, got {value:g}")


def read_statements(path: Path) -> dict[str, Any]:
    """The `decays` of a TOML file; ValueError, headed by it, for any other content."""
    check_regular(path, "decays ")
    content = parse_toml(path.read_bytes(), f"decays {path}")
    others = [name for name in content if name != TABLE]
    if others or not isinstance(content.get(TABLE), dict):
        raise ValueError(
            f"decays {path}: must hold a table [{TABLE}] and nothing else, got"
            f" {', '.join(content) or 'nothing'}; write [{TABLE}] and below it"
            ' "*.decay" = "sigmoid"'
        )
    found: dict[str, Any] = content[TABLE]
    try:
        statements(found)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return found


def own_layers(
    names: Sequence[str], stated: Iterable[Statement], head: str = ""
) -> list[tuple[str, Family, dict[str, str]]]:
    """Module, family and tensors of every parameter that a statement matches, in order of names.

    head: begins all names, and is no part of what patterns are held against. They are held against
    the names without those of wrappers too, such as that of torch.compile around a layer. Where a
    parameter is parametrised, patterns are held against its name, not against that of what is
    stored, unless they have the word PARAMETRIZATIONS.

    Raises ValueError for a pattern that matches nothing, a parameter that two patterns give
    different forms, a name beside it that is not there, and a parametrised one that a file has
    only before it is made.
    """
    as_they_are = {name.removeprefix(head): name for name in names}
    without_wrappers = {unwrapped(name): full for name, full in as_they_are.items()}
    # The latter come first: their stars fill patterns beside them wherever those tensors are.
    new = {name: full for name, full in without_wrappers.items() if name not in as_they_are}
    known = new | as_they_are
    stated = list(stated)
    _check_parametrised(stated, known)
    choices = [name for name in without_wrappers if not _is_stored_of(name, known)]
    taken: dict[str, Statement] = {}
    layers = []
    for statement in stated:
        found = _matches(statement, known)
        if not found:
            raise ValueError(
                f"decays {statement.pattern!r} must match the name of a parameter, got none of"
                f" {len(names):,}; {cli.nearest(statement.pattern, choices)}"
            )
        for full, stars in found.items():
            before = taken.setdefault(full, statement)
            if before is statement:
                beside = _beside(statement, stars, known)
                module = full.rpartition(".")[0]
                family = _family(statement, full, list(beside))
                layers.append((module, family, {MAIN: full, **beside}))
            elif not before.same_as(statement):
                raise ValueError(
                    f"decays must give a parameter one form, got {before.formula!r} by"
                    f" {before.pattern!r} and {statement.formula!r} by {statement.pattern!r} for"
                    f" {full.removeprefix(head)}; make the patterns narrower"
                )
    return layers


def _matches(statement: Statement, known: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """By full name, in order, what the stars stand for in the first of its names that matches.

    known: the full name of a tensor by each of its names, the preferred ones first.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, full in known.items():
        if _is_stored_of(name, known) and PARAMETRIZATIONS not in statement.pattern:
            continue
        match = statement.matches.fullmatch(name)
        if match:
            found.setdefault(full, match.groups())
    return {full: found[full] for full in sorted(found, key=in_order)}


def _is_stored_of(name: str, known: Collection[str]) -> bool:
    """True for what a parametrization makes a parameter of, where that is known by its own name."""
    plain = plain_name(name)
    return plain != name and plain in known


def _check_parametrised(stated: Sequence[Statement], known: Collection[str]) -> None:
    """ValueError for a parameter that a pattern matches, and that a file has before it is made."""
    for name in known:
        plain = plain_name(name)
        if plain in known:
            continue
        for statement in stated:
            is_meant = statement.matches.fullmatch(plain)
            if is_meant and not any(one.matches.fullmatch(name) for one in stated):
                raise ValueError(
                    f"decays {statement.pattern!r} must match stored parameters, got {plain}:"
                    f" {name} {of_parametrised(plain)}, or state a form of {name}"
                )


def unwrapped(name: str) -> str:
    """The name of a tensor or of a module without those of wrappers around modules."""
    return WRAPPER.sub("", f"{name}.").removesuffix(".")


def check_levels(
    layers: Iterable[tuple[str, Family, Mapping[str, str]]],
    names: Collection[str],
    size: Callable[[str], int],
) -> None:
    """Raise ValueError where a form is stated of one of the two parameters of ordered levels.

    names: of all tensors; size: how many numbers one holds. They are known by their names, one
    number and several.
    """
    for _, family, tensors in layers:
        is_form = family.own and not family.whole
        head, dot, last = tensors.get(MAIN, "").rpartition(".")
        if not is_form or last not in LEVELS:
            continue
        theta, delta = (f"{head}{dot}{one}" for one in LEVELS)
        if theta in names and delta in names and size(theta) == 1 < size(delta):
            raise ValueError(
                f"decays {family.anchor!r} must take {theta} and {delta} together, as ordered"
                f" levels, got a form of {last} alone; {_of_levels(head)}"
            )


def _of_levels(head: str) -> str:
    """Advice on ordered levels under other names; head: the name of their module."""
    parent, _, module = head.rpartition(".")
    if module == "ordered":
        return "state nothing of them, they are known by these names"
    name = f"{parent}.ordered".removeprefix(".")
    known = " and ".join(f"{name}.{one}" for one in LEVELS)
    return f"name them {known}, or give a function of both"


def _beside(statement: Statement, stars: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    """Names of the tensors beside a parameter, by role; each star stands for what it stood for."""
    names = {}
    for role, pattern in statement.beside.items():
        if not isinstance(pattern, str):
            continue
        first, *others = pattern.split("*")
        # It may have fewer stars than the pattern of the parameter.
        filled = first + "".join(star + text for star, text in zip(stars, others, strict=False))
        if filled not in known:
            raise ValueError(
                f"decays {statement.pattern!r}: {role} must name a parameter, got {filled!r};"
                f" {cli.nearest(filled, known)}"
            )
        names[role] = known[filled]
    return names


def _family(statement: Statement, name: str, roles: Sequence[str]) -> Family:
    """The family of a statement; functions may need all of a tensor, forms never do."""
    return Family(
        name=f"own layer {statement.pattern}",
        rate=partial(_rates, statement, name),
        formula=statement.formula,
        source="as stated",
        tensors=dict.fromkeys((MAIN, *roles), ""),
        anchor=statement.pattern,
        notes=[],
        beside=[],
        without=[],
        whole=not isinstance(statement.form, str),
        own=True,
    )


def _rates(statement: Statement, name: str, given: Given) -> Floats:
    """-ln a of the statement's form, or of the decays that its function gives.

    name: of the parameter that the statement matches.
    """
    x = given[MAIN]
    numbers = {role: one for role, one in statement.beside.items() if not isinstance(one, str)}
    arrays = {role: one for role, one in given.tensors.items() if role != MAIN}
    beside = {**arrays, **numbers}
    if not isinstance(statement.form, str):
        return _called(statement, name, x, beside)
    spread = {role: _spread(role, np.asarray(one), x) for role, one in beside.items()}
    return rate_of(statement.form, x, **spread)


def _spread(role: str, values: Floats, x: Floats) -> Floats:
    """One of `values` for each number of x, in its shape.

    They are as many, one for all, one for each row, one for each column, or in a shape of as many
    dimensions that is broadcast as torch does.
    """
    if values.size == 1:
        return np.full(x.shape, values.ravel()[0])
    if _are_in_order(values.shape, x.shape):
        return values.reshape(x.shape)
    pairs = zip(values.shape, x.shape, strict=False)
    if values.ndim == x.ndim and all(held in (1, wanted) for held, wanted in pairs):
        return np.broadcast_to(values, x.shape)
    rows = x.shape[:-1]
    columns = x.shape[-1:]
    if values.size == x.size:
        raise Misfit(
            f"{role} must have the shape of the parameter, got {values.shape} for {x.shape}, which"
            " would pair its numbers with others; give a function that says which goes with which"
        )
    by_row = _are_in_order(values.shape, rows)
    by_column = _are_in_order(values.shape, columns)
    if by_row == by_column:
        raise Misfit(
            f"{role} must hold as many numbers as the parameter, one, or one for each row or"
            f" column, got {values.shape} for {x.shape}; give a function that says which goes with"
            " which"
        )
    shape = (*rows, 1) if by_row else columns
    return np.broadcast_to(values.reshape(shape), x.shape)


def _are_in_order(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """True if numbers of both shapes are as many and go together in one order.

    So they do where one shape joins neighbouring dimensions of the other, as (6,) or (6, 1) do of
    (2, 3). Of a transposed one, (3, 2), each number would go with another.
    """
    ends = [{prod(one[: place + 1]) for place in range(len(one))} | {1} for one in (shape, other)]
    is_joined = ends[0] <= ends[1] or ends[1] <= ends[0]
    return prod(shape) == prod(other) and is_joined


def _called(statement: Statement, name: str, x: Floats, beside: Mapping[str, Any]) -> Floats:
    """-ln |a| of the decays that a function gives for tensors of torch in float64.

    name: of the parameter x.
    """
    import torch

    where = f"decays {statement.pattern!r}: the function"
    tensors = {
        role: torch.tensor(one) if isinstance(one, np.ndarray) else one
        for role, one in beside.items()
    }
    assert not isinstance(statement.form, str)
    try:
        decays = statement.form(torch.tensor(x), **tensors)
    except Exception as error:  # of whatever kind a function of the user raises
        raise Misfit(f"{where} raised {type(error).__name__}: {error}") from error
    try:
        found = torch.as_tensor(decays).detach().cpu()
    except (RuntimeError, TypeError, ValueError) as error:
        raise Misfit(f"{where} must return decays a as numbers, got {brief(decays)}") from error
    if not found.numel() or found.is_meta or found.dtype is torch.bool:
        raise Misfit(
            f"{where} must return decays a as numbers, got {found.dtype} {tuple(found.shape)}"
        )
    # One channel may have several numbers, as (1, 2) for real and imaginary parts; a mean has none.
    is_of_one_channel = found.ndim > 0 and 1 in x.shape
    if found.numel() == 1 < x.size and not is_of_one_channel:
        raise Misfit(
            f"{where} must return a decay for each channel, got shape {tuple(found.shape)} for"
            f" {name} of shape {x.shape}"
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        rates: Floats = -np.log(found.abs().double().numpy())
    return rates


def suggestion(names: Iterable[str]) -> dict[str, str]:
    """Forms to begin with, by pattern, of the parameters that are likeliest to be decays."""
    every = list(names)
    likely = [name for name in every if _is_likely(name)]
    others = [name for name in every if name.rpartition(".")[2] not in ("weight", "bias")]
    patterns = dict.fromkeys(NUMBER.sub("*", name) for name in likely or others or every)
    return dict.fromkeys(list(patterns)[:MOST_SHOWN], GUESS)


def _is_likely(name: str) -> bool:
    """True if the last part of a name has a word that decays have; of a bias the part before."""
    words = plain_name(name).removesuffix(".bias").rpartition(".")[2].split("_")
    return any(LIKELY.fullmatch(word) for word in words)


def _modules_of_levels(names: Collection[str]) -> list[str]:
    """Modules, with stars for numbers, that have both parameters of ordered levels."""
    found = []
    for name in names:
        head, dot, last = name.rpartition(".")
        if last == LEVELS[0] and f"{head}{dot}{LEVELS[1]}" in names:
            found.append(NUMBER.sub("*", head))
    return list(dict.fromkeys(found))


def with_lines(error: UnknownDecays, *calls: str) -> ValueError:
    """The error with a hint at `decays` for a layer of one's own, and the lines to write as a note.

    calls: lines of Python that take `decays`.
    """
    return _told_of_levels(error, calls) or _told(error, _in_python, calls)


def with_toml(error: UnknownDecays, command: str) -> ValueError:
    """The same for a command, which takes a TOML file: the call of it without that option."""
    in_python = ["plkernel.inspect(path, decays=decays)"]
    return _told_of_levels(error, in_python) or _told(error, _in_toml, [command])


def _told(
    error: UnknownDecays,
    write: Callable[[Mapping[str, str], Sequence[str]], tuple[str, list[str]]],
    calls: Sequence[str],
) -> ValueError:
    """The error with the hint and the note that `write` makes of a suggestion and calls."""
    found = suggestion(error.names)
    if not found:
        return error
    hint, lines = write(found, calls)
    told = ValueError(f"{error}; {hint}")
    forms = (
        f"# {GUESS} is a guess, which reads a = {FORMS[GUESS].words}; write what the layer"
        f" computes: a form of {', '.join(FORMS)}, or in Python a function from x to a"
    )
    told.add_note("\n".join([*lines, forms]))
    return told


def _told_of_levels(error: UnknownDecays, calls: Sequence[str]) -> ValueError | None:
    """The error with a hint at ordered levels under other names; None where there are none.

    calls: lines of Python that take `decays`, for the note.
    """
    modules = _modules_of_levels(error.names)
    if not modules:
        return None
    head = modules[0]
    theta, delta = (f"{head}.{one}".removeprefix(".") for one in LEVELS)
    hint = f"{theta} and {delta} are named like ordered levels: {_of_levels(head)}"
    told = ValueError(f"{error}; {hint}")
    lines = [
        "# in Python, where the levels are the logarithms of rates",
        "from plkernel.analysis.parametrisations import ordered_levels",
        "decay = lambda x, delta: (-ordered_levels(x, delta).exp()).exp()",
        f'{TABLE} = {{"{theta}": {{"{FORM}": decay, "delta": "{delta}"}}}}',
        *calls,
    ]
    told.add_note("\n".join(lines))
    return told


def _in_python(found: Mapping[str, str], calls: Sequence[str]) -> tuple[str, list[str]]:
    """A hint and lines of Python."""
    pairs = ", ".join(f'"{pattern}": "{form}"' for pattern, form in found.items())
    hint = (
        f"state those of a layer of your own, as {TABLE}={{{pairs}}} if a = {FORMS[GUESS].words},"
        " else with another form of plkernel.apply, or a function from x to a"
    )
    return hint, [f"{TABLE} = {{{pairs}}}", *calls]


def _in_toml(found: Mapping[str, str], calls: Sequence[str]) -> tuple[str, list[str]]:
    """A hint, lines of a TOML file, and the call with it."""
    rows = [f'"{pattern}" = "{form}"' for pattern, form in found.items()]
    hint = (
        f"state those of a layer of your own in a file, --{TABLE} FILE.toml, such as {rows[0]} if"
        f" a = {FORMS[GUESS].words}, else with another form of plkernel.apply; in Python also with"
        " a function from x to a"
    )
    options = [f"# {call} --{TABLE} FILE.toml" for call in calls]
    return hint, [f"[{TABLE}]", *rows, *options]
