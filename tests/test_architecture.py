"""The house: which floor may import which, and what the ground floor never loads."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# What each floor may import of ours.
FLOORS = {
    "analysis": ("plkernel.analysis",),
    "kernels": ("plkernel.kernels",),
    "models": ("plkernel.models", "plkernel.analysis", "plkernel.kernels"),
    "plkernel": ("plkernel",),
}
HEAVY = ("torch", "triton", "numba", "matplotlib", "tensorboard", "datasets", "pydantic", "tyro")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module or ""


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_run_one_way(floor: str) -> None:
    files = [path for path in (ROOT / floor).glob("**/*.py") if not path.is_symlink()]
    assert files
    for path in files:
        ours = [name for name in imports(path) if name.split(".")[0] == "plkernel"]
        wrong = [n for n in ours if not any(n == allowed or n.startswith(allowed + ".") for allowed in FLOORS[floor])]
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_analysis_never_names_torch() -> None:
    for path in (ROOT / "analysis").glob("**/*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & {"torch", "triton"}, path


def test_triton_is_imported_only_by_gpu_modules() -> None:
    for path in ROOT.glob("*/**/*.py"):
        if not path.name.startswith("gpu") and "tests" not in path.parts and ".venv" not in path.parts:
            assert "triton" not in {name.split(".")[0] for name in imports(path)}, path


def test_links_are_relative() -> None:
    for name in ("analysis", "kernels", "models"):
        link = ROOT / "plkernel" / name
        assert str(link.readlink()) == f"../{name}"
    assert not (ROOT / "kernels" / "__init__.py").exists(), "a distribution called kernels exists"


def test_import_of_the_package_loads_nothing_heavy() -> None:
    code = f"import sys, plkernel; print([m for m in {HEAVY} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.strip() == "[]"
