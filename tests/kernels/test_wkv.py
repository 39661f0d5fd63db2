"""Every backend of WKV against float64, and the operator against autograd, torch.compile and its own promises."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rounding
import torch
from peaks import peak_bytes
from torch import Tensor

from plkernel.benchmarks.contest import interleave
from plkernel.kernels.wkv import cpu, wkv

BACKENDS = ["reference", "cpu"]
LAYOUTS = ["eagle", "finch"]
LOG_DECAYS = (0.0, -1e-7, -math.exp(-8), -0.05, -1.0, -math.exp(2.5), -20.0, -50.0, -80.0, -1e4, -math.inf)
INPUTS = ("r", "k", "v", "log_decay", "u", "state")
RESULTS = ("out", "last", *(f"grad_{name}" for name in INPUTS))
SHAPES = [(1, 1, 1, 1, 1), (2, 3, 2, 11, 5), (1, 32, 1, 16, 16), (3, 65, 2, 12, 33), (1, 130, 3, 4, 50)]
Shape = tuple[int, int, int, int, int]  # batch, time, heads, key size, value size


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads a test changes."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def problem(layout: str, shape: Shape, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Weak and strong decays in turn, normal inputs and states, and the incoming gradients."""
    generator = torch.Generator().manual_seed(1)
    batch, time, heads, size, values = shape
    decays = torch.tensor(LOG_DECAYS, dtype=torch.float64)
    if layout == "eagle":
        log_decay = decays.repeat(heads * size)[: heads * size].reshape(heads, size)
    else:
        log_decay = decays[torch.randint(len(decays), (batch, time, heads, size), generator=generator)]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    shapes = {
        "r": (batch, time, heads, size),
        "k": (batch, time, heads, size),
        "v": (batch, time, heads, values),
        "u": (heads, size),
        "state": (batch, heads, size, values),
        "grad_out": (batch, time, heads, values),
        "grad_last": (batch, heads, size, values),
    }
    kept_wide = ("u", "state", "grad_last")
    given = {
        name: torch.randn(x, generator=generator).to(wide if name in kept_wide else dtype) for name, x in shapes.items()
    }
    return given | {"log_decay": log_decay.to(wide)}


def run(backend: str, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Results and gradients through the public function."""
    leaves = [given[name].detach().clone().requires_grad_() for name in INPUTS]
    results = wkv(*leaves, backend=backend)
    incoming = (given["grad_out"], given["grad_last"])
    grads = torch.autograd.grad(results, leaves, incoming, allow_unused=True, materialize_grads=True)
    return dict(zip(RESULTS, (x.detach() for x in (*results, *grads)), strict=True))


def truth(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same in float64 throughout, from the inputs as they were rounded."""
    return run("reference", {name: x.double() for name, x in given.items()})


def excesses(actual: dict[str, Tensor], given: dict[str, Tensor]) -> dict[str, float]:
    """The largest error of every result as a part of what rounding allows."""
    expected, sizes = truth(given), truth(rounding.magnitudes(given))
    roundings = rounding.wkv_roundings(cpu.CHUNK, given["k"].shape[-1], given["v"].shape[-1])
    double = given["r"].dtype == torch.float64
    if double:  # in the same arithmetic from chunk to chunk
        roundings += 2 * given["r"].shape[1]
    arithmetic = torch.float64 if double else torch.float32
    return {name: rounding.excess(x, expected[name], sizes[name], roundings, arithmetic) for name, x in actual.items()}


def assert_equal_to_float64(backend: str, given: dict[str, Tensor]) -> None:
    errors = excesses(run(backend, given), given)
    assert not {name: value for name, value in errors.items() if not value <= 1}, errors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_results_and_gradients_equal_float64(shape: Shape, layout: str, dtype: torch.dtype) -> None:
    assert_equal_to_float64("cpu", problem(layout, shape, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_rounds_what_it_stores_alone(dtype: torch.dtype) -> None:
    assert_equal_to_float64("reference", problem("finch", (2, 3, 2, 11, 5), dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_float64_stays_float64(layout: str) -> None:
    assert_equal_to_float64("cpu", problem(layout, (2, 41, 2, 11, 9), torch.float64))


@pytest.mark.parametrize("log_decay", LOG_DECAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_decay_is_too_weak_or_too_strong(layout: str, log_decay: float) -> None:
    given = problem(layout, (1, 70, 1, 4, 6))
    given["log_decay"] = torch.full_like(given["log_decay"], log_decay)
    assert_equal_to_float64("cpu", given)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_sequences_equal_float64(layout: str) -> None:
    assert_equal_to_float64("cpu", problem(layout, (1, 10_000, 1, 11, 4)))


def cut_mantissas(given: dict[str, Tensor]) -> None:
    """The keys as a product in TensorFloat-32 takes them."""
    given["k"] = (given["k"].view(torch.int32) & ~0x1FFF).view(torch.float32)


def drop_a_term(given: dict[str, Tensor]) -> None:
    given["k"][0, 20, 1, 3] = 0


def decay_once_more(given: dict[str, Tensor]) -> None:
    if given["log_decay"].dim() == 2:
        given["state"] *= given["log_decay"].exp()[..., None]
    else:
        given["log_decay"] = given["log_decay"].roll(1, 1)


def start_from_bfloat16(given: dict[str, Tensor]) -> None:
    given["state"] = given["state"].bfloat16().float()


FAULTS = [cut_mantissas, drop_a_term, decay_once_more, start_from_bfloat16]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_more_than_rounding_is_noticed(fault: Callable[[dict[str, Tensor]], None], layout: str) -> None:
    given = problem(layout, (2, 65, 2, 12, 33))
    wrong = {name: x.clone() for name, x in given.items()}
    fault(wrong)
    errors = excesses(run("cpu", wrong), given)
    assert errors["out"] > 10
    assert errors["grad_r"] > 10


def test_a_decay_rounded_to_float32_would_be_noticed() -> None:
    """What a kernel that keeps w in float32 computes after 3,000 steps."""
    given = {name: x.abs() for name, x in problem("eagle", (1, 3000, 1, 1, 1)).items()}
    given["log_decay"] = torch.full((1, 1), -math.exp(-9))
    rounded = given | {"log_decay": given["log_decay"].exp().double().log()}
    found, exact, size = (
        wkv(*(x[name].double() for name in INPUTS), backend="reference")[1]  # float64: all that is rounded is the decay
        for x in (rounded, given, rounding.magnitudes(given))
    )
    assert rounding.excess(found, exact, size, rounding.wkv_roundings(cpu.CHUNK, 1, 1), torch.float32) > 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_equal_finite_differences(backend: str, layout: str) -> None:
    given = problem(layout, (2, 4, 1, 3, 2), torch.float64)
    given["log_decay"] = given["log_decay"].clamp(min=-2) - 0.01  # a difference must not cross 0
    leaves = [given[name].requires_grad_() for name in INPUTS]
    assert torch.autograd.gradcheck(lambda *x: wkv(*x, backend=backend), leaves)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_impulse_is_seen_through_u_and_then_through_powers_of_the_decay(backend: str) -> None:
    rates = torch.tensor([0.7, 0.1, 0.001])
    r, k, v = torch.ones(1, 40, 1, 3), torch.zeros(1, 40, 1, 3), torch.ones(1, 40, 1, 1)
    k[0, 0, 0] = torch.tensor([1.0, 2.0, 3.0])
    u = torch.tensor([[0.5, 0.25, -1.0]])
    out, last = wkv(r, k, v, -rates[None], u, backend=backend)
    lag = torch.arange(1, 41, dtype=torch.float64)[:, None]
    seen = (k[0, 0, 0] * torch.exp(-rates.double() * (lag - 2))).sum(1)  # lag 1 is the byte itself
    seen[0] = (u * k[0, 0]).sum()
    torch.testing.assert_close(out[0, :, 0, 0].double(), seen, rtol=7e-7, atol=0)
    expected = k[0, 0, 0] * torch.exp(-rates.double() * 39)
    torch.testing.assert_close(last[0, 0, :, 0].double(), expected, rtol=1.2e-7, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cut", [1, 17, 32])
def test_the_last_state_continues_the_sequence(backend: str, layout: str, cut: int) -> None:
    """Two parts with the state carried over equal the whole, in results and in every gradient."""
    given = problem(layout, (2, 45, 2, 11, 9))
    leaves = [given[name].clone().requires_grad_() for name in INPUTS]
    parts = [[x[:, :cut] if x.dim() == 4 and i < 4 else x for i, x in enumerate(leaves)]]
    parts.append([x[:, cut:] if x.dim() == 4 and i < 4 else x for i, x in enumerate(leaves)])
    first, middle = wkv(*parts[0], backend=backend)
    second, last = wkv(*parts[1][:5], middle, backend=backend)
    out = torch.cat([first, second], 1)
    grads = torch.autograd.grad((out, last), leaves, (given["grad_out"], given["grad_last"]))
    errors = excesses(dict(zip(RESULTS, (x.detach() for x in (out, last, *grads)), strict=True)), given)
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("time", [1, 2, 17])
def test_what_was_in_memory_before_is_in_no_result(layout: str, time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one step too, where a decay of each step and a fixed one have gradients of one shape."""
    given = problem(layout, (2, time, 2, 11, 9))
    leaves = [given[name].clone().requires_grad_() for name in INPUTS]
    monkeypatch.setattr(torch, "empty", lambda shape, dtype: torch.full(shape, torch.nan, dtype=dtype))
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, torch.nan))
    out, last = wkv(*leaves, backend="cpu")
    grads = torch.autograd.grad((out, last), leaves, (given["grad_out"], given["grad_last"]))
    assert not any(x.isnan().any() for x in (out, last, *grads))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_state_is_zero_when_left_out(backend: str) -> None:
    given = problem("finch", (2, 6, 2, 4, 3))
    inputs = [given[name] for name in INPUTS[:5]]
    zero = torch.zeros(2, 2, 4, 3)
    assert all(map(torch.equal, wkv(*inputs, backend=backend), wkv(*inputs, zero, backend=backend)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 0, 2, 3, 4), (0, 4, 2, 3, 4), (2, 4, 0, 3, 4), (2, 4, 2, 0, 4), (2, 4, 2, 3, 0)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_sequence_returns_the_state(backend: str, shape: Shape, layout: str) -> None:
    given = problem(layout, shape)
    actual = run(backend, given)
    assert {f"grad_{name}": actual[f"grad_{name}"].shape for name in INPUTS} == {
        f"grad_{name}": given[name].shape for name in INPUTS
    }
    if shape[1] == 0:
        assert torch.equal(actual["last"], given["state"])
        assert torch.equal(actual["grad_state"], given["grad_last"])
        assert not actual["grad_log_decay"].any()
        assert not actual["grad_u"].any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_make_no_difference(backend: str, layout: str) -> None:
    given = problem(layout, (3, 21, 2, 11, 5))
    strided = {name: torch.stack([x, x], -1)[..., 0].mT.contiguous().mT for name, x in given.items()}
    assert not strided["r"].is_contiguous()
    plain, other = run(backend, given), run(backend, strided)
    assert all(torch.equal(plain[name], other[name]) for name in RESULTS)


@pytest.mark.parametrize("wanted", INPUTS)
@pytest.mark.parametrize("output", [0, 1])
def test_a_gradient_through_one_input_and_one_output(wanted: str, output: int) -> None:
    given = problem("finch", (2, 13, 2, 7, 3))
    inputs = {name: given[name].clone().requires_grad_(name == wanted) for name in INPUTS}
    result = wkv(**inputs)[output]
    incoming = ("grad_out", "grad_last")
    (actual,) = torch.autograd.grad(
        result, inputs[wanted], given[incoming[output]], allow_unused=True, materialize_grads=True
    )
    silent = given | {incoming[1 - output]: torch.zeros_like(given[incoming[1 - output]])}
    assert excesses({f"grad_{wanted}": actual}, silent)[f"grad_{wanted}"] <= 1


def test_a_nan_stays_in_its_head_and_after_its_step() -> None:
    given = problem("eagle", (2, 9, 3, 4, 5))
    given["v"][0, 4, 1, 2] = math.nan
    out, last = wkv(*(given[name] for name in INPUTS))
    assert out[0, 4:, 1, 2].isnan().all()
    assert last[0, 1, :, 2].isnan().all()
    out[0, 4:, 1, 2] = 0
    assert out.isfinite().all()


@pytest.mark.parametrize("name", ["r", "k", "v"])
@pytest.mark.usefixtures("threads")
def test_a_nan_in_one_head_leaves_the_gradients_of_the_others_alone(name: str) -> None:
    torch.set_num_threads(1)
    given = problem("finch", (2, 9, 3, 4, 5))
    clean = run("cpu", given)
    given[name][0, 4, 1] = math.nan
    actual = run("cpu", given)
    for gradient in ("grad_r", "grad_k", "grad_v", "grad_log_decay"):
        assert torch.equal(actual[gradient][0, :, 2], clean[gradient][0, :, 2])
        assert torch.equal(actual[gradient][1], clean[gradient][1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 300, 3, 32, 20), (1, 700, 5, 16, 48)])
@pytest.mark.usefixtures("threads")
def test_neither_repetition_nor_the_number_of_threads_changes_a_bit(
    shape: Shape, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "SERIAL", 0)
    given = problem(layout, shape)
    torch.set_num_threads(1)
    alone = run("cpu", given)
    for count in (1, 2, 3, 2):
        torch.set_num_threads(count)
        shared = run("cpu", given)
        assert all(torch.equal(alone[name], shared[name]) for name in RESULTS)


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        ("eagle", torch.float32),
        pytest.param("finch", torch.float64, marks=pytest.mark.slow),
        ("finch", torch.bfloat16),
    ],
)
def test_the_operator_passes_the_checks_of_torch(layout: str, dtype: torch.dtype) -> None:
    given = problem(layout, (2, 6, 2, 3, 5), dtype)
    given["log_decay"] = given["log_decay"].clamp(min=-2)
    leaves = [given[name].requires_grad_() for name in INPUTS]
    torch.library.opcheck(torch.ops.plkernel.wkv.default, (*leaves, "cpu"))
    inputs = [given[name].detach() for name in (*INPUTS, "grad_out", "grad_last")]
    torch.library.opcheck(torch.ops.plkernel.wkv_backward.default, (*inputs, "cpu"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # inside torch
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_code_has_no_graph_break_and_the_same_results(layout: str) -> None:
    given = problem(layout, (2, 12, 2, 4, 8))
    leaves = [given[name].requires_grad_() for name in INPUTS]

    def function(*inputs: Tensor) -> Tensor:
        out, last = wkv(torch.tanh(inputs[0]), *inputs[1:])
        return (out.mT * given["grad_out"].mT).sum() + (last * given["grad_last"]).sum()

    compiled = torch.compile(function, fullgraph=True)
    plain = [function(*leaves), *torch.autograd.grad(function(*leaves), leaves)]
    other = [compiled(*leaves), *torch.autograd.grad(compiled(*leaves), leaves)]
    for actual, expected in zip(other, plain, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def backward_bytes(time: int, chunk_bytes: int = 0) -> int:
    """What forward plus backward hold at most, less the tensors that grow with T whatever the algorithm."""
    given = problem("eagle", (1, time, 1, 64, 64))
    leaves = [given[name].requires_grad_() for name in INPUTS]

    def step() -> tuple[Tensor, ...]:
        waste = torch.ones(time // cpu.CHUNK, chunk_bytes // 4)
        out, last = wkv(*leaves)
        grads = torch.autograd.grad((out, last), leaves, (given["grad_out"], given["grad_last"]))
        return waste, out, last, *grads

    out_and_gradients = 4 * given["v"].nbytes
    return peak_bytes(step) - out_and_gradients


STATE = 4 * 64 * 64


def states_per_chunk(**waste: int) -> float:
    short, long = (backward_bytes(cpu.CHUNK * chunks, **waste) for chunks in (4, 36))
    return (long - short) / 32 / STATE


@pytest.mark.usefixtures("threads")
def test_the_backward_pass_keeps_one_state_for_each_chunk() -> None:
    torch.set_num_threads(1)
    assert 1.0 <= states_per_chunk() <= 1.01


@pytest.mark.usefixtures("threads")
def test_the_measure_of_memory_sees_half_a_state_too_many() -> None:
    torch.set_num_threads(1)
    assert states_per_chunk(chunk_bytes=STATE // 2) > 1.4


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
def test_a_carry_that_dies_out_costs_no_time() -> None:
    """Numbers below 1e-308 are slow; a gradient through the last state alone meets them."""
    torch.set_num_threads(1)
    given = problem("eagle", (1, 16384, 1, 16, 16))
    given["log_decay"] = torch.full((1, 16), math.log(0.9))
    inputs = [given[name] for name in INPUTS]
    out, last = given["grad_out"], given["grad_last"]
    steps = {
        "dying": lambda: cpu.backward(*inputs, torch.zeros_like(out), last),
        "alive": lambda: cpu.backward(*inputs, out, last),
    }
    assert interleave(steps, rounds=21).ratio("dying", "alive").median < 1.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r": torch.ones(2, 3)}, r"r is float32 \(2, 3\); it must be"),
        ({"r": torch.ones(2, 5, 1, 3, dtype=torch.int64)}, "r is int64"),
        ({"k": torch.ones(2, 5, 1, 4)}, r"k is float32 \(2, 5, 1, 4\); for this r and v it must be \(2, 5, 1, 3\)"),
        ({"k": torch.ones(2, 5, 1, 3).double()}, "k is float64 .*; it must have the dtype of r, float32"),
        ({"v": torch.ones(2, 4, 1, 3)}, r"v is float32 \(2, 4, 1, 3\); for this r it must be \(2, 5, 1\) and the"),
        ({"v": torch.ones(2, 5, 1, 4).half()}, "v is float16"),
        ({"log_decay": torch.zeros(3)}, r"log_decay is .*; for this r and v it must be \(2, 5, 1, 3\) or \(1, 3\)"),
        ({"log_decay": torch.zeros(1, 3).half()}, "log_decay is float16"),
        ({"log_decay": torch.full((1, 3), 0.25)}, "log_decay reaches 0.25; it is ln w of a decay w <= 1, so at most 0"),
        ({"log_decay": torch.full((1, 3), 0.25), "backend": "reference"}, "log_decay reaches 0.25"),
        ({"u": torch.ones(3)}, r"u is float32 \(3,\)"),
        ({"state": torch.ones(2, 1, 4, 3)}, r"state is float32 \(2, 1, 4, 3\); for this r and v"),
        ({"u": torch.ones(1, 3, device="meta")}, "u is on meta and r on cpu"),
        ({"backend": "fast"}, "backend 'fast' does not work on cpu; here: reference, cpu"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {name: torch.ones(2, 5, 1, 3) for name in "rkv"}
    given |= {"log_decay": torch.zeros(1, 3), "u": torch.ones(1, 3)}
    with pytest.raises(ValueError, match=message):
        wkv(**(given | change))
