"""Standard output into a pipe, as commands see it, and a file in the way of their folder."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Pipe:
    """Standard output into a pipe, which gets what a program has flushed."""

    def __init__(self) -> None:
        self.bytes = io.BytesIO()
        self.stream = io.TextIOWrapper(self.bytes, encoding="utf-8")
        self.arrived: dict[str, str] = {}

    def look(self, name: str, result: Any = None) -> Callable[..., Any]:
        """A function that notes what has arrived when it is called first."""

        def noting(*_: Any, **__: Any) -> Any:
            self.arrived.setdefault(name, self.bytes.getvalue().decode())
            return result

        return noting


@pytest.fixture
def pipe() -> Pipe:
    """To stand for sys.stdout while a command runs."""
    return Pipe()


@pytest.fixture(params=["in its place", "in the place of the folder above"])
def blocked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder that cannot be made because of a file, which must be as it was in the end."""
    file = tmp_path / "file"
    file.write_text("mine")
    yield file if request.param == "in its place" else file / "sub"
    assert file.read_text() == "mine"
