"""Decays that a text makes a model take, token by token, beside the static ones that stand at the biases.

The formula of a family is the same for both: its bias is replaced by the bias with what the input adds. That sum is
what a running layer hands to softplus, sigmoid or exp, so one line of the table of readers serves every module of a
family, however it is written, and no code of a model is changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from plkernel.common.cli import text_table
from plkernel.common.layout import CHECKPOINT
from plkernel.data.windows import fixed_windows
from plkernel.memory.figures import DRAWN
from plkernel.memory.files import HUB, of_tensors
from plkernel.memory.findings import Layer, half_lives, known_layers
from plkernel.memory.formulas import Floats
from plkernel.memory.probe import open_target
from plkernel.memory.readers import BY_INPUT, Argument

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles of half-lives."""
MOST_RATES = 2**21
"""Rates kept of one layer; of a larger one, fewer tokens are looked at, evenly spaced."""


@dataclass(frozen=True)
class Taken:
    """One layer: its rates -ln a at N of the tokens, (N,...) with the shape of `layer.rates`; N is 0 if unknown."""

    layer: Layer
    rates: Floats

    @cached_property
    def quantiles(self) -> tuple[Floats, Floats]:
        """Half-lives at LEVELS: static ones over channels, observed ones over tokens and channels."""
        return _quantiles(self.layer.rates), _quantiles(self.rates)

    def heads(self) -> list["Taken"]:
        """Each head by itself; empty if this family has none."""
        parts = self.layer.heads()
        return [Taken(replace(self.layer, rates=part), self.rates[:, head]) for head, part in enumerate(parts)]

    def to_dict(self, heads: bool) -> dict[str, Any]:
        """Quantiles of half-lives by their level, for JSON."""
        names = [f"{level:g}" for level in LEVELS]
        static, observed = (dict(zip(names, row.tolist(), strict=True)) for row in self.quantiles)
        split = {"heads": [part.to_dict(False) for part in self.heads()]} if heads and self.layer.reader.heads else {}
        return {
            "tokens": len(self.rates),
            "static": static,
            "observed": observed if len(self.rates) else None,
            **split,
        }


@dataclass(frozen=True)
class Observed:
    """Every layer on `windows` windows of `context` tokens of a text."""

    text: str
    unit: str
    windows: int
    context: int
    layers: tuple[Taken, ...]

    @property
    def drawn(self) -> Floats:
        """For figures: observed half-lives at LEVELS within what can be drawn, (L,5); NaN if unknown."""
        return np.clip([one.quantiles[1] for one in self.layers], *DRAWN)

    def to_dict(self, heads: bool) -> dict[str, Any]:
        """For JSON."""
        known = {name: getattr(self, name) for name in ("text", "unit", "windows", "context")}
        rows = [{"module": one.layer.module, "layer": one.layer.number, **one.to_dict(heads)} for one in self.layers]
        return {**known, "layers": rows}


def observe_text(model: Path, text: str, tokens: int) -> Observed:
    """Run the model in a folder on the first windows of the corpus `text`, on the CPU; ValueError if it cannot run."""
    if str(model).startswith(HUB) or (model.is_file() and model.name != CHECKPOINT):
        raise ValueError(f"text needs a model that can run, as a folder with its tokenizer, which {model} is not")
    target = open_target(model, torch.device("cpu"))
    name, data = target.text(text)
    read = target.encode(data)
    length = min(target.context, tokens, read.size)
    if length < 2:
        raise ValueError(f"text {name!r} has {read.size} {target.unit}s, expected at least 2")
    windows = fixed_windows(read, length - 1, tokens // length)
    try:
        return observe(target.model, target.predict, windows, name, target.unit)
    except RuntimeError as error:  # of the model's own code
        raise ValueError(f"text: {model} does not run on this CPU: {' '.join(str(error).split())}") from error


def observe(
    model: nn.Module, predict: Callable[[Tensor], Tensor], windows: Tensor, text: str, unit: str = "token"
) -> Observed:
    """Observe every layer of `model` that a reader knows while `predict` runs it on `windows` (n,T) of tokens."""
    config: dict[str, Any] = getattr(model.config, "to_dict", dict)()  # models of plkernel need none
    layers = known_layers(of_tensors(model.state_dict(), config))
    arguments = {model.get_submodule(one.module): one.reader.taken for one in layers if one.reader.taken is not None}
    rates: dict[str, list[Floats]] = {one.module: [] for one in layers}
    for window in windows:
        with torch.no_grad(), _overheard(arguments, len(window)) as heard:
            predict(window[None])
        for one in layers:
            rates[one.module] += _rates(one, heard.get(model.get_submodule(one.module), []), len(windows))
    taken = [Taken(one, np.array(rates[one.module]).reshape(-1, *one.rates.shape)) for one in layers]
    return Observed(text, unit, len(windows), windows.shape[1], tuple(taken))


def render(observed: Observed, heads: bool = False) -> str:
    """A table of the layers that the text moves, and a line for the others."""
    known = [(str(one.layer.number or at), one) for at, one in enumerate(observed.layers) if len(one.rates)]
    lines = list(dict.fromkeys(_silent(one.layer) for one in observed.layers if not len(one.rates)))
    if not observed.layers:
        lines = ["its decays do not depend on the input"]
    said = [f"observed on {observed.text}: {line}" for line in lines]
    if not known:
        return "\n".join(said)
    levels = " / ".join(f"{level:.0%}".removesuffix("%") for level in LEVELS)
    title = (
        f"half-lives in {observed.unit}s, {levels} %: static over channels, and observed over channels and so many of "
        f"the {observed.unit}s\nin {observed.windows:,} windows of {observed.context:,} of {observed.text}:"
    )
    rows = []
    for name, taken in known:
        parts = taken.heads() if heads else []
        for label, one in [(name, taken), *((f"  head {head}", part) for head, part in enumerate(parts))]:
            spans = (" / ".join(f"{x:.3g}" for x in row) for row in one.quantiles)
            rows.append([label, f"{len(one.rates):,}", *spans])
    return "\n".join([title, text_table(["layer", f"{observed.unit}s", "static", "observed"], rows), *said])


def _silent(layer: Layer) -> str:
    depends = any(note.startswith(BY_INPUT) for note in layer.reader.notes)
    how = "how a text moves its decays is not known here" if depends else "its decays do not depend on the input"
    return f"{layer.reader.family}: {how}"


def _quantiles(rates: Floats) -> Floats:
    """Half-lives at LEVELS, each one that occurs, so that repeating all changes nothing; NaN if none is known."""
    known = half_lives(rates).ravel()
    known = known[~np.isnan(known)]
    return np.quantile(known, LEVELS, method="inverted_cdf") if known.size else np.full(len(LEVELS), np.nan)


def _rates(layer: Layer, heard: Sequence[Tensor], windows: int) -> Iterator[Floats]:
    """Rates at some of the tokens of a window; none if the arguments do not have the shape of the static tensor."""
    argument = layer.reader.taken
    if argument is None:
        return
    calls = heard if argument.call is None else heard[argument.call : argument.call + 1]
    static = layer.tensors[argument.role].values
    values = torch.cat([call.flatten(1) for call in calls], dim=1) if calls else torch.empty(0, 0)
    if values.shape[1] != static.size:
        return
    count = min(len(values), max(1, MOST_RATES // (layer.rates.size * windows)))
    for row in values[torch.linspace(0, len(values) - 1, count).long()]:
        yield layer.rates_of(**{argument.role: row.double().numpy().reshape(static.shape)})


class _Listening(TorchFunctionMode):
    """Pass the name and first argument of each torch function to the current listener."""

    listener: Callable[[str, Tensor], None] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.listener is not None and args and isinstance(args[0], Tensor):
            self.listener(getattr(func, "__name__", ""), args[0])
        return func(*args, **(kwargs or {}))


@contextmanager
def _overheard(modules: Mapping[nn.Module, Argument], tokens: int) -> Iterator[dict[nn.Module, list[Tensor]]]:
    """The arguments (T,...) that these modules give their functions, in order, while one sequence of T tokens runs."""
    heard: dict[nn.Module, list[Tensor]] = {module: [] for module in modules}

    def listen(module: nn.Module, name: str, value: Tensor) -> None:
        wanted = modules[module]
        if name in wanted.functions and value.dim() > 2 and value.shape[0] == 1 and value.shape[wanted.time] == tokens:
            heard[module].append(value.detach().movedim(wanted.time, 0)[:, 0])

    def begin(module: nn.Module, _: Any) -> None:
        mode.listener = partial(listen, module)

    def end(*_: Any) -> None:
        mode.listener = None

    with ExitStack() as stack:
        mode = stack.enter_context(_Listening())
        for module in modules:
            stack.callback(module.register_forward_pre_hook(begin).remove)
            stack.callback(module.register_forward_hook(end).remove)
        yield heard
