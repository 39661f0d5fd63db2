"""What names and sizes of a checkpoint say: decays that no formula reads, and sizes that are not
those of config.json.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from plkernel.decays.families import (
    DECAYS,
    FAMILIES,
    LIKE_DECAYS,
    Family,
    Given,
    names_of,
)
from plkernel.decays.rates import NUMBERED, Layer
from plkernel.decays.tensors import Checkpoint

EXTRA_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""Names of config.json for layers that are numbered after the others."""
MOST_READ = 2**22
"""Numbers of one tensor without a formula that are looked at for NaN."""
NOT_FINITE = (("NaN", np.isnan), ("-inf", np.isneginf), ("+inf", np.isposinf))
Unread = tuple[str, str, str, str]
"""Name, tensor, words and severity of a finding."""


def like_decays(names: Sequence[str]) -> list[str]:
    """The names that look like those of decays, whether a formula reads them or not."""
    return [name for name in names if LIKE_DECAYS.fullmatch(name)]


OWN = ("ordered.theta", "log_length", "zigzag")
"""Tensors of plkernel's models alone, of which nobody else needs to hear."""


def unread(checkpoint: Checkpoint, layers: Sequence[Layer]) -> Iterator[Unread]:
    """Tensors that are named like decays and belong to no layer, and numbers in them that are not
    finite.
    """
    taken = {name for layer in layers for name in layer.names.values()}
    modules = {layer.module.partition(":")[0] for layer in layers}
    families = {layer.family.name: layer.family for layer in layers}
    kinds = {form for family in families.values() for form in family.tensors.values()}
    known = names_of(checkpoint.names)
    for name in checkpoint.names:
        if name in taken or not (_is_decay(name) or LIKE_DECAYS.fullmatch(name)):
            continue
        missing = missing_beside(name, known, kinds)
        if missing and name.rpartition(".")[0].removesuffix(".dt_proj") not in modules:
            words = f"{missing} is missing beside it, so that no half-life is known"
            yield "unread", name, words, "wrong"
        else:
            words = "is named like a decay, but no formula is known for it"
            yield "unread", name, words, "wrong" if _is_decay(name) else "notable"
        yield from _not_finite(checkpoint, name)


def _is_decay(name: str) -> bool:
    return name.rpartition(".")[2] in DECAYS


def _not_finite(checkpoint: Checkpoint, name: str) -> Iterator[Unread]:
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


def missing_beside(name: str, known: Collection[str], kinds: set[str] | None = None) -> str:
    """Names, in words, of which one must stand beside the tensor `name` and does not; "" if none.

    known: all names, see `names_of`; kinds: templates of the tensors of other layers in the
    checkpoint, which are preferred.
    """
    lacking: dict[str, bool] = {}
    beside: list[str] = []
    for family in FAMILIES:
        at = _module(name, family)
        if at is None or any(form in known for form in _at(at, family.without)):
            continue
        if len(family.tensors) < 2:
            if family.beside and not any(form in known for form in _at(at, family.beside)):
                words = " or ".join(form.removeprefix("{at}.") for form in family.beside)
                beside.append(words)
            continue
        forms = [form for form in family.tensors.values() if form.format(at=at) not in known]
        if not forms:
            return ""
        if len(forms) == len(family.tensors) - 1:
            words = " and ".join(form.removeprefix("{at}.") for form in forms)
            lacking[words] = lacking.get(words, False) or bool(kinds and kinds.issuperset(forms))
    preferred = [words for words, same in lacking.items() if same]
    others = [words for words in lacking if not any(own in words for own in OWN)]
    return " or ".join(preferred or others or beside or lacking)


def _at(module: str, forms: Sequence[str]) -> list[str]:
    """Names in a module from templates that need no more than it."""
    return [form.format(at=module) for form in forms if "{x}" not in form and "{model}" not in form]


def _module(name: str, family: Family) -> str | None:
    """Module of the tensor `name`, if it may be one of the first decays of `family`."""
    forms = list(family.tensors.values())
    if any("{x}" in form or "{model}" in form for form in forms):
        return None
    for tail in (form.removeprefix("{at}") for form in forms):
        if name.endswith(tail) and len(name) > len(tail):
            return name.removesuffix(tail)
    return None


def why_unknown(names: Sequence[str]) -> str:
    """Why no layer is known among `names`: what is missing beside a tensor of decays, or ""."""
    known = names_of(names)
    for name in sorted(names):
        missing = missing_beside(name, known)
        if missing:
            return f"{missing} is missing beside {name}"
    others = like_decays(sorted(names))
    if others:
        return f"no formula is known for {', '.join(others[:3])}, which are named like decays"
    return ""


def sizes(layer: Layer) -> Iterator[tuple[str, str]]:
    """A tensor and words where its channels or states are not those of config.json."""
    role = next(iter(layer.tensors), None)
    if role is None or not layer.family.channels:
        return
    shape = layer.tensors[role].values.shape
    given = Given({}, layer.config, layer.number)
    found = [
        *_other_states(layer.family, given, shape),
        *_other_channels(layer.family, given, shape),
    ]
    if found:
        yield layer.names[role], f"has shape {shape}, and config.json says {' and '.join(found)}"


def _other_states(family: Family, given: Given, shape: Sequence[int]) -> Iterator[str]:
    """How many states config.json says, where a tensor of this shape has others."""
    named = (_setting(given, one) for one in family.states)
    states = [size for size in named if size]
    if states and shape and shape[-1] not in states:
        yield f"{states[0]:g} states"


def _other_channels(family: Family, given: Given, shape: Sequence[int]) -> Iterator[str]:
    """How many channels config.json says, where a tensor of this shape has others."""
    named = (_product(given, one) for one in family.channels)
    channels = [size for size in named if size]
    held = math.prod(shape[:-1]) if family.states else math.prod(shape)
    if channels and held not in channels:
        yield f"{channels[0]:g} channels"


def _product(given: Given, names: str) -> int:
    """Product of the settings of config.json; 0 if one is absent."""
    return int(math.prod(_setting(given, name) for name in names.split()))


def _setting(given: Given, name: str) -> float:
    """A positive number of config.json, of a table in it if the name has a dot; 0 if absent."""
    first, _, inner = name.partition(".")
    value = given.setting(first)
    if inner:
        defaults = {"expand": 2, "d_state": 16}  # of mamba_ssm
        value = value.get(inner, defaults.get(inner)) if isinstance(value, Mapping) else None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < 2**31 else 0.0


def too_many(modules: Sequence[str], config: Mapping[str, object], wanted: int) -> str:
    """Words if layers with decays are numbered beyond the `wanted` of config.json, or ""."""
    given = Given({}, config, 0)
    extra = max(_setting(given, name) for name in EXTRA_LAYERS)
    held = 1 + max((int(number_in(one) or 0) for one in modules), default=0)
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


def number_in(module: str) -> str | None:
    """The number of the layer in the name of its module."""
    match = NUMBERED.search(f"{module.partition(':')[0]}.")
    return match[1] if match else None


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
    """How many first parts all names share."""
    count = 0
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        count += 1
    return count
