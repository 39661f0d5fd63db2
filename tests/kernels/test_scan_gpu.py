"""The Triton scan without a GPU: its arithmetic in Triton's interpreter, and its compilation for three chips.

What is interpreted runs in a process of its own, as `interpreter` has it.
"""

import importlib.util
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gpu_kernels as kernels
import pytest
import rounding
import torch
from gpu_kernels import CHIPS, Compiled, spilled
from interpreter import run_interpreted
from torch import Tensor

from plkernel.kernels.scan import reference

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed (it exists for Linux only)"
)

# name: (batch, time, channels), steps of a chunk, dtype of b. A group has 4 steps here, a program 32 channels.
CASES = {
    "one-step": ((1, 1, 1), 1, "float32"),
    "less-than-a-group": ((2, 3, 5), 3, "float32"),
    "one-ragged-chunk": ((1, 11, 7), 11, "float32"),
    "whole-chunks": ((1, 16, 7), 8, "float32"),
    "ragged-chunks": ((1, 15, 9), 6, "float32"),
    "more-chunks-than-a-group": ((1, 13, 3), 2, "float32"),
    "two-blocks-of-channels": ((1, 11, 35), 6, "float32"),
    "bfloat16": ((1, 10, 9), 6, "bfloat16"),
    "float16": ((1, 10, 9), 6, "float16"),
    "several-chunks": ((2, 22, 9), 6, "float32"),
}
FAST = {
    "less-than-a-group": "fixed",
    "ragged-chunks": "varying",
    "more-chunks-than-a-group": "fixed",
    "two-blocks-of-channels": "varying",
}
FAST |= {"bfloat16": "varying", "float16": "fixed"}
ALL = [(case, decay) for case in CASES for decay in ("fixed", "varying")]
INTERPRETED = [(case, decay) for case, decay in ALL if decay in FAST.get(case, "")]
SLOW = [case for case in ALL if case not in INTERPRETED]
EMPTY = {"no-batch": (0, 3, 2), "no-time": (2, 0, 3), "no-channels": (2, 3, 0)}
COMPILED = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted")
DECAYS = (1e-12, 1e-4, 0.3, 0.9, 0.999, 1 - 1e-7, 0.0, 1.0, 0.99999)


@pytest.fixture
def own_binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles anew, and leaves nothing behind."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture(scope="module")
def errors(interpreted_once: dict[str, Any]) -> dict[str, dict[str, float]]:
    return dict(interpreted_once["test_scan_gpu:interpret"])


@pytest.fixture(scope="module")
def more_errors() -> dict[str, dict[str, float]]:
    [errors] = run_interpreted("test_scan_gpu:interpret_more")
    return dict(errors)


@pytest.mark.parametrize(("case", "decay"), INTERPRETED)
def test_interpreted_scan_equals_float64(errors: dict[str, dict[str, float]], case: str, decay: str) -> None:
    assert_rounded(errors[f"{case}/{decay}"])


@pytest.mark.slow
@pytest.mark.parametrize(("case", "decay"), SLOW)
def test_more_interpreted_scans_equal_float64(more_errors: dict[str, dict[str, float]], case: str, decay: str) -> None:
    assert_rounded(more_errors[f"{case}/{decay}"])


@pytest.mark.slow
def test_long_sequence_does_not_collect_rounding_errors() -> None:
    [errors] = run_interpreted("test_scan_gpu:interpret_long")
    for measured in errors.values():
        assert_rounded(measured)


@pytest.mark.parametrize("decay", ["fixed", "varying"])
@pytest.mark.parametrize("case", EMPTY)
def test_interpreted_empty_scan_hands_the_state_through(errors: dict[str, Any], case: str, decay: str) -> None:
    assert errors[f"{case}/{decay}"] == {"last is state": True, "grad_state is grad_last": True, "grad_a is 0": True}


@COMPILED
@pytest.mark.usefixtures("own_binaries")
def test_every_kernel_compiles_and_for_every_chip_without_spills_or_tf32() -> None:
    check_compiled(compile_some(), expected=4)


@COMPILED
@pytest.mark.slow
@pytest.mark.usefixtures("own_binaries")
def test_every_variant_compiles_for_every_chip() -> None:
    check_compiled(compile_all(), expected=9 * 5 * len(CHIPS))


@COMPILED
def test_refuses_what_it_cannot_run() -> None:
    from plkernel.kernels.scan import gpu

    a, b, state = torch.rand(2), torch.rand(1, 3, 2), torch.zeros(1, 2)
    with pytest.raises(ValueError, match="needs a GPU, or TRITON_INTERPRET=1"):
        gpu.forward(a, b, state)
    with pytest.raises(ValueError, match=r"b is float64; the gpu backend takes float32, bfloat16 and float16"):
        gpu.forward(a, b.double(), state.double())


def test_plan_covers_time_and_fills_the_device() -> None:
    from plkernel.kernels.scan import gpu

    assert gpu.plan(8, 200, 256) == (64, 200, 1)  # short
    assert gpu.plan(128, 4096, 512)[2] == 1  # batch and channels fill the device
    for shape in ((8, 1024, 256), (4, 4096, 256), (1, 65536, 64), (1, 100_000, 1), (3, 257, 65)):
        _, length, chunks = gpu.plan(*shape)
        assert chunks > 1
        assert (chunks - 1) * length < shape[1] <= chunks * length
        assert length % gpu.ROWS == 0
        assert max(length, chunks) <= 2 * max(gpu.SHORTEST, shape[1] ** 0.5), "no phase is long in series"


def assert_rounded(excesses: dict[str, float]) -> None:
    assert excesses.keys() == {"h", "last", "grad_a", "grad_b", "grad_state"}
    assert not {name: excess for name, excess in excesses.items() if not excess <= 1}, excesses


def check_compiled(found: list[Compiled], expected: int) -> None:
    assert len(found) == expected
    assert {kernel.chip for kernel in found} == CHIPS.keys()
    assert not [kernel.kernel for kernel in found if kernel.shared > CHIPS[kernel.chip].block]
    assert not [kernel.kernel for kernel in found if "tf32" in kernel.text]
    assert not [kernel.kernel for kernel in found if spilled(kernel)]


def interpret() -> dict[str, Any]:
    from plkernel.kernels.scan import gpu

    results: dict[str, Any] = interpret_cases(INTERPRETED)
    for decay in ("fixed", "varying"):
        for name, shape in EMPTY.items():
            results[f"{name}/{decay}"] = empty_results(gpu, shape, decay == "fixed")
    return results


def interpret_more() -> dict[str, Any]:
    return interpret_cases(SLOW)


def interpret_cases(cases: list[tuple[str, str]]) -> dict[str, dict[str, float]]:
    from plkernel.kernels.scan import gpu

    results = {}
    gpu.ROWS = gpu.BACKWARD_ROWS = 4
    for name, decay in cases:
        shape, length, dtype = CASES[name]
        gpu.plan = partial(chunks_of, length)
        results[f"{name}/{decay}"] = case_errors(gpu, shape, getattr(torch, dtype), decay == "fixed")
    return results


def chunks_of(length: int, batch: int, time: int, channels: int) -> tuple[int, int, int]:
    return 32, length, -(-time // length)


def case_errors(gpu: Any, shape: tuple[int, int, int], dtype: torch.dtype, fixed: bool) -> dict[str, float]:
    """Largest error of every result for random inputs, decays strong and weak on neighbouring channels."""
    batch, time, channels = shape
    random = torch.Generator().manual_seed(time)
    a = torch.tensor(DECAYS)[torch.arange(channels) % len(DECAYS)]
    if not fixed:  # strong and weak decays follow each other in time too
        a = torch.tensor(DECAYS)[torch.randint(len(DECAYS), shape, generator=random)].to(dtype)
    b = torch.randn(shape, generator=random).to(dtype)
    state = torch.randn(batch, channels, generator=random)
    grad_h = torch.randn(shape, generator=random).to(dtype)
    grad_last = torch.randn(batch, channels, generator=random)
    return dict(compare(gpu, a, b, state, grad_h, grad_last))


def interpret_long() -> dict[str, Any]:
    """The launch as `plan` has it. Input 1, decay 1 - 6e-8: a plain float32 carry is off by 2e-5."""
    from plkernel.kernels.scan import gpu

    shape = (1, 1500, 3)
    a = torch.tensor([1 - 1e-7, 0.99999, 1 - 6e-8])
    ones, state = torch.ones(shape), torch.ones(1, 3)
    return {
        "fixed": dict(compare(gpu, a, ones, state, ones, state)),
        "varying": dict(compare(gpu, a.expand(shape).contiguous(), ones, state, ones, state)),
    }


def compare(gpu: Any, a: Tensor, b: Tensor, state: Tensor, grad_h: Tensor, grad_last: Tensor) -> Iterator[Any]:
    """The largest error of every result as a part of what rounding allows: float32 lasts for a group of steps."""
    h, last = gpu.forward(a, b, state)
    gradients = gpu.backward(a, state, h, grad_h, grad_last)
    given = {"a": a, "b": b, "state": state, "h": h, "grad_h": grad_h, "grad_last": grad_last}
    exact = exactly(**{name: x.double() for name, x in given.items()})
    sizes = exactly(**rounding.magnitudes(given))
    roundings = rounding.scan_roundings(b.shape[1], gpu.ROWS)
    names = ("h", "last", "grad_a", "grad_b", "grad_state")
    for name, found, true, size in zip(names, (h, last, *gradients), exact, sizes, strict=True):
        yield name, rounding.excess(found, true, size, roundings)


def exactly(a: Tensor, b: Tensor, state: Tensor, h: Tensor, grad_h: Tensor, grad_last: Tensor) -> tuple[Tensor, ...]:
    return *reference.forward(a, b, state), *reference.backward(a, state, h, grad_h, grad_last)


def empty_results(gpu: Any, shape: tuple[int, int, int], fixed: bool) -> dict[str, bool]:
    a, b = torch.rand(shape[2:] if fixed else shape), torch.rand(shape)
    state, grad_last = torch.rand(shape[0], shape[2]), torch.rand(shape[0], shape[2])
    h, last = gpu.forward(a, b, state)
    grad_a, _, grad_state = gpu.backward(a, state, h, b, grad_last)
    return {
        "last is state": torch.equal(last, state) and last is not state,
        "grad_state is grad_last": torch.equal(grad_state, grad_last) and grad_state is not grad_last,
        "grad_a is 0": torch.equal(grad_a, torch.zeros_like(a)),
    }


def compile_some() -> list[Compiled]:
    """The kernels a model with fixed decays launches under bfloat16."""
    chips = {"_chunk_ends": 80, "_chunk_starts": 80, "_forward": 90, "_backward": 86}
    return [kernels.scan(kernel, chip, "bf16", True, reverse=True) for kernel, chip in chips.items()]


def compile_all() -> list[Compiled]:
    """Every kernel in every mode; channels a multiple of 16, any number, and one, which Triton makes a constant."""
    variants = (("bf16", "aligned"), ("fp16", "aligned"), ("fp32", "aligned"), ("fp32", "odd"), ("bf16", "single"))
    results = []
    for chip in CHIPS:
        for dtype, channels in variants:
            results.append(kernels.scan("_chunk_starts", chip, dtype, True, channels=channels))
            for fixed in (True, False):
                for kernel, reverse in (
                    ("_chunk_ends", False), ("_chunk_ends", True), ("_forward", False), ("_backward", True)
                ):  # fmt: skip
                    results.append(kernels.scan(kernel, chip, dtype, fixed, reverse, channels))
    return results
