"""Numbers and lists in words, as the page, its text and its figures give them."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from plkernel.common.cli import counted, written
from plkernel.config.schema import MeasuredNumber
from plkernel.results.claims import Judgement
from plkernel.results.statistics import Estimate

FEW = 4
"""Items that a list in a sentence names; others are counted."""


def mean_text(one: Estimate | Judgement, form: str = "+.4f") -> str:
    """Format the mean with as many digits as its interval needs; "not finite" where it is not."""
    if not math.isfinite(one.mean):
        return "not finite"
    half = (one.high - one.low) / 2
    return written(one.mean, form, half)


def interval_text(one: Estimate | Judgement, form: str = "+.4f") -> str:
    """Format the bounds; empty where there are none."""
    if not math.isfinite(one.low):
        return ""
    half = (one.high - one.low) / 2
    low = written(one.low, form, half, one.low)
    high = written(one.high, form, half, one.high)
    return f"{low} to {high}"


def mean_and_interval(one: Estimate | Judgement, form: str = "+.4f") -> str:
    """Format a mean and its bounds, as in "0.050 (0.041 to 0.059)"; without those it has not."""
    bounds = interval_text(one, form)
    return f"{mean_text(one, form)} ({bounds})" if bounds else mean_text(one, form)


def mean_and_half_width(one: Estimate | None, form: str, seeds: int) -> str:
    """Format mean ± half width of the interval, "-" for None.

    seeds: n of the arm; the n of the mean is told where it differs.
    """
    if one is None:
        return "-"
    text = mean_text(one, form)
    half = (one.high - one.low) / 2
    if math.isfinite(half):
        text += f" ± {written(half, form.lstrip('+'), half)}"
    if one.n != seeds:
        text += f" (n = {one.n})"
    return text


def p_text(p: float) -> str:
    """Format a p value with two digits, never as zero.

    >>> p_text(0.0312), p_text(1e-9), p_text(float("nan"))
    ('0.031', '< 0.0001', '-')
    """
    if math.isnan(p):
        return "-"
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def span(values: Iterable[Any], form: str = ",") -> str:
    """Format the smallest and the largest value, or the one that all are; empty without any.

    >>> span([3, 1, 2]), span([1, 1]), span([])
    ('1 to 3', '1', '')
    """
    known = list(values)
    if not known:
        return ""
    low = format(min(known), form)
    high = format(max(known), form)
    return low if low == high else f"{low} to {high}"


def listed(items: Iterable[Any]) -> str:
    """Join items as words.

    >>> listed("abc"), listed("a"), listed("")
    ('a, b and c', 'a', '')
    """
    *names, last = [str(item) for item in items] or [""]
    return f"{', '.join(names)} and {last}" if names else last


def left_out(
    places: Sequence[tuple[str, int]], arms: Collection[str], seeds: Sequence[int]
) -> list[str]:
    """Sentences on finished runs, by arm and seed, that a spec does not ask for.

    arms, seeds: those of the spec.
    """
    of_seeds = [seed for arm, seed in places if arm in arms]
    of_arms = [arm for arm, _ in places if arm not in arms]
    sentences = []
    if of_seeds:
        others = sorted(set(of_seeds))
        every = " ".join(map(str, [*seeds, *others]))
        runs = counted(len(of_seeds), "finished run", "finished runs")
        sentences.append(
            f"The folder has {runs} of seed {first_few(others)}, left out as the spec has seed"
            f" {first_few(seeds)} alone; plkernel.experiment with --seeds {every} takes all in."
        )
    if of_arms:
        runs = counted(len(of_arms), "finished run", "finished runs")
        names = first_few(dict.fromkeys(of_arms))
        sentences.append(
            f"The folder has {runs} of arm {names}, left out as the spec has no such arm."
        )
    return sentences


def first_few(items: Collection[Any]) -> str:
    """Join items as words, those after the first few as their number."""
    names = list(items)[:FEW]
    more = len(items) - len(names)
    return listed([*names, f"{more} more"] if more else names)


def size_text(count: int) -> str:
    """A number of bytes that is a power of two.

    >>> size_text(4096), size_text(2**24)
    ('4 kB', '16 MB')
    """
    return f"{count // 2**20} MB" if count >= 2**20 else f"{count // 2**10} kB"


def statement(one: MeasuredNumber) -> str:
    """The options of a hypothesis or gate, as in "metric val_bpb, arm short, claim lower"."""
    given = one.model_dump(exclude={"name", "family"}, exclude_defaults=True)
    options = {"metric": one.metric, **given}
    return ", ".join(f"{name} {value}" for name, value in options.items())
