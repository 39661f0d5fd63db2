"""Decays that a text makes a model take, token by token, beside the static ones that stand at the biases.

The formula of a family is the same for both: its bias is replaced by the bias with what the input adds. That sum is
what a running layer hands to softplus, sigmoid or exp, so one entry of the table of families serves every module of a
family, however it is written, and no code of a model is changed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from plkernel.common.cli import text_table
from plkernel.common.layout import CHECKPOINT
from plkernel.data.windows import fixed_windows
from plkernel.memory.figures import DRAWN
from plkernel.memory.files import HUB, of_tensors
from plkernel.memory.formulas import BY_INPUT, Argument, Floats
from plkernel.memory.layers import Layer, known_layers, quantiles
from plkernel.memory.probe import open_target

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles of half-lives."""
MOST_RATES = 2**21
"""Rates kept of one layer; of a larger one, fewer tokens are looked at, evenly spaced."""


class Taken(NamedTuple):
    """One layer: its rates -ln a at N of the tokens, (N,...) with the shape of `layer.rates`; N is 0 if unknown."""

    layer: Layer
    rates: Floats

    def quantiles(self) -> list[Floats]:
        """Half-lives at LEVELS, each one that occurs: static over channels, observed over tokens and channels."""
        return [quantiles(rates, LEVELS, "inverted_cdf") for rates in (self.layer.rates, self.rates)]


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
        return np.clip([one.quantiles()[1] for one in self.layers], *DRAWN)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = []
        for one in self.layers:
            static, seen = (dict(zip(map("{:g}".format, LEVELS), row.tolist(), strict=True)) for row in one.quantiles())
            known = {"tokens": len(one.rates), "static": static, "observed": seen if len(one.rates) else None}
            rows.append({"module": one.layer.module, "layer": one.layer.number, **known})
        return {**vars(self), "layers": rows}

    def render(self) -> str:
        """A table of the layers that the text moves, and a line for the others."""
        lines: dict[str, None] = {}
        rows = []
        for index, one in enumerate(self.layers):
            family = one.layer.family
            if len(one.rates):
                spans = (" / ".join(f"{x:.3g}" for x in row) for row in one.quantiles())
                rows.append([str(one.layer.number or index), f"{len(one.rates):,}", *spans])
            elif any(note.startswith(BY_INPUT) for note in family.notes):
                lines[f"{family.name}: how a text moves its decays is not known here"] = None
            else:
                lines[f"{family.name}: its decays do not depend on the input"] = None
        if not self.layers:
            lines["its decays do not depend on the input"] = None
        said = [f"observed on {self.text}: {line}" for line in lines]
        if not rows:
            return "\n".join(said)
        levels = " / ".join(f"{level:.0%}".removesuffix("%") for level in LEVELS)
        title = (
            f"half-lives in {self.unit}s, {levels} %: static over channels, and observed over channels and so many of "
            f"the {self.unit}s\nin {self.windows:,} windows of {self.context:,} of {self.text}:"
        )
        return "\n".join([title, text_table(["layer", f"{self.unit}s", "static", "observed"], rows), *said])


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
    """Observe every layer of `model` of a known family while `predict` runs it on `windows` (n,T) of tokens."""
    config: dict[str, Any] = getattr(model.config, "to_dict", dict)()  # models of plkernel need none
    layers = known_layers(of_tensors(model.state_dict(), config))
    modules = {one.module: model.get_submodule(one.module) for one in layers}
    arguments = {modules[one.module]: one.family.taken for one in layers if one.family.taken is not None}
    rates: list[list[Floats]] = [[] for _ in layers]
    for window in windows:
        with torch.no_grad(), _overheard(arguments, len(window)) as heard:
            predict(window[None])
        for one, known in zip(layers, rates, strict=True):
            if one.family.taken is not None:
                known += _rates(one, one.family.taken, heard[modules[one.module]], len(windows))
    taken = (
        Taken(one, np.array(known).reshape(-1, *one.rates.shape)) for one, known in zip(layers, rates, strict=True)
    )
    return Observed(text, unit, len(windows), windows.shape[1], tuple(taken))


def _rates(layer: Layer, argument: Argument, heard: list[Tensor], windows: int) -> Iterator[Floats]:
    """Rates at some of the tokens of a window; none if the arguments do not have the shape of the static tensor."""
    calls = heard if argument.every else heard[argument.call : argument.call + 1]
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
