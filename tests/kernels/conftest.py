"""Threads of the kernels that start anew with each test, and what the interpreted kernels of all operators gave."""

import json
import os
from typing import Any

import pytest
from interpreter import run_interpreted

from plkernel.kernels import threads

INTERPRETED = ("test_scan_gpu:interpret", "test_wkv_gpu:interpret", "test_wkv7_gpu:interpret")


@pytest.fixture(autouse=True)
def fresh_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is left out for what it brought in another test."""
    monkeypatch.setattr(threads, "_helpers", {})


@pytest.fixture(scope="session")
def interpreted_once(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the interpreted kernels of each file gave, computed once for all processes of the tests.

    Loading torch and its compiler, which registered operators bring along, would take a third of the time.
    """
    import fcntl  # as triton, not on Windows

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # which all processes of this run share
    results = folder / "interpreted.json"
    with (folder / "interpreted.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not results.exists():
            results.write_text(json.dumps(dict(zip(INTERPRETED, run_interpreted(*INTERPRETED), strict=True))))
    return dict(json.loads(results.read_text()))
