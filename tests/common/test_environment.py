"""The machine in a record, from files of the system that a test writes."""

import os
import platform
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plkernel.common import environment


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Texts in place of the files of the system, by their paths."""
    texts: dict[str, str] = {}
    monkeypatch.setattr(environment, "_text", lambda path: texts.get(str(path), ""))
    return texts


def test_versions_are_those_of_packages_that_are_installed() -> None:
    assert environment.versions_of(["numpy", "no-such-package"]) == {"numpy": np.__version__}
    assert environment.versions_of([]) == {}
    assert environment.installed("no-such-package") is None
    assert environment.installed("numpy") == np.__version__


def test_sizes_are_bytes_and_other_lines_are_none(system: dict[str, str]) -> None:
    system["x"] = "A:  12 kB\nB: 3 MB\nC_d:\t1 kB\n E: 1 kB\n"
    assert environment._sizes("x") == {"A": 12288.0, "C_d": 1024.0}
    assert environment._sizes("missing") == {}


def test_the_peak_is_without_pages_of_files(system: dict[str, str]) -> None:
    assert environment.peak_anonymous() == 0.0
    system["/proc/self/status"] = "VmHWM: 100 kB\nRssFile: 30 kB\nRssShmem: 5 kB\n"
    assert environment.peak_anonymous() == 65 * 1024.0


@pytest.mark.parametrize(
    ("limit", "anonymous", "free"),
    [
        ("max\n", "anon 1000\n", 102400.0),
        ("50000\n", "file 7\nanon 20000\nanon_thp 9\n", 30000.0),
        ("50000\n", "anon 60000\n", 0.0),
        ("500000\n", "anon 0\n", 102400.0),
        ("50000\n", "", 102400.0),
        ("", "anon 1000\n", 102400.0),
    ],
)
def test_free_memory_is_that_of_the_machine_within_a_containers_limit(
    limit: str, anonymous: str, free: float, system: dict[str, str]
) -> None:
    assert environment.available_memory() is None
    system["/proc/meminfo"] = "MemTotal: 200 kB\nMemAvailable: 100 kB\n"
    system["/sys/fs/cgroup/memory.max"] = limit
    system["/sys/fs/cgroup/memory.stat"] = anonymous
    assert environment.available_memory() == free


def test_the_processor_is_named_as_the_system_names_it(
    system: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "source_state", lambda: {"commit": "abc"})
    monkeypatch.setitem(sys.modules, "torch", None)
    system["/proc/cpuinfo"] = "flags : x\nmodel name\t: A processor\nmodel name : another\n"
    found = environment.environment(3)
    assert found["hardware"] == {
        "cpu": "A processor",
        "cores": os.cpu_count(),
        "gpu": None,
        "system": f"{platform.system()} {platform.machine()}",
    }
    assert (found["commit"], found["threads"]) == ("abc", 3)
    assert found["versions"]["python"] == platform.python_version()
    del system["/proc/cpuinfo"]
    cpu = environment.environment(1)["hardware"]["cpu"]
    assert cpu == (platform.processor() or platform.machine())


@pytest.mark.parametrize(("present", "card"), [(True, "A card"), (False, None)])
def test_a_gpu_is_named_where_there_is_one(
    present: bool, card: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = SimpleNamespace(is_available=lambda: present, get_device_name=lambda number: "A card")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    monkeypatch.setattr(environment, "source_state", dict)
    assert environment.environment(1)["hardware"]["gpu"] == card


def test_memory_is_kept_by_two_settings_of_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """M_MMAP_THRESHOLD at its largest, 32 MiB, and M_TRIM_THRESHOLD; on Linux alone."""
    calls: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *given: calls.append(given))
    monkeypatch.setattr(environment.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", "darwin")
    environment.keep_memory()
    assert calls == []
    monkeypatch.setattr(sys, "platform", "linux")
    environment.keep_memory()
    assert calls == [(-3, 2**25), (-1, 2**31 - 1)]
    monkeypatch.setattr(environment.ctypes, "CDLL", lambda name: SimpleNamespace())
    environment.keep_memory()


def test_a_file_of_the_system_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert environment._text(tmp_path / "x") == ""
    (tmp_path / "x").write_text("text")
    assert environment._text(str(tmp_path / "x")) == "text"


def test_the_digest_is_of_what_computes_and_of_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(files: dict[str, str], root: Path) -> str:
        for name, text in files.items():
            path = root / "plkernel" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        place: Any = str(root / "plkernel" / "common" / "environment.py")
        monkeypatch.setattr(environment, "__file__", place)
        environment.source_digest.cache_clear()
        found = environment.source_digest()
        environment.source_digest.cache_clear()
        return found

    files = {"training/a.py": "1", "decays/b.toml": "2", "common/environment.py": "3"}
    first = digest(files, tmp_path / "1")
    assert len(first) == 16
    assert digest({**files, "results/c.py": "4", "training/a.txt": "5"}, tmp_path / "2") == first
    assert digest({**files, "training/a.py": "9"}, tmp_path / "3") != first
    assert digest({**files, "decays/b.toml": "9"}, tmp_path / "4") != first


@pytest.mark.parametrize(
    ("script", "commit", "is_dirty"),
    [
        ("exit 128", None, None),  # as in a checkout that another user owns
        ('case "$3" in status) printf " M bad\\377.py";; *) echo abc;; esac', "abc", True),
        ('case "$3" in status) ;; *) echo abc;; esac', "abc", False),
    ],
)
def test_a_checkout_that_git_does_not_tell_of_is_not_called_clean(
    script: str,
    commit: str | None,
    is_dirty: bool | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    git = tmp_path / "git"
    git.write_text(f"#!/bin/sh\n{script}\n")
    git.chmod(0o755)
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "plkernel" / "common" / "x.py"))
    environment.source_digest.cache_clear()
    try:
        state = environment.source_state()
    finally:
        environment.source_digest.cache_clear()
    assert (state["commit"], state["dirty"]) == (commit, is_dirty)
