"""What came of a study's declarations, in plain sentences: the verdicts counted, their registration, their limits."""

import math

from plkernel.common.cli import finer, written
from plkernel.declared.rules import TESTS, counted, level, regions, requirement
from plkernel.declared.verdicts import Declared, GateOutcome, Outcome

VERDICTS = ("confirmed", "refuted", "undecided")
CORRECTED = (
    "These are the intervals of a hypothesis on its own. Of the m in a family the surest must pass at alpha / m, the "
    "next at alpha / (m - 1) and so on: among 3 at 0.05, the surest by its 96.67 % interval."
)
DIGITS = 12
"""Of a fingerprint, in a sentence."""


def title(found: Declared) -> str:
    """What the table of hypotheses is called."""
    return "Declared before the runs" if found.registered else "Declared in the spec, not registered"


def interval_title(found: Declared) -> str:
    """The head of a column of intervals: "90 % interval"; of several alphas, "1 - 2 alpha interval"."""
    levels = {level(one.hypothesis.alpha) for one in found.outcomes}
    return f"{levels.pop() if len(levels) == 1 else '1 - 2 alpha'} interval"


def basis(found: Declared, family: str) -> str:
    """What decides a family: "family main: 2 hypotheses, alpha 0.05, by exact sign flips"."""
    members = [one for one in found.outcomes if one.hypothesis.family == family]
    tests = " and ".join(dict.fromkeys(TESTS[one.judgement.test] for one in members))
    added = sum(late(found, one) for one in members)
    some = 0 < added < len(members)
    first = counted(len(members) - added if some else len(members), "hypothesis", "hypotheses")
    more = f", {added} not declared before and corrected for all {len(members)}" if some else ""
    return f"family {family}: {first}{more}, alpha {members[0].hypothesis.alpha:g}, by {tests}"


def late(found: Declared, outcome: Outcome) -> bool:
    """Whether a hypothesis was not declared before the runs, where others were."""
    return found.registered and not outcome.registered


def headline(found: Declared) -> str:
    """How many hypotheses came out how, in one sentence."""
    if not found.outcomes:
        return "No hypothesis is declared."
    first = [one for one in found.outcomes if not late(found, one)]
    added = len(found.outcomes) - len(first)
    where = "declared before the runs" if found.registered else "declared in the spec"
    many = counted(len(first), "hypothesis", "hypotheses")
    more = f"; {added} more {'was' if added == 1 else 'were'} not declared before" if added else ""
    if found.closed:
        names = ", ".join(f"'{name}'" for name in found.closed)
        closed = f"gate {names} is not passed" if len(found.closed) == 1 else f"gates {names} are not passed"
        return f"The study cannot answer its {many} {where}: {closed}{more}."
    counts = (f"{sum(one.judgement.verdict == verdict for one in first)} {verdict}" for verdict in VERDICTS)
    early = f"Preliminary, {counted(found.waiting, 'run is', 'runs are')} still to end: of" if found.waiting else "Of"
    return f"{early} {many} {where}: {', '.join(counts)}{more}."


def registration(found: Declared) -> list[str]:
    """Whether it was registered, and what differs from that, a sentence each."""
    one = found.registration
    if one is None:
        return [
            "Not registered: nothing shows that the hypotheses came before the results. "
            "python -m plkernel.experiment SPEC --register writes a registration to commit before the runs."
        ]
    if not one.intact:
        return [
            f"The registration {one.sha256[:DIGITS]} was changed after it was written: its content has another sha256, "
            "so it counts for nothing, and what is judged is what the spec says now."
        ]
    told, ended = one.content, one.content["runs_before"]
    dirty = " with changes" if told.get("dirty") else ""
    made = [
        f"sha256 {one.sha256[:DIGITS]}, verified",
        f"commit {told['commit'][:DIGITS]}{dirty}" if told.get("commit") else "",
        f"plkernel {told['plkernel']}" if told.get("plkernel") else "",
    ]
    before = f"{counted(ended, 'run', 'runs')} of it had ended by then, so results were at hand."
    changed = (
        f"Otherwise than registered: {'; '.join(found.changes)}. Registered hypotheses are judged as they were "
        "registered, over the seeds that were."
    )
    same = "" if found.changes else "; the spec is as it was registered"
    return [
        f"Registered: {', '.join(filter(None, made))}{same}.",
        *([before] if ended else []),
        *([changed] if found.changes else []),
    ]


def gate_sentence(one: GateOutcome) -> str:
    """What a gate asks, and what was found: "has learnt, uniform at most 4 ...: 3.6866 (...), passed"."""
    return f"{one.gate.name}: {requirement(one.gate)}: {reading(one)}, {'passed' if one.passed else 'not passed'}"


def reading(one: GateOutcome) -> str:
    """The mean of a gate and its interval; "not known" where no run tells it."""
    found = one.estimate
    if not math.isfinite(found.mean):
        return "not known"
    form = finer(".4f", found.low, found.high)
    bounds = f", 95 % interval {written(found.low, form)} to {written(found.high, form)}"
    return f"{written(found.mean, form)}{bounds if math.isfinite(found.low) else ''}, n = {found.n}"


def mind(found: Declared) -> list[str]:
    """What would have changed the verdicts, a sentence for every hypothesis, and how the correction widens that."""
    opened = [f"Any answer needs {requirement(one.gate)}." for one in found.gates if not one.passed]
    several = len(found.outcomes) > len({one.hypothesis.family for one in found.outcomes})
    return [*opened, *map(_mind, found.outcomes), *([CORRECTED] if several else [])]


def _mind(outcome: Outcome) -> str:
    others = (
        f"{verdict} if the {wide} interval had lain wholly {place}"
        for verdict, (wide, place) in regions(outcome.hypothesis).items()
        if verdict != outcome.judgement.verdict
    )
    return f"{outcome.hypothesis.name}: {'; '.join(others)}."
