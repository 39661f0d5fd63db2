"""Contenders side by side: checked against the truth first, then timed in turns with `torch.utils.benchmark`."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
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


def spread(values: Any) -> dict[str, float]:
    """Return the median and quartiles of a time series, and the number of its runs; NaN stands for no run."""
    low, median, high = map(float, np.nanquantile(values, (0.25, 0.5, 0.75)))
    return {"median": median, "low": low, "high": high, "runs": int(np.isfinite(values).sum())}


def interleave(calls: Mapping[str, Call], rounds: int = 15, budget: float = 10.0, repeat: int = 1) -> dict[str, Any]:
    """Time every call once in each of `rounds` rounds, in an order that turns by one each round: seconds by name.

    A contender that has used its `budget` of seconds sits out the later rounds, but never runs fewer than three times.
    `repeat` calls are timed together, since a GPU needs a queue to fill. torch warms up before, and waits for the GPU.
    """
    threads, names = torch.get_num_threads(), list(calls)
    timers = {name: Timer("call()", globals={"call": call}, num_threads=threads) for name, call in calls.items()}
    seconds = {name: np.full(rounds, np.nan) for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if turn < LEAST_RUNS or np.nansum(seconds[name]) * repeat <= budget:
                seconds[name][turn] = timers[name].timeit(repeat).median
    return seconds


def compare(
    contenders: Mapping[str, Contender], rounds: int, problem: str = "", device: str = "cpu", budget: float = 10.0
) -> list[dict[str, Any]]:
    """Check every contender, then time those that are right: a row each, with a note in place of a missing time.

    Of a row, `seconds` per call and their `ratio` to ours for equal work are spreads, `rate` is work per second.
    """
    outcomes = {name: checked(one) for name, one in contenders.items()}
    calls = {name: call for name, (_, _, call) in outcomes.items() if call is not None}
    progress(f"{problem} timing {', '.join(calls)}".strip())
    times = interleave(calls, rounds, budget, repeat=10 if device == "cuda" else 1)
    rows = []
    for name, one in contenders.items():
        error, note, call = outcomes[name]
        row: dict[str, Any] = {"contender": name, "problem": problem, "error": error, "strong_error": None}
        row |= {"seconds": None, "ratio": None, "rate": None, "peer": one.peer, "note": note or one.note}
        if call is not None:
            row["seconds"] = spread(times[name])
            row["rate"] = one.amount / np.nanmedian(times[name])
            if OURS in calls:
                row["ratio"] = spread(contenders[OURS].amount / one.amount * times[name] / times[OURS])
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


def show(
    name: str, unit: str, rows: list[dict[str, Any]], out: Path | None, packages: Iterable[str], **more: Any
) -> None:
    """Print the rows and the ratio to the fastest peer; save them with hardware and versions as `out`/`name`.json."""
    lines = []
    for row in rows:
        line = [row["contender"], row["problem"]]
        line += ["" if row[key] is None else f"{row[key]:.1e}" for key in ("error", "strong_error")]
        line.append(f"{row['seconds']['median'] * 1e3:.2f}" if row["seconds"] else "")
        ratio = row["ratio"]
        line += [f"{ratio['median']:.2f}", f"{ratio['low']:.2f} to {ratio['high']:.2f}"] if ratio else ["", ""]
        lines.append([*line, f"{row['rate']:.3g}" if row["rate"] else "", row["note"]])
    header = ["contender", "problem", "error", "strong decays", "ms", "times ours", "quartiles", unit, "note"]
    shown = [place for place in range(len(header)) if any(line[place] for line in lines)]
    print(text_table([header[place] for place in shown], [[line[place] for place in shown] for line in lines]))
    for problem in dict.fromkeys(row["problem"] for row in rows):
        peers = [row for row in rows if row["problem"] == problem and row["peer"] and row["contender"] != OURS]
        if timed := [(row["ratio"]["median"], row["contender"]) for row in peers if row["ratio"]]:
            print(f"{problem}: the fastest peer, {min(timed)[1]}, takes {min(timed)[0]:.2f} times as long".lstrip(": "))
    if out is not None:
        versions = {package: version for package in packages if (version := installed(package))}
        place = {**environment(torch.get_num_threads()), "peers": versions}
        save_json(out / f"{name}.json", {"environment": place, **more, "rows": rows})
        print(f"written: {out / f'{name}.json'}")


def by_x(shape: Iterable[int]) -> str:
    """Return a shape as 8x1024x256."""
    return "x".join(map(str, shape))


def progress(text: str) -> None:
    """Print a line on standard error, so that standard output holds the table only."""
    print(text, file=sys.stderr, flush=True)
