"""The report for readers: an HTML page without scripts, and the same as text."""

import base64
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined

from plkernel.common.cli import counted, text_table
from plkernel.config.schema import OF_ACCURACY, Metric, ModelSpec
from plkernel.models import NOT_CAUSAL
from plkernel.models.kinds import kind_of
from plkernel.results.answer import advice, answer, words_of
from plkernel.results.cautions import warnings
from plkernel.results.claims import interval
from plkernel.results.comparison import ArmResult, Comparison
from plkernel.results.conclusion import memory_worth, overview
from plkernel.results.figures import Drawing
from plkernel.results.longer import RECALL_TESTS, beyond_bits, recall_figures
from plkernel.results.measurements import compared_arms, means_in, values
from plkernel.results.rate_report import CAPTION, HEADER, curve_rows
from plkernel.results.saved import Reference
from plkernel.results.statistics import Estimate, mean_interval, paired_difference
from plkernel.results.study import Study
from plkernel.results.verdicts import Declared, GateOutcome, HypothesisOutcome
from plkernel.results.wording import (
    interval_text,
    listed,
    mean_and_half_width,
    mean_and_interval,
    mean_text,
    p_text,
    size_text,
    span,
    statement,
)

WIDTH = 120
"""Columns of a terminal."""
NAME_WIDTH = 48
"""Of these, the most that the first column of a table takes."""
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
FEW = 4
"""Facts with more values than this are left out of the table of the design."""
Rows = Sequence[Sequence[str]]


# What a section is made of; the template asks for the kind


@dataclass(frozen=True)
class Paragraphs:
    """Sentences in one box; style: answer, summary or warnings."""

    kind: ClassVar[str] = "text"
    style: str
    texts: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table whose rows stand in groups under their titles.

    After a line break in its first cell a row has a note. numeric: for each column, True if it
    holds numbers alone.
    """

    kind: ClassVar[str] = "table"
    caption: str
    header: Sequence[str]
    groups: Mapping[str, Rows]
    numeric: Sequence[bool]


@dataclass(frozen=True)
class Picture:
    """A figure as SVG in base 64."""

    kind: ClassVar[str] = "figure"
    title: str
    caption: str
    svg: str


Item = Paragraphs | Table | Picture


def page(comparison: Comparison, drawn: Iterable[tuple[Drawing, bytes]]) -> str:
    """Render the page as HTML, every text in it escaped.

    drawn: its figures, each with its SVG.
    """
    options: dict[str, Any] = {"autoescape": True, "undefined": StrictUndefined}
    templates = Environment(
        loader=PackageLoader("plkernel.results", ""),
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    templates.filters["minus"] = _with_minus_signs
    pictures: dict[str, list[Picture]] = {}
    for drawing, svg in drawn:
        pictures.setdefault(drawing.section, []).append(_picture(drawing, svg))
    filled = {title: items for title, items in sections(comparison, pictures).items() if items}
    return templates.get_template("page.html").render(
        title=comparison.study.name,
        question=comparison.study.description,
        sections=filled,
    )


def _with_minus_signs(text: str) -> str:
    """A text with minus signs for the hyphens before numbers."""
    return re.sub(r"(?<![^\s(])-(?=\d)", "\N{MINUS SIGN}", text)


def _picture(drawing: Drawing, svg: bytes) -> Picture:
    first_sentence = drawing.caption.partition(".")[0]
    title = f"{drawing.block}: {first_sentence}" if drawing.block else first_sentence
    return Picture(title, drawing.caption, base64.b64encode(svg).decode())


def text_report(comparison: Comparison) -> str:
    """The sections of the page up to the differences as plain text."""
    texts: list[str] = []
    for title, items in sections(comparison, {}).items():
        for item in items:
            texts += _plain_item(item)
        if title == "Differences":
            break
    return "\n".join(texts)


def _plain_item(item: Item) -> list[str]:
    """An item as lines of text; none of a picture."""
    if isinstance(item, Paragraphs):
        head = "note: " if item.style == "warnings" else ""
        return [f"{head}{text}" for text in item.texts]
    if isinstance(item, Table):
        return ["", _plain_table(item), f"({item.caption})", ""]
    return []


def sections(
    comparison: Comparison, pictures: Mapping[str, Sequence[Picture]]
) -> dict[str, list[Item]]:
    """The items of every section by its title; `pictures` by the name of their section."""

    def drawn(section: str) -> list[Item]:
        return list(pictures.get(section, ()))

    return {
        "Answer": [*_answer(comparison), *drawn("answer")],
        "What was decided": [*_verdicts(comparison), *drawn("decided"), *_context(comparison)],
        "Minima over learning rates": [*_minima(comparison), *drawn("rates")],
        "Results": [_results(comparison)],
        "Differences": [*_differences(comparison), *drawn("differences")],
        "Curves": drawn("curves"),
        "Worth of far context": [
            *_recall(comparison),
            *_beyond(comparison),
            *drawn("context"),
        ],
        "Memory before and after training": drawn("memory"),
        "Design and runs": [_design(comparison), *_failures(comparison)],
    }


# Tables


def _table(caption: str, header: Sequence[str], groups: Mapping[str, Rows]) -> Table:
    """A table without the columns that hold nothing, except the first, and without empty groups."""
    every_row: list[Sequence[str]] = []
    for rows in groups.values():
        every_row += rows
    columns = list(zip(*every_row, strict=True))
    kept = [at for at, cells in enumerate(columns) if at == 0 or _holds_something(cells)]
    shown = {}
    for title, rows in groups.items():
        if rows:
            shown[title] = [[row[at] for at in kept] for row in rows]
    return Table(
        caption=caption,
        header=[header[at] for at in kept],
        groups=shown,
        numeric=[_is_numeric(columns[at]) for at in kept],
    )


def _holds_something(cells: Sequence[str]) -> bool:
    return any(cell not in ("", "-") for cell in cells)


def _is_numeric(cells: Sequence[str]) -> bool:
    """True if every cell is empty or begins as a number or a sign does."""
    return all(re.match(r"[-+<>\d]|$", cell) for cell in cells)


def _plain_table(table: Table) -> str:
    """A table as text of WIDTH columns; those that do not fit follow in further parts below it.

    Notes are left out, and long names are broken. Every part repeats the first column, of those
    rows that have something in it.
    """
    wrapped = [line for rows in table.groups.values() for row in rows for line in _wrapped_row(row)]
    first, *further = _parts(table.header, wrapped)
    parts = [_plain_part(table.header, table.groups, first)]
    for columns in further:
        groups = {title: _told(rows, columns) for title, rows in table.groups.items()}
        if any(groups.values()):
            parts.append(_plain_part(table.header, groups, columns))
    return "\n\n".join(parts)


def _told(rows: Rows, columns: Sequence[int]) -> list[Sequence[str]]:
    """The rows with a cell that is not empty in one of the columns after the first."""
    return [row for row in rows if any(row[at] for at in columns[1:])]


def _plain_part(header: Sequence[str], groups: Mapping[str, Rows], columns: Sequence[int]) -> str:
    """Some columns of a table: its head, a rule, and a line for each row below titles of groups."""
    lines_of: list[list[str]] = []
    title_at: dict[int, str] = {}
    for title, rows in groups.items():
        if title and rows:
            title_at[len(lines_of)] = title
        for row in rows:
            lines_of += _wrapped_row(row)
    own_header = [header[at] for at in columns]
    own_rows = [[line[at] for at in columns] for line in lines_of]
    head, rule, *body = text_table(own_header, own_rows).splitlines()
    lines = [head, rule]
    for at, line in enumerate(body):
        if at in title_at:
            lines.append(title_at[at])
        lines.append(line)
    return "\n".join(lines)


def _parts(header: Sequence[str], rows: Rows) -> list[list[int]]:
    """The columns of every part of a table: the first, and as many others as fit into WIDTH.

    Two spaces stand between columns. A column that is too wide for any part stands alone in one.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    parts = [[0]]
    end = widths[0]
    for at, width in enumerate(widths[1:], start=1):
        if end + 2 + width > WIDTH and len(parts[-1]) > 1:
            parts.append([0])
            end = widths[0]
        parts[-1].append(at)
        end += 2 + width
    return parts


def _wrapped_row(row: Sequence[str]) -> list[list[str]]:
    """A row without its note; the rest of a name that is too long stands in rows of its own."""
    name, *cells = row
    label, _, _ = name.partition("\n")
    first, *more = textwrap.wrap(label, NAME_WIDTH, subsequent_indent="  ")
    empty = [""] * len(cells)
    return [[first, *cells], *([rest, *empty] for rest in more)]


def _grouped(
    comparison: Comparison, cells: Callable[[ArmResult], Sequence[str]], paired: bool = False
) -> dict[str, list[list[str]]]:
    """A row for each arm, under the title of its block.

    Its first cell is the arm's label, and below it what sentences call it.

    cells   the cells after the first of an arm
    paired  only of arms that are compared with another
    """
    words = words_of(comparison)

    def named(arm: ArmResult) -> str:
        label = comparison.label(arm, paired)
        return f"{label}\n{words[arm.name]}" if arm.name in words else label

    groups = {}
    for block in comparison.blocks:
        arms = [arm for arm in block.arms if arm.against is not None or not paired]
        groups[block.title] = [[named(arm), *cells(arm)] for arm in arms]
    return groups


# What was decided


def _answer(comparison: Comparison) -> Iterator[Item]:
    """The answer in one sentence, and of a trial what follows for a model."""
    yield Paragraphs("answer", [answer(comparison)])
    follows = advice(comparison)
    if follows:
        yield Paragraphs("summary", [follows])


def _verdicts(comparison: Comparison) -> Iterator[Item]:
    """Verdicts on the hypotheses, and what is significant beside them."""
    declared = comparison.declared
    conclusion, *more = overview(comparison)
    if declared is None:
        told = ["No hypothesis was declared before the runs.", conclusion, *more]
        yield Paragraphs("summary", told)
        return
    yield Paragraphs("summary", [declared.headline, *declared.provenance, conclusion, *more])
    if declared.outcomes:
        yield _verdict_table(comparison, declared)


def _context(comparison: Comparison) -> Iterator[Item]:
    """Context of the verdicts: n-grams and LZMA, gates, cautions."""
    worth = memory_worth(comparison)
    if worth:
        yield Paragraphs("summary", worth)
    declared = comparison.declared
    if declared and declared.gates:
        passed = sum(gate.passed for gate in declared.gates)
        number = counted(len(declared.gates), "gate", "gates")
        yield Paragraphs("summary", [f"{passed} of {number} passed."])
        yield _gate_table(declared)
    cautions = warnings(comparison)
    if cautions:
        yield Paragraphs("warnings", cautions)


def _verdict_table(comparison: Comparison, declared: Declared) -> Table:
    """The verdict on every hypothesis, by family, with its difference and p."""
    groups: dict[str, list[list[str]]] = {}
    for outcome in declared.outcomes:
        basis = declared.basis(outcome.hypothesis.family)
        groups.setdefault(basis, []).append(_verdict_row(declared, outcome))
    levels = [f"{100 * (1 - 2 * one.hypothesis.alpha):.4g} %" for one in declared.outcomes]
    tests = [one.judgement.test for one in declared.outcomes]
    some_levels = " or ".join(dict.fromkeys(levels))
    some_tests = " or ".join(dict.fromkeys(tests))
    header = [
        "hypothesis",
        "verdict",
        "difference",
        f"{some_levels} interval by {some_tests}",
        f"on {comparison.held_out}",
        "n",
        "p confirming",
        "p refuting",
    ]
    caption = (
        f"{_kind_of_hypotheses(declared)}. Differences are paired by seed, in"
        f" {_units(comparison, declared)}, each with its own interval; p is Holm-corrected over the"
        f" family. On {comparison.held_out} stands the same difference at the end, which decides"
        f" nothing. Rows of {_origin(comparison)}."
    )
    return _table(caption, header, groups)


def _kind_of_hypotheses(declared: Declared) -> str:
    if declared.ahead:
        return "Pre-registered hypotheses"
    if declared.registered:
        return "Hypotheses registered after runs had begun"
    return "Hypotheses of the spec, not registered"


def _units(comparison: Comparison, declared: Declared) -> str:
    """The unit of the differences of hypotheses."""
    metrics = {one.hypothesis.metric for one in declared.outcomes}
    shares = [name for name in OF_ACCURACY if name in metrics]
    if shares:
        return f"{comparison.unit}, of {listed(shares)} the share of right answers"
    return comparison.unit


ON_TEST_TEXT: dict[str, Metric] = {
    "val_bpb": "test_bpb",
    "val_bpb_minimum": "test_bpb_minimum",
}
"""The metric on test text beside that at the end on validation text."""


def _on_test_text(study: Study, outcome: HypothesisOutcome) -> str:
    """Difference and interval of a hypothesis on the end of validation text for test text.

    By its own test and seeds; "-" for other hypotheses.
    """
    hypothesis = outcome.hypothesis
    if hypothesis.metric not in ON_TEST_TEXT or hypothesis.step is not None:
        return "-"
    measured = hypothesis.model_copy(update={"metric": ON_TEST_TEXT[hypothesis.metric]})
    seeds = list(outcome.per_seed)
    arm, other = compared_arms(study, hypothesis)
    own = values(study, arm, measured, seeds)
    base = values(study, other, measured, seeds)
    found = paired_difference(own, base)
    if not found.n:
        return "-"
    low, high = interval(list(found.per_seed.values()), hypothesis.alpha, outcome.judgement.test)
    one = replace(found, low=low, high=high)
    return mean_and_interval(one)


def _verdict_row(declared: Declared, outcome: HypothesisOutcome) -> list[str]:
    """The cells of one hypothesis."""
    study = declared.study
    judged = outcome.judgement
    hypothesis = outcome.hypothesis
    title = hypothesis.name
    if hypothesis.arm in means_in(study):
        title += f" (mean over {' and '.join(study.within)})"
    stated = statement(hypothesis)
    if outcome.answers:
        stated += f"; over {outcome.answers:,} answers of a run"
    name = [title, stated]
    if not outcome.causal:
        name.append(NOT_CAUSAL)
    name += outcome.doubts
    if not judged.n:
        queries = f" of queries at distance {hypothesis.distance}" if hypothesis.distance else ""
        name.append(f"no seed that both arms finished tells {hypothesis.metric}{queries}")
    return [
        "\n".join(name),
        declared.verdict(outcome, gates=False),
        mean_text(judged) if judged.n else "-",
        interval_text(judged) if judged.n else "",
        _on_test_text(study, outcome),
        str(judged.n),
        p_text(judged.p_family),
        p_text(judged.p_opposite_family),
    ]


def _gate_table(declared: Declared) -> Table:
    """Every gate with the number that it rests on."""
    by_means = declared.gates[0].rule == "mean"
    units = listed(dict.fromkeys(gate.basis.unit for gate in declared.gates))
    rule = "means" if by_means else f"95 % intervals over seeds and over {units}"
    return _table(
        f"Gates, by their {rule}: if one is not passed, no hypothesis is answered.",
        ["gate", "passed", "mean", "95 % interval by t", "n"],
        {"": [_gate_row(gate) for gate in declared.gates]},
    )


def _gate_row(outcome: GateOutcome) -> list[str]:
    """The cells of one gate."""
    return [
        f"{outcome.gate.name}\n{statement(outcome.gate)}; {outcome.margin}",
        outcome.verdict,
        mean_text(outcome.estimate, ".4f") if outcome.estimate.n else "-",
        interval_text(outcome.estimate, ".4f"),
        str(outcome.estimate.n),
    ]


def _origin(comparison: Comparison) -> str:
    """Every commit of the rows with the days on which its runs began, as far as rows tell them."""
    days: dict[str, list[str]] = {}
    for run in comparison.study.finished():
        known = run.environment.get("commit")
        commit = f"commit {str(known)[:12]}" if known else "code of no known commit"
        if run.environment.get("dirty"):
            commit += " with changes"
        of_commit = days.setdefault(commit, [])
        started = str(run.environment.get("started") or "")
        if started:
            of_commit.append(started[:10])
    texts = []
    for commit, of_commit in days.items():
        texts.append(f"{commit} of {span(of_commit, '')}" if of_commit else commit)
    return listed(texts)


def _minima(comparison: Comparison) -> Iterator[Item]:
    """Minima of curves over learning rates; nothing in other studies."""
    if comparison.curves:
        yield _table(
            CAPTION.format(unit=comparison.unit, held_out=comparison.held_out),
            HEADER,
            {"": curve_rows(comparison.curves)},
        )


# Results and differences


def _results(comparison: Comparison) -> Table:
    """Mean and interval of every measure of every arm, and the losses of n-grams."""
    measures = {key: title for key, title in comparison.measures.items() if key != "best_val_bpb"}

    def cells(arm: ArmResult) -> list[str]:
        seeds = len(arm.seeds)
        means = [mean_and_half_width(arm.estimates.get(key), ".4f", seeds) for key in measures]
        return [*means, str(seeds), span(arm.parameters), span(arm.steps)]

    groups = _grouped(comparison, cells)
    for reference in comparison.references:
        title = f"for reference, on {reference.corpus.get('name')}"
        groups.setdefault(title, []).extend(_reference_rows(reference, list(measures)))
    header = ["arm", *measures.values(), "seeds", "parameters", "steps"]
    caption = (
        f"{comparison.unit.capitalize()}: mean over seeds ± half of its 95 % t interval; n-grams"
        f" are interpolated Witten-Bell counts. Rows of {_origin(comparison)}."
    )
    return _table(caption, header, groups)


def _reference_rows(reference: Reference, measures: Sequence[str]) -> list[list[str]]:
    """Rows of n-grams and of LZMA in the table of results; they have no seeds, sizes or steps."""

    def row(name: str, known: Mapping[str, float]) -> list[str]:
        losses = [f"{known[key]:.4f}" if key in known else "" for key in measures]
        return [name, *losses, "", "", ""]

    rows = []
    losses = zip(reference.orders, reference.val_bpb, reference.test_bpb, strict=True)
    for order, validation, test in losses:
        name = f"n-gram, {counted(order, 'byte', 'bytes')}"
        rows.append(row(name, {"final_val_bpb": validation, "test_bpb": test}))
    if reference.lzma:
        windows = zip(reference.lzma.windows, reference.lzma.val_bpb, strict=True)
        for window, validation in windows:
            name = f"LZMA, window of {size_text(window)}\nall of the validation text"
            rows.append(row(name, {"final_val_bpb": validation}))
    return rows


def _differences(comparison: Comparison) -> Iterator[Item]:
    """Every arm minus the one it is compared with; nothing where there is no difference."""
    if not comparison.differences:
        return
    # The other measures have columns of their own, or none.
    apart = (comparison.primary, "test_bpb", "best_val_bpb", "excess_bpb")
    others = {key: title for key, title in comparison.measures.items() if key not in apart}
    on_test = comparison.corrected_in("test_bpb")
    header = [
        "arm",
        "mean",
        "95 % interval by t",
        "p",
        "corrected p",
        "test mean",
        "test interval",
        "test corrected p",
        "bytes",
        *others.values(),
    ]

    def cells(arm: ArmResult) -> list[str]:
        one = comparison.differences.get(arm.name)
        if one is None:
            return ["-"] * (len(header) - 1)
        seeds = len(arm.seeds)
        test = arm.differences.get("test_bpb")
        return [
            _counted_mean(one, seeds),
            interval_text(one),
            p_text(one.p_value),
            p_text(comparison.corrected[arm.name]),
            _counted_mean(test, seeds) if test else "-",
            interval_text(test) if test else "",
            p_text(on_test[arm.name]) if test else "-",
            _bytes_text(arm),
            *(mean_and_half_width(arm.differences.get(key), "+.4f", seeds) for key in others),
        ]

    caption = _caption_of_differences(comparison)
    yield _table(caption, header, _grouped(comparison, cells, paired=True))


def _caption_of_differences(comparison: Comparison) -> str:
    """Sentences on the differences, the tests and their correction, and the columns."""
    other = comparison.one_baseline or "the one it is compared with"
    every = len(comparison.on_text)
    number = len(comparison.tested)
    family = f"all {every}" if number == every else f"the {number} of {every} that have one"
    control_apart = " on the text, the control apart" if comparison.control else ""
    correction = f", corrected by Holm for {family}{control_apart}" if number else ""
    on_test = ", corrected in the same way," if number else ""
    return (
        f"Arm minus {other}, {comparison.measures[comparison.primary]}, paired by seed, in"
        f" {comparison.unit} (below zero is better): t interval, p of the paired t test"
        f"{correction}; then on {comparison.held_out}{on_test} and in other measures. Bytes: at"
        " which the arm reaches the other's final loss, over those that the other took: geometric"
        " mean and 95 % t interval, or how many never do."
    )


def _counted_mean(one: Estimate, seeds: int) -> str:
    """The mean of a difference, with its n where that is not the number of seeds of the arm."""
    mean = mean_text(one)
    return mean if one.n == seeds else f"{mean} (n = {one.n})"


def _bytes_text(arm: ArmResult) -> str:
    """Bytes to the other's final loss: geometric mean and interval, or how many never reach it."""
    never = sum(math.isinf(ratio) for ratio in arm.bytes_ratio.values())
    if never:
        return f"> 1 in {never} of {len(arm.bytes_ratio)}"
    logs = mean_interval(math.log(ratio) for ratio in arm.bytes_ratio.values())
    mean = Estimate(logs.n, math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high), math.nan)
    return mean_and_interval(mean, ".2f")


# Recall, and beyond the length of training


def _recall(comparison: Comparison) -> Iterator[Item]:
    """Accuracy and bits in the tests of recall; nothing where no run has been tested."""
    means = "Mean over seeds ± half of its 95 % t interval."
    captions = {
        "accuracy": "Share of right answers at the end, in sequences of so many bytes:"
        " persistence, with the pairs of the corpus and queries anywhere behind them; capacity,"
        f" with a pair for every four bytes. {means}",
        "bits": f"Bits per answer in the same tests, where less is better. {means}",
    }
    forms = {"accuracy": ".3f", "bits": ".4f"}
    for column, caption in captions.items():
        yield from _recall_table(comparison, column, forms[column], caption)


def _recall_table(comparison: Comparison, column: str, form: str, caption: str) -> Iterator[Item]:
    """The table of a column of the tests of recall; nothing where no run tells it."""
    found = {arm.name: recall_figures(comparison, arm, column) for arm in comparison.arms}
    every_test = [test for of_arm in found.values() for test in of_arm]
    in_order = dict.fromkeys(every_test)  # each once, as they were taken
    tests = sorted(in_order, key=lambda test: RECALL_TESTS.index(test[0]))
    if not tests:
        return

    def cells(arm: ArmResult) -> list[str]:
        own = found[arm.name]
        return [_mean_cell(own.get(test), form, arm) for test in tests]

    header = ["arm", *(f"{name}, {length:,}" for name, length in tests)]
    yield _table(caption, header, _grouped(comparison, cells))


def _beyond(comparison: Comparison) -> Iterator[Item]:
    """Bits by position in windows longer than those of training, and what reading on costs."""
    found = {arm.name: beyond_bits(comparison, arm) for arm in comparison.arms}
    contexts = sorted({one.context for one in found.values() if one.context})
    if not contexts:
        return
    given = sorted(set().union(*(one.along for one in found.values())))
    behind = sorted(set().union(*(one.reading_on for one in found.values())))

    def cells(arm: ArmResult) -> list[str]:
        own = found[arm.name]
        bits = [_mean_cell(own.along.get(at), ".4f", arm) for at in given]
        return bits + [_mean_cell(own.reading_on.get(at), "+.4f", arm) for at in behind]

    caption = (
        f"Windows longer than the {listed(f'{context:,}' for context in contexts)} bytes of"
        " training: bits per byte with up to so many bytes before, and what is lost there by having"
        " read on instead of beginning anew every half context. Mean over seeds ± half of its 95 %"
        " t interval."
    )
    header = ["arm", *(f"bits, to {at:,}" for at in given), *(f"lost, to {at:,}" for at in behind)]
    yield _table(caption, header, _grouped(comparison, cells))


def _mean_cell(by_seed: Mapping[int, float] | None, form: str, arm: ArmResult) -> str:
    """Mean and half width over the seeds that have a number; "-" without any."""
    mean = mean_interval(by_seed.values()) if by_seed else None
    return mean_and_half_width(mean, form, len(arm.seeds))


# Design and runs


def _design(comparison: Comparison) -> Table:
    """Runs, hardware, versions, code, corpus, model and training of the finished runs."""
    study = comparison.study
    runs = study.finished()
    seconds = sum(run.result.seconds for run in runs)
    arms = counted(len(study.arms), "arm", "arms")
    seeds = counted(len(study.seeds), "seed", "seeds")
    time = f"{seconds / len(runs):,.1f} s a run, {seconds / 3600:,.2f} hours in all"
    rows = [["runs", f"{arms} x {seeds}, {len(runs)} finished; {time}"]]
    facts = [{**used_config(run.config), **run.environment} for run in runs]
    for title, names in FACTS.items():
        texts = [_fact_text(facts, name) for name in names]
        if title == "model":
            # The options of other people's code stand directly after the kind.
            texts[1:1] = _own_options(facts)
        known = [text for text in texts if text]
        if known:
            rows.append([title, ", ".join(known)])
    return _table("What was run.", ["", ""], {"": rows})


def used_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run without the options of [model] that its kind does not have.

    A run's file has all of them, so that those of plkernel's own models stand at their defaults
    beside a model of other people's code, which is built from `config` alone.
    """
    model = config.get("model")
    if not isinstance(model, Mapping) or not isinstance(model.get("kind"), str):
        return dict(config)
    unused = ModelSpec.model_fields.keys() - set(kind_of(model["kind"]).options)
    used = {name: value for name, value in model.items() if name not in unused}
    return {**config, "model": used}


def _own_options(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The values of every option in the table [model.config] of any run, "config.dim 32"."""
    tables = [_nested(fact, "model.config") for fact in facts]
    options = [table if isinstance(table, Mapping) else {} for table in tables]
    names = dict.fromkeys(name for table in options for name in table)
    texts = []
    for name in names:
        text = _values_text([table.get(name) for table in options])
        if text:
            texts.append(f"config.{name} {text}")
    return texts


def _fact_text(facts: Sequence[Mapping[str, Any]], name: str) -> str:
    """The values of a fact over all runs, "gain none or ema"; empty if none or more than FEW."""
    text = _values_text([_nested(fact, name) for fact in facts])
    return f"{name.rpartition('.')[2]} {text}" if text else ""


def _values_text(values: Iterable[Any]) -> str:
    """Different values, "none or ema"; empty if none or more than FEW."""
    known = list(dict.fromkeys(str(value) for value in values if value is not None))
    return " or ".join(known) if len(known) <= FEW else ""


def _nested(values: Mapping[str, Any], name: str) -> Any:
    """The value at a name such as hardware.cpu; None where there is none."""
    found: Any = values
    for key in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def _failures(comparison: Comparison) -> list[Item]:
    """The table of runs that failed or diverged; none where there are none."""
    failed = [[run.name, run.status, run.error] for run in comparison.study.runs if run.error]
    if not failed:
        return []
    return [_table("Runs that failed.", ["run", "state", "error"], {"": failed})]
