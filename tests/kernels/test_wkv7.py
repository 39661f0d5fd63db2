"""Every backend of WKV-7 against float64 and against WKV, and the operator against autograd and its own promises."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from peaks import peak_bytes
from torch import Tensor, func
from wkv7_problems import INPUTS, LOG_DECAYS, RESULTS, Shape, excesses, problem, run

from plkernel.kernels.wkv import wkv
from plkernel.kernels.wkv7 import cpu, wkv7

BACKENDS = ["reference", "cpu"]
SHAPES = [(1, 1, 1, 1, 1), (2, 3, 2, 11, 5), (1, 32, 1, 16, 16), (2, 65, 2, 12, 33), (1, 100, 2, 20, 7)]


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads a test changes."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def assert_rounded(found: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    errors = excesses(found, given, cpu.CHUNK)
    assert not {name: value for name, value in errors.items() if not value <= 1}, errors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_results_and_gradients_equal_float64(shape: Shape, dtype: torch.dtype) -> None:
    given = problem(shape, dtype)
    assert_rounded(run("cpu", given), given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_rounds_what_it_stores_alone(dtype: torch.dtype) -> None:
    given = problem((2, 3, 2, 11, 5), dtype)
    assert_rounded(run("reference", given), given)


@pytest.mark.slow
def test_float64_stays_float64() -> None:
    given = problem((1, 41, 2, 11, 9), torch.float64)
    assert_rounded(run("cpu", given), given)


@pytest.mark.parametrize("log_decay", LOG_DECAYS)
def test_no_decay_is_too_weak_or_too_strong(log_decay: float) -> None:
    given = problem((1, 50, 1, 4, 6), log_decay=log_decay)
    found = run("cpu", given)
    assert_rounded(found, given)
    assert all(x.isfinite().all() for x in found.values())


@pytest.mark.parametrize("rate", [0.0, 1.0, 2.0])
def test_keys_that_are_kept_replaced_or_reflected(rate: float) -> None:
    """Transitions I - rate kappa kappa^T without decay, and the same key at every step: nothing dies out."""
    given = problem((1, 70, 1, 6, 5), log_decay=0.0)
    given["a"] = given["a"][:, :1].expand(given["a"].shape)
    given["b"] = -rate * given["a"]
    assert_rounded(run("cpu", given), given)


@pytest.mark.slow
def test_long_sequences_equal_float64() -> None:
    """A memory of 3,000 steps; rounded to float32 at every step it would be off by more."""
    given = problem((1, 1500, 1, 3, 2), log_decay=-math.exp(-8))
    given["b"] *= 1e-3
    assert_rounded(run("cpu", given), given)


def cut_mantissas(given: dict[str, Tensor]) -> None:
    """The keys as a product in TensorFloat-32 takes them."""
    given["k"] = (given["k"].view(torch.int32) & ~0x1FFF).view(torch.float32)


def drop_a_term(given: dict[str, Tensor]) -> None:
    given["k"][0, 50, 1, 3] = 0


def read_a_step_early(given: dict[str, Tensor]) -> None:
    given["a"] = given["a"].roll(1, 1)


def decay_once_more(given: dict[str, Tensor]) -> None:
    given["log_decay"] = given["log_decay"].roll(1, 1)


@pytest.mark.parametrize("fault", [cut_mantissas, drop_a_term, read_a_step_early, decay_once_more])
def test_what_is_more_than_rounding_is_noticed(fault: Callable[[dict[str, Tensor]], None]) -> None:
    given = problem((2, 65, 2, 12, 33))
    wrong = {name: x.clone() for name, x in given.items()}
    fault(wrong)
    errors = excesses(run("reference", wrong), given, cpu.CHUNK)
    assert errors["out"] > 10
    assert errors["grad_r"] > 10


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_equal_finite_differences(backend: str) -> None:
    given = problem((2, 4, 1, 3, 2), torch.float64)
    given["log_decay"] = given["log_decay"].clamp(min=-2) - 0.01  # a difference must not cross 0
    leaves = [given[name].requires_grad_() for name in INPUTS]
    assert torch.autograd.gradcheck(partial(wkv7, backend=backend), leaves)


@pytest.mark.slow
def test_where_nothing_is_read_it_is_wkv() -> None:
    """S_t there is the state that WKV reads one step later, without its bonus."""
    given = problem((2, 40, 2, 5, 7), torch.float64)
    zero = torch.zeros_like(given["a"])
    out, last = wkv7(*(given[name] for name in INPUTS[:4]), zero, given["b"], given["state"])
    r, k, v, log_decay = (
        torch.nn.functional.pad(given[name], (0, 0, 0, 0, 0, 1)) for name in ("r", "k", "v", "log_decay")
    )
    bonus = torch.zeros(2, 5, dtype=torch.float64)
    expected, expected_last = wkv(r.roll(1, 1), k, v, log_decay, bonus, given["state"].mT)
    rounding = {"rtol": 1e-13, "atol": 1e-13}  # some hundred float64 operations on numbers of size 1 to 10
    torch.testing.assert_close(out, expected[:, 1:], **rounding)
    torch.testing.assert_close(last, expected_last.mT, **rounding)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_key_is_replaced_by_what_is_written_to_it_again(backend: str) -> None:
    """With rate 1 and no decay the state is a table: what is read at a key is what was last written there."""
    keys, values = torch.eye(4)[[0, 1, 0, 2, 1, 3, 0]], torch.arange(7.0)
    k = keys[None, :, None]
    out, last = wkv7(k, torch.zeros_like(k), k, values[None, :, None, None], -k, k, backend=backend)
    assert torch.equal(out.flatten(), values)
    assert torch.equal(last.flatten(), torch.tensor([6.0, 4.0, 3.0, 5.0]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cut", [1, 17, 32])
def test_the_last_state_continues_the_sequence(backend: str, cut: int) -> None:
    """Two parts with the state carried over equal the whole, in results and in every gradient."""
    given = problem((2, 45, 2, 11, 9))
    *steps, state = leaves = [given[name].clone().requires_grad_() for name in INPUTS]
    first, middle = wkv7(*(x[:, :cut] for x in steps), state, backend=backend)
    second, last = wkv7(*(x[:, cut:] for x in steps), middle, backend=backend)
    out = torch.cat([first, second], 1)
    grads = torch.autograd.grad((out, last), leaves, (given["grad_out"], given["grad_last"]))
    assert_rounded(dict(zip(RESULTS, (x.detach() for x in (out, last, *grads)), strict=True)), given)


@pytest.mark.parametrize("time", [1, 2, 17])
def test_what_was_in_memory_before_is_in_no_result(time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem((2, time, 2, 11, 9))
    leaves = [given[name].clone().requires_grad_() for name in INPUTS]
    monkeypatch.setattr(torch, "empty", lambda shape, dtype: torch.full(shape, torch.nan, dtype=dtype))
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, torch.nan))
    out, last = wkv7(*leaves, backend="cpu")
    grads = torch.autograd.grad((out, last), leaves, (given["grad_out"], given["grad_last"]))
    assert not any(x.isnan().any() for x in (out, last, *grads))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_state_is_zero_when_left_out(backend: str) -> None:
    given = problem((2, 6, 2, 4, 3))
    inputs = [given[name] for name in INPUTS[:6]]
    zero = torch.zeros(2, 2, 3, 4)
    assert all(map(torch.equal, wkv7(*inputs, backend=backend), wkv7(*inputs, zero, backend=backend)))


@pytest.mark.parametrize("shape", [(2, 0, 2, 3, 4), (0, 4, 2, 3, 4), (2, 4, 0, 3, 4), (2, 4, 2, 0, 4), (2, 4, 2, 3, 0)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_sequence_returns_the_state(backend: str, shape: Shape) -> None:
    given = problem(shape)
    found = run(backend, given)
    assert all(found[f"grad_{name}"].shape == given[name].shape for name in INPUTS)
    if shape[1] == 0:
        assert torch.equal(found["last"], given["state"])
        assert torch.equal(found["grad_state"], given["grad_last"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_make_no_difference(backend: str) -> None:
    given = problem((3, 21, 2, 11, 5))
    strided = {name: torch.stack([x, x], -1)[..., 0].mT.contiguous().mT for name, x in given.items()}
    assert not strided["r"].is_contiguous()
    plain, other = run(backend, given), run(backend, strided)
    assert all(torch.equal(plain[name], other[name]) for name in RESULTS)


@pytest.mark.parametrize("output", [0, 1])
def test_a_gradient_through_one_input_and_one_output(output: int) -> None:
    given = problem((2, 13, 2, 7, 3))
    incoming = ("grad_out", "grad_last")
    silent = given | {incoming[1 - output]: torch.zeros_like(given[incoming[1 - output]])}
    found = {}
    for wanted in INPUTS:
        inputs = {name: given[name].clone().requires_grad_(name == wanted) for name in INPUTS}
        (found[f"grad_{wanted}"],) = torch.autograd.grad(
            wkv7(**inputs)[output], inputs[wanted], given[incoming[output]], allow_unused=True, materialize_grads=True
        )
    assert_rounded(found, silent)


def test_a_nan_stays_in_its_head_and_after_its_step() -> None:
    given = problem((2, 9, 3, 4, 5))
    given["v"][0, 4, 1, 2] = math.nan
    out, last = wkv7(*(given[name] for name in INPUTS))
    assert out[0, 4:, 1, 2].isnan().all()
    assert last[0, 1, 2].isnan().all()
    out[0, 4:, 1, 2] = 0
    assert out.isfinite().all()


@pytest.mark.parametrize("name", INPUTS[:6])
@pytest.mark.usefixtures("threads")
def test_a_nan_in_one_head_leaves_the_gradients_of_the_others_alone(name: str) -> None:
    torch.set_num_threads(1)
    given = problem((2, 9, 3, 4, 5))
    clean = run("cpu", given)
    given[name][0, 4, 1] = math.nan
    found = run("cpu", given)
    for gradient in RESULTS[2:8]:
        assert torch.equal(found[gradient][0, :, 2], clean[gradient][0, :, 2])
        assert torch.equal(found[gradient][1], clean[gradient][1])


@pytest.mark.usefixtures("threads")
def test_neither_repetition_nor_the_number_of_threads_changes_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "SERIAL", 0)
    given = problem((2, 100, 3, 32, 20))
    torch.set_num_threads(1)
    alone = run("cpu", given)
    for count in (1, 2, 3, 2):
        torch.set_num_threads(count)
        shared = run("cpu", given)
        assert all(torch.equal(alone[name], shared[name]) for name in RESULTS)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_the_operator_passes_the_checks_of_torch(dtype: torch.dtype) -> None:
    given = problem((2, 6, 2, 3, 5), dtype)
    given["log_decay"] = given["log_decay"].clamp(min=-2)
    leaves = [given[name].requires_grad_() for name in INPUTS]
    torch.library.opcheck(torch.ops.plkernel.wkv7.default, (*leaves, "cpu"))
    inputs = [given[name].detach() for name in (*INPUTS, "grad_out", "grad_last")]
    torch.library.opcheck(torch.ops.plkernel.wkv7_backward.default, (*inputs, "cpu"))


def small() -> list[Tensor]:
    given = problem((2, 4, 2, 3, 2), torch.float64)
    return [given[name].clamp(-3, 3) if name == "log_decay" else given[name] for name in INPUTS]


def loss(operator: Callable[..., tuple[Tensor, Tensor]], *inputs: Tensor) -> Tensor:
    """A number that has second derivatives by every input."""
    out, last = operator(*inputs)
    return out.sin().sum() + last.cos().sum()


def test_it_has_gradients_under_torch_func() -> None:
    inputs, every = small(), tuple(range(7))
    found, exact = (partial(loss, partial(wkv7, backend=backend)) for backend in ("cpu", "reference"))
    close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)  # some hundred float64 operations
    close(func.grad(found, every)(*inputs), func.grad(exact, every)(*inputs))
    pairs = [torch.stack([x, x / 2]) for x in inputs]
    close(torch.vmap(func.grad(found, every))(*pairs), torch.vmap(func.grad(exact, every))(*pairs))
    for place in range(7):
        where = tuple(-1 if i == place else None for i in range(7))
        one = [torch.stack([x, x / 2], -1) if i == place else x for i, x in enumerate(inputs)]
        close(*(torch.vmap(partial(wkv7, backend=backend), where)(*one) for backend in ("cpu", "reference")))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # inside torch
@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (func.jacfwd, "no forward-mode derivatives"),
        (lambda f: func.jacrev(func.jacrev(f)), "no second derivatives"),
    ],
)
def test_it_refuses_what_only_its_reference_has(transform: Callable[..., Any], message: str) -> None:
    inputs = small()
    with pytest.raises(NotImplementedError, match=f"wkv7: backend 'cpu' has {message}; backend='reference' does"):
        transform(partial(loss, wkv7))(*inputs)
    assert transform(partial(loss, partial(wkv7, backend="reference")))(*inputs).abs().max() > 0


def test_it_refuses_double_backward() -> None:
    leaves = [x.requires_grad_() for x in small()]
    (grad,) = torch.autograd.grad(loss(wkv7, *leaves), leaves[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match="wkv7: backend 'cpu' has no second derivatives"):
        grad.sum().backward()


STATE = 4 * 64 * 64
PER_CHUNK = 1 + (4 * cpu.CHUNK**2 + 64 * cpu.CHUNK) / 64**2  # and what its steps see of each other, and read


def backward_bytes(time: int) -> int:
    """What forward plus backward hold at most, less the tensors that grow with T whatever the algorithm."""
    given = problem((1, time, 1, 64, 64))
    leaves = [given[name].requires_grad_() for name in INPUTS]

    def step() -> tuple[Tensor, ...]:
        out, last = wkv7(*leaves)
        return out, last, *torch.autograd.grad((out, last), leaves, (given["grad_out"], given["grad_last"]))

    out_and_gradients = 7 * given["v"].nbytes
    return peak_bytes(step) - out_and_gradients


@pytest.mark.usefixtures("threads")
def test_the_backward_pass_keeps_one_state_and_half_for_each_chunk() -> None:
    torch.set_num_threads(1)
    short, long = (backward_bytes(cpu.CHUNK * chunks) for chunks in (4, 36))
    assert PER_CHUNK <= (long - short) / 32 / STATE <= PER_CHUNK + 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r": torch.ones(2, 3)}, r"r is float32 \(2, 3\); it must be"),
        ({"r": torch.ones(2, 5, 1, 3, dtype=torch.int64)}, "r is int64"),
        ({"k": torch.ones(2, 5, 1, 4)}, r"k is float32 \(2, 5, 1, 4\); for this r and v it must be \(2, 5, 1, 3\)"),
        ({"a": torch.ones(2, 5, 3)}, r"a is float32 \(2, 5, 3\); for this r and v it must be \(2, 5, 1, 3\)"),
        ({"b": torch.ones(2, 5, 1, 3).double()}, "b is float64 .*; it must have the dtype of r, float32"),
        ({"v": torch.ones(2, 4, 1, 3)}, r"v is float32 \(2, 4, 1, 3\); for this r it must be \(2, 5, 1\) and the"),
        ({"log_decay": torch.zeros(1, 3)}, r"log_decay is .*; for this r and v it must be \(2, 5, 1, 3\)"),
        ({"log_decay": torch.zeros(2, 5, 1, 3).half()}, "log_decay is float16"),
        ({"log_decay": torch.full((2, 5, 1, 3), 0.25)}, "wkv7: log_decay reaches 0.25; it is ln w of a decay w <= 1"),
        ({"log_decay": torch.full((2, 5, 1, 3), 0.25), "backend": "reference"}, "log_decay reaches 0.25"),
        ({"state": torch.ones(2, 1, 3, 4)}, r"state is float32 \(2, 1, 3, 4\); for this r and v .* \(2, 1, 4, 3\)"),
        ({"a": torch.ones(2, 5, 1, 3, device="meta")}, "a is on meta and r on cpu"),
        ({"backend": "fast"}, "wkv7: backend 'fast' does not work on cpu; here: reference, cpu"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = dict.fromkeys(("r", "k", "a", "b"), torch.ones(2, 5, 1, 3))
    given |= {"v": torch.ones(2, 5, 1, 4), "log_decay": torch.zeros(2, 5, 1, 3)}
    with pytest.raises(ValueError, match=message):
        wkv7(**(given | change))
