"""WKV-7 in Triton: its arithmetic in Triton's interpreter, its compilation for three chips, and itself on a GPU.

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
import torch
from gpu_kernels import CHIPS, Compiled
from interpreter import run_interpreted
from wkv7_problems import INPUTS, RESULTS, Shape, excesses, problem, run

from plkernel.kernels.backends import choose
from plkernel.kernels.wkv7 import wkv7

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed (it exists for Linux only)"
)

# name: shape, dtype of r, decays; a chunk has four steps, a program two columns of values where K is 8.
CASES: dict[str, tuple[Shape, str, float | None]] = {
    "less-than-a-chunk": ((2, 3, 2, 7, 3), "float32", None),
    "three-chunks": ((1, 11, 1, 8, 3), "float32", None),
    "bfloat16": ((1, 6, 1, 7, 3), "bfloat16", None),
    "float16": ((1, 6, 1, 7, 3), "float16", None),
    "no decay": ((1, 9, 1, 3, 2), "float32", 0.0),
    "all -inf": ((1, 6, 1, 4, 2), "float32", -math.inf),
}
EMPTY = {"no-batch": (0, 3, 2, 3, 4), "no-time": (2, 0, 2, 3, 4), "no-heads": (2, 3, 0, 3, 4)}
EMPTY |= {"no-keys": (2, 3, 2, 0, 4), "no-values": (2, 3, 2, 3, 0)}
EMPTY_CLAIMS = ("last is state", "grad_state is grad_last", "rest is 0")
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
COMPILED = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted")


@pytest.fixture
def own_binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles anew, and leaves nothing behind."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture(scope="module")
def interpreted(interpreted_once: dict[str, Any]) -> dict[str, Any]:
    return dict(interpreted_once["test_wkv7_gpu:interpret"])


def assert_rounded(errors: dict[str, float]) -> None:
    assert errors.keys() == set(RESULTS)
    assert not {name: value for name, value in errors.items() if not value <= 1}, errors


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernels_equal_float64(interpreted: dict[str, Any], case: str) -> None:
    assert_rounded(interpreted[case])


@pytest.mark.slow
def test_a_long_sequence_does_not_collect_rounding_errors() -> None:
    [errors] = run_interpreted("test_wkv7_gpu:interpret_long")
    assert errors["with what additions round away"] < 0.2 * errors["without"]


@pytest.mark.parametrize("case", EMPTY)
def test_an_empty_sequence_returns_the_state(interpreted: dict[str, Any], case: str) -> None:
    assert interpreted[case] == dict.fromkeys(EMPTY_CLAIMS, True)


def test_the_operator_takes_any_strides_and_passes_the_checks_of_torch(interpreted: dict[str, Any]) -> None:
    assert interpreted["strides make no difference"]
    assert set(interpreted["opcheck"].values()) == {"SUCCESS"}
    assert interpreted["chosen"] == ["cpu", "gpu"]


@COMPILED
@pytest.mark.usefixtures("own_binaries")
def test_every_kernel_compiles() -> None:
    check_compiled(
        [kernels.wkv7("_forward", 80, "bf16", (64, 64), keep=False), kernels.wkv7("_backward", 86, "bf16", (64, 64))]
    )


@COMPILED
@pytest.mark.slow
@pytest.mark.usefixtures("own_binaries")
def test_every_variant_compiles_for_every_chip() -> None:
    variants = [("fp32", (1, 1)), ("bf16", (16, 16)), ("fp16", (33, 65)), ("fp32", (64, 64)), ("bf16", (512, 64))]
    found: list[Compiled] = []
    for chip, (dtype, sizes) in itertools.product(CHIPS, variants):
        found += [kernels.wkv7("_forward", chip, dtype, sizes, keep) for keep in (True, False)]
        found += [kernels.wkv7("_backward", chip, dtype, sizes)]
    assert {kernel.chip for kernel in found} == CHIPS.keys()
    check_compiled(found)


@ON_GPU
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, 65, 2, 16, 16), torch.float32),
        ((2, 65, 3, 11, 5), torch.float32),
        ((2, 65, 3, 11, 5), torch.bfloat16),
        pytest.param((1, 200, 1, 64, 64), torch.float32, marks=pytest.mark.slow),
    ],
)
def test_a_gpu_equals_float64(shape: Shape, dtype: torch.dtype) -> None:
    """Its exponential is off by two units more, of which the many roundings that are allowed have room."""
    given = problem(shape, dtype)
    found = run("gpu", {name: x.cuda() for name, x in given.items()})
    assert_rounded(excesses({name: x.cpu() for name, x in found.items()}, given, chunk=1))


@COMPILED
def test_refuses_what_it_cannot_run() -> None:
    from plkernel.kernels.wkv7 import gpu

    given = problem((1, 3, 1, 2, 2))
    inputs = [given[name] for name in INPUTS]
    with pytest.raises(ValueError, match="wkv7: r is on cpu; the gpu backend needs a GPU, or TRITON_INTERPRET=1"):
        gpu.forward(*inputs)
    for place, name in enumerate(INPUTS[:6]):
        wide = [x.double() if i == place else x for i, x in enumerate(inputs)]
        message = f"wkv7: {name} is float64; the gpu backend takes float32, bfloat16 and float16"
        with pytest.raises(ValueError, match=message):
            gpu.forward(*wide)
        with pytest.raises(ValueError, match=message):
            gpu.backward(*wide, given["grad_out"], given["grad_last"])
    with pytest.raises(ValueError, match="wkv7: backend 'gpu' does not work on cpu; here: reference, cpu"):
        wkv7(*inputs, backend="gpu")


def test_a_program_holds_all_keys_and_no_more_of_the_values_than_fits() -> None:
    from plkernel.kernels.wkv7 import gpu

    for size, values in itertools.product((1, 16, 17, 64, 100, 512, 5000), repeat=2):
        keys, block = gpu.tiles(size, values)
        assert size <= keys < 2 * size
        assert 1 <= block < 2 * values
        assert keys * block <= max(gpu.TILE, keys)


def check_compiled(found: list[Compiled]) -> None:
    assert not [kernel.kernel for kernel in found if kernel.shared > CHIPS[kernel.chip].block]
    assert not [kernel.kernel for kernel in found if "fma.rn.f32" in kernel.text]


def interpret() -> dict[str, Any]:
    from plkernel.kernels.wkv7 import gpu

    gpu.TILE, gpu.CHUNK = 16, 4
    results: dict[str, Any] = {name: empty_results(problem(shape)) for name, shape in EMPTY.items()}
    given = problem((1, 5, 2, 3, 3))
    strided = {name: torch.stack([x, x], -1)[..., 0].mT.contiguous().mT for name, x in given.items()}
    assert not strided["r"].is_contiguous()
    plain, other = run("gpu", given), run("gpu", strided)
    results["strides make no difference"] = all(torch.equal(plain[name], other[name]) for name in RESULTS)
    cpu = torch.device("cpu")
    results["chosen"] = [choose("wkv7", None, cpu), choose("wkv7", "gpu", cpu)]
    results["opcheck"] = opcheck("test_schema", "test_autograd_registration", "test_faketensor")
    for name, (shape, dtype, log_decay) in CASES.items():
        given = problem(shape, getattr(torch, dtype), log_decay)
        results[name] = excesses(run("gpu", given), given, chunk=1)
    return results


def interpret_long() -> dict[str, float]:
    """The largest error of the last state after 2,000 steps of a memory of 3,000, and that of plain float32 steps."""
    given = problem((1, 2000, 1, 4, 4), log_decay=-math.exp(-8))
    given["b"] *= 1e-3
    inputs = [given[name] for name in INPUTS]
    exact = wkv7(*(x.double() for x in inputs), backend="reference")[1]
    state, w = given["state"], given["log_decay"].exp()
    for t in range(2000):
        a, b, k, v = (given[name][:, t] for name in ("a", "b", "k", "v"))
        read = (state * a[..., None, :]).sum(-1, keepdim=True)
        state = state * w[:, t, :, None, :] + read * b[..., None, :] + v[..., None] * k[..., None, :]
    found = {"with what additions round away": wkv7(*inputs, backend="gpu")[1], "without": state}
    return {name: (x - exact).abs().max().item() for name, x in found.items()}


def empty_results(given: dict[str, torch.Tensor]) -> dict[str, bool]:
    found = run("gpu", given)
    rest = [found[name] for name in RESULTS if name not in ("last", "grad_state")]
    states = (torch.equal(found["last"], given["state"]), torch.equal(found["grad_state"], given["grad_last"]))
    return dict(zip(EMPTY_CLAIMS, (*states, not any(x.any() for x in rest)), strict=True))


def opcheck(*checks: str) -> Any:
    given = problem((1, 3, 1, 3, 5), log_decay=-0.5)
    leaves = [given[name].requires_grad_() for name in INPUTS]
    return torch.library.opcheck(torch.ops.plkernel.wkv7.default, (*leaves, "gpu"), test_utils=checks)
