"""Sentences on a whole study: its significant differences, its power, and what memory is worth."""

import math
from collections.abc import Sequence
from statistics import median

from plkernel.common.cli import counted
from plkernel.common.corpus_names import is_synthetic
from plkernel.results.comparison import Comparison
from plkernel.results.saved import LzmaLosses, Reference
from plkernel.results.statistics import detectable_difference
from plkernel.results.wording import interval_text, listed, mean_text, size_text, span

FEW = 4
"""Up to so many differences are quoted."""


def overview(comparison: Comparison) -> list[str]:
    """Sentences on the significant differences, the largest of them, and the power."""
    if not any(one.n > 1 for one in comparison.on_text.values()):
        return ["No arm shares two seeds with the arm it is compared with: no interval, no claim."]
    if not comparison.tested:
        return ["No difference can be tested: those of two seeds or more are 0, or not finite."]
    seeds = span([comparison.on_text[name].n for name in comparison.tested])
    significant = _significant(comparison, seeds)
    if comparison.curves:
        significant = f"At single learning rates, {significant[0].lower()}{significant[1:]}"
        minima = [one.difference for one in comparison.curves if one.difference]
        found = [detectable_difference(one.standard_deviation, one.n) for one in minima]
        what = "one comparison of minima"
        over = "curves"
    else:
        found = [comparison.detectable[name] for name in comparison.on_text]
        what = "one comparison"
        over = "arms"
    sizes = [size for size in found if not math.isnan(size)]
    if not sizes:
        return [significant]
    power = (
        f"With {seeds} seeds and this spread, {what} on its own finds a difference of"
        f" {median(sizes):.2g} {comparison.unit} 8 times in 10 (median over {over};"
        f" {span(sizes, '.2g')})."
    )
    return [significant, power]


def _significant(comparison: Comparison, seeds: str) -> str:
    """The sentence on significant differences; `seeds` is the range of n of those tested."""
    names = [name for name in comparison.surviving if name in comparison.on_text]
    number = counted(len(comparison.tested), "difference", "differences")
    verb = "is" if len(names) < 2 else "are"
    correction = "Holm-corrected, " if len(comparison.tested) > 1 else ""
    text = f"{len(names) or 'None'} of {number} {verb} significant ({correction}{seeds} seeds)"
    if not names:
        return f"{text}."
    below = sum(comparison.differences[name].mean < 0 for name in names)
    text += f", {below} below the baseline and {len(names) - below} above"
    if len(names) > FEW:
        text += "; the largest"
    quoted = "; ".join(_difference(comparison, name) for name in names[:FEW])
    return f"{text}: {quoted}."


def _difference(comparison: Comparison, name: str) -> str:
    """The difference of an arm and its interval, marked where it is not one of likelihoods."""
    one = comparison.differences[name]
    return f"{comparison.marked(name)} {mean_text(one)} ({interval_text(one)})"


def memory_worth(comparison: Comparison) -> list[str]:
    """A sentence or two on every corpus: how many arms lose to n-grams, what LZMA needs.

    A synthetic corpus on which no arm loses is left out.
    """
    texts = []
    for one in comparison.references:
        means = [
            arm.estimates["final_val_bpb"].mean
            for arm in comparison.arms
            if comparison.reference(arm) is one and "final_val_bpb" in arm.estimates
        ]
        losing = sum(not mean < one.val_bpb[-1] for mean in means)
        if not losing and is_synthetic(str(one.corpus.get("name"))):
            continue
        text = _against_n_grams(one, losing, means)
        if one.lzma:
            text += f" {_against_lzma(one.lzma)}"
        texts.append(text)
    return texts


def _against_n_grams(one: Reference, losing: int, means: Sequence[float]) -> str:
    """The sentence on how many of the arms, of so many mean losses, lose to n-grams."""
    verb = "lose" if losing > 1 else "loses"
    return (
        f"{losing or 'None'} of {counted(len(means), 'arm', 'arms')} {verb} to"
        f" {one.orders[-1]}-grams on {one.corpus.get('name')} ({one.val_bpb[-1]:.3f} against"
        f" {min(means):.3f} bits per byte of the best)."
    )


def _against_lzma(losses: LzmaLosses) -> str:
    """The sentence on what longer memory is worth."""
    windows = listed(map(size_text, losses.windows))
    bits = listed(f"{loss:.2f}" for loss in losses.val_bpb)
    return f"What memory is worth there: LZMA that looks back {windows} needs {bits} bits."
