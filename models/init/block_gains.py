"""One gain per block, tuned on a batch until every block passes gradients on as strongly as its skip connection does.

from plkernel.models.init import plan
from plkernel.models.init.block_gains import calibrate_

chosen = plan(model, "auto_init")
chosen.apply_(model, seed=0)
print(calibrate_(model, batch, target=chosen.calibration).gains)

A run whose scheme asks for it (`Rules.calibration`) does this by itself, on the windows of its first step.

The partial Jacobian norm of a map y = f(x) over N numbers is (1 / N) sum_ij (dy_i / dx_j)**2: 1 where gradients keep
their length. Here N counts batch, time and channels, so that it includes what a scan carries from byte to byte. The
block x + f(x) has about 1 + that of f, since the skip connection alone has 1 (more where f holds a positive diagonal,
as the D of an SSM): no weights but zero would bring it to 1, and what is tuned is f. Source: arXiv 2206.13568.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from plkernel.models.init.plan import OUTPUT, RoleTable, check_calibration, described, structure_of

ROUNDS = 60
Branch = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration, one number per block from the first.

    gains: what its output projections were multiplied by. before, branches: partial Jacobian norm of f, before the
    calibration and after it. blocks: that of x + f(x) now; their product is about that of all blocks together.
    """

    gains: tuple[float, ...]
    before: tuple[float, ...]
    branches: tuple[float, ...]
    blocks: tuple[float, ...]


def calibrate_(
    model: nn.Module,
    batch: Tensor,
    roles: RoleTable | None = None,
    *,
    target: float = 1.0,
    tolerance: float = 0.005,
    probes: int = 4,
    seed: int = 0,
) -> Calibration:
    """Multiply the output projections of every block in place until the partial Jacobian norm of f is `target`.

    From the first block to the last, each on what the ones before it give for `batch`, the model's input. `roles`: the
    role table, which our own models bring along. target: 1 doubles the squared length of gradients at every block;
    1 / L keeps their growth over L blocks near e. tolerance: relative, of the estimate; probes, seed: what it is made
    with, see `measured`. Both branches of a block carry the gain, so the norm grows as its second to fourth power: the
    third root of the ratio converges for either.

    Raises ValueError for a model without `blocks`, one that norms or scales their sum or what is added, or where no
    gain reaches the target: output projections of zero, or branches that do not pass through them.
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList) or not len(blocks):
        raise ValueError(f"calibration needs a model with a list of `blocks`, which {type(model).__name__} has not")
    check_calibration(structure_of(model), target)
    outputs = output_weights(model, roles)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    tuned = []
    try:
        for number, block in enumerate(blocks):
            branch, x = captured(model, block, batch)
            gain, (before, of_block) = 1.0, measured(branch, x, probes, seed)
            of_f, rounds = before, 0
            while not abs(of_f / target - 1) < tolerance:
                where = f"block {number} has a partial Jacobian norm of {of_f:g} without its skip connection"
                if not 0 < of_f < math.inf:
                    raise ValueError(
                        f"{where}, which no gain brings to {target:g}: apply a scheme whose output projections are not "
                        "zero first, such as auto_init"
                    )
                if rounds == ROUNDS:
                    raise ValueError(
                        f"{where} after {ROUNDS} rounds, not {target:g}: too little of it passes through its output "
                        "projections"
                    )
                factor = (target / of_f) ** (1 / 3)
                with torch.no_grad():
                    for weight in outputs.get(number, []):
                        weight.mul_(factor)
                gain, rounds = gain * factor, rounds + 1
                of_f, of_block = measured(branch, x, probes, seed)
            tuned.append((gain, before, of_f, of_block))
    finally:
        for module, mode in modes.items():
            module.training = mode
    return Calibration(*(tuple(values) for values in zip(*tuned, strict=True)))


def measured(branch: Branch, x: Tensor, probes: int, seed: int) -> tuple[float, float]:
    """The partial Jacobian norms of f and of h + f(h); `branch` maps x to (h, f(h)).

    Estimated by `probes` random signs through backward, the same for every call with `seed`: unbiased, with a relative
    error of about sqrt(2 / (probes r)), where r is how many of the directions carry the norm.
    """
    generator = torch.Generator().manual_seed(seed)
    h, y = branch(x.detach().requires_grad_())
    of_f, of_block = 0.0, 0.0
    for _ in range(probes):
        signs = (torch.randint(0, 2, y.shape, generator=generator) * 2 - 1).to(y)
        (back,) = torch.autograd.grad(y, h, signs, retain_graph=True)
        of_f += back.double().square().mean().item() / probes
        of_block += (back + signs).double().square().mean().item() / probes
    return of_f, of_block


@torch.no_grad()
def scale_(model: nn.Module, gains: Iterable[float]) -> None:
    """Multiply the output projections of block i by gain i, which repeats a calibration on an equal model."""
    outputs = output_weights(model)
    for number, gain in enumerate(gains):
        for weight in outputs.get(number, []):
            weight.mul_(gain)


def output_weights(model: nn.Module, roles: RoleTable | None = None) -> dict[int, list[Tensor]]:
    """The output projections of every layer, with the diagonal D of an SSM, which is one as well."""
    named = dict(model.named_parameters())
    weights: dict[int, list[Tensor]] = {}
    for parameter in described(model, roles):
        if parameter.layer is not None and (parameter.role in OUTPUT or parameter.name.endswith(".ssm.D")):
            weights.setdefault(parameter.layer, []).append(parameter.slice_of(named[parameter.name]))
    return weights


def captured(model: nn.Module, block: nn.Module, batch: Tensor) -> tuple[Branch, Tensor]:
    """The block as a function from its input to (h, what it adds to h), and the input it gets for this batch.

    h is the input, or what the norm of the embedding makes of it where the block holds that norm, as RWKV's first does.
    """
    calls: list[tuple[Any, Any]] = []
    hook = block.register_forward_pre_hook(lambda _, args, named: calls.append((args, named)), with_kwargs=True)
    with hook, torch.no_grad():
        model(batch)
    (x, *others), named = calls[0]
    norm = getattr(block, "ln0", None) or nn.Identity()

    def branch(given: Tensor) -> tuple[Tensor, Tensor]:
        h = [given]
        with norm.register_forward_hook(lambda _, args, out: h.append(out)):
            out = block(given, *others, **named)
        return h[-1], (out if isinstance(out, Tensor) else out[0]) - h[-1]

    return branch, x
