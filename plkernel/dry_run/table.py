"""The forecast of a study, as numbers and as the table that plkernel.experiment --dry-run prints."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from plkernel.common.cli import text_table
from plkernel.dry_run.cost import Cost
from plkernel.dry_run.probe import Timing

GB = 1e9


@dataclass(frozen=True)
class Gpu:
    """What is assumed of a GPU that is not here: operations per second at most, and the share of them that is used."""

    flops: float = 3e14
    utilisation: float = 0.3

    def __post_init__(self) -> None:
        if not (self.flops > 0 and 0 < self.utilisation <= 1):
            raise ValueError(
                "flops of a GPU must be above 0 and its utilisation above 0 and at most 1, "
                f"got {self.flops} and {self.utilisation}"
            )

    def timing(self, counted: Cost, batch: int) -> Timing:
        """Of steps and evaluations at this rate; start and checkpoints are not known."""
        rate = self.flops * self.utilisation
        step, window = batch * counted.flops.training / rate, counted.flops.forward / rate
        return Timing(0.0, step, 0.0, window, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class RunForecast:
    """What one run takes of those arms of a study whose runs all take the same.

    phase           "tuning", the search for learning rates, or "study"
    runs            of all these arms
    parameters      numbers that the model learns
    flops_per_byte  operations of training per byte, forward plus backward
    steps, bytes    of a run, in bytes of training text; None where the budget is minutes and nothing was timed
    flops           operations of a run, evaluations included
    memory          bytes: anonymous memory of the process, for a GPU of torch's allocator there
    seconds         of a run, its start, evaluations and checkpoints included
    timed           what that was measured on: "this run", "a part: batch ...", "assumed" or "nothing"
    """

    phase: str
    arms: tuple[str, ...]
    runs: int
    parameters: int
    flops_per_byte: float
    steps: int | None
    bytes: int | None
    flops: int | None
    memory: float
    seconds: float | None
    timed: str


@dataclass(frozen=True)
class Forecast:
    """What the runs of a study take, `workers` at a time; `hours` of them all, None where nothing was timed.

    available: bytes at hand, on a CPU for all runs together, on a GPU for each; None where that is not known.
    gpu: what was assumed of a GPU that is not here. together: which runs share their steps; None where none do.
    """

    name: str
    device: str
    workers: int
    rows: tuple[RunForecast, ...]
    hours: float | None
    available: float | None
    gpu: Gpu | None
    together: str | None = None

    @property
    def runs(self) -> int:
        """Of the study and its search."""
        return sum(row.runs for row in self.rows)

    @property
    def flops(self) -> int | None:
        """Operations of all runs."""
        each = [None if row.flops is None else row.runs * row.flops for row in self.rows]
        return None if None in each else sum(flops for flops in each if flops is not None)

    @property
    def fitting(self) -> int | None:
        """How many of the largest runs fit into the memory at hand at once; None where that is not known."""
        return None if self.available is None else int(self.available // max(row.memory for row in self.rows))

    def to_row(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**asdict(self), "runs": self.runs, "flops": self.flops, "fitting": self.fitting}


def text(found: Forecast) -> str:
    """The table for the terminal, and below it the totals, whether it fits, and what was measured."""
    header = ["arms", "runs", "parameters", "FLOPs/byte", "steps", "MB read", "FLOPs", "memory GB", "time"]
    lines = [f"{found.name}: {found.runs} runs, {found.workers} at a time, on {found.device}; of one run:"]
    lines.append(text_table(header, [_cells(row) for row in found.rows]))
    total = "not known" if found.flops is None else f"{found.flops:.2e}"
    hours = "not known" if found.hours is None else _duration(3600 * found.hours)
    lines.append(f"all runs: {total} FLOPs, {hours}")
    return "\n".join([*lines, *_remarks(found)])


def _cells(row: RunForecast) -> list[str]:
    arms = row.arms[0] if len(row.arms) == 1 else f"{row.arms[0]} and {len(row.arms) - 1} more"
    return [
        arms if row.phase == "study" else f"{row.phase}: {arms}",
        str(row.runs),
        f"{row.parameters:,}",
        f"{row.flops_per_byte:.3g}",
        "?" if row.steps is None else f"{row.steps:,}",
        "?" if row.bytes is None else f"{row.bytes / 1e6:.4g}",
        "?" if row.flops is None else f"{row.flops:.2e}",
        f"{row.memory / GB:.2f}",
        "?" if row.seconds is None else _duration(row.seconds),
    ]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _remarks(found: Forecast) -> Iterator[str]:
    """What a reader must know of the numbers above."""
    largest, wanted = max(row.memory for row in found.rows), min(found.workers, found.runs)
    if found.available is not None and found.fitting is not None:
        room, place = f"{found.available / GB:.1f} GB", "machine" if found.device == "cpu" else "GPU"
        if found.fitting < 1:
            yield f"a run of {largest / GB:.1f} GB does not fit in the {room} of this {place} that are free"
        elif found.device == "cpu" and found.fitting < wanted:
            yield (
                f"{wanted} runs of {largest / GB:.1f} GB at a time do not fit in the {room} of this machine that are "
                f"free: use --workers {found.fitting}"
            )
        else:
            yield f"memory: {wanted} at a time fit in the {room} of this {place} that are free"
    if found.together is not None:
        yield found.together
    if found.gpu is not None:
        yield (
            f"no GPU here: times are assumed, not measured, from {found.gpu.flops:.3g} FLOPs per second used to "
            f"{found.gpu.utilisation:.0%}, without starts and checkpoints"
        )
    else:
        yield f"times are measured on {', '.join(dict.fromkeys(row.timed for row in found.rows))}"
