"""A factorial design, written out: the [factors] of a spec as arms, one for every combination of their levels.

within = ["model.gain"]                            # arms are compared among themselves, gain by gain

[factors]
placement = ["log-spaced", "concentrated"]         # the values of an option are its levels
projection = ["uniform", "gain-corrected"]
"model.gain" = ["none", "ema"]                     # an option of a section
# [factors.NAME] LEVEL = { ... }                   # levels by name, each with all the options it stands for

[arms.quantile]                                    # beside the combinations, once for every level of `within`
placement = "quantile"

This is ten arms: log-spaced_uniform_none to concentrated_gain-corrected_ema, and quantile_none and quantile_ema. Each
is compared with the combination of the first levels within its gain: log-spaced_uniform_none or log-spaced_uniform_ema.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plkernel.common import cli
from plkernel.common.plain import shown

Options = dict[str, Any]
Levels = Mapping[str, str]
"""The label of one level of each factor."""
Factors = Mapping[str, Mapping[str, Options]]
"""For each factor the options that each of its levels stands for, by label."""

JOIN = "_"
REFERENCES = ("match", "against")
NOT_IN_NAMES = r"[^A-Za-z0-9.-]+"
MOST_ARMS = 4096
"""Of a study; each takes some milliseconds to check, and as many runs as there are seeds."""
COUNTED = 10**15


def expanded(values: Options) -> Options:
    """The plain values of a spec with the arms that its factors stand for, each with its `levels` and `against`.

    An arm under the name of a combination, with or without the levels of `within`, adds to its options. Values that
    are expanded already come back as they are. Raises ValueError for a factor without levels, an unknown name in
    `within`, or two factors that set one option.
    """
    given, named = _tables(values, "factors"), _tables(values, "arms")
    if not given or any(_table(named, name) and named[name].get("levels") is not None for name in named):
        return values
    named = {name: _tables(named, name, "arms.") for name in named}
    factors = {name: _levels(name, levels) for name, levels in given.items()}
    within = _within(values, factors)
    _check_number(factors, within, len(named))
    crossed = [name for name in factors if name not in within]
    cells = {_name(levels): levels for levels in _combinations(factors, crossed) if levels}
    blocks = {_name(levels): levels for levels in _combinations(factors, within)}
    whole = {_joined(cell, block): cell for cell in cells for block in blocks}
    beside: dict[str, Levels] = {name: {} for name in named if name not in whole.keys() | cells.keys()}
    baseline = values.get("baseline") or next(iter(cells), "")
    if not isinstance(baseline, str):
        raise ValueError(f"baseline: expected the name of an arm, got {shown(baseline)}")
    arms = {}
    for block, levels in blocks.items():
        names = {short: _joined(short, block) for short in (*cells, *beside)}
        for short, name in names.items():
            own = {**cells.get(short, {}), **levels}
            options = _options(factors, own)
            for override in dict.fromkeys((short, name)):
                options = deep_merge(options, named.get(override, {}))
            against = names.get(whole.get(baseline, baseline))
            referred = {key: options[key] for key in REFERENCES if isinstance(options.get(key), str)}
            found = {key: names.get(other, other) for key, other in referred.items()}
            if against and against != name:
                found.setdefault("against", against)
            arms[name] = {**options, **found, "levels": own}
    first = baseline if baseline in arms else _joined(baseline, next(iter(blocks)))
    return {**values, "arms": arms, **({"baseline": first} if baseline else {})}


def _tables(values: Mapping[str, Any], key: str, head: str = "") -> Mapping[str, Any]:
    """The table under `key`, empty where there is none; ValueError where it is another value."""
    found = values.get(key)
    if found is not None and not isinstance(found, Mapping):
        raise ValueError(f"{head}{key}: expected a table, got {shown(found)}")
    return found or {}


def _within(values: Options, factors: Factors) -> list[str]:
    """The factors within whose levels arms are compared."""
    within = values.get("within") or ()
    if not isinstance(within, list | tuple) or not all(isinstance(name, str) for name in within):
        raise ValueError(f"within: expected a list of names of factors, got {shown(within)}")
    for name in within:
        if name not in factors:
            raise ValueError(f"within: {name!r} is not a factor; {cli.nearest(name, factors)}")
    return list(within)


def _check_number(factors: Factors, within: Sequence[str], beside: int) -> None:
    """ValueError where the combinations, counted and not made, are more than a study may have."""
    blocks = math.prod(len(factors[name]) for name in within)
    cells = math.prod(len(levels) for levels in factors.values())
    number = cells + blocks * beside
    if number > MOST_ARMS:
        raise ValueError(
            f"factors: {len(factors)} factors and {beside} arms beside them make "
            f"{f'{number:,}' if number < COUNTED else 'more than 10**15'} arms, and a study has {MOST_ARMS:,} at most: "
            "leave out factors or levels"
        )


def deep_merge(base: Options, over: Mapping[str, Any]) -> Options:
    """`base` with the values of `over`, table by table."""
    both = {key: deep_merge(base[key], over[key]) for key in base if isinstance(base[key], dict) and _table(over, key)}
    return {**base, **over, **both}


def _table(values: Mapping[str, Any], key: str) -> bool:
    return isinstance(values.get(key), Mapping)


def _levels(factor: str, given: Any) -> dict[str, Options]:
    """The options of every level of a factor, by label."""
    levels: dict[str, Options] = {}
    if isinstance(given, Mapping):
        for label, options in given.items():
            if not isinstance(options, Mapping):
                raise ValueError(
                    f"factors.{factor}.{label}: expected a table of options such as {{ placement = 'quantile' }}, "
                    f"got {shown(options)}"
                )
            levels[label] = dict(options)
    elif not isinstance(given, list | tuple):
        raise ValueError(f"factors.{factor}: expected a list of values or a table of levels, got {shown(given)}")
    else:
        levels = {_label(value): _nested(factor, value) for value in given}
    if len(levels) < 2 or len(levels) != len(given):
        raise ValueError(f"factors.{factor}: needs two levels or more, all different, got {shown(list(given))}")
    return levels


def _label(value: Any) -> str:
    """A level's value as part of a folder's name."""
    text = format(value, "g") if isinstance(value, float) else str(value)
    return re.sub(NOT_IN_NAMES, "-", text)


def _nested(option: str, value: Any) -> Options:
    """{"model": {"gain": value}} for model.gain."""
    for part in reversed(option.split(".")):
        value = {part: value}
    return value


def _combinations(factors: Factors, names: Sequence[str]) -> Iterator[Levels]:
    """Every combination of one level of each of the factors `names`; of none, the empty one."""
    for labels in itertools.product(*(factors[name] for name in names)):
        yield dict(zip(names, labels, strict=True))


def _options(factors: Factors, levels: Levels) -> Options:
    """What these levels stand for together."""
    options: Options = {}
    paths: dict[str, str] = {}
    for name, label in levels.items():
        for path in _paths(factors[name][label]):
            if path in paths:
                raise ValueError(f"factors {paths[path]} and {name} both set {path}: give it to one of them")
            paths[path] = name
        options = deep_merge(options, factors[name][label])
    return options


def _paths(options: Mapping[str, Any], head: str = "") -> Iterator[str]:
    for key, value in options.items():
        if isinstance(value, Mapping) and value:
            yield from _paths(value, f"{head}{key}.")
        else:
            yield f"{head}{key}"


def _name(levels: Levels) -> str:
    return JOIN.join(levels.values())


def _joined(*parts: str) -> str:
    return JOIN.join(filter(None, parts))
