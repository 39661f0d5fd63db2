"""Derivatives of the operators beyond gradients, against plain loops: right, or refused with what would work."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, func

from plkernel.kernels.scan import scan
from plkernel.kernels.wkv import wkv

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # inside torch

LAYOUTS = ["fixed", "varying"]
STEPS = 4
TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": func.grad,
    "jacrev": func.jacrev,
    "jacfwd": func.jacfwd,
    "hessian": func.hessian,
    "reverse over forward": lambda f, argnums: func.jacrev(func.jacfwd(f, argnums), argnums),
    "reverse over reverse": lambda f, argnums: func.jacrev(func.jacrev(f, argnums), argnums),
}
ROUNDING = 1e-13  # some hundred float64 operations on numbers of size 1 to 10


def scan_problem(layout: str, steps: int = STEPS, channels: int = 3) -> list[Tensor]:
    random, shape = torch.Generator().manual_seed(1), (2, steps, channels)
    a = torch.rand(shape[2:] if layout == "fixed" else shape, generator=random)
    b, state = torch.randn(shape, generator=random), torch.randn(2, channels, generator=random)
    return [x.double() for x in (a, b, state)]


def wkv_problem(layout: str) -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    steps = (2, STEPS, 2, 3)
    r, k = torch.randn(2, *steps, generator=random)
    v, state = torch.randn(2, STEPS, 2, 2, generator=random), torch.randn(2, 2, 3, 2, generator=random)
    log_decay = -0.1 - torch.rand(steps[2:] if layout == "fixed" else steps, generator=random)
    return [x.double() for x in (r, k, v, log_decay, torch.randn(2, 3, generator=random), state)]


def loop(a: Tensor, b: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The scan in operations of torch alone."""
    steps = []
    for t in range(b.shape[1]):
        state = (a if a.dim() == 1 else a[:, t]) * state + b[:, t]
        steps.append(state)
    return torch.stack(steps, 1), state


def loss(operator: Callable[..., tuple[Tensor, Tensor]], *inputs: Tensor) -> Tensor:
    """A number that has second derivatives by every input."""
    out, last = operator(*inputs)
    return out.sin().sum() + last.cos().sum()


def assert_equal(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=ROUNDING, atol=10 * ROUNDING)


@pytest.mark.parametrize("backend", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_scan_has_forward_mode_and_second_derivatives(layout: str, backend: str) -> None:
    leaves = [x.requires_grad_() for x in scan_problem(layout, steps=3, channels=2)]
    fast = partial(scan, backend=backend)
    assert torch.autograd.gradcheck(fast, leaves, check_forward_ad=True, check_batched_forward_grad=True)
    assert torch.autograd.gradgradcheck(fast, leaves, check_fwd_over_rev=True)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_scan_is_transformed_as_the_plain_loop(layout: str, transform: str) -> None:
    inputs, every = scan_problem(layout), (0, 1, 2)
    actual, expected = (TRANSFORMS[transform](partial(loss, f), argnums=every)(*inputs) for f in (scan, loop))
    assert_equal(actual, expected)


@pytest.mark.parametrize("where", [(0, 0, 0), (None, 1, None), (-1, None, None), (None, None, 0)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_vmap_of_a_scan_and_of_its_gradient(layout: str, where: tuple[int | None, ...]) -> None:
    given = scan_problem(layout)
    inputs = [x if axis is None else torch.stack([x, x / 2, x / 3], axis) for x, axis in zip(given, where, strict=True)]
    assert_equal(torch.vmap(scan, where)(*inputs), torch.vmap(loop, where)(*inputs))
    actual, expected = (torch.vmap(func.grad(partial(loss, f), (0, 1, 2)), where)(*inputs) for f in (scan, loop))
    assert_equal(actual, expected)


def test_a_sequence_without_steps_passes_every_derivative_of_the_state_on() -> None:
    a, state = torch.rand(3), torch.randn(2, 3)

    def square(state: Tensor) -> Tensor:
        return scan(a, state.new_zeros(2, 0, 3), state)[1].square().sum()

    assert torch.equal(func.grad(square)(state), 2 * state)
    assert torch.equal(func.hessian(square)(state).reshape(6, 6), 2 * torch.eye(6))


def test_half_types_have_tangents_and_second_derivatives() -> None:
    a, b, state = scan_problem("varying")
    inputs = a.bfloat16(), b.bfloat16(), state.float()
    actual = func.hessian(partial(loss, scan), argnums=(0, 1, 2))(*inputs)
    expected = func.hessian(partial(loss, loop), argnums=(0, 1, 2))(*(x.double() for x in inputs))
    for row, exact in zip(actual, expected, strict=True):
        for found, true in zip(row, exact, strict=True):  # within ten roundings, for four steps and their sums
            assert (found.double() - true).abs().max() <= 10 * 2.0**-8 * true.abs().max()


def test_forward_mode_within_forward_mode_is_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"scan: no forward mode within forward mode; .* jacfwd of jacrev"):
        func.jacfwd(func.jacfwd(partial(loss, scan)))(*scan_problem("fixed"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_wkv_has_gradients_under_torch_func(layout: str) -> None:
    inputs, every = wkv_problem(layout), tuple(range(6))
    found, exact = (partial(loss, partial(wkv, backend=backend)) for backend in ("cpu", "reference"))
    assert_equal(func.jacrev(found, every)(*inputs), func.grad(exact, every)(*inputs))
    pairs = [torch.stack([x, x / 2]) for x in inputs]
    assert_equal(torch.vmap(func.grad(found, every))(*pairs), torch.vmap(func.grad(exact, every))(*pairs))


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_vmap_of_one_input_of_wkv(layout: str, place: int) -> None:
    inputs = wkv_problem(layout)
    where = tuple(-1 if i == place else None for i in range(6))
    inputs[place] = torch.stack([inputs[place], inputs[place] / 2, inputs[place] / 3], -1)
    found, exact = (torch.vmap(partial(wkv, backend=x), where)(*inputs) for x in ("cpu", "reference"))
    assert_equal(found, exact)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (func.jacfwd, "no forward-mode derivatives"),
        (func.hessian, "no forward-mode derivatives"),
        (lambda f: func.jacrev(func.jacrev(f)), "no second derivatives"),
    ],
)
def test_wkv_refuses_what_only_its_reference_has(transform: Callable[..., Any], message: str) -> None:
    inputs = wkv_problem("varying")
    with pytest.raises(NotImplementedError, match=f"wkv: backend 'cpu' has {message}; backend='reference' does"):
        transform(partial(loss, wkv))(*inputs)
    assert transform(partial(loss, partial(wkv, backend="reference")))(*inputs).abs().max() > 0


def test_wkv_refuses_double_backward_and_dual_numbers() -> None:
    leaves = [x.requires_grad_() for x in wkv_problem("varying")]
    (grad,) = torch.autograd.grad(loss(wkv, *leaves), leaves[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        grad.sum().backward()
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode"):
        wkv(torch.autograd.forward_ad.make_dual(leaves[0].detach(), leaves[0].detach()), *leaves[1:])
