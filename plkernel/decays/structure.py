"""Findings from names and sizes: decays that no formula reads, sizes not of config.json."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

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


def like_decays(names: Sequence[str]) -> list[str]:
    """The names that look like those of decays, whether a formula reads them or not.

    Of what a parametrization makes a parameter of, the name of that parameter counts.
    """
    return [name for name in names if LIKE_DECAYS.fullmatch(plain_name(name))]


def unread(checkpoint: Checkpoint, layers: Sequence[Layer]) -> Iterator[Unread]:
    """Tensors named like decays that belong to no layer, and what in them is not finite.

    Of a live model the parameter that a parametrization makes of a tensor has a name too, and is
    read in its place.
    """
    taken: set[str] = set()
    kinds: set[str] = set()
    for layer in layers:
        taken.update(layer.names.values())
        kinds.update(layer.family.tensors.values())
    modules = {layer.module.partition(":")[0] for layer in layers}
    known = names_of(checkpoint.names)
    for name in checkpoint.names:
        plain = plain_name(name)
        if name in taken or not (_is_decay(plain) or LIKE_DECAYS.fullmatch(plain)):
            continue
        if plain != name and plain in checkpoint.names:
            continue
        missing = missing_beside(name, known, kinds)
        parent = name.rpartition(".")[0].removesuffix(".dt_proj")
        if plain != name:
            words = of_parametrised(plain)
            severity = "wrong" if _is_decay(plain) else "notable"
        elif missing and parent not in modules:
            words = f"{missing} is missing beside it, so that no half-life is known"
            severity = "wrong"
        else:
            words = "is named like a decay, but no formula is known for it"
            severity = "wrong" if _is_decay(name) else "notable"
        yield "unread", name, words, severity
        yield from _not_finite(checkpoint, name)


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


def missing_beside(name: str, known: Collection[str], kinds: set[str] | None = None) -> str:
    """Names, in words, of which one must stand beside the tensor `name` and does not; "" if none.

    known: all names, see `names_of`; kinds: templates of the tensors of other layers in the
    checkpoint, which are preferred.
    """
    # Words on what is missing; True if other layers have it.
    lacking: dict[str, bool] = {}
    beside: list[str] = []
    for family in FAMILIES:
        at = _module(name, family)
        if at is None or _any_known(at, family.without, known):
            continue
        if len(family.tensors) < 2:
            if family.beside and not _any_known(at, family.beside, known):
                beside.append(_listed_forms(family.beside, " or "))
            continue
        forms = [form for form in family.tensors.values() if form.format(at=at) not in known]
        if not forms:
            return ""
        if len(forms) == len(family.tensors) - 1:
            words = _listed_forms(forms, " and ")
            is_elsewhere = kinds is not None and kinds.issuperset(forms)
            lacking[words] = lacking.get(words, False) or is_elsewhere
    return " or ".join(_likeliest(lacking) or beside or lacking)


def _any_known(module: str, forms: Sequence[str], known: Collection[str]) -> bool:
    """True if one of these templates names a tensor that the module has."""
    return any(name in known for name in _at(module, forms))


def _listed_forms(forms: Iterable[str], joint: str) -> str:
    """Templates of tensors, without their module, in words."""
    return joint.join(form.removeprefix("{at}.") for form in forms)


def _likeliest(lacking: Mapping[str, bool]) -> list[str]:
    """Of what may be missing, what other layers have; else what is no tensor of RARE."""
    preferred = [words for words, is_elsewhere in lacking.items() if is_elsewhere]
    if preferred:
        return preferred
    return [words for words in lacking if not any(rare in words for rare in RARE)]


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
