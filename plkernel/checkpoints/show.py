"""A checkpoint as plkernel.inspect shows it: tables, sentences and JSON; and two of them beside one another."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plkernel.analysis.trained.memory import QUANTILES, Memory, kernel_exponents, slope_range
from plkernel.checkpoints.files import open_checkpoint
from plkernel.checkpoints.findings import Finding, findings
from plkernel.checkpoints.formulas import Floats
from plkernel.checkpoints.hub import downloaded
from plkernel.checkpoints.layers import LAGS, Layer, half_lives, kernel, quantiles, read_layers, unread
from plkernel.common.cli import text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HUB = "hf:"
SHOWN = {"shortest": 0, "10 %": 1, "median": 3, "90 %": 5, "longest": 6}
"""Places among QUANTILES."""
DRAWN = (1e-3, 1e9)  # tokens: half-lives beyond are drawn at the edge
FAINTEST = 1e-6  # of a kernel that is drawn


@dataclass(frozen=True)
class Shown:
    """What a checkpoint can remember, and what is wrong with it."""

    name: str
    model_type: str | None
    layers: tuple[Layer, ...]
    findings: tuple[Finding, ...]

    @property
    def kernels(self) -> Floats:
        """The kernel of every layer at LAGS, (L, T)."""
        return np.stack([kernel(layer.rates) for layer in self.layers])

    @property
    def memory(self) -> Memory:
        """For figures: half-lives within what can be drawn."""
        tokens = np.stack([quantiles(layer.rates) for layer in self.layers])
        return Memory(np.clip(tokens, *DRAWN)[None], LAGS, np.nan_to_num(self.kernels)[None])

    def to_dict(self, heads: bool) -> dict[str, Any]:
        """For JSON; what is not finite becomes null."""
        found = [asdict(finding) for finding in self.findings]
        layers = [_to_dict(layer, heads) for layer in self.layers]
        return {"model": self.name, "model_type": self.model_type, "layers": layers, "findings": found}


def shown(target: str) -> Shown:
    """The checkpoint in a folder, in a file or, as hf:OWNER/NAME, on the hub; ValueError where no decays are known."""
    path = downloaded(target.removeprefix(HUB)) if target.startswith(HUB) else Path(target)
    checkpoint = open_checkpoint(path)
    try:
        layers = read_layers(checkpoint)
        odd = [
            Finding("unread", name, "is named like a decay, but no formula is known for it")
            for name in unread(checkpoint, layers)
        ]
        found = (*findings(layers), *odd)
    except ValueError as error:
        raise ValueError(f"{target}: {error}") from error
    model_type = checkpoint.config.get("model_type")
    return Shown(target, model_type if isinstance(model_type, str) else None, tuple(layers), found)


def render(now: Shown, heads: bool = False) -> str:
    """All tables and sentences of one checkpoint."""
    parts = [f"{now.name}: {_count(now)}" + (f", {now.model_type}" if now.model_type else "")]
    kinds: dict[str, list[Layer]] = {}
    for layer in now.layers:
        kinds.setdefault(layer.reader.anchor + layer.reader.family, []).append(layer)
    for layers in kinds.values():
        reader = layers[0].reader
        lines = [f"{reader.family}, {layers[0].module} .. ({_dtypes(layers)}): {reader.formula}", reader.source]
        lines += [f"note: {note}" for note in reader.notes]
        parts += ["\n".join(lines), _table(layers, heads and reader.heads)]
    if heads and not any(layer.reader.heads for layer in now.layers):
        parts.append("heads: these layers have none, or their checkpoint does not say which channels each has")
    return "\n\n".join([*parts, _findings(now.findings)])


def compared(before: Shown, now: Shown) -> str:
    """The half-lives of two checkpoints of one model, layer by layer in their order; ValueError for other layers."""
    if len(before.layers) != len(now.layers):
        raise ValueError(f"compare {before.name}: has {_count(before)}, but {now.name} has {len(now.layers)}")
    rows = []
    for index, (old, new) in enumerate(zip(before.layers, now.layers, strict=True)):
        exponents = [_exponent(layer.rates) for layer in (old, new)]
        rows.append([_place(new, index), _span(old), _span(new), *map(_digits, exponents), moved(old, new)])
    title = f"half-lives in tokens (shortest / median / longest) and x, {before.name} before and {now.name} now:"
    header = ["layer", "before", "now", "x before", "x now", "largest change"]
    return f"{title}\n{text_table(header, rows)}"


def moved(old: Layer, new: Layer) -> str:
    """The largest factor by which a half-life has changed, in words."""
    if old.rates.size != new.rates.size:
        return "other shape"
    before, after = half_lives(old.rates).ravel(), half_lives(new.rates).ravel()
    if np.array_equal(before, after, equal_nan=True):
        return "none"
    with np.errstate(all="ignore"):
        factors = np.where(before == after, 1.0, np.exp(np.abs(np.log(after / before))))
    factor = np.nan_to_num(factors, nan=np.inf).max()
    return f"x {factor:.4g}"


def drawn(now: Shown, before: Shown | None) -> "Figure":
    """Kernels and half-lives of every layer; those of another checkpoint behind them."""
    from plkernel.analysis.figures.memory import decades, model_figure

    earlier = before.memory if before else None
    figure = model_figure(earlier, now.memory, now.name, unit="tokens", earlier="before", block_name="layer")
    kernels, tokens = figure.axes
    kernels.set_ylim(FAINTEST, 2.0)
    known = np.concatenate([one.memory.half_lives.ravel() for one in (now, before) if one is not None])
    known = known[np.isfinite(known)]
    tokens.set_ylim(known.min(initial=DRAWN[1]) / 1.5, known.max(initial=DRAWN[0]) * 1.5)
    decades(tokens.yaxis)
    return figure


def _count(found: Shown) -> str:
    return f"{len(found.layers)} layer{'s' if len(found.layers) > 1 else ''} with decays"


def _to_dict(layer: Layer, heads: bool) -> dict[str, Any]:
    """A layer for JSON."""
    tensors = {
        role: {
            "name": layer.names[role],
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
        for role, tensor in layer.tensors.items()
    }
    split = {"heads": [_numbers(rates) for rates in layer.heads()]} if heads and layer.reader.heads else {}
    reader = {name: getattr(layer.reader, name) for name in ("family", "formula", "source", "notes")}
    return {
        "module": layer.module,
        "layer": layer.number,
        **reader,
        "tensors": tensors,
        **_numbers(layer.rates),
        **split,
    }


def _numbers(rates: Floats) -> dict[str, Any]:
    tokens = quantiles(rates)
    return {
        "channels": rates.size,
        "half_lives": {f"{QUANTILES[place]:g}": float(tokens[place]) for place in SHOWN.values()},
        "kernel": {"lags": LAGS.tolist(), "values": kernel(rates).tolist()},
        "exponent": _exponent(rates),
        "exponent_over_lags": slope_range(LAGS),
    }


def _table(layers: Sequence[Layer], heads: bool) -> str:
    rows = [row for index, layer in enumerate(layers) for row in _rows(layer, index, heads)]
    found = slope_range(LAGS) or (0.0, 0.0)
    title = (
        f"half-lives in tokens; the kernel, root mean square over channels, falls as t**-x over {found[0]:g} to "
        f"{found[1]:g} tokens:"
    )
    return f"{title}\n{text_table(['layer', 'channels', *SHOWN, 'x'], rows)}"


def _rows(layer: Layer, index: int, heads: bool) -> Iterator[list[str]]:
    parts = [(_place(layer, index), layer.rates)]
    if heads:
        parts += [(f"  head {head}", rates) for head, rates in enumerate(layer.heads())]
    for name, rates in parts:
        tokens = quantiles(rates)
        yield [
            name,
            f"{rates.size:,}",
            *(_digits(tokens[place]) for place in SHOWN.values()),
            _digits(_exponent(rates)),
        ]


def _place(layer: Layer, index: int) -> str:
    """The number of a layer as its name has it, or else its place in the order."""
    return str(layer.number or index)


def _exponent(rates: Floats) -> float:
    with np.errstate(invalid="ignore"):  # of kernels that are unknown or without bounds
        return float(kernel_exponents(LAGS, kernel(rates)))


def _span(layer: Layer) -> str:
    tokens = quantiles(layer.rates)
    return " / ".join(_digits(tokens[place]) for place in (0, 3, 6))


def _digits(value: float) -> str:
    """A number in few digits."""
    if np.isnan(value):
        return "-"
    return f"{value:,.0f}" if 1000 <= value < 1e7 else f"{value:.3g}"


def _dtypes(layers: Iterable[Layer]) -> str:
    names = {str(tensor.dtype).removeprefix("torch.") for layer in layers for tensor in layer.tensors.values()}
    return ", ".join(sorted(names)) or "no tensor is read"


def _findings(found: Sequence[Finding]) -> str:
    """One line for each kind of finding in tensors of one name, whatever their layers."""
    if not found:
        return "findings: none"
    lines = ["findings:"]
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for one in found:
        kinds.setdefault((one.name, re.sub(r"\d+", "*", one.tensor)), []).append(one)
    for (name, _), alike in kinds.items():
        more = f" (and {len(alike) - 1} more like it)" if len(alike) > 1 else ""
        lines.append(f"  {name}: {alike[0].tensor}: {alike[0].seen}{more}")
    return "\n".join(lines)
