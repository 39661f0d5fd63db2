"""A condition before its first step: its model, the rates of its steps, and devices."""

import math
from typing import Any

import pytest
import torch

from plkernel.config.condition import Condition, resolve
from plkernel.config.schema import Arm, CorpusSpec, ModelSpec, TrainSpec
from plkernel.training import build
from plkernel.training.build import (
    COMPILED_FROM,
    LONGEST,
    Prepared,
    choose_device,
    compiles,
    learning_rate,
    started,
)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Nothing is built: what would be tried of other people's code."""
    calls: list[tuple[Any, ...]] = []

    def keep(*given: Any) -> int:
        calls.append(given)
        return 7

    monkeypatch.setattr(build, "_tried", keep)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return calls


def foreign(name: str = "stdlib", arm: Arm | None = None, **train: Any) -> Condition:
    protocol = TrainSpec(steps=1, **train) if train else None
    model = ModelSpec(kind="other:Model")
    return resolve(model, arm, protocol, CorpusSpec(name=name), trusted=True)


@pytest.mark.parametrize(
    ("train", "context", "farthest"),
    [
        ({}, LONGEST, None),
        ({"context": 32}, 32, None),
        ({"context": LONGEST + 1}, LONGEST, None),
        ({"context": 32, "beyond": 1}, 32, None),
        ({"context": 32, "beyond": 2}, 32, 64),
        ({"context": 32, "beyond": 3}, 32, 96),
    ],
)
def test_code_of_others_is_tried_on_the_longest_windows(
    train: dict[str, int], context: int, farthest: int | None, tried: list[tuple[Any, ...]]
) -> None:
    prepared = Prepared.of(foreign(**train))
    assert (prepared.parameters, prepared.plan, prepared.config) == (7, None, None)
    [(_, _, length, device, named, longest)] = tried
    assert (length, device, named, longest) == (context, "cpu", False, farthest)


def test_code_of_others_is_tried_up_to_the_longest_test_of_recall(
    tried: list[tuple[Any, ...]],
) -> None:
    Prepared.of(foreign("synthetic:recall,pairs=4,length=32", context=32))
    assert tried[0][-1] == 8 * 32


@pytest.mark.parametrize(
    ("train", "checked", "device"),
    [
        ({"context": 32}, False, "cpu"),
        ({"context": 32}, True, "meta"),
        ({"context": 32, "device": "cuda"}, False, "meta"),
        ({"context": 32, "device": "cpu"}, False, "cpu"),
        ({}, True, "meta"),
    ],
)
def test_code_is_run_where_it_is_trained_and_not_twice(
    train: dict[str, Any], checked: bool, device: str, tried: list[tuple[Any, ...]]
) -> None:
    Prepared.of(foreign(**train), checked)
    assert tried[0][3] == device


def test_decays_must_have_names_where_they_are_trained_in_another_way(
    tried: list[tuple[Any, ...]],
) -> None:
    Prepared.of(foreign(context=32, decay_multiplier=0))
    Prepared.of(foreign(context=32))
    own = resolve(ModelSpec(), Arm(init="other:init"), TrainSpec(steps=1, decay_multiplier=0))
    Prepared.of(Condition(own.model, own.arm, own.train, own.corpus, trusted=True))
    assert [call[4] for call in tried] == [True, False, False]


def test_code_is_neither_tried_nor_run_without_consent(tried: list[tuple[Any, ...]]) -> None:
    condition = resolve(ModelSpec(kind="other:Model"))
    for action in (lambda: Prepared.of(condition), lambda: started(condition, 0)):
        with pytest.raises(ValueError, match="kind 'other:Model' runs third-party code; review"):
            action()
    assert tried == []


def rates(**options: Any) -> list[float]:
    train = TrainSpec(learning_rate=1.0, **options)
    return [learning_rate(train, step) for step in range(train.total_steps)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": "constant", "steps": 3}, [1.0, 1.0, 1.0]),
        ({"schedule": "linear", "steps": 4, "final_fraction": 0.0}, [1.0, 0.75, 0.5, 0.25]),
        ({"schedule": "linear", "steps": 2, "final_fraction": 0.5}, [1.0, 0.75]),
        (
            {"schedule": "exponential", "steps": 2, "final_fraction": 0.01},
            [1.0, 0.1],
        ),
        ({"schedule": "cosine", "steps": 2, "final_fraction": 0.2}, [1.0, 0.6]),
        ({"schedule": "constant", "steps": 4, "warmup": 2}, [1 / 3, 2 / 3, 1.0, 1.0]),
        (
            {"schedule": "constant", "steps": 4, "warmup": 2, "warmup_from": 0.5},
            [0.5, 0.75, 1.0, 1.0],
        ),
        (
            {
                "schedule": "linear",
                "steps": 4,
                "warmup": 2,
                "warmup_from": 0.5,
                "final_fraction": 0.0,
            },
            [0.5, 0.75, 1.0, 0.5],
        ),
        (
            {"schedule": "linear", "steps": 2, "warmup": 2, "warmup_from": 0.0},
            [0.0, 0.5],
        ),
        (
            {"schedule": "linear", "steps": 2, "warmup": 5, "warmup_from": 0.0},
            [0.0, 0.2],
        ),
    ],
)
def test_the_rate_of_every_step(options: dict[str, Any], expected: list[float]) -> None:
    assert rates(**options) == pytest.approx(expected, rel=1e-12)


def test_a_rate_beyond_the_last_step_is_the_final_one() -> None:
    train = TrainSpec(learning_rate=2.0, steps=4, schedule="linear", final_fraction=0.25)
    assert [learning_rate(train, step) for step in (4, 5, 100)] == [0.5] * 3


@pytest.mark.parametrize(
    ("name", "is_there", "device"),
    [
        ("cpu", False, "cpu"),
        ("auto", False, "cpu"),
        ("cpu", True, "cpu"),
        ("auto", True, "cuda"),
        ("cuda", True, "cuda"),
    ],
)
def test_a_gpu_is_taken_where_there_is_one(
    name: Any, is_there: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: is_there)
    assert choose_device(name).type == device


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="device must be 'cpu' or 'auto' where no GPU is"):
        choose_device("cuda")


SIZED = ModelSpec(dim=500, layers=4)
LONG = 15_000
"""Steps of 100,000 bytes, of which 2,000 times as many are COMPILED_FROM."""


@pytest.mark.parametrize(
    ("value", "device", "steps", "model", "expected"),
    [
        (False, "cuda", LONG, SIZED, False),
        (True, "cpu", 1, SIZED, True),
        (True, "cuda", 1, ModelSpec(kind="somebody:Model"), True),
        ("auto", "cuda", LONG, SIZED, True),
        ("auto", "cuda", LONG - 1, SIZED, False),
        ("auto", "cuda", LONG // 2, ModelSpec(dim=1000, layers=4), True),
        ("auto", "cuda", LONG // 2, ModelSpec(dim=500, layers=8), True),
        ("auto", "cuda", LONG, ModelSpec(kind="somebody:Model"), False),
        ("auto", "cpu", LONG, SIZED, False),
    ],
)
def test_long_runs_of_large_models_are_compiled_on_a_gpu(
    value: Any, device: str, steps: int, model: ModelSpec, expected: bool
) -> None:
    """A length in bytes counts as its steps."""
    assert LONG * 100_000 * 2000 == COMPILED_FROM
    for length in ({"steps": steps}, {"bytes": steps * 100_000}):
        train = TrainSpec(batch=100, context=1000, compile=value, **length)
        condition = Condition(model, Arm(), train)
        assert compiles(condition, torch.device(device)) is expected


def test_facts_are_those_of_the_model_that_is_built() -> None:
    for model in (ModelSpec(dim=16, layers=2), ModelSpec(kind="rwkv7", dim=16, head_size=8)):
        condition = resolve(model)
        prepared = Prepared.of(condition)
        made = started(condition, 0)
        assert prepared.parameters == sum(one.numel() for one in made.parameters())
        again = started(condition, 0, prepared.plan)
        other = started(condition, 1)
        state = made.state_dict()
        assert all(torch.equal(state[name], x) for name, x in again.state_dict().items())
        assert not all(torch.equal(state[name], x) for name, x in other.state_dict().items())
    assert math.isfinite(sum(float(x.double().sum()) for x in state.values()))


def test_a_shape_needs_projections_that_do_not_begin_at_zero() -> None:
    """A uniform projection shapes nothing, and a fixed multiplier acts on the states."""
    model = ModelSpec(dim=16, layers=1)

    def prepared(**arm: Any) -> Prepared:
        return Prepared.of(resolve(model, Arm(scheme="rwkv_blinkdl", **arm)))

    assert prepared().parameters > 0
    assert prepared(projection="gain-corrected", shape_on="multiplier").parameters > 0
    with pytest.raises(ValueError, match=r"which sets .* to zero, where a shape has nothing to"):
        prepared(projection="gain-corrected")
    assert Prepared.of(resolve(model, Arm(projection="gain-corrected"))).parameters > 0


def test_the_optimizer_takes_the_steps_of_torch() -> None:
    """Bit by bit, with weight decay and a closure; hooks of torch see every step."""
    ways = (torch.optim.AdamW, build.AdamW)
    seen = []
    found = []
    for kind in ways:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.5, fused=True)
        optimizer.register_step_post_hook(lambda made, *_: seen.append(type(made)))

        def loss(model: torch.nn.Linear = model) -> torch.Tensor:
            value = model(torch.arange(3.0)).square().sum()
            value.backward()
            return value

        first = optimizer.step(loss)
        optimizer.zero_grad()
        loss()
        optimizer.step()
        found.append([first, *map(torch.Tensor.detach, model.parameters())])
    assert seen == [ways[0]] * 2 + [ways[1]] * 2
    assert all(map(torch.equal, *found))
