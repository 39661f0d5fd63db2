"""Faults in the decays of a checkpoint, and what in them is worth a look."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plkernel.analysis.parametrisations import softplus
from plkernel.decays.families import Family, Floats, Given, gate_bound, kimi
from plkernel.decays.plausible import LONGEST, transformed
from plkernel.decays.rates import ANY_NUMBER, NUMBERED, Layer, half_lives, said_number
from plkernel.decays.structure import NOT_FINITE, layers_of, sizes, too_many, unread
from plkernel.decays.tensors import Checkpoint, rounded, spacing

MOST_FOREVER = 0.5
"""Share of half-lives above LONGEST from which on a layer that no training has reached is wrong."""
LARGEST_SHIFT = 0.02
"""Relative change of a half-life by rounding; a larger one is a finding."""
ONE_TOKEN = 1.0 - LARGEST_SHIFT
"""Half-life in tokens from which on it is none below one token: one that rounding may have left."""
HALF_PRECISION = ("bfloat16", "float16")
COMPUTED = 1e-6
"""Relative difference that computing an initialisation in float32 leaves: 8 roundings of 2**-23."""
BY_LOGARITHM = 1e-5
"""The same of a formula with exponentials and logarithms: 84 roundings."""
SAME_NUMBER = 1e-7
"""Relative difference below the distance of two numbers in float32: what is stored did not move."""
LOW_PRECISION = (*HALF_PRECISION, "float8_e4m3fn", "float8_e5m2")
BITS_BY_CHANCE = 10.0
"""Binary digits that all numbers of a tensor lack together, from which on this is no chance."""
LARGE_PART = 0.25
"""Share of a tensor from which on numbers that are as they began, or equal, may be no chance."""
FEWEST_RESET = 4
"""Numbers of a tensor, and different ones of a formula, from which on they are no coincidence."""
MOST_FREQUENT = 2
"""Times that one number is as frequent as any other, from which on it is no pattern."""
NEARLY_EQUAL = 1e-4
"""Relative difference of half-lives below which they are called equal."""
MAY_BE_INITIAL = ("zeros", "all equal", "reset", "identical layers")
"""Findings that are no fault where the initialisation is not known."""
CONSTANT = ("zeros", "all equal")
"""Findings of one number in all of a tensor; the latter also of all half-lives, then wrong."""
KEPT_IN_FLOAT32 = ("bailing_hybrid", "glm5_next")
"""Model types whose A_log and dt_bias transformers loads in float32, whatever config.json says."""
STEPS = ("dt_bias", "log_dt", "log_step")
"""Roles of time steps: one step for all channels is a design where levels are evenly spaced."""
FEWEST_STEPS = 3
"""Steps between neighbours from which on their turning points tell anything."""
GAPS = "delta"
"""Role of the gaps between the levels of ordered decays, before softplus."""
DRAWN_STEPS = (0.001, 0.1)
"""Time steps between which the official code of Mamba draws them."""
LENGTH = "log_length"
"""Role of ln T of decays that depend on the position."""
CHANCE = 3.1
"""Standard deviations that a normal variable is below its mean once in 2**BITS_BY_CHANCE."""


class Finding(NamedTuple):
    """One thing that is wrong, or worth a look, in a tensor, a module or the checkpoint.

    name      the kind of finding
    tensor    the tensor or tensors, the module, or config.json
    seen      what was seen, in words
    severity  "wrong", or "notable" for what healthy models have too: very short and very long
              half-lives, and numbers that are as the official code initialises them
    """

    name: str
    tensor: str
    seen: str
    severity: str = "wrong"


def findings(checkpoint: Checkpoint, layers: Sequence[Layer]) -> list[Finding]:
    """Everything wrong or notable in the tensors and half-lives of `layers`, and in names."""
    count = 1 + max((layer.number for layer in layers), default=0)
    seen: list[Finding] = []
    moved: list[tuple[str, str]] = []
    constant = constant_in_all(layers)
    for layer in layers:
        started = official_starts(layer, count)
        if layer.family.fixed is None and len(started) < len(layer.tensors):
            moved.append((layer.family.name, _root(layer.module)))
        of_tensors = unless_designed(_of_tensors(layer, started, count), constant)
        seen += _as_owned(layer.family, of_tensors)
        seen += _as_owned(layer.family, _of_half_lives(layer, started))
        seen += _as_owned(layer.family, _of_dtype(layer, started))
    for kind in dict.fromkeys(moved):
        alike = [one for one in layers if (one.family.name, _root(one.module)) == kind]
        seen += _as_owned(alike[0].family, _identical(alike))
    seen += [Finding(*one) for one in unread(checkpoint, layers)]
    for layer in layers:
        seen += [Finding("shape", *one) for one in sizes(checkpoint, layer)]
    seen += [Finding("transformed", *one) for one in transformed(layers)]
    seen += _of_names(checkpoint, [layer.module for layer in layers])
    seen += _of_copies(checkpoint)
    return list(dict.fromkeys(seen))  # a tensor that several layers share is reported once


def _as_owned(family: Family, seen: Iterable[Finding]) -> Iterator[Finding]:
    """Findings of a family; of somebody's own, what an initialisation may give is notable."""
    for one in seen:
        if family.own and one.name in MAY_BE_INITIAL:
            yield one._replace(severity="notable")
        else:
            yield one


def constant_in_all(layers: Sequence[Layer]) -> set[str]:
    """Names of the tensors of one number whose role holds one number in all layers of a family."""
    varying = set()
    for layer in layers:
        for role, stored in layer.tensors.items():
            if _vary(stored.values):
                varying.add((layer.family.name, role))
    return {
        name
        for layer in layers
        for role, name in layer.names.items()
        if (layer.family.name, role) not in varying
    }


def unless_designed(seen: Iterable[Finding], designed: Collection[str]) -> Iterator[Finding]:
    """Findings, those of one number in a tensor that is not among the `designed` as wrong.

    A design holds in all layers, and from the start.
    """
    for one in seen:
        is_fault = one.name in CONSTANT and one.tensor not in designed
        yield one._replace(severity="wrong") if is_fault else one


def _root(module: str) -> str:
    """The name of a module before the number of its layer; without one, its first part.

    Layers under different roots are of different models, or one is a copy of the other, as the
    average that training code keeps beside a model.
    """
    whole = f"{module.partition(':')[0]}."
    match = said_number(whole) or ANY_NUMBER.search(whole)
    if match:
        return whole[: match.start("number")]
    first, dot, _ = module.partition(".")
    return f"{first}{dot}" if dot else ""


def _of_copies(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Weights of the same names in a file, of which one copy was read."""
    for copy in checkpoint.copies:
        words = f"holds weights of the same names, and those of {checkpoint.part} were read"
        yield Finding("not read", copy, words, "notable")


def _identical(layers: Sequence[Layer]) -> Iterator[Finding]:
    """All layers of a family under one root with the same decays.

    Notable if a formula placed them.
    """
    rates = layers[0].rates
    if len(layers) < 2 or not all(np.array_equal(rates, one.rates) for one in layers):
        return
    words = f"all {len(layers)} layers have the same decays"
    severity = "notable" if _are_placed(rates) else "wrong"
    yield Finding("identical layers", layers[0].module, words, severity)


def _are_placed(rates: Floats) -> bool:
    """True if a formula of the channel placed the rates, and no training has moved them apart.

    Either their logarithms are evenly spaced, in any order; or they rise and fall along every
    dimension more smoothly than by chance: evenly or at the quantiles of a law, in every head anew,
    with the zigzag of RWKV-7.
    """
    with np.errstate(divide="ignore"):  # a rate may be 0
        levels = np.log(np.abs(rates))
    if not np.isfinite(levels).all() or np.ptp(levels) < NEARLY_EQUAL:
        return False
    if _are_even(levels):
        return True
    lines = [np.moveaxis(levels, axis, -1) for axis in range(levels.ndim)]
    telling = [one for one in lines if one.shape[-1] > FEWEST_STEPS]
    return bool(telling) and all(_are_smooth(one) for one in telling)


def _are_even(levels: Floats) -> bool:
    """True if three or more different levels are evenly spaced, in any order."""
    steps = np.diff(np.sort(levels, axis=None))
    if steps.size < 2 or not np.isfinite(steps).all():
        return False
    return bool(np.ptp(steps) < NEARLY_EQUAL < steps.max())


def _is_of_post(layer: Layer) -> bool:
    """True if one time step for all channels is the design of PoST (arXiv 2604.07658).

    Its levels begin evenly on a logarithmic scale, and training moves them while the step may stay
    frozen: then it is one that the official code could have drawn. Elsewhere a step that is the
    same in all channels was never drawn.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # a rate may be 0, or NaN
        if _are_even(np.log(np.abs(layer.rates))):
            return True
    stored = layer.tensors.get("dt_bias")
    if stored is None or not np.isfinite(layer.rates).all() or not _vary(layer.rates):
        return False
    step = softplus(stored.values.flat[0])
    low, high = DRAWN_STEPS
    return bool(low < step < high)


def _are_smooth(levels: Floats) -> bool:
    """True if steps between neighbours along the last dimension turn more rarely than by chance.

    Of m random steps the turning points, where they begin to grow or to shrink, are 2 (m - 2) / 3
    with a variance of (16 m - 29) / 90 (Bienayme 1874). One line of fewer than 8 levels may well
    have none by chance, and is never smooth.
    """
    steps = np.diff(levels)
    bends = np.diff(steps).reshape(-1, steps.shape[-1] - 1)
    turns = 0
    for line in bends:
        told = line[np.abs(line) > NEARLY_EQUAL]  # rounding bends equal steps too
        turns += int(np.count_nonzero(told[1:] * told[:-1] < 0))
    expected = len(bends) * 2 * (steps.shape[-1] - 2) / 3
    variance = len(bends) * (16 * steps.shape[-1] - 29) / 90
    return bool(turns <= expected - CHANCE * np.sqrt(variance))


def grouped(seen: Iterable[Finding], severity: str) -> list[str]:
    """Findings of one severity in words, one line for tensors of one name in all layers."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for one in seen:
        if one.severity == severity:
            alike.setdefault((one.name, re.sub(r"\d+", "*", one.tensor)), []).append(one)
    lines = []
    for group in alike.values():
        first = group[0]
        line = f"{first.name}: {first.tensor}: {first.seen}"
        if len(group) > 1:
            line += f" (and {len(group) - 1} more like it)"
        lines.append(line)
    return lines


def official_starts(layer: Layer, count: int) -> dict[str, str]:
    """Tensors, by role, that are as the official code initialises them, and how in words.

    count: layers of the model.
    """
    started = {}
    for role, stored in layer.tensors.items():
        if not stored.values.ndim:
            continue
        eps = max(stored.eps, COMPUTED)
        for words, start in layer.family.starts.get(role, ()):
            expected = start(stored.values.shape, layer.number, count)
            if np.allclose(stored.values, expected, rtol=eps, atol=eps):
                started[role] = words
    one_step = _one_step(layer)
    if one_step:
        started["dt_bias"] = one_step
    return started


def _one_step(layer: Layer) -> str:
    """Words on the start of dt_bias where config.json has one step for all heads, or "".

    transformers draws it between time_step_min and time_step_max, not below time_step_floor.
    """
    stored = layer.tensors.get("dt_bias")
    given = layer.given
    low = given.setting("time_step_min")
    high = given.setting("time_step_max")
    floor = given.setting("time_step_floor")
    if high is None:
        high = 0.1
    if stored is None or not (_is_number(low) and _is_number(high)):
        return ""
    if low != high or not low > 0:
        return ""
    step = max(low, floor) if _is_number(floor) else low
    expected = step + np.log(-np.expm1(-step))
    near = np.allclose(stored.values, expected, rtol=max(stored.eps, BY_LOGARITHM), atol=0.0)
    return f"the one step of config.json, {step:g}" if near else ""


def _is_number(value: Any) -> bool:
    """True for a number of config.json."""
    return isinstance(value, int | float)


def _of_names(checkpoint: Checkpoint, modules: Sequence[str]) -> Iterator[Finding]:
    """Layers without any tensor: between others, or at the end by the count in config.json."""
    numbers = _numbers_held(checkpoint.names, modules)
    for prefix, known in numbers.items():
        words = _gap(known)
        if words:
            yield Finding("missing layers", prefix, words)
    wanted = layers_of(checkpoint.config)
    held = 1 + max((max(known) for known in numbers.values()), default=-1)
    words = too_many(held, checkpoint.config, wanted)
    if words:
        yield Finding("more layers", "config.json", words)
    if numbers and held < wanted:
        words = f"{wanted} layers, and there are tensors of {held}"
        yield Finding("missing layers", "config.json", words)


def _numbers_held(names: Iterable[str], modules: Sequence[str]) -> dict[str, set[int]]:
    """The numbers of layers in names of tensors, by the prefix, where one of `modules` is under."""
    numbers: dict[str, set[int]] = {}
    for name in names:
        match = NUMBERED.search(name)
        if match:  # no affix counts: mamba_layers may be some of the layers alone
            prefix = name[: match.start("number") - 1]
            numbers.setdefault(prefix, set()).add(int(match["number"]))
    return {
        prefix: known
        for prefix, known in numbers.items()
        if any(name.startswith(f"{prefix}.") for name in modules)
    }


def _gap(known: Collection[int]) -> str:
    """Words for the numbers that are missing below the largest, or ""."""
    most = max(known)
    count = most + 1 - len(known)
    if not count:
        return ""
    some = [str(number) for number in range(most) if number not in known][:5]
    more = " .." if count > 5 else ""
    return f"no tensor of layer {', '.join(some)}{more}, but of {most}"


def _first_integer(given: Given, names: Iterable[str]) -> int | None:
    """The first of these settings of config.json that is an integer; None if none is."""
    for name in names:
        value = given.setting(name)
        if isinstance(value, int):
            return value
    return None


def _of_tensors(layer: Layer, started: Mapping[str, str], count: int) -> Iterator[Finding]:
    """Numbers that are not finite, all equal, or in part or whole an official initialisation."""
    for role, stored in layer.tensors.items():
        name = layer.names[role]
        values = stored.values
        positive = np.zeros(values.shape, bool) if stored.raw is None else stored.raw > 0
        for kind, test in NOT_FINITE:
            where = test(values) & ~positive
            if where.any():
                yield Finding(kind, name, _share(where))
        if positive.any():
            words = f"{_share(positive)} numbers are above 0, which -exp({role}) is not: they grow"
            yield Finding("sign", name, words)
        elif role in started:
            if values.size > 1:
                yield Finding("initialisation", name, f"still is {started[role]}", "notable")
        elif role not in layer.family.equal:
            yield from _hardly_trained(layer, role, count)
    yield from _impossible_length(layer)
    yield from _other_heads(layer)


def _impossible_length(layer: Layer) -> Iterator[Finding]:
    """ln T of a length of training of one step or less, at which no decay can slow down."""
    stored = layer.tensors.get(LENGTH)
    if stored is None or not np.isfinite(stored.values).all() or (stored.values > 0).all():
        return
    logarithm = stored.values.min()
    words = f"ln T is {logarithm:g}, T = {np.exp(logarithm):.3g} steps, and T must be above 1"
    yield Finding("length", layer.names[LENGTH], words)


def _hardly_trained(layer: Layer, role: str, count: int) -> Iterator[Finding]:
    """A tensor of zeros, of one number, or that is in part an official initialisation.

    One number beside a tensor with one for each channel is a level, which may be zero.
    """
    stored = layer.tensors[role]
    name = layer.names[role]
    values = stored.values
    if not values.any():
        is_level = values.size == 1 and layer.rates.size > 1
        if not is_level:
            severity = "notable" if role not in STEPS and _are_placed(layer.rates) else "wrong"
            yield Finding("zeros", name, f"all {values.size:,} numbers are zero", severity)
    elif values.size > _few(stored.dtype) and (values == values.flat[0]).all():
        is_design = role in STEPS and _is_of_post(layer)
        words = f"all {values.size:,} numbers are {values.flat[0]:g}"
        if is_design:
            words += ", and half-lives differ by the other tensors"
        yield Finding("all equal", name, words, "notable" if is_design else "wrong")
    elif values.size > 3:
        yield from _partly(layer, role, count)


def _other_heads(layer: Layer) -> Iterator[Finding]:
    """A layer with another number of heads than config.json says."""
    counted = layer.tensors.get("A_log")
    wanted = _first_integer(layer.given, layer.family.heads)
    if counted is not None and wanted is not None and counted.values.size != wanted:
        words = f"has {counted.values.size} heads, and config.json says {wanted}"
        yield Finding("shape", layer.names["A_log"], words)


def _few(dtype: str) -> int:
    """Number of values of a type that may well be equal by chance."""
    return 2 if dtype in LOW_PRECISION else 1


def _partly(layer: Layer, role: str, count: int) -> Iterator[Finding]:
    """A tensor that is an official initialisation in a quarter or more, or times -1.

    One number in a quarter or more counts too.

    A part that was reset, as the rows of a shard or a block of heads, holds many numbers of the
    formula. Another formula meets it by coincidence in few: two curves that bend one way cross
    twice at most, as geomspace(1, 8, 8) or 1, 2, 4, 8 .. with 1, 2, 3 .., and a line that begins or
    ends where it does once or twice, in every row anew. So FEWEST_RESET different numbers of the
    formula must be there, or all of one that has fewer.
    """
    stored = layer.tensors[role]
    name = layer.names[role]
    values = stored.values
    is_precise = stored.eps < COMPUTED
    for words, start in layer.family.starts.get(role, ()):
        expected = start(values.shape, layer.number, count)
        if expected.any() and np.allclose(values, -expected, rtol=COMPUTED, atol=COMPUTED):
            yield Finding("sign", name, f"is -1 times {words}")
            return
        unmoved = np.isclose(values, expected, rtol=SAME_NUMBER, atol=0)
        is_constant = not _vary(expected)
        is_part = _is_frequent(values, unmoved) if is_constant else _is_part(expected, unmoved)
        if is_precise and is_part:
            yield Finding("reset", name, f"{_share(unmoved)} numbers still are {words}")
            return
    if is_precise:
        finite = values[np.isfinite(values)]  # NaN and infinity have a finding of their own
        numbers, times = np.unique(finite, return_counts=True)
        if numbers.size and _is_frequent(values, values == numbers[times.argmax()]):
            words = f"{times.max():,} of {values.size:,} numbers are {numbers[times.argmax()]:g}"
            yield Finding("reset", name, words)


def _is_part(expected: Floats, unmoved: np.ndarray) -> bool:
    """True if the numbers of a formula that are `unmoved` are too many for a coincidence."""
    held = np.unique(expected[unmoved]).size
    fewest = min(FEWEST_RESET, np.unique(expected).size)
    is_large = np.count_nonzero(unmoved) >= max(FEWEST_RESET, LARGE_PART * expected.size)
    return bool(is_large and held >= fewest)


def _is_frequent(values: Floats, same: np.ndarray) -> bool:
    """True if one number of a tensor, where it is the `same`, is too frequent for a coincidence.

    Repeated levels, levels on both sides of a middle and levels that were rounded are equal to
    others too, but nearly as often.
    """
    held = np.count_nonzero(same)
    others = values[np.isfinite(values) & ~same]
    _, times = np.unique(others, return_counts=True)
    is_large = held >= max(FEWEST_RESET, LARGE_PART * values.size)
    return bool(is_large and held >= MOST_FREQUENT * times.max(initial=0))


def _of_half_lives(layer: Layer, started: Collection[str]) -> Iterator[Finding]:
    """Half-lives out of range or all equal, and decays unlike those that config.json defines."""
    subject = " with ".join(layer.names.values()) or layer.module
    yield from _out_of_range(layer, started, subject)
    if len(started) < len(layer.tensors) and _are_level(layer):
        shortest = half_lives(layer.rates).flat[0]
        words = f"all half-lives are {shortest:.4g}, to {NEARLY_EQUAL:g}"
        yield Finding("all equal", subject, words)
    else:
        yield from _shared_by_neighbours(layer)
    if not _is_as_defined(layer):
        words = "the slopes are not those that config.json defines"
        yield Finding("not as defined", subject, words)


def _shared_by_neighbours(layer: Layer) -> Iterator[Finding]:
    """Neighbours in an ordered decay whose gap has closed: they hold one decay between them."""
    gaps = layer.tensors.get(GAPS)
    rates = layer.rates.ravel()
    if gaps is None or rates.size != gaps.values.size + 1 or not np.isfinite(rates).all():
        return
    is_closed = softplus(gaps.values.ravel()) <= NEARLY_EQUAL
    larger = np.maximum(rates[1:], rates[:-1])
    # The other tensors of a layer, such as dt_bias, may keep decays of one level apart. Channels
    # hold the levels from the first on, or from the last.
    are_equal = np.abs(np.diff(rates)) <= NEARLY_EQUAL * larger
    shared = is_closed & (are_equal | are_equal[::-1])
    if shared.any():
        words = (
            f"{_share(shared)} gaps have closed, to {NEARLY_EQUAL:g}: {rates.size:,} channels hold"
            f" {rates.size - np.count_nonzero(shared):,} different decays"
        )
        yield Finding("some equal", layer.names[GAPS], words, "notable")


def _out_of_range(layer: Layer, started: Collection[str], subject: str) -> Iterator[Finding]:
    """Half-lives below one token or above LONGEST, decays above 1, and NaN of finite numbers."""
    tokens = half_lives(layer.rates)
    short = tokens < ONE_TOKEN
    if short.any():
        words = f"half-lives of {_share(short)}, the shortest {np.nanmin(tokens):.3g}"
        yield Finding("below one token", subject, words, "notable")
    long = tokens > LONGEST
    if long.any():
        words = f"half-lives of {_share(long)}, up to {np.nanmax(tokens):.3g}"
        fresh = _never_forgets(layer, started)
        if fresh:
            words += f": {fresh}, so that the state never forgets"
        yield Finding("above a million tokens", subject, words, "wrong" if fresh else "notable")
    unknown = np.isnan(layer.rates)
    are_finite = all(np.isfinite(one.values).all() for one in layer.tensors.values())
    is_told = not are_finite or any(_impossible_length(layer))
    if unknown.any() and not is_told:
        words = f"{_share(unknown)} decays are NaN, though the numbers are finite"
        yield Finding("NaN", subject, words)
    growing = layer.rates < 0
    if growing.any():
        words = f"{_share(growing)} grow with time: their decay is above 1"
        yield Finding("grows", subject, words)


def _are_level(layer: Layer) -> bool:
    """True if all half-lives are equal, though the tensors vary and the formula lets it show.

    Also where no tensor varies but one may well be equal, of which nothing else is said: the gaps
    of ordered decays are equal when they are evenly spaced, and when they have collapsed.
    """
    if not are_equal(layer.rates):
        return False
    stored_values = {role: stored.values for role, stored in layer.tensors.items()}
    is_unsaid = any(role in layer.family.equal for role in stored_values)
    if not is_unsaid and not any(_vary(values) for values in stored_values.values()):
        return False
    ramps = {
        role: np.linspace(0, 1, values.size).reshape(values.shape)
        for role, values in stored_values.items()
    }
    # Where the formula is flat, as softplus is at -100, numbers near those stored do not show.
    near = {role: values + ramps[role] for role, values in stored_values.items()}
    varied = [np.nan_to_num(layer.rates_of(**numbers)) for numbers in (near, ramps)]
    return any(_vary(rates) for rates in varied)  # not of HGRN's first layer, without bounds


def are_equal(rates: Floats) -> bool:
    """True if all of two or more half-lives are finite and equal, to NEARLY_EQUAL."""
    tokens = half_lives(rates)
    if tokens.size < 2 or not np.isfinite(tokens).all():
        return False
    return bool(np.ptp(tokens) <= NEARLY_EQUAL * tokens.max())


def _vary(values: Floats) -> bool:
    """True if the numbers are not all the same; False if one is NaN."""
    return bool(values.min() < values.max())


def _is_as_defined(layer: Layer) -> bool:
    """False if config.json defines the decays, and others are stored."""
    given = layer.given
    if layer.family.fixed is None or given.setting("num_attention_heads") is None:
        return True
    expected = layer.family.fixed(given)
    if expected.shape != layer.rates.shape:
        return False
    eps = max(BY_LOGARITHM, *(stored.eps for stored in layer.tensors.values()))
    return np.allclose(layer.rates, expected, rtol=eps, atol=0.0)


def _never_forgets(layer: Layer, started: Collection[str]) -> str:
    """Why most half-lives are above LONGEST in a layer that no training has reached, or ""."""
    beyond = half_lives(layer.rates) > LONGEST
    return _fresh(layer, started) if beyond.mean() > MOST_FOREVER else ""


def _fresh(layer: Layer, started: Collection[str]) -> str:
    """Why the decays of a layer are those of a model that no training has reached, or "".

    Two ways: all tensors are an official initialisation; or steps of 1e-4 to 0.1, as softplus takes
    them, stand in a gate b sigmoid(exp(A_log) dt_bias), and A is within 1 and 16, as it is drawn.
    transformers 5.24 draws bailing_hybrid so; fla begins such a gate at zero.
    """
    if layer.family.fixed is not None or not layer.tensors:
        return ""
    if len(started) == len(layer.tensors):
        return "all of it still is as it starts"
    if layer.family.rate is not kimi or len(layer.tensors) < 2 or gate_bound(layer.given) is None:
        return ""
    a_log = layer.tensors["A_log"]
    dt_bias = layer.tensors["dt_bias"]
    low, high = _within_rounding(np.array([1e-4, 0.1]), dt_bias.eps)
    margin = 2.0 * max(a_log.eps, COMPUTED)
    are_steps = _lie_within(dt_bias.values, low, high)
    are_speeds = _lie_within(a_log.values, -margin, np.log(16.0) + margin)
    if not (are_steps and are_speeds):
        return ""
    return "dt_bias is as for softplus, in a gate with a bound"


def _lie_within(values: Floats, low: float, high: float) -> bool:
    """True if all values are from `low` to `high`."""
    return bool(((low <= values) & (values <= high)).all())


def _within_rounding(steps: Floats, eps: float) -> tuple[float, float]:
    """The two dt_bias with these softplus, lower and higher by what rounding to eps takes."""
    low, high = (steps + np.log(-np.expm1(-steps))).tolist()
    return low * (1.0 + eps), high * (1.0 - eps)


def _of_dtype(layer: Layer, started: Collection[str]) -> Iterator[Finding]:
    """Half-lives that rounding has shifted, or will in the type that config.json names.

    Also of tensors that were widened since. Notable alone in an official initialisation, of which
    rounding takes nothing that was learned.
    """
    if _never_forgets(layer, started):
        return
    types = {one.removesuffix("_text") for one in layer.given.model_types}
    is_kept = bool(types.intersection(KEPT_IN_FLOAT32))
    wanted = None if is_kept else layer.config.get("dtype") or layer.config.get("torch_dtype")
    known = np.isfinite(layer.rates) & (layer.rates > 0)
    for role in layer.tensors:
        narrow = _narrowest(layer, role, started)
        if narrow in LOW_PRECISION:
            if _is_short(layer.tensors[role].values, narrow):
                continue
            others, words = _when_rounded(layer, role, narrow)
        elif isinstance(wanted, str) and wanted in HALF_PRECISION:
            others, words = _when_loaded(layer, role, wanted)
        else:
            continue
        with np.errstate(divide="ignore"):
            changes = [np.abs(layer.rates[known] / one[known] - 1.0) for one in others]
        shift = float(np.nan_to_num(changes, nan=np.inf).max(initial=0.0))
        if shift > LARGEST_SHIFT:
            severity = "notable" if role in started else "wrong"
            yield Finding("dtype", layer.names[role], words(shift), severity)


def _narrowest(layer: Layer, role: str, started: Collection[str]) -> str:
    """The type of a tensor, or the narrower one that its numbers were rounded to before."""
    stored = layer.tensors[role]
    if stored.dtype in LOW_PRECISION or role in started or not _vary(stored.values):
        return stored.dtype
    for dtype in HALF_PRECISION:
        if _was_rounded(stored.values, dtype):
            return dtype
    return stored.dtype


def _when_rounded(
    layer: Layer, role: str, narrow: str
) -> tuple[list[Floats], Callable[[float], str]]:
    """Rates half a spacing above and below the numbers, and words for the shift."""
    stored = layer.tensors[role]
    half = spacing(stored.values, narrow) / 2
    others = [layer.rates_of(**{role: stored.values + sign * half}) for sign in (1, -1)]
    held = narrow if narrow == stored.dtype else f"{stored.dtype} that was rounded to {narrow}"

    def words(shift: float) -> str:
        return f"{held} leaves half-lives uncertain by up to {shift:.1%}"

    return others, words


def _when_loaded(
    layer: Layer, role: str, wanted: str
) -> tuple[list[Floats], Callable[[float], str]]:
    """Rates of a tensor in the type of config.json, and words for the shift."""
    loaded = layer.rates_of(**{role: rounded(layer.tensors[role].values, wanted)})
    left = len(np.unique(loaded))
    distinct = len(np.unique(layer.rates))

    def words(shift: float) -> str:
        return (
            f"config.json has it loaded in {wanted}, which shifts half-lives by up to {shift:.1%}"
            f" and leaves {left:,} of {distinct:,} distinct ones"
        )

    return [loaded], words


def _was_rounded(values: Floats, dtype: str) -> bool:
    """True for numbers of a wider type that `dtype` holds, and that need all its digits.

    Half of the numbers that were rounded to it need the last one; so must two of them.
    """
    if not np.array_equal(rounded(values, dtype), values) or _is_short(values, dtype):
        return False
    lowest, last = _last_digits(values, dtype)
    return bool(np.count_nonzero(lowest == last) > 1)


def _is_short(values: Floats, dtype: str) -> bool:
    """True for numbers that were hardly rounded to `dtype`: they have fewer digits than it holds.

    Such as -1, -2 .. -10, which are multiples of 1, where rounding leaves multiples of the spacing,
    1/128 to 1/16 in bfloat16. That all distinct numbers are multiples of the same power of two by
    chance has the probability of the product of spacing / that power.
    """
    lowest, last = _last_digits(values, dtype)
    if not lowest.size:
        return True
    lacking = np.maximum(0.0, lowest.min() - last)
    return float(lacking.sum()) > BITS_BY_CHANCE


def _last_digits(values: Floats, dtype: str) -> tuple[Floats, Floats]:
    """Exponents of two of the last binary digit that each distinct number has, and can have."""
    sizes = np.unique(np.abs(values[np.isfinite(values) & (values != 0)]))
    digits, exponents = np.frexp(sizes)
    # 53 binary digits of float64 as a whole number; n & -n is the lowest that is set.
    whole = (digits * 2.0**53).astype(np.int64)
    lowest_set = (whole & -whole).astype(np.float64)
    lowest = exponents - 53 + np.log2(lowest_set)
    return lowest, np.log2(spacing(sizes, dtype))


def _share(where: np.ndarray) -> str:
    """Number of true entries of a mask, as 3 of 16."""
    return f"{np.count_nonzero(where):,} of {where.size:,}"
