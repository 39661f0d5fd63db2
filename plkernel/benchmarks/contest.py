"""Contenders side by side: checked against the truth first, then timed in turns with `torch.utils.benchmark`."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.benchmark import Timer

from plkernel.common.cli import text_table
from plkernel.common.environment import environment, installed
from plkernel.common.files import check_folder, save_json

Call = Callable[[], Any]
OURS = "plkernel"
LEAST_RUNS = 3  # of a slow contender: a median needs them


@dataclass(frozen=True)
class Contender:
    """Work to time.

    make: prepares a call; ImportError means that a package is not installed
    error: compares the result of the call with the truth; None where there is nothing to compare
    limit: largest error at which the contender is timed
    amount: units of work per call; ratios compare the time of equal work
    peer: False for a floor, which no contender can be faster than
    note: shown beside the time
    """

    make: Callable[[], Call]
    error: Callable[[Any], float] | None = None
    limit: float = 0.0
    amount: float = 1.0
    peer: bool = True
    note: str = ""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of `runs` values."""

    median: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Row:
    """Result of one contender: seconds per call, their ratio to ours for equal work, and units of work per second."""

    contender: str
    problem: str
    error: float | None = None
    strong_error: float | None = None
    seconds: Spread | None = None
    ratio: Spread | None = None
    rate: float | None = None
    peer: bool = True
    note: str = ""


@dataclass(frozen=True)
class Times:
    """Seconds per call of each contender by round; NaN in a round that it sat out."""

    seconds: Mapping[str, NDArray[np.float64]]

    def spread(self, name: str) -> Spread:
        """Return the seconds of one call."""
        return _spread(self.seconds[name])

    def ratio(self, name: str, base: str, factor: float = 1.0) -> Spread:
        """Return `factor` times the time of `name` over that of `base`, of the rounds that both took part in."""
        return _spread(factor * self.seconds[name] / self.seconds[base])


def _spread(values: NDArray[np.float64]) -> Spread:
    low, median, high = map(float, np.nanquantile(values, (0.25, 0.5, 0.75)))
    return Spread(median, low, high, int(np.isfinite(values).sum()))


def interleave(calls: Mapping[str, Call], rounds: int = 15, budget: float = 10.0, repeat: int = 1) -> Times:
    """Time every call once in each of `rounds` rounds, in an order that turns by one each round.

    A contender that has used its `budget` of seconds sits out the later rounds, but never runs fewer than three times.
    `repeat` calls are timed together, since a GPU needs a queue to fill. torch warms up before, and waits for the GPU.
    """
    threads = torch.get_num_threads()
    timers = {name: Timer("call()", globals={"call": call}, num_threads=threads) for name, call in calls.items()}
    seconds = {name: np.full(rounds, np.nan) for name in calls}
    names = list(calls)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if turn < LEAST_RUNS or np.nansum(seconds[name]) * repeat <= budget:
                seconds[name][turn] = timers[name].timeit(repeat).median
    return Times(seconds)


def compare(
    contenders: Mapping[str, Contender], rounds: int, problem: str = "", device: str = "cpu", budget: float = 10.0
) -> list[Row]:
    """Check every contender, then time those that are right; a wrong or absent one has a note instead of a time."""
    outcomes = {name: checked(one) for name, one in contenders.items()}
    calls = {name: call for name, (_, _, call) in outcomes.items() if call is not None}
    progress(f"{problem} timing {', '.join(calls)}".strip())
    times = interleave(calls, rounds, budget, repeat=10 if device == "cuda" else 1)
    rows = []
    for name, one in contenders.items():
        error, note, call = outcomes[name]
        row = Row(name, problem, error, peer=one.peer, note=note or one.note)
        if call is not None:
            seconds = times.spread(name)
            ratio = times.ratio(name, OURS, contenders[OURS].amount / one.amount) if OURS in calls else None
            row = Row(name, problem, error, None, seconds, ratio, one.amount / seconds.median, one.peer, one.note)
        rows.append(row)
    return rows


def checked(one: Contender) -> tuple[float | None, str, Call | None]:
    """Return the error of a contender, the reason why it is not timed, and its call if it is."""
    error = None
    try:
        call = one.make()
        if one.error is not None:
            error = one.error(call())
    except ImportError as reason:
        return None, f"not installed ({reason})", None
    except Exception as reason:  # a peer may fail in any way: that is a result, and the others go on
        return None, f"failed: {type(reason).__name__}: {str(reason).partition(chr(10))[0]}", None
    if error is None or error <= one.limit:
        return error, "", call
    return error, f"wrong: the error is above {one.limit:g}", None


def relative_error(values: Iterable[Tensor], truths: Iterable[Tensor]) -> float:
    """Return max|value - truth| / max|truth| of the worst channel (last axis) of the worst tensor; inf for NaN."""
    worst = 0.0
    for value, truth in zip(values, truths, strict=True):
        value, truth = value.detach().double().cpu().reshape(truth.shape), truth.double().cpu()
        difference, size = (x.abs().reshape(-1, x.shape[-1]).amax(0) for x in (value - truth, truth))
        ratio = torch.where(difference == 0, 0.0, difference / size)
        worst = max(worst, float(ratio.nan_to_num(nan=torch.inf).amax()))
    return worst


def prepare(rounds: int, threads: int, device: str | None, out: Path | None) -> str:
    """Check the arguments of a benchmark, set the threads of torch, and return the device."""
    for name, value in (("threads", threads), ("rounds", rounds)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be 1 or more")
    devices = ("cuda", "cpu") if torch.cuda.is_available() else ("cpu",)
    if device not in (None, *devices):
        raise ValueError(f"device is {device!r}; here it must be {' or '.join(devices)}")
    check_folder(out, "out")
    torch.set_num_threads(threads)
    return device or devices[0]


def show(name: str, unit: str, rows: list[Row], out: Path | None, packages: Iterable[str], **more: Any) -> None:
    """Print the rows and the ratio to the fastest peer; save them with hardware and versions as `out`/`name`.json."""
    table = [["contender", "problem", "error", "strong decays", "ms", "times ours", "quartiles", unit, "note"]]
    table += map(_cells, rows)
    shown = [place for place in range(len(table[0])) if any(line[place] for line in table[1:])]
    header, *lines = ([line[place] for place in shown] for line in table)
    print(text_table(header, lines))
    for problem in dict.fromkeys(row.problem for row in rows):
        peers = [row for row in rows if row.problem == problem and row.peer and row.contender != OURS]
        if timed := [(row.ratio.median, row.contender) for row in peers if row.ratio]:
            print(f"{problem}: the fastest peer, {min(timed)[1]}, takes {min(timed)[0]:.2f} times as long".lstrip(": "))
    if out is not None:
        versions = {package: version for package in packages if (version := installed(package))}
        place = {**environment(torch.get_num_threads()), "peers": versions}
        save_json(out / f"{name}.json", {"environment": place, **more, "rows": [asdict(row) for row in rows]})
        print(f"written: {out / f'{name}.json'}")


def _cells(row: Row) -> list[str]:
    errors = ["" if error is None else f"{error:.1e}" for error in (row.error, row.strong_error)]
    if not (row.seconds and row.rate):
        return [row.contender, row.problem, *errors, "", "", "", "", row.note]
    ratio = [f"{row.ratio.median:.2f}", f"{row.ratio.low:.2f} to {row.ratio.high:.2f}"] if row.ratio else ["", ""]
    return [row.contender, row.problem, *errors, f"{row.seconds.median * 1e3:.2f}", *ratio, f"{row.rate:.3g}", row.note]


def by_x(shape: Iterable[int]) -> str:
    """Return a shape as 8x1024x256."""
    return "x".join(map(str, shape))


def progress(text: str) -> None:
    """Print a line on standard error, so that standard output holds the table only."""
    print(text, file=sys.stderr, flush=True)
