"""The operators scan, wkv and wkv7 beside other ways to compute them, forward plus backward through all inputs.

Letters: B batch, T time, H heads, N key and value size, M chunks of C steps.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plkernel.benchmarks import contest
from plkernel.benchmarks.contest import OURS, Call, Contender

SHAPES: dict[str, dict[str, tuple[tuple[int, ...], ...]]] = {
    "scan": {
        "cpu": ((8, 1024, 256), (4, 4096, 256), (1, 65536, 64)),
        "cuda": ((8, 1024, 256), (8, 4096, 1024), (8, 4096, 1536), (32, 4096, 1024), (1, 65536, 1024)),
    },
    "wkv": {"cpu": ((2, 1024, 4, 64), (2, 256, 4, 64)), "cuda": ((2, 1024, 4, 64), (8, 1024, 8, 64))},
    "wkv7": {"cpu": ((2, 1024, 4, 64),), "cuda": ((2, 1024, 4, 64), (8, 1024, 8, 64))},
}
LIMITS = {"scan": {"cpu": 1e-5, "cuda": 1e-3}, "wkv": {"cpu": 2e-5, "cuda": 1e-4}, "wkv7": {"cpu": 2e-5, "cuda": 1e-4}}
PEER_LIMITS = {"scan": 1e-2, "wkv": 1e-3, "wkv7": 1e-3}  # peers sum the gradient of a fixed decay in float32
STRONG = (1, 128, 2, 16)
CHUNK = 32
PACKAGES = ("mambapy", "accelerated-scan", "flash-linear-attention")
Layout = Callable[[Tensor], Tensor]


class Problem(NamedTuple):
    """Inputs of an operator, gradients of a loss by its results, and the first axes (B,T) of tensors over time."""

    inputs: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]
    time: tuple[int, ...]

    def mapped(self, function: Layout) -> "Problem":
        """Apply a function to every tensor."""
        return Problem(tuple(map(function, self.inputs)), tuple(map(function, self.gradients)), self.time)


def problem(name: str, shape: tuple[int, ...], device: str = "cpu", strong: bool = False) -> Problem:
    """Draw the inputs of an operator from a fixed seed; half-lives from 1 to 2048 steps.

    In wkv and wkv7 the rate of each step is off by a factor exp(normal / 2). strong: ln w from -exp(-8) to -exp(2.5)
    instead, one in sixteen -50.
    """
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator)
    rates = math.log(2) / torch.logspace(0, 11, shape[-1], base=2.0)
    if name == "scan":
        inputs: tuple[Tensor, ...] = (torch.exp(-rates), draw(shape))
        return Problem(inputs, (draw(shape),), shape[:2]).mapped(lambda x: x.to(device))
    batch, _, heads, size = shape
    r, k, v, noise, grad_out = (draw(shape) for _ in range(5))
    state, grad_last = (draw(batch, heads, size, size) for _ in range(2))
    uniform = torch.special.ndtr(noise)
    strongly = torch.where(uniform < 1 / 16, -50.0, -torch.exp(10.5 * uniform - 8))
    log_decay = strongly if strong else -rates * torch.exp(noise / 2)
    if name == "wkv":
        inputs = (r, k, v, log_decay, draw(heads, size), state)
    else:
        kappa = torch.nn.functional.normalize(draw(shape), dim=-1)
        rate = torch.rand(shape, generator=generator)
        inputs = (r, log_decay, k, v, -kappa, kappa * rate, state)
    return Problem(inputs, (grad_out, grad_last), shape[:2]).mapped(lambda x: x.to(device))


def step(function: Callable[..., Any], given: Problem, to: Layout = lambda x: x, back: Layout = lambda x: x) -> Call:
    """Return a call of `function` with the gradients of its inputs; its result is (results.., gradients..).

    Tensors over time are laid out by `to` before the call, which is not timed, and `back` views the results as before.
    """
    tensors = (*given.gradients, *given.inputs)
    timed = [x.shape[:2] == given.time for x in tensors]
    laid = [to(x).contiguous() if over else x for x, over in zip(tensors, timed, strict=True)]
    gradients = laid[: len(given.gradients)]
    leaves = [x.detach().requires_grad_() for x in laid[len(gradients) :]]

    def call() -> tuple[Tensor, ...]:
        results = function(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        found = (*(x.detach() for x in results), *torch.autograd.grad(results, leaves, gradients))
        return tuple(back(x) if over else x for x, over in zip(found, timed, strict=True))

    return call


def operator(name: str) -> Callable[..., Any]:
    """Return the operator of this package; of scan without the last state."""
    function = getattr(import_module(f"plkernel.kernels.{name}"), name)
    return (lambda a, b, **options: function(a, b, **options)[0]) if name == "scan" else function


def truth(name: str, given: Problem) -> tuple[Tensor, ...]:
    """Return results and gradients of the loop in float64."""
    return step(partial(operator(name), backend="reference"), given.mapped(lambda x: x.double().cpu()))()


def loop_scan(a: Tensor, b: Tensor) -> Tensor:
    """h_t = a h_{t-1} + b_t under autograd; unbind and stack are the cheapest way to slice and to join."""
    carry = torch.zeros_like(b[0])
    return torch.stack([carry := a * carry + b_t for b_t in b.unbind(0)])


def below(x: Tensor, y: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Return sum_n x_t y_s exp(before_t - after_s) for steps s < t of a chunk, else 0; x, y (..,C,N), result (..,C,C).

    The decay from the early half to the late half is factored around the step between, so that no exponent is above 0.
    """
    half = x.shape[-2] // 2
    if not half:
        return x.new_zeros((*x.shape[:-1], 1))
    middle = after[..., half - 1 : half, :]
    late = x[..., half:, :] * (before[..., half:, :] - middle).exp()
    early = y[..., :half, :] * (middle - after[..., :half, :]).exp()
    first, second = below(*(z.unflatten(-2, (2, half)) for z in (x, y, before, after))).unbind(-3)
    return torch.cat([torch.cat([first, torch.zeros_like(first)], -1), torch.cat([late @ early.mT, second], -1)], -2)


def chunks_wkv(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """RWKV-6 in chunks (M,B,H,C,N): products within a chunk, and a state carried from chunk to chunk."""
    after = log_decay.cumsum(3)
    before, through = after - log_decay, after[..., -1:, :]
    weights = below(r, k, before, after) + torch.diag_embed((r * u[:, None] * k).sum(-1))
    states = []
    for decay, written in zip(through.exp().mT, (k * (through - after).exp()).mT @ v, strict=True):
        states.append(state)
        state = torch.addcmul(written, decay, state)
    return weights @ v + (r * before.exp()) @ torch.stack(states), state


def chunks_wkv7(
    r: Tensor, log_decay: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """RWKV-7 in chunks; what the steps of a chunk read of the state solves a triangular system."""
    after = log_decay.cumsum(3)
    before, through = after - log_decay, after[..., -1:, :]
    decayed, size = r * log_decay.exp(), r.shape[-2]
    seen_k, seen_b = (below(decayed, x, before, after) + torch.diag_embed((r * x).sum(-1)) for x in (k, b))
    read_k, read_b = (below(a, x, before, after) for x in (k, b))
    into, out_of = before.exp(), (through - after).exp()
    right = torch.cat([a * into, read_k @ v], -1)
    solved = torch.linalg.solve_triangular(torch.eye(size, device=r.device) - read_b, right, upper=False)
    chunks = (*solved.split((r.shape[-1], v.shape[-1]), -1), v.mT @ (k * out_of), b * out_of, through.exp())
    states, read = [], []
    for of_state, of_values, written, again, decay in zip(*chunks, strict=True):
        states.append(state)
        read.append(of_values + of_state @ state.mT)
        state = torch.addcmul(written + read[-1].mT @ again, state, decay)
    return seen_k @ v + seen_b @ torch.stack(read) + (decayed * into) @ torch.stack(states).mT, state


def peer_scan(package: str, a: Tensor, b: Tensor) -> Tensor:
    """The scan of another package, which has no fixed decay; mambapy has (B,T,1,D), accelerated_scan (B,D,T)."""
    if package == "mambapy":
        return import_module("mambapy.pscan").pscan(a.expand(b.shape).unsqueeze(2), b.unsqueeze(2)).squeeze(2)
    return import_module("accelerated_scan.triton").scan(a[:, None].expand(b.shape).contiguous(), b)


def fla_heads(name: str, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """wkv or wkv7 by flash-linear-attention's kernel for a GPU, whose state of RWKV-7 is transposed."""
    module = {"wkv": "rwkv6", "wkv7": "rwkv7"}[name]
    turn: Layout = (lambda x: x.mT) if name == "wkv7" else lambda x: x
    kernel = getattr(import_module(f"fla.ops.{module}"), f"chunk_{module}")
    *inputs, state = tensors
    out, last = kernel(*inputs, scale=1.0, initial_state=turn(state), output_final_state=True)
    return out, turn(last)


def makers(name: str, device: str) -> dict[str, Callable[[Problem], Call]]:
    """Return ours and the peers of an operator by name, as makers of a step; on a GPU also one that needs it."""
    swap: Layout = lambda x: x.transpose(0, 1)  # noqa: E731
    last: Layout = lambda x: x.transpose(1, 2)  # noqa: E731
    cut: Layout = lambda x: x.unflatten(1, (-1, CHUNK)).permute(1, 0, 3, 2, 4)  # noqa: E731
    ours: dict[str, Callable[[Problem], Call]] = {OURS: partial(step, operator(name))}
    if name == "scan":
        ours["loop"] = partial(step, loop_scan, to=swap, back=swap)
        ours["mambapy"] = partial(step, partial(peer_scan, "mambapy"))
        on_gpu = "accelerated_scan", partial(step, partial(peer_scan, "accelerated_scan"), to=last, back=last)
    else:
        chunks = chunks_wkv if name == "wkv" else chunks_wkv7
        ours[f"chunks of {CHUNK}"] = partial(step, chunks, to=cut, back=lambda x: x.permute(1, 0, 3, 2, 4))
        on_gpu = "fla", partial(step, partial(fla_heads, name))
    return ours | dict([on_gpu] if device == "cuda" else [])


def run(
    name: str,
    threads: int,
    shapes: Sequence[tuple[int, ...]],
    rounds: int,
    device: str | None,
    out: Path | None,
) -> None:
    """Check every contender of an operator against float64 and time those that are right, at each shape in turn.

    The error of wkv and wkv7 where some decays are strong stands beside that on the problem that is timed.
    """
    for shape in shapes:
        if min(shape) < 1 or (name != "scan" and shape[1] % CHUNK):
            needed = f" and time a multiple of {CHUNK}" * (name != "scan")
            raise ValueError(f"shapes has {shape}; all must be 1 or more{needed}")
    device, rows = contest.prepare(rounds, threads, device, out), []
    make = makers(name, device)
    limits = dict.fromkeys(make, PEER_LIMITS[name]) | {OURS: LIMITS[name][device]}

    def contenders(given: Problem) -> dict[str, Contender]:
        error = partial(contest.relative_error, truths=truth(name, given))
        return {one: Contender(partial(make[one], given), error, limit) for one, limit in limits.items()}

    for shape in shapes or SHAPES[name][device]:
        contest.progress(f"checking against float64 at {shape}")
        given, steps = problem(name, shape, device), shape[0] * shape[1]
        rows += contest.compare(contenders(given), rounds, steps, contest.by_x(shape), device)
    if name != "scan":
        strong = contenders(problem(name, STRONG, device, strong=True))
        for row in rows:
            row["strong_error"] = contest.checked(strong[row["contender"]])[0]
    contest.show(name, "steps/s", rows, out, PACKAGES, device=device)
