"""The loss of a trained model whose recurrent state is stored in half precision.

A model reads one token at a time. After every step its recurrent state is rounded to a type of
`plkernel.decays.rounding`, and the next step reads the rounded one; products and sums of a step
stay in the precision of the model. That is what a cache in that type does to a text drawn token by
token. Only the recurrent state is rounded: what a model keeps of its last tokens for a convolution
or a token shift stays as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from plkernel.common.files import shown
from plkernel.decays.rounding import DTYPES, dtype_name, significand_bits
from plkernel.decays.watch import check_module
from plkernel.models.state import State
from plkernel.probing.state_checks import (
    CACHES,
    cache_of,
    call_with_cache,
    check_model,
    takes_cache,
)
from plkernel.training.evaluate import as_windows, losses_per_byte
from plkernel.training.foreign import Foreign

RECURRENT = ("ssm", "wkv", "delta")
"""Last names of the tensors of a `State` that decay; the others are the last inputs of a shift."""
WITHOUT_INFINITY = ("float8_e4m3",)
"""Types of a state that have no infinity."""


@dataclass(frozen=True)
class Storage:
    """The type in which a state is stored after every step.

    dtype       a name of `plkernel.decays.rounding`, such as bfloat16 or fp16
    stochastic  round up or down by chance, so that the mean is the number itself
    """

    dtype: str
    stochastic: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    @property
    def name(self) -> str:
        """The name of the type, and whether rounding is stochastic."""
        return f"{self.dtype}, stochastic" if self.stochastic else self.dtype


class Stepped(Protocol):
    """A model that reads a text token by token."""

    def step(self, tokens: Tensor) -> Tensor:
        """Logits (B,V) behind one more token (B,) of each text."""

    def states(self) -> list[Tensor]:
        """The recurrent states (B,..), which the next step reads and which may be overwritten."""


class StateSteps:
    """`Stepped` of a model with `initial_state(batch)` and `model(tokens, state)`."""

    def __init__(self, model: Any, batch: int) -> None:
        self.model = model
        self.state: State = model.initial_state(batch)

    def step(self, tokens: Tensor) -> Tensor:
        logits, after = self.model(tokens[:, None], self.state)
        # Copies, since a kernel may return a tensor that it, or another state, still needs.
        kept = {name: values.clone() for name, values in after.tensors.items()}
        self.state = replace(after, tensors=kept)
        return cast(Tensor, logits[:, -1])

    def states(self) -> list[Tensor]:
        tensors = self.state.tensors
        return [tensors[name] for name in tensors if name.rpartition(".")[2] in RECURRENT]


class CacheSteps:
    """`Stepped` of a model of transformers whose cache has recurrent states, such as Mamba-2."""

    def __init__(self, model: nn.Module) -> None:
        if not takes_cache(model):
            # DDP and DataParallel run another model, and hand on none of its methods.
            is_wrapper = isinstance(getattr(model, "module", None), nn.Module)
            hint = "; give the model in it, model.module" if is_wrapper else ""
            raise ValueError(
                f"model must take a state or a cache, got {type(model).__name__}, whose forward"
                f" takes none of {', '.join(CACHES)}{hint}"
            )
        self.model = model
        self.cache: Any = None
        self.state: tuple[Any, Tensor] | None = None

    def step(self, tokens: Tensor) -> Tensor:
        output, mask_so_far = call_with_cache(self.model, tokens[:, None], self.state)
        self.cache = cache_of(output)
        self.state = (self.cache, mask_so_far)
        if self.cache is None:
            raise ValueError(
                f"model must return its cache, got a {type(output).__name__} without any of"
                f" {', '.join(CACHES)}"
            )
        return cast(Tensor, output.logits[:, -1])

    def states(self) -> list[Tensor]:
        known = []
        for layer in getattr(self.cache, "layers", []):
            states = getattr(layer, "recurrent_states", {}).values()
            known += [state for state in states if state is not None]
        if not known:
            raise ValueError(
                f"model must keep recurrent states in its cache, got {type(self.cache).__name__}"
                " without any"
            )
        return known


def stepped(model: Any, batch: int) -> Stepped:
    """The model before the first token of `batch` texts.

    Raises ValueError for one that takes neither a state nor a cache.
    """
    own = model.module if isinstance(model, Foreign) else model
    return StateSteps(own, batch) if hasattr(own, "initial_state") else CacheSteps(own)


def rounded(values: Tensor, dtype: str, generator: torch.Generator | None = None) -> Tensor:
    """`values` rounded to a type, in the dtype that they have.

    To nearest, ties to even, or with a generator up with the probability that makes the mean of
    many roundings the number itself. Numbers beyond the largest of the type become infinite, or the
    largest where the type has no infinity (float8_e4m3). Below the smallest normal one units are
    those of subnormal numbers. Infinities and NaN stay, whatever the type has.

    With p bits of significand and 2**(e - 1) <= |x| < 2**e the unit is 2**(e - p), and not less
    than 2**(1 - p) times the smallest normal number.
    """
    name = dtype_name(dtype)
    if generator is None:
        return _to_nearest(values, name)
    wide = values.double()
    bits = significand_bits(name)
    _, exponent = torch.frexp(wide)
    smallest_exponent = int(np.log2(torch.finfo(DTYPES[name]).smallest_normal))
    power = (exponent - bits).clamp(min=smallest_exponent + 1 - bits)
    unit = torch.ldexp(torch.ones_like(wide), power)
    chance = torch.rand(wide.shape, generator=generator, dtype=torch.float64, device=wide.device)
    stored = torch.floor(wide / unit + chance) * unit
    stored = torch.where(wide.isfinite(), stored, wide)
    return _to_nearest(stored, name).to(values.dtype)


def _to_nearest(values: Tensor, name: str) -> Tensor:
    """`values` rounded to nearest, in the dtype that they have."""
    stored_dtype = DTYPES[name]
    within = values
    if name in WITHOUT_INFINITY:  # what a cast makes of larger numbers depends on the release
        largest = torch.finfo(stored_dtype).max
        within = values.clamp(-largest, largest)
    nearest = within.to(stored_dtype).to(values.dtype)
    return torch.where(values.isfinite(), nearest, values)


@torch.no_grad()
def stored_losses(
    model: Any, windows: Tensor, storages: Sequence[Storage], seed: int = 0
) -> np.ndarray:
    """Bits (S,n,T) at tokens 1..T of `windows` (n,T+1), for each of S ways to store the state.

    model     a causal model of plkernel, or one of transformers with recurrent states in its cache,
              in evaluation mode from now on
    storages  a list of `Storage`
    seed      of the stochastic rounding

    All S x n texts are read at once: memory is that of so many states. Raises ValueError for a
    model without a state, and for patches, whose state holds more than the recurrence.
    """
    check_model(model)
    check_module(model)
    read = as_windows(windows)
    _check_storages(storages)
    patch = getattr(getattr(model, "config", None), "patch", 1)
    if patch != 1:
        raise ValueError(f"model must read byte by byte, got patches of {patch} bytes")
    model.eval()
    count = len(read)
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    texts = read.repeat(len(storages), 1).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    reading = stepped(model, len(texts))
    bits = torch.empty(len(texts), read.shape[1] - 1)
    for place in range(read.shape[1] - 1):
        logits = reading.step(texts[:, place])
        targets = texts[:, place + 1, None]
        bits[:, place] = losses_per_byte(logits[:, None].float(), targets)[:, 0].cpu()
        for state in reading.states():
            _store(state, storages, count, generator)
    return bits.view(len(storages), count, -1).double().numpy()


def _check_storages(storages: Any) -> None:
    """ValueError unless these are one or more of `Storage` in a list."""
    is_list = isinstance(storages, Sequence) and not isinstance(storages, str)
    if not is_list or not all(isinstance(one, Storage) for one in storages):
        raise ValueError(
            'storages must be a list of Storage, such as [Storage("bfloat16")], got'
            f" {shown(storages)}"
        )
    if not storages:
        raise ValueError("storages must name one way to store the state or more, got none")


def _store(
    state: Tensor, storages: Sequence[Storage], count: int, generator: torch.Generator
) -> None:
    """Round the rows of a state (S x count,..) in place, `count` rows as each of S storages."""
    for number, storage in enumerate(storages):
        rows = state[number * count : (number + 1) * count]
        chance = generator if storage.stochastic else None
        rows.copy_(rounded(rows, storage.dtype, chance))
