"""Threads of the kernels that start anew with each test: none is left out for what it brought in another."""

import pytest

from plkernel.kernels import threads


@pytest.fixture(autouse=True)
def fresh_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_helpers", {})
