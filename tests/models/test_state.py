"""State in, state out: parts of a text give the logits and gradients of the whole, wherever it is
cut.
"""

import dataclasses
import io
import itertools
import math
import shutil
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_models import (
    ALL,
    EAGLE,
    EVERY,
    FINCH,
    GOOSE,
    KINDS,
    LEAKING,
    SSMS,
    Config,
    Model,
    build,
    empty,
    some_bytes,
)
from torch import Tensor

from plkernel.models.layers import Structure
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.models.state import State

pytestmark = pytest.mark.usefixtures("one_thread")
TIME = 24
ONE_EACH = pytest.mark.parametrize("config", [SSMS[1], SSMConfig(16, 2, patch=4), EAGLE, GOOSE])
CUTS: dict[str, list[int]] = {
    "one by one": [1] * TIME,
    "first alone": [1, TIME - 1],
    "last alone": [TIME - 1, 1],
    "in patches": [5, 2, 10, 7],
    "at borders": [12, 12],
    "with empty parts": [0, 9, 0, 15, 0],
}


def in_parts(model: Model, inputs: Tensor, sizes: Sequence[int]) -> tuple[Tensor, State]:
    """Logits of the parts, one after the other, and the last state."""
    state = model.initial_state(inputs.shape[0])
    found = []
    for part in inputs.split(list(sizes), dim=1):
        logits, state = model(part, state)
        found.append(logits)
    return torch.cat(found, dim=1), state


def bound(model: Model, logits: Tensor) -> float:
    """How far rounding may move a logit: products * sqrt(width * time) units of the largest one.

    A sum of n products that is rounded at every step is wrong by about sqrt(n) units, more of them
    follow one another, and a state is rounded at every cut.
    """
    products = 1 + sum(parameter.ndim > 1 for parameter in model.blocks.parameters())
    width = max(max(parameter.shape) for parameter in model.blocks.parameters())
    unit = torch.finfo(logits.dtype).eps
    return products * math.sqrt(width * logits.shape[1]) * unit * float(logits.abs().max())


def check_parts(model: Model, inputs: Tensor, sizes: Sequence[int], condition: float = 0.0) -> None:
    """condition: the change of a logit for a relative change of the weights by one; every number on
    the way is rounded at least once, so that 4 times a change by one unit may come of it.
    """
    with torch.no_grad():
        whole = model(inputs)
        parts, _ = in_parts(model, inputs, sizes)
    assert parts.shape == whole.shape
    limit = max(bound(model, whole), 4 * condition * torch.finfo(whole.dtype).eps)
    assert float((parts - whole).abs().max()) < limit


@ALL
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_parts_with_the_state_carried_are_the_whole(config: Config, dtype: torch.dtype) -> None:
    """At each of these cuts; the bound is far below what a forgotten state changes."""
    model = build(config).to(dtype)
    inputs = some_bytes(3, TIME)
    for sizes in CUTS.values():
        check_parts(model, inputs, sizes)
    with torch.no_grad():
        whole = model(inputs)
        forgotten = model(inputs[:, 9:])
    assert (forgotten - whole[:, 9:]).abs().max() > 100 * bound(model, whole)


MODELS = [build(one) for one in (SSMS[2], SSMConfig(16, 2, patch=4), EAGLE, FINCH, GOOSE)]


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(MODELS), st.lists(st.integers(0, TIME), max_size=6), st.integers(0, 99))
def test_any_cuts_give_the_whole(model: Model, places: list[int], seed: int) -> None:
    inputs = torch.randint(0, 256, (2, TIME), generator=torch.Generator().manual_seed(seed))
    cuts = [0, *sorted(places), TIME]
    check_parts(model, inputs, [end - start for start, end in itertools.pairwise(cuts)])


@EVERY
@pytest.mark.parametrize("kind", KINDS)
def test_every_structure_carries_its_state(kind: str, structure: Structure) -> None:
    if kind == "rwkv7" and structure.unit_scaled:
        return
    check_parts(build(empty(kind, structure)), some_bytes(2, TIME), CUTS["in patches"])


@ONE_EACH
def test_the_reference_carries_the_same_state(config: Config) -> None:
    model, other = (build(dataclasses.replace(config, backend=one)) for one in (None, "reference"))
    with torch.no_grad():
        (found, state), (expected, same) = (
            in_parts(one, some_bytes(2, TIME), CUTS["in patches"]) for one in (model, other)
        )
    assert float((found - expected).abs().max()) < bound(model, found)
    for name, values in same.tensors.items():
        torch.testing.assert_close(state.tensors[name], values, rtol=1e-12, atol=1e-12)


@ONE_EACH
def test_gradients_flow_through_the_state_until_it_is_detached(config: Config) -> None:
    """The loss of a second part has the gradients of the same loss in the whole."""
    model = build(config)
    inputs = some_bytes(2, 13)

    def gradients(detached: bool) -> dict[str, Tensor]:
        model.zero_grad()
        _, state = model(inputs[:, :6], model.initial_state(2))
        logits, _ = model(inputs[:, 6:], state.detach() if detached else state)
        logits.square().sum().backward()
        return {name: one.grad.clone() for name, one in model.named_parameters()}

    carried, cut = gradients(detached=False), gradients(detached=True)
    model.zero_grad()
    model(inputs)[:, 6:].square().sum().backward()
    for name, parameter in model.named_parameters():
        largest = parameter.grad.abs().max()
        assert (carried[name] - parameter.grad).abs().max() <= 1e-11 * largest, name
    assert any((cut[name] - carried[name]).abs().max() > 1e-6 for name in cut)


def check_size(model: Any) -> None:
    """The tensors of a state own their memory: no view keeps the activations of a part."""
    with torch.no_grad():
        _, short = in_parts(model, some_bytes(2, 3), [3])
        _, long = in_parts(model, some_bytes(2, 400), [400])
    for name, values in long.tensors.items():
        assert values.shape == short.tensors[name].shape
        stored = values.untyped_storage().nbytes()
        assert stored == values.numel() * values.element_size(), name


@ALL
def test_a_state_keeps_its_size_and_nothing_else(config: Config) -> None:
    check_size(build(config))


def check_saved(model: Any) -> None:
    """A state that gradients flow through can be detached, moved, and saved as the docs have it."""
    inputs = some_bytes(2, 9)
    _, state = model(inputs[:, :5], model.initial_state(2))
    assert any(values.requires_grad for values in state.tensors.values())
    kept = state.detach()
    assert not any(values.requires_grad for values in kept.tensors.values())
    assert all(x.device.type == "meta" for x in kept.to("meta").tensors.values())
    file = io.BytesIO()
    torch.save(vars(state.detach()), file)
    file.seek(0)
    read = State(**torch.load(file, weights_only=True))
    with torch.no_grad():
        (again, _), (expected, _) = model(inputs[:, 5:], read), model(inputs[:, 5:], kept)
    assert torch.equal(again, expected)


@ALL
def test_a_state_can_be_detached_moved_and_saved(config: Config) -> None:
    check_saved(build(config))


def check_empty(model: Any) -> None:
    """Texts of no bytes, and no texts, have logits of no bytes."""
    for shape in ((2, 0), (0, 5)):
        logits = model(torch.zeros(shape, dtype=torch.int64))
        assert logits.shape == (*shape, 256)


@ALL
def test_nothing_has_no_logits(config: Config) -> None:
    check_empty(build(config))


@pytest.mark.parametrize(
    ("config", "other", "message"),
    [
        (SSMS[0], SSMS[2], "state must be of ssm, got one of ssm with patches of 2 bytes; begin"),
        (SSMS[2], SSMS[3], "state must be of ssm with patches of 2 bytes, got one of ssm with"),
        (EAGLE, FINCH, "state must be of rwkv5, got one of rwkv6"),
        (GOOSE, FINCH, "state must be of rwkv7, got one of rwkv6"),
        (SSMS[0], SSMConfig(16, 3), "same size, got one that differs in blocks.2.ssm"),
        (SSMS[0], SSMConfig(8, 2), r"blocks.0.ssm \(B, \*\(16,\)\), got \(2, 8\)"),
        (FINCH, dataclasses.replace(FINCH, head_size=8), r"blocks.0.wkv \(B, \*\(2, 16, 16\)\)"),
    ],
)
def test_the_state_of_another_model_is_refused(config: Config, other: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(config)(some_bytes(), build(other).initial_state(2))


@ONE_EACH
def test_a_state_of_another_batch_dtype_or_device_is_refused(config: Config) -> None:
    model = build(config)
    inputs = some_bytes(2, 5)
    good = model.initial_state(2)
    name = next(iter(good.tensors))
    patch = getattr(config, "patch", 1)
    cases: list[tuple[Any, str]] = [
        (model.initial_state(3), "state must be of the batch of the inputs, 2, got 3"),
        (build(config).float().initial_state(2), f"{name} in torch.float64.*got torch.float32"),
        (good.to("meta"), "on the device of the inputs, cpu, got meta; use state.to"),
        (dataclasses.replace(good, position=patch), f"a position below {patch}, got {patch}"),
        (dataclasses.replace(good, position=-1), "a position below"),
        (dict(good.tensors), "state must be a State, got dict"),
        (good.tensors[name], "state must be a State, got Tensor"),
    ]
    for state, message in cases:
        with pytest.raises(ValueError, match=message):
            model(inputs, state)
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        model.initial_state(0)


@pytest.mark.parametrize("config", LEAKING)
def test_published_patching_has_no_state(config: SSMConfig) -> None:
    model = SSM(config)
    with pytest.raises(ValueError, match="mode must be 'causal' for a state, got 'published'"):
        model.initial_state(1)
    causal = SSM(dataclasses.replace(config, mode="causal")).initial_state(2)
    with pytest.raises(ValueError, match="got 'published'"):
        model(some_bytes(), causal)


@ONE_EACH
@pytest.mark.parametrize("how", ["autocast", "weights"])
def test_in_bfloat16_memories_stay_wide(config: Config, how: str) -> None:
    """Those of recurrences are float32; the state of one part is one for the next."""
    model = build(config).float()
    if how == "weights":
        model = model.bfloat16()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        whole = model(some_bytes(2, TIME)).float()
        parts, state = in_parts(model, some_bytes(2, TIME), CUTS["in patches"])
    for name, values in state.tensors.items():
        if name.endswith(("ssm", "wkv", "total")):
            assert values.dtype == torch.float32, name
    unit = torch.finfo(torch.bfloat16).eps
    # layers of 8 bits each, which norms pass on
    assert (parts.float() - whole).abs().mean() < 8 * unit * whole.abs().mean()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("default")
@ONE_EACH
def test_a_compiled_model_carries_its_state_in_one_graph(config: Config) -> None:
    torch._dynamo.reset()
    model = build(config).float()
    inputs = some_bytes(2, 27)
    compiled: Any = torch.compile(model)
    assert torch._dynamo.explain(model)(inputs, model.initial_state(2)).graph_break_count == 0
    with torch.no_grad():
        expected, _ = in_parts(model, inputs, [9, 9, 9])
        state = model.initial_state(2)
        found = []
        for part in inputs.split(9, dim=1):
            logits, state = compiled(part, state)
            found.append(logits)
    assert (torch.cat(found, 1) - expected).abs().max() < bound(model, expected)
