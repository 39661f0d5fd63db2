"""Pre-registration of a study: hypotheses and gates written down before its runs, and the verdicts on them."""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from plkernel.common.environment import installed, source_state
from plkernel.common.files import check_file, load_json, same, save_json, shown
from plkernel.common.layout import REGISTERED, RESULT, SPEC, run_folder
from plkernel.config.schema import Gate, Hypothesis, Measured, explained, families
from plkernel.config.study import Spec, with_defaults
from plkernel.results import statistics as stats
from plkernel.results.statistics import MOST_FLIPPED, Estimate, Judgement
from plkernel.results.study import Count, Run, Study, StudyFile, part, validated

UNIT = "bits per byte"
TESTS = {"sign flips": "exact sign flips", "t": "the paired t test"}


# Registrations

RegisteredFile = part(
    **{"spec": (StudyFile, ...), "rules": (list[str], ...), "runs_before": (Count, ...), "sha256": (str, ...)},
    **{"plkernel": str, "commit": str, "dirty": bool},
)


@dataclass(frozen=True)
class Registration:
    """A registration: its content but for the fingerprint, the spec in it, and True if the fingerprint agrees."""

    content: Mapping[str, Any]
    spec: Mapping[str, Any]
    sha256: str
    intact: bool
    hypotheses: tuple[Hypothesis, ...]
    gates: tuple[Gate, ...]


def place_of(spec: Spec) -> Path:
    """The file of a study's registration, unless another is named: runs/registered/NAME.json."""
    return Path("runs/registered") / f"{spec.name}.json"


def register(spec: Spec, path: Path, out: Path) -> bool:
    """Write the registration of a study; return False where the same one is there already, which is left unchanged.

    out: the folder of the study, whose ended runs are counted. Raises ValueError for a spec without hypotheses, and
    where `path` holds another registration.
    """
    if not spec.hypotheses:
        raise ValueError(f"register: spec {spec.name!r} declares nothing to decide; give it [[hypotheses]]")
    check_file(path, "register")
    stated = spec.model_dump(mode="json")
    if path.exists():
        before = read_registration(path)
        if not before.intact:
            raise ValueError(f"register {path}: was changed after it was written; bring it back, or name another file")
        if differing := changes(before.spec, stated):
            told = "; ".join(differing[:3])
            raise ValueError(
                f"register {path}: holds another registration ({told}), which is never overwritten: name another file"
            )
        return False
    content = {
        "study": spec.name,
        "plkernel": installed("plkernel"),
        **source_state(),
        "runs_before": sum((run_folder(out, arm, seed) / RESULT).exists() for arm in spec.arms for seed in spec.seeds),
        "rules": rules(spec.hypotheses, spec.gates, spec.seeds),
        "spec": stated,
    }
    save_json(path, {**content, "sha256": fingerprint(content)})
    return True


def registration_of(spec: Spec, out: Path) -> Registration | None:
    """The registration that a study keeps in its folder `out`; None where there is none of its name.

    Raises ValueError where it was changed after it was written, and where the folder holds another one.
    """
    path, own = place_of(spec), out / REGISTERED
    if not path.exists():
        return None
    one = read_registration(path)
    if not one.intact:
        raise ValueError(f"registration {path}: was changed after it was written; bring it back, or remove it")
    if own.exists() and read_registration(own) != one:
        raise ValueError(f"registration {path}: is not the one in {out}; bring that back, or name another out")
    return one


def keep(one: Registration | None, out: Path) -> None:
    """Write a registration, if there is one, to the folder of a study or a record."""
    if one is not None:
        save_json(out / REGISTERED, {**one.content, "sha256": one.sha256})


def read_registration(path: Path) -> Registration:
    """The registration at `path`; ValueError, naming the file, where there is none."""
    content = validated(path, RegisteredFile, load_json(path))
    sha256, spec = content.pop("sha256"), content["spec"]
    return Registration(content, spec, sha256, sha256 == fingerprint(content), *declared_in(spec, path))


def declared_in(spec: Mapping[str, Any], path: Path) -> tuple[tuple[Hypothesis, ...], tuple[Gate, ...]]:
    """The hypotheses and gates of a saved spec; ValueError, naming its file, where they are damaged."""
    parts: list[Any] = []
    for key, kind in (("hypotheses", tuple[Hypothesis, ...]), ("gates", tuple[Gate, ...])):
        try:
            parts.append(TypeAdapter(kind).validate_python(spec.get(key) or ()))
        except ValidationError as error:
            raise ValueError(f"{path}: {explained(error, Spec, key)}") from None
    return parts[0], parts[1]


def fingerprint(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content as JSON, keys sorted and without spaces."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def changes(registered: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences of a spec from the registered one, in words; rates that were to be searched for may be settled.

    An option that one of them is too old for is at its default there.
    """
    registered, now = with_defaults(registered), with_defaults(now)
    searching = (registered.get("tuning") or {}).get("rates")
    searched = [name for name, arm in registered["arms"].items() if searching and arm.get("learning_rate") is None]

    def named(spec: Mapping[str, Any]) -> dict[str, Any]:
        lists = {key: {one["name"]: one for one in spec.get(key) or ()} for key in ("hypotheses", "gates")}
        arms = {name: {**arm, "learning_rate": None} if name in searched else arm for name, arm in spec["arms"].items()}
        return {**spec, **lists, "arms": arms}

    return list(_differing(named(registered), named(now)))


def _differing(old: Any, new: Any, place: str = "") -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            yield from _differing(old.get(key), new.get(key), f"{place}.{key}".lstrip("."))
    elif isinstance(old or new, Mapping) and not (old and new):
        yield f"{place} {'was not declared' if new else 'was declared and is gone'}"
    elif isinstance(old, list) and isinstance(new, list) and sorted(map(str, old)) != sorted(map(str, new)):
        parts = ([one for one in new if one not in old], "added"), ([one for one in old if one not in new], "gone")
        yield f"{place}: " + " and ".join(f"{', '.join(map(shown, some))} {word}" for some, word in parts if some)
    elif not same(old, new):
        yield f"{place} was {shown(old)}, is {shown(new)}"


# Hypotheses, gates and rules in words


def statement(one: Hypothesis) -> str:
    """The claim: "power-law is lower than log-spaced by more than 0.005 bits per byte (validation at the end)"."""
    margin = f"{one.margin:g} {UNIT}"
    if one.claim == "equal":
        return f"{one.arm} and {one.against} differ by less than {margin} ({_measure(one)})"
    more = f" by more than {margin}" if one.margin else ""
    return f"{one.arm} is {one.claim} than {one.against}{more} ({_measure(one)})"


def _measure(one: Measured) -> str:
    when = "at the end" if one.step is None else f"at step {one.step:,}"
    return {
        "val_bpb": f"validation {when}",
        "test_bpb": "test",
        "excess_bpb": f"validation above the floor of its corpus, {when}",
        "truncation_cost": f"cost of being given {one.bytes} {'byte' if one.bytes == 1 else 'bytes'} only",
    }[one.metric]


def requirement(gate: Gate) -> str:
    """The demand of a gate: "log-spaced at most 4 bits per byte (validation at the end), mean over seeds"."""
    limits = {"at least": gate.at_least, "at most": gate.at_most}
    asked = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if limit is not None)
    return f"{gate.arm} {asked} {UNIT} ({_measure(gate)}), mean over seeds"


def rules(hypotheses: Iterable[Hypothesis], gates: Iterable[Gate], seeds: Sequence[int]) -> list[str]:
    """The rules of decision, a sentence or two each: what is compared, the tests, every hypothesis, every gate."""
    return [
        "Differences are taken seed by seed, the arm minus the one it is compared with, over seeds "
        f"{', '.join(map(str, seeds))}.",
        *(
            f"Family {name}: {counted(len(members), 'hypothesis', 'hypotheses')}, alpha {members[0].alpha:g}, "
            "one-sided tests. Exact sign flips decide where every member that has differences has "
            f"{stats.seeds_for(len(members), members[0].alpha)} to {MOST_FLIPPED} seeds, else the paired t test does."
            for name, members in families(hypotheses).items()
        ),
        "Holm's correction is over all hypotheses of a family, for confirmations and for refutations apart. A "
        "hypothesis neither confirmed nor refuted is undecided.",
        *(
            f"Hypothesis: {one.name}. {statement(one)}. Confirmed if p against its opposite is at most {one.alpha:g} "
            "after the correction, refuted if p against it is."
            for one in hypotheses
        ),
        *(f"Gate: {one.name}. {requirement(one)}. If not, or if not known, nothing is answered." for one in gates),
    ]


def prospects(hypotheses: Iterable[Hypothesis], seeds: int) -> list[str]:
    """For every family: can so many seeds decide at all, by which test, and how many would suffice."""
    texts = []
    for name, members in families(hypotheses).items():
        m, alpha = len(members), members[0].alpha
        enough = stats.seeds_for(m, alpha)
        least = f"(smallest p{f' x {m} =' if m > 1 else ''} {m * 2.0**-seeds:.2g}, alpha {alpha:g})"
        if seeds < 2:
            told = f"cannot decide, one seed shows no spread; 2 could by the t test, {enough} by exact sign flips"
        elif stats.deciding_test([seeds], m, alpha) == "sign flips":
            told = f"can decide by exact sign flips {least}"
        elif seeds > MOST_FLIPPED:
            told = "can decide by the t test"
        else:
            told = f"cannot decide by exact sign flips {least}, {enough} seeds could; the t test decides, which needs "
            told += "normal differences"
        head = f"family {name}: {counted(m, 'hypothesis', 'hypotheses')}, {counted(seeds, 'seed', 'seeds')}"
        texts.append(f"{head}: {told}")
    return texts


def counted(number: int, one: str, several: str) -> str:
    """A number and its noun."""
    return f"{number} {one if number == 1 else several}"


# Verdicts


@dataclass(frozen=True)
class Outcome:
    """The result of one hypothesis.

    registered  True if it stands in an intact registration
    causal      True if all runs behind it give a likelihood
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
    """The result of one gate: the mean over seeds with its 95 % interval, NaN where no run measured it."""

    gate: Gate
    estimate: Estimate

    @property
    def passed(self) -> bool:
        """True if the mean lies within the limits."""
        mean, low, high = self.estimate.mean, self.gate.at_least, self.gate.at_most
        return (mean if low is None else low) <= mean <= (mean if high is None else high)


@dataclass(frozen=True)
class Declared:
    """Everything that a study declared, and the verdicts.

    registration  None where there is none
    changes       the differences of the study's spec from the registered one, in words
    waiting       number of runs behind a hypothesis that have not ended: until then no verdict is final
    """

    outcomes: tuple[Outcome, ...]
    gates: tuple[GateOutcome, ...]
    registration: Registration | None
    changes: tuple[str, ...]
    waiting: int = 0

    @property
    def registered(self) -> bool:
        """True if there is an intact registration."""
        return self.registration is not None and self.registration.intact

    @property
    def closed(self) -> list[str]:
        """The gates that were not passed."""
        return [one.gate.name for one in self.gates if not one.passed]

    def verdict(self, outcome: Outcome, gates: bool = True) -> str:
        """confirmed, refuted, undecided, or "cannot answer" and the closed `gates`; "so far" while runs remain."""
        names = f": {', '.join(self.closed)}" if gates else ""
        said = f"cannot answer{names}" if self.closed else outcome.judgement.verdict
        return f"{said} so far" if self.waiting else said

    def late(self, outcome: Outcome) -> bool:
        """True for a hypothesis that was added after the others were registered."""
        return self.registered and not outcome.registered

    @property
    def interval_title(self) -> str:
        """The title of a column of intervals: "90 % interval"; of several alphas, "1 - 2 alpha interval"."""
        alphas = {one.hypothesis.alpha for one in self.outcomes}
        return f"{100 * (1 - 2 * alphas.pop()):.4g} % interval" if len(alphas) == 1 else "1 - 2 alpha interval"

    def basis(self, family: str) -> str:
        """The test that decides a family: "family main: 2 hypotheses, alpha 0.05, by exact sign flips"."""
        members = [one for one in self.outcomes if one.hypothesis.family == family]
        tests = " and ".join(dict.fromkeys(TESTS[one.judgement.test] for one in members))
        added = sum(map(self.late, members)) % len(members)
        more = f", {added} not declared before and corrected for all {len(members)}" if added else ""
        many = counted(len(members) - added, "hypothesis", "hypotheses")
        return f"family {family}: {many}{more}, alpha {members[0].hypothesis.alpha:g}, by {tests}"

    @property
    def headline(self) -> str:
        """The number of hypotheses by verdict, in one sentence."""
        if not self.outcomes:
            return "No hypothesis is declared."
        verdicts = [one.judgement.verdict for one in self.outcomes if not self.late(one)]
        added = len(self.outcomes) - len(verdicts)
        many = counted(len(verdicts), "hypothesis", "hypotheses")
        many += " declared before the runs" if self.registered else " declared in the spec"
        more = f"; {added} more {'was' if added == 1 else 'were'} not declared before" if added else ""
        if self.closed:
            names = ", ".join(f"'{name}'" for name in self.closed)
            closed = f"gate {names} is" if len(self.closed) == 1 else f"gates {names} are"
            return f"The study cannot answer its {many}: {closed} not passed{more}."
        counts = (f"{verdicts.count(verdict)} {verdict}" for verdict in ("confirmed", "refuted", "undecided"))
        early = f"Preliminary, {counted(self.waiting, 'run is', 'runs are')} still to end: of" if self.waiting else "Of"
        return f"{early} {many}: {', '.join(counts)}{more}."

    @property
    def provenance(self) -> list[str]:
        """Sentences on the registration, and on what differs from it."""
        one = self.registration
        if one is None:
            return ["Not registered: nothing shows that the hypotheses came before the results (--register would)."]
        if not one.intact:
            return [
                f"The registration {one.sha256[:12]} was changed after it was written, so it counts for nothing: the "
                "hypotheses of the spec as it is now are judged."
            ]
        told, made = one.content, [f"sha256 {one.sha256[:12]}, verified"]
        if commit := told.get("commit"):
            made.append(f"commit {commit[:12]}{' with changes' if told.get('dirty') else ''}")
        if told.get("plkernel"):
            made.append(f"plkernel {told['plkernel']}")
        texts = [f"Registered: {', '.join(made)}{'' if self.changes else '; the spec is as it was registered'}."]
        if told["runs_before"]:
            texts.append(f"{counted(told['runs_before'], 'run', 'runs')} had ended before it, so results were at hand.")
        if self.changes:
            texts.append(
                f"Changed since: {'; '.join(self.changes)}. Registered hypotheses are judged as they were registered, "
                "over the registered seeds."
            )
        return texts


def declared(study: Study, path: Path | None = None) -> Declared | None:
    """The verdicts of a study; None where it declares nothing.

    path: its registration, where that is not in its folder. An intact registration decides what is judged: its
    hypotheses as registered, over its seeds. Hypotheses of the spec that it lacks are judged beside them, in a family
    with them, over all seeds. Raises ValueError where a file is damaged.
    """
    place = path or study.folder / REGISTERED
    registration = read_registration(place) if path or place.exists() else None
    hypotheses, gates = declared_in(study.spec, study.folder / SPEC)
    if not hypotheses and not gates and registration is None:
        return None
    seeds: Collection[int] = study.seeds
    differing, outcomes = [], []
    if registration and registration.intact:
        known = {one.name for one in registration.hypotheses}
        late = [one for one in hypotheses if one.name not in known]
        hypotheses, gates, seeds = registration.hypotheses, registration.gates, registration.spec["seeds"]
        differing = changes(registration.spec, study.spec)
        beside = _judged(study, (*hypotheses, *late), study.seeds, False)
        outcomes = [one for one in beside if one.hypothesis in late]
    outcomes = _judged(study, hypotheses, seeds, bool(registration and registration.intact)) + outcomes
    ended = {(run.arm, run.seed) for run in study.ended}
    arms = {arm for one in hypotheses for arm in _pair(study, one) if arm}
    waiting = sum((arm, seed) not in ended for arm in arms for seed in seeds)
    passed = []
    for one in gates:
        values = _values(study, one.arm, one, seeds).values()
        passed.append(GateOutcome(one, stats.mean_interval(values) if values else Estimate(0, *[math.nan] * 4)))
    return Declared(tuple(outcomes), tuple(passed), registration, tuple(differing), waiting)


def _judged(study: Study, hypotheses: Iterable[Hypothesis], seeds: Collection[int], registered: bool) -> list[Outcome]:
    hypotheses, outcomes = list(hypotheses), dict[str, Outcome]()
    for members in families(hypotheses).values():
        differences = {}
        for one in members:
            arm, other = (_values(study, name, one, seeds) for name in _pair(study, one))
            differences[one.name] = {seed: arm[seed] - other[seed] for seed in sorted(arm.keys() & other.keys())}
        claims = {one.name: stats.Claimed(one.claim, one.margin, [*differences[one.name].values()]) for one in members}
        judgements = stats.judge(claims, members[0].alpha)
        for one in members:
            pair = [[run for run in study.finished() if run.arm == name] for name in _pair(study, one)]
            causal = all(run.result.causal for runs in pair for run in runs if run.result)
            common = set(seeds).intersection(*({run.seed for run in runs} for runs in pair))
            missing = f"its runs tell no {one.metric}" if common else "no finished seed in common"
            told = differences[one.name], registered, causal, "" if differences[one.name] else missing
            outcomes[one.name] = Outcome(one, judgements[one.name], *told)
    return [outcomes[one.name] for one in hypotheses]


def _pair(study: Study, one: Hypothesis) -> tuple[str, str | None]:
    """The arm of a hypothesis, and the one that is subtracted."""
    return one.arm, one.against or (study.against(one.arm) if one.arm in study.arms else None)


def _values(study: Study, arm: str | None, one: Measured, seeds: Collection[int]) -> dict[int, float]:
    """The measurement in every finished run of an arm that made it, by seed."""
    runs = (run for run in study.finished() if run.arm == arm and run.seed in seeds)
    return {run.seed: value for run in runs if (value := _value(run, one)) is not None}


def _value(run: Run, one: Measured) -> float | None:
    result: Any = run.result
    if one.metric == "truncation_cost":
        return result.truncation_cost(one.bytes or 0)
    if one.metric == "test_bpb" or (one.metric == "val_bpb" and one.step is None):
        return getattr(result, "test_bpb" if one.metric == "test_bpb" else "final_val_bpb")
    step = result.steps if one.step is None else one.step
    return next((getattr(row, one.metric) for row in run.evaluations if row.step == step), None)
