"""Two checkpoints of one model: what was drawn anew or reordered is told, and training is not."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from plkernel.decays.rates import Layer, known_layers
from plkernel.decays.redrawn import _correlation, redrawn
from plkernel.decays.tensors import of_tensors

LAYERS, HEADS = 12, 24
State = dict[str, Tensor]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def steps(count: int, draw: torch.Generator) -> Tensor:
    """Biases of steps from 0.001 to 0.1, evenly on a logarithmic scale."""
    step = torch.exp(torch.rand(count, generator=draw) * math.log(100.0) + math.log(1e-3))
    return torch.log(torch.expm1(step))


def mamba2(seed: int = 0) -> State:
    """As drawn by its authors: A from 1 to 16."""
    draw, state = generator(seed), State()
    for layer in range(LAYERS):
        at = f"backbone.layers.{layer}.mixer."
        state[f"{at}A_log"] = torch.log(1 + 15 * torch.rand(HEADS, generator=draw))
        state[f"{at}dt_bias"] = steps(HEADS, draw)
    return state


def mamba(seed: int = 0) -> State:
    """A counts states in every channel and layer, as it starts, and training has moved it."""
    draw, state = generator(seed), State()
    for layer in range(LAYERS):
        at = f"backbone.layers.{layer}.mixer."
        counted = torch.log(torch.arange(1.0, 5.0)).repeat(16, 1)
        state[f"{at}A_log"] = counted + 0.3 * torch.randn(16, 4, generator=draw)
        state[f"{at}dt_proj.bias"] = steps(16, draw)
    return state


def rwkv5(seed: int = 0) -> State:
    draw, state = generator(seed), State()
    for layer in range(LAYERS):
        at = f"blocks.{layer}.att."
        state[f"{at}time_decay"] = -6 + 5 * torch.rand(4, 16, generator=draw)
        state[f"{at}ln_x.weight"] = torch.ones(64)
    return state


def trained(state: State, size: float = 0.2, seed: int = 9) -> State:
    """Moved by `size` of the spread of each tensor."""
    draw = generator(seed)
    return {
        name: x + (size * float(x.std()) * torch.randn(x.shape, generator=draw) if x.std() else 0)
        for name, x in state.items()
    }


def number(name: str) -> int:
    return int(name.split("layers." if "layers." in name else "blocks.")[1].split(".")[0])


def replaced(state: State, other: State, chosen: Callable[[str], bool]) -> State:
    return {name: other[name] if chosen(name) else x for name, x in state.items()}


def layers(state: State) -> list[Layer]:
    return known_layers(of_tensors(state, {}))


def told(before: State, now: State) -> dict[str, set[str]]:
    """Names of tensors by the finding."""
    found: dict[str, set[str]] = {}
    for one in redrawn(layers(before), layers(now)):
        assert one.severity == "wrong"
        found.setdefault(one.name, set()).add(one.tensor)
    return found


ENDS = {"mamba2": ("A_log", "dt_bias"), "mamba": ("A_log", "dt_proj.bias"), "rwkv5": ("decay",)}
MODELS = {"mamba2": mamba2, "mamba": mamba, "rwkv5": rwkv5}
CHOSEN: dict[str, Callable[[str], bool]] = {
    "all layers": lambda name: True,
    "one layer": lambda name: number(name) == 5,
    "the last layer": lambda name: number(name) == LAYERS - 1,
    "five layers": lambda name: number(name) < 5,
    "every other layer": lambda name: number(name) % 2 == 1,
    "all but one": lambda name: number(name) != 3,
}
DRAWN = [(model, end, chosen) for model in MODELS for end in ENDS[model] for chosen in CHOSEN]


@pytest.mark.parametrize("moved", [0.0, 0.2])
@pytest.mark.parametrize(("model", "end", "chosen"), DRAWN)
def test_tensors_that_were_drawn_anew(model: str, end: str, chosen: str, moved: float) -> None:
    """One of the two tensors, of some layers: those, and no other one."""

    def is_drawn(name: str) -> bool:
        return name.endswith(end) and CHOSEN[chosen](name)

    before = MODELS[model]()
    now = replaced(trained(before, moved), MODELS[model](1), is_drawn)
    expected = {name for name in before if is_drawn(name)}
    found = told(before, now).get("initialised again", set())
    assert found <= expected
    assert len(found) > 0.8 * len(expected)  # some draws are alike by chance


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("model", MODELS)
def test_training_is_none_of_this(model: str, seed: int) -> None:
    """All by half of their spread, some layers more than others, or in bfloat16."""
    before = MODELS[model](seed)
    half = trained(before, 0.5, seed + 50)
    more = trained(before, 0.2 if model == "mamba" else 0.6, seed + 50)
    some = replaced(trained(before, 0.02), more, lambda name: number(name) == 0)
    shifted = {name: 0.5 * x - 1.0 for name, x in before.items()}
    narrow = {name: x.bfloat16() for name, x in before.items()}
    for now in (before, half, some, shifted, narrow, {k: x.double() for k, x in narrow.items()}):
        assert told(before, now) == {}
    assert told(narrow, before) == {}


AS_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "plus 0.693147": lambda x: x + math.log(2.0),
    "plus -1": lambda x: x - 1.0,
    "times 0.9": lambda x: 0.9 * x,
    "times 2": lambda x: 2.0 * x,
    "times -0.5": lambda x: -0.5 * x,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chosen", CHOSEN)
@pytest.mark.parametrize("words", AS_ONE)
@pytest.mark.parametrize("model", MODELS)
def test_all_numbers_of_a_tensor_moved_as_one(
    model: str, words: str, chosen: str, dtype: torch.dtype
) -> None:
    """By a converter, or by weight decay alone: notable, and nothing else is found."""
    before = MODELS[model](3)
    now = {
        name: AS_ONE[words](x.double()).to(dtype) if CHOSEN[chosen](name) else x
        for name, x in before.items()
    }
    found = list(redrawn(layers(before), layers(now)))
    moved = {name for name in before if CHOSEN[chosen](name) and "ln_x" not in name}
    assert {one.tensor for one in found} == moved
    assert {(one.name, one.severity) for one in found} == {("moved as one", "notable")}
    assert all(f"those before {words}, " in one.seen for one in found)


@pytest.mark.parametrize("model", MODELS)
def test_training_moves_no_tensor_as_one(model: str) -> None:
    """One step of Adam with gradients of one sign, a drift with noise, and rounding."""
    before = MODELS[model](4)
    step = {name: x - 0.01 for name, x in before.items()}
    drift = {name: x - 1.0 for name, x in trained(before, 1e-4).items()}
    shrunk = {name: 0.5 * x for name, x in trained(before, 1e-4).items()}
    narrow = {name: (x - 1.0).bfloat16() for name, x in before.items()}
    for now in (step, drift, shrunk, narrow):
        assert told(before, now) == {}


def placed(state: State, place: Callable[[int], int]) -> State:
    """Tensors of layer n from layer `place(n)`."""

    def source(name: str) -> str:
        return name.replace(f".{number(name)}.", f".{place(number(name))}.")

    return {name: state[source(name)] for name in state}


ORDERS: dict[str, Callable[[State], State]] = {
    "swapped stages": lambda state: placed(state, lambda n: (n + 6) % 12),
    "two layers": lambda state: placed(state, lambda n: {3: 4, 4: 3}.get(n, n)),
    "reversed layers": lambda state: placed(state, lambda n: 11 - n),
    "one layer twice": lambda state: placed(state, lambda n: 2 if n == 7 else n),
    "heads reversed": lambda state: {
        name: x.flatten().flip(0).reshape(x.shape) for name, x in state.items()
    },
    "heads of one layer": lambda state: {
        name: x.flatten().roll(1).reshape(x.shape) if number(name) == 2 else x
        for name, x in state.items()
    },
    "two heads": lambda state: {
        name: torch.cat([x.flatten()[:2].flip(0), x.flatten()[2:]]).reshape(x.shape)
        for name, x in state.items()
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("model", MODELS)
def test_the_same_numbers_in_another_order(model: str, order: str, dtype: torch.dtype) -> None:
    before = MODELS[model]()
    now = {name: x.to(dtype) for name, x in ORDERS[order](before).items()}
    same = {name: torch.equal(before[name].to(dtype), x) for name, x in now.items()}
    assert told(before, now) == {"another order": {name for name in same if not same[name]}}


@pytest.mark.parametrize("model", ["mamba2", "rwkv5"])
def test_layers_that_were_swapped_before_training_went_on(model: str) -> None:
    before = MODELS[model]()
    now = trained(ORDERS["two layers"](before), 0.1)
    expected = {name for name in before if number(name) in (3, 4) and "ln_x" not in name}
    assert told(before, now) == {"another order": expected}


STARTS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "A_log counted": ("A_log", lambda x: torch.arange(1.0, len(x) + 1).log()),
    "dt_bias is ones": ("dt_bias", torch.ones_like),
}


@pytest.mark.parametrize("start", STARTS)
def test_tensors_that_are_as_they_start_again(start: str) -> None:
    """Of one layer; a model that still is as it starts is so before and now."""
    end, values = STARTS[start]
    before = mamba2()
    now = {
        name: values(x) if name.endswith(end) and number(name) == 4 else x
        for name, x in before.items()
    }
    assert told(before, now) == {"initialised again": {f"backbone.layers.4.mixer.{end}"}}
    assert told(now, now) == {}
    assert told(now, trained(now)) == {}


def test_the_first_steps_and_the_last() -> None:
    """Early in training the movement from the start is small, and need not be that of later."""
    start = {name: x - x + mean(name, x) for name, x in mamba().items()}
    assert told(trained(start, 0.01, 1), trained(start, 0.3, 2)) == {}
    assert told(start, trained(start, 0.3, 2)) == {}


def mean(name: str, x: Tensor) -> Tensor:
    """The A_log that Mamba starts with; other tensors as they are."""
    return torch.arange(1.0, 5.0).log().repeat(16, 1) if name.endswith("A_log") else x


def test_numbers_that_are_none_do_not_hide_the_others() -> None:
    before, now = mamba2(), mamba2(1)
    for state in (before, now):
        state["backbone.layers.0.mixer.A_log"][3] = math.nan
        state["backbone.layers.1.mixer.dt_bias"][:] = math.inf
    found: Any = told(before, now)["initialised again"]
    assert "backbone.layers.0.mixer.A_log" in found
    assert "backbone.layers.1.mixer.dt_bias" not in found


SPREADS = (0.1, 0.5, 1.0, 2.0)


def small(heads: int, count: int, seed: int) -> State:
    """Mamba-2 of few heads and layers."""
    state = mamba2(seed)
    return {name: x[:heads] for name, x in state.items() if number(name) < count}


@pytest.mark.parametrize("count", [4, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("heads", [4, 8, 16])
def test_training_that_moves_decays_far_is_no_finding(heads: int, count: int) -> None:
    """5 % of models, by up to twice the spread of each tensor; 10 of 100 has a chance of 1 %."""
    models = 0
    for seed in range(25):
        before = small(heads, count, seed)
        for size in SPREADS:
            models += bool(told(before, trained(before, size, 1000 + seed)))
    assert models <= 10


@pytest.mark.parametrize(("heads", "least"), [(16, 0.8), (24, 0.9)])
@pytest.mark.parametrize("moved", [0.1, 0.3])
def test_one_tensor_of_twelve_layers_is_found(heads: int, least: float, moved: float) -> None:
    name, found = "backbone.layers.5.mixer.A_log", 0
    for seed in range(30):
        before, other = small(heads, 12, seed), small(heads, 12, 500 + seed)
        now = trained(before, moved, 1000 + seed) | {name: other[name]}
        names = told(before, now).get("initialised again", set())
        assert names <= {name}
        found += name in names
    assert found >= least * 30


def test_numbers_that_do_not_change_are_as_like_as_can_be() -> None:
    assert _correlation(3.0, 4.0, 9.0) == 0.5
    assert _correlation(0.0, 0.0, 9.0) == 1.0
    assert _correlation(0.0, 4.0, 0.0) == 1.0
