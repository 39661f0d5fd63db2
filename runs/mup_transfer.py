"""Whether the best learning rate carries over from a narrow SSM to a wide one: standard parametrisation against muP.

    python runs/mup_transfer.py [--steps N] [--out FILE]    about ten minutes on two idle cores

Trains the SSM on source code at three widths, five base rates a factor of 2 apart and two seeds, under sp_torch_default
and under mup_table8, whose base is the narrowest width and whose deviations are PyTorch's there: the two start alike.
Prints the best rate by width and writes every loss to FILE, runs/records/mup/transfer.json unless given.
"""

import math
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from plkernel.commands.init import arm_of, filled, spec_of
from plkernel.common import cli
from plkernel.common.cli import text_table
from plkernel.common.environment import environment
from plkernel.common.files import save_json
from plkernel.data import corpora
from plkernel.data.windows import Bytes, fixed_windows, training_windows
from plkernel.training.objective import bits_per_byte, next_byte_loss

OUT = Path(__file__).resolve().parent / "records" / "mup" / "transfer.json"
LAYERS, CONTEXT, BATCH, WARMUP, WINDOWS = 2, 64, 8, 0.1, 128
EPS = 1e-12


@dataclass(frozen=True)
class Case:
    """One run."""

    scheme: str
    options: tuple[str, ...]
    width: int
    rate: float
    seed: int
    steps: int


@dataclass(frozen=True)
class Row:
    """Its validation loss in bits per byte, infinite where it diverged."""

    scheme: str
    width: int
    rate: float
    seed: int
    bits_per_byte: float


def transfer(
    widths: tuple[int, ...] = (64, 128, 256),
    rates: tuple[float, ...] = (2**-10, 2**-9, 2**-8, 2**-7, 2**-6),
    seeds: int = 2,
    steps: int = 300,
    workers: int = os.cpu_count() or 1,
    out: Path = OUT,
) -> None:
    """Train every width at every rate under both parametrisations; print the best rate by width.

    Adam without weight decay; the rate rises over the first tenth of the steps and then falls linearly to zero. All
    runs of a seed read the same bytes.

    Args:
        widths: Widths of the SSM; the first is the base width of muP.
        rates: Base learning rates.
        seeds: Seeds of weights and batches.
        steps: Steps of each run.
        workers: Runs at a time, one thread each.
        out: JSON file for the record.
    """
    if min(steps, seeds, workers, len(widths), len(rates)) < 1:
        raise ValueError("steps, seeds, workers, widths and rates must all be at least one")
    corpora.load("stdlib")
    schemes: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("sp_torch_default", ()),
        ("mup_table8", (f"base_width={widths[0]}", f"std={(3 * widths[0]) ** -0.5:.9g}")),
    )
    cases = [
        Case(scheme, options, width, rate, seed, steps)
        for width, (scheme, options), rate, seed in product(sorted(widths)[::-1], schemes, rates, range(seeds))
    ]
    rows = list(tqdm(run_all(cases, workers), total=len(cases), desc="runs", disable=None, file=sys.stderr))
    settings = {"layers": LAYERS, "context": CONTEXT, "batch": BATCH, "steps": steps, "corpus": "stdlib"}
    summary = best(rows)
    record = {"environment": environment(1), **settings, "schemes": dict(schemes), "best": summary}
    save_json(out, {**record, "rows": [asdict(row) for row in rows]})
    print(f"{curves(rows)}\n\n{render(summary)}\n\nwritten: {out}", flush=True)


def run_all(cases: Sequence[Case], workers: int) -> Iterator[Row]:
    """Every case in turn, several at a time, in processes of their own."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(run, cases)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run(case: Case) -> Row:
    """Train one model and measure its loss on windows that it has not seen."""
    torch.set_num_threads(1)
    splits = corpora.load("stdlib").splits()
    model, plan = filled(spec_of("ssm", case.width, LAYERS), arm_of(case.scheme, case.options), case.seed)
    optimizer = torch.optim.Adam(plan.param_groups(model, case.rate, 0.0, EPS))
    train(model, optimizer, splits.train, case)
    held_out = fixed_windows(splits.validation, CONTEXT, WINDOWS)
    found = bits_per_byte(model, held_out, BATCH, torch.device("cpu"))
    return Row(case.scheme, case.width, case.rate, case.seed, found if math.isfinite(found) else math.inf)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: Bytes, case: Case) -> None:
    """All steps, each on its own windows."""
    peaks = [group["lr"] for group in optimizer.param_groups]
    for step in range(case.steps):
        share = shape(step, case.steps)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = share * peak
        optimizer.zero_grad()
        next_byte_loss(model, training_windows(data, CONTEXT, BATCH, case.seed, step)).backward()
        optimizer.step()


def shape(step: int, steps: int) -> float:
    """Up over the first tenth, then down to zero, both linear."""
    done = (step + 1) / (steps + 1)
    return min(done / WARMUP, (1 - done) / (1 - WARMUP))


def best(rows: Sequence[Row]) -> dict[str, Any]:
    """By scheme and width: the rate of the least loss, the mean of the seeds, on the grid and by a parabola.

    The parabola passes through the least loss and its neighbours, over log2 of the rate; at an end of the grid it is
    the end.
    """
    found: dict[str, Any] = {}
    for scheme in dict.fromkeys(row.scheme for row in rows):
        found[scheme] = {}
        for width in sorted({row.width for row in rows}):
            rates, losses = losses_of(rows, scheme, width)
            at = int(np.argmin(losses))
            found[scheme][str(width)] = {
                "rate": rates[at],
                "log2_rate": vertex(np.log2(rates), losses, at),
                "bits_per_byte": losses[at],
                "at_the_end_of_the_grid": at in (0, len(rates) - 1),
            }
    return found


def losses_of(rows: Sequence[Row], scheme: str, width: int) -> tuple[list[float], list[float]]:
    """Rates in order, and at each the mean of the seeds."""
    rates = sorted({row.rate for row in rows})
    chosen = [row for row in rows if row.scheme == scheme and row.width == width]
    return rates, [float(np.mean([row.bits_per_byte for row in chosen if row.rate == rate])) for rate in rates]


def vertex(x: np.ndarray, y: Sequence[float], at: int) -> float:
    """Where the parabola through the point `at` and its neighbours is least."""
    if at in (0, len(y) - 1) or not np.isfinite(y[at - 1 : at + 2]).all():
        return float(x[at])
    a, b, _ = np.polyfit(x[at - 1 : at + 2], y[at - 1 : at + 2], 2)
    return float(-b / (2 * a)) if a > 0 else float(x[at])


def curves(rows: Sequence[Row]) -> str:
    """Loss by rate, a line for each scheme and width."""
    rates = sorted({row.rate for row in rows})
    lines = []
    for scheme, width in sorted({(row.scheme, row.width) for row in rows}):
        losses = losses_of(rows, scheme, width)[1]
        lines.append([f"{scheme}, width {width}", *(f"{loss:.3f}" for loss in losses)])
    return text_table(["bits per byte at rate", *(f"2**{math.log2(rate):g}" for rate in rates)], lines)


def render(summary: dict[str, Any]) -> str:
    """Best rate by width."""
    widths = list(next(iter(summary.values())))
    lines = []
    for scheme, by_width in summary.items():
        shift = by_width[widths[-1]]["log2_rate"] - by_width[widths[0]]["log2_rate"]
        cells = [f"2**{by_width[w]['log2_rate']:.2f}{' (end)' * by_width[w]['at_the_end_of_the_grid']}" for w in widths]
        lines.append([scheme, *cells, f"{shift:+.2f}"])
    return text_table(["best rate by width", *widths, "shift, powers of 2"], lines)


if __name__ == "__main__":
    cli.main(transfer, prog="python runs/mup_transfer.py")
