"""Steps of many runs as one: their parameters get a leading axis of runs, and share a forward and a backward pass.

torch.func.vmap makes these batched matrix products, and one scan or wkv over the channels or heads of all runs. Each
run keeps its model, whose parameters are views of its row, its optimiser, its folder and its decisions: its gradients
are clipped by its own norm, it evaluates, saves, diverges and ends where it would alone. Its rows are those it would
have alone up to the rounding of batched products, so that it may be taken up again in any company.
"""

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from plkernel.together.shape import shape
from plkernel.training.objective import autocast, next_byte_loss
from plkernel.training.processes import stop_requests
from plkernel.training.loop import Task
from plkernel.training.loop import Training, opened, recorded, sitting

Outcome = dict[str, Any] | Exception


class Batch:
    """Runs whose steps are one; each of them is at a step of its own."""

    def __init__(self, runs: Sequence[Training]) -> None:
        self.runs = list(runs)
        self.parameters: dict[str, Tensor] = {}
        self.gradients: list[Tensor] = []
        models = [run.model for run in self.runs]
        own = [dict(model.named_parameters()) for model in models]
        for name in own[0]:
            self._stack(name, [parameters[name] for parameters in own])
        buffers = [dict(model.named_buffers()) for model in models]
        self.buffers = {name: torch.stack([each[name] for each in buffers]) for name in buffers[0]}
        self.largest = torch.tensor([run.train.clip for run in self.runs], device=self.runs[0].device)
        trained = [[float(row.requires_grad) for row in rows.values()] for rows in own]
        self.trained = torch.tensor(trained, device=self.runs[0].device)
        self.own = [[gradient[i] for gradient in self.gradients] for i in range(len(self.runs))]

    def _stack(self, name: str, rows: "list[torch.nn.Parameter]") -> None:
        """Make the parameters of all runs, and their gradients, views of one tensor."""
        stacked = torch.stack([row.detach() for row in rows])
        gradient = torch.zeros_like(stacked)
        for i, row in enumerate(rows):
            row.data = stacked[i]
            row.grad = gradient[i] if row.requires_grad else None
        self.parameters[name] = stacked.requires_grad_()
        self.gradients.append(gradient)

    def step(self) -> None:
        """One optimiser step of every run."""
        windows = torch.stack([run.next_windows() for run in self.runs])
        losses = self.losses(windows)
        found = torch.autograd.grad(losses.sum(), list(self.parameters.values()))
        torch._foreach_copy_(self.gradients, list(found))
        self._clip()
        for run, loss in zip(self.runs, losses.detach().unbind(), strict=True):
            run.update(loss)

    def _clip(self) -> None:
        """Each run's gradients by their own norm, as `clip_grad_norm_` has it for one; frozen ones do not count."""
        norms = torch.stack(torch._foreach_norm([gradient for own in self.own for gradient in own]))
        total = torch.linalg.vector_norm(norms.view_as(self.trained) * self.trained, dim=1)
        factors = (self.largest / (total + 1e-6)).clamp(max=1.0)
        for own, factor in zip(self.own, factors.unbind(), strict=True):
            torch._foreach_mul_(own, factor)

    def losses(self, windows: Tensor) -> Tensor:
        """Those (R,) of the runs on their windows (R,B,T+1)."""
        first = self.runs[0]

        def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], windows: Tensor) -> Tensor:
            def model(inputs: Tensor) -> Tensor:
                return functional_call(first.model, (parameters, buffers), (inputs,))  # type: ignore[no-any-return]

            return next_byte_loss(model, windows, l2wrap=first.train.l2wrap)

        with autocast(first.device):
            return vmap(loss)(self.parameters, self.buffers, windows)  # type: ignore[no-any-return]


@dataclass
class Member:
    """A run among others: what it is, and what it does between its steps."""

    task: Task
    training: Training
    to_do: Generator[dict[str, Any] | None, None, None]

    def advance(self) -> Outcome | None:
        """Do what is due before the next step; how the run has ended, None where it goes on."""
        try:
            with recorded(self.task):
                result = next(self.to_do)
        except Exception as error:
            return error
        if result is not None:
            self.task.folder.finish(result)
        return result


def train_together(tasks: Sequence[Task], stop_with: int | None = None) -> list[Outcome]:
    """Train runs of equal shape, or go on with them; the result of each, or what it failed or diverged with.

    A run that ends, well or not, leaves the others, which go on. Raises KeyboardInterrupt with the last step of every
    run saved, as `run_training` does; a failure of the step itself is recorded for all runs and raised. ValueError for
    runs that do not share their `shape`.
    """
    shapes = {shape(task.condition) for task in tasks}
    if None in shapes or len(shapes) > 1:
        raise ValueError(f"{', '.join(task.name for task in tasks)}: not of one shape, so they are trained one by one")
    outcomes: dict[int, Outcome] = {}
    members: dict[int, Member] = {}
    with ExitStack() as held, stop_requests(stop_with) as stopped:
        for number, task in enumerate(tasks):
            try:
                ended = opened(task, 1, held)
                if ended is None:
                    with recorded(task):
                        training = Training(task)
                    members[number] = Member(task, training, sitting(training, stopped, False))
                else:
                    outcomes[number] = ended
            except Exception as error:
                outcomes[number] = error
        batch: Batch | None = None
        while members:
            outcomes |= _advanced(members)
            if batch is None or len(batch.runs) != len(members):
                batch = Batch([member.training for member in members.values()]) if members else None
            if batch is not None:
                _step(batch, members)
    return [outcomes[number] for number in range(len(tasks))]


def _advanced(members: dict[int, Member]) -> dict[int, Outcome]:
    """Have every run do what is due; those that have ended are taken out. KeyboardInterrupt once all have saved."""
    found, interrupts = dict[int, Outcome](), list[KeyboardInterrupt]()
    for number, member in list(members.items()):
        try:
            outcome = member.advance()
        except KeyboardInterrupt as interrupt:
            interrupts.append(interrupt)
            continue
        if outcome is not None:
            found[number] = outcome
            del members[number]
    if interrupts:
        raise interrupts[0]
    return found


def _step(batch: Batch, members: dict[int, Member]) -> None:
    """One step of all; what it fails with, all have failed with."""
    try:
        batch.step()
    except Exception as error:
        for member in members.values():
            member.task.folder.fail(error)
        raise
