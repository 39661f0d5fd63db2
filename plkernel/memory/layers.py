"""Layers with decays of a checkpoint: their half-lives in tokens, their kernels, and what is wrong with them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from plkernel.memory.diagnostics import QUANTILES
from plkernel.memory.files import Checkpoint, Stored, rounded
from plkernel.memory.formulas import DECAYS, FAMILIES, Family, Floats, Given

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


class Finding(NamedTuple):
    """One thing that is wrong, or looks so, in one tensor or in the half-lives of one module."""

    name: str
    tensor: str
    seen: str


@dataclass(frozen=True)
class Layer:
    """One module that remembers.

    names    of its tensors, by role
    tensors  by role
    rates    -ln a per token of every channel
    """

    module: str
    family: Family
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
                return np.atleast_1d(self.family.rate(Given(values, self.config, self.number)))
        except (ValueError, IndexError, TypeError) as error:  # the last two of arrays with too few dimensions
            shapes = ", ".join(f"{self.names[role]} {array.shape}" for role, array in values.items())
            raise ValueError(f"{self.module}: {self.family.name} does not fit {shapes or 'it'} ({error})") from error


def read_layers(checkpoint: Checkpoint) -> list[Layer]:
    """All layers of known families, in order; ValueError if there is none."""
    if not checkpoint.names:
        raise ValueError("the checkpoint holds no tensors")
    layers = known_layers(checkpoint)
    if not layers:
        families = ", ".join(dict.fromkeys(family.name for family in FAMILIES))
        some = ", ".join(sorted(checkpoint.names)[:3])
        raise ValueError(f"no decays are known under names like {some}; read are layers of {families}")
    return layers


def known_layers(checkpoint: Checkpoint) -> list[Layer]:
    """All layers of known families, in order."""
    names = frozenset(checkpoint.names)
    model = Given({}, checkpoint.config, 0).setting("model_type")
    families = [(re.compile(one.anchor), one) for one in FAMILIES if not one.models or model in one.models]
    layers = []
    for name in sorted(names, key=lambda one: (_number(one), one)):
        for pattern, family in families:
            if not (match := pattern.fullmatch(name)):
                continue
            groups = match.groupdict()
            wanted = {role: form.format(**groups) for role, form in family.tensors.items()}
            beside, without = ({form.format(**groups) for form in forms} for forms in (family.beside, family.without))
            if names.issuperset(wanted.values()) and names.isdisjoint(without) and (not beside or names & beside):
                module = groups.get("at") or name.rpartition(".")[0]
                tensors = {role: checkpoint.read(one) for role, one in wanted.items()}
                layer = Layer(module, family, wanted, tensors, checkpoint.config, np.empty(0))
                layers.append(replace(layer, rates=layer.rates_of()))
                break
    return layers


def half_lives(rates: Floats) -> Floats:
    """ln 2 / rate in tokens: 0 for a decay of 0, infinite for one of 1, NaN if unknown or growing."""
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


def findings(checkpoint: Checkpoint, layers: Sequence[Layer]) -> list[Finding]:
    """Everything wrong with the tensors of `layers`, their half-lives, and tensors that no family took."""
    count = 1 + max((layer.number for layer in layers), default=0)
    seen = [one for layer in layers for one in (*_of_tensors(layer, count), *_of_half_lives(layer), *_of_dtype(layer))]
    taken = {name for layer in layers for name in layer.names.values()}
    seen += [
        Finding("unread", name, "is named like a decay, but no formula is known for it")
        for name in checkpoint.names
        if name.rpartition(".")[2] in DECAYS and name not in taken
    ]
    return list(dict.fromkeys(seen))  # a tensor that several layers share is reported once


def _of_tensors(layer: Layer, count: int) -> Iterator[Finding]:
    """Numbers that are not finite, zero, all equal, or as they were initialised in a model of `count` layers."""
    for role, stored in layer.tensors.items():
        name, values, eps = layer.names[role], stored.values, max(stored.eps, 1e-6)
        words, start = layer.family.starts.get(role, ("", None))
        many = values.size > 1
        for kind, test in (("NaN", np.isnan), ("-inf", np.isneginf), ("+inf", np.isposinf)):
            if (where := test(values)).any():
                yield Finding(kind, name, _share(where))
        if start and many and np.allclose(values, start(values.shape, layer.number, count), rtol=eps, atol=eps):
            yield Finding("initialisation", name, f"still is {words}")
        elif not values.any():
            yield Finding("zeros", name, f"all {values.size:,} numbers are zero")
        elif many and (values == values.flat[0]).all():
            yield Finding("all equal", name, f"all {values.size:,} numbers are {values.flat[0]:g}")


def _of_half_lives(layer: Layer) -> Iterator[Finding]:
    """Half-lives out of range, and decays that differ from those that config.json defines."""
    tokens, subject = half_lives(layer.rates), " with ".join(layer.names.values()) or layer.module
    ends = {"low": np.fmin.reduce(tokens.ravel()), "high": np.fmax.reduce(tokens.ravel())}
    for name, where, seen in (
        ("below one token", tokens < 1.0, "half-lives of {share}, the shortest {low:.3g}"),
        ("above a million tokens", tokens > LONGEST, "half-lives of {share}, up to {high:.3g}"),
        ("grows", layer.rates < 0, "{share} grow with time: their decay is above 1"),
    ):
        if where.any():
            yield Finding(name, subject, seen.format(share=_share(where), **ends))
    given = Given({}, layer.config, layer.number)
    if layer.family.fixed is not None and given.setting("num_attention_heads") is not None:
        expected, eps = layer.family.fixed(given), max(1e-5, *(stored.eps for stored in layer.tensors.values()))
        if expected.shape != layer.rates.shape or not np.allclose(layer.rates, expected, rtol=eps, atol=0.0):
            yield Finding("not as defined", subject, "the slopes are not those that config.json defines")


def _of_dtype(layer: Layer) -> Iterator[Finding]:
    """Half-lives that rounding has shifted, or will when the model is loaded in the type that config.json names.

    Numbers that are rounded already lie anywhere within half a unit of their last place.
    """
    kept = str(layer.config.get("model_type")).removesuffix("_text") in KEPT_IN_FLOAT32
    wanted = None if kept else layer.config.get("dtype", layer.config.get("torch_dtype"))
    known = np.isfinite(layer.rates) & (layer.rates > 0)
    for role, stored in layer.tensors.items():
        values = stored.values
        if stored.dtype in LOW_PRECISION:
            half = stored.eps / 2 * np.exp2(np.floor(np.log2(np.maximum(np.abs(values), 1e-30))))
            others = [layer.rates_of(**{role: values + sign * half}) for sign in (1, -1)]
            seen = f"{stored.dtype} leaves half-lives uncertain by up to {{:.1%}}"
        elif isinstance(wanted, str) and wanted in HALF_PRECISION:
            others = [layer.rates_of(**{role: rounded(values, wanted)})]
            seen = (
                f"config.json has it loaded in {wanted}, which shifts half-lives by up to {{:.1%}} and "
                f"leaves {len(np.unique(others)):,} of {len(np.unique(layer.rates)):,} distinct ones"
            )
        else:
            continue
        with np.errstate(divide="ignore"):
            changes = [np.abs(layer.rates[known] / one[known] - 1.0) for one in others]
        shift = float(np.nan_to_num(changes, nan=np.inf).max(initial=0.0))
        if shift > LARGEST_SHIFT:
            yield Finding("dtype", layer.names[role], seen.format(shift))


def _share(where: np.ndarray) -> str:
    return f"{np.count_nonzero(where):,} of {where.size:,}"


def _number(name: str) -> int:
    match = NUMBERED.search(name)
    return int(match[1]) if match else 0
