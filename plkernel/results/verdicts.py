"""The verdicts on what a study declared: hypotheses, gates, and what they are worth."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple, get_args

from plkernel.common.cli import counted
from plkernel.common.files import REGISTERED
from plkernel.config.factors import curves_of
from plkernel.config.schema import OF_CURVES, OF_RECALL, Gate, Hypothesis, families
from plkernel.results.claims import Claimed, Judgement, VerdictName, judge_family
from plkernel.results.measurements import (
    LEAST,
    Basis,
    answers_of_runs,
    arms_measured,
    basis_of,
    compared_arms,
    values,
)
from plkernel.results.rate_curves import rate_curve
from plkernel.results.registration import Registration, changes, read_registration
from plkernel.results.saved import RunResult
from plkernel.results.statistics import Estimate, mean_interval, paired_difference
from plkernel.results.study import Study, as_planned, planned, runs_of

Z = 1.96
"""Standard errors in half of a 95 % interval over predictions."""
TESTS = {"t": "the paired t test", "sign flips": "exact sign flips"}
"""The tests in the words of a reader."""


class HypothesisOutcome(NamedTuple):
    """The result of one hypothesis.

    per_seed  the paired differences
    causal    True if all runs behind it give a likelihood
    doubts    why the minima of curves that it compares are not to be trusted, one for each
    answers   of a test of recall the answers in one run behind it; None of other numbers
    """

    hypothesis: Hypothesis
    judgement: Judgement
    per_seed: Mapping[int, float]
    causal: bool
    doubts: tuple[str, ...] = ()
    answers: int | None = None


class GateOutcome(NamedTuple):
    """The result of one gate.

    estimate  mean over seeds with its 95 % t interval, NaN where no run measured it
    error     standard error of that mean over predictions, which all seeds share; NaN if unknown
    basis     the predictions that each run is measured on
    rule      limit: both intervals lie within the limits, over enough predictions; mean: the mean
              does
    """

    gate: Gate
    estimate: Estimate
    error: float
    basis: Basis
    rule: str

    def _within(self, *numbers: float) -> bool:
        """True if all numbers lie within the limits; a number or a limit of NaN never does."""
        low = self.gate.at_least
        high = self.gate.at_most
        above = low is None or all(number >= low for number in numbers)
        below = high is None or all(number <= high for number in numbers)
        known = not any(math.isnan(number) for number in numbers)
        return known and above and below

    @property
    def passed(self) -> bool:
        """True if the gate is passed by its rule."""
        return self.holds if self.rule == "limit" else self._within(self.estimate.mean)

    @property
    def holds(self) -> bool:
        """True if it is passed by the rule of limits."""
        one = self.estimate
        half = 0.0 if math.isnan(self.error) else Z * self.error
        if not self.basis.is_enough:
            return False
        return self._within(one.low, one.high, one.mean - half, one.mean + half)

    @property
    def verdict(self) -> str:
        """passed or not passed, with the number of predictions where it is too small."""
        if self.passed:
            return "passed"
        if self.rule == "limit" and not self.basis.is_enough:
            return f"not passed: {self.basis} of at least {LEAST[self.basis.unit]:,}"
        return "not passed"

    @property
    def margin(self) -> str:
        """Standard errors to the nearest limit, as in "z = 1.5 over 1,024 target bytes"."""
        text = f"over {self.basis}"
        limits = [limit for limit in (self.gate.at_least, self.gate.at_most) if limit is not None]
        if not limits or not self.error > 0:
            return text
        z = min(abs(self.estimate.mean - limit) / self.error for limit in limits)
        return text if math.isnan(z) else f"z = {z:.1f} {text}"


@dataclass(frozen=True)
class Declared:
    """Everything that a study declared, and the verdicts.

    study         as it is judged: by an intact registration with the arms, seeds and protocol that
                  are registered, else as it is
    registration  None where there is none
    changes       the differences of the study's spec from the registered one, in words
    waiting       number of runs behind a hypothesis or gate that have not ended: until then no
                  verdict is final
    lost          number of such runs that failed, diverged or took another number of steps than the
                  spec says
    before        number of runs that had ended or begun when the study was registered
    """

    study: Study
    outcomes: tuple[HypothesisOutcome, ...]
    gates: tuple[GateOutcome, ...]
    registration: Registration | None
    changes: tuple[str, ...]
    waiting: int = 0
    lost: int = 0
    before: int = 0

    @property
    def registered(self) -> bool:
        """True if there is an intact registration."""
        return self.registration is not None and self.registration.intact

    @property
    def ahead(self) -> bool:
        """True if what was declared is registered, and no run had begun before."""
        return self.registered and not self.before

    @property
    def closed(self) -> list[str]:
        """The gates that were not passed."""
        return [one.gate.name for one in self.gates if not one.passed]

    def verdict(self, outcome: HypothesisOutcome, gates: bool = True) -> str:
        """confirmed, refuted, undecided, or "cannot answer"; "so far" while runs remain.

        gates: name the closed gates, after which a study cannot answer.
        """
        said: str = outcome.judgement.verdict
        if self.closed:
            said = f"cannot answer: {', '.join(self.closed)}" if gates else "cannot answer"
        return f"{said} so far" if self.waiting else said

    def basis(self, family: str) -> str:
        """Test of a family, as in "family main: 2 hypotheses, alpha 0.05, by exact sign flips"."""
        members = [one for one in self.outcomes if one.hypothesis.family == family]
        first = members[0]
        number = counted(len(members), "hypothesis", "hypotheses")
        test = TESTS[first.judgement.test]
        return f"family {family}: {number}, alpha {first.hypothesis.alpha:g}, by {test}"

    @property
    def headline(self) -> str:
        """The number of hypotheses by verdict, in one sentence."""
        if not self.outcomes:
            return "No hypothesis is declared."
        number = counted(len(self.outcomes), "hypothesis", "hypotheses")
        where = "before the runs" if self.ahead else "in the spec"
        declared = f"{number} declared {where}"
        if self.closed:
            gates = ", ".join(f"gate {name!r} is not passed" for name in self.closed)
            text = f"the study cannot answer its {declared}: {gates}."
        else:
            text = f"of {declared}: {self._counts()}."
        if self.waiting:
            runs = counted(self.waiting, "run is", "runs are")
            text = f"preliminary, {runs} still to end: {text}"
        if self.lost:
            text += f" Without {counted(self.lost, 'run', 'runs')} that did not end as planned."
        doubted = sum(bool(one.doubts) for one in self.outcomes)
        if doubted:
            text += f" In {doubted} of them the minimum of a curve is not to be trusted."
        return text[0].upper() + text[1:]

    def _counts(self) -> str:
        verdicts = [one.judgement.verdict for one in self.outcomes]
        kinds = get_args(VerdictName)
        return ", ".join(f"{verdicts.count(kind)} {kind}" for kind in kinds)

    @property
    def provenance(self) -> list[str]:
        """Sentences on the registration, and on what differs from it."""
        one = self.registration
        if one is None:
            return [
                "Not registered: nothing shows that the hypotheses came before the results"
                " (--register would)."
            ]
        if not one.intact:
            return [
                f"The registration {one.sha256[:12]} was changed after it was written, so it counts"
                " for nothing: the hypotheses of the spec as it is now are judged."
            ]
        texts = [self._registered_with(one)]
        if self.before:
            texts.append(
                f"{counted(self.before, 'run', 'runs')} had ended or begun before: results may have"
                " been known."
            )
        fallen = [gate for gate in self.gates if gate.passed and not gate.holds]
        if fallen:
            names = "; ".join(f"{gate.gate.name!r} ({gate.margin})" for gate in fallen)
            texts.append(
                "Its gates go by their means, as registered. By the limits of their 95 %"
                f" intervals, over at least {LEAST['target bytes']:,} target bytes, these would"
                f" not be passed: {names}."
            )
        if self.changes:
            texts.append(
                "Changed since, and judged as registered, over the registered arms and seeds:"
                f" {'; '.join(self.changes)}."
            )
        return texts

    def _registered_with(self, one: Registration) -> str:
        """The sentence on an intact registration: its fingerprint, and the code that wrote it."""
        text = f"Registered: sha256 {one.sha256[:12]}, verified"
        for name in ("commit", "plkernel"):
            if one.content.get(name):
                text += f", {name} {one.content[name][:12]}"
        if not self.changes:
            text += "; the spec is as it was registered"
        return f"{text}."

    def to_dict(self) -> dict[str, Any]:
        """For table.json."""
        registration = None
        if self.registration:
            registration = {
                "sha256": self.registration.sha256,
                "intact": self.registration.intact,
                "changes": self.changes,
            }
        gates = []
        for gate in self.gates:
            gates.append({**dict(gate.gate), **vars(gate.estimate), "passed": gate.passed})
        hypotheses = []
        for outcome in self.outcomes:
            hypotheses.append(
                {
                    **dict(outcome.hypothesis),
                    **vars(outcome.judgement),
                    "verdict": self.verdict(outcome),
                    "registered": self.registered,
                    "per_seed": outcome.per_seed,
                }
            )
        return {
            "summary": [self.headline, *self.provenance],
            "registration": registration,
            "gates": gates,
            "hypotheses": hypotheses,
        }


def declared(study: Study) -> Declared | None:
    """The verdicts of a study; None where it declares nothing.

    An intact registration decides what is judged: its hypotheses as registered, over its arms and
    seeds, and no others. Raises ValueError where a file is damaged.
    """
    path = study.folder / REGISTERED
    registration = read_registration(path) if path.exists() else None
    if registration and registration.intact:
        return _judged_as_registered(study, registration)
    hypotheses, gates = _stated(study.spec)
    if not hypotheses and not gates and registration is None:
        return None
    waiting, lost = _missing_runs(study)
    return Declared(
        study=study,
        outcomes=_hypothesis_outcomes(study, hypotheses),
        gates=tuple(_gate_outcome(study, gate, "limit") for gate in gates),
        registration=registration,
        changes=(),
        waiting=waiting,
        lost=lost,
    )


def _judged_as_registered(study: Study, registration: Registration) -> Declared:
    """The verdicts on what an intact registration states.

    Registrations of early versions, which state no rule, have gates by their means.
    """
    judged = _as_registered(study, registration.spec)
    hypotheses, gates = _stated(judged.spec)
    rule = registration.content.get("gate_rule", "mean")
    waiting, lost = _missing_runs(judged)
    return Declared(
        study=judged,
        outcomes=_hypothesis_outcomes(judged, hypotheses),
        gates=tuple(_gate_outcome(judged, gate, rule) for gate in gates),
        registration=registration,
        changes=tuple(changes(registration.spec, study.spec)),
        waiting=waiting,
        lost=lost,
        before=_runs_before(study, registration),
    )


def _as_registered(study: Study, spec: Mapping[str, Any]) -> Study:
    """The study as its registered spec plans it, with its runs of these arms and seeds.

    Those that its spec has left out since are read from its folder.
    """
    found = {(run.arm, run.seed): run for run in study.runs}
    registered = itertools.product(spec["arms"], spec["seeds"])
    if any(place not in found for place in registered):
        found = runs_of(study.folder, spec) | found
    return replace(
        study,
        baseline=spec["baseline"],
        arms=tuple(spec["arms"]),
        seeds=tuple(spec["seeds"]),
        spec=spec,
        runs=planned(found, spec),
    )


def _stated(spec: Mapping[str, Any]) -> tuple[list[Hypothesis], list[Gate]]:
    """The hypotheses and gates of a spec."""
    hypotheses = [Hypothesis.model_validate(one) for one in spec.get("hypotheses") or ()]
    gates = [Gate.model_validate(one) for one in spec.get("gates") or ()]
    return hypotheses, gates


def _hypothesis_outcomes(
    study: Study, hypotheses: Sequence[Hypothesis]
) -> tuple[HypothesisOutcome, ...]:
    """The outcome of each hypothesis, corrected for its family, in the order of the spec."""
    outcomes = {}
    for members in families(hypotheses).values():
        per_seed = {one.name: _differences(study, one) for one in members}
        claims = {}
        for one in members:
            differences = list(per_seed[one.name].values())
            claims[one.name] = Claimed(one.claim, one.margin, differences)
        judgements = judge_family(claims, members[0].alpha)
        for one in members:
            outcomes[one.name] = HypothesisOutcome(
                hypothesis=one,
                judgement=judgements[one.name],
                per_seed=per_seed[one.name],
                causal=_is_causal(study, one),
                doubts=_doubts(study, one),
                answers=_answers(study, one),
            )
    return tuple(outcomes[one.name] for one in hypotheses)


def _differences(study: Study, hypothesis: Hypothesis) -> Mapping[int, float]:
    """The paired differences of a hypothesis by seed."""
    arm, other = compared_arms(study, hypothesis)
    own = values(study, arm, hypothesis, study.seeds)
    base = values(study, other, hypothesis, study.seeds)
    return paired_difference(own, base).per_seed


def _doubts(study: Study, hypothesis: Hypothesis) -> tuple[str, ...]:
    """Why the minima that a hypothesis compares are not to be trusted; none for other numbers."""
    if hypothesis.metric not in OF_CURVES:
        return ()
    found: list[str] = []
    for name in compared_arms(study, hypothesis):
        if name not in curves_of(study.spec["arms"]):
            continue
        doubt = rate_curve(study, name, hypothesis.metric).doubt
        if doubt is not None:
            found.append(doubt)
    return tuple(found)


def _answers(study: Study, hypothesis: Hypothesis) -> int | None:
    """The answers in one run behind a hypothesis on a test of recall; None for other numbers."""
    if hypothesis.metric not in OF_RECALL:
        return None
    arms = arms_measured(study, hypothesis, compared_arms(study, hypothesis))
    return answers_of_runs(study, hypothesis, arms, study.seeds)


def _is_causal(study: Study, hypothesis: Hypothesis) -> bool:
    """True if all finished runs behind a hypothesis give a likelihood."""
    arms = arms_measured(study, hypothesis, compared_arms(study, hypothesis))
    return all(run.result.causal for run in study.finished() if run.arm in arms)


def _arms_behind(study: Study) -> set[str]:
    """The arms that a hypothesis or a gate of the study speaks of."""
    hypotheses, gates = _stated(study.spec)
    arms = {gate.arm for gate in gates}
    for hypothesis in hypotheses:
        arms |= arms_measured(study, hypothesis, compared_arms(study, hypothesis))
    return arms


def _missing_runs(study: Study) -> tuple[int, int]:
    """The numbers of runs behind what a study declares that have not ended, or not as planned."""
    ended = {(run.arm, run.seed): run for run in study.ended}
    waiting = 0
    lost = 0
    for arm in _arms_behind(study):
        for seed in study.seeds:
            run = ended.get((arm, seed))
            if run is None:
                waiting += 1
            elif not as_planned(study, run):
                lost += 1
    return waiting, lost


def _runs_before(study: Study, registration: Registration) -> int:
    """The number of runs that had ended or begun before the registration was written.

    A run that begins after it keeps its fingerprint, one that began before keeps another or None.
    Runs of early versions kept nothing: they began before a registration of a later version, which
    states its source; of those before an early registration, it counts the ended ones itself.
    """
    ended: int = registration.content["runs_before"]
    begun = 0
    unknown = 0
    for run in study.ended:
        if "registration" not in run.environment:
            unknown += 1
        elif run.environment["registration"] != registration.sha256:
            begun += 1
    is_early = "source" not in registration.content
    if is_early:
        unknown = min(ended, unknown)
    return max(ended, begun + unknown)


def _gate_outcome(study: Study, gate: Gate, rule: str) -> GateOutcome:
    """The result of a gate of the study."""
    if gate.ahead_of:
        gate = gate.model_copy(update={"at_most": _best_n_grams(study, gate, gate.ahead_of)})
    runs = study.finished(gate.arm)
    results = [run.result for run in runs]
    errors = []
    for result in results:
        error = _error(result, gate)
        if error is not None:
            errors.append(error)
    corpus = runs[0].config["corpus"] if runs else None
    return GateOutcome(
        gate=gate,
        estimate=mean_interval(values(study, gate.arm, gate, study.seeds).values()),
        error=fmean(errors) if errors else math.nan,
        basis=basis_of(study.spec, gate, corpus, results[0].pairs if results else 0),
        rule=rule,
    )


def _best_n_grams(study: Study, gate: Gate, order: int) -> float:
    """The least loss of n-grams up to this order; NaN if not all of them were counted."""
    counts = study.reference(gate.arm)
    losses = getattr(counts, gate.metric)[:order] if counts else []
    return min(losses) if len(losses) == order else math.nan


def _error(result: RunResult, gate: Gate) -> float | None:
    """Standard error of a run's measurement over predictions; None where its row does not tell."""
    if gate.metric == "truncation_cost" and result.truncation:
        errors = result.truncation.standard_error or ()
        by_bytes = dict(zip(result.truncation.given, errors, strict=False))
        return by_bytes.get(gate.bytes or 0)
    if gate.metric == "val_bpb" and gate.step is None:
        return result.final_val_error
    return None
