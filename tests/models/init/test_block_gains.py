"""One gain per block: the estimate against exact Jacobians, the target, and what must fail."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from plkernel.models.init import RoleTable, plan
from plkernel.models.init.block_gains import calibrate_, captured, scale_
from plkernel.models.layers import Structure
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.ssm import SSM, SSMConfig

L = 3


def ssm() -> SSM:
    model = SSM(SSMConfig(32, L, gain="ema"))
    for recurrence in model.recurrences():
        nn.init.constant_(recurrence.log_rate, -2.0)
    plan(model, "auto_init").apply_(model, seed=0)
    return model


def rwkv() -> RWKV:
    model = RWKV(RWKVConfig(6, 32, L, 16, mix_rank=4, decay_rank=4, dropout=0.1))
    plan(model, "auto_init").apply_(model, seed=0)
    return model


BUILDS: list[Callable[[], nn.Module]] = [ssm, rwkv]


def batch(count: int = 4, time: int = 24) -> Tensor:
    return torch.randint(0, 256, (count, time), generator=torch.Generator().manual_seed(1))


def exact(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    """Of f(x) and of x + f(x), from the whole Jacobian of f, entry by entry."""
    jacobian = torch.autograd.functional.jacobian(function, x)
    assert isinstance(jacobian, Tensor)
    square = jacobian.double().reshape(x.numel(), x.numel())
    of_f, of_sum = (matrix.square().sum().item() / x.numel() for matrix in (square, square + torch.eye(x.numel())))
    return of_f, of_sum


@pytest.mark.parametrize("build", BUILDS)
def test_every_branch_has_norm_one_by_its_exact_jacobian(build: Callable[[], nn.Module]) -> None:
    """What is left is the error of the estimate. RWKV's first block adds to what its ln0 gives."""
    model, text = build().eval(), batch(1, 8)
    done = calibrate_(model, text, probes=32)
    assert done.branches == pytest.approx([1] * L, rel=0.005)
    assert max(abs(before - 1) for before in done.before) > 0.2
    for number, block in enumerate(model.blocks):
        branch, x = captured(model, block, text)
        h, norm = branch(x)[0].detach(), getattr(block, "ln0", None)
        block.ln0 = None
        of_f, of_block = exact(lambda h, f=branch: f(h)[1], h)
        block.ln0 = norm
        assert of_f == pytest.approx(1, rel=0.08)
        assert of_block == pytest.approx(done.blocks[number], rel=0.08)


@pytest.mark.parametrize("build", BUILDS)
def test_gains_multiply_the_output_projections_alone(build: Callable[[], nn.Module]) -> None:
    """Also: a second calibration does nothing, and gains applied to an equal model repeat the first."""
    model, start, again = build(), dict(build().named_parameters()), build()
    modes = [module.training for module in model.modules()]
    done = calibrate_(model, batch(), target=1 / L)
    outputs = ("C_proj.weight", "down.weight", "ssm.D", "att.output.weight", "ffn.value.weight")
    scale_(again, done.gains)
    for name, parameter in model.named_parameters():
        gain = done.gains[int(name.split(".")[1])] if name.endswith(outputs) else 1.0
        assert torch.allclose(parameter, start[name] * gain, rtol=1e-5), name
        assert torch.allclose(parameter, again.get_parameter(name), rtol=1e-5), name
        assert parameter.requires_grad
        assert parameter.grad is None
    assert [module.training for module in model.modules()] == modes
    assert done.branches == pytest.approx([1 / L] * L, rel=0.005)
    assert len(set(done.gains)) == L
    assert calibrate_(model, batch(), target=1 / L).gains == (1.0,) * L
    assert calibrate_(model, batch(), target=1 / L, probes=16, seed=1).gains == pytest.approx([1] * L, rel=0.1)


def test_what_cannot_be_tuned_is_named() -> None:
    zero = RWKV(RWKVConfig(6, 32, L, 16))
    plan(zero, "rwkv_blinkdl").apply_(zero, seed=0)
    with pytest.raises(ValueError, match=r"block 0 has a partial Jacobian norm of 0 .* such as auto_init"):
        calibrate_(zero, batch())
    with pytest.raises(ValueError, match="target must be positive, got 0"):
        calibrate_(ssm(), batch(), target=0)
    with pytest.raises(ValueError, match="with a list of `blocks`, which Linear has not"):
        calibrate_(nn.Linear(2, 2), batch())
    with pytest.raises(ValueError, match="target must be positive, got 0"):
        plan(ssm(), "auto_init", target=0)
    for structure in (Structure(placement="post"), Structure(placement="sandwich"), Structure(unit_scaled=True)):
        model = SSM(SSMConfig(8, 1, structure=structure))
        for attempt in (lambda m=model: calibrate_(m, batch()), lambda m=model: plan(m, "auto_init")):
            with pytest.raises(ValueError, match=r"needs blocks x \+ f\(x\), got .* more: use 'pre'"):
                attempt()


class Around(nn.Module):
    """Blocks of another library that give a tensor; a share of each goes around its output projection."""

    def __init__(self, around: float, deep: bool = True) -> None:
        super().__init__()
        self.around = around
        if deep:
            self.tokens = nn.Embedding(256, 16)
            self.blocks = nn.ModuleList([Around(around, deep=False) for _ in range(2)])
        else:
            self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "blocks"):
            return x + self.out(x.tanh()) + self.around * x  # type: ignore[no-any-return]
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_a_model_of_another_library() -> None:
    """Roles from a table; a part that no gain reaches is refused."""
    roles = RoleTable.from_dict({"tokens.*": "embedding", "*.out.weight": "mixer_out", "*.out.bias": "bias"})
    model = Around(0.0)
    plan(model, "auto_init", roles).apply_(model, seed=0)
    assert calibrate_(model, batch(), roles).branches == pytest.approx([1, 1], rel=0.005)
    with pytest.raises(ValueError, match="roles must be given for a Around"):
        calibrate_(model, batch())
    with pytest.raises(ValueError, match=r"block 0 .* too little of it passes through its output projections"):
        calibrate_(Around(1.5), batch(), roles)
