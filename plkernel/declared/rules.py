"""Hypotheses, gates and the rules that decide them, in words."""

from collections.abc import Iterable, Sequence

from plkernel.analysis.statistics.hypotheses import MOST_FLIPPED, deciding_test, seeds_for
from plkernel.config.schema import Gate, Hypothesis, Measured, families

UNIT = "bits per byte"
CORRECTION = (
    "Holm's correction is over all hypotheses of a family, for confirmations and for refutations apart: the chance of "
    "any false confirmation in a family is at most its alpha, and so is that of any false refutation. What is neither "
    "confirmed nor refuted is undecided."
)
TESTS = {"sign flips": "exact sign flips", "t": "the paired t test"}


def statement(one: Hypothesis) -> str:
    """The claim: "power-law is lower than log-spaced by more than 0.005 bits per byte (validation at the end)"."""
    arm, other, margin = one.arm, one.against, f"{one.margin:g} {UNIT}"
    if one.claim == "equal":
        return f"{arm} and {other} differ by less than {margin} ({measure(one)})"
    return f"{arm} is {one.claim} than {other}{f' by more than {margin}' if one.margin else ''} ({measure(one)})"


def measure(one: Measured) -> str:
    """What is measured: "validation at step 200"."""
    when = "at the end" if one.step is None else f"at step {one.step:,}"
    return {
        "val_bpb": f"validation {when}",
        "test_bpb": "test",
        "excess_bpb": f"validation above the floor of its corpus, {when}",
        "truncation_cost": f"cost of being given {one.bytes} {'byte' if one.bytes == 1 else 'bytes'} only",
    }[one.metric]


def requirement(gate: Gate) -> str:
    """What a gate asks: "log-spaced at most 4 bits per byte (validation at the end), mean over seeds"."""
    limits = [
        f"{word} {limit:g}"
        for word, limit in (("at least", gate.at_least), ("at most", gate.at_most))
        if limit is not None
    ]
    return f"{gate.arm} {' and '.join(limits)} {UNIT} ({measure(gate)}), mean over seeds"


def regions(one: Hypothesis) -> dict[str, tuple[str, str]]:
    """By verdict the interval that shows it, of a hypothesis on its own, and where that lies: 90 %, below -0.005.

    Of equality a difference on either side is the opposite, each at alpha / 2.
    """
    low, high = (f"{edge:+g}" if edge else "0" for edge in (-one.margin, one.margin))
    wide = level(one.alpha)
    if one.claim == "equal":
        return {
            "confirmed": (wide, f"between {low} and {high}"),
            "refuted": (level(one.alpha / 2), f"below {low} or above {high}"),
        }
    if one.claim == "lower":
        return {"confirmed": (wide, f"below {low}"), "refuted": (wide, f"above {low}")}
    return {"confirmed": (wide, f"above {high}"), "refuted": (wide, f"below {high}")}


def level(alpha: float) -> str:
    """The interval that goes with one-sided tests at alpha: "90 %" at 0.05."""
    return f"{100 * (1 - 2 * alpha):.4g} %"


def rules(hypotheses: Iterable[Hypothesis], gates: Iterable[Gate], seeds: Sequence[int]) -> list[str]:
    """All that decides, a sentence or two each: what is compared, the tests, every hypothesis, every gate."""
    return [
        "Differences are taken seed by seed, the arm minus the one it is compared with, over seeds "
        f"{', '.join(map(str, seeds))}.",
        *(_family(name, members) for name, members in families(hypotheses).items()),
        CORRECTION,
        *(_hypothesis(one) for one in hypotheses),
        *(f"Gate: {one.name}. {requirement(one)}. If not, or if not known, nothing is answered." for one in gates),
    ]


def prospects(hypotheses: Iterable[Hypothesis], seeds: int) -> list[str]:
    """For every family, whether so many seeds can decide at all, by which test, and how many would do."""
    return [_prospect(name, members, seeds) for name, members in families(hypotheses).items()]


def _prospect(name: str, members: Sequence[Hypothesis], seeds: int) -> str:
    m, alpha = len(members), members[0].alpha
    test, enough = deciding_test([seeds], m, alpha), seeds_for(m, alpha, sides=1)
    head = f"family {name}: {counted(m, 'hypothesis', 'hypotheses')}, {counted(seeds, 'seed', 'seeds')}"
    least = f"smallest p{f' x {m} =' if m > 1 else ''} {m * 2.0**-seeds:.2g}"
    if seeds < 2:
        return f"{head}: cannot decide, one seed shows no spread; 2 could by the t test, {enough} by exact sign flips"
    if test == "sign flips":
        return f"{head}: can decide by exact sign flips ({least}, alpha {alpha:g})"
    if seeds > MOST_FLIPPED:
        return f"{head}: can decide by the t test"
    return (
        f"{head}: cannot decide by exact sign flips ({least}, alpha {alpha:g}), "
        f"{enough} seeds could; the t test decides, which needs normal differences"
    )


def _family(name: str, members: Sequence[Hypothesis]) -> str:
    m, alpha = len(members), members[0].alpha
    return (
        f"Family {name}: {counted(m, 'hypothesis', 'hypotheses')}, alpha {alpha:g}, one-sided tests. Exact sign flips "
        f"decide where every member that has differences has {seeds_for(m, alpha, sides=1)} to {MOST_FLIPPED} seeds, "
        "else the paired t test does."
    )


def _hypothesis(one: Hypothesis) -> str:
    alone = {
        verdict: f"alone: if the {wide} interval lies wholly {place}" for verdict, (wide, place) in regions(one).items()
    }
    return (
        f"Hypothesis: {one.name}. {statement(one)}. Confirmed if p against its opposite is at most {one.alpha:g} after "
        f"the correction ({alone['confirmed']}). Refuted if p against it is ({alone['refuted']})."
    )


def counted(number: int, one: str, several: str) -> str:
    """A number and its noun."""
    return f"{number} {one if number == 1 else several}"
