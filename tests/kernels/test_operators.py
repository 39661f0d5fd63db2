"""One template for the three operators: every backend against float64, autograd, torch.compile and
its own promises.
"""

import ast
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from operators import (
    CASES,
    LOG_DECAYS,
    NAMES,
    OPERATORS,
    SCAN,
    WKV,
    WKV7,
    Operator,
    Problem,
    loss,
    mild,
    strided,
)
from torch import Tensor, func
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from plkernel.kernels import operators
from plkernel.kernels.operators import _is_plain, choose

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script.* is deprecated:DeprecationWarning"
)  # inside torch
BACKENDS = ("reference", "cpu")
EVERY = pytest.mark.parametrize(("one", "layout"), CASES, ids=NAMES)
HEADS = pytest.mark.parametrize(("one", "layout"), CASES[2:], ids=NAMES[2:])
HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    ("one", "layout", "shape", "dtype"),
    [
        *((one, layout, shape, torch.float32) for one, layout in CASES for shape in one.equal),
        *(
            (one, layout, one.equal[place], dtype)
            for one, layout in CASES
            for place, dtype in enumerate(HALVES)
        ),
        *((one, layout, one.equal[1], torch.float64) for one, layout in CASES),
    ],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_results_and_gradients_equal_float64(
    one: Operator, layout: str, shape: Any, dtype: torch.dtype
) -> None:
    given = one.problem(layout, shape, dtype)
    one.assert_equal(one.run("cpu", given), given)
    if shape == one.equal[0]:
        one.assert_equal(one.run("reference", given), given)


@EVERY
def test_a_single_step_has_the_decays_of_its_own_batch_row(one: Operator, layout: str) -> None:
    """As a model that draws several texts byte by byte: one step is no fixed decay."""
    given = one.problem(layout, (3, 1, 5) if one is SCAN else (3, 1, 2, 4, 6))
    one.assert_equal(one.run("cpu", given), given)


@pytest.mark.parametrize("log_decay", LOG_DECAYS)
@HEADS
def test_results_equal_float64_for_any_decay(one: Operator, layout: str, log_decay: float) -> None:
    given = one.problem(layout, (1, 50, 1, 4, 6))
    given["log_decay"] = torch.full_like(given["log_decay"], log_decay)
    found = one.run("cpu", given)
    one.assert_equal(found, given)
    assert all(x.isfinite().all() for x in found.values())


@pytest.mark.parametrize("rate", [0.0, 1.0, 2.0])
def test_wkv7_equals_float64_where_a_key_is_kept_replaced_or_reflected(rate: float) -> None:
    """Transitions I - rate kappa kappa^T without decay, and the same key at every step."""
    given = WKV7.problem("varying", (1, 70, 1, 6, 5))
    given["log_decay"].zero_()
    given["a"] = given["a"][:, :1].expand(given["a"].shape)
    given["b"] = -rate * given["a"]
    WKV7.assert_equal(WKV7.run("cpu", given), given, times=5)  # nothing is ever forgotten


@pytest.mark.parametrize(
    ("one", "shape"), [(SCAN, (1, 8000, 7)), (WKV, (1, 1500, 1, 11, 4)), (WKV7, (1, 1500, 1, 3, 2))]
)
def test_long_sequences_equal_float64(one: Operator, shape: Any) -> None:
    for layout in one.layouts:
        given = one.problem(layout, shape)
        if one is not SCAN:  # a memory of 3,000 steps
            given["log_decay"].fill_(-math.exp(-8))
        if one is WKV7:
            given["b"] *= 1e-3
        one.assert_equal(one.run("cpu", given), given, times=2)


def cut_mantissas(one: Operator, given: Problem) -> None:
    """Round an input as TensorFloat-32 does."""
    name = "b" if one is SCAN else "k"
    given[name] = (given[name].view(torch.int32) & ~0x1FFF).view(torch.float32)


def drop_a_term(one: Operator, given: Problem) -> None:
    given["b" if one is SCAN else "k"][0, 20] = 0


def decay_once_more(one: Operator, given: Problem) -> None:
    if given[one.decay].dim() > 2:
        given[one.decay] = given[one.decay].roll(1, 1)
    else:
        given["state"] *= given["a"] if one is SCAN else given["log_decay"].exp()[..., None]


def start_from_bfloat16(one: Operator, given: Problem) -> None:
    given["state"] = given["state"].bfloat16().float()


def read_a_step_early(one: Operator, given: Problem) -> None:
    name = "r" if one is WKV else "b" if one is SCAN else "a"
    given[name] = given[name].roll(1, 1)


@EVERY
@pytest.mark.parametrize(
    "fault", [cut_mantissas, drop_a_term, decay_once_more, start_from_bfloat16, read_a_step_early]
)
def test_the_comparison_notices_a_fault(
    one: Operator, layout: str, fault: Callable[[Operator, Problem], None]
) -> None:
    given = one.problem(layout, (2, 33, 12) if one is SCAN else (2, 33, 2, 4, 4))
    wrong = {name: x.clone() for name, x in given.items()}
    fault(one, wrong)
    errors = one.errors(one.run("cpu", wrong), given)
    assert errors["out"] > 3, errors
    assert max(value for name, value in errors.items() if name.startswith("grad")) > 3, errors


@EVERY
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_equal_finite_differences(one: Operator, layout: str, backend: str) -> None:
    given = mild(one.problem(layout, one.small, torch.float64))
    leaves = [given[name].requires_grad_() for name in one.inputs]
    assert torch.autograd.gradcheck(partial(one.call, backend=backend), leaves)


@pytest.mark.parametrize("backend", BACKENDS)
def test_impulses_decay_by_their_closed_forms(backend: str) -> None:
    """Powers of the decay; WKV sees the step itself through u."""
    a = torch.tensor([0.5, 0.9, 0.999])
    b = torch.zeros(1, 50, 3)
    b[:, 0] = 1
    h, last = SCAN.call(a, b, backend=backend)
    torch.testing.assert_close(
        h[0].double(), a.double() ** torch.arange(50)[:, None], rtol=1e-7, atol=0
    )
    assert torch.equal(last, h[:, -1])
    rates = torch.tensor([0.7, 0.1, 0.001])
    u = torch.tensor([[0.5, 0.25, -1.0]])
    r, k, v = torch.ones(1, 40, 1, 3), torch.zeros(1, 40, 1, 3), torch.ones(1, 40, 1, 1)
    k[0, 0, 0] = torch.tensor([1.0, 2.0, 3.0])
    out, last = WKV.call(r, k, v, -rates[None], u, backend=backend)
    seen = (k[0, 0, 0] * torch.exp(-rates.double() * (torch.arange(40)[:, None] - 1))).sum(1)
    seen[0] = (u * k[0, 0]).sum()
    torch.testing.assert_close(out[0, :, 0, 0].double(), seen, rtol=7e-7, atol=0)
    torch.testing.assert_close(
        last[0, 0, :, 0].double(), k[0, 0, 0] * (-rates.double() * 39).exp(), rtol=2e-7, atol=0
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_wkv7_replaces_the_value_of_a_key_that_is_written_again(backend: str) -> None:
    """With rate 1 and no decay the state is a table: a read returns the last value written to its
    key.
    """
    keys = torch.eye(4)[[0, 1, 0, 2, 1, 3, 0]]
    values = torch.arange(7.0)
    k = keys[None, :, None]
    out, last = WKV7.call(
        k, torch.zeros_like(k), k, values[None, :, None, None], -k, k, backend=backend
    )
    assert torch.equal(out.flatten(), values)
    assert torch.equal(last.flatten(), torch.tensor([6.0, 4.0, 3.0, 5.0]))


@EVERY
@pytest.mark.parametrize("cut", [1, 17, 32])
def test_two_parts_equal_the_whole_sequence(one: Operator, layout: str, cut: int) -> None:
    """With the state carried over: results and every gradient."""
    given = one.problem(layout, one.shape(45))
    leaves = {name: given[name].clone().requires_grad_() for name in one.inputs}

    def part(window: slice, state: Tensor) -> tuple[Tensor, Tensor]:
        timed = {name: x[:, window] if x.shape[1:2] == (45,) else x for name, x in leaves.items()}
        return one.call(**(timed | {"state": state}))

    first, middle = part(slice(cut), leaves["state"])
    second, last = part(slice(cut, None), middle)
    one.assert_equal(one.results_of((torch.cat([first, second], 1), last), leaves, given), given)


@EVERY
@pytest.mark.parametrize("time", [1, 2, 17])
def test_uninitialised_memory_is_in_no_result(
    one: Operator, layout: str, time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = one.problem(layout, one.shape(time))
    leaves = {name: given[name].clone().requires_grad_() for name in one.inputs}
    monkeypatch.setattr(
        torch, "empty", lambda shape, dtype: torch.full(shape, torch.nan, dtype=dtype)
    )
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, torch.nan))
    assert not any(
        x.isnan().any() for x in one.results_of(one.call(**leaves), leaves, given).values()
    )


@EVERY
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_state_is_zero_if_left_out_and_strides_make_no_difference(
    one: Operator, layout: str, backend: str
) -> None:
    given = one.problem(layout, one.shape(21))
    steps = [given[name] for name in one.inputs][:-1]
    zero = torch.zeros_like(given["state"])
    assert all(
        map(torch.equal, one.call(*steps, backend=backend), one.call(*steps, zero, backend=backend))
    )
    assert not strided(given)["state"].is_contiguous()
    plain = one.run(backend, given)
    other = one.run(backend, strided(given))
    assert all(torch.equal(plain[name], other[name]) for name in one.results)


@EVERY
@pytest.mark.parametrize("backend", BACKENDS)
def test_views_with_the_sign_of_their_memory_turned_are_read_as_they_are(
    one: Operator, layout: str, backend: str
) -> None:
    """As the imaginary part of a conjugate is one: inputs, and what comes back."""
    given = one.problem(layout, one.shape(5))
    turned = {name: torch._neg_view(-x) for name, x in given.items()}
    assert all(x.is_neg() for x in turned.values())
    inputs = [turned[name] for name in one.inputs]
    expected = one.run(backend, given)
    assert all(map(torch.equal, one.call(*inputs, backend=backend), expected.values()))
    leaves = {name: given[name].clone().requires_grad_() for name in one.inputs}
    found = one.results_of(one.call(**leaves, backend=backend), leaves, turned)
    assert all(torch.equal(found[name], expected[name]) for name in one.results)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("one", "layout", "shape"),
    [(one, layout, shape) for one, layout in CASES for shape in one.empty],
)
def test_an_empty_sequence_returns_the_state(
    one: Operator, layout: str, shape: Any, backend: str
) -> None:
    given = one.problem(layout, shape)
    found = one.run(backend, given)
    assert all(found[f"grad_{name}"].shape == given[name].shape for name in one.inputs)
    if shape[1] == 0:
        assert torch.equal(found["last"], given["state"])
        assert torch.equal(found["grad_state"], given["grad_last"])
        assert not any(found[f"grad_{name}"].any() for name in list(one.inputs)[:-1])


@EVERY
def test_a_nan_stays_in_its_channel_or_head_and_after_its_step(one: Operator, layout: str) -> None:
    given = one.problem(layout, (2, 9, 5) if one is SCAN else (2, 9, 3, 4, 5))
    name, place = ("b", (0, 4, 1)) if one is SCAN else ("v", (0, 4, 1, 2))
    if one is SCAN:
        given["a"] = given["a"].clamp(min=0.3)
    given[name][place] = math.nan
    out, last = one.call(*(given[name] for name in one.inputs))
    assert out[(0, slice(4, None), *place[2:])].isnan().all()
    out[(0, slice(4, None), *place[2:])] = 0
    assert out.isfinite().all()
    assert last[0, 1].isnan().any()


@HEADS
@pytest.mark.usefixtures("one_thread")
def test_a_nan_in_one_head_leaves_the_gradients_of_the_others_alone(
    one: Operator, layout: str
) -> None:
    given = one.problem(layout, (2, 9, 3, 4, 5))
    clean = one.run("cpu", given)
    for name, letters in one.inputs.items():
        if letters.startswith("BT") and name != "log_decay":
            wrong = given[name].clone()
            wrong[0, 4, 1] = math.nan
            found = one.run("cpu", given | {name: wrong})
            for gradient in (
                f"grad_{step}" for step in one.inputs if given[step].dim() == 4 and step != "state"
            ):
                assert torch.equal(found[gradient][0, :, 2], clean[gradient][0, :, 2])
                assert torch.equal(found[gradient][1], clean[gradient][1])


@EVERY
@pytest.mark.usefixtures("one_thread")
def test_neither_repetition_nor_the_number_of_threads_changes_a_bit(
    one: Operator, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one.shared, "SERIAL", 0)
    for shape in ((1, 700, 70), (2, 40, 1100)) if one is SCAN else ((2, 100, 3, 32, 20),):
        given = one.problem(layout, shape)
        torch.set_num_threads(1)
        alone = one.run("cpu", given)
        for count in (1, 2, 3, 5):
            torch.set_num_threads(count)
            shared = one.run("cpu", given)
            assert all(torch.equal(alone[name], shared[name]) for name in one.results)


def registered_backward(one: Operator, given: dict[str, Tensor]) -> list[Tensor]:
    """Return the inputs of the registered backward pass, any tensor of its shape as the result."""
    saved = [given[name].detach() for name in one.inputs]
    if one is SCAN:
        saved = [saved[0], saved[2], saved[1]]  # a, state, and h in place of b
    return [*saved, given["grad_out"], given["grad_last"]]


@pytest.mark.parametrize(("one", "layout"), [(one, one.layouts[0]) for one in OPERATORS])
def test_the_operator_passes_the_checks_of_torch(one: Operator, layout: str) -> None:
    given = mild(one.problem(layout, one.small))
    leaves = [given[name].requires_grad_() for name in one.inputs]
    operators = torch.ops.plkernel
    torch.library.opcheck(getattr(operators, one.name).default, (*leaves, "cpu"))
    back = registered_backward(one, given)
    torch.library.opcheck(getattr(operators, f"{one.name}_backward").default, (*back, "cpu"))


class Seen(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("one", OPERATORS, ids=lambda one: one.name)
def test_who_looks_on_sees_one_operator_and_the_same_results(one: Operator) -> None:
    """A mode of dispatch sees it whole, forward and backward; alone it is an autograd.Function."""
    given = one.problem("varying", one.shape(5))
    plain = one.run(None, given)
    with Seen() as seen:
        watched = one.run(None, given)
    ours = [name for name in seen.names if name.startswith("plkernel")]
    assert ours == [f"plkernel.{one.name}.default", f"plkernel.{one.name}_backward.default"]
    assert all(torch.equal(plain[name], watched[name]) for name in one.results)
    leaves = [given[name].clone().requires_grad_() for name in one.inputs]
    out, _ = one.call(*leaves)
    assert type(out.grad_fn).__name__ == f"{one.name}Backward"
    with Seen() as seen:  # forward alone, backward watched
        torch.autograd.grad(out, leaves[0], given["grad_out"])
    assert f"plkernel.{one.name}_backward.default" in seen.names
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in leaves]
        assert one.call(*fake)[0].shape == out.shape


@pytest.mark.parametrize("one", OPERATORS, ids=lambda one: one.name)
def test_a_batch_of_gradients_equals_one_after_another(one: Operator) -> None:
    given = one.problem("varying", one.shape(5))
    leaves = [given[name].clone().requires_grad_() for name in one.inputs]
    out, _ = one.call(*leaves)
    incoming = torch.stack([given["grad_out"], 2 * given["grad_out"].flip(1)])
    batched = torch.autograd.grad(out, leaves, incoming, is_grads_batched=True, retain_graph=True)
    for place, gradient in enumerate(incoming):
        single = torch.autograd.grad(out, leaves, gradient, retain_graph=True)
        assert all(torch.equal(x[place], y) for x, y in zip(batched, single, strict=True))


@pytest.mark.parametrize("one", OPERATORS, ids=lambda one: one.name)
def test_inputs_like_those_before_need_no_check_and_others_have_one(one: Operator) -> None:
    """Each of shape, dtype and backend; a state in another type is converted as at first."""
    given = one.problem("varying", one.shape(5))
    steps = [given[name] for name in one.inputs][:-1]
    state = given["state"].double()
    first, again = (one.call(*steps, state) for _ in range(2))
    assert again[1].dtype == torch.float32
    assert all(map(torch.equal, first, again))
    for wrong in (state[:1], state.to("meta")):
        with pytest.raises(ValueError, match=f"{one.name}: state must be "):
            one.call(*steps, wrong)
    with pytest.raises(ValueError, match=r"backend must be one of .*, got 'fast'"):
        one.call(*steps, state, backend="fast")


def test_a_cpu_without_compiled_loops_is_told_which_variable_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loops of numba are called as Python, where vectors are not implemented."""
    cpu = torch.device("cpu")
    for value in ("", "0"):
        monkeypatch.setenv("NUMBA_DISABLE_JIT", value)
        assert choose("scan", None, cpu) == "cpu"
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    for backend in (None, "cpu"):
        with pytest.raises(ValueError, match=r"scan: .* sets NUMBA_DISABLE_JIT, got 'cpu'"):
            choose("scan", backend, cpu)
    assert choose("scan", "reference", cpu) == "reference"
    assert choose("scan", None, torch.device("meta")) == "cpu"


@pytest.mark.parametrize(
    ("place", "has_triton", "message"),
    [
        ("mps", True, "reference on mps, got None; the slow reference is chosen only by name"),
        ("cuda", False, "reference on cuda, got None; 'gpu' needs the package triton"),
    ],
)
def test_a_device_without_a_backend_is_told_what_it_lacks(
    place: str, has_triton: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody named one, none is said to have been given."""
    monkeypatch.setattr("plkernel.kernels.operators._HAS_TRITON", has_triton)
    device = torch.device(place)
    with pytest.raises(ValueError, match=f"^scan: backend must be one of {message}$"):
        choose("scan", None, device)
    assert choose("scan", "reference", device) == "reference"


@pytest.mark.parametrize("one", OPERATORS, ids=lambda one: one.name)
def test_the_reference_computes_where_no_values_can_be_read(one: Operator) -> None:
    given = one.problem("varying", one.shape(5))
    inputs = [given[name] for name in one.inputs]

    class Model(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
            return one.call(*inputs, backend="reference")

    model = Model()
    expected = model(*inputs)
    with FakeTensorMode() as mode:
        fake = model(*map(mode.from_tensor, inputs))
    assert [x.shape for x in fake] == [x.shape for x in expected]
    exported = torch.export.export(model, tuple(inputs)).module()
    whole = torch.compile(model, backend="aot_eager", fullgraph=True)
    for other in (exported, whole):
        torch.testing.assert_close(other(*inputs), expected)


@pytest.mark.parametrize("one", OPERATORS, ids=lambda one: one.name)
def test_the_registered_operator_checks_its_inputs(one: Operator) -> None:
    """A graph of torch.export calls it with whatever its user gives."""
    given = one.problem("varying", one.shape(5))
    *others, state = [given[name] for name in one.inputs]
    registered = getattr(torch.ops.plkernel, one.name)
    assert all(map(torch.equal, registered(*others, state, "cpu"), one.call(*others, state)))
    for wrong in (state[..., :1], torch.cat([state, state], -1)):
        with pytest.raises(ValueError, match=f"{one.name}: state must be "):
            registered(*others, wrong, "cpu")
    with pytest.raises(ValueError, match=f"{one.name}: state must be float32 here, got bfloat16"):
        registered(*others, state.bfloat16(), "cpu")
    with pytest.raises(ValueError, match="backend must be one of reference, cpu on cpu, got 'gpu'"):
        registered(*others, state, "gpu")
    for place, name in enumerate(one.inputs):
        inputs = [given[name] for name in one.inputs]
        inputs[place] = inputs[place].to_sparse()
        with pytest.raises(ValueError, match=f"{one.name}: {name} must be a dense tensor"):
            registered(*inputs, "cpu")
    for form in ("reference", "fast", "cpu:bf16"):
        with pytest.raises(ValueError, match=f"backend must be one of cpu, gpu.* got '{form}'"):
            registered(*others, state, form)


@pytest.mark.parametrize("one", OPERATORS, ids=lambda one: one.name)
def test_the_registered_backward_pass_checks_its_inputs(one: Operator) -> None:
    given = one.problem("varying", one.shape(5))
    back = registered_backward(one, given)
    registered = getattr(torch.ops.plkernel, f"{one.name}_backward")
    assert len(registered(*back, "cpu")) == len(one.inputs)
    for place, name in ((-1, "grad_last"), (-2, "grad_out")):
        for wrong in (back[place][:1], back[place].double()):
            inputs = list(back)
            inputs[place] = wrong
            with pytest.raises(ValueError, match=f"{one.name}_backward: {name} must be "):
                registered(*inputs, "cpu")


@pytest.mark.parametrize("one", OPERATORS, ids=lambda one: one.name)
def test_operators_without_values_check_what_those_with_values_do(one: Operator) -> None:
    """Fake tensors and those on meta: a graph fails where it is made, not where it runs."""
    given = one.problem("varying", one.shape(5))
    forward = [given[name] for name in one.inputs]
    for name, inputs in (
        (one.name, forward),
        (f"{one.name}_backward", registered_backward(one, given)),
    ):
        registered = getattr(torch.ops.plkernel, name)
        for wrong in (inputs[-1][:1], inputs[-1].double()):
            with pytest.raises(ValueError, match=f"{name}: (state|grad_last) must be ") as real:
                registered(*inputs[:-1], wrong, "cpu")
            unlike = [x.to("meta") for x in (*inputs[:-1], wrong)]
            with pytest.raises(ValueError, match=re.escape(str(real.value))):
                registered(*unlike, "cpu")
            with FakeTensorMode() as mode, pytest.raises(ValueError, match=f"{name}: "):
                registered(*[mode.from_tensor(x) for x in (*inputs[:-1], wrong)], "cpu")
        with FakeTensorMode() as mode:
            results = registered(*[mode.from_tensor(x) for x in inputs], "cpu")
        real_results = registered(*inputs, "cpu")
        assert [x.shape for x in results] == [x.shape for x in real_results]


@pytest.mark.parametrize("one", OPERATORS[1:], ids=lambda one: one.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_registered_backward_pass_refuses_a_decay_that_grows(
    one: Operator, dtype: torch.dtype
) -> None:
    """As the forward pass does, which need not have run before."""
    given = one.problem("varying", one.shape(5), dtype)
    back = registered_backward(one, given)
    place = list(one.inputs).index("log_decay")
    back[place] = back[place].clone()
    back[place].view(-1)[-1] = 0.25
    registered = getattr(torch.ops.plkernel, f"{one.name}_backward")
    with pytest.raises(
        ValueError, match=f"{one.name}_backward: log_decay must be at most 0, .* got 0.25"
    ):
        registered(*back, "cpu")


@pytest.mark.slow
@EVERY
def test_compiled_code_has_no_graph_break_and_the_same_results(one: Operator, layout: str) -> None:
    given = one.problem(layout, (2, 12, 8) if one is SCAN else (2, 12, 2, 4, 8))
    leaves = [given[name].requires_grad_() for name in one.inputs]

    def function(*inputs: Tensor) -> Tensor:
        out, last = one.call(*inputs)
        return (torch.tanh(out).mT * given["grad_out"].mT).sum() + (last * given["grad_last"]).sum()

    compiled = torch.compile(function, fullgraph=True)
    plain = [function(*leaves), *torch.autograd.grad(function(*leaves), leaves, allow_unused=True)]
    other = [compiled(*leaves), *torch.autograd.grad(compiled(*leaves), leaves, allow_unused=True)]
    for found, expected in zip(other, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("one", OPERATORS, ids=lambda one: one.name)
def test_derivatives_that_only_the_reference_has_are_refused(one: Operator) -> None:
    """Forward mode, also by dual numbers, transforms of torch.func, second derivatives: none is
    wrong in silence.
    """
    given = mild(one.problem("varying", one.small))
    first, *others = (given[name] for name in one.inputs)

    def dual(f: Callable[..., Tensor]) -> Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(first, first))).tangent

    def twice(f: Callable[..., Tensor]) -> Tensor:
        x = first.clone().requires_grad_()
        return torch.autograd.grad(torch.autograd.grad(f(x), x, create_graph=True)[0].sum(), x)[0]

    transforms: list[Callable[..., Any]] = [
        lambda f: func.jvp(f, (first,), (first,))[1],
        lambda f: func.grad(f)(first),
        lambda f: torch.vmap(f)(first[None]),
        dual,
        twice,
    ]
    for transform in transforms:
        message = (
            "no second derivatives"
            if transform is twice
            else "backend 'cpu' has neither forward mode nor"
        )
        with pytest.raises(NotImplementedError, match=f"{one.name}.* {message}"):
            transform(lambda x: loss(one.call, x, *others))
        assert (
            transform(lambda x: loss(partial(one.call, backend="reference"), x, *others))
            .abs()
            .max()
            > 0
        )


@pytest.mark.parametrize(
    ("one", "change", "message"),
    [
        (
            SCAN,
            {"b": torch.ones(2, 3)},
            r"scan: b must be a floating-point tensor \(batch, .*\), got float32 \(2, 3\)",
        ),
        (
            SCAN,
            {"a": torch.ones(4)},
            r"a must be float32 or float64 \(3,\) or \(2, 5, 3\) here, got float32 \(4,\)",
        ),
        (
            SCAN,
            {"a": torch.ones(3).bfloat16(), "b": torch.ones(2, 5, 3).bfloat16()},
            r"a must be float32 or .* got bfloat16 \(3,\)",
        ),
        (SCAN, {"a": torch.ones(3, device="meta")}, "a must be on cpu, as b is, got one on meta"),
        (
            SCAN,
            {
                "a": torch.ones(3, device="meta"),
                "b": torch.ones(2, 5, 3, device="meta"),
                "backend": "gpu",
            },
            "backend must be one of reference, cpu on meta, got 'gpu'",
        ),
        (
            WKV,
            {"k": torch.ones(2, 5, 1, 4)},
            r"k must be float32 \(2, 5, 1, 3\) here, got float32 \(2, 5, 1, 4\)",
        ),
        (
            WKV,
            {"log_decay": torch.zeros(3)},
            r"log_decay must be .* \(2, 5, 1, 3\) or \(1, 3\) here, got",
        ),
        (
            WKV7,
            {"state": torch.ones(2, 1, 3, 4)},
            r"state must be .* \(2, 1, 4, 3\) here, got .* \(2, 1, 3, 4\)",
        ),
        *(
            (
                one,
                {"log_decay": torch.full((2, 5, 1, 3), 0.25)},
                "log_decay must be at most 0, .* got 0.25",
            )
            for one in OPERATORS[1:]
        ),
        *(
            (
                one,
                {"backend": "fast"},
                f"{one.name}: backend must be one of reference, cpu on cpu, got 'fast'",
            )
            for one in OPERATORS
        ),
        *(
            (one, {"backend": "gpu"}, "backend must be one of reference, cpu on cpu, got 'gpu'")
            for one in OPERATORS
        ),
    ],
)
def test_bad_input_is_named(one: Operator, change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"a": torch.ones(3), "b": torch.ones(2, 5, 3)}
    if one is not SCAN:
        given = dict.fromkeys(("r", "k", "a", "b"), torch.ones(2, 5, 1, 3))
        given |= {
            "v": torch.ones(2, 5, 1, 3 if one is WKV else 4),
            "log_decay": torch.zeros(2, 5, 1, 3),
        }
    if one is WKV:
        given = {name: given[name] for name in ("r", "k", "v", "log_decay")} | {
            "u": torch.ones(1, 3)
        }
    with pytest.raises(ValueError, match=message):
        one.call(**(given | change))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: 0.9, "must be a tensor, got float"),
        (lambda x: None, "must be a tensor, got NoneType"),
        (lambda x: x.numpy(), "must be a tensor, got ndarray"),
        (lambda x: x.tolist(), "must be a tensor, got list"),
        (
            Tensor.to_sparse,
            r"must be a dense tensor, got one in layout sparse_coo; give .*to_dense",
        ),
        (lambda x: torch.nested.nested_tensor([*x]), "must be a dense tensor, got a nested one"),
    ],
    ids=["a number", "nothing", "an array", "a list", "sparse", "nested"],
)
@pytest.mark.filterwarnings("ignore")  # of nested tensors, which torch calls a prototype
@pytest.mark.parametrize("one", OPERATORS, ids=lambda one: one.name)
def test_an_input_that_is_no_dense_tensor_is_named(
    one: Operator, make: Callable[[Tensor], Any], message: str
) -> None:
    """Each of the inputs, after a call with dense ones of the same shapes too."""
    given = one.problem("varying", one.shape(5))
    inputs = {name: given[name] for name in one.inputs}
    one.call(**inputs)
    for name, values in inputs.items():
        wrong = make(values)
        if wrong is None and name == "state":
            continue
        for backend in (None, "reference"):
            with pytest.raises(ValueError, match=f"^{one.name}: {name} {message}"):
                one.call(**(inputs | {name: wrong}), backend=backend)


@EVERY
def test_meta_tensors_have_shapes_and_gradients(one: Operator, layout: str) -> None:
    given = one.problem(layout, one.small)
    leaves = [given[name].to("meta").requires_grad_() for name in one.inputs]
    for found, like in zip(
        one.call(*leaves), one.call(*(given[name] for name in one.inputs)), strict=True
    ):
        assert (found.device.type, found.shape, found.dtype) == ("meta", like.shape, like.dtype)
    grads = torch.autograd.grad(loss(one.call, *leaves), leaves)
    assert [x.shape for x in grads] == [x.shape for x in leaves]


@EVERY
@pytest.mark.parametrize("output", [0, 1])
def test_a_gradient_through_one_input_and_one_output(
    one: Operator, layout: str, output: int
) -> None:
    given = one.problem(layout, one.shape(13))
    incoming = ("grad_out", "grad_last")
    silent = given | {incoming[1 - output]: torch.zeros_like(given[incoming[1 - output]])}
    found = {}
    for wanted in one.inputs:
        inputs = {name: given[name].clone().requires_grad_(name == wanted) for name in one.inputs}
        (found[f"grad_{wanted}"],) = torch.autograd.grad(
            one.call(**inputs)[output],
            inputs[wanted],
            given[incoming[output]],
            allow_unused=True,
            materialize_grads=True,
        )
    one.assert_equal(found, silent)


class Marked(torch.Tensor):
    """A tensor of somebody else's type."""


@pytest.mark.parametrize(
    ("make", "is_plain"),
    [
        (lambda: torch.ones(2), True),
        (lambda: torch.nn.Parameter(torch.ones(2)), True),
        (lambda: None, True),
        (lambda: torch.ones(2, device="meta"), False),
        (lambda: torch.ones(2).as_subclass(Marked), False),
        (lambda: torch.ones(2).to_sparse(), False),
    ],
    ids=["a tensor", "a parameter", "nothing", "meta", "a subclass", "sparse"],
)
def test_an_autograd_function_serves_plain_tensors_alone(
    make: Callable[[], torch.Tensor | None], is_plain: bool
) -> None:
    """Each of them, whatever the others are."""
    tensors = [torch.ones(2), make(), torch.ones(2)]
    assert _is_plain(tensors) is is_plain


def test_no_cache_keeps_a_tensor() -> None:
    """Made while a CUDA graph is recorded it would be memory of that graph, without values."""
    returned = {}
    for path in Path(operators.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                decorators = " ".join(map(ast.unparse, node.decorator_list))
                if "cache" in decorators:
                    returned[f"{path.name} {node.name}"] = ast.unparse(node.returns or node)
    assert returned["operators.py _backend"] == "Any", "caches are found"
    assert not [name for name, kind in returned.items() if "Tensor" in kind]
