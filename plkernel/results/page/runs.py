"""The page's sections on runs: learning rates, what runs cost, which are missing, and where the numbers come from."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plkernel.records.layout import DIVERGED, FAILED, FINISHED
from plkernel.records.study import Result, Run, Study
from plkernel.results.comparison import ArmResult, Block, Comparison
from plkernel.results.costs import ArmCost, cost_of, hardware, search_cost
from plkernel.results.page.document import Cell, PageSection, Part, Table, folded, lines, number, prose, section, table
from plkernel.results.page.parts import arm_name, grouped, mark, marked, several
from plkernel.results.sentences import is_large, listed, span

FEW_VALUES = 3
FEW_RUNS = 12
"""So many missing runs, or rows of cost, stand on the page; more are folded away."""


def learning_rates(comparison: Comparison) -> list[PageSection]:
    """The search for learning rates: what every arm reached at every rate, and which it was given."""
    if not comparison.tuning:
        return []
    search = comparison.study.spec["tuning"]
    seeds, tried = search["seeds"], comparison.tuning.values()
    rates = sorted({rate for choice in tried for rate in choice.losses})
    count = span(len(choice.losses) for choice in tried)
    steps = f"{search['steps']:,} steps" if search.get("steps") else "the steps of the study"
    caption = (
        f"Validation bits per byte{mark(comparison)} at the end of a search that had the same budget for every arm: "
        f"{count} rates, {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'} ({', '.join(map(str, seeds))}, "
        f"none of those compared), {steps}."
    )

    def row(part: Block, arm: ArmResult) -> list[Any]:
        choice = comparison.tuning[arm.name]
        taken = number(f"{choice.rate:g}{', at the edge' if choice.at_edge else ''}")
        found = choice.losses
        losses = (marked(_loss(found[rate]), arm) if rate in found else number("-") for rate in rates)
        return [arm_name(comparison, part, arm), *losses, taken]

    groups = grouped(comparison, row, lambda part: [arm for arm in part.arms if arm.name in comparison.tuning])
    shown = Table.of(["arm", *(f"{rate:g}" for rate in rates), "taken"], groups, caption)
    heading = f"Learning rates{mark(comparison)}"
    if not is_large(comparison):
        return section(heading, shown)
    return section(heading, prose("", [_taken(comparison)]), folded("What every arm reached at every rate", shown))


def _taken(comparison: Comparison) -> str:
    """How many arms took which rate, and how many of them one at the edge of those they tried."""
    found = comparison.tuning.values()
    counts = sorted(Counter(choice.rate for choice in found).items())
    edge = sum(choice.at_edge for choice in found)
    taken = listed(f"{rate:g} by {times} {'arm' if times == 1 else 'arms'}" for rate, times in counts)
    return f"Taken: {taken}; {edge or 'none'} at the edge of the rates tried."


def costs(comparison: Comparison) -> list[PageSection]:
    """Time and hardware of the finished runs, by arm or of many arms by block."""
    study, search = comparison.study, search_cost(comparison.study)
    total = cost_of(study.runs)
    header = ["arm", "parameters", "runs", "seconds per run", "kB per second", "hours", "core hours"]
    every = ("study", several(sorted({size for arm in comparison.arms for size in arm.parameters})), total)
    ends = [_cost_row(*row) for row in (every, ("search for learning rates", number("-"), search)) if row[2]]
    caption = (
        "Wall time of the finished runs, their evaluations included; runs that failed or diverged tell none. "
        f"Core hours are hours times threads. {_machines(study)}"
    )

    def row(part: Block, arm: ArmResult) -> list[Any]:
        cost = cost_of(study.finished(arm.name))
        return _cost_row(arm_name(comparison, part, arm), several(arm.parameters), cost)

    arms = grouped(comparison, row, lambda part: [arm for arm in part.arms if arm.seeds])
    if not is_large(comparison):
        return section("Costs", Table.of(header, [*arms, ("together", ends)], caption))
    by_arm = Table.of(header, arms, "By arm.")
    return section("Costs", table(["", *header[1:]], ends, caption), folded("Costs by arm", by_arm))


def _cost_row(name: Any, parameters: Cell, cost: ArmCost | None) -> list[Any]:
    if cost is None:
        return [name, parameters, *[number("-")] * 5]
    speed = number("-") if cost.bytes_per_second is None else number(f"{cost.bytes_per_second / 1e3:,.1f}")
    cores = number("-") if cost.core_hours is None else number(f"{cost.core_hours:,.2f}")
    times = [number(f"{cost.seconds:,.1f}"), speed, number(f"{cost.hours:,.2f}"), cores]
    return [name, parameters, number(f"{cost.runs:,}"), *times]


def _machines(study: Study) -> str:
    found = hardware(study.runs)
    runs = sum(found.values())
    each = (name if len(found) == 1 else f"{name} ({count} of {runs} runs)" for name, count in found.items())
    return f"Made on {listed(each)}." if found else ""


def missing(runs: Iterable[Run]) -> list[PageSection]:
    """The runs that are not finished: those that failed or diverged one by one, of many others their number."""
    absent = [run for run in runs if run.status != FINISHED]
    if not absent:
        return []
    ended = [run for run in absent if run.status in (FAILED, DIVERGED)]
    waiting = [run for run in absent if run not in ended]
    parts: list[Part | None] = [prose("", [f"{_states(absent)}."])]
    shown = absent if len(waiting) <= FEW_RUNS else ended
    if shown:
        rows = [[run.name, run.status, lines([run.error], "error") if run.error else ""] for run in shown]
        parts.append(table(["run", "state", "error"], rows))
    if len(waiting) > FEW_RUNS:
        rows = [[arm, state, listed(seeds)] for (arm, state), seeds in _by_arm(waiting).items()]
        parts.append(folded("The runs without an end", table(["arm", "state", "seeds"], rows), printed=False))
    return section("Runs that are missing here", *parts)


def _states(runs: Iterable[Run]) -> str:
    """How many runs are in which state."""
    counts = Counter(run.status for run in runs)
    return listed(f"{count:,} {state}" for state, count in counts.most_common())


def _by_arm(runs: Iterable[Run]) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        found.setdefault((run.arm, run.status), []).append(run.seed)
    return found


def provenance(runs: Sequence[Run]) -> list[PageSection]:
    """What made the numbers: corpus and environment, and what every run took."""
    facts = [facts_of(run) for run in runs]
    names = dict.fromkeys(name for found in facts for name in found)
    header = ["run", "steps", "bytes", "seconds", "kB per second"]
    rows = [[run.name, *_took(run.result)] for run in runs if run.result]
    every = table(header, rows)
    return section(
        "Where these numbers come from",
        table(["", ""], [[name, _values(name, facts)] for name in names]) if names else None,
        folded(f"All {len(rows)} finished runs", every, printed=False) if len(rows) > FEW_RUNS else every,
    )


def facts_of(run: Run) -> dict[str, str]:
    """What made the numbers of a run: its corpus and environment as readable text by name."""
    corpus = {f"corpus {key}": value for key, value in run.config["corpus"].items()}
    return {name: _fact(value) for name, value in {**corpus, **run.environment}.items()}


def _took(result: Result) -> list[Cell]:
    speed = result.bytes / 1e3 / result.seconds if result.seconds > 0 else math.nan
    return [number(f"{value:,.0f}") for value in (result.steps, result.bytes, result.seconds, speed)]


def _values(name: str, facts: Sequence[Mapping[str, str]]) -> Cell:
    """The value all runs share, or each value with the number of runs that have it; of many the first."""
    found = Counter(one.get(name, "-") for one in facts)
    values = list(found)
    if len(values) == 1:
        return lines(values, "value")
    if len(values) > FEW_VALUES:
        return lines([f"{values[0]} (the first of {len(values)}; rows.jsonl has them all)"], "value")
    return lines((f"{value} ({count} of {len(facts)} runs)" for value, count in found.items()), "value")


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_fact(item)}" for key, item in value.items())
    if isinstance(value, str):
        return value if value.strip() else repr(value)
    return {"None": "none", "True": "yes", "False": "no"}.get(str(value), str(value))


def _loss(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "diverged"
