"""The scripts of runs/, which is no package, as modules."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

RUNS = Path(__file__).parents[2] / "runs"


@pytest.fixture(scope="module")
def script_of() -> Callable[[str], ModuleType]:
    """Loads runs/NAME.py."""

    def load(name: str) -> ModuleType:
        specification = importlib.util.spec_from_file_location(name, RUNS / f"{name}.py")
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module

    return load
