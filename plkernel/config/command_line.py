"""Commands that take a spec: the file first, then options, which may replace any field of the spec."""

import difflib
import functools
import inspect
import json
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from plkernel.common import cli
from plkernel.config.reading import Check, Place, find, load_spec, load_values, spec_of
from plkernel.config.schema import Arm, CorpusSpec, ModelSpec, Section, kinds_of
from plkernel.config.study import Spec

HELP_ALL = "--help-all"
TABLES: dict[str, type[Section]] = {"model": ModelSpec, "corpus": CorpusSpec}  # options of an arm that are tables
NOT_BY_OPTION = ("factors", "levels", "hypotheses", "gates")


def main(command: Callable[..., Any], args: Sequence[str] | None = None, check: Check | None = None) -> None:
    """Run `command(spec, ...)` as `SPEC [OPTIONS]`; exit 2 with one line on bad input.

    An option such as --train.steps 200 replaces the value of that field in the file; the spec is then checked as a
    whole, every condition also by `check`. The option --trust-code of the command is consent to the code in the spec.
    """
    given = list(sys.argv[1:] if args is None else args)
    cli.report_errors(lambda: _run(command, given, f"{cli.program()} SPEC", check))


def _run(command: Callable[..., Any], given: list[str], prog: str, check: Check | None) -> None:
    own = _without_spec(command)
    if {"-h", "--help", HELP_ALL} & set(given):
        return _help(own, prog, given)
    if not given or given[0].startswith("-"):
        raise ValueError(f"the spec comes first: {prog} [OPTIONS], got {repr(given[0]) if given else 'nothing'}")
    path = find(given[0])
    if path.is_dir():
        raise ValueError(f"spec {path}: is a folder; name a TOML file, or the spec.json of a study")
    bare = [f"--{arg.removeprefix('--spec.')}" if arg.startswith("--spec.") else arg for arg in given[1:]]
    call, rest = cli.parsed_in_part(own, bare, prog)
    values = load_values(path)
    changes = overrides(rest, [name for name in values.get("arms") or ()], list(inspect.signature(own).parameters))
    options: dict[str, Any] = call()
    command(spec_of(values, path, changes, check, bool(options.get("trust_code"))), **options)


def overrides(tokens: Sequence[str], arms: Sequence[str], others: Sequence[str] = ()) -> dict[Place, Any]:
    """The fields of a spec that options replace, by place, as texts that pydantic converts.

    arms: names of the arms in the spec. others: names that a misspelt option may mean as well. Raises ValueError for an
    unknown option and for a wrong number of values.
    """
    known = {_dashed(".".join(place)): (place, kind) for _, place, kind, _ in fields(Spec, arms)}
    changes, rest = dict[Place, Any](), list(tokens)
    while rest:
        token, equals, value = rest.pop(0).partition("=")
        if not _is_option(token):
            raise ValueError(f"{token!r} belongs to no option; see --help")
        given = [value] if equals else []
        while not equals and rest and not _is_option(rest[0]):
            given.append(rest.pop(0))
        name = _dashed(token.lstrip("-"))
        positive = name.replace("no-", "", 1) if name.rpartition(".")[2].startswith("no-") else name
        if positive != name and bool in kinds_of(known.get(positive, ("", None))[1]) and not given:
            name, given = positive, ["false"]
        if name not in known:
            ends = [one for one in known if one.rpartition(".")[2] == name][:3]
            close = ends or difflib.get_close_matches(name, [*known, *map(_dashed, others)], n=1)
            hint = f"did you mean {' or '.join(f'--{one}' for one in close)}?" if close else "--help lists the options"
            raise ValueError(f"unknown option {token}; {hint}")
        place, kind = known[name]
        changes[place] = _value(name, kind, given)
    return changes


def _value(name: str, kind: Any, given: list[str]) -> Any:
    """The values after an option of type `kind`: a text, a list, or a table from pairs of a name and a value."""
    kinds = kinds_of(kind)
    if given == ["None"] and type(None) in kinds:
        return None
    if dict in kinds and given and len(given) % 2 == 0:
        guess = _guessed if Any in kinds else str
        return {key: guess(text) for key, text in zip(given[::2], given[1::2], strict=True)}
    if tuple in kinds:
        return given
    if bool in kinds and not given:
        return True
    if dict in kinds or len(given) != 1:
        wanted = "pairs of a name and a value" if dict in kinds else f"one value, {metavar(kind)}"
        raise ValueError(f"--{name}: expected {wanted}, got {' '.join(given) or 'nothing'}")
    return given[0]


def _guessed(text: str) -> Any:
    """A number, true or false where the text is one, or else the text."""
    try:
        return json.loads({"True": "true", "False": "false"}.get(text, text))
    except ValueError:
        return text


def _is_option(token: str) -> bool:
    """True where a token begins an option: a dash with a name, which a negative number has not."""
    return token.startswith("-") and len(token) > 1 and not (token[1].isdigit() or token[1] == ".")


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def fields(
    section: type[Section], arms: Sequence[str], head: Place = ()
) -> Iterator[tuple[type[Section], Place, Any, str]]:
    """Every field that an option can replace: its section, its place, its type, and its description."""
    for name, field in section.model_fields.items():
        place, kind = (*head, name), field.annotation
        inner = TABLES.get(name) if section is Arm else kind
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from fields(inner, arms, place)
        elif place == ("arms",):
            for arm in arms:
                yield from fields(Arm, arms, (*place, arm))
        elif name not in NOT_BY_OPTION:
            yield section, place, kind, " ".join((field.description or "").split())


def _without_spec(command: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """A function with the options of `command` but its spec, which gives them back by name."""

    @functools.wraps(command)
    def own(**options: Any) -> dict[str, Any]:
        return options

    signature = inspect.signature(command)
    others = [parameter for name, parameter in signature.parameters.items() if name != "spec"]
    own.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    own.__annotations__ = {name: kind for name, kind in command.__annotations__.items() if name != "spec"}
    del own.__wrapped__  # type: ignore[attr-defined]
    return own


def _help(own: Callable[..., Any], prog: str, given: Sequence[str]) -> None:
    """Print the command's own options, and with --help-all all fields of the spec, of a file with their values."""
    about = f"SPEC: a file or a name ({cli.program('plkernel.specs')}). Fields are options too: {HELP_ALL} lists them."
    example = f"Example: {prog.removesuffix('SPEC')}quick --train.steps 200"
    try:
        cli.parsed(own, ["--help"], prog, f"{about}\n\n{example}")
    finally:
        if HELP_ALL in given:
            path = next((Path(arg) for arg in given if not arg.startswith("-")), None)
            print("\n".join(listing(None if path is None else load_spec(path))))


def listing(spec: Spec | None = None) -> Iterator[str]:
    """The lines that --help-all adds: every field as an option, section by section; with a spec also its values."""
    last = None
    for section, place, kind, meaning in fields(Spec, ["NAME"]):
        if place[:-1] != last:
            last = place[:-1]
            yield f"\n{(inspect.getdoc(section) or '').partition(chr(10))[0]}"
        now = "" if spec is None or place[0] == "arms" else f" (now {functools.reduce(getattr, place, spec)!r})"
        yield f"  --{_dashed('.'.join(place))} {metavar(kind)}{now}"
        yield fill(meaning, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)


def metavar(kind: Any) -> str:
    """The values that an option of this type takes, in a list of options: INT, {a,b}, FLOAT ..."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return metavar(inner[0])
    if origin is Literal:
        return f"{{{','.join(map(str, inner))}}}"
    if origin is tuple:
        return f"{metavar(inner[0])} ..."
    if origin is dict:
        return f"NAME {metavar(inner[1])} ..."
    if origin in (Union, types.UnionType):
        return "|".join(metavar(one) for one in inner if one is not type(None))
    return {int: "INT", float: "FLOAT", bool: "{true,false}", str: "TEXT"}.get(kind, "VALUE")
