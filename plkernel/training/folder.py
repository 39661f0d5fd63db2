"""The folder of one run: configuration, rows, result, and the lock that keeps others out."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any
from zlib import crc32

from plkernel.common.files import (
    CHECKPOINT,
    CONFIG,
    DIVERGED,
    ENVIRONMENT,
    FAILED,
    FINISHED,
    METRICS,
    REGISTERED,
    RESULT,
    check_readable,
    differences,
    is_utf8,
    load_json,
    load_object,
    naming,
    refuse_links,
    save_json,
    shown,
)
from plkernel.common.locks import held
from plkernel.config.spec import with_defaults

FIGURES = ("steps", "bytes", "final_val_bpb", "best_val_bpb", "test_bpb", "seconds", "causal")
"""Keys that the result of every finished run has."""
MOST_DIFFERENCES = 4
"""Differences of two configurations that a message names."""
VERSION = ("commit", "source", "code")
"""Parts of an environment that say which code trained a run: plkernel's and other people's."""
LOCK_PATIENCE = 20.0
"""Seconds to wait for a lock: a worker whose parent was killed ends within a step."""


def loss_unit(figures: Mapping[str, Any]) -> str:
    """The unit of the losses of a row or a result: of a run on recall, of the answers alone.

    >>> loss_unit({"val_bpb": 2.5}), loss_unit({"val_bpb": 7.0, "val_accuracy": 0.0})
    ('bits per byte', 'bits per answer')
    """
    is_recall = "val_accuracy" in figures or "test_accuracy" in figures
    return "bits per answer" if is_recall else "bits per byte"


@dataclass(frozen=True)
class RunProgress:
    """The point that a run has reached after `step` steps.

    loss_sum       nats since the last evaluation, over `loss_count` steps
    seconds        training time so far
    metrics_bytes  length of the rows, to which a resumed run cuts them
    metrics_crc    CRC-32 of their content
    """

    step: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    seconds: float = 0.0
    metrics_bytes: int = 0
    metrics_crc: int = 0


@dataclass(frozen=True)
class RunFolder:
    """The files of one run under `path`."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        """Weights, moments and progress."""
        return self.path / CHECKPOINT

    @property
    def is_gone(self) -> bool:
        """True once somebody has removed the folder."""
        return not self.path.is_dir()

    @property
    def registration(self) -> str | None:
        """The fingerprint of the registration in the folder of the study.

        For a search, whose folder lies in that of a study, of the study it serves.
        """
        for folder in self.path.absolute().parents[1:3]:
            place = folder / REGISTERED
            if place.exists():
                return load_object(place).get("sha256")
        return None

    @property
    def result(self) -> dict[str, Any] | None:
        """The record of an ended run; None while it is unfinished.

        Raises ValueError where the file is damaged.
        """
        path = self.path / RESULT
        if not path.exists():
            return None
        result = load_json(path)
        if not isinstance(result, dict) or result.get("status") not in (FINISHED, DIVERGED, FAILED):
            raise ValueError(
                f"{path} must say how the run ended, {FINISHED}, {DIVERGED} or {FAILED}, got"
                f" {shown(result)}; remove it to go on from the last checkpoint"
            )
        if not isinstance(result.get("error"), str | None):
            raise ValueError(
                f"{path} must say in words what went wrong, got {shown(result['error'])}; remove it"
                " to go on from the last checkpoint"
            )
        missing = [name for name in FIGURES if name not in result]
        if result["status"] == FINISHED and missing:
            raise ValueError(
                f"{path} must have {', '.join(missing)}, got none; remove it to go on from the last"
                " checkpoint"
            )
        return result

    @property
    def status(self) -> str | None:
        """Status in the result of the run, None while it is unfinished."""
        return (self.result or {}).get("status")

    @property
    def failure(self) -> str:
        """The end of a run that has not finished, as in 'diverged at step 6'."""
        result = self.result
        if result is None:
            return "did not finish"
        error = (result.get("error") or "").strip() or "no reason recorded"
        if result["status"] == DIVERGED:
            return "diverged" + "".join(re.findall(r" at step \d+", error)[:1])
        return f"failed ({shorten(error.splitlines()[-1], 300)})"

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise ValueError when the folder holds the run of another configuration."""
        path = self.path / CONFIG
        different = other_run(load_json(path), config) if path.exists() else ""
        if different:
            remedy = "use another name or --out, or remove the folder"
            raise ValueError(
                f"run folder {self.path} was made by another spec ({different}): {remedy}"
            )

    def open(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Create the folder, or check that it belongs to the run of `config`.

        Forgets a failed attempt. The `environment` of an earlier sitting is replaced, but for the
        time when the run was started and the registration that it was started under; that of a run
        that has finished stays. Where a run goes on by other code than it was trained by so far,
        `earlier` keeps the versions of that. Raises OSError, and changes nothing, where a file that
        the run goes on from may not be read, and ValueError where its environment is damaged.
        """
        self.check(config)
        if self.status == FINISHED:
            return
        for path in (self.checkpoint, self.path / METRICS):
            if path.exists():
                check_readable(path)
        place = self.path / ENVIRONMENT
        before = load_object(place) if place.exists() else {}
        _check_earlier(before, place)
        (self.path / RESULT).unlink(missing_ok=True)
        if not (self.path / CONFIG).exists():
            save_json(self.path / CONFIG, config)
        lasting = ("started", "registration")
        kept: dict[str, Any] = {name: before[name] for name in lasting if name in before}
        if before and self.checkpoint.exists():
            kept |= _earlier_versions(before, environment)
        save_json(place, {**environment, **kept})

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process.

        Raises ValueError for links in it, or when another process keeps holding it.
        """
        refuse_links(self.path.parent, self.path, *self.path.glob("*"))
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path, f"run folder {self.path}", LOCK_PATIENCE):
            yield

    def append(self, row: Mapping[str, Any], progress: RunProgress) -> RunProgress:
        """Add a row to metrics.jsonl, flushed to disk.

        Returns `progress` with its new length and CRC-32.
        """
        path = self.path / METRICS
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        with naming(path), path.open("ab") as handle:
            handle.write(line)
            handle.flush()
            os.fsync(handle.fileno())
            return replace(
                progress, metrics_bytes=handle.tell(), metrics_crc=crc32(line, progress.metrics_crc)
            )

    def cut(self, progress: RunProgress) -> None:
        """Drop the rows written after the checkpoint of `progress`.

        Raises ValueError, and all stay, where others changed.
        """
        path = self.path / METRICS
        kept = path.read_bytes()[: progress.metrics_bytes] if path.exists() else b""
        if crc32(kept) != progress.metrics_crc:
            raise ValueError(
                f"{path} is not as the run left it at the step"
                f" {progress.step - progress.loss_count} of its last evaluation (its content has"
                f" been changed): bring it back, or remove {self.path} to start over"
            )
        if path.exists():
            os.truncate(path, progress.metrics_bytes)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Record how the run ended."""
        save_json(self.path / RESULT, dict(result))


def _check_earlier(environment: Mapping[str, Any], place: Path) -> None:
    """ValueError where the file of an environment lists no versions of code as earlier ones."""
    versions = environment.get("earlier", [])
    if not isinstance(versions, list) or not all(isinstance(one, dict) for one in versions):
        raise ValueError(
            f"{place}: earlier must be a list of versions of the code, got {shown(versions)};"
            " bring the file back, or remove it"
        )


def _earlier_versions(
    before: Mapping[str, Any], environment: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """The versions of the code of earlier sittings that differ from the one of `environment`.

    Empty where there are none. The commit alone makes no other version: it may be one of a page.
    """
    versions = list(before.get("earlier", ()))
    versions.append({name: before[name] for name in VERSION if name in before})
    other: list[dict[str, Any]] = []
    for version in versions:
        is_this = all(version.get(name) == environment.get(name) for name in ("source", "code"))
        if not is_this and version not in other:
            other.append(version)
    return {"earlier": other} if other else {}


@contextmanager
def locked(folder: Path, name: str, patience: float = 0.0) -> Iterator[None]:
    """Hold the folder of a run or a study as `held` does.

    Raises ValueError also for a folder that no run can have.
    """
    if not is_utf8(str(folder)):  # safetensors writes to no other path
        raise ValueError(f"{name!a} must be a path in UTF-8; choose another folder")
    with held(folder, name, patience):
        yield


def other_run(old: Any, new: Any) -> str:
    """The first differences of two configurations, '' for the same run.

    Missing options have their defaults.
    """
    found = differences(with_defaults(_plain(old)), with_defaults(_plain(new)))
    return "; ".join(found[:MOST_DIFFERENCES])


def _plain(config: Any) -> Any:
    """A copy of a configuration as a file of JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(config))
