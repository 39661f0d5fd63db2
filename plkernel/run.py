"""The folder of one run: who it is, what it has measured, and how it is taken up again."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from filelock import FileLock, Timeout

from plkernel.spec import Arm, CorpusSpec, ModelSpec, Section, TrainSpec
from plkernel.storage import load_json, save_json
from plkernel.studies import CONFIG, DIVERGED, ENVIRONMENT, FAILED, FINISHED, METRICS, RESULT, TIMING

CHECKPOINT = "checkpoint.safetensors"
LOCK = ".lock"
SECTIONS: dict[str, type[Section]] = {
    "corpus": CorpusSpec,
    "model": ModelSpec,
    "arm_options": Arm,
    "train": TrainSpec,
}
LONGEST_VALUE = 80  # characters of a value that differs
LOCK_PATIENCE = 20.0  # seconds: a worker whose parent was killed ends within a step


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
        """Create the folder, or check that it belongs to the run described by `config`; ValueError if to another."""
        self.check(config)
        if not (self.path / CONFIG).exists():
            save_json(self.path / CONFIG, config)
        save_json(self.path / ENVIRONMENT, environment)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process; ValueError when another still holds it after a few seconds.

        The system releases the lock with the process, however that ends.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / LOCK, timeout=LOCK_PATIENCE)
        try:
            lock.acquire()
        except Timeout:
            raise ValueError(f"run folder {self.path} is in use by another process: wait for it or stop it") from None
        try:
            yield
        finally:
            lock.release()

    def append(self, metrics: Mapping[str, Any], timing: Mapping[str, Any]) -> tuple[int, int]:
        """Add one row to both row files, flushed to disk; their lengths in bytes."""
        return _append(self.path / METRICS, metrics), _append(self.path / TIMING, timing)

    def cut(self, metrics_bytes: int, timing_bytes: int) -> None:
        """Drop rows written after the checkpoint that a resumed run starts from."""
        for name, length in ((METRICS, metrics_bytes), (TIMING, timing_bytes)):
            path = self.path / name
            if path.exists() and path.stat().st_size < length:
                raise ValueError(f"{path} is shorter than its checkpoint says: remove {self.path} to start over")
            if path.exists():
                os.truncate(path, length)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Record how the run ended."""
        save_json(self.path / RESULT, dict(result))


def with_defaults(config: Any) -> Any:
    """A saved configuration, with the options that its version did not have at their defaults.

    An option that is added later must therefore default to what was done before it.
    """
    if not isinstance(config, dict):
        return config
    known = {
        name: section.model_construct().model_dump(mode="json") | config[name]
        for name, section in SECTIONS.items()
        if isinstance(config.get(name), dict)
    }
    return config | known


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """Where two configurations differ, as 'train.steps was 300, is now 400'."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted(old.keys() | new.keys())
        return [
            line
            for name in names
            for line in differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)
        ]
    return (
        []
        if old == new
        else [f"{key} was {shorten(repr(old), LONGEST_VALUE)}, is now {shorten(repr(new), LONGEST_VALUE)}"]
    )


def _append(path: Path, row: Mapping[str, Any]) -> int:
    with path.open("ab") as handle:
        handle.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        handle.flush()
        os.fsync(handle.fileno())
        return handle.tell()
