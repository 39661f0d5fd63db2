"""What of several studies fits into given minutes: each, in order of worth, whole or with fewer seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plkernel.common.cli import text_table


@dataclass(frozen=True)
class Due:
    """What is due of one study.

    search    runs of its search for learning rates, and seconds of each
    runs      those due, by seed
    seconds   of one of these
    """

    name: str
    search: tuple[int, float]
    runs: Mapping[int, int]
    seconds: float


@dataclass(frozen=True)
class Share:
    """What of it is to be run: seeds, runs with those of the search, seconds of all, and a note where it is not all."""

    name: str
    seeds: tuple[int, ...] = ()
    runs: int = 0
    seconds: float = 0.0
    note: str = ""


def plan(studies: Sequence[Due], seconds: float) -> list[Share]:
    """What fits into `seconds`: in their order, each study takes as many of its seeds as fit, with all of their arms.

    >>> plan([Due("a", (2, 10.0), {0: 3, 1: 3}, 20.0)], 100.0)
    [Share(name='a', seeds=(0,), runs=5, seconds=80.0, note='1 of 2 seeds')]
    """
    shares = []
    for study in studies:
        shares.append(_share(study, seconds))
        seconds -= shares[-1].seconds
    return shares


def _share(study: Due, seconds: float) -> Share:
    due = {seed: runs for seed, runs in study.runs.items() if runs}
    if not due:
        return Share(study.name, note="measured before")
    runs, each = study.search
    total, taken = runs * each, list[int]()
    for seed, more in due.items():
        if total + more * study.seconds > seconds:
            break
        taken.append(seed)
        total, runs = total + more * study.seconds, runs + more
    if not taken:
        least = total + next(iter(due.values())) * study.seconds
        return Share(study.name, note=f"left out: the first seed takes {least / 60:.1f} minutes")
    note = "" if len(taken) == len(due) else f"{len(taken)} of {len(due)} seeds"
    return Share(study.name, tuple(taken), runs, total, note)


def table(shares: Sequence[Share]) -> str:
    """Name, seeds, runs, minutes and note of each, and the sum."""
    rows = [[one.name, _few(one.seeds), str(one.runs), f"{one.seconds / 60:.1f}", one.note] for one in shares]
    total = ["all", "", str(sum(one.runs for one in shares)), f"{sum(one.seconds for one in shares) / 60:.1f}", ""]
    return text_table(["what", "seeds", "runs", "minutes", "note"], [*rows, total])


def _few(seeds: Sequence[int]) -> str:
    return " ".join(map(str, seeds))
