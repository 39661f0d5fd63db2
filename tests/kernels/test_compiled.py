"""What the CPU kernels share: machine code on disk is that of the sources beside it, whoever else writes there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.kernels import compiled

KERNEL = """
from plkernel.kernels.compiled import jit
from plkernel.kernels.toy.helper import tripled

@jit
def kernel(x):
    return tripled(x) + 1
"""
HELPER = """
import numba

@numba.njit
def tripled(x):
    return {factor} * x
"""
CALLS = """
import json, os, sys, time
from numba.core.caching import IndexDataCacheFile
def call(kind, seconds):
    from plkernel.kernels.toy.cpu import kernel
    write = IndexDataCacheFile._save_index
    def late(self, overloads):  # another process writes between reading and writing
        time.sleep(seconds)
        write(self, overloads)
    IndexDataCacheFile._save_index = late
    results = [kernel(__builtins__.__dict__[name](2)) for name in kind.split(",")]
    stats = kernel.stats
    hits, misses = sum(stats.cache_hits.values()), sum(stats.cache_misses.values())
    print(json.dumps([kind, results, hits, misses, stats.cache_path]), flush=True)
    os._exit(0)
for kinds in json.loads(sys.argv[1]):
    children = [os.fork() or call(kind, len(kinds) - 1) for kind in kinds]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The folder of an operator whose kernel compiles in a moment."""
    kernels = tmp_path / "plkernel" / "kernels"
    (kernels / "toy").mkdir(parents=True)
    (tmp_path / "plkernel" / "__init__.py").touch()
    shutil.copy(compiled.__file__, kernels)
    (kernels / "toy" / "cpu.py").write_text(KERNEL)
    (kernels / "toy" / "helper.py").write_text(HELPER.format(factor=3))
    return kernels / "toy"


def calls(toy: Path, *kinds: list[str]) -> list[dict[str, Any]]:
    """What processes find that call the kernel with 2 of these kinds: of one list at once, the lists in turn."""
    root = toy.parents[2]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    environment |= {"PYTHONPATH": str(root), "XDG_CACHE_HOME": str(root / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", CALLS, json.dumps(kinds)]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    names = ("kind", "results", "hits", "misses", "path")
    return [dict(zip(names, json.loads(line), strict=True)) for line in done.stdout.splitlines()]


def test_a_change_in_another_file_of_the_operator_is_compiled_and_nothing_is_compiled_twice(toy: Path) -> None:
    first, again = calls(toy, ["int"], ["int"])
    assert (first["results"], first["hits"], first["misses"]) == ([7], 0, 1)
    assert (again["results"], again["hits"], again["misses"]) == ([7], 1, 0)
    (toy / "helper.py").write_text(HELPER.format(factor=5))
    [changed] = calls(toy, ["int"])
    assert (changed["results"], changed["misses"]) == ([11], 1)


def test_what_is_compiled_into_a_kernel_lies_in_its_folder_or_in_that_of_all_kernels() -> None:
    """So that its sources are among those the machine code is named after."""
    kernels = Path(compiled.__file__).parent
    files = list(kernels.glob("*/*.py"))
    assert kernels / "wkv" / "chunks.py" in files
    for path in files:
        for name in re.findall(r"plkernel\.kernels\.(\w+)", "".join(re.findall(r"(?m)^from .*", path.read_text()))):
            assert name == path.parent.name or (kernels / f"{name}.py").exists(), path


@pytest.mark.slow
def test_where_the_sources_cannot_be_written_to_it_is_kept_in_the_home_folder(toy: Path) -> None:
    (toy / "__pycache__").touch()
    first, again = calls(toy, ["int"], ["int"])
    assert Path(first["path"]).is_relative_to(toy.parents[2] / "home")
    assert (first["misses"], again["hits"], again["misses"]) == (1, 1, 0)


@pytest.mark.slow
def test_processes_that_write_at_once_keep_their_signatures_apart(toy: Path) -> None:
    *both, after = calls(toy, ["int", "float"], ["int,float"])
    assert {found["kind"]: found["results"] for found in both} == {"int": [7], "float": [7.0]}
    assert (after["results"], after["hits"], after["misses"]) == ([7, 7.0], 2, 0)


def test_of_older_sources_only_the_latest_stay(tmp_path: Path) -> None:
    folders = []
    for version in range(compiled.VERSIONS + 2):
        (tmp_path / "helper.py").write_text(f"{version}")
        compiled._folder.cache_clear()
        folders.append(compiled._folder(tmp_path / "kept", tmp_path))
        (folders[-1] / "code").touch()
    assert len(set(folders)) == len(folders)
    assert set((tmp_path / "kept").iterdir()) == set(folders[2:])


def test_it_compiles_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    njit = compiled.numba.njit

    def unwritable(**options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(compiled, "numba", SimpleNamespace(njit=unwritable))
    assert compiled.jit(lambda x: x + 1)(2) == 3
