"""Logits are found in what models of other libraries return."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from plkernel.training.evaluate import as_logits

TOKENS = torch.arange(6).reshape(2, 3)
LOGITS = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "given",
    [
        LOGITS,
        LOGITS.numpy(),
        SimpleNamespace(logits=LOGITS),
        {"loss": torch.zeros(()), "logits": LOGITS},
        {"logits": LOGITS.numpy()},
        {"logits": (LOGITS, "state")},
        (LOGITS, "state"),
        [LOGITS],
    ],
    ids=["tensor", "numpy", "attribute", "entry", "entry of numpy", "nested", "tuple", "list"],
)
def test_logits_are_found_in_every_form(given: Any) -> None:
    found = as_logits(given, TOKENS, "the model")
    assert isinstance(found, Tensor)
    assert torch.equal(found, LOGITS)


@pytest.mark.parametrize("given", [{"scores": LOGITS}, {}, None, (), "logits"])
def test_other_answers_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="the model must return logits, a tensor or"):
        as_logits(given, TOKENS, "the model")
