"""One run: its task, its steps and evaluations, and how it is resumed."""

import errno
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from plkernel.common.cli import (
    is_out_of_memory,
    line_beside_bars,
    no_bar,
    shortened,
    without_terminal,
)
from plkernel.common.environment import environment
from plkernel.common.files import DIVERGED, FAILED, FINISHED, METRICS, read_lines, run_folder
from plkernel.config.condition import Condition
from plkernel.config.schema import CorpusSpec, TrainSpec
from plkernel.config.spec import Spec
from plkernel.data import corpora
from plkernel.data.corpora import Corpus, Splits
from plkernel.data.names import predictor_of, recall_of
from plkernel.data.windows import (
    carried_windows,
    check_holds_window,
    fixed_windows,
    training_windows,
)
from plkernel.models import NOT_CAUSAL
from plkernel.models.sampling import check_seed
from plkernel.models.state import State
from plkernel.training.build import (
    Model,
    Prepared,
    build_optimizer,
    check_machine,
    choose_device,
    compiles,
    keep_rates_on,
    learning_rate,
    replays,
    started,
)
from plkernel.training.checkpoint import (
    AVERAGE,
    first_nan,
    load_checkpoint,
    load_state,
    save_checkpoint,
)
from plkernel.training.curves import CurveWriter, LoggerName, logger_library
from plkernel.training.evaluate import (
    NATS_PER_BIT,
    Hits,
    autocast,
    bits_per_byte,
    diagnose,
    label,
    losses_per_byte,
    memory,
    next_byte_loss,
    patch_of,
    predictor,
    reach,
    worth_of_context,
)
from plkernel.training.folder import RunFolder, RunProgress, loss_unit
from plkernel.training.foreign import Foreign, origins, seeded_by
from plkernel.training.graphs import ReplayedStep
from plkernel.training.recall_task import Asked, RecallTask, asked_in, times_of
from plkernel.training.recall_tests import recall_results

CURVE_EVERY = 10
"""Steps between two training losses of the curves."""
EVALUATED = 8
"""Batches that a GPU evaluates at a time: with one it waits for Python."""


@dataclass(frozen=True)
class Task:
    """One run: a prepared condition at one seed, on an opened corpus, in a folder.

    device: its type, cpu or cuda.
    """

    prepared: Prepared
    seed: int
    corpus: Corpus
    splits: Splits
    folder: RunFolder
    device: str

    @property
    def condition(self) -> Condition:
        """The model and its training, in words."""
        return self.prepared.condition

    @property
    def train(self) -> TrainSpec:
        """The protocol."""
        return self.condition.protocol

    @property
    def name(self) -> str:
        """The arm and the seed, for messages."""
        return f"{self.condition.name} seed {self.seed}"

    @cached_property
    def config(self) -> dict[str, Any]:
        """Everything that determines the run's numbers; the run folder refuses another."""
        config = self.condition.config | {"seed": self.seed}
        config["corpus"] |= {"size": self.corpus.size, "sha256": self.corpus.sha256}
        config["model"] |= {"parameters": self.prepared.parameters}
        config["train"] |= {"device": self.device}
        return config


def prepare(spec: Spec, arm: str, seed: int, out: Path) -> Task:
    """The run of an arm of a spec at a seed, in the folder `out` of the study; see `open_run`."""
    return open_run(spec.condition(arm), seed, run_folder(out, arm, seed))


def open_run(condition: Condition, seed: int, folder: Path, checked: bool = False) -> Task:
    """Check the condition, the machine and the corpus of a run in `folder`.

    Raises ValueError for bad input. checked: a study has tried the code that the condition names.
    Nothing is written yet.
    """
    check_seed(seed)
    device = check_machine(condition)
    prepared = Prepared.of(condition, checked)
    train = condition.protocol
    farthest = longest_window(condition.corpus, train)
    corpus, splits = open_corpus(condition.corpus, train.context, farthest)
    return Task(prepared, seed, corpus, splits, RunFolder(folder), device)


def longest_window(section: CorpusSpec, train: TrainSpec) -> int:
    """Bytes of the longest windows of the test split that a run evaluates."""
    is_drawn_anew = recall_of(section.name) is not None
    return train.context * (1 if is_drawn_anew else times_of(train, None))


def open_corpus(
    section: CorpusSpec, context: int, farthest: int | None = None
) -> tuple[Corpus, Splits]:
    """A corpus and its three splits.

    Each is checked to hold at least one window of `context` predicted bytes, the test split one of
    `farthest`.
    """
    corpus = corpora.load(section.name, **section.reading)
    splits = corpus.splits(section.validation, section.test)
    for name in ("train", "validation", "test"):
        _check_split(section, name, getattr(splits, name).size, context, farthest)
    return corpus, splits


def _check_split(
    section: CorpusSpec, name: str, size: int, context: int, farthest: int | None
) -> None:
    """Raise ValueError where the split of that name is shorter than one window."""
    what = f"the {name} split of corpus {section.name!r}"
    check_holds_window(size, context, what)
    if name == "test" and farthest is not None and size < farthest + 1:
        raise ValueError(
            f"{what} must hold one window of context * beyond + 1 = {farthest + 1} bytes or more,"
            f" got {size}; use a larger corpus, a larger share for it, or a smaller train.beyond"
        )


def check_corpus_size(section: CorpusSpec, context: int, farthest: int | None = None) -> bool:
    """Refuse as `open_corpus` does, but read and fetch nothing.

    False where the size is not known before that.
    """
    size = corpora.size_ahead(section.name, **section.reading)
    if size is None:
        return False
    held_out = {name: int(size * getattr(section, name)) for name in ("validation", "test")}
    for name, length in {"train": size - sum(held_out.values()), **held_out}.items():
        _check_split(section, name, length, context, farthest)
    return True


class Training:
    """One run in progress: model, optimiser, fixed windows, and the point it has reached."""

    def __init__(self, task: Task, logger: LoggerName | None = None) -> None:
        self.task = task
        self.train = task.train
        self.config = task.config
        train = self.train
        condition = task.condition
        torch.set_num_threads(train.threads)
        self.device = choose_device(train.device)
        self.at_once = train.batch * (EVALUATED if self.device.type == "cuda" else 1)
        self.model = started(condition, task.seed, task.prepared.plan).to(self.device)
        self.optimizer = build_optimizer(self.model, train, task.prepared.plan)
        self.recall = RecallTask.of(condition)
        self.validation, self.asked = self.held_out("validation", train.eval_windows)
        self.law = predictor_of(condition.corpus.name)
        self.floor = self._floor()
        self.progress = RunProgress()
        self.state: State | None = None
        if train.carry:
            self.state = cast(Model, self.model).initial_state(train.batch)
        if task.folder.checkpoint.exists():
            self._resume()
        self.unread: list[Tensor] = []
        self.rate: float = self.optimizer.param_groups[0]["lr"]
        self.replayed: ReplayedStep | None = None
        if replays(condition, self.device):
            keep_rates_on(self.optimizer, self.device)
            self.replayed = ReplayedStep(self.update, self.optimizer, self.device)
        self.compiled: nn.Module = self.model
        if compiles(condition, self.device):
            needs_graphs = self.device.type == "cuda" and self.replayed is None
            mode = "reduce-overhead" if needs_graphs else None
            self.compiled = cast(nn.Module, torch.compile(self.model, mode=mode))
        # After the checkpoint was read: where that is refused, the rows stay as they are.
        task.folder.cut(self.progress)
        self.rows = read_lines(task.folder.path / METRICS)
        # Later points of the curves are taken back.
        known = self.progress.step + 1 if self.rows else 0
        self.curves = CurveWriter(task.folder.path, known, self.config, logger)
        self.note = label(self.model.config.causal)  # behind the losses of a model that sees ahead
        self._clock = time.perf_counter()

    def _floor(self) -> float | None:
        """Bits per byte that no model can beat on the validation windows; None where unknown."""
        if self.recall is not None:
            return 0.0
        if self.law is not None:
            return float(self.law.losses(self.validation.numpy()).mean())
        return None

    def _resume(self) -> None:
        """Go on from the checkpoint: weights, optimiser, progress and, if carried, the state."""
        checkpoint = self.task.folder.checkpoint
        try:
            self.progress = load_checkpoint(checkpoint, self.model, self.optimizer, self.config)
            if self.progress.step > self.train.total_steps:
                raise ValueError(
                    f"checkpoint {checkpoint} must be of a step of the run, at most"
                    f" {self.train.total_steps:,}, got {self.progress.step:,}"
                )
            if self.state is not None:
                self.state = load_state(checkpoint, self.state)
        except ValueError as error:
            raise ValueError(
                f"{error}: bring the run's own back, or remove it to start over"
            ) from error

    @property
    def seconds(self) -> float:
        """Training and evaluation time so far, over all sittings."""
        return self.progress.seconds + time.perf_counter() - self._clock

    def held_out(self, split: str, count: int) -> tuple[Tensor, Asked | None]:
        """Up to `count` windows of a split for evaluation, and what is asked in those of recall."""
        text = getattr(self.task.splits, split)
        if self.recall is not None:
            windows = self.recall.held_out(split, min(count, text.size // self.train.context))
            return windows, asked_in(windows)
        return fixed_windows(text, self.train.context, count), None

    def drawn(self, step: int) -> Tensor:
        """Return the windows of this step (batch, context + 1), int64, on the CPU.

        In a stage of recall they have another length, and are as many bytes in all.
        """
        train = self.train
        if self.recall is not None:
            return self.recall.training(self.task.seed, step)
        draw = carried_windows if train.carry else training_windows
        return draw(self.task.splits.train, train.context, train.batch, self.task.seed, step)

    def on_device(self, values: Tensor) -> Tensor:
        """Return a tensor of the CPU on the device; the host does not wait."""
        if self.device.type == "cuda":
            return values.pin_memory().to(self.device, non_blocking=True)
        return values

    def predicted(self, inputs: Tensor) -> Tensor:
        """Logits in training: after the state of the step before, where the run carries it."""
        if self.state is None:
            return cast(Tensor, self.compiled(inputs))
        logits, after = self.compiled(inputs, self.state)
        self.state = after.detach()
        return cast(Tensor, logits)

    def step(self) -> None:
        """Take one optimiser step; nothing waits for the device, whose losses `settle` reads."""
        number = self.progress.step
        self.set_rate(learning_rate(self.train, number))
        self.model.train()
        windows = self.drawn(number)
        inputs = [windows] if self.recall is None else [windows, *asked_in(windows)]
        with self._seeded(number):
            if self.replayed is None:
                loss = self.update(*map(self.on_device, inputs))
            else:
                loss = self.replayed(*inputs)
        self._average_weights(number + 1)
        self.unread.append(loss.reshape(1))
        self.progress = replace(
            self.progress, step=number + 1, loss_count=self.progress.loss_count + 1
        )

    def set_rate(self, rate: float) -> None:
        """Give every group of the optimiser the learning rate times its multiplier."""
        groups = self.optimizer.param_groups
        self.rate = rate * groups[0]["lr_multiplier"]
        for group in groups:
            own = rate * group["lr_multiplier"]
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(own)
            else:
                group["lr"] = own

    def update(self, windows: Tensor, *asked: Tensor) -> Tensor:
        """Take forward and backward pass, clipping and update; return the loss before the update.

        asked: in a corpus of recall, the fields of `Asked`.
        """
        train = self.train
        with autocast(self.device):
            loss = next_byte_loss(
                self.predicted, windows, train.l2wrap, Asked(*asked) if asked else None
            )
        loss.backward()
        self._fill_gradients()
        nn.utils.clip_grad_norm_(self.model.parameters(), train.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _seeded(self, number: int) -> AbstractContextManager[None]:
        """Seed the generators for this step alone, where a model may draw.

        A resumed run draws the same.
        """
        if not self.train.dropout and not isinstance(self.model, Foreign):
            return nullcontext()
        seeds = np.random.SeedSequence([self.task.seed, number])
        return seeded_by(int(seeds.generate_state(1, np.uint64)[0]))

    def _fill_gradients(self) -> None:
        """Give parameters without a gradient one of zeros.

        AdamW counts the steps of each parameter, a resumed run those of the run.
        """
        for parameter in self.model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def _average_weights(self, done: int) -> None:
        """Take the weights after `done` steps into their mean over the last steps, if it has begun.

        The mean is part of the optimiser's state, so that a checkpoint has it.
        """
        train = self.train
        averaged = max(1, round(train.average * train.total_steps))
        count = done - (train.total_steps - averaged)
        if not train.average or count <= 0:
            return
        for weight, state in self.optimizer.state.items():  # frozen ones have none
            mean = state.setdefault(AVERAGE, torch.zeros_like(weight))
            mean.lerp_(weight.detach(), 1 / count)

    def settle(self) -> None:
        """Read the losses of the steps since the last call.

        Raises FloatingPointError with the step of the first loss that is not finite: later training
        is lost.
        """
        values = torch.cat(self.unread).tolist() if self.unread else []
        self.unread = []
        for step, value in enumerate(values, start=self.progress.step - len(values) + 1):
            _check_finite(value, step)
            if step % CURVE_EVERY == 0:
                self.curves.add(step, {f"loss/train{self.note}": value / NATS_PER_BIT})
            self.progress = replace(self.progress, loss_sum=self.progress.loss_sum + value)

    def evaluate(self) -> dict[str, Any]:
        """Evaluate, write a row to the file and the curves, save a checkpoint; return the row."""
        self.settle()
        train = self.train
        done = self.progress
        figures = diagnose(self.model, self.validation, self.at_once, self.device, self.asked)
        half_lives = [values.cpu().numpy() for values in self.model.half_lives()]
        # They are infinite where a rate became zero.
        are_known = all(((values > 0) & np.isfinite(values)).all() for values in half_lives)
        is_usable = figures.finite and are_known
        _check_finite(figures.bits_per_byte if is_usable else math.nan, done.step)
        train_bpb = None
        if done.loss_count:
            train_bpb = done.loss_sum / done.loss_count / NATS_PER_BIT
        row: dict[str, Any] = {
            "step": done.step,
            "bytes": done.step * train.batch * train.context,
            "train_bpb": train_bpb,
            "val_bpb": figures.bits_per_byte,
        }
        if self.floor is not None:
            row["excess_bpb"] = figures.bits_per_byte - self.floor
        row["learning_rate"] = self.rate
        if not self.model.config.causal:
            row["label"] = NOT_CAUSAL
        row |= memory(self.model, half_lives, train.context) | figures.to_row()
        self.curves.evaluation(row, half_lives, self.seconds, self.note)
        # Rows before the checkpoint: one too many after a kill is cut, one too few could not be
        # made again.
        self.progress = replace(self.task.folder.append(row, done), loss_sum=0.0, loss_count=0)
        self.save()
        self.rows.append(row)
        return row

    def save(self) -> None:
        """Checkpoint the present state.

        Raises FloatingPointError, and leaves the earlier checkpoint, where weights are NaN: nothing
        could go on from them.
        """
        self.settle()
        broken = first_nan(dict(self.model.named_parameters()))
        if broken:
            raise FloatingPointError(
                f"the run diverged: NaN in {broken} at step {self.progress.step}; lower"
                " train.learning_rate"
            )
        # What follows the checkpoint is taken back, what comes before is not made again.
        self.curves.writer.flush()
        self.progress = replace(self.progress, seconds=self.seconds)
        self._clock = time.perf_counter()
        save_checkpoint(
            self.task.folder.checkpoint,
            self.model,
            self.optimizer,
            self.progress,
            self.config,
            self.state,
        )

    def run(self, stopped: Callable[[], bool], progress_bar: bool) -> None:
        """Train and evaluate to the last step.

        Raises KeyboardInterrupt, with the last step saved, once `stopped` is true, and
        FloatingPointError.
        """
        total = self.train.total_steps
        every = self.train.eval_every
        if not self.rows:
            self.evaluate()
        shown = {"initial": self.progress.step, "desc": self.task.name, "unit": "step"}
        with (
            closing(self.curves),
            tqdm(total=total, disable=no_bar() if progress_bar else True, **shown) as bar,
        ):
            while self.progress.step < total:
                self.step()
                if self.device.type == "cpu":
                    # There is nothing to wait for, and small tensors that are kept split the heap.
                    self.settle()
                with without_terminal():
                    bar.update()
                if self.progress.step % every == 0 or self.progress.step == total:
                    told = told_losses(self.evaluate()) + self.note
                    line_beside_bars(told, sys.stderr)
                if stopped():
                    if self.task.folder.is_gone:
                        raise KeyboardInterrupt(
                            f"nothing is saved, since the run folder {self.task.folder.path} has"
                            " gone; run the same command again to start over"
                        )
                    self.save()
                    raise KeyboardInterrupt(
                        f"step {self.progress.step} is saved; run the same command again to go on"
                    )

    def result(self) -> dict[str, Any]:
        """The end of the run, in bits per byte; of recall, in bits per answer.

        Final and best validation, the one test figure, and what context is worth.
        """
        best = min(self.rows, key=lambda row: row["val_bpb"])
        last = self.rows[-1]
        if self.train.average:
            self._take_mean_weights()
        return {
            "status": FINISHED,
            "steps": self.progress.step,
            "bytes": last["bytes"],
            **self._final_validation(last),
            "best_val_bpb": best["val_bpb"],
            "best_step": best["step"],
            **self._test(),
            **self._use_of_context(),
            "seconds": self.seconds,
            "causal": self.model.config.causal,
            "error": None,
        }

    def _take_mean_weights(self) -> None:
        """Give the model the mean of its weights over the last steps."""
        with torch.no_grad():
            for parameter, state in self.optimizer.state.items():
                parameter.copy_(state[AVERAGE])

    def _final_validation(self, last: Mapping[str, Any]) -> dict[str, float]:
        """The loss of the last row, or that of the mean weights, or on more windows."""
        train = self.train
        if not (train.average or train.final_windows):
            return {"final_val_bpb": last["val_bpb"]}
        windows = self.validation
        asked = self.asked
        if train.final_windows:
            windows, asked = self.held_out("validation", train.final_windows)
        means: list[float] = []

        def watch(logits: Tensor, targets: Tensor) -> None:
            means.extend(losses_per_byte(logits, targets).mean(1).tolist())

        loss = bits_per_byte(self.model, windows, self.at_once, self.device, watch, asked)
        _check_finite(loss, self.progress.step)
        final = {"final_val_bpb": loss}
        if len(windows) > 1:
            final["final_val_error"] = float(np.std(means, ddof=1)) / math.sqrt(len(windows))
        return final

    def _test(self) -> dict[str, Any]:
        """The loss on the test windows, and of recall the share of answers that are right."""
        windows, asked = self.held_out("test", self.train.test_windows)
        hits = Hits()
        loss = bits_per_byte(self.model, windows, self.at_once, self.device, hits, asked)
        _check_finite(loss, self.progress.step)
        if self.recall is not None:
            return {"test_bpb": loss, "test_accuracy": hits.accuracy}
        return {"test_bpb": loss}

    def _use_of_context(self) -> dict[str, Any]:
        """Measure what earlier bytes are worth to a causal model, in the context and beyond it."""
        if not self.model.config.causal:
            return {}
        train = self.train
        text = self.task.splits.test
        name = self.task.condition.corpus.name
        floor = None if self.law is None else self.law.losses
        predict = predictor(self.model, self.device)
        patch = patch_of(self.model)
        found = dict(worth_of_context(predict, text, train, self.at_once, name, floor, patch))
        if self.recall is not None:
            found["recall"] = recall_results(predict, self.recall, self.at_once)
        elif times_of(train, None) > 1:
            found["beyond"] = reach(predict, text, train, self.at_once, patch)
        return found


def told_losses(row: Mapping[str, Any]) -> str:
    """The losses of an evaluation in one line."""
    losses = f"train {row['train_bpb']:.4f}, validation {row['val_bpb']:.4f} {loss_unit(row)}"
    if "val_accuracy" in row:
        losses += f", {100 * row['val_accuracy']:.1f} % of answers right"
    return f"step {row['step']}: {losses}"


def run_training(
    task: Task,
    progress_bar: bool = True,
    stop_with: int | None = None,
    logger: LoggerName | None = None,
) -> dict[str, Any]:
    """Train, or go on from the last checkpoint; returns the result.

    The scalars of its curves go to `logger` too. Raises KeyboardInterrupt after Ctrl-C (or when
    process `stop_with`, the parent, has ended), with the last step saved, and OSError where the
    folder has gone at the end. Any other failure is recorded in the run folder and raised.
    """
    folder = task.folder
    if logger:
        logger_library(logger)  # missing, it is no failure of the run
    with folder.lock():
        told = {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "registration": folder.registration,
        }
        code = origins(task.condition.code.values())
        folder.open(task.config, environment(task.train.threads) | told | code)
        if folder.status == FINISHED:
            return cast(dict[str, Any], folder.result)
        try:
            with _naming_what_needs_memory(task.train), stop_requests(stop_with) as stopped:
                training = Training(task, logger)
                training.run(stopped, progress_bar)
            result = training.result()  # which Ctrl-C ends at once: the last step is saved
        except Exception as error:
            status = DIVERGED if isinstance(error, FloatingPointError) else FAILED
            trace = "".join(traceback.format_exception(error))
            if not folder.is_gone:
                folder.finish({"status": status, "error": trace})
            raise
        if folder.is_gone:  # a result alone, in a folder made anew, would stand for a whole run
            raise FileNotFoundError(
                errno.ENOENT,
                "the folder of the run has gone, and its result with it",
                str(folder.path),
            )
        folder.finish(result)
        return result


@contextmanager
def _naming_what_needs_memory(train: TrainSpec) -> Iterator[None]:
    """A MemoryError that names options, where a model and its steps do not fit into memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        said = shortened(str(error), 120) or "Python's memory is used up"
        raise MemoryError(
            f"{said}; lower train.batch, got {train.batch}, or train.context, got"
            f" {train.context}, or take a smaller model"
        ) from error


def summary(name: str, result: Mapping[str, Any]) -> str:
    """The result of the run of that name in one line."""
    return (
        f"{name}: {result['steps']} steps, validation {result['final_val_bpb']:.4f} (best"
        f" {result['best_val_bpb']:.4f} at step {result['best_step']}), test"
        f" {result['test_bpb']:.4f} {loss_unit(result)}, {result['seconds']:.0f}"
        f" s{label(result['causal'])}"
    )


def _check_finite(value: float, step: int) -> None:
    """FloatingPointError for a loss after `step` steps that is NaN or infinite."""
    if not math.isfinite(value):
        raise FloatingPointError(
            f"the run diverged: {value} at step {step}; lower train.learning_rate"
        )


@contextmanager
def stop_requests(parent: int | None = None) -> Iterator[Callable[[], bool]]:
    """Tell, between steps, whether SIGINT or SIGTERM has arrived or the process `parent` has ended.

    SIGHUP, of a terminal that is closed, counts too, unless nohup has it ignored. On Windows
    parents are not watched: in a virtual environment the parent is a launcher, and its number
    stays.
    """
    received: list[int] = []
    parent = parent if os.name == "posix" else None
    signals = [signal.SIGINT, signal.SIGTERM]
    if os.name == "posix" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    # An exception from a handler could end a step, or a write, halfway.
    previous = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in signals
    }
    try:
        yield lambda: bool(received) or (parent is not None and os.getppid() != parent)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
