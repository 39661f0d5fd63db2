"""Layers with decays of a checkpoint: their rates, half-lives in tokens, and kernels."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from plkernel.decays.families import FAMILIES, Family, Floats, Given, in_order, names_of
from plkernel.decays.memory import QUANTILES
from plkernel.decays.own import MAIN, Misfit, Statement, check_levels, own_layers
from plkernel.decays.tensors import Checkpoint, Stored

LAGS: Floats = np.exp2(np.arange(13.0))
"""Tokens at which kernels are known: 1, 2, 4 .. 4096."""
NUMBERED = re.compile(r"(?:^|\.)(?:layers?|blocks|blk|h)\.(?P<number>\d{1,6})(?=\.)", re.ASCII)
"""The number of a layer in a name, as in layers.3.mixer."""
AFFIXED = re.compile(r"(?:^|\.)\w+_(?:layers?|blocks)\.(?P<number>\d{1,6})(?=\.)", re.ASCII)
"""The number of a layer in a name with an affix, as in s4_layers.3.mixer, where none is
NUMBERED.
"""
ANY_NUMBER = re.compile(r"(?:^|\.)(?P<number>\d{1,6})(?=\.)", re.ASCII)
"""A number in a name, which is that of the layer where none is NUMBERED or AFFIXED."""
MOST_LAYERS = 1000
"""Layers with decays of one checkpoint; the largest published has half as many."""
MOST_NUMBERS = 2**25
"""Numbers in the tensors of decays of one checkpoint; the largest published has half as many."""


@dataclass(frozen=True)
class Layer:
    """One module that remembers; ValueError if the shapes of its tensors do not fit one another.

    names            of its tensors, by role
    tensors          by role
    position         token at which rates that depend on it are stated; None for the length of
                     training
    tokens_per_step  tokens of one step of the recurrence, more than 1 where it runs over patches
    rates            -ln a per token of every channel, which follow from the others
    """

    module: str
    family: Family
    names: Mapping[str, str]
    tensors: Mapping[str, Stored]
    config: Mapping[str, object]
    position: float | None = None
    tokens_per_step: int = 1
    rates: Floats = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", self.rates_of())

    @property
    def number(self) -> int:
        """Number of the layer in its name; 0 if there is none."""
        return _number_of(self.module)

    @property
    def _head(self) -> str:
        """Begins a message about the layer; empty for a layer without a parent."""
        return f"{self.module}: " if self.module else ""

    @property
    def given(self) -> Given:
        """Input of the layer's formula."""
        return self._given({})

    def rates_of(self, **others: Floats) -> Floats:
        """Rates with other numbers for some roles; ValueError if shapes do not fit one another."""
        given = self._given(others)
        try:
            with np.errstate(all="ignore"):
                per_step = np.atleast_1d(self.family.rate(given))
                return per_step / self.tokens_per_step
        except Misfit as error:
            if others:  # for which a function of the user may not be made
                return np.full_like(self.rates, np.nan)
            raise Misfit(f"{self._head}{error}") from error
        except (ValueError, IndexError, TypeError) as error:  # too few dimensions: the last two
            held = [f"{self.names[role]} {array.shape}" for role, array in given.tensors.items()]
            raise ValueError(
                f"{self._head}tensors must have the shapes of {self.family.name}, got"
                f" {', '.join(held) or 'none'} ({error})"
            ) from error

    def _given(self, others: Mapping[str, Floats]) -> Given:
        """Input of the formula with other numbers for some roles, at the step of the position."""
        values = {role: others.get(role, stored.values) for role, stored in self.tensors.items()}
        step = self.position
        if step is not None:
            step = max(1.0, step / self.tokens_per_step)
        return Given(values, self.config, self.number, step)


Located = tuple[str, Family, dict[str, str]]
"""Of a layer: its module, its family, and the names of its tensors by role."""


def located_layers(
    checkpoint: Checkpoint, stated: Sequence[Statement] = (), head: str = ""
) -> list[Located]:
    """All layers of known families, and those that are stated, by names of tensors alone, in order.

    head: begins all names, and is no part of what patterns are held against. A family does not read
    a tensor that a statement does.
    """
    known = _of_families(checkpoint)
    own = own_layers(checkpoint.names, stated, head)
    taken = {tensors[MAIN] for _, _, tensors in own}
    left = [one for one in known if taken.isdisjoint(one[2].values())]
    if not own:
        return known
    return sorted([*left, *_apart(own, left)], key=lambda one: _number_of(one[0]))


def _apart(own: Sequence[Located], known: Sequence[Located]) -> list[Located]:
    """Stated layers, their modules with the name of the tensor where a module has several."""
    modules = Counter(module for module, _, _ in (*own, *known))
    layers = []
    for module, family, tensors in own:
        last = tensors[MAIN].rpartition(".")[2]
        label = module if modules[module] == 1 else f"{module}:{last}"
        layers.append((label, family, tensors))
    return layers


def _of_families(checkpoint: Checkpoint) -> list[Located]:
    """All layers of known families by the names of tensors alone, in order."""
    known = names_of(checkpoint.names)
    types = Given({}, checkpoint.config, 0).model_types
    families = []
    for family in FAMILIES:
        if not family.models or types.intersection(family.models):
            families.append((re.compile(family.anchor), family))
    matched: list[Located] = []
    for name in sorted(known, key=lambda one: (_number_of(one), in_order(one))):
        for pattern, family in families:
            match = pattern.fullmatch(name)
            found = match and _located(name, match.groupdict(), family, known, types)
            if found:
                matched.append(found)
                break
    return matched


def _located(
    name: str,
    groups: Mapping[str, str],
    family: Family,
    known: Mapping[str, str],
    types: Collection[str],
) -> Located | None:
    """The layer of `family` that the tensor `name` belongs to; None if it is of another family."""
    wanted = {role: form.format(**groups) for role, form in family.tensors.items()}
    if not all(one in known for one in wanted.values()):
        return None
    if not _fits(family, groups, known, types):
        return None
    module = groups.get("at") or name.rpartition(".")[0]
    if "x" in groups:
        module = f"{module}:{groups['x']}"
    return module, family, {role: known[one] for role, one in wanted.items()}


def _fits(
    family: Family, groups: Mapping[str, str], known: Collection[str], types: Collection[str]
) -> bool:
    """True if the names beside a tensor, or the type of the model, are those of a family."""
    beside = [form.format(**groups) for form in family.beside]
    without = [form.format(**groups) for form in family.without]
    if any(one in known for one in without):
        return False
    is_decided = any(one in types for one in family.decides)
    return is_decided or not beside or any(one in known for one in beside)


def known_layers(
    checkpoint: Checkpoint, stated: Sequence[Statement] = (), head: str = ""
) -> list[Layer]:
    """All layers of known families, and those that are stated, in order; see `located_layers`."""
    matched = located_layers(checkpoint, stated, head)
    if len(matched) > MOST_LAYERS:
        raise ValueError(
            f"layers with decays must be at most {MOST_LAYERS:,}, got {len(matched):,}"
        )
    check_levels(matched, checkpoint.names, checkpoint.size)
    numbers = 0
    for _, _, wanted in matched:
        numbers += sum(checkpoint.size(name) for name in wanted.values())
    if numbers > MOST_NUMBERS:
        raise ValueError(
            f"tensors of decays must hold at most {MOST_NUMBERS:,} numbers, got {numbers:,}"
        )
    layers = []
    for module, family, wanted in matched:
        tensors = {role: checkpoint.read(one) for role, one in wanted.items()}
        try:
            layers.append(Layer(module, family, wanted, tensors, checkpoint.config))
        except ValueError:
            if not family.is_further:  # else findings say that it is unread
                raise
    return layers


def half_lives(rates: Floats) -> Floats:
    """ln 2 / rate in tokens: 0 for a decay of 0, inf for one of 1, NaN if unknown or growing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rates >= 0, np.log(2.0) / np.abs(rates), np.nan)


def quantiles(rates: Floats, levels: Sequence[float] = QUANTILES, method: str = "linear") -> Floats:
    """Quantiles (len(levels),) of the known half-lives; NaN if there are none."""
    known = half_lives(rates).ravel()
    known = known[~np.isnan(known)]
    if not known.size:
        return np.full(len(levels), np.nan)
    if method == "linear" and not np.isfinite(known).all():
        method = "nearest"  # between a number and infinity nothing can be interpolated
    return np.quantile(known, levels, method=method)  # type: ignore[call-overload, no-any-return]


def kernel(rates: Floats, lags: Floats = LAGS) -> Floats:
    """sqrt(mean a**(2 t)) over the channels with a known decay, at every lag t; (T,)."""
    known = rates[~np.isnan(rates)]
    if not known.size:
        return np.full(len(lags), np.nan)
    slowest = float(known.min())
    if not np.isfinite(slowest):
        return np.full(len(lags), 0.0 if slowest > 0 else np.inf)
    with np.errstate(over="ignore"):  # of decays that grow
        means = np.array([np.exp(-2.0 * lag * (known - slowest)).mean() for lag in lags])
        return np.exp(-slowest * lags) * np.sqrt(means)


def number_in(name: str) -> str | None:
    """The number of the layer in the name of a module, of its further decays or of a tensor."""
    whole = f"{name.partition(':')[0]}."
    match = said_number(whole) or ANY_NUMBER.search(whole)
    return match["number"] if match else None


def said_number(name: str) -> re.Match[str] | None:
    """The number in a name that is said to be that of a layer."""
    return NUMBERED.search(name) or AFFIXED.search(name)


def _number_of(name: str) -> int:
    """The number of the layer that a module or tensor belongs to; 0 without one."""
    return int(number_in(name) or 0)
