"""Fresh threads for each test of the kernels."""

import pytest

from plkernel.kernels import compiled


@pytest.fixture(autouse=True)
def fresh_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread is left out for what it did in another test."""
    monkeypatch.setattr(compiled, "_helpers", {})
