"""A study spec: sections, arms, seeds, search for learning rates and hypotheses, checked as a
whole."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from plkernel.common.cli import headed, nearest
from plkernel.common.corpus_names import (
    RECALL,
    SYNTHETIC,
    WITH_FLOOR,
    check_law,
    has_floor,
    is_recall,
)
from plkernel.common.files import (
    MEASUREMENT,
    REFERENCES,
    REGISTERED,
    REPORT,
    SPEC,
    TUNING,
    shown,
)
from plkernel.config import schema
from plkernel.config.condition import Condition, resolve
from plkernel.config.factors import CURVE, RATE, check_rates, curves_of, means_of, opposite
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
from plkernel.models.kinds import kind_of
from plkernel.models.sampling import LARGEST_SEED

RESERVED = (REPORT, TUNING, SPEC, REFERENCES, REGISTERED, MEASUREMENT)
"""Names that no arm may have, as a study has files and folders of these names beside its arms."""
SECTIONS: dict[str, type[Section]] = {
    "corpus": CorpusSpec,
    "model": ModelSpec,
    "arm_options": Arm,
    "train": TrainSpec,
}
Seed = Annotated[schema.Whole, Field(ge=0, le=LARGEST_SEED)]
S = TypeVar("S", bound=Section)


class TuningSpec(Section):
    """The search for the learning rate of every arm that gives none: the same budget for each.

    Or curves over learning rates in place of a search.
    """

    unsaid = ("method",)

    method: Literal["search", "curve"] = "search"
    """search: the best rate on tuning.seeds is the rate of the arm. curve: every arm is trained at
    every rate with the seeds of the study, and the minima of the curves are compared.
    """
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
        if self.method == CURVE:
            reason = "is for tuning.method 'search': curves have seeds and steps of the study"
            self.refuse(("seeds", "steps"), reason, "tuning.")
            check_rates(self.rates)
        return self


class Spec(Section):
    """A study: conditions x seeds on one corpus under one protocol."""

    name: schema.FolderName = Field(description="Names the output folder, runs/out/NAME.")
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
    """Factors and their levels: every combination is an arm (plkernel/config/factors.py)."""
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
    # consent of the person who runs it; no field, so no file can say it
    _trusted: bool = PrivateAttr(default=False)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.arm(self.baseline, "baseline")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(
                f"seeds must be different numbers, at least one, got {list(self.seeds)}"
            )
        shared = sorted(set(self.seeds) & set(self.tuning.seeds))
        is_search = bool(self.tuning.rates) and self.tuning.method != CURVE
        if is_search and shared:
            raise ValueError(
                f"tuning.seeds must be none of the seeds that are compared, got {shared} in both"
            )
        for name, arm in self.arms.items():
            self._check_name(name, arm)
            with heading(f"arms.{name}: "):
                self._check_arm(name, arm)
        if self.tuning.method == CURVE:
            self._check_curves()
        self._check_all_declared("hypotheses", self.hypotheses)
        self._check_all_declared("gates", self.gates)
        self._check_compared()
        if not any(self.model_of(name).is_causal for name in self.arms):
            self._check_measured_of_causal()
        if len(set(self.report_steps)) != len(self.report_steps):
            raise ValueError(f"report_steps must be different steps, got {list(self.report_steps)}")
        for step in self.report_steps:
            if step <= self.train.total_steps:
                self._check_evaluated(step, "report_steps")
        return self

    def _check_compared(self) -> None:
        """Raise ValueError for two arms that are compared with each other, or have other units.

        Of two that are compared with each other the same difference would be corrected for twice;
        circles of three or more compare other pairs. Losses on recall are bits per answer, on text
        bits per byte.
        """
        for name in self.arms:
            other = self.against(name)
            if other is None:
                continue
            if self.against(other) == name:
                raise ValueError(
                    f"arms.{name}: against must be no arm that is compared with {name!r} itself,"
                    f" got {other!r}: the same difference would be counted twice; leave one of the"
                    " two out"
                )
            own_corpus = self.corpus_of(name).name
            other_corpus = self.corpus_of(other).name
            if is_recall(own_corpus) != is_recall(other_corpus):
                raise ValueError(
                    f"arms.{name}: corpus must be one of recall if that of arm {other!r} is, with"
                    f" which it is compared, and otherwise none, got {own_corpus!r} beside"
                    f" {other_corpus!r}; give another arm in against, or make the corpus a factor"
                    " that within names"
                )

    def _check_curves(self) -> None:
        """Raise ValueError where the arms are not those of tuning.rates."""
        for name, by_rate in self.curves.items():
            if set(by_rate) != set(self.tuning.rates):
                raise ValueError(
                    f"tuning.rates must be the rates of the arms, which have been written out:"
                    f" {name} has {sorted(by_rate)}, got {sorted(self.tuning.rates)}; change the"
                    " file of the spec"
                )

    def _check_name(self, name: str, arm: Arm) -> None:
        """Raise ValueError where an arm cannot have this name, which its folder has too."""
        if name in RESERVED:
            raise ValueError(
                f"arm name must be none of {', '.join(RESERVED)}, which a study has beside its"
                f" arms, got {shown(name)}"
            )
        if not re.fullmatch(schema.FOLDER_NAME, name):
            hint = "" if arm.levels else schema.similar_name(name)
            remedy = ""
            if arm.levels and set(arm.levels) != {RATE}:
                remedy = "; give a factor a table with other names, LEVEL = { ... }"
            elif arm.levels:
                remedy = "; give the arm a shorter name, as its rate stands behind it"
            raise ValueError(f"arm name {schema.NAMING}{hint}, got {shown(name)}{remedy}")

    def _check_arm(self, name: str, arm: Arm) -> None:
        """Raise ValueError where an arm does not fit the search or the sections of the study."""
        if arm.against is not None:
            self.arm(arm.against, "against", other_than=name)
        if arm.rates is not None and len(set(arm.rates)) != len(self.tuning.rates):
            number = f"{len(self.tuning.rates)} different ones"
            raise ValueError(
                f"rates must be as many as tuning.rates, {number}, got {list(arm.rates)}"
            )
        model = self.model_of(name)
        train = self.train_of(name)
        check_law(self.corpus_of(name).name)
        if not model.of_kind.has_dropout:
            reason = f"belongs to RWKVs, got kind {model.kind!r}: leave it out"
            train.refuse(["dropout"], reason, "train.")

    def _check_measured_of_causal(self) -> None:
        """Raise ValueError for what is measured of causal models alone, of which there are none."""
        reason = (
            "is for causal models, and patching mode 'published' of all arms sees ahead: leave it"
            " out"
        )
        for name in self.arms:
            train = self.train_of(name)
            names = ["truncation_windows", "probe_windows"]
            if train.beyond != 1:  # which asks for nothing
                names.append("beyond")
            with heading(f"arms.{name}: "):
                train.refuse(names, reason, "train.")

    def _check_all_declared(self, kind: str, declared: Iterable[Hypothesis | Gate]) -> None:
        """Raise ValueError where hypotheses, or gates, share a name or do not fit the study."""
        names = [one.name for one in declared]
        for one in declared:
            with heading(f"{kind} {one.name!r}: "):
                if names.count(one.name) > 1:
                    raise ValueError("name must be unique, got one that several have")
                self._check_own_arms(one)
                if isinstance(one, Hypothesis):
                    self._check_hypothesis(one)

    def _check_own_arms(self, one: Hypothesis | Gate) -> None:
        """Raise ValueError where there is no such arm, curve or mean, or nothing is measured."""
        if one.metric in schema.OF_CURVES:
            self._check_curve(one.arm)
        elif not isinstance(one, Hypothesis) or one.arm not in self.means:
            with self._naming_curves(one):
                self.arm(one.arm)
        for arm in self.arms_behind(one.arm):
            self._check_measured(one.model_copy(update={"arm": arm}))

    @contextmanager
    def _naming_curves(self, one: Hypothesis | Gate) -> Iterator[None]:
        """Add to an error how a hypothesis names a curve, where its arm is the name of one."""
        try:
            yield
        except ValueError as error:
            if not isinstance(one, Hypothesis) or one.arm not in self.curves:
                raise
            metrics = " or ".join(f'"{metric}"' for metric in schema.OF_CURVES)
            raise ValueError(f"{error}; or give metric = {metrics}, which names curves") from None

    def arms_behind(self, name: str) -> list[str]:
        """Return the arms behind a name in a hypothesis: one, or all of a mean or a curve."""
        if name in self.arms:
            return [name]
        of_mean = self.means.get(name, {})
        of_curve = self.curves.get(name, {})
        return [*of_mean.values()] or [*of_curve.values()]

    def _check_measured(self, one: Hypothesis | Gate) -> None:
        """Raise ValueError where the runs do not measure the number that is declared."""
        if one.bytes is not None and one.bytes >= self.train.context:
            raise ValueError(
                f"bytes must be fewer than the context, {self.train.context}, got {one.bytes}"
            )
        if one.metric == "truncation_cost" and not self.train_of(one.arm).truncation_windows:
            raise ValueError(
                "train.truncation_windows must be above 0 for truncation_cost, such as 1024, got 0"
            )
        self._check_possible(one)
        if one.times is not None:
            self._check_distance(one, one.times)
        if one.step is not None:
            self._check_evaluated(one.step, "step")

    def _check_evaluated(self, step: int, option: str) -> None:
        """Raise ValueError for a step without an evaluation, which `option` names."""
        every = self.train.eval_every
        last = self.train.total_steps
        if step != last and (step % every or step > last):
            raise ValueError(
                f"{option} must be one with an evaluation, every {every} steps and at {last}, got"
                f" {step}; change it or train.eval_every"
            )

    def _check_possible(self, one: Hypothesis | Gate) -> None:
        """Raise ValueError for a number that is not known of the corpus or the model of the arm."""
        corpus = self.corpus_of(one.arm).name
        if one.metric == "excess_bpb" and not has_floor(corpus):
            known = ", ".join(f"{SYNTHETIC}:{law}" for law in WITH_FLOOR)
            raise ValueError(
                f"corpus must be one of {known} for metric 'excess_bpb', as the"
                f" floor of others is not known, got {corpus!r}"
            )
        if isinstance(one, Gate) and one.ahead_of and is_recall(corpus):
            raise ValueError(
                f"ahead_of must be left out on corpus {corpus!r}, where no n-grams are counted:"
                " give at_most"
            )
        is_at_end = one.metric == "truncation_cost" or one.metric in schema.OF_DISTANCE
        if is_at_end and not self.model_of(one.arm).is_causal:
            raise ValueError(
                f"model.patching.mode must be 'causal' for metric {one.metric!r}, got 'published'"
            )

    def _check_distance(self, one: Hypothesis | Gate, times: int) -> None:
        """Raise ValueError where no run is tested at so many lengths of training."""
        condition = self.condition(one.arm)
        corpus = condition.corpus.name
        context = condition.protocol.context
        of_recall = one.metric in schema.OF_RECALL
        if of_recall != is_recall(corpus):
            wanted = f"{SYNTHETIC}:{RECALL}" if of_recall else "a text"
            raise ValueError(f"corpus must be {wanted} for metric {one.metric!r}, got {corpus!r}")
        if not of_recall and not schema.is_power_of_two(context):
            raise ValueError(
                f"train.context must be a power of two for metric {one.metric!r}, got {context}"
            )
        farthest = condition.protocol.beyond or (schema.FARTHEST if of_recall else 1)
        if not of_recall and farthest == 1:
            raise ValueError(
                f"train.beyond must be 2 or more for metric {one.metric!r}, such as"
                f" {max(2, times)}, got {condition.protocol.beyond}"
            )
        if times > farthest:
            raise ValueError(
                f"times must be at most {farthest}, got {times}: set train.beyond = {times}"
            )
        if one.distance is not None and one.distance >= 2 * times * context:
            raise ValueError(
                f"distance must be less than twice the length of the test, {times * context} bytes,"
                f" got {one.distance}"
            )

    def _check_unit(self, one: Hypothesis, other: str) -> None:
        """Raise ValueError where bits per answer would be taken together with bits per byte."""
        corpora = [
            self.corpus_of(arm).name
            for arm in (*self.arms_behind(one.arm), *self.arms_behind(other))
        ]
        of_recall = [corpus for corpus in corpora if is_recall(corpus)]
        if of_recall and len(of_recall) < len(corpora):
            others = [corpus for corpus in corpora if corpus not in of_recall]
            raise ValueError(
                "corpus must be one of recall for all runs behind a hypothesis, or for none, as"
                f" their losses have other units, got {of_recall[0]!r} and {others[0]!r}"
            )

    def _check_hypothesis(self, one: Hypothesis) -> None:
        """Raise ValueError where a hypothesis has no other arm or not the alpha of its family."""
        other = self.opponent(one)
        if other is None:
            raise ValueError(
                f"against must be given, since arm {one.arm!r} is a baseline, compared with no"
                " other"
            )
        if one.metric in schema.OF_CURVES:
            self._check_curve(other, "against", other_than=one.arm)
        elif one.arm in self.means:
            self._check_mean(other, other_than=one.arm)
        else:
            self.arm(other, "against", other_than=one.arm)
        for arm in self.arms_behind(other):
            with heading(f"against {other!r}: "):
                self._check_measured(one.model_copy(update={"arm": arm}))
        self._check_unit(one, other)
        alpha = schema.families(self.hypotheses)[one.family][0].alpha
        if one.alpha != alpha:
            raise ValueError(
                f"alpha must be that of the family {one.family!r}, {alpha:g}, got {one.alpha:g}"
            )

    def _check_curve(self, name: str, option: str = "arm", other_than: str | None = None) -> None:
        """Raise ValueError, with the nearest valid name, where there is no curve of that name."""
        curves = self.curves
        if not curves:
            raise ValueError(
                "tuning.method must be 'curve' for minima, which are those of curves over learning"
                f" rates, got {self.tuning.method!r}"
            )
        if name not in curves or name == other_than:
            hint = nearest(name, curves.keys() - {other_than})
            raise ValueError(
                f"{option} must name {'another' if other_than else 'a'} curve, got {name!r}; {hint}"
            )

    def _check_mean(self, name: str, other_than: str) -> None:
        """Raise ValueError where `name` is not another mean over blocks."""
        if name not in self.means or name == other_than:
            hint = nearest(name, self.means.keys() - {other_than})
            raise ValueError(
                f"against must name another mean over the levels of"
                f" {' and '.join(self.within)}, as {other_than!r} does, got {name!r}; {hint}"
            )

    @property
    def means(self) -> dict[str, dict[str, str]]:
        """Arms of every mean over the blocks of `within`, by its name and the block."""
        return means_of({name: dict(arm) for name, arm in self.arms.items()}, self.within)

    @property
    def curves(self) -> dict[str, dict[float, str]]:
        """Arms of every curve over learning rates, by its name and the rate; none without them."""
        if self.tuning.method != CURVE:
            return {}
        return curves_of({name: dict(arm) for name, arm in self.arms.items()})

    def opponent(self, hypothesis: Hypothesis) -> str | None:
        """Return the arm, curve or mean that a hypothesis subtracts; None where it has none."""
        if hypothesis.against:
            return hypothesis.against
        if hypothesis.metric in schema.OF_CURVES:
            return opposite(self.curves, hypothesis.arm, self.against)
        if hypothesis.arm in self.means:
            return opposite(self.means, hypothesis.arm, self.against)
        return self.against(hypothesis.arm)

    def arm(self, name: str, option: str = "arm", other_than: str | None = None) -> Arm:
        """Return the arm called `name`, which `option` names.

        Raises ValueError with the nearest valid name where there is none.
        """
        if name not in self.arms or name == other_than:
            hint = self._runs_of(name) or nearest(name, self.arms.keys() - {other_than})
            raise ValueError(
                f"{option} must name {'another' if other_than else 'an'} arm, got {name!r}; {hint}"
            )
        return self.arms[name]

    def _runs_of(self, name: str) -> str:
        """Return the runs of the curve that `name` is, or names with another rate, in words.

        Empty for other names.
        """
        curves = self.curves
        curve = name if name in curves else name.rpartition("_")[0]
        runs = [one for one in curves.get(curve, {}).values() if one != name]
        return f"the runs of {curve!r} are {', '.join(runs)}" if runs else ""

    def model_of(self, arm: str) -> ModelSpec:
        """Return the model of that arm: [model] with the changes of the arm.

        An arm of another kind takes the options that both kinds have, and never `config`.
        """
        changes = self.arm(arm).model or {}
        common = self.model
        kind = changes.get("kind")
        if isinstance(kind, str) and kind != common.kind:
            options = kind_of(kind).options
            of_both = set(options) & set(common.of_kind.options) - {"kind", "config"}
            shared = {name: getattr(common, name) for name in of_both}
            common = ModelSpec.model_construct(**shared)
        return _with(common, changes, "model")

    def train_of(self, arm: str) -> TrainSpec:
        """Return the protocol of that arm: [train] with the changes of the arm."""
        changes = self.arm(arm).train or {}
        for name in changes:
            if name in TrainSpec.model_fields and name not in schema.OF_AN_ARM:
                own = ", ".join(schema.OF_AN_ARM)
                raise ValueError(
                    f"train.{name} must be the same in all arms; an arm may have its own {own}"
                )
        return _with(self.train, changes, "train")

    def corpus_of(self, arm: str) -> CorpusSpec:
        """Return the corpus of that arm: [corpus] with the changes of the arm."""
        return _with(self.corpus, self.arm(arm).corpus, "corpus")

    def against(self, arm: str) -> str | None:
        """Return the arm that `arm` is compared with; None for a baseline, see `compared_with`."""
        given = self.arm(arm).against
        return compared_with(arm, given, self._levels, self.baseline, self.within)

    def _levels(self, arm: str) -> Mapping[str, str]:
        return self.arm(arm).levels or {}

    def rates_of(self, arm: str) -> tuple[float, ...]:
        """Return the learning rates to try for that arm."""
        return self.arm(arm).rates or self.tuning.rates

    def condition(self, name: str) -> Condition:
        """Return the condition of the arm called `name`; `resolve_spec` has those of all arms.

        Raises ValueError, headed by the name, where the arm does not fit its model.
        """
        sections = (
            self.model_of(name),
            self.arm(name),
            self.train_of(name),
            self.corpus_of(name),
        )
        with heading(f"arms.{name}: "):
            return resolve(*sections, study=self.name, name=name, trusted=self._trusted)

    @property
    def trusted(self) -> bool:
        """True with consent to the code that the spec names."""
        return self._trusted

    def trusting(self, trusted: bool) -> "Spec":
        """Return the spec with consent to the code that it names, or without."""
        copied = self.model_copy()
        copied._trusted = trusted
        return copied


def compared_with(
    arm: str,
    against: str | None,
    levels: Callable[[str], Mapping[str, str]],
    baseline: str,
    within: Iterable[str],
) -> str | None:
    """Return the arm that `arm` of a study is compared with; None for a baseline.

    It is `against` where that is given, else the baseline of the study, unless the two are at
    other `levels` of the factors `within`: then `arm` is the baseline of its block.
    """
    if against or arm == baseline:
        return against
    own = levels(arm)
    base = levels(baseline)
    same_block = all(own.get(factor) == base.get(factor) for factor in within)
    return baseline if same_block else None


@contextmanager
def heading(head: str, *within: str) -> Iterator[None]:
    """Put `head` in front of every ValueError; pydantic's is put into words.

    within: the place in a spec of what is checked.
    """
    with headed(head):
        try:
            yield
        except ValidationError as error:
            raise ValueError(schema.explained(error, Spec, *within)) from None


def _with(section: S, changes: Mapping[str, Any] | None, name: str) -> S:
    """Return `section`, called `name`, with some of its options changed and checked as a whole."""
    if not changes:
        return section
    with heading("", name):
        return type(section).model_validate(schema.deep_merge(section.model_dump(), changes))


def with_defaults(config: Any) -> Any:
    """Return a saved spec or configuration with the options of later versions at their defaults.

    An option that is added later must therefore default to what was done before it.
    """
    if not isinstance(config, dict):
        return config
    filled = dict(config)
    for name, section in SECTIONS.items():
        values = config.get(name)
        if isinstance(values, dict):
            filled[name] = section.model_construct().model_dump(mode="json") | values
    return filled
