"""What context is worth to a model: its losses by position, and with all but the last bytes taken away."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from plkernel.analysis.exponentials import Floats


@dataclass(frozen=True)
class Means:
    """Mean bits per byte, or per token, (L,), and the standard error of each, windows being independent of one another.

    given: (L,) how many bytes before the predicted one the model has, at most.
    """

    given: tuple[int, ...]
    bpb: tuple[float, ...]
    standard_error: tuple[float, ...]

    def to_dict(self) -> dict[str, list[Any]]:
        """For JSON: lists under the names of the fields; a standard error of one window is null."""
        errors = [error if np.isfinite(error) else None for error in self.standard_error]
        return {"given": list(self.given), "bpb": list(self.bpb), "standard_error": errors}


def lengths(context: int, step: int = 1) -> list[int]:
    """1, 2, 4, 8 .. and `context` itself, of these what leaves whole patches of `step` bytes.

    >>> lengths(12)
    [1, 2, 4, 8, 12]
    """
    powers = [2**power for power in range(context.bit_length()) if 2**power < context]
    return [length for length in (*powers, context) if (context - length) % step == 0]


def by_position(losses: ArrayLike) -> Means:
    """Means over positions of losses (n,T) in bits: where 1 byte was given, 2, 3..4, 5..8 and so on up to T.

    Positions of one window share its text: the error is that of n means of windows.
    """
    values = np.asarray(losses, dtype=np.float64)
    given = lengths(values.shape[1])
    windows = [values[:, start:end].mean(axis=1) for start, end in zip([0, *given], given, strict=False)]
    return Means(tuple(given), *moments(np.stack(windows)))


@dataclass(frozen=True)
class Truncation:
    """Bits per byte, or per token, of the same ones when only the last `given` before them are known, ascending.

    cost is what is lost against the last entry, the whole context: bpb - bpb[-1], with the standard error of these
    paired differences. floor: the bits per byte of the best predictor there is, where the source of the text is known.
    """

    given: tuple[int, ...]
    bpb: tuple[float, ...]
    cost: tuple[float, ...]
    standard_error: tuple[float, ...]
    windows: int
    floor: tuple[float, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON; a standard error of one window is null."""
        errors = [error if np.isfinite(error) else None for error in self.standard_error]
        values = {name: list(getattr(self, name)) for name in ("given", "bpb", "cost")}
        known = {} if self.floor is None else {"floor": list(self.floor)}
        return {"windows": self.windows, **values, "standard_error": errors, **known}


def truncation_of(given: list[int], losses: ArrayLike, floor: ArrayLike | None = None) -> Truncation:
    """The curve of losses (L,n) in bits at n bytes of text, and of those of the best predictor there is."""
    values = np.asarray(losses, dtype=np.float64)
    cost, error = moments(values - values[-1])
    least = None if floor is None else tuple(np.asarray(floor, dtype=np.float64).mean(axis=1).tolist())
    return Truncation(tuple(given), tuple(values.mean(axis=1).tolist()), cost, error, values.shape[1], least)


def moments(values: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Means of rows (L,n), and their standard errors, NaN where n = 1."""
    count = values.shape[1]
    spread = values.std(axis=1, ddof=1) / np.sqrt(count) if count > 1 else np.full(len(values), np.nan)
    return tuple(values.mean(axis=1).tolist()), tuple(spread.tolist())
