"""The answer of a study in one sentence: which arms differ from their baseline, and by how much."""

import math
from collections.abc import Sequence
from pathlib import Path

from plkernel.analysis.figures.style import byte_unit
from plkernel.common.cli import counted, shortened, written
from plkernel.results.comparison import ArmBlock, ArmResult, Comparison
from plkernel.results.rate_report import curve_clauses, curves_tested
from plkernel.results.statistics import ALPHA, PairedDifference, magnitude
from plkernel.results.study import FinishedRun, StudyRun
from plkernel.results.wording import listed, mean_and_interval, mean_text, span

MOST_NAMED = 6
"""With more differences, or more than MOST_BLOCKS blocks, the sentence counts and names two."""
MOST_BLOCKS = 2
LONGEST_NAME = 40
"""Characters of a corpus's name that are shown."""
SEVERAL = 3
"""From so many arms on, those that cannot be distinguished from the baseline share one range."""
UNIT_FROM = 0.1
"""Bytes are told in a unit from this share of it on: 0.61 MB rather than 610 kB."""


def answer(comparison: Comparison) -> str:
    """One sentence on all differences, at the significance of the report (Holm-corrected)."""
    where = _where(comparison)
    if not any(one.n > 1 for one in comparison.on_text.values()):
        return (
            f"{where}, no arm shares two seeds with its baseline, so nothing can be distinguished."
        )
    is_few = len(comparison.on_text) <= MOST_NAMED
    is_short = is_few and len(comparison.text_blocks) <= MOST_BLOCKS
    if comparison.curves:
        told = f", {curve_clauses(comparison.curves, comparison.unit)}"
    elif is_short:
        told = _every_arm(comparison)
    else:
        told = _counts(comparison)
    control = control_note(comparison)
    if control:
        told += f"; {control}"
    declared = comparison.declared
    if declared and declared.closed:
        gates = listed(repr(name) for name in declared.closed)
        told += f"; but a gate is not passed, {gates}, so no hypothesis is answered"
    return f"{where}{told}."


def advice(comparison: Comparison) -> str:
    """Advice for a model of the reader's, in a trial; empty in other studies."""
    measured = comparison.measured
    if not measured or not comparison.on_text:
        return ""
    last = measured.verdict.last_lag
    names = [name for name in comparison.surviving if name in comparison.on_text]
    ahead = [name for name in names if comparison.differences[name].mean < 0]
    words = listed(measured.words.get(name) or name for name in ahead)
    more = (
        f"{words} did better here; try this again with more minutes and seeds before you rely on it"
        if ahead
        else "no other initialisation can be told to do better here"
    )
    kind = (comparison.study.spec.get("model") or {}).get("kind") or ""
    if kind.startswith("rwkv"):
        return (
            f"For a model of yours: keep the official initialisation, and train its decays; {more}."
        )
    return (
        "For a model of yours: begin with half-lives spaced evenly on a logarithmic scale, from 1"
        f" to {last} bytes, the last lag at which information stands out, and learn them; {more}."
    )


def words_of(comparison: Comparison) -> dict[str, str]:
    """Names of the arms in a sentence, where the study has such names."""
    measured = comparison.measured
    return measured.words if measured else {}


def control_note(comparison: Comparison) -> str:
    """Say whether the control of a trial was seen, and what it cost; empty without one."""
    measured = comparison.measured
    if not measured or not measured.control:
        return ""
    what = f"the control ({measured.control})"
    block = comparison.control
    arms = [arm for arm in block.arms if arm.name in comparison.differences] if block else []
    if not arms:
        return f"{what} has not been trained yet"
    arm = arms[0]
    one = comparison.differences[arm.name]
    words = measured.words.get(arm.name) or arm.name
    if comparison.corrected[arm.name] < ALPHA and one.mean > 0:
        return f"{what} is seen: {words} cost {mean_and_interval(one, '.3f')} there"
    return (
        f"{what} is not seen: {words} {mean_and_interval(one, '+.3f')} there, so this trial is too"
        " small to show what memory is worth"
    )


def _where(comparison: Comparison) -> str:
    """The text, bytes and seeds: "On stdlib, after 0.61 MB and with 3 seeds"."""
    controls = comparison.control_names
    runs = [run for run in comparison.study.finished() if run.arm not in controls]
    if not runs:
        return "So far, with the control alone"
    planned = [run for run in comparison.study.runs if run.arm not in controls]
    ended = [run for run in comparison.study.ended if run.arm not in controls]
    begins = "On" if len(ended) == len(planned) else "So far, on"
    where = f"{begins} {_texts(runs)}, after {_bytes_read(runs)}"
    seeds = [one.n for one in comparison.on_text.values()]
    if seeds:
        where += f" and with {span(seeds)} {'seed' if max(seeds) == 1 else 'seeds'}"
    tested = curves_tested(comparison.curves) if comparison.curves else comparison.tested
    number = len(tested)
    if number > 1:
        where += f" (significance is corrected for {number} comparisons, intervals are not)"
    return where


def _texts(runs: Sequence[StudyRun]) -> str:
    """The names of the texts that runs were trained on, or how many there are."""
    names = list(dict.fromkeys(_text_name(run.config) for run in runs))
    return listed(names) if len(names) <= MOST_BLOCKS else f"{len(names)} texts"


def _bytes_read(runs: Sequence[FinishedRun]) -> str:
    """The bytes that finished runs have read: "0.61 MB", or the range of them."""
    ends = [run.result.bytes for run in runs]
    unit, unit_name = byte_unit(max(ends) / UNIT_FROM)
    return f"{span([end / unit for end in ends], '.2g')} {unit_name}"


def _text_name(config: object) -> str:
    """The name of a run's corpus, of a path its last part."""
    corpus = config.get("corpus") if isinstance(config, dict) else None
    name = str((corpus or {}).get("name") or "its text")
    if Path(name).is_absolute() or name.startswith((".", "~")):
        name = Path(name).name
    return shortened(name, LONGEST_NAME)


# Few arms: every difference


def _every_arm(comparison: Comparison) -> str:
    """The clauses of every block that has differences."""
    words = words_of(comparison)
    clauses = []
    for block in comparison.text_blocks:
        arms = [arm for arm in block.arms if arm.name in comparison.differences]
        if arms:
            clauses.append(_of_block(comparison, block, arms, words))
    return "".join(f", {clause}" if at == 0 else f"; {clause}" for at, clause in enumerate(clauses))


def _of_block(
    comparison: Comparison, block: ArmBlock, arms: Sequence[ArmResult], words: dict[str, str]
) -> str:
    """The clause of one block: "X +0.002 (..) cannot be distinguished from BASELINE"."""
    against = {str(arm.against) for arm in arms}
    has_one_base = len(against) == 1
    base = "the arm it is compared with"
    if has_one_base:
        name = against.pop()
        base = words.get(name) or comparison.short(name)
    unknown = []
    same = []
    behind = []
    ahead = []
    for arm in arms:
        one = comparison.differences[arm.name]
        name = words.get(arm.name) or comparison.label(arm, paired=not has_one_base)
        if not math.isfinite(one.mean):
            unknown.append(name)
        elif arm.name not in comparison.surviving:
            same.append((name, one))
        elif one.mean > 0:
            behind.append((name, one))
        else:
            ahead.append((name, one))
    clauses = []
    if same:
        clauses.append(_undistinguished(same, base))
    if behind:
        clauses.append(f"{_ended(behind)} {comparison.unit} behind {base}")
    if ahead:
        clauses.append(f"{_ended(ahead)} {comparison.unit} ahead of {base}")
    if unknown:
        # A run that the mean is over has a loss that is not finite, or no seed is shared.
        clauses.append(f"{listed(unknown)} cannot be compared with {base}: no mean is finite")
    title = f"{block.title}: " if block.title else ""
    return title + "; ".join(clauses)


def _ended(arms: Sequence[tuple[str, PairedDifference]]) -> str:
    """Names with their distances: "X ended 0.02 (0.01 to 0.03) and Y 0.05 (0.04 to 0.06)"."""
    distances = [(name, mean_and_interval(magnitude(one), ".3f")) for name, one in arms]
    (first, first_distance), *others = distances
    texts = [f"{first} ended {first_distance}"]
    texts += [f"{name} {distance}" for name, distance in others]
    return listed(texts)


def _undistinguished(same: Sequence[tuple[str, PairedDifference]], base: str) -> str:
    """Names with their numbers, or if they are several with the numbers of all together."""
    if len(same) < SEVERAL:
        told = listed(f"{name} {mean_and_interval(one, '+.3f')}" for name, one in same)
        return f"{told} cannot be distinguished from {base}"
    names = listed(name for name, _ in same)
    ordered = sorted((one for _, one in same), key=lambda one: one.mean)
    means = f"{mean_text(ordered[0], '+.3f')} to {mean_text(ordered[-1], '+.3f')}"
    bounded = [one for one in ordered if math.isfinite(one.low)]  # others are of one seed
    if not bounded:
        return f"{names} cannot be distinguished from {base} ({means})"
    low = min(one.low for one in bounded)
    high = max(one.high for one in bounded)
    bounds = f"{written(low, '+.3f', low)} to {written(high, '+.3f', high)}"
    return f"{names} cannot be distinguished from {base} ({means}, intervals within {bounds})"


# Many arms: counts, and the two ends


def _counts(comparison: Comparison) -> str:
    """Number of significant differences, and the largest either way, in words."""
    if not comparison.tested:
        return ", no difference can be tested"
    names = [name for name in comparison.surviving if name in comparison.on_text]
    number = counted(len(comparison.tested), "difference", "differences")
    if not names:
        return f", none of {number} is significant"
    behind = [name for name in names if comparison.differences[name].mean > 0]
    ahead = [name for name in names if comparison.differences[name].mean < 0]
    text = (
        f", {len(names)} of {number} {'is' if len(names) == 1 else 'are'} significant"
        f": {len(behind)} behind the baseline and {len(ahead)} ahead"
    )
    if behind:
        text += f"; furthest behind {_furthest(comparison, behind)}"
    if ahead:
        text += f"; furthest ahead {_furthest(comparison, ahead)}"
    return text


def _furthest(comparison: Comparison, names: Sequence[str]) -> str:
    """The arm with the largest of these differences: "8_ema by 0.043 (0.033 to 0.053)"."""
    distances = {name: magnitude(comparison.differences[name]) for name in names}
    name = max(names, key=lambda name: distances[name].mean)
    return f"{comparison.marked(name)} by {mean_and_interval(distances[name], '.3f')}"
