"""A training step on a GPU as a CUDA graph: recorded once for each set of shapes, then replayed.

A step of a small model is some hundred launches, which take Python longer than the GPU. A graph is
one launch of the same kernels in the same order: the sums stay those of the step it recorded.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

CALLED = 2
"""Steps with inputs of a set of shapes before the one that is recorded: they compile kernels, and
make the optimiser's state.
"""

Shapes = tuple[torch.Size, ...]
Work = Callable[..., Tensor]


class Recorded(NamedTuple):
    """A graph, with the tensors that it reads and the loss that it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    loss: Tensor


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> Iterator[None]:
    """Record what is launched inside into a graph, as `torch.cuda.graph` does.

    Where torch cannot end a recording it stays on its stream and goes on to take memory from its
    pool. Here both are as before after any error.

    pool: of `torch.cuda.graph_pool_handle`
    """
    before = torch.cuda.current_stream(stream.device)
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            yield
    except BaseException:
        torch.cuda.set_stream(before)
        _leave(pool, stream.device_index)
        raise


def _leave(pool: Any, device: int) -> None:
    """Take no more memory from the pool of a recording that torch did not end.

    The first call raises where torch ended it: its graph then releases the pool, and it must not be
    released twice.
    """
    name = "_cuda_endAllocateToPool"
    if not hasattr(torch._C, name):
        name = "_cuda_endAllocateCurrentStreamToPool"  # before torch 2.8
    end: Callable[[int, Any], None] = getattr(torch._C, name)
    with suppress(RuntimeError):
        end(device, pool)
        torch._C._cuda_releasePool(device, pool)


class ReplayedStep:
    """A training step that is replayed from its third call with inputs of the same shapes.

    work: forward, backward and update; it returns the loss, a scalar without a graph of gradients.
    Everything else that it reads must keep its place in memory, and nothing in it may wait for the
    GPU. Where it cannot be recorded it is called from Python, and a warning says why.
    """

    def __init__(self, work: Work, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.work = work
        self.optimizer = optimizer
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.called: dict[Shapes, int] = {}
        self.recorded: dict[Shapes, Recorded] = {}
        self.is_recordable = True

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Take one step on tensors of the CPU and return its loss; the host does not wait."""
        shapes = tuple(one.shape for one in inputs)
        pinned = [one.pin_memory() for one in inputs]
        if self.is_recordable and self.called.get(shapes, 0) == CALLED:
            self._record(shapes, pinned)
        found = self.recorded.get(shapes)
        if found is None:
            self.called[shapes] = self.called.get(shapes, 0) + 1
            return self._from_python(pinned)
        for kept, value in zip(found.inputs, pinned, strict=True):
            kept.copy_(value, non_blocking=True)
        found.graph.replay()
        return found.loss.clone()

    def _from_python(self, pinned: list[Tensor]) -> Tensor:
        """Take the step on a stream of its own, as steps before a recording must be."""
        before = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(before)
        with torch.cuda.stream(self.stream):
            loss = self.work(*[one.to(self.device, non_blocking=True) for one in pinned])
        before.wait_stream(self.stream)
        return loss

    def _record(self, shapes: Shapes, pinned: list[Tensor]) -> None:
        """Record the step for inputs of these shapes; nothing is computed yet."""
        self.called[shapes] += 1
        inputs = tuple(one.to(self.device) for one in pinned)
        graph = torch.cuda.CUDAGraph()
        for group in self.optimizer.param_groups:
            group["capturable"] = True
        try:
            with recording(graph, self.pool, self.stream):
                loss = self.work(*inputs)
        except RuntimeError as reason:
            self.is_recordable = False
            self.optimizer.zero_grad(set_to_none=True)  # they have no values
            torch.cuda.empty_cache()  # of what the recording took
            first = str(reason).strip().partition("\n")[0]
            warnings.warn(
                f"training steps are called from Python, since one could not be recorded: {first}",
                stacklevel=4,
            )
        else:
            self.recorded[shapes] = Recorded(graph, inputs, loss)
        finally:
            for group in self.optimizer.param_groups:
                group["capturable"] = False
