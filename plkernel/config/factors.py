"""[factors] of a spec, written out as one arm for every combination of their levels.

    within = ["model.gain"]            # arms are compared among themselves, gain by gain

    [factors]
    placement = ["log-spaced", "concentrated"]
    "model.gain" = ["none", "ema"]     # the values of an option are its levels

    [arms.quantile]                    # beside the combinations, once for every level of `within`
    placement = "quantile"

Instead of values, [factors.NAME] may have tables: LEVEL = { all options that it stands for }.

These are six arms: log-spaced_none to concentrated_ema, quantile_none and quantile_ema. Each is
compared with log-spaced of its gain.

    [tuning]
    method = "curve"
    rates = [1e-3, 2e-3, 4e-3]

makes the learning rate one more factor of `within`: every arm becomes a curve of arms, one for each
rate, each compared with the baseline at its rate.
"""

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from plkernel.common.cli import nearest
from plkernel.common.files import shown
from plkernel.config.schema import (
    FOLDER_NAME,
    MOST_ARMS,
    NAMING,
    Options,
    deep_merge,
    similar_name,
)

Levels = dict[str, str]
"""The level of each factor, by its name."""
CURVE = "curve"
"""tuning.method of a study of curves over learning rates."""
RATE = "learning_rate"
"""The factor that such curves have, an option of an arm."""
LEAST_RATES = 3
"""Of a curve, as a parabola has three coefficients."""


class TuningKeys(BaseModel):
    """The keys of [tuning] that a curve over learning rates is written out from."""

    method: str | None = None
    rates: list[float] | None = None


class DesignKeys(BaseModel):
    """The keys of a spec that factors are written out from."""

    factors: dict[str, list[Any] | dict[str, Options]] | None = None
    arms: dict[str, Options] | None = None
    within: list[str] | None = None
    baseline: str | None = None
    tuning: TuningKeys | None = None


def expanded(values: Options) -> Options:
    """Return the values of a spec with the arms that its factors and its rates stand for.

    Each arm gets its `levels` and `against`. An arm under the name of a combination, with or
    without the levels of `within`, adds to its options, and one under the name of a named arm with
    these levels to those of that arm. Values that are expanded already come back as they are.
    Raises ValueError for a design that cannot be written out.
    """
    tuning = values.get("tuning")
    over_rates = isinstance(tuning, Mapping) and tuning.get("method") == CURVE
    if not values.get("factors") and not over_rates:
        return values
    keys = DesignKeys.model_validate(values)
    named = keys.arms or {}
    if any(options.get("levels") is not None for options in named.values()):
        return values
    _check_names(keys)
    _check_within(keys)
    if over_rates:
        keys = _with_rates(keys, named)
    design = _design(keys, named)
    changed: Options = {"arms": design.arms()}
    if over_rates:
        changed["within"] = list(design.within)
    if design.baseline:
        changed["baseline"] = design.first_baseline
    return {**values, **changed}


def _over_rates(keys: DesignKeys) -> bool:
    """True for a study of curves over learning rates."""
    return keys.tuning is not None and keys.tuning.method == CURVE


def _check_names(keys: DesignKeys) -> None:
    """Raise ValueError for a name of an arm or a level that no name of an arm may contain."""
    for name in keys.arms or {}:
        if not re.fullmatch(FOLDER_NAME, name):
            raise ValueError(f"arm name {NAMING}{similar_name(name)}, got {shown(name)}")
    for factor, levels in (keys.factors or {}).items():
        for level in levels if isinstance(levels, dict) else ():
            # Behind the level of another factor any of these letters may be the first.
            if level and not re.fullmatch(FOLDER_NAME, f"0{level}"):
                raise ValueError(
                    f"factors.{factor}: names of levels must be letters from A to Z or a to z,"
                    f" digits, '.', '_' and '-'{similar_name(level)}, got {shown(level)}"
                )


def _check_within(keys: DesignKeys) -> None:
    """Raise ValueError unless `within` names factors of [factors], each once."""
    factors = keys.factors or {}
    within = keys.within or []
    if RATE in within and _over_rates(keys):
        raise ValueError(
            f"within must leave out {RATE!r} with tuning.method 'curve', which compares arms at"
            f" every rate anyway, got {within}"
        )
    if within and not factors:
        raise ValueError(f"within must be left out without [factors], got {within}")
    for name in within:
        if name not in factors:
            raise ValueError(
                f"within must be names of factors, got {name!r}; {nearest(name, factors)}"
            )
        if within.count(name) > 1:
            raise ValueError(f"within must name every factor once, got {within}")


def _with_rates(keys: DesignKeys, named: Mapping[str, Options]) -> DesignKeys:
    """Return the keys with the learning rate as one more factor, the last of `within`."""
    factors = keys.factors or {}
    rates = (keys.tuning.rates if keys.tuning else None) or []
    check_rates(rates)
    if RATE in factors:
        raise ValueError(
            f"factors.{RATE} must be left out with tuning.method 'curve', which makes it of"
            f" tuning.rates, got {shown(factors[RATE])}"
        )
    for place, options in _places(factors, named).items():
        given = {RATE, "rates"} & options.keys()
        if given:
            option = min(given)
            raise ValueError(
                f"{place}: {option} must be left out with tuning.method 'curve', as all arms"
                f" have tuning.rates, got {shown(options[option])}"
            )
    return keys.model_copy(
        update={
            "factors": {**factors, RATE: list(rates)},
            "within": [*(keys.within or []), RATE],
        }
    )


def check_rates(rates: Sequence[float]) -> None:
    """Raise ValueError for learning rates that make no curve."""
    if not rates:
        raise ValueError(
            "tuning.rates must be given with tuning.method 'curve', three or more, got none"
        )
    if not all(0 < rate < math.inf for rate in rates):
        raise ValueError(f"tuning.rates must be numbers above 0, got {list(rates)}")
    if len(set(rates)) < len(rates):
        raise ValueError(f"tuning.rates must be all different, got {list(rates)}")
    if len(rates) < LEAST_RATES:
        raise ValueError(
            f"tuning.rates must be {LEAST_RATES} or more with tuning.method 'curve', got"
            f" {list(rates)}; a parabola takes three"
        )


def _places(
    factors: Mapping[str, list[Any] | dict[str, Options]], named: Mapping[str, Options]
) -> dict[str, Options]:
    """Return the options of every arm, and of every level with options, by their place."""
    places = {f"arms.{name}": options for name, options in named.items()}
    for factor, levels in factors.items():
        if isinstance(levels, dict):
            places |= {f"factors.{factor}.{level}": options for level, options in levels.items()}
    return places


def curves_of(arms: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[float, str]]:
    """Return the arms of every curve over learning rates, by the name of the curve and the rate.

    arms: the options of every arm, with its `levels`; those without a level of the rate, or a rate,
    belong to no curve.
    """
    curves: dict[str, dict[float, str]] = {}
    for name, options in arms.items():
        level = (options.get("levels") or {}).get(RATE)
        if level is not None and options.get(RATE) is not None:
            curve = name.removesuffix(f"_{level}")
            curves.setdefault(curve, {})[float(options[RATE])] = name
    return curves


def means_of(
    arms: Mapping[str, Mapping[str, Any]], within: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the arms of every mean over blocks, by its name and the block.

    The name of a mean is that of its arms without the levels of `within`. arms: the options of
    every arm, with its `levels`. There are none without `within`, or with one block, or of curves
    over learning rates, whose rates are a factor of `within`.
    """
    if RATE in within:
        return {}
    means: dict[str, dict[str, str]] = {}
    for name, options in arms.items():
        levels = options.get("levels") or {}
        block = _joined(*(levels[factor] for factor in within if factor in levels))
        short = name.removesuffix(f"_{block}")
        if block:
            means.setdefault(short, {})[block] = name
    kept = {}
    for name, blocks in means.items():
        if len(blocks) > 1 and name not in arms:
            kept[name] = blocks
    return kept


def opposite(
    groups: Mapping[str, Mapping[Any, str]], name: str, against: Callable[[str], str | None]
) -> str | None:
    """Return the curve, or the mean, that `name` is compared with; None for the baseline's.

    groups: as `curves_of` or `means_of` gives them. against: the arm that an arm is compared with.
    """
    others = {against(arm) for arm in groups[name].values()}
    for group, arms in groups.items():
        if others & set(arms.values()):
            return group
    return None


def _design(keys: DesignKeys, named: Mapping[str, Options]) -> "Design":
    """Return the design, its factors known and its number of arms within the limit."""
    factors = {name: _levels_of(name, given) for name, given in (keys.factors or {}).items()}
    within = keys.within or []
    combined = math.prod(len(levels) for levels in factors.values())
    blocks = math.prod(len(factors[name]) for name in within)
    if combined + len(named) * blocks > MOST_ARMS:
        given = "factors and tuning.rates" if _over_rates(keys) else "factors"
        raise ValueError(
            f"{given} must make at most {MOST_ARMS:,} arms, got more; leave out factors or levels"
        )
    return Design(factors, within, named, keys.baseline)


@dataclass(frozen=True)
class Design:
    """Factors crossed: `cells` are combinations of factors outside `within`, `blocks` of those in.

    factors: the options of every level of every factor. named: the options of [arms].
    given_baseline: the `baseline` of the spec.
    """

    factors: Mapping[str, Mapping[str, Options]]
    within: Sequence[str]
    named: Mapping[str, Options]
    given_baseline: str | None

    @cached_property
    def blocks(self) -> dict[str, Levels]:
        """The combinations of the factors of `within`, by name; one without a name if none are."""
        return self._combinations(self.within)

    @cached_property
    def cells(self) -> dict[str, Levels]:
        """The combinations of the other factors, by name; none if all factors are in `within`."""
        crossed = [name for name in self.factors if name not in self.within]
        return self._combinations(crossed) if crossed else {}

    @cached_property
    def cell_of(self) -> dict[str, str]:
        """The cell of every combination of all factors, by its name."""
        return {_joined(cell, block): cell for cell in self.cells for block in self.blocks}

    @cached_property
    def short_names(self) -> list[str]:
        """Names of the arms of a block without its levels: the cells, then the other named arms.

        A named arm in one block adds to the options of that arm there, and is none of its own.
        """
        in_a_block = {_joined(name, block) for name in self.named for block in self.blocks if block}
        known = self.cell_of.keys() | in_a_block
        others = [name for name in self.named if name not in known]
        return list(dict.fromkeys([*self.cells, *others]))

    @property
    def baseline(self) -> str:
        """The baseline of the spec, else the first cell; '' without either."""
        return self.given_baseline or next(iter(self.cells), "")

    @property
    def first_baseline(self) -> str:
        """The baseline of the first block."""
        first_block = next(iter(self.blocks))
        full_names = {_joined(name, block) for name in self.short_names for block in self.blocks}
        return self.baseline if self.baseline in full_names else _joined(self.baseline, first_block)

    def arms(self) -> Options:
        """Return the options of every arm, block by block."""
        arms: Options = {}
        for block in self.blocks:
            full_names = {name: _joined(name, block) for name in self.short_names}
            for name, full in full_names.items():
                _check_new(full, arms)
                arms[full] = self._arm(name, block, full_names)
        return arms

    def _arm(self, name: str, block: str, full_names: Mapping[str, str]) -> Options:
        """Return the options of the arm of that short name in a block, with what it refers to.

        full_names: of the arms of the block, by short name; `match` and `against` mean these.
        """
        levels = {**self.cells.get(name, {}), **self.blocks[block]}
        options = _options_at(self.factors, levels)
        # What [arms] says of all blocks, then what it says of this one.
        for override in dict.fromkeys((name, full_names[name])):
            options = deep_merge(options, self.named.get(override, {}))
        for key in ("match", "against"):
            other = options.get(key)
            if isinstance(other, str):
                options[key] = full_names.get(other, other)
        base_in_block = self.cell_of.get(self.baseline, self.baseline)
        base = full_names.get(base_in_block)
        if base and base != full_names[name] and options.get("against") is None:
            options["against"] = base
        return {**options, "levels": levels}

    def _combinations(self, names: Sequence[str]) -> dict[str, Levels]:
        """Every choice of one level of each of these factors, by the joined labels."""
        combinations: dict[str, Levels] = {}
        for labels in itertools.product(*(self.factors[name] for name in names)):
            joined = _joined(*labels)
            _check_new(joined, combinations)
            combinations[joined] = dict(zip(names, labels, strict=True))
        return combinations


def _check_new(name: str, known: Collection[str]) -> None:
    """Raise ValueError for a name of two combinations, one of which would be left out."""
    if name in known:
        raise ValueError(
            f"factors must make arms of different names, got {name!r} of two combinations; give"
            " a factor a table with other names, LEVEL = { ... }"
        )


def _joined(*parts: str) -> str:
    """The name of labels together; empty ones are left out."""
    return "_".join(part for part in parts if part)


def _levels_of(factor: str, given: list[Any] | dict[str, Options]) -> dict[str, Options]:
    """Return the options of every level of a factor, by label."""
    if isinstance(given, dict):
        levels = given
    else:
        _check_labels(factor, given)
        levels = {_label(value): nested(factor.split("."), value) for value in given}
    if "" in levels:
        raise ValueError(f"factors.{factor} must have levels with names, got ''")
    if len(levels) < 2 or len(levels) != len(given):
        raise ValueError(
            f"factors.{factor} must have two levels or more, all different, got"
            f" {shown(list(given))}"
        )
    return levels


def _check_labels(factor: str, values: Sequence[Any]) -> None:
    """Raise ValueError for two values that would be the same part of an arm's name."""
    by_label: dict[str, Any] = {}
    for value in values:
        label = _label(value)
        if label in by_label and by_label[label] != value:
            raise ValueError(
                f"factors.{factor} must have levels of different names, got {by_label[label]!r} and"
                f" {value!r}, which are both {label!r} in names of arms; give a table with"
                " LEVEL = { ... } for each"
            )
        by_label[label] = value


def _label(value: Any) -> str:
    """Return the value of an option as a part of an arm's name: of a number, all its digits.

    >>> _label(1e6), _label(1e-6), _label(0.1), _label(1000000.5), _label("a b")
    ('1e06', '1e-06', '0.1', '1000000.5', 'a-b')
    """
    text = str(value)
    if isinstance(value, float):
        short = format(value, "g")
        exact = short if float(short) == value else repr(value)
        # Names of arms have no plus sign, and a minus sign in its place is another number.
        text = exact.replace("e+", "e")
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text)


def _options_at(factors: Mapping[str, Mapping[str, Options]], levels: Levels) -> Options:
    """Return the options that one level of each factor stands for together."""
    options: Options = {}
    for name, label in levels.items():
        own = factors[name][label]
        merged = deep_merge(options, own)
        if merged != deep_merge(own, options):
            raise ValueError(
                f"factors.{name}: {label!r} must set what no other factor sets, got {shown(own)};"
                " choose one"
            )
        options = merged
    return options


def nested(place: Iterable[str], value: Any) -> Any:
    """Return {"model": {"gain": value}} for model and gain."""
    for part in reversed(list(place)):
        value = {part: value}
    return value
