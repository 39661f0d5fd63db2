"""The operators scan, wkv and wkv7 beside other software: checked, then timed in turns.

They are checked against float64. What is timed is forward plus backward through all inputs, with
`torch.utils.benchmark`.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from plkernel.common.cli import text_table
from plkernel.common.environment import environment, versions_of
from plkernel.common.files import check_folder, save_json
from plkernel.models import Device
from plkernel.training.build import choose_device

Call = Callable[[], Any]
OURS = "plkernel"
"""The name of this package's operator among the contenders."""
QUEUED = 0.1
"""Seconds of calls that are timed together on a GPU."""
MOST_QUEUED = 10
"""Calls that are timed together on a GPU, at most."""
LEAST_RUNS = 3
"""Runs of a slow contender: a median needs them."""
SHAPES: dict[str, dict[str, tuple[tuple[int, ...], ...]]] = {
    "scan": {
        "cpu": ((8, 1024, 256), (4, 4096, 256), (1, 65536, 64)),
        "cuda": (
            (8, 1024, 256),
            (8, 4096, 1024),
            (8, 4096, 1536),
            (32, 4096, 1024),
            (1, 65536, 1024),
        ),
    },
    "wkv": {
        "cpu": ((2, 1024, 4, 64), (2, 256, 4, 64)),
        "cuda": ((2, 1024, 4, 64), (8, 1024, 8, 64)),
    },
    "wkv7": {"cpu": ((2, 1024, 4, 64),), "cuda": ((2, 1024, 4, 64), (8, 1024, 8, 64))},
}
"""(B,T,D) of scan, (B,T,H,K) of wkv and wkv7, by operator and kind of device."""
INPUTS = {
    "scan": ("a", "b"),
    "wkv": ("r", "k", "v", "log_decay", "u", "state"),
    "wkv7": ("r", "log_decay", "k", "v", "a", "b", "state"),
}
"""Names of the inputs of an operator, in the order in which `problem` has them."""
LIMITS = {
    "scan": {"cpu": 1e-5, "cuda": 1e-3},
    "wkv": {"cpu": 2e-5, "cuda": 1e-4},
    "wkv7": {"cpu": 2e-5, "cuda": 1e-4},
}
"""Largest `relative_error` of ours, by operator and kind of device."""
PEER_LIMITS = {"scan": 1e-2, "wkv": 1e-3, "wkv7": 1e-3}
"""Wider than LIMITS: peers sum the gradient of a fixed decay in float32."""
PACKAGES = ("mambapy", "accelerated-scan", "flash-linear-attention", "transformers")
"""Peers whose versions a record names."""
FORMS = {
    "contender": "",
    "problem": "",
    "error": ".1e",
    "ms": ".2f",
    "times ours": ".2f",
    "rate": ".3g",
    "note": "",
}
"""Columns of the printed table, and the format of their numbers."""


class Contender(NamedTuple):
    """Work to time.

    make   prepares a call
    error  of the call's result; None if nothing is checked
    limit  the largest error with which it is timed
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
    """Check every contender, then time those that are right: a row each.

    rounds  each contender is timed once in each, in an order that turns by one
    amount  of work that a call does, such as steps
    budget  seconds; a contender that has used them sits out the later rounds

    In a row, `seconds` per call and their `ratio` to ours are `quartiles`, `rate` is the amount of
    work per second, and a note says why a time is missing. Of a GPU, whose queue must be full, up
    to ten calls are timed together, slow ones alone.
    """
    outcomes = {name: checked(one) for name, one in contenders.items()}
    names = [name for name, (_, _, call) in outcomes.items() if call is not None]
    progress(f"{problem} timing {', '.join(names)}".strip())
    calls = {name: outcomes[name][2] for name in names}
    times = _in_turns(calls, rounds, device, budget)
    rows = []
    for name, (error, note, _) in outcomes.items():
        row: dict[str, Any] = {"contender": name, "problem": problem, "error": error, "note": note}
        seconds = quartiles(times[name]) if name in times else None
        ratio = quartiles(times[name] / times[OURS]) if seconds and OURS in times else None
        rate = amount / seconds["median"] if seconds else None
        rows.append(row | {"seconds": seconds, "ratio": ratio, "rate": rate})
    return rows


def _in_turns(
    calls: Mapping[str, Call | None], rounds: int, device: str, budget: float
) -> dict[str, Any]:
    """Seconds (rounds,) of every call, as `compare` times them; NaN where one sits out."""
    from torch.utils.benchmark import Timer  # half a second, with the compilers of extensions

    names = list(calls)
    threads = torch.get_num_threads()
    timers = {
        name: Timer("call()", globals={"call": call}, num_threads=threads)
        for name, call in calls.items()
    }
    repeats = dict.fromkeys(names, 1)
    times = {name: np.full(rounds, np.nan) for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            spent = np.nansum(times[name]) * repeats[name]
            if turn >= LEAST_RUNS and spent > budget:
                continue
            times[name][turn] = timers[name].timeit(repeats[name]).median
            if device == "cuda":
                fitting = int(QUEUED / times[name][turn])
                repeats[name] = min(MOST_QUEUED, max(1, fitting))
    return times


def quartiles(values: Any) -> dict[str, float]:
    """Return the median and quartiles of a time series, and the number of its runs.

    NaN stands for no run.
    """
    low, median, high = map(float, np.nanquantile(values, (0.25, 0.5, 0.75)))
    return {"median": median, "low": low, "high": high, "runs": int(np.isfinite(values).sum())}


def checked(one: Contender) -> tuple[float | None, str, Call | None]:
    """Return the error of a contender, the reason why it is not timed, and its call if it is."""
    try:
        call = one.make()
        error = None if one.error is None else one.error(call())
    except ImportError as reason:
        return None, f"not installed ({reason})", None
    except Exception as reason:  # a peer may fail in any way: that is a result, the others go on
        return None, f"failed: {described(reason)}", None
    if error is None or error <= one.limit:
        return error, "", call
    return error, f"wrong: the error is above {one.limit:g}", None


def described(error: Exception) -> str:
    """The type of an exception and the first line of what it says."""
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"


def relative_error(values: Iterable[Tensor], truths: Iterable[Tensor]) -> float:
    """Return max|value - truth| / max|truth| of the worst channel of the worst tensor.

    Channels are the last axis. Infinity stands for NaN.
    """
    worst = 0.0
    for value, truth in zip(values, truths, strict=True):
        truth = truth.double().cpu()
        value = value.detach().double().cpu().reshape(truth.shape)
        difference = _largest_by_channel(value - truth)
        size = _largest_by_channel(truth)
        ratio = torch.where(difference == 0, 0.0, difference / size)
        worst = max(worst, float(ratio.nan_to_num(nan=torch.inf, posinf=torch.inf).amax()))
    return worst


def _largest_by_channel(x: Tensor) -> Tensor:
    """Largest size of each channel, the last axis, (D,)."""
    return x.abs().reshape(-1, x.shape[-1]).amax(0)


def set_up(rounds: int, threads: int, device: Device, out: Path | None) -> torch.device:
    """Check the arguments of a benchmark, set the threads of torch, and return the device."""
    for name, value in {"threads": threads, "rounds": rounds}.items():
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, got {value}")
    check_folder(out, "out")
    torch.set_num_threads(threads)
    return choose_device(device)


def show(name: str, unit: str, rows: list[dict[str, Any]], out: Path | None, **more: Any) -> None:
    """Print the rows and the ratio to the fastest peer but a loop.

    out: a folder; the rows are saved there as `name`.json, with the hardware.
    """
    header = [unit if key == "rate" else key for key in FORMS]
    print(text_table(header, [_line(row) for row in rows]))
    for problem in dict.fromkeys(row["problem"] for row in rows):
        compared = _fastest([row for row in rows if row["problem"] == problem])
        if compared is not None:
            print(f"{problem}: {compared}".lstrip(": "))
    if out is not None:
        place = {**environment(torch.get_num_threads()), "peers": versions_of(PACKAGES)}
        save_json(out / f"{name}.json", {"environment": place, **more, "rows": rows})
        print(f"written: {out / f'{name}.json'}")


def _line(row: dict[str, Any]) -> list[str]:
    """The cells of a row in the table, empty where something is not known."""
    values = {**row, "ms": None, "times ours": None}
    if row["seconds"]:
        values["ms"] = row["seconds"]["median"] * 1e3
    if row["ratio"]:
        values["times ours"] = row["ratio"]["median"]
    return ["" if values[key] is None else f"{values[key]:{form}}" for key, form in FORMS.items()]


def _fastest(rows: list[dict[str, Any]]) -> str | None:
    """Compare the fastest peer but a loop with ours, in words; None where no peer was timed."""
    peers = [row for row in rows if row["ratio"] and row["contender"] not in (OURS, "loop")]
    if not peers:
        return None
    ratio, fastest = min((row["ratio"]["median"], row["contender"]) for row in peers)
    return f"the fastest peer, {fastest}, takes {ratio:.2f} times as long"


def progress(text: str) -> None:
    """Print a line on standard error, so that standard output holds the table only."""
    print(text, file=sys.stderr, flush=True)


class Problem(NamedTuple):
    """Inputs of an operator, and gradients of a loss by its results."""

    inputs: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]

    def to(self, *place: Any) -> "Problem":
        """Move every tensor to a device or type."""
        return Problem(*(tuple(x.to(*place) for x in tensors) for tensors in self))


def problem(name: str, shape: tuple[int, ...], device: str = "cpu") -> Problem:
    """Draw the inputs of an operator from a fixed seed; half-lives from 1 to 2048 steps.

    In wkv and wkv7 the rate of each step is off by a factor exp(normal / 2).
    """
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator)
    rates = math.log(2) / torch.logspace(0, 11, shape[-1], base=2.0)
    if name == "scan":
        return Problem((torch.exp(-rates), draw(shape)), (draw(shape),)).to(device)
    batch, _, heads, size = shape
    r, k, v, noise, grad_out = (draw(shape) for _ in range(5))
    state, grad_last = (draw(batch, heads, size, size) for _ in range(2))
    log_decay = -rates * torch.exp(noise / 2)
    if name == "wkv":
        u = draw(heads, size)
        inputs: tuple[Tensor, ...] = (r, k, v, log_decay, u, state)
    else:
        kappa = torch.nn.functional.normalize(draw(shape), dim=-1)
        rate = torch.rand(shape, generator=generator)
        inputs = (r, log_decay, k, v, -kappa, kappa * rate, state)
    return Problem(inputs, (grad_out, grad_last)).to(device)


def step(function: Callable[..., Any], given: Problem, time_last: bool = False) -> Call:
    """Return a call of `function` with the gradients of its inputs.

    Its result is (results.., gradients..). time_last: (B,T,D) is laid out as (B,D,T) before the
    call, which is not timed, and viewed as before after it.
    """

    def laid(x: Tensor) -> Tensor:
        return x.transpose(1, 2) if time_last and x.ndim == 3 else x

    gradients = [laid(x).contiguous() for x in given.gradients]
    leaves = [laid(x).contiguous().detach().requires_grad_() for x in given.inputs]

    def call() -> tuple[Tensor, ...]:
        made = function(*leaves)
        results = made if isinstance(made, tuple) else (made,)
        back = torch.autograd.grad(results, leaves, gradients)
        found = [one.detach() for one in results]
        return tuple(laid(x) for x in (*found, *back))

    return call


def operator(name: str) -> Callable[..., Any]:
    """Return the operator of this package; of scan without the last state."""
    function: Callable[..., Any] = getattr(import_module(f"plkernel.kernels.{name}"), name)
    if name != "scan":
        return function

    def without_state(a: Tensor, b: Tensor, **options: Any) -> Tensor:
        out: Tensor = function(a, b, **options)[0]
        return out

    return without_state


def truth(name: str, given: Problem) -> tuple[Tensor, ...]:
    """Return results and gradients of the loop in float64."""
    return step(partial(operator(name), backend="reference"), given.to("cpu", torch.float64))()


def mambapy(a: Tensor, b: Tensor) -> Tensor:
    """The scan of mambapy, (B,T,1,D), in the type of b, which has no fixed decay."""
    scan: Callable[..., Tensor] = import_module("mambapy.pscan").pscan
    return scan(a.to(b.dtype).expand(b.shape).unsqueeze(2), b.unsqueeze(2)).squeeze(2)


def accelerated_scan(a: Tensor, b: Tensor) -> Tensor:
    """The scan of accelerated_scan on a GPU, (B,D,T), which has no fixed decay."""
    return import_module("accelerated_scan.scalar").scan(a[:, None].expand(b.shape).contiguous(), b)


def fla(name: str, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """wkv or wkv7 by flash-linear-attention's kernel for a GPU.

    Its state of RWKV-7 is transposed.
    """
    module = {"wkv": "rwkv6", "wkv7": "rwkv7"}[name]
    kernel = getattr(import_module(f"fla.ops.{module}"), f"chunk_{module}")
    *inputs, state = tensors
    state = state.mT if name == "wkv7" else state
    out, last = kernel(*inputs, scale=1.0, initial_state=state, output_final_state=True)
    return out, last.mT if name == "wkv7" else last


def makers(name: str, device: str) -> dict[str, Callable[[Problem], Call]]:
    """Return ours and the peers of an operator by name, as makers of a step.

    On a GPU there is also a peer that needs one.
    """
    made: dict[str, Callable[..., Call]] = {OURS: partial(step, operator(name))}
    made["loop"] = partial(step, partial(operator(name), backend="reference"))
    if name == "scan":
        made["mambapy"] = partial(step, mambapy)
    if device == "cuda" and name == "scan":
        made["accelerated_scan"] = partial(step, accelerated_scan, time_last=True)
    elif device == "cuda":
        made["fla"] = partial(step, partial(fla, name))
    return made


def run(
    name: str,
    threads: int,
    shapes: Sequence[tuple[int, ...]],
    rounds: int,
    device: Device,
    out: Path | None,
) -> None:
    """Check every contender against float64 and time those that are right, at each shape in turn.

    shapes: (B,T,D) of scan, (B,T,H,K) of wkv and wkv7; SHAPES if there are none.
    """
    if any(min(shape) < 1 for shape in shapes):
        raise ValueError(f"shapes must be of sizes 1 or more, got {shapes}")
    place = set_up(rounds, threads, device, out).type
    rows: list[dict[str, Any]] = []
    for shape in shapes or SHAPES[name][place]:
        progress(f"checking against float64 at {shape}")
        given = problem(name, shape, place)
        error = partial(relative_error, truths=truth(name, given))
        contenders = {}
        for one, make in makers(name, place).items():
            limit = LIMITS[name][place] if one == OURS else PEER_LIMITS[name]
            contenders[one] = Contender(partial(make, given), error, limit)
        rows += compare(contenders, rounds, shape[0] * shape[1], "x".join(map(str, shape)), place)
    show(name, "steps/s", rows, out, device=place)
