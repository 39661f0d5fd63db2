"""Cost of a call before anything is computed, beside `torch.nn.functional.linear`.

Measured is the CPU time of the path around the kernels.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from plkernel.benchmarks.operators import (
    LIMITS,
    operator,
    problem,
    quartiles,
    relative_error,
    set_up,
    step,
    truth,
)
from plkernel.common.cli import text_table
from plkernel.common.environment import environment
from plkernel.common.files import save_json
from plkernel.models import Device

BASELINE = "linear"
"""The name of `torch.nn.functional.linear` among what is timed."""
PARTS = ("forward", "both")
"""Parts that are timed: a forward pass, and one with the backward pass behind it."""
SHAPES = {"scan": (1, 4, 16), "wkv": (1, 4, 1, 16), "wkv7": (1, 4, 1, 16)}
"""So small that next to nothing is computed; `linear` has an input of 1x4x16 and 16x16 weights."""
CALLS = 100
"""Calls that are timed together."""


class Work(NamedTuple):
    """A function, the tensors that it takes and differentiates, and the gradient of its result."""

    function: Callable[..., Tensor]
    leaves: Sequence[Tensor]
    gradient: Tensor

    def forward(self) -> Any:
        """The result."""
        return self.function(*self.leaves)

    def both(self) -> Any:
        """The gradients of the leaves, by way of the result."""
        return torch.autograd.grad(self.function(*self.leaves), self.leaves, self.gradient)


class Copy(torch.autograd.Function):
    """The least that a function of Python costs: nothing but a copy of its first input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], ctx.saved_tensors[1]


def first(function: Callable[..., Any], *inputs: Tensor) -> Tensor:
    """The first of several results."""
    result = function(*inputs)
    return result if isinstance(result, Tensor) else result[0]


def registered(name: str, backend: str, *inputs: Tensor) -> Any:
    """The operator of torch.library, which torch.compile and tensor subclasses take."""
    return getattr(torch.ops.plkernel, name)(*inputs, backend)


def works(device: str) -> dict[str, Work]:
    """The calls that are timed, by name."""
    backend = {"cuda": "gpu"}.get(device, "cpu")
    draw = partial(torch.randn, device=device)
    x = draw(1, 4, 16).requires_grad_()
    weight = draw(16, 16).requires_grad_()
    made = {BASELINE: Work(linear, (x, weight), draw(1, 4, 16))}
    made["autograd.Function"] = Work(Copy.apply, (x, weight), draw(1, 4, 16))
    for name, shape in SHAPES.items():
        given = problem(name, shape, device)
        leaves = [one.clone().requires_grad_() for one in given.inputs]
        made[name] = Work(partial(first, operator(name)), leaves, given.gradients[0])
        if name == "scan":
            state = torch.zeros(1, 16, device=device).requires_grad_()
            leaves = [*leaves, state]
        function = partial(first, partial(registered, name, backend))
        made[f"{name}, torch.library"] = Work(function, leaves, given.gradients[0])
    return made


def host_seconds(call: Callable[[], Any], calls: int, device: str) -> float:
    """CPU time of this process for one call, until it returns: nothing waits for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.process_time_ns()
    for _ in range(calls):
        call()
    return (time.process_time_ns() - start) / calls / 1e9


def run(rounds: int, device: Device, out: Path | None) -> None:
    """Check the operators against float64, then time all in turns with one thread of torch."""
    place = set_up(rounds, 1, device, out).type
    _check_operators(place)
    times = _in_turns(works(place), rounds, place)
    rows = _rows(times)
    print(_table(rows))
    if out is not None:
        path = out / "host.json"
        save_json(path, {"environment": environment(1), "device": place, "rows": rows})
        print(f"written: {path}")


def _check_operators(device: str) -> None:
    """ValueError for an operator that differs from float64 by more than its limit."""
    for name, shape in SHAPES.items():
        given = problem(name, shape, device)
        limit = LIMITS[name][device]
        error = relative_error(step(operator(name), given)(), truth(name, given))
        if not error <= limit:
            raise ValueError(
                f"{name} must differ from float64 by at most {limit:.1e}, got {error:.1e}; nothing"
                " is timed"
            )


def _in_turns(made: Mapping[str, Work], rounds: int, device: str) -> dict[str, Any]:
    """Seconds (2, rounds) of a call of each, forward and with backward."""
    times = {name: np.zeros((len(PARTS), rounds)) for name in made}
    for work in made.values():  # what is compiled or remembered at the first calls
        host_seconds(work.both, 3, device)
    for turn in range(rounds):
        for name, work in made.items():
            for part, call in enumerate((work.forward, work.both)):
                times[name][part, turn] = host_seconds(call, CALLS, device)
    return times


def _rows(times: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Quartiles of the seconds, and of their ratio to those of BASELINE in the same turn."""
    rows: list[dict[str, Any]] = []
    for name, seconds in times.items():
        ratios = seconds / times[BASELINE]
        row: dict[str, Any] = {"contender": name}
        for part, label in enumerate(PARTS):
            row[label] = {"seconds": quartiles(seconds[part]), "ratio": quartiles(ratios[part])}
        rows.append(row)
    return rows


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Medians, in microseconds and in times of BASELINE."""
    header = ["contender", "forward, us", "times linear", "and backward, us", "times linear"]
    lines = []
    for row in rows:
        line = [row["contender"]]
        for label in PARTS:
            line.append(f"{row[label]['seconds']['median'] * 1e6:.1f}")
            line.append(f"{row[label]['ratio']['median']:.1f}")
        lines.append(line)
    return text_table(header, lines)
