"""The schedule, the optimiser and the loss, rule by rule against the formulas of the official RWKV
code.
"""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.config.schema import TrainSpec
from plkernel.models.init import initialise_
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.training.build import build_optimizer, learning_rate
from plkernel.training.evaluate import bits_per_byte, next_byte_loss


@pytest.fixture(params=[5, 6], ids=["eagle", "finch"])
def model(request: pytest.FixtureRequest) -> RWKV:
    """A real RWKV as the official code starts it."""
    return initialise_(
        RWKV(RWKVConfig(request.param, 32, 2, 16, backend="reference")), "rwkv_blinkdl", 0
    )


def official_rate(step: int, steps: int, warmup: int, first: float, last: float) -> float:
    """The rate as the official trainer computes it, in steps in place of tokens."""
    f = last / first
    p = min(1.0, max(0.0, (step - warmup) / (steps - warmup)))
    rate = first * ((0.5 + f / 2) + (0.5 - f / 2) * math.cos(math.pi * p))
    return rate * (0.01 + 0.99 * step / warmup) if step < warmup else rate


def test_the_recipe_has_the_official_rate_at_every_step() -> None:
    train = TrainSpec(recipe="blinkdl", steps=300, learning_rate=6e-4)
    ours = [learning_rate(train, step) for step in range(301)]
    assert ours == pytest.approx(
        [official_rate(step, 300, 10, 6e-4, 6e-5) for step in range(301)], rel=1e-12
    )
    assert ours[0] == pytest.approx(6e-6)
    assert max(ours) == ours[10] == 6e-4
    assert ours[300] == pytest.approx(6e-5)


@pytest.mark.parametrize(
    ("schedule", "middle", "end"),
    [
        ("exponential", 1e-3, 1e-4),
        ("linear", 0.00505, 1e-4),
        ("cosine", 0.00505, 1e-4),
        ("constant", 0.01, 0.01),
    ],
)
def test_schedules_without_a_warm_up(schedule: str, middle: float, end: float) -> None:
    """exponential passes the geometric mean of 1e-2 and 1e-4, the symmetric ones the arithmetic
    mean.
    """
    end_of = {} if schedule == "constant" else {"final_fraction": 0.01}
    train = TrainSpec.model_validate(
        {"steps": 100, "learning_rate": 1e-2, "schedule": schedule, **end_of}
    )
    rates = [learning_rate(train, step) for step in (0, 50, 100)]
    assert rates == pytest.approx([1e-2, middle, end], rel=1e-12)


def test_the_default_warm_up_is_inside_the_schedule_and_the_official_one_before_it() -> None:
    official = TrainSpec(
        steps=20,
        warmup=10,
        warmup_from=0.01,
        schedule="linear",
        final_fraction=0.0,
        learning_rate=1,
    )
    default = official.model_copy(update={"warmup_from": None})
    assert learning_rate(official, 5) == pytest.approx(0.01 + 0.99 * 0.5)
    assert learning_rate(default, 5) == pytest.approx(6 / 11 * 0.75)
    assert learning_rate(official, 10) == 1.0
    assert learning_rate(default, 10) == 0.5


def official_rule(name: str, parameter: Tensor) -> tuple[float, bool]:
    """The rate multiplier and whether weight decay acts, by the order of the official rules."""
    if "_w1" in name or "_w2" in name or "time_mix" in name or "time_maa" in name:
        return 1.0, False
    if "time_decay" in name:
        return 2.0, False
    return 1.0, "time_" not in name and ".weight" in name and parameter.squeeze().ndim >= 2


def groups_of(model: nn.Module, train: TrainSpec) -> dict[str, tuple[float, bool]]:
    """By parameter, its rate in multiples of the peak, and whether weight decay acts."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (
            group["lr"] / train.learning_rate,
            group["weight_decay"] == train.weight_decay,
        )
        for group in build_optimizer(model, train).param_groups
        for parameter in group["params"]
    }


def test_rates_and_weight_decay_follow_the_official_rules(model: RWKV) -> None:
    train = TrainSpec(recipe="blinkdl", steps=10)
    found = groups_of(model, train)
    assert found == {
        name: official_rule(name, parameter) for name, parameter in model.named_parameters()
    }
    assert [name for name, (rate, _) in found.items() if rate == 2] == [
        f"blocks.{i}.att.time_decay" for i in (0, 1)
    ]
    matrices = ("receptance", "key", "value", "gate", "output")
    blocks = {f"blocks.{i}.att.{name}.weight" for i in (0, 1) for name in matrices}
    blocks |= {
        f"blocks.{i}.ffn.{name}.weight" for i in (0, 1) for name in ("key", "receptance", "value")
    }
    assert {name for name, (_, decayed) in found.items() if decayed} == blocks | {
        "emb.weight",
        "head.weight",
    }


def updates(
    model: RWKV, train: TrainSpec, steps: int
) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Train on random bytes; at each step every parameter's gradient and its value after the step,
    in float64.
    """
    optimizer = build_optimizer(model, train)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        windows = torch.randint(256, (2, 17), generator=generator)
        optimizer.zero_grad()
        next_byte_loss(model, windows, l2wrap=train.l2wrap).backward()
        gradients = {
            name: p.grad.double().clone()
            for name, p in model.named_parameters()
            if p.grad is not None
        }
        optimizer.step()
        yield {
            name: (gradients[name], p.detach().double().clone())
            for name, p in model.named_parameters()
        }


def test_steps_with_the_tiny_eps_are_those_of_adam_in_float64(model: RWKV) -> None:
    """The zero matrices of the official initialisation make many first gradients zero: they move
    nothing, no 0 / 0.
    """
    train = TrainSpec(recipe="blinkdl", steps=10, learning_rate=1e-3)
    value = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    first = {name: torch.zeros_like(v) for name, v in value.items()}
    second = {name: torch.zeros_like(v) for name, v in value.items()}
    rules = {name: official_rule(name, p) for name, p in model.named_parameters()}
    for step, rows in enumerate(updates(model, train, 3), start=1):
        for name, (gradient, after) in rows.items():
            rate = 1e-3 * rules[name][0]
            decayed = rules[name][1]
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.99 * second[name] + 0.01 * gradient**2
            root = (second[name] / (1 - 0.99**step)).sqrt() + 1e-18
            value[name] *= 1 - rate * 0.001 * decayed
            value[name] -= rate * first[name] / (1 - 0.9**step) / root
            assert after.isfinite().all(), name
            assert (after - value[name]).abs().max() < 6e-7, name  # the decays are near -6
        if step == 1:
            still = {name for name, (gradient, _) in rows.items() if not gradient.any()}
            assert {
                "blocks.0.att.key.weight",
                "blocks.1.att.time_decay",
                "blocks.0.ffn.key.weight",
            } <= still


@pytest.mark.parametrize("flush", [False, True])
def test_gradients_near_the_tiny_eps_move_at_most_one_rate(flush: bool) -> None:
    """Also where the second moment underflows float32, and on a processor that flushes subnormal
    numbers to zero.
    """
    layer = nn.Linear(91, 1, bias=False)
    start = layer.weight.detach().zero_().clone()
    sizes = torch.logspace(-45, 0, 91, dtype=torch.float64)
    optimizer = build_optimizer(
        layer, TrainSpec(recipe="blinkdl", steps=10, learning_rate=1.0, weight_decay=0.0)
    )
    layer.weight.grad = sizes.float()[None]
    try:
        if not torch.set_flush_denormal(flush):
            pytest.skip("this processor cannot flush subnormal numbers")
        optimizer.step()
    finally:
        torch.set_flush_denormal(False)
    moved = (start - layer.weight.detach().double())[0]
    assert moved.isfinite().all()
    assert moved.max() < 1.1
    large = sizes > 1e-16
    torch.testing.assert_close(moved[large], (sizes / (sizes + 1e-18))[large], rtol=5e-7, atol=0)


class Table(nn.Module):
    """A model whose logits are its parameters, whatever it reads."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits


def test_l2wrap_pulls_the_largest_logit_of_every_position() -> None:
    """The gradient is that of the cross-entropy plus 1e-4 / (B T) z at the largest logit; the loss
    is the same.
    """
    generator = torch.Generator().manual_seed(0)
    logits = 30 * torch.randn((3, 5, 256), generator=generator)
    windows = torch.randint(256, (3, 6), generator=generator)
    plain = Table(logits)
    wrapped = Table(logits.clone())
    losses = [next_byte_loss(plain, windows), next_byte_loss(wrapped, windows, l2wrap=1e-4)]
    assert torch.equal(*losses)
    losses[1].backward()

    exact = logits.double().requires_grad_()
    F.cross_entropy(exact.reshape(-1, 256), windows[:, 1:].reshape(-1)).backward()
    largest = exact.detach() == exact.detach().amax(-1, keepdim=True)
    expected = exact.grad + largest * exact.detach() * 1e-4 / (3 * 5)
    assert largest.sum() == 15
    assert (wrapped.logits.grad - expected).abs().max() < 2.5e-8
    assert wrapped.logits.grad.isfinite().all()


def test_bits_per_byte_of_a_known_distribution() -> None:
    """A model that gives every byte probability 1/2 for 'a' scores one bit on a text of 'a'."""

    class Half(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            logits = torch.full((*inputs.shape, 256), -math.inf)
            logits[..., 97] = logits[..., 98] = 0.0
            return logits

    assert bits_per_byte(Half(), torch.full((5, 8), 97), 2, torch.device("cpu")) == pytest.approx(
        1.0
    )
