"""Counts against torch's own counter, against recurrences counted number by number, and against real allocations."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from peaks import peak_bytes
from torch.utils.flop_counter import FlopCounterMode

from plkernel.config.condition import resolve
from plkernel.config.schema import Arm, ModelSpec, TrainSpec
from plkernel.dry_run.cost import Cost, cost, flops, shape_key
from plkernel.training.build import build, initialise_, parameter_count
from plkernel.training.objective import next_byte_loss

TRAIN = TrainSpec(context=64, batch=2, steps=1)
MODELS = {
    "ssm": {"kind": "ssm", "dim": 24, "layers": 2},
    "patched": {"kind": "ssm", "dim": 24, "layers": 3, "patching": {"size": 3}},
    "rwkv5": {"kind": "rwkv5", "dim": 32, "layers": 2, "head_size": 16},
    "rwkv6": {"kind": "rwkv6", "dim": 32, "layers": 2, "head_size": 8},
    "rwkv7": {"kind": "rwkv7", "dim": 32, "layers": 2, "head_size": 8},
}
SLOW_PATCHED, SLOW_EAGLE = (pytest.param(name, marks=pytest.mark.slow) for name in ("patched", "rwkv5"))
PER_HEAD = {"forward": 5, "backward": 11}
PER_GOOSE_HEAD = {"forward": 9, "backward": 19}


def model_of(name: str, **changes: Any) -> ModelSpec:
    return ModelSpec.model_validate(MODELS[name] | changes)


def recurrence(model: ModelSpec, context: int) -> tuple[int, int]:
    """Operations of the recurrences of one window, forward and backward."""
    steps = model.layers * -(-context // model.patching.size)
    if model.kind == "ssm":
        return 2 * model.dim * steps, 4 * model.dim * steps
    counts = PER_GOOSE_HEAD if model.kind == "rwkv7" else PER_HEAD
    return tuple(count * model.dim * model.head_size * steps for count in counts.values())  # type: ignore[return-value]


@pytest.mark.parametrize("name", MODELS)
def test_products_are_those_that_torch_counts(name: str) -> None:
    spec = model_of(name)
    model = initialise_(build(resolve(spec)), resolve(spec, Arm()), 0)
    windows = torch.randint(0, 256, (1, TRAIN.context + 1))
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        model(windows[:, :-1])
    with FlopCounterMode(display=False) as training:
        next_byte_loss(model, windows).backward()
    counted, (ahead, back) = flops(model.config, TRAIN.context), recurrence(spec, TRAIN.context)
    assert counted.forward - ahead == forward.get_total_flops()
    assert counted.training - ahead - back == training.get_total_flops()


@dataclass
class Tally:
    """Counts the operations of its numbers."""

    count: int = 0

    def number(self) -> "Number":
        return Number(self)

    def numbers(self, *shape: int) -> Any:
        return [self.numbers(*shape[1:]) for _ in range(shape[0])] if shape else self.number()


@dataclass
class Number:
    """A number without a value."""

    tally: Tally = field(repr=False)

    def __add__(self, other: "Number") -> "Number":
        self.tally.count += 1
        return self

    __mul__ = __add__


def total(numbers: list[Number]) -> Number:
    result = numbers[0]
    for number in numbers[1:]:
        result = result + number
    return result


def test_the_scan_number_by_number() -> None:
    channels, tally = 7, Tally()
    a, b, s, grad, carry = (tally.numbers(channels) for _ in range(5))
    for d in range(channels):
        s[d] = a[d] * s[d] + b[d]
    assert tally.count == 2 * channels
    grad_a, tally.count = tally.numbers(channels), 0
    for d in range(channels):
        carry[d] = grad[d] + a[d] * carry[d]
        grad_a[d] = grad_a[d] + carry[d] * s[d]
    assert tally.count == 4 * channels


@pytest.mark.parametrize("size", [8, 32])
def test_wkv_number_by_number(size: int) -> None:
    tally, n = Tally(), range(size)
    r, k, v, w, u, do = (tally.numbers(size) for _ in range(6))
    state, grad = tally.numbers(size, size), tally.numbers(size, size)
    bonus = total([r[i] * u[i] * k[i] for i in n])
    for j in n:
        total([r[i] * state[i][j] for i in n]) + bonus * v[j]
    for i in n:
        state[i] = [w[i] * state[i][j] + k[i] * v[j] for j in n]
    assert 0 <= tally.count - PER_HEAD["forward"] * size**2 < 5 * size  # what is left is of the size of a vector
    tally.count = 0
    for i in n:
        total([state[i][j] * do[j] for j in n])  # grad_r
        total([grad[i][j] * v[j] for j in n])  # grad_k
        total([grad[i][j] * state[i][j] for j in n])  # grad_w
        total([grad[j][i] * k[j] for j in n])  # grad_v
        grad[i] = [w[i] * grad[i][j] + r[i] * do[j] for j in n]
    assert -5 * size < tally.count - PER_HEAD["backward"] * size**2 <= 0


@pytest.mark.parametrize("size", [8, 32])
def test_wkv7_number_by_number(size: int) -> None:
    tally, n = Tally(), range(size)
    r, k, v, w, a, b, do = (tally.numbers(size) for _ in range(7))
    state, grad = tally.numbers(size, size), tally.numbers(size, size)  # value by key
    read = [total([state[i][j] * a[j] for j in n]) for i in n]
    for i in n:
        state[i] = [state[i][j] * w[j] + read[i] * b[j] + v[i] * k[j] for j in n]
        total([state[i][j] * r[j] for j in n])
    assert -5 * size < tally.count - PER_GOOSE_HEAD["forward"] * size**2 <= 0
    tally.count = 0
    for i in n:
        total([state[j][i] * do[j] for j in n])  # grad_r
        grad[i] = [grad[i][j] + do[i] * r[j] for j in n]
        total([grad[j][i] * v[j] for j in n])  # grad_k
        total([grad[i][j] * k[j] for j in n])  # grad_v
        total([grad[j][i] * state[j][i] for j in n])  # grad_w
        total([grad[j][i] * read[j] for j in n])  # grad_b
        total([grad[i][j] * b[j] for j in n])  # grad_read
        total([read[j] * state[j][i] for j in n])  # grad_a
        grad[i] = [grad[i][j] * w[j] + read[i] * a[j] for j in n]
    assert -8 * size < tally.count - PER_GOOSE_HEAD["backward"] * size**2 <= 0


@pytest.mark.parametrize("name", ["ssm", SLOW_PATCHED, SLOW_EAGLE, pytest.param("rwkv6", marks=pytest.mark.slow)])
def test_twice_the_layers_cost_twice_what_a_layer_costs(name: str) -> None:
    one, two, four = (costs(name, layers=layers) for layers in (1, 2, 4))
    assert four.flops.training - two.flops.training == 2 * (two.flops.training - one.flops.training)
    assert four.parameters - two.parameters == 2 * (two.parameters - one.parameters)


@pytest.mark.parametrize("kind", ["ssm", SLOW_EAGLE, pytest.param("rwkv6", marks=pytest.mark.slow)])
def test_twice_the_width_costs_four_times_the_products_of_a_layer(kind: str) -> None:
    def layer(dim: int) -> int:
        head = {} if kind == "ssm" else {"head_size": 32}
        each = [costs(kind, dim=dim, layers=layers, **head).flops for layers in (1, 2)]
        rest = [sum(recurrence(model_of(kind, dim=dim, layers=layers, **head), TRAIN.context)) for layers in (1, 2)]
        return each[1].training - each[0].training - rest[1] + rest[0]

    low_rank = 6 * TRAIN.context * 2 * (5 * 32 + 64) if kind == "rwkv6" else 0  # of Finch, per channel
    wide, narrow = layer(768) - 768 * low_rank, layer(384) - 384 * low_rank
    assert wide / narrow == pytest.approx(4, rel=2e-3)  # hidden widths are rounded


def costs(name: str, **changes: Any) -> Cost:
    return cost(resolve(model_of(name, **changes), Arm(), TRAIN))


@pytest.mark.parametrize("name", ["ssm", "patched", SLOW_EAGLE, "rwkv6"])
def test_memory_is_what_the_allocator_gave(name: str) -> None:
    """A real step's allocations, beside the parameters; kernels work in a little memory of their own."""
    spec = model_of(name, dim=64, **({} if name in ("ssm", "patched") else {"head_size": 32}))
    train = TRAIN.model_copy(update={"context": 512, "batch": 4})
    model = initialise_(build(resolve(spec)), resolve(spec, Arm()), 0)
    windows = torch.randint(0, 256, (train.batch, train.context + 1))

    def step() -> None:
        model.zero_grad()
        next_byte_loss(model, windows).backward()

    counted = cost(resolve(spec, Arm(), train))
    assert counted.parameters == sum(p.numel() for p in model.parameters()) == parameter_count(resolve(spec))
    state = 4 * 4 * counted.parameters  # parameters, their gradients, two moments
    measured = peak_bytes(step) + state + windows.nbytes
    assert counted.tensor_bytes == pytest.approx(measured, rel=1e-3)  # here to the byte


def test_large_tensors_are_told_from_small_ones() -> None:
    spec = model_of("ssm", dim=256)
    small, large = (cost(resolve(spec, Arm(), TRAIN.model_copy(update={"context": c}))) for c in (64, 1 << 15))
    assert small.large_bytes == 0
    assert 0.95 * large.tensor_bytes < large.large_bytes < large.tensor_bytes
    assert small.resident(1.5) == 1.5 * small.tensor_bytes


@pytest.mark.parametrize("kind", ["rwkv6", "rwkv7"])
def test_half_precision_takes_less_memory(kind: str) -> None:
    spec = model_of(kind, dim=128, head_size=32, layers=1)
    half, whole = (cost(resolve(spec, Arm(), TRAIN), half=half).tensor_bytes for half in (True, False))
    assert 0.5 < half / whole < 0.95


def test_a_model_of_any_size_is_counted_without_memory() -> None:
    spec = model_of("ssm", dim=1024, layers=4)
    found = cost(resolve(spec, Arm(), TRAIN.model_copy(update={"context": 2048, "batch": 64, "backend": "gpu"})))
    assert found.parameters == parameter_count(resolve(spec))
    assert found.tensor_bytes > 20e9


def test_runs_that_cost_the_same_have_one_key() -> None:
    spec, arm = model_of("ssm"), Arm()
    ema = model_of("ssm", gain="ema")
    assert shape_key(resolve(spec, arm, TRAIN)) == shape_key(
        resolve(spec, Arm(projection="published", learning_rate=1.0), TRAIN)
    )
    assert shape_key(resolve(spec, arm, TRAIN)) != shape_key(resolve(ema, arm, TRAIN))
    assert shape_key(resolve(spec, arm, TRAIN), rough=True) == shape_key(resolve(ema, arm, TRAIN), rough=True)
    assert shape_key(resolve(spec, arm, TRAIN), rough=True) != shape_key(
        resolve(model_of("patched"), arm, TRAIN), rough=True
    )
    scaled, other = Arm(scheme="u_mup"), Arm(scheme="u_mup", scheme_options={"residual_mult": 0.5})
    assert shape_key(resolve(spec, arm, TRAIN)) != shape_key(resolve(spec, scaled, TRAIN))
    assert shape_key(resolve(spec, scaled, TRAIN)) == shape_key(resolve(spec, other, TRAIN))
