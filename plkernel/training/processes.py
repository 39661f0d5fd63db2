"""Processes that train one model together under torchrun: each takes its share of the windows of a step.

DistributedDataParallel averages their gradients, so that a step equals that of one process on all windows, up to
rounding. The first process alone evaluates, writes and prints, and decides when the budget is spent. Without torchrun a
process is `ALONE`, and every method below is the identity.
"""

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from plkernel.common.cli import EXIT_INTERRUPTED, USER_ERRORS
from plkernel.config.schema import TrainSpec
from plkernel.memory.foreign import Foreign
from plkernel.training.build import choose_device

Value = TypeVar("Value")
PATIENCE = timedelta(days=1)
"""How long a process waits for the first one to evaluate and write; when one ends torchrun ends the rest."""
_agreeing: list[dist.ProcessGroup] = []
"""The connection over which this process agrees with the others; models hold on to that of the gradients."""


@dataclass(frozen=True)
class Ranks:
    """Process `rank` (from 0) of `count` that train one model; all of them call every method but `share`."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """True for the process that evaluates, writes and prints."""
        return self.rank == 0

    @property
    def launcher(self) -> int | None:
        """The id of the torchrun that started this process, with which it ends; None without."""
        return None if self.count == 1 else os.getppid()

    def share(self, windows: Tensor) -> Tensor:
        """This process's windows (B / count, T) of a step's (B, T), in their order."""
        return windows.chunk(self.count)[self.rank]

    def parallel(self, model: nn.Module) -> nn.Module:
        """`model` with the gradients of all processes averaged by backward, and the first one's parameters in all."""
        unused = isinstance(model, Foreign)  # may have parameters that a step does not reach
        return model if self.count == 1 else DistributedDataParallel(model, find_unused_parameters=unused)

    def mean(self, values: list[float]) -> list[float]:
        """The means of all processes' values, as many in each."""
        if self.count == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=_agreeing[0])
        return [value / self.count for value in total.tolist()]

    def any(self, flag: bool) -> bool:
        """True where `flag` is in one process at least."""
        return self.mean([float(flag)])[0] > 0

    def from_first(self, action: Callable[[], Value]) -> Value:
        """The value of `action` in the first process, which alone calls it; bad input and divergence reach all."""
        if self.count == 1:
            return action()
        outcome: list[Any] = [None, None]
        error: Exception | None = None
        if self.first:
            try:
                outcome[0] = action()
            except USER_ERRORS as raised:
                error, outcome[1] = raised, str(raised)
        dist.broadcast_object_list(outcome, group=_agreeing[0], device=torch.device("cpu"))
        if outcome[1] is not None:
            raise error or ValueError(outcome[1])
        return outcome[0]  # type: ignore[no-any-return]


ALONE = Ranks()


@contextmanager
def joined(train: TrainSpec) -> Iterator[Ranks]:
    """The processes of this run, connected; `ALONE` unless torchrun started several.

    Raises ValueError where the windows of a step or the GPUs of a machine cannot be shared among them, and
    ConnectionError when another of them has ended before its time. Only the first process reports an interrupt.
    """
    ranks = Ranks(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
    if ranks.count == 1 or "LOCAL_RANK" not in os.environ:  # a cluster may set the others for programs of its own
        yield ALONE
        return
    if train.batch % ranks.count:
        raise ValueError(
            f"train.batch must be a multiple of the number of processes, got {train.batch} windows for "
            f"{ranks.count} processes: change it or torchrun's --nproc-per-node"
        )
    on_gpu = choose_device(train.device).type == "cuda"
    if on_gpu:
        local_rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local_rank >= gpus:
            raise ValueError(
                f"train.device 'cuda' gives every process a GPU of its own, and this machine has {gpus}: lower "
                "torchrun's --nproc-per-node, or take train.device 'cpu'"
            )
        torch.cuda.set_device(local_rank)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=PATIENCE)
    _agreeing.append(dist.new_group(backend="gloo", timeout=PATIENCE))
    atexit.register(_leave)
    try:
        yield ranks
    except KeyboardInterrupt:
        if ranks.first:
            raise
        sys.exit(EXIT_INTERRUPTED)
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise ConnectionError("another process of this run has ended; run the same command again to go on") from error
    dist.destroy_process_group()  # not after an error: its message comes before those of the others


def _leave() -> None:
    """End gloo's threads before Python ends: one that lets go of a tensor later aborts the process (pytorch 190489)."""
    group = _agreeing.pop()
    if dist.is_initialized():
        dist.destroy_process_group(group)


@contextmanager
def stop_requests(parent: int | None = None) -> Iterator[Callable[[], bool]]:
    """Tell, between steps, whether SIGINT or SIGTERM has arrived or the process `parent` has ended.

    On Windows parents are not watched: in a virtual environment the parent is a launcher, and its number stays.
    """
    received: list[int] = []
    parent = parent if os.name == "posix" else None
    signals = (signal.SIGINT, signal.SIGTERM)
    # An exception from a handler could end a step, or a write, halfway.
    previous = {number: signal.signal(number, lambda number, _: received.append(number)) for number in signals}
    try:
        yield lambda: bool(received) or (parent is not None and os.getppid() != parent)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
