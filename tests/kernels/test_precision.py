"""`precision=` of the public operators: which form it takes, where it works, and that every way to
an operator takes it.
"""

import json
import os
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from interpreting import interpret_quickly
from operators import WKV, WKV7, Operator
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import plkernel
from plkernel.kernels import operators, wkv, wkv7
from plkernel.kernels.operators import EXACT, TensorCores

HEADS = pytest.mark.parametrize("one", [WKV, WKV7], ids=lambda one: one.name)
SHAPE = (1, 19, 1, 16, 16)
NAMED = "bf16"
"""Another one than the kernels take by themselves for float32."""
CORES = {"wkv": wkv._CORES, "wkv7": wkv7._CORES}


def keys(size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty((1, 1, 1, size), dtype=dtype, device="meta")


@HEADS
def test_none_takes_what_the_constant_says_for_keys_that_were_tried(one: Operator) -> None:
    cores = CORES[one.name]
    for dtype, expected in (
        (torch.bfloat16, "tensor:bf16"),
        (torch.float16, "gpu"),
        (torch.float32, "gpu"),
    ):
        assert cores.form(one.name, "gpu", None, keys(64, dtype)) == expected
    default = MappingProxyType({torch.bfloat16: "bf16", torch.float32: EXACT})
    decided = TensorCores(cores.precisions, default, cores.most_keys, 96)
    form = partial(decided.form, one.name)
    assert form("gpu", None, keys(64)) == "tensor:bf16"
    assert form("gpu", None, keys(64, torch.float32)) == "gpu"
    assert form("gpu", None, keys(96)) == "tensor:bf16"
    assert form("gpu", None, keys(97)) == "gpu", "longer than what was tried"
    assert form("gpu", EXACT, keys(64)) == "gpu"
    assert form("gpu", "ieee", keys(128)) == "tensor:ieee"
    for backend in ("cpu", "reference"):
        assert form(backend, None, keys(64)) == backend
        assert form(backend, EXACT, keys(64)) == backend
    with pytest.raises(
        ValueError,
        match=r"key size of at most 128 with precision 'bf16', got 129; 'exact'",
    ):
        form("gpu", "bf16", keys(129))


@HEADS
@pytest.mark.parametrize(
    ("major", "form"), [(7, "gpu"), (8, "tensor:bf16"), (9, "tensor:bf16"), (None, "tensor:bf16")]
)
def test_none_is_exact_on_gpus_without_products_of_bfloat16(
    one: Operator, major: int | None, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a precision is given. Where none can be asked, as under fake tensors, it has them."""
    properties = SimpleNamespace(major=major, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: major is not None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    main: Any = SimpleNamespace(
        shape=(1, 1, 1, 64), dtype=torch.bfloat16, device=torch.device("cuda", 0)
    )
    cores = CORES[one.name]
    assert cores.form(one.name, "gpu", None, main) == form
    assert cores.form(one.name, "gpu", "bf16", main) == "tensor:bf16"


@pytest.mark.parametrize(
    ("chip", "precision", "size", "is_refused"),
    [
        ((8, 6), "tf32x3", 65, True),
        ((8, 6), "tf32x3", 64, False),
        ((8, 6), "bf16", 128, False),
        ((8, 0), "tf32x3", 128, False),
        ((9, 0), "tf32x3", 128, False),
    ],
)
def test_long_keys_are_refused_where_they_do_not_fit_into_shared_memory(
    chip: tuple[int, int],
    precision: str,
    size: int,
    is_refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    properties = SimpleNamespace(major=chip[0], minor=chip[1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    main: Any = SimpleNamespace(
        shape=(1, 1, 1, size), dtype=torch.float32, device=torch.device("cuda", 0)
    )
    form = partial(CORES["wkv"].form, "wkv", "gpu", precision, main)
    if is_refused:
        with pytest.raises(ValueError, match=r"at most 64 with precision 'tf32x3' on this GPU"):
            form()
    else:
        assert form() == f"tensor:{precision}"


@HEADS
def test_names_and_limits_are_those_of_the_kernels(one: Operator) -> None:
    pytest.importorskip("triton")
    tensor = import_module(f"plkernel.kernels.{one.name}.tensor")
    assert CORES[one.name].precisions == tuple(tensor.PRECISIONS)
    assert CORES[one.name].most_keys == tensor.MOST_KEYS


@HEADS
@pytest.mark.parametrize("backend", [None, "cpu", "reference"])
def test_a_cpu_has_the_exact_form_alone(one: Operator, backend: str | None) -> None:
    given = one.problem("varying", one.small)
    inputs = [given[name] for name in one.inputs]
    plain = one.call(*inputs, backend=backend)
    exact = one.call(*inputs, backend=backend, precision="exact")
    assert all(map(torch.equal, plain, exact))
    with pytest.raises(
        ValueError, match=r"precision must be 'exact' or None with backend '.*, got 'bf16'"
    ):
        one.call(*inputs, backend=backend, precision="bf16")
    with pytest.raises(ValueError, match=r"precision must be one of exact, .*, got 'fp8'"):
        one.call(*inputs, backend=backend, precision="fp8")
    with pytest.raises(ValueError, match="works with backend 'gpu'"):  # remembered as another
        one.call(*inputs, backend=backend, precision="bf16")


@pytest.mark.parametrize("one", ["wkv", pytest.param("wkv7", marks=pytest.mark.slow)])
def test_every_way_to_an_operator_takes_the_precision(one: str) -> None:
    pytest.importorskip("triton")
    here = Path(__file__)
    paths = os.pathsep.join([str(Path(plkernel.__file__).parents[1]), str(here.parent)])
    environment = os.environ | {"PYTHONPATH": paths, "TRITON_INTERPRET": "1"}
    child = subprocess.run(
        [sys.executable, here, one], env=environment, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr[-4000:]
    found = json.loads(child.stdout)
    ways = ("plain", "watched", "compiled")
    assert [found[way] for way in ways] == [True] * 3, "bit for bit those of the kernels"
    assert found["differ"], "those of the exact kernels are others"
    assert found["fake"] == [[1, 19, 1, 16], [1, 1, 16, 16]]
    assert found["opcheck"]
    assert "key size of at most 128" in found["refused"]


class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def interpret(one: Operator) -> dict[str, Any]:
    """Results and gradients by every way, in a process where Triton interprets kernels."""
    tensor = import_module(f"plkernel.kernels.{one.name}.tensor")
    given = one.problem("varying", SHAPE)
    inputs = [given[name] for name in one.inputs]
    incoming = (given["grad_out"], given["grad_last"])
    direct = [
        *tensor.forward(*inputs, precision=NAMED),
        *tensor.backward(*inputs, *incoming, precision=NAMED),
    ]

    def way(function: Any) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in inputs]
        results = function(*leaves)
        return [*results, *torch.autograd.grad(results, leaves, incoming)]

    call = partial(one.call, backend="gpu", precision=NAMED)
    plain = way(call)
    with Watch():
        watched = way(call)
    compiled = way(torch.compile(call, backend="aot_eager", fullgraph=True))
    exact = way(partial(one.call, backend="gpu"))
    with FakeTensorMode() as mode:
        fake = call(*[mode.from_tensor(x) for x in inputs])
    leaves = [x.clone().requires_grad_() for x in inputs]
    operator = getattr(torch.ops.plkernel, one.name).default
    checks = torch.library.opcheck(
        operator,
        (*leaves, f"tensor:{NAMED}"),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    try:
        long = one.problem("varying", (1, 2, 1, 129, 2))
        one.call(*[long[name] for name in one.inputs], backend="gpu", precision="bf16")
        refused = "taken"
    except ValueError as error:
        refused = str(error)

    def same(found: list[Tensor]) -> bool:
        return all(map(torch.equal, found, direct))

    return {
        "plain": same(plain),
        "watched": same(watched),
        "compiled": same(compiled),
        "differ": not same(exact),
        "fake": [list(x.shape) for x in fake],
        "opcheck": set(checks.values()) == {"SUCCESS"},
        "refused": refused,
    }


if __name__ == "__main__":
    assert operators._HAS_TRITON
    interpret_quickly()
    print(json.dumps(interpret({"wkv": WKV, "wkv7": WKV7}[sys.argv[1]])))
