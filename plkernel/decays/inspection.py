"""Reports of plkernel.inspect on checkpoints of other software, one or two side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plkernel.analysis.printing import escaped
from plkernel.analysis.results import Result
from plkernel.common.cli import counted, existing, text_table
from plkernel.common.files import CHECKPOINT
from plkernel.decays.bare import head_of, with_parent
from plkernel.decays.families import Floats, Given, families_in_words, in_order
from plkernel.decays.findings import Finding, findings, grouped
from plkernel.decays.folders import WEIGHTS, conversion, held_files
from plkernel.decays.memory import QUANTILES, Memory, kernel_exponents, slope_range
from plkernel.decays.memory_figures import DRAWN, model_figure
from plkernel.decays.own import Decays, UnknownDecays, statements
from plkernel.decays.rates import LAGS, Layer, kernel, known_layers, quantiles
from plkernel.decays.redrawn import FEWEST, redrawn
from plkernel.decays.run_files import bytes_per_step, file_of, is_of_run, weights_of
from plkernel.decays.structure import row_labels, why_unknown
from plkernel.decays.tensors import HUB, open_checkpoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED = {"shortest": 0, "10 %": 1, "median": 3, "90 %": 5, "longest": 6}
"""Places among QUANTILES."""
SLOPES_OVER = slope_range(LAGS) or (0.0, 0.0)
"""First and last lag, in tokens, of the slopes in a report."""
LayerPair = tuple[Layer, Layer | None]
"""A layer now and before."""
Parts = tuple[list[str], dict[str, Any], tuple[Memory | None, Memory], str]
"""Of a report: texts, values for JSON, memory before and now, and the title of the figure."""


@dataclass(frozen=True, repr=False)
class Shown(Result):
    """Layers with decays of a checkpoint, and what is wrong with them."""

    name: str
    model_type: str | None
    layers: tuple[Layer, ...]
    findings: tuple[Finding, ...]

    def _title(self) -> str:
        found = [f"{one.severity}: {one.name}, {one.tensor}" for one in self.findings]
        more = f" and {len(found) - 1} more" if found[1:] else ""
        return f"{self.name}: {_count(self)}; {found[0] if found else 'nothing is wrong'}{more}"

    def _table(self) -> Any:
        rows = []
        for layer in self.layers:
            lives = quantiles(layer.rates)
            row = {
                "layer": layer.number,
                "module": layer.module,
                "family": layer.family.name,
                "channels": layer.rates.size,
            }
            row |= {name: lives[at] for name, at in NAMED.items()}
            row["x"] = _exponent(layer.rates)
            rows.append(row)
        return rows

    def _draw(self) -> "Figure":
        return model_figure(None, self.memory, self.name, "tokens")

    @property
    def kernels(self) -> Floats:
        """The kernel of every layer at LAGS, (L, T)."""
        return np.stack([kernel(layer.rates) for layer in self.layers])

    @property
    def memory(self) -> Memory:
        """Half-lives and kernels for figures, within what can be drawn; NaN leaves a gap."""
        tokens = np.stack([quantiles(layer.rates) for layer in self.layers])
        drawn = np.clip(tokens, *DRAWN)
        finite = np.nan_to_num(self.kernels, nan=np.nan)  # infinity becomes the largest number
        return Memory(drawn[None], LAGS, finite[None])

    def to_dict(self) -> dict[str, Any]:
        """For JSON; numbers that are not finite become null."""
        pairs = zip(self.layers, self.kernels, strict=True)
        return {
            "model": self.name,
            "model_type": self.model_type,
            "layers": [_layer_row(layer, weights) for layer, weights in pairs],
            "findings": [finding._asdict() for finding in self.findings],
        }


def _layer_row(layer: Layer, weights: Floats) -> dict[str, Any]:
    """The facts of one layer, for JSON; weights: its kernel at LAGS."""
    family = layer.family
    lives = quantiles(layer.rates)
    tensors = {}
    for role, stored in layer.tensors.items():
        tensors[role] = {
            "name": layer.names[role],
            "shape": list(stored.values.shape),
            "dtype": stored.dtype,
        }
    return {
        "module": layer.module,
        "layer": layer.number,
        "family": family.name,
        "formula": family.formula,
        "source": family.source,
        "notes": family.notes,
        "tensors": tensors,
        "channels": layer.rates.size,
        "kernel": {"lags": LAGS.tolist(), "values": weights.tolist()},
        "half_lives": {f"{QUANTILES[at]:g}": float(lives[at]) for at in NAMED.values()},
        "exponent": _exponent(layer.rates),
        "exponent_over_lags": SLOPES_OVER,
    }


def is_other_software(model: Path) -> bool:
    """True for a checkpoint of other software, by the names of its files.

    Raises ValueError if there is no such file.
    """
    if str(model).startswith(HUB):
        return True
    if existing(model, "model").is_dir():
        if model.suffix in WEIGHTS:
            return True
        weights = [*held_files(model), *model.glob("*.index.json")]
        return not (model / CHECKPOINT).exists() and bool(weights or conversion(model))
    return not is_of_run(model)


def of_checkpoint(
    model: Path,
    compare: Path | None,
    state_dtype: str | None = None,
    decays: Decays | None = None,
) -> Parts:
    """Decays and findings of a checkpoint of other software.

    compare      an earlier checkpoint of the same model
    state_dtype  also what a recurrent state of that type makes of its half-lives
    decays       of layers of somebody's own, see `plkernel.decays.own`

    Raises ValueError if the one to compare has other layers, and for a type that is unknown.
    """
    if state_dtype is None:
        _, parts = _compared(model, compare, decays)
        return parts
    from plkernel.decays.rounding import dtype_name
    from plkernel.decays.stored_states import state_table

    dtype = dtype_name(state_dtype)
    now, (texts, values, memories, title) = _compared(model, compare, decays)
    table, values["state"] = state_table(now.layers, dtype)
    return [*texts, table], values, memories, title


def _compared(model: Path, compare: Path | None, decays: Decays | None) -> tuple[Shown, Parts]:
    """A checkpoint and its report, beside an earlier one where that is given."""
    before = None if compare is None else inspected(str(compare), decays)
    now = inspected(str(model), decays)
    if before is None:
        return now, ([render(now)], now.to_dict(), (None, now.memory), now.name)
    if len(before.layers) != len(now.layers):
        raise ValueError(
            f"compare {before.name}: must have {_count(now)}, as {now.name}, got"
            f" {len(before.layers)}"
        )
    for old, new in zip(before.layers, now.layers, strict=True):
        if np.squeeze(old.rates).shape != np.squeeze(new.rates).shape:
            raise ValueError(
                f"compare {before.name}: {old.module} must have decays of shape {new.rates.shape},"
                f" as in {now.name}, got {old.rates.shape}"
            )
    now = replace(now, findings=(*now.findings, *redrawn(before.layers, now.layers)))
    values = {**now.to_dict(), "compare": before.to_dict()}
    return now, ([render(now, before)], values, (before.memory, now.memory), now.name)


def inspected(target: str, decays: Decays | None = None) -> Shown:
    """Read a folder, a file or, as hf:OWNER/NAME, a repository on the hub; of a run its weights.

    decays: of layers of somebody's own, see `plkernel.decays.own`.

    Raises ValueError if no decays are known.
    """
    stated = statements(decays)
    opened = weights_of(open_checkpoint(file_of(target)))
    checkpoint = with_parent(opened)
    try:
        layers = known_layers(checkpoint, stated, head_of(opened, checkpoint))
        if not layers:
            raise UnknownDecays(_nothing(checkpoint.names), checkpoint.names)
        patch = bytes_per_step(target)
        if patch > 1:  # of a run whose checkpoint stands alone
            layers = [replace(layer, tokens_per_step=patch) for layer in layers]
        seen = tuple(findings(checkpoint, layers))
    except UnknownDecays as error:
        raise UnknownDecays(escaped(f"{target}: {error}"), error.names) from error
    except ValueError as error:
        raise ValueError(escaped(f"{target}: {error}")) from error
    model_type = Given({}, checkpoint.config, 0).setting("model_type")
    return Shown(target, model_type if isinstance(model_type, str) else None, tuple(layers), seen)


def render(now: Shown, before: Shown | None = None) -> str:
    """All tables and sentences of one checkpoint; half-lives and slopes before in own columns."""
    model_type = f", {now.model_type}" if now.model_type else ""
    parts = [f"{now.name}: {_count(now)}{model_type}"]
    for pairs in _by_family(now, before):
        parts.append(_family_text([layer for layer, _ in pairs]))
        parts.append(_half_life_table(pairs, before is not None))
    few = 0
    for layer in now.layers:
        few += sum(stored.values.size < FEWEST for stored in layer.tensors.values())
    if before is not None and few:
        parts.append(
            f"compared: {few:,} tensors of fewer than {FEWEST} numbers are too small to tell one"
            " that was drawn anew from one that training has moved; all layers are compared"
            " together"
        )
    for severity in ("wrong", "notable"):
        parts.append(_findings_text(now.findings, severity))
    return "\n\n".join(parts)


def _by_family(now: Shown, before: Shown | None) -> list[list[LayerPair]]:
    """Layers beside those before, apart by family."""
    earlier = repeat(None) if before is None else before.layers
    kinds: dict[str, list[LayerPair]] = {}
    for layer, old in zip(now.layers, earlier, strict=False):
        kind = layer.family.anchor + layer.family.name
        kinds.setdefault(kind, []).append((layer, old))
    return list(kinds.values())


def _family_text(layers: Sequence[Layer]) -> str:
    """Formula, source and notes of the family of these layers, and the types of their tensors."""
    first = layers[0]
    family = first.family
    dtypes: set[str] = set()
    for layer in layers:
        dtypes.update(stored.dtype for stored in layer.tensors.values())
    kept = ", ".join(sorted(dtypes)) or "no tensor is read"
    lines = [f"{family.name}, {first.module} .. ({kept}): {family.formula}", family.source]
    lines += [f"note: {note}" for note in family.notes]
    return "\n".join(lines)


def _half_life_table(pairs: Sequence[LayerPair], is_compared: bool) -> str:
    """Half-lives and slopes of the layers of a family, with a title."""
    header = ["layer", "channels", *NAMED, "x"]
    if is_compared:
        header += ["median before", "x before"]
    rows = []
    labels = row_labels([layer.module for layer, _ in pairs])
    for label, (layer, old) in zip(labels, pairs, strict=True):
        tokens = quantiles(layer.rates)
        numbers = [tokens[place] for place in NAMED.values()]
        numbers.append(_exponent(layer.rates))
        if old is not None:
            median = quantiles(old.rates)[NAMED["median"]]
            numbers += [median, _exponent(old.rates)]
        rows.append([label, f"{layer.rates.size:,}", *map(_digits, numbers)])
    shortest, longest = SLOPES_OVER
    title = (
        "half-lives in tokens; the kernel, root mean square over channels without an input gain,"
        f" falls as t**-x over {shortest:g} to {longest:g} tokens:"
    )
    return f"{title}\n{text_table(header, rows)}"


def _findings_text(seen: Sequence[Finding], severity: str) -> str:
    """The findings of one severity under its name, or that there are none."""
    lines = [f"  {line}" for line in grouped(seen, severity)]
    if not lines:
        return f"{severity}: nothing"
    return "\n".join([f"{severity}:", *lines])


def _nothing(names: Sequence[str]) -> str:
    """Why no layer is known among the names of tensors."""
    if not names:
        return "the checkpoint holds no tensors"
    some = ", ".join(sorted(names, key=in_order)[:3])
    why = why_unknown(names) or f"no decays are known under names like {some}"
    return f"{why}; read are layers of {families_in_words()}"


def _count(one: Shown) -> str:
    """Number of layers with decays, in words."""
    layers = counted(len(one.layers), "layer", "layers")
    return f"{layers} with decays"


def _exponent(rates: Floats) -> float:
    """x of the law t**-x that the kernel of these rates follows over SLOPES_OVER."""
    with np.errstate(invalid="ignore"):  # of kernels that are unknown or unbounded
        return float(kernel_exponents(LAGS, kernel(rates)))


def _digits(value: float) -> str:
    """A number of a table: whole from 1,000 on, else three digits; "-" of NaN."""
    if np.isnan(value):
        return "-"
    return f"{value:,.0f}" if 1000 <= value < 1e7 else f"{value:.3g}"
