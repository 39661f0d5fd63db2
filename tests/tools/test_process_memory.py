"""What the machine says of its memory, against memory that is taken."""

import sys
from pathlib import Path

import numpy as np
import pytest

from plkernel.tools import process_memory
from plkernel.tools.process_memory import anonymous_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
SIZE = 1 << 28


def test_a_peak_outlives_what_made_it() -> None:
    before = anonymous_bytes("self") or 0
    np.ones(SIZE, np.uint8)  # gone at once
    assert process_memory.peak_anonymous() > 0.9 * (before + SIZE)
    assert (anonymous_bytes("self") or 0) < before + SIZE / 2


def test_a_container_takes_its_limit_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\nfile 600000\n")
    monkeypatch.setattr(process_memory, "GROUP", tmp_path)
    assert process_memory.available_memory() == 700_000
    (tmp_path / "memory.max").write_text("max\n")
    assert (process_memory.available_memory() or 0) > 1e6
