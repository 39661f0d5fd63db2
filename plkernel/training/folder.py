"""The folder of one run: who it is, what it has measured, and how it is taken up again."""

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

from plkernel.common.files import load_json, read_lines, refuse_links_of_run, save_json
from plkernel.common.plain import same
from plkernel.config.study import with_defaults
from plkernel.results import rows
from plkernel.results.layout import (
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

LONGEST_REASON = 300  # characters of an error
LONGEST_VALUE = 80  # characters of a value that differs
LOCK_PATIENCE = 20.0  # seconds: a worker whose parent was killed ends within a step


@dataclass(frozen=True)
class Progress:
    """Where a run stands after `step` steps.

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
        """What an ended run recorded; None while it is unfinished. ValueError when the file is damaged."""
        path = self.path / RESULT
        if not path.exists():
            return None
        result = load_json(path)
        if not isinstance(result, dict) or result.get("status") not in (FINISHED, DIVERGED, FAILED):
            raise ValueError(f"{path} does not say how the run ended: remove it to go on from the last checkpoint")
        return result

    @property
    def finished(self) -> bool:
        """Whether the run has ended well."""
        result = self.result
        return result is not None and result["status"] == FINISHED

    @property
    def diverged(self) -> bool:
        """Whether the run has ended in a loss that is no number."""
        result = self.result
        return result is not None and result["status"] == DIVERGED

    @property
    def failure(self) -> str:
        """How a run that is not finished has ended, as in 'diverged at step 6'."""
        result = self.result
        if result is None:
            return "did not finish"
        if result["status"] == DIVERGED:
            found = re.search(r"at step \d+", result.get("error") or "")
            return f"diverged {found.group() if found else ''}".rstrip()
        reason = (result.get("error") or "no reason recorded").strip().splitlines()[-1]
        return f"failed ({shorten(reason, LONGEST_REASON)})"

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise ValueError when the folder holds the run of another configuration."""
        path = self.path / CONFIG
        if not path.exists():
            return
        different = differences(with_defaults(load_json(path)), json.loads(json.dumps(config)))
        if different:
            raise ValueError(
                f"run folder {self.path} was made by another spec ({'; '.join(different[:4])}): "
                "use another name or --out, or remove the folder"
            )

    def open(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Create the folder, or check that it belongs to the run described by `config`; ValueError if to another.

        How an earlier attempt failed or diverged is forgotten.
        """
        self.check(config)
        if not self.finished:
            (self.path / RESULT).unlink(missing_ok=True)
        if not (self.path / CONFIG).exists():
            save_json(self.path / CONFIG, config)
        save_json(self.path / ENVIRONMENT, environment)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process; ValueError when another still holds it after a few seconds.

        Also where the folder, or a file in it, is a symbolic link: what is received is not written through.
        """
        refuse_links_of_run(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path, f"run folder {self.path}", LOCK_PATIENCE):
            yield

    def append(self, metrics: Mapping[str, Any], timing: Mapping[str, Any], progress: Progress) -> Progress:
        """Add one row to both row files, flushed to disk; `progress` with where they now end."""
        metrics_bytes, metrics_crc = rows.append(self.path / METRICS, metrics, progress.metrics_crc or 0)
        timing_bytes, timing_crc = rows.append(self.path / TIMING, timing, progress.timing_crc or 0)
        return replace(
            progress,
            metrics_bytes=metrics_bytes,
            metrics_crc=metrics_crc,
            timing_bytes=timing_bytes,
            timing_crc=timing_crc,
        )

    def cut(self, progress: Progress, every: int) -> Progress:
        """Drop rows written after the checkpoint that a resumed run starts from; `progress` with their CRC-32s.

        Raises ValueError where the row files are not those of a run that was evaluated `every` so many steps.
        """
        steps = rows.expected_steps(every, progress.evaluated)
        metrics_crc = rows.check(self.path / METRICS, progress.metrics_bytes, progress.metrics_crc, steps)
        timing_crc = rows.check(self.path / TIMING, progress.timing_bytes, progress.timing_crc, steps)
        rows.cut(self.path / METRICS, progress.metrics_bytes)
        rows.cut(self.path / TIMING, progress.timing_bytes)
        return replace(progress, metrics_crc=metrics_crc, timing_crc=timing_crc)

    def rows(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The rows of both files in pairs, one for every evaluation."""
        return list(zip(read_lines(self.path / METRICS), read_lines(self.path / TIMING), strict=True))

    def fail(self, error: Exception) -> None:
        """Record what the run has failed with; it has diverged where that is a loss that is no number."""
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
    """Where two configurations differ, as 'train.steps was 300, is now 400'; numbers may differ by rounding."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted(old.keys() | new.keys())
        return [
            line
            for name in names
            for line in differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)
        ]
    return (
        []
        if same(old, new)
        else [f"{key} was {shorten(repr(old), LONGEST_VALUE)}, is now {shorten(repr(new), LONGEST_VALUE)}"]
    )
