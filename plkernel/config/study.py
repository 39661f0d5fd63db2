"""A study spec: sections, arms, seeds, search for learning rates and hypotheses, checked as a
whole.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from plkernel.common.cli import nearest
from plkernel.common.files import REFERENCES, REGISTERED, REPORT, SPEC, TUNING, shown
from plkernel.config import schema
from plkernel.config.condition import Condition, resolve
from plkernel.config.schema import (
    Arm,
    CorpusSpec,
    Gate,
    Hypothesis,
    ModelSpec,
    Section,
    TrainSpec,
    option,
)

LARGEST_SEED = 2**63 - 1
# with a rate behind it within 255, the most of file systems
FOLDER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,219}"
RESERVED = (REPORT, TUNING, SPEC, REFERENCES, REGISTERED)  # beside the arms of a study
SECTIONS: dict[str, type[Section]] = {
    "corpus": CorpusSpec,
    "model": ModelSpec,
    "arm_options": Arm,
    "train": TrainSpec,
}
Seed = Annotated[schema.Whole, Field(ge=0, le=LARGEST_SEED)]
S = TypeVar("S", bound=Section)


class TuningSpec(Section):
    """The search for the learning rate of every arm that gives none: the same budget for each."""

    rates: tuple[schema.PositiveNumber, ...] = option(
        "Peak learning rates to try; none is no search.", ()
    )
    seeds: tuple[Seed, ...] = option(
        "Seeds of the search, none of those that are compared; one may not tell neighbouring rates"
        " apart.",
        (100,),
        min_length=1,
    )
    steps: schema.Positive | None = option(
        "Steps of a run of the search; those of [train] if left out."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.rates) == 1 or len(set(self.rates)) != len(self.rates):
            raise ValueError(
                f"tuning.rates must be two or more, all different, got {list(self.rates)}"
            )
        if not self.rates:
            self.refuse(
                ("seeds", "steps"), "needs a search: give tuning.rates, or leave it out", "tuning."
            )
        return self


class Spec(Section):
    """A study: conditions x seeds on one corpus under one protocol."""

    name: str = Field(
        pattern=f"^{FOLDER_NAME}$", description="Names the output folder, runs/out/NAME."
    )
    description: str = option("One sentence for the report.", "")
    baseline: str
    """The arm that the others are compared with. Required without [factors]; with them the first
    level of each.
    """
    within: tuple[str, ...] = ()
    """Factors within whose levels arms are compared, each with the first levels of the other
    factors.
    """
    factors: dict[str, Any] = Field(default_factory=dict)
    """Factors and their levels: every combination is an arm (plkernel/config/reading.py)."""
    seeds: tuple[Seed, ...] = option(
        "Runs of one seed share base weights and data order across arms.", (0,)
    )
    report_steps: tuple[schema.Positive, ...] = option(
        "Steps whose validation bits per byte the report names.", ()
    )
    corpus: CorpusSpec = CorpusSpec()
    model: ModelSpec = ModelSpec()
    train: TrainSpec
    tuning: TuningSpec = TuningSpec()
    arms: dict[str, Arm] = Field(
        max_length=schema.MOST_ARMS,
        description="The conditions, by name. Required without [factors].",
    )
    hypotheses: tuple[Hypothesis, ...] = option("The claims that the study is to decide.", ())
    gates: tuple[Gate, ...] = option("Conditions that must hold before it decides anything.", ())
    _trusted: bool = PrivateAttr(
        default=False
    )  # consent of the person who runs it; no field, so no file can say it

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.arm(self.baseline, "baseline")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(
                f"seeds must be different numbers, at least one, got {list(self.seeds)}"
            )
        shared = sorted(set(self.seeds) & set(self.tuning.seeds))
        if self.tuning.rates and shared:
            raise ValueError(
                f"tuning.seeds must be none of the seeds that are compared, got {shared} in both"
            )
        for name, arm in self.arms.items():
            if not re.fullmatch(FOLDER_NAME, name) or name in RESERVED:
                raise ValueError(
                    f"arm name {shown(name)} must match {FOLDER_NAME}, not {', '.join(RESERVED)}"
                )
            with heading(f"arms.{name}: "):
                self._check_arm(name, arm)
        declared: dict[str, tuple[Hypothesis | Gate, ...]] = {
            "hypotheses": self.hypotheses,
            "gates": self.gates,
        }
        for kind, ones in declared.items():
            for one in ones:
                with heading(f"{kind} {one.name!r}: "):
                    if [other.name for other in ones].count(one.name) > 1:
                        raise ValueError("several have this name, give each its own")
                    self._check_declared(one)
        return self

    def _check_arm(self, name: str, arm: Arm) -> None:
        """Raise ValueError where an arm does not fit the search or the sections of the study."""
        if arm.against is not None:
            self.arm(arm.against, "against", other_than=name)
        if arm.rates is not None and len(set(arm.rates)) != len(self.tuning.rates):
            number = f"{len(self.tuning.rates)} different ones"
            raise ValueError(
                f"rates must be as many as tuning.rates, {number}, got {list(arm.rates)}"
            )
        model, train, _ = self.model_of(name), self.train_of(name), self.corpus_of(name)
        if not model.kind.startswith("rwkv"):
            train.refuse(
                ["dropout"], f"belongs to RWKVs, got kind {model.kind!r}: leave it out", "train."
            )

    def _check_declared(self, one: Hypothesis | Gate) -> None:
        """Raise ValueError where a hypothesis or a gate does not fit the arms and the
        evaluations.
        """
        every, last = self.train.eval_every, self.train.total_steps
        self.arm(one.arm)
        if one.bytes is not None and one.bytes >= self.train.context:
            raise ValueError(
                f"bytes must be fewer than the context, {self.train.context}, got {one.bytes}"
            )
        if one.metric == "truncation_cost" and not self.train_of(one.arm).truncation_windows:
            raise ValueError(
                "truncation_cost is not measured: set train.truncation_windows, such as 1024"
            )
        if one.step is not None and one.step != last and (one.step % every or one.step > last):
            raise ValueError(
                f"step {one.step} has no evaluation: there is one every {every} steps and at {last}"
            )
        if isinstance(one, Hypothesis):
            if (other := one.against or self.against(one.arm)) is None:
                raise ValueError(
                    f"against is missing: arm {one.arm!r} is a baseline, compared with no other"
                )
            self.arm(other, "against", other_than=one.arm)
            if one.alpha != (alpha := schema.families(self.hypotheses)[one.family][0].alpha):
                raise ValueError(
                    f"alpha {one.alpha:g} differs from {alpha:g} in the family {one.family!r}"
                )

    def arm(self, name: str, option: str = "arm", other_than: str | None = None) -> Arm:
        """Return the arm called `name`, which `option` names; ValueError with the nearest valid
        name otherwise.
        """
        if name not in self.arms or name == other_than:
            hint = nearest(name, self.arms.keys() - {other_than})
            raise ValueError(
                f"{option} {name!r} is not {'another' if other_than else 'an'} arm; {hint}"
            )
        return self.arms[name]

    def model_of(self, arm: str) -> ModelSpec:
        """Return the model of that arm: [model] with the changes of the arm.

        An arm of another kind takes the options that both kinds have, and never `config`.
        """
        changes, common = self.arm(arm).model or {}, self.model
        if isinstance(kind := changes.get("kind"), str) and kind != common.kind:
            both = set(schema.OF_KIND.get(kind, ())) & set(schema.OF_KIND.get(common.kind, ())) - {
                "kind"
            }
            common = ModelSpec.model_construct(**{name: getattr(common, name) for name in both})
        return _with(common, changes, "model")

    def train_of(self, arm: str) -> TrainSpec:
        """Return the protocol of that arm: [train] with the changes of the arm."""
        changes = self.arm(arm).train or {}
        if shared := [
            name
            for name in changes
            if name in TrainSpec.model_fields and name not in schema.OF_AN_ARM
        ]:
            own = ", ".join(schema.OF_AN_ARM)
            raise ValueError(
                f"train.{shared[0]} is the same in all arms: an arm may have its own {own}"
            )
        return _with(self.train, changes, "train")

    def corpus_of(self, arm: str) -> CorpusSpec:
        """Return the corpus of that arm: [corpus] with the changes of the arm."""
        return _with(self.corpus, self.arm(arm).corpus, "corpus")

    def against(self, arm: str) -> str | None:
        """Return the arm that `arm` is compared with; None for a baseline, of the study or of a
        block of `within`.
        """
        given = self.arm(arm).against
        if given or arm == self.baseline:
            return given
        own, first = (self.arm(name).levels or {} for name in (arm, self.baseline))
        return (
            None if any(own.get(name) != first.get(name) for name in self.within) else self.baseline
        )

    def rates_of(self, arm: str) -> tuple[float, ...]:
        """Return the learning rates to try for that arm."""
        return self.arm(arm).rates or self.tuning.rates

    def condition(self, name: str) -> Condition:
        """Return the condition of the arm called `name`."""
        arm, model, corpus = self.arm(name), self.model_of(name), self.corpus_of(name)
        return resolve(model, arm, self.train_of(name), corpus, self.name, name, self._trusted)

    @property
    def trusted(self) -> bool:
        """True with consent to the code that the spec names."""
        return self._trusted

    def trusting(self, trusted: bool) -> "Spec":
        """Return the spec with consent to the code that it names, or without."""
        copied = self.model_copy()
        copied._trusted = trusted
        return copied


@contextmanager
def heading(head: str, *within: str) -> Iterator[None]:
    """Put `head` in front of every ValueError, and pydantic's, at the place `within` of a spec,
    into words.
    """
    try:
        yield
    except ValueError as error:
        words = (
            schema.explained(error, Spec, *within) if isinstance(error, ValidationError) else error
        )
        raise ValueError(f"{head}{words}") from None


def _with(section: S, changes: Mapping[str, Any] | None, name: str) -> S:
    """Return `section`, called `name`, with some of its options changed and checked as a whole."""
    if not changes:
        return section
    with heading("", name):
        return type(section).model_validate(schema.deep_merge(section.model_dump(), changes))


def with_defaults(config: Any) -> Any:
    """Return a saved spec or configuration, with the options that its version did not have at their
    defaults.

    An option that is added later must therefore default to what was done before it.
    """
    for name, section in SECTIONS.items() if isinstance(config, dict) else ():
        if isinstance(values := config.get(name), dict):
            config = config | {name: section.model_construct().model_dump(mode="json") | values}
    return config
