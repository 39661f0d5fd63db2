"""Environment of a run for its record (commit, versions, hardware), and memory of this machine."""

import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from plkernel.common.cli import program

PACKAGES = ("plkernel", "torch", "triton", "numba", "numpy", "scipy", "tensorboard")
COMMAND = "PLKERNEL_COMMAND"
"""Variable set for the workers of a study: the command of the study, which their records name."""
GROUP = Path("/sys/fs/cgroup")
"""Where Linux tells the limits of the container that this process runs in."""
CODE = ("analysis", "kernels", "models", "plkernel")
"""Folders of a checkout whose changes make it dirty."""
COMPUTING = (
    "analysis",
    "common",
    "config",
    "context",
    "data",
    "decays",
    "kernels",
    "models",
    "training",
)
"""Packages of plkernel whose source decides the numbers of a run."""


def environment(threads: int) -> dict[str, Any]:
    """Describe the source tree, versions, hardware, threads and command line of this process."""
    torch = sys.modules.get("torch")
    named = re.search(r"^model name\s*: (.*)", _text("/proc/cpuinfo"), re.MULTILINE)
    card = None
    if torch is not None and torch.cuda.is_available():
        card = torch.cuda.get_device_name(0)
    hardware = {
        "cpu": named[1] if named else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": card,
        "system": f"{platform.system()} {platform.machine()}",
    }
    versions = {"python": platform.python_version(), **versions_of(PACKAGES)}
    command = os.environ.get(COMMAND) or command_line()
    return {
        **source_state(),
        "versions": versions,
        "hardware": hardware,
        "threads": threads,
        "command": command,
    }


def installed(package: str) -> str | None:
    """Return the installed version of `package`, None where it is absent."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {package: installed(package) for package in packages}
    return {package: number for package, number in found.items() if number is not None}


@functools.cache
def source_digest() -> str:
    """Return 16 hex digits of the SHA-256 of all source files that compute a run, with names."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    files = []
    for folder in COMPUTING:
        found = (package / folder).rglob("*")
        files += [path for path in found if path.suffix in (".py", ".toml")]
    for path in sorted(files):
        digest.update(f"{path.relative_to(package).as_posix()} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def source_state() -> dict[str, Any]:
    """Return `source_digest`, the git commit and whether files differ from it.

    Both are None without git, and where it refuses, as in a checkout that another user owns.
    """
    state: dict[str, Any] = {"commit": None, "dirty": None, "source": source_digest()}
    root = Path(__file__).resolve().parents[2]
    with suppress(OSError):
        if (root / ".git").exists():
            commit = _git(root, "rev-parse", "HEAD")
            status = _git(root, "status", "--porcelain", "--", *CODE)
            if commit is not None and status is not None:
                return state | {"commit": commit, "dirty": bool(status)}
    return state


def _git(root: Path, *words: str) -> str | None:
    """Return what a command of git prints in the folder `root`, None where it fails."""
    command = ["git", "-C", str(root), *words]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        return None
    return done.stdout.decode("utf-8", "replace").strip()  # names of files may be in any code


def command_line() -> str:
    """Return the command that started this process, as one would type it."""
    is_script = getattr(sys.modules["__main__"], "__spec__", None) is None
    start = ["python", sys.argv[0]] if is_script else program().split()
    return shlex.join([*start, *sys.argv[1:]])


def keep_memory() -> None:
    """Have glibc keep the memory of freed arrays for the next ones; the peak stays as it is.

    Otherwise it returns them to the system and gets them anew, page by page: 6 to 8 % of the time
    of a training step.
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if change is not None:
        change(-3, 2**25)  # M_MMAP_THRESHOLD of mallopt(3), at its largest
        change(-1, 2**31 - 1)  # M_TRIM_THRESHOLD, the largest int


def available_memory(device: str = "cpu") -> float | None:
    """Return the bytes free on the first GPU, or here within a container's limit, if known."""
    if device == "cuda":
        import torch

        return float(torch.cuda.mem_get_info()[0])
    free = _sizes("/proc/meminfo").get("MemAvailable")
    limit = _text(GROUP / "memory.max")
    used = re.search(r"^anon (\d+)", _text(GROUP / "memory.stat"), re.MULTILINE)
    if free is None or used is None or not limit.strip().isdigit():
        return free
    return min(free, max(0.0, float(limit) - float(used[1])))


def peak_anonymous() -> float:
    """Return the peak bytes of this process without pages of files; 0 where they are not known."""
    sizes = _sizes("/proc/self/status")
    return sizes.get("VmHWM", 0.0) - sizes.get("RssFile", 0.0) - sizes.get("RssShmem", 0.0)


def _text(path: Path | str) -> str:
    """Return the content of a file of the system, empty where there is none."""
    with suppress(OSError):
        return Path(path).read_text()
    return ""


def _sizes(path: str) -> dict[str, float]:
    """Return lines like `name: 12 kB` as bytes."""
    return {
        name: 1024.0 * int(size)
        for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", _text(path), re.MULTILINE)
    }
