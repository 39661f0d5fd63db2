"""What TensorBoard shows of a run.

Its groups of cards stand in alphabetical order, and their names are chosen for it: train and val with the losses
against steps, versus_bytes and versus_seconds with the same losses, watch (what goes wrong first), weights (what
training does to them), when_ended.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plkernel.analysis.trained.memory import kernel_exponents, slope_range
from plkernel.models.words import NOT_CAUSAL
from plkernel.run import hparams

Row = Mapping[str, Any]
LEAKING = "bpb_" + NOT_CAUSAL.replace(", ", "_").replace(" ", "_")


class Curves:
    """Bits per byte against step, bytes and seconds; saturation, amplification and speed; half-lives and kernels.

    At the end the hyperparameters with their result.
    """

    def __init__(self, folder: Path, causal: bool, rows: Sequence[tuple[Row, Row]]) -> None:
        """rows: those of the two files that the run goes on from; what TensorBoard shows beyond them is taken back."""
        from torch.utils.tensorboard import SummaryWriter

        first = rows[-1][0]["step"] + 1 if rows else 0
        self.writer = SummaryWriter(str(folder), purge_step=first)
        self.name = "bpb" if causal else LEAKING
        for row, timing in rows:
            self._versus(row, timing, first)  # taken back with the rest: bytes and seconds stand where steps do

    def add(self, row: Row, timing: Row, half_lives: Sequence[np.ndarray]) -> None:
        """One evaluation: its rows of metrics.jsonl and timing.jsonl, and the half-lives of every block in bytes."""
        for split, loss in _losses(row):
            self.writer.add_scalar(f"{split}/{self.name}", loss, row["step"])
        self._versus(row, timing)
        for tag, value in (*_watched(row, timing), *_slopes(row["kernel"])):
            self.writer.add_scalar(tag, value, row["step"])
        for index, values in enumerate(half_lives):
            self.writer.add_histogram(f"weights/log2_half_life_block_{index}", np.log2(values), row["step"])
        self.writer.flush()

    def _versus(self, row: Row, timing: Row, first: int = 0) -> None:
        """The losses of one evaluation against bytes and seconds, those from the position `first` on."""
        for axis, position in (("bytes", row["bytes"]), ("seconds", round(timing["seconds"]))):
            if position >= first:
                for split, loss in _losses(row):
                    self.writer.add_scalar(f"versus_{axis}/{split}_{self.name}", loss, position)

    def close(self, config: Row, result: Row) -> None:
        """The hyperparameters of the run beside its result, and the end of the file."""
        hparams.write(self.writer, config, result)
        self.writer.close()


def _losses(row: Row) -> Iterator[tuple[str, float]]:
    for split in ("train", "val"):
        if (loss := row[f"{split}_bpb"]) is not None:
            yield split, loss


def _watched(row: Mapping[str, Any], timing: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    saturation = row["saturation"]
    for name in ("entropy", "largest_probability", "saturated_share"):
        yield f"watch/{name}", saturation[name]
    yield "watch/logit_range", saturation["logit_max"] - saturation["logit_min"]
    yield "watch/learning_rate", row["learning_rate"]
    yield "watch/bytes_per_second", timing["bytes_per_second"]
    for index, value in enumerate(row.get("amplification", ())):
        yield f"watch/amplification_block_{index}", value


def _slopes(kernel: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """How steeply the kernel of every block falls, where the context holds enough lags to say it."""
    if slope_range(kernel["lags"]) is not None:
        for index, value in enumerate(kernel_exponents(kernel["lags"], kernel["blocks"])):
            yield f"weights/kernel_exponent_block_{index}", float(value)
