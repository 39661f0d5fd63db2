"""The decays that a text makes a model take, token by token, beside the static ones at the biases.

The formula of a family is the same for both: its bias is replaced by the bias with what the input
adds. That sum is what a running layer hands to softplus, sigmoid or exp, so one entry of the table
of families serves every module of a family, however it is written, and no code of a model is
changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from plkernel.common import cli
from plkernel.common.files import CHECKPOINT
from plkernel.data.windows import fixed_windows
from plkernel.decays.families import BY_INPUT, Argument, Floats
from plkernel.decays.live import live_layers
from plkernel.decays.rates import Layer, quantiles
from plkernel.decays.structure import row_labels
from plkernel.decays.tensors import HUB
from plkernel.probing.text_models import open_text_model
from plkernel.training.foreign import Foreign

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles of observed half-lives."""
FIXED = "its decays do not depend on the input"
UNKNOWN = "how a text moves its decays is not known here"
MOST_RATES = 2**21
"""Rates kept of one layer; of a layer with more, fewer tokens are sampled, evenly spaced."""


def observe_text(
    model: Path, text: str, tokens: int, trusted: bool = False
) -> tuple[str, dict[str, Any]]:
    """Run the model in a folder on the first windows of a corpus: a table, and JSON values.

    text     the name of a corpus, or a path
    tokens   how many are read at most, of a window and of all together; 2 or more
    trusted  the code that a run's configuration names may be imported

    Half-lives at LEVELS, each one that occurs: static over channels, observed over tokens and
    channels. Raises ValueError if the model cannot run, and for a text of fewer than 2 tokens.
    """
    # A file of tensors alone has no tokenizer, and a name on the hub no folder.
    is_file_of_tensors = model.is_file() and model.name != CHECKPOINT
    if str(model).startswith(HUB) or is_file_of_tensors:
        raise ValueError(
            f"model must be one that can run on a text, a folder with its tokenizer, got {model};"
            " leave text out"
        )
    target = open_text_model(model, torch.device("cpu"), trusted)
    name, data = target.text(text)
    read, _ = target.encode(data)
    length = min(target.context, tokens, read.size)
    if length < 2:
        raise ValueError(f"text must have 2 {target.unit}s or more, got {read.size} in {name!r}")
    if length > target.step:
        length -= length % target.step  # other people's models may take whole patches alone
    windows = fixed_windows(read, length - 1, tokens // length)
    try:
        layers = observe(target.model, target.predict, windows)
    except RuntimeError as error:  # of the model's own code
        reason = " ".join(str(error).split())
        raise ValueError(
            f"text: model must run on this CPU, got {model}, which raised {reason}"
        ) from error
    entries = [_entry(layer, rates) for layer, rates in layers]
    values = {
        "text": name,
        "unit": target.unit,
        "windows": len(windows),
        "context": length,
        "layers": entries,
    }
    lines = _unmoved(name, layers)
    rows = _rows(entries)
    if not rows:
        return "\n".join(lines or [f"observed on {name}: {FIXED}"]), values
    unit = target.unit
    levels = " / ".join(f"{100 * level:g}" for level in LEVELS)
    title = (
        f"half-lives in {unit}s, {levels} %: static over channels, and observed over channels and"
        f" so many of the {unit}s\nin {len(windows):,} windows of {length:,} of {name}:"
    )
    table = cli.text_table(["layer", f"{unit}s", "static", "observed"], rows)
    return "\n".join([title, table, *lines]), values


def _spread(rates: Floats) -> dict[str, float]:
    """Half-lives at LEVELS, each one that occurs, by the level."""
    tokens = quantiles(rates, LEVELS, "inverted_cdf").tolist()
    return {f"{level:g}": value for level, value in zip(LEVELS, tokens, strict=True)}


def _entry(layer: Layer, rates: Floats) -> dict[str, Any]:
    """One layer for JSON; nothing is observed where no rates (N,...) are known."""
    return {
        "module": layer.module,
        "layer": layer.number,
        "tokens": len(rates),
        "static": _spread(layer.rates),
        "observed": _spread(rates) if len(rates) else None,
    }


def _rows(entries: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Rows of the table, of layers whose decays were observed."""
    rows = []
    labels = row_labels([entry["module"] for entry in entries])
    for label, entry in zip(labels, entries, strict=True):
        if entry["observed"] is not None:
            spans = [_spread_text(entry[one]) for one in ("static", "observed")]
            rows.append([label, f"{entry['tokens']:,}", *spans])
    return rows


def _spread_text(spread: Mapping[str, float]) -> str:
    return " / ".join(f"{value:.3g}" for value in spread.values())


def _unmoved(name: str, layers: Sequence[tuple[Layer, Floats]]) -> list[str]:
    """Why no decays of a layer were observed, one line for each family."""
    lines: dict[str, None] = {}
    for layer, rates in layers:
        if len(rates):
            continue
        by_input = any(note.startswith(BY_INPUT) for note in layer.family.notes)
        words = UNKNOWN if by_input else FIXED
        lines[f"observed on {name}: {layer.family.name}: {words}"] = None
    return list(lines)


def observe(
    model: nn.Module, predict: Callable[[Tensor], Tensor], windows: Tensor
) -> list[tuple[Layer, Floats]]:
    """Rates of every known layer of `model` while `predict` runs it on `windows` (n,T).

    model    has a `config`, and in its modules the layers whose decays are known by name
    predict  runs the model on tokens (1,T); what it returns is not read

    Beside a layer stand its rates -ln a at N of the tokens, (N,...) with the shape of
    `layer.rates`; N is 0 where its arguments do not have the shape of the static tensor, or are
    unknown.
    """
    layers = live_layers(model, _config_of(model))
    moved: list[tuple[Layer, nn.Module, Argument]] = []
    for layer in layers:
        if layer.family.taken:
            moved.append((layer, model.get_submodule(layer.module), layer.family.taken))
    arguments = {module: argument for _, module, argument in moved}
    rates: dict[str, list[Floats]] = {layer.module: [] for layer in layers}
    for window in windows:
        with torch.no_grad(), _overheard(arguments, len(window)) as heard:
            predict(window[None])
        for layer, module, argument in moved:
            rates[layer.module] += _rates_at(layer, argument, heard[module], len(windows))
    found = []
    for layer in layers:
        of_layer = np.array(rates[layer.module])
        found.append((layer, of_layer.reshape(-1, *layer.rates.shape)))
    return found


def _config_of(model: nn.Module) -> dict[str, Any]:
    """The configuration of a model of transformers, also of one that a run has built.

    It is empty for others, which need none.
    """
    built: Any = model.module if isinstance(model, Foreign) else model
    to_dict = getattr(getattr(built, "config", None), "to_dict", None)
    return to_dict() if to_dict else {}


def _rates_at(
    layer: Layer, argument: Argument, calls: Sequence[Tensor], windows: int
) -> list[Floats]:
    """Rates of a layer at some tokens of a window, from the arguments (T,...) of its calls.

    As many as keep all windows within MOST_RATES; none where the arguments do not have the size of
    the static tensor.
    """
    static = layer.tensors[argument.role].values
    if not argument.every:
        calls = calls[argument.call : argument.call + 1]
    if not calls:
        return []
    tokens = torch.cat([call.flatten(1) for call in calls], dim=1)
    if tokens.shape[1] != static.size:
        return []
    most = max(1, MOST_RATES // (layer.rates.size * windows))
    chosen = torch.linspace(0, len(tokens) - 1, min(len(tokens), most)).long()
    rates = []
    for row in tokens[chosen].double().numpy():
        rates.append(layer.rates_of(**{argument.role: row.reshape(static.shape)}))
    return rates


@contextmanager
def _overheard(
    modules: Mapping[nn.Module, Argument], tokens: int
) -> Iterator[dict[nn.Module, list[Tensor]]]:
    """The arguments (T,...) that modules give their functions while T tokens run, in order.

    A module calls a function such as softplus on its own tensors, so that no hook of a module sees
    it: every call of torch is looked at while a module of `modules` runs.
    """
    heard: dict[nn.Module, list[Tensor]] = {module: [] for module in modules}
    running: list[nn.Module] = []

    def keep(module: nn.Module, function: str, args: Any, kwargs: Mapping[str, Any]) -> None:
        wanted = modules[module]
        if function not in wanted.functions:
            return
        value = args[0] if args else kwargs["input"]
        # Arguments of one text of T tokens; others are of parameters, or of what is not per token.
        if value.dim() > 2 and value.shape[0] == 1 and value.shape[wanted.time] == tokens:
            heard[module].append(value.detach().movedim(wanted.time, 0)[:, 0])

    class Listening(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = kwargs or {}
            if running:
                keep(running[-1], getattr(func, "__name__", ""), args, named)
            return func(*args, **named)

    with Listening(), ExitStack() as stack:
        for module in modules:
            begins = module.register_forward_pre_hook(lambda module, _: running.append(module))
            # These modules do not nest. What a hook returns, other than None, is the new output.
            ends = module.register_forward_hook(lambda *_: running.clear())
            stack.callback(begins.remove)
            stack.callback(ends.remove)
        yield heard
