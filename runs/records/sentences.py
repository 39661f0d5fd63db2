"""Numbers in the sentences of README.md and docs/, computed from the rows beside this file.

On a page a number stands between two comments, which no reader sees:

    ahead by <!-- lead-interval memory-shortness 8_lru .3f -->0.012 (0.007 to 0.018)<!-- / -->

The first comment has the name of a function of this file, its arguments and a format; render.py
writes what the function returns. Lines of a page must not begin with such a comment, which would
begin a block of HTML. What several functions take:

    study     a folder beside this file
    arm       an arm of the study, or of another one as STUDY/ARM
    against   the arm that it is compared with, its baseline in the study unless given
    at        a step, for the loss on validation text there, or the name of a loss at the end,
              final_val_bpb unless given
    seeds     the first and the last seed that count, as in 7-11; all unless given
    when      start or end of training
"""

import json
import re
import statistics
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from math import log
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import long_windows
import numpy as np
import recall_tests
from comparisons import POOLED, Compared, PooledEffect, random_effects
from recall_tests import study_of, tests_of
from scipy.stats import ttest_ind

from plkernel.analysis.nodes import falling_exponent
from plkernel.config.reading import load_spec
from plkernel.decays.memory import Memory
from plkernel.results.convergence import LONGEST_LAG, Starts, convergence, groups
from plkernel.results.measurements import mean_over, means_in
from plkernel.results.power import powers
from plkernel.results.rate_curves import curve_results, rate_curve
from plkernel.results.statistics import (
    PairedDifference,
    detectable_difference,
    holm,
    mean_interval,
    paired_difference,
)
from plkernel.results.study import FinishedRun, Study, StudyRun

RECORDS = Path(__file__).resolve().parent
MARKED = re.compile(r"(<!-- ([a-z][a-z-]*)((?: [^\s>]+)*) (\S+) -->)[^<]*(<!-- / -->)")
"""Comment, name, arguments, format, and the comment at the end."""


class Estimate(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


Number = TypeVar("Number", bound=Callable[..., float | Estimate])
NUMBERS: dict[str, Callable[..., float | Estimate]] = {}
"""What a comment may name."""
SUMMARIES: dict[str, Callable[..., float]] = {
    "mean": statistics.fmean,
    "median": np.median,
    "min": min,
    "max": max,
}
"""Summaries of several values that a comment may name."""


def number(function: Number) -> Number:
    """Let comments name a function, with hyphens."""
    NUMBERS[function.__name__.replace("_", "-")] = function
    return function


def fill(text: str) -> str:
    """Return a page with the numbers in its sentences computed from the records."""

    def written(match: re.Match[str]) -> str:
        comment, name, arguments, form, end = match.groups()
        return f"{comment}{compute(name, arguments.split(), form)}{end}"

    return MARKED.sub(written, text)


def compute(name: str, arguments: list[str], form: str) -> str:
    """Return what a function of this file says of its arguments, in a format."""
    given: list[str] = []
    options: dict[str, str] = {}
    for argument in arguments:
        key, is_option, value = argument.partition("=")
        if is_option:
            options[key] = value
        else:
            given.append(argument)
    return shown(NUMBERS[name](*given, **options), form)


def shown(found: float | Estimate, form: str) -> str:
    """Return a number in a format, an estimate with its interval."""
    if isinstance(found, Estimate):
        value, low, high = (format(part, form) for part in found)
        return f"{value} ({low} to {high})"
    return format(found, form)


STOPPED = ("memory-lags-gpu",)
"""Studies that ended with few of their seeds: no spread over seeds is taken from them."""


@cache
def studies() -> dict[str, Study]:
    """Return every study that has ended, by the name of its folder."""
    ended = [path.parents[1] for path in sorted(RECORDS.glob("*/report/table.json"))]
    return {folder.name: study_of(folder.name) for folder in ended}


@cache
def blocks() -> dict[tuple[str, str], Starts]:
    """Return the memories of arms that differ in their initialisation alone, by study and block."""
    return {
        (name, block): starts
        for name, study in studies().items()
        if name not in STOPPED
        for block, starts in groups(study).items()
    }


def record(name: str) -> Any:
    """Return the content of a JSON file beside this one."""
    return json.loads((RECORDS / name).read_text())


def _study_and_arm(study: str, arm: str) -> tuple[str, str]:
    """Split STUDY/ARM; an arm without a study is one of `study`."""
    other, is_other, name = arm.partition("/")
    return (other, name) if is_other else (study, arm)


def losses(study: str, arm: str, at: str = "final_val_bpb") -> dict[int, float]:
    """Return the bits per byte of an arm, or of a mean over the levels of `within`, by seed."""
    means = means_in(studies()[study])
    if arm in means:
        return mean_over([losses(study, one, at) for one in means[arm].values()])
    runs = studies()[study].finished(arm)
    if at.isdecimal():
        return {run.seed: _validation(run, int(at)) for run in runs}
    return {run.seed: getattr(run.result, at) for run in runs}


@cache
def accuracies(study: str, test: str) -> dict[str, dict[int, dict[int, float]]]:
    """Return the share of right answers in a test of recall, by arm, length and seed.

    The study need not have ended, such as a pilot. Lengths are in lengths of training.
    """
    found: dict[str, dict[int, dict[int, float]]] = {}
    for arm, by_length in tests_of(study, test).items():
        found[arm] = {}
        for times, by_seed in by_length.items():
            found[arm][times] = {seed: float(one["accuracy"]) for seed, one in by_seed.items()}
    return found


@number
def recalled(study: str, arm: str, times: str, which: str, test: str = "persistence") -> float:
    """Return the accuracy in % of an arm at a length: the mean, min or max over seeds."""
    values = accuracies(study, test)[arm][int(times)].values()
    return 100 * SUMMARIES[which](values)


@number
def lead_needed(study: str, hypothesis: str) -> float:
    """Return the difference that a registered hypothesis finds 8 times in 10, counted from 0, in
    hundredths.
    """
    registered = json.loads((RECORDS.parent / "registered" / f"{study}.json").read_text())
    return 100 * float(registered["power"][int(hypothesis)]["needed"])


@number
def declared_mean(study: str, hypothesis: str) -> Estimate:
    """Return the difference of a hypothesis, counted from 0, with the interval of its verdict."""
    declared = record(f"{study}/report/table.json")["declared"]["hypotheses"]
    one = declared[int(hypothesis)]
    return Estimate(one["mean"], one["low"], one["high"])


@number
def searched_lead(study: str, arm: str, against: str, rate: str) -> float:
    """Return the mean lead of an arm over another, in points, at a rate of the search.

    At the longest length.
    """
    rows = record(f"{study}/search-beyond.json")["rows"]
    longest = max(row["length"] for row in rows)
    means = []
    for one in (arm, against):
        cell = (one, float(rate), longest)
        found = [r["accuracy"] for r in rows if (r["arm"], r["rate"], r["length"]) == cell]
        means.append(statistics.fmean(found))
    return 100 * (means[0] - means[1])


@number
def recalled_lead(
    study: str,
    arm: str,
    against: str,
    times: str,
    test: str = "persistence",
    distance: str = "",
    without: str = "",
) -> Estimate:
    """Return the lead of an arm over another at a length, in points.

    distance: only queries at distances of the group that ends there.
    without: a seed that is left out.
    """

    given = (times, test, distance, without)
    found = paired_difference(
        _points_recalled(study, arm, *given), _points_recalled(study, against, *given)
    )
    return Estimate(found.mean, found.low, found.high)


def _points_recalled(
    study: str, arm: str, times: str, test: str, distance: str, without: str = ""
) -> dict[int, float]:
    """Return the right answers of an arm in %, by seed."""
    found = {}
    for run in studies()[study].finished(arm):
        length = int(times) * run.config["train"]["context"]
        end = int(distance) if distance else None
        share = run.result.recalled(test, length, end)
        if share is not None and str(run.seed) != without:
            found[run.seed] = 100 * share
    return found


@number
def lead_at_both_rates(arm: str, against: str, times: str, distance: str = "") -> Estimate:
    """Return the mean over recall-far and recall-far-fast of a lead in persistence, in points.

    The two have the same seeds, and the mean is taken seed by seed.
    """

    def points(arm: str) -> dict[int, float]:
        slow = _points_recalled("recall-far", arm, times, "persistence", distance)
        fast = _points_recalled("recall-far-fast", f"{arm}_fast", times, "persistence", distance)
        assert slow.keys() == fast.keys()
        return {seed: (slow[seed] + fast[seed]) / 2 for seed in slow}

    found = paired_difference(points(arm), points(against))
    return Estimate(found.mean, found.low, found.high)


@number
def lead_gained(study: str, arm: str, against: str) -> Estimate:
    """Return by how much more an arm leads at 8 times the length of training than at that length.

    In points, of the queries more than half of the length behind their pair.
    """
    gains: dict[str, dict[int, float]] = {}
    for name in (arm, against):
        gains[name] = {}
        for run in studies()[study].finished(name):
            context = run.config["train"]["context"]
            far = run.result.recalled("persistence", 8 * context, 8 * context)
            near = run.result.recalled("persistence", context, context)
            assert far is not None, f"{run.arm}: no test at 8 times the length"
            assert near is not None, f"{run.arm}: no test at the length of training"
            gains[name][run.seed] = 100 * (far - near)
    found = paired_difference(gains[arm], gains[against])
    return Estimate(found.mean, found.low, found.high)


def _of_long_windows(arm: str, stopped: str) -> str:
    """Return the name of an arm, or of its models with decays that stop, in long windows."""
    return arm + long_windows.STOPPED if stopped else arm


@number
def lost_by_reading_on(study: str, arm: str, times: str, stopped: str = "") -> float:
    """Return the mean bits per byte that an arm loses by reading on, up to a length.

    times: lengths of training. stopped=yes: with decays that do not slow down further than T.
    """
    by_arm = long_windows.losses(study, "reading_on")
    by_length = by_arm[_of_long_windows(arm, stopped)]
    return statistics.fmean(by_length[int(times)].values())


@number
def behind_at(study: str, arm: str, times: str, stopped: str = "") -> Estimate:
    """Return the bits per byte of an arm at a length minus those of its baseline.

    The arguments are those of lost-by-reading-on.
    """
    found = long_windows.lead(study, _of_long_windows(arm, stopped), int(times))
    return Estimate(found.mean, found.low, found.high)


@number
def heads_grow(study: str, arm: str, times: str) -> float:
    """Return the mean size of what heads give, up to a length over that within training.

    times: lengths of training.
    """
    return statistics.fmean(long_windows.growth(study)[arm][int(times)].values())


@number
def levelled(study: str, arm: str, times: str) -> Estimate:
    """Return the bits by which levelled heads change the loss at a length.

    The arguments are those of heads-grow.
    """
    found = mean_interval(long_windows.levelled(study)[arm][int(times)].values())
    return Estimate(found.mean, found.low, found.high)


@number
def levelled_points(study: str, arm: str, column: str) -> Estimate:
    """Return the points by which levelled heads change right answers at the longest length.

    column: the most bytes from pair to query, or grow, of all queries where pairs grow.
    """
    columns = recall_tests.changes_by_levelling(study)[arm]
    found = columns["where pairs grow" if column == "grow" else column]
    return Estimate(found.mean, found.low, found.high)


def _validation(run: StudyRun, step: int) -> float:
    """Return the loss on validation text at a step."""
    (found,) = [row.val_bpb for row in run.evaluations if row.step == step]
    assert found is not None
    return found


def paired(
    study: str,
    arm: str,
    against: str | None = None,
    at: str = "final_val_bpb",
    seeds: str = "",
) -> PairedDifference:
    """Return the losses of an arm minus those of another, paired by seed."""
    other = against or studies()[study].against(arm)
    assert other is not None, f"{arm} is a baseline of {study}"
    own = losses(*_study_and_arm(study, arm), at)
    if seeds:
        first, last = map(int, seeds.split("-"))
        own = {seed: own[seed] for seed in range(first, last + 1)}
    return paired_difference(own, losses(*_study_and_arm(study, other), at))


def compared(one: Compared, at: str = "final_val_bpb") -> PairedDifference:
    """Return the paired difference of a comparison."""
    if one.minimum:
        text = "test" if at == "test_bpb" else "val"
        return minimum_difference(one.study, one.arm, text, one.against)
    return paired(one.study, one.arm, one.against, at, one.seeds)


@cache
def pooled_effect(name: str, at: str = "final_val_bpb") -> PooledEffect:
    """Return what the comparisons of one kind say together, by random effects."""
    return random_effects([list(compared(one, at).per_seed.values()) for one in POOLED[name]])


@number
def pooled(name: str, at: str = "final_val_bpb") -> Estimate:
    """Return a pooled effect with its interval by Hartung and Knapp."""
    effect = pooled_effect(name, at)
    return Estimate(effect.mean, effect.low, effect.high)


@number
def pooled_cautiously(name: str, at: str = "final_val_bpb") -> Estimate:
    """Return the same, its variance not below that of DerSimonian and Laird."""
    effect = pooled_effect(name, at)
    return Estimate(effect.mean, effect.least, effect.most)


@number
def pooled_negative(name: str, at: str = "final_val_bpb") -> int:
    """Return the number of comparisons of one kind whose mean is below zero."""
    return pooled_effect(name, at).negative


@number
def pooled_studies(name: str) -> int:
    """Return the number of comparisons of one kind."""
    return pooled_effect(name).studies


TEXT_STUDIES = (
    "memory-text",
    "memory-shortness",
    "memory-length",
    "published-gpu",
    "ladder-gpu",
    "models-goose",
    "models-mamba2",
    "models-mamba2-rates",
)
"""Studies of source code with three seeds or more, without the demo and the audit."""


@cache
def both_texts() -> list[tuple[PairedDifference, PairedDifference]]:
    """Return every difference on source code on validation and on test text.

    Quantile initialisations are left out: under EMA they have no short half-life and would decide
    every sum.
    """
    pairs = []
    for study in TEXT_STUDIES:
        for arm in studies()[study].arms:
            if studies()[study].against(arm) and not arm.startswith("quantile"):
                pairs.append((paired(study, arm), paired(study, arm, at="test_bpb")))
    return pairs


@number
def texts_agree(statistic: str) -> float:
    """Return how differences on test text agree with those on validation text.

    comparisons: their number. correlation: of the means. smaller: 1 minus the slope of a line
    through zero. apart: root mean square of test minus validation. noise: what of that the spread
    over seeds does not explain, the standard deviation by moments (DerSimonian and Laird).
    """
    pairs = both_texts()
    validation = np.array([one.mean for one, _ in pairs])
    test = np.array([one.mean for _, one in pairs])
    if statistic == "comparisons":
        return len(pairs)
    if statistic == "correlation":
        return float(np.corrcoef(validation, test)[0, 1])
    if statistic == "smaller":
        return 1.0 - float((validation * test).sum() / (validation**2).sum())
    if statistic == "apart":
        return float(np.sqrt(np.mean((test - validation) ** 2)))
    assert statistic == "noise"
    between = [
        [own.per_seed[seed] - other.per_seed[seed] for seed in own.per_seed] for other, own in pairs
    ]
    return random_effects(between).deviation


@cache
def promised() -> list[dict[str, Any]]:
    """Return what registrations promised and what came: a row for every hypothesis with a power.

    study, claim, verdict; power, as stated; ratio, the spread of its differences over that of the
    pilot.
    """
    rows = []
    for name in studies():
        if name in STOPPED or not (RECORDS / name / "registered.json").exists():
            continue
        declared = record(f"{name}/report/table.json")["declared"]["hypotheses"]
        outcomes = {one["name"]: one for one in declared}
        for stated in record(f"{name}/registered.json").get("power") or ():
            one = outcomes[stated["name"]]
            spread = statistics.stdev(one["per_seed"].values())
            rows.append(
                {
                    "study": name,
                    "claim": one["claim"],
                    "verdict": one["verdict"].partition(":")[0],
                    "power": stated["power"],
                    "ratio": spread / stated["sd"],
                }
            )
    return rows


@number
def spread_over_pilot(study: str) -> float:
    """Return the spread of a study's differences over that of its pilot, the geometric mean."""
    ratios = [row["ratio"] for row in promised() if row["study"] == study]
    return statistics.geometric_mean(ratios)


AVERAGED = (
    "beta-sweep",
    "post-text",
    "post-text-mamba2",
    "post-text-weighted",
    "rates",
    "rates-bare",
    "rates-bare-longer",
    "rates-finch",
    "rates-mamba2",
    "rates-goose",
    "rates-lengths",
    "rates-goose-longer",
    "rates-finch-longer",
    "rates-longer",
    "rates-lru",
    "rates-lru-longer",
    "rates-parts",
    "rates-warmup",
    "rates-warmup-bare",
    "rates-warmup-ema",
    "rates-warmup-wide",
    "rates-wide",
    "rates-wide-longer",
    "reach",
    "reach-far",
    "reach-far-goose",
    "reach-wide",
    "recall-capacity",
    "recall-far",
    "recall-far-fast",
    "recall-mamba2",
    "recall-mamba2-held",
    "recall-mamba2-weighted",
    "recall-post",
)
"""Studies whose registered power is the mean over the spreads that their pilot leaves possible."""


def _equivalences(without: str) -> list[dict[str, Any]]:
    """Return the rows of `promised` that claim equality as if the spread were known, without one
    study.
    """
    left_out = {without, *AVERAGED}
    return [row for row in promised() if row["claim"] == "equal" and row["study"] not in left_out]


@number
def equivalences(verdict: str = "", without: str = "") -> int:
    """Return how many claims of equality with a stated power there were, or had a verdict."""
    return sum(verdict in ("", row["verdict"]) for row in _equivalences(without))


@number
def equivalence_power(statistic: str, without: str = "") -> float:
    """Return min, max or mean of the powers that were stated for claims of equality."""
    powers = [row["power"] for row in _equivalences(without)]
    return SUMMARIES[statistic](powers)


@number
def pilot_power(study: str, hypothesis: str, pilot: str = "pilot") -> float:
    """Return the power of a hypothesis, counted from 0, as `--pilot` states it today."""
    spec = load_spec(RECORDS.parent / f"{study}.toml")
    return float(powers(spec, RECORDS / study / pilot)[int(hypothesis)]["power"])


@number
def interaction(
    study: str, arm: str, base: str, rate: str, other: str, at: str = "final_val_bpb"
) -> Estimate:
    """Return how a difference at one learning rate differs from that at another.

    (arm - base) at `rate` minus (arm - base) at `other`; arms are NAME_RATE.
    """
    here = paired(study, f"{arm}_{rate}", f"{base}_{rate}", at).per_seed
    there = paired(study, f"{arm}_{other}", f"{base}_{other}", at).per_seed
    found = paired_difference(here, there)
    return Estimate(found.mean, found.low, found.high)


def _by_seed(study: str, arms: tuple[str, ...], at: str) -> list[float]:
    """Return the differences of every seed of several arms."""
    return [value for arm in arms for value in paired(study, arm, at=at).per_seed.values()]


@number
def all_seeds(study: str, *arms: str, at: str = "final_val_bpb") -> Estimate:
    """Return the mean over all seeds of several arms, each against its baseline."""
    found = mean_interval(_by_seed(study, arms, at))
    return Estimate(found.mean, found.low, found.high)


@number
def seeds_ahead(study: str, *arms: str, at: str = "final_val_bpb") -> int:
    """Return the number of seeds of several arms that are ahead of their baselines."""
    return sum(value < 0 for value in _by_seed(study, arms, at))


@number
def p_on_test(study: str, arm: str) -> float:
    """Return p of an arm on test text after Holm's correction over the arms of its study."""
    p_values = {
        name: paired(study, name, at="test_bpb").p_value
        for name in studies()[study].arms
        if studies()[study].against(name)
    }
    return holm(p_values)[arm]


@number
def mixed_chips(study: str) -> int:
    """Return the number of pairs of runs of one seed that ran on two kinds of GPU."""
    found = studies()[study]
    chips = {(run.arm, run.seed): run.environment["hardware"]["gpu"] for run in found.finished()}
    mixed = 0
    for (arm, seed), chip in chips.items():
        against = found.against(arm)
        if against is not None:
            mixed += chip != chips[against, seed]
    return mixed


@number
def targets(study: str, arm: str) -> int:
    """Return the number of target bytes on which the loss with few bytes rests."""
    counts = set()
    for run in studies()[study].finished(arm):
        truncation = run.result.truncation
        assert truncation is not None, f"{arm} was not measured with few bytes"
        counts.add((truncation.model_extra or {})["windows"])
    (found,) = counts
    return int(found)


@number
def end_range(study: str, arm: str, statistic: str) -> float:
    """Return min or max over seeds and blocks of the longest half-life at the end."""
    ends = [
        one[-1] for run in studies()[study].finished(arm) for one in run.last["half_life_quantiles"]
    ]
    return float({"min": min, "max": max}[statistic](ends))


@number
def change(study: str, arm: str, against: str | None = None, at: str = "final_val_bpb") -> float:
    """Return the loss of an arm minus that of another, in bits per byte."""
    return paired(study, arm, against, at).mean


@number
def change_interval(
    study: str,
    arm: str,
    against: str | None = None,
    at: str = "final_val_bpb",
    seeds: str = "",
) -> Estimate:
    """Return the loss of an arm minus that of another, with its t interval."""
    found = paired(study, arm, against, at, seeds)
    return Estimate(found.mean, found.low, found.high)


@number
def change_without(
    study: str, arm: str, against: str, block: str, at: str = "final_val_bpb"
) -> Estimate:
    """Return the mean change over the levels of `within` but one, with its t interval."""
    means = means_in(studies()[study])
    left = [one for one in means[arm] if one != block]
    of_blocks = [paired(study, means[arm][one], means[against][one], at).per_seed for one in left]
    found = mean_interval(mean_over(of_blocks).values())
    return Estimate(found.mean, found.low, found.high)


@number
def text_exponent(name: str) -> float:
    """Return the measured exponent of a text of beta-sweep."""
    (found,) = [text for text in record("beta-sweep/texts.json")["texts"] if text["text"] == name]
    return float(found["beta"])


@number
def lead(study: str, arm: str, against: str | None = None, at: str = "final_val_bpb") -> float:
    """Return how far the loss of an arm is below that of another."""
    return -change(study, arm, against, at)


@number
def lead_interval(
    study: str, arm: str, against: str | None = None, at: str = "final_val_bpb"
) -> Estimate:
    """Return how far the loss of an arm is below that of another, with its t interval."""
    value, low, high = change_interval(study, arm, against, at)
    return Estimate(-value, -high, -low)


def _leads(study: str, arms: tuple[str, ...], against: str | None, at: str) -> Iterator[float]:
    """Yield the leads of arms, each NAME, a pattern like *_good, or ARM:AGAINST."""
    for arm in arms:
        name, _, other = arm.partition(":")
        for found in _matching(study, name):
            base = other or against or studies()[study].against(found)
            if base is not None:
                yield lead(study, found, base, at)


def _matching(study: str, pattern: str) -> list[str]:
    """Return the arms of a study whose names match a pattern."""
    found = [arm for arm in studies()[study].arms if fnmatchcase(arm, pattern)]
    assert found, f"{study} has no arm {pattern}"
    return found


@number
def least_lead(
    study: str, *arms: str, against: str | None = None, at: str = "final_val_bpb"
) -> float:
    """Return the smallest lead among arms."""
    return min(_leads(study, arms, against, at))


@number
def largest_lead(
    study: str, *arms: str, against: str | None = None, at: str = "final_val_bpb"
) -> float:
    """Return the largest lead among arms."""
    return max(_leads(study, arms, against, at))


@number
def largest_change(study: str, *arms: str, at: str = "final_val_bpb") -> float:
    """Return the largest difference of arms to their baselines, either way."""
    return max(abs(found) for found in _leads(study, arms, None, at))


@number
def further_ahead(study: str, arm: str, other: str, at: str) -> Estimate:
    """Return how much more an arm leads its baseline than another arm leads its own."""
    more = paired_difference(
        paired(study, other, at=at).per_seed, paired(study, arm, at=at).per_seed
    )
    return Estimate(more.mean, more.low, more.high)


@number
def deviation(study: str, arm: str, against: str | None = None) -> float:
    """Return the standard deviation over seeds of a change."""
    return paired(study, arm, against).standard_deviation


@number
def detectable(study: str, seeds: str) -> float:
    """Return the difference that so many seeds find; the median over all arms of a study."""
    arms = [arm for arm in studies()[study].arms if studies()[study].against(arm)]
    return statistics.median(
        detectable_difference(paired(study, arm).standard_deviation, int(seeds)) for arm in arms
    )


@number
def fall(study: str, arm: str, against: str) -> Estimate:
    """Return p where a lead falls as bytes**-p from step 500 to 2000, with a jackknife interval."""
    steps = (500, 1000, 2000)
    by_step = [paired(study, arm, against, str(step)).per_seed.values() for step in steps]
    leads = -np.array([list(of_seeds) for of_seeds in by_step])

    def exponent_of(some: np.ndarray) -> float:
        return -float(np.polyfit(np.log(steps), np.log(some.mean(axis=1)), 1)[0])

    seeds = leads.shape[1]
    p = exponent_of(leads)
    without_one = [exponent_of(np.delete(leads, seed, axis=1)) for seed in range(seeds)]
    jackknife = mean_interval(seeds * p - (seeds - 1) * other for other in without_one)
    return Estimate(p, jackknife.low, jackknife.high)


@number
def loss(study: str, arm: str, at: str = "final_val_bpb") -> float:
    """Return the mean loss of an arm over seeds, in bits per byte."""
    return statistics.fmean(losses(study, arm, at).values())


@number
def best_loss(study: str, pattern: str, at: str = "final_val_bpb") -> float:
    """Return the least mean loss among the arms that match a pattern."""
    return min(loss(study, arm, at) for arm in _matching(study, pattern))


@number
def counts(study: str, order: str, split: str = "val_bpb") -> float:
    """Return the bits per byte of counts of `order` bytes, from the bytes that the runs read."""
    (held, *_) = record(f"{study}/references.json")["references"]
    return float(held[split][held["orders"].index(int(order))])


@number
def lzma(study: str, window: str) -> float:
    """Return the bits per byte of LZMA with a window of so many bytes."""
    (held, *_) = record(f"{study}/references.json")["references"]
    return float(held["lzma"]["val_bpb"][held["lzma"]["windows"].index(int(window))])


@number
def tuning_loss(study: str, arm: str, rate: str) -> float:
    """Return the loss of an arm at a learning rate in the search for the best one."""
    lines = (RECORDS / study / "tuning" / "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    (found,) = [row for row in rows if row["arm"] == f"{arm}_rate-{rate}"]
    return float(found["result"]["final_val_bpb"])


@number
def tuning_change(study: str, arm: str, best: str, *rates: str) -> float:
    """Return how much worse an arm is in the search than at the best rate; at worst, of several."""
    return max(tuning_loss(study, arm, rate) for rate in rates) - tuning_loss(study, arm, best)


@number
def corrected_p(study: str, arm: str) -> float:
    """Return p of an arm after the correction for several comparisons."""
    rows = record(f"{study}/report/table.json")["arms"]
    (found,) = [row["p_corrected"] for row in rows if row["arm"] == arm]
    return float(found)


def minimum_difference(
    study: str, curve: str, text: str, against: str | None = None
) -> PairedDifference:
    """Return the minima of a curve over learning rates minus those of another, by seed.

    text: val or test. against: the baseline's if None
    """
    if against is None:
        return _minimum_differences(study, text)[curve]
    own, other = (
        rate_curve(studies()[study], name, f"{text}_bpb_minimum").minima
        for name in (curve, against)
    )
    return paired_difference(own, other)


@cache
def _minimum_differences(study: str, text: str) -> dict[str, PairedDifference]:
    """Return the same of every curve but the baseline."""
    found = {}
    for one in curve_results(study_of(study)):
        difference = one.difference if text == "val" else one.test
        if difference is not None:
            found[one.curve.name] = difference
    return found


@number
def minimum(study: str, curve: str, text: str) -> float:
    """Return the minimum of a curve over learning rates, the mean over seeds."""
    minima = rate_curve(studies()[study], curve, f"{text}_bpb_minimum").minima
    return statistics.fmean(minima.values())


@number
def minimum_change(study: str, curve: str, text: str) -> Estimate:
    """Return by how much the minimum of a curve over learning rates is above the baseline's."""
    found = minimum_difference(study, curve, text)
    return Estimate(found.mean, found.low, found.high)


@number
def minimum_lead(study: str, curve: str, text: str) -> float:
    """Return by how much the minimum of a curve over learning rates is below the baseline's."""
    return -minimum_difference(study, curve, text).mean


@number
def minimum_rise(study: str, curve: str, before: str, text: str) -> Estimate:
    """Return by how much the minimum of a curve is above that of another of the same study."""
    found = minimum_difference(study, curve, text, before)
    return Estimate(found.mean, found.low, found.high)


@number
def minimum_fall(
    study: str, later: str, curve: str, text: str, there: str = "", against: str = ""
) -> Estimate:
    """Return by how much less a curve leads in a later study, of other seeds, by Welch's t.

    there    what it is called in the later study, where that is something else
    against  the curve that it leads, where that is the baseline of the later study alone
    """
    first = minimum_difference(study, curve, text, against or None)
    last = minimum_difference(later, there or curve, text)
    leads = [-np.array(list(found.per_seed.values())) for found in (first, last)]
    interval = ttest_ind(*leads, equal_var=False).confidence_interval()
    return Estimate(float(leads[0].mean() - leads[1].mean()), *map(float, interval))


@number
def minimum_p(study: str, curve: str, text: str) -> float:
    """Return p of the minimum of a curve, corrected for all curves of the study by Holm."""
    compared = _minimum_differences(study, text)
    return holm({name: one.p_value for name, one in compared.items()})[curve]


def _bytes_to_baseline(study: str, arm: str) -> list[float | None]:
    """Return by seed the share of the bytes after which an arm reaches the baseline's loss."""
    rows = record(f"{study}/report/table.json")["arms"]
    (found,) = [row["bytes_to_baseline"] for row in rows if row["arm"] == arm]
    return list(found.values())


@number
def bytes_needed(study: str, arm: str) -> Estimate:
    """Return the share of the bytes to the baseline's final loss: geometric mean and interval."""
    logs = mean_interval(log(share) for share in _bytes_to_baseline(study, arm) if share)
    assert logs.n == len(_bytes_to_baseline(study, arm))
    value, low, high = np.exp([logs.mean, logs.low, logs.high])
    return Estimate(value, low, high)


@number
def seeds_that_reach(study: str, arm: str) -> int:
    """Return the number of seeds in which an arm reaches the baseline's final loss."""
    return sum(share is not None for share in _bytes_to_baseline(study, arm))


@number
def lost(study: str, arm: str) -> float:
    """Return the bits per byte lost with the last 32 bytes alone, mean over seeds."""
    results = [run.result for run in studies()[study].finished(arm)]
    costs = [result.truncation_cost(32) for result in results if result]
    return statistics.fmean(cost for cost in costs if cost is not None)


@number
def longest(study: str, arm: str, block: str | None = None) -> float:
    """Return the longest half-life at the end in a block, or in any: geometric mean over seeds."""
    runs = studies()[study].finished(arm)
    ends = [[one[-1] for one in run.last["half_life_quantiles"]] for run in runs]
    of_blocks = np.exp(np.log(ends).mean(axis=0))
    return float(of_blocks.max() if block is None else of_blocks[int(block) - 1])


def memory(study: str, arm: str, when: str) -> Memory:
    """Return half-lives and kernels of an arm."""
    (found,) = [of[arm] for (name, _), of in blocks().items() if name == study and arm in of]
    return found[("start", "end").index(when)]


@number
def median(study: str, arm: str, when: str, block: str = "1") -> float:
    """Return the median half-life in a block: geometric mean over seeds."""
    of_seeds = memory(study, arm, when).half_lives[:, int(block) - 1, 3]
    return float(np.exp(np.log(of_seeds).mean()))


@number
def observed(model: str, arm: str, block: str) -> float:
    """Return what 5 % of the half-lives over the bytes of the corpus are above."""
    rows = record("decays-train/observed.json")["rows"]
    key = (model, arm, int(block))
    (found,) = [
        row["observed"][2] for row in rows if (row["model"], row["arm"], row["block"]) == key
    ]
    return float(found)


def exponents(held: Memory) -> np.ndarray:
    """x of the law t**-x that every block's kernel follows on 1 <= t <= 256, mean over runs."""
    inside = held.lags <= LONGEST_LAG
    return falling_exponent(held.lags[inside], np.log(held.kernels[..., inside])).mean(axis=0)


@number
def exponent(study: str, arm: str, when: str) -> float:
    """Return x of the law t**-x that an arm's kernels follow on lags 1 to 256, mean over blocks."""
    return float(exponents(memory(study, arm, when)).mean())


@number
def least_exponent(study: str, *arms: str) -> float:
    """Return the smallest x of a block of several arms at the end."""
    return min(float(exponents(memory(study, arm, "end")).min()) for arm in arms)


@number
def largest_exponent(study: str, *arms: str) -> float:
    """Return the largest x of a block of several arms at the end."""
    return max(float(exponents(memory(study, arm, "end")).max()) for arm in arms)


@number
def spread(study: str, block: str, of: str, when: str, without: str = "") -> float:
    """Return the spread over initialisations of half-lives or kernels, in octaves.

    block: the block of the study. when: start, end, or seeds for the spread at the end that seeds
    alone would leave. without: beginnings of the names of arms to leave out, joined by commas.
    """
    starts = blocks()[study, block]
    if without:
        left = tuple(without.split(","))
        starts = {arm: held for arm, held in starts.items() if not arm.startswith(left)}
    found = convergence(starts)[("half-lives", "kernels").index(of)]
    return found[("start", "end", "seeds").index(when)]


@number
def far_spread(when: str, without: str | None = None) -> float:
    """Return the spread of kernels of memory-far over lags of 512 to 2,048, in octaves."""
    shapes = []
    for arm in blocks()["memory-far", ""]:
        if arm == without:
            continue
        held = memory("memory-far", arm, when)
        inside = (held.lags >= 512) & (held.lags <= 2048)
        relative = held.kernels[..., inside] / held.kernels[..., :1]
        shapes.append(np.log2(relative).mean(axis=0))
    return float(np.std(shapes, axis=0).mean())


DOSES = ("0.4", "0.7", "1.0", "1.3", "1.6")
"""Exponents of the initial kernels of memory-dose."""


@cache
def doses(at: str = "final_val_bpb") -> list[list[float]]:
    """Return mean losses by exponent, a row for each mixture of lags and kind of decays."""
    kinds = [
        f"{lags}_{kind}"
        for lags in ("lags-0.7", "lags-1.0", "lags-1.4")
        for kind in ("learnt", "frozen")
    ]
    return [[loss("memory-dose", f"{one}_{kind}", at) for one in DOSES] for kind in kinds]


@number
def doses_differ(at: str = "final_val_bpb") -> float:
    """Return how far the exponents 0.4 to 1.3 of memory-dose differ at most."""
    return max(max(row[:4]) - min(row[:4]) for row in doses(at))


@number
def millions(study: str, arm: str | None = None) -> float:
    """Return the parameters of an arm, or of the largest model of a study, in millions."""
    runs = studies()[study].finished(arm)
    return max(run.config["model"]["parameters"] for run in runs) / 1e6


@number
def thousands(study: str, arm: str | None = None) -> float:
    """Return the parameters of an arm, or of the largest model of a study, in thousands."""
    return 1000 * millions(study, arm)


def _all_runs() -> Iterator[FinishedRun]:
    """Yield the finished runs of every study."""
    for study in studies().values():
        yield from study.finished()


@number
def smallest_model() -> float:
    """Return the parameters of the smallest model of any study, in millions."""
    return min(run.config["model"]["parameters"] for run in _all_runs()) / 1e6


@number
def largest_model() -> float:
    """Return the parameters of the largest model of any study, in millions."""
    return max(run.config["model"]["parameters"] for run in _all_runs()) / 1e6


@number
def fewest_bytes() -> float:
    """Return the bytes that the shortest run of any study read, in MB."""
    return min(run.result.bytes for run in _all_runs()) / 1e6


@number
def most_bytes() -> float:
    """Return the bytes that the longest run of any study read, in MB."""
    return max(run.result.bytes for run in _all_runs()) / 1e6


@number
def training_text(study: str) -> float:
    """Return the size of the training text of a study, in MB."""
    corpus = studies()[study].finished()[0].config["corpus"]
    held_out = corpus.get("validation", 0.05) + corpus.get("test", 0.05)
    return float((1 - held_out) * corpus["size"] / 1e6)


@number
def passes(study: str) -> float:
    """Return how often the runs of a study read their training text."""
    read = [run.result.bytes for run in studies()[study].finished()]
    return max(read) / 1e6 / training_text(study)


@number
def accuracy(of: str, statistic: str) -> float:
    """Return min, max or mean over sequences of the exact exponent or of the estimate's error."""
    rows = record("measure/accuracy.json")["rows"]
    values = {
        "exact": [row["exact"] for row in rows],
        "error": [abs(row["estimate"] - row["exact"]) for row in rows],
    }[of]
    summaries = {"min": min(values), "max": max(values), "mean": statistics.fmean(values)}
    return float(summaries[statistic])


@number
def covered(process: str, method: str) -> float:
    """Return the share of intervals that cover I(d), at the lag where it is largest."""
    rows = record("measure/coverage.json")["rows"]
    (methods,) = [row["methods"] for row in rows if row["process"] == process]
    (found,) = [of["covered"] for name, of in methods.items() if name.replace(" ", "-") == method]
    return float(max(found))


PUBLISHED_GAPS = {2000: 0.071, 3000: 0.040, 4000: 0.031}
"""Bits per byte by step, baseline minus recommended initialisation, as the published study prints
them."""


@number
def published_gap(step: str) -> float:
    """Return the lead of the recommended initialisation as the published study prints it."""
    return PUBLISHED_GAPS[int(step)]


@number
def published_fall() -> float:
    """Return p where the published lead falls as steps**-p."""
    steps, gaps = zip(*PUBLISHED_GAPS.items(), strict=True)
    return -float(np.polyfit(np.log(steps), np.log(gaps), 1)[0])


STATE_RECORDS = ("state-precision", "state-precision-gdn", "state-precision-gdn-own")
"""Records on stored states."""


def stored_state_rows() -> list[dict[str, Any]]:
    """Rows of the tables of all records on stored states."""
    return [row for name in STATE_RECORDS for row in record(f"{name}/table.json")["rows"]]


@number
def stored_state(condition: str, text: str, positions: str, storage: str) -> Estimate:
    """Return the loss with a stored state minus that in float32, in bits per byte.

    condition, storage: as in table.json of the records, without blanks.
    """
    wanted = (condition, text, positions, storage)
    for row in stored_state_rows():
        named = [row[name] for name in ("condition", "text", "positions", "storage")]
        if tuple(one.replace(" ", "") for one in named) == wanted:
            return Estimate(row["mean"], row["low"], row["high"])
    raise ValueError(f"no row on stored states is {', '.join(wanted)}")


@number
def stored_state_seeds(
    condition: str, text: str, positions: str, storage: str, statistic: str
) -> float:
    """Return min or max over seeds of the same difference, or the number of seeds where it is lower
    than zero.
    """
    band = ("within", "1-2", "2-4", "4-8", "8-16").index(positions)
    lines = [
        line
        for name in STATE_RECORDS
        for line in (RECORDS / name / "losses.jsonl").read_text().splitlines()
    ]
    found = []
    for row in map(json.loads, lines):
        if row["condition"].replace(" ", "") != condition:
            continue
        losses = {name.replace(" ", ""): of[band] for name, of in row["losses"][text].items()}
        found.append(losses[storage] - losses["float32"])
    if statistic == "lower":
        return sum(value < 0 for value in found)
    return {"min": min, "max": max}[statistic](found)


@number
def stored_state_largest(storage: str, text: str = "", positions: str = "") -> float:
    """Return the largest mean difference to float32, either way, over all conditions."""
    chosen = [
        abs(row["mean"])
        for row in stored_state_rows()
        if row["storage"].replace(" ", "") == storage
        and text in ("", row["text"])
        and positions in ("", row["positions"])
    ]
    return max(chosen)


@number
def state_loss(condition: str, where: str) -> Estimate:
    """Return the loss in float32 minus that of log-spaced half-lives, in bits per byte.

    condition, where: as in table.json, without blanks; where is validation, or text,positions.
    """
    for row in record("state-precision-gdn-own/table.json")["losses"]:
        named = [row[name].replace(" ", "") for name in ("condition", "where")]
        if named == [condition, where]:
            return Estimate(row["mean"], row["low"], row["high"])
    raise ValueError(f"no row on losses is {condition}, {where}")


@number
def state_half_life(condition: str, statistic: str) -> float:
    """Return min, median or max over seeds of the longest half-life at the end, in bytes."""
    lines = [
        line
        for name in STATE_RECORDS
        for line in (RECORDS / name / "losses.jsonl").read_text().splitlines()
    ]
    found = [
        max(quantiles[-1] for quantiles in row["half_lives"])
        for row in map(json.loads, lines)
        if row["condition"].replace(" ", "") == condition
    ]
    return float(SUMMARIES[statistic](found))


@number
def exact_state_loss(condition: str, text: str, positions: str) -> float:
    """Return the bits per byte with the state in float32, mean over seeds."""
    found: dict[str, Any] = {}
    for name in STATE_RECORDS:
        found |= record(f"{name}/table.json")["float32"]
    return float(found[condition][text][positions])


@number
def value(file: str, path: str) -> float:
    """Return a number of a JSON file, PATH being keys and places joined by dots."""
    found = record(file)
    for key in path.split("."):
        found = found[int(key) if isinstance(found, list) else key]
    return float(found)


@number
def size(file: str, path: str) -> float:
    """Return a number of a JSON file without its sign."""
    return abs(value(file, path))


@number
def arm_option(study: str, arm: str, name: str) -> float:
    """Return an option of an arm, as its runs had it."""
    return float(studies()[study].finished(arm)[0].config["arm_options"][name])


@number
def option(study: str, arm: str, path: str) -> float:
    """Return an option of the runs of an arm, PATH being its section and name joined by a dot."""
    section, name = path.split(".")
    return float(studies()[study].finished(arm)[0].config[section][name])
