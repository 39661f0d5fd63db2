"""What rounding allows: the bound that results of a kernel are held to, on any processor."""

import torch
from torch import Tensor

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
LOST = 2.0**-110  # numbers below 2**-126 may be taken for zero, and then be multiplied and summed
LOST_HALF = 2.0**-25  # half the distance of float16 below 2**-14


def magnitudes(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The problem with absolute values, in float64; decays, and their logarithms, stay."""
    return {name: x.double() if name in ("a", "log_decay") else x.double().abs() for name, x in given.items()}


def excess(
    found: Tensor, exact: Tensor, size: Tensor, roundings: float, arithmetic: torch.dtype = torch.float32
) -> float:
    """The largest error of a result as a part of what rounding allows: at most 1, NaN where nothing was written.

    Args:
        found: the result, in the dtype it is stored in, which is one rounding more.
        exact: the same in float64.
        size: A, the result for absolute values.
        roundings: n, of a term in the dtype of the arithmetic.
        arithmetic: its dtype.
    """
    stored = UNIT[found.dtype] * exact.abs() + (LOST_HALF if found.dtype == torch.float16 else LOST)
    allowed = roundings * UNIT[arithmetic] * size * (1 + UNIT[found.dtype]) + stored
    errors = (found.double() - exact).abs() / allowed
    return float(errors.max()) if errors.numel() else 0.0


def scan_roundings(time: int, float32_steps: int = 0) -> float:
    """n of the scan: two roundings a step in float64, and in float32 for so many steps; a product, a sum, a store."""
    return 2 * float32_steps + 4 + 2 * time * UNIT[torch.float64] / UNIT[torch.float32]


def wkv_roundings(chunk: int, keys: int, values: int) -> int:
    """n of WKV in chunks, in the arithmetic of a chunk; the carry between chunks is wider.

    A term passes the decays of a chunk at most twice, a sum over its steps twice (the gradient of ln w, over steps
    before and after), a sum over keys, one over values, and at most 16 products and stores.
    """
    return 4 * chunk + keys + values + 16
