"""Contenders side by side: first checked against the truth, then timed in turns."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import quantiles
from typing import Any, TypeVar

import torch
from torch import Tensor

Call = Callable[[], Any]
LEAST_RUNS = 3  # also of a slow one: a median needs them


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of `runs` values."""

    median: float
    low: float
    high: float
    runs: int

    def scaled(self, factor: float) -> "Spread":
        """That of values `factor` times as large."""
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.runs)


@dataclass(frozen=True)
class Times:
    """Seconds per call of each contender, one list entry per round; None in a round it sat out."""

    seconds: Mapping[str, list[float | None]]

    def spread(self, name: str) -> Spread:
        """Seconds of one call."""
        return spread([value for value in self.seconds[name] if value is not None])

    def ratio(self, name: str, base: str) -> Spread:
        """How many times as long as `base` it takes: the ratio within each round both took part in."""
        pairs = zip(self.seconds[name], self.seconds[base], strict=True)
        return spread([value / other for value, other in pairs if value is not None and other is not None])


def spread(values: list[float]) -> Spread:
    """Median and quartiles; of a single value, that value."""
    low, median, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return Spread(median, low, high, len(values))


def interleave(
    calls: Mapping[str, Call], rounds: int = 15, budget: float = 10.0, device: str = "cpu", repeat: int = 1
) -> Times:
    """Seconds per call over `rounds` rounds of calling each once, after one call of each that does not count.

    A contender that has used up its `budget` of seconds sits out the later rounds, but never runs fewer than three
    times. The order turns by one each round. `repeat` calls are timed together (a GPU needs a queue to fill).
    """
    seconds: dict[str, list[float | None]] = {name: [] for name in calls}
    names = list(calls)
    for name in names:
        calls[name]()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            done = [value for value in seconds[name] if value is not None]
            spent = sum(done) * repeat
            pause = len(done) >= LEAST_RUNS and spent > budget
            seconds[name].append(None if pause else _timed(calls[name], device, repeat))
    return Times(seconds)


def _timed(call: Call, device: str, repeat: int) -> float:
    synchronise(device)
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    synchronise(device)
    return (time.perf_counter() - start) / repeat


def synchronise(device: str) -> None:
    """Wait for the work given to a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def peak_bytes(call: Call, device: str = "cpu") -> int:
    """The most memory for tensors that `call` holds at once beyond what was there before, its result included."""
    call()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    return _peak_bytes_cpu(call)


def _peak_bytes_cpu(call: Call) -> int:
    """Every allocation and release of torch's CPU allocator, summed in order of time."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        result = call()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    del result
    return peak


def progress(text: str) -> None:
    """One line on standard error: the table on standard output stays clean."""
    print(text, file=sys.stderr, flush=True)


Step = TypeVar("Step", bound=Callable[[], tuple[Tensor, ...]])


def checked(
    make: Callable[..., Step], limit: float, truth: tuple[Tensor, ...], *inputs: Any
) -> tuple[float | None, str, Step | None]:
    """The largest error of the step that `make(*inputs)` returns, why it is not timed, and the step if it is."""
    try:
        step = make(*inputs)
        error = max(relative_error(*pair) for pair in zip(step(), truth, strict=True))
    except ImportError as reason:
        return None, f"not installed ({reason})", None
    except Exception as reason:  # a peer may fail in any way: that is a result, and the others go on
        return None, f"failed: {type(reason).__name__}: {str(reason).splitlines()[0] if str(reason) else ''}", None
    if error <= limit:
        return error, "", step
    return error, f"wrong: the error is above {limit:g}", None


def relative_error(value: Tensor, truth: Tensor) -> float:
    """max|value - truth| / max|truth|, of the worst channel (the last axis); other axes of `value` may be cut up."""
    value, truth = value.detach().double().cpu().reshape(truth.shape), truth.double().cpu()
    difference, size = (x.abs().reshape(-1, x.shape[-1]).amax(0) for x in (value - truth, truth))
    return float((difference / size).nan_to_num(nan=torch.inf).amax())
