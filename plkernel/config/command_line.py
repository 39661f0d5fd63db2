"""Commands that take a spec: the file first, then options, which may replace any field of the spec."""

import copy
import difflib
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from plkernel.common import cli
from plkernel.config.reading import Check, find, load_values, parse_spec
from plkernel.config.study import Spec

NOT_BY_OPTION = ("factors", "levels", "hypotheses", "gates")
HINT = """SPEC: a file or a name ({specs}). Every field of the spec is an option too; the reference of the documentation
lists them.

Example: {prog} quick --train.steps 200"""


def main(command: Callable[..., Any], args: Sequence[str] | None = None, check: Check | None = None) -> None:
    """Run `command(spec, ...)` as `SPEC [OPTIONS]`; exit 2 with one line on bad input.

    An option such as --train.steps 200 replaces the value of that field in the file; the spec is then checked as a
    whole, every condition also by `check`. The option --trust-code of the command is consent to the code in the spec.
    """
    given = list(sys.argv[1:] if args is None else args)
    prog, own = f"{cli.program()} SPEC", functools.partial(command, None)

    def run() -> None:
        if {"-h", "--help"} & set(given):
            hint = HINT.format(specs=cli.program("plkernel.specs"), prog=cli.program())
            cli.parse(own, ["--help"], prog, hint)
        if not given or given[0].startswith("-"):
            raise ValueError(f"the spec comes first: {prog} [OPTIONS], got {repr(given[0]) if given else 'nothing'}")
        path = find(given[0])
        if path.is_dir():
            raise ValueError(f"spec {path}: is a folder; name a TOML file, or the spec.json of a study")
        call, rest = cli.parse(own, given[1:], prog, whole=False)
        values, origin = replaced(load_values(path), rest, call.keywords), f"{path}{' with its options' * bool(rest)}"
        command(parse_spec(values, origin, check, call.keywords.get("trust_code", False)), **call.keywords)

    cli.report_errors(run)


def replaced(values: dict[str, Any], tokens: Sequence[str], others: Iterable[str] = ()) -> dict[str, Any]:
    """Return the values of a spec with the fields that options name replaced, by texts that pydantic converts.

    others: names that a misspelt option may mean as well.
    """
    changed, groups, equals = copy.deepcopy(values), list[tuple[str, list[str]]](), "="
    for token in tokens:
        if re.match(r"-[^\d.]", token):  # no negative number
            name, equals, text = token.partition("=")
            groups.append((name, [text] if equals else []))
        elif equals:  # nothing follows --NAME=VALUE
            raise ValueError(f"{token!r} belongs to no option; see --help")
        else:
            groups[-1][1].append(token)
    known = {".".join(place).replace("_", "-"): (place, types) for place, types in fields(values.get("arms") or ())}
    for token, given in groups:
        name = token.lstrip("-").replace("_", "-")
        if name not in known:
            ends = [one for one in known if one.rpartition(".")[2] == name][:3]
            close = ends or difflib.get_close_matches(name, [*known, *(one.replace("_", "-") for one in others)], n=1)
            hint = f"did you mean {' or '.join(f'--{one}' for one in close)}?" if close else "--help lists the options"
            raise ValueError(f"unknown option {token}; {hint}")
        (*heads, last), types = known[name]
        table = changed
        for one in heads:
            table[one] = table = table[one] if isinstance(table.get(one), dict) else {}
        table[last] = _value(name, types, given)
    return changed


def _guessed(text: str) -> Any:
    """Return a value of a table, a number if it reads as one."""
    with suppress(ValueError):
        return json.loads(text)
    return text


def _value(name: str, types: set[str], given: list[str]) -> Any:
    """Return the values after an option: a text, a list, or a table from pairs of a name and a value."""
    wanted = "one value"
    if given == ["None"] and "null" in types:
        return None
    if "array" in types:
        return given
    if "object" in types:
        if given and len(given) % 2 == 0:
            return dict(zip(given[::2], map(_guessed, given[1::2]), strict=True))
        wanted = "pairs of a name and a value"
    elif len(given) == 1 or (not given and "boolean" in types):
        return given[0] if given else True
    raise ValueError(f"--{name}: expected {wanted}, got {' '.join(given) or 'nothing'}")


def fields(arms: Sequence[str]) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Yield the place of every field that an option can replace, and its types in the JSON schema."""
    whole = Spec.model_json_schema()

    def of(section: str, *head: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
        for name, schema in whole["$defs"].get(section, whole)["properties"].items():
            table = {"model": "ModelSpec", "corpus": "CorpusSpec"}.get(name, schema.get("$ref", "").rpartition("/")[2])
            if name == "arms":
                for arm in arms:
                    yield from of("Arm", name, arm)
            elif table:
                yield from of(table, *head, name)
            elif name not in NOT_BY_OPTION:
                yield (*head, name), {form.get("type", "string") for form in schema.get("anyOf", [schema])}

    return of("")
