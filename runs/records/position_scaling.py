"""Decays of RWKV-7 and Mamba-2 that stop slowing down with the position behind a length."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from plkernel.models import mamba2, rwkv7
from plkernel.models.spectrum import log_positions


@contextmanager
def stopped_at(length: int) -> Iterator[None]:
    """Give RWKV-7 and Mamba-2 ln min(t, length) in place of ln t."""
    most = torch.tensor(float(length)).log()

    def bounded(x: Tensor, memory: Any, dtype: torch.dtype) -> Tensor:
        return log_positions(x, memory, dtype).minimum(most.to(dtype))

    name = "log_positions"
    with patch.object(rwkv7, name, bounded), patch.object(mamba2, name, bounded):
        yield
