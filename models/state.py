"""State in, state out: what a recurrent model remembers between two parts of a text.

    state = model.initial_state(batch)
    logits, state = model(inputs, state)        bytes (B,T) that follow those that `state` has seen

The logits of a text are the same, to rounding, in one call without a state and in parts of any
lengths, each with the state of the part before.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

BlockMemory = dict[str, Tensor]
"""State of one block, by name: a layer reads its entry and replaces it."""
STEPS = "steps"
"""Name of the number of steps before, which a block keeps if decays depend on the position."""
STEPS_KIND: tuple[tuple[int, ...], torch.dtype] = ((), torch.int64)
"""Shape without the batch, and dtype, of `STEPS` in a state."""
Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape without the batch, and dtype, of every tensor of a state, by name."""
BEGIN = "begin with model.initial_state(batch)"
"""The hint of errors about a state that does not fit."""


@dataclass(frozen=True)
class State:
    """State of a model after the bytes that it has read, in a size that does not grow.

    model     the kind of model that it belongs to
    tensors   (B,...) by name, such as blocks.0.wkv
    position  bytes read of a patch that is not complete

    To save one: `torch.save(vars(state.detach()), file)`, and `State(**torch.load(file))`.
    """

    model: str
    tensors: dict[str, Tensor]
    position: int = 0

    def detach(self) -> "State":
        """A copy that no gradient flows through: for truncated backpropagation through time."""
        # Copies, because CUDA graphs write the next state where they wrote this one.
        return self._each(lambda x: x.detach().clone())

    def to(self, device: torch.device | str) -> "State":
        """The state on another device."""
        return self._each(lambda x: x.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "State":
        """The state with `change` of every tensor."""
        return replace(self, tensors={name: change(x) for name, x in self.tensors.items()})

    def memories(self, layers: int, names: tuple[str, ...]) -> list[BlockMemory]:
        """The memory of every block, `names` in each."""
        return [
            {name: self.tensors[block_name(layer, name)] for name in names}
            for layer in range(layers)
        ]

    def with_memories(self, memories: list[BlockMemory]) -> "State":
        """The state with these memories of the blocks, in the dtypes that it has."""
        tensors = dict(self.tensors)
        for layer, memory in enumerate(memories):
            for name, values in memory.items():
                key = block_name(layer, name)
                tensors[key] = values.to(tensors[key].dtype)
        return replace(self, tensors=tensors)


def block_name(layer: int, name: str) -> str:
    """Name in a state of what block `layer` remembers as `name`."""
    return f"blocks.{layer}.{name}"


def layout_of_blocks(
    layers: int, kinds: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
) -> Layout:
    """The layout of a model whose blocks all remember `kinds`, block by block."""
    layout = {}
    for layer in range(layers):
        for name, kind in kinds.items():
            layout[block_name(layer, name)] = kind
    return layout


def blank(model: str, layout: Layout, batch: int, device: torch.device) -> State:
    """The state before the first byte of `batch` texts: zero."""
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    tensors = {
        name: torch.zeros((batch, *shape), dtype=dtype, device=device)
        for name, (shape, dtype) in layout.items()
    }
    return State(model, tensors)


def check_state_layout(
    state: State, model: str, layout: Layout, inputs: Tensor, patch: int = 1
) -> None:
    """Raise ValueError unless `state` is one of `model` that fits `inputs` (B,T).

    layout  of the states of the model
    patch   bytes of a patch
    """
    if not isinstance(state, State):
        raise ValueError(f"state must be a State, got {type(state).__name__}; {BEGIN}")
    if state.model != model:
        raise ValueError(f"state must be of {model}, got one of {state.model}; {BEGIN}")
    _check_names(state, layout)
    for name, (shape, dtype) in layout.items():
        _check_tensor(name, state.tensors[name], shape, dtype, inputs)
    if not 0 <= state.position < patch:
        raise ValueError(f"state must have a position below {patch}, got {state.position}; {BEGIN}")


def _check_names(state: State, layout: Layout) -> None:
    """ValueError unless the state has the tensors of the layout, and no others."""
    unplaced = [name for name in layout if name.endswith(STEPS) and name not in state.tensors]
    if unplaced:
        raise ValueError(
            f"state must come with its position, {unplaced[0]}, on which decays depend, got none;"
            f" {BEGIN}"
        )
    different = state.tensors.keys() ^ layout.keys()
    if different:
        raise ValueError(
            f"state must be of a model of the same size, got one that differs in"
            f" {min(different)}; {BEGIN}"
        )


def _check_tensor(
    name: str, found: Tensor, shape: tuple[int, ...], dtype: torch.dtype, inputs: Tensor
) -> None:
    """ValueError unless a tensor of a state is (B, *shape), B and the device those of `inputs`."""
    if found.shape[1:] != shape:
        raise ValueError(
            f"state must be of a model of the same size, {name} (B, *{shape}), got"
            f" {tuple(found.shape)}; {BEGIN}"
        )
    if found.shape[0] != inputs.shape[0]:
        raise ValueError(
            f"state must be of the batch of the inputs, {inputs.shape[0]}, got {found.shape[0]};"
            f" {BEGIN}"
        )
    if found.dtype != dtype:
        raise ValueError(
            f"state must have {name} in {dtype}, as the model computes, got {found.dtype}; {BEGIN}"
        )
    if found.device != inputs.device:
        raise ValueError(
            f"state must be on the device of the inputs, {inputs.device}, got {found.device}; use"
            " state.to(device)"
        )
