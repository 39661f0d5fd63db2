"""One gain for every block: the estimate against exact Jacobians, the target, what must fail."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plkernel.models.init import RoleTable, initialise_, tune_jacobians_
from plkernel.models.init.jacobians import captured, jacobian_norms
from plkernel.models.layers import Structure
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.ssm import SSM, SSMConfig

pytestmark = pytest.mark.usefixtures("one_thread")
L = 3
START = "sp_torch_default"
OUTPUTS = (
    "C_proj.weight",
    "down.weight",
    "ssm.D",
    "att.output.weight",
    "ffn.value.weight",
)


def ssm() -> SSM:
    model = SSM(SSMConfig(32, L, gain="ema"))
    for recurrence in model.recurrences():
        nn.init.constant_(recurrence.log_rate, -2.0)
    return initialise_(model, START, 0, normal_draws=True)


def finch() -> RWKV:
    model = RWKV(RWKVConfig(6, 32, L, 16, mix_rank=4, decay_rank=4, dropout=0.1))
    return initialise_(model, START, 0, normal_draws=True)


def goose() -> RWKV7:
    return initialise_(RWKV7(RWKV7Config(32, L, 16, 4, 4, 4, 4)), START, 0, normal_draws=True)


EACH = pytest.mark.parametrize("build", [ssm, finch, goose])


def batch(count: int = 4, time: int = 24) -> Tensor:
    return torch.randint(0, 256, (count, time), generator=torch.Generator().manual_seed(1))


def exact(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    """J of f(x) and of x + f(x), from the whole Jacobian of f, entry by entry."""
    jacobian = torch.autograd.functional.jacobian(function, x)
    assert isinstance(jacobian, Tensor)
    of_f = jacobian.double().reshape(x.numel(), x.numel())
    of_sum = of_f + torch.eye(x.numel())
    return (
        of_f.square().sum().item() / x.numel(),
        of_sum.square().sum().item() / x.numel(),
    )


def test_the_estimate_is_that_of_a_known_matrix() -> None:
    """f(h) = A h with h = 2 x: J is the mean square length of A's columns, whatever h is made of;
    that of h + f(h) has A + 1. More probes come nearer.
    """
    a = torch.randn(40, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x = torch.ones(40, dtype=torch.float64)

    def branch(x: Tensor) -> tuple[Tensor, Tensor]:
        h = 2 * x
        return h, a @ h

    expected = (
        a.square().sum().item() / 40,
        (a + torch.eye(40)).square().sum().item() / 40,
    )
    assert jacobian_norms(branch, x, 4000, 0) == pytest.approx(expected, rel=0.02)
    assert jacobian_norms(branch, x, 3, 5) == jacobian_norms(branch, x, 3, 5)
    assert jacobian_norms(branch, x, 3, 5) != jacobian_norms(branch, x, 3, 6)


@EACH
def test_every_branch_has_the_target_by_its_exact_jacobian(
    build: Callable[[], nn.Module],
) -> None:
    """Only the error of the estimate is left. RWKV's first block adds to the output of its ln0."""
    model = build().eval()
    text = batch(1, 8)
    tuned = tune_jacobians_(model, text, probes=32)
    assert tuned.branches == pytest.approx([1] * L, rel=0.005)
    assert max(abs(before - 1) for before in tuned.before) > 0.2
    for number, block in enumerate(model.blocks):
        branch, x = captured(model, block, text)
        h = branch(x)[0].detach()
        norm = getattr(block, "ln0", None)
        block.ln0 = None
        of_f, of_block = exact(lambda h, branch=branch: branch(h)[1], h)
        block.ln0 = norm
        assert of_f == pytest.approx(1, rel=0.08)
        assert of_block == pytest.approx(tuned.blocks[number], rel=0.08)


@EACH
def test_gains_multiply_the_output_projections_alone(build: Callable[[], nn.Module]) -> None:
    """Also: a second time changes nothing, and modes and gradients are as before."""
    model = build()
    before = dict(build().named_parameters())
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    tuned = tune_jacobians_(model, batch(), target=1 / L)
    for name, parameter in model.named_parameters():
        gain = tuned.gains[int(name.split(".")[1])] if name.endswith(OUTPUTS) else 1.0
        assert torch.allclose(parameter, before[name] * gain, rtol=1e-5), name
        assert parameter.requires_grad
        assert parameter.grad is None
    assert [module.training for module in model.modules()] == modes
    assert tuned.branches == pytest.approx([1 / L] * L, rel=0.005)
    assert len(set(tuned.gains)) == L
    again = partial(tune_jacobians_, model, batch(), target=1 / L)
    assert again().gains == (1.0,) * L
    assert again().before == again().branches
    assert again(probes=16, seed=1).gains == pytest.approx([1] * L, rel=0.1)


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        (Structure(placement="post"), "placement must be 'pre' to tune Jacobians, got 'post'"),
        (Structure(placement="sandwich"), "placement must be 'pre' .* got 'sandwich'"),
        (Structure(unit_scaled=True), "unit_scaled must be false to tune Jacobians"),
    ],
)
def test_blocks_of_another_form_are_refused(structure: Structure, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tune_jacobians_(SSM(SSMConfig(8, 1, structure=structure)), batch())


@pytest.mark.parametrize("target", [0.0, -1.0, float("inf"), float("nan")])
def test_the_target_is_a_positive_number(target: float) -> None:
    with pytest.raises(ValueError, match=f"target must be positive, got {target}"):
        tune_jacobians_(ssm(), batch(), target=target)


def test_outputs_of_zero_are_refused() -> None:
    zero = initialise_(RWKV(RWKVConfig(6, 32, L, 16)), "rwkv_blinkdl", 0)
    message = r"norm of block 0 must be above 0 .*, got 0; .* such as sp_torch_default"
    with pytest.raises(ValueError, match=message):
        tune_jacobians_(zero, batch())


class Residual(nn.Module):
    """x + W tanh(x) + around x: a share of the branch goes around its output projection."""

    def __init__(self, around: float) -> None:
        super().__init__()
        self.around = around
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(x.tanh()) + self.around * x


class Theirs(nn.Module):
    """A model of another library, whose blocks have another name and give a tensor."""

    def __init__(self, around: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, 16)
        self.body = nn.ModuleDict({"h": nn.ModuleList([Residual(around) for _ in range(2)])})

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        for block in self.body["h"]:
            x = block(x)
        return x


ROLES = RoleTable.from_dict(
    {"tokens.*": "embedding", "*.out.weight": "mixer_out", "*.out.bias": "bias"}
)


def test_a_model_of_another_library() -> None:
    """Blocks are found by the role table; a part that no gain reaches is refused."""
    model = initialise_(Theirs(), START, 0, ROLES)
    tuned = tune_jacobians_(model, batch(), ROLES)
    assert tuned.branches == pytest.approx([1, 1], rel=0.005)
    assert all(gain != 1 for gain in tuned.gains)
    with pytest.raises(ValueError, match="roles must be given for a Theirs"):
        tune_jacobians_(model, batch())
    message = (
        r"block 0 must reach 1 within 60 rounds, got .*; too little of it passes through its output"
    )
    with pytest.raises(ValueError, match=message):
        tune_jacobians_(Theirs(around=1.5), batch(), ROLES)
    with pytest.raises(ValueError, match="model must have numbered blocks, got Embedding, whose"):
        tune_jacobians_(nn.Embedding(4, 4), batch(), RoleTable.from_dict({"weight": "embedding"}))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_mode_of_the_caller_does_not_matter(mode: Callable[[], Any]) -> None:
    expected = ssm()
    tuned = tune_jacobians_(expected, batch())
    model = ssm()
    with mode():
        assert tune_jacobians_(model, batch()) == tuned  # the batch is made in that mode too
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other)


def test_signs_are_drawn_on_the_cpu_whatever_the_default_device() -> None:
    expected = tune_jacobians_(ssm(), batch())
    model = ssm()
    tokens = batch()
    with torch.device("meta"):
        assert tune_jacobians_(model, tokens) == expected


@pytest.mark.parametrize("shape", [(0, 16), (2, 0)])
def test_an_empty_batch_is_told_as_such(shape: tuple[int, int]) -> None:
    empty = torch.zeros(shape, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"batch must hold one token or more, got an empty one"):
        tune_jacobians_(ssm(), empty)


def test_what_holds_no_numbers_is_not_tuned() -> None:
    with torch.device("meta"):
        blank = SSM(SSMConfig(8, 1))
    with pytest.raises(ValueError, match=r"got embedding.weight on the meta device; call"):
        tune_jacobians_(blank, batch())
    with pytest.raises(ValueError, match="batch must hold numbers, got a tensor on the meta"):
        tune_jacobians_(ssm(), batch().to("meta"))
    with torch.inference_mode():
        fixed = ssm()
    with pytest.raises(ValueError, match=r"got embedding.weight of inference mode; build"):
        tune_jacobians_(fixed, batch())
