"""The report for readers: sections of text, tables and figures, as one HTML page without scripts and as plain text."""

import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from plkernel.common.cli import text_table, written
from plkernel.common.imports import is_code
from plkernel.common.layout import FINISHED
from plkernel.memory.diagnostics import SLOPE_LAGS, slope_range
from plkernel.models import NOT_CAUSAL
from plkernel.results.comparison import ArmResult, Comparison, Effects, factor_levels, short_factor
from plkernel.results.figures import Drawing, arm_label, memories, titled
from plkernel.results.registration import Declared, requirement, statement
from plkernel.results.statistics import Estimate
from plkernel.results.text import (
    effects_sentence,
    interval_text,
    listed,
    mean_text,
    overview,
    p_text,
    span,
    warnings,
)

WIDTH = 120
"""Columns of a terminal."""
NOT_OPTIONS = ("against", "node_rates", "node_multipliers", "node_gain", "output_std", "levels")
"""Keys of a saved arm that are no options: its place in the study, and numbers that follow from other options."""
Part = dict[str, Any]
"""A part of a section for the template: its kind, and what it shows."""
Groups = Iterable[tuple[str, Sequence[Sequence[str]]]]
"""Rows of a table under their titles; after a line break in its first cell a row has a note."""


def page(comparison: Comparison, drawn: Iterable[tuple[Drawing, bytes]]) -> str:
    """Render the page as HTML, every text in it escaped; `drawn` are its figures, each with its SVG."""
    templates = Environment(
        loader=PackageLoader("plkernel.results", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["minus"] = lambda text: re.sub(r"(?<![^\s(])-(?=\d)", "\N{MINUS SIGN}", text)
    figures: dict[str, list[Part]] = {}
    for at, (drawing, svg) in enumerate(drawn):
        part = {"kind": "figure", "block": drawing.block, "caption": drawing.caption, "svg": _embedded(svg, f"f{at}-")}
        figures.setdefault(drawing.section, []).append(part)
    return templates.get_template("page.html").render(
        title=f"{comparison.study.name}{_label(comparison)}",
        question=comparison.study.description,
        sections={title: parts for title, parts in sections(comparison, figures).items() if parts},
    )


def text_report(comparison: Comparison) -> str:
    """Print the sections of the page up to the differences as plain text."""
    texts: list[str] = []
    for part in [part for parts in list(sections(comparison, {}).values())[:3] for part in parts]:
        if part["kind"] == "text":
            texts += [f"{'note: ' if part['style'] == 'warnings' else ''}{text}" for text in part["texts"]]
        elif part["kind"] == "table":
            texts += ["", _plain(part), f"({part['caption']})", ""]
    return "\n".join(texts)


def sections(comparison: Comparison, figures: Mapping[str, list[Part]]) -> dict[str, list[Part]]:
    """Parts of every section by its title; `figures` by the name of their section."""
    label, count = _label(comparison), len(comparison.blocks)

    def drawn(name: str) -> list[Part]:
        """All figures of a small study; of a large one those of the first block, the others folded."""
        every = figures.get(name, [])
        first = len(every) if count < 3 else -(-len(every) // count)
        return every[:first] + (
            [_folded(f"{len(every) - first} more figures", *every[first:])] if every[first:] else []
        )

    return {
        "What was decided": [*_decided(comparison, figures.get("decided", []))],
        f"Results{label}": [_results(comparison)],
        f"Differences{label}": [*_differences(comparison, figures.get("differences", []))],
        "Effects of the factors": [part for one in comparison.effects for part in _effects(comparison, one)],
        "Curves": drawn("curves"),
        "Worth of far context": drawn("context"),
        "Memory before and after training": [*drawn("memory"), *_memory(comparison)],
        "Design and runs": [_design(comparison), *_missing(comparison)],
    }


# Parts


def _text(style: str, *texts: str) -> Part:
    return {"kind": "text", "style": style, "texts": texts}


def _folded(title: str, *parts: Part) -> Part:
    return {"kind": "folded", "title": title, "parts": parts}


def _table(caption: str, header: Sequence[str], groups: Groups) -> Part:
    """A table without the columns that hold nothing; columns of numbers are marked."""
    groups = [(title, rows) for title, rows in groups if rows]
    columns = list(zip(*(row for _, rows in groups for row in rows), strict=True))
    kept = [at for at, column in enumerate(columns) if not at or any(cell not in ("", "-") for cell in column)]
    return {
        "kind": "table",
        "caption": caption,
        "header": [header[at] for at in kept],
        "groups": [(title, [[row[at] for at in kept] for row in rows]) for title, rows in groups],
        "numeric": [all(re.match(r"[-+<\d]|$", cell) for cell in columns[at]) for at in kept],
    }


def _plain(table: Part) -> str:
    """A table as text: notes are left out, long names broken, and columns that do not fit are dropped."""
    header, titles = table["header"], dict[int, str]()
    rows: list[list[str]] = []
    columns = zip(header, *(row for _, of in table["groups"] for row in of), strict=True)
    widths = [max(map(len, column)) + 2 for column in ([cell.split("\n")[0] for cell in of] for of in columns)]
    count = next((n for n in range(len(widths), 1, -1) if sum(widths[1:n]) + min(widths[0], 32) <= WIDTH), 1)
    for title, of in table["groups"]:
        titles[len(rows)] = title
        for name, *cells in of:
            first, *more = textwrap.wrap(name.split("\n")[0], max(30, WIDTH - sum(widths[1:count]))) or [""]
            rows += [[first, *cells[: count - 1]], *([f"  {line}", *[""] * (count - 1)] for line in more)]
    head, rule, *lines = text_table(header[:count], rows).splitlines()
    for at, line in enumerate(lines):
        lines[at] = f"{titles[at]}\n{line}" if titles.get(at) else line
    left_out = [f"On the page only: {', '.join(header[count:])}."] if header[count:] else []
    return "\n".join([head, rule, *lines, *left_out])


def _embedded(svg: bytes, prefix: str) -> Markup:
    """An SVG of matplotlib inside a page: ids of its own, the page's ink, and no size but that of its frame."""
    text = svg.decode()
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", text[text.index("<svg") :])
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL).replace("#1a1a1b", "currentColor")
    text = re.sub(r' height="[\d.]+pt"', "", text, count=1)
    frame = r' style="min-width: \g<1>pt; max-width: calc(1.5 * \g<1>pt)"'
    return Markup(re.sub(r' width="([\d.]+)pt"', frame, text, count=1))


def _label(comparison: Comparison) -> str:
    """Mark of a study none of whose arms gives a likelihood."""
    return "" if any(arm.causal and arm.seeds for arm in comparison.arms) else f" ({NOT_CAUSAL})"


def _grouped(
    comparison: Comparison, cells: Callable[[ArmResult], Sequence[str] | None], paired: bool = False
) -> list[tuple[str, list[list[str]]]]:
    """Rows of every block's arms under its title; an arm whose cells are None is left out.

    paired: only arms that are compared, named with the other one where that is not the baseline of their block.
    """
    groups = []
    for part in comparison.blocks:
        rows = []
        for arm in part.others if paired else part.arms:
            plain = not paired or (arm.against == part.baseline and (part.title or len(comparison.baselines) == 1))
            minus = "" if plain else f" minus {comparison.short(str(arm.against))}"
            if (texts := cells(arm)) is not None:
                rows.append([f"{arm_label(comparison, part, arm)}{minus}", *texts])
        groups.append((titled(part), rows))
    return groups


def _plus_minus(one: Estimate | None, form: str, seeds: int) -> str:
    """Mean and half width of its interval; its n too where that differs from the arm's."""
    if one is None:
        return "-"
    half = f" ± {written((one.high - one.low) / 2, form.lstrip('+'))}" if math.isfinite(one.low) else ""
    return f"{mean_text(one, form)}{half}{'' if one.n == seeds else f' (n = {one.n})'}"


# What was decided


def _decided(comparison: Comparison, figures: Sequence[Part]) -> Iterator[Part]:
    """The first screen: the answer, the registration, the cautions, then verdicts and gates in full."""
    one, (conclusion, *words) = comparison.declared, overview(comparison)
    if one is None:
        yield _text("answer", "No hypothesis was declared before the runs.", conclusion)
        yield _text("summary", *words)
    else:
        passed = [f"{sum(gate.passed for gate in one.gates)} of {len(one.gates)} gates passed."] if one.gates else []
        yield _text("answer", one.headline)
        yield _text("summary", *passed, *one.provenance)
    if cautions := warnings(comparison):
        yield _text("warnings", *cautions)
    if one is not None:
        yield from _verdicts(one)
        yield from figures
        yield _folded("All comparisons in words", _text("", conclusion, *words))


def _verdicts(one: Declared) -> Iterator[Part]:
    groups: dict[str, list[list[str]]] = {}
    for outcome in one.outcomes:
        judged, hypothesis = outcome.judgement, outcome.hypothesis
        notes = [statement(hypothesis), *(["not declared before the runs"] if one.late(outcome) else [])]
        notes += [*([] if outcome.causal else [NOT_CAUSAL]), *([outcome.missing] if outcome.missing else [])]
        difference = [mean_text(judged), interval_text(judged), str(judged.n)] if judged.n else ["-", "", "0"]
        row = ["\n".join([hypothesis.name, *notes]), one.verdict(outcome, gates=False), *difference]
        row += [p_text(judged.p_family), p_text(judged.p_opposite_family)]
        groups.setdefault(one.basis(hypothesis.family), []).append(row)
    if groups:
        caption = (
            f"{'Pre-registered hypotheses' if one.registered else 'Hypotheses of the spec, not registered'}: paired "
            "difference in bits per byte, its interval for this hypothesis alone, and p against the opposite of the "
            "claim (confirming) and against the claim (refuting), Holm-corrected over the family."
        )
        header = ["hypothesis", "verdict", "difference", one.interval_title, "n", "p confirming", "p refuting"]
        yield _table(caption, header, groups.items())
    if one.gates:
        rows = []
        for gate in one.gates:
            mean, bounds = mean_text(gate.estimate, ".4f"), interval_text(gate.estimate, ".4f")
            passed = "passed" if gate.passed else "not passed"
            rows.append([f"{gate.gate.name}\n{requirement(gate.gate)}", passed, mean, bounds, str(gate.estimate.n)])
        header = ["gate", "passed", "mean", "95 % interval", "n"]
        yield _table("Gates: if one is not passed, no hypothesis is answered.", header, [("", rows)])


# Results and differences


def _results(comparison: Comparison) -> Part:
    """Mean and interval of every measure of every arm, and the losses of n-grams."""
    measures = [measure for measure in comparison.measures if measure.key != "best_val_bpb"]
    facts = {arm.name: ((len(arm.seeds),), arm.parameters, arm.steps) for arm in comparison.arms}
    varying = [at for at, each in enumerate(zip(*facts.values(), strict=True)) if len(set(each)) > 1]

    def cells(arm: ArmResult) -> list[str]:
        means = [_plus_minus(arm.estimates.get(measure.key), ".4f", len(arm.seeds)) for measure in measures]
        return means + [", ".join(f"{value:,}" for value in facts[arm.name][at]) or "-" for at in varying]

    groups = _grouped(comparison, cells)
    for one in comparison.references:
        losses, count = {"final_val_bpb": one.val_bpb, "test_bpb": one.test_bpb}, len(one.orders)
        names = [f"n-gram, {order} {'byte' if order == 1 else 'bytes'}" for order in one.orders]
        texts = [[f"{loss:.4f}" for loss in losses.get(measure.key, ())] or [""] * count for measure in measures]
        rows = [[*row, *[""] * len(varying)] for row in zip(names, *texts, strict=True)]
        groups.append((f"for reference, on {one.corpus.get('name')}", rows))
    header = ["arm", *(measure.title for measure in measures)]
    caption = (
        "Bits per byte: mean over seeds ± half of its 95 % t interval; n-grams are interpolated Witten-Bell counts."
    )
    return _table(caption, header + [("seeds", "parameters", "steps")[at] for at in varying], groups)


def _differences(comparison: Comparison, figures: Sequence[Part]) -> Iterator[Part]:
    """Every arm minus the one it is compared with, and the evidence for it."""
    evidence = comparison.evidence
    if not evidence:
        return
    header = ["arm", "mean", "95 % interval", "p", "corrected p", "sign-flip p", "d_z", "baseline reached"]

    def cells(arm: ArmResult) -> list[str]:
        if (one := evidence.get(arm.name)) is None:
            return ["-"] * (len(header) - 1)
        p = one.difference.p_value, one.corrected, one.flips.p_value if one.flips else math.nan
        d_z = f"{one.effect.d_z:+.2f}" if math.isfinite(one.effect.d_z) else "-"
        reached = "-"
        if one.earlier and one.earlier.mean:
            share = 100 * one.earlier.mean.mean
            reached = f"{abs(share):.0f} % {'earlier' if share >= 0 else 'later'}"
        elif one.earlier:
            seeds = list(one.earlier.per_seed.values())
            reached = f"{sum(value is not None for value in seeds)} of {len(seeds)} seeds"
        few = "" if one.difference.n == len(arm.seeds) else f" (n = {one.difference.n})"
        return [f"{mean_text(one.difference)}{few}", interval_text(one.difference), *map(p_text, p), d_z, reached]

    bases = {comparison.short(base.name) for base in comparison.baselines}
    caption = (
        f"Arm minus {bases.pop() if len(bases) == 1 else 'the one it is compared with'}, {comparison.primary.title}, "
        "paired by seed, in bits per byte (below zero is better), with the two-sided paired t test, Holm's correction "
        f"for all {len(comparison.corrected)}, the mean in standard deviations (d_z), and how much earlier in training "
        "the arm stays at or below the baseline's final value, or how many seeds do."
    )
    yield _table(caption, header, _grouped(comparison, cells, paired=True))
    yield from figures
    seeds = sorted({seed for one in evidence.values() for seed in one.difference.per_seed})
    others = [measure for measure in comparison.measures if measure.key != comparison.primary.key]

    def more(arm: ArmResult) -> list[str]:
        own = evidence[arm.name].difference.per_seed if arm.name in evidence else {}
        texts = ["-" if (value := own.get(seed)) is None else written(value, "+.4f") for seed in seeds]
        return [*(_plus_minus(arm.differences.get(one.key), "+.4f", len(arm.seeds)) for one in others), *texts]

    caption = f"The same difference in other measures, and that of every seed in {comparison.primary.title}."
    header = ["arm", *(measure.title for measure in others), *(f"seed {seed}" for seed in seeds)]
    every = _table(caption, header, _grouped(comparison, more, paired=True))
    yield _folded("Other measures, and every seed's difference", every)


def _effects(comparison: Comparison, one: Effects) -> list[Part]:
    """Main effects and interactions of one complete part of a factorial design."""

    def named(levels: Mapping[str, Sequence[str]]) -> str:
        return "; ".join(f"{one.short(name)} {', '.join(of)}" for name, of in levels.items())

    groups: dict[str, list[list[str]]] = {"main effects": [], "interactions of two factors": []}
    for contrast, p in zip(one.contrasts, one.corrected, strict=True):
        difference, kind = contrast.difference, list(groups)[contrast.order > 1]
        row = [one.title(contrast), mean_text(difference), interval_text(difference)]
        groups[kind].append([*row, p_text(difference.p_value), p_text(p)])
    fixed = {name: [level] for name, level in one.fixed.items()}
    caption = (
        f"{comparison.primary.title.capitalize()}, bits per byte{'' if one.causal else f' ({NOT_CAUSAL})'}, below zero "
        f"is better, over {one.cells} combinations of {named(one.levels)}; {len(one.seeds)} seeds"
        f"{f'; fixed: {named(fixed)}' if fixed else ''}"
        f"{f'; left out, leaking or not finished everywhere: {named(one.left_out)}' if one.left_out else ''}."
    )
    header = ["effect", "mean", "95 % interval", "p", "corrected p"]
    return [_text("", effects_sentence(one)), _table(caption, header, groups.items())]


# Memory


def _memory(comparison: Comparison) -> Iterator[Part]:
    """Slopes of the kernels and half-lives of every arm, before and after training, of models that tell them."""

    def cells(arm: ArmResult) -> list[str] | None:
        texts = []
        for one in memories(comparison, arm):
            slope = half_life = "-"
            if one.has_kernels and slope_range(one.lags) is not None:
                seeds = one.exponents().mean(axis=1)
                slope = f"{seeds.mean():.2f}" + (f" ± {seeds.std(ddof=1):.3f}" if len(seeds) > 1 else "")
            if one.has_half_lives:
                known = np.exp(np.log(one.half_lives).mean(axis=(0, 1)))[[3, 0, -1]]
                half_life = "{} ({} to {})".format(*(f"{x:,.0f}" if x >= 100 else f"{x:.3g}" for x in known))
            texts.append((slope, half_life))
        return [text for pair in zip(*texts, strict=True) for text in pair] if arm.seeds else None

    caption = (
        f"Slope x of t**-x over lags {SLOPE_LAGS[0]:g} to {SLOPE_LAGS[1]:g} ± its standard deviation over seeds, and "
        "median half-life (shortest to longest) in bytes."
    )
    header = ["arm", *(f"{name}, {time}" for name in ("slope", "half-life") for time in ("before", "after"))]
    if len((table := _table(caption, header, _grouped(comparison, cells)))["header"]) > 1:
        yield _folded("Memory in numbers", table)
    told = [run for run in comparison.study.finished() if "half_life_quantiles" not in run.last]
    for kind in filter(is_code, sorted({str(run.config["model"].get("kind", "")) for run in told})):
        yield _text("", f"Left out: half-lives and kernels of {kind}, which the model does not say.")


# Design and runs


def _flat(options: Mapping[str, Any], head: str = "") -> dict[str, str]:
    """Options that are set, as texts, by dotted name."""
    texts: dict[str, str] = {}
    for name, value in options.items():
        if isinstance(value, Mapping) and name not in NOT_OPTIONS:
            texts |= _flat(value, f"{head}{name}.")
        elif value not in (None, [], "") and name not in NOT_OPTIONS:
            texts[f"{head}{name}"] = f"{value:g}" if isinstance(value, float) else str(value)
    return texts


def _design(comparison: Comparison) -> Part:
    """What is varied and what is shared, and the options of every arm that differ from the one it is compared with."""
    study, spec, factors = comparison.study, comparison.study.spec, factor_levels(comparison.study)
    rates = [rate for choice in comparison.tuning.values() for rate in choice.losses]
    facts = {
        "factors": "; ".join(f"{short_factor(name, factors)}: {', '.join(of)}" for name, of in factors.items()),
        "blocks": ", ".join(short_factor(name, factors) for name in spec.get("within") or ()),
        "runs": f"{len(study.arms)} arms x {len(study.seeds)} seeds, {len(study.finished())} finished",
        "seeds": ", ".join(map(str, study.seeds)),
        "compared by": f"{comparison.primary.title}, bits per byte",
        "learning rates": f"searched between {span(rates, 'g')} for each arm" if rates else "",
    }
    for name in ("model", "train"):
        options = _flat(spec.get(name) or {})
        if is_code(options.get("kind", "")):  # width and blocks of an outside model are not known
            options = {"kind": options["kind"]}
        facts[name] = ", ".join(f"{key} {value}" for key, value in options.items())
    made = listed(f"{name} ({count} {'run' if count == 1 else 'runs'})" for name, count in comparison.hardware.items())
    for name, cost in (("cost", comparison.cost()), ("search", comparison.search_cost)):
        facts[name] = (
            "{runs:,} runs of {seconds:,.1f} s, {hours:,.2f} hours on {made}".format(**cost, made=made) if cost else ""
        )
    known: dict[str, dict[str, None]] = {}
    for run in study.finished():
        for name, value in _flat({"corpus": run.config["corpus"], **run.environment}).items():
            known.setdefault(name, {})[value] = None
    made_of = [f"{name} {' or '.join(values)}" for name, values in known.items() if len(values) < 4]
    facts["corpus and environment"] = ", ".join(made_of)
    arms, set_by = [], {name: _flat(arm) for name, arm in spec["arms"].items()}
    for arm, own in set_by.items():
        other = set_by[against] if (against := study.against(arm)) else {}
        differing = {name: own.get(name, "not set") for name in {**own, **other} if own.get(name) != other.get(name)}
        if not against and "placement" not in own:  # its decays are the scheme's, and other options do nothing
            differing = {name: value for name, value in own.items() if name in ("scheme", "init", "node_file")}
        text = ", ".join(f"{name} {value}" for name, value in differing.items())
        arms.append([arm, f"{against} with {text or 'the same options'}" if against else f"the baseline: {text}"])
    rows = [[name, text] for name, text in facts.items() if text]
    groups = [("", rows), ("arms, and how each differs from the one it is compared with", arms)]
    return _table("The study; the options of an arm replace those of the study.", ["", ""], groups)


def _missing(comparison: Comparison) -> Iterator[Part]:
    if absent := [run for run in comparison.study.runs if run.status != FINISHED]:
        counts = listed(f"{count:,} {state}" for state, count in Counter(run.status for run in absent).most_common())
        yield _text("", f"Missing: {counts}.")
        if rows := [[run.name, run.status, run.error] for run in absent if run.error]:
            yield _table("Runs that ended in an error.", ["run", "state", "error"], [("", rows)])
