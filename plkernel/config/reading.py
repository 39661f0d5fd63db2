"""Specs from files: found by path or name, read, and every arm resolved and checked once.

On a command line the file comes first, then options, which may replace any value of the spec.
"""

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plkernel.analysis.nodes import check_switches, output_std
from plkernel.common import cli
from plkernel.common.cli import existing, nearest
from plkernel.common.files import (
    check_regular,
    load_json,
    load_object,
    parse_toml,
    read_bytes,
    shown,
)
from plkernel.config.condition import ENDS, Condition
from plkernel.config.factors import CURVE, expanded
from plkernel.config.overrides import replacements
from plkernel.config.resolved import ResolvedSpec, resolve_spec
from plkernel.config.schema import NODE_VALUES, Arm, Options, deep_merge
from plkernel.config.spec import SECTIONS, Spec, heading
from plkernel.config.toml_types import check_types

FOLDER = Path(__file__).parents[1] / "runs"  # the specs that come with plkernel
BASELINE = "baseline"
"""As the value of an arm's `match`: the arm it is compared with, whatever its name."""

HINT = """SPEC: a file or a name ({specs}). Every value of the spec is an option too;
the reference of the documentation lists them.

Example: {prog} quick --train.steps 200"""

Check = Callable[[Condition], None]
"""A further check of every condition, e.g. that its scheme fits the model."""


def specs() -> dict[str, Path]:
    """Return the specs that come with plkernel, by name: quick is runs/quick.toml."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"), key=lambda path: path.stem)}


def roles() -> dict[str, Path]:
    """Return the tables of roles that come with plkernel, by name.

    `RoleTable.from_toml` takes these names too.
    """
    return {path.stem: path for path in sorted((FOLDER / "roles").glob("*.toml"))}


def find_spec(given: Path | str) -> Path:
    """Return the file of a spec, by its path or its name.

    Raises ValueError with the most similar one where there is none.
    """
    if not isinstance(given, str | Path) or not str(given):
        raise ValueError(f"spec must be a path or a name, got {given!r}")
    path = Path(given)
    known = specs()
    if str(path) in known and not path.is_file():
        return known[str(path)]
    names_a_file = path.suffix or len(path.parts) > 1
    if path.exists() or names_a_file:
        return existing(path, "spec")
    hint = nearest(str(path), known)
    raise ValueError(
        f"spec {path}: no such file, and none of that name comes with plkernel; {hint}"
    )


def load_spec(path: Path | str, check: Check | None = None, trusted: bool = False) -> Spec:
    """Read a TOML spec, or the spec.json of a study, by its path or by the name of one of ours.

    ValueError in one line names the file, the key and the remedy. trusted: consent to the code that
    the spec names, which is imported once models are built, not here.
    """
    if check is not None and not callable(check):
        raise ValueError(
            f"check must be a function of a spec, got {check!r}; plkernel.training.check is one"
        )
    check_switches(trusted=trusted)
    path = find_spec(path)
    return parse_spec(load_values(path), str(path), check, trusted)


def _is_saved(path: Path) -> bool:
    """True for a spec that a study saved, with the rates that a search has found."""
    return path.suffix == ".json"


def load_values(path: Path) -> dict[str, Any]:
    """Return the plain values of a spec, its factors written out as arms.

    Raises ValueError that names the file.
    """
    if _is_saved(path):
        values = load_object(path)
        with heading(f"spec {path}: "):
            return expanded(values)
    check_regular(path, "spec ")
    values = parse_toml(read_bytes(path), f"spec {path}")
    with heading(f"spec {path}: "):
        _check_levels(values)
        values = expanded(values)
        check_types(values, Spec, SECTIONS)
        _check_within(values)
        _check_rate(values, _tables(values).get("train", {}))
        for name, arm in _tables(values.get("arms")).items():
            _check_rates(name, arm)
            _check_ends(name, arm, arm)
    return values


def _tables(tables: Any) -> dict[str, Options]:
    """The tables among the values of a table; what is none is refused where it is read."""
    values = tables.items() if isinstance(tables, dict) else ()
    return {name: table for name, table in values if isinstance(table, dict)}


def _method(values: Options) -> str:
    """The value of tuning.method."""
    return str(_tables(values).get("tuning", {}).get("method", "search"))


def _is_design(values: Options) -> bool:
    """True for a spec whose arms `expanded` writes out."""
    return bool(values.get("factors")) or _method(values) == CURVE


def _check_levels(values: Options) -> None:
    """Raise ValueError for `levels` in an arm of a design.

    With them all arms would pass for written out, and `expanded` would leave the design as it is.
    """
    if not _is_design(values):
        return
    for name, arm in _tables(values.get("arms")).items():
        if arm.get("levels") is not None:
            raise ValueError(
                f"arms.{name}: levels must be left out in a design, which fills them in, got"
                f" {shown(arm['levels'])}"
            )


def _check_within(values: Options) -> None:
    """Raise ValueError for `within` in a spec of which no arm has a level."""
    within = values.get("within")
    arms = _tables(values.get("arms")).values()
    if within and all(arm.get("levels") is None for arm in arms):
        raise ValueError(f"within must be left out without [factors], got {shown(within)}")


def _check_rates(name: str, arm: Options) -> None:
    """Raise ValueError for an arm with a learning rate and others to try, which nothing would.

    A spec that a study saved has both, once the rate has been found.
    """
    if arm.get("rates") is not None and arm.get("learning_rate") is not None:
        raise ValueError(
            f"arms.{name}: rates must be left out beside a learning_rate, or that beside"
            " rates, got both"
        )


def _check_rate(values: Options, stated: Options) -> None:
    """Raise ValueError for train.learning_rate in a study of curves, whose rates are others.

    stated: those options of [train] that somebody wrote. A saved spec has every option.
    """
    if _method(values) == CURVE and "learning_rate" in stated:
        raise ValueError(
            "train.learning_rate must be left out with tuning.method 'curve', as all arms have"
            f" tuning.rates, got {shown(stated['learning_rate'])}"
        )


def _check_ends(name: str, arm: Options, stated: Options) -> None:
    """Raise ValueError for an end of the half-lives beside `spectrum`, be it the default.

    stated: those options of the arm that somebody wrote. A saved spec has every option.
    """
    for end in ENDS:
        if arm.get("spectrum") is not None and stated.get(end) is not None:
            raise ValueError(
                f"arms.{name}: {end} must be left out beside spectrum, which gives it, got"
                f" {stated[end]!r}"
            )


def _changed(values: Options, changes: Options, is_saved: bool) -> Options:
    """Return the values of a spec with what options say in their place.

    is_saved: by a study, with every option. Raises ValueError for an option that would do nothing:
    of a design whose arms are written out, or of an arm beside another option.
    """
    changed = deep_merge(values, changes)
    if _is_design(values):
        for option, old, new in (
            ("within", list(values.get("within") or ()), list(changed.get("within") or ())),
            ("baseline", values.get("baseline"), changed.get("baseline")),
            ("tuning.method", _method(values), _method(changed)),
        ):
            if new != old:
                raise ValueError(
                    f"--{option} must be {shown(old)}, by which the arms have been written out,"
                    f" got {shown(new)}; change the file of the spec"
                )
    elif "within" in changes:
        _check_within(changed)
    _check_rate(changed, changes.get("train", {}))
    for name, given in changes.get("arms", {}).items():
        arm = changed["arms"][name]
        if "rates" in given:
            _check_rates(name, arm)
        _check_ends(name, arm, given if is_saved else arm)
    return changed


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
        spec = _with_arms(_with_baselines(spec), _with_file_values)
        study = resolve_spec(spec)

        def checked(arm: Arm, name: str) -> Arm:
            condition = study.conditions[name]
            if arm.match is not None and condition.model.of_kind.has_scale:
                condition = _matched(study, name, arm.match)
            condition.check()
            if check is not None:
                check(condition)
            return condition.arm

        return _with_arms(spec, checked)


def _with_baselines(spec: Spec) -> Spec:
    """Return the spec with `against` filled in where a hypothesis leaves it out."""
    hypotheses = []
    for one in spec.hypotheses:
        hypotheses.append(one.model_copy(update={"against": spec.opponent(one)}))
    return spec.model_copy(update={"hypotheses": tuple(hypotheses)})


def _with_arms(spec: Spec, changed: Callable[[Arm, str], Arm]) -> Spec:
    """Return the spec with every arm as `changed` returns it; its ValueError names the arm."""
    arms = {}
    for name, arm in spec.arms.items():
        with heading(f"arms.{name}: "):
            arms[name] = changed(arm, name)
    return spec.model_copy(update={"arms": arms})


def _matched(study: ResolvedSpec, name: str, match: str) -> Condition:
    """Return the condition of an arm with the output standard deviation of the one to `match`."""
    condition = study.conditions[name]
    conditions = study.conditions
    other = match
    if match == BASELINE:
        other = _baseline_of(study, name)
    if other not in conditions:
        raise ValueError(
            f"match must name an arm, got {other!r}; {nearest(other, [*conditions, BASELINE])}"
        )
    if conditions[other].arm.match is not None:
        raise ValueError(f"match must name an arm that is not matched itself, got {other!r}")
    scale = output_std(conditions[other].nodes)
    return replace(condition, arm=condition.arm.model_copy(update={"output_std": scale}))


def _baseline_of(study: ResolvedSpec, name: str) -> str:
    """Return the arm that one whose match is 'baseline' is compared with.

    Raises ValueError where there is none, and where an arm has that word as its name.
    """
    compared = study.baselines[name]
    if compared != BASELINE and BASELINE in study.conditions:
        raise ValueError(
            "match must name one arm, got 'baseline', which may mean the arm of that name or the"
            " one compared with; rename the arm"
        )
    if compared is None:
        raise ValueError(
            "match must name an arm, got 'baseline' in an arm that is compared with none; name the"
            " arm, or give the one compared with in against"
        )
    return compared


def _with_file_values(arm: Arm, name: str = "") -> Arm:
    """Return the arm with the values in its `node_file`, and their fingerprint behind its name.

    A run's configuration thus holds the nodes, and a saved spec does not need the file.
    """
    values = {option: getattr(arm, option) for option in NODE_VALUES}
    if arm.node_file is None or arm.node_file.endswith(_fingerprint(values)):
        return arm
    values = _node_values(arm.node_file)
    filled = {**values, "node_file": arm.node_file + _fingerprint(values)}
    return Arm.model_validate({**arm.model_dump(), **filled})


def _node_values(node_file: str) -> Options:
    """Return the node options of an arm from a file of plkernel.fit.

    The file may be runs/nodes/NAME.json of plkernel, where the working directory has none.
    """
    path = Path(node_file)
    own = FOLDER.parent / node_file
    with heading("node_file "):
        content = load_json(own if own.is_file() and not path.exists() else path)
    try:
        nodes = content["nodes"]
        rates = tuple(float(rate) for rate in nodes["rates"])
        multipliers = tuple(float(one) for one in nodes["projection"])
        gain = nodes["gain"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"node_file {node_file} must hold a node set, got none; plkernel.fit writes one, as in"
            ' {"nodes": {"rates": [...], "projection": [...], "gain": "..."}}'
        ) from error
    return dict(zip(NODE_VALUES, (rates, multipliers, gain), strict=True))


def _fingerprint(values: Options) -> str:
    """Return # and twelve hexadecimal digits that tell node values apart."""
    return f"#{hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]}"


def _note_unreached(spec: Spec) -> None:
    """Say which steps of the report no run reaches, as where an option shortens training."""
    last = spec.train.total_steps
    behind = [step for step in spec.report_steps if step > last]
    if behind:
        named = ", ".join(map(str, behind))
        print(
            f"note: report_steps {named} are left out of the report, as the last step is {last}",
            file=sys.stderr,
        )


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
    prog = f"{cli.program()} SPEC"
    own = functools.partial(command, None)

    def run() -> None:
        if {"-h", "--help"} & set(given):
            hint = HINT.format(specs=cli.program("plkernel.specs"), prog=cli.program())
            cli.parse(own, ["--help"], prog, hint)
        if not given or given[0].startswith("-"):
            got = repr(given[0]) if given else "nothing"
            raise ValueError(
                f"the first argument must be a spec, as in {prog} [OPTIONS], got {got}"
            )
        path = find_spec(given[0])
        call, rest = cli.parse(own, given[1:], prog, whole=False)
        options = call.keywords
        values = load_values(path)
        if ahead is not None:
            ahead(list(values.get("arms") or ()), **options)
        origin = f"{path} with its options" if rest else str(path)
        changes = replacements(values, rest, options)
        with heading(f"spec {origin}: "):
            values = _changed(values, changes, is_saved=_is_saved(path))
        spec = parse_spec(values, origin, check, options.get("trust_code", False))
        _note_unreached(spec)
        command(spec, **options)

    cli.report_errors(run)
