"""What contenders are measured by."""

import torch
from torch import Tensor

from plkernel.benchmarks.contest import peak_bytes


def test_a_peak_is_of_what_is_held_at_once() -> None:
    def call() -> Tensor:
        x = torch.ones(1000)
        y = x + 1
        del x
        return torch.cat([y, y])

    assert peak_bytes(call) == 4 * (1000 + 2000)


def test_what_a_call_replaces_is_no_peak_however_often_one_looks() -> None:
    kept: list[Tensor] = []

    def call() -> None:
        kept.clear()
        kept.append(torch.ones(1000))

    assert [peak_bytes(call) for _ in range(5)] == [0] * 5
