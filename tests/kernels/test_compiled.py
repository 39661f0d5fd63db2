"""What the CPU kernels share."""

from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.kernels import compiled


def test_it_compiles_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    njit = compiled.numba.njit

    def unwritable(**options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(compiled, "numba", SimpleNamespace(njit=unwritable))
    assert compiled.jit(lambda x: x + 1)(2) == 3
