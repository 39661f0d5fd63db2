"""Studies whose engines are asked every few milliseconds, and whose texts are not given to LZMA."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plkernel.study import references, schedule
from plkernel.study.engine import Engine

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "cluster.md"
"""The page that shows engines of one's own."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "POLL_SECONDS", 0.005)  # 0 would keep the core of a run busy
    monkeypatch.setattr(
        references, "lzma_bits", lambda splits: {"windows": [4096], "val_bpb": [8.0]}
    )  # half a second


@pytest.fixture
def shown_engine() -> Callable[[str], type[Engine]]:
    """Gives the engine of a name as the page shows it."""

    def find(name: str) -> type[Engine]:
        blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        (block,) = [text for text in blocks if f"class {name}(" in text or f"class {name}:" in text]
        known: dict[str, Any] = {}
        exec(block, known)
        engine: type[Engine] = known[name]
        return engine

    return find


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
