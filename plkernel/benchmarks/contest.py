"""Contenders side by side: first checked against the truth, then timed in turns."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any, TypeVar

import torch
from torch import Tensor

from plkernel.common.cli import text_table
from plkernel.common.environment import environment, installed
from plkernel.common.files import save_json

Call = Callable[[], Any]
OURS = "plkernel"
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

    def cells(self) -> list[str]:
        """Median and quartiles, for a table."""
        return [f"{self.median:.2f}", f"{self.low:.2f} to {self.high:.2f}"]


@dataclass(frozen=True)
class Timing:
    """One contender at one shape. Seconds are of forward plus backward, the ratio is to ours, round by round."""

    shape: tuple[int, ...]
    contender: str
    error: float | None = None
    seconds: Spread | None = None
    ratio: Spread | None = None
    note: str = ""

    def cells(self) -> list[str]:
        """Milliseconds, times ours and quartiles, for a table."""
        return [f"{self.seconds.median * 1e3:.2f}" if self.seconds else "", *cells(self.ratio)]


def cells(ratio: Spread | None) -> list[str]:
    """Median and quartiles, empty without them."""
    return ratio.cells() if ratio else ["", ""]


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
    """The most memory for tensors that `call`, done for the second time, holds at once beyond what was there before.

    Its result is included; what it lets go of first, as gradients of the time before, makes room.
    """
    if device != "cuda":
        return _peak_bytes_cpu(call)
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def _peak_bytes_cpu(call: Call) -> int:
    """Every allocation and release of torch's CPU allocator, summed in order of time.

    The first call is watched too: torch knows the size of what is released by its address, and may confuse what was
    allocated unseen with what an earlier watch saw there.
    """
    activities, second = [torch.profiler.ProfilerActivity.CPU], "the second call"
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        call()
        with torch.profiler.record_function(second):
            result = call()
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    start = next(place for place, event in enumerate(events) if event.name() == second)
    held = peak = 0
    for event in events[start:]:
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    del result
    return peak


def progress(text: str) -> None:
    """One line on standard error: the table on standard output stays clean."""
    print(text, file=sys.stderr, flush=True)


Made = TypeVar("Made")


def checked(attempt: Callable[[], tuple[float, Made]], limit: float) -> tuple[float | None, str, Made | None]:
    """The error that `attempt` finds, why its contender is not timed, and what it made if it is."""
    try:
        error, made = attempt()
    except ImportError as reason:
        return None, f"not installed ({reason})", None
    except Exception as reason:  # a peer may fail in any way: that is a result, and the others go on
        return None, f"failed: {type(reason).__name__}: {str(reason).splitlines()[0] if str(reason) else ''}", None
    if error <= limit:
        return error, "", made
    return error, f"wrong: the error is above {limit:g}", None


def checked_step(
    make: Callable[..., Any], limit: float, truth: tuple[Tensor, ...], given: Iterable[Any]
) -> tuple[float | None, str, Any]:
    """`checked`, for the step that `make` returns for what is given: its largest error."""

    def attempt() -> tuple[float, Any]:
        step = make(*given)
        return max(relative_error(*pair) for pair in zip(step(), truth, strict=True)), step

    return checked(attempt, limit)


def compare(
    shape: tuple[int, ...], contenders: Mapping[str, Callable[..., Any]], given: tuple[Any, ...],
    truth: tuple[Tensor, ...], limits: Mapping[str, float], rounds: int, device: str,
    others: Mapping[str, Call] | None = None, repeat: int = 1,
) -> list[Timing]:  # fmt: skip
    """Check all contenders at one shape against the truth, then time those that are right, and `others` unchecked."""
    name = by_x(shape)
    progress(f"{name}: checking {len(contenders)} contenders against float64")
    outcomes = {one: checked_step(make, limits[one], truth, given) for one, make in contenders.items()}
    steps = {one: step for one, (_, _, step) in outcomes.items() if step is not None}
    progress(f"{name}: timing {', '.join(steps)}")
    times = interleave(steps | dict(others or {}), rounds, device=device, repeat=repeat)
    rows = []
    for one in (*contenders, *(others or ())):
        error, note, _ = outcomes.get(one, (None, "", None))
        ratio = times.ratio(one, OURS) if {one, OURS} <= times.seconds.keys() else None
        rows.append(Timing(shape, one, error, times.spread(one) if one in times.seconds else None, ratio, note))
    return rows


def measure_lengths(
    make: Callable[[int], Call], lengths: Iterable[int], width: int, rounds: int, device: str
) -> dict[int, Spread]:
    """Nanoseconds per step and each of `width` things that it is made of, at each length, taken in turns."""
    progress("lengths")
    times = interleave({str(n): make(n) for n in lengths}, rounds, device=device)
    return {n: times.spread(str(n)).scaled(1e9 / (n * width)) for n in lengths}


def lengths_table(lengths: Mapping[int, Spread], unit: str, digits: int) -> str:
    """What `measure_lengths` found."""
    shortest = min(lengths)
    first = lengths[shortest].median
    rows = [[f"{n}", f"{s.median:.{digits}f}", f"{s.median / first:.2f}"] for n, s in lengths.items()]
    return text_table(["length T", f"ns per step and {unit}", f"against T = {shortest}"], rows)


def check(rounds: int, least: int = 2, threads: int = 1, device: str = "cpu") -> None:
    """ValueError for too few rounds or threads, and for a device that is not here."""
    for name, value, low in (("threads", threads, 1), ("rounds", rounds, least)):
        if value < low:
            raise ValueError(f"{name} is {value}; it must be {low} or more")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        here = "cpu or cuda" if torch.cuda.is_available() else "cpu"
        raise ValueError(f"device is {device!r}; here it must be {here}")


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """torch with so many threads; afterwards with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def place(threads: int, packages: Iterable[str], **more: Any) -> dict[str, Any]:
    """The environment, with the versions of the peers that are installed."""
    return {**environment(threads), **more, "peers": {name: found for name in packages if (found := installed(name))}}


def show(text: str, results: dict[str, Any], out: Path | None, name: str) -> None:
    """Print what was measured, and save it in the folder `out` where there is one."""
    print(text)
    if out is not None:
        save_json(out / f"{name}.json", results)
        print(f"\nwritten: {out / f'{name}.json'}")


def by_x(shape: Iterable[int]) -> str:
    """8x1024x256."""
    return "x".join(map(str, shape))


def differentiated(
    function: Callable[..., Any], inputs: Iterable[Tensor], gradients: tuple[Tensor, ...]
) -> Callable[[], tuple[Tensor, ...]]:
    """A step of `function` and the gradients of its inputs, from those of its results."""
    leaves = [x.detach().requires_grad_() for x in inputs]

    def step() -> tuple[Tensor, ...]:
        results = function(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        return *(x.detach() for x in results), *torch.autograd.grad(results, leaves, gradients)

    return step


def relative_error(value: Tensor, truth: Tensor) -> float:
    """max|value - truth| / max|truth|, of the worst channel (the last axis); other axes of `value` may be cut up."""
    value, truth = value.detach().double().cpu().reshape(truth.shape), truth.double().cpu()
    difference, size = (x.abs().reshape(-1, x.shape[-1]).amax(0) for x in (value - truth, truth))
    return float((difference / size).nan_to_num(nan=torch.inf).amax())
