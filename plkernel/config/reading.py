"""Specs from files: found by path or name, read, their factors written out, and every arm resolved
and checked once.

On a command line the file comes first, then options, which may replace any value of the spec.

[factors] stand for one arm for every combination of their levels:

within = ["model.gain"]                            # arms are compared among themselves, gain by
gain [factors] placement = ["log-spaced", "concentrated"]         # the values of an option are its
levels "model.gain" = ["none", "ema"]                     # or [factors.NAME] LEVEL = { all options
that it stands for } [arms.quantile]                                    # beside the combinations,
once for every level of `within` placement = "quantile"

This is six arms, log-spaced_none to concentrated_ema, quantile_none and quantile_ema; each is
compared with log-spaced of its gain.
"""

import difflib
import functools
import hashlib
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from plkernel.analysis.nodes import output_std
from plkernel.common import cli
from plkernel.common.cli import existing, nearest
from plkernel.common.files import load_json, load_object, parse_toml, read_bytes, shown
from plkernel.config.condition import Condition
from plkernel.config.schema import MOST_ARMS, NODE_VALUES, Arm, Options, Section, deep_merge
from plkernel.config.study import SECTIONS, Spec, heading

FOLDER = Path(__file__).parents[1] / "runs"  # the specs that come with plkernel
# as the value of an arm's `match`: the arm it is compared with, whatever its name
BASELINE = "baseline"

HINT = """SPEC: a file or a name ({specs}). Every value of the spec is an option too;
the reference of the documentation lists them.

Example: {prog} quick --train.steps 200"""

Check = Callable[[Condition], None]
"""A further check of every condition, e.g. that its scheme fits the model."""


def specs() -> dict[str, Path]:
    """Return the specs that come with plkernel, by name: quick is runs/quick.toml."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"), key=lambda path: path.stem)}


def roles() -> dict[str, Path]:
    """Return the tables of roles that come with plkernel, by name; `RoleTable.from_toml` takes
    these names too.
    """
    return {path.stem: path for path in sorted((FOLDER / "roles").glob("*.toml"))}


def find(given: Path | str) -> Path:
    """Return the file of a spec, by its path or its name; ValueError with the most similar one
    otherwise.
    """
    if not isinstance(given, str | Path) or not str(given):
        raise ValueError(f"spec must be a path or a name, got {given!r}")
    path, known = Path(given), specs()
    if str(path) in known and not path.is_file():
        return known[str(path)]
    if path.exists() or path.suffix or len(path.parts) > 1:
        return existing(path, "spec")
    hint = nearest(str(path), known)
    raise ValueError(
        f"spec {path}: no such file, and none of that name comes with plkernel; {hint}"
    )


def load_spec(path: Path | str, check: Check | None = None, trusted: bool = False) -> Spec:
    """Read a TOML spec, or the spec.json of a study, from its path or by the name of one that comes
    with plkernel.

    ValueError in one line names the file, the key and the remedy. trusted: consent to the code that
    the spec names, which is imported once models are built, not here.
    """
    path = find(path)
    return parse_spec(load_values(path), str(path), check, trusted)


def load_values(path: Path) -> dict[str, Any]:
    """Return the plain values of a spec, its factors written out as arms; ValueError names the
    file.
    """
    saved = path.suffix == ".json"  # by a study, with the rates that a search has found
    values = load_object(path) if saved else parse_toml(read_bytes(path), f"spec {path}")
    with heading(f"spec {path}: "):
        values = expanded(values)
        for name, arm in (
            arms.items() if isinstance(arms := values.get("arms"), dict) and not saved else ()
        ):
            if isinstance(arm, dict) and {"rates", "learning_rate"} <= arm.keys():
                raise ValueError(
                    f"arms.{name}: rates are not tried beside a learning_rate: leave out one of"
                    " them"
                )
        return values


def parse_spec(
    values: Mapping[str, Any], origin: str, check: Check | None = None, trusted: bool = False
) -> Spec:
    """Return a spec from plain values: files read, matches computed, all arms resolved and checked.

    Hypotheses that leave out `against` get the arm that theirs is compared with. Raises ValueError,
    headed by `origin` and the name of the arm, where an arm does not fit its model or `check`
    refuses it.
    """
    with heading(f"spec {origin}: "):
        spec = Spec.model_validate(expanded(dict(values))).trusting(trusted)
        compared = (
            one.model_copy(update={"against": one.against or spec.against(one.arm)})
            for one in spec.hypotheses
        )
        arms = dict[str, Arm]()
        for name, arm in spec.arms.items():
            with heading(f"arms.{name}: "):
                arms[name] = _with_file_values(arm)
        spec = spec.model_copy(update={"hypotheses": tuple(compared), "arms": arms})
        conditions = {name: spec.condition(name) for name in arms}
        for name, condition in conditions.items():
            with heading(f"arms.{name}: "):
                if condition.arm.match is not None and condition.model.kind == "ssm":
                    condition = conditions[name] = _matched(condition, spec, conditions)
                condition.check()
                if check is not None:
                    check(condition)
        return spec.model_copy(
            update={"arms": {name: condition.arm for name, condition in conditions.items()}}
        )


def _matched(condition: Condition, spec: Spec, conditions: Mapping[str, Condition]) -> Condition:
    """Return the condition with the output standard deviation of the arm that its own names."""
    arm, against = condition.arm, condition.arm.against or spec.baseline
    if arm.match == BASELINE != against and BASELINE in conditions:
        raise ValueError(
            "match 'baseline' may mean the arm of that name or the one compared with: rename"
            " the arm"
        )
    other = against if arm.match == BASELINE else str(arm.match)
    if other not in conditions:
        raise ValueError(
            f"match {other!r} is not an arm; {nearest(other, [*conditions, BASELINE])}"
        )
    if conditions[other].arm.match is not None:
        raise ValueError(f"match {other!r} is itself matched: name an arm that is not")
    return replace(
        condition, arm=arm.model_copy(update={"output_std": output_std(conditions[other].nodes)})
    )


def _with_file_values(arm: Arm) -> Arm:
    """Return the arm with the values in its `node_file`, and their fingerprint behind the file's
    name.

    A run's configuration thus holds the nodes, and a saved spec does not need the file.
    """
    values = {name: getattr(arm, name) for name in NODE_VALUES}
    if arm.node_file is None or arm.node_file.endswith(_fingerprint(values)):
        return arm
    # runs/nodes/NAME.json of plkernel, where this folder has none
    own = FOLDER.parent / arm.node_file
    content = load_json(
        own if own.is_file() and not Path(arm.node_file).exists() else Path(arm.node_file)
    )
    try:
        nodes = content["nodes"]
        given = (
            tuple(map(float, nodes["rates"])),
            tuple(map(float, nodes["projection"])),
            nodes["gain"],
        )
    except (KeyError, TypeError, ValueError) as error:
        form = (
            '{"nodes": {"rates": [...], "projection": [...], "gain": "..."}} as plkernel.fit'
            " writes it"
        )
        raise ValueError(
            f"node_file {arm.node_file}: no node set in it, expected {form}"
        ) from error
    values = dict(zip(NODE_VALUES, given, strict=True))
    return Arm.model_validate(
        {**arm.model_dump(), **values, "node_file": arm.node_file + _fingerprint(values)}
    )


def _fingerprint(values: Options) -> str:
    """Return # and twelve hexadecimal digits that tell node values apart."""
    return f"#{hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]}"


class Design(BaseModel):
    """The keys of a spec that factors are written out from."""

    factors: dict[str, list[Any] | dict[str, Options]] | None = None
    arms: dict[str, Options] | None = None
    within: list[str] | None = None
    baseline: str | None = None


def expanded(values: Options) -> Options:
    """Return the values of a spec with the arms that its factors stand for, each with its `levels`
    and `against`.

    An arm under the name of a combination, with or without the levels of `within`, adds to its
    options. Values that are expanded already come back as they are.
    """
    if not values.get("factors"):
        return values
    design = Design.model_validate(values)
    named, within = design.arms or {}, design.within or []
    if any(arm.get("levels") is not None for arm in named.values()):
        return values
    factors = {name: _levels(name, given) for name, given in (design.factors or {}).items()}
    for name in within:
        if name not in factors:
            raise ValueError(f"within: {name!r} is not a factor; {nearest(name, factors)}")
    number = math.prod(map(len, factors.values())) + len(named) * math.prod(
        len(factors[one]) for one in within
    )
    if number > MOST_ARMS:
        raise ValueError(f"factors: more than {MOST_ARMS:,} arms: leave out factors or levels")

    def joined(*parts: str) -> str:
        return "_".join(filter(None, parts))

    def combinations(names: list[str]) -> dict[str, dict[str, str]]:
        """Levels of these factors by factor, for every combination, by its name."""
        every = itertools.product(*(factors[name] for name in names))
        return {joined(*labels): dict(zip(names, labels, strict=True)) for labels in every}

    crossed, blocks = [name for name in factors if name not in within], combinations(within)
    cells = combinations(crossed) if crossed else {}
    whole = {joined(cell, block): cell for cell in cells for block in blocks}
    short = dict.fromkeys([*cells, *(name for name in named if name not in whole)])
    baseline, arms = design.baseline or next(iter(cells), ""), Options()
    for block, levels in blocks.items():
        names = {name: joined(name, block) for name in short}
        against = names.get(whole.get(baseline, baseline))
        for name, full in names.items():
            own = {**cells.get(name, {}), **levels}
            options = _options(factors, own)
            for override in dict.fromkeys((name, full)):
                options = deep_merge(options, named.get(override, {}))
            for key in ("match", "against"):
                if isinstance(other := options.get(key), str):
                    options[key] = names.get(other, other)
            if against and against != full and options.get("against") is None:
                options["against"] = against
            arms[full] = {**options, "levels": own}
    first = baseline if baseline in arms else joined(baseline, next(iter(blocks)))
    return {**values, "arms": arms, **({"baseline": first} if baseline else {})}


def _levels(factor: str, given: list[Any] | dict[str, Options]) -> dict[str, Options]:
    """Return the options of every level of a factor, by label."""
    levels = {} if isinstance(given, list) else given
    for value in given if isinstance(given, list) else ():
        label = re.sub(
            r"[^A-Za-z0-9.-]+", "-", format(value, "g") if isinstance(value, float) else str(value)
        )
        levels[label] = _nested(factor.split("."), value)
    if len(levels) < 2 or len(levels) != len(given):
        raise ValueError(
            f"factors.{factor}: needs two levels or more, all different, got {shown(list(given))}"
        )
    return levels


def _options(factors: Mapping[str, Options], levels: Mapping[str, str]) -> Options:
    """Return the options that one level of each factor stands for together."""
    options = Options()
    for name, label in levels.items():
        own = factors[name][label]
        if (merged := deep_merge(options, own)) != deep_merge(own, options):
            raise ValueError(
                f"factors.{name}: {label!r} sets {shown(own)}, which another factor sets too:"
                " choose one"
            )
        options = merged
    return options


def main(
    command: Callable[..., Any],
    args: Sequence[str] | None = None,
    check: Check | None = None,
    ahead: Callable[..., None] | None = None,
) -> None:
    """Run `command(spec, ...)` as `SPEC [OPTIONS]`; exit 2 with one line on bad input.

    An option such as --train.steps 200 replaces that value of the file; the spec is then checked as
    a whole, every condition also by `check`. Before that `ahead` is called with the names of the
    arms, and the options. The option --trust-code of the command is consent to the code in the
    spec.
    """
    given = list(sys.argv[1:] if args is None else args)
    prog, own = f"{cli.program()} SPEC", functools.partial(command, None)

    def run() -> None:
        if {"-h", "--help"} & set(given):
            cli.parse(
                own,
                ["--help"],
                prog,
                HINT.format(specs=cli.program("plkernel.specs"), prog=cli.program()),
            )
        if not given or given[0].startswith("-"):
            raise ValueError(
                f"the spec comes first: {prog} [OPTIONS], got"
                f" {repr(given[0]) if given else 'nothing'}"
            )
        path = find(given[0])
        call, rest = cli.parse(own, given[1:], prog, whole=False)
        if ahead is not None:
            ahead(list(load_values(path).get("arms") or ()), **call.keywords)
        values, origin = (
            replaced(load_values(path), rest, call.keywords),
            f"{path}{' with its options' * bool(rest)}",
        )
        command(
            parse_spec(values, origin, check, call.keywords.get("trust_code", False)),
            **call.keywords,
        )

    cli.report_errors(run)


def replaced(values: Options, tokens: Sequence[str], others: Iterable[str] = ()) -> Options:
    """Return the values of a spec with those that options name replaced, by texts that pydantic
    converts.

    others: names that a misspelt option may mean as well.
    """
    groups = list[tuple[str, list[str]]]()
    for token in tokens:
        if re.match(r"-[^\d.]", token):  # no negative number
            name, equals, text = token.partition("=")
            groups.append((name, [text] * bool(equals)))
        elif groups:
            groups[-1][1].append(token)
        else:
            raise ValueError(f"{token!r} belongs to no option; see --help")
    every = _options_of(Spec, arms if isinstance(arms := values.get("arms"), dict) else ())
    known = {".".join(place).replace("_", "-"): (place, kind) for place, kind in every}
    for token, texts in groups:
        name = token.lstrip("-").replace("_", "-")
        if name not in known:
            ends = [one for one in known if one.rpartition(".")[2] == name][:2]
            close = ends or difflib.get_close_matches(
                name, [*known, *(one.replace("_", "-") for one in others)], n=1
            )
            hint = (
                f"did you mean {' or '.join(f'--{one}' for one in close)}?"
                if close
                else "--help lists the options"
            )
            raise ValueError(f"unknown option {token}; {hint}")
        if (times := [one for one, _ in groups].count(token)) > 1:
            raise ValueError(
                f"{token} is given {times} times, expected once, with all of its values"
            )
        place, kind = known[name]
        several = "tuple" in str(kind)
        if not (several or len(texts) == 1 or (not texts and "bool" in str(kind))):
            raise ValueError(f"--{name}: expected one value, got {' '.join(texts) or 'nothing'}")
        value: Any = texts if several else (*texts, True)[0]
        values = deep_merge(values, _nested(place, None if texts == ["None"] else value))
    return values


def _options_of(
    section: type[Section], arms: Iterable[str], *head: str
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the place of every value that an option can replace, and its type."""
    for name, field in section.model_fields.items():
        kind = SECTIONS.get(name, field.annotation)  # those of an arm are tables of any options
        if name == "arms":
            for arm in arms:
                yield from _options_of(Arm, (), name, arm)
        elif isinstance(kind, type) and issubclass(kind, Section):
            yield from _options_of(kind, (), *head, name)
        elif "dict" not in str(kind) and name not in ("hypotheses", "gates"):
            yield (*head, name), kind


def _nested(place: Sequence[str], value: Any) -> Any:
    """Return {"model": {"gain": value}} for model and gain."""
    for part in reversed(place):
        value = {part: value}
    return value
