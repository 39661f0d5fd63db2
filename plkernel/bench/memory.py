"""The most memory of a process of its own while its parent watches."""

import subprocess
import sys
import time
from pathlib import Path

INTERVAL = 0.002
"""Seconds between two looks. A page takes about half a microsecond to touch first, so less than 20 MB slip by."""


def watch(module: str, *arguments: str, interval: float = INTERVAL) -> tuple[int, str]:
    """Run `python -m module arguments`, which prints a line when ready and starts its work on reading one.

    Returns the most anonymous memory after that line beyond that at it, in bytes, and what else the process printed.
    The parent looks, since the process itself may hold its interpreter lock throughout. RssAnon and not the kernel's
    own peak, VmHWM, which counts the pages of mapped files too: those go when the machine needs them.
    """
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        started = process.stdout.readline()
        before = peak = anonymous_bytes(process.pid) or 0
        if started:  # otherwise it has failed
            process.stdin.write("\n")
            process.stdin.flush()
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid) or 0)
            time.sleep(interval)
        printed = process.stdout.read()
    if process.returncode:
        raise OSError(f"{module} {' '.join(arguments)}: failed in a process of its own")
    return peak - before, printed


def ready() -> None:
    """Called by that process once its inputs are there: from here its parent watches."""
    print("ready", flush=True)
    sys.stdin.readline()


def anonymous_bytes(process: int | str) -> int | None:
    """Memory of a process that no file backs, in bytes; None where that cannot be read."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), None)
