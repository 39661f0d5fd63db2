"""Other people's models start alike under one seed, and say what they remember and how they are trained."""

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from plkernel.config.schema import TrainSpec
from plkernel.memory.foreign import Foreign, build, start_
from plkernel.training.objective import build_optimizer

KIND = "somebodys.models:Recurrent"


def parameters(seed: int, **config: object) -> list[torch.Tensor]:
    return [values.detach().clone() for values in build(KIND, config, seed).parameters()]


def test_one_seed_one_start_whatever_was_drawn_before(package: Path) -> None:
    first = parameters(3)
    torch.rand(5), random.random()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]  # noqa: NPY002
    assert all(torch.equal(one, other) for one, other in zip(first, parameters(3), strict=True))
    assert not torch.equal(first[0], parameters(4)[0])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[2]) == before[1:]  # noqa: NPY002


def test_a_function_of_ones_own_starts_it_and_gets_its_options(package: Path) -> None:
    built = [build(KIND, {}, 0) for _ in range(2)]
    for model in built:
        start_(model, "somebodys.models:small_", {"std": 1e-3}, 7)
    one, other = (model.module.embedding.weight for model in built)
    assert torch.equal(one, other)
    assert 0 < one.std() < 2e-3
    with pytest.raises(ValueError, match=r"init 'somebodys.models:small_': it raised TypeError: .*'sdt'"):
        start_(built[0], "somebodys.models:small_", {"sdt": 1}, 7)


class Remembering(nn.Module):
    """Says all that may be said."""

    patch = 4

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 2)
        self.rate = nn.Parameter(torch.tensor([0.5, 0.25]))

    def half_lives(self) -> list[torch.Tensor]:
        return [math.log(2) / self.rate]

    def kernels(self, lags: torch.Tensor) -> list[torch.Tensor]:
        return [torch.exp(-self.rate.mean() * lags)]

    def multipliers(self) -> dict[str, dict[str, float]]:
        return {"*rate": {"learning_rate": 0.5}, "embedding.weight": {"weight_decay": 0.0, "eps": 2.0}}


def test_what_a_model_says_of_itself_is_taken() -> None:
    model = Foreign("here:Remembering", Remembering())
    assert model.config.patch == 4
    torch.testing.assert_close(
        model.half_lives()[0], torch.tensor([2.0, 4.0]).double() * math.log(2), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(model.kernels(torch.tensor([1, 2]))[0], torch.tensor([-0.375, -0.75]).exp().double())
    groups = build_optimizer(model, TrainSpec(steps=1, learning_rate=1e-2, weight_decay=0.5), model).param_groups
    found = {id(p): (g["lr"], g["weight_decay"], g["eps"]) for g in groups for p in g["params"]}
    assert found[id(model.module.rate)] == (5e-3, 0.0, 1e-8)  # no matrix, so that nothing decays it
    assert found[id(model.module.embedding.weight)] == (1e-2, 0.0, 2e-8)


def test_a_model_that_says_nothing_has_no_memory_and_the_usual_rates(package: Path) -> None:
    model = build(KIND, {}, 0)
    assert model.half_lives() == model.kernels(torch.tensor([1, 2])) == []
    assert model.multipliers() == {}
    assert model.config.patch == 1


def test_an_unknown_parameter_in_multipliers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Foreign("here:Remembering", Remembering())
    monkeypatch.setattr(Remembering, "multipliers", lambda self: {"rates": {"learning_rate": 1.0}})
    with pytest.raises(ValueError, match=r"multipliers names 'rates', which is no parameter; did you mean 'rate'"):
        model.multipliers()
    monkeypatch.setattr(Remembering, "multipliers", lambda self: {"rate": {"lr": 1.0}})
    with pytest.raises(ValueError, match="multipliers has 'lr'; valid: eps, learning_rate, weight_decay"):
        model.multipliers()
