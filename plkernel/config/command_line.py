"""Commands that take a spec: the file first, then options, which may replace any field of the spec."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from plkernel.common import cli, flags
from plkernel.config.arm import Arm
from plkernel.config.corpus import CorpusSpec
from plkernel.config.model import ModelSpec, Section
from plkernel.config.named import find
from plkernel.config.reading import Check, Place, load_spec, load_values, spec_of
from plkernel.config.study import Spec

HELP_ALL = "--help-all"
EXAMPLE = "quick"
WIDTH = 100
TABLES: dict[str, type[Section]] = {"model": ModelSpec, "corpus": CorpusSpec}  # options of an arm that are tables
CONSENT = "trust_code"
"""The option of a command by which the person says that the code which the spec names may run."""
NOT_BY_OPTION = ("factors", "levels", "hypotheses", "gates")


def main(command: Callable[..., Any], args: Sequence[str] | None = None, check: Check | None = None) -> None:
    """Run `command(spec, ...)` as `SPEC [OPTIONS]`; exit 2 with one line on bad input.

    An option such as --train.steps 200 replaces the value of that field in the file; the spec is then checked as a
    whole, every condition also by `check`.
    """
    given = list(sys.argv[1:] if args is None else args)
    cli.report_errors(lambda: _run(command, given, f"{cli.program()} SPEC", check))


def _run(command: Callable[..., Any], given: list[str], prog: str, check: Check | None) -> None:
    own = _without_spec(command)
    if any(arg in (*cli.HELP, HELP_ALL) for arg in given):
        _help(own, prog, given)
    if not given or given[0].startswith("-"):
        raise ValueError(f"the spec comes first: {prog} [OPTIONS], got {repr(given[0]) if given else 'nothing'}")
    path = find(given[0])
    if path.is_dir():
        raise ValueError(f"spec {path}: is a folder; name a TOML file, or the spec.json of a study")
    values = load_values(path)
    arms = [name for name in values.get("arms") or () if isinstance(name, str)]
    places = {flags.dashed(".".join(place)): (place, kind) for _, place, kind, _ in fields(Spec, arms)}
    bare = [f"--{arg.removeprefix('--spec.')}" if arg.startswith("--spec.") else arg for arg in given[1:]]
    known = [*flags.flags_of(own), *(flags.Flag(name, kind) for name, (_, kind) in places.items())]
    found = flags.read(bare, known)
    changes = {places[name][0]: value for name, value in found.items() if name in places}
    options = {name.replace("-", "_"): value for name, value in found.items() if name not in places}
    command(spec_of(values, path, changes, check, bool(options.get(CONSENT))), **options)


def fields(
    section: type[Section], arms: Sequence[str], head: Place = ()
) -> Iterator[tuple[type[Section], Place, Any, str]]:
    """Every field that an option can replace: its section, where it stands, its type, and what it means."""
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
    """What takes the options of `command` itself, all but its spec, and gives them back."""

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
    """Print the command's own options, and on request all fields of the spec: of the file, where one is given."""
    about = (inspect.getdoc(own) or "").partition("\n\nArgs:")[0]
    more = f"SPEC: a file or a name ({cli.program('plkernel.specs')}). Fields are options too: {HELP_ALL} lists them."
    example = f"Example: {prog.removesuffix('SPEC')}{EXAMPLE} --train.steps 200"
    try:
        cli.parsed(own, ["--help"], prog, "\n\n".join([about, more, example]))
    finally:
        if HELP_ALL in given:
            path = next((Path(arg) for arg in given if not arg.startswith("-")), None)
            print("\n".join(listing(None if path is None else load_spec(path))))


def listing(spec: Spec | None = None) -> Iterator[str]:
    """The lines that --help-all adds: every field as an option, section by section; with a spec also its values."""
    found = list(fields(Spec, ["NAME"]))
    for head in dict.fromkeys(place[:-1] for _, place, _, _ in found):
        members = [field for field in found if field[1][:-1] == head]
        yield f"\n{(inspect.getdoc(members[0][0]) or '').partition(chr(10))[0]}"
        for _, place, kind, meaning in members:
            yield f"  --{flags.dashed('.'.join(place))} {flags.metavar(kind)}{_value(spec, place)}"
            yield fill(meaning, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _value(spec: Spec | None, place: Place) -> str:
    """What the field is in the spec; nothing for those of arms, which have one each."""
    if spec is None or place[0] == "arms":
        return ""
    return f" (now {functools.reduce(getattr, place, spec)!r})"
