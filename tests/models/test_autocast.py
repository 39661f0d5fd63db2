"""Models in half precision under autocast as a GPU has it, whose norms and sums are in float32.

CPU autocast runs fewer functions in float32 than that of CUDA: the fixture adds the others.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_gated_delta import built
from test_models import EVERY, KINDS, RWKVS, SSMS, Model, build, empty, some_bytes
from torch import Tensor
from torch.utils._pytree import tree_map

from plkernel.models.gated_delta import GatedDelta, GatedDeltaConfig
from plkernel.models.layers import Structure

FLOAT32_ON_CUDA = (
    "cumprod",
    "cumsum",
    "exp",
    "expm1",
    "group_norm",
    "layer_norm",
    "linalg_vector_norm",
    "log",
    "log1p",
    "log_softmax.int",
    "logsumexp",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "pow.Tensor_Scalar",
    "reciprocal",
    "rms_norm",
    "rsqrt",
    "softmax.int",
    "softplus",
    "sum",
    "sum.dim_IntList",
)
"""Functions that autocast runs in float32 on CUDA and not on a CPU."""
MODELS: list[Any] = [
    *map(build, SSMS),
    *map(build, RWKVS),
    built(),
    built(config=GatedDeltaConfig(dim=16, layers=2, heads=2, head_size=8, lower_bound=-5.0)),
]
NAMES = [f"{place} {type(model).__name__}" for place, model in enumerate(MODELS)]
EACH = pytest.mark.parametrize("model", MODELS, ids=NAMES)


def widened(x: Any) -> Any:
    """A tensor in half precision in float32; anything else as it is."""
    is_half = isinstance(x, Tensor) and x.dtype in (torch.bfloat16, torch.float16)
    return x.float() if is_half else x


def in_float32(name: str) -> Any:
    """The function of torch of this name, with its tensors in float32, beneath autocast."""
    packet, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def wide(*arguments: Any, **options: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return function(*tree_map(widened, arguments), **tree_map(widened, options))

    return wide


@pytest.fixture(scope="module", autouse=True)
def autocast_of_cuda() -> Iterator[None]:
    """CPU autocast that runs in float32 what that of CUDA does."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name in FLOAT32_ON_CUDA:
            library.impl(name, in_float32(name), "AutocastCPU")
        yield


def check_step(model: Model | GatedDelta, weights: torch.dtype, dtype: torch.dtype) -> None:
    """A step of training on a text, and on a part with its state, has finite gradients."""
    model.to(weights)
    inputs = some_bytes(2, 9)
    with torch.autocast("cpu", dtype):
        whole = model(inputs)
        _, state = model(inputs[:, :5], model.initial_state(2))
        rest, _ = model(inputs[:, 5:], state)
    assert whole.dtype == dtype
    model.zero_grad()
    (whole.float().logsumexp(-1).sum() + rest.float().logsumexp(-1).sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("name", FLOAT32_ON_CUDA)
def test_cuda_has_these_functions_of_its_own(name: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA")


def test_norms_and_sums_are_in_float32() -> None:
    """So that the tests below can fail."""
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = (x.rsqrt(), x.sum(-1), torch.nn.functional.layer_norm(x, (3,)), x @ x.T)
    assert [one.dtype for one in found] == [*3 * [torch.float32], torch.bfloat16]


@EACH
@pytest.mark.parametrize(
    ("weights", "dtype"),
    [
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.bfloat16, torch.bfloat16),
    ],
    ids=["bfloat16", "float16", "bfloat16 weights"],
)
def test_every_model_trains(
    model: Model | GatedDelta, weights: torch.dtype, dtype: torch.dtype
) -> None:
    check_step(model, weights, dtype)


@EVERY
@pytest.mark.parametrize("kind", KINDS)
def test_every_structure_trains(kind: str, structure: Structure) -> None:
    if kind == "rwkv7" and structure.unit_scaled:
        return
    model = build(empty(kind, structure))
    for weights in (torch.float32, torch.bfloat16):
        check_step(model, weights, torch.bfloat16)
