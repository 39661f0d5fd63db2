"""A tiny study on real source text, a cache of its own for every test, and the official RWKV package."""

import gc
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from torch import Tensor


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


@pytest.fixture
def official_logits(monkeypatch: pytest.MonkeyPatch) -> "Iterator[Callable[[Path, Tensor], dict[str, Tensor]]]":
    """Logits (T,256) of bytes (T,) by the official inference package, for the whole sequence and byte by byte.

    The package runs without compiling anything; what it sets for all of torch on import is undone. It collects garbage
    for every matrix it loads, which would be most of the time of a small model.
    """
    pytest.importorskip("rwkv", reason="the official inference package `rwkv` is not installed")
    import torch

    monkeypatch.setattr(gc, "collect", lambda: 0)
    for name in ("RWKV_JIT_ON", "RWKV_CUDA_ON", "RWKV_V7_ON"):
        monkeypatch.setenv(name, "0")
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    yield run_official
    cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


def run_official(path: Path, inputs: "Tensor") -> "dict[str, Tensor]":
    """What the fixture `official_logits` gives, from a .pth file."""
    import torch
    from rwkv.model import RWKV

    official = RWKV(model=str(path), strategy="cpu fp32", verbose=False)
    whole, _ = official.forward(inputs.tolist(), None, full_output=True)
    state, each = None, []
    for byte in inputs.tolist():
        logits, state = official.forward([byte], state)
        each.append(logits)
    return {"whole": whole, "each": torch.stack(each)}
