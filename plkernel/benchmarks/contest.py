"""Contenders side by side: checked against the truth first, then timed in turns with `torch.utils.benchmark`."""

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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


class Contender(NamedTuple):
    """Work to time.

    make: prepares a call; ImportError means that a package is not installed
    error: compares the result of the call with the truth; None where there is nothing to compare
    limit: largest error at which the contender is timed
    """

    make: Callable[[], Call]
    error: Callable[[Any], float] | None = None
    limit: float = 0.0


def compare(
    contenders: Mapping[str, Contender],
    rounds: int,
    amount: float,
    problem: str = "",
    device: str = "cpu",
    budget: float = 10.0,
) -> list[dict[str, Any]]:
    """Check every contender, then time those that are right: a row each, with a note in place of a missing time.

    Of a row, `seconds` per call and their `ratio` to ours are spreads, `rate` is the `amount` of work per second. Each
    is timed once in each of `rounds` rounds, in an order that turns by one; one that has used its `budget` of seconds
    sits out the later rounds. Of a GPU, whose queue must be full, ten calls are timed together.
    """
    outcomes = {name: checked(one) for name, one in contenders.items()}
    names = [name for name, (_, _, call) in outcomes.items() if call is not None]
    progress(f"{problem} timing {', '.join(names)}".strip())
    threads, repeat = torch.get_num_threads(), 10 if device == "cuda" else 1
    timers = {name: Timer("call()", globals={"call": outcomes[name][2]}, num_threads=threads) for name in names}
    times = {name: np.full(rounds, np.nan) for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if turn < LEAST_RUNS or np.nansum(times[name]) * repeat <= budget:
                times[name][turn] = timers[name].timeit(repeat).median
    rows = []
    for name, (error, note, _) in outcomes.items():
        row: dict[str, Any] = {"contender": name, "problem": problem, "error": error, "strong_error": None}
        row |= {"seconds": None, "ratio": None, "rate": None, "note": note}
        if name in times:
            row["seconds"] = spread(times[name])
            row["rate"] = amount / row["seconds"]["median"]
            row["ratio"] = spread(times[name] / times[OURS]) if OURS in times else None
        rows.append(row)
    return rows


def spread(values: Any) -> dict[str, float]:
    """Return the median and quartiles of a time series, and the number of its runs; NaN stands for no run."""
    low, median, high = map(float, np.nanquantile(values, (0.25, 0.5, 0.75)))
    return {"median": median, "low": low, "high": high, "runs": int(np.isfinite(values).sum())}


def checked(one: Contender) -> tuple[float | None, str, Call | None]:
    """Return the error of a contender, the reason why it is not timed, and its call if it is."""
    try:
        call = one.make()
        error = None if one.error is None else one.error(call())
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
    header = ["contender", "problem", "error", "strong decays", "ms", "times ours", unit, "note"]
    lines = []
    for row in rows:
        seconds, ratio = ((row[key] or {}).get("median") for key in ("seconds", "ratio"))
        numbers = [(row["error"], ".1e"), (row["strong_error"], ".1e"), (seconds and seconds * 1e3, ".2f")]
        cells = [
            "" if value is None else f"{value:{how}}" for value, how in (*numbers, (ratio, ".2f"), (row["rate"], ".3g"))
        ]
        lines.append([row["contender"], row["problem"], *cells, row["note"]])
    shown = [place for place in range(len(header)) if any(line[place] for line in lines)]
    print(text_table([header[place] for place in shown], [[line[place] for place in shown] for line in lines]))
    for problem in dict.fromkeys(row["problem"] for row in rows):
        peers = [row for row in rows if row["problem"] == problem and row["ratio"] and row["contender"] != OURS]
        if peers:
            ratio, fastest = min((row["ratio"]["median"], row["contender"]) for row in peers)
            print(f"{problem}: the fastest peer, {fastest}, takes {ratio:.2f} times as long".lstrip(": "))
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
