"""Commands that take a spec: the file first, then options, which may replace any field of the spec."""

import copy
import difflib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from textwrap import fill
from typing import Any

from plkernel.common import cli
from plkernel.config.reading import Check, find, load_spec, load_values, parse_spec
from plkernel.config.study import Spec

HELP_ALL = "--help-all"
NOT_BY_OPTION = ("factors", "levels", "hypotheses", "gates")
VALUES = {"integer": "INT", "number": "FLOAT", "boolean": "{true,false}", "string": "TEXT"}
VALUES |= {"array": "VALUE ...", "object": "NAME VALUE ..."}
Place = tuple[str, ...]
"""Where a field stands in a spec: ("train", "steps")."""
Schema = dict[str, Any]


def main(command: Callable[..., Any], args: Sequence[str] | None = None, check: Check | None = None) -> None:
    """Run `command(spec, ...)` as `SPEC [OPTIONS]`; exit 2 with one line on bad input.

    An option such as --train.steps 200 replaces the value of that field in the file; the spec is then checked as a
    whole, every condition also by `check`. The option --trust-code of the command is consent to the code in the spec.
    """
    given = list(sys.argv[1:] if args is None else args)
    prog, own = f"{cli.program()} SPEC", functools.partial(command, None)

    def run() -> None:
        if {"-h", "--help", HELP_ALL} & set(given):
            return _help(own, prog, given)
        if not given or given[0].startswith("-"):
            raise ValueError(f"the spec comes first: {prog} [OPTIONS], got {repr(given[0]) if given else 'nothing'}")
        path = find(given[0])
        if path.is_dir():
            raise ValueError(f"spec {path}: is a folder; name a TOML file, or the spec.json of a study")
        call, rest = cli.parse(own, given[1:], prog, whole=False)
        values = replaced(load_values(path), rest, list(call.keywords))
        origin = f"{path} with its options" if rest else str(path)
        command(parse_spec(values, origin, check, call.keywords.get("trust_code", False)), **call.keywords)

    cli.report_errors(run)


def replaced(values: dict[str, Any], tokens: Sequence[str], others: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of a spec with the fields that options name replaced, by texts that pydantic converts.

    others: names that a misspelt option may mean as well. Raises ValueError for an unknown option and for a wrong
    number of values.
    """
    known = {_dashed(".".join(place)): (place, schema) for _, place, schema in fields([*(values.get("arms") or ())])}
    changed, rest = copy.deepcopy(values), list(tokens)
    while rest:
        token, equals, text = rest.pop(0).partition("=")
        if not _is_option(token):
            raise ValueError(f"{token!r} belongs to no option; see --help")
        given = [text] if equals else []
        while not equals and rest and not _is_option(rest[0]):
            given.append(rest.pop(0))
        name = _dashed(token.lstrip("-").removeprefix("spec."))
        head, dot, last = name.rpartition(".")
        positive = f"{head}{dot}{last.removeprefix('no-')}"
        if name != positive in known and "boolean" in _types(known[positive][1]) and not given:
            name, given = positive, ["false"]
        if name not in known:
            ends = [one for one in known if one.rpartition(".")[2] == name][:3]
            close = ends or difflib.get_close_matches(name, [*known, *map(_dashed, others)], n=1)
            hint = f"did you mean {' or '.join(f'--{one}' for one in close)}?" if close else "--help lists the options"
            raise ValueError(f"unknown option {token}; {hint}")
        (*heads, last), schema = known[name]
        table = changed
        for one in heads:
            table[one] = table = table[one] if isinstance(table.get(one), dict) else {}
        table[last] = _value(name, schema, given)
    return changed


def _value(name: str, schema: Schema, given: list[str]) -> Any:
    """Return the values after an option: a text, a list, or a table from pairs of a name and a value."""

    def guessed(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return text

    types = _types(schema)
    if given == ["None"] and "null" in types:
        return None
    if "object" in types and given and len(given) % 2 == 0:
        return dict(zip(given[::2], map(guessed, given[1::2]), strict=True))
    if "array" in types:
        return given
    if "boolean" in types and not given:
        return True
    if "object" in types or len(given) != 1:
        wanted = "pairs of a name and a value" if "object" in types else f"one value, {metavar(schema)}"
        raise ValueError(f"--{name}: expected {wanted}, got {' '.join(given) or 'nothing'}")
    return given[0]


def _is_option(token: str) -> bool:
    """Return True where a token begins an option: a dash with a name, which a negative number has not."""
    return token.startswith("-") and len(token) > 1 and not (token[1].isdigit() or token[1] == ".")


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _types(schema: Schema) -> set[str]:
    return {form.get("type", "string") for form in schema.get("anyOf", [schema])}


def metavar(schema: Schema) -> str:
    """Return the values that an option of this JSON schema takes: INT, {a,b}, VALUE ..."""
    forms = [form for form in schema.get("anyOf", [schema]) if form.get("type") != "null"]
    choices = (form.get("enum") or [form["const"]] if {"enum", "const"} & form.keys() else () for form in forms)
    texts = (
        f"{{{','.join(some)}}}" if some else VALUES[form["type"]] for some, form in zip(choices, forms, strict=True)
    )
    return "|".join(texts)


def fields(arms: Sequence[str]) -> Iterator[tuple[str, Place, Schema]]:
    """Yield every field that an option can replace: a line about its section, its place, and its JSON schema."""
    whole = Spec.model_json_schema()

    def of(section: Schema, head: Place) -> Iterator[tuple[str, Place, Schema]]:
        for name, schema in section["properties"].items():
            place = (*head, name)
            table = {"model": "ModelSpec", "corpus": "CorpusSpec"}.get(name, schema.get("$ref", "/").rpartition("/")[2])
            if place == ("arms",):
                for arm in arms:
                    yield from of(whole["$defs"]["Arm"], (*place, arm))
            elif table:
                yield from of(whole["$defs"][table], place)
            elif name not in NOT_BY_OPTION:
                yield section["description"].partition("\n")[0], place, schema

    return of(whole, ())


def _help(own: functools.partial[Any], prog: str, given: Sequence[str]) -> None:
    """Print the command's own options, and with --help-all all fields of the spec, of a file with their values."""
    hint = f"SPEC: a file or a name ({cli.program('plkernel.specs')}). Fields are options too: {HELP_ALL} lists them."
    try:
        cli.parse(own, ["--help"], prog, f"{hint}\n\nExample: {prog.removesuffix('SPEC')}quick --train.steps 200")
    finally:
        path, last = next((arg for arg in given if not arg.startswith("-")), None), None
        spec = load_spec(path) if path and HELP_ALL in given else None
        for about, place, schema in fields(["NAME"]) if HELP_ALL in given else ():
            if place[:-1] != last:
                last = place[:-1]
                print(f"\n{about}")
            now = "" if spec is None or place[0] == "arms" else f" (now {functools.reduce(getattr, place, spec)!r})"
            print(f"  --{_dashed('.'.join(place))} {metavar(schema)}{now}")
            text = " ".join(schema.get("description", "").split())
            print(fill(text, 100, initial_indent=" " * 6, subsequent_indent=" " * 6))
