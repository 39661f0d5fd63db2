"""A study spec: sections, arms, seeds, search for learning rates and hypotheses, checked as a whole."""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from plkernel.common.cli import nearest
from plkernel.common.files import shown
from plkernel.common.layout import name_at
from plkernel.config.condition import Condition, resolve
from plkernel.config.factors import MOST_ARMS, deep_merge
from plkernel.config.schema import (
    OF_AN_ARM,
    Arm,
    CorpusSpec,
    Gate,
    Hypothesis,
    Measured,
    ModelSpec,
    Positive,
    PositiveNumber,
    Section,
    TrainSpec,
    explained,
)

LARGEST_SEED = 2**63 - 1
FOLDER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
LONGEST_NAME = 255  # bytes of a file's name on every common file system
RESERVED = ("report", "tuning", "spec.json", "references.json", "registered.json")  # beside the arms of a study
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
S = TypeVar("S", bound=Section)


class TuningSpec(Section):
    """The search for the learning rate of every arm that gives none: the same budget for each."""

    rates: tuple[PositiveNumber, ...] = ()
    """Peak learning rates to try; none is no search."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (100,)
    """Seeds of the search, none of those that are compared."""
    steps: Positive | None = None
    """Steps of a run of the search; those of [train] if left out."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.rates) == 1 or len(set(self.rates)) != len(self.rates):
            raise ValueError(f"tuning.rates must be two or more, all different, got {list(self.rates)}")
        if not self.rates:
            self.refuse(("seeds", "steps"), "needs a search: give tuning.rates, or leave it out", "tuning.")
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
    """Factors and their levels: every combination is an arm (plkernel/config/factors.py)."""
    seeds: tuple[Seed, ...] = (0,)
    """Runs of one seed share base weights and data order across arms."""
    report_steps: tuple[Positive, ...] = ()
    """Steps whose validation bits per byte the report names."""
    corpus: CorpusSpec = CorpusSpec()
    model: ModelSpec = ModelSpec()
    train: TrainSpec
    tuning: TuningSpec = TuningSpec()
    arms: dict[str, Arm]
    """The conditions, by name."""
    hypotheses: tuple[Hypothesis, ...] = ()
    """What the study is to decide."""
    gates: tuple[Gate, ...] = ()
    """What must hold before it decides anything."""
    _trusted: bool = PrivateAttr(default=False)  # consent of the person who runs it; no field, so no file can say it

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.arms) > MOST_ARMS:
            raise ValueError(f"arms: a study has {MOST_ARMS:,} at most, got {len(self.arms):,}")
        if self.baseline not in self.arms:
            raise ValueError(f"baseline {self.baseline!r} is not an arm; {nearest(self.baseline, self.arms)}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must be different numbers, at least one, got {list(self.seeds)}")
        shared = sorted(set(self.seeds) & set(self.tuning.seeds))
        if self.tuning.rates and shared:
            raise ValueError(f"tuning.seeds must be none of the seeds that are compared, got {shared} in both")
        for name in self.arms:
            self._check_arm(name)
        self._check_declared("hypotheses", self.hypotheses)
        self._check_declared("gates", self.gates)
        return self

    def _check_arm(self, name: str) -> None:
        arm = self.arms[name]
        if not re.fullmatch(FOLDER_NAME, name) or name in RESERVED:
            raise ValueError(
                f"arm name {name!r} must start with a letter or digit, go on with letters, digits, '-', '_' "
                f"and '.', and be none of {', '.join(RESERVED)}"
            )
        if len(longest := self.folder_of(name)) > LONGEST_NAME:
            most = LONGEST_NAME - len(longest) + len(name)
            raise ValueError(
                f"arm name {name[:20]}... has {len(name)} letters, too many for the name of a folder: {most} at most"
            )
        if arm.against is not None and (arm.against == name or arm.against not in self.arms):
            raise ValueError(
                f"arms.{name}: against {arm.against!r} is not another arm; {nearest(arm.against, self.arms)}"
            )
        if arm.rates is not None and len(set(arm.rates)) != len(self.tuning.rates):
            raise ValueError(
                f"arms.{name}: rates must be as many as tuning.rates, {len(self.tuning.rates)} different ones, "
                f"so that every arm has the same search, got {list(arm.rates)}"
            )
        try:
            model, train, _ = self.model_of(name), self.train_of(name), self.corpus_of(name)
        except ValueError as error:
            raise ValueError(f"arms.{name}: {error}") from None
        if train.dropout and model.kind not in ("rwkv5", "rwkv6", "rwkv7"):
            raise ValueError(
                f"arms.{name}: train.dropout belongs to model kinds rwkv5, rwkv6 and rwkv7, got {train.dropout} with "
                f"kind {model.kind!r}: leave it out"
            )

    def _check_declared(self, kind: str, declared: Iterable[Measured]) -> None:
        """ValueError where a hypothesis or gate does not fit the arms, the evaluations, or the others of its kind."""
        declared = list(declared)
        names, first = [one.name for one in declared], dict[str, Hypothesis]()
        for one in declared:
            where = f"{kind} {one.name!r}"
            if names.count(one.name) > 1:
                raise ValueError(f"{where}: {names.count(one.name)} have this name, give each its own")
            if one.arm not in self.arms:
                raise ValueError(f"{where}: arm {one.arm!r} is not an arm; {nearest(one.arm, self.arms)}")
            self._check_measured(where, one)
            if not isinstance(one, Hypothesis):
                continue
            other, same = one.against or self.against(one.arm), first.setdefault(one.family, one)
            if other is None:
                raise ValueError(f"{where}: against is missing: arm {one.arm!r} is a baseline, compared with no other")
            if other not in self.arms:
                raise ValueError(f"{where}: against {other!r} is not an arm; {nearest(other, self.arms)}")
            if other == one.arm:
                raise ValueError(f"{where}: against {other!r} is the arm itself: name another")
            if one.alpha != same.alpha:
                raise ValueError(
                    f"{where}: alpha {one.alpha:g} differs from the {same.alpha:g} of {same.name!r}: "
                    f"all of family {one.family!r} share one"
                )

    def _check_measured(self, where: str, one: Measured) -> None:
        """ValueError for a step without an evaluation, and for as many bytes given as the context has."""
        train = self.train
        if one.bytes is not None and one.bytes >= train.context:
            raise ValueError(f"{where}: bytes must be fewer than the context, {train.context}, got {one.bytes}")
        if one.metric == "truncation_cost" and not train.truncation_windows:
            remedy = "set train.truncation_windows, to 1024 for example"
            raise ValueError(f"{where}: truncation_cost is not measured: {remedy}")
        every, last = train.eval_every, train.total_steps
        if one.step is None or one.step == last or (one.step % every == 0 and (last is None or one.step < last)):
            return
        below = one.step - one.step % every
        near = [str(step) for step in (below, below + every) if last is None or step < last][-2:]
        near += [] if last is None else [f"{last}, the last"]
        raise ValueError(f"{where}: step {one.step} has no evaluation; near it are {' and '.join(near)}")

    def arm(self, name: str) -> Arm:
        """The arm called `name`; ValueError with the nearest valid name otherwise."""
        if name not in self.arms:
            raise ValueError(f"arm {name!r} is not in spec {self.name!r}; {nearest(name, self.arms)}")
        return self.arms[name]

    def model_of(self, arm: str) -> ModelSpec:
        """The model of that arm: [model] with the changes of the arm."""
        return _with(self.model, self.arm(arm).model, "model")

    def train_of(self, arm: str) -> TrainSpec:
        """The protocol of that arm: [train] with the changes of the arm."""
        changes = self.arm(arm).train or {}
        for name in changes:
            if name in TrainSpec.model_fields and name not in OF_AN_ARM:
                raise ValueError(
                    f"train.{name} is the same in all arms, got {shown(changes[name])}: an arm may have its own "
                    f"{', '.join(OF_AN_ARM)}"
                )
        return _with(self.train, changes, "train")

    def corpus_of(self, arm: str) -> CorpusSpec:
        """The corpus of that arm: [corpus] with the changes of the arm."""
        return _with(self.corpus, self.arm(arm).corpus, "corpus")

    def against(self, arm: str) -> str | None:
        """The arm that `arm` is compared with; None for a baseline, of the study or of a block of `within`."""
        given = self.arm(arm).against
        if given or arm == self.baseline:
            return given
        own, first = (self.arm(name).levels or {} for name in (arm, self.baseline))
        return None if any(own.get(name) != first.get(name) for name in self.within) else self.baseline

    def rates_of(self, arm: str) -> tuple[float, ...]:
        """The learning rates that are tried for that arm."""
        return self.arm(arm).rates or self.tuning.rates

    def folder_of(self, arm: str) -> str:
        """The longest name among the folders of the arm: its own, and in the search that of the arm at a rate."""
        rates = self.rates_of(arm) if self.arm(arm).learning_rate is None else ()
        return max((arm, *(name_at(arm, rate) for rate in rates)), key=len)

    def condition(self, name: str) -> Condition:
        """The condition of the arm called `name`, resolved once."""
        if name not in self._resolved:
            arm, model, corpus = self.arm(name), self.model_of(name), self.corpus_of(name)
            self._resolved[name] = resolve(model, arm, self.train_of(name), corpus, self.name, name, self._trusted)
        return self._resolved[name]

    @cached_property
    def _resolved(self) -> dict[str, Condition]:
        """Conditions by arm: no field, so that specs are equal whatever has been asked of them."""
        return {}

    @property
    def trusted(self) -> bool:
        """True with consent to the code that the spec names."""
        return self._trusted

    def trusting(self, trusted: bool) -> "Spec":
        """The spec with consent to the code that it names, or without."""
        copied = self.model_copy()
        copied._trusted = trusted
        return copied

    def with_conditions(self, conditions: Mapping[str, Condition]) -> "Spec":
        """The spec of these conditions, with their arms and no others."""
        copied = self.model_copy(update={"arms": {name: condition.arm for name, condition in conditions.items()}})
        copied._resolved.update(conditions)
        return copied

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> "Spec":
        """A copy with other values, whose conditions are resolved anew."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("_resolved", None)
        return copied


def _with(section: S, changes: Mapping[str, Any] | None, name: str) -> S:
    """`section`, called `name`, with some of its options changed and checked as a whole."""
    if not changes:
        return section
    try:
        return type(section).model_validate(deep_merge(section.model_dump(), changes))
    except ValidationError as error:
        raise ValueError(explained(error, Spec, name)) from None


def with_defaults(config: Any) -> Any:
    """A saved spec or configuration, with the options that its version did not have at their defaults.

    An option that is added later must therefore default to what was done before it.
    """
    sections: dict[str, type[Section]] = {
        "corpus": CorpusSpec,
        "model": ModelSpec,
        "arm_options": Arm,
        "train": TrainSpec,
    }
    if not isinstance(config, dict):
        return config
    return config | {
        name: section.model_construct().model_dump(mode="json") | config[name]
        for name, section in sections.items()
        if isinstance(config.get(name), dict)
    }
