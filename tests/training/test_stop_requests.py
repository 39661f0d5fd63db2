"""When a run stops between its steps."""

import os
import signal

import pytest

from plkernel.training.processes import stop_requests


def test_a_signal_or_the_end_of_the_parent() -> None:
    with stop_requests(os.getppid()) as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
    with stop_requests(-1) as stopped:
        assert stopped()


def test_windows_has_launchers_for_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.name", "nt")
    with stop_requests(-1) as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
