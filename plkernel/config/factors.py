"""A factorial design, written out: the [factors] of a spec as arms, one for every combination of their levels.

within = ["model.gain"]                            # arms are compared among themselves, gain by gain
[factors]
placement = ["log-spaced", "concentrated"]         # the values of an option are its levels
"model.gain" = ["none", "ema"]                     # or [factors.NAME] LEVEL = { all options that it stands for }
[arms.quantile]                                    # beside the combinations, once for every level of `within`
placement = "quantile"

This is six arms, log-spaced_none to concentrated_ema, quantile_none and quantile_ema; each is compared with log-spaced
of its gain.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from plkernel.common.cli import nearest
from plkernel.common.files import shown

Options = dict[str, Any]
MOST_ARMS = 4096  # of a study; each takes some milliseconds to check, and as many runs as there are seeds


class Design(BaseModel):
    """The keys of a spec that factors are written out from, as the file has them."""

    factors: dict[str, list[Any] | dict[str, Options]] | None = None
    arms: dict[str, Options] | None = None
    within: list[str] | None = None
    baseline: str | None = None


def expanded(values: Options) -> Options:
    """Return the values of a spec with the arms that its factors stand for, each with its `levels` and `against`.

    An arm under the name of a combination, with or without the levels of `within`, adds to its options. Values that
    are expanded already come back as they are. Raises ValueError for a factor without levels, an unknown name in
    `within`, or two factors that set one option.
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
    crossed = [name for name in factors if name not in within]
    number = math.prod(map(len, factors.values())) + len(named) * math.prod(len(factors[one]) for one in within)
    if number > MOST_ARMS:
        raise ValueError(f"factors: more than {MOST_ARMS:,} arms: leave out factors or levels")

    def combinations(names: list[str]) -> dict[str, dict[str, str]]:
        """Levels of these factors by factor, for every combination, by its name."""
        every = itertools.product(*(factors[name] for name in names))
        return {_joined(*labels): dict(zip(names, labels, strict=True)) for labels in every}

    cells, blocks = combinations(crossed) if crossed else {}, combinations(within)
    whole = {_joined(cell, block): cell for cell in cells for block in blocks}
    short = dict.fromkeys([*cells, *(name for name in named if name not in whole)])
    baseline, arms = design.baseline or next(iter(cells), ""), Options()
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
            arms[full] = {**options, "levels": own}
    first = baseline if baseline in arms else _joined(baseline, next(iter(blocks)))
    return {**values, "arms": arms, **({"baseline": first} if baseline else {})}


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Options:
    """Return `base` with the values of `over`, table by table."""
    both = (key for key in base if isinstance(base[key], dict) and isinstance(over.get(key), Mapping))
    return {**base, **over, **{key: deep_merge(base[key], over[key]) for key in both}}


def _levels(factor: str, given: list[Any] | dict[str, Options]) -> dict[str, Options]:
    """Return the options of every level of a factor, by label."""
    levels = {} if isinstance(given, list) else given
    for value in given if isinstance(given, list) else ():
        label = re.sub(r"[^A-Za-z0-9.-]+", "-", format(value, "g") if isinstance(value, float) else str(value))
        for part in reversed(factor.split(".")):  # {"model": {"gain": value}} for model.gain
            value = {part: value}
        levels[label] = value
    if len(levels) < 2 or len(levels) != len(given):
        raise ValueError(f"factors.{factor}: needs two levels or more, all different, got {shown(list(given))}")
    return levels


def _options(factors: Mapping[str, Options], levels: Mapping[str, str]) -> Options:
    """Return the options that one level of each factor stands for together."""

    def paths(options: Options) -> Iterator[str]:
        for key, value in options.items():
            yield from (f"{key}.{path}" for path in paths(value)) if isinstance(value, dict) and value else [key]

    options, owners = Options(), dict[str, str]()
    for name, label in levels.items():
        for path in paths(factors[name][label]):
            if (owner := owners.setdefault(path, name)) != name:
                raise ValueError(f"factors {owner} and {name} both set {path}: give it to one of them")
        options = deep_merge(options, factors[name][label])
    return options


def _joined(*parts: str) -> str:
    return "_".join(filter(None, parts))
