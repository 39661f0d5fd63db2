"""A study and its runs, read from its folder or from a record of it, and written as a record.

Files of earlier versions hold less and those of later ones more: the models below name only what a
report relies on, and nothing is required that a reader can do without.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import from_json, to_json

from plkernel.common import files
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
    TUNING,
)
from plkernel.config.schema import Gate, Hypothesis, explained

Number = float | None
"""null stands for NaN and infinity, which JSON cannot write."""
Loss = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Integers = Annotated[list[int], Field(min_length=1)]


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
    """Validation bits per byte after `step` steps and `bytes` bytes read; `excess_bpb` above the
    corpus's floor.
    """

    step: int
    bytes: int
    val_bpb: Loss
    excess_bpb: Number = None


class Truncation(Columns):
    """Bits per byte of the same bytes when only the last 1, 2, 4 .. before them are given, the
    whole context last.
    """

    given: Integers
    bpb: list[Number]
    floor: list[Number] | None = None


class Influence(Columns):
    """Change of the prediction in bits when the byte so many before it is another; I(d) of a known
    law, in bits.
    """

    lags: Integers
    bits: list[Number]
    information: list[Number] | None = None


class Result(Part, extra="ignore"):
    """result.json of a finished run: losses in bits per byte, wall time in seconds.

    final_val_error: standard error of `final_val_bpb`, where that is of windows or weights of its
    own.
    """

    steps: int
    bytes: int
    final_val_bpb: Loss
    final_val_error: Number = None
    best_val_bpb: Loss
    best_step: int | None = None
    test_bpb: Loss
    seconds: Loss
    causal: bool
    truncation: Truncation | None = None
    influence: Influence | None = None

    def truncation_cost(self, given: int) -> float | None:
        """Bits per byte lost where only so many bytes are given, against the whole context; None if
        not measured.
        """
        if self.truncation is None or given not in self.truncation.given:
            return None
        some, whole = (
            self.truncation.bpb[self.truncation.given.index(given)],
            self.truncation.bpb[-1],
        )
        return math.nan if some is None or whole is None else some - whole


class Compressed(Columns):
    """Losses of LZMA on the validation text after the training text, in bits per byte, by its
    `windows` in bytes.
    """

    windows: Integers
    val_bpb: list[float]


class Reference(Columns):
    """Losses of n-grams, in bits per byte on the windows that judge runs, by their `orders` in
    bytes.

    corpus and train are as in the config.json of the runs that they suit. lzma: of text, what
    longer memory is worth.
    """

    corpus: dict[str, Any]
    train: dict[str, Any]
    orders: Integers
    val_bpb: list[float]
    test_bpb: list[float]
    lzma: Compressed | None = None

    def suits(self, config: Mapping[str, Any]) -> bool:
        """True if a run of that configuration reads, and is judged by, the same windows."""
        corpus, train = config["corpus"], config.get("train") or {}
        read = "sha256" in corpus and corpus.items() <= self.corpus.items()
        same = ("context", "batch", "eval_windows", "test_windows", "final_windows")
        return read and all((train.get(name) or 0) == (self.train.get(name) or 0) for name in same)


def part(**fields: Any) -> type[Part]:
    """A part with these fields: each may be missing or null, but for those given as pydantic's
    (type, ...).
    """
    typed = {
        name: kind if isinstance(kind, tuple) else (kind | None, None)
        for name, kind in fields.items()
    }
    return create_model("Part", __base__=Part, **typed)  # type: ignore[call-overload,no-any-return]


ArmFile = part(
    against=str, learning_rate=Positive, beta=Positive, levels=dict[str, str], rates=list[Positive]
)
StudyFile = part(
    name=(str, ...),
    description=str,
    baseline=(str, ...),
    within=list[str],
    seeds=(Integers, ...),
    report_steps=list[int],
    arms=(dict[str, ArmFile], ...),  # type: ignore[valid-type]
    model=dict,
    train=part(learning_rate=Positive),
    tuning=part(rates=list[Positive]),
    hypotheses=(list[Hypothesis], []),
    gates=(list[Gate], []),
)
KERNEL = part(lags=(list[Positive], ...), blocks=(list[list[Number]], ...))
State = part(half_life_quantiles=list[list[Number]], kernel=KERNEL)
STATE = (*State.model_fields, "saturation", "amplification", "positions")
"""The state of the model in a row of metrics.jsonl, beside its losses."""
ReferencesFile = part(references=(list[Reference], ...))
RunFile = part(
    arm=(str, ...),
    seed=(int, ...),
    status=(Literal["finished", "diverged", "failed", "unfinished"], ...),
    error=str,
    config=(
        part(
            corpus=(part(sha256=str), ...),
            model=(part(parameters=int), ...),
            train=part(context=int),
        ),
        ...,
    ),
    environment=(part(commit=str), ...),
    result=Result,
    evaluations=list[Evaluation],
    curve=Columns,
    first=State,
    last=State,
)
REFERENCE_KEY = ("corpus", "train", "seed", "training_bytes")
"""The part of an entry of references.json that decides its numbers."""


def parsed(path: Path, kind: type[Part], value: Any) -> Any:
    """`value` as a part of that kind; ValueError in one line, naming the file and the keys, where
    it is none.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: holds {files.shown(value)}, expected an object")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise ValueError(f"{path}: {explained(error, kind)}") from None


def validated(path: Path, kind: type[Part], value: Any) -> dict[str, Any]:
    """`value` unchanged, once it is known to be a part of that kind."""
    parsed(path, kind, value)
    return dict(value)


# Runs and studies


@dataclass(frozen=True)
class Run:
    """One arm at one seed; `result` is there when `status` is "finished", `error` when it is
    "failed" or "diverged".

    first and last: state of the model in the first and the last row of a finished run's
    metrics.jsonl (STATE).
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
        """False where rows are missing or out of order, or the last one is not what the result
        says.
        """
        if self.result is None:
            return True
        train, steps = self.config.get("train") or {}, [row.step for row in self.evaluations]
        every = train.get("eval_every")
        last, whole = self.result.steps, True
        if isinstance(every, int) and every > 0:
            whole = len(steps) - last // every in (1, 2) and steps == sorted(
                {*range(0, last + 1, every), last}
            )
        ends = [
            (row.step, repr(row.val_bpb)) for row in self.evaluations[-1:]
        ]  # repr: NaN equals NaN
        other = bool(
            train.get("final_windows") or train.get("average")
        )  # the result is of other windows or weights
        return whole and (other or ends in ([], [(last, repr(self.result.final_val_bpb))]))


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
        """The arm that `arm` is compared with; None for a baseline, of the study or of a block of
        `within`.
        """
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
        """Validation bits per byte by bytes of training text read, of every finished run of an arm,
        by seed.
        """
        return {
            run.seed: {row.bytes: row.val_bpb for row in run.evaluations}
            for run in self.finished(arm)
        }

    def reference(self, arm: str) -> Reference | None:
        """The n-grams that suit the finished runs of `arm`; None where none were counted."""
        runs = self.finished(arm)
        return next(
            (one for one in self.references if runs and all(one.suits(run.config) for run in runs)),
            None,
        )


def read_study(folder: Path | str) -> Study:
    """Read spec.json and every run below it. Raises ValueError naming the file that is missing or
    damaged.
    """
    folder = Path(folder)
    path, rows = folder / SPEC, folder / ROWS
    if not path.is_file():
        hint = ": it is a run, which plkernel.inspect shows" if (folder / CONFIG).is_file() else ""
        raise ValueError(
            f"folder: {folder} holds no {SPEC}{hint}; give the folder of a study (runs/out/NAME)"
        )
    spec = validated(path, StudyFile, files.load_json(path))
    against = {f"arms.{name}.against": arm.get("against") for name, arm in spec["arms"].items()}
    for place, arm in {"baseline": spec["baseline"], **against}.items():
        if arm is not None and arm not in spec["arms"]:
            raise ValueError(f"{path}: {place} is {files.shown(arm)}, none of the arms")
    recorded = [_run(rows, _of_record(row)) for row in files.read_lines(rows, whole=True)]
    kept, runs = {(run.arm, run.seed): run for run in recorded}, list[Run]()
    if len(kept) < len(recorded):
        raise ValueError(f"{rows}: holds two rows of one run")
    for pair in [(arm, seed) for arm in spec["arms"] for seed in spec["seeds"]]:
        own = files.run_folder(folder, *pair)
        if not rows.exists() and (own / CONFIG).exists():
            kept[pair] = run = _run(own, _of_folder(own))
            if (run.arm, run.seed) != pair:
                raise ValueError(
                    f"{own / CONFIG}: belongs to arm {files.shown(run.arm)} and seed {run.seed}"
                )
        runs.append(kept.get(pair, Run(*pair, files.NOT_STARTED)))
    counted = tuple(map(Reference.model_validate, reference_entries(folder / files.REFERENCES)))
    told = (
        spec["name"],
        spec.get("description") or "",
        spec["baseline"],
        tuple(spec["arms"]),
        tuple(spec["seeds"]),
    )
    return Study(folder, *told, spec, tuple(runs), counted)


def reference_entries(path: Path) -> list[dict[str, Any]]:
    """The entries of references.json as they are; none where it is missing, ValueError where it is
    damaged.
    """
    return (
        list(validated(path, ReferencesFile, files.load_json(path))["references"])
        if path.exists()
        else []
    )


def _of_folder(folder: Path) -> dict[str, Any]:
    """The files of a run as a row of a record, with its evaluations as in metrics.jsonl."""
    config, environment, end = (
        files.load_object(folder / name) if (folder / name).exists() else {}
        for name in (CONFIG, ENVIRONMENT, RESULT)
    )
    config.pop("study", None)
    row = {
        "arm": config.pop("arm", None),
        "seed": config.pop("seed", None),
        "environment": environment,
    }
    row |= {
        "status": end.pop("status", files.UNFINISHED),
        "error": end.pop("error", None),
        "config": config,
    }
    if row["status"] == FINISHED:
        rows = files.read_lines(folder / METRICS)
        if not rows:
            raise ValueError(
                f"{folder / METRICS}: holds no evaluation, although the run is recorded as finished"
            )
        first, last = (
            {name: at[name] for name in STATE if name in at} for at in (rows[0], rows[-1])
        )
        row |= {"result": end, "evaluations": rows, "first": first, "last": last}
    return row


def _of_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a record with its curve as evaluations; columns of null are left out."""
    curve = row["curve"] if isinstance(row.get("curve"), dict) else {}
    columns = {name: values for name, values in curve.items() if isinstance(values, list)}
    points = zip(*columns.values(), strict=False)  # lists of unequal length are refused later
    return {**row, "evaluations": [dict(zip(columns, values, strict=True)) for values in points]}


def _run(path: Path, row: Mapping[str, Any]) -> Run:
    one = parsed(path, RunFile, row)
    error = (one.error or "no reason recorded") if one.status in (DIVERGED, FAILED) else None
    run = Run(one.arm, one.seed, one.status, row["config"], row["environment"], error)
    if one.status != FINISHED:
        return run
    if one.result is None:
        raise ValueError(f"{path}: holds no result, although the run is recorded as finished")
    first, last = row.get("first") or {}, row.get("last") or {}
    return replace(
        run, result=one.result, evaluations=tuple(one.evaluations), first=first, last=last
    )


# The search for learning rates


@dataclass(frozen=True)
class Choice:
    """The rate given to an arm: `losses` are mean validation bits per byte by rate, infinite if a
    run diverged.

    They are means over `seeds` runs.
    """

    rate: float
    losses: Mapping[float, float]
    seeds: int

    @property
    def at_edge(self) -> bool:
        """True if a rate beyond the grid might be better still."""
        return self.rate in (min(self.losses), max(self.losses))

    def may_be(self, rate: float, noise: float) -> bool:
        """True if `rate` was tried and loses no more than noise / sqrt(seeds) against the chosen
        one.
        """
        return self.losses.get(rate, math.inf) <= self.losses[self.rate] + noise / math.sqrt(
            self.seeds
        )

    def apart(self, other: "Choice", noise: float) -> bool:
        """True if the two rates differ, although one of them may be right for both."""
        return other.rate != self.rate and (
            self.may_be(other.rate, noise) or other.may_be(self.rate, noise)
        )

    def rivals(self, noise: float) -> list[float]:
        """Rates for which `may_be` holds, without the neighbours of the chosen one."""
        order = sorted(self.losses)
        at = order.index(self.rate)
        return [
            rate
            for place, rate in enumerate(order)
            if abs(place - at) > 1 and self.may_be(rate, noise)
        ]


def choices(grids: Mapping[str, Sequence[float]], out: Path) -> dict[str, Choice]:
    """The choice of each arm whose search has ended; `grids` are rates by arm, `out` is the folder
    of the study.
    """
    if not any(grids.values()) or not (out / TUNING / SPEC).exists():
        return {}
    runs, chosen = read_study(out / TUNING).runs, {}
    for name, rates in grids.items():
        each = {
            rate: [run for run in runs if run.arm == files.name_at(name, rate)] for rate in rates
        }
        if all(
            of and all(run.status in (FINISHED, DIVERGED) for run in of) for of in each.values()
        ):
            losses = {
                rate: sum(run.result.final_val_bpb if run.result else math.inf for run in of)
                / len(of)
                for rate, of in each.items()
            }
            if min(losses.values(), default=math.inf) < math.inf:
                chosen[name] = Choice(
                    min(losses, key=lambda rate: losses[rate]), losses, min(map(len, each.values()))
                )
    return chosen


# Records


def record(study: Study, run: Run) -> dict[str, Any]:
    """One ended run as a row to keep: configuration, environment, results, its validation curve and
    its state.
    """
    told = {
        name: getattr(run, name)
        for name in ("arm", "seed", "status", "error", "config", "environment")
    }
    if run.result is None:
        return {"study": study.name, **told}
    curve = {key: [getattr(one, key) for one in run.evaluations] for key in Evaluation.model_fields}
    if not any(value is not None for value in curve["excess_bpb"]):
        del curve["excess_bpb"]
    result = dict.fromkeys(Result.model_fields) | run.result.model_dump(exclude_unset=True)
    return {
        "study": study.name,
        **told,
        "result": result,
        "curve": curve,
        "first": run.first,
        "last": run.last,
    }


def save_record(study: Study, out: Path) -> None:
    """Write a record of a study, and of its search for learning rates, to the folder `out`;
    `read_study` reads it.

    Raises ValueError when `out` is the study itself.
    """
    if out.resolve() == study.folder.resolve():
        raise ValueError(f"record must be another folder than the study's, got {out}")
    kept = out / SPEC
    if kept.exists() and (
        not (out / ROWS).exists() or files.load_object(kept).get("name") != study.name
    ):
        raise ValueError(f"record: {out} holds another study, give another folder")
    files.save_json(kept, study.spec)
    rows = (
        json.dumps(from_json(to_json(record(study, run), inf_nan_mode="null")))
        for run in study.ended
    )
    files.atomic_write(out / ROWS, "".join(f"{row}\n" for row in rows))
    for path in (study.folder / name for name in (files.REFERENCES, files.REGISTERED)):
        if path.exists():
            files.save_json(out / path.name, files.load_json(path))
    if (study.folder / TUNING / SPEC).exists():
        save_record(read_study(study.folder / TUNING), out / TUNING)


def restore(record: Path, study: Path) -> int:
    """Write the folder of every run in `record` that `study` lacks, for a study to go on from;
    return how many.

    They have no checkpoint and no curves for TensorBoard. Raises ValueError where a row is damaged
    or there is none.
    """
    path, missing = record / ROWS, list[dict[str, Any]]()
    for row in map(_of_record, files.read_lines(path, whole=True)):
        run = _run(path, row)
        if (
            not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", run.arm) or run.seed < 0
        ):  # it might lead elsewhere
            raise ValueError(f"{path}: {files.shown(run.arm)} and {run.seed} are no arm and seed")
        if run.status == FINISHED and not run.evaluations:
            raise ValueError(f"{path}: {run.name} is recorded as finished, and has no curve")
        folder = files.run_folder(study, run.arm, run.seed)
        begun = (folder / CONFIG).exists() and (
            (folder / RESULT).exists() or (folder / files.CHECKPOINT).exists()
        )
        missing += [] if begun else [row]
    if not path.is_file():
        raise ValueError(
            f"record: {record} holds no {ROWS}, give a folder that plkernel.report --record wrote"
        )
    for name in (files.REFERENCES, files.REGISTERED):
        if (record / name).exists() and not (study / name).exists():
            files.save_json(study / name, files.load_json(record / name))
    for row in missing:
        folder, points = files.run_folder(study, row["arm"], row["seed"]), row["evaluations"]
        for point, state in zip(
            points[:1] + points[-1:], (row.get("first"), row.get("last")), strict=False
        ):
            point |= state or {}
        files.refuse_links(folder.parent, folder, *folder.glob("*"))
        folder.mkdir(parents=True, exist_ok=True)
        files.atomic_write(folder / METRICS, "".join(f"{json.dumps(point)}\n" for point in points))
        files.save_json(
            folder / CONFIG,
            {name: row.get(name) for name in ("study", "arm", "seed")} | row["config"],
        )
        files.save_json(folder / ENVIRONMENT, row["environment"])
        files.save_json(
            folder / RESULT,
            (row.get("result") or {}) | {name: row.get(name) for name in ("status", "error")},
        )
    return len(missing) + (
        restore(record / TUNING, study / TUNING) if (record / TUNING / SPEC).exists() else 0
    )
