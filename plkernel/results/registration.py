"""Pre-registration of a study: hypotheses and gates written down before its runs, and the verdicts
on them.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import chdtri

from plkernel.common.environment import installed, source_state
from plkernel.common.files import (
    REGISTERED,
    RESULT,
    check_file,
    differences,
    load_json,
    run_folder,
    save_json,
)
from plkernel.config.schema import Gate, Hypothesis, Measured, families
from plkernel.config.study import Spec, with_defaults
from plkernel.results import statistics as stats
from plkernel.results.statistics import MOST_FLIPPED, Estimate, Judgement
from plkernel.results.study import Count, Run, Study, StudyFile, part, read_study, validated

LEAST_POWER, LEAST_TARGETS = 0.5, 16_000
RULES = (
    "Differences are taken seed by seed, the arm minus the one it is compared with.",
    (
        "One-sided tests: exact sign flips where every member of a family that has differences has"
        f" enough seeds to be rejected and {MOST_FLIPPED} at most, else the paired t test."
    ),
    (
        "Holm's correction is over all hypotheses of a family, for confirmations and for"
        " refutations apart."
    ),
    (
        "Confirmed if p against its opposite is at most alpha, refuted if p against it is, else"
        " undecided."
    ),
    (
        "Seeds of which a run fails, diverges or takes another number of steps are left out, and"
        " counted."
    ),
    (
        "A gate is passed if both 95 % intervals of its mean, over seeds (t) and over target bytes"
        f" where rows tell it, lie within its limits, over at least {LEAST_TARGETS:,} target bytes."
    ),
    "If a gate is not passed, or not known, nothing is answered.",
)
"""The rules of decision, which a registration states beside its spec."""
RegisteredFile = part(
    **{
        "spec": (StudyFile, ...),
        "rules": (list[str], ...),
        "runs_before": (Count, ...),
        "sha256": (str, ...),
    },
    **{"plkernel": str, "commit": str, "dirty": bool},
)


# Registrations


@dataclass(frozen=True)
class Registration:
    """A registration: its content but for the fingerprint, the spec in it, and True if the
    fingerprint agrees.
    """

    content: Mapping[str, Any]
    spec: Mapping[str, Any]
    sha256: str
    intact: bool


def place_of(spec: Spec) -> Path:
    """The file of a study's registration, unless another is named: runs/registered/NAME.json."""
    return Path("runs/registered") / f"{spec.name}.json"


def powers(spec: Spec, pilot: Path) -> list[dict[str, Any]]:
    """The power of every hypothesis of `spec`, corrected for its family, for the spread that the
    study `pilot` shows.

    sd      standard deviation of paired differences: of the same two arms, else the median over all
    that are compared
    seeds   the number of differences behind it
    up_to   upper 95 % limit of it, by chi square with seeds - 1 degrees
    true    the difference assumed: 0 for equal, else twice the margin
    power   the chance of a confirmation then; that of lower and higher without a margin is alpha,
    so None
    least   the same where the standard deviation is `up_to`
    needed  of lower and higher, the difference that is confirmed 8 times in 10; None for equal
    """
    study, rows = read_study(pilot), list[dict[str, Any]]()
    of_family, n = families(spec.hypotheses), len(spec.seeds)

    def spread(one: Measured, arm: str, other: str | None) -> tuple[float, int]:
        own, base = (_values(study, name, one, study.seeds) for name in (arm, other))
        found = stats.paired_difference(own, base)
        if found.standard_deviation > 0 or one.step is None:
            return found.standard_deviation, found.n
        return spread(one.model_copy(update={"step": None}), arm, other)

    for one in spec.hypotheses:
        sd, seeds = spread(one, *_pair(study, one))
        if not sd > 0:
            known = [
                of for arm in study.arms if (of := spread(one, arm, study.against(arm)))[0] > 0
            ]
            sd = float(np.median([one for one, _ in known] or [math.nan]))
            seeds = min((number for _, number in known), default=0)
        if not sd > 0 or n < 2:
            raise ValueError(
                f"pilot {pilot}: no spread for {one.name!r}; it takes two seeds there, and two in"
                " the spec"
            )
        sign, m = (
            {"lower": -1.0, "equal": 0.0, "higher": 1.0}[one.claim],
            len(of_family[one.family]),
        )
        row: dict[str, Any] = {
            "name": one.name,
            "sd": sd,
            "true": 2 * sign * one.margin,
            "power": None,
            "needed": None,
        }
        row |= {
            "seeds": seeds,
            "up_to": sd * math.sqrt((seeds - 1) / chdtri(seeds - 1, 0.95)),
            "least": None,
        }
        if one.margin:
            given = ((key, row[of]) for key, of in (("power", "sd"), ("least", "up_to")))
            row |= {
                key: stats.power(one.claim, one.margin, row["true"], of, n, m, one.alpha)
                for key, of in given
            }
        if sign:
            row["needed"] = sign * (one.margin + sd * stats.effect_needed(n, m, one.alpha))
        rows.append(row)
    return rows


def power_text(row: Mapping[str, Any]) -> str:
    """The power of a hypothesis in words: "0.18 if the difference is 0; spread 0.01 of 4 seeds, up
    to 0.03: then 0".
    """
    true = f"{row['true']:+g}" if row["true"] else "0"
    known = "" if row["power"] is None else f"{row['power']:.2f} if the difference is {true}"
    found = f"0.80 if it is {row['needed']:+.2g}" if row["needed"] is not None else ""
    then = "" if row["least"] is None else f": then {row['least']:.2f}"
    of = f"spread {row['sd']:.2g} of {row['seeds']} seeds, up to {row['up_to']:.2g}{then}"
    return "; ".join(filter(None, [known, found, of]))


def register(
    spec: Spec, path: Path, out: Path, pilot: Path | None = None, underpowered: bool = False
) -> bool:
    """Write the registration of a study; return False where the same one is there already, which is
    left unchanged.

    out: the folder of the study, whose ended runs are counted. Raises ValueError for a spec without
    hypotheses, where `path` holds another registration, and unless `underpowered` where for the
    spread of `pilot` an equivalence has a power below LEAST_POWER.
    """
    if not spec.hypotheses or len(spec.seeds) < 2:
        lacks = (
            "declares nothing to decide; give it [[hypotheses]]"
            if spec.seeds[1:]
            else "has one seed; give it two"
        )
        raise ValueError(f"register: spec {spec.name!r} {lacks}")
    stated_power = powers(spec, pilot) if pilot else None
    for row in stated_power or ():
        if row["needed"] is None and row["power"] < LEAST_POWER and not underpowered:
            raise ValueError(
                f"register: {row['name']!r} has power {power_text(row)}: add seeds or widen the"
                " margin, or give --underpowered"
            )
    check_file(path, "register")
    stated = spec.model_dump(mode="json")
    if path.exists():
        before = read_registration(path, "register")
        if told := "; ".join(changes(before.spec, stated)[:3]):
            raise ValueError(
                f"register {path}: holds another registration ({told}), which is never overwritten:"
                " name another file"
            )
        return False
    for gate in spec.gates:
        if (targets := _targets(stated, gate)) < LEAST_TARGETS:
            raise ValueError(
                f"register: gate {gate.name!r} rests on {targets:,} target bytes, {LEAST_TARGETS:,}"
                " are needed: raise its number of windows in [train]"
            )
    content = {
        "study": spec.name,
        "plkernel": installed("plkernel"),
        **source_state(),
        "runs_before": sum(
            (run_folder(out, arm, seed) / RESULT).exists()
            for arm in spec.arms
            for seed in spec.seeds
        ),
        "power": stated_power,
        "gate_rule": "limit",
        "rules": RULES,
        "spec": stated,
    }
    save_json(path, {**content, "sha256": fingerprint(content)})
    return True


def registration_of(spec: Spec, out: Path) -> Registration | None:
    """The registration that a study keeps in its folder `out`; None where there is none of its
    name.

    Raises ValueError where it was changed after it was written, and where the folder holds another
    one.
    """
    path, own = place_of(spec), out / REGISTERED
    one = read_registration(path, "registration") if path.exists() else None
    if one and own.exists() and read_registration(own) != one:
        raise ValueError(
            f"registration {path}: is not the one in {out}; bring that back, or name another out"
        )
    return one


def read_registration(path: Path, intact: str = "") -> Registration:
    """The registration at `path`; ValueError, naming the file, where there is none.

    intact: heads the message where it was changed after it was written; if empty, that is not
    refused.
    """
    content = validated(path, RegisteredFile, load_json(path))
    sha256, spec = content.pop("sha256"), content["spec"]
    one = Registration(content, spec, sha256, sha256 == fingerprint(content))
    if intact and not one.intact:
        raise ValueError(
            f"{intact} {path}: was changed after it was written; bring it back, or remove it"
        )
    return one


def fingerprint(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content as JSON, keys sorted and without spaces."""
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def changes(registered: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences of a spec from the registered one, in words; rates that were to be searched
    for may be settled.

    An option that one of them is too old for is at its default there.
    """
    registered, now = with_defaults(registered), with_defaults(now)
    searching = (registered.get("tuning") or {}).get("rates")
    searched = [
        name
        for name, arm in registered["arms"].items()
        if searching and arm.get("learning_rate") is None
    ]

    def named(spec: Mapping[str, Any]) -> dict[str, Any]:
        lists: dict[str, dict[str, Any]] = {"hypotheses": {}, "gates": {}}
        for key, ones in lists.items():
            for one in spec.get(key) or ():
                ones[one["name"]] = {
                    name: value for name, value in one.items() if value is not None
                }
        arms = {
            name: {**arm, "learning_rate": None} if name in searched else arm
            for name, arm in spec["arms"].items()
        }
        return {**spec, **lists, "arms": arms}

    return differences(named(registered), named(now))


# Hypotheses and gates in words


def statement(one: Measured) -> str:
    """The options of a hypothesis or gate as its spec gives them: "arm short, against log-spaced,
    claim lower".
    """
    given = one.model_dump(exclude={"name", "family"}, exclude_defaults=True)
    return ", ".join(f"{name} {value}" for name, value in ({"metric": one.metric} | given).items())


def counted(number: int, one: str = "hypothesis", several: str = "hypotheses") -> str:
    """A number and its noun."""
    return f"{number} {one if number == 1 else several}"


# Verdicts


class Outcome(NamedTuple):
    """The result of one hypothesis.

    causal  True if all runs behind it give a likelihood
    """

    hypothesis: Hypothesis
    judgement: Judgement
    per_seed: Mapping[int, float]
    causal: bool


class GateOutcome(NamedTuple):
    """The result of one gate: the mean over seeds with its 95 % t interval, NaN where no run
    measured it.

    error    standard error of that mean over target bytes, which all seeds share; NaN where rows do
    not tell it
    targets  how many bytes are predicted
    rule     limit: both intervals lie within the limits, over LEAST_TARGETS or more; mean: the mean
    does
    """

    gate: Gate
    estimate: Estimate
    error: float
    targets: int
    rule: str

    def _within(self, *values: float) -> bool:
        low, high = self.gate.at_least, self.gate.at_most
        return all(
            (value if low is None else low) <= value <= (value if high is None else high)
            for value in values
        )

    @property
    def passed(self) -> bool:
        """True if the gate is passed by its rule."""
        return self.holds if self.rule == "limit" else self._within(self.estimate.mean)

    @property
    def holds(self) -> bool:
        """True if it is passed by the rule of limits."""
        one, reach = self.estimate, 0.0 if math.isnan(self.error) else 1.96 * self.error
        return self.targets >= LEAST_TARGETS and self._within(
            one.low, one.high, one.mean - reach, one.mean + reach
        )

    @property
    def margin(self) -> str:
        """The distance to the nearest limit in standard errors: "z = 1.5 over 1,024 target
        bytes".
        """
        limits = [limit for limit in (self.gate.at_least, self.gate.at_most) if limit is not None]
        z = min(
            (abs(self.estimate.mean - limit) / self.error for limit in limits if self.error > 0),
            default=math.nan,
        )
        return f"{'' if math.isnan(z) else f'z = {z:.1f} '}over {self.targets:,} target bytes"


@dataclass(frozen=True)
class Declared:
    """Everything that a study declared, and the verdicts.

    registration  None where there is none
    changes       the differences of the study's spec from the registered one, in words
    waiting       number of runs behind a hypothesis or gate that have not ended: until then no
    verdict is final
    lost          number of such runs that failed, diverged or took another number of steps than the
    spec says
    before        number of runs that had ended or begun when the study was registered
    """

    outcomes: tuple[Outcome, ...]
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
    def closed(self) -> list[str]:
        """The gates that were not passed."""
        return [one.gate.name for one in self.gates if not one.passed]

    def verdict(self, outcome: Outcome, gates: bool = True) -> str:
        """confirmed, refuted, undecided, or "cannot answer" and the closed `gates`; "so far" while
        runs remain.
        """
        names = f": {', '.join(self.closed)}" if gates else ""
        said = f"cannot answer{names}" if self.closed else outcome.judgement.verdict
        return f"{said} so far" if self.waiting else said

    def basis(self, family: str) -> str:
        """The test that decides a family: "family main: 2 hypotheses, alpha 0.05, by exact sign
        flips".
        """
        members = [one for one in self.outcomes if one.hypothesis.family == family]
        test = {"t": "the paired t test", "sign flips": "exact sign flips"}[
            members[0].judgement.test
        ]
        return (
            f"family {family}: {counted(len(members))}, alpha {members[0].hypothesis.alpha:g}, by"
            f" {test}"
        )

    @property
    def ahead(self) -> bool:
        """True if what was declared is registered, and no run had begun before."""
        return self.registered and not self.before

    @property
    def headline(self) -> str:
        """The number of hypotheses by verdict, in one sentence."""
        if not self.outcomes:
            return "No hypothesis is declared."
        verdicts = [one.judgement.verdict for one in self.outcomes]
        many = (
            f"{counted(len(verdicts))} declared"
            f" {'before the runs' if self.ahead else 'in the spec'}"
        )
        early = (
            f"Preliminary, {counted(self.waiting, 'run is', 'runs are')} still to end: "
            if self.waiting
            else ""
        )
        if self.closed:
            gates = ", ".join(f"gate {name!r} is not passed" for name in self.closed)
            text = f"{early}the study cannot answer its {many}: {gates}."
        else:
            counts = (
                f"{verdicts.count(verdict)} {verdict}"
                for verdict in ("confirmed", "refuted", "undecided")
            )
            text = f"{early}of {many}: {', '.join(counts)}."
        left = (
            f" Without {counted(self.lost, 'run', 'runs')} that did not end as planned."
            if self.lost
            else ""
        )
        return text[0].upper() + text[1:] + left

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
        told = one.content
        made = "".join(
            f", {name} {told[name][:12]}" for name in ("commit", "plkernel") if told.get(name)
        )
        same = "" if self.changes else "; the spec is as it was registered"
        texts = [f"Registered: sha256 {one.sha256[:12]}, verified{made}{same}."]
        if self.before:
            texts.append(
                f"{counted(self.before, 'run', 'runs')} had ended or begun before: results may have"
                " been known."
            )
        if fallen := [
            f"{gate.gate.name!r} ({gate.margin})"
            for gate in self.gates
            if gate.passed and not gate.holds
        ]:
            texts.append(
                "Its gates go by their means, as registered. By the limits of their 95 %"
                f" intervals, over at least {LEAST_TARGETS:,} target bytes, these would not be"
                f" passed: {'; '.join(fallen)}."
            )
        if self.changes:
            texts += [
                "Changed since, and judged as registered, over the registered seeds:"
                f" {'; '.join(self.changes)}."
            ]
        return texts

    def to_dict(self) -> dict[str, Any]:
        """For table.json."""
        one = self.registration
        return {
            "summary": [self.headline, *self.provenance],
            "registration": (
                one and {"sha256": one.sha256, "intact": one.intact, "changes": self.changes}
            ),
            "gates": [
                {**dict(gate.gate), **vars(gate.estimate), "passed": gate.passed}
                for gate in self.gates
            ],
            "hypotheses": [
                dict(each.hypothesis)
                | vars(each.judgement)
                | {
                    "verdict": self.verdict(each),
                    "registered": self.registered,
                    "per_seed": each.per_seed,
                }
                for each in self.outcomes
            ],
        }


def declared(study: Study) -> Declared | None:
    """The verdicts of a study; None where it declares nothing.

    An intact registration decides what is judged: its hypotheses as registered, over its seeds, and
    no others. Raises ValueError where a file is damaged.
    """
    place = study.folder / REGISTERED
    registration = read_registration(place) if place.exists() else None
    intact = registration if registration and registration.intact else None
    stated = intact.spec if intact else study.spec
    hypotheses = tuple(map(Hypothesis.model_validate, stated.get("hypotheses") or ()))
    gates = tuple(map(Gate.model_validate, stated.get("gates") or ()))
    if not hypotheses and not gates and registration is None:
        return None
    seeds, differing = stated["seeds"], changes(stated, study.spec) if intact else []
    outcomes = dict[str, Outcome]()
    for members in families(hypotheses).values():
        paired = dict[str, Mapping[int, float]]()
        for one in members:
            own, base = (_values(study, name, one, seeds) for name in _pair(study, one))
            paired[one.name] = stats.paired_difference(own, base).per_seed
        claims = {
            one.name: stats.Claimed(one.claim, one.margin, [*paired[one.name].values()])
            for one in members
        }
        judgements = stats.judge(claims, members[0].alpha)
        for one in members:
            causal = all(
                run.result.causal
                for run in study.finished()
                if run.result and run.arm in _pair(study, one)
            )
            outcomes[one.name] = Outcome(one, judgements[one.name], paired[one.name], causal)
    arms = {arm for one in hypotheses for arm in _pair(study, one) if arm} | {
        one.arm for one in gates
    }
    runs = {(run.arm, run.seed): run for run in study.ended if run.arm in arms}
    waiting = sum((arm, seed) not in runs for arm in arms for seed in seeds)
    lost = sum(not _whole(study, run) for run in runs.values() if run.seed in seeds)
    before = intact.content["runs_before"] if intact else 0
    before += sum(
        run.environment.get("registration", intact.sha256) != intact.sha256
        for run in study.ended
        if intact
    )
    rule = intact.content.get("gate_rule", "mean") if intact else "limit"
    passed = (_gate(study, stated, one, rule) for one in gates)
    judged = tuple(outcomes[one.name] for one in hypotheses)
    return Declared(judged, tuple(passed), registration, tuple(differing), waiting, lost, before)


def _whole(study: Study, run: Run) -> bool:
    """True if a run finished after as many steps as the spec of the study says."""
    train = _train(study.spec, run.arm)
    steps = train.get("steps") or (train.get("bytes") or 0) // (
        (train.get("batch") or 1) * (train.get("context") or 1)
    )
    return run.result is not None and run.result.steps == (steps or run.result.steps)


def _train(spec: Mapping[str, Any], arm: str) -> dict[str, Any]:
    return (spec.get("train") or {}) | (spec["arms"].get(arm, {}).get("train") or {})


def _gate(study: Study, stated: Mapping[str, Any], one: Gate, rule: str) -> GateOutcome:
    """The result of a gate; ahead of n-grams its limit is the best of their losses, NaN if not all
    were counted.
    """
    errors, seeds = list[float](), stated["seeds"]
    if one.ahead_of:
        counts = study.reference(one.arm)
        losses = getattr(counts, one.metric)[: one.ahead_of] if counts else []
        one = one.model_copy(
            update={"at_most": min(losses) if len(losses) == one.ahead_of else math.nan}
        )
    for result in (
        run.result for run in study.finished(one.arm) if run.result and run.seed in seeds
    ):
        known, error = result.truncation, None
        if one.metric == "truncation_cost" and known:
            error = dict(zip(known.given, getattr(known, "standard_error", ()), strict=False)).get(
                one.bytes or 0
            )
        elif one.metric == "val_bpb" and one.step is None:
            error = result.final_val_error
        errors += [] if error is None else [error]
    estimate = stats.mean_interval(_values(study, one.arm, one, seeds).values())
    targets = _targets(stated, one, *(run.config["corpus"] for run in study.finished(one.arm)[:1]))
    return GateOutcome(one, estimate, float(np.mean(errors)) if errors else math.nan, targets, rule)


def _targets(spec: Mapping[str, Any], one: Gate, corpus: Mapping[str, Any] | None = None) -> int:
    """The number of bytes that a run predicts for a gate: one of a window for the cost of
    truncation, else all.

    corpus: of a run, which tells its size; windows beyond it do not exist.
    """
    name = {"truncation_cost": "truncation_windows", "test_bpb": "test_windows"}.get(
        one.metric, "eval_windows"
    )
    train, corpus = _train(spec, one.arm), corpus or {}
    if one.metric == "val_bpb" and one.step is None and train.get("final_windows"):
        name = "final_windows"
    number, context = int(train.get(name) or 0), int(train.get("context") or 0)
    share = corpus.get("validation" if name in ("final_windows", "eval_windows") else "test")
    if share and corpus.get("size"):
        size = int(share * corpus["size"])
        number = min(
            number, size - context if one.metric == "truncation_cost" else size // (context + 1)
        )
    return number * (1 if one.metric == "truncation_cost" else context)


def _pair(study: Study, one: Hypothesis) -> tuple[str, str | None]:
    """The arm of a hypothesis, and the one that is subtracted."""
    return one.arm, one.against or (study.against(one.arm) if one.arm in study.arms else None)


def _values(study: Study, arm: str | None, one: Measured, seeds: Sequence[int]) -> dict[int, float]:
    """The measurement in every finished run of an arm that made it, by seed."""
    values = {}
    for run in (run for run in study.finished() if run.arm == arm and run.seed in seeds):
        result: Any = run.result
        if one.step is None and not _whole(study, run):
            continue
        row = {row.step: row for row in run.evaluations}.get(
            result.steps if one.step is None else one.step
        )
        if one.metric in ("test_bpb", "truncation_cost"):
            values[run.seed] = (
                result.test_bpb
                if one.metric == "test_bpb"
                else result.truncation_cost(one.bytes or 0)
            )
        else:
            final = one.metric == "val_bpb" and one.step is None
            values[run.seed] = result.final_val_bpb if final else getattr(row, one.metric, None)
    return {seed: value for seed, value in values.items() if value is not None}
