"""The folder of one run: whose it is, its rows, how it ended, and who holds it."""

import json
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from filelock import FileLock, Timeout

from plkernel.common.files import load_json, read_lines, refuse_links_of_run, same, save_json
from plkernel.common.layout import (
    CHECKPOINT,
    CONFIG,
    DIVERGED,
    ENVIRONMENT,
    FAILED,
    FINISHED,
    LOCK,
    METRICS,
    RESULT,
    TIMING,
)
from plkernel.config.study import with_defaults
from plkernel.results import rows

LONGEST_REASON, LONGEST_VALUE = 300, 80  # characters of an error, and of a value that differs
LOCK_PATIENCE = 20.0  # seconds: a worker whose parent was killed ends within a step


@dataclass(frozen=True)
class Progress:
    """The point that a run has reached after `step` steps.

    loss_sum and loss_count: nats and steps since the last evaluation; seconds: training time so far; metrics_bytes
    and timing_bytes: lengths of the two row files, which a resumed run cuts back to, with the CRC-32 of what they hold
    (None in checkpoints of earlier versions).
    """

    step: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    seconds: float = 0.0
    metrics_bytes: int = 0
    timing_bytes: int = 0
    metrics_crc: int | None = 0
    timing_crc: int | None = 0

    @property
    def evaluated(self) -> int:
        """The step of the last evaluation, and so of the last row."""
        return self.step - self.loss_count


@dataclass(frozen=True)
class RunFolder:
    """The files of one run under `path`."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        return self.path / CHECKPOINT

    @property
    def result(self) -> dict[str, Any] | None:
        """The record of an ended run; None while it is unfinished. ValueError when the file is damaged."""
        path = self.path / RESULT
        if not path.exists():
            return None
        result = load_json(path)
        if not isinstance(result, dict) or result.get("status") not in (FINISHED, DIVERGED, FAILED):
            raise ValueError(f"{path} does not say how the run ended: remove it to go on from the last checkpoint")
        return result

    @property
    def status(self) -> str | None:
        """FINISHED, DIVERGED or FAILED; None while the run is unfinished."""
        return (self.result or {}).get("status")

    @property
    def finished(self) -> bool:
        return self.status == FINISHED

    @property
    def diverged(self) -> bool:
        return self.status == DIVERGED

    @property
    def failure(self) -> str:
        """The end of a run that has not finished, as in 'diverged at step 6'."""
        result = self.result
        if result is None:
            return "did not finish"
        error = result.get("error") or "no reason recorded"
        if result["status"] == DIVERGED:
            step = re.search(r" at step \d+", error)
            return f"diverged{step.group() if step else ''}"
        return f"failed ({shorten(error.strip().splitlines()[-1], LONGEST_REASON)})"

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise ValueError when the folder holds the run of another configuration."""
        path = self.path / CONFIG
        if path.exists() and (different := other_run(load_json(path), config)):
            raise ValueError(
                f"run folder {self.path} was made by another spec ({different}): use another name or --out, or remove "
                "the folder"
            )

    def open(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Create the folder, or check that it is that of the run of `config`, whose failed attempt is forgotten."""
        self.check(config)
        if not self.finished:
            (self.path / RESULT).unlink(missing_ok=True)
        if not (self.path / CONFIG).exists():
            save_json(self.path / CONFIG, config)
        save_json(self.path / ENVIRONMENT, environment)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process; ValueError for links in it, or when another process keeps holding it."""
        refuse_links_of_run(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path, f"run folder {self.path}", LOCK_PATIENCE):
            yield

    def append(self, metrics: Mapping[str, Any], timing: Mapping[str, Any], progress: Progress) -> Progress:
        """Add one row to both row files, flushed to disk; `progress` with where they now end."""
        length, crc = rows.append(self.path / METRICS, metrics, progress.metrics_crc or 0)
        progress = replace(progress, metrics_bytes=length, metrics_crc=crc)
        length, crc = rows.append(self.path / TIMING, timing, progress.timing_crc or 0)
        return replace(progress, timing_bytes=length, timing_crc=crc)

    def cut(self, progress: Progress, every: int) -> Progress:
        """Drop the rows written after the checkpoint that a run goes on from; `progress` with their CRC-32s.

        Raises ValueError where the row files are not those of a run that was evaluated `every` so many steps.
        """
        steps = rows.expected_steps(every, progress.evaluated)
        metrics_crc = rows.check(self.path / METRICS, progress.metrics_bytes, progress.metrics_crc, steps)
        timing_crc = rows.check(self.path / TIMING, progress.timing_bytes, progress.timing_crc, steps)
        rows.cut(self.path / METRICS, progress.metrics_bytes)
        rows.cut(self.path / TIMING, progress.timing_bytes)
        return replace(progress, metrics_crc=metrics_crc, timing_crc=timing_crc)

    def rows(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The rows of metrics.jsonl and timing.jsonl in pairs, one for every evaluation."""
        return list(zip(read_lines(self.path / METRICS), read_lines(self.path / TIMING), strict=True))

    def fail(self, error: Exception) -> None:
        """Record the error that ended the run: a loss that is no number is divergence."""
        status = DIVERGED if isinstance(error, FloatingPointError) else FAILED
        self.finish({"status": status, "error": "".join(traceback.format_exception(error))})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Record how the run ended."""
        save_json(self.path / RESULT, dict(result))


@contextmanager
def locked(folder: Path, name: str, patience: float = 0.0) -> Iterator[None]:
    """Hold `folder`, which messages call `name`; ValueError when another process still does after `patience` seconds.

    The system releases the lock with the process, however that ends.
    """
    lock = FileLock(folder / LOCK, timeout=patience)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(f"{name} is in use by another process: wait for it or stop it") from None
    try:
        yield
    finally:
        lock.release()


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """The differences of two plain values, as 'train.steps was 300, is now 400'; numbers may differ by rounding."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted(old.keys() | new.keys())
        inner = [differences(old.get(name), new.get(name), f"{key}.{name}" if key else name) for name in names]
        return [line for lines in inner for line in lines]
    values = (shorten(repr(value), LONGEST_VALUE) for value in (old, new))
    return [] if same(old, new) else ["{} was {}, is now {}".format(key, *values)]


def other_run(old: Any, new: Any) -> str:
    """The first four differences of two configurations of runs, '' for the same run; options it lacks have defaults."""
    return "; ".join(differences(*(with_defaults(json.loads(json.dumps(config))) for config in (old, new)))[:4])
