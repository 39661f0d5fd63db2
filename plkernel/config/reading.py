"""Specs from files: read, their factors written out, and every arm resolved into its condition, once."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from plkernel.analysis.nodes import output_std
from plkernel.common import cli
from plkernel.common.files import load_object
from plkernel.common.plain import parse_toml, read_bytes, shown
from plkernel.config.arm import with_file_values, with_placed_values
from plkernel.config.condition import Condition, resolve
from plkernel.config.errors import blaming, explained
from plkernel.config.factors import expanded
from plkernel.config.named import find
from plkernel.config.study import Spec

BASELINE = "baseline"  # as the value of an arm's `match`: the study's baseline, whatever its name

Place = tuple[str, ...]
"""Where a field stands in a spec: ("train", "steps")."""
Check = Callable[[Condition], None]
"""What else is asked of every condition: that of its scheme, for those who go on to build models."""


def load_spec(path: Path | str, check: Check | None = None, trusted: bool = False) -> Spec:
    """Read a TOML spec, or the spec.json of a study, from its path or by the name of one that comes with plkernel.

    ValueError in one line names the file, the key and the remedy. trusted: whether the code that it names may run, once
    models are built; nothing is imported here.
    """
    path = find(path)
    return spec_of(load_values(path), path, check=check, trusted=trusted)


def load_values(path: Path) -> dict[str, Any]:
    """The plain values of a spec, its factors written out as arms; ValueError names the file."""
    saved = path.suffix == ".json"  # by a study, with the rates that a search has found
    values = load_object(path) if saved else parse_toml(read_bytes(path), f"spec {path}")
    try:
        values = expanded(dict(values))
        if not saved:
            _check_rates(values)
        return values
    except ValueError as error:
        raise ValueError(f"spec {path}: {error}") from None


def _check_rates(values: Mapping[str, Any]) -> None:
    """ValueError for an arm with a learning rate of its own and rates to search, which would not be tried."""
    arms = values.get("arms")
    for name, arm in arms.items() if isinstance(arms, Mapping) else ():
        if isinstance(arm, Mapping) and {"rates", "learning_rate"} <= arm.keys():
            raise ValueError(
                f"arms.{name}: rates {shown(arm['rates'])} are not tried beside a learning_rate, got "
                f"{shown(arm['learning_rate'])}: leave out one of them"
            )


def spec_of(
    values: Mapping[str, Any],
    path: Path,
    changes: Mapping[Place, Any] | None = None,
    check: Check | None = None,
    trusted: bool = False,
) -> Spec:
    """The spec of `values`, which came from `path`, with some of its fields changed."""
    origin = f"{path} with its options" if changes else str(path)
    return parse_spec(_changed(values, changes or {}), origin, check, trusted)


def _changed(values: Mapping[str, Any], changes: Mapping[Place, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(dict(values))
    for (*heads, last), value in changes.items():
        table = changed
        for head in heads:
            if not isinstance(table.get(head), dict):
                table[head] = {}
            table = table[head]
        table[last] = value
    return changed


def parse_spec(values: Mapping[str, Any], origin: str, check: Check | None = None, trusted: bool = False) -> Spec:
    """A spec from plain values, its files read and its matches computed; `origin` names it in the error."""
    try:
        return settle(Spec.model_validate(expanded(dict(values))).trusting(trusted), check)
    except ValidationError as error:
        raise ValueError(f"spec {origin}: {explained(error, Spec)}") from None
    except ValueError as error:
        raise ValueError(f"spec {origin}: {error}") from None


def settle(spec: Spec, check: Check | None = None) -> Spec:
    """The spec with every `node_file` read, every `match` turned into the number it stands for, and all arms resolved.

    Hypotheses that leave out `against` get the arm that theirs is compared with. All is done again whenever a spec is
    parsed, so flags that change the matched arm count. Raises ValueError, headed by the name of the arm, where an arm
    does not fit its model or `check` refuses it.
    """
    hypotheses = (one.model_copy(update={"against": one.against or spec.against(one.arm)}) for one in spec.hypotheses)
    spec = spec.model_copy(update={"hypotheses": tuple(hypotheses)})
    read, settled = dict[str, Condition](), dict[str, Condition]()
    for name, arm in spec.arms.items():
        with blaming(name, Spec):
            model, corpus = spec.model_of(name), spec.corpus_of(name)
            own, train = with_file_values(arm), spec.train_of(name)
            own = own if model.is_foreign else with_placed_values(own, model.node_count, spec.trusted)
            read[name] = resolve(model, own, train, corpus, spec.name, name, spec.trusted)
    for name, condition in read.items():
        with blaming(name, Spec):
            if condition.arm.match is not None and condition.model.kind == "ssm":
                condition = _matched(condition, spec, read)
            condition.check()
            if check is not None:
                check(condition)
            settled[name] = condition
    return spec.with_conditions(settled)


def _matched(condition: Condition, spec: Spec, conditions: Mapping[str, Condition]) -> Condition:
    """The condition with the output standard deviation of the arm that its own names."""
    arm = condition.arm
    against = arm.against or spec.baseline
    if arm.match == BASELINE != against and BASELINE in conditions:
        raise ValueError("match 'baseline' may mean the arm of that name or the one compared with: rename the arm")
    other = against if arm.match == BASELINE else str(arm.match)
    if other not in conditions:
        raise ValueError(f"match {other!r} is not an arm; {cli.nearest(other, [*conditions, BASELINE])}")
    if conditions[other].arm.match is not None:
        raise ValueError(f"match {other!r} is itself matched: name an arm that is not")
    return replace(condition, arm=arm.model_copy(update={"output_std": output_std(conditions[other].nodes)}))
