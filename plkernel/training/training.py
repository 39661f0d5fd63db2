"""One run in progress: steps, evaluations, curves, checkpoints, and how it is taken up again."""

import math
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from plkernel.common.environment import environment
from plkernel.common.files import read_lines
from plkernel.data.synthetic import predictor_of
from plkernel.data.windows import StepWindows, fixed_windows
from plkernel.foreign.model import Foreign, origins
from plkernel.models.init.block_gains import Calibration
from plkernel.models.words import NOT_CAUSAL
from plkernel.results.layout import FINISHED, METRICS
from plkernel.training.build import plan_of, started, tune_
from plkernel.training.checkpoint import load_checkpoint, save_checkpoint
from plkernel.training.evaluate import diagnose, kernels, memory, patch_of, predictor, worth_of_context
from plkernel.training.folder import Progress
from plkernel.training.objective import (
    NATS_PER_BIT,
    autocast,
    bits_per_byte,
    build_optimizer,
    compiled,
    fill_gradients_,
    learning_rate,
    next_byte_loss,
    progress_line,
    seed_dropout,
    set_learning_rate,
)
from plkernel.training.processes import ALONE, Ranks, stop_requests
from plkernel.training.task import Task, choose_device
from plkernel.training.tensorboard import Curves

MOST_UNREAD = 1024
"""Losses of steps that are kept one by one on the device."""


class Training:
    """One run in progress: model, optimiser, fixed windows, writer, and where it stands.

    Of several processes all take the steps, and the first alone the rest: it has the writer and a `progress` to keep.
    """

    curves: Curves

    def __init__(self, task: Task, ranks: Ranks = ALONE) -> None:
        self.task, self.train, self.ranks, self.config = task, task.train, ranks, task.config
        torch.set_num_threads(self.train.threads)
        condition, self.device = task.condition, choose_device(self.train.device)
        self.model = started(condition, task.seed).to(self.device)
        plan = self.model if isinstance(self.model, Foreign) else plan_of(self.model, condition)
        self.optimizer = build_optimizer(self.model, self.train, plan)
        train = self.train
        self.windows = StepWindows(task.splits.train, train.context, train.batch, task.seed, self.device)
        self.validation = fixed_windows(task.splits.validation, train.context, train.eval_windows)
        self.law = predictor_of(condition.corpus.name)
        self.floor = None if self.law is None else float(self.law.losses(self.validation.numpy()).mean())
        self.progress = Progress()
        self.calibration: Calibration | None = None
        if ranks.from_first(task.folder.checkpoint.exists):
            self.progress = self.restored()
        else:
            self.calibration = tune_(self.model, condition, self.windows.at(0)[:, :-1])
        self.unread: list[Tensor] = []
        self.parallel = compiled(ranks.parallel(self.model), train, self.device)
        # After the checkpoint was read: where that is refused, the rows stay as they are.
        self.progress = ranks.from_first(lambda: task.folder.cut(self.progress, self.train.eval_every))
        if ranks.first:
            self.curves = Curves(task.folder.path, self.model.config.causal, task.folder.rows())
        self._clock = time.perf_counter()
        self.done = self.fraction >= 1

    def restored(self) -> Progress:
        """Where the last checkpoint stands, from which model and optimiser are filled; ValueError if it is no good."""
        path = self.task.folder.checkpoint
        try:
            return load_checkpoint(path, self.model, self.optimizer, self.config)
        except ValueError as error:
            raise ValueError(f"{error}: bring the run's own back, or remove it to start over") from error

    @property
    def seconds(self) -> float:
        """Training and evaluation time so far, over all sittings."""
        return self.progress.seconds + time.perf_counter() - self._clock

    @property
    def fraction(self) -> float:
        """The spent share of the budget, of several processes by the clock of the first."""
        if self.train.total_steps is not None:
            return self.progress.step / self.train.total_steps
        return self.ranks.from_first(lambda: self.seconds) / (60 * cast(float, self.train.minutes))

    def step(self) -> None:
        """One optimiser step on this step's windows; nothing waits for the device, whose losses `settle` reads."""
        windows = self.next_windows()
        with autocast(self.device):
            loss = next_byte_loss(self.parallel, windows, l2wrap=self.train.l2wrap)
        loss.backward()
        fill_gradients_(self.model)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.train.clip)
        self.update(loss.detach())
        self.optimizer.zero_grad(set_to_none=True)

    def next_windows(self) -> Tensor:
        """The windows of the next step, for which the model and the optimiser's rate are made ready."""
        number = self.progress.step
        set_learning_rate(self.optimizer, learning_rate(self.train, number, self.fraction))
        self.model.train()
        if self.train.dropout or isinstance(self.model, Foreign):
            seed_dropout(self.task.seed, number, self.ranks.rank)
        return self.ranks.share(self.windows.at(number))

    def update(self, loss: Tensor) -> None:
        """Move the parameters by their gradients, and count the step; `loss` is one number on the device."""
        self.optimizer.step()
        self.stepped(loss)

    def stepped(self, loss: Tensor) -> None:
        """Count a step that has been taken."""
        self.unread.append(loss.reshape(1))
        if len(self.unread) == MOST_UNREAD:
            self.unread = [torch.cat(self.unread)]
        done = self.progress
        self.progress = replace(done, step=done.step + 1, loss_count=done.loss_count + 1)
        self.done = self.fraction >= 1

    def settle(self) -> None:
        """Read the losses of the steps since it was last called; all processes call it, before one of them evaluates.

        Raises FloatingPointError with the step where one is no number: what was trained after that is lost.
        """
        values, self.unread = self.ranks.mean(torch.cat(self.unread).tolist()) if self.unread else [], []
        for step, value in enumerate(values, start=self.progress.step - len(values) + 1):
            _check_finite(value, step)
            self.progress = replace(self.progress, loss_sum=self.progress.loss_sum + value)

    def evaluate(self) -> dict[str, Any]:
        """Measure, write one row to each file and to TensorBoard, and save a checkpoint; returns the row."""
        self.settle()
        done = self.progress
        train_bpb = done.loss_sum / done.loss_count / NATS_PER_BIT if done.loss_count else None
        found = diagnose(self.model, self.validation, self.train.batch, self.device)
        half_lives = self.half_lives()
        usable = found.finite and all(((values > 0) & np.isfinite(values)).all() for values in half_lives)
        _check_finite(found.bits_per_byte if usable else math.nan, done.step)
        row = {
            "step": done.step,
            "bytes": done.step * self.train.batch * self.train.context,
            "train_bpb": train_bpb,
            "val_bpb": found.bits_per_byte,
            **({} if self.floor is None else {"excess_bpb": found.bits_per_byte - self.floor}),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            **({} if self.model.config.causal else {"label": NOT_CAUSAL}),
            **memory(half_lives, kernels(self.model, self.train.context)),
            **found.to_row(),
            **({"calibration": asdict(self.calibration)} if self.calibration and done.step == 0 else {}),
        }
        timing = {"step": done.step, "seconds": (spent := self.seconds), "bytes_per_second": row["bytes"] / spent}
        self.curves.add(row, timing, half_lives)
        # Rows before the checkpoint: one too many after a kill is cut, one too few could not be made again.
        self.progress = replace(self.task.folder.append(row, timing, done), loss_sum=0.0, loss_count=0)
        self.save()
        return row

    def half_lives(self) -> list[np.ndarray]:
        """Half-lives of every block in bytes; infinite where a diverged run has rates of zero."""
        return [values.cpu().numpy() for values in self.model.half_lives()]

    def save(self) -> None:
        """Checkpoint the present state."""
        self.settle()
        self.progress = replace(self.progress, seconds=self.seconds)
        self._clock = time.perf_counter()
        save_checkpoint(self.task.folder.checkpoint, self.model, self.optimizer, self.progress, self.config)

    def result(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """How the run ended: final and best validation, and the one test figure, all in bits per byte."""
        windows = fixed_windows(self.task.splits.test, self.train.context, self.train.test_windows)
        best = min(rows, key=lambda row: row["val_bpb"])
        result = {
            "status": FINISHED,
            "steps": self.progress.step,
            "bytes": rows[-1]["bytes"],
            "final_val_bpb": rows[-1]["val_bpb"],
            "best_val_bpb": best["val_bpb"],
            "best_step": best["step"],
            "test_bpb": bits_per_byte(self.model, windows, self.train.batch, self.device),
            **self.context(),
            "seconds": self.seconds,
            "causal": self.model.config.causal,
            "error": None,
        }
        self.curves.close(self.config, result)
        return result

    def context(self) -> dict[str, Any]:
        """What far bytes of the test text are worth, and how far back one is read, where the spec asks for that."""
        if not self.model.config.causal:
            return {}
        corpus, floor = self.task.condition.corpus.name, None if self.law is None else self.law.losses
        predict, step = predictor(self.model, self.device), patch_of(self.model)
        return worth_of_context(predict, self.task.splits.test, self.train, corpus, floor, step)


def run_training(
    task: Task, progress_bar: bool = True, stop_with: int | None = None, ranks: Ranks = ALONE
) -> dict[str, Any]:
    """Train, or go on from the last checkpoint; returns the result.

    ranks: the processes that train it together, all of which call this; their number may change when it goes on.
    Raises KeyboardInterrupt after Ctrl-C (or when process `stop_with`, the parent, has ended), with the last step
    saved. Any other failure is recorded in the run folder and raised.
    """
    with ExitStack() as held:
        ended = ranks.from_first(lambda: opened(task, ranks.count, held))
        if ended is not None:
            return ended
        with recorded(task, ranks), stop_requests(stop_with or ranks.launcher) as stopped:
            training = Training(task, ranks)
            to_do = sitting(training, stopped, progress_bar)
            while (result := next(to_do)) is None:
                training.step()
        if ranks.first:
            task.folder.finish(result)
        return result


@contextmanager
def recorded(task: Task, ranks: Ranks = ALONE) -> Iterator[None]:
    """What a run fails or diverges with in here is told by its folder too."""
    try:
        yield
    except Exception as error:
        if ranks.first:
            task.folder.fail(error)
        raise


def opened(task: Task, ranks: int, held: ExitStack) -> dict[str, Any] | None:
    """Take the run folder for as long as `held` is open; the result where the run has finished."""
    held.enter_context(task.folder.lock())
    task.folder.open(task.config, environment(task.train.threads, ranks) | origins(task.condition.code.values()))
    return task.folder.result if task.folder.finished else None


def sitting(
    training: Training, stopped: Callable[[], bool], progress_bar: bool
) -> Generator[dict[str, Any] | None, None, None]:
    """Everything between the steps of a run: None each time a step is to be taken, and at last the result.

    Raises KeyboardInterrupt, with the last step saved, when it finds itself `stopped`, and FloatingPointError.
    """
    task, train, ranks = training.task, training.train, training.ranks
    rows = ranks.from_first(lambda: read_lines(task.folder.path / METRICS))
    if not rows:
        rows.append(ranks.from_first(training.evaluate))
    bar = tqdm(
        total=train.total_steps,
        initial=training.progress.step,
        desc=task.name,
        unit="step",
        disable=None if progress_bar and ranks.first else True,
    )
    with bar:
        while not training.done:
            yield None
            bar.update()
            if training.progress.step % train.eval_every == 0 or training.done:
                training.settle()
                rows.append(ranks.from_first(lambda: _measured(training)))
            if ranks.any(stopped()):
                training.settle()
                ranks.from_first(training.save)
                raise KeyboardInterrupt(f"step {training.progress.step} is saved; run the same command again to go on")
        if rows[-1]["step"] != training.progress.step:  # the budget ran out while the run was interrupted
            rows.append(ranks.from_first(training.evaluate))
    yield ranks.from_first(lambda: training.result(rows))


def _measured(training: Training) -> dict[str, Any]:
    """Evaluate and say so; the row."""
    row = training.evaluate()
    tqdm.write(progress_line(row), file=sys.stderr)
    return row


def _check_finite(value: float, step: int) -> None:
    if not math.isfinite(value):
        raise FloatingPointError(f"the run diverged: {value} at step {step}; lower train.learning_rate")
