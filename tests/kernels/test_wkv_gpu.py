"""WKV in Triton: its arithmetic in Triton's interpreter, its compilation for three chips, and the real thing on a GPU.

What is interpreted runs in a process of its own, as `interpreter` has it.
"""

import importlib.util
import itertools
import math
import os
from pathlib import Path
from typing import Any

import gpu_kernels as kernels
import pytest
import rounding
import torch
from gpu_kernels import CHIPS, Compiled
from interpreter import run_interpreted
from torch import Tensor

from plkernel.kernels.backends import choose
from plkernel.kernels.wkv import wkv

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed (it exists for Linux only)"
)

Shape = tuple[int, int, int, int, int]  # batch, time, heads, key size, value size
# name: shape, dtype of r, decays, steps of a sub-chunk; a chunk has two, a program 16 columns of values.
CASES: dict[str, tuple[Shape, str, str, int]] = {
    "less-than-a-sub-chunk": ((2, 3, 2, 11, 5), "float32", "mixed", 4),
    "two-chunks": ((1, 11, 1, 18, 7), "float32", "mixed", 4),
    "four-chunks": ((1, 26, 1, 5, 7), "float32", "mixed", 4),
    "two-blocks-of-values": ((1, 6, 1, 5, 17), "float32", "mixed", 4),
    "bfloat16": ((1, 6, 1, 7, 9), "bfloat16", "mixed", 4),
    "float16": ((1, 6, 1, 7, 9), "float16", "mixed", 4),
    "all -inf": ((1, 6, 1, 4, 5), "float32", "-inf", 4),
}
SLOW_CASES: dict[str, tuple[Shape, str, str, int]] = {
    "one-step": ((1, 1, 2, 1, 1), "float32", "mixed", 16),
    "three-steps": ((2, 3, 1, 11, 5), "float32", "mixed", 16),
    "whole-chunks": ((1, 64, 1, 16, 16), "float32", "mixed", 16),
    "the-last-shorter": ((1, 39, 1, 20, 7), "float32", "mixed", 16),
    "blocks-of-values": ((1, 18, 1, 5, 17), "float32", "mixed", 16),
    "any-strength": ((1, 35, 2, 16, 9), "float32", "range", 16),
    "all -50": ((1, 19, 1, 4, 5), "float32", "-50", 16),
}
EMPTY = {"no-batch": (0, 3, 2, 3, 4), "no-time": (2, 0, 2, 3, 4), "no-heads": (2, 3, 0, 3, 4)}
EMPTY |= {"no-keys": (2, 3, 2, 0, 4), "no-values": (2, 3, 2, 3, 0)}
EMPTY_CLAIMS = ("last is state", "grad_state is grad_last", "rest is 0")
LAYOUTS = ("eagle", "finch")
ONE_LAYOUT = {"less-than-a-sub-chunk": "eagle", "two-chunks": "finch", "four-chunks": "eagle"}
ONE_LAYOUT |= {"two-blocks-of-values": "finch", "bfloat16": "finch", "float16": "eagle"}
ONE_LAYOUT |= {"all -inf": "finch", "all -50": "eagle"}
INTERPRETED = [(case, layout) for case in CASES for layout in LAYOUTS if layout == ONE_LAYOUT.get(case, layout)]
SLOW = [(case, layout) for case in SLOW_CASES for layout in LAYOUTS if layout == ONE_LAYOUT.get(case, layout)]
LOG_DECAYS = (0.0, -1e-7, -math.exp(-8), -0.05, -1.0, -math.exp(2.5), -20.0, -50.0, -80.0, -1e4, -math.inf)
INPUTS = ("r", "k", "v", "log_decay", "u", "state")
RESULTS = ("out", "last", *(f"grad_{name}" for name in INPUTS))

# What the operator promises on any GPU, whose exponential is less exact than the interpreter's: the largest error of a
# channel, max|x - float64| / max|float64|.
PROMISED = dict.fromkeys(("out", "last"), 2e-6) | dict.fromkeys(RESULTS[2:], 2e-5)
ROUNDING = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}  # when the result is stored
STORED_AS_GIVEN = ("out", "grad_r", "grad_k", "grad_v")
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
COMPILED = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted")


@pytest.fixture
def own_binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles anew, and leaves nothing behind."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture(scope="module")
def interpreted(interpreted_once: dict[str, Any]) -> dict[str, Any]:
    return dict(interpreted_once["test_wkv_gpu:interpret"])


@pytest.fixture(scope="module")
def interpreted_at_length() -> dict[str, Any]:
    [errors] = run_interpreted("test_wkv_gpu:interpret_more")
    return dict(errors)


@pytest.mark.parametrize(("case", "layout"), INTERPRETED)
def test_interpreted_kernels_equal_float64(interpreted: dict[str, Any], case: str, layout: str) -> None:
    assert_rounded(interpreted[f"{case}/{layout}"])


@pytest.mark.slow
@pytest.mark.parametrize(("case", "layout"), SLOW)
def test_more_interpreted_kernels_equal_float64(interpreted_at_length: dict[str, Any], case: str, layout: str) -> None:
    assert_rounded(interpreted_at_length[f"{case}/{layout}"])


@pytest.mark.slow
def test_the_interpreted_operator_passes_every_check_of_torch(interpreted_at_length: dict[str, Any]) -> None:
    assert set(interpreted_at_length["opcheck"].values()) == {"SUCCESS"}


@pytest.mark.slow
def test_a_long_sequence_does_not_collect_rounding_errors() -> None:
    [errors] = run_interpreted("test_wkv_gpu:interpret_long")
    assert errors.keys() == set(LAYOUTS)
    for layout in LAYOUTS:
        assert_rounded(errors[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", EMPTY)
def test_an_empty_sequence_returns_the_state(interpreted: dict[str, Any], case: str, layout: str) -> None:
    assert interpreted[f"{case}/{layout}"] == dict.fromkeys(EMPTY_CLAIMS, True)


def test_the_operator_takes_any_strides_and_passes_the_checks_of_torch(interpreted: dict[str, Any]) -> None:
    assert interpreted["strides make no difference"]
    assert set(interpreted["opcheck"].values()) == {"SUCCESS"}
    assert interpreted["chosen"] == ["cpu", "gpu"]


def test_a_difference_of_cumulative_sums_would_be_noticed() -> None:
    """A weak decay behind a strong one, as sums from the start of a sub-chunk give it."""
    sums = torch.tensor([-1e4] + [-0.01] * 10).cumsum(0)
    wrong = (sums[-1] - sums[0]).exp().item()
    bound = rounding.wkv_roundings(64, 64, 64) * rounding.UNIT[torch.float32]
    assert abs(wrong / math.exp(-0.1) - 1) > 10 * bound


@COMPILED
@pytest.mark.usefixtures("own_binaries")
def test_every_kernel_compiles_and_for_every_chip_without_tf32() -> None:
    check_compiled(compile_some(), expected=4)


@COMPILED
@pytest.mark.slow
@pytest.mark.usefixtures("own_binaries")
def test_every_variant_compiles_for_every_chip() -> None:
    check_compiled(compile_all(), expected=1 + 5 * 4 * len(CHIPS))


@ON_GPU
@pytest.mark.parametrize(
    ("shape", "layout", "dtype"),
    [
        ((2, 201, 3, 64, 64), "finch", "float32"),
        ((2, 201, 3, 11, 5), "eagle", "float32"),
        ((2, 201, 3, 11, 5), "finch", "bfloat16"),
        pytest.param((1, 1, 2, 64, 64), "eagle", "float32", marks=pytest.mark.slow),
        pytest.param((1, 4000, 2, 128, 48), "eagle", "float16", marks=pytest.mark.slow),
        pytest.param((1, 20_000, 2, 64, 100), "finch", "float32", marks=pytest.mark.slow),
    ],
)
def test_a_gpu_equals_float64(shape: Shape, layout: str, dtype: str) -> None:
    given = problem(layout, shape, dtype, "mixed")
    assert_within(PROMISED, compare({name: x.cuda() for name, x in given.items()}), dtype)


@COMPILED
def test_refuses_what_it_cannot_run() -> None:
    from plkernel.kernels.wkv import gpu

    given = problem("finch", (1, 3, 1, 2, 2), "float32", "mixed")
    inputs = [given[name] for name in INPUTS]
    with pytest.raises(ValueError, match="wkv: r is on cpu; the gpu backend needs a GPU, or TRITON_INTERPRET=1"):
        gpu.forward(*inputs)
    for place, name in enumerate(INPUTS[:5]):
        wide = [x.double() if i == place else x for i, x in enumerate(inputs)]
        message = f"wkv: {name} is float64; the gpu backend takes float32, bfloat16 and float16"
        with pytest.raises(ValueError, match=message):
            gpu.forward(*wide)
        with pytest.raises(ValueError, match=message):
            gpu.backward(*wide, given["grad_out"], given["grad_last"])
    long = [given[name] for name in INPUTS]
    long[0] = torch.zeros(1, 3, 1, 513)
    with pytest.raises(ValueError, match="wkv: r has key size 513; the gpu backend takes at most 512"):
        gpu.forward(*long)
    with pytest.raises(ValueError, match="wkv: backend 'gpu' does not work on cpu; here: reference, cpu"):
        wkv(*inputs, backend="gpu")


def test_a_gpu_takes_its_own_kernels_unless_told_otherwise() -> None:
    cuda = torch.device("cuda")
    assert choose("wkv", None, cuda) == "gpu"
    assert choose("wkv", "reference", cuda) == "reference"
    with pytest.raises(ValueError, match="wkv: backend 'cpu' does not work on cuda; here: reference, gpu"):
        choose("wkv", "cpu", cuda)


def test_a_program_holds_all_keys_and_no_more_of_the_values_than_fits() -> None:
    from plkernel.kernels.wkv import gpu_chunks

    for size, values in itertools.product((1, 16, 17, 64, 100, 512), repeat=2):
        keys, block = gpu_chunks.tiles(size, values)
        assert size <= keys < max(2 * size, 17)
        assert 16 <= block < max(2 * values, 17)
        assert keys * block <= max(gpu_chunks.TILE, 16 * keys)


def assert_rounded(excesses: dict[str, float]) -> None:
    assert excesses.keys() == set(RESULTS)
    assert not {name: excess for name, excess in excesses.items() if not excess <= 1}, excesses


def assert_within(bounds: dict[str, float], errors: dict[str, float], dtype: str) -> None:
    assert errors.keys() == bounds.keys()
    rounding = {name: ROUNDING[dtype] if name in STORED_AS_GIVEN else 0.0 for name in RESULTS}
    assert not {name: error for name, error in errors.items() if not error <= bounds[name] + rounding[name]}


def check_compiled(found: list[Compiled], expected: int) -> None:
    assert len(found) == expected
    assert {kernel.chip for kernel in found} == CHIPS.keys()
    assert not [kernel.kernel for kernel in found if kernel.shared > CHIPS[kernel.chip].block]
    assert not [kernel.kernel for kernel in found if "tf32" in kernel.text]


def problem(layout: str, shape: Shape, dtype: str, decays: str) -> dict[str, Tensor]:
    """Normal inputs and states, decays of one kind, and the incoming gradients."""
    random = torch.Generator().manual_seed(1)
    batch, _, heads, size, values = shape
    shapes = {"r": shape[:4], "k": shape[:4], "v": (*shape[:3], values), "u": (heads, size)}
    shapes |= {"state": (batch, heads, size, values), "grad_last": (batch, heads, size, values)}
    given = {name: torch.randn(x, generator=random) for name, x in (shapes | {"grad_out": shapes["v"]}).items()}
    for name in ("r", "k", "v", "grad_out"):
        given[name] = given[name].to(getattr(torch, dtype))
    decay_shape = (heads, size) if layout == "eagle" else shape[:4]
    if decays == "mixed":  # strong and weak decays side by side, and following each other
        count = math.prod(decay_shape)
        picked = torch.arange(count) if layout == "eagle" else torch.randint(99, (count,), generator=random)
        given["log_decay"] = torch.tensor(LOG_DECAYS)[picked % len(LOG_DECAYS)].reshape(decay_shape)
    elif decays == "range":
        given["log_decay"] = -(torch.rand(decay_shape, generator=random) * 10.5 - 8).exp()
    else:
        given["log_decay"] = torch.full(decay_shape, float(decays))
    return given


def run(given: dict[str, Tensor], backend: str) -> dict[str, Tensor]:
    """Results and gradients through the public function."""
    leaves = [given[name].detach().requires_grad_() for name in INPUTS]
    results = wkv(*leaves, backend=backend)
    incoming = (given["grad_out"], given["grad_last"])
    grads = torch.autograd.grad(results, leaves, incoming, allow_unused=True, materialize_grads=True)
    return dict(zip(RESULTS, (x.detach() for x in (*results, *grads)), strict=True))


def compare(given: dict[str, Tensor]) -> dict[str, float]:
    exact = run({name: x.double() for name, x in given.items()}, "reference")
    return {name: error(x, exact[name]) for name, x in run(given, "gpu").items()}


def excesses(given: dict[str, Tensor]) -> dict[str, float]:
    """The largest error of every result as a part of what rounding allows.

    Decays are exp of a sum s of at most ROWS logarithms, so a term is off by ROWS u |s| e**s too, less than ROWS u
    e**(s/2): what half the logarithms give.
    """
    from plkernel.kernels.wkv import gpu_chunks

    exact = run({name: x.double() for name, x in given.items()}, "reference")
    size = rounding.magnitudes(given)
    sizes = run(size, "reference"), run(size | {"log_decay": size["log_decay"] / 2}, "reference")
    n = rounding.wkv_roundings(gpu_chunks.CHUNK, given["k"].shape[-1], given["v"].shape[-1])
    total = {name: sizes[0][name] + gpu_chunks.ROWS / n * sizes[1][name] for name in RESULTS}
    return {name: rounding.excess(x, exact[name], total[name], n) for name, x in run(given, "gpu").items()}


def error(found: Tensor, exact: Tensor) -> float:
    """max|found - exact| / max|exact| per channel, the worst channel. NaN where something was not written."""
    wrong, size = (x.double().abs().reshape(-1, exact.shape[-1]).amax(0) for x in (found.double() - exact, exact))
    return (wrong / size.clamp(min=1e-45)).max().item()


def interpret() -> dict[str, Any]:
    results: dict[str, Any] = interpret_cases(INTERPRETED)
    for layout in LAYOUTS:
        for name, empty in EMPTY.items():
            results[f"{name}/{layout}"] = empty_results(problem(layout, empty, "float32", "-50"))
    given = problem("finch", (1, 3, 2, 3, 5), "float32", "range")
    strided = {name: torch.stack([x, x], -1)[..., 0].mT.contiguous().mT for name, x in given.items()}
    assert not strided["r"].is_contiguous()
    plain, other = run(given, "gpu"), run(strided, "gpu")
    cpu = torch.device("cpu")
    return results | {
        "strides make no difference": all(torch.equal(plain[name], other[name]) for name in RESULTS),
        "opcheck": opcheck("test_schema", "test_autograd_registration", "test_faketensor"),
        "chosen": [choose("wkv", None, cpu), choose("wkv", "gpu", cpu)],
    }


def interpret_more() -> dict[str, Any]:
    return interpret_cases(SLOW) | {"opcheck": opcheck("test_aot_dispatch_dynamic")}


def interpret_cases(cases: list[tuple[str, str]]) -> dict[str, dict[str, float]]:
    from plkernel.kernels.wkv import gpu_chunks

    gpu_chunks.TILE, gpu_chunks.GROUP = 256, 2
    results = {}
    for name, layout in cases:
        shape, dtype, decays, gpu_chunks.ROWS = (CASES | SLOW_CASES)[name]
        gpu_chunks.CHUNK = 2 * gpu_chunks.ROWS
        results[f"{name}/{layout}"] = excesses(problem(layout, shape, dtype, decays))
    return results


def interpret_long() -> dict[str, dict[str, float]]:
    """A memory of 3,000 steps, with chunks as they are: w in float32 would be off by 1e-5 at the end."""
    decays = str(-math.exp(-8))
    return {layout: excesses(problem(layout, (1, 1500, 1, 3, 2), "float32", decays)) for layout in LAYOUTS}


def empty_results(given: dict[str, Tensor]) -> dict[str, bool]:
    found = run(given, "gpu")
    rest = [found[name] for name in RESULTS if name not in ("last", "grad_state")]
    states = (torch.equal(found["last"], given["state"]), torch.equal(found["grad_state"], given["grad_last"]))
    return dict(zip(EMPTY_CLAIMS, (*states, not any(x.any() for x in rest)), strict=True))


def opcheck(*checks: str) -> Any:
    small = problem("finch", (1, 3, 1, 3, 5), "float32", "range")
    leaves = [small[name].requires_grad_() for name in INPUTS]
    return torch.library.opcheck(torch.ops.plkernel.wkv.default, (*leaves, "gpu"), test_utils=checks)


def compile_some() -> list[Compiled]:
    """The kernels a Finch with heads of 16 launches under bfloat16; the largest for the chip with the least memory."""
    chips = {"chunk_ends": 80, "chunk_starts": 80, "_forward": 90, "_backward": 86}
    return [kernels.wkv(name, chip, "bf16", False, (16, 16)) for name, chip in chips.items()]


def compile_all() -> list[Compiled]:
    """Every kernel for every dtype; heads of one, small and large, aligned and odd; the longest keys."""
    variants = [("fp32", (1, 1)), ("bf16", (16, 16)), ("fp16", (33, 65)), ("fp32", (33, 65)), ("bf16", (128, 64))]
    results = [kernels.wkv("_backward", 86, "fp32", False, (512, 16))]  # the chip with the least shared memory
    for chip in CHIPS:
        for place, (dtype, sizes) in enumerate(variants):
            results += [kernels.wkv("chunk_ends", chip, dtype, fixed, sizes, reverse=fixed) for fixed in (True, False)]
            results += [kernels.wkv(name, chip, dtype, place % 2 == 0, sizes) for name in ("_forward", "_backward")]
    return results
