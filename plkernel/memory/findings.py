"""Layers with decays of a checkpoint: their half-lives in tokens, their kernels, and what is wrong with them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from plkernel.memory.diagnostics import QUANTILES
from plkernel.memory.files import Checkpoint, Stored, rounded
from plkernel.memory.formulas import START_NAMES, Floats, Given
from plkernel.memory.readers import DECAYS, READERS, Reader

LAGS: Floats = np.exp2(np.arange(13.0))
"""Tokens at which kernels are known: 1, 2, 4 .. 4096."""
NUMBERED = re.compile(r"(?:^|\.)(?:layers?|blocks|h)\.(\d{1,6})(?=\.)", re.ASCII)
LONGEST = 1e6  # tokens: beyond any training context
LARGEST_SHIFT = 0.02
"""Relative change of a half-life by rounding; a larger one is a finding."""
HALF_PRECISION = ("bfloat16", "float16")
LOW_PRECISION = (*HALF_PRECISION, "float8_e4m3fn", "float8_e5m2")
KEPT_IN_FLOAT32 = ("bailing_hybrid", "glm5_next")
"""Model types whose A_log and dt_bias transformers loads in float32, whatever config.json says."""


@dataclass(frozen=True)
class Layer:
    """One module that remembers.

    names    of its tensors, by role
    tensors  by role
    rates    -ln a per token of every channel, heads first if `reader.heads`
    """

    module: str
    reader: Reader
    names: Mapping[str, str]
    tensors: Mapping[str, Stored]
    config: Mapping[str, object]
    rates: Floats

    @property
    def number(self) -> int:
        """Number of the layer in its name; 0 if there is none."""
        return _number(self.module)

    def rates_of(self, **others: Floats) -> Floats:
        """Rates with other numbers for some roles; ValueError if shapes do not fit one another."""
        values = {role: others.get(role, stored.values) for role, stored in self.tensors.items()}
        try:
            with np.errstate(all="ignore"):
                return np.atleast_1d(self.reader.rate(Given(values, self.config, self.number)))
        except (ValueError, IndexError, TypeError) as error:  # the last two of arrays with too few dimensions
            shapes = ", ".join(f"{self.names[role]} {array.shape}" for role, array in values.items())
            raise ValueError(f"{self.module}: {self.reader.family} does not fit {shapes or 'it'} ({error})") from error

    def heads(self) -> list[Floats]:
        """Rates of each head; empty if this family has none."""
        return list(self.rates.reshape(len(self.rates), -1)) if self.reader.heads else []


def read_layers(checkpoint: Checkpoint) -> list[Layer]:
    """All layers that a reader knows, in order; ValueError if there is none."""
    if not checkpoint.names:
        raise ValueError("the checkpoint holds no tensors")
    layers = known_layers(checkpoint)
    if not layers:
        families = ", ".join(dict.fromkeys(reader.family for reader in READERS))
        some = ", ".join(sorted(checkpoint.names)[:3])
        raise ValueError(f"no decays are known under names like {some}; read are layers of {families}")
    return layers


def known_layers(checkpoint: Checkpoint) -> list[Layer]:
    """All layers that a reader knows, in order."""
    names = frozenset(checkpoint.names)
    model = Given({}, checkpoint.config, 0).setting("model_type")
    readers = [(re.compile(one.pattern), one) for one in READERS if not one.models or model in one.models]
    layers = []
    for name in sorted(names, key=lambda one: (_number(one), one)):
        for pattern, reader in readers:
            if not (match := pattern.fullmatch(name)):
                continue
            groups = match.groupdict()
            wanted = {role: form.format(**groups) for role, form in reader.tensors.items()}
            beside, without = ({form.format(**groups) for form in forms} for forms in (reader.beside, reader.without))
            fits = names.issuperset(wanted.values()) and names.isdisjoint(without)
            if fits and not (beside and names.isdisjoint(beside)):
                module = groups.get("at") or name.rpartition(".")[0]
                tensors = {role: checkpoint.read(one) for role, one in wanted.items()}
                layer = Layer(module, reader, wanted, tensors, checkpoint.config, np.empty(0))
                layers.append(replace(layer, rates=layer.rates_of()))
                break
    return layers


def half_lives(rates: Floats) -> Floats:
    """ln 2 / rate in tokens: 0 for a decay of 0, infinite for one of 1, NaN if unknown or growing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rates >= 0, np.log(2.0) / np.abs(rates), np.nan)


def quantiles(rates: Floats) -> Floats:
    """QUANTILES (7,) of the known half-lives; NaN if there are none."""
    known = half_lives(rates).ravel()
    known = known[~np.isnan(known)]
    if not known.size:
        return np.full(len(QUANTILES), np.nan)
    finite = bool(np.isfinite(known).all())  # between a number and infinity nothing can be interpolated
    return np.quantile(known, QUANTILES, method="linear" if finite else "nearest")


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


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or looks so, in one tensor or in the half-lives of one module."""

    name: str
    tensor: str
    seen: str


def findings(checkpoint: Checkpoint, layers: Sequence[Layer]) -> list[Finding]:
    """Everything that is wrong with the tensors of `layers`, their half-lives, and tensors that no reader took."""
    last = max((layer.number for layer in layers), default=0)
    seen: dict[Finding, None] = {}  # a tensor that several layers share is reported once
    for layer in layers:
        for role in layer.tensors:
            seen |= dict.fromkeys(_of_tensor(layer, role, last + 1))
        for check in (_of_half_lives, _of_dtype, _of_fixed):
            seen |= dict.fromkeys(check(layer))
    taken = {name for layer in layers for name in layer.names.values()}
    for name in checkpoint.names:
        if name.rpartition(".")[2] in DECAYS and name not in taken:
            seen[Finding("unread", name, "is named like a decay, but no formula is known for it")] = None
    return list(seen)


def _of_tensor(layer: Layer, role: str, count: int) -> Iterator[Finding]:
    name, stored, start = layer.names[role], layer.tensors[role], layer.reader.starts.get(role)
    values, eps = stored.values, max(stored.eps, 1e-6)
    for kind, where in (("NaN", np.isnan(values)), ("-inf", np.isneginf(values)), ("+inf", np.isposinf(values))):
        if where.any():
            yield Finding(kind, name, _share(where))
    many = values.size > 1
    if start and many and np.allclose(values, start(values.shape, layer.number, count), rtol=eps, atol=eps):
        yield Finding("initialisation", name, f"still is {START_NAMES[start]}")
    elif not values.any():
        yield Finding("zeros", name, f"all {values.size:,} numbers are zero")
    elif many and (values == values.flat[0]).all():
        yield Finding("all equal", name, f"all {values.size:,} numbers are {values.flat[0]:g}")


def _of_half_lives(layer: Layer) -> Iterator[Finding]:
    tokens, subject = half_lives(layer.rates), _subject(layer)
    if (short := tokens < 1.0).any():
        shortest = f"half-lives of {_share(short)}, the shortest {np.nanmin(tokens):.3g}"
        yield Finding("below one token", subject, shortest)
    if (long := tokens > LONGEST).any():
        yield Finding("above a million tokens", subject, f"half-lives of {_share(long)}, up to {np.nanmax(tokens):.3g}")
    if (grows := layer.rates < 0).any():
        yield Finding("grows", subject, f"{_share(grows)} grow with time: their decay is above 1")


def _of_dtype(layer: Layer) -> Iterator[Finding]:
    """Half-lives that rounding has shifted, or will when the model is loaded in the type that config.json names.

    Numbers that are rounded already lie anywhere within half a unit of their last place.
    """
    kept = str(layer.config.get("model_type")).removesuffix("_text") in KEPT_IN_FLOAT32
    wanted = None if kept else layer.config.get("dtype", layer.config.get("torch_dtype"))
    for role, stored in layer.tensors.items():
        values = stored.values
        if stored.dtype in LOW_PRECISION:
            half = stored.eps / 2 * np.exp2(np.floor(np.log2(np.maximum(np.abs(values), 1e-30))))
            shift = max(_shift(layer, layer.rates_of(**{role: values + sign * half})) for sign in (1, -1))
            seen = f"{stored.dtype} leaves half-lives uncertain by up to {shift:.1%}"
        elif isinstance(wanted, str) and wanted in HALF_PRECISION:
            others = layer.rates_of(**{role: rounded(values, wanted)})
            shift = _shift(layer, others)
            seen = (
                f"config.json has it loaded in {wanted}, which shifts half-lives by up to {shift:.1%} and "
                f"leaves {len(np.unique(others)):,} of {len(np.unique(layer.rates)):,} distinct ones"
            )
        else:
            continue
        if shift > LARGEST_SHIFT:
            yield Finding("dtype", layer.names[role], seen)


def _shift(layer: Layer, others: Floats) -> float:
    """Largest relative change of a half-life under other rates."""
    known = np.isfinite(layer.rates) & (layer.rates > 0)
    with np.errstate(divide="ignore"):
        changes = np.abs(layer.rates[known] / others[known] - 1.0)
    return float(np.nan_to_num(changes, nan=np.inf).max(initial=0.0))


def _of_fixed(layer: Layer) -> Iterator[Finding]:
    """Decays that are fixed by definition, and differ from it."""
    given = Given({}, layer.config, layer.number)
    if layer.reader.fixed is None or given.setting("num_attention_heads") is None:
        return
    expected = layer.reader.fixed(given)
    eps = max(1e-5, *(stored.eps for stored in layer.tensors.values()))
    if expected.shape != layer.rates.shape or not np.allclose(layer.rates, expected, rtol=eps, atol=0.0):
        yield Finding("not as defined", _subject(layer), "the slopes are not those that config.json defines")


def _subject(layer: Layer) -> str:
    """The tensors that half-lives follow from, or the module of a layer that has none."""
    return " with ".join(layer.names.values()) or layer.module


def _share(where: NDArray[np.bool_]) -> str:
    return f"{np.count_nonzero(where):,} of {where.size:,}"


def _number(name: str) -> int:
    match = NUMBERED.search(name)
    return int(match[1]) if match else 0
