"""Findings from names and sizes: decays that no formula reads, sizes not of config.json."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from plkernel.decays.families import (
    COUNTS,
    DECAYS,
    FAMILIES,
    LIKE_DECAYS,
    Family,
    Given,
    in_order,
    names_of,
    of_parametrised,
    plain_name,
)
from plkernel.decays.rates import Layer, number_in
from plkernel.decays.tensors import Checkpoint

EXTRA_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""Names of config.json for layers that are numbered after the others."""
LAYER_KINDS = ("layer_types", "layers_block_type", "hybrid_override_pattern")
"""Names of config.json for lists or texts with the kind of each layer."""
MOST_READ = 2**22
"""Numbers of one tensor without a formula that are looked at for NaN."""
NOT_FINITE = (("NaN", np.isnan), ("-inf", np.isneginf), ("+inf", np.isposinf))
"""Names of findings, and the tests of numbers for them."""
RARE = ("ordered.theta", "log_length", "step_log_length", "zigzag", "log_factor")
"""Tensors of plkernel's models, or of one other layer alone, of which nobody else needs to hear."""
DEFAULTS = {"expand": 2, "d_state": 16, "headdim": 64}
"""Settings of mamba_ssm that its tables in config.json may leave out."""
LARGEST = 2**31
"""From here on a number of config.json is no size."""
Unread = tuple[str, str, str, str]
"""Name, tensor, words and severity of a finding."""
Layout = tuple[str, ...]
"""Templates of the tensors that a layer is read from."""
Groups = Mapping[str, str]
"""What fills a template: the module `at`, and the affix `x` of further decays."""


def like_decays(names: Sequence[str]) -> list[str]:
    """The names that look like those of decays, whether a formula reads them or not.

    Of what a parametrization makes a parameter of, the name of that parameter counts.
    """
    return [name for name in names if LIKE_DECAYS.fullmatch(plain_name(name))]


def unread(checkpoint: Checkpoint, layers: Sequence[Layer]) -> Iterator[Unread]:
    """Tensors that belong to no layer though they belong to decays, and what in them is not finite.

    They are named like decays, or as a part of what other layers of the checkpoint are read from.
    Of a live model the parameter that a parametrization makes of a tensor has a name too, and is
    read in its place.
    """
    read = _Read.of(checkpoint, layers)
    told: set[tuple[str, str]] = set()
    for name in checkpoint.names:
        if name in read.tensors or _is_of_parametrization(name, checkpoint):
            continue
        left = _left_over(name, read)
        if left is None:
            continue
        if left.missing:
            lack = (left.module, left.missing)
            is_repeated = lack in told and not _is_named_like_decay(name)
            told.add(lack)
            if is_repeated:  # as of all that stands beside what is missing
                continue
        yield "unread", name, left.words, left.severity
        yield from _not_finite(checkpoint, name)


class _Read(NamedTuple):
    """Names that layers were read from, and all names of their checkpoint.

    tensors  names that layers were read from
    layouts  templates of these, by layer
    layers   modules of the layers, with an affix where there is one
    modules  the same without it
    known    names of the checkpoint, see `names_of`
    """

    tensors: Collection[str]
    layouts: Collection[Layout]
    layers: Collection[str]
    modules: Collection[str]
    known: Collection[str]

    @classmethod
    def of(cls, checkpoint: Checkpoint, layers: Sequence[Layer]) -> "_Read":
        modules = {layer.module for layer in layers}
        return cls(
            tensors={name for layer in layers for name in layer.names.values()},
            layouts={_layout(layer.family) for layer in layers},
            layers=modules,
            modules={module.partition(":")[0] for module in modules},
            known=names_of(checkpoint.names),
        )


class _LeftOver(NamedTuple):
    """Words on a tensor that no layer was read from, their severity, and what is missing beside it
    in its module, if that is why.
    """

    words: str
    severity: str
    module: str = ""
    missing: str = ""


def _left_over(name: str, read: _Read) -> _LeftOver | None:
    """Why a tensor that belongs to decays was not read; None for one that does not belong there."""
    is_named_so = _is_named_like_decay(name)
    at = _module_elsewhere(name, read.layouts)
    if not is_named_so and at is None:
        return None
    plain = plain_name(name)
    if plain != name:
        severity = "wrong" if _is_decay(plain) else "notable"
        return _LeftOver(of_parametrised(plain), severity)
    parent = name.rpartition(".")[0].removesuffix(".dt_proj")
    missing = missing_beside(name, read.known, read.layouts)
    if missing and (at is not None or parent not in read.modules):
        other = "its half-lives are of another formula"
        so_that = other if at in read.layers else "no half-life is known"
        words = f"{missing} is missing beside it, so that {so_that}"
        return _LeftOver(words, "wrong", at or parent, missing)
    if is_named_so:
        severity = "wrong" if _is_decay(name) else "notable"
        return _LeftOver("is named like a decay, but no formula is known for it", severity)
    return None


def _is_of_parametrization(name: str, checkpoint: Checkpoint) -> bool:
    """True for the parameter of a parametrization whose tensor has a name of its own."""
    plain = plain_name(name)
    return plain != name and plain in checkpoint.names


def _is_named_like_decay(name: str) -> bool:
    """True if the name, or that of the tensor of a parametrization, is one that decays have."""
    plain = plain_name(name)
    return _is_decay(plain) or LIKE_DECAYS.fullmatch(plain) is not None


def _is_decay(name: str) -> bool:
    """True if the last part of a name is one that only decays have."""
    return name.rpartition(".")[2] in DECAYS


def _not_finite(checkpoint: Checkpoint, name: str) -> Iterator[Unread]:
    """Findings of NaN and infinities in a tensor; none where it cannot be read, or is too large."""
    try:
        if checkpoint.size(name) > MOST_READ:
            return
        values = checkpoint.read(name).values
    except ValueError:  # of integers, or of a live model whose tensors are elsewhere
        return
    for kind, test in NOT_FINITE:
        where = test(values)
        if where.any():
            words = f"{np.count_nonzero(where):,} of {where.size:,}"
            yield kind, name, words, "wrong"


def missing_beside(
    name: str, known: Collection[str], layouts: Collection[Layout] | None = None
) -> str:
    """Names, in words, of which one must stand beside the tensor `name` and does not; "" if none.

    known: all names, see `names_of`; layouts: those of other layers in the checkpoint, which are
    preferred, and of which more than one tensor may be missing.
    """
    # Words on what is missing; True if other layers have it.
    lacking: dict[str, bool] = {}
    beside: list[str] = []
    for family in FAMILIES:
        is_elsewhere = layouts is not None and _layout(family) in layouts
        groups = _groups(name, family)
        if groups is None or (family.is_further and not is_elsewhere):
            continue
        if _any_known(groups, family.without, known):
            continue
        if len(family.tensors) < 2:
            if family.beside and not _any_known(groups, family.beside, known):
                beside.append(_listed_forms(family.beside, " or ", groups))
            continue
        forms = [form for form in family.tensors.values() if form.format(**groups) not in known]
        if not forms:
            return ""
        if is_elsewhere or len(forms) == len(family.tensors) - 1:
            words = _listed_forms(forms, " and ", groups)
            lacking[words] = lacking.get(words, False) or is_elsewhere
    return " or ".join(_likeliest(lacking) or beside or lacking)


def _layout(family: Family) -> Layout:
    """Templates of the tensors that a family is read from."""
    return tuple(family.tensors.values())


def _module_elsewhere(name: str, layouts: Collection[Layout]) -> str | None:
    """Module of a tensor named as one of several that other layers are read from, or None."""
    for family in FAMILIES:
        layout = _layout(family)
        groups = _groups(name, family) if len(layout) > 1 and layout in layouts else None
        if groups is not None:
            return ":".join(groups.values())
    return None


def _any_known(groups: Groups, forms: Sequence[str], known: Collection[str]) -> bool:
    """True if one of these templates names a tensor that is there."""
    return any(form.format(**groups) in known for form in forms)


def _listed_forms(forms: Iterable[str], joint: str, groups: Groups) -> str:
    """Templates of tensors, without their module, in words."""
    names = [form.removeprefix("{at}.").format(**groups) for form in forms]
    return joint.join(names)


def _likeliest(lacking: Mapping[str, bool]) -> list[str]:
    """Of what may be missing, what other layers have; else what is no tensor of RARE."""
    preferred = [words for words, is_elsewhere in lacking.items() if is_elsewhere]
    if preferred:
        return preferred
    return [words for words in lacking if not any(rare in words for rare in RARE)]


def _groups(name: str, family: Family) -> Groups | None:
    """What fills the templates of a family, if the tensor `name` may be one of its first decays."""
    for pattern in _patterns(_layout(family)):
        match = pattern.fullmatch(name)
        if match:
            return match.groupdict()
    return None


@cache
def _patterns(layout: Layout) -> tuple[re.Pattern[str], ...]:
    """What the names of these templates match; none of a family whose tensors all layers share.

    A template without an affix, beside others that have one, does not say which it is.
    """
    if any("{model}" in form for form in layout):
        return ()
    has_affix = any("{x}" in form for form in layout)
    patterns = []
    for form in layout:
        if has_affix and "{x}" not in form:
            continue
        text = re.escape(form).replace(r"\{at\}", "(?P<at>.+)")
        patterns.append(re.compile(text.replace(r"\{x\}", "(?P<x>[a-zA-Z0-9]+)")))
    return tuple(patterns)


def why_unknown(names: Sequence[str]) -> str:
    """Why no layer is known among `names`: what is missing beside a tensor of decays, or ""."""
    known = names_of(names)
    ordered = sorted(names, key=in_order)
    for name in like_decays(ordered):
        plain = plain_name(name)
        if plain != name:
            return f"{name} {of_parametrised(plain)}"
    for name in ordered:
        missing = missing_beside(name, known)
        if missing:
            return f"{missing} is missing beside {name}"
    others = like_decays(ordered)
    if others:
        return f"no formula is known for {', '.join(others[:3])}, which are named like decays"
    return ""


def sizes(checkpoint: Checkpoint, layer: Layer) -> Iterator[tuple[str, str]]:
    """Tensors and words where their channels or states are not those of config.json.

    Also of the tensors beside that are as wide as the decays which config.json defines.
    """
    given = layer.given
    for role, stored in layer.tensors.items():
        shape = stored.values.shape
        states = layer.family.states.get(role, [])
        rows = math.prod(shape[:-1]) if states else math.prod(shape)
        last = shape[-1] if shape else 1
        channels = layer.family.channels.get(role, [])
        found = [
            *_otherwise(given, states, last, "states"),
            *_otherwise(given, channels, rows, "channels"),
        ]
        if found:
            words = f"has shape {shape}, and config.json says {' and '.join(found)}"
            yield layer.names[role], words
    for form, settings in layer.family.widths.items():
        name = form.format(at=layer.module)
        held = _numbers(checkpoint, name)
        if not held:
            continue
        for words in _otherwise(given, settings, held, "numbers"):
            yield name, f"holds {held:,} numbers, and config.json says {words}"


def _numbers(checkpoint: Checkpoint, name: str) -> int:
    """Number of values in a tensor; 0 if it is absent, or quantised and so perhaps packed."""
    if name not in checkpoint.names:
        return 0
    try:
        return checkpoint.size(name)
    except ValueError:
        return 0


def _otherwise(given: Given, settings: Sequence[str], held: int, unit: str) -> Iterator[str]:
    """The sizes of config.json in words where `held` is none of them.

    A size that is no integer may be rounded either way.
    """
    sizes_named = [_size(given, one) for one in settings]
    stated = [size for size in sizes_named if size]
    if stated and not any(abs(held - size) < 1 for size in stated):
        said = " or ".join(f"{size:,g}" for size in dict.fromkeys(stated))
        yield f"{said} {unit}"


def _size(given: Given, stated: str) -> float:
    """The first of the sizes before and after every `else` whose settings config.json has, or 0."""
    for one in stated.split(" else "):
        size = _quotient(given, one)
        if size:
            return size
    return 0.0


def _quotient(given: Given, names: str) -> float:
    """Product of settings of config.json, over that of those after a slash; 0 if one is absent."""
    above, _, below = names.partition(" / ")
    divisor = _product(given, below)
    return _product(given, above) / divisor if divisor else 0.0


def _product(given: Given, names: str) -> float:
    """Product of settings whose names are apart by spaces; 1 of none."""
    return math.prod(_setting(given, name) for name in names.split())


def _setting(given: Given, name: str) -> float:
    """A positive number of config.json, of a table in it if the name has a dot; 0 if absent.

    A number stands for itself.
    """
    if name.isdecimal():
        return float(name)
    first, _, inner = name.partition(".")
    value = given.setting(first)
    if inner:
        value = value.get(inner, DEFAULTS.get(inner)) if isinstance(value, Mapping) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < LARGEST else 0.0


def layers_of(config: Mapping[str, object]) -> int:
    """Number of layers by config.json, a number or what has an entry for each; 0 if none."""
    given = Given({}, config, 0)
    for name in COUNTS:
        value = given.setting(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    for name in LAYER_KINDS:
        value = given.setting(name)
        if isinstance(value, list | str) and value:
            return len(value)
    return 0


def too_many(held: int, config: Mapping[str, object], wanted: int) -> str:
    """Words if `held` layers are more than the `wanted` of config.json, or ""."""
    given = Given({}, config, 0)
    extra = max(_setting(given, name) for name in EXTRA_LAYERS)
    if wanted and held > wanted + extra:
        return f"{wanted} layers, and there are tensors of {held}"
    return ""


def row_labels(modules: Sequence[str]) -> list[str]:
    """A label for each row of a table: the layer's number, and what tells its module apart.

    >>> row_labels(["m.layers.0.fwd.ssm", "m.layers.0.rev.ssm", "m.layers.1.fwd.ssm"])
    ['0 fwd', '0 rev', '1']
    """
    numbers = [number_in(module) for module in modules]
    first = [str(index) if one is None else one for index, one in enumerate(numbers)]
    labels = []
    for label, module in zip(first, modules, strict=True):
        alike = [one for one, other in zip(modules, first, strict=True) if other == label]
        labels.append(label if len(alike) == 1 else f"{label} {_apart(module, alike)}")
    return labels


def _apart(module: str, alike: Sequence[str]) -> str:
    """The parts of a name that others do not have at its head or tail; the name if none are."""
    names = [one.split(".") for one in alike]
    parts = module.split(".")
    head = _common(names)
    tail = _common([one[head:][::-1] for one in names])
    own = parts[head : len(parts) - tail]
    if head and own and own[0].isdecimal():  # a number alone does not say of what
        own = [parts[head - 1], *own]
    return ".".join(own) or module


def _common(names: Sequence[Sequence[str]]) -> int:
    """Number of first parts that all names share."""
    count = 0
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        count += 1
    return count
