"""Studies whose engines are asked at once, again and again, where people wait a moment in between."""

import pytest

from plkernel.study import schedule


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "POLL_SECONDS", 0.0)
