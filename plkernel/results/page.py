"""The report as one self-contained HTML page: no scripts, no requests, light and dark, fit to print."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from plkernel.analysis.intervals import critical_value
from plkernel.common.imports import is_code
from plkernel.common.numbers import written
from plkernel.models.words import NOT_CAUSAL
from plkernel.results.comparison import (
    ArmResult,
    Block,
    Comparison,
    Cost,
    Effects,
    Evidence,
    Measure,
    factor_levels,
    short_factor,
)
from plkernel.results.figures import Change, Drawing, change_of, truncated
from plkernel.results.layout import DIVERGED, FAILED, FINISHED
from plkernel.results.registration import Declared, requirement, statement
from plkernel.results.statistics import Estimate, mean_interval
from plkernel.results.study import Run
from plkernel.results.text import (
    effects_sentence,
    gram_name,
    interval_text,
    is_large,
    listed,
    mean_text,
    overview,
    p_text,
    sentences,
    span,
    warnings,
)

FEW = 12
"""So many seeds, names or missing runs stand on the page; more are shortened or folded."""
NOT_OPTIONS = ("levels", "against", "node_rates", "node_multipliers", "node_gain", "output_std")
"""Keys of a saved arm that are no options: its place in the study, and numbers that follow from other options."""


@dataclass(frozen=True)
class Text:
    """Paragraphs in one style of the style sheet."""

    css: str
    texts: Sequence[str]
    kind = "text"


@dataclass(frozen=True)
class Table:
    """Groups of rows, each under its title where it has one; the first column heads its rows.

    A cell is text; its second and further lines stand small below the first.
    """

    caption: str
    header: Sequence[str]
    groups: Sequence[tuple[str, Sequence[Sequence[str]]]]
    kind = "table"

    @property
    def numeric(self) -> list[bool]:
        """True for the columns that hold numbers."""
        columns = zip(*(row for _, rows in self.groups for row in rows), strict=True)
        return [all(re.match(r"[-+<\d]|$", cell) for cell in column) for column in columns]


@dataclass(frozen=True)
class Figure:
    """A drawing as SVG."""

    drawing: Drawing
    svg: Markup
    kind = "figure"


@dataclass(frozen=True)
class Folded:
    """Parts that a reader opens."""

    title: str
    parts: "Sequence[Part]"
    kind = "folded"


Part = Text | Table | Figure | Folded


def page(comparison: Comparison, drawn: Mapping[str, tuple[Drawing, bytes]]) -> str:
    """The page as HTML, every text in it escaped; `drawn` holds each figure and its SVG by name."""
    figures: dict[str, list[Figure]] = {}
    for at, (drawing, svg) in enumerate(drawn.values()):
        figures.setdefault(drawing.section, []).append(Figure(drawing, _embedded(svg, f"f{at}-")))
    label = "" if comparison.causal else f" ({NOT_CAUSAL})" if not any(map(_clean, comparison.arms)) else ""
    sections: dict[str, Sequence[Part]] = {
        "What was decided": [*_decided(comparison), *figures.get("decided", ())],
        f"Results{label}": _results(comparison),
        f"Differences{label}": [*_differences(comparison, figures.get("differences", ()))],
        "Effects of the factors": [part for one in comparison.effects for part in _effects(comparison, one)],
        "Curves": _folded(comparison, figures.get("curves", ())),
        "Worth of far context": [*_folded(comparison, figures.get("context", ())), *_context(comparison)],
        "Memory before and after training": [*_folded(comparison, figures.get("memory", ())), *_memory(comparison)],
        "The published figures, redrawn": figures.get("published", ()),
        "Design": [_design(comparison), _arms(comparison)],
        "Runs": [*_rates(comparison), *_costs(comparison), *_missing(comparison), *_provenance(comparison)],
    }
    templates = Environment(
        loader=PackageLoader("plkernel.results", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["minus"] = lambda text: re.sub(r"(?<![^\s(])-(?=\d)", "\N{MINUS SIGN}", text)
    return templates.get_template("page.html").render(
        title=f"{comparison.study.name}{label}",
        question=comparison.study.description,
        sections={title: parts for title, parts in sections.items() if parts},
    )


def _embedded(svg: bytes, prefix: str) -> Markup:
    """An SVG of matplotlib inside a page: ids of its own, the page's ink, and no size but that of its frame."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL).replace("#1a1a1b", "currentColor")
    return Markup(re.sub(r'<svg (?:height|width)="[^"]*"|(?<=")\s(?:height|width)="[^"]*pt"', _unsized, text))


def _unsized(match: re.Match[str]) -> str:
    return "<svg" if match[0].startswith("<svg") else ""


def _clean(arm: ArmResult) -> bool:
    return arm.causal and bool(arm.seeds)


def _named(comparison: Comparison, part: Block, arm: ArmResult) -> str:
    """The arm inside its block, marked where it leaks and the title of its block does not say so."""
    return comparison.short(arm.name) + ("" if arm.causal or (part.title and part.leaks) else f"\n{NOT_CAUSAL}")


def _pair(comparison: Comparison, part: Block, arm: ArmResult) -> str:
    """The arm, and the one it is compared with where that is not the baseline of its block."""
    own = arm.against == part.baseline and (part.title or len(comparison.baselines) == 1)
    return _named(comparison, part, arm) + ("" if own else f"\nminus {comparison.short(str(arm.against))}")


def _grouped(
    comparison: Comparison, row: Callable[[Block, ArmResult], list[str] | None], others: bool = False
) -> list[tuple[str, list[list[str]]]]:
    """The rows of every block's arms under its title; an arm whose row is None is left out."""
    groups = []
    for part in comparison.blocks:
        rows = [one for arm in (part.others if others else part.arms) if (one := row(part, arm))]
        title = part.title + (f" ({NOT_CAUSAL})" if part.title and part.leaks else "")
        groups += [(title, rows)] if rows else []
    return groups


def _estimate(one: Estimate | None, form: str, seeds: int) -> str:
    """A mean with its interval below; its n too where that differs from the arm's."""
    if one is None:
        return "-"
    few = [f"n = {one.n}"] if one.n != seeds else []
    return "\n".join(filter(None, [mean_text(one, form), interval_text(one, form), *few]))


def _folded(comparison: Comparison, figures: Sequence[Figure]) -> list[Part]:
    """All figures of a small study; of a large one those of the first block, the others folded."""
    first = len(figures) if len(comparison.blocks) < 3 else -(-len(figures) // len(comparison.blocks))
    rest = figures[first:]
    return [*figures[:first], *([Folded(f"{len(rest)} more figures", rest)] if rest else [])]


def _decided(comparison: Comparison) -> Iterator[Part]:
    """The first screen: the answer, the verdicts, the gates, the registration, and what must be known before."""
    one, words, large = comparison.declared, overview(comparison), is_large(comparison)
    if one is None:
        answer = words[1] if large else _answer(comparison)
        yield Text("answer", ["No hypothesis was declared before the runs.", answer])
        yield Text("summary", [text for text in words if text != answer])
    else:
        yield Text("answer", [one.headline])
        yield from _verdicts(comparison, one)
        yield Text("summary", one.provenance)
    if cautions := warnings(comparison):
        yield Text("warnings", cautions)
    if one is not None:
        if one.outcomes:
            yield Folded("What would have changed the verdicts", [Text("", one.mind)])
        yield Folded("All comparisons in words", [Text("", words + (sentences(comparison) if large else []))])
    elif large:
        yield Folded("All comparisons in words", [Text("", sentences(comparison))])


def _answer(comparison: Comparison) -> str:
    tested = sum(one.difference.n > 1 for one in comparison.evidence.values())
    if not tested:
        return "No arm has two seeds in common with the arm it is compared with: no interval, no claim."
    kept = [name for name in comparison.surviving if name in comparison.excluding]
    many = "The one difference is" if tested == 1 else f"Of {tested} differences {len(kept) or 'none'} "
    many += ("" if kept else " not") if tested == 1 else ("is" if len(kept) == 1 else "are")
    return f"{many} significant{' (Holm-corrected)' if tested > 1 else ''}."


def _verdicts(comparison: Comparison, one: Declared) -> Iterator[Part]:
    groups: dict[str, list[list[str]]] = {}
    families = dict.fromkeys(outcome.hypothesis.family for outcome in one.outcomes)
    for outcome in one.outcomes:
        judged = outcome.judgement
        notes = [statement(outcome.hypothesis)]
        notes += ["not declared before the runs"] if one.late(outcome) else []
        notes += [] if outcome.causal else [NOT_CAUSAL]
        number = [mean_text(judged), interval_text(judged), f"n = {judged.n}"] if judged.n else [outcome.missing]
        row = ["\n".join([outcome.hypothesis.name, *notes]), one.short_verdict(outcome)]
        row += ["\n".join(filter(None, number)), p_text(judged.p_family), p_text(judged.p_opposite_family)]
        title = one.basis(outcome.hypothesis.family) if len(families) > 1 else ""
        groups.setdefault(title, []).append(row)
    if groups:
        basis = "" if len(families) > 1 else f" This is {one.basis(next(iter(families)))}."
        caption = (
            f"Pre-registered hypotheses. Difference: arm minus the other, seed by seed, in bits per byte, with the "
            f"{one.interval_title} of this hypothesis alone. p are corrected for all of a family (Holm): confirming, "
            f"against the opposite of the claim; refuting, against the claim. At most alpha decides.{basis}"
        )
        if not one.registered:
            caption = caption.replace("Pre-registered hypotheses", "Hypotheses of the spec, not registered")
        yield Table(caption, ["hypothesis", "verdict", "difference", "p confirming", "p refuting"], [*groups.items()])
    if one.gates:
        rows = [
            [f"{gate.gate.name}\n{requirement(gate.gate)}", "passed" if gate.passed else "not passed", gate.reading]
            for gate in one.gates
        ]
        yield Table(
            "Gates: where one is not passed, no hypothesis is answered.", ["gate", "passed", "mean"], [("", rows)]
        )


def _results(comparison: Comparison) -> list[Part]:
    """Mean and interval of every measure of every arm."""
    along = [measure for measure in comparison.measures if measure.key.startswith("val_bpb_")]
    whole = [measure for measure in comparison.measures if measure not in along]

    def row(measures: Sequence[Measure], facts: bool) -> Callable[[Block, ArmResult], list[str]]:
        def cells(part: Block, arm: ArmResult) -> list[str]:
            told = [str(len(arm.seeds)), _numbers(arm.parameters), _numbers(arm.steps)] if facts else []
            means = (_estimate(arm.estimates.get(measure.key), ".4f", len(arm.seeds)) for measure in measures)
            return [_named(comparison, part, arm), *means, *told]

        return cells

    caption = "Bits per byte: mean over seeds, with the 95 % t interval of the mean (none for one seed)."
    groups = _grouped(comparison, row(whole, True))
    for one in comparison.references:
        caption += (
            f" N-grams: interpolated Witten-Bell counts of {one.training_bytes:,} bytes, {one.training_windows}, "
            "with the standard error over windows."
        )
        losses = {"final_val_bpb": (one.val_bpb, one.val_error), "test_bpb": (one.test_bpb, one.test_error)}
        rows = []
        for at, order in enumerate(one.orders):
            cells = []
            for measure in whole:
                loss, error = (values[at] for values in losses.get(measure.key, ([None] * at + [None],) * 2))
                cells.append(
                    "" if loss is None else f"{loss:.4f}" + (f"\n\N{PLUS-MINUS SIGN} {error:.4f}" if error else "")
                )
            rows.append([gram_name(comparison, one, order), *cells, "", "", ""])
        groups.append(("for reference", rows))
    header = ["arm", *(measure.title for measure in whole), "seeds", "parameters", "steps"]
    table = Table(caption, header, groups)
    parts: list[Part] = [Folded(f"All {len(comparison.arms)} arms", [table]) if len(comparison.arms) > 40 else table]
    if along:
        header = ["arm", *(measure.title for measure in along)]
        parts += [
            Folded("Results along the way", [Table("Bits per byte.", header, _grouped(comparison, row(along, False)))])
        ]
    return parts


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(f"{value:,}" for value in values) or "-"


def _differences(comparison: Comparison, figures: Sequence[Figure]) -> Iterator[Part]:
    """Every arm minus the one it is compared with, and the evidence for it."""
    if not any(arm.differences for arm in comparison.others):
        return
    evidence = comparison.evidence
    header = ["arm", "mean", "p", "corrected p", "sign-flip p", "d_z", "baseline's end reached"]

    def row(part: Block, arm: ArmResult) -> list[str]:
        one = evidence.get(arm.name)
        if one is None:
            return [f"{_pair(comparison, part, arm)}\nno common seed", *["-"] * (len(header) - 1)]
        p = one.difference.p_value, one.corrected, one.flips.p_value if one.flips else math.nan
        effect = one.effect
        d_z = f"{effect.d_z:+.2f}\n{effect.low:+.1f} to {effect.high:+.1f}" if math.isfinite(effect.d_z) else "-"
        name, mean = _pair(comparison, part, arm), _estimate(one.difference, "+.4f", len(arm.seeds))
        return [name, mean, *map(p_text, p), d_z, _earlier(one)]

    least = {one.difference.n: one.flips for one in evidence.values() if one.flips}
    flips = "; ".join(f"{p_text(one.smallest_p)} with {n} seeds" for n, one in sorted(least.items()))
    bases = {comparison.short(base.name) for base in comparison.baselines}
    what = bases.pop() if len(bases) == 1 else "the arm it is compared with"
    caption = (
        f"Arm minus {what}{' of its block' if len(comparison.baselines) > 1 else ''}, {comparison.primary.title}, in "
        "bits per byte: below zero is better. Under the mean its 95 % t interval. Interval and p (paired t test, "
        f"two-sided) hold for one comparison, corrected p for all {len(comparison.corrected)} of this table (Holm). "
        + (f"Sign-flip p needs no normal distribution; the smallest possible is {flips}." if flips else "")
    )
    yield Table(caption, header, _grouped(comparison, row, others=True))
    notes = [
        "Runs are paired by seed: both start from the same base weights and read the same data in the same order.",
        "d_z is the mean in standard deviations of the differences, with its 95 % interval.",
        "Baseline's end reached: how much earlier in training the arm stays at or below the baseline's final value, "
        "or how many seeds do. A description, no test: among runs of equal length it cannot be negative.",
    ]
    n = min((one.difference.n for one in evidence.values()), default=0)
    if 2 <= n < 5:
        notes.append(
            f"With {n} seeds a 95 % interval reaches {critical_value(n):.1f} standard errors to either side of the "
            f"mean, with 5 seeds {critical_value(5):.1f}: only large effects can show here."
        )
    yield Text("notes", notes)
    yield from figures
    seeds = sorted({seed for one in evidence.values() for seed in one.difference.per_seed})

    def each(part: Block, arm: ArmResult) -> list[str]:
        values = evidence[arm.name].difference.per_seed if arm.name in evidence else {}
        texts = (_finite(values[seed], "+.4f") if seed in values else "-" for seed in seeds)
        return [_pair(comparison, part, arm), *texts]

    others = [measure for measure in comparison.measures if measure.key != comparison.primary.key]

    def other(part: Block, arm: ArmResult) -> list[str]:
        texts = (_estimate(arm.differences.get(measure.key), "+.4f", len(arm.seeds)) for measure in others)
        return [_pair(comparison, part, arm), *texts]

    every = _grouped(comparison, each, others=True)
    yield Folded(
        "Every seed's difference, and other measures",
        [
            Table(f"Difference by seed, {comparison.primary.title}.", ["arm", *(f"seed {s}" for s in seeds)], every),
            Table(
                "The same difference in other measures.",
                ["arm", *(measure.title for measure in others)],
                _grouped(comparison, other, others=True),
            ),
        ],
    )


def _finite(value: float, form: str) -> str:
    return written(value, form) if math.isfinite(value) else "not finite"


def _earlier(one: Evidence) -> str:
    """ "12 % earlier" where every seed reaches the baseline's final value, "3 of 8 seeds" else."""
    if one.earlier is None:
        return "-"
    if one.earlier.mean is None:
        reached = sum(value is not None for value in one.earlier.per_seed.values())
        return f"{reached} of {len(one.earlier.per_seed)} seeds"
    share = 100 * one.earlier.mean.mean
    return f"{abs(share):.0f} % {'earlier' if share >= 0 else 'later'}"


def _effects(comparison: Comparison, one: Effects) -> list[Part]:
    """Main effects and interactions of one complete part of a factorial design."""

    def named(levels: Mapping[str, Sequence[str]]) -> str:
        return "; ".join(f"{one.short(name)} {', '.join(of)}" for name, of in levels.items())

    groups: dict[str, list[list[str]]] = {}
    for contrast, p in zip(one.contrasts, one.corrected, strict=True):
        difference = contrast.difference
        row = [one.title(contrast).replace(" x ", "\nx "), mean_text(difference), interval_text(difference)]
        kind = "main effects" if contrast.order == 1 else "interactions of two factors"
        groups.setdefault(kind, []).append([*row, p_text(difference.p_value), p_text(p)])
    dropped = f" (left out: {listed(one.dropped_seeds)}, not in every cell)" if one.dropped_seeds else ""
    caption = (
        f"{comparison.primary.title.capitalize()}, bits per byte{'' if one.causal else f' ({NOT_CAUSAL})'}, below zero "
        f"is better. {one.cells} combinations of {named(one.levels)}; seeds {', '.join(map(str, one.seeds))}{dropped}. "
        + (f"Fixed: {named({name: [level] for name, level in one.fixed.items()})}. " if one.fixed else "")
        + (f"Left out, leaking or not finished everywhere: {named(one.left_out)}. " if one.left_out else "")
        + "A main effect is the mean over the combinations of the other factors, an interaction the difference of two "
        f"differences; each is taken within a seed. Corrected p is for all {len(one.contrasts)} (Holm)."
    )
    header = ["effect", "mean", "95 % interval", "p", "corrected p"]
    return [Text("", [effects_sentence(one)]), Table(caption, header, [*groups.items()])]


def _context(comparison: Comparison) -> Iterator[Part]:
    curves = {arm.name: one for arm in comparison.arms if (one := truncated(comparison, arm))}
    lengths = sorted({length for one in curves.values() for length in one.given[-7:-1]})

    def row(part: Block, arm: ArmResult) -> list[str] | None:
        one, cells = curves.get(arm.name), []
        for length in lengths if one else ():
            known = one is not None and length in one.given
            cost = one.cost[:, one.given.index(length)].tolist() if one is not None and known else []
            cells.append(_estimate(mean_interval(cost), "+.4f", len(cost)) if cost else "-")
        return [_named(comparison, part, arm), *cells] if one else None

    if curves:
        caption = (
            "Bits per byte lost where only so many bytes before the predicted one are given, against the whole "
            "context, at the same bytes of the test text: mean over seeds and 95 % t interval."
        )
        yield Table(caption, ["arm", *(f"{length:,} given" for length in lengths)], _grouped(comparison, row))


def _memory(comparison: Comparison) -> Iterator[Part]:
    """Slopes of kernels, half-lives and predictions in numbers, before and after training."""
    changes = {arm.name: change_of(comparison, arm) for arm in comparison.arms if arm.seeds}

    def table(
        title: str, caption: str, names: Sequence[str], known: Callable[[Change], Any], cells: Any
    ) -> Iterator[Part]:
        def row(part: Block, arm: ArmResult) -> list[str] | None:
            one = changes.get(arm.name)
            return [_named(comparison, part, arm), *cells(one)] if one and known(one) else None

        if groups := _grouped(comparison, row):
            yield Folded(title, [Table(caption, ["arm", *names], groups)])

    def slopes(one: Change) -> list[str]:
        before, after = one.before.exponents(), one.after.exponents()
        texts = []
        for values, form in ((before, ".2f"), (after, ".2f"), (after - before, "+.2f")):
            seeds = values.mean(axis=1)
            spread = f"\n\N{PLUS-MINUS SIGN} {seeds.std(ddof=1):.3f}" if len(seeds) > 1 else ""
            texts.append(written(float(seeds.mean()), form) + spread)
        return [*texts, ", ".join(f"{value:.2f}" for value in after.mean(axis=0))]

    def half_lives(one: Change) -> list[str]:
        both = [np.exp(np.log(memory.half_lives).mean(axis=(0, 1))) for memory in (one.before, one.after)]
        return [f"{each[at]:,.0f}" if each[at] >= 100 else f"{each[at]:.3g}" for at in (0, 3, 6) for each in both]

    def outputs(one: Change) -> list[str]:
        texts, both = [], (one.before_outputs, one.after_outputs)
        for form, keys in (
            ("{:.1%}", ("saturated_share",)),
            ("{:.1f}", ("logit_max", "logit_min")),
            ("{:.2f}", ("entropy",)),
        ):
            for states in both:
                values = [[state["saturation"][key] for key in keys] for state in states]
                texts.append(form.format(np.mean([value[0] - sum(value[1:]) for value in values])))
        for states in both:
            factors = [state["amplification"] for state in states if state.get("amplification")]
            texts.append(f"{np.exp(np.mean(np.log(factors))):.3f}" if factors else "-")
        return texts

    ranges = [one.slope_range for one in changes.values() if one.slope_range]
    if ranges:
        caption = (
            f"x of t**-x by least squares over the lags {min(low for low, _ in ranges):g} to "
            f"{max(high for _, high in ranges):g} bytes, mean over blocks and seeds with the standard deviation over "
            "seeds; then every block after training, from the first."
        )
        names = ["at initialisation", "after training", "change", "by block"]
        yield from table("Slopes of kernels in numbers", caption, names, lambda one: one.slope_range, slopes)
    pairs = [f"{name}, {time}" for name in ("shortest", "median", "longest") for time in ("before", "after")]
    caption = "Half-lives in bytes: geometric means over blocks and seeds."
    yield from table("Half-lives in numbers", caption, pairs, lambda one: one.has_half_lives, half_lives)
    caption = (
        "Predictions on the validation windows, means over seeds. At a saturated position one byte has a probability "
        "above 0.99; guessing uniformly has the entropy ln 256 = 5.545 nats. Growth: root mean square of the residual "
        "stream after a block over before it, geometric mean."
    )
    told = ("saturated positions", "range of logits", "entropy in nats", "growth per block")
    pairs = [f"{name}, {time}" for name in told for time in ("before", "after")]
    yield from table("Predictions in numbers", caption, pairs, lambda one: one.after_outputs, outputs)
    unknown: dict[str, set[str]] = {}
    for one in changes.values():
        missing = {"half-lives": not one.has_half_lives, "kernels": not one.has_kernels}
        if is_code(one.kind) and any(missing.values()):
            unknown.setdefault(one.kind, set()).update(name for name, of in missing.items() if of)
    if unknown:
        texts = (
            f"Left out: {' and '.join(sorted(of))} of {kind}, which the model does not say."
            for kind, of in unknown.items()
        )
        yield Text("notes", list(texts))


def _design(comparison: Comparison) -> Table:
    """The design in a few lines: what is varied, what is shared, and the budget of training and tuning."""
    study, spec, runs = comparison.study, comparison.study.spec, comparison.study.finished()
    model, train, tuning = (spec.get(name) or {} for name in ("model", "train", "tuning"))
    factors, results = factor_levels(study), [run.result for run in runs if run.result]
    sizes = [size for arm in comparison.arms for size in arm.parameters]
    own = not is_code(str(model.get("kind", "")))  # width and blocks of another's model are not known
    facts: dict[str, str] = {}
    if factors:
        facts["factors"] = "\n".join(f"{short_factor(name, factors)}: {', '.join(of)}" for name, of in factors.items())
    done = sum(run.status == FINISHED for run in study.runs)
    facts["runs"] = f"{len(study.arms)} arms x {len(study.seeds)} seeds: {len(study.runs)}, of which {done} finished"
    if within := spec.get("within"):
        facts["blocks"] = (
            f"by {listed(short_factor(name, within) for name in within)}, {len(comparison.blocks)} with a finished run"
        )
    corpora = {str(run.config["corpus"].get("sha256")) for run in runs}
    data = "the same data in the same order" if len(corpora) == 1 else "the order of the data"
    facts["seeds"] = f"{', '.join(map(str, study.seeds))}; runs of one seed share their base weights and {data}"
    told = [str(model.get("kind", ""))]
    told += [f"width {model['dim']}"] if own and "dim" in model else []
    told += [f"{model['layers']} blocks"] if own and "layers" in model else []
    facts["model"] = ", ".join(filter(None, [*told, f"{span(sizes)} parameters" if sizes else ""]))
    steps, size = span(one.steps for one in results), span(one.bytes for one in results)
    windows = (
        f", {train['batch']} windows of {train['context']} bytes each" if {"batch", "context"} <= train.keys() else ""
    )
    schedule = (
        f"; {train['schedule']} schedule, {train.get('warmup', 0)} steps of warm-up" if "schedule" in train else ""
    )
    facts["budget"] = f"{steps} steps{windows}: {size} bytes of training text{schedule}"
    given = {rate for arm in comparison.arms if (rate := spec["arms"][arm.name].get("learning_rate"))}
    if tuning.get("rates"):
        grids = [spec["arms"][arm].get("rates") or tuning["rates"] for arm in study.arms]
        length = f"{tuning['steps']:,} steps" if tuning.get("steps") else "as many steps as a run"
        facts["learning rate"] = (
            f"searched for each arm, the same budget for all: {span(map(len, grids))} rates "
            f"({span((rate for grid in grids for rate in grid), 'g')}), seeds {listed(tuning['seeds'])}, {length}"
        )
    elif given:
        facts["learning rate"] = f"given for the arm, {span(given, 'g')}"
    elif train.get("learning_rate"):
        facts["learning rate"] = f"{train['learning_rate']:g} for every arm, not searched for"
    held, lengths = spec.get("corpus") or {}, [length for run in runs if (length := run.config["corpus"].get("size"))]
    names = dict.fromkeys(str(run.config["corpus"].get("name")) for run in runs)
    shares = (
        f"; {100 * held['validation']:g} % validation, {100 * held['test']:g} % test"
        if {"validation", "test"} <= held.keys()
        else ""
    )
    facts["corpus"] = f"{listed(names)}{f', {span(lengths)} bytes' if lengths else ''}{shares}"
    judged = f", on {train['eval_windows']} windows" if "eval_windows" in train else ""
    facts["arms compared by"] = f"{comparison.primary.title}, bits per byte{judged}"
    return Table("The study.", ["", ""], [("", [[name, text] for name, text in facts.items() if text])])


def _arms(comparison: Comparison) -> Part:
    """Every arm by its name in its block, and its options that differ from the arm it is compared with."""
    study, told = comparison.study, dict[str, dict[str, list[str]]]()
    hidden = ("learning_rate", "rates") if (study.spec.get("tuning") or {}).get("rates") else ()

    def flat(options: Mapping[str, Any], head: str = "") -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in options.items():
            if head or name not in (*NOT_OPTIONS, *hidden):
                inner = isinstance(value, Mapping)
                values |= flat(value, f"{head}{name}.") if inner else {f"{head}{name}": value}
        return {name: value for name, value in values.items() if value is not None}

    def text(value: Any) -> str:
        if isinstance(value, str) and value in study.arms:
            return comparison.short(value)
        return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    for arm in study.arms:
        own, against = flat(study.spec["arms"][arm]), study.against(arm)
        if against is None:
            shape = ("placement", "projection", "shortest", "longest", "tempering", "scheme")
            names = [name for name in (shape if "placement" in own else ("scheme", "init", "node_file")) if name in own]
            what = f"the baseline{': ' if names else ''}{', '.join(f'{name} {text(own[name])}' for name in names)}"
        else:
            other = flat(study.spec["arms"][against])
            names = [name for name in {**own, **other} if own.get(name) != other.get(name)]
            options = ", ".join(f"{name} {text(own.get(name))}" for name in names) or "the same options"
            what = f"{comparison.short(against)} with {options}"
        told.setdefault(comparison.short(arm), {}).setdefault(what, []).append(arm)
    rows = []
    for name, ways in told.items():
        many = [f"{listed(comparison.title(arm) or arm for arm in arms)}: {what}" for what, arms in ways.items()]
        rows.append([name, "\n".join(many) if len(ways) > 1 else next(iter(ways))])
    table = Table("The arms, and how each differs from the arm it is compared with.", ["arm", "options"], [("", rows)])
    return Folded(f"The arms, {len(rows)}", [table]) if len(rows) > FEW else table


def _rates(comparison: Comparison) -> Iterator[Part]:
    """The search for learning rates: the loss of every arm at every rate, and the rate it was given."""
    tuning = comparison.tuning
    if not tuning:
        return
    rates = sorted({rate for choice in tuning.values() for rate in choice.losses})

    def row(part: Block, arm: ArmResult) -> list[str] | None:
        if arm.name not in tuning:
            return None
        choice = tuning[arm.name]
        losses = choice.losses
        texts = (
            f"{losses[rate]:.4f}"
            if math.isfinite(losses.get(rate, math.nan))
            else "diverged"
            if rate in losses
            else "-"
            for rate in rates
        )
        return [_named(comparison, part, arm), f"{choice.rate:g}{', at the edge' if choice.at_edge else ''}", *texts]

    counts = sorted(Counter(choice.rate for choice in tuning.values()).items())
    taken = listed(f"{rate:g} by {times} {'arm' if times == 1 else 'arms'}" for rate, times in counts)
    edge = sum(choice.at_edge for choice in tuning.values())
    yield Text("", [f"Learning rates taken: {taken}; {edge or 'none'} at the edge of the rates tried."])
    caption = "Validation bits per byte at the end of the search, mean over its seeds."
    table = Table(caption, ["arm", "taken", *(f"{rate:g}" for rate in rates)], _grouped(comparison, row))
    yield Folded("Every arm at every rate", [table])


def _costs(comparison: Comparison) -> Iterator[Part]:
    def cells(cost: Cost | None) -> list[str]:
        if cost is None:
            return ["-"] * 5
        speed = "-" if cost.bytes_per_second is None else f"{cost.bytes_per_second / 1e3:,.1f}"
        cores = "-" if cost.core_hours is None else f"{cost.core_hours:,.2f}"
        return [f"{cost.runs:,}", f"{cost.seconds:,.1f}", speed, f"{cost.hours:,.2f}", cores]

    machines = comparison.hardware
    runs = sum(machines.values())
    made = listed(
        name if len(machines) == 1 else f"{name} ({count} of {runs} runs)" for name, count in machines.items()
    )
    caption = (
        "Wall time of the finished runs, their evaluations included. Core hours are hours times threads."
        f"{f' Made on {made}.' if machines else ''}"
    )
    header = ["", "runs", "seconds per run", "kB per second", "hours", "core hours"]
    rows = [["study", *cells(comparison.cost())]]
    rows += [["search for learning rates", *cells(comparison.search_cost)]] if comparison.search_cost else []
    yield Table(caption, header, [("", rows)])


def _missing(comparison: Comparison) -> Iterator[Part]:
    absent = [run for run in comparison.study.runs if run.status != FINISHED]
    if not absent:
        return
    counts = Counter(run.status for run in absent)
    yield Text("", [f"Missing: {listed(f'{count:,} {state}' for state, count in counts.most_common())}."])
    waiting = [run for run in absent if run.status not in (FAILED, DIVERGED)]
    shown = absent if len(waiting) <= FEW else [run for run in absent if run not in waiting]
    if shown:
        rows = [[run.name, run.status, run.error or ""] for run in shown]
        yield Table("Runs without a result.", ["run", "state", "error"], [("", rows)])


def _provenance(comparison: Comparison) -> Iterator[Part]:
    """Corpus and environment of the runs, and the steps, bytes and seconds of each."""
    runs = comparison.study.finished()
    facts = [_facts(run) for run in runs]
    rows = []
    for name in dict.fromkeys(name for one in facts for name in one):
        values = Counter(one.get(name, "-") for one in facts)
        first = next(iter(values))
        if len(values) > 3:
            told = f"{first} (the first of {len(values)}; rows.jsonl has them all)"
        else:
            told = "\n".join(
                f"{text} ({n} of {len(facts)} runs)" if len(values) > 1 else text for text, n in values.items()
            )
        rows.append([name, told])
    yield Table("Corpus and environment of the finished runs.", ["", ""], [("", rows)])


def _facts(run: Run) -> dict[str, str]:
    def text(value: Any) -> str:
        if isinstance(value, dict):
            return ", ".join(f"{key} {text(item)}" for key, item in value.items())
        if isinstance(value, str):
            return value if value.strip() else repr(value)
        return {"None": "none", "True": "yes", "False": "no"}.get(str(value), str(value))

    corpus = {f"corpus {key}": value for key, value in run.config["corpus"].items()}
    return {name: text(value) for name, value in {**corpus, **run.environment}.items()}
