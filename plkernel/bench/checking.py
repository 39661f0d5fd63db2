"""Nothing is timed before its result has been compared with float64."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Step = TypeVar("Step", bound=Callable[[], tuple[Tensor, ...]])


def checked(
    make: Callable[..., Step], limit: float, truth: tuple[Tensor, ...], *inputs: Any
) -> tuple[float | None, str, Step | None]:
    """The largest error of the step that `make(*inputs)` returns, why it is not timed, and the step if it is."""
    try:
        step = make(*inputs)
        error = max(relative_error(*pair) for pair in zip(step(), truth, strict=True))
    except ImportError as reason:
        return None, f"not installed ({reason})", None
    except Exception as reason:  # a peer may fail in any way: that is a result, and the others go on
        return None, f"failed: {type(reason).__name__}: {str(reason).splitlines()[0] if str(reason) else ''}", None
    if error <= limit:
        return error, "", step
    return error, f"wrong: the error is above {limit:g}", None


def relative_error(value: Tensor, truth: Tensor) -> float:
    """max|value - truth| / max|truth|, of the worst channel (the last axis); other axes of `value` may be cut up."""
    value, truth = value.detach().double().cpu().reshape(truth.shape), truth.double().cpu()
    difference, size = (x.abs().reshape(-1, x.shape[-1]).amax(0) for x in (value - truth, truth))
    return float((difference / size).nan_to_num(nan=torch.inf).amax())
