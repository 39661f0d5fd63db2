"""The report for readers: conclusions, cautions, tables and figures, as an HTML page without
scripts and as text.
"""

import base64
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from plkernel.common.cli import text_table, written
from plkernel.common.files import FINISHED
from plkernel.decays.memory import outlasting
from plkernel.models import NOT_CAUSAL
from plkernel.results.comparison import COMMON_STEP, ArmResult, Comparison
from plkernel.results.figures import Drawing, label, one_baseline
from plkernel.results.registration import counted, statement
from plkernel.results.statistics import Estimate, Judgement, mean_interval

WIDTH, NAME = 120, 48
"""Columns of a terminal, and of them at most for the first column of a table."""
FACTS = {
    "hardware": ["hardware.cpu", "hardware.cores", "hardware.gpu", "threads"],
    "versions": [
        "versions.python",
        "versions.plkernel",
        "versions.torch",
        "versions.numpy",
        "versions.triton",
    ],
    "code": ["commit", "dirty", "command"],
    "corpus": ["corpus.name", "corpus.size", "corpus.sha256"],
    "model": ["model.kind", "model.dim", "model.layers", "model.gain", "model.parameters"],
    "training": [
        "train.context",
        "train.batch",
        "train.steps",
        "train.schedule",
        "train.learning_rate",
    ],
}
"""Rows of the table of the design: what a run's configuration and environment tell."""
Part = dict[str, Any]
"""A part of a section for the template: its kind, and what it shows."""
Rows = Sequence[Sequence[str]]
FEW = 4
"""Up to so many names are listed; more are counted."""


def page(comparison: Comparison, drawn: Iterable[tuple[Drawing, bytes]]) -> str:
    """Render the page as HTML, every text in it escaped; `drawn` are its figures, each with its
    SVG.
    """
    options: dict[str, Any] = {"autoescape": True, "undefined": StrictUndefined}
    templates = Environment(
        loader=PackageLoader("plkernel.results", ""),
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    templates.filters["minus"] = lambda text: re.sub(r"(?<![^\s(])-(?=\d)", "\N{MINUS SIGN}", text)
    shown: dict[str, list[Part]] = {}
    for one, svg in drawn:
        part = {
            "kind": "figure",
            "title": ": ".join(filter(None, [one.block, one.caption.partition(".")[0]])),
        }
        part |= {"caption": one.caption, "svg": base64.b64encode(svg).decode()}
        shown.setdefault(one.section, []).append(part)
    return templates.get_template("page.html").render(
        title=comparison.study.name,
        question=comparison.study.description,
        sections={title: parts for title, parts in sections(comparison, shown).items() if parts},
    )


def text_report(comparison: Comparison) -> str:
    """Print the sections of the page up to the differences as plain text."""
    texts: list[str] = []
    for part in [part for parts in list(sections(comparison, {}).values())[:3] for part in parts]:
        if part["kind"] == "text":
            texts += [
                f"{'note: ' if part['style'] == 'warnings' else ''}{text}" for text in part["texts"]
            ]
        elif part["kind"] == "table":
            texts += ["", _plain(part), f"({part['caption']})", ""]
    return "\n".join(texts)


def sections(comparison: Comparison, figures: Mapping[str, list[Part]]) -> dict[str, list[Part]]:
    """Parts of every section by its title; `figures` by the name of their section."""
    failed = [[run.name, run.status, run.error] for run in comparison.study.runs if run.error]
    header = ["run", "state", "error"]
    return {
        "What was decided": [*_decided(comparison, figures.get("decided", []))],
        "Results": [_results(comparison)],
        "Differences": [*_differences(comparison, figures.get("differences", []))],
        "Curves": figures.get("curves", []),
        "Worth of far context": figures.get("context", []),
        "Memory before and after training": figures.get("memory", []),
        "Design and runs": [
            _design(comparison),
            *([_table("Runs that failed.", header, {"": failed})] if failed else []),
        ],
    }


# Numbers


def mean_text(one: Estimate | Judgement, form: str = "+.4f") -> str:
    """Format the mean with as many digits as its interval needs; "not finite" where it is not."""
    if not math.isfinite(one.mean):
        return "not finite"
    return written(one.mean, form, (one.high - one.low) / 2)


def interval_text(one: Estimate | Judgement, form: str = "+.4f") -> str:
    """Format the bounds; empty where there are none."""
    bounds = (
        written(bound, form, (one.high - one.low) / 2, bound) for bound in (one.low, one.high)
    )
    return " to ".join(bounds) if math.isfinite(one.low) else ""


def p_text(p: float) -> str:
    """Format a p value with two digits, never as zero.

    >>> p_text(0.0312), p_text(1e-9)
    ('0.031', '< 0.0001')
    """
    return "-" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def span(values: Iterable[float], form: str = ",") -> str:
    """Format the smallest and largest value, "1 to 3", or the one value that all are; empty without
    any.
    """
    known = list(values)
    return (
        " to ".join(dict.fromkeys(format(value, form) for value in (min(known), max(known))))
        if known
        else ""
    )


def listed(items: Iterable[Any]) -> str:
    """Join items as words: "a, b and c"."""
    names = [str(item) for item in items]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


# Parts


def _text(style: str, *texts: str) -> Part:
    return {"kind": "text", "style": style, "texts": texts}


def _table(caption: str, header: Sequence[str], groups: Mapping[str, Rows]) -> Part:
    """A table without the columns that hold nothing; columns of numbers are marked.

    groups: rows under their titles; after a line break in its first cell a row has a note.
    """
    columns = list(zip(*(row for rows in groups.values() for row in rows), strict=True))
    kept = [
        at
        for at, column in enumerate(columns)
        if not at or any(cell not in ("", "-") for cell in column)
    ]
    return {
        "kind": "table",
        "caption": caption,
        "header": [header[at] for at in kept],
        "groups": {
            title: [[row[at] for at in kept] for row in rows]
            for title, rows in groups.items()
            if rows
        },
        "numeric": [all(re.match(r"[-+<>\d]|$", cell) for cell in columns[at]) for at in kept],
    }


def _plain(table: Part) -> str:
    """A table as text: notes are left out, long names broken, and columns that do not fit are
    dropped.
    """
    header, rows, titles = table["header"], list[list[str]](), dict[int, str]()
    for title, of in table["groups"].items():
        titles[len(rows)] = f"{title}\n" if title else ""
        for name, *cells in of:
            first, *more = textwrap.wrap(name.partition("\n")[0], NAME, subsequent_indent="  ")
            rows += [[first, *cells], *([line, *[""] * len(cells)] for line in more)]
    ends = np.cumsum([max(map(len, column)) + 2 for column in zip(header, *rows, strict=True)])
    count = int(np.searchsorted(ends, WIDTH + 2, side="right"))
    lines = text_table(header[:count], [row[:count] for row in rows]).splitlines()
    lines = [f"{titles.get(at - 2, '')}{line}" for at, line in enumerate(lines)]
    return "\n".join(
        lines + ([f"On the page only: {', '.join(header[count:])}."] if header[count:] else [])
    )


def _grouped(
    comparison: Comparison, cells: Callable[[ArmResult], Sequence[str]], paired: bool = False
) -> dict[str, list[list[str]]]:
    """Rows of the arms of every block under its title; `paired`: only of arms that are compared
    with another.
    """
    return {
        part.title: [
            [label(comparison, arm, paired), *cells(arm)]
            for arm in part.arms
            if arm.against is not None or not paired
        ]
        for part in comparison.blocks
    }


def _plus_minus(one: Estimate | None, form: str, seeds: int) -> str:
    """Mean and half width of its interval; its n too where that differs from the arm's."""
    if one is None:
        return "-"
    half = (one.high - one.low) / 2
    text = f" ± {written(half, form.lstrip('+'), half)}" if math.isfinite(half) else ""
    return f"{mean_text(one, form)}{text}{'' if one.n == seeds else f' (n = {one.n})'}"


# What was decided


def _decided(comparison: Comparison, figures: Sequence[Part]) -> Iterator[Part]:
    """The first screen: the answer, the registration, the cautions, then verdicts and gates in
    full.
    """
    one, (conclusion, *words) = comparison.declared, overview(comparison)
    if worth := memory_worth(comparison):
        yield _text("summary", *worth)
    if one is None:
        yield _text("answer", "No hypothesis was declared before the runs.", conclusion)
        yield _text("summary", *words)
    else:
        passed = (
            [f"{sum(gate.passed for gate in one.gates)} of {len(one.gates)} gates passed."]
            if one.gates
            else []
        )
        yield _text("answer", one.headline)
        yield _text("summary", *passed, *one.provenance, conclusion, *words)
    if cautions := warnings(comparison):
        yield _text("warnings", *cautions)
    if one is None:
        return
    groups: dict[str, list[list[str]]] = {}
    for outcome in one.outcomes:
        judged, hypothesis = outcome.judgement, outcome.hypothesis
        notes = [NOT_CAUSAL] * (not outcome.causal)
        notes += [] if judged.n else [f"no seed that both arms finished tells {hypothesis.metric}"]
        name = "\n".join([hypothesis.name, statement(hypothesis), *notes])
        difference = (
            [mean_text(judged), interval_text(judged), str(judged.n)]
            if judged.n
            else ["-", "", "0"]
        )
        row = [name, one.verdict(outcome, gates=False), *difference, p_text(judged.p_family)]
        groups.setdefault(one.basis(hypothesis.family), []).append(
            [*row, p_text(judged.p_opposite_family)]
        )
    levels = " or ".join(
        dict.fromkeys(f"{100 * (1 - 2 * each.hypothesis.alpha):.4g} %" for each in one.outcomes)
    )
    kinds = " or ".join(dict.fromkeys(each.judgement.test for each in one.outcomes))
    header = [
        "hypothesis",
        "verdict",
        "difference",
        f"{levels} interval by {kinds}",
        "n",
        "p confirming",
        "p refuting",
    ]
    late = (
        "Hypotheses registered after runs had begun"
        if one.registered
        else "Hypotheses of the spec, not registered"
    )
    caption = (
        f"{'Pre-registered hypotheses' if one.ahead else late}. Differences are paired by seed, in"
        " bits per byte, each with its own interval; p is Holm-corrected over the family. Rows of"
        f" {_origin(comparison)}."
    )
    if groups:
        yield _table(caption, header, groups)
    gates = []
    for gate in one.gates:
        numbers = (
            mean_text(gate.estimate, ".4f"),
            interval_text(gate.estimate, ".4f"),
            str(gate.estimate.n),
        )
        state = "passed" if gate.passed else "not passed"
        gates.append([f"{gate.gate.name}\n{statement(gate.gate)}; {gate.margin}", state, *numbers])
    if gates:
        header = ["gate", "passed", "mean", "95 % interval by t", "n"]
        rule = (
            "means"
            if one.gates[0].rule == "mean"
            else "95 % intervals over seeds and over target bytes"
        )
        yield _table(
            f"Gates, by their {rule}: if one is not passed, no hypothesis is answered.",
            header,
            {"": gates},
        )
    yield from figures


# Results and differences


def _results(comparison: Comparison) -> Part:
    """Mean and interval of every measure of every arm, and the losses of n-grams."""
    measures = {key: title for key, title in comparison.measures.items() if key != "best_val_bpb"}

    def cells(arm: ArmResult) -> list[str]:
        means = [_plus_minus(arm.estimates.get(key), ".4f", len(arm.seeds)) for key in measures]
        return [*means, str(len(arm.seeds)), span(arm.parameters), span(arm.steps)]

    groups = _grouped(comparison, cells)
    for one in comparison.references:
        losses, rows = {"final_val_bpb": one.val_bpb, "test_bpb": one.test_bpb}, []
        for at, order in enumerate(one.orders):
            means = [f"{losses[key][at]:.4f}" if key in losses else "" for key in measures]
            rows.append(
                [f"n-gram, {order} {'byte' if order == 1 else 'bytes'}", *means, "", "", ""]
            )
        for window, loss in (
            zip(one.lzma.windows, one.lzma.val_bpb, strict=True) if one.lzma else ()
        ):
            numbers = [f"{loss:.4f}" if key == "final_val_bpb" else "" for key in measures]
            rows.append(
                [
                    f"LZMA, window of {_size(window)}\nall of the validation text",
                    *numbers,
                    "",
                    "",
                    "",
                ]
            )
        groups.setdefault(f"for reference, on {one.corpus.get('name')}", []).extend(rows)
    header = ["arm", *measures.values(), "seeds", "parameters", "steps"]
    caption = (
        "Bits per byte: mean over seeds ± half of its 95 % t interval; n-grams are interpolated"
        f" Witten-Bell counts. Rows of {_origin(comparison)}."
    )
    return _table(caption, header, groups)


def _origin(comparison: Comparison) -> str:
    """Every commit of the rows with the days on which its runs began, as far as rows tell them."""
    days: dict[str, set[str]] = {}
    for told in (run.environment for run in comparison.study.finished()):
        name = (
            f"commit {str(told.get('commit'))[:12]}{' with changes' if told.get('dirty') else ''}"
        )
        days.setdefault(name, set()).update(filter(None, [str(told.get("started") or "")[:10]]))
    return listed(
        f"{name} of {' to '.join(dict.fromkeys([min(of), max(of)]))}" if of else name
        for name, of in days.items()
    )


def _differences(comparison: Comparison, figures: Sequence[Part]) -> Iterator[Part]:
    """Every arm minus the one it is compared with, and the evidence for it."""
    if not comparison.differences:
        return
    title, told = (
        comparison.measures[comparison.primary],
        (comparison.primary, "best_val_bpb", "excess_bpb"),
    )
    others = {key: title for key, title in comparison.measures.items() if key not in told}
    header = ["arm", "mean", "95 % interval by t", "p", "corrected p", "bytes", *others.values()]

    def cells(arm: ArmResult) -> list[str]:
        if (one := comparison.differences.get(arm.name)) is None:
            return ["-"] * (len(header) - 1)
        p = map(p_text, (one.p_value, comparison.corrected[arm.name]))
        more = (_plus_minus(arm.differences.get(key), "+.4f", len(arm.seeds)) for key in others)
        few = "" if one.n == len(arm.seeds) else f" (n = {one.n})"
        if late := sum(map(math.isinf, arm.bytes.values())):
            reached = f"> 1 in {late} of {len(arm.bytes)}"
        else:
            logs = mean_interval(map(math.log, arm.bytes.values()))
            ratio = Estimate(
                logs.n, math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high), math.nan
            )
            reached = f"{mean_text(ratio, '.2f')} ({interval_text(ratio, '.2f')})".removesuffix(
                " ()"
            )
        return [f"{mean_text(one)}{few}", interval_text(one), *p, reached, *more]

    caption = (
        f"Arm minus {one_baseline(comparison) or 'the one it is compared with'}, {title}, paired by"
        " seed, in bits per byte (below zero is better): t interval, p of the paired t test,"
        f" corrected by Holm for all {len(comparison.corrected)}; the same difference in other"
        " measures. Bytes: at which the arm reaches the other's final loss, over those that the"
        " other took: geometric mean and 95 % t interval, or how many never do."
    )
    yield _table(caption, header, _grouped(comparison, cells, paired=True))
    yield from figures


# Design and runs


def _design(comparison: Comparison) -> Part:
    """Runs, hardware, versions, code, corpus, model and training, where the finished runs have FEW
    values or fewer.
    """
    from pandas import json_normalize

    study, runs = comparison.study, comparison.study.finished()
    seconds = sum(run.result.seconds for run in runs if run.result)
    counts = (
        f"{counted(len(study.arms), 'arm', 'arms')} x"
        f" {counted(len(study.seeds), 'seed', 'seeds')}, "
    )
    counts += (
        f"{len(runs)} finished; {seconds / len(runs):,.1f} s a run, {seconds / 3600:,.2f} hours"
        " in all"
    )
    facts, rows = (
        json_normalize([{**run.config, **run.environment} for run in runs]).convert_dtypes(),
        [["runs", counts]],
    )
    for title, names in FACTS.items():
        values = {name: facts[name].dropna().map(str).unique() for name in names if name in facts}
        texts = [
            f"{name.rpartition('.')[2]} {' or '.join(of)}"
            for name, of in values.items()
            if 0 < len(of) <= FEW
        ]
        rows += [[title, ", ".join(texts)]] if texts else []
    return _table("What was run.", ["", ""], {"": rows})


# Conclusions


def overview(comparison: Comparison) -> list[str]:
    """Sentences on the whole study: significant differences, the largest of them, and power."""
    tested = [one.n for one in comparison.differences.values() if one.n > 1]
    kept, many, words = comparison.surviving, len(tested), list[str]()
    if not tested:
        words.append(
            "No arm shares two seeds with the arm it is compared with: no interval, no claim."
        )
    else:
        how = f"significant ({'Holm-corrected, ' if many > 1 else ''}{span(tested)} seeds)"
        of = f"{len(kept) or 'None'} of {counted(many, 'difference', 'differences')}"
        below, each = sum(comparison.differences[name].mean < 0 for name in kept), []
        for name in kept[:FEW]:
            one, leaks = comparison.differences[name], comparison.leaks(comparison[name])
            each.append(
                f"{name}{f' ({NOT_CAUSAL})' if leaks else ''} {mean_text(one)}"
                f" ({interval_text(one)})"
            )
        sides = (
            f", {below} below the baseline and {len(kept) - below}"
            f" above{'; the largest' * (len(kept) > FEW)}: "
        )
        words.append(
            f"{of} {'is' if len(kept) < 2 else 'are'}"
            f" {how}{sides + '; '.join(each) if kept else ''}."
        )
    if sizes := [size for size in comparison.detectable.values() if not math.isnan(size)]:
        words.append(
            f"With {span(tested)} seeds and this spread, one comparison on its own finds a"
            f" difference of {median(sizes):.2g} bits per byte 8 times in 10 (median over arms;"
            f" {span(sizes, '.2g')})."
        )
    return words


def memory_worth(comparison: Comparison) -> list[str]:
    """Sentences on every corpus with n-grams: how many arms they beat, and what windows of LZMA are
    worth there.
    """
    words = []
    for one in comparison.references:
        means = [
            arm.estimates["final_val_bpb"].mean
            for arm in comparison.arms
            if comparison.reference(arm) is one and "final_val_bpb" in arm.estimates
        ]
        loss, name = one.val_bpb[-1], f"{one.orders[-1]}-grams"
        lost = sum(not mean < loss for mean in means)
        if not lost and str(one.corpus.get("name")).startswith("synthetic:"):
            continue
        text = (
            f"{lost or 'None'} of {counted(len(means), 'arm', 'arms')}"
            f" {'lose' if lost > 1 else 'loses'} to {name} "
        )
        text += (
            f"on {one.corpus.get('name')} ({loss:.3f} against {min(means):.3f} bits per byte of the"
            " best)."
        )
        if one.lzma:
            windows, losses = (
                map(_size, one.lzma.windows),
                (f"{loss:.2f}" for loss in one.lzma.val_bpb),
            )
            text += (
                f" What memory is worth there: LZMA that looks back {listed(windows)} needs"
                f" {listed(losses)} bits."
            )
        words.append(text)
    return words


def _size(count: int) -> str:
    return f"{count // 2**20} MB" if count >= 2**20 else f"{count // 2**10} kB"


# Cautions


def warnings(comparison: Comparison) -> list[str]:
    """Cautions before any number is believed: leaks, unequal runs, damage."""
    study, arms, runs, tuned = (
        comparison.study,
        comparison.arms,
        comparison.study.finished(),
        comparison.tuning,
    )
    edge = {name: f"{choice.rate:g}" for name, choice in tuned.items() if choice.at_edge}
    spreads = [
        one.standard_deviation
        for one in comparison.differences.values()
        if one.standard_deviation > 0
    ]
    noise = median(spreads) if spreads else math.nan
    unsure = [name for name, choice in tuned.items() if choice.rivals(noise)]
    pairs = [(arm.name, str(arm.against)) for arm in comparison.others if arm.name in tuned]
    apart = [arm for arm, base in pairs if base in tuned and tuned[arm].apart(tuned[base], noise)]
    digests, of_arms, lost = dict[str, set[Any]](), list[str](), list[str]()
    for arm in arms:
        for run in study.finished(arm.name)[:1]:
            known, context = (
                run.first.get("half_life_quantiles"),
                (run.config.get("train") or {}).get("context"),
            )
            if known and context and (words := outlasting(known, context)):
                of_arms.append(f"{arm.name}: {words}.")
        seeds = [
            seed for seed, value in arm.values["final_val_bpb"].items() if not math.isfinite(value)
        ]
        lost += [f"{arm.name}, seed {listed(seeds)}"] if seeds else []
    for run in runs:
        asked = {
            name: value
            for name, value in run.config["corpus"].items()
            if name not in ("sha256", "size")
        }
        digests.setdefault(str(asked), set()).add(run.config["corpus"].get("sha256"))
    idle = [name for name, one in comparison.differences.items() if not any(one.per_seed.values())]
    absent = [base.name for base in comparison.baselines if not base.seeds]
    damaged = [run.name for run in runs if not run.agrees]
    told = f"seeds differ by {noise:.2g}: more tuning.seeds would"
    leaking, rates = (
        [arm.name for arm in arms if not arm.causal],
        listed(dict.fromkeys(edge.values())),
    )
    named = [
        (
            leaking,
            (
                f"{NOT_CAUSAL}: a prediction sees part of its own target, so the loss says little"
                " about the model"
            ),
        ),
        (
            idle,
            "the same loss as the baseline to the last digit in every seed: its options do nothing",
        ),
        (list(edge), f"learning rate {rates} is the first or last tried"),
        (unsure, f"the search cannot tell the best rate, {told}"),
        (
            apart,
            f"not at its baseline's learning rate; the search cannot tell which is better, {told}",
        ),
        (absent, "no run of this baseline is finished, there is nothing to compare with"),
        (
            damaged,
            (
                "the rows are not those of the result: bring metrics.jsonl back, or train the run"
                " again"
            ),
        ),
        (lost, "the loss is not finite, so the arm has no mean"),
    ]
    common = (
        "at the last step that all reached"
        if comparison.primary == COMMON_STEP
        else "as they ended"
    )
    differing: list[tuple[set[Any], str]] = [
        (
            {steps for arm in arms for steps in arm.steps},
            f"the number of steps; they are compared {common}",
        ),
        ({size for arm in arms for size in arm.parameters}, "the number of parameters"),
        (
            {arm.seeds for arm in arms if arm.seeds},
            "the seeds that finished: compare paired differences, not means",
        ),
        ({run.environment.get("commit") for run in runs}, "the commit of the code"),
        (max(digests.values(), key=len), "the bytes of their corpus (its sha256)"),
    ]
    dirty = any(run.environment.get("dirty") for run in runs)
    states = Counter(run.status for run in study.runs if run.status != FINISHED)
    counts = listed(f"{count:,} {state}" for state, count in states.most_common())
    return [
        *(
            f"{listed(names[:FEW] + [f'{len(names) - FEW} more'] * (len(names) > FEW))}: {text}."
            for names, text in named
            if names
        ),
        *of_arms,
        *(f"Runs differ in {text}." for values, text in differing if len(values) > 1),
        *["Some runs come from code that differs from its commit (dirty)."] * dirty,
        *(
            [f"Of {len(study.runs)} runs {counts}: the report covers the others only."]
            if states
            else []
        ),
    ]
