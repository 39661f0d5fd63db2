"""A study and its runs, read from its folder or from a record of it, and written as a record.

Files of earlier versions hold less and those of later ones more: the models below name only what a report relies on,
and nothing is required that a reader can do without.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from plkernel.common.files import (
    atomic_write,
    load_json,
    load_object,
    read_lines,
    refuse_links_of_run,
    save_json,
    shown,
)
from plkernel.common.layout import (
    CONFIG,
    DIVERGED,
    ENVIRONMENT,
    FAILED,
    FINISHED,
    METRICS,
    NOT_STARTED,
    REFERENCES,
    RESULT,
    ROWS,
    SPEC,
    TUNING,
    UNFINISHED,
    name_at,
    run_folder,
)
from plkernel.results.rows import expected_steps

Number = float | None
"""null stands for NaN and infinity, which JSON cannot write."""
Loss = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """A part of a file: types are not converted, unknown keys are kept."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class Columns(Part):
    """Lists of one length."""

    @model_validator(mode="after")
    def _of_one_length(self) -> "Columns":
        lengths = {name: len(value) for name, value in self if isinstance(value, list)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{' and '.join(lengths)} must be of one length")
        return self


def _fields(**kinds: Any) -> AfterValidator:
    """A check of an object: each of these fields, where it is there and not null, is of this type."""
    optional: dict[str, Any] = {name: (kind | None, None) for name, kind in kinds.items()}
    part = create_model("Fields", __base__=Part, **optional)

    def check(value: dict[str, Any]) -> dict[str, Any]:
        try:
            part.model_validate(value)
        except ValidationError as error:
            raise ValueError(_in_words(error.errors()[0])) from None
        return value

    return AfterValidator(check)


Object = dict[str, Any]
Arm = Annotated[
    Object,
    _fields(
        **dict.fromkeys(("against", "target", "placement", "projection"), str),
        **dict.fromkeys(("learning_rate", "beta"), Positive),
        levels=dict[str, str],
        rates=list[Positive],
    ),
]
Patching = Annotated[Object, _fields(size=Annotated[int, Field(ge=1)], mode=str)]
Model = Annotated[Object, _fields(kind=str, gain=str, parameters=int, patching=Patching)]
Hardware = Annotated[Object, _fields(cpu=str, gpu=str)]


class EnvironmentFile(Part):
    """environment.json."""

    commit: str | None = None
    threads: Count | None = None
    hardware: Hardware | None = None


class StudyFile(Part):
    """spec.json."""

    name: str
    description: str | None = None
    baseline: str
    within: list[str] | None = None
    seeds: Annotated[list[int], Field(min_length=1)]
    report_steps: list[int] | None = None
    arms: dict[str, Arm]
    model: Object | None = None
    train: Annotated[Object, _fields(learning_rate=Positive)] | None = None
    corpus: Annotated[Object, _fields(validation=float, test=float)] | None = None
    tuning: Annotated[Object, _fields(rates=list[Positive], seeds=list[int], steps=int)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> "StudyFile":
        if self.baseline not in self.arms:
            raise ValueError(f"baseline {self.baseline!r} is none of the arms {', '.join(map(repr, self.arms))}")
        for name, arm in self.arms.items():
            if arm.get("against") and arm["against"] not in self.arms:
                raise ValueError(f"arms.{name}.against is {shown(arm['against'])}, none of the arms")
        if self.tuning and self.tuning.get("rates") and not self.tuning.get("seeds"):
            raise ValueError("tuning.rates need tuning.seeds")
        return self


class ConfigFile(Part):
    """config.json of a run; in a record it lacks arm and seed."""

    corpus: Annotated[Object, _fields(size=int, sha256=str)]
    model: Model
    train: Annotated[Object, _fields(context=int)] | None = None


class Kernel(Part):
    """Kernels of every block at some lags."""

    lags: list[Positive]
    blocks: list[list[Number]]


Saturation = Annotated[Object, _fields(saturated_share=float, logit_min=float, logit_max=float, entropy=float)]


class State(Part):
    """The state of the model in a row of metrics.jsonl, beside its losses."""

    half_life_quantiles: list[list[Number]] | None = None
    kernel: Kernel | None = None
    saturation: Saturation | None = None
    amplification: list[Number] | None = None


STATE = (*State.model_fields, "positions")


class Evaluation(Part, extra="ignore"):
    """Validation bits per byte after `step` steps and `bytes` bytes read; `excess_bpb` above the corpus's floor."""

    step: int
    bytes: int
    val_bpb: Loss
    excess_bpb: Number = None


class Truncation(Columns):
    """Bits per byte of the same bytes when only the last 1, 2, 4 .. before them are given, the whole context last."""

    given: Annotated[list[int], Field(min_length=1, validation_alias=AliasChoices("given", "bytes"))]
    bpb: list[Number]
    floor: list[Number] | None = None


class Influence(Columns):
    """Change of the prediction in bits when the byte so many before it is another; I(d) of a known law, in bits."""

    lags: Annotated[list[int], Field(min_length=1)]
    bits: list[Number]
    information: list[Number] | None = None


class Result(Part, extra="ignore"):
    """result.json of a finished run: losses in bits per byte, wall time in seconds."""

    steps: int
    bytes: int
    final_val_bpb: Loss
    best_val_bpb: Loss
    best_step: int | None = None
    test_bpb: Loss
    seconds: Loss
    causal: bool
    truncation: Truncation | None = None
    influence: Influence | None = None

    def truncation_cost(self, given: int) -> float | None:
        """Bits per byte lost where only so many bytes are given, against the whole context; None if not measured."""
        if self.truncation is None or given not in self.truncation.given:
            return None
        some, whole = self.truncation.bpb[self.truncation.given.index(given)], self.truncation.bpb[-1]
        return math.nan if some is None or whole is None else some - whole


class Curve(Columns):
    """The evaluations of a run, column by column."""

    step: list[int]
    bytes: list[int]
    val_bpb: list[Number]
    excess_bpb: list[Number] | None = None


class RowFile(Part):
    """A row of rows.jsonl: a run that has ended."""

    arm: str
    seed: int
    status: str
    config: ConfigFile
    environment: EnvironmentFile
    result: dict[str, Any] | None = None
    curve: Curve | None = None
    first: State | None = None
    last: State | None = None


class Reference(Columns):
    """Losses of n-grams counted in the windows that a run reads, in bits per byte on the windows that judge runs.

    corpus, train     as in the config.json of the runs that they suit; of train the part that counts
    training_windows  which windows were counted, in words; `training_bytes` in all
    orders            n, bytes of an n-gram with the predicted one
    val_bpb, test_bpb, val_error, test_error  by order; standard errors over windows, None where there is one window
    """

    corpus: dict[str, Any]
    train: dict[str, Any]
    training_windows: str
    training_bytes: Count
    orders: Annotated[list[Count], Field(min_length=1)]
    val_bpb: list[float]
    test_bpb: list[float]
    val_error: list[Number]
    test_error: list[Number]

    def suits(self, config: Mapping[str, Any]) -> bool:
        """True if a run of that configuration reads, and is judged by, the same windows."""
        corpus, train = config["corpus"], config.get("train") or {}
        same = ("context", "batch", "eval_windows", "test_windows")
        read = "sha256" in corpus and all(self.corpus.get(name) == value for name, value in corpus.items())
        return read and all(train.get(name) == self.train.get(name) for name in same)


REFERENCE_KEY = ("corpus", "train", "seed", "training_bytes")
"""The part of an entry of references.json that decides its numbers."""


class ReferencesFile(Part):
    """references.json."""

    references: list[Reference]


P = TypeVar("P", bound=Part)


def parsed(path: Path, part: type[P], value: Any) -> P:
    """`value` as a `part`; ValueError in one line, naming the file and the keys, where it is none."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: holds {shown(value)}, expected an object")
    try:
        return part.model_validate(value)
    except ValidationError as error:
        raise ValueError(f"{path}: {'; '.join(map(_in_words, error.errors()[:3]))}") from None


def validated(path: Path, part: type[Part], value: Any) -> dict[str, Any]:
    """`value` unchanged, once it is known to be a `part`."""
    parsed(path, part, value)
    return dict(value)


def _in_words(error: Any) -> str:
    where = ".".join(str(part)[:80] for part in error["loc"])
    if error["type"] == "missing":
        return f"{where} is missing"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where} is {shown(error['input'])}: {message[:1].lower()}{message[1:]}" if where else message


@dataclass(frozen=True)
class Run:
    """One arm at one seed; `result` is there when `status` is "finished", `error` when it is "failed" or "diverged".

    first and last: state of the model in the first and the last row of a finished run's metrics.jsonl (STATE).
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
        """ARM/seed-K."""
        return f"{self.arm}/seed-{self.seed}"

    @property
    def fault(self) -> str | None:
        """The contradiction between the rows of a finished run and its result; None if there is none."""
        if self.result is None:
            return None
        steps, result = [row.step for row in self.evaluations], self.result
        every = self.config.get("train", {}).get("eval_every")
        wanted = expected_steps(every, result.steps) if isinstance(every, int) and every > 0 else steps
        if steps != wanted:
            between = f", which are of steps {min(steps)} to {max(steps)}" if steps else ""
            order = "" if steps == sorted(set(steps)) else ", and out of order"
            return f"{len(set(steps) & set(wanted))} of its {len(wanted)} evaluations are in its rows{between}{order}"
        if steps and steps[-1] != result.steps:
            return f"its rows end at step {steps[-1]}, its result is of step {result.steps}"
        last, final = self.evaluations[-1].val_bpb if steps else result.final_val_bpb, result.final_val_bpb
        same = last == final or (math.isnan(last) and math.isnan(final))
        return None if same else "the last of its rows is not what its result says"

    def at_step(self, step: int) -> float | None:
        """Validation bits per byte at that step, or None where it was not evaluated."""
        return next((row.val_bpb for row in self.evaluations if row.step == step), None)

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
        """The n-grams that suit the finished runs of `arm`; None where none were counted."""
        runs = self.finished(arm)
        return next((one for one in self.references if runs and all(one.suits(run.config) for run in runs)), None)


def read_study(folder: Path | str) -> Study:
    """Read spec.json and every run below it. Raises ValueError naming the file that is missing or damaged."""
    folder = Path(folder)
    path = folder / SPEC
    if not path.is_file():
        raise ValueError(f"folder: {folder} holds no {SPEC}, give the folder of a study (runs/out/NAME)")
    spec = validated(path, StudyFile, load_json(path))
    pairs = [(arm, seed) for arm in spec["arms"] for seed in spec["seeds"]]
    kept = {(row["arm"], row["seed"]): row for row in _rows(folder / ROWS)} if (folder / ROWS).exists() else None
    return Study(
        folder=folder,
        name=spec["name"],
        description=spec.get("description") or "",
        baseline=spec["baseline"],
        arms=tuple(spec["arms"]),
        seeds=tuple(spec["seeds"]),
        report_steps=tuple(spec.get("report_steps") or ()),
        spec=spec,
        runs=tuple(
            read_run(folder, *pair) if kept is None else _kept_run(folder / ROWS, *pair, kept.get(pair))
            for pair in pairs
        ),
        references=tuple(Reference.model_validate(entry) for entry in reference_entries(folder / REFERENCES)),
    )


def reference_entries(path: Path) -> list[dict[str, Any]]:
    """The entries of references.json as they are; none where it is missing, ValueError where it is damaged."""
    return list(validated(path, ReferencesFile, load_json(path))["references"]) if path.exists() else []


def read_run(study: Path, arm: str, seed: int) -> Run:
    """Read one run, whatever state it is in. Raises ValueError naming the file that is missing or damaged."""
    folder = run_folder(study, arm, seed)
    if not (folder / CONFIG).exists():
        return Run(arm, seed, NOT_STARTED, {}, {})
    config = load_object(folder / CONFIG)
    if (owner := (config.get("arm"), config.get("seed"))) != (arm, seed):
        arms = f"arm {shown(owner[0])} and seed {shown(owner[1])}"
        raise ValueError(f"{folder / CONFIG}: belongs to {arms}, not to this folder")
    place, path = folder / ENVIRONMENT, folder / RESULT
    environment = validated(place, EnvironmentFile, load_json(place)) if place.exists() else {}
    run = Run(arm, seed, UNFINISHED, validated(folder / CONFIG, ConfigFile, config), environment)
    if not path.exists():
        return run
    result, metrics = load_object(path), folder / METRICS
    rows: list[dict[str, Any]] = []
    if result.get("status") == FINISHED:
        rows = read_lines(metrics)
        if not rows:
            fault = "holds no evaluation" if metrics.is_file() else "no such file"
            raise ValueError(f"{metrics}: {fault}, although the run is recorded as finished")
    states = [{name: row[name] for name in STATE if name in row} for row in (rows[:1] + rows[-1:])] or [{}, {}]
    first, last = (validated(metrics, State, state) for state in states)
    return _ended(path, run, result, tuple(parsed(metrics, Evaluation, row) for row in rows), first, last)


def _kept_run(path: Path, arm: str, seed: int, row: dict[str, Any] | None) -> Run:
    """The run in a row of a record."""
    if row is None:
        return Run(arm, seed, NOT_STARTED, {}, {})
    run = Run(arm, seed, UNFINISHED, row["config"], row["environment"])
    result = {**(row.get("result") or {}), "status": row["status"], "error": row.get("error")}
    evaluations = tuple(parsed(path, Evaluation, point) for point in _points(row))
    return _ended(path, run, result, evaluations, row.get("first") or {}, row.get("last") or {})


def _ended(
    path: Path, run: Run, row: dict[str, Any], evaluations: tuple[Evaluation, ...], first: Any, last: Any
) -> Run:
    """`run` as it ended according to `row`."""
    status = row.get("status")
    if status in (FAILED, DIVERGED):
        return replace(run, status=status, error=str(row.get("error") or "no reason recorded"))
    if status != FINISHED:
        raise ValueError(f"{path}: status is {shown(status)}, expected {FINISHED!r}, {DIVERGED!r} or {FAILED!r}")
    result = parsed(path, Result, row)
    return replace(run, status=FINISHED, result=result, evaluations=evaluations, first=first, last=last)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [validated(path, RowFile, row) for row in read_lines(path)]


def _points(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluations of a row of rows.jsonl, one after another; columns that none of them has are left out."""
    curve = {name: values for name, values in (row.get("curve") or {}).items() if values is not None}
    return [dict(zip(curve, values, strict=True)) for values in zip(*curve.values(), strict=True)]


# The search for learning rates


@dataclass(frozen=True)
class Choice:
    """The rate given to an arm: `losses` are mean validation bits per byte by rate, infinite if a run diverged."""

    rate: float
    losses: Mapping[float, float]

    @property
    def at_edge(self) -> bool:
        """True if a rate beyond the grid might be better still."""
        return self.rate in (min(self.losses), max(self.losses))


def choices(grids: Mapping[str, Sequence[float]], out: Path) -> dict[str, Choice]:
    """The choice of each arm whose search has ended; `grids` are rates by arm, `out` is the folder of the study."""
    if not any(grids.values()) or not (out / TUNING / SPEC).exists():
        return {}
    runs: dict[str, list[Run]] = {}
    for run in read_study(out / TUNING).runs:
        runs.setdefault(run.arm, []).append(run)
    chosen = {}
    for name, rates in grids.items():
        each = {rate: runs.get(name_at(name, rate), []) for rate in rates}
        if not all(of and all(run.status in (FINISHED, DIVERGED) for run in of) for of in each.values()):
            continue
        losses = {
            rate: sum(run.result.final_val_bpb if run.result else math.inf for run in of) / len(of)
            for rate, of in each.items()
        }
        if losses and min(losses.values()) < math.inf:
            chosen[name] = Choice(min(losses, key=lambda rate: losses[rate]), losses)
    return chosen


# Records


def record(study: Study, run: Run) -> dict[str, Any]:
    """One ended run as a row to keep: configuration, environment, results, its validation curve and its state."""
    from plkernel.models.words import NOT_CAUSAL

    row: dict[str, Any] = {
        "study": study.name,
        "arm": run.arm,
        "seed": run.seed,
        "status": run.status,
        "error": run.error,
        "config": {key: value for key, value in run.config.items() if key not in ("study", "arm", "seed")},
        "environment": dict(run.environment),
    }
    if run.result is None:
        return row
    curve = {key: [getattr(one, key) for one in run.evaluations] for key in Evaluation.model_fields}
    if not any(value is not None for value in curve["excess_bpb"]):
        del curve["excess_bpb"]
    return {
        **row,
        **({} if run.result.causal else {"label": NOT_CAUSAL}),
        "result": {
            name: value.model_dump(exclude_unset=True) if isinstance(value, Part) else value
            for name, value in run.result
        },
        "curve": curve,
        "first": dict(run.first),
        "last": dict(run.last),
    }


def save_rows(study: Study, path: Path) -> None:
    """Write the ended runs of a study to `path`, one JSON object per line."""
    rows = (json.dumps(_without_nan(record(study, run)), allow_nan=False) for run in study.ended)
    atomic_write(path, "".join(f"{row}\n" for row in rows))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_record(study: Study, out: Path) -> None:
    """Write a record of a study, and of its search for learning rates, to the folder `out`; `read_study` reads it.

    Raises ValueError when `out` is the study itself.
    """
    if out.resolve() == study.folder.resolve():
        raise ValueError(f"record must be another folder than the study's, got {out}")
    save_json(out / SPEC, study.spec)
    save_rows(study, out / ROWS)
    if study.references:
        save_json(out / REFERENCES, load_json(study.folder / REFERENCES))
    if (study.folder / TUNING / SPEC).exists():
        save_record(read_study(study.folder / TUNING), out / TUNING)


def restore(record: Path, study: Path) -> int:
    """Write the folder of every run in `record` that `study` lacks, and return how many: another machine goes on.

    The folders suffice for a report; they hold neither a checkpoint nor curves for TensorBoard. Raises ValueError where
    there is no record, or a file of it is damaged.
    """
    path = record / ROWS
    if not path.is_file():
        raise ValueError(f"record: {record} holds no {ROWS}, give a folder that plkernel.report --record wrote")
    rows = _rows(path)
    for row in rows:  # a name from elsewhere might lead out of the study's folder
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", row["arm"]) or row["seed"] < 0:
            raise ValueError(f"{path}: {shown(row['arm'])} and {row['seed']} are no arm and seed")
    missing = [row for row in rows if not (run_folder(study, row["arm"], row["seed"]) / CONFIG).exists()]
    for row in missing:
        folder, points = run_folder(study, row["arm"], row["seed"]), _points(row)
        refuse_links_of_run(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_json(folder / CONFIG, {"study": row.get("study"), "arm": row["arm"], "seed": row["seed"], **row["config"]})
        save_json(folder / ENVIRONMENT, row["environment"])
        for place, state in ((0, row.get("first")), (-1, row.get("last"))):
            if points and state:
                points[place] |= state
        atomic_write(folder / METRICS, "".join(f"{json.dumps(point)}\n" for point in points))
        # the result comes last: without it the run counts as unfinished
        save_json(folder / RESULT, {**(row.get("result") or {}), "status": row["status"], "error": row.get("error")})
    below = restore(record / TUNING, study / TUNING) if (record / TUNING / SPEC).exists() else 0
    return len(missing) + below
