"""The power of hypotheses: the chance that a study confirms them, for the spread of a pilot."""

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from scipy.special import chdtri

from plkernel.config.factors import curves_of, opposite
from plkernel.config.schema import BOUNDED, OF_CURVES, Hypothesis, MeasuredNumber, families
from plkernel.config.spec import Spec
from plkernel.results import claims
from plkernel.results.measurements import compared_arms, means_in, values
from plkernel.results.rate_curves import curve_against
from plkernel.results.statistics import paired_difference
from plkernel.results.study import Study, read_study

ASSUMED = {
    "lower": -2.0,
    "lower_by_less": -0.5,
    "equal": 0.0,
    "higher_by_less": 0.5,
    "higher": 2.0,
}
"""The true difference that a power is stated for, in margins."""
LEAST_PILOT = 3
"""Two differences leave their spread open over a factor of 70 (95 % interval)."""


def powers(spec: Spec, pilot: Path) -> list[dict[str, Any]]:
    """The power of every hypothesis of `spec`, corrected for its family, for the spread of a pilot.

    sd      standard deviation of the paired differences of the same two arms in the study `pilot`,
            else the median over all that are compared there: of a hypothesis on minima over curves,
            of one on a mean over means where there are any, else over arms
    seeds   the number of differences behind it
    others  of how many other comparisons the sd is the median; 0 where it is of the two arms
    up_to   upper 95 % limit of it, by chi square with seeds - 1 degrees
    true    the difference assumed: 0 for equal, half the margin for lower_by_less and
            higher_by_less, else twice the margin
    power   the chance of a confirmation then, averaged over the standard deviations that the pilot
            leaves possible; None for lower and higher without a margin, where it is alpha
    least   the same where the standard deviation is `up_to`
    needed  of lower and higher, the difference that is confirmed 8 times in 10, averaged too; None
            for claims with two bounds

    Raises ValueError for a pilot without a spread, or with fewer than LEAST_PILOT seeds.
    """
    if spec.hypotheses and len(spec.seeds) < 2:
        raise ValueError(
            f"seeds must be two or more for the power of hypotheses, got {len(spec.seeds)}"
        )
    study = read_study(pilot)
    by_family = families(spec.hypotheses)
    rows = []
    for hypothesis in spec.hypotheses:
        if hypothesis.metric in OF_CURVES and not curves_of(study.spec["arms"]):
            raise ValueError(
                f"pilot must have curves over learning rates for {hypothesis.name!r}, which is on"
                f" their minima, got none in {pilot}; make it with tuning.method = 'curve'"
            )
        of_mean = hypothesis.arm in spec.means
        sd, seeds, others = _spread(study, hypothesis, of_mean)
        if not seeds:
            raise ValueError(
                f"pilot must have two arms with a seed in common that measured"
                f" {hypothesis.metric} for {hypothesis.name!r}, got none in {pilot}; make it with"
                " the spec of the study and other seeds"
            )
        if seeds < LEAST_PILOT:
            raise ValueError(
                f"pilot must have {LEAST_PILOT} seeds or more for {hypothesis.name!r}, got {seeds}"
                f" in {pilot}; so few hardly tell a spread, add seeds to the pilot"
            )
        if not sd > 0:
            raise ValueError(
                f"pilot must show a spread for {hypothesis.name!r}, got none over {seeds} seeds in"
                f" {pilot}; declare a number that rests on more predictions, or add seeds"
            )
        members = len(by_family[hypothesis.family])
        row = _row(hypothesis, sd, seeds, len(spec.seeds), members)
        rows.append({**row, "others": others})
    return rows


def _row(hypothesis: Hypothesis, sd: float, seeds: int, n: int, members: int) -> dict[str, Any]:
    """The row of one hypothesis in a family of so many members, for n seeds; see `powers`."""
    claim = hypothesis.claim
    margin = hypothesis.margin
    alpha = hypothesis.alpha
    true = ASSUMED[claim] * margin
    up_to = sd * math.sqrt((seeds - 1) / float(chdtri(seeds - 1, 0.95)))
    power: float | None = None
    least: float | None = None
    needed: float | None = None
    if margin:
        power = claims.power(claim, margin, true, sd, n, members, alpha, pilot=seeds)
        least = claims.power(claim, margin, true, up_to, n, members, alpha)
    if claim not in BOUNDED:
        beyond = sd * claims.effect_needed(n, members, alpha, pilot=seeds)
        needed = math.copysign(margin + beyond, ASSUMED[claim])
    return {
        "name": hypothesis.name,
        "sd": sd,
        "true": true,
        "power": power,
        "needed": needed,
        "seeds": seeds,
        "up_to": up_to,
        "least": least,
    }


def _spread(study: Study, hypothesis: Hypothesis, of_mean: bool) -> tuple[float, int, int]:
    """sd, seeds and others of a hypothesis; see `powers`.

    of_mean: True for a hypothesis on a mean over blocks.
    """
    sd, seeds = _spread_of(study, hypothesis, *compared_arms(study, hypothesis))
    if sd > 0:
        return sd, seeds, 0
    known = []
    for arm, other in _compared_there(study, hypothesis, of_mean):
        found = _spread_of(study, hypothesis, arm, other)
        if found[0] > 0:
            known.append(found)
    if not known:
        return math.nan, seeds, 0
    typical = median(sd for sd, _ in known)
    fewest = min(seeds for _, seeds in known)
    return typical, fewest, len(known)


def _compared_there(
    study: Study, hypothesis: Hypothesis, of_mean: bool
) -> list[tuple[str, str | None]]:
    """The pairs of curves, means or arms that are compared in a study, of the hypothesis's kind."""
    if hypothesis.metric in OF_CURVES:
        names = list(curves_of(study.spec["arms"]))
        return [(name, curve_against(study, name)) for name in names]
    means = means_in(study)
    if of_mean and means:
        return [(name, opposite(means, name, study.against)) for name in means]
    return [(arm, study.against(arm)) for arm in study.arms]


def _spread_of(
    study: Study, measured: MeasuredNumber, arm: str, other: str | None
) -> tuple[float, int]:
    """The same of two arms, curves or means.

    It is taken at the step of `measured`, or at the end if that shows no spread.
    """
    own = values(study, arm, measured, study.seeds)
    base = values(study, other, measured, study.seeds)
    found = paired_difference(own, base)
    if found.standard_deviation > 0 or measured.step is None:
        return found.standard_deviation, found.n
    at_end = measured.model_copy(update={"step": None})
    return _spread_of(study, at_end, arm, other)


def power_text(row: Mapping[str, Any]) -> str:
    """The power of a hypothesis in words.

    As in "0.18 if the difference is 0; spread 0.01 of 4 seeds, up to 0.03: then 0.02". The first
    is the mean over what the spread may be.
    """
    texts = []
    if row["power"] is not None:
        true = f"{row['true']:+g}" if row["true"] else "0"
        texts.append(f"{row['power']:.2f} if the difference is {true}")
    if row["needed"] is not None:
        texts.append(f"0.80 if it is {row['needed']:+.2g}")
    spread = f"spread {row['sd']:.2g} of {row['seeds']} seeds, up to {row['up_to']:.2g}"
    if row["least"] is not None:
        spread += f": then {row['least']:.2f}"
    texts.append(spread)
    if row["others"]:
        texts.append(
            "this spread is the median over other comparisons of the pilot, which shows none here"
        )
    return "; ".join(texts)
