"""A training step of RWKV makes no subnormal numbers: taking them for zero changes no bit of it."""

from collections.abc import Iterator

import pytest
import torch

from plkernel.config.condition import resolve
from plkernel.config.schema import Arm, ModelSpec, TrainSpec
from plkernel.training.build import build, initialise_
from plkernel.training.objective import build_optimizer, next_byte_loss

STEPS = 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The flag is that of a thread: those of torch that are there already would not have it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_flush_denormal(False)
    torch.set_num_threads(before)


def trained(scale: float) -> list[torch.Tensor]:
    """Gradients of the last step, of a loss times `scale`."""
    spec, train = ModelSpec(kind="rwkv6", dim=32, layers=2, head_size=16), TrainSpec(recipe="blinkdl", steps=STEPS)
    model = initialise_(build(resolve(spec)), resolve(spec, Arm()), seed=0)
    optimizer = build_optimizer(model, train)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (scale * next_byte_loss(model, torch.randint(0, 256, (2, 65), generator=generator))).backward()
        optimizer.step()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("scale", "same"), [(1.0, True), (1e-36, False)])
def test_flushing_changes_bits_only_where_gradients_are_scaled_down_to_be_subnormal(scale: float, same: bool) -> None:
    plain = trained(scale)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    flushed = trained(scale)
    assert all(torch.equal(*pair) for pair in zip(plain, flushed, strict=True)) == same
