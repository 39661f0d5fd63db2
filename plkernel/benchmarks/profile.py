"""Every variant of the kernels and every peer on one GPU, within a few minutes.

Each is checked against float64, then timed in three ways, beside what the chip could do at best.

    call    from Python, many calls together, the GPU waited for at the end
    device  on the GPU alone: calls captured as a CUDA graph and replayed; where a contender cannot
            be captured, between two events with the queue full, marked "e"
    host    CPU time of a call until it returns

A contender is a function of the inputs of a problem that returns its calls. To add one, add a line
to `candidates`; a training step beside those of other models belongs there too, as an operator of
its own.
"""

import math
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from plkernel.benchmarks.host import PARTS, host_seconds
from plkernel.benchmarks.operators import (
    INPUTS,
    OURS,
    Problem,
    described,
    mambapy,
    operator,
    problem,
    progress,
    set_up,
)
from plkernel.benchmarks.tuned import Task, briefly_on, compile_peers
from plkernel.common.environment import environment, versions_of
from plkernel.common.files import save_json
from plkernel.models import Device
from plkernel.study.dry_run import OPERATIONS
from plkernel.training.graphs import recording

Call = Callable[[], Any]
Check = tuple[Problem, tuple[Tensor, ...]]
"""A problem, and its result and gradients in float64."""
SIZES: dict[str, tuple[tuple[int, ...], ...]] = {
    "scan": ((8, 4096, 1024), (32, 4096, 1024), (1, 65536, 1024)),
    "wkv": ((8, 1024, 8, 64), (8, 4096, 8, 64), (8, 4096, 16, 64)),
    "wkv7": ((8, 1024, 8, 64), (8, 4096, 8, 64), (8, 4096, 16, 64)),
}
SMALL: dict[str, tuple[tuple[int, ...], ...]] = {
    "scan": ((2, 64, 16),),
    "wkv": ((1, 32, 1, 16),),
    "wkv7": ((1, 32, 1, 16),),
}
"""Shapes by operator on a GPU, and on a CPU, where the program is tried alone."""
SHARES = {"scan": 0.4, "wkv": 0.3, "wkv7": 0.3}
"""Of the seconds, by operator: none takes those of another."""
GREED = 2.0
"""No peer takes more than so many times its equal part of the seconds of its operator."""
CHECKED = (2, 512, 2, 64)
"""Largest problem of wkv and wkv7 that is held against the loop in float64."""
IN_FLOAT32 = {"wkv": {"log_decay", "u", "state"}, "wkv7": {"log_decay", "state"}}
"""Inputs that are float32 whatever the type of the case, as models have them."""
LIMITS = {torch.float32: 5e-3, torch.bfloat16: 5e-2}
"""Relative error, by norms, above which a contender computes something else."""
ROTATED = 256 << 20
"""Bytes of inputs that are rotated among, several times the cache of a GPU."""
BATCH = {"cuda": 0.02, "cpu": 0.002}
"""Seconds of calls that are timed together."""
MOST_CALLS = 200
"""Calls that are timed together, at most."""
REPEATS = 5
"""Batches of calls that are timed, of which the median counts."""
SLOW = 0.05
"""Seconds of a call of which two are enough."""
MOST_TEXT = 10_700
"""Characters of the table: what is slower than there is room for is in the JSON alone."""
WIDTH = 110
"""Characters of a line below a table."""
SLOW_PEERS = (("wkv7", "fla chunk_rwkv7"), ("wkv", "fla chunk_rwkv6"), ("scan", "fla hgrn chunk"))
"""Operators and contenders whose kernels have many configurations."""
PREPARED = 0.25
"""Share of the seconds in which they are compiled."""
PEERS = ("accelerated-scan", "flash-linear-attention", "fla-core", "mambapy", "einops")
"""Packages whose versions a record names."""
NO_TIME: dict[str, Any] = {"reason": "no time left"}
"""The reason in the row of something that would begin after the end."""


class Case(NamedTuple):
    """A problem of an operator: its shape, type, and whether decays are the same at every step."""

    operator: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    fixed: bool

    @property
    def name(self) -> str:
        """As in a table: operator, shape, type and, of a scan, the kind of its decays."""
        layout = ""
        if self.operator == "scan":
            layout = " fixed" if self.fixed else " varying"
        size = "x".join(map(str, self.shape))
        return f"{self.operator} {size}{layout} {str(self.dtype).removeprefix('torch.')}"


class Candidate(NamedTuple):
    """The maker of the calls of a problem, forward and both, and whether they run on a CPU.

    The second is None where a contender has no gradients.
    """

    make: Callable[[Problem], tuple[Call, Call | None]]
    on_cpu: bool = False


def cases(name: str, device: str) -> Iterator[Case]:
    """The problems of an operator; time may end before the last."""
    shapes = SIZES if device == "cuda" else SMALL
    kinds_of_decay = (True, False) if name == "scan" else (False,)
    for shape in shapes[name]:
        for fixed in kinds_of_decay:
            for dtype in (torch.bfloat16, torch.float32):
                yield Case(name, shape, dtype, fixed)


def inputs(case: Case, seed: int, device: str) -> Problem:
    """Fresh random inputs in the size of the case, with the rates of `operators.problem`."""
    small = problem(case.operator, (1, 8, *case.shape[2:]))
    generator = torch.Generator(device).manual_seed(seed)
    draw = partial(torch.randn, generator=generator, device=device)
    made = {}
    for name, x in zip(INPUTS[case.operator], small.inputs, strict=True):
        made[name] = _fresh(case, name, x.to(device), draw)
    if case.operator == "wkv7":
        rate = torch.rand(case.shape, generator=generator, device=device)
        made["b"] = -made["a"] * rate
    # A fixed decay of a scan is a parameter, in float32; decays of each step are computed.
    kept = {"a"} if case.operator == "scan" and case.fixed else IN_FLOAT32.get(case.operator, set())
    ready = tuple(x if name in kept else x.to(case.dtype) for name, x in made.items())
    gradients = [draw(case.shape).to(case.dtype)]
    if "state" in made:
        gradients.append(torch.zeros_like(made["state"]))
    return Problem(ready, tuple(gradients))


def _fresh(case: Case, name: str, x: Tensor, draw: Any) -> Tensor:
    """The input called `name`, drawn in the size of the case.

    x: that of a small problem of one batch row and 8 steps. Decays are drawn around the rates that
    it has; `a` of wkv7 is a negative key of norm 1.
    """
    if name == "state":
        return draw((case.shape[0], *x.shape[1:]))
    if name == "u":
        return x
    if case.operator == "scan" and name == "a":
        return x if case.fixed else x ** torch.exp(draw(case.shape) / 2)
    shape = (*case.shape[:2], *x.shape[2:])
    if name == "log_decay":
        return x[:, :1] * torch.exp(draw(shape) / 2)
    fresh = draw(shape)
    return -torch.nn.functional.normalize(fresh, dim=-1) if name == "a" else fresh


def by_autograd(function: Callable[..., Any], given: Problem) -> tuple[Call, Call]:
    """Calls of a function that torch differentiates; gradients of all inputs but the state."""
    has_state = len(given.gradients) > 1  # of wkv and wkv7, as their last input
    count = len(given.inputs) - has_state
    leaves = [x.detach().requires_grad_() for x in given.inputs[:count]]
    others = given.inputs[count:]

    def results(*tensors: Tensor) -> tuple[Tensor, ...]:
        made = function(*tensors, *others)
        return made if isinstance(made, tuple) else (made,)

    def forward() -> Any:
        with torch.no_grad():
            return results(*leaves)[:1]

    def both() -> Any:
        made = results(*leaves)
        return made[0].detach(), *torch.autograd.grad(made[0], leaves, given.gradients[0])

    return forward, both


def by_hand(
    module: str, options: dict[str, Any], name: str, given: Problem
) -> tuple[Call, Call | None]:
    """Calls of the two functions of a backend, without autograd.

    The results are those of `by_autograd`: without the last state, and without its gradient.
    """
    backend = import_module(module)
    state = given.inputs[-1]
    if name == "scan":
        a, b = given.inputs
        state = torch.zeros(b.shape[0], b.shape[2], device=b.device)
        taken: tuple[Tensor, ...] = (a, b, state)
    else:
        taken = given.inputs
    last = torch.zeros_like(state)

    def forward() -> Any:
        return backend.forward(*taken, **options)[:1]

    def both() -> Any:
        out, _ = backend.forward(*taken, **options)
        if name != "scan":
            grads = backend.backward(*taken, given.gradients[0], last, **options)
            return out, *grads[:-1]
        grads = backend.backward(a, state, out, given.gradients[0], last, **options)
        return out, grads[0], grads[1]

    return forward, both


def hgrn(kind: str, a: Tensor, b: Tensor) -> Tensor:
    """The recurrence of HGRN, whose decays are logarithms; their conversion is part of the call.

    kind: chunk or fused_recurrent.
    """
    function = getattr(import_module(f"fla.ops.hgrn.{kind}"), f"{kind}_hgrn")
    return function(b, a.log().expand(b.shape).contiguous())[0]


def accelerated(given: Problem) -> tuple[Call, Call]:
    """The scan of accelerated_scan, laid out (B,D,T) before the call, which is not timed."""
    scan = import_module("accelerated_scan.scalar").scan
    a, b = given.inputs
    decays = a.to(b.dtype).expand(b.shape).mT.contiguous()
    laid = Problem((decays, b.mT.contiguous()), (given.gradients[0].mT.contiguous(),))
    forward, both = by_autograd(scan, laid)

    def viewed() -> Any:
        out, grad_a, grad_b = both()
        grad_a = grad_a.float().sum((0, 2)) if a.dim() == 1 else grad_a.mT
        return out.mT, grad_a, grad_b.mT

    return (lambda: (forward()[0].mT,)), viewed


def fla(name: str, function: str, *tensors: Tensor) -> Any:
    """wkv or wkv7 by flash-linear-attention, from a state of zeros, which it takes by itself."""
    version = {"wkv": "rwkv6", "wkv7": "rwkv7"}[name]
    module = import_module(f"fla.ops.{version}")
    return getattr(module, function)(*tensors[:-1], scale=1.0)[0]


def forward_alone(function: Callable[..., Any], given: Problem) -> tuple[Call, None]:
    """The call of a function without a backward pass."""
    forward, _ = by_autograd(function, given)
    return forward, None


def candidates(name: str) -> dict[str, Candidate]:
    """Ours as it is called, every variant by hand, and the peers of an operator."""
    made = {OURS: Candidate(partial(by_autograd, operator(name)), on_cpu=True)}
    package = f"plkernel.kernels.{name}"
    variants: dict[str, tuple[str, dict[str, Any]]] = {"gpu": (f"{package}.gpu", {})}
    if name == "scan" and find_spec("triton"):
        for one in getattr(import_module(f"{package}.gpu"), "VARIANTS", ()):
            variants[one] = (f"{package}.gpu", {"variant": one})
    elif find_spec("triton") and find_spec(f"{package}.tensor"):
        for one in import_module(f"{package}.tensor").PRECISIONS:
            variants[f"tensor {one}"] = (f"{package}.tensor", {"precision": one})
    for label, (module, options) in variants.items():
        made[label] = Candidate(partial(by_hand, module, options, name))
    if name == "scan":
        made["accelerated_scan"] = Candidate(accelerated)
        made["fla hgrn chunk"] = Candidate(partial(by_autograd, partial(hgrn, "chunk")))
        fused = partial(hgrn, "fused_recurrent")
        made["fla hgrn fused"] = Candidate(partial(by_autograd, fused))
        made["mambapy"] = Candidate(partial(by_autograd, mambapy), on_cpu=True)
    if name == "wkv":
        for function in ("chunk_rwkv6", "fused_recurrent_rwkv6"):
            made[f"fla {function}"] = Candidate(partial(by_autograd, partial(fla, name, function)))
    if name == "wkv7":
        chunked = partial(fla, name, "chunk_rwkv7")
        made["fla chunk_rwkv7"] = Candidate(partial(by_autograd, chunked))
        fused = partial(fla, name, "fused_recurrent_rwkv7")
        made["fla fused_recurrent_rwkv7"] = Candidate(partial(forward_alone, fused))
    return made


def scan_truth(given: Problem) -> tuple[Tensor, ...]:
    """Result and gradients of a scan in float64, in log2(T) passes over the whole sequence."""
    a, b = (x.double() for x in given.inputs)
    decays = a.expand(b.shape)
    h = _doubled(decays, b)
    later = torch.cat([decays[:, 1:], torch.zeros_like(decays[:, :1])], 1)
    grad_b = _doubled(later.flip(1), given.gradients[0].double().flip(1)).flip(1)
    grad_a = torch.zeros_like(h)
    grad_a[:, 1:] = grad_b[:, 1:] * h[:, :-1]
    if a.dim() == 1:  # a fixed decay
        grad_a = grad_a.sum((0, 1))
    return h, grad_a, grad_b


def _doubled(decays: Tensor, x: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + x_t from zero."""
    h = x.clone()
    products = decays.clone()
    step = 1
    while step < x.shape[1]:
        h[:, step:] += products[:, step:] * h[:, :-step].clone()
        products[:, step:] *= products[:, :-step].clone()
        step *= 2
    return h


def truth(case: Case, given: Problem) -> tuple[Tensor, ...]:
    """Result and gradients in float64 where the inputs are; gradients of the state are left out."""
    if case.operator == "scan":
        return scan_truth(given)
    reference = partial(operator(case.operator), backend="reference")
    _, both = by_autograd(reference, given.to(torch.float64))
    return both()


def norm_error(values: Sequence[Tensor], truths: Sequence[Tensor]) -> float:
    """Largest |value - truth| / |truth| by norms; infinity for NaN."""
    worst = 0.0
    for value, truth in zip(values, truths, strict=True):
        difference = value.double().reshape(truth.shape) - truth
        error = float(difference.norm() / truth.norm())
        worst = max(worst, math.inf if math.isnan(error) else error)
    return worst


class Chip(NamedTuple):
    """Measured rates: bytes read and written per second, and operations of a bfloat16 product."""

    copy: float
    matrix: float


def chip(device: str) -> Chip:
    """A copy of 4 GB and a product of 8192 x 8192 matrices, small ones on a CPU."""
    size, edge = (4 << 30, 8192) if device == "cuda" else (16 << 20, 256)
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    x, y = (torch.randn(edge, edge, device=device).bfloat16() for _ in range(2))
    copy = wall_seconds(lambda: target.copy_(source), 3, device)
    product = wall_seconds(lambda: x @ y, 5, device)
    return Chip(2 * size / copy, 2 * edge**3 / product)


def least_seconds(case: Case, given: Problem, best: Chip) -> tuple[float, float]:
    """The least seconds of forward, and of forward and backward, at the rates of the chip.

    The larger of two: every input read and every result written once, and the operations of the
    recurrence.
    """
    numbers = math.prod(case.shape)
    head_size = 1 if case.operator == "scan" else case.shape[-1]
    of_forward, of_backward = OPERATIONS[case.operator]
    ahead = of_forward * numbers * head_size
    back = of_backward * numbers * head_size
    read = sum(x.nbytes for x in given.inputs)
    out = given.gradients[0].nbytes
    forward = max((read + out) / best.copy, ahead / best.matrix)
    # Backward reads the inputs (of a scan h in place of b) and the gradient of the result, and
    # writes a gradient of each input.
    backward = max((2 * read + out) / best.copy, back / best.matrix)
    return forward, forward + backward


def wall_seconds(call: Call, calls: int, device: str) -> float:
    """Median time of a call over batches of `calls`, after each of which the GPU is waited for."""
    times: list[float] = []
    call()
    while _wants_more(times, calls):
        _wait(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        _wait(device)
        times.append((time.perf_counter() - start) / calls)
    return float(np.median(times))


def _wants_more(times: Sequence[float], calls: int) -> bool:
    """True until REPEATS batches of `calls` are timed, of slow ones two.

    times: seconds of a call in each batch so far.
    """
    are_slow = sum(times) * calls >= SLOW * REPEATS
    return len(times) < (2 if are_slow else REPEATS)


def _wait(device: str) -> None:
    """Wait for the GPU, if there is one."""
    if device == "cuda":
        torch.cuda.synchronize()


def device_seconds(calls: Sequence[Call], repeats: int) -> tuple[float, bool]:
    """Seconds of a call on the GPU alone, and whether a graph of them all could be replayed."""
    replay = _captured(calls)
    if replay is None:
        turns = cycle(calls)
        each = 1

        def run() -> Any:
            return next(turns)()
    else:
        run = replay
        each = len(calls)

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times: list[float] = []
    while _wants_more(times, repeats * each):
        torch.cuda.synchronize()
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / repeats / each)
    return float(np.median(times)), replay is not None


def _captured(calls: Sequence[Call]) -> Call | None:
    """Return a function that replays all calls as one CUDA graph; None if capture fails."""
    try:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            calls[0]()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with recording(graph, torch.cuda.graph_pool_handle(), stream):
            for call in calls:
                call()
    except Exception:  # of whatever kind a peer cannot be captured for
        torch.cuda.synchronize()
        return None
    replay: Call = graph.replay
    return replay


def timed(calls: Sequence[Call], device: str) -> dict[str, Any]:
    """The three times of a call in seconds, over calls with different inputs."""
    turns = cycle(calls)

    def call() -> Any:
        return next(turns)()

    for _ in calls:
        call()
    once = wall_seconds(call, 1, device)
    if once > SLOW:
        row: dict[str, Any] = {"call": once}
    else:
        count = min(MOST_CALLS, max(len(calls), int(BATCH[device] / once)))
        row = {"call": wall_seconds(call, count, device)}
    row["host"] = float(np.median([host_seconds(call, 4, device) for _ in range(REPEATS)]))
    if device == "cuda":
        repeats = max(1, int(BATCH[device] / once / len(calls)))
        row["device"], row["graph"] = device_seconds(calls, repeats)
    return row


def timed_case(
    case: Case, one: Candidate, sets: Sequence[Problem], check: Check, device: str
) -> dict[str, Any]:
    """The row of a contender: its error, its times, or the reason why they are missing.

    sets: problems that calls rotate among. check: `checked_inputs` of the case.
    """
    if device == "cpu" and not one.on_cpu:
        return {"reason": "needs a GPU"}
    try:
        small, exact = check
        forward, both = one.make(small)
        values = (both or forward)()
        error = norm_error(values, exact[: len(values)])
        del values
        row: dict[str, Any] = {"error": error}
        if not error <= LIMITS[case.dtype]:
            return row | {"reason": f"wrong: the error is {error:.1e}"}
        made = [one.make(given) for given in sets]
        row["forward"] = timed([calls[0] for calls in made], device)
        wholes = [calls[1] for calls in made if calls[1] is not None]
        if wholes:
            row["both"] = timed(wholes, device)
    except ImportError as reason:
        return {"reason": f"not installed ({reason})"}
    except Exception as reason:  # a peer may fail in any way: that is a result, the others go on
        return {"reason": f"failed: {described(reason)}"}
    return row


def checked_inputs(case: Case, sets: Sequence[Problem], device: str) -> Check:
    """Inputs to check a contender on, and the truth: of a scan all inputs, else a part of them."""
    given = sets[0]
    if case.operator != "scan":
        shape = tuple(map(min, case.shape, CHECKED))
        given = inputs(case._replace(shape=shape), 100, device)
    return given, truth(case, given)


def run(
    device: Device,
    seconds: float,
    out: Path | None,
    skip: Sequence[str] = (),
    characters: int = MOST_TEXT,
) -> None:
    """Measure all cases within so many seconds; print one table, last, and save it as JSON.

    skip: patterns of contenders that are left out. characters: the most that the table takes.
    """
    begun = time.monotonic()
    place = set_up(1, torch.get_num_threads(), device, out).type
    if place == "cuda":
        compile_peers(slow_calls(skip), seconds * PREPARED)
    best = chip(place)
    rows: list[dict[str, Any]] = []
    seconds -= time.monotonic() - begun
    for name, share in SHARES.items():
        rows += profiled(name, best, share * seconds, place, skip)
    _add_ratios(rows)
    if out is not None:
        path = save(out, "profile", place, {"chip": best._asdict(), "rows": rows})
        print(f"written: {path}")
    spent = time.monotonic() - begun
    print(
        f"{card(place)}: copy {best.copy / 1e12:.2f} TB/s, bf16 product"
        f" {best.matrix / 1e12:.0f} TFLOP/s"
    )
    print(f"{spent:.0f} s; ms, host us; e: by events, no graph; floor and x ours by device time")
    print(table(rows, characters))


def card(device: str) -> str:
    """The name of the GPU, or cpu."""
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def save(out: Path, name: str, device: str, found: dict[str, Any]) -> Path:
    """Save a record with the hardware and the versions of peers; its path, out/NAME-CARD.json."""
    place = {
        **environment(torch.get_num_threads()),
        "peers": versions_of(PEERS),
        "card": card(device),
    }
    path = out / f"{name}-{card(device).replace(' ', '-')}.json"
    save_json(path, {"environment": place, **found})
    return path


def is_named(name: str, patterns: Sequence[str]) -> bool:
    """True if a name fits one of the patterns, as those of a shell."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def slow_calls(skip: Sequence[str] = ()) -> list[Task]:
    """A call of each of SLOW_PEERS that `skip` does not name."""
    tasks: list[Task] = []
    for name, label in SLOW_PEERS:
        if not is_named(f"{name} {label}", skip):
            tasks.append(partial(call_once, name, label))
    return tasks


def call_once(name: str, label: str) -> None:
    """Call a contender on the smallest problem that is timed, in bfloat16."""
    given = inputs(Case(name, SIZES[name][0], torch.bfloat16, False), 0, "cuda")
    forward, both = candidates(name)[label].make(given)
    (both or forward)()
    torch.cuda.synchronize()


def profiled(
    name: str, best: Chip, seconds: float, device: str, skip: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The rows of an operator: every contender at every case, as far as the seconds go."""
    entries = {}
    for label, one in candidates(name).items():
        if not is_named(f"{name} {label}", skip):
            entries[label] = one
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + seconds
    spent = dict.fromkeys(entries, 0.0)
    allowed = GREED * seconds / len(entries)
    for case in cases(name, device):
        if time.monotonic() > end:
            rows.append({"case": case.name} | NO_TIME)
            continue
        progress(case.name)
        sets = _rotated(case, device)
        check = checked_inputs(case, sets, device)
        floor = dict(zip(PARTS, least_seconds(case, sets[0], best), strict=True))
        for label, one in entries.items():
            row = {"case": case.name, "contender": label, "floor": floor}
            start = time.monotonic()
            if start > end or (label != OURS and spent[label] > allowed):
                rows.append(row | NO_TIME)
                continue
            with briefly_on(device):
                rows.append(row | timed_case(case, one, sets, check, device))
            if device == "cuda":
                torch.cuda.empty_cache()
            spent[label] += time.monotonic() - start
    return rows


def _rotated(case: Case, device: str) -> list[Problem]:
    """From two to eight problems of a case that together hold ROTATED bytes, if they can."""
    first = inputs(case, 0, device)
    size = sum(x.nbytes for x in (*first.inputs, *first.gradients))
    count = max(2, min(8, ROTATED // size))
    return [first, *(inputs(case, seed, device) for seed in range(1, count))]


def _seconds(row: dict[str, Any], part: str) -> float:
    """On the device alone where that is known, else of a call; infinity if it is not timed."""
    times = row.get(part, {})
    return float(times.get("device", times.get("call", math.inf)))


def _add_ratios(rows: list[dict[str, Any]]) -> None:
    """Times over ours of the same case."""
    ours = {row["case"]: row for row in rows if row.get("contender") == OURS}
    for row in rows:
        for part in PARTS:
            if part in row and part in ours.get(row["case"], {}):
                row[part]["ratio"] = _seconds(row, part) / _seconds(ours[row["case"]], part)


HEADER = f"{'call':>8} {'device':>8} {'host':>6} {'x ours':>6}"
"""Heads of the four numbers of a part, in the widths of `_cells`."""
TITLES = f"{'':22} {HEADER} | {HEADER} | error\n{'':22} forward{'':24} | and backward"


def table(rows: list[dict[str, Any]], characters: int = MOST_TEXT) -> str:
    """Rows by case, ours and the fastest first; as many of the others as there is room for."""
    named: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        named.setdefault(row["case"], []).append(row)
    most = max(map(len, named.values()))
    while True:
        lines: list[str] = []
        for case, group in named.items():
            lines += _lines(case, group, most)
        text = "\n".join([TITLES, *lines])
        if len(text) <= characters or most == 1:
            return text[:characters]
        most -= 1


def _lines(case: str, group: list[dict[str, Any]], most: int) -> Iterator[str]:
    """A case: the floor, ours and the fastest others, and what is not timed, by its reason."""
    floor = group[0].get("floor")
    least = [] if floor is None else [f"{1e3 * floor[part]:.3f}" for part in PARTS]
    yield f"{case}  floor {' and '.join(least)}" if least else case
    ready = [row for row in group if "forward" in row]
    ready.sort(key=lambda row: (row["contender"] != OURS, _seconds(row, "both")))
    for row in ready[:most]:
        cells = [_cells(row.get(part)) for part in PARTS]
        yield f"  {row['contender'][:20]:20} {cells[0]} | {cells[1]} | {row['error']:.0e}"
    if len(ready) > most:
        yield f"  and {len(ready) - most} that are slower"
    reasons: dict[str, list[str]] = {}
    for row in group:
        if "reason" in row:
            reasons.setdefault(row["reason"], []).append(row.get("contender", "all"))
    for reason, names in reasons.items():
        yield from textwrap.wrap(
            f"{', '.join(names)}: {reason}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            max_lines=3,
        )


def _cells(times: dict[str, Any] | None) -> str:
    """The four numbers of a part, blank where it is not timed."""
    if times is None:
        return " " * len(HEADER)
    call = _digits(1e3 * times["call"])
    device = _digits(1e3 * times["device"]) if "device" in times else ""
    mark = " " if times.get("graph", True) else "e"
    host = f"{1e6 * times['host']:.0f}"
    ratio = f"{times['ratio']:.2f}" if "ratio" in times else ""
    return f"{call:>8} {device:>7}{mark} {host:>6} {ratio[:6]:>6}"


def _digits(milliseconds: float) -> str:
    """Milliseconds with three decimals, fewer where they would not fit into seven characters."""
    return f"{milliseconds:.3f}"[:7].rstrip(".")
