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
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from plkernel.common.cli import nearest
from plkernel.common.files import shown

Options = dict[str, Any]
MOST_ARMS = 4096  # of a study; each takes some milliseconds to check, and as many runs as there are seeds


def expanded(values: Options) -> Options:
    """The plain values of a spec with the arms that its factors stand for, each with its `levels` and `against`.

    An arm under the name of a combination, with or without the levels of `within`, adds to its options. Values that
    are expanded already come back as they are. Raises ValueError for a factor without levels, an unknown name in
    `within`, or two factors that set one option.
    """
    given, arms = _table(values, "factors"), _table(values, "arms")
    if not given or any(isinstance(arm, Mapping) and arm.get("levels") is not None for arm in arms.values()):
        return values
    named = {name: _table(arms, name, "arms.") for name in arms}
    factors = {name: _levels(name, levels) for name, levels in given.items()}
    within, baseline = values.get("within") or (), values.get("baseline")
    if not isinstance(within, list | tuple) or not all(isinstance(name, str) for name in within):
        raise ValueError(f"within: expected a list of names of factors, got {shown(within)}")
    for name in within:
        if name not in factors:
            raise ValueError(f"within: {name!r} is not a factor; {nearest(name, factors)}")
    if baseline and not isinstance(baseline, str):
        raise ValueError(f"baseline: expected the name of an arm, got {shown(baseline)}")
    number = math.prod(map(len, factors.values())) + len(named) * math.prod(len(factors[name]) for name in within)
    if number > MOST_ARMS:
        many = f"{number:,}" if number < 10**15 else "more than 10**15"
        raise ValueError(
            f"factors: {len(factors)} factors and {len(named)} arms beside them make {many} arms, and a study has "
            f"{MOST_ARMS:,} at most: leave out factors or levels"
        )
    cells = {_joined(*own.values()): own for own in _combinations(factors, [f for f in factors if f not in within])}
    cells.pop("", None)  # without crossed factors
    blocks = {_joined(*own.values()): own for own in _combinations(factors, within)}
    whole = {_joined(cell, block): cell for cell in cells for block in blocks}
    short = [*cells, *(name for name in named if name not in whole and name not in cells)]
    baseline = baseline or next(iter(cells), "")
    written: Options = {}
    for block, levels in blocks.items():
        names = {name: _joined(name, block) for name in short}
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
            written[full] = {**options, "levels": own}
    first = baseline if baseline in written else _joined(baseline, next(iter(blocks)))
    return {**values, "arms": written, **({"baseline": first} if baseline else {})}


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Options:
    """`base` with the values of `over`, table by table."""
    both = (key for key in base if isinstance(base[key], dict) and isinstance(over.get(key), Mapping))
    return {**base, **over, **{key: deep_merge(base[key], over[key]) for key in both}}


def _table(values: Mapping[str, Any], key: str, head: str = "") -> Mapping[str, Any]:
    """The table under `key`, empty where there is none; ValueError where it is another value."""
    value = values.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{head}{key}: expected a table, got {shown(value)}")
    return value or {}


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
        for value in given:
            text = format(value, "g") if isinstance(value, float) else str(value)
            for part in reversed(factor.split(".")):  # {"model": {"gain": value}} for model.gain
                value = {part: value}
            levels[re.sub(r"[^A-Za-z0-9.-]+", "-", text)] = value
    if len(levels) < 2 or len(levels) != len(given):
        raise ValueError(f"factors.{factor}: needs two levels or more, all different, got {shown(list(given))}")
    return levels


def _combinations(factors: Mapping[str, Options], names: Iterable[str]) -> Iterator[dict[str, str]]:
    """Every combination of one level of each of the factors `names`, by label; of none, the empty one."""
    names = list(names)
    for labels in itertools.product(*(factors[name] for name in names)):
        yield dict(zip(names, labels, strict=True))


def _options(factors: Mapping[str, Options], levels: Mapping[str, str]) -> Options:
    """The options that one level of each factor stands for together."""
    options, owners = Options(), dict[str, str]()
    for name, label in levels.items():
        for path in _paths(factors[name][label]):
            if path in owners:
                raise ValueError(f"factors {owners[path]} and {name} both set {path}: give it to one of them")
            owners[path] = name
        options = deep_merge(options, factors[name][label])
    return options


def _paths(options: Mapping[str, Any], head: str = "") -> Iterator[str]:
    """The dotted names of the options in nested tables."""
    for key, value in options.items():
        if isinstance(value, Mapping) and value:
            yield from _paths(value, f"{head}{key}.")
        else:
            yield f"{head}{key}"


def _joined(*parts: str) -> str:
    return "_".join(filter(None, parts))
