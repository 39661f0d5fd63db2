"""A tiny study on real source text, and a cache of its own for every test."""

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Corpora of a test are cached in its own folder."""
    monkeypatch.setenv("PLKERNEL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tiny_spec(tmp_path: Path) -> Callable[..., Path]:
    """Writes a spec of a study that trains in a second; keyword arguments replace values of [train]."""
    text = tmp_path / "text.txt"
    text.write_text(inspect.getsource(textwrap) + inspect.getsource(inspect))

    def write(name: str = "tiny.toml", head: str = "", corpus: str | None = None, **train: object) -> Path:
        settings = {"context": 32, "batch": 4, "steps": 12, "eval_every": 4, "eval_windows": 4, "test_windows": 4}
        settings |= {"learning_rate": 1e-2} | train
        lines = "\n".join(f"{key} = {value!r}" for key, value in settings.items() if value is not None)
        path = tmp_path / name
        path.write_text(
            f'name = "tiny"\nbaseline = "uniform"\nseeds = [0, 1]\n{head}\n'
            f"[corpus]\nname = {str(corpus or text)!r}\n[model]\ndim = 16\nlayers = 2\n[train]\n{lines}\n"
            '[arms.uniform]\n[arms.power-law]\nprojection = "published"\n'
        )
        return path

    return write
