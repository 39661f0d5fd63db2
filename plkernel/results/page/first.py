"""The first screen: what was asked, what came out with its interval as a picture, and the curves beside it."""

import math
from collections.abc import Iterable, Iterator, Sequence

from plkernel.analysis.statistics.differences import PairedDifference
from plkernel.declared.rules import statement
from plkernel.declared.sentences import headline, interval_title, late
from plkernel.declared.verdicts import Declared, Outcome
from plkernel.models.words import NOT_CAUSAL
from plkernel.results.comparison import Block, Comparison, block_levels, blocks, short_name
from plkernel.results.page.charts import captions
from plkernel.results.page.charts.curves import at_a_glance, training_of
from plkernel.results.page.charts.frames import Chart
from plkernel.results.page.charts.intervals import Estimated, Forest, Row, Rows, mark, rows, scale
from plkernel.results.page.design import explained
from plkernel.results.page.document import Beside, Part, Terms, prose
from plkernel.results.page.parts import minus
from plkernel.results.sentences import excluding, interval_text, is_large, mean_text, overview, summary, surviving

MOST_ROWS = 8
"""Of more arms that no hypothesis is about so many have a picture on the first screen."""
MOST_CHARTS = 2
TONES = {"confirmed": "yes", "refuted": "no"}


def first_screen(comparison: Comparison) -> list[Part | None]:
    """The question, the answer in a sentence, what the arms are, and every verdict beside the curves."""
    found, study = comparison.declared, comparison.study
    decided = found if found and found.outcomes else None
    answer = headline(found) if found else _answer(comparison)
    pictures = _verdicts(comparison, decided) if decided else _comparisons(comparison)
    return [
        prose("question", [study.description] if study.description else []),
        prose("answer", [minus(answer)]),
        Terms("The arms", tuple(explained(comparison))),
        Beside(pictures, tuple(_charts(comparison, decided))),
    ]


def _answer(comparison: Comparison) -> str:
    """The headline of a study without hypotheses."""
    if is_large(comparison):
        return next(iter(overview(comparison)[1:]), summary(comparison))
    tested = [one for one in comparison.evidence.values() if one.difference.n > 1]
    kept = len([name for name in surviving(comparison) if name in excluding(comparison)])
    if not tested:
        return "No arm has two seeds in common with the arm it is compared with: no interval, no claim."
    many = f"{len(tested)} {'difference' if len(tested) == 1 else 'differences'}"
    corrected = " after the correction for their number" if len(tested) > 1 else ""
    return f"Nothing was declared before the runs. Of {many} {kept or 'none'} can be told from none{corrected}."


def _verdicts(comparison: Comparison, found: Declared) -> Forest:
    """A row per hypothesis; those of a block share a scale."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in found.outcomes:
        groups.setdefault(_title(comparison, outcome.hypothesis.arm), []).append(outcome)
    caption = (
        "Circles: the mean over seeds of arm minus the one it is compared with, in bits per byte. Lines: the "
        f"{interval_title(found)}, which holds for one hypothesis. Strokes: seeds. Shaded: where the claim would be "
        "right. An interval is cut where it leaves the frame; an arrow: a mean outside it."
    )
    return Forest(tuple(_decided(comparison, found, title, some) for title, some in groups.items()), caption)


def _decided(comparison: Comparison, found: Declared, title: str, outcomes: Sequence[Outcome]) -> Rows:
    drawn = [_claimed(outcome) for outcome in outcomes]
    axis = scale(drawn)
    members = []
    for outcome, one in zip(outcomes, drawn, strict=True):
        claim, judged = outcome.hypothesis, outcome.judgement
        arms = {key: _named(comparison, name) for key in ("arm", "against") if (name := getattr(claim, key))}
        verdict, added = found.verdict(outcome), " (not declared before)" if late(found, outcome) else ""
        members.append(
            Row(
                name=f"{claim.name}{added}",
                said=minus(statement(claim.model_copy(update=arms))),
                verdict=verdict,
                tone=TONES.get(verdict.split()[0], "open"),
                number=minus(mean_text(judged, "+.4f")) if judged.n else outcome.missing,
                interval=minus(interval_text(judged, "+.4f")) if judged.n else "",
                mark=mark(one, axis) if one else None,
                label="" if outcome.causal else NOT_CAUSAL,
            )
        )
    return rows(title, axis, members)


def _claimed(outcome: Outcome) -> Estimated | None:
    judged, claim = outcome.judgement, outcome.hypothesis
    if not judged.n:
        return None
    margin, far = claim.margin, math.inf
    region = {"lower": (-far, -margin), "higher": (margin, far), "equal": (-margin, margin)}[claim.claim]
    sure = judged.verdict == "confirmed"
    return Estimated(judged.mean, judged.low, judged.high, tuple(outcome.per_seed.values()), region, sure)


def _comparisons(comparison: Comparison) -> Forest:
    """A row per arm; of many those that can be told from none, or else those with the smallest p."""
    every = [name for name, found in comparison.evidence.items() if found.difference.n]
    chosen = set(every)
    if is_large(comparison) and len(every) > MOST_ROWS:
        least = sorted(every, key=lambda name: _p(comparison.evidence[name].difference))
        chosen = set((surviving(comparison) or least)[:MOST_ROWS])
    some = f" Shown are {len(chosen)} of {len(every)} arms, the others stand below." if len(chosen) < len(every) else ""
    return contrasts(comparison, chosen, some)


def contrasts(
    comparison: Comparison, chosen: Iterable[str] | None = None, more: str = "", compact: bool = False
) -> Forest:
    """Every arm, or those chosen, minus the one it is compared with, block by block on scales of their own."""
    names = set(comparison.evidence if chosen is None else chosen)
    groups = (_contrasted(comparison, part, names, compact) for part in blocks(comparison))
    caption = (
        f"Circles: the mean over seeds of arm minus the one it is compared with ({comparison.primary.title}), in bits "
        "per byte, filled where it can be told from none after the correction for the number of arms (Holm). Lines: "
        "the 95 % t interval, which holds for one comparison. Strokes: seeds. An interval is cut where it leaves the "
        f"frame; an arrow: a mean outside it.{more}{captions.leaks(comparison.arms)}"
    )
    return Forest(tuple(group for group in groups if group.rows), caption, compact)


def _contrasted(comparison: Comparison, part: Block, names: set[str], alone: bool) -> Rows:
    arms = [arm for arm in part.others if arm.name in names]
    found = {arm.name: comparison.evidence[arm.name] for arm in arms}
    drawn = {name: _paired(one.difference, one.survives) for name, one in found.items()}
    axis = scale(drawn.values())
    members = []
    for arm in arms:
        difference = found[arm.name].difference
        base, own = comparison[str(arm.against)], _short(comparison, arm.name)
        verdict, tone = _told(difference, found[arm.name].survives)
        members.append(
            Row(
                name=own if alone and base.name == part.baseline else f"{own} against {_short(comparison, base.name)}",
                said="",
                verdict=verdict,
                tone=tone,
                number=minus(mean_text(difference, "+.4f")),
                interval=minus(interval_text(difference, "+.4f")),
                mark=mark(drawn[arm.name], axis),
                label="" if (arm.causal and base.causal) or (part.leaks and part.title) else NOT_CAUSAL,
            )
        )
    return rows(part.title, axis, members, NOT_CAUSAL if part.leaks and part.title else "")


def _paired(one: PairedDifference, sure: bool) -> Estimated:
    return Estimated(one.mean, one.low, one.high, tuple(one.per_seed.values()), None, sure)


def _told(difference: PairedDifference, survives: bool) -> tuple[str, str]:
    """What may be said in a few words, and its tone."""
    if difference.n < 2:
        return "one seed: no claim", "open"
    if not math.isfinite(difference.mean):
        return "not finite: no claim", "open"
    if difference.contains_zero or math.isnan(difference.low):
        return "cannot be told from no difference", "open"
    side = "lower" if difference.mean < 0 else "higher"
    if not survives:
        return f"{side} on its own, not after correction", "open"
    return (f"{side}, better", "yes") if side == "lower" else (f"{side}, worse", "no")


def _short(comparison: Comparison, arm: str) -> str:
    return short_name(comparison.study, arm)


def _p(difference: PairedDifference) -> float:
    return difference.p_value if math.isfinite(difference.p_value) else 2.0


def _charts(comparison: Comparison, found: Declared | None) -> Iterator[Chart]:
    """The curves of the first blocks that anything is said of."""
    parts = blocks(comparison)
    asked = [one.hypothesis.arm for one in found.outcomes] if found else surviving(comparison)
    named = [part for part in parts if any(arm.name in asked for arm in part.arms)]
    for part in (named or parts)[:MOST_CHARTS]:
        training = training_of(comparison, part)
        seeds = max(map(len, training.paired.values()), default=1)
        base = short_name(comparison.study, part.baseline)
        caption = captions.at_a_glance(part.arms, seeds, base)
        where = f"{part.title}: " if part.title else ""
        if training.names:
            yield at_a_glance(training, f"{where}{captions.GLANCE_OF}", f"{where}{caption}", part.title)


def _named(comparison: Comparison, arm: str) -> str:
    """The short name of an arm; a registered one that the study has no longer keeps its own."""
    return _short(comparison, arm) if arm in comparison.study.arms else arm


def _title(comparison: Comparison, arm: str) -> str:
    """The title of the block of an arm; empty in a study without blocks."""
    if arm not in comparison.study.arms:
        return ""
    levels = block_levels(comparison.study, arm)
    return Block(levels, arm, ()).title
