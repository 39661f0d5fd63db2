"""A package of somebody else's in a temporary folder, and a spec that names it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plkernel.training import build

PACKAGE = "somebodys"
MODELS = '''
import functools
import random
from pathlib import Path

import numpy as np
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


def fourier(h):
    """A mean of the past through Fourier space, causal up to rounding."""
    length = h.shape[1]
    decay = torch.fft.rfft(torch.exp(-torch.arange(length) / 8.0), n=2 * length)[:, None]
    spectrum = torch.fft.rfft(h, n=2 * length, dim=1) * decay
    return torch.fft.irfft(spectrum, n=2 * length, dim=1)[:, :length]


SEEN = {
    "next": lambda h: h + torch.roll(h, -1, 1),
    # its first byte sees all four
    "patch": lambda h: h + h.unflatten(1, (-1, 4)).sum(2).repeat_interleave(4, 1),
    "mean": lambda h: h + h.mean(1, keepdim=True),
    "length": lambda h: h + h.shape[1] / 100,
    "batch": lambda h: h + h.mean(0, keepdim=True),
    "dice": lambda h: h + torch.rand(()),
    "fourier": fourier,
}
ANSWERS = {
    "wrong shape": lambda logits: logits[..., :7],
    "nan": lambda logits: logits / 0,
    "probabilities": lambda logits: logits.softmax(-1),
    "logarithms": lambda logits: logits.log_softmax(-1),
    "constant": lambda logits: torch.zeros(logits.shape),
    "error": lambda logits: {}["weights\\nof the past"],
}


class Plain(nn.Module):
    """Logits from the byte itself; `see` tells what else it looks at."""

    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(256, 8)
        self.head = nn.Linear(8, 256)
        self.see = config.get("see")
        self.patch = 4 if self.see == "patch" else 1
        if config.get("zero"):
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x):
        h = SEEN.get(self.see, lambda h: h)(self.embedding(x))
        return ANSWERS.get(self.see, lambda logits: logits)(self.head(h))


class Buffered(Plain):
    """A buffer of a type, expanded, or one that grows with the windows that were read."""

    def __init__(self, config):
        super().__init__({})
        self.persistent = config.get("persistent", True)
        if config.get("expanded"):
            self.spread = nn.Parameter(torch.ones(1).expand(4))
        self.grows = config.get("grows", False)
        dtype = getattr(torch, config.get("dtype", "float32"))
        self.register_buffer("kept", torch.zeros(0, dtype=dtype), persistent=self.persistent)

    def forward(self, x):
        if self.grows and x.shape[1] > len(self.kept):
            self.kept = torch.zeros(x.shape[1])
        return super().forward(x)


class Depth(Plain):
    """A block that steps of training leave out at random, as random, numpy or torch draws."""

    def __init__(self, config):
        super().__init__({})
        self.block = nn.Linear(8, 8)
        self.by = config["by"]

    def forward(self, x):
        draw = {
            "random": random.random,
            "numpy": np.random.rand,
            "torch": lambda: torch.rand(()).item(),
        }
        h = self.embedding(x)
        if not self.training or draw[self.by]() < 0.5:
            h = h + self.block(h)
        return self.head(h)


def broken(config):
    raise RuntimeError("no such luck\\nat all")


def half(config):
    return Plain(config).half()


def no_module(config):
    return config


def nothing_(model, generator):
    pass


def spread_(model, generator, longest, **options):
    model.spread = {"longest": longest, **options}


def small_(model, generator, std=0.01):
    model.embedding.weight.normal_(0, std, generator=generator)


def scaled(function):
    @functools.wraps(function)
    def wrapper(*arguments, scale=1.0, **options):
        function(*arguments, std=scale / 100, **options)

    return wrapper


@scaled
def scaled_(model, generator, std, longest=9):
    model.scaled = {"std": std, "longest": longest}


def closed(function):
    @functools.wraps(function)
    def wrapper(model, generator, scale=1.0):
        function(model, generator, std=scale / 100)

    return wrapper


@closed
def closed_(model, generator, std):
    model.scaled = {"std": std}


def infinite_(model, generator):
    model.embedding.weight.fill_(float("inf"))
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the package `somebodys`, as if installed; a file `imported` tells that `models`
    was imported.
    """
    folder = tmp_path / "elsewhere" / PACKAGE
    metadata = folder.parent / "somebodys-1.0.dist-info"
    for path, content in {
        folder / "__init__.py": "",
        folder / "models.py": MODELS,
        metadata / "METADATA": "Metadata-Version: 2.1\nName: somebodys\nVersion: 1.0\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
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

    def write(
        kind: str = f"{PACKAGE}.models:Recurrent",
        config: str = "{}",
        arm: str = "",
        **train: object,
    ) -> Path:
        path = tiny_spec(**train)
        text = path.read_text().replace(
            "dim = 16\nlayers = 2\n", f'kind = "{kind}"\nconfig = {config}\n'
        )
        path.write_text(
            text.replace('[arms.power-law]\nprojection = "published"', f"[arms.power-law]\n{arm}")
        )
        return path

    return write
