"""Memory of this machine and of processes, in bytes, as Linux tells it; and the most that one of them ever held."""

import ctypes
import subprocess
import sys
import time
from pathlib import Path

GROUP = Path("/sys/fs/cgroup")
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Options of mallopt(3)."""


def keep_memory() -> None:
    """Have the C library of this process keep the memory of freed arrays for the next ones, where it is glibc.

    By itself it hands them back to the system and gets them anew, page by page, in every training step: some 5,000
    faults in a step of 130 ms, 6 to 8 % of its time. The peak stays as it is.
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if change is not None:
        change(MMAP_THRESHOLD, 2**25)  # the most it takes
        change(TRIM_THRESHOLD, 2**31 - 1)


def available_memory(device: str = "cpu") -> float | None:
    """What new processes may take here, in a container what its limit leaves; on 'cuda' what the first GPU has free.

    None where the system does not tell.
    """
    if device == "cuda":
        import torch

        return float(torch.cuda.mem_get_info()[0])
    free = _sizes(Path("/proc/meminfo")).get("MemAvailable")
    return None if free is None else min(free, _group_leaves())


def peak_anonymous() -> float:
    """The most memory that no file backs this process has had: its peak without the pages of files; 0 if not told."""
    sizes = _sizes(Path("/proc/self/status"))
    return sizes.get("VmHWM", 0.0) - sizes.get("RssFile", 0.0) - sizes.get("RssShmem", 0.0)


def _sizes(path: Path) -> dict[str, float]:
    """Lines like `name: 12 kB`; none where there is no such file."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0].rstrip(":"): 1024.0 * int(row[1]) for row in rows if row[-1:] == ["kB"]}


def _group_leaves() -> float:
    """What the control group of a container leaves; infinite without a limit."""
    try:
        limit = float((GROUP / "memory.max").read_text().replace("max", "inf"))
        rows = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        return max(0.0, limit - float(rows["anon"]))
    except (OSError, ValueError, KeyError):
        return float("inf")


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
