"""Checks of the files of a study that a report reads: types, required keys, lists of one length.

Files of earlier versions hold less and those of later ones more: the models below name only what is
used, and nothing is required that a reader can do without.
"""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)

from plkernel.common import files
from plkernel.config.factors import CURVE, RATE
from plkernel.config.schema import (
    OF_ACCURACY,
    Gate,
    Hypothesis,
    RecallTestName,
    explained,
    recall_column,
    steps_of,
)

LARGEST_LOSS = 1e39
"""Bits that no loss in float32, of 3.4e38 nats at most, is above."""


def _known_size(value: float) -> float:
    """`value`; ValueError where it is finite and larger than any loss, as of a damaged file."""
    if math.isfinite(value) and abs(value) > LARGEST_LOSS:
        raise ValueError(f"must lie between -{LARGEST_LOSS:g} and {LARGEST_LOSS:g}")
    return value


OptionalNumber = float | None
"""null stands for NaN and infinity, which JSON cannot write."""
Bits = Annotated[float, AfterValidator(_known_size)]
OptionalBits = Bits | None
Loss = Annotated[Bits, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A loss that every run has: null is read as NaN."""


def _of_equal_length(rows: list[list[Any]]) -> list[list[Any]]:
    """`rows`; ValueError where they differ in length."""
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise ValueError(f"must hold rows of one length, got {lengths[0]} and {lengths[-1]}")
    return rows


AboveZero = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Integers = Annotated[list[int], Field(min_length=1)]
Blocks = Annotated[list[list[OptionalNumber]], AfterValidator(_of_equal_length)]
"""A row of numbers for each block of a model."""
Levels = Annotated[list[OptionalNumber], Field(min_length=1)]
Quantiles = Annotated[list[Levels], AfterValidator(_of_equal_length)]
"""Of the half-lives of each block of a model."""


class Saved(BaseModel):
    """A part of a file: types are not converted, unknown keys are kept."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class SavedColumns(Saved):
    """Lists of one length."""

    @model_validator(mode="after")
    def _of_one_length(self) -> "SavedColumns":
        lengths = {name: len(value) for name, value in self if isinstance(value, list)}
        if len(set(lengths.values())) > 1:
            found = ", ".join(map(str, lengths.values()))
            raise ValueError(f"{' and '.join(lengths)} must be of one length, got {found}")
        return self


class EvaluationRow(Saved, extra="ignore"):
    """Validation bits per byte after `step` steps and `bytes` bytes of training text.

    excess_bpb  bits per byte above the floor of the corpus, where that is known
    """

    step: int
    bytes: int
    val_bpb: Loss
    excess_bpb: OptionalBits = None


class TruncationCurve(SavedColumns):
    """Bits per byte of the same bytes by the number of bytes given before them, ascending.

    The last entry is that of the whole context.

    floor           the best possible, if the source is known
    standard_error  over windows, where rows tell it
    """

    given: Integers
    bpb: list[OptionalBits]
    floor: list[OptionalBits] | None = None
    standard_error: list[OptionalBits] | None = None


class InfluenceCurve(SavedColumns):
    """Change of the prediction in bits when the byte at a lag before it is another.

    information: I(d) of a known law, in bits.
    """

    lags: Integers
    bits: list[OptionalBits]
    information: list[OptionalBits] | None = None


class LossesByPosition(SavedColumns):
    """Bits per byte by the most bytes before, ascending."""

    given: Integers
    bpb: list[OptionalBits]


class BeyondFigures(Saved):
    """Losses in windows that are longer than the context of training."""

    context: Annotated[int, Field(ge=1)]
    positions: LossesByPosition
    reading_on: LossesByPosition


class AccuracyByGroup(SavedColumns):
    """Share of right answers and bits per answer, of so many queries, in groups up to `up_to`."""

    up_to: Integers
    queries: list[Count]
    accuracy: list[float]
    bits: list[OptionalBits] | None = None


class RecallTest(Saved):
    """Share of right answers and bits per answer in sequences of one length and so many pairs."""

    test: RecallTestName
    length: Count
    pairs: Count
    sequences: Count
    accuracy: float
    bits: OptionalBits = None
    distance: AccuracyByGroup
    order: AccuracyByGroup


def _of_each_kind(tests: list[RecallTest]) -> list[RecallTest]:
    """`tests`; ValueError where there are some, but none of one kind."""
    found = {one.test for one in tests}
    missing = [name for name in OF_ACCURACY if name not in found]
    if tests and missing:
        raise ValueError(f"must hold {' and '.join(OF_ACCURACY)}, got no {missing[0]}")
    return tests


class RecallFigures(Saved):
    """The tests of a run on a corpus of recall: none, or some of each kind."""

    tests: Annotated[list[RecallTest], AfterValidator(_of_each_kind)]


def _check_part(value: dict[str, Any], kind: type[Saved], name: str) -> dict[str, Any]:
    """`value`, called `name` in a result; ValueError unless it is empty or a part of that kind."""
    if value:
        try:
            kind.model_validate(value)
        except ValidationError as error:
            raise ValueError(explained(error, kind, "result", name)) from None
    return value


Beyond = Annotated[
    dict[str, Any], AfterValidator(partial(_check_part, kind=BeyondFigures, name="beyond"))
]
Recall = Annotated[
    dict[str, Any], AfterValidator(partial(_check_part, kind=RecallFigures, name="recall"))
]


class RunResult(Saved, extra="ignore"):
    """result.json of a finished run: losses in bits per byte, wall time in seconds.

    final_val_error  standard error of `final_val_bpb` over its windows, where rows tell it
    beyond, recall   as training states them, of `train.beyond` and of a corpus of recall
    """

    steps: int
    bytes: int
    final_val_bpb: Loss
    final_val_error: OptionalBits = None
    best_val_bpb: Loss
    best_step: int | None = None
    test_bpb: Loss
    seconds: Loss
    causal: bool
    truncation: TruncationCurve | None = None
    influence: InfluenceCurve | None = None
    beyond: Beyond | None = None
    recall: Recall | None = None

    def truncation_cost(self, given: int) -> float | None:
        """Loss with so many bytes given, minus that with the whole context; None if not measured.

        NaN where one of the two was not finite.
        """
        curve = self.truncation
        if curve is None or given not in curve.given:
            return None
        truncated = curve.bpb[curve.given.index(given)]
        whole = curve.bpb[-1]
        if truncated is None or whole is None:
            return math.nan
        return truncated - whole

    def recalled(self, metric: str, length: int, distance: int | None = None) -> float | None:
        """Accuracy, or bits, in a test of recall of this length; None if it was not taken.

        metric: one of OF_RECALL. distance: only of queries in the group of distances that ends
        there, or at the length if that is shorter; None without queries. NaN for bits that were not
        finite.
        """
        test, column = recall_column(metric)
        found = self._test_of_recall(test, length)
        if found is None:
            return None
        if distance is None:
            return _number_at(found, column)
        group = _group_up_to(found, distance)
        return None if group is None else _number_at(found["distance"], column, group)

    def answers(self, metric: str, length: int, distance: int | None = None) -> int:
        """The number of answers that `recalled` is a mean of; 0 if the test was not taken."""
        test, _ = recall_column(metric)
        found = self._test_of_recall(test, length)
        if found is None:
            return 0
        if distance is None:
            return int(found["sequences"] * found["pairs"])
        group = _group_up_to(found, distance)
        return 0 if group is None else int(found["distance"]["queries"][group])

    def _test_of_recall(self, test: str, length: int) -> dict[str, Any] | None:
        """The figures of a test of recall in sequences of this length; None if it was not taken."""
        for one in (self.recall or {}).get("tests", ()):
            if (one["test"], one["length"]) == (test, length):
                return dict(one)
        return None

    @property
    def pairs(self) -> int:
        """Pairs of a sequence in a corpus of recall, as persistence has them; 0 on a text."""
        tests = (self.recall or {}).get("tests", ())
        return int(next((one["pairs"] for one in tests if one["test"] == "persistence"), 0))

    def bits_beyond(self, metric: str, given: int) -> float | None:
        """Bits per byte in long windows where up to `given` bytes come before; None if not taken.

        metric: position_bpb, or reading_on. NaN where the number was not finite.
        """
        name = "positions" if metric == "position_bpb" else metric
        columns = (self.beyond or {}).get(name)
        if columns is None or given not in columns["given"]:
            return None
        bits = columns["bpb"][columns["given"].index(given)]
        return math.nan if bits is None else float(bits)


def _number_at(columns: Mapping[str, Any], name: str, group: int | None = None) -> float | None:
    """A number of a test of recall, or of a group of its queries; None where it has none such.

    NaN for one that was not finite.
    """
    if columns.get(name) is None:
        return math.nan if name in columns else None
    number = columns[name] if group is None else columns[name][group]
    return math.nan if number is None else float(number)


def _group_up_to(test: dict[str, Any], distance: int) -> int | None:
    """The place of the group of distances that ends at `distance`, or at the whole length."""
    ends = test["distance"]["up_to"]
    end = min(distance, test["length"])
    return ends.index(end) if end in ends else None


class LzmaLosses(SavedColumns):
    """Bits per byte of LZMA on the validation text after the training text, by window in bytes."""

    windows: Integers
    val_bpb: list[float]


JUDGING = ("context", "batch", "carry", "eval_windows", "test_windows", "final_windows")
"""Options of training that, with the steps, decide which bytes a run reads and is judged by."""


class Reference(SavedColumns):
    """Bits per byte of n-grams on the windows that judge runs, by order in bytes.

    corpus, train  as in the config.json of the runs that they suit
    lzma           of text: what longer memory is worth
    """

    corpus: dict[str, Any]
    train: dict[str, Any]
    orders: Integers
    val_bpb: list[float]
    test_bpb: list[float]
    lzma: LzmaLosses | None = None

    def suits(self, config: Mapping[str, Any]) -> bool:
        """True if a run of that configuration reads, and is judged by, the same windows.

        Where the entry or the run does not tell its steps, they are taken to be the same.
        """
        corpus = config["corpus"]
        if "sha256" not in corpus or not corpus.items() <= self.corpus.items():
            return False
        train = config.get("train") or {}
        counted = self.train.get("steps")
        read = _steps_read(train)
        if counted and read and counted != read:
            return False
        return all((train.get(name) or 0) == (self.train.get(name) or 0) for name in JUDGING)


def _steps_read(train: Mapping[str, Any]) -> int | None:
    """The steps of a run, by its options of training; None where they do not tell."""
    batch = train.get("batch") or 0
    context = train.get("context") or 0
    if not batch * context:
        return train.get("steps")
    return steps_of(train.get("steps"), train.get("bytes"), batch, context) or None


def saved_type(**fields: Any) -> type[Saved]:
    """A type with these fields.

    Each may be missing or null, but for those given as pydantic's (type, ...) or (type, default).
    """
    typed = {}
    for name, kind in fields.items():
        typed[name] = kind if isinstance(kind, tuple) else (kind | None, None)
    return create_model("Part", __base__=Saved, **typed)  # type: ignore[call-overload,no-any-return]


TrainFile = saved_type(
    learning_rate=AboveZero,
    steps=Count,
    bytes=Count,
    batch=Count,
    context=Count,
    eval_windows=Count,
    final_windows=Count,
    test_windows=Count,
    truncation_windows=Count,
)
ArmFile = saved_type(
    against=str,
    learning_rate=AboveZero,
    beta=AboveZero,
    levels=dict[str, str],
    rates=list[AboveZero],
    train=TrainFile,
)


def _check_curve_rates(arms: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """`arms`; ValueError where one of a curve over learning rates has no rate."""
    tuning = info.data.get("tuning")
    if tuning is None or tuning.method != CURVE:
        return arms
    for name, arm in arms.items():
        if RATE in (arm.levels or {}) and arm.learning_rate is None:
            raise ValueError(
                f"arms.{name}.learning_rate must be one of tuning.rates in a study of curves, got"
                " none"
            )
    return arms


StudyFile = saved_type(
    name=(str, ...),
    description=str,
    baseline=(str, ...),
    within=list[str],
    seeds=(Integers, ...),
    report_steps=list[int],
    # Before the arms, whose check reads it.
    tuning=saved_type(method=str, rates=list[AboveZero]),
    arms=(Annotated[dict[str, ArmFile], AfterValidator(_check_curve_rates)], ...),  # type: ignore[valid-type]
    model=dict,
    train=TrainFile,
    hypotheses=(list[Hypothesis], []),
    gates=(list[Gate], []),
)
KernelState = saved_type(lags=(list[AboveZero], ...), blocks=(Blocks, ...))
ModelState = saved_type(half_life_quantiles=Quantiles, kernel=KernelState)
STATE = (*ModelState.model_fields, "saturation", "amplification", "positions")
"""The state of the model in a row of metrics.jsonl, beside its losses."""
ReferencesFile = saved_type(references=(list[Reference], ...))
ConfigFile = saved_type(
    corpus=(saved_type(sha256=str, size=Count, validation=float, test=float), ...),
    model=(
        saved_type(
            parameters=int,
            position_scaling=bool,
            scaling_length=AboveZero,
            config=dict[str, Any],
        ),
        ...,
    ),
    train=saved_type(context=int, batch=Count, steps=Count, bytes=Count),
)
EnvironmentFile = saved_type(
    commit=str, source=str, code=dict[str, dict[str, Any]], earlier=list[dict[str, Any]]
)
RunFile = saved_type(
    arm=(str, ...),
    seed=(int, ...),
    status=(Literal["finished", "diverged", "failed", "unfinished"], ...),
    error=str,
    config=(ConfigFile, ...),
    environment=(EnvironmentFile, ...),
    result=RunResult,
    evaluations=list[EvaluationRow],
    curve=SavedColumns,
    first=ModelState,
    last=ModelState,
)
BegunFile = saved_type(train=TrainFile)
REFERENCE_KEY = ("corpus", "train", "seed", "training_bytes")
"""The part of an entry of references.json that decides its numbers."""


def typed_part(path: Path, kind: type[Saved], value: Any) -> Any:
    """`value` as a part of that kind; ValueError with the file and the keys where it is none."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: must hold an object, got {files.shown(value)}")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise ValueError(f"{path}: {explained(error, kind)}") from None


def validated(path: Path, kind: type[Saved], value: Any) -> dict[str, Any]:
    """`value` unchanged, once it is known to be a part of that kind."""
    typed_part(path, kind, value)
    return dict(value)


def begun_rate(path: Path) -> float | None:
    """The learning rate in the config.json of a run; None without one, ValueError if damaged."""
    config = typed_part(path, BegunFile, files.load_json(path))
    return None if config.train is None else config.train.learning_rate


def reference_entries(path: Path) -> list[dict[str, Any]]:
    """The entries of references.json as they are, none if it is missing; ValueError if damaged."""
    if not path.exists():
        return []
    content = validated(path, ReferencesFile, files.load_json(path))
    return list(content["references"])
