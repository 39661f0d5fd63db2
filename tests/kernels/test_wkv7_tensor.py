"""WKV-7 on tensor cores: equal to float64 in Triton's interpreter and, where there is one, on a
GPU; compiled ahead of time for chips that need not be here.

The interpreter takes products in float32. What tf32 loses only a GPU shows.
"""

import itertools
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreting import interpret_quickly, run_interpreted
from operators import STORED, WKV7, Problem, Shape
from torch import Tensor

aot = pytest.importorskip("aot", reason="Triton is not installed (it exists for Linux only)")
tensor = pytest.importorskip("plkernel.kernels.wkv7.tensor")
COMPILED = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted"
)
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
KERNELS = ("_prepare", "_outputs", "_states", "_gradients")

# shape, dtype, precision, ln w (None: all of operators.LOG_DECAYS, mixed)
Case = tuple[Shape, str, str, float | None]
CASES: list[Case] = [
    ((2, 3, 2, 11, 5), "float32", "ieee", None),  # keys and values beside any multiple of 16
    ((1, 1, 1, 1, 1), "float32", "ieee", None),
    ((1, 17, 1, 16, 16), "float32", "tf32x3", None),  # one step more than a chunk
    ((1, 6, 1, 7, 3), "float32", "ieee", -math.inf),
    ((1, 9, 1, 3, 2), "bfloat16", "ieee", 0.0),
]
SLOW: list[Case] = [
    ((2, 65, 2, 12, 33), "float32", "ieee", None),
    ((1, 130, 3, 4, 50), "float32", "ieee", None),
    ((1, 33, 1, 5, 70), "float32", "tf32x3", None),  # two blocks of values
    ((1, 40, 1, 100, 40), "float32", "tf32x3", None),  # more keys
    ((1, 48, 1, 64, 64), "float16", "tf32x3", None),
    ((1, 35, 1, 16, 9), "float32", "ieee", -1e4),
    ((1, 35, 1, 16, 9), "float32", "ieee", -50.0),
    ((1, 35, 1, 16, 9), "float32", "ieee", -1e-7),
]
EMPTY = ((2, 0, 2, 3, 4), (0, 4, 2, 3, 4), (2, 4, 0, 3, 4), (2, 4, 2, 0, 4), (2, 4, 2, 3, 0))
# Of the decays, as ln w: long memories, those of the model, dead ones, and all at once.
DECAYS = ("weak", "typical", "strong", "mixed")


def run(given: Problem, precision: str | None = None) -> Problem:
    """Results and gradients of the kernels."""
    inputs = [given[name] for name in WKV7.inputs]
    outputs = tensor.forward(*inputs, precision=precision)
    grads = tensor.backward(*inputs, given["grad_out"], given["grad_last"], precision=precision)
    return dict(zip(WKV7.results, (*outputs, *grads), strict=True))


def reference(given: Problem) -> Problem:
    return WKV7.run("reference", {name: x.double().cpu() for name, x in given.items()})


def rounding_problem(decay: str, time: int, size: int, dtype: torch.dtype) -> Problem:
    """A problem in float64 whose inputs `dtype` rounds, with decays of one kind."""
    given = WKV7.problem("varying", (1, time, 1, size, size), torch.float64)
    draw = torch.rand(given["log_decay"].shape, generator=torch.Generator().manual_seed(2)).double()
    typical = -math.exp(-0.5) * draw  # from -exp(-1/2) to 0: arXiv 2503.14456
    kinds = {"weak": torch.full_like(draw, -1e-4), "typical": typical, "strong": 50 * typical}
    given["log_decay"] = kinds.get(decay, given["log_decay"]).float().double()
    return given


def rounded(given: Problem, dtype: torch.dtype) -> Problem:
    wide = ("state", "grad_last", "log_decay")
    return {name: x.to(torch.float32 if name in wide else dtype) for name, x in given.items()}


def distance(x: Tensor, exact: Tensor) -> float:
    return ((x.double().cpu() - exact).norm() / exact.norm()).item()


def lost(given: Problem, dtype: torch.dtype, device: str) -> dict[str, list[float]]:
    """Of each result: its error; and what rounding the inputs to `dtype`, and then the exact
    result, costs; relative to its norm.
    """
    taken = rounded(given, dtype)
    found = run({name: x.to(device) for name, x in taken.items()})
    exact, ideal = reference(taken), reference(given)
    return {
        name: [
            distance(x, exact[name]),
            math.hypot(
                distance(exact[name], ideal[name]), distance(exact[name].to(x.dtype), exact[name])
            ),
        ]
        for name, x in found.items()
    }


def in_interpreter(function: str) -> Any:
    """Return the result of a function of this file in a process where Triton interprets kernels."""
    return run_interpreted(__file__, function)


def assert_good(cases: list[Case], found: list[dict[str, float]]) -> None:
    wrong = {
        str(case): errors
        for case, errors in zip(cases, found, strict=True)
        if len(errors) != len(WKV7.results) or max(errors.values()) > 1
    }
    assert not wrong, wrong


def test_interpreted_kernels_equal_float64() -> None:
    assert_good(CASES, in_interpreter("interpret_cases"))


@pytest.mark.slow
def test_more_interpreted_kernels_equal_float64() -> None:
    assert_good(SLOW, in_interpreter("interpret_slow_cases"))


def assert_less_is_lost_than_by_rounding_inputs(losses: Any, times: float) -> None:
    wrong = {
        f"{decay} {name}": errors
        for decay, of_decay in losses.items()
        for name, errors in of_decay.items()
        if not errors[0] <= times * errors[1]
    }
    assert not wrong, wrong


@pytest.mark.slow
def test_products_of_bfloat16_lose_less_than_rounding_the_inputs() -> None:
    assert_less_is_lost_than_by_rounding_inputs(in_interpreter("interpret_losses"), 1.1)


@pytest.mark.slow
def test_a_long_memory_keeps_its_digits() -> None:
    """After 2,000 steps; plain float32 factors of chunks would be off by up to 4e-6."""
    assert max(in_interpreter("interpret_long")) < 2e-6


@pytest.mark.parametrize("shape", EMPTY)
def test_empty_problems(shape: Shape) -> None:
    given = WKV7.problem("varying", shape)
    found = run(given)
    exact = reference(given)
    for name, x in found.items():
        assert torch.equal(x.double(), exact[name]), name


def test_what_the_kernels_do_not_take_is_refused() -> None:
    given = WKV7.problem("varying", (1, 3, 1, 129, 2))
    inputs = [given[name] for name in WKV7.inputs]
    with pytest.raises(
        ValueError,
        match=r"key size of at most 128 on tensor cores, got 129; backend='gpu' takes more",
    ):
        tensor.forward(*inputs)
    inputs = [x[..., :2] for x in inputs]
    for unknown in ("tf32", ""):
        with pytest.raises(ValueError, match=f"one of bf16, tf32x3, ieee, got '{unknown}'"):
            tensor.forward(*inputs, precision=unknown)


def test_the_precision_follows_the_dtype() -> None:
    """Products of bfloat16 would lose digits that float16 has."""
    of = {torch.bfloat16: "bf16", torch.float16: "tf32x3", torch.float32: "tf32x3"}
    for dtype, precision in of.items():
        x = torch.empty(1, 1, 1, 64, dtype=dtype)
        assert tensor.planned(x, x, None) == tensor.planned(x, x, precision)


def compiled(
    name: str,
    chip: int,
    dtype: str,
    precision: str | None,
    sizes: tuple[int, int],
    units: int = tensor.MANY_UNITS,
) -> Any:
    """A kernel as it is launched for heads of `sizes`, so many with those of all sequences."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    torch_dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    keys, values = (torch.empty(units, 1, 1, size, dtype=torch_dtype) for size in sizes)
    plan = tensor.planned(keys, values, precision)
    kernel = getattr(tensor, name)
    names = kernel.arg_names
    options = {
        "_prepare": plan.of_prepare(keep=True),
        "_outputs": plan.of_outputs(),
        "_states": plan.of_states(),
        "_gradients": plan.of_gradients(),
    }[name]
    given = dict(zip("KV", sizes, strict=True))
    constants = {key: 1 for key, size in given.items() if size == 1 and key in names}
    constants |= {key: x for key, x in options.items() if key in names}
    short = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}
    types = dict.fromkeys(names, f"*{dtype}")
    wide = ("log_decay", "grad_w", "state", "last", "grad_last", "grad_state", "factors")
    types |= dict.fromkeys(wide, "*fp32")
    types |= dict.fromkeys(("rows", "weights"), short[plan.precision.rows])
    types |= dict.fromkeys(("starts", "ends"), short[plan.precision.states])
    types |= dict.fromkeys(("T", "H", "K", "V", "chunks"), "i32")
    signature = {key: "constexpr" if key in constants else types[key] for key in names}
    aligned = [
        key for key in names if signature[key].startswith("*") or given.get(key, 1) % 16 == 0
    ]
    attributes = {(names.index(key),): [["tt.divisibility", 16]] for key in aligned}
    return triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", chip, 32),
        options={key: x for key, x in options.items() if key not in names},
    )


def test_chunks_are_short_where_many_heads_are_computed_at_a_time() -> None:
    """In bfloat16 and for keys of up to 64; others are short in any case."""

    def chunk(batch: int, heads: int, size: int = 64, precision: str | None = None) -> int:
        x = torch.empty(batch, 1, heads, size, dtype=torch.bfloat16)
        return tensor.planned(x, x, precision).chunk

    assert chunk(8, 8) == chunk(64, 1) == chunk(1, 64) == 16
    assert chunk(7, 9) == chunk(1, 1) == 32
    assert chunk(1, 1, size=128) == chunk(1, 1, precision="tf32x3") == 16


@COMPILED
@pytest.mark.parametrize("units", [1, tensor.MANY_UNITS])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_for_bfloat16_take_tensor_cores_and_keep_their_registers(
    name: str, units: int
) -> None:
    binary = compiled(name, 90, "bf16", None, (64, 64), units)
    assert binary.metadata.shared <= aot.SHARED[90]
    # A few numbers, outside of the loops. Eight warps for the gradients spill none and take longer.
    is_short = name == "_gradients" and units == tensor.MANY_UNITS
    assert aot.spilled(binary.asm["cubin"]) <= (256 if is_short else 64)
    ptx = binary.asm["ptx"]
    assert "mma.sync" in ptx or "wgmma.mma_async" in ptx
    assert "bf16.bf16" in ptx, "products of bfloat16"


@COMPILED
@pytest.mark.slow
def test_every_variant_compiles_for_every_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    variants = [
        ("bf16", "bf16", (64, 64)),
        ("bf16", "bf16", (16, 48)),
        ("bf16", "bf16", (128, 128)),
        ("fp16", "tf32x3", (33, 65)),
        ("fp32", "tf32x3", (128, 128)),
        ("fp32", "ieee", (16, 16)),
        ("fp32", "ieee", (1, 1)),
    ]
    for chip, name, variant in itertools.product(aot.SHARED, KERNELS, variants):
        binary = compiled(name, chip, *variant)
        label = f"{name} sm_{chip} {variant}"
        assert binary.metadata.shared <= aot.SHARED[chip], label
        assert variant[1] != "ieee" or "tf32" not in binary.asm["ptx"], label


@ON_GPU
@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1), (2, 65, 3, 11, 5), (1, 200, 1, 64, 64), (1, 70, 2, 128, 128)]
)
def test_a_gpu_equals_float64(shape: Shape, precision: str) -> None:
    given = WKV7.problem("varying", shape)
    found = run({name: x.cuda() for name, x in given.items()}, precision)
    WKV7.assert_equal(found, given, times=4)


@ON_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_a_gpu_less_is_lost_than_by_rounding_the_inputs(dtype: torch.dtype) -> None:
    losses = {
        decay: lost(rounding_problem(decay, 512, 64, dtype), dtype, "cuda") for decay in DECAYS
    }
    # float32 inputs are rounded by 2**-24, sums of 512 steps many times
    assert_less_is_lost_than_by_rounding_inputs(losses, 50.0 if dtype == torch.float32 else 1.1)


def interpret_cases() -> list[dict[str, float]]:
    return [case_errors(case) for case in CASES]


def interpret_slow_cases() -> list[dict[str, float]]:
    return [case_errors(case) for case in SLOW]


def case_errors(case: Case) -> dict[str, float]:
    shape, dtype, precision, decay = case
    given = WKV7.problem("varying", shape, getattr(torch, dtype))
    if decay is not None:
        given["log_decay"] = torch.full_like(given["log_decay"], decay)
    return WKV7.errors(run(given, precision), given)


def interpret_losses() -> dict[str, dict[str, list[float]]]:
    """With numbers rounded to bfloat16 as a GPU rounds them: what is cut off adds up."""
    from triton.language import bfloat16, float32
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def rounding(x: Any, given: Any, wanted: Any, mode: Any) -> Any:
        if (given, wanted) != (float32, bfloat16):
            return convert(x, given, wanted, mode)
        return torch.tensor(x).bfloat16().view(torch.uint16).numpy()

    interpreter._convert_float = rounding
    dtype = torch.bfloat16
    return {decay: lost(rounding_problem(decay, 100, 64, dtype), dtype, "cpu") for decay in DECAYS}


def interpret_long() -> list[float]:
    errors = []
    for log_decay in (-math.exp(-8), -3e-6, -1e-7):
        given = WKV7.problem("varying", (1, 2000, 1, 4, 4))
        given["log_decay"].fill_(log_decay)
        given["b"] *= 1e-3
        inputs = [given[name] for name in WKV7.inputs]
        exact = WKV7.call(*(x.double() for x in inputs), backend="reference")[1]
        errors.append(distance(tensor.forward(*inputs)[1], exact))
    return errors


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
