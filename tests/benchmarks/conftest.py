"""Observations of benchmarks."""

from typing import Any

import pytest
import torch

from plkernel.training.build import AdamW


@pytest.fixture
def norms_at_updates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The norm of all gradients at each update by AdamW, in order."""
    norms: list[float] = []

    def look_at(kind: type[torch.optim.AdamW]) -> None:
        update = kind.step

        def looked(self: torch.optim.AdamW, *given: Any, **more: Any) -> Any:
            gradients = [x.grad.norm() for group in self.param_groups for x in group["params"]]
            norms.append(float(torch.stack(gradients).norm()))
            return update(self, *given, **more)

        monkeypatch.setattr(kind, "step", looked)

    look_at(torch.optim.AdamW)
    look_at(AdamW)
    return norms
