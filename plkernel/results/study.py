"""A study and its runs, read from its folder or from a record of it, and written as a record.

Files of earlier versions hold less and those of later ones more: the models below name only what a report relies on,
and nothing is required that a reader can do without.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic_core import from_json, to_json

from plkernel.common import layout
from plkernel.common.files import (
    atomic_write,
    load_json,
    load_object,
    read_lines,
    refuse_links_of_run,
    save_json,
    shown,
)
from plkernel.common.layout import CONFIG, DIVERGED, ENVIRONMENT, FAILED, FINISHED, METRICS, RESULT, ROWS, SPEC, TUNING
from plkernel.results.rows import expected_steps

T = TypeVar("T")
Number = float | None
"""null stands for NaN and infinity, which JSON cannot write."""
Loss = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Filled = Annotated[list[T], Field(min_length=1)]


# Files


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


class Evaluation(Part, extra="ignore"):
    """Validation bits per byte after `step` steps and `bytes` bytes read; `excess_bpb` above the corpus's floor."""

    step: int
    bytes: int
    val_bpb: Loss
    excess_bpb: Number = None


class Truncation(Columns):
    """Bits per byte of the same bytes when only the last 1, 2, 4 .. before them are given, the whole context last."""

    given: Filled[int]
    bpb: list[Number]
    floor: list[Number] | None = None


class Influence(Columns):
    """Change of the prediction in bits when the byte so many before it is another; I(d) of a known law, in bits."""

    lags: Filled[int]
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


class Reference(Columns):
    """Losses of n-grams counted in the windows that a run reads, in bits per byte on the windows that judge runs.

    corpus, train are as in the config.json of the runs that they suit, `orders` are the n, bytes of an n-gram with the
    predicted one; losses and their standard errors over windows, None where there is one window, are by order.
    """

    corpus: dict[str, Any]
    train: dict[str, Any]
    training_windows: str
    training_bytes: Count
    orders: Filled[Count]
    val_bpb: list[float]
    test_bpb: list[float]
    val_error: list[Number]
    test_error: list[Number]

    def suits(self, config: Mapping[str, Any]) -> bool:
        """True if a run of that configuration reads, and is judged by, the same windows."""
        corpus, train = config["corpus"], config.get("train") or {}
        read = "sha256" in corpus and corpus.items() <= self.corpus.items()
        same = ("context", "batch", "eval_windows", "test_windows")
        return read and all(train.get(name) == self.train.get(name) for name in same)


def part(**fields: Any) -> type[Part]:
    """A part with these fields: each may be missing or null, but for those given as pydantic's (type, ...)."""
    typed = {name: kind if isinstance(kind, tuple) else (kind | None, None) for name, kind in fields.items()}
    return create_model("Part", __base__=Part, **typed)  # type: ignore[call-overload,no-any-return]


ArmFile = part(
    against=str, target=str, learning_rate=Positive, beta=Positive, levels=dict[str, str], rates=list[Positive]
)
StudyFile = part(
    name=(str, ...),
    description=str,
    baseline=(str, ...),
    within=list[str],
    seeds=(Filled[int], ...),
    report_steps=list[int],
    arms=(dict[str, ArmFile], ...),  # type: ignore[valid-type]
    model=dict,
    train=part(learning_rate=Positive),
    corpus=part(validation=float, test=float),
    tuning=part(rates=list[Positive], seeds=list[int], steps=int),
)
ConfigFile = part(
    corpus=(part(size=int, sha256=str), ...),
    model=(part(kind=str, gain=str, parameters=int, patching=part(size=Annotated[int, Field(ge=1)], mode=str)), ...),
    train=part(context=int),
)
EnvironmentFile = part(commit=str, threads=Count, hardware=part(cpu=str, gpu=str))
State = part(
    half_life_quantiles=list[list[Number]],
    kernel=part(lags=(list[Positive], ...), blocks=(list[list[Number]], ...)),
    saturation=part(saturated_share=float, logit_min=float, logit_max=float, entropy=float),
    amplification=list[Number],
)
STATE = (*State.model_fields, "positions")
"""The state of the model in a row of metrics.jsonl, beside its losses."""
ReferencesFile = part(references=(list[Reference], ...))
RowFile = part(
    **{"arm": (str, ...), "seed": (int, ...), "status": (str, ...), "config": (dict, ...), "environment": (dict, ...)},
    **{"result": dict, "first": dict, "last": dict, "curve": Columns},
)
REFERENCE_KEY = ("corpus", "train", "seed", "training_bytes")
"""The part of an entry of references.json that decides its numbers."""

P = TypeVar("P", bound=Part)


def parsed(path: Path, kind: type[P], value: Any) -> P:
    """`value` as a part of that kind; ValueError in one line, naming the file and the keys, where it is none."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: holds {shown(value)}, expected an object")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        texts = []
        for one in error.errors()[:3]:
            where, message = ".".join(str(key)[:80] for key in one["loc"]), one["msg"].removeprefix("Value error, ")
            said = f"{where} is {shown(one['input'])}: {message[:1].lower()}{message[1:]}" if where else message
            texts.append(f"{where} is missing" if one["type"] == "missing" else said)
        raise ValueError(f"{path}: {'; '.join(texts)}") from None


def validated(path: Path, kind: type[Part], value: Any) -> dict[str, Any]:
    """`value` unchanged, once it is known to be a part of that kind."""
    parsed(path, kind, value)
    return dict(value)


# Runs and studies


@dataclass(frozen=True)
class Run:
    """One arm at one seed; `result` is there when `status` is "finished", `error` when it is "failed" or "diverged".

    first and last: state of the model in the first and the last row of a finished run's metrics.jsonl (STATE).
    """

    arm: str
    seed: int
    status: str
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    result: Result | None = None
    evaluations: tuple[Evaluation, ...] = ()
    first: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """ARM/seed-K."""
        return f"{self.arm}/seed-{self.seed}"

    @property
    def agrees(self) -> bool:
        """False where rows are missing or out of order, or the last one is not what the result says."""
        if self.result is None:
            return True
        every, steps = (self.config.get("train") or {}).get("eval_every"), [row.step for row in self.evaluations]
        wanted = expected_steps(every, self.result.steps) if isinstance(every, int) and every > 0 else steps
        final = repr(self.result.final_val_bpb)  # NaN equals NaN so
        ends = not steps or (steps[-1] == self.result.steps and repr(self.evaluations[-1].val_bpb) == final)
        return steps == wanted and ends

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
    path, rows = folder / SPEC, folder / ROWS
    if not path.is_file():
        raise ValueError(f"folder: {folder} holds no {SPEC}, give the folder of a study (runs/out/NAME)")
    spec = validated(path, StudyFile, load_json(path))
    arms, tuning = spec["arms"], spec.get("tuning") or {}
    named = {"baseline": spec["baseline"], **{f"arms.{name}.against": arm.get("against") for name, arm in arms.items()}}
    for place, arm in named.items():
        if arm is not None and arm not in arms:
            raise ValueError(f"{path}: {place} is {shown(arm)}, none of the arms")
    if tuning.get("rates") and not tuning.get("seeds"):
        raise ValueError(f"{path}: tuning.rates need tuning.seeds")
    pairs = [(arm, seed) for arm in arms for seed in spec["seeds"]]
    if rows.exists():
        kept = {(row["arm"], row["seed"]): files_of_row(row) for row in _rows(rows)}
        runs = [_run(*pair, kept.get(pair, {}), lambda _: rows) for pair in pairs]
    else:
        folders = {pair: layout.run_folder(folder, *pair) for pair in pairs}
        runs = [_run(*pair, files_of_folder(place), place.joinpath) for pair, place in folders.items()]
    return Study(
        folder=folder,
        name=spec["name"],
        description=spec.get("description") or "",
        baseline=spec["baseline"],
        arms=tuple(spec["arms"]),
        seeds=tuple(spec["seeds"]),
        spec=spec,
        runs=tuple(runs),
        references=tuple(Reference.model_validate(entry) for entry in reference_entries(folder / layout.REFERENCES)),
    )


def reference_entries(path: Path) -> list[dict[str, Any]]:
    """The entries of references.json as they are; none where it is missing, ValueError where it is damaged."""
    return list(validated(path, ReferencesFile, load_json(path))["references"]) if path.exists() else []


def files_of_folder(folder: Path) -> dict[str, Any]:
    """The content of the files of a run, by name, of those that are there."""
    files = {name: load_object(folder / name) for name in (CONFIG, ENVIRONMENT, RESULT) if (folder / name).exists()}
    path, finished = folder / METRICS, files.get(RESULT, {}).get("status") == FINISHED
    rows = read_lines(path) if finished else []
    if finished and not rows:
        fault = "holds no evaluation" if path.is_file() else "no such file"
        raise ValueError(f"{path}: {fault}, although the run is recorded as finished")
    return {**files, METRICS: rows}


def files_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the files of the run that a row of a record was made from; columns of null are left out."""
    curve = {name: values for name, values in (row.get("curve") or {}).items() if values is not None}
    points = [dict(zip(curve, values, strict=True)) for values in zip(*curve.values(), strict=True)]
    for point, state in zip((points[:1] + points[-1:]), (row.get("first"), row.get("last")), strict=False):
        point |= state or {}
    return {
        CONFIG: {"study": row.get("study"), "arm": row["arm"], "seed": row["seed"], **row["config"]},
        ENVIRONMENT: row["environment"],
        METRICS: points,
        RESULT: {**(row.get("result") or {}), "status": row["status"], "error": row.get("error")},
    }


def _run(arm: str, seed: int, files: Mapping[str, Any], path: Callable[[str], Path]) -> Run:
    """The run of these files; errors name `path` of a file."""
    if CONFIG not in files:
        return Run(arm, seed, layout.NOT_STARTED)
    config = validated(path(CONFIG), ConfigFile, files[CONFIG])
    if (owner := (config.get("arm"), config.get("seed"))) != (arm, seed):
        arms = f"arm {shown(owner[0])} and seed {shown(owner[1])}"
        raise ValueError(f"{path(CONFIG)}: belongs to {arms}, not to this folder")
    environment = validated(path(ENVIRONMENT), EnvironmentFile, files.get(ENVIRONMENT, {}))
    end = files.get(RESULT, {})
    status = end.get("status") if RESULT in files else layout.UNFINISHED
    if status not in (FINISHED, DIVERGED, FAILED, layout.UNFINISHED):
        raise ValueError(f"{path(RESULT)}: status is {shown(status)}, expected 'finished', 'diverged' or 'failed'")
    if status != FINISHED:
        error = str(end.get("error") or "no reason recorded") if end else None
        return Run(arm, seed, status, config, environment, error)
    result, rows = parsed(path(RESULT), Result, end), files[METRICS]
    evaluations = tuple(parsed(path(METRICS), Evaluation, row) for row in rows)
    states = [{name: row[name] for name in STATE if name in row} for row in ([rows[0], rows[-1]] if rows else [{}, {}])]
    first, last = (validated(path(METRICS), State, state) for state in states)
    return Run(arm, seed, status, config, environment, None, result, evaluations, first, last)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [validated(path, RowFile, row) for row in read_lines(path)]


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
        each = {rate: runs.get(layout.name_at(name, rate), []) for rate in rates}
        if all(of and all(run.status in (FINISHED, DIVERGED) for run in of) for of in each.values()):
            losses = {
                rate: sum(run.result.final_val_bpb if run.result else math.inf for run in of) / len(of)
                for rate, of in each.items()
            }
            if min(losses.values(), default=math.inf) < math.inf:
                chosen[name] = Choice(min(losses, key=lambda rate: losses[rate]), losses)
    return chosen


# Records


def record(study: Study, run: Run) -> dict[str, Any]:
    """One ended run as a row to keep: configuration, environment, results, its validation curve and its state."""
    from plkernel.models import NOT_CAUSAL

    told = {name: getattr(run, name) for name in ("arm", "seed", "status", "error")}
    config = {key: value for key, value in run.config.items() if key not in ("study", "arm", "seed")}
    row: dict[str, Any] = {"study": study.name, **told, "config": config, "environment": run.environment}
    if run.result is None:
        return row
    curve = {key: [getattr(one, key) for one in run.evaluations] for key in Evaluation.model_fields}
    if not any(value is not None for value in curve["excess_bpb"]):
        del curve["excess_bpb"]
    label = {} if run.result.causal else {"label": NOT_CAUSAL}
    result = dict.fromkeys(Result.model_fields) | run.result.model_dump(exclude_unset=True)
    return {**row, **label, "result": result, "curve": curve, "first": run.first, "last": run.last}


def save_rows(study: Study, path: Path) -> None:
    """Write the ended runs of a study to `path`, one JSON object per line."""
    rows = (json.dumps(from_json(to_json(record(study, run), inf_nan_mode="null"))) for run in study.ended)
    atomic_write(path, "".join(f"{row}\n" for row in rows))


def save_record(study: Study, out: Path) -> None:
    """Write a record of a study, and of its search for learning rates, to the folder `out`; `read_study` reads it.

    Raises ValueError when `out` is the study itself.
    """
    if out.resolve() == study.folder.resolve():
        raise ValueError(f"record must be another folder than the study's, got {out}")
    save_json(out / SPEC, study.spec)
    save_rows(study, out / ROWS)
    if study.references:
        save_json(out / layout.REFERENCES, load_json(study.folder / layout.REFERENCES))
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
    folders = {layout.run_folder(study, row["arm"], row["seed"]): files_of_row(row) for row in rows}
    missing = {folder: files for folder, files in folders.items() if not (folder / CONFIG).exists()}
    for folder, files in missing.items():
        refuse_links_of_run(folder)
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / METRICS, "".join(f"{json.dumps(point)}\n" for point in files[METRICS]))
        for name in (CONFIG, ENVIRONMENT, RESULT):  # the result comes last: without it the run counts as unfinished
            save_json(folder / name, files[name])
    below = restore(record / TUNING, study / TUNING) if (record / TUNING / SPEC).exists() else 0
    return len(missing) + below
