"""The structure of the package: which rooms may import which, and what an import loads."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from plkernel.common.environment import COMPUTING

ROOT = Path(__file__).parent.parent
LINKED = ("analysis", "kernels", "models")  # top-level folders that the package links to
LINKS = (*LINKED, "runs")  # and the folder of specs, which are data
HEAVY = ("torch", "triton", "numba", "matplotlib", "tensorboard", "datasets", "pydantic", "tyro")
FLOORS = (
    ("analysis", "kernels"),
    ("models",),
    ("models/init",),
    ("plkernel/common",),
    ("plkernel/config", "plkernel/context", "plkernel/data"),
    ("plkernel/decays",),
    ("plkernel/training",),
    ("plkernel/probing", "plkernel/results"),
    ("plkernel/study",),
    ("plkernel/benchmarks",),
    ("plkernel", "plkernel/api"),  # testing.py, and functions for Python
    ("plkernel/commands", "plkernel/memory"),
)
"""Folders, called rooms, from the ground up: a file imports its own room and the floors below."""
NEVER = {  # a room, and what no module in it imports, whatever the floor
    "analysis": ("torch", "triton"),
    "plkernel/config": (
        "plkernel.models.init",
        "plkernel.models.ssm",
        "plkernel.models.rwkv",
    ),  # which load torch
    "plkernel/results": ("plkernel.training", "plkernel.data"),
}


def modules() -> dict[str, Path]:
    """Every module of the package by name; linked folders count once."""
    found = {}
    for top in ("plkernel", *LINKED):
        for path in (ROOT / top).glob("**/*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if top != "plkernel" or parts[1] not in LINKS:
                name = ".".join(parts if top == "plkernel" else ("plkernel", *parts))
                found[name.removesuffix(".__init__")] = path
    return found


@cache
def imports(path: Path) -> set[str]:
    """Every module that a file imports, at any level of the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


MODULES = modules()


@cache
def arrows() -> dict[str, set[str]]:
    """The package's modules that each module imports."""
    found = {}
    for name, path in MODULES.items():
        names = (one if one in MODULES else one.rpartition(".")[0] for one in imports(path))
        found[name] = {one for one in names if one in MODULES} - {name}
    return found


@pytest.mark.parametrize("place", NEVER)
def test_forbidden_imports(place: str) -> None:
    for path in (path for path in MODULES.values() if path.is_relative_to(ROOT / place)):
        wrong = {
            other
            for other in imports(path)
            if f"{other}.".startswith(tuple(f"{no}." for no in NEVER[place]))
        }
        assert not wrong, f"{path} imports {wrong}"


FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def room_of(module: str) -> str:
    """The room of a module: the innermost folder around it that is one."""
    folders = (folder.relative_to(ROOT).as_posix() for folder in MODULES[module].parents)
    return next(folder for folder in folders if folder in FLOOR_OF)


def test_no_room_imports_one_above_it_or_beside_it() -> None:
    for importer, imported in arrows().items():
        for other in imported:
            here, there = room_of(importer), room_of(other)
            assert here == there or FLOOR_OF[there] < FLOOR_OF[here], f"{importer} imports {other}"


def test_every_folder_of_the_package_is_a_room() -> None:
    """A new folder takes a floor."""
    assert {room for room in FLOOR_OF if not any((ROOT / room).glob("*.py"))} <= {"kernels"}
    folders = {path.parent.relative_to(ROOT).as_posix() for path in MODULES.values()}
    of_package = {folder for folder in folders if folder.startswith("plkernel")}
    assert of_package <= FLOOR_OF.keys()


def test_the_digest_of_a_run_covers_all_that_training_imports() -> None:
    """The rooms whose source computes a run are those that `plkernel/training` reaches."""
    reached = set()
    left = [name for name in MODULES if room_of(name) == "plkernel/training"]
    while left:
        module = left.pop()
        if module not in reached:
            reached.add(module)
            left += arrows()[module]
    rooms = {room_of(module) for module in reached}
    assert {room.split("/")[room.startswith("plkernel/")] for room in rooms} == set(COMPUTING)


def test_no_import_cycle() -> None:
    try:
        tuple(TopologicalSorter(arrows()).static_order())
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def test_only_commands_import_commands_and_benchmarks() -> None:
    for name, imported in arrows().items():
        wrong = {other for other in imported if ".commands." in other or "benchmarks" in other}
        assert not wrong or "commands" in name or "benchmarks" in name, f"{name} imports {wrong}"


def test_imported_distributions_are_declared() -> None:
    """Peers of the benchmarks on a GPU are exempt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(one for group in project["optional-dependencies"].values() for one in group),
    ]
    declared = {re.split(r"[<>=;\[ ]", one)[0].replace("-", "_") for one in wanted}
    declared |= {"plkernel", "pydantic_core"}
    for path in MODULES.values():
        names = {name.split(".")[0] for name in imports(path)} - sys.stdlib_module_names
        peers = {"fla", "accelerated_scan"} if "benchmarks" in path.parts else set()
        assert not names - declared - peers, path


def test_links_are_relative() -> None:
    for name in LINKS:
        assert str((ROOT / "plkernel" / name).readlink()) == f"../{name}"
    assert not (ROOT / "kernels" / "__init__.py").exists(), "another distribution is called kernels"


NEEDS: tuple[dict[str, tuple[str, ...]], ...] = (
    {"import_module('plkernel.measure')": ("torch", "pydantic", "scipy.signal", "scipy.stats")},
    {
        "import plkernel": HEAVY,
        "import plkernel.export, plkernel.load, plkernel.init, plkernel.bench": ("torch", "scipy"),
        "import plkernel.config.reading, plkernel.study.engine": ("torch", "matplotlib"),
        "plkernel.config.reading.load_spec(pathlib.Path('runs/mamba2.toml'))": ("transformers",),
        "import plkernel.train, plkernel.experiment, plkernel.commands.generate": (
            "torch",
            "scipy.optimize",
        ),
        "import_module('plkernel.inspect'), import_module('plkernel.probe')": (
            "torch",
            "scipy.optimize",
        ),
        "import_module('plkernel.corpus')": ("torch", "scipy.signal", "scipy.stats"),
        "import plkernel.report": ("torch",),
        "import plkernel.models.ssm": ("plkernel.models.rwkv", "plkernel.models.init"),
    },
)
"""Statements of one process each, the lightest first, because a loaded module stays for those that
follow; and what none of them loads.
"""


@pytest.mark.parametrize("needs", NEEDS)
def test_imports_load_no_more_than_needed(needs: dict[str, tuple[str, ...]]) -> None:
    program = f"""if True:
        import pathlib, sys
        from importlib import import_module
        for code, unloaded in {needs}.items():
            exec(code)
            print(code, [name for name in unloaded if name in sys.modules])
    """
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert result.stdout.splitlines() == [f"{code} []" for code in needs]
