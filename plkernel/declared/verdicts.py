"""The verdicts of a study on what it declared: gates first, then every hypothesis among its family."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from plkernel.analysis.statistics.differences import Estimate, mean_interval
from plkernel.analysis.statistics.hypotheses import Claimed, Judgement, judge
from plkernel.config.schema import Gate, Hypothesis, Measured, families
from plkernel.declared.registration import Registration, changes, declared_in, read_registration
from plkernel.records.layout import REGISTERED, SPEC
from plkernel.records.study import Run, Study

NO_ANSWER = "cannot answer"


@dataclass(frozen=True)
class Outcome:
    """What came out of one hypothesis.

    registered  whether it stands in an intact registration
    causal      whether all runs behind it give a likelihood
    missing     why there is no difference at all; empty where there is one
    """

    hypothesis: Hypothesis
    judgement: Judgement
    per_seed: Mapping[int, float]
    registered: bool
    causal: bool
    missing: str


@dataclass(frozen=True)
class GateOutcome:
    """What came out of one gate: the mean over seeds with its 95 % interval, NaN where no run tells it."""

    gate: Gate
    estimate: Estimate
    passed: bool


@dataclass(frozen=True)
class Declared:
    """All that a study declared, and what came of it.

    registration  None where there is none
    changes       what the study's spec says otherwise than it was registered, in words
    waiting       how many runs that a hypothesis is about have not ended: until then no verdict is one
    """

    outcomes: tuple[Outcome, ...]
    gates: tuple[GateOutcome, ...]
    registration: Registration | None
    changes: tuple[str, ...]
    waiting: int = 0

    @property
    def registered(self) -> bool:
        """Whether an intact registration says what was declared."""
        return self.registration is not None and self.registration.intact

    @property
    def closed(self) -> list[str]:
        """The gates that were not passed."""
        return [one.gate.name for one in self.gates if not one.passed]

    def verdict(self, outcome: Outcome) -> str:
        """confirmed, refuted, undecided, or that the gates leave it without an answer; "so far" while runs remain."""
        found = f"{NO_ANSWER}: {', '.join(self.closed)}" if self.closed else outcome.judgement.verdict
        return f"{found} so far" if self.waiting else found


def declared(study: Study, path: Path | None = None) -> Declared | None:
    """The verdicts of a study; None where it declares nothing.

    path: its registration, where that is not in its folder. An intact registration says what is judged: its
    hypotheses as they were registered, over its seeds. Those of the spec that it lacks are judged beside them, in a
    family with them, over all seeds. Raises ValueError where a file is damaged.
    """
    place = path or study.folder / REGISTERED
    registration = read_registration(place) if path or place.exists() else None
    hypotheses = declared_in(study.spec, Hypothesis, study.folder / SPEC)
    gates = declared_in(study.spec, Gate, study.folder / SPEC)
    if not hypotheses and not gates and registration is None:
        return None
    if registration is None or not registration.intact:
        outcomes = _judged(study, hypotheses, study.seeds, False)
        waiting = _waiting(study, hypotheses, study.seeds)
        return Declared(tuple(outcomes), _gated(study, gates, study.seeds), registration, (), waiting)
    seeds = registration.spec["seeds"]
    outcomes = _judged(study, registration.hypotheses, seeds, True)
    known = {one.name for one in registration.hypotheses}
    late = [one for one in hypotheses if one.name not in known]
    added = [
        one for one in _judged(study, (*registration.hypotheses, *late), study.seeds, False) if one.hypothesis in late
    ]
    return Declared(
        (*outcomes, *added),
        _gated(study, registration.gates, seeds),
        registration,
        tuple(changes(registration.spec, study.spec)),
        _waiting(study, registration.hypotheses, seeds),
    )


def _waiting(study: Study, hypotheses: Iterable[Hypothesis], seeds: Collection[int]) -> int:
    """How many runs of the arms of `hypotheses` have not ended; who looks before that may stop where it pleases."""
    arms = {arm for one in hypotheses for arm in (one.arm, _against(study, one)) if arm}
    ended = {(run.arm, run.seed) for run in study.ended}
    return sum((arm, seed) not in ended for arm in arms for seed in seeds)


def value_of(run: Run, one: Measured) -> float | None:
    """What a finished run measured; None where it did not."""
    if run.result is None:
        return None
    if one.metric == "test_bpb":
        return run.result.test_bpb
    if one.metric == "truncation_cost":
        return run.result.truncation_cost(one.bytes or 0)
    if one.metric == "val_bpb" and one.step is None:
        return run.result.final_val_bpb
    step = run.result.steps if one.step is None else one.step
    row = next((row for row in run.evaluations if row.step == step), None)
    return None if row is None else row.val_bpb if one.metric == "val_bpb" else row.excess_bpb


def _judged(study: Study, hypotheses: Iterable[Hypothesis], seeds: Collection[int], registered: bool) -> list[Outcome]:
    hypotheses, found = list(hypotheses), dict[str, Outcome]()
    for members in families(hypotheses).values():
        differences = {one.name: _differences(study, one, seeds) for one in members}
        claims = {one.name: Claimed(one.claim, one.margin, tuple(differences[one.name].values())) for one in members}
        judgements = judge(claims, members[0].alpha)
        for one in members:
            per_seed = differences[one.name]
            runs = [run for run in study.finished() if run.arm in (one.arm, _against(study, one))]
            causal = all(run.result.causal for run in runs if run.result)
            missing = "" if per_seed else _missing(study, one, seeds)
            found[one.name] = Outcome(one, judgements[one.name], per_seed, registered, causal, missing)
    return [found[one.name] for one in hypotheses]


def _differences(study: Study, one: Hypothesis, seeds: Collection[int]) -> dict[int, float]:
    arm, other = (_values(study, name, one, seeds) for name in (one.arm, _against(study, one)))
    return {seed: arm[seed] - other[seed] for seed in sorted(arm.keys() & other.keys())}


def _values(study: Study, arm: str | None, one: Measured, seeds: Collection[int]) -> dict[int, float]:
    found = {run.seed: value_of(run, one) for run in study.finished() if run.arm == arm and run.seed in seeds}
    return {seed: value for seed, value in found.items() if value is not None}


def _against(study: Study, one: Hypothesis) -> str | None:
    return one.against or (study.against(one.arm) if one.arm in study.arms else None)


def _missing(study: Study, one: Hypothesis, seeds: Collection[int]) -> str:
    """Why a hypothesis has no difference."""
    done = [{run.seed for run in study.finished() if run.arm == arm} for arm in (one.arm, _against(study, one))]
    return f"its runs tell no {one.metric}" if done[0] & done[1] & set(seeds) else "no finished seed in common"


def _gated(study: Study, gates: Iterable[Gate], seeds: Collection[int]) -> tuple[GateOutcome, ...]:
    return tuple(_gate(one, _values(study, one.arm, one, seeds)) for one in gates)


def _gate(gate: Gate, values: Mapping[int, float]) -> GateOutcome:
    found = mean_interval(values.values()) if values else Estimate(0, *[math.nan] * 4)
    low, high = (found.mean if limit is None else limit for limit in (gate.at_least, gate.at_most))
    return GateOutcome(gate, found, low <= found.mean <= high)
