"""A study and its runs, read back: of a folder, finished or not, or of a record."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plkernel.common.files import load_json, load_object, read_lines, shown
from plkernel.records.layout import (
    CONFIG,
    DIVERGED,
    ENVIRONMENT,
    FAILED,
    FINISHED,
    METRICS,
    NOT_STARTED,
    RESULT,
    ROWS,
    SPEC,
    UNFINISHED,
    run_folder,
)
from plkernel.records.references import Reference, read_references
from plkernel.records.rows import expected_steps
from plkernel.records.schema import (
    ConfigFile,
    EnvironmentFile,
    EvaluationPart,
    ResultFile,
    RowFile,
    StatePart,
    StudyFile,
    points_of,
    validated,
)

STATE = ("half_life_quantiles", "kernel", "saturation", "amplification", "positions")
"""What a row of metrics.jsonl says of the model beside its losses."""


@dataclass(frozen=True)
class Evaluation:
    """One row of metrics.jsonl: validation bits per byte after `step` steps and `bytes` bytes read.

    excess_bpb: those above the floor of the corpus, where that is known.
    """

    step: int
    bytes: int
    val_bpb: float
    excess_bpb: float | None = None


@dataclass(frozen=True)
class Result:
    """result.json: losses in bits per byte (NaN where a run diverged), wall time in seconds."""

    steps: int
    bytes: int
    final_val_bpb: float
    best_val_bpb: float
    best_step: int | None
    test_bpb: float
    seconds: float
    causal: bool
    truncation: Mapping[str, Any] | None = None
    influence: Mapping[str, Any] | None = None

    def truncation_cost(self, given: int) -> float | None:
        """Bits per byte lost where only so many bytes are given, against the whole context; None if not measured."""
        curve = self.truncation or {}
        known = dict(zip(curve.get("given") or curve.get("bytes") or (), curve.get("bpb") or (), strict=True))
        return _loss(known[given]) - _loss(curve["bpb"][-1]) if given in known else None


@dataclass(frozen=True)
class Run:
    """One arm at one seed; `result` is there when `status` is "finished", `error` when it is "failed" or "diverged".

    first and last: what else the first and the last row of a finished run's metrics.jsonl say (STATE).
    """

    arm: str
    seed: int
    status: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    evaluations: tuple[Evaluation, ...] = ()
    result: Result | None = None
    error: str | None = None
    first: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.arm}/seed-{self.seed}"

    def at_step(self, step: int) -> float | None:
        """Validation bits per byte at that step, or None where it was not evaluated."""
        return next((row.val_bpb for row in self.evaluations if row.step == step), None)

    @property
    def fault(self) -> str | None:
        """What the rows of a finished run lack of what its result says; None if nothing."""
        if self.result is None:
            return None
        steps, result = [row.step for row in self.evaluations], self.result
        every = self.config.get("train", {}).get("eval_every")
        wanted = expected_steps(every, result.steps) if isinstance(every, int) and every > 0 else steps
        if steps != wanted:
            kept = len(set(steps) & set(wanted))
            between = f", which are of steps {min(steps)} to {max(steps)}" if steps else ""
            order = "" if steps == sorted(set(steps)) else ", and out of order"
            return f"{kept} of its {len(wanted)} evaluations are in its rows{between}{order}"
        if steps and steps[-1] != result.steps:
            return f"its rows end at step {steps[-1]}, its result is of step {result.steps}"
        last = self.evaluations[-1].val_bpb if steps else result.final_val_bpb
        same = last == result.final_val_bpb or (math.isnan(last) and math.isnan(result.final_val_bpb))
        return None if same else "the last of its rows is not what its result says"

    def curve(self) -> dict[int, float]:
        """Validation bits per byte by bytes of training text read."""
        return {row.bytes: row.val_bpb for row in self.evaluations}


@dataclass(frozen=True)
class Study:
    """A spec and its runs, in the order of the spec: every arm at every seed, started or not."""

    folder: Path
    name: str
    description: str
    baseline: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    report_steps: tuple[int, ...]
    spec: Mapping[str, Any]
    runs: tuple[Run, ...]
    references: tuple[Reference, ...] = ()

    def levels(self, arm: str) -> dict[str, str]:
        """The level of every factor that `arm` is at; empty where it is not made from factors."""
        return self.spec["arms"][arm].get("levels") or {}

    def against(self, arm: str) -> str | None:
        """The arm that `arm` is compared with; None for a baseline, of the study or of a block of `within`."""
        given: str | None = self.spec["arms"][arm].get("against")
        if given or arm == self.baseline:
            return given
        own, first = self.levels(arm), self.levels(self.baseline)
        apart = any(own.get(name) != first.get(name) for name in self.spec.get("within") or ())
        return None if apart else self.baseline

    @property
    def ended(self) -> list[Run]:
        """The runs that have finished, diverged or failed."""
        return [run for run in self.runs if run.status in (FINISHED, DIVERGED, FAILED)]

    def finished(self, arm: str | None = None) -> list[Run]:
        """The finished runs, of one arm or of all."""
        return [run for run in self.runs if run.status == FINISHED and arm in (None, run.arm)]

    def curves(self, arm: str) -> dict[int, dict[int, float]]:
        """The `curve` of every finished run of an arm, by seed."""
        return {run.seed: run.curve() for run in self.finished(arm)}

    def reference(self, arm: str) -> Reference | None:
        """What n-grams reach where the finished runs of `arm` are judged; None where that was not counted."""
        runs = self.finished(arm)
        suiting = (one for one in self.references if runs and all(one.suits(run.config) for run in runs))
        return next(suiting, None)


def read_study(folder: Path | str) -> Study:
    """Read spec.json and every run below it. Raises ValueError naming the file that is missing or damaged."""
    folder = Path(folder)
    path = folder / SPEC
    if not path.is_file():
        raise ValueError(f"folder: {folder} holds no {SPEC}, give the folder of a study (runs/out/NAME)")
    spec = validated(path, StudyFile, load_json(path))
    baseline, arms = spec["baseline"], tuple(spec["arms"])
    if baseline not in arms:
        raise ValueError(f"{path}: baseline {baseline!r} is none of the arms {', '.join(map(repr, arms))}")
    seeds = tuple(spec["seeds"])
    return Study(
        folder=folder,
        name=spec["name"],
        description=spec.get("description") or "",
        baseline=baseline,
        arms=arms,
        seeds=seeds,
        report_steps=tuple(spec.get("report_steps") or ()),
        spec=spec,
        runs=_runs(folder, arms, seeds),
        references=read_references(folder),
    )


def _runs(folder: Path, arms: tuple[str, ...], seeds: tuple[int, ...]) -> tuple[Run, ...]:
    """The runs below a study's folder, or those in the rows of a record."""
    path = folder / ROWS
    if not path.exists():
        return tuple(read_run(folder, arm, seed) for arm in arms for seed in seeds)
    rows = (validated(path, RowFile, row) for row in read_lines(path))
    kept = {(row["arm"], row["seed"]): row for row in rows}
    return tuple(
        _kept_run(path, kept[arm, seed]) if (arm, seed) in kept else Run(arm, seed, NOT_STARTED, {}, {})
        for arm in arms
        for seed in seeds
    )


def read_run(study: Path, arm: str, seed: int) -> Run:
    """Read one run, whatever state it is in. Raises ValueError naming the file that is missing or damaged."""
    folder = run_folder(study, arm, seed)
    if not (folder / CONFIG).exists():
        return Run(arm, seed, NOT_STARTED, {}, {})
    config = _config(folder / CONFIG, arm, seed)
    place = folder / ENVIRONMENT
    environment = validated(place, EnvironmentFile, load_json(place)) if place.exists() else {}
    path, run = folder / RESULT, Run(arm, seed, UNFINISHED, config, environment)
    if not path.exists():
        return run
    result, metrics = load_object(path), folder / METRICS
    rows = _metrics(metrics) if result.get("status") == FINISHED else []
    first, last = (validated(metrics, StatePart, _state(rows[at])) if rows else {} for at in (0, -1))
    return _ended(path, run, result, evaluations=tuple(_evaluations(metrics, rows)), first=first, last=last)


def _kept_run(path: Path, row: dict[str, Any]) -> Run:
    """The run that a row of a record tells of, as `report.table.record` writes it."""
    run = Run(row["arm"], row["seed"], UNFINISHED, row["config"], row["environment"])
    result = {**(row.get("result") or {}), "status": row.get("status"), "error": row.get("error")}
    states = {name: row.get(name) or {} for name in ("first", "last")}
    return _ended(path, run, result, evaluations=tuple(_evaluations(path, points_of(row))), **states)


def _ended(path: Path, run: Run, row: dict[str, Any], **found: Any) -> Run:
    """`run` as it ended, which `row` says; `found`: what else is known of it where it finished."""
    status = row.get("status")
    if status in (FAILED, DIVERGED):
        return replace(run, status=status, error=str(row.get("error") or "no reason recorded"))
    if status != FINISHED:
        raise ValueError(f"{path}: status is {shown(status)}, expected {FINISHED!r}, {DIVERGED!r} or {FAILED!r}")
    return replace(run, status=FINISHED, result=_result(path, row), **found)


def _config(path: Path, arm: str, seed: int) -> dict[str, Any]:
    config = load_object(path)
    found = config.get("arm"), config.get("seed")
    if found != (arm, seed):
        raise ValueError(f"{path}: belongs to arm {shown(found[0])} and seed {shown(found[1])}, not to this folder")
    return validated(path, ConfigFile, config)


def _result(path: Path, row: dict[str, Any]) -> Result:
    found: dict[str, Any] = {"best_step": None, "truncation": None, "influence": None} | validated(
        path, ResultFile, row
    )
    losses = {name: _loss(found[name]) for name in ("final_val_bpb", "best_val_bpb", "test_bpb", "seconds")}
    return Result(**{**{name: found[name] for name in ResultFile.model_fields}, **losses})


def _metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a finished run, at least one."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file, although the run is recorded as finished")
    rows = read_lines(path)
    if not rows:
        raise ValueError(f"{path}: holds no evaluation, although the run is recorded as finished")
    return rows


def _evaluations(path: Path, rows: list[dict[str, Any]]) -> Iterator[Evaluation]:
    for row in rows:
        validated(path, EvaluationPart, row)
        yield Evaluation(row["step"], row["bytes"], _loss(row["val_bpb"]), row.get("excess_bpb"))


def _loss(value: float | None) -> float:
    """JSON has no other way than null to write a loss that diverged."""
    return math.nan if value is None else float(value)


def _state(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in STATE if name in row}
