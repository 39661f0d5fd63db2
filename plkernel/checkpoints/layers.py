"""The layers of a checkpoint whose decays are known: their half-lives in tokens, and what an input weighs later."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plkernel.analysis.trained.memory import QUANTILES
from plkernel.checkpoints.files import Checkpoint
from plkernel.checkpoints.formulas import Floats, Given
from plkernel.checkpoints.readers import DECAYS, READERS, Reader

LAGS: Floats = np.exp2(np.arange(13.0))
"""Tokens at which kernels are known: 1, 2, 4 .. 4096."""
NUMBERED = re.compile(r"(?:^|\.)(?:layers?|blocks|h)\.(\d{1,6})(?=\.)", re.ASCII)


@dataclass(frozen=True)
class Layer:
    """One module that remembers.

    tensors  by role, in the type they are stored in
    names    by role
    rates    -ln a per token of every channel, heads first where `reader.heads`
    """

    module: str
    reader: Reader
    names: Mapping[str, str]
    tensors: Mapping[str, Tensor]
    config: Mapping[str, object]
    rates: Floats

    @property
    def number(self) -> int:
        return _number(self.module)

    def rates_of(self, tensors: Mapping[str, Tensor]) -> Floats:
        """The rates that other tensors would have; ValueError where their shapes do not fit one another."""
        values = {role: tensor.to(torch.float64).numpy() for role, tensor in tensors.items()}
        try:
            with np.errstate(all="ignore"):
                return np.atleast_1d(self.reader.rate(Given(values, self.config, self.number)))
        except (ValueError, IndexError, TypeError) as error:  # the last two of arrays with too few dimensions
            shapes = ", ".join(f"{self.names[role]} {tuple(tensor.shape)}" for role, tensor in tensors.items())
            raise ValueError(f"{self.module}: {self.reader.family} does not fit {shapes or 'it'} ({error})") from error

    def heads(self) -> list[Floats]:
        """The rates of each head; none where this kind has none."""
        return list(self.rates.reshape(len(self.rates), -1)) if self.reader.heads else []


def read_layers(checkpoint: Checkpoint) -> list[Layer]:
    """All layers that a reader knows, in their order; ValueError where there is none."""
    if not checkpoint.names:
        raise ValueError("the checkpoint holds no tensors")
    found = known_layers(checkpoint)
    if not found:
        families = ", ".join(dict.fromkeys(reader.family for reader in READERS))
        some = ", ".join(sorted(checkpoint.names)[:3])
        raise ValueError(f"no decays are known under names like {some}; read are layers of {families}")
    return found


def known_layers(checkpoint: Checkpoint) -> list[Layer]:
    """As `read_layers`; none is no error."""
    return [_read(checkpoint, *place) for place in _places(checkpoint, frozenset(checkpoint.names))]


def unread(checkpoint: Checkpoint, layers: Sequence[Layer]) -> list[str]:
    """Tensors that are named like decays, and that no reader took."""
    taken = {name for layer in layers for name in layer.names.values()}
    return [name for name in checkpoint.names if name.rpartition(".")[2] in DECAYS and name not in taken]


def half_lives(rates: Floats) -> Floats:
    """ln 2 / rate in tokens: 0 for a decay of 0, infinite for one of 1, NaN where it is unknown or grows."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rates >= 0, np.log(2.0) / np.abs(rates), np.nan)


def quantiles(rates: Floats) -> Floats:
    """QUANTILES (7,) of the half-lives that are known; NaN where none is."""
    known = half_lives(rates).ravel()
    known = known[~np.isnan(known)]
    if not known.size:
        return np.full(len(QUANTILES), np.nan)
    finite = bool(np.isfinite(known).all())  # between a number and infinity nothing can be interpolated
    return np.quantile(known, QUANTILES, method="linear" if finite else "nearest")


def kernel(rates: Floats, lags: Floats = LAGS) -> Floats:
    """sqrt(mean a**(2 t)) over the channels whose decay is known, at every lag t; (T,)."""
    known = rates[~np.isnan(rates)]
    if not known.size:
        return np.full(len(lags), np.nan)
    slowest = float(known.min())
    if not np.isfinite(slowest):
        return np.full(len(lags), 0.0 if slowest > 0 else np.inf)
    with np.errstate(over="ignore"):  # of decays that grow
        means = np.array([np.exp(-2.0 * lag * (known - slowest)).mean() for lag in lags])
        return np.exp(-slowest * lags) * np.sqrt(means)


def _places(checkpoint: Checkpoint, names: frozenset[str]) -> Iterator[tuple[str, Reader, dict[str, str]]]:
    """Module, reader and names of tensors of every layer."""
    model = Given({}, checkpoint.config, 0).setting("model_type")
    readers = [(re.compile(one.anchor), one) for one in READERS if not one.models or model in one.models]
    for name in sorted(names, key=_natural):
        for pattern, reader in readers:
            if not (match := pattern.fullmatch(name)):
                continue
            groups = match.groupdict()
            wanted = {role: form.format(**groups) for role, form in reader.tensors.items()}
            beside, without = ({form.format(**groups) for form in forms} for forms in (reader.beside, reader.without))
            fits = names.issuperset(wanted.values()) and names.isdisjoint(without)
            if fits and not (beside and names.isdisjoint(beside)):
                yield groups.get("at") or name.rpartition(".")[0], reader, wanted
                break


def _read(checkpoint: Checkpoint, module: str, reader: Reader, names: dict[str, str]) -> Layer:
    tensors = {role: checkpoint.read(name) for role, name in names.items()}
    empty = Layer(module, reader, names, tensors, checkpoint.config, np.empty(0))
    return Layer(module, reader, names, tensors, checkpoint.config, empty.rates_of(tensors))


def _natural(name: str) -> tuple[int, str]:
    return _number(name), name


def _number(name: str) -> int:
    """The number of the layer in a name; 0 where there is none."""
    found = NUMBERED.search(name)
    return int(found[1]) if found else 0
