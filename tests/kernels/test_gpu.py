"""The Triton kernels: interpreted on a CPU, compiled for three chips, and run on a GPU where there
is one.

Triton decides to interpret when it is imported: those tests run in a process of their own, which is
this file as a script; it prints their results.
"""

import itertools
import json
import math
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreting import interpret_quickly, run_interpreted
from operators import OPERATORS, SCAN, STORED, WKV, WKV7, Operator, Problem, Shape

from plkernel.kernels.operators import choose

aot = pytest.importorskip("aot", reason="Triton is not installed (it exists for Linux only)")
COMPILED = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted"
)
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
NAMED = {one.name: one for one in OPERATORS}

# operator, layout, shape, steps of a chunk (of a sub-chunk for wkv, whose chunk has two), dtype,
# decay
Case = tuple[str, str, Shape, int, str, float | None]
CASES: list[Case] = [
    ("scan", "fixed", (2, 3, 5), 3, "float32", None),
    ("scan", "varying", (1, 7, 35), 4, "float32", None),
    ("scan", "varying", (1, 7, 5), 4, "bfloat16", None),
    ("wkv", "fixed", (2, 3, 1, 5, 3), 2, "float32", None),
    ("wkv", "varying", (1, 7, 1, 18, 3), 2, "float32", None),
    ("wkv", "varying", (1, 3, 1, 4, 5), 2, "bfloat16", -math.inf),
    ("wkv7", "varying", (2, 3, 2, 3, 2), 4, "float32", None),
]
SLOW: list[Case] = [
    *(
        ("scan", layout, shape, chunk, "float32", None)
        for layout in SCAN.layouts
        for shape, chunk in (
            ((1, 1, 1), 1),
            ((1, 11, 7), 11),
            ((1, 16, 7), 8),
            ((2, 22, 9), 6),
            ((1, 13, 3), 2),
        )
    ),
    *(
        ("wkv", layout, shape, 16, "float32", None)
        for layout in WKV.layouts
        for shape in (
            (1, 1, 2, 1, 1),
            (1, 64, 1, 16, 16),
            (1, 39, 1, 20, 7),
            (1, 18, 1, 5, 17),
            (1, 35, 2, 16, 9),
        )
    ),
    ("scan", "varying", (1, 11, 35), 6, "float32", None),
    ("scan", "varying", (1, 10, 9), 6, "bfloat16", None),
    ("scan", "fixed", (1, 10, 9), 6, "float16", None),
    ("wkv", "fixed", (2, 3, 2, 11, 5), 4, "float32", None),
    ("wkv", "varying", (1, 11, 1, 18, 7), 4, "float32", None),
    ("wkv", "varying", (1, 6, 1, 7, 9), 4, "bfloat16", None),
    ("wkv", "varying", (1, 6, 1, 4, 5), 4, "float32", -math.inf),
    ("wkv", "fixed", (1, 19, 1, 4, 5), 16, "float32", -50.0),
    ("wkv", "fixed", (1, 6, 1, 7, 9), 4, "float16", None),
    ("wkv7", "varying", (1, 5, 1, 7, 3), 4, "bfloat16", 0.0),
    ("wkv7", "varying", (1, 11, 1, 8, 3), 4, "float32", None),
    ("wkv7", "varying", (1, 6, 1, 7, 3), 4, "bfloat16", None),
    ("wkv7", "varying", (1, 9, 1, 3, 2), 4, "float32", 0.0),
    ("wkv7", "varying", (1, 6, 1, 7, 3), 4, "float16", None),
    ("wkv7", "varying", (1, 6, 1, 4, 2), 4, "float32", -math.inf),
]
# Plans of the scan with small tiles: groups of several chunks, a chain, several stages and warps.
SMALL_PLANS = ("groups of 2", "groups of 5", "chain of 3 channels", "stream of 4", "tiles of 4x2")
VariantCase = tuple[str, str, Shape, str]
VARIANT_CASES: list[VariantCase] = [
    *((plan, "fixed", (1, 22, 5), "float32") for plan in SMALL_PLANS),
    ("groups of 2", "varying", (1, 19, 5), "bfloat16"),
    ("groups of 5", "varying", (2, 37, 3), "float32"),
    ("chain of 3 channels", "varying", (1, 13, 4), "float32"),
    ("stream of 4", "varying", (1, 37, 3), "float32"),
    ("stream of 4", "fixed", (1, 9, 67), "bfloat16"),
    ("tiles of 4x2", "fixed", (1, 9, 67), "bfloat16"),
    ("tiles of 4x2", "varying", (1, 18, 64), "bfloat16"),
    ("tiles of 4x2", "fixed", (2, 16, 32), "float32"),
    ("tiles of 4x2", "varying", (1, 1, 3), "float16"),
    ("groups of 2", "fixed", (1, 1, 1), "float32"),
]
SLOW_VARIANT_CASES: list[VariantCase] = [
    *((plan, "fixed", (2, 22, 5), "float32") for plan in SMALL_PLANS),
    *((plan, "varying", (1, 37, 3), "float32") for plan in SMALL_PLANS),
    ("groups of 5", "fixed", (1, 41, 35), "bfloat16"),
    ("tiles of 4x2", "varying", (1, 25, 64), "float32"),
]


# What torch and the operators load, then what the first call does; only then is this file run.
LOADED = """
import runpy, sys, types, torch, plkernel.kernels.scan, plkernel.kernels.wkv
# 2 s to import:
sys.modules["torch._dynamo"] = torch._dynamo = types.SimpleNamespace(disable=lambda f, *_, **__: f)
backends = {f"plkernel.kernels.{name}" for name in ("scan.cpu", "wkv.cpu", "scan.gpu")}
heavy = {"numba"} | backends
loaded = [sorted(heavy & sys.modules.keys())]
plkernel.kernels.scan.scan(torch.rand(2), torch.rand(1, 3, 2))
loaded.append(sorted(heavy & sys.modules.keys()))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], {"loaded": loaded}, "__main__")
"""


def in_interpreter(function: str) -> Any:
    """Return the result of a function of this file in a process where Triton interprets kernels."""
    return run_interpreted("-c", LOADED, __file__, function)


@pytest.fixture(scope="module")
def interpreted() -> Any:
    return in_interpreter("interpret")


@pytest.fixture(scope="module")
def interpreted_slowly() -> Any:
    return in_interpreter("interpret_slow")


def test_interpreted_kernels_equal_float64(interpreted: Any) -> None:
    wrong = {
        str(case): errors
        for case, errors in zip(CASES, interpreted["cases"], strict=True)
        if not good(errors)
    }
    assert not wrong, wrong
    wrong = {
        str(case): errors
        for case, errors in zip(VARIANT_CASES, interpreted["variants"], strict=True)
        if not good(errors)
    }
    assert not wrong, wrong
    assert interpreted["half"] < 1e-4, "half-precision inputs, a carry in float32"
    assert interpreted["nan"] == [True] * len(SMALL_PLANS), "in its own channel and time alone"
    assert interpreted["unknown"].startswith("variant must be one of three_phases, look_back,")
    assert interpreted["loaded"] == [
        [],
        ["numba", "plkernel.kernels.scan.cpu"],
    ], "at the first use, and no Triton"
    assert interpreted["chosen"] == ["cpu", "gpu"]
    assert interpreted["refused"] == [
        *(
            f"{name}: {one} must be float32, bfloat16 or float16 with backend 'gpu', got float64"
            for name, one in (("scan", "a"), ("wkv", "r"), ("wkv7", "r"))
        ),
        "wkv: r must have a key size of at most 512 with backend 'gpu', got 513",
    ]


@pytest.mark.slow
def test_more_interpreted_kernels_and_long_sequences_equal_float64(interpreted_slowly: Any) -> None:
    cases = interpreted_slowly["cases"]
    wrong = {
        str(case): errors for case, errors in zip(SLOW, cases, strict=True) if not good(errors)
    }
    assert not wrong, wrong
    assert all(map(good, interpreted_slowly["long"]))
    wrong = {
        name: errors
        for name, errors in interpreted_slowly["variants"].items()
        if not all(map(good, errors))
    }
    assert not wrong, wrong
    small = interpreted_slowly["small plans"]
    wrong = {
        str(case): errors
        for case, errors in zip(SLOW_VARIANT_CASES, small, strict=True)
        if not good(errors)
    }
    assert not wrong, wrong
    assert interpreted_slowly["compensated"] < 0.2 * interpreted_slowly["plain"]


def good(errors: dict[str, float]) -> bool:
    return len(errors) >= 5 and all(error <= 1 for error in errors.values())


FEW = 16
"""Bytes of a thread, four numbers, that a variant may spill."""


def assert_compiled(found: list[Any]) -> None:
    """Every kernel fits its chip and takes no tf32; scans stay in registers, and WKV-7 fuses no
    product. Variants of the scan that are not the default promise this for sm_90 alone, but for
    FEW bytes.
    """
    assert {chip for _, chip, *_ in found} == aot.SHARED.keys()
    for label, chip, shared, text, cubin in found:
        assert shared <= aot.SHARED[chip], label
        assert "tf32" not in text, label
        if "kernels.scan.gpu" in label:
            assert aot.spilled(cubin) == 0, label
        elif "kernels.scan" in label and chip == 90:
            assert aot.spilled(cubin) <= FEW, label
        assert not ("kernels.wkv7" in label and "fma.rn.f32" in text), label


@COMPILED
def test_every_kernel_compiles() -> None:
    """The kernels that models with bfloat16 launch, again after a change; the largest for the chip
    of least memory.
    """
    chips = {"_chunk_ends": 80, "_chunk_starts": 80, "_forward": 90, "_backward": 86}
    found = [aot.scan(name, chip, "bf16", True, reverse=True) for name, chip in chips.items()]
    chips = {"chunk_ends": 80, "chunk_starts": 80, "_forward": 90, "_backward": 86}
    found += [aot.wkv(name, chip, "bf16", False, (16, 16)) for name, chip in chips.items()]
    found += [
        aot.wkv7("_forward", 80, "bf16", (64, 64), keep=False),
        aot.wkv7("_backward", 86, "bf16", (64, 64)),
        aot.scan_variant("look_back", "_forward", 90, "bf16", False),
        aot.scan_variant("look_back", "_backward", 86, "fp32", True),
        aot.scan_variant("stream", "_backward", 80, "fp32", True),
        aot.scan_variant("tiles", "_forward", 80, "fp32", False, 64),
        aot.scan_variant("tiles", "_backward", 90, "bf16", True, 64),
    ]
    assert_compiled(found)


@COMPILED
@pytest.mark.slow
@pytest.mark.parametrize("variant", sorted(aot.VARIANTS))
def test_every_variant_of_the_scan_compiles_for_every_chip(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both directions, both layouts, aligned and odd sizes. Loads of streams and tiles are
    asynchronous.
    """
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = []
    for chip in aot.SHARED:
        for name, fixed in itertools.product(("_forward", "_backward"), (True, False)):
            for dtype, channels in (("fp32", 16), ("bf16", 16), ("fp32", 17), ("bf16", 1)):
                found.append(aot.scan_variant(variant, name, chip, dtype, fixed, channels))
    assert_compiled(found)
    if variant in ("stream", "tiles"):
        assert all("cp.async" in text for label, _, _, text, _ in found if "16" in label)


@COMPILED
@pytest.mark.slow
def test_every_variant_compiles_for_every_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kernel in every mode and dtype; aligned, odd and single sizes; the longest keys."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = [aot.wkv("_backward", 86, "fp32", False, (512, 16))]
    modes = (
        ("_chunk_ends", False),
        ("_chunk_ends", True),
        ("_forward", False),
        ("_backward", True),
    )
    for chip in aot.SHARED:
        for dtype, channels in (
            ("bf16", 16),
            ("fp16", 16),
            ("fp32", 16),
            ("fp32", 17),
            ("bf16", 1),
        ):
            found.append(aot.scan("_chunk_starts", chip, dtype, True, channels=channels))
            for fixed, (name, reverse) in itertools.product((True, False), modes):
                found.append(aot.scan(name, chip, dtype, fixed, reverse, channels))
        variants = [
            ("fp32", (1, 1)),
            ("bf16", (16, 16)),
            ("fp16", (33, 65)),
            ("fp32", (33, 65)),
            ("bf16", (128, 64)),
        ]
        for place, (dtype, sizes) in enumerate(variants):
            found += [
                aot.wkv("chunk_ends", chip, dtype, fixed, sizes, reverse=fixed)
                for fixed in (True, False)
            ]
            found += [
                aot.wkv(name, chip, dtype, place % 2 == 0, sizes)
                for name in ("_forward", "_backward")
            ]
        for dtype, sizes in [*variants[:3], ("fp32", (64, 64)), ("bf16", (512, 64))]:
            found += [aot.wkv7("_forward", chip, dtype, sizes, keep) for keep in (True, False)]
            found.append(aot.wkv7("_backward", chip, dtype, sizes))
    assert_compiled(found)


@ON_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("one", "layout", "shape"),
    [
        *(
            (SCAN, layout, shape)
            for layout in SCAN.layouts
            for shape in [*SCAN.equal, (1, 4096, 7)]
        ),
        (WKV, "varying", (2, 201, 3, 64, 64)),
        (WKV, "fixed", (2, 201, 3, 11, 5)),
        (WKV, "varying", (1, 2000, 2, 128, 48)),
        *(
            (WKV7, "varying", shape)
            for shape in ((2, 65, 2, 16, 16), (2, 65, 3, 11, 5), (1, 200, 1, 64, 64))
        ),
    ],
)
def test_a_gpu_equals_float64(one: Operator, layout: str, shape: Shape, dtype: torch.dtype) -> None:
    given = one.problem(layout, shape, dtype)
    one.assert_equal(
        one.run("gpu", {name: x.cuda() for name, x in given.items()}), given, times=4
    )  # 2e-5 of gradients


@ON_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", SCAN.layouts)
@pytest.mark.parametrize("variant", sorted(aot.VARIANTS))
def test_a_variant_of_the_scan_equals_float64_and_itself(
    variant: str, layout: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against float64, and bit by bit on ten more runs: the order of what is combined is fixed."""
    from plkernel.kernels.scan import gpu

    monkeypatch.setattr(gpu, "DEFAULT", variant)
    for shape in [*SCAN.equal, (1, 9001, 7), (3, 1000, 256)]:
        given = SCAN.problem(layout, shape, dtype)
        there = {name: x.cuda() for name, x in given.items()}
        found = SCAN.run("gpu", there)
        SCAN.assert_equal(found, given, times=4)
        for _ in range(10):
            again = SCAN.run("gpu", there)
            assert all(torch.equal(found[name], again[name]) for name in found)


def test_a_gpu_takes_its_own_kernels_unless_told_otherwise() -> None:
    cuda = torch.device("cuda")
    assert choose("wkv", None, cuda) == "gpu"
    assert choose("wkv", "reference", cuda) == "reference"
    with pytest.raises(
        ValueError, match="wkv: backend must be one of reference, gpu on cuda, got 'cpu'"
    ):
        choose("wkv", "cpu", cuda)


def test_keys_that_do_not_fit_into_shared_memory_are_refused_in_both_directions() -> None:
    """The backward pass too: as a registered operator it is called without a forward pass."""
    from plkernel.kernels.wkv import gpu

    given = WKV.problem("varying", (1, 3, 1, gpu.MOST_KEYS + 1, 2))
    inputs = [given[name] for name in WKV.inputs]
    message = "wkv: r must have a key size of at most 512 with backend 'gpu', got 513"
    with pytest.raises(ValueError, match=message):
        gpu.forward(*inputs)
    with pytest.raises(ValueError, match=message):
        gpu.backward(*inputs, given["grad_out"], given["grad_last"])


def test_plan_of_the_scan_covers_time_and_fills_the_device() -> None:
    from plkernel.kernels.scan import gpu

    assert gpu.divided(8, 200, 256) == (64, 200, 1)  # short
    assert gpu.divided(128, 4096, 512)[2] == 1  # batch and channels fill the device
    for shape in ((8, 1024, 256), (4, 4096, 256), (1, 65536, 64), (1, 100_000, 1), (3, 257, 65)):
        _, length, chunks = gpu.divided(*shape)
        assert chunks > 1
        assert (chunks - 1) * length < shape[1] <= chunks * length
        assert length % gpu.ROWS == 0
        assert max(length, chunks) <= 2 * max(gpu.SHORTEST, shape[1] ** 0.5), (
            "no phase is long in series"
        )


def interpret() -> dict[str, Any]:
    """Everything the quick tests need, with small tiles."""
    from plkernel.kernels.wkv import gpu as wkv_gpu
    from plkernel.kernels.wkv7 import gpu as wkv7_gpu

    wkv_gpu.TILE = 256
    wkv_gpu.GROUP = 2
    wkv7_gpu.TILE = 16
    wkv7_gpu.CHUNK = 4
    long_keys = WKV.problem("varying", (1, 3, 1, 513, 2))
    return {
        "loaded": globals()["loaded"],
        "variants": interpret_small_plans(VARIANT_CASES),
        "half": tiles_remember(),
        "nan": [nan_stays(plan) for plan in SMALL_PLANS],
        "unknown": unknown_variant(),
        "cases": interpret_cases(CASES),
        "chosen": [choose("scan", backend, torch.device("cpu")) for backend in (None, "gpu")],
        "refused": [
            *(refused(one, one.problem("varying", one.small, torch.float64)) for one in OPERATORS),
            refused(WKV, long_keys),
        ],
    }


def interpret_slow() -> dict[str, Any]:
    """The slow cases, and long sequences with chunks as they are: a plain float32 carry is off by
    2e-5 there.
    """
    variants = interpret_variants()
    long = []
    for a in (
        torch.tensor([1 - 1e-7, 0.99999, 1 - 6e-8]),
        torch.tensor([0.99999]).expand(1, 1500, 3).contiguous(),
    ):
        ones = torch.ones(1, 1500, 3)
        given = {
            "a": a,
            "b": ones,
            "state": torch.ones(1, 3),
            "grad_out": ones,
            "grad_last": torch.ones(1, 3),
        }
        long.append(SCAN.errors(SCAN.run("gpu", given), given))
    for layout in WKV.layouts:
        given = WKV.problem(layout, (1, 1500, 1, 3, 2))
        given["log_decay"].fill_(-math.exp(-8))
        long.append(
            {name: error / 2 for name, error in WKV.errors(WKV.run("gpu", given), given).items()}
        )
    compensated, plain = delta_errors()
    return {
        "cases": interpret_cases(SLOW),
        "variants": variants,
        "small plans": interpret_small_plans(SLOW_VARIANT_CASES),
        "long": long,
        "compensated": compensated,
        "plain": plain,
    }


def interpret_cases(cases: list[Case]) -> list[dict[str, float]]:
    from plkernel.kernels.scan import gpu as scan_gpu
    from plkernel.kernels.wkv import gpu as wkv_gpu

    scan_gpu.ROWS = scan_gpu.BACKWARD_ROWS = 4
    results = []
    for name, layout, shape, chunk, dtype, decay in cases:
        one = NAMED[name]
        scan_gpu.divided = partial(_fixed_plan, chunk)
        wkv_gpu.ROWS = chunk
        wkv_gpu.CHUNK = 2 * chunk
        given = one.problem(layout, shape, getattr(torch, dtype))
        if name == "scan" and layout == "varying":
            given["a"] = given["a"].to(given["b"].dtype)
        if decay is not None:
            given[one.decay] = torch.full_like(given[one.decay], decay)
        # The kernels of this form alone: the interpreter cuts off what tensor cores round.
        options = {} if name == "scan" else {"precision": "exact"}
        results.append(one.errors(one.run("gpu", given, **options), given))
    return results


def interpret_small_plans(cases: list[VariantCase]) -> list[dict[str, float]]:
    """Variants of the scan with small tiles; the variants stay in the table."""
    from plkernel.kernels.scan import gpu
    from plkernel.kernels.scan.look_back import LookBack
    from plkernel.kernels.scan.stream import Stream
    from plkernel.kernels.scan.tiles import Tiles

    tile = {"lanes": 32, "warps": 1, "rows": 2, "look": 2}
    plans = (
        LookBack(**tile, held=8, hops=3),
        LookBack(**tile, held=12, hops=2),
        LookBack(**tile, held=4, hops=None),
        Stream(rows=4, ahead=8),
        Tiles(warps=4, rows=2, ahead=8),
    )
    gpu.VARIANTS.update(zip(SMALL_PLANS, plans, strict=True))
    results = []
    for plan, layout, shape, dtype in cases:
        given = SCAN.problem(layout, shape, getattr(torch, dtype))
        results.append(variant_errors(plan, given))
    return results


def variant_errors(variant: str, given: Problem) -> dict[str, float]:
    from plkernel.kernels.scan import gpu

    gpu.DEFAULT = variant
    if given["a"].dim() > 1:
        given["a"] = given["a"].to(given["b"].dtype)
    errors = SCAN.errors(SCAN.run("gpu", given), given)
    gpu.DEFAULT = gpu.THREE_PHASES
    return errors


def tiles_remember() -> float:
    """The largest relative error of the last state after 400 steps of a memory of 10,000, summed
    from half-precision inputs of one sign.
    """
    from plkernel.kernels.scan import gpu

    inputs = torch.rand(1, 400, 2, generator=torch.Generator().manual_seed(1)).bfloat16()
    decays = torch.tensor([0.9999, 1.0])
    zero = torch.zeros(1, 2)
    _, found = gpu.forward(decays, inputs, zero, variant="tiles")
    _, exact = SCAN.call(decays.double(), inputs.double(), zero.double(), backend="reference")
    return float((found / exact - 1).abs().max())


def nan_stays(variant: str) -> bool:
    """Whether a NaN in the input reaches later steps of its channel and nothing else."""
    from plkernel.kernels.scan import gpu

    given = SCAN.problem("fixed", (2, 22, 5))
    given["b"][1, 9, 2] = torch.nan
    h, last = gpu.forward(given["a"], given["b"], given["state"], variant=variant)
    expected = torch.zeros(2, 22, 5, dtype=torch.bool)
    expected[1, 9:, 2] = True
    grads = gpu.backward(
        given["a"], given["state"], h, given["b"], given["grad_last"], variant=variant
    )
    back = torch.zeros(2, 22, 5, dtype=torch.bool)
    back[1, :10, 2] = True
    return (
        torch.equal(h.isnan(), expected)
        and torch.equal(last.isnan(), expected[:, -1])
        and torch.equal(grads[1].isnan(), back)
        and grads[0].isnan().tolist() == [False, False, True, False, False]
    )


def unknown_variant() -> str:
    from plkernel.kernels.scan import gpu

    given = SCAN.problem("fixed", (1, 1, 1))
    try:
        gpu.forward(given["a"], given["b"], given["state"], variant="none")
    except ValueError as error:
        return str(error)
    return "taken"


def interpret_variants() -> dict[str, list[dict[str, float]]]:
    """The variants of the scan as they are launched on a GPU."""
    from plkernel.kernels.scan import gpu

    return {
        name: [
            variant_errors(name, SCAN.problem(layout, (2, 131, 3), dtype))
            for layout in SCAN.layouts
            for dtype in (torch.float32, torch.bfloat16)
        ]
        for name in gpu.VARIANTS
        if name != gpu.THREE_PHASES
    }


def _fixed_plan(length: int, batch: int, time: int, channels: int) -> tuple[int, int, int]:
    return 32, length, -(-time // length)


def refused(one: Operator, given: Problem) -> str:
    try:
        one.run("gpu", given)
    except ValueError as error:
        return str(error)
    return "taken"


def delta_errors() -> tuple[float, float]:
    """The largest error of the last state after 2,000 steps of a memory of 3,000, and that of plain
    float32 steps.
    """
    given = WKV7.problem("varying", (1, 2000, 1, 4, 4))
    given["log_decay"].fill_(-math.exp(-8))
    given["b"] *= 1e-3
    inputs = [given[name] for name in WKV7.inputs]
    exact = WKV7.call(*(x.double() for x in inputs), backend="reference")[1]
    state = given["state"]
    w = given["log_decay"].exp()
    for t in range(2000):
        a, b, k, v = (given[name][:, t] for name in ("a", "b", "k", "v"))
        read = (state * a[..., None, :]).sum(-1, keepdim=True)
        state = (
            state * w[:, t, :, None, :] + read * b[..., None, :] + v[..., None] * k[..., None, :]
        )
    found = WKV7.call(*inputs, backend="gpu")[1]
    return (found - exact).abs().max().item(), (state - exact).abs().max().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    interpret_quickly()
    torch._C._set_deterministic_algorithms(
        True
    )  # torch.empty is filled with NaN: nothing may be left unwritten
    STORED[torch.bfloat16] *= 2  # the interpreter cuts bfloat16 off where a GPU rounds it
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        print(json.dumps(globals()[sys.argv[1]]()))
