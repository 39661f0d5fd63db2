"""What the machine says of its memory, against memory that is taken."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plkernel.common import environment as process_memory
from plkernel.common.environment import anonymous_bytes, watch

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


def test_kept_memory_is_not_fetched_again() -> None:
    program = """if True:
        import resource, numpy as np
        from plkernel.common.environment import keep_memory

        def faults(steps):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(steps):
                arrays = [np.ones(1 << 20) for _ in range(4)]  # 8 MiB each, let go of together
                del arrays
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        before = faults(2)
        keep_memory()
        faults(1)
        print(before, faults(2))
    """
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    before, after = map(int, printed.split())
    assert after <= max(before / 10, 50)  # with huge pages there are few of them anyway


def test_a_process_that_fails_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match=r"^json\.tool nowhere: failed in a process of its own$"):
        watch("json.tool", "nowhere")
    assert "No such file" in capfd.readouterr().err
