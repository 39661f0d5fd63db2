"""Models of other people's code: built under a seed, started by their functions, and wrapped to what a run asks for."""

import copy
import hashlib
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plkernel.common.cli import nearest
from plkernel.common.environment import installed
from plkernel.common.imports import MARK, imported, told
from plkernel.foreign.memory import half_lives_of, kernels_of
from plkernel.models.init.plan import generator_for, is_matrix
from plkernel.models.ssm import BYTES

MULTIPLIERS = ("learning_rate", "weight_decay", "eps")
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
"""Every byte is itself: none pads, begins or ends."""


@dataclass(frozen=True)
class ForeignConfig:
    """What a run asks of the configuration of any model."""

    kind: str
    patch: int = 1
    causal: bool = True


class Foreign(nn.Module):
    """`module`, built by the code that `kind` names, with the methods that a run asks of a model; see the package."""

    def __init__(self, kind: str, module: nn.Module) -> None:
        super().__init__()
        patch = getattr(module, "patch", 1)
        if not isinstance(patch, int) or patch < 1:
            raise ValueError(f"kind {kind!r}: patch must be a whole number of bytes, at least 1, got {patch!r}")
        self.config = ForeignConfig(kind, patch)
        self.module = module

    def forward(self, inputs: Tensor) -> Any:
        """Logits (B,T,256) of bytes (B,T); those of an output that has them as a field."""
        found = self.module(inputs)
        return getattr(found, "logits", found)

    def half_lives(self) -> list[Tensor]:
        """Half-lives of every block in bytes, float64 on the CPU; none where they are not known."""
        return half_lives_of(self.module)

    def kernels(self, lags: Tensor) -> list[Tensor]:
        """What an input still weighs `lags` (T,) bytes later in every block, float64; none where it is not known."""
        return kernels_of(self.module, lags)

    def multipliers(self) -> dict[str, tuple[float, float, float]]:
        """Of learning rate, weight decay and eps, by the parameters that the model names; ValueError for an unknown."""
        module: Any = self.module
        given = module.multipliers() if hasattr(module, "multipliers") else {}
        parameters, found = dict(self.module.named_parameters()), {}
        for pattern, values in given.items():
            if unknown := set(values) - set(MULTIPLIERS):
                raise ValueError(f"{self.named}: multipliers has {unknown.pop()!r}; {nearest('', MULTIPLIERS)}")
            matching = [name for name in parameters if name == pattern or fnmatchcase(name, pattern)]
            if not matching:
                hint = nearest(pattern, parameters)
                raise ValueError(f"{self.named}: multipliers names {pattern!r}, which is no parameter; {hint}")
            for name in matching:
                defaults = (1.0, float(is_matrix(name, parameters[name])), 1.0)
                rate, decay, eps = (float(values.get(*pair)) for pair in zip(MULTIPLIERS, defaults, strict=True))
                found[f"module.{name}"] = rate, decay, eps
        return found

    @property
    def named(self) -> str:
        """How messages name it."""
        return f"kind {self.config.kind!r}"


def build(kind: str, options: Mapping[str, Any] | None, seed: int) -> Foreign:
    """The model that the code `kind` builds of `options`, its parameters as its constructor draws them under `seed`.

    The person must have consented: the module is imported. Raises ValueError, in one line, for whatever goes wrong.
    """
    builder = imported(kind, "kind")
    given = copy.deepcopy(dict(options or {}))
    with seeded(seed, "model"), one_line(f"kind {kind!r}", "building it"):
        module = of_transformers(builder, kind, given) if hasattr(builder, "config_class") else builder(given)
    if not isinstance(module, nn.Module):
        raise ValueError(f"kind {kind!r}: gave a {type(module).__name__}, expected a torch.nn.Module")
    return Foreign(kind, module)


def of_transformers(found: Any, kind: str, options: dict[str, Any]) -> Any:
    """A model of transformers over bytes, from the options of its config class; ValueError for one it does not have."""
    known = found.config_class()
    for name in options:
        if not hasattr(known, name):
            raise ValueError(f"config has {name!r}; {nearest(name, known.to_dict())}")
    if options.get("vocab_size", BYTES) != BYTES:
        raise ValueError(f"vocab_size must be {BYTES}, one for every byte, got {options['vocab_size']}: leave it out")
    return found(found.config_class(**{"vocab_size": BYTES, **dict.fromkeys(TOKENS), "use_cache": False, **options}))


def start_(model: nn.Module, name: str, options: Mapping[str, Any] | None, seed: int) -> None:
    """Call the function `name` with the model, a generator of this seed and the options; it works in place.

    The person must have consented: the module is imported. Raises ValueError, in one line, for whatever goes wrong.
    """
    function = imported(name, "init")
    target = model.module if isinstance(model, Foreign) else model
    with seeded(seed, name), torch.no_grad(), one_line(f"init {name!r}", "it"):
        function(target, generator=generator_for(seed, name), **copy.deepcopy(dict(options or {})))


def origins(names: Iterable[str]) -> dict[str, Any]:
    """{"code": ..}, for the record of a run, which code each of the names stood for; nothing where there are none."""
    found = {name: _origin(name) for name in names}
    return {"code": found} if found else {}


def _origin(name: str) -> dict[str, Any]:
    """The version of a name's package, and SHA-256 of its module's file."""
    module = sys.modules.get(name.partition(MARK)[0])
    file = getattr(module, "__file__", None)
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else None
    return {"version": installed(name.partition(".")[0].partition(MARK)[0]), "sha256": digest}


@contextmanager
def seeded(seed: int, name: str) -> Iterator[None]:
    """The global generators of torch, numpy and random, as (seed, name) has them; as they were before, afterwards."""
    number = generator_for(seed, name).initial_seed()
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        np.random.seed(number % 2**32)  # noqa: NPY002
        random.seed(number)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002


@contextmanager
def one_line(head: str, what: str) -> Iterator[None]:
    """Whatever is raised inside as a ValueError of one line, as in "HEAD: WHAT raised TypeError: ..."."""
    try:
        yield
    except Exception as error:  # of whatever kind other people's code raises
        raise ValueError(f"{head}: {what} raised {told(error)}") from error
