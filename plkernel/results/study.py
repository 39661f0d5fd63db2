"""A study and its runs, read from its folder or from a record of it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plkernel.common import files
from plkernel.common.corpus_names import is_recall
from plkernel.common.files import (
    CONFIG,
    DIVERGED,
    ENVIRONMENT,
    FAILED,
    FINISHED,
    METRICS,
    RESULT,
    ROWS,
    SPEC,
)
from plkernel.config.schema import steps_of
from plkernel.config.spec import compared_with
from plkernel.results.saved import (
    STATE,
    EvaluationRow,
    Reference,
    RunFile,
    RunResult,
    StudyFile,
    reference_entries,
    typed_part,
    validated,
)

Place = tuple[str, int]
"""Arm and seed of a run."""


@dataclass(frozen=True)
class StudyRun:
    """One arm at one seed.

    error        why it failed or diverged; None for other runs
    result       of a finished run, see `FinishedRun`; None for other runs
    evaluations  of a finished run, in the order of its file
    first, last  state of the model in the first and last row of its metrics.jsonl (STATE)
    """

    arm: str
    seed: int
    status: str
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    result: RunResult | None = None
    evaluations: tuple[EvaluationRow, ...] = ()
    first: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """ARM/seed-K."""
        return f"{self.arm}/seed-{self.seed}"

    @property
    def scaling_length(self) -> float | None:
        """T in bytes where decays depend on the position, which are stated at T; None elsewhere."""
        model = self.config.get("model") or {}
        if model.get("position_scaling"):
            length = model.get("scaling_length")
        else:
            length = (model.get("config") or {}).get("scaling_length")
        # A model of one's own may have an option of that name which is no length.
        return float(length) if isinstance(length, int | float) else None

    @property
    def curve(self) -> dict[int, float]:
        """Validation bits per byte by bytes of training text read."""
        return {row.bytes: row.val_bpb for row in self.evaluations}

    @property
    def is_recall(self) -> bool:
        """True if losses are those of answers alone, on a corpus synthetic:recall."""
        corpus = self.config.get("corpus") or {}
        return is_recall(str(corpus.get("name")))


@dataclass(frozen=True)
class FinishedRun(StudyRun):
    """A run that has finished, which has a result."""

    result: RunResult = field(kw_only=True)

    @property
    def agrees(self) -> bool:
        """False if rows are missing or out of order, or the last one contradicts the result."""
        return self._has_every_row() and self._ends_in_the_result()

    def _has_every_row(self) -> bool:
        """True if the steps of the rows are 0, every, 2 every, .. and the last one."""
        train = self.config.get("train") or {}
        every = train.get("eval_every")
        if not isinstance(every, int) or every <= 0:
            return True
        last = self.result.steps
        # At step 0, at every whole multiple, and at the last step where that is none of these.
        regular = 1 + last // every
        if len(self.evaluations) - regular not in (0, 1):
            return False  # a damaged file may claim more steps than can be listed below
        steps = [row.step for row in self.evaluations]
        return steps == sorted({*range(0, last + 1, every), last})

    def _ends_in_the_result(self) -> bool:
        """True if the last row, if there is one, has the step and the loss of the result."""
        train = self.config.get("train") or {}
        if train.get("final_windows") or train.get("average"):
            return True  # the result is of other windows, or of other weights
        if not self.evaluations:
            return True
        last = self.evaluations[-1]
        # repr: NaN equals NaN
        same_loss = repr(last.val_bpb) == repr(self.result.final_val_bpb)
        return last.step == self.result.steps and same_loss


@dataclass(frozen=True)
class Study:
    """A spec and its runs, in the order of the spec: every arm at every seed, started or not.

    beside  arm and seed of finished runs in the folder that the spec does not ask for
    """

    folder: Path
    name: str
    description: str
    baseline: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    spec: Mapping[str, Any]
    runs: tuple[StudyRun, ...]
    references: tuple[Reference, ...] = ()
    beside: tuple[Place, ...] = ()

    @property
    def within(self) -> list[str]:
        """The factors inside whose levels arms are compared; empty in a study without blocks."""
        return list(self.spec.get("within") or ())

    def levels(self, arm: str) -> dict[str, str]:
        """The level of every factor that `arm` is at; empty where it is not made from factors."""
        return self.spec["arms"][arm].get("levels") or {}

    def against(self, arm: str) -> str | None:
        """The arm that `arm` is compared with; None for a baseline, of the study or of a block."""
        given: str | None = self.spec["arms"][arm].get("against")
        return compared_with(arm, given, self.levels, self.baseline, self.within)

    @property
    def ended(self) -> list[StudyRun]:
        """The runs that have finished, diverged or failed."""
        return [run for run in self.runs if run.status in (FINISHED, DIVERGED, FAILED)]

    def finished(self, arm: str | None = None) -> list[FinishedRun]:
        """The finished runs, of one arm or of all."""
        runs = [run for run in self.runs if isinstance(run, FinishedRun)]
        return [run for run in runs if arm in (None, run.arm)]

    def curves(self, arm: str) -> dict[int, dict[int, float]]:
        """The curve of every finished run of an arm, by seed."""
        return {run.seed: run.curve for run in self.finished(arm)}

    def reference(self, arm: str) -> Reference | None:
        """The n-grams that suit all finished runs of `arm`; None where none were counted."""
        runs = self.finished(arm)
        if not runs:
            return None
        for one in self.references:
            if all(one.suits(run.config) for run in runs):
                return one
        return None


def as_planned(study: Study, run: StudyRun) -> bool:
    """True if a run finished after as many steps as the spec of the study says."""
    if run.result is None:
        return False
    train = train_options(study.spec, run.arm)
    planned = steps_of(
        train.get("steps"), train.get("bytes"), train.get("batch") or 1, train.get("context") or 1
    )
    return not planned or run.result.steps == planned


def train_options(spec: Mapping[str, Any], arm: str) -> dict[str, Any]:
    """[train] of a spec with what the arm changes of it."""
    shared = spec.get("train") or {}
    own = spec["arms"].get(arm, {}).get("train") or {}
    return {**shared, **own}


def read_study(folder: Path | str) -> Study:
    """Read spec.json and every run below it; ValueError, naming the file, for what is damaged."""
    folder = Path(folder)
    spec = _read_spec(folder)
    if (folder / ROWS).exists():
        found = recorded_runs(folder / ROWS)
        finished = [place for place, run in found.items() if run.status == FINISHED]
        beside = tuple(_left_out(finished, spec["arms"], spec["seeds"]))
    else:
        found = _trained_runs(folder, spec)
        beside = finished_beside(folder, spec["arms"], spec["seeds"])
    references = reference_entries(folder / files.REFERENCES)
    return Study(
        folder=folder,
        name=spec["name"],
        description=spec.get("description") or "",
        baseline=spec["baseline"],
        arms=tuple(spec["arms"]),
        seeds=tuple(spec["seeds"]),
        spec=spec,
        runs=planned(found, spec),
        references=tuple(Reference.model_validate(entry) for entry in references),
        beside=beside,
    )


def check_same_name(folder: Path, name: str) -> None:
    """Raise ValueError where `folder` is that of a study of another name."""
    place = folder / SPEC
    if not place.is_file():
        return
    other = files.load_object(place).get("name")
    if other != name:
        raise ValueError(
            f"out must be a new folder or that of study {name!r}, got {folder}, which is that of"
            f" {files.shown(other)}; name another --out"
        )


def planned(found: Mapping[Place, StudyRun], spec: Mapping[str, Any]) -> tuple[StudyRun, ...]:
    """The runs of a spec, in its order. One that is not in `found` has not begun."""
    runs = []
    for arm in spec["arms"]:
        for seed in spec["seeds"]:
            missing = StudyRun(arm, seed, files.NOT_STARTED)
            runs.append(found.get((arm, seed), missing))
    return tuple(runs)


def runs_of(folder: Path, spec: Mapping[str, Any]) -> dict[Place, StudyRun]:
    """The runs in the folder or the record of a study, by arm and seed.

    They are those of the arms and seeds of `spec`, which need not be the study's own. Raises
    ValueError, naming the file, for what is damaged.
    """
    if (folder / ROWS).exists():
        return recorded_runs(folder / ROWS)
    return _trained_runs(folder, spec)


def finished_beside(
    folder: Path, arms: Collection[str], seeds: Collection[int]
) -> tuple[Place, ...]:
    """Arm and seed of the finished runs in a folder that a spec of `arms` and `seeds` leaves out.

    One whose result is damaged is passed over: nothing rests on it.
    """
    ended: dict[Place, Path] = {}
    for path in folder.glob(f"*/seed-*/{RESULT}"):
        number = path.parent.name.removeprefix("seed-")
        if number.isdecimal():
            ended[path.parents[1].name, int(number)] = path
    left_out = _left_out(ended, arms, seeds)
    return tuple(place for place in left_out if _has_finished(ended[place]))


def _has_finished(result: Path) -> bool:
    """True for the result.json of a finished run; False too where it is damaged."""
    try:
        return files.load_object(result).get("status") == FINISHED
    except ValueError:
        return False


def _left_out(
    places: Iterable[Place], arms: Collection[str], seeds: Collection[int]
) -> list[Place]:
    """Those of `places`, in order, that a spec of `arms` and `seeds` does not ask for."""
    return sorted((arm, seed) for arm, seed in places if arm not in arms or seed not in seeds)


def _read_spec(folder: Path) -> dict[str, Any]:
    """spec.json of a study, whose baselines are arms of it."""
    path = folder / SPEC
    if not path.is_file():
        is_run = (folder / CONFIG).is_file()
        hint = ": it is a run, which plkernel.inspect shows" if is_run else ""
        raise ValueError(
            f"folder: {folder} holds no {SPEC}{hint}; give the folder of a study (runs/out/NAME)"
        )
    spec = validated(path, StudyFile, files.load_json(path))
    named = {"baseline": spec["baseline"]}
    for name, arm in spec["arms"].items():
        named[f"arms.{name}.against"] = arm.get("against")
    for key, arm in named.items():
        if arm is not None and arm not in spec["arms"]:
            raise ValueError(f"{path}: {key} must be one of the arms, got {files.shown(arm)}")
    return spec


def recorded_runs(path: Path) -> dict[Place, StudyRun]:
    """The runs of a record, rows.jsonl, by arm and seed."""
    return runs_in_rows(path, files.read_lines(path, whole=True))


def runs_in_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> dict[Place, StudyRun]:
    """The runs that the rows of a record tell of, by arm and seed; `path` heads what is wrong."""
    runs = [run_of(path, with_evaluations(row)) for row in rows]
    by_place = {(run.arm, run.seed): run for run in runs}
    if len(by_place) < len(runs):
        raise ValueError(f"{path}: must hold one row for each run, got two rows of one run")
    return by_place


def _trained_runs(folder: Path, spec: Mapping[str, Any]) -> dict[Place, StudyRun]:
    """The runs of a study that have begun, by arm and seed, from their folders."""
    found = {}
    for arm in spec["arms"]:
        for seed in spec["seeds"]:
            own = files.run_folder(folder, arm, seed)
            if not (own / CONFIG).exists():
                continue
            run = run_of(own, _row_of_folder(own))
            if (run.arm, run.seed) != (arm, seed):
                raise ValueError(
                    f"{own / CONFIG}: must belong to arm {files.shown(arm)} and seed {seed}, got"
                    f" {files.shown(run.arm)} and {run.seed}"
                )
            found[arm, seed] = run
    return found


def _row_of_folder(folder: Path) -> dict[str, Any]:
    """The files of a run as a row of a record, with its evaluations as in metrics.jsonl."""

    def content(name: str) -> dict[str, Any]:
        path = folder / name
        return files.load_object(path) if path.exists() else {}

    config = content(CONFIG)
    result = content(RESULT)
    config.pop("study", None)
    row = {
        "arm": config.pop("arm", None),
        "seed": config.pop("seed", None),
        "environment": content(ENVIRONMENT),
        "status": result.pop("status", files.UNFINISHED),
        "error": result.pop("error", None),
        "config": config,
    }
    if row["status"] != FINISHED:
        return row
    evaluations = files.read_lines(folder / METRICS)
    if not evaluations:
        raise ValueError(
            f"{folder / METRICS}: must hold the evaluations of a finished run, got none"
        )
    row["result"] = result
    row["evaluations"] = evaluations
    for name, evaluation in (("first", evaluations[0]), ("last", evaluations[-1])):
        row[name] = {key: evaluation[key] for key in STATE if key in evaluation}
    return row


def with_evaluations(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a record with its curve as evaluations; columns of null are left out."""
    curve = row["curve"] if isinstance(row.get("curve"), dict) else {}
    columns = {name: values for name, values in curve.items() if isinstance(values, list)}
    points = zip(*columns.values(), strict=False)  # lists of unequal length are refused later
    evaluations = [dict(zip(columns, point, strict=True)) for point in points]
    return {**row, "evaluations": evaluations}


def run_of(path: Path, row: Mapping[str, Any]) -> StudyRun:
    """The run that a row tells of; ValueError, headed by `path`, where the row is damaged."""
    one = typed_part(path, RunFile, row)
    error = None
    if one.status in (DIVERGED, FAILED):
        error = one.error or "no reason recorded"
    if one.status != FINISHED:
        return StudyRun(
            one.arm, one.seed, one.status, row["config"], row["environment"], error=error
        )
    if one.result is None:
        raise ValueError(f"{path}: must hold the result of a finished run, got none")
    return FinishedRun(
        arm=one.arm,
        seed=one.seed,
        status=one.status,
        config=row["config"],
        environment=row["environment"],
        result=one.result,
        evaluations=tuple(one.evaluations),
        first=row.get("first") or {},
        last=row.get("last") or {},
    )
