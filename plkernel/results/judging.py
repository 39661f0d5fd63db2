"""The verdict on runs that somebody else trained: differences, intervals, Holm, seeds needed.

The same tests as those of a study: paired by seed, or by Welch where arms share fewer than two
seeds.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from scipy.special import chdtri
from scipy.stats import ttest_ind

from plkernel.common.cli import counted, nearest, text_table
from plkernel.common.files import parse_toml, read_bytes
from plkernel.config.schema import Claim, check_margin, explained
from plkernel.config.spec import heading
from plkernel.config.toml_types import check_types
from plkernel.results.claims import Claimed, Judgement, judge_family
from plkernel.results.rows import Row, ended_early, last_values, without_step
from plkernel.results.statistics import (
    ALPHA,
    PairedDifference,
    detectable_difference,
    holm,
    lacks_spread,
    magnitude,
    paired_difference,
)
from plkernel.results.wording import interval_text, mean_text, p_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SEEDS = 10_000
"""Where more seeds are needed, this number is told."""
SPREAD_COVERAGE = 0.8
"""Of the interval of a standard deviation, and so of the seeds needed."""
MOST_LISTED = 12
"""Seeds, or runs, that a line names at most."""
BASELINES = ("baseline", "base", "control", "default")
"""Names by which a baseline is known that nobody names."""


class Stated(BaseModel):
    """One hypothesis of a file: arm minus `against`, which is the baseline if left out.

    claim  lower or higher: by more than the margin; equal: by less than the margin either way;
           lower_by_less or higher_by_less: not zero, and by less than the margin
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str
    arm: str
    against: str | None = None
    size: str = ""
    claim: Claim
    margin: float = 0.0
    family: str = "main"
    alpha: float = ALPHA

    @model_validator(mode="after")
    def _has_a_margin(self) -> Self:
        check_margin(self.name, self.claim, self.margin)
        return self


class Stating(BaseModel):
    """A file of hypotheses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    baseline: str | None = None
    hypotheses: tuple[Stated, ...] = ()


@dataclass(frozen=True)
class Compared:
    """One arm against the baseline.

    difference   the mean difference with its 95 % interval, p and, if paired, values by seed
    paired       False where the two share fewer than two seeds: Welch's test
    corrected_p  Holm's, over all arms and sizes
    detectable   the difference that so many seeds find 8 times in 10, at this spread
    seeds_needed for the difference hoped for: by the spread seen, and by the ends of its interval
    """

    arm: str
    size: str
    difference: PairedDifference
    paired: bool
    corrected_p: float
    detectable: float
    seeds_needed: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Judged:
    """All comparisons with a baseline, and the verdicts on the hypotheses by name.

    left_out  names of the runs without a finite value
    seeds     of the runs that are compared
    notes     sentences on the rows, beneath the headline
    """

    baseline: str
    step: float | None
    compared: tuple[Compared, ...]
    verdicts: Mapping[str, Judgement]
    stated: tuple[Stated, ...]
    left_out: tuple[str, ...]
    seeds: tuple[int, ...] = ()
    hope: float | None = None
    notes: tuple[str, ...] = ()


def read_hypotheses(path: Path) -> Stating:
    """A TOML file with `baseline` and [[hypotheses]]; ValueError, naming it, where it is none."""
    origin = f"hypotheses {path}"
    try:
        values = parse_toml(read_bytes(path), origin)
        with heading(f"{origin}: "):
            check_types(values, Stating, {})
        return Stating.model_validate(values)
    except ValidationError as error:
        raise ValueError(f"{origin}: {explained(error, Stating)}") from None


def judged(
    rows: Sequence[Row],
    baseline: str | None = None,
    stating: Stating | None = None,
    hope: float | None = None,
    step: float | None = None,
    notes: Sequence[str] = (),
) -> Judged:
    """Compare every arm with the baseline, size by size, and judge the hypotheses.

    rows      one for each run, as `rows.last_values` gives them
    baseline  an arm; left out, that of the hypotheses, one called baseline or control, or the first
    hope      a difference; the seeds that would find it 8 times in 10 are told
    notes     sentences on the rows, such as that of `early_note`

    Raises ValueError for fewer than two arms with finite values, an arm that is not there, and a
    baseline without a finite value.
    """
    stating = stating or Stating()
    kept = [row for row in rows if math.isfinite(row.value)]
    left_out = tuple(_run_name(row) for row in rows if not math.isfinite(row.value))
    every_arm = _arms(rows)
    if len(every_arm) < 2:
        raise ValueError(f"rows must hold two arms or more, got {', '.join(every_arm) or 'none'}")
    base = _baseline(every_arm, stating.baseline if baseline is None else baseline)
    _check_values(rows, base, step)
    arms = _arms(kept)
    groups = _by_size_and_arm(kept)
    return Judged(
        baseline=base,
        step=step,
        compared=_all_compared(groups, arms, base, hope),
        verdicts=_verdicts(rows, base, stating.hypotheses),
        stated=stating.hypotheses,
        left_out=left_out,
        seeds=tuple(sorted({row.seed for row in kept if row.seed is not None})),
        hope=hope,
        notes=tuple(notes),
    )


def early_note(
    rows: Sequence[Row],
    step: float | None,
    baseline: str | None = None,
    stating: Stating | None = None,
) -> str | None:
    """The sentence on runs that end before others, where arms are compared at their `step`.

    It names the last step of the others where arms can be compared there too. None where no run
    ends early.
    """
    early, last = ended_early(rows, step)
    if last is None:
        return None
    ends = [f"{_run_name(row)} at step {row.step:g}" for row in early]
    note = f"compared at step {step:g}, as some runs end before step {last:g}: {_some(ends)}"
    if not _can_judge(rows, last, baseline, stating):
        return note
    return f"{note}; to leave these out, give --at {last:g}"


def stepless_note(rows: Sequence[Row], step: float | None) -> str | None:
    """The sentence on rows without a step that are compared with those of others at their `step`.

    None where all rows tell a step, and where none does.
    """
    found = without_step(rows)
    if not found or step is None:
        return None
    number = counted(len(found), "row", "rows")
    names = _counted_names([_run_name(row) for row in found])
    return (
        f"taken for values at step {step:g}: {number} without a step, of {_some(names)}; to leave"
        f" out rows without a step, give --at {step:g}"
    )


def unmatched_note(names: Sequence[str]) -> str | None:
    """The sentence on event folders that the pattern of names does not match; None for none."""
    if not names:
        return None
    number = counted(len(names), "folder of events", "folders of events")
    return f"--pattern leaves out {number} that it does not match, such as {names[0]}"


def _counted_names(names: Sequence[str]) -> list[str]:
    """Every name once, with the number of its runs where it stands for several."""
    told = []
    for name, count in Counter(names).items():
        told.append(name if count == 1 else f"{name} ({count:,} runs)")
    return told


def _can_judge(
    rows: Sequence[Row], at: float, baseline: str | None, stating: Stating | None
) -> bool:
    """True where arms can be compared at a step, and with the baseline."""
    try:
        values, _ = last_values(rows, at)
        judged(values, baseline, stating)
    except ValueError:
        return False
    return True


def _some(words: Sequence[str]) -> str:
    """The first words of a list, and the number of those that are left out."""
    more = len(words) - MOST_LISTED
    told = ", ".join(words[:MOST_LISTED])
    return told if more <= 0 else f"{told} and {more} more"


def _arms(rows: Sequence[Row]) -> list[str]:
    """The arms of rows, in order."""
    return list(dict.fromkeys(row.arm for row in rows))


def _check_values(rows: Sequence[Row], base: str, step: float | None) -> None:
    """ValueError unless the baseline and another arm have finite values."""
    with_values = _arms([row for row in rows if math.isfinite(row.value)])
    place = "" if step is None else f" at step {step:g}, and as its last"
    if step is None and any(row.step is not None for row in rows):
        place = " as its last"  # all runs diverged, and no step is compared
    if base not in with_values:
        runs = _counted_names([_run_name(row) for row in rows if row.arm == base])
        raise ValueError(
            f"baseline must have a run with a finite value{place}, got {base!r}, which has none:"
            f" {_some(runs)}; give --baseline of another arm"
        )
    if len(with_values) < 2:
        without = [arm for arm in _arms(rows) if arm not in with_values]
        raise ValueError(
            "rows must hold two arms or more of which a run has a finite value"
            f"{place}, got {base} alone: no run of {_some(without)} has one"
        )


def _by_size_and_arm(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """The rows of every arm, size by size."""
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        by_arm = groups.setdefault(row.size, {})
        by_arm.setdefault(row.arm, []).append(row)
    return groups


def _all_compared(
    groups: Mapping[str, Mapping[str, list[Row]]],
    arms: Sequence[str],
    base: str,
    hope: float | None,
) -> tuple[Compared, ...]:
    """Every arm of every size against the baseline, with Holm's p over all of them."""
    compared = []
    for size, by_arm in groups.items():
        if base not in by_arm:
            raise ValueError(
                f"baseline must have a run of size {size} with a finite value, got {base!r}, which"
                " has none; name another, or leave the size out"
            )
        others = [arm for arm in arms if arm in by_arm and arm != base]
        compared += [_compared(arm, size, by_arm[arm], by_arm[base], hope) for arm in others]
    corrected = holm({(one.arm, one.size): one.difference.p_value for one in compared})
    return tuple(replace(one, corrected_p=corrected[one.arm, one.size]) for one in compared)


def _run_name(row: Row) -> str:
    name = row.arm if row.seed is None else f"{row.arm}/seed-{row.seed}"
    return f"{name} ({row.size})" if row.size else name


def _baseline(arms: Sequence[str], given: str | None) -> str:
    """The arm that others are compared with; ValueError for one that is not there."""
    if given is None:
        return next((arm for arm in arms if arm.lower() in BASELINES), arms[0])
    if given not in arms:
        raise ValueError(
            f"baseline must be an arm of the rows, got {given!r}; {nearest(given, arms)}"
        )
    return given


def _by_seed(rows: Sequence[Row]) -> dict[int, float]:
    return {row.seed: row.value for row in rows if row.seed is not None}


def _compared(
    arm: str, size: str, own: Sequence[Row], base: Sequence[Row], hope: float | None
) -> Compared:
    """The difference of two arms, paired where they share two seeds or more."""
    own_by_seed = _by_seed(own)
    base_by_seed = _by_seed(base)
    common = own_by_seed.keys() & base_by_seed.keys()
    paired = len(common) > 1
    if paired:
        difference = paired_difference(own_by_seed, base_by_seed)
    else:
        difference = _welch([row.value for row in own], [row.value for row in base])
    spread = difference.standard_deviation
    return Compared(
        arm=arm,
        size=size,
        difference=difference,
        paired=paired,
        corrected_p=math.nan,
        detectable=detectable_difference(spread, difference.n),
        seeds_needed=None if hope is None else seeds_needed(abs(hope), spread, difference.n),
    )


def _welch(own: Sequence[float], base: Sequence[float]) -> PairedDifference:
    """Welch's unequal variances t test (1947); n of the smaller arm, sd of one difference.

    Where neither arm has a spread the test has no scale: then p is that of exchanging runs, two of
    all choices of one arm's runs among those of both.
    """
    fewest = min(len(own), len(base))
    mean = float(np.mean(own) - np.mean(base))
    if fewest < 2:
        return PairedDifference(
            n=fewest,
            mean=mean,
            low=math.nan,
            high=math.nan,
            standard_deviation=math.nan,
            p_value=math.nan,
            per_seed={},
        )
    if all(lacks_spread(values, [*own, *base]) for values in (own, base)):
        choices = math.comb(len(own) + len(base), len(own))
        return PairedDifference(
            n=fewest,
            mean=mean,
            low=mean,
            high=mean,
            standard_deviation=0.0,
            p_value=2.0 / choices if mean else math.nan,
            per_seed={},
        )
    result = ttest_ind(own, base, equal_var=False)
    interval = result.confidence_interval(0.95)
    return PairedDifference(
        n=fewest,
        mean=mean,
        low=float(interval.low),
        high=float(interval.high),
        standard_deviation=math.sqrt(np.var(own, ddof=1) + np.var(base, ddof=1)),
        p_value=float(result.pvalue),
        per_seed={},
    )


def seeds_needed(hope: float, sd: float, n: int) -> tuple[int, int, int] | None:
    """Seeds with which a difference of `hope` is found 8 times in 10, at a spread seen over n.

    The first number takes the spread as it was seen, the others the ends of its SPREAD_COVERAGE
    interval: (n - 1) sd**2 / sigma**2 is chi-squared with n - 1 degrees. None where no spread is
    known.
    """
    if n < 2 or not 0.0 < sd < math.inf or not hope > 0.0:
        return None
    tail = (1.0 - SPREAD_COVERAGE) / 2.0
    low = sd * math.sqrt((n - 1) / chdtri(n - 1, tail))
    high = sd * math.sqrt((n - 1) / chdtri(n - 1, 1.0 - tail))
    return _fewest(hope, sd), _fewest(hope, low), _fewest(hope, high)


def _fewest(hope: float, sd: float) -> int:
    """The least n whose detectable difference is at most `hope`; MOST_SEEDS where more are."""
    low = 1
    high = MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        if detectable_difference(sd, middle) <= hope:
            high = middle
        else:
            low = middle
    return high


def _verdicts(
    rows: Sequence[Row], baseline: str, hypotheses: Sequence[Stated]
) -> dict[str, Judgement]:
    """The judgement of every hypothesis, corrected for its family."""
    _check_stated(hypotheses)
    arms = _arms(rows)
    sizes = list(dict.fromkeys(row.size for row in rows))
    families: dict[str, dict[str, Claimed]] = {}
    alphas = {one.family: one.alpha for one in hypotheses}
    for one in hypotheses:
        against = _against(one, baseline)
        _check_arms(one, against, arms)
        size = _size(one, sizes)
        own = _values(rows, one.arm, size)
        base = _values(rows, against, size)
        differences = [own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())]
        claimed = Claimed(one.claim, one.margin, differences)
        families.setdefault(one.family, {})[one.name] = claimed
    verdicts: dict[str, Judgement] = {}
    for name, family in families.items():
        verdicts |= judge_family(family, alphas[name])
    return verdicts


def _against(hypothesis: Stated, baseline: str) -> str:
    """The arm that that of a hypothesis is compared with."""
    return baseline if hypothesis.against is None else hypothesis.against


def _values(rows: Sequence[Row], arm: str, size: str) -> dict[int, float]:
    """The finite values of an arm at a size, by seed."""
    own = [row for row in rows if row.arm == arm and row.size == size]
    return _by_seed([row for row in own if math.isfinite(row.value)])


def _check_stated(hypotheses: Sequence[Stated]) -> None:
    """ValueError where two hypotheses share a name, or those of a family differ in alpha."""
    names = [one.name for one in hypotheses]
    alphas: dict[str, float] = {}
    for one in hypotheses:
        head = f"hypotheses {one.name!r}"
        if names.count(one.name) > 1:
            raise ValueError(f"{head}: name must be unique, got one that several have")
        alpha = alphas.setdefault(one.family, one.alpha)
        if one.alpha != alpha:
            raise ValueError(
                f"{head}: alpha must be that of its family, {alpha:g}, got {one.alpha:g}"
            )


def _check_arms(hypothesis: Stated, against: str, arms: Sequence[str]) -> None:
    """ValueError where a hypothesis names an arm that no run has, or compares one with itself."""
    head = f"hypotheses {hypothesis.name!r}"
    for name in (hypothesis.arm, against):
        if name not in arms:
            hint = nearest(name, arms)
            raise ValueError(f"{head}: arm must be one of the rows, got {name!r}; {hint}")
    if hypothesis.arm == against:
        option = "arm" if hypothesis.against is None else "against"
        other = "the baseline" if hypothesis.against is None else "arm"
        hint = nearest("", [name for name in arms if name != against])
        raise ValueError(f"{head}: {option} must be another than {other}, got {against!r}; {hint}")


def _size(hypothesis: Stated, sizes: Sequence[str]) -> str:
    """The size that a hypothesis is about: its own, or the only one.

    ValueError where it names one that no run has, or none of several.
    """
    if not hypothesis.size and len(sizes) == 1:
        return sizes[0]
    if hypothesis.size not in sizes:
        got = repr(hypothesis.size) if hypothesis.size else "none"
        hint = nearest(hypothesis.size, sizes)
        raise ValueError(
            f"hypotheses {hypothesis.name!r}: size must be that of a run, got {got}; {hint}"
        )
    return hypothesis.size


# For the terminal and for files


def render(result: Judged, better: str = "lower") -> str:
    """Tables and sentences for the terminal."""
    lines = [_headline(result, better)]
    if result.left_out:
        names = ", ".join(_counted_names(result.left_out))
        place = "" if result.step is None else f" at step {result.step:g}, or their last ones,"
        lines.append(f"left out, since their values{place} are missing or not finite: {names}")
    lines += [*result.notes, "", _table(result)]
    step = "" if result.step is None else f", at step {result.step:g}"
    lines.append(
        f"(arm minus {result.baseline}{step}; 95 % intervals by t, paired by seed unless marked;"
        " corrected p by Holm; found 8 in 10: the true difference that so many seeds find 8 times"
        " in 10 at this spread)"
    )
    if result.seeds:
        lines.append(f"(seeds in the rows: {_some([str(seed) for seed in result.seeds])})")
    if result.hope is not None:
        lines.append(
            f"(seeds that find a difference of {result.hope:g} 8 times in 10, at the spread seen"
            f" and at the ends of its {SPREAD_COVERAGE:.0%} interval)"
        )
    if result.stated:
        lines += ["", _verdict_table(result), *_unpaired(result)]
    return "\n".join(lines)


def _headline(result: Judged, better: str) -> str:
    """One sentence: which arms differ significantly, and what so few seeds could not see."""
    found = [one for one in result.compared if one.corrected_p < ALPHA]
    tested = [one for one in result.compared if not math.isnan(one.corrected_p)]
    if all(one.difference.n < 2 for one in result.compared):
        return (
            f"No arm can be distinguished from {result.baseline}: one seed cannot be judged, as it"
            " shows no spread; each arm needs two or more with a finite value."
        )
    if not tested:
        return f"No arm can be distinguished from {result.baseline}: no comparison has a p."
    comparisons = counted(len(tested), "comparison", "comparisons")
    if not found:
        known = [one.detectable for one in result.compared if math.isfinite(one.detectable)]
        seen = ""
        if known:
            seen = f"; these seeds find a difference of {min(known):.2g} at the earliest"
        return (
            f"No arm can be distinguished from {result.baseline} ({comparisons}, corrected by"
            f" Holm){seen}."
        )
    parts = []
    for one in found:
        ahead = (one.difference.mean < 0) == (better == "lower")
        label = f"{one.arm} ({one.size})" if one.size else one.arm
        parts.append(f"{label} is {'better' if ahead else 'worse'} by {_size_of(one.difference)}")
    return (
        f"{len(found)} of {comparisons} with {result.baseline} can be distinguished (Holm):"
        f" {'; '.join(parts)}."
    )


def _size_of(difference: PairedDifference) -> str:
    """The mean and its interval without the sign of the mean: "0.012 (0.007 to 0.017)"."""
    one = magnitude(difference)
    return f"{mean_text(one, '.4f')} ({interval_text(one, '.4f')})"


def _table(result: Judged) -> str:
    """A row for every comparison; the column of sizes is left out where there are none."""
    header = [
        "size",
        "arm",
        "n",
        "difference",
        "95 % interval",
        "p",
        "corrected p",
        "found 8 in 10",
    ]
    if result.hope is not None:
        header.append(f"seeds for {result.hope:g}")
    rows = []
    for one in result.compared:
        difference = one.difference
        cells = [
            one.size or "-",
            one.arm if one.paired else f"{one.arm} (unpaired)",
            str(difference.n),
            mean_text(difference),
            interval_text(difference),
            p_text(difference.p_value),
            p_text(one.corrected_p),
            f"{one.detectable:.2g}" if math.isfinite(one.detectable) else "-",
        ]
        if result.hope is not None:
            cells.append(_needed_text(one.seeds_needed))
        rows.append(cells)
    if not any(one.size for one in result.compared):
        header = header[1:]
        rows = [row[1:] for row in rows]
    return text_table(header, rows)


def _needed_text(needed: tuple[int, int, int] | None) -> str:
    """The seeds needed at the spread seen, and at the ends of its interval; see `seeds_needed`."""
    if needed is None:
        return "-"
    seen, low, high = needed
    return f"{seen} ({low} to {high})"


def _unpaired(result: Judged) -> list[str]:
    """A sentence for each hypothesis whose arms share too few seeds to be judged."""
    lines = []
    for one in result.stated:
        shared = result.verdicts[one.name].n
        if shared < 2:
            against = _against(one, result.baseline)
            seeds = counted(shared, "seed", "seeds") if shared else "no seeds"
            lines.append(
                f"({one.name!r} cannot be decided: {one.arm} shares {seeds} with {against}, and"
                " hypotheses are judged by pairs of one seed)"
            )
    return lines


def _verdict_table(result: Judged) -> str:
    """A row for every hypothesis, with its size where there are several."""
    has_sizes = len({one.size for one in result.compared}) > 1
    header = ["hypothesis"]
    if has_sizes:
        header.append("size")
    header += ["verdict", "difference", "interval", "n", "p (Holm)", "test"]
    rows = []
    for one in result.stated:
        verdict = result.verdicts[one.name]
        row = [one.name]
        if has_sizes:
            row.append(one.size or "-")
        row += [
            verdict.verdict,
            mean_text(verdict) if verdict.n else "-",
            interval_text(verdict),
            str(verdict.n),
            p_text(verdict.p_family),
            verdict.test,
        ]
        rows.append(row)
    return text_table(header, rows)


def content(result: Judged) -> dict[str, Any]:
    """The numbers for a JSON file."""
    return {
        "baseline": result.baseline,
        "step": result.step,
        "comparisons": [asdict(one) for one in result.compared],
        "hypotheses": [
            {**one.model_dump(), **asdict(result.verdicts[one.name])} for one in result.stated
        ],
        "left_out": list(result.left_out),
        "notes": list(result.notes),
    }


def figure(result: Judged, value: str = "", better: str = "lower") -> "Figure":
    """The forest of all differences, under their sizes; `value` names what is compared."""
    from plkernel.results.forest import ForestRow, forest

    groups: dict[str, list[ForestRow]] = {}
    for one in result.compared:
        per_seed = list(one.difference.per_seed.values())
        row = ForestRow(one.arm, one.difference, per_seed, one.corrected_p < ALPHA)
        groups.setdefault(one.size, []).append(row)
    side = "below" if better == "lower" else "above"
    what = f"{value}, difference" if value else "difference"
    return forest(groups, f"{what} to {result.baseline}, {side} 0 is better")
