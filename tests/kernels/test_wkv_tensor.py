"""WKV on tensor cores: interpreted on a CPU, where operands are rounded as on a GPU, compiled for
three chips, and run on a GPU where there is one.

Triton decides to interpret when it is imported: those tests run in a process of their own, which is
this file as a script; it prints their results.
"""

import itertools
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from interpreting import interpret_quickly, run_interpreted
from operators import LIMIT, WKV, Problem, Shape

aot = pytest.importorskip("aot", reason="Triton is not installed (it exists for Linux only)")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
COMPILED = pytest.mark.skipif(INTERPRETED, reason="kernels are interpreted")
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

# layout, shape, steps of a chunk, precision, decay
Case = tuple[str, Shape, int, str, float | None]
CASES: list[Case] = [
    ("varying", (2, 37, 1, 18, 20), 16, "ieee", None),
    ("varying", (1, 37, 2, 11, 5), 32, "tf32x3", None),
    ("fixed", (2, 18, 2, 5, 3), 16, "tf32x3", None),
    ("fixed", (1, 1, 1, 1, 1), 16, "tf32x3", None),
    ("varying", (1, 33, 1, 4, 5), 16, "tf32x3", -math.inf),
    ("varying", (1, 66, 1, 16, 16), 64, "tf32x3", None),
]
ROUNDED = {"bf16": 2.0**-8, "tf32": 2.0**-11, "bf16x3": 3 * 2.0**-16}  # largest, of an operand
DECAYS = ("weak", "typical", "strong", "mixed")
KEPT = ("u", "state", "grad_last", "log_decay")


def decays(kind: str, shape: torch.Size, random: torch.Generator) -> torch.Tensor:
    """ln w of one kind; mixed: all of them and -inf, step by step."""
    drawn = torch.rand(shape, generator=random)
    kinds = {
        "weak": -1e-4 * (1 + drawn),
        "typical": -torch.exp(-6 + 6 * drawn),  # of RWKV at initialisation
        "strong": -20 - 60 * drawn,
    }
    if kind in kinds:
        return kinds[kind]
    several = torch.stack([*kinds.values(), torch.full(shape, -math.inf)])
    which = torch.randint(len(several), (1, *shape), generator=random)
    return several.gather(0, which)[0]


def half_problem(kind: str, dtype: torch.dtype) -> tuple[Problem, Problem]:
    """A problem with inputs in float32, and the same one with inputs rounded to dtype."""
    wide = WKV.problem("varying", (1, 150, 1, 32, 32))
    random = torch.Generator().manual_seed(2)
    wide["log_decay"] = decays(kind, wide["log_decay"].shape, random)
    rounded = {name: x if name in KEPT else x.to(dtype).float() for name, x in wide.items()}
    return wide, rounded


def distances(found: Problem, exact: Problem) -> dict[str, float]:
    """Of every result, the norm of the difference over the norm."""
    return {
        name: float((x.double() - exact[name]).norm() / exact[name].norm())
        for name, x in found.items()
    }


def run(given: Problem, precision: str | None) -> Problem:
    """Results and gradients."""
    from plkernel.kernels.wkv import tensor

    inputs = [given[name] for name in WKV.inputs]
    outputs = tensor.forward(*inputs, precision=precision)
    incoming = [given["grad_out"], given["grad_last"]]
    grads = tensor.backward(*inputs, *incoming, precision=precision)
    return dict(zip(WKV.results, (*outputs, *grads), strict=True))


def interpret() -> dict[str, Any]:
    """The errors of the cases, in units of what is allowed in float32."""
    from plkernel.kernels.wkv import tensor

    cases = []
    tensor.VALUES, tensor.GROUP = 16, 2
    for layout, shape, chunk, precision, decay in CASES:
        tensor.CHUNK = chunk
        given = WKV.problem(layout, shape)
        if decay is not None:
            given["log_decay"].fill_(decay)
        cases.append(WKV.errors(run(given, precision), given))
    ranges = []
    for chunk in (16, 32, 64):
        tensor.CHUNK = chunk
        ranges.append(torch.equal(tensor.ranges_of(torch.device("cpu")), ranges_by_torch(chunk)))
    tensor.CHUNK = 16
    given = WKV.problem("varying", (1, 19, 1, 16, 16))
    default = run(given, None)
    named = run(given, "tf32x3")
    nan = dict(given, v=given["v"].clone())
    nan["v"][0, 17] = math.nan
    out = run(nan, "tf32")["out"]
    return {
        "cases": cases,
        "ranges": ranges,
        "default": all(torch.equal(default[name], named[name]) for name in default),
        "nan": [bool(out[0, :16].isnan().any()), bool(out[0, 17].isnan().all())],
        "refused": [
            refused(WKV.problem("varying", (1, 2, 1, 129, 2)), None),
            refused(WKV.problem("varying", (1, 2, 1, 2, 2)), "fp8"),
        ],
    }


def ranges_by_torch(chunk: int) -> torch.Tensor:
    """Which steps (columns) lie in the range of each row of a chunk, as 1 and 0: all before it; all
    after it; and for each level those from the start of its segment to a late row, and from an
    early row to the end of its segment.
    """
    row = torch.arange(chunk)[:, None]
    step = torch.arange(chunk)
    matrices = [row > step, row < step]
    for level in range(chunk.bit_length() - 1):
        late = (row >> level) % 2 == 1
        inside = (row >> level == step >> level) & (row != step)
        matrices.append(inside & ((row > step) == late))
    return torch.stack(matrices).to(torch.bfloat16)


def interpret_half() -> dict[str, Any]:
    """Errors beside float64, and what rounding the inputs alone changes. Inputs hold numbers of the
    half type in float32, so that nothing is rounded when it is stored.
    """
    results = {}
    for kind in DECAYS:
        for dtype in (torch.bfloat16, torch.float16):
            wide, rounded = half_problem(kind, dtype)
            exact = WKV.run("reference", {name: x.double() for name, x in rounded.items()})
            changed = WKV.run("reference", {name: x.double() for name, x in wide.items()})
            results[f"{kind} {str(dtype)[6:]} inputs"] = distances(changed, exact)
            for precision in ("bf16", "tf32", "bf16x3", "tf32x3"):
                found = distances(run(rounded, precision), exact)
                results[f"{kind} {str(dtype)[6:]} {precision}"] = found
    return results


def refused(given: Problem, precision: str | None) -> str:
    try:
        run(given, precision)
    except ValueError as error:
        return str(error)
    return "taken"


def in_interpreter(function: str) -> Any:
    """Return the result of a function of this file in a process where Triton interprets kernels."""
    return run_interpreted(__file__, function)


@pytest.fixture(scope="module")
def interpreted() -> Any:
    return in_interpreter("interpret")


@pytest.fixture(scope="module")
def halves() -> Any:
    return in_interpreter("interpret_half")


def test_interpreted_results_and_gradients_in_float32_equal_float64(interpreted: Any) -> None:
    """Every decay beside every other, odd lengths and sizes, one chunk and several."""
    wrong = {
        str(case): errors
        for case, errors in zip(CASES, interpreted["cases"], strict=True)
        if len(errors) != 8 or not all(error <= 1 for error in errors.values())
    }
    assert not wrong, wrong
    assert interpreted["default"], "float32 is multiplied in three tf32 products"


def test_sums_are_over_the_steps_of_each_range(interpreted: Any) -> None:
    assert interpreted["ranges"] == [True] * 3


def test_a_nan_does_not_reach_earlier_chunks(interpreted: Any) -> None:
    assert interpreted["nan"] == [False, True]


def test_what_is_not_supported_is_refused(interpreted: Any) -> None:
    long_keys, unknown = interpreted["refused"]
    assert long_keys == (
        "wkv: r must have a key size of at most 128 on tensor cores, got 129;"
        " backend='gpu' takes longer keys"
    )
    assert unknown == ("wkv: precision must be one of bf16, bf16x3, tf32, tf32x3, ieee, got 'fp8'")


@pytest.mark.slow
@pytest.mark.parametrize("kind", DECAYS)
def test_rounded_operands_cost_no_more_than_rounded_inputs(halves: Any, kind: str) -> None:
    """Under every kind of decay: three operands are rounded on the way to a result (a query, a key,
    and a state or an attention), as r, k and v are when they are stored. tf32 has three bits more
    than bfloat16 and as many as float16.
    """
    for dtype, precision, share in (
        ("bfloat16", "bf16", 1.0),
        ("bfloat16", "tf32", 1.25 / 8),
        ("float16", "tf32", 1.25),
    ):
        inputs = halves[f"{kind} {dtype} inputs"]
        found = halves[f"{kind} {dtype} {precision}"]
        for name in ("out", "grad_r", "grad_k", "grad_v", "grad_log_decay"):
            assert found[name] <= share * inputs[name], (dtype, precision, name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DECAYS)
def test_errors_follow_from_the_rounding_of_operands(halves: Any, kind: str) -> None:
    """Roundings are of random sign, and the mean square of one is below u**2 / 3: up to twelve in
    a row, those of the inputs among them, change a norm by at most 2 u.
    """
    for dtype, (precision, unit) in itertools.product(("bfloat16", "float16"), ROUNDED.items()):
        for name, error in halves[f"{kind} {dtype} {precision}"].items():
            assert error <= 2 * unit + LIMIT, (dtype, precision, name)
        for name, error in halves[f"{kind} {dtype} tf32x3"].items():
            assert error <= LIMIT, (dtype, name)


def compiled(
    name: str,
    chip: int,
    dtype: str,
    precision: str,
    sizes: tuple[int, int] = (64, 64),
    *,
    fixed: bool = False,
    back: bool = False,
) -> Any:
    """A kernel as the operator launches it."""
    from plkernel.kernels.wkv import tensor

    keys, block = tensor.tiles(*sizes)
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    types = dict.fromkeys(("T", "H", "chunks"), "i32")
    types |= dict.fromkeys(("r", "k", "v", "out", "grad_out", "grad_r", "grad_k"), f"*{dtype}")
    types |= dict.fromkeys(("log_decay", "u", "first", "ends", "grad_ends", "last"), "*fp32")
    stored = "*bf16" if precision == "bf16" else "*fp32"
    types |= {"starts": stored, "grad_starts": stored, "ranges": "*bf16"}
    types |= {"factors": "*fp64", "grad_u": "*fp64", "grad_w": "*fp64" if fixed else "*fp32"}
    constants = {
        "FIXED": fixed,
        "BACK": back,
        "REVERSE": back,
        "ROUNDED": precision == "bf16",
        "CHUNK": tensor.CHUNK,
        "LEVELS": tensor.CHUNK.bit_length() - 1,
        "KEYS": keys,
        "VALUES": block,
        "BLOCKS": -(-sizes[1] // block),
        "EXACT": tensor.exact(kind, precision),
        "PRECISION": precision,
        "PARTS": tensor.PARTS[torch.float32],
        "LANES": tensor.LANES,
        "GROUP": tensor.GROUP,
    }
    warps = tensor.WARPS if min(keys, block) >= tensor.NARROW else tensor.FEW_WARPS
    module = SimpleNamespace(
        OPTIONS={**tensor.OPTIONS, "num_warps": warps},
        __name__=tensor.__name__,
        **{name: getattr(tensor, name)},
    )
    return aot._compiled(module, name, chip, types, constants, dict(zip("KV", sizes, strict=True)))


@COMPILED
@pytest.mark.slow
def test_every_kernel_compiles_to_products_on_tensor_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels = (
        ("_ranges", False),
        ("_increments", False),
        ("_increments", True),
        ("_carry", True),
        ("_outputs", False),
        ("_outputs", True),
        ("_gradients", False),
    )
    variants = (
        ("bf16", "bf16", (64, 64), (80, 86, 90)),
        ("fp16", "tf32", (33, 65), (86, 90)),
        ("fp32", "tf32x3", (64, 64), (80, 86, 90)),
        ("bf16", "bf16", (128, 128), (90,)),
    )
    for dtype, precision, sizes, chips in variants:
        for chip, (name, back) in itertools.product(chips, kernels):
            label, _, shared, text, _ = compiled(name, chip, dtype, precision, sizes, back=back)
            assert shared <= aot.SHARED[chip], label
            instruction = "wgmma.mma_async" if chip == 90 else "mma.sync"
            assert name in ("_ranges", "_carry") or instruction in text, label


@COMPILED
@pytest.mark.slow
@pytest.mark.parametrize(
    ("chip", "dtype", "precision"),
    [(86, "bf16", "bf16"), (86, "fp32", "ieee"), (80, "fp32", "tf32x3")],
)
def test_the_longest_keys_fit_into_shared_memory(
    chip: int, dtype: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the kernels with the most tiles of all keys."""
    from plkernel.kernels.wkv import tensor

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    sizes = (tensor.MOST_KEYS, 128)
    for name, back in (("_increments", True), ("_outputs", False), ("_gradients", False)):
        label, _, shared, _, _ = compiled(name, chip, dtype, precision, sizes, back=back)
        assert shared <= aot.SHARED[chip], label


@ON_GPU
@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("varying", (2, 201, 3, 64, 64)),
        ("fixed", (2, 201, 3, 11, 5)),
        ("varying", (1, 2000, 2, 128, 48)),
        ("varying", (1, 64, 2, 64, 128)),
    ],
)
def test_a_gpu_equals_float64(layout: str, shape: Shape) -> None:
    given = WKV.problem(layout, shape)
    found = run({name: x.cuda() for name, x in given.items()}, "tf32x3")
    WKV.assert_equal(found, given, times=4)
    exact = WKV.run("reference", {name: x.double() for name, x in given.items()})
    for precision, unit in ROUNDED.items():
        found = run({name: x.cuda() for name, x in given.items()}, precision)
        for name, error in distances({one: x.cpu() for one, x in found.items()}, exact).items():
            assert error <= 2 * unit + LIMIT, (precision, name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    interpret_quickly()
    torch._C._set_deterministic_algorithms(
        True
    )  # torch.empty is filled with NaN: nothing may be left unwritten
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        print(json.dumps(globals()[sys.argv[1]]()))
