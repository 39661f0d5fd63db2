"""AutoInit: one gain per block, tuned on a batch until gradients pass every block as they should.

from plkernel.models.init import initialise_, tune_jacobians_

initialise_(model, "sp_torch_default", seed=0, normal_draws=True)    # or any other scheme
print(tune_jacobians_(model, batch).gains)

The partial Jacobian norm of a map y = f(x) of N numbers to N is

    J = (1 / N) sum_ij (dy_i / dx_j)**2,

1 where gradients keep their length. Here N counts batch, time and channels, so that J includes what
a recurrence carries from step to step. The block x + f(x) has about 1 + J of f, since the skip
connection alone has 1 (more where f holds a positive diagonal, as the D of an SSM): no weights but
zero would bring it to 1, and what is tuned is J of f.
Source: AutoInit, arXiv 2206.13568; partial Jacobians, arXiv 2111.12143.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from plkernel.models.init.plan import check_holds_numbers, structure_of
from plkernel.models.init.roles import OUTPUT, Parameter, RoleTable, block_of, laid_out
from plkernel.models.layers import Structure, evaluating

ROUNDS = 60
"""After so many steps a block that has not reached the target is refused; most need ten."""
Branch = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From the input x of a block to (h, f(h)): the block gives h + f(h), and h is x, normed or not."""


@dataclass(frozen=True)
class Tuned:
    """Values that were tuned, one number per block from the first.

    gains     what its output projections were multiplied by
    before    J of f before
    branches  J of f after
    blocks    J of x + f(x) after; their product is about that of all blocks together
    """

    gains: tuple[float, ...]
    before: tuple[float, ...]
    branches: tuple[float, ...]
    blocks: tuple[float, ...]


def tune_jacobians_(
    model: nn.Module,
    batch: Tensor,
    roles: RoleTable | None = None,
    *,
    target: float = 1.0,
    tolerance: float = 0.005,
    probes: int = 4,
    seed: int = 0,
) -> Tuned:
    """Multiply the output projections of every block x + f(x) in place until J of f is `target`.

    From the first block to the last, each on what the ones before it give for `batch`.

    batch      an input of the model
    roles      the role table, which our own models bring along. The first number in a name says
               which block a parameter belongs to, and the module of that name must map a tensor to
               one of the same shape, alone or first in a tuple
    target     1 doubles the squared length of gradients at every block; 1 / L keeps their growth
               over L blocks near e
    tolerance  relative, of the estimate
    probes     random signs that it is made from, see `jacobian_norms`
    seed       of the signs

    Raises ValueError for a model on the meta device or of inference mode, an empty batch, a model
    without blocks, one of ours that norms or scales the sum or what is added, and where no gain
    reaches the target: output projections of zero, or branches that do not pass through them.
    """
    if not (math.isfinite(target) and target > 0):
        raise ValueError(f"target must be positive, got {target}")
    check_holds_numbers(model)
    check_form(structure_of(model))
    parameters, _ = laid_out(model, roles, heads=None)
    paths = block_paths(parameters)
    if not paths:
        raise ValueError(
            f"model must have numbered blocks, got {type(model).__name__}, whose parameters have"
            " no number in their names"
        )
    _check_batch(batch)
    tuned = []
    # Gradients are needed whatever mode the caller is in.
    with torch.inference_mode(False), torch.enable_grad(), evaluating(model):
        if batch.is_inference():
            batch = batch.clone()
        for number, path in sorted(paths.items()):
            branch, x = captured(model, model.get_submodule(path), batch)
            measure = partial(jacobian_norms, branch, x, probes, seed)
            weights = output_weights(model, parameters, number)
            tuned.append(tune_block_(weights, measure, target, tolerance, number))
    gains, before, branches, blocks = zip(*tuned, strict=True)
    return Tuned(gains, before, branches, blocks)


def _check_batch(batch: Tensor) -> None:
    """ValueError for a batch that no Jacobian can be measured on."""
    if not batch.numel():
        raise ValueError(
            f"batch must hold one token or more, got an empty one, of shape {tuple(batch.shape)}"
        )
    if batch.is_meta:
        raise ValueError("batch must hold numbers, got a tensor on the meta device")


def tune_block_(
    weights: list[Tensor],
    measure: Callable[[], tuple[float, float]],
    target: float,
    tolerance: float,
    number: int,
) -> tuple[float, float, float, float]:
    """Multiply the weights of block `number` until J of f is the target.

    Returns gain, J of f before and after, and J of the block after.
    """
    gain = 1.0
    before, of_block = measure()
    of_f = before
    for _ in range(ROUNDS):
        if abs(of_f / target - 1) < tolerance:
            return gain, before, of_f, of_block
        factor = step_towards(target, of_f, number)
        scale_(weights, factor)
        gain *= factor
        of_f, of_block = measure()
    raise ValueError(
        f"partial Jacobian norm of block {number} must reach {target:g} within {ROUNDS} rounds, got"
        f" {of_f:g}; too little of it passes through its output projections"
    )


def check_form(structure: Structure) -> None:
    """ValueError unless blocks are x + f(x), with an f that output projections scale."""
    if structure.placement != "pre":
        raise ValueError(
            f"placement must be 'pre' to tune Jacobians, got {structure.placement!r}, whose norms"
            " undo a gain"
        )
    if structure.unit_scaled:
        raise ValueError("unit_scaled must be false to tune Jacobians, got true")


def step_towards(target: float, now: float, number: int) -> float:
    """The factor of the output projections that brings J nearer to `target`.

    Both branches of a block carry the gain, so J grows as its second to fourth power: the third
    root of the ratio converges for either. ValueError where J is zero or not finite.
    """
    if not 0 < now < math.inf:
        raise ValueError(
            f"partial Jacobian norm of block {number} must be above 0 and finite, so that a gain"
            f" brings it to {target:g}, got {now:g}; apply a scheme whose output projections are"
            " not zero first, such as sp_torch_default"
        )
    return float((target / now) ** (1 / 3))


def jacobian_norms(branch: Branch, x: Tensor, probes: int, seed: int) -> tuple[float, float]:
    """J of f and of h + f(h); `branch` maps x to (h, f(h)).

    Estimated by `probes` random signs through backward, the same for every call with `seed`:
    unbiased, with a relative error of about sqrt(2 / (probes r)), where r is how many of the
    directions carry the norm.
    """
    generator = torch.Generator().manual_seed(seed)
    h, y = branch(x.detach().requires_grad_())
    of_f = 0.0
    of_block = 0.0
    for _ in range(probes):
        bits = torch.randint(0, 2, y.shape, generator=generator, device="cpu")
        signs = (bits * 2 - 1).to(y)
        (back,) = torch.autograd.grad(y, h, signs, retain_graph=True)
        of_f += back.double().square().mean().item() / probes
        of_block += (back + signs).double().square().mean().item() / probes
    return of_f, of_block


def captured(model: nn.Module, block: nn.Module, batch: Tensor) -> tuple[Branch, Tensor]:
    """The block as a function from its input to (h, what it adds to h), and its input for `batch`.

    h is the input, or what the norm of the embedding makes of it where the block holds that norm,
    as RWKV's first does.
    """
    calls: list[tuple[Any, Any]] = []
    hook = block.register_forward_pre_hook(
        lambda _, args, named: calls.append((args, named)), with_kwargs=True
    )
    with hook, torch.no_grad():
        model(batch)
    (x, *others), named = calls[0]
    norm = getattr(block, "ln0", None) or nn.Identity()

    def branch(given: Tensor) -> tuple[Tensor, Tensor]:
        stages = [given]  # and what ln0 makes of it, where there is one
        with norm.register_forward_hook(lambda _, args, out: stages.append(out)):
            out = block(given, *others, **named)
        whole = out if isinstance(out, Tensor) else out[0]
        h = stages[-1]
        return h, whole - h

    return branch, x


def block_paths(parameters: list[Parameter]) -> dict[int, str]:
    """The names of the blocks by their numbers."""
    found = (block_of(one.name) for one in parameters)
    return {block[1]: block[0] for block in found if block is not None}


def output_weights(model: nn.Module, parameters: list[Parameter], number: int) -> list[Tensor]:
    """The output projections of one block, with the diagonal D of an SSM, which is one as well."""
    weights = []
    for one in parameters:
        is_output = one.role in OUTPUT or one.name.endswith(".ssm.D")
        if one.layer == number and is_output:
            weights.append(one.slice_of(model.get_parameter(one.name)))
    return weights


@torch.no_grad()
def scale_(weights: list[Tensor], factor: float) -> None:
    """Multiply weights, or slices of them, in place."""
    for weight in weights:
        weight.mul_(factor)
