"""Every backend of the scan against float64, and the operator against autograd, torch.compile and its own promises."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rounding
import torch
from peaks import peak_bytes
from torch import Tensor

import plkernel
from plkernel.benchmarks.contest import interleave
from plkernel.kernels.scan import cpu, reference, scan

# What is promised on a GPU, whose carry is float32 within a group of steps: max|x - float64| / max|float64| of any
# channel, up to 4,096 steps and beyond. Half types add one rounding when stored.
GPU_TOLERANCE, GPU_LONG_TOLERANCE = 1e-5, 1e-3
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}

ROOT = str(Path(plkernel.__file__).parents[1])
CUDA = torch.cuda.is_available()
GPU = pytest.param("gpu", marks=pytest.mark.skipif(not CUDA, reason="no CUDA device here"))
BACKENDS = ["reference", "cpu", GPU]
FAST = ["cpu", GPU]
DECAYS = (1e-12, 1e-4, 0.3, 0.9, 0.999, 1 - 1e-5, 1 - 1e-7)
LAYOUTS = ["fixed", "varying"]
RESULTS = ("h", "last", "grad_a", "grad_b", "grad_state")


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads a test changes."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def problem(layout: str, shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Weak and strong decays in turn, normal inputs, states and incoming gradients."""
    generator = torch.Generator().manual_seed(1)
    batch, _, channels = shape
    decays = torch.tensor(DECAYS, dtype=torch.float64)
    if layout == "fixed":
        a = decays.repeat(channels // len(decays) + 1)[:channels]
    else:
        a = decays[torch.randint(len(decays), shape, generator=generator)]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    states = torch.randn((2, batch, channels), generator=generator).to(wide)
    inputs = torch.randn((2, *shape), generator=generator).to(dtype)
    return {"a": a.to(wide), "b": inputs[0], "state": states[0], "grad_h": inputs[1], "grad_last": states[1]}


def run(backend: str, a: Tensor, b: Tensor, state: Tensor, grad_h: Tensor, grad_last: Tensor) -> dict[str, Tensor]:
    """Outputs and gradients through the public function."""
    device = "cuda" if backend == "gpu" else "cpu"
    leaves = [x.detach().to(device).requires_grad_() for x in (a, b, state)]
    h, last = scan(*leaves, backend=backend)
    grads = torch.autograd.grad((h, last), leaves, (grad_h.to(device), grad_last.to(device)))
    return dict(zip(RESULTS, (x.detach().cpu() for x in (h, last, *grads)), strict=True))


def truth(a: Tensor, b: Tensor, state: Tensor, grad_h: Tensor, grad_last: Tensor) -> dict[str, Tensor]:
    """The same in float64 throughout, from the inputs as they were rounded; a half type rounds the h that is kept."""
    half = b.dtype if b.dtype in (torch.bfloat16, torch.float16) else torch.float64
    a, b, state, grad_h, grad_last = (x.double() for x in (a, b, state, grad_h, grad_last))
    h, last = reference.forward(a, b, state)
    grads = reference.backward(a, state, h.to(half).double(), grad_h, grad_last)
    return dict(zip(RESULTS, (h, last, *grads), strict=True))


def error(value: Tensor, true: Tensor) -> float:
    difference, size = ((x.double().abs()).reshape(-1, x.shape[-1]).amax(0) for x in (value.double() - true, true))
    return float((difference / size).amax())


def excesses(actual: dict[str, Tensor], given: dict[str, Tensor]) -> dict[str, float]:
    """The largest error of every result on a CPU as a part of what rounding allows; h rounded is within grad_a."""
    expected, sizes = truth(**given), truth(**rounding.magnitudes(given))
    roundings = rounding.scan_roundings(given["b"].shape[1])
    return {name: rounding.excess(x, expected[name], sizes[name], roundings) for name, x in actual.items()}


def assert_equal_to_float64(backend: str, given: dict[str, Tensor], bound: float = GPU_TOLERANCE) -> None:
    actual = run(backend, **given)
    if backend != "gpu":
        errors, bounds = excesses(actual, given), dict.fromkeys(RESULTS, 1.0)
    else:
        expected, stored = truth(**given), ROUNDING[given["b"].dtype]
        errors = {name: error(actual[name], expected[name]) for name in RESULTS}
        bounds = {name: bound + (stored if name in ("h", "grad_b") else 0.0) for name in RESULTS}
    assert not {name: value for name, value in errors.items() if not value <= bounds[name]}, errors


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 7), (3, 37, 19), (1, 257, 530), (2, 1023, 33)])
@pytest.mark.parametrize("backend", FAST)
def test_outputs_and_gradients_equal_float64(
    backend: str, shape: tuple[int, int, int], layout: str, dtype: torch.dtype
) -> None:
    assert_equal_to_float64(backend, problem(layout, shape, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_rounds_what_it_stores_alone(dtype: torch.dtype) -> None:
    assert_equal_to_float64("reference", problem("varying", (3, 37, 19), dtype))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("length", "bound"), [(4096, GPU_TOLERANCE), (100_000, GPU_LONG_TOLERANCE)])
@pytest.mark.parametrize("backend", FAST)
def test_long_sequences_equal_float64(backend: str, length: int, bound: float, layout: str) -> None:
    assert_equal_to_float64(backend, problem(layout, (1, length, 7)), bound)


def cut_mantissas(given: dict[str, Tensor]) -> None:
    """The inputs as TensorFloat-32 takes them."""
    given["b"] = (given["b"].view(torch.int32) & ~0x1FFF).view(torch.float32)


def drop_a_term(given: dict[str, Tensor]) -> None:
    given["b"][0, 20] = 0


def decay_once_more(given: dict[str, Tensor]) -> None:
    if given["a"].dim() == 1:
        given["state"] *= given["a"]
    else:
        given["a"] = given["a"].roll(1, 1)


def start_from_bfloat16(given: dict[str, Tensor]) -> None:
    given["state"] = given["state"].bfloat16().float()


FAULTS = [cut_mantissas, drop_a_term, decay_once_more, start_from_bfloat16]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_more_than_rounding_is_noticed(fault: Callable[[dict[str, Tensor]], None], layout: str) -> None:
    given = problem(layout, (2, 65, 12))
    wrong = {name: x.clone() for name, x in given.items()}
    fault(wrong)
    errors = excesses(run("cpu", **wrong), given)
    assert errors["h"] > 10
    assert errors["grad_a"] > 10


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_gradients_equal_finite_differences(backend: str, layout: str) -> None:
    given = problem(layout, (2, 5, 7), torch.float64)
    leaves = [given[name].requires_grad_() for name in ("a", "b", "state")]
    assert torch.autograd.gradcheck(lambda *x: scan(*x, backend=backend), leaves)


def test_after_an_impulse_the_state_is_a_power_of_the_decay() -> None:
    a = torch.tensor([0.5, 0.9, 0.999])
    b = torch.zeros(1, 50, 3)
    b[:, 0] = 1
    h, last = scan(a, b)
    power = a.double() ** torch.arange(50)[:, None]
    torch.testing.assert_close(h[0].double(), power, rtol=1e-7, atol=0)
    assert torch.equal(last, h[:, -1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_last_state_continues_the_sequence(backend: str, layout: str) -> None:
    given = problem(layout, (2, 41, 9))
    a, b, state = given["a"], given["b"], given["state"]
    device = "cuda" if backend == "gpu" else "cpu"
    a, b, state = a.to(device), b.to(device), state.to(device)
    cut = [a, a] if layout == "fixed" else [a[:, :17], a[:, 17:]]
    whole, end = scan(a, b, state, backend=backend)
    first, middle = scan(cut[0], b[:, :17], state, backend=backend)
    second, last = scan(cut[1], b[:, 17:], middle, backend=backend)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(last, end, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_state_is_zero_when_left_out(backend: str) -> None:
    given = problem("fixed", (2, 6, 4))
    device = "cuda" if backend == "gpu" else "cpu"
    a, b = given["a"].to(device), given["b"].to(device)
    zero = torch.zeros(2, 4, device=device)
    assert all(map(torch.equal, scan(a, b, backend=backend), scan(a, b, zero, backend=backend)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (2, 4, 0)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_sequence_returns_the_state(backend: str, shape: tuple[int, int, int], layout: str) -> None:
    given = problem(layout, shape)
    actual = run(backend, **given)
    assert {name: actual[name].shape for name in ("h", "grad_a")} == {"h": shape, "grad_a": given["a"].shape}
    if shape[1] == 0:
        assert torch.equal(actual["last"], given["state"])
        assert torch.equal(actual["grad_state"], given["grad_last"])
        assert not actual["grad_a"].any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_make_no_difference(backend: str, layout: str) -> None:
    given = problem(layout, (3, 21, 11))
    strided = {
        name: torch.stack([x, x], -1)[..., 0].mT.contiguous().mT if x.dim() > 1 else x for name, x in given.items()
    }
    strided["a"] = torch.stack([given["a"]] * 2, -1)[..., 0]
    assert not strided["b"].is_contiguous()
    assert not strided["a"].is_contiguous()
    plain, other = run(backend, **given), run(backend, **strided)
    assert all(torch.equal(plain[name], other[name]) for name in RESULTS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wanted", ["a", "b", "state"])
@pytest.mark.parametrize("output", [0, 1])
def test_a_gradient_through_one_input_and_one_output(layout: str, wanted: str, output: int) -> None:
    given = problem(layout, (2, 13, 7))
    inputs = {name: given[name] for name in ("a", "b", "state")}
    inputs[wanted].requires_grad_()
    incoming = {"grad_h": given["grad_h"], "grad_last": given["grad_last"]}
    result = scan(**inputs)[output]
    (actual,) = torch.autograd.grad(result, inputs[wanted], list(incoming.values())[output])
    silent = {name: x if i == output else torch.zeros_like(x) for i, (name, x) in enumerate(incoming.items())}
    expected = truth(**{name: x.detach() for name, x in inputs.items()}, **silent)[f"grad_{wanted}"]
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_nan_or_an_infinity_stays_in_its_channel_and_after_its_step(layout: str) -> None:
    given = problem(layout, (1, 9, 5))
    given["b"][0, 4, 1] = math.nan
    given["b"][0, 4, 2] = math.inf
    h, _ = scan(given["a"].clamp(min=0.3), given["b"])
    assert h[0, 4:, 1].isnan().all()
    assert h[0, 4:, 2].isinf().all()
    assert h[0, :4].isfinite().all()
    assert h[0, :, [0, 3, 4]].isfinite().all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 700, 70), (3, 300, 50), (2, 40, 1100)])
@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_changes_no_bit(
    shape: tuple[int, int, int], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "SERIAL", 0)
    given = problem(layout, shape)
    torch.set_num_threads(1)
    alone = run("cpu", **given)
    for count in (2, 3, 5):
        torch.set_num_threads(count)
        shared = run("cpu", **given)
        assert all(torch.equal(alone[name], shared[name]) for name in RESULTS)


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        ("fixed", torch.float32),
        pytest.param("varying", torch.float64, marks=pytest.mark.slow),
        ("varying", torch.bfloat16),
    ],
)
def test_the_operator_passes_the_checks_of_torch(layout: str, dtype: torch.dtype) -> None:
    given = problem(layout, (2, 6, 5), dtype)
    leaves = [given[name].requires_grad_() for name in ("a", "b", "state")]
    torch.library.opcheck(torch.ops.plkernel.scan.default, (*leaves, "cpu"))
    inputs = [given[name].detach() for name in ("a", "state", "b", "grad_h", "grad_last")]
    torch.library.opcheck(torch.ops.plkernel.scan_backward.default, (*inputs, "cpu"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # inside torch
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_code_has_no_graph_break_and_the_same_results(layout: str) -> None:
    given = problem(layout, (2, 12, 8))
    leaves = [given[name].requires_grad_() for name in ("a", "b", "state")]

    def function(a: Tensor, b: Tensor, state: Tensor) -> Tensor:
        h, last = scan(a, torch.tanh(b), state)
        return (h.mT * given["grad_h"].mT).sum() + (last * given["grad_last"]).sum()

    compiled = torch.compile(function, fullgraph=True)
    plain = [function(*leaves), *torch.autograd.grad(function(*leaves), leaves)]
    other = [compiled(*leaves), *torch.autograd.grad(compiled(*leaves), leaves)]
    for actual, expected in zip(other, plain, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def step_of(shape: tuple[int, int, int]) -> Any:
    """Forward plus backward with a fixed decay, everything it makes kept until it returns."""
    given = problem("fixed", shape)
    a, b = given["a"].requires_grad_(), given["b"].requires_grad_()

    def step() -> tuple[Tensor, ...]:
        h, last = scan(a, b)
        return h, last, *torch.autograd.grad((h, last), (a, b), (given["grad_h"], given["grad_last"]))

    return step


def test_memory_beyond_the_inputs_is_two_tensors() -> None:
    """h and the gradient of b, and nothing else of that size; 2.5 are allowed."""
    shape = (2, 1000, 64)
    tensor = 4 * math.prod(shape)
    assert 2.0 <= peak_bytes(step_of(shape)) / tensor <= 2.1


def test_the_measure_of_memory_sees_one_tensor_too_many() -> None:
    shape = (2, 1000, 64)
    step = step_of(shape)

    def wasteful() -> Any:
        return torch.ones(shape), step()

    assert peak_bytes(wasteful) / (4 * math.prod(shape)) > 2.5


RESIDENT = """
import sys, torch
sys.path.insert(0, {folder!r})
from plkernel.kernels.scan import scan

def resident(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024

torch.set_num_threads(1)
shape = (4, {length}, 128)
a, b, grad = torch.rand(128).requires_grad_(), torch.randn(shape).requires_grad_(), torch.randn(shape)
for rows in (8, {length}):
    before = resident("VmRSS")
    h, _ = scan(a, b[:, :rows].detach().requires_grad_() if rows == 8 else b)
    torch.autograd.grad(h, a, grad[:, :rows])
print((resident("VmHWM") - before) / b.nbytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_resident_memory_agrees() -> None:
    """What the system counts includes memory that torch does not know of."""
    code = RESIDENT.format(folder=ROOT, length=65536)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert 1.9 <= float(done.stdout) <= 2.5


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
def test_time_is_linear_in_length() -> None:
    """Per step, 262,144 steps cost at most 20 % more than 4,096, taken in turns."""
    torch.set_num_threads(1)
    times = interleave({str(length): step_of((4, length, 64)) for length in (4096, 262_144)}, rounds=11)
    short, long = times.spread("4096").median / 4096, times.spread("262144").median / 262_144
    assert long <= 1.2 * short


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
def test_a_carry_that_dies_out_costs_no_time() -> None:
    """Numbers below 1e-308 make this decay 14 times slower; a gradient through the last state alone meets them."""
    torch.set_num_threads(1)
    a, state = torch.full((64,), 0.9), torch.zeros(1, 64)
    b = torch.randn(1, 32768, 64)
    silent = torch.zeros_like(b)
    steps = {
        "dying": lambda: cpu.backward(a, state, b, silent, state + 1),
        "alive": lambda: cpu.backward(a, state, b, b, state),
    }
    assert interleave(steps, rounds=21).ratio("dying", "alive").median < 3


UNUSED = """
import sys
sys.path.insert(0, {folder!r})
import plkernel.kernels.scan, plkernel.kernels.wkv
assert not {{"plkernel.kernels.scan.cpu", "plkernel.kernels.wkv.cpu", "numba"}} & sys.modules.keys()
"""
USED = """
import torch
plkernel.kernels.scan.scan(torch.rand(2), torch.rand(1, 3, 2))
assert "numba" in sys.modules and "plkernel.kernels.scan.gpu" not in sys.modules
"""


@pytest.mark.parametrize("then", ["", pytest.param(USED, marks=pytest.mark.slow)])
def test_numba_is_loaded_at_the_first_use_and_triton_not_at_all(then: str) -> None:
    code = UNUSED.format(folder=ROOT) + then
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": torch.ones(2, 3)}, r"b is float32 \(2, 3\); it must be"),
        ({"b": torch.ones(2, 5, 3, dtype=torch.int64)}, "b is int64"),
        ({"a": torch.ones(4)}, r"a is float32 \(4,\); for this b it must be \(3,\) or \(2, 5, 3\)"),
        ({"a": torch.ones(3, dtype=torch.bfloat16)}, "a is bfloat16"),
        ({"a": torch.ones(2, 5, 3, dtype=torch.float16)}, "a is float16"),
        ({"state": torch.ones(2, 4)}, r"state is float32 \(2, 4\); for this b it must be \(2, 3\)"),
        ({"a": torch.ones(3, device="meta")}, "a is on meta and b on cpu"),
        ({"backend": "fast"}, "backend 'fast' does not work on cpu; here: reference, cpu"),
        ({"backend": "gpu"}, "backend 'gpu' does not work on cpu; here: reference, cpu"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"a": torch.ones(3), "b": torch.ones(2, 5, 3), "state": None, "backend": None}
    with pytest.raises(ValueError, match=message):
        scan(**(given | change))


def test_a_device_without_a_fast_backend_is_refused_rather_than_slow() -> None:
    a, b = torch.ones(3, device="meta"), torch.ones(2, 5, 3, device="meta")
    with pytest.raises(ValueError, match="does not work on meta; here: reference"):
        scan(a, b)
