"""The report for readers: one self-contained HTML page without scripts or requests, and its tables as plain text."""

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
from plkernel.common.cli import text_table, written
from plkernel.common.imports import is_code
from plkernel.common.layout import DIVERGED, FAILED, FINISHED
from plkernel.memory.diagnostics import SLOPE_LAGS, Memory, slope_range
from plkernel.models.words import NOT_CAUSAL
from plkernel.results.comparison import (
    ArmResult,
    Block,
    Comparison,
    Effects,
    Evidence,
    factor_levels,
    short_factor,
)
from plkernel.results.figures import Drawing, change_of, truncated
from plkernel.results.registration import Declared, requirement, statement
from plkernel.results.statistics import Estimate, mean_interval
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
        "What was decided": sorted(
            [*_decided(comparison), *figures.get("decided", ())], key=lambda part: part.kind == "folded"
        ),
        f"Results{label}": _results(comparison),
        f"Differences{label}": [*_differences(comparison, figures.get("differences", ()))],
        "Effects of the factors": [part for one in comparison.effects for part in _effects(comparison, one)],
        "Curves": _folded(comparison, figures.get("curves", ())),
        "Worth of far context": [*_folded(comparison, figures.get("context", ())), *_context(comparison)],
        "Memory before and after training": [*_folded(comparison, figures.get("memory", ())), *_memory(comparison)],
        "The published figures, redrawn": figures.get("published", ()),
        "Design": [_design(comparison), _arms(comparison)],
        "Runs": [*_rates(comparison), *_costs(comparison), *_missing(comparison), _provenance(comparison)],
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


def text_report(comparison: Comparison) -> str:
    """The first screen and the tables of results and differences as plain text."""
    texts: list[str] = []
    for part in (*_decided(comparison), *_results(comparison), *_differences(comparison, ())):
        if isinstance(part, Text) and part.css != "notes":
            texts += [f"{'note: ' if part.css == 'warnings' else ''}{text}" for text in part.texts]
        elif isinstance(part, Table):
            rows = []
            for title, group in part.groups:
                rows += [[title, *[""] * (len(part.header) - 1)]] if title else []
                rows += [[row[0].split("\n")[0], *(cell.replace("\n", "  ") for cell in row[1:])] for row in group]
            texts += ["", text_table(list(part.header), rows), f"({part.caption})", ""]
    return "\n".join(texts)


def _embedded(svg: bytes, prefix: str) -> Markup:
    """An SVG of matplotlib inside a page: ids of its own, the page's ink, and no size but that of its frame."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL).replace("#1a1a1b", "currentColor")
    text = re.sub(r' height="[\d.]+pt"', "", text, count=1)
    return Markup(
        re.sub(r' width="([\d.]+)pt"', r' style="min-width: \g<1>pt; max-width: calc(1.5 * \g<1>pt)"', text, count=1)
    )


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
    """Mean and interval of every measure of every arm, and the losses of n-grams."""
    measures, references = comparison.measures, comparison.references

    def row(part: Block, arm: ArmResult) -> list[str]:
        means = (_estimate(arm.estimates.get(measure.key), ".4f", len(arm.seeds)) for measure in measures)
        facts = str(len(arm.seeds)), _numbers(arm.parameters), _numbers(arm.steps)
        return [_named(comparison, part, arm), *means, *facts]

    caption = "Bits per byte: mean over seeds, with the 95 % t interval of the mean (none for one seed)."
    groups = _grouped(comparison, row)
    for counted, windows in dict.fromkeys((one.training_bytes, one.training_windows) for one in references):
        caption += (
            f" N-grams: interpolated Witten-Bell counts of {counted:,} bytes, {windows}, "
            "with the standard error over windows."
        )
    for one in references:
        rows = []
        for at, order in enumerate(one.orders):
            losses = {"final_val_bpb": (one.val_bpb, one.val_error), "test_bpb": (one.test_bpb, one.test_error)}
            cells = dict.fromkeys((measure.key for measure in measures), "")
            for key, (loss, error) in losses.items():
                spread = error[at]
                cells[key] = f"{loss[at]:.4f}" + ("" if spread is None else f"\n\N{PLUS-MINUS SIGN} {spread:.4f}")
            rows.append([gram_name(comparison, one, order), *cells.values(), "", "", ""])
        groups.append(("for reference", rows))
    table = Table(caption, ["arm", *(measure.title for measure in measures), "seeds", "parameters", "steps"], groups)
    return [Folded(f"All {len(comparison.arms)} arms", [table]) if len(comparison.arms) > 40 else table]


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
        if (one := curves.get(arm.name)) is None:
            return None
        costs = (one.cost[:, one.given.index(length)] if length in one.given else None for length in lengths)
        cells = ("-" if cost is None else _estimate(mean_interval(cost), "+.4f", len(cost)) for cost in costs)
        return [_named(comparison, part, arm), *cells]

    if curves:
        caption = (
            "Bits per byte lost where only so many bytes before the predicted one are given, against the whole "
            "context, at the same bytes of the test text: mean over seeds and 95 % t interval."
        )
        yield Table(caption, ["arm", *(f"{length:,} given" for length in lengths)], _grouped(comparison, row))


def _memory(comparison: Comparison) -> Iterator[Part]:
    """Slopes of kernels, half-lives and predictions of every arm, before and after training, and outside models."""
    changes = {arm.name: change_of(comparison, arm) for arm in comparison.arms if arm.seeds}

    def slope(memory: Memory, _: Any) -> str:
        if not memory.has_kernels or slope_range(memory.lags) is None:
            return "-"
        seeds = memory.exponents().mean(axis=1)
        return f"{seeds.mean():.2f}" + (f"\n\N{PLUS-MINUS SIGN} {seeds.std(ddof=1):.3f}" if len(seeds) > 1 else "")

    def half_life(memory: Memory, _: Any) -> str:
        if not memory.has_half_lives:
            return "-"
        known = np.exp(np.log(memory.half_lives).mean(axis=(0, 1)))[[3, 0, -1]]
        median, shortest, longest = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in known)
        return f"{median}\n{shortest} to {longest}"

    def mean(key: str, form: str) -> Callable[[Memory, Sequence[Mapping[str, Any]]], str]:
        return lambda _, states: form.format(np.mean([one["saturation"][key] for one in states])) if states else "-"

    def growth(_: Memory, states: Sequence[Mapping[str, Any]]) -> str:
        factors = [one["amplification"] for one in states if one.get("amplification")]
        return f"{np.exp(np.mean(np.log(factors))):.3f}" if factors else "-"

    columns: dict[str, Callable[[Memory, Sequence[Mapping[str, Any]]], str]] = {
        "slope": slope,
        "half-life": half_life,
        "saturated": mean("saturated_share", "{:.1%}"),
        "entropy": mean("entropy", "{:.2f}"),
        "growth": growth,
    }
    cells = {
        name: [
            text(memory, states)
            for text in columns.values()
            for memory, states in ((one.before, one.before_outputs), (one.after, one.after_outputs))
        ]
        for name, one in changes.items()
    }
    shown = [at for at in range(2 * len(columns)) if any(row[at] != "-" for row in cells.values())]

    def row(part: Block, arm: ArmResult) -> list[str] | None:
        return [_named(comparison, part, arm), *(cells[arm.name][at] for at in shown)] if arm.name in cells else None

    if shown:
        header = [f"{name}, {time}" for name in columns for time in ("before", "after")]
        caption = (
            f"Before and after training. Slope: x of t**-x, by least squares over the lags {SLOPE_LAGS[0]:g} to "
            f"{SLOPE_LAGS[1]:g} bytes of each block's kernel, mean over blocks and seeds with the standard deviation "
            "over seeds. Half-life: median, shortest and longest in bytes, geometric means over blocks and seeds. "
            "Saturated: positions where one byte has a probability above 0.99; entropy of the predictions in nats "
            "(uniform: 5.545). Growth: root mean square of the residual stream after a block over before it."
        )
        table = Table(caption, ["arm", *(header[at] for at in shown)], _grouped(comparison, row))
        yield Folded("Memory and predictions in numbers", [table])
    for kind in sorted({one.kind for one in changes.values() if is_code(one.kind) and not one.has_half_lives}):
        yield Text("notes", [f"Left out: half-lives and kernels of {kind}, which the model does not say."])


def _design(comparison: Comparison) -> Table:
    """The design in a few lines: what is varied, what is shared, and the budget of training and tuning."""
    study, spec, runs = comparison.study, comparison.study.spec, comparison.study.finished()
    model, train, tuning, held = (spec.get(name) or {} for name in ("model", "train", "tuning", "corpus"))
    factors, results = factor_levels(study), [run.result for run in runs if run.result]
    sizes = [size for arm in comparison.arms for size in arm.parameters]
    own = not is_code(str(model.get("kind", "")))  # width and blocks of an outside model are not known
    rates = [rate for arm in study.arms for rate in spec["arms"][arm].get("rates") or tuning.get("rates") or ()]
    given = [rate for arm in comparison.arms if (rate := spec["arms"][arm.name].get("learning_rate"))]
    given = given or [rate for rate in [train.get("learning_rate")] if rate]
    same = len({str(run.config["corpus"].get("sha256")) for run in runs}) == 1
    done = sum(run.status == FINISHED for run in study.runs)
    names = dict.fromkeys(str(run.config["corpus"].get("name")) for run in runs)
    lengths = [length for run in runs if (length := run.config["corpus"].get("size"))]

    def told(values: Mapping[str, Any], *forms: str) -> list[str]:
        """The forms whose values are known."""
        return [form.format(**values) for form in forms if all(key in values for key in re.findall(r"{(\w+)", form))]

    facts = {
        "factors": "\n".join(f"{short_factor(name, factors)}: {', '.join(of)}" for name, of in factors.items()),
        "runs": f"{len(study.arms)} arms x {len(study.seeds)} seeds: {len(study.runs)}, of which {done} finished",
        "blocks": f"by {listed(short_factor(name, within) for name in within)}"
        if (within := spec.get("within"))
        else "",
        "seeds": f"{', '.join(map(str, study.seeds))}; runs of one seed share their base weights and the order of "
        f"the data{', which are the same' if same else ''}",
        "model": ", ".join(
            [
                *told(model, "{kind}", *(["width {dim}", "{layers} blocks"] if own else [])),
                *([f"{span(sizes)} parameters"] if sizes else []),
            ]
        ),
        "budget": "; ".join(
            [
                f"{span(one.steps for one in results)} steps, {span(one.bytes for one in results)} training bytes",
                *told(
                    train, "{batch} windows of {context} bytes a step", "{schedule} schedule, {warmup} steps of warm-up"
                ),
            ]
        ),
        "learning rate": f"searched for each arm between {span(rates, 'g')}, on seeds {listed(tuning['seeds'])}"
        if rates
        else span(given, "g"),
        "corpus": "; ".join(
            [
                f"{listed(names)}{f', {span(lengths)} bytes' if lengths else ''}",
                *told(held, "{validation:.3g} of it for validation, {test:.3g} for the test"),
            ]
        ),
        "arms compared by": f"{comparison.primary.title}, bits per byte",
    }
    return Table("The study.", ["", ""], [("", [[name, text] for name, text in facts.items() if text])])


def _arms(comparison: Comparison) -> Part:
    """The options of every arm that differ from the arm it is compared with."""
    study = comparison.study

    def flat(options: Mapping[str, Any], head: str = "") -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in options.items():
            if head or name not in NOT_OPTIONS:
                inner = isinstance(value, Mapping)
                values |= flat(value, f"{head}{name}.") if inner else {f"{head}{name}": value}
        return {name: value for name, value in values.items() if value is not None}

    rows = []
    for arm in study.arms:
        own, against = flat(study.spec["arms"][arm]), study.against(arm)
        other = flat(study.spec["arms"][against]) if against else {}
        differing = {name: own.get(name, "not set") for name in {**own, **other} if own.get(name) != other.get(name)}
        if not against and "placement" not in own:  # its decays are the scheme's, and other options do nothing
            differing = {name: value for name, value in own.items() if name in ("scheme", "init", "node_file")}
        options = ", ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in differing.items()
        )
        rows.append([arm, f"{against} with {options or 'the same options'}" if against else f"the baseline\n{options}"])
    table = Table("Each arm, and how it differs from the one it is compared with.", ["arm", "options"], [("", rows)])
    return Folded(f"The {len(rows)} arms", [table]) if len(rows) > FEW else table


def _rates(comparison: Comparison) -> Iterator[Part]:
    """The search for learning rates: the loss of every arm at every rate, and the rate it was given."""
    tuning = comparison.tuning
    rates = sorted({rate for choice in tuning.values() for rate in choice.losses})

    def row(part: Block, arm: ArmResult) -> list[str] | None:
        if (choice := tuning.get(arm.name)) is None:
            return None
        losses = (choice.losses.get(rate) for rate in rates)
        texts = ("-" if loss is None else f"{loss:.4f}" if math.isfinite(loss) else "diverged" for loss in losses)
        return [_named(comparison, part, arm), f"{choice.rate:g}{', at the edge' if choice.at_edge else ''}", *texts]

    if tuning:
        caption = "Search for learning rates: validation bits per byte at its end, mean over its seeds."
        table = Table(caption, ["arm", "taken", *(f"{rate:g}" for rate in rates)], _grouped(comparison, row))
        yield Folded("Learning rates", [table]) if is_large(comparison) else table


def _costs(comparison: Comparison) -> Iterator[Part]:
    rows = []
    for name, cost in (("study", comparison.cost()), ("search for learning rates", comparison.search_cost)):
        if cost:
            numbers = (cost.runs, cost.seconds, (cost.bytes_per_second or math.nan) / 1e3, cost.hours, cost.core_hours)
            forms = (",", ",.1f", ",.1f", ",.2f", ",.2f")
            rows.append(
                [name, *("-" if of is None else f"{of:{form}}" for of, form in zip(numbers, forms, strict=True))]
            )
    made = listed(f"{name} ({count} {'run' if count == 1 else 'runs'})" for name, count in comparison.hardware.items())
    caption = (
        "Wall time of the finished runs, their evaluations included. Core hours are hours times threads."
        f"{f' Made on {made}.' if comparison.hardware else ''}"
    )
    yield Table(caption, ["", "runs", "seconds per run", "kB per second", "hours", "core hours"], [("", rows)])


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


def _provenance(comparison: Comparison) -> Table:
    """Corpus and environment of the runs: the value all share, or each with the number of runs that have it."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return ", ".join(f"{key} {text(item)}" for key, item in value.items())
        return {"None": "none", "True": "yes", "False": "no"}.get(str(value), str(value))

    runs = comparison.study.finished()
    facts: dict[str, Counter[str]] = {}
    for run in runs:
        for name, value in {
            **{f"corpus {key}": of for key, of in run.config["corpus"].items()},
            **run.environment,
        }.items():
            facts.setdefault(name, Counter())[text(value) if str(value).strip() else repr(value)] += 1
    rows = []
    for name, values in facts.items():
        each = [
            f"{value} ({count} of {len(runs)} runs)" if count < len(runs) else value for value, count in values.items()
        ]
        rows.append([name, "\n".join([*each[:3], *([f"and {len(each) - 3} more"] if len(each) > 3 else [])])])
    return Table("Corpus and environment of the finished runs.", ["", ""], [("", rows)])
