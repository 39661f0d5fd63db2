"""Learning curves of runs, and the mean of an arm over its seeds, for TensorBoard and a logger.

`loss/train` is the loss of every tenth step,
`loss/validation` that of an evaluation, both in bits per byte; half-lives are in bytes. A logger
(wandb or trackio) is somebody else's library, and receives the same scalars.
"""

import importlib
import json
import tempfile
import threading
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from plkernel.common.files import MEAN, atomic_write, naming, refuse_links

LoggerName = Literal["wandb", "trackio"]
EVENTS = "events.out.tfevents."
"""Head of the names of TensorBoard's files."""
PREDICTION = ("entropy", "saturated_share")
"""Curves of the saturation of the predictions."""


def logger_library(name: LoggerName) -> Any:
    """Import the library of a logger; ValueError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(
            f'logger {name!r}: it is not installed; pip install "plkernel[{name}]"'
        ) from None


@cache
def _silence_writers() -> None:
    """Print no traceback of a thread of TensorBoard that cannot write, once for the process.

    Its writer raises the same error at the next call, where it belongs.
    """
    told = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        is_writer = type(args.thread).__module__.startswith("tensorboard.")
        if not (is_writer and isinstance(args.exc_value, OSError)):
            told(args)

    threading.excepthook = hook


class CurveWriter:
    """The scalars of one run, for TensorBoard in its folder and for a logger where one is named.

    start   first step that is still to come; later points in the folder are taken back
    config  of the run, whose study is the project of the logger and whose arm is the group. A run
            that goes on is the same run there
    logger  None for none
    """

    def __init__(
        self, folder: Path, start: int, config: Mapping[str, Any], logger: LoggerName | None = None
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        _silence_writers()
        self.writer = SummaryWriter(str(folder), purge_step=start)
        self.run = None
        if logger:
            whose = {
                "project": config["study"],
                "group": config["arm"],
                "name": f"{config['arm']} seed {config['seed']}",
            }
            if logger == "wandb":  # trackio goes by the name
                text = json.dumps(config, sort_keys=True)
                whose["id"] = f"{zlib.crc32(text.encode()):08x}"
            self.run = logger_library(logger).init(**whose, config=dict(config), resume="allow")

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add the values of a step; OSError names the folder where the disk is full."""
        with naming(self.folder):
            for tag, value in scalars.items():
                self.writer.add_scalar(tag, value, step)
        if self.run is not None:
            self.run.log(dict(scalars), step=step)

    def evaluation(
        self, row: Mapping[str, Any], half_lives: Sequence[np.ndarray], seconds: float, note: str
    ) -> None:
        """Add an evaluation; the losses of step 0, 8 bits per byte, would flatten the curves.

        note: behind the names of the losses, of a model that sees ahead.
        """
        scalars: dict[str, float] = {}
        if row["step"]:
            scalars[f"loss/validation{note}"] = row["val_bpb"]
            if "excess_bpb" in row:
                scalars[f"loss/validation above the floor{note}"] = row["excess_bpb"]
        for name in PREDICTION:
            scalars[f"prediction/{name.replace('_', ' ')}"] = row["saturation"][name]
        if "val_accuracy" in row:
            scalars["accuracy/validation"] = row["val_accuracy"]
        scalars["learning rate"] = row["learning_rate"]
        scalars["bytes per second"] = row["bytes"] / seconds
        for layer, values in enumerate(half_lives):
            scalars[f"half-life/layer {layer} median"] = float(np.median(values))
            with naming(self.folder):
                self.writer.add_histogram(
                    f"half-life/layer {layer}, log2", np.log2(values), row["step"]
                )
        self.add(row["step"], scalars)

    def close(self) -> None:
        """Write what is left, unless the folder has gone, and end the run of the logger."""
        if self.folder.is_dir():
            with naming(self.folder):
                self.writer.close()
        if self.run is not None:
            self.run.finish()


def save_mean(arm: Path, seeds: Sequence[int]) -> None:
    """Write the mean of the curves of the runs arm/seed-K to arm/mean.

    Nothing is written where the mean of these curves is there already. A point is written where
    every seed has one. Runs that were taken from a record have no curves, and no mean.
    """
    from torch.utils.tensorboard import SummaryWriter

    refuse_links(arm, arm / MEAN)
    folders = [arm / f"seed-{seed}" for seed in sorted(seeds)]
    known = []
    for folder in folders:
        files = sorted(folder.glob(f"{EVENTS}*"))
        known.append([(file.name, file.stat().st_size) for file in files])
    target = arm / MEAN / f"{EVENTS}{zlib.crc32(repr([folders, known]).encode()):08x}"
    if target.exists() or not all(known):
        return
    points = _points(folders)
    with tempfile.TemporaryDirectory() as made:
        with SummaryWriter(made) as writer:
            for (step, tag), values in sorted(points.items()):
                if len(values) == len(folders):
                    writer.add_scalar(tag, fmean(values), step)
        [file] = Path(made).iterdir()
        atomic_write(target, file.read_bytes())
    for old in set(target.parent.glob(f"{EVENTS}*")) - {target}:  # of fewer seeds, or of other runs
        old.unlink()


def _points(folders: Sequence[Path]) -> dict[tuple[int, str], list[float]]:
    """The values of every step and tag, one of each run that has it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tb_logging

    tb_logging.get_logger().setLevel("ERROR")  # it warns of every run that was resumed
    points = defaultdict[tuple[int, str], list[float]](list)
    for folder in folders:
        events = EventAccumulator(str(folder), {"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                points[event.step, tag].append(event.value)
    return points
