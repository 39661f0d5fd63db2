"""Memory of this machine and of this process, in bytes, as Linux tells it."""

from pathlib import Path

import torch

GROUP = Path("/sys/fs/cgroup")


def available_memory(device: str = "cpu") -> float | None:
    """What new processes may take here, in a container what its limit leaves; on 'cuda' what the first GPU has free.

    None where the system does not tell.
    """
    if device == "cuda":
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
