"""A package of somebody else's in a temporary folder, and a spec that names it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plkernel.training import build

PACKAGE = "somebodys"
MODELS = '''
from pathlib import Path

import torch
from torch import nn

Path(__file__).with_name("imported").write_text("yes")


class Recurrent(nn.Module):
    """A GRU with dropout, a buffer that training changes, and a part that no loss reaches."""

    def __init__(self, config):
        super().__init__()
        dim = config.get("dim", 8)
        self.embedding = nn.Embedding(256, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.dropout = nn.Dropout(0.25)
        self.norm = nn.BatchNorm1d(dim)
        self.head = nn.Linear(dim, 256)
        self.unreached = nn.Linear(3, 3)

    def forward(self, x):
        states = self.dropout(self.gru(self.embedding(x))[0])
        return self.head(self.norm(states.transpose(1, 2)).transpose(1, 2))


class Plain(nn.Module):
    """Logits from the byte itself; `see` tells what else it looks at."""

    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(256, 8)
        self.head = nn.Linear(8, 256)
        self.config = config
        self.patch = 4 if config.get("see") == "patch" else 1
        if config.get("zero"):
            nn.init.zeros_(self.head.weight)

    def forward(self, x):
        h, see = self.embedding(x), self.config.get("see")
        if see == "next":
            h = h + torch.roll(h, -1, 1)
        elif see == "patch":  # of four bytes, all of which its first byte sees
            h = h + h.unflatten(1, (-1, 4)).sum(2).repeat_interleave(4, 1)
        elif see == "mean":
            h = h + h.mean(1, keepdim=True)
        elif see == "length":
            h = h + x.shape[1] / 100
        elif see == "batch":
            h = h + h.mean(0, keepdim=True)
        elif see == "dice":
            h = h + torch.rand(())
        elif see == "fourier":  # a mean of the past through Fourier space, causal up to rounding
            n = 2 * x.shape[1]
            decay = torch.exp(-torch.arange(x.shape[1]) / 8.0)
            spectrum = torch.fft.rfft(h, n=n, dim=1) * torch.fft.rfft(decay, n=n)[:, None]
            h = torch.fft.irfft(spectrum, n=n, dim=1)[:, : x.shape[1]]
        elif see == "wrong shape":
            return self.head(h)[..., :7]
        elif see == "nothing":
            return None
        elif see == "nan":
            return self.head(h) / 0
        elif see == "error":
            raise KeyError("weights\\nof the past")
        elif see == "constant":
            return torch.zeros(*x.shape, 256)
        return self.head(h)


def broken(config):
    raise RuntimeError("no such luck\\nat all")


def half(config):
    return Plain(config).half()


def no_module(config):
    return config


def small_(model, generator, std=0.01):
    model.embedding.weight.normal_(0, std, generator=generator)


def infinite_(model, generator):
    model.embedding.weight.fill_(float("inf"))
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the package `somebodys` with its module `models`; the file `imported` appears in it once it is."""
    folder = tmp_path / "elsewhere" / PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setenv("PYTHONPATH", f"{folder.parent}:{Path(__file__).parents[2]}")
    yield folder
    forget()


def forget() -> None:
    """Take the package out of what is imported, and out of what was tried in this process."""
    build._tried.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def forgotten() -> Callable[[], None]:
    """Takes the package out of what is imported, as in a process that has never seen it."""
    return forget


@pytest.fixture
def foreign_spec(tiny_spec: Callable[..., Path], package: Path) -> Callable[..., Path]:
    """The tiny spec with a model of the package."""

    def write(kind: str = f"{PACKAGE}.models:Recurrent", config: str = "{}", arm: str = "", **train: object) -> Path:
        path = tiny_spec(**train)
        text = path.read_text().replace("dim = 16\nlayers = 2\n", f'kind = "{kind}"\nconfig = {config}\n')
        path.write_text(text.replace('[arms.power-law]\nprojection = "published"', f"[arms.power-law]\n{arm}"))
        return path

    return write
