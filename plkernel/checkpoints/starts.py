"""What decays are initialised to where that is no draw: a checkpoint that still has it was never trained, or lost them.

Each is a function of the shape, the layer's number and how many layers there are.
"""

from collections.abc import Callable

import numpy as np

from plkernel.checkpoints.formulas import Floats

Start = Callable[[tuple[int, ...], int, int], Floats]


def counted(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """ln(1), ln(2) .. over the last dimension: S4D-Real (arXiv 2206.11893), as in Mamba."""
    return np.broadcast_to(np.log(np.arange(1, shape[-1] + 1)), shape)


def ones(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """1, as transformers has the dt_bias of several families."""
    return np.ones(shape)


def xlstm(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """3 .. 6 over heads: xLSTM (arXiv 2405.04517)."""
    return np.broadcast_to(np.linspace(3.0, 6.0, shape[-1]), shape)


def _ramp(shape: tuple[int, ...]) -> Floats:
    count = int(np.prod(shape))
    return np.arange(count) / max(1, count - 1)


def _depth(layer: int, layers: int) -> float:
    """0 for the first layer, 1 for the last."""
    return layer / max(1, layers - 1)


def rwkv4(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """-5 + 8 x**(0.7 + 1.3 depth) over channels: BlinkDL/RWKV-LM, RWKV-v4."""
    return (-5.0 + 8.0 * _ramp(shape) ** (0.7 + 1.3 * _depth(layer, layers))).reshape(shape)


def rwkv5(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """-6 + 5 x**(0.7 + 1.3 depth) over channels: BlinkDL/RWKV-LM, RWKV-v5."""
    return (-6.0 + 5.0 * _ramp(shape) ** (0.7 + 1.3 * _depth(layer, layers))).reshape(shape)


def rwkv7(shape: tuple[int, ...], layer: int, layers: int) -> Floats:
    """-5.5 + 6 x**(1 + depth**0.3) + 2.5 z |z| over channels, z in -1..1 along each head of 64: RWKV-LM, RWKV-v7."""
    ramp, count = _ramp(shape), int(np.prod(shape))
    zigzag = (np.arange(count) % 64 - 31.5) / 31.5
    start = -5.5 + 6.0 * ramp ** (1.0 + _depth(layer, layers) ** 0.3) + 2.5 * zigzag * np.abs(zigzag)
    return start.reshape(shape)


NAMES: dict[Start, str] = {
    counted: "ln(1), ln(2), ln(3) .. (S4D-Real, Mamba)",
    ones: "ones",
    xlstm: "3 .. 6 over heads (xLSTM)",
    rwkv4: "the official start of RWKV-4",
    rwkv5: "the official start of RWKV-5 and RWKV-6",
    rwkv7: "the official start of RWKV-7",
}
