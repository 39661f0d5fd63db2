"""Whether the best learning rate carries over from a narrow SSM to a wide one: standard
parametrisation against muP.

python runs/records/mup/mup_transfer.py trains the SSM on source code, about ten minutes on two idle
cores, and writes transfer.json beside this file: three widths, five base rates a factor of 2 apart
and two seeds, under sp_torch_default and under mup_table8, whose base is the narrowest width and
whose deviations are PyTorch's there, so that the two start alike.
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

from plkernel.common import cli
from plkernel.common.cli import text_table
from plkernel.common.environment import environment
from plkernel.common.files import save_json
from plkernel.config.condition import Condition, resolve
from plkernel.config.schema import Arm, ModelSpec
from plkernel.data import corpora
from plkernel.data.windows import fixed_windows, training_windows
from plkernel.models.init.plan import optimizer_groups
from plkernel.training.build import build, plan_of, started
from plkernel.training.evaluate import bits_per_byte, next_byte_loss

OUT = Path(__file__).resolve().parent / "transfer.json"
LAYERS = 2
CONTEXT = 64
BATCH = 8
WINDOWS = 128
"""Windows of the validation text on which a model is judged."""
WARMUP = 0.1
"""Share of the steps in which the learning rate rises."""
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
    """Validation loss of a run in bits per byte, infinite where it diverged."""

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
    """Train at every width and base learning rate under both parametrisations.

    Adam without weight decay; the learning rate rises over the first tenth of the steps and then
    falls linearly to zero. All runs of a seed read the same bytes.

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
    base = widths[0]
    schemes: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("sp_torch_default", ()),
        ("mup_table8", (f"base_width={base}", f"std={(3 * base) ** -0.5:.9g}")),
    )
    widest_first = sorted(widths, reverse=True)
    cases = [
        Case(scheme, options, width, rate, seed, steps)
        for width, (scheme, options), rate, seed in product(
            widest_first, schemes, rates, range(seeds)
        )
    ]
    progress = tqdm(
        run_all(cases, workers), total=len(cases), desc="runs", disable=None, file=sys.stderr
    )
    rows = list(progress)
    summary = best(rows)
    record = {
        "environment": environment(1),
        "layers": LAYERS,
        "context": CONTEXT,
        "batch": BATCH,
        "steps": steps,
        "corpus": "stdlib",
        "schemes": dict(schemes),
        "best": summary,
        "rows": [asdict(row) for row in rows],
    }
    save_json(out, record)
    print(f"{curves(rows)}\n\n{render(summary)}\n\nwritten: {out}", flush=True)


def run_all(cases: Sequence[Case], workers: int) -> Iterator[Row]:
    """Yield the row of every case in turn, several at a time, in processes of their own."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(run, cases)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run(case: Case) -> Row:
    """Train one model and measure its loss on windows that it has not seen."""
    torch.set_num_threads(1)
    condition = condition_of(case)
    model = started(condition, case.seed)
    plan = plan_of(build(condition), condition)
    parameters = dict(model.named_parameters())
    groups = optimizer_groups(parameters, plan.multipliers(), case.rate, 0.0, EPS)
    splits = corpora.load("stdlib").splits()
    train(model, torch.optim.Adam(groups), splits.train, case)
    held_out = fixed_windows(splits.validation, CONTEXT, WINDOWS)
    found = bits_per_byte(model, held_out, BATCH, torch.device("cpu"))
    loss = found if math.isfinite(found) else math.inf
    return Row(case.scheme, case.width, case.rate, case.seed, loss)


def condition_of(case: Case) -> Condition:
    """Return the model of a case and how it begins."""
    options = {name: float(value) for name, value in (one.split("=") for one in case.options)}
    model = ModelSpec(kind="ssm", dim=case.width, layers=LAYERS)
    return resolve(model, Arm(scheme=case.scheme, scheme_options=options))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: Any, case: Case) -> None:
    """Take all steps, each on its own windows."""
    peaks = [group["lr"] for group in optimizer.param_groups]
    for step in range(case.steps):
        share = rate_share(step, case.steps)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = share * peak
        optimizer.zero_grad()
        windows = training_windows(data, CONTEXT, BATCH, case.seed, step)
        next_byte_loss(model, windows).backward()
        optimizer.step()


def rate_share(step: int, steps: int) -> float:
    """Return the share of the peak rate: up over the first tenth, then down to zero, linear."""
    done = (step + 1) / (steps + 1)
    return min(done / WARMUP, (1 - done) / (1 - WARMUP))


def best(rows: Sequence[Row]) -> dict[str, Any]:
    """Return by scheme and width the rate of the least loss, on the grid and by a parabola.

    Losses are means of seeds. The parabola passes through the least loss and its neighbours, over
    log2 of the rate; at an end of the grid it is the end.
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
    """Return the rates in order, and at each the mean of the seeds."""
    rates = sorted({row.rate for row in rows})
    means = []
    for rate in rates:
        same = [row for row in rows if (row.scheme, row.width, row.rate) == (scheme, width, rate)]
        means.append(float(np.mean([row.bits_per_byte for row in same])))
    return rates, means


def vertex(x: np.ndarray, y: Sequence[float], at: int) -> float:
    """Return where the parabola through the point `at` and its neighbours is least."""
    if at in (0, len(y) - 1) or not np.isfinite(y[at - 1 : at + 2]).all():
        return float(x[at])
    a, b, _ = np.polyfit(x[at - 1 : at + 2], y[at - 1 : at + 2], 2)
    return float(-b / (2 * a)) if a > 0 else float(x[at])


def curves(rows: Sequence[Row]) -> str:
    """Return the loss by rate as text, a line for each scheme and width."""
    rates = sorted({row.rate for row in rows})
    lines = []
    for scheme, width in sorted({(row.scheme, row.width) for row in rows}):
        losses = losses_of(rows, scheme, width)[1]
        lines.append([f"{scheme}, width {width}", *(f"{loss:.3f}" for loss in losses)])
    header = ["bits per byte at rate", *(f"2**{math.log2(rate):g}" for rate in rates)]
    return text_table(header, lines)


def render(summary: dict[str, Any]) -> str:
    """Return the best rate by width as text."""
    widths = list(next(iter(summary.values())))
    lines = []
    for scheme, by_width in summary.items():
        cells = []
        for width in widths:
            end = " (end)" if by_width[width]["at_the_end_of_the_grid"] else ""
            cells.append(f"2**{by_width[width]['log2_rate']:.2f}{end}")
        shift = by_width[widths[-1]]["log2_rate"] - by_width[widths[0]]["log2_rate"]
        lines.append([scheme, *cells, f"{shift:+.2f}"])
    return text_table(["best rate by width", *widths, "shift, powers of 2"], lines)


if __name__ == "__main__":
    cli.main(transfer, prog="python runs/records/mup/mup_transfer.py")
