"""The environment of a run: commit, versions and hardware, for its record."""

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
"""Set for the workers of a study: the command that started it, which their records name instead of their own."""


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
    if not (root / ".git").exists():
        return {"commit": None, "dirty": None}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}


def cpu_name() -> str:
    """The processor's own name for itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def gpu_name() -> str | None:
    """The first CUDA device's name, None without one or when torch has not been loaded."""
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name(0) if torch is not None and torch.cuda.is_available() else None


def command_line() -> str:
    """The command that started this process, as one would type it."""
    script = getattr(sys.modules["__main__"], "__spec__", None) is None
    started = ["python", sys.argv[0]] if script else program().split()
    return shlex.join([*started, *sys.argv[1:]])
