"""Experiment specs: frozen, typed, read from TOML; an unknown key is refused with the nearest valid name."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from plkernel.analysis.nodes.moments import output_std
from plkernel.run import build
from plkernel.spec.arm import Arm, with_file_values
from plkernel.spec.factors import MOST_ARMS, deep_merge, expanded
from plkernel.spec.model import ModelSpec, PatchingSpec, Positive, PositiveNumber, Section
from plkernel.spec.train import Device, TrainSpec
from plkernel.tools import cli
from plkernel.tools.plain import parse_toml, read_bytes, shown
from plkernel.tools.storage import load_object

__all__ = [
    "LARGEST_SEED",
    "Arm",
    "CorpusSpec",
    "Device",
    "ModelSpec",
    "PatchingSpec",
    "Section",
    "Spec",
    "TrainSpec",
    "TuningSpec",
    "load_spec",
    "parse_spec",
]

MOST_ERRORS = 8
LARGEST_SEED = 2**63 - 1
FOLDER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
LONGEST_NAME = 255
"""Bytes of a file's name, on every common file system."""
BASELINE = "baseline"  # as the value of an arm's `match`: the study's baseline, whatever its name
RESERVED = ("report", "tuning", "spec.json")  # they stand beside the arms in the folder of a study
Fraction = Annotated[float, Field(gt=0, lt=0.5)]


class CorpusSpec(Section):
    """Which bytes, and how they are divided into train, validation and test blocks."""

    name: str = "stdlib"
    """stdlib, a path, hf:NAME[:CONFIG[:SPLIT]], wiki-pt or fineweb."""
    max_bytes: Positive | None = None
    """Take no more than this many bytes."""
    separator: str = "\n"
    """The byte between documents."""
    column: str | None = None
    """The text column of a table."""
    validation: Fraction = 0.05
    """Share of the corpus that is held out for validation."""
    test: Fraction = 0.05
    """Share of the corpus that is held out for the test figure."""
    follow_links: bool = False
    """Read symbolic links that lead out of a folder too, and linked folders."""

    @property
    def reading(self) -> dict[str, Any]:
        """What `corpora.load` takes beside the name."""
        return self.model_dump(include={"max_bytes", "separator", "column", "follow_links"})


class TuningSpec(Section):
    """The search for the learning rate of every arm that gives none: the same budget for each."""

    rates: tuple[PositiveNumber, ...] = ()
    """Peak learning rates to try; none is no search."""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, le=LARGEST_SEED)], ...], Field(min_length=1)] = (100,)
    """Seeds of the search, none of those that are compared."""
    steps: Positive | None = None
    """Steps of a run of the search; those of [train] if left out."""

    @model_validator(mode="after")
    def _consistent(self) -> "TuningSpec":
        if len(self.rates) == 1 or len(set(self.rates)) != len(self.rates):
            raise ValueError(f"tuning.rates must be two or more, all different, got {list(self.rates)}")
        for name in () if self.rates else ("seeds", "steps"):
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                raise ValueError(f"tuning.{name} {shown(value)} needs a search: give tuning.rates, or leave it out")
        return self


class Spec(Section):
    """A study: conditions x seeds on one corpus under one protocol."""

    name: str = Field(pattern=f"^{FOLDER_NAME}$")
    """Names the output folder, runs/out/NAME."""
    description: str = ""
    """One sentence for the report."""
    baseline: str
    """The arm that the others are compared with; with factors, if left out, the first level of each."""
    within: tuple[str, ...] = ()
    """Factors within whose levels arms are compared, each with the first levels of the other factors."""
    factors: dict[str, Any] = Field(default_factory=dict)
    """Factors and their levels: every combination is an arm (plkernel/spec/factors.py)."""
    seeds: tuple[Annotated[int, Field(ge=0, le=LARGEST_SEED)], ...] = (0,)
    """Runs of one seed share base weights and data order across arms."""
    report_steps: tuple[Positive, ...] = ()
    """Steps whose validation bits per byte the report names."""
    corpus: CorpusSpec = CorpusSpec()
    model: ModelSpec = ModelSpec()
    train: TrainSpec
    tuning: TuningSpec = TuningSpec()
    arms: dict[str, Arm]
    """The conditions, by name."""

    @model_validator(mode="after")
    def _consistent(self) -> "Spec":
        if len(self.arms) > MOST_ARMS:
            raise ValueError(f"arms: a study has {MOST_ARMS:,} at most, got {len(self.arms):,}")
        if self.baseline not in self.arms:
            raise ValueError(f"baseline {self.baseline!r} is not an arm; {cli.nearest(self.baseline, self.arms)}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must be different numbers, at least one, got {list(self.seeds)}")
        shared = sorted(set(self.seeds) & set(self.tuning.seeds))
        if self.tuning.rates and shared:
            raise ValueError(f"tuning.seeds must be none of the seeds that are compared, got {shared} in both")
        for name, arm in self.arms.items():
            if not re.fullmatch(FOLDER_NAME, name) or name in RESERVED:
                raise ValueError(
                    f"arm name {name!r} must start with a letter or digit, go on with letters, digits, '-', '_' "
                    f"and '.', and be none of {', '.join(RESERVED)}"
                )
            if len(self.folder_of(name)) > LONGEST_NAME:
                raise ValueError(
                    f"arm name {name[:20]}... has {len(name)} letters, too many for the name of a folder: "
                    f"{LONGEST_NAME - len(self.folder_of(name)) + len(name)} at most"
                )
            if arm.against is not None and (arm.against == name or arm.against not in self.arms):
                raise ValueError(
                    f"arms.{name}: against {arm.against!r} is not another arm; {cli.nearest(arm.against, self.arms)}"
                )
            if arm.rates is not None and len(set(arm.rates)) != len(self.tuning.rates):
                raise ValueError(
                    f"arms.{name}: rates must be as many as tuning.rates, {len(self.tuning.rates)} different ones, "
                    f"so that every arm has the same search, got {list(arm.rates)}"
                )
            with _blaming(name):
                model, _ = self.model_of(name), self.corpus_of(name)
                if self.train.dropout and model.kind == "ssm":
                    raise ValueError(
                        f"train.dropout belongs to model kinds rwkv5 and rwkv6, got {self.train.dropout} with kind "
                        "'ssm': leave it out"
                    )
        return self

    def arm(self, name: str) -> Arm:
        """The arm called `name`; ValueError with the nearest valid name otherwise."""
        if name not in self.arms:
            raise ValueError(f"arm {name!r} is not in spec {self.name!r}; {cli.nearest(name, self.arms)}")
        return self.arms[name]

    def model_of(self, arm: str) -> ModelSpec:
        """The model of that arm: [model] with what the arm changes in it."""
        return _with(self.model, self.arm(arm).model, "model")

    def rates_of(self, arm: str) -> tuple[float, ...]:
        """The learning rates that are tried for that arm."""
        return self.arm(arm).rates or self.tuning.rates

    def folder_of(self, arm: str) -> str:
        """The longest name among the folders of the arm: its own, and of the search those of the arm at a rate."""
        rates = self.rates_of(arm) if self.arm(arm).learning_rate is None else ()
        return max((arm, *(name_at(arm, rate) for rate in rates)), key=len)

    def corpus_of(self, arm: str) -> CorpusSpec:
        """The corpus of that arm: [corpus] with what the arm changes in it."""
        return _with(self.corpus, self.arm(arm).corpus, "corpus")

    def settled(self) -> "Spec":
        """The spec with every `node_file` read and every `match` turned into the number it stands for.

        Both are done again whenever a spec is parsed, so flags that change the matched arm count.
        """
        read, arms = {}, {}
        for name, arm in self.arms.items():
            with _blaming(name):
                read[name] = with_file_values(arm).resolved(self.model_of(name))
        for name, arm in read.items():
            with _blaming(name):
                matched = arm.match is not None and self.model_of(name).kind == "ssm"
                arms[name] = self._matched(arm, read) if matched else arm
                build.check(self.model_of(name), arms[name], self.train)
        return self.model_copy(update={"arms": arms})

    def _matched(self, arm: Arm, arms: dict[str, Arm]) -> Arm:
        """`arm` with the output standard deviation of the arm it names."""
        against = arm.against or self.baseline
        if arm.match == BASELINE != against and BASELINE in arms:
            raise ValueError("match 'baseline' may mean the arm of that name or the one compared with: rename the arm")
        other = against if arm.match == BASELINE else str(arm.match)
        if other not in arms:
            raise ValueError(f"match {other!r} is not an arm; {cli.nearest(other, [*arms, BASELINE])}")
        if arms[other].match is not None:
            raise ValueError(f"match {other!r} is itself matched: name an arm that is not")
        return arm.model_copy(update={"output_std": output_std(arms[other].nodes(self.model_of(other)))})


def name_at(arm: str, rate: float) -> str:
    """The name, in the search for learning rates, of an arm at a rate."""
    return f"{arm}_rate-{rate:g}"


S = TypeVar("S", bound=Section)


def _with(section: S, changes: Mapping[str, Any] | None, name: str) -> S:
    """`section`, called `name`, with some of its options changed and checked as a whole."""
    if not changes:
        return section
    try:
        return type(section).model_validate(deep_merge(section.model_dump(), changes))
    except ValidationError as error:
        raise ValueError(_explained(error, name)) from None


def load_spec(path: Path) -> Spec:
    """Read a TOML spec (or the spec.json of a study); ValueError in one line names the file, the key and the remedy."""
    if path.suffix == ".json":
        return parse_spec(load_object(path), str(path))
    spec = parse_spec(parse_toml(read_bytes(path), f"spec {path}"), str(path))
    for name, arm in spec.arms.items():  # in the spec.json of a study the learning rate is the one that was found
        if arm.rates is not None and arm.learning_rate is not None:
            raise ValueError(
                f"spec {path}: arms.{name}: rates {list(arm.rates)} are not tried beside a learning_rate, "
                f"got {arm.learning_rate:g}: leave out one of them"
            )
    return spec


def parse_spec(values: Mapping[str, Any], origin: str) -> Spec:
    """A spec from plain values, its files read and its matches computed; `origin` names it in the error."""
    try:
        return Spec.model_validate(expanded(dict(values))).settled()
    except ValidationError as error:
        raise ValueError(f"spec {origin}: {_explained(error)}") from None
    except ValueError as error:
        raise ValueError(f"spec {origin}: {error}") from None


@contextmanager
def _blaming(arm: str) -> Iterator[None]:
    """Head every ValueError by the name of the arm."""
    try:
        yield
    except ValidationError as error:
        raise ValueError(f"arms.{arm}: {_explained(error)}") from None
    except ValueError as error:
        raise ValueError(f"arms.{arm}: {error}") from None


def _explained(error: ValidationError, *within: str) -> str:
    """The first few of pydantic's errors as words; `within` is where in the spec it looked."""
    return "; ".join(_explain(one, within) for one in error.errors()[:MOST_ERRORS])


def _explain(error: Any, within: Sequence[str] = ()) -> str:
    """One pydantic error as words: the key, what it got, what would work."""
    location = [*within, *(str(part) for part in error["loc"])]
    where = ".".join(location)
    if error["type"] == "extra_forbidden":
        section = "".join(f"[{'.'.join(location[:-1])}]") if location[:-1] else "the top level"
        return f"unknown key {shown(location[-1])} in {section}; {cli.nearest(location[-1], _keys(location[:-1]))}"
    if error["type"] == "missing":
        return f"{where} is missing"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {message}, got {shown(error['input'])}" if where and error["type"] != "value_error" else message


def _keys(location: Iterable[str]) -> list[str]:
    """The valid keys of the section at `location`."""
    section: type[BaseModel] = Spec
    parts = list(location)
    while parts:
        part = parts.pop(0)
        annotation: Any = section.model_fields[part].annotation
        if get_args(annotation):  # dict[str, Arm]: the next part is a name
            annotation = get_args(annotation)[-1]
            parts = parts[1:]
        section = annotation
    return list(section.model_fields)
