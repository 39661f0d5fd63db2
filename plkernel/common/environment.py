"""Environment of a run for its record (commit, versions, hardware), and memory of this machine and its processes."""

import ctypes
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from plkernel.common.cli import program

PACKAGES = ("plkernel", "torch", "triton", "numba", "numpy", "scipy", "tensorboard")
COMMAND = "PLKERNEL_COMMAND"
"""Variable set for the workers of a study: the command that started it, which their records name."""
GROUP = Path("/sys/fs/cgroup")


def environment(threads: int, ranks: int = 1) -> dict[str, Any]:
    """Commit and dirty flag of the source tree, versions, hardware, threads and command line of this process.

    ranks: the processes that train one model; named where there are several.
    """
    return {
        **source_state(),
        "versions": {"python": platform.python_version(), **{p: v for p in PACKAGES if (v := installed(p))}},
        "hardware": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "gpu": gpu_name(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "threads": threads,
        **({"ranks": ranks} if ranks > 1 else {}),
        "command": os.environ.get(COMMAND) or command_line(),
    }


def installed(package: str) -> str | None:
    """The installed version of `package`, None where it is absent."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def source_state() -> dict[str, Any]:
    """The git commit of the source tree and whether it has changes; None outside a checkout of plkernel itself."""
    root = Path(__file__).resolve().parents[2]
    git = ["git", "-C", str(root)]
    try:
        if (root / ".git").exists():
            commit, status = (
                subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout.strip()
                for words in (["rev-parse", "HEAD"], ["status", "--porcelain"])
            )
            return {"commit": commit, "dirty": bool(status)}
    except (OSError, subprocess.CalledProcessError):
        pass
    return {"commit": None, "dirty": None}


def cpu_name() -> str:
    """The name that the processor has for itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def gpu_name() -> str | None:
    """The first CUDA device's name, None without one or when torch has not been loaded."""
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name(0) if torch is not None and torch.cuda.is_available() else None


def command_line() -> str:
    """The command that started this process, as one would type it."""
    script = getattr(sys.modules["__main__"], "__spec__", None) is None
    return shlex.join([*(["python", sys.argv[0]] if script else program().split()), *sys.argv[1:]])


def keep_memory() -> None:
    """Have the C library of this process, where it is glibc, keep the memory of freed arrays for the next ones.

    By itself it hands them back to the system and gets them anew, page by page, in every training step: some 5,000
    faults in a step of 130 ms, 6 to 8 % of its time. The peak stays as it is.
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if change is not None:
        change(-3, 2**25)  # M_MMAP_THRESHOLD of mallopt(3), at its largest
        change(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def available_memory(device: str = "cpu") -> float | None:
    """Bytes that new processes may take here, within the limit of a container; on 'cuda' those free on the first GPU.

    None where the system does not tell.
    """
    if device == "cuda":
        import torch

        return float(torch.cuda.mem_get_info()[0])
    free = _sizes("/proc/meminfo").get("MemAvailable")
    try:
        limit = float((GROUP / "memory.max").read_text().replace("max", "inf"))
        used = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())["anon"]
        return None if free is None else min(free, max(0.0, limit - float(used)))
    except (OSError, ValueError, KeyError):
        return free


def peak_anonymous() -> float:
    """Peak bytes of this process without the pages of files; 0 if the system does not tell."""
    sizes = _sizes("/proc/self/status")
    return sizes.get("VmHWM", 0.0) - sizes.get("RssFile", 0.0) - sizes.get("RssShmem", 0.0)


def anonymous_bytes(process: int | str) -> int | None:
    """Bytes of a process that no file backs; None where that cannot be read."""
    size = _sizes(f"/proc/{process}/status").get("RssAnon")
    return None if size is None else int(size)


def _sizes(path: str) -> dict[str, float]:
    """Lines like `name: 12 kB`, in bytes; none where there is no such file."""
    try:
        rows = [line.split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return {}
    return {row[0].rstrip(":"): 1024.0 * int(row[1]) for row in rows if row[-1:] == ["kB"]}
