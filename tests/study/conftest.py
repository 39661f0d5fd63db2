"""Studies whose engines are asked every few milliseconds, and whose texts are not given to LZMA."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plkernel.study import references, schedule


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "POLL_SECONDS", 0.005)  # 0 would keep the core of a run busy
    monkeypatch.setattr(
        references, "lzma_bits", lambda splits: {"windows": [4096], "val_bpb": [8.0]}
    )  # half a second


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts an experiment in a process of its own, which is killed at the end of the test at the
    latest.
    """
    processes = []

    def begin(spec: Path, out: Path, *arguments: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "plkernel.experiment",
            str(spec),
            "--out",
            str(out),
            *arguments,
        ]
        pipe = subprocess.PIPE
        processes.append(
            subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        )
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()
