"""What it takes to train runs of equal shape as one: operators launched and seconds per step, against one by one.

    python runs/together.py [--runs 8] [--dim 32] [--kind ssm] [--device auto]

Prints one line for each way. The operators are counted as torch dispatches them, without those that give a view; the
seconds are the median of rounds in which the ways take turns.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from plkernel.config.condition import resolve
from plkernel.config.corpus import CorpusSpec
from plkernel.config.model import ModelSpec
from plkernel.config.train import TrainSpec
from plkernel.data.corpora import Corpus, Splits
from plkernel.together.training import Batch
from plkernel.training.folder import RunFolder
from plkernel.training.loop import Task
from plkernel.training.build import choose_device
from plkernel.training.loop import Training

ROUNDS = 20


class Launches(TorchDispatchMode):
    """Counts operators that compute."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        view = any(each.alias_info is not None and not each.alias_info.is_write for each in operator._schema.returns)
        self.count += not view
        return operator(*args, **(kwargs or {}))


def opened(options: argparse.Namespace, folder: Path) -> list[Training]:
    """As many runs as asked for, of one arm at several seeds, on random bytes."""
    data = np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8)
    model = ModelSpec(kind=options.kind, dim=options.dim, layers=options.layers)
    train = TrainSpec(steps=10**6, context=options.context, batch=options.batch, device=options.device)
    condition = resolve(model, train=train, corpus=CorpusSpec(name="random"))
    corpus, splits = Corpus("random", "random", folder, data.size, "", 1), Splits(data, data, data)
    tasks = [Task(condition, seed, corpus, splits, RunFolder(folder / str(seed))) for seed in range(options.runs)]
    for task in tasks:
        task.folder.path.mkdir()
    return [Training(task) for task in tasks]


def seconds(call: Callable[[], object], wait: Callable[[], object]) -> float:
    """Of one call, until the device is done."""
    wait()
    begin = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - begin


def main() -> None:
    """Count, then time in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("runs", 8), ("dim", 32), ("layers", 4), ("context", 128), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kind", default="ssm")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    options = parser.parse_args()
    device = choose_device(options.device)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        alone, batch = opened(options, Path(one)), Batch(opened(options, Path(other)))
        ways = {"one by one": lambda: [run.step() for run in alone], "together": batch.step}
        counts = {}
        for name, step in ways.items():
            step()  # the first one makes the moments of the optimisers
            with Launches() as launches:
                step()
            counts[name] = launches.count
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, step in ways.items():
                times[name].append(seconds(step, wait))
    print(f"{options.runs} runs of {options.kind}, width {options.dim}, on {device.type}: one step of all")
    for name in ways:
        print(f"{name:>10}: {counts[name]:6d} operators, {1e3 * median(times[name]):8.2f} ms")


if __name__ == "__main__":
    main()
