"""The decays that a text makes a model take, token by token, beside the static ones that stand at the biases.

The formula of a family is the same for both: in place of its bias it is given the bias with what the input adds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plkernel.checkpoints.files import Checkpoint
from plkernel.checkpoints.formulas import Floats
from plkernel.checkpoints.layers import Layer, half_lives, known_layers
from plkernel.checkpoints.readers import BY_INPUT
from plkernel.checkpoints.running import overheard
from plkernel.checkpoints.show import DRAWN
from plkernel.common.cli import text_table

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles of half-lives that are told of."""
MOST_RATES = 2**21
"""In one layer: of one with more, fewer tokens are looked at, evenly spaced."""


@dataclass(frozen=True)
class Taken:
    """One layer: its rates -ln a at N of the tokens, (N,...) with the shape of `layer.rates`; N is 0 where unknown."""

    layer: Layer
    rates: Floats

    @cached_property
    def quantiles(self) -> tuple[Floats, Floats]:
        """Half-lives at LEVELS: static ones over channels, observed ones over tokens and channels."""
        return _quantiles(self.layer.rates), _quantiles(self.rates)

    def heads(self) -> list["Taken"]:
        """Each head by itself; none where this kind has none."""
        parts = self.layer.heads()
        return [Taken(replace(self.layer, rates=part), self.rates[:, head]) for head, part in enumerate(parts)]


@dataclass(frozen=True)
class Observed:
    """What `windows` windows of `context` tokens of a text made of every layer."""

    text: str
    unit: str
    windows: int
    context: int
    layers: tuple[Taken, ...]

    @property
    def drawn(self) -> Floats:
        """For figures: observed half-lives at LEVELS within what can be drawn, (L,5); NaN where unknown."""
        return np.clip([one.quantiles[1] for one in self.layers], *DRAWN)

    def to_dict(self, heads: bool) -> dict[str, Any]:
        """For JSON: quantiles of half-lives by their level."""
        known = {name: getattr(self, name) for name in ("text", "unit", "windows", "context")}
        places = [{"module": one.layer.module, "layer": one.layer.number} for one in self.layers]
        rows = [{**place, **_numbers(one, heads)} for place, one in zip(places, self.layers, strict=True)]
        return {**known, "layers": rows}


def observe(
    model: nn.Module, predict: Callable[[Tensor], Tensor], windows: Tensor, text: str, unit: str = "token"
) -> Observed:
    """Every layer of `model` that a reader knows, as `predict` runs it on `windows` (n,T) of tokens, one at a time."""
    layers = _layers(model)
    arguments = {model.get_submodule(one.module): one.reader.taken for one in layers if one.reader.taken is not None}
    rates: dict[str, list[Floats]] = {one.module: [] for one in layers}
    for window in windows:
        with torch.no_grad(), overheard(arguments, len(window)) as heard:
            predict(window[None])
        for one in layers:
            rates[one.module] += _rates(one, heard.get(model.get_submodule(one.module), []), len(windows))
    taken = [Taken(one, np.array(rates[one.module]).reshape(-1, *one.rates.shape)) for one in layers]
    return Observed(text, unit, len(windows), windows.shape[1], tuple(taken))


def _quantiles(rates: Floats) -> Floats:
    """Half-lives at LEVELS, each one that occurs, so that repeating all changes nothing; NaN where none is known."""
    known = half_lives(rates).ravel()
    known = known[~np.isnan(known)]
    return np.quantile(known, LEVELS, method="inverted_cdf") if known.size else np.full(len(LEVELS), np.nan)


def _layers(model: nn.Module) -> list[Layer]:
    state: Mapping[str, Tensor] = model.state_dict()
    config: dict[str, Any] = getattr(model.config, "to_dict", dict)()  # models of ours need none
    return known_layers(Checkpoint(tuple(state), config, state.__getitem__))


def _rates(layer: Layer, heard: Sequence[Tensor], windows: int) -> Iterator[Floats]:
    """The rates at some of the tokens of a window; none where what was heard is not what was meant."""
    argument = layer.reader.taken
    if argument is None:
        return
    calls = heard if argument.call is None else heard[argument.call : argument.call + 1]
    if not calls:
        return
    static, values = layer.tensors[argument.role], torch.cat([call.flatten(1) for call in calls], dim=1)
    if values.shape[1] != static.numel():
        return
    count = min(len(values), max(1, MOST_RATES // (layer.rates.size * windows)))
    for row in values[torch.linspace(0, len(values) - 1, count).long()]:
        yield layer.rates_of({**layer.tensors, argument.role: row.reshape(static.shape)})


def render(found: Observed, heads: bool = False) -> str:
    """A table of the layers that the text moves, and a line for the others."""
    known = [(str(one.layer.number or at), one) for at, one in enumerate(found.layers) if len(one.rates)]
    lines = list(dict.fromkeys(_silent(one.layer) for one in found.layers if not len(one.rates)))
    if not found.layers:
        lines = ["its decays do not depend on the input"]
    said = [f"observed on {found.text}: {line}" for line in lines]
    if not known:
        return "\n".join(said)
    levels = " / ".join(f"{level:.0%}".removesuffix("%") for level in LEVELS)
    title = (
        f"half-lives in {found.unit}s, {levels} %: static over channels, and observed over channels and so many of the "
        f"{found.unit}s\nin {found.windows:,} windows of {found.context:,} of {found.text}:"
    )
    rows = [row for name, one in known for row in _rows(name, one, heads)]
    return "\n".join([title, text_table(["layer", f"{found.unit}s", "static", "observed"], rows), *said])


def _rows(name: str, taken: Taken, heads: bool) -> Iterator[list[str]]:
    parts = taken.heads() if heads else []
    for label, one in [(name, taken), *((f"  head {head}", part) for head, part in enumerate(parts))]:
        yield [label, f"{len(one.rates):,}", *(" / ".join(f"{x:.3g}" for x in row) for row in one.quantiles)]


def _silent(layer: Layer) -> str:
    """Why nothing was observed."""
    depends = any(note.startswith(BY_INPUT) for note in layer.reader.notes)
    how = "how a text moves its decays is not known here" if depends else "its decays do not depend on the input"
    return f"{layer.reader.family}: {how}"


def _numbers(taken: Taken, heads: bool) -> dict[str, Any]:
    names = [f"{level:g}" for level in LEVELS]
    static, observed = (dict(zip(names, row.tolist(), strict=True)) for row in taken.quantiles)
    split = {"heads": [_numbers(part, False) for part in taken.heads()]} if heads and taken.layer.reader.heads else {}
    return {"tokens": len(taken.rates), "static": static, "observed": observed if len(taken.rates) else None, **split}
