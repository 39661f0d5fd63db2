"""The files of a study as types: all that a report relies on; what is not named here may be anything, or missing.

Files of earlier versions hold less and those of later ones more, so nothing is required that a reader can do without.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from plkernel.common.files import shown

MOST_ERRORS = 3

Number = float | None
"""NaN and infinity are null in JSON."""
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """A part of a file: types are not converted, and unknown keys are kept."""

    model_config = ConfigDict(extra="allow", strict=True)


class ArmPart(Part):
    against: str | None = None
    levels: dict[str, str] | None = None
    rates: list[Positive] | None = None
    learning_rate: Positive | None = None
    beta: Positive | None = None
    target: str | None = None
    placement: str | None = None
    projection: str | None = None


class SplitPart(Part):
    validation: float = 0.0
    test: float = 0.0


class TrainPart(Part):
    learning_rate: Positive | None = None


class TuningPart(Part):
    rates: list[Positive] | None = None
    seeds: list[int] | None = None
    steps: int | None = None

    @model_validator(mode="after")
    def _whole(self) -> "TuningPart":
        if self.rates and not self.seeds:
            raise ValueError("rates need seeds")
        return self


class StudyFile(Part):
    """spec.json."""

    name: str
    description: str | None = None
    baseline: str
    within: list[str] | None = None
    seeds: Annotated[list[int], Field(min_length=1)]
    report_steps: list[int] | None = None
    arms: dict[str, ArmPart]
    model: dict[str, Any] | None = None
    train: TrainPart | None = None
    corpus: SplitPart | None = None
    tuning: TuningPart | None = None

    @model_validator(mode="after")
    def _whole(self) -> "StudyFile":
        for name, arm in self.arms.items():
            if arm.against and arm.against not in self.arms:
                raise ValueError(f"arms.{name}.against is {shown(arm.against)}, none of the arms")
        return self


class RegisteredFile(Part):
    """registered.json: what a study was to decide, and the fingerprint of all the rest of the file."""

    spec: StudyFile
    rules: list[str]
    runs_before: Count
    plkernel: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    sha256: str


class CorpusPart(Part):
    size: int | None = None
    sha256: str | None = None


class PatchingPart(Part):
    size: Annotated[int, Field(ge=1)] = 1
    mode: str | None = None


class ModelPart(Part):
    kind: str | None = None
    gain: str | None = None
    parameters: int | None = None
    patching: PatchingPart | None = None


class ProtocolPart(Part):
    context: int | None = None


class ConfigFile(Part):
    """config.json of a run; what a record keeps of it has no arm and seed."""

    corpus: CorpusPart
    model: ModelPart
    train: ProtocolPart | None = None


class HardwarePart(Part):
    cpu: str | None = None
    gpu: str | None = None


class EnvironmentFile(Part):
    """environment.json."""

    commit: str | None = None
    threads: Count | None = None
    hardware: HardwarePart | None = None


class KernelPart(Part):
    lags: list[Positive]
    blocks: list[list[Number]]


class SaturationPart(Part):
    saturated_share: Number
    logit_min: Number
    logit_max: Number
    entropy: Number


class StatePart(Part):
    """What the first and the last row of metrics.jsonl say beside the losses."""

    half_life_quantiles: list[list[Number]] | None = None
    kernel: KernelPart | None = None
    saturation: SaturationPart | None = None
    amplification: list[Number] | None = None


class CurvePart(Part):
    step: list[int]
    bytes: list[int]
    val_bpb: list[Number]
    excess_bpb: list[Number] | None = None

    @model_validator(mode="after")
    def _whole(self) -> "CurvePart":
        if not len(self.step) == len(self.bytes) == len(self.val_bpb) == len(self.excess_bpb or self.step):
            raise ValueError("step, bytes, val_bpb and excess_bpb must be of one length")
        return self


class EvaluationPart(Part):
    """A row of metrics.jsonl, but for what it says of the model."""

    step: int
    bytes: int
    val_bpb: Number
    excess_bpb: Number = None


class TruncationPart(Part):
    """Bits per byte of the same bytes when only the last 1, 2, 4 .. before them are given, the whole context last."""

    given: Annotated[list[int], Field(min_length=1, validation_alias=AliasChoices("given", "bytes"))]
    bpb: list[Number]

    @model_validator(mode="after")
    def _whole(self) -> "TruncationPart":
        if len(self.given) != len(self.bpb):
            raise ValueError("given and bpb must be of one length")
        return self


class InfluencePart(Part):
    """Bits by which the prediction moves when the byte so many before it is another; I(d) of a known law, in bits."""

    lags: Annotated[list[int], Field(min_length=1)]
    bits: list[Number]
    information: list[Number] | None = None

    @model_validator(mode="after")
    def _whole(self) -> "InfluencePart":
        if any(len(one) != len(self.lags) for one in (self.bits, self.information or self.bits)):
            raise ValueError("lags, bits and information must be of one length")
        return self


class ResultFile(Part):
    """result.json of a finished run."""

    steps: int
    bytes: int
    final_val_bpb: Number
    best_val_bpb: Number
    best_step: int | None = None
    test_bpb: Number
    seconds: Number
    causal: bool
    truncation: TruncationPart | None = None
    influence: InfluencePart | None = None


class RowFile(Part):
    """A row of rows.jsonl: a run that has ended."""

    arm: str
    seed: int
    status: str
    config: ConfigFile
    environment: EnvironmentFile
    result: dict[str, Any] | None = None
    curve: CurvePart | None = None
    first: StatePart | None = None
    last: StatePart | None = None


class ReferencePart(Part):
    """What n-grams reach, by order."""

    corpus: dict[str, Any]
    train: dict[str, Any]
    training_windows: str
    training_bytes: Count
    orders: Annotated[list[Count], Field(min_length=1)]
    val_bpb: list[float]
    test_bpb: list[float]
    val_error: list[Number]
    test_error: list[Number]

    @model_validator(mode="after")
    def _whole(self) -> "ReferencePart":
        lists = (self.val_bpb, self.test_bpb, self.val_error, self.test_error)
        if any(len(one) != len(self.orders) for one in lists):
            raise ValueError("val_bpb, test_bpb, val_error and test_error must be as long as orders")
        return self


class ReferencesFile(Part):
    """references.json."""

    references: list[ReferencePart]


def points_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluations of a row of rows.jsonl, one after another; what none of them has is left out."""
    curve = {name: values for name, values in (row.get("curve") or {}).items() if values is not None}
    return [dict(zip(curve, values, strict=True)) for values in zip(*curve.values(), strict=True)]


def validated(path: Path, part: type[Part], value: Any) -> dict[str, Any]:
    """`value` as it is; ValueError in one line, naming the file and the keys, where it is not such a part."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: holds {shown(value)}, expected an object")
    try:
        part.model_validate(value)
    except ValidationError as error:
        found = "; ".join(map(_words, error.errors()[:MOST_ERRORS]))
        raise ValueError(f"{path}: {found}") from None
    return dict(value)


def _words(error: Any) -> str:
    where = ".".join(str(part)[:80] for part in error["loc"])
    if error["type"] == "missing":
        return f"{where} is missing"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where} is {shown(error['input'])}: {message[:1].lower()}{message[1:]}" if where else message
