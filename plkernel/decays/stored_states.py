"""Half-lives of a checkpoint in a state of half precision, layer by layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from plkernel.common.cli import text_table
from plkernel.decays.rates import Layer
from plkernel.decays.rounding import StoredHalfLives, stored
from plkernel.decays.structure import row_labels

HEADER = ["layer", "half-lives", "not held", "never decay", "shortest not held"]


def state_table(layers: Sequence[Layer], dtype: str) -> tuple[str, dict[str, Any]]:
    """The table and one sentence for the terminal, and the numbers for JSON.

    Decays are those without an input; rates that are not finite, which are findings, are left out.
    """
    labels = row_labels([layer.module for layer in layers])
    rows = []
    values = []
    every = []
    for label, layer in zip(labels, layers, strict=True):
        rates = np.asarray(layer.rates, dtype=np.float64).ravel()
        usable = rates[np.isfinite(rates) & (rates >= 0)]
        every.append(usable)
        found = stored(usable, dtype)
        rows.append([label, *_cells(found)])
        values.append({"layer": label, **_numbers(found)})
    whole = stored(np.concatenate(every), dtype)
    head = whole.sentence[0].upper() + whole.sentence[1:]
    note = "(rounding alone, without input; inputs at every step make it less)"
    text = f"{text_table(HEADER, rows)}\n{head}.\n{note}"
    return text, {"dtype": whole.dtype, **_numbers(whole), "layers": values}


def _cells(found: StoredHalfLives) -> list[str]:
    """The row of a layer, without its label."""
    numbers = _numbers(found)
    shortest = numbers["shortest_not_held"]
    return [
        str(numbers["half_lives"]),
        str(numbers["not_held"]),
        str(numbers["never_decay"]),
        "-" if shortest is None else f"{shortest:,.3g}",
    ]


def _numbers(found: StoredHalfLives) -> dict[str, Any]:
    """The numbers of a layer, or of all, for JSON."""
    lost = found.half_lives[~found.held]
    finite = lost[np.isfinite(lost)]
    return {
        "half_lives": int(found.half_lives.size),
        "not_held": int(lost.size),
        "never_decay": int(np.sum(found.frozen)),
        "shortest_not_held": float(finite.min()) if finite.size else None,
    }
