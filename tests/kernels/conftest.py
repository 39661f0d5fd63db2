"""Fresh threads for each test of the kernels, and the results of the interpreted kernels."""

import json
import os
from typing import Any

import pytest
from interpreter import run_interpreted

from plkernel.kernels import threads


@pytest.fixture(autouse=True)
def fresh_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread is left out for what it did in another test."""
    monkeypatch.setattr(threads, "_helpers", {})


@pytest.fixture(scope="session")
def interpreted_once(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the interpreted kernels, computed once for all processes of the tests."""
    import fcntl  # as triton, not on Windows

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # all processes of this run share it
    results = folder / "interpreted.json"
    with (folder / "interpreted.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not results.exists():
            results.write_text(json.dumps(run_interpreted("test_gpu:interpret")[0]))
    return dict(json.loads(results.read_text()))
