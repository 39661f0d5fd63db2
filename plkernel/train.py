"""python -m plkernel.train SPEC: one run of one condition, with TensorBoard, checkpoints and resume."""

import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from plkernel import corpora
from plkernel.checkpoint import Progress, load_checkpoint, save_checkpoint
from plkernel.corpora import Corpus, Splits
from plkernel.data import check_length, fixed_windows, training_windows
from plkernel.environment import environment
from plkernel.kernels.scan import choose_backend
from plkernel.models.patching import NOT_CAUSAL
from plkernel.models.ssm import BYTES, SSM, SSMConfig
from plkernel.run import RunFolder
from plkernel.spec import ModelSpec, Spec, TrainSpec
from plkernel.storage import read_lines
from plkernel.studies import FAILED, FINISHED, METRICS, run_folder

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
NATS_PER_BIT = math.log(2)


@dataclass(frozen=True)
class Task:
    """One run: an arm of a spec at one seed, on an opened corpus, in a folder."""

    spec: Spec
    arm: str
    seed: int
    corpus: Corpus
    splits: Splits
    folder: RunFolder

    @property
    def config(self) -> dict[str, Any]:
        """Everything that determines the run's numbers; the run folder refuses another."""
        spec = self.spec
        corpus = {**spec.corpus.model_dump(), "size": self.corpus.size, "sha256": self.corpus.sha256}
        return {
            "study": spec.name,
            "arm": self.arm,
            "seed": self.seed,
            "corpus": corpus,
            "model": {**spec.model.model_dump(), "parameters": parameter_count(spec.model)},
            "arm_options": spec.arm(self.arm).model_dump(),
            "train": spec.train.model_dump(exclude={"device"}),
        }


def prepare(spec: Spec, arm: str, seed: int, out: Path) -> Task:
    """Open the corpus and check that it fits; nothing is written yet. Raises ValueError on bad input."""
    spec.arm(arm)
    check_machine(spec.train)
    corpus, splits = open_corpus(spec)
    return Task(spec, arm, seed, corpus, splits, RunFolder(run_folder(out, arm, seed)))


def open_corpus(spec: Spec) -> tuple[Corpus, Splits]:
    """The corpus of a spec and its three blocks, each checked to hold at least one window."""
    section = spec.corpus
    corpus = corpora.load(section.name, max_bytes=section.max_bytes, separator=section.separator, column=section.column)
    splits = corpus.splits(section.validation, section.test)
    for name in ("train", "validation", "test"):
        check_length(getattr(splits, name), spec.train.context, f"the {name} split of corpus {section.name!r}")
    return corpus, splits


def model_config(model: ModelSpec, backend: str | None = None) -> SSMConfig:
    """The model's own configuration from the spec's section."""
    return SSMConfig(model.dim, model.layers, model.gain, model.patching.size, model.patching.mode, backend)


def parameter_count(model: ModelSpec) -> int:
    """How many numbers the model learns, counted without allocating them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in SSM(model_config(model)).parameters())


def choose_device(name: str) -> torch.device:
    """The device called `name`, 'auto' being a GPU where there is one; ValueError where it does not exist."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' is not available here: use 'cpu' or 'auto'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def check_machine(train: TrainSpec) -> torch.device:
    """The device of a run; ValueError when it or the forced backend does not exist here."""
    device = choose_device(train.device)
    choose_backend(train.backend, device)
    return device


def build_optimizer(model: nn.Module, train: TrainSpec) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices only, never on decays, gains, biases and norms."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": train.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=(train.beta1, train.beta2), fused=True)


def learning_rate(train: TrainSpec, step: int, fraction: float) -> float:
    """The rate of step `step` (from 0), when `fraction` of the budget is spent.

    Linear warm-up to the peak, times 1 (constant) or a cosine from 1 to final_fraction over the whole budget.
    """
    warm = min(1.0, (step + 1) / (train.warmup + 1))
    if train.schedule == "constant":
        return train.learning_rate * warm
    floor = train.final_fraction
    return train.learning_rate * warm * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(fraction, 1.0))))


def bits_per_byte(model: nn.Module, windows: Tensor, batch: int, device: torch.device) -> float:
    """Mean -log2 p(byte) over every predicted byte of `windows` (n, context + 1)."""
    nats = 0.0
    with torch.no_grad():
        for chunk in windows.split(batch):
            with autocast(device):
                nats += float(next_byte_loss(model, chunk.to(device), "sum"))
    return nats / windows[:, 1:].numel() / NATS_PER_BIT


def next_byte_loss(model: nn.Module, windows: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of bytes 1..T of each window (B,T+1) given the bytes before them."""
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.float().reshape(-1, BYTES), windows[:, 1:].reshape(-1), reduction=reduction)


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 autocast on a GPU, nothing on a CPU."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


@contextmanager
def stop_requests(parent: int | None = None) -> Iterator[Callable[[], bool]]:
    """Tells whether SIGINT or SIGTERM has arrived, or `parent` has ended, so that a run can stop between steps."""
    received: list[int] = []

    def note(number: int, _: Any) -> None:
        received.append(number)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received) or (parent is not None and os.getppid() != parent)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Training:
    """One run in progress: model, optimiser, fixed windows, writer, and where it stands."""

    def __init__(self, task: Task) -> None:
        self.task, self.train = task, task.spec.train
        torch.set_num_threads(self.train.threads)
        self.device = choose_device(self.train.device)
        config = model_config(task.spec.model, self.train.backend)
        nodes = task.spec.arm(task.arm).nodes(task.spec.model)
        self.model = SSM(config).initialise_(task.seed, nodes).to(self.device)
        self.optimizer = build_optimizer(self.model, self.train)
        self.validation = fixed_windows(task.splits.validation, self.train.context, self.train.eval_windows)
        self.progress = Progress()
        if task.folder.checkpoint.exists():
            self.progress = load_checkpoint(task.folder.checkpoint, self.model, self.optimizer)
        task.folder.cut(self.progress.metrics_bytes, self.progress.timing_bytes)
        self.writer = _writer(task.folder.path, self.progress.step)
        self._clock = time.perf_counter()
        self.done = self.fraction >= 1

    @property
    def seconds(self) -> float:
        """Training and evaluation time so far, over all sittings."""
        return self.progress.seconds + time.perf_counter() - self._clock

    @property
    def fraction(self) -> float:
        """The spent share of the budget."""
        if self.train.steps is not None:
            return self.progress.step / self.train.steps
        return self.seconds / (60 * cast(float, self.train.minutes))

    def step(self) -> None:
        """One optimiser step on this step's windows."""
        number = self.progress.step
        rate = learning_rate(self.train, number, self.fraction)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        data = self.task.splits.train
        windows = training_windows(data, self.train.context, self.train.batch, self.task.seed, number)
        with autocast(self.device):
            loss = next_byte_loss(self.model, windows.to(self.device))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.train.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss became {value} at step {number + 1}: lower train.learning_rate")
        self.progress = replace(
            self.progress,
            step=number + 1,
            loss_sum=self.progress.loss_sum + value,
            loss_count=self.progress.loss_count + 1,
        )
        self.done = self.fraction >= 1

    def evaluate(self) -> dict[str, Any]:
        """Measure, write one row to each file and to TensorBoard, and save a checkpoint; returns the row."""
        done = self.progress
        train_bpb = done.loss_sum / done.loss_count / NATS_PER_BIT if done.loss_count else None
        val_bpb = bits_per_byte(self.model, self.validation, self.train.batch, self.device)
        half_lives = self.half_lives()
        row = {
            "step": done.step,
            "bytes": done.step * self.train.batch * self.train.context,
            "train_bpb": train_bpb,
            "val_bpb": val_bpb,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "half_life_quantiles": [np.quantile(h, QUANTILES).tolist() for h in half_lives],
        }
        seconds = self.seconds
        timing = {"step": done.step, "seconds": seconds, "bytes_per_second": row["bytes"] / seconds}
        self._to_tensorboard(row, timing, half_lives)
        metrics_bytes, timing_bytes = self.task.folder.append(row, timing)
        self.progress = replace(
            done, loss_sum=0.0, loss_count=0, metrics_bytes=metrics_bytes, timing_bytes=timing_bytes
        )
        self.save()
        return row

    def half_lives(self) -> list[np.ndarray]:
        """Half-lives of every block in bytes, ln 2 * P / lambda."""
        scale = NATS_PER_BIT * self.model.config.patch
        return [scale / r.log_rate.detach().double().exp().cpu().numpy() for r in self.model.recurrences()]

    def save(self) -> None:
        """Checkpoint the present state."""
        self.progress = replace(self.progress, seconds=self.seconds)
        self._clock = time.perf_counter()
        save_checkpoint(self.task.folder.checkpoint, self.model, self.optimizer, self.progress)

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
            "seconds": self.seconds,
            "causal": self.model.config.causal,
            "error": None,
        }
        self._hparams(result)
        self.writer.close()
        return result

    def _to_tensorboard(self, row: dict[str, Any], timing: dict[str, Any], half_lives: list[np.ndarray]) -> None:
        axes = {"": row["step"], "_by_bytes": row["bytes"], "_by_seconds": round(timing["seconds"])}
        for split in ("train", "val"):
            for suffix, position in axes.items():
                if row[f"{split}_bpb"] is not None:
                    self.writer.add_scalar(f"{split}/bpb{suffix}", row[f"{split}_bpb"], position)
        self.writer.add_scalar("speed/bytes_per_second", timing["bytes_per_second"], row["step"])
        self.writer.add_scalar("train/learning_rate", row["learning_rate"], row["step"])
        for index, values in enumerate(half_lives):
            self.writer.add_histogram(f"log2_half_life/block_{index}", np.log2(values), row["step"])
        self.writer.flush()

    def _hparams(self, result: dict[str, Any]) -> None:
        config = self.task.config
        flat = {"arm": self.task.arm, "seed": self.task.seed, **config["arm_options"]}
        flat |= {key: config["train"][key] for key in ("learning_rate", "batch", "context", "weight_decay")}
        flat |= {key: config["model"][key] for key in ("dim", "layers", "gain", "parameters")}
        metrics = {f"hparam/{key}": result[key] for key in ("final_val_bpb", "best_val_bpb", "test_bpb")}
        self.writer.add_hparams(flat, metrics, run_name=".", global_step=result["steps"])


def run_training(task: Task, progress_bar: bool = True, stop_with: int | None = None) -> dict[str, Any]:
    """Train, or go on from the last checkpoint; returns the result.

    Raises KeyboardInterrupt after Ctrl-C (or when process `stop_with`, the parent, has ended), with the last step
    saved. Any other failure is recorded in the run folder and raised.
    """
    with task.folder.lock():
        task.folder.open(task.config, environment(task.spec.train.threads))
        if (ended := task.folder.result) is not None and ended["status"] == FINISHED:
            return ended
        try:
            with stop_requests(stop_with) as stopped:
                result = _train(Training(task), stopped, progress_bar)
        except Exception:
            task.folder.finish({"status": FAILED, "error": traceback.format_exc()})
            raise
        task.folder.finish(result)
        return result


def _train(training: "Training", stopped: Callable[[], bool], progress_bar: bool) -> dict[str, Any]:
    """Step and evaluate until the budget is spent."""
    task, train = training.task, training.train
    rows = read_lines(task.folder.path / METRICS)
    if not rows:
        rows.append(training.evaluate())
    bar = tqdm(
        total=train.steps,
        initial=training.progress.step,
        desc=f"{task.arm} seed {task.seed}",
        unit="step",
        disable=None if progress_bar else True,
    )
    with bar:
        while not training.done:
            training.step()
            bar.update()
            if training.progress.step % train.eval_every == 0 or training.done:
                rows.append(training.evaluate())
                tqdm.write(_progress_line(rows[-1]), file=sys.stderr)
            if stopped():
                training.save()
                raise KeyboardInterrupt(f"step {training.progress.step} is saved; run the same command again to go on")
    return training.result(rows)


def _progress_line(row: dict[str, Any]) -> str:
    return f"step {row['step']}: train {row['train_bpb']:.4f}, validation {row['val_bpb']:.4f} bits per byte"


def _writer(folder: Path, step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)


def command(
    spec: Annotated[Spec, tyro.conf.arg(name="")],
    arm: str | None = None,
    seed: int | None = None,
    out: Path | None = None,
    progress: bool = True,
    stop_with: int | None = None,
) -> None:
    """Train one arm at one seed; the same command again resumes it. Prints the result.

    Args:
        arm: Which condition; the spec's baseline if left out.
        seed: Which seed; the spec's first if left out.
        out: Folder of the study; runs/out/NAME if left out.
        progress: Show a progress bar (on a terminal).
        stop_with: Stop, saved, when this parent process has ended; plkernel.experiment sets it.
    """
    arm = arm or spec.baseline
    seed = spec.seeds[0] if seed is None else seed
    folder = out or Path("runs/out") / spec.name
    task = prepare(spec, arm, seed, folder)
    result = run_training(task, progress, stop_with)
    label = "" if result["causal"] else f"  [{NOT_CAUSAL}]"
    print(
        f"{arm} seed {seed}: {result['steps']} steps, validation {result['final_val_bpb']:.4f} "
        f"(best {result['best_val_bpb']:.4f} at step {result['best_step']}), test {result['test_bpb']:.4f} "
        f"bits per byte, {result['seconds']:.0f} s{label}"
    )
    print(f"written: {task.folder.path}", file=sys.stderr)


if __name__ == "__main__":
    from plkernel import spec_cli

    spec_cli.main(command)
