"""Render the tables, sentences and figures of README.md and docs/ from the rows beside this script.

python runs/records/render.py rewrites every part between <!-- record:NAME STUDY .. --> and <!-- end
-->, and every number in a sentence that stands between comments, which sentences.py describes. It
draws the kernels of several starts before training and after, convergence/kernels.png and .svg,
what short half-lives are worth, memory-shortness/dose.png and .svg, what exponents of kernels are
worth, memory-dose/best.png and .svg, what exponents are worth on eight texts,
beta-sweep/exponents.png and .svg, what starts of RWKV-7 and Mamba-2 are worth, starts.png and .svg
in models-goose and models-mamba2, recall beyond the length of training, recall.png and .svg in
recall-post, -capacity, -far, -far-fast, -mamba2, -mamba2-held and -mamba2-weighted, losses on text
beyond it, losses.png and .svg in post-text, post-text-mamba2 and post-text-weighted, both against
each other, recall-mamba2-weighted/trade.png and .svg, and what the longest half-life is worth where
copies are far, reach/reach.png and .svg, curves over learning rates, curves.png and .svg in the
studies of minima.py, and all of their minima, rates/ends.png and .svg.

The forest of all of them and its numbers are forest/forest.png, .svg and table.json.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

import forest
import long_windows
import minima
import numpy as np
import post_parts
import recall_tests
import trade
from comparisons import Lowest, lowest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from recall_tests import study_of
from sentences import (
    accuracies,
    blocks,
    fill,
    minimum_difference,
    paired,
    recalled_lead,
    shown,
    targets,
)

from plkernel.analysis.figures.style import (
    INK,
    PAGE_WIDTH,
    legend_below,
    line_style,
    rendered,
    style,
)
from plkernel.common.files import save_json
from plkernel.results.claims import interval
from plkernel.results.convergence import convergence, groups, learnt_kernels_figure
from plkernel.results.forest import ForestRow
from plkernel.results.forest import forest as forest_of_rows
from plkernel.results.loss_curves import difference_figure
from plkernel.results.rate_curves import curve_results
from plkernel.results.rate_report import rate_figure
from plkernel.results.statistics import (
    PairedDifference,
    difference_curves,
    mean_interval,
    paired_difference,
    pointwise_band,
)

RECORDS = Path(__file__).resolve().parent
ROOT = RECORDS.parents[1]
PART = re.compile(r"(<!-- record:([\w /-]+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def load(name: str) -> Any:
    """Read a committed JSON file, or the list of rows of a study."""
    text = (RECORDS / name).read_text()
    return (
        [json.loads(line) for line in text.splitlines()]
        if name.endswith(".jsonl")
        else json.loads(text)
    )


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(
        "| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *lines]
    )


class Cells(Formatter):
    """Formatting in which what a row does not have is a dash."""

    def get_field(self, name: str, arguments: Any, row: Any) -> Any:
        try:
            return super().get_field(name, arguments, row)
        except (KeyError, TypeError):
            return None, name

    def format_field(self, value: Any, spec: str) -> Any:
        return "-" if value is None else super().format_field(value, spec)


FORMAT = Cells().format


def table(
    path: str, title: str, line: str, cells: Mapping[str, str], rows: Sequence[Any] = ()
) -> str:
    """Return a table of the rows of a JSON file and its source, or of `rows`.

    `line` names the line of a row; `cells` has names of its columns and what is in them. All are
    format strings of the row. Arrows join rows of one place.
    """
    lines: dict[str, dict[str, str]] = {}
    for row in rows or load(path)["rows"]:
        found = lines.setdefault(FORMAT(line, **row), {})
        for column, cell in (
            (FORMAT(column, **row), FORMAT(cell, **row)) for column, cell in cells.items()
        ):
            found[column] = f"{found[column]} → {cell}" if column in found else cell
    columns = list(
        dict.fromkeys(
            column for found in lines.values() for column, cell in found.items() if cell != "-"
        )
    )
    body = [
        [name, *(found.get(column, "-") for column in columns)] for name, found in lines.items()
    ]
    text = _without_bounds(markdown([title, *columns], body))
    return text + (f"\n\n{source(path)}" if path else "")


def _without_bounds(text: str) -> str:
    """Name the intervals in a table that have no bounds, as those of one seed, and none at all."""
    return text.replace("- (- to -)", "-").replace("- to -", "not bounded")


def source(path: str) -> str:
    """Return command, commits, hardware and version of torch of a study or of a JSON file in a
    line.
    """
    rows = [load(path)] if path.endswith(".json") else load(f"{path}/rows.jsonl")
    commits, devices = dict[str, None](), dict[str, None]()
    for environment in (row["environment"] for row in rows):
        place, threads = environment["hardware"], environment["threads"]
        devices[place["gpu"] or f"{place['cpu']}, {threads} thread{'s' * (threads > 1)}"] = None
        commits[environment["commit"][:10] + (" with changes" if environment["dirty"] else "")] = (
            None
        )
    first = rows[0]["environment"]
    word = "commits" if len(commits) > 1 else "commit"
    where = f"{word} {' and '.join(commits)}, {' and '.join(devices)}"
    return f"{cited(first['command'], path)}, {where}, torch {first['versions']['torch']}."


def cited(command: str, path: str) -> str:
    """Return the command that made a record, in the words of today and in those of then.

    Scripts that stood in runs/ stand beside their records now.
    """
    script, *arguments = command.removeprefix("python ").split()
    beside = Path(path).parent / Path(script).name
    if (ROOT / script).exists() or not (RECORDS / beside).exists():
        return f"`{command}`"
    now = " ".join(["python", f"runs/records/{beside}", *arguments])
    return f"`{now}` (then `{script}`)"


PAIRED = "{mean:+z.4f} ({low:+z.4f} to {high:+z.4f})"


def differences(study: str, *steps: str) -> str:
    """Return the losses of the arms of a study, and their differences at some steps and at the
    end, there on test text too.

    What is lost with 32 bytes stands with the number of target bytes that it rests on.
    """
    rows, arms = load(f"{study}/rows.jsonl"), load(f"{study}/report/table.json")["arms"]
    for arm in arms:
        own = [row for row in rows if row["arm"] == arm["arm"] and row["status"] == "finished"]
        given = [one for row in own if (one := row["result"].get("truncation"))]
        arm["rate"] = own[0]["config"]["train"]["learning_rate"]
        arm["lost"] = (
            np.mean([one["cost"][one["given"].index(32)] for one in given]) if given else None
        )
        arm["targets"] = given[0]["windows"] if given else None
    cells = {"rate": "{rate:g}", "bits per byte": "{measures[final_val_bpb][mean]:.4f}"}
    measures = {f"difference, step {step}": f"val_bpb_step_{step}" for step in steps}
    measures |= {"difference at the end": "final_val_bpb", "on test text": "test_bpb"}
    for name, measure in measures.items():
        cells[name] = PAIRED.replace(
            "{", f"{{measures[{measure}][difference_to_baseline]["
        ).replace(":", "]:")
    cells["lost with 32 bytes (targets)"] = "{lost:z.3f} ({targets:,})"
    return f"{table('', 'arm', '{arm}', cells, arms)}\n\n{source(study)}"


RECALLED = ("capacity", "persistence")
"""Metrics of hypotheses that are shares of right answers."""


def declared(*studies: str) -> str:
    """Return a table of the gates and hypotheses of studies as they were registered, and what
    became of them.
    """
    lines, tests = [], dict[str, None]()
    of_answers = False
    for study in studies:
        registered = load(f"{study}/report/table.json")["declared"]
        tests |= {one["test"]: None for one in registered["hypotheses"]}
        of_answers |= any(one["metric"] in RECALLED for one in registered["hypotheses"])
        for one in registered["gates"]:
            edge = "at most" if one["at_least"] is None else "at least"
            claim, passed = (
                f"{edge} {one[edge.replace(' ', '_')]:.4g}",
                "passed" if one["passed"] else "**failed**",
            )
            found = "{mean:.4f} ({low:.4f} to {high:.4f}, 95 %)".format(**one)
            lines.append([study, one["name"], claim, found, "-", passed])
        for one in registered["hypotheses"]:
            claim = one["claim"] + (f", margin {one['margin']:g}" if one["margin"] else "")
            on_test = on_test_text(study, one)
            lines.append(
                [
                    study,
                    one["name"],
                    claim,
                    FORMAT(PAIRED, **one),
                    FORMAT(PAIRED, **on_test) if on_test else "-",
                    f"**{one['verdict'].partition(':')[0]}**",
                ]
            )
    unit = "right answers as a share, gates in bits per answer" if of_answers else "bits per byte"
    kind = f"{unit}, 90 % interval by {' or '.join(tests)}"
    header = ["study", "hypothesis or gate", "claim", kind, "on test text", "verdict"]
    return _without_bounds(markdown(header, lines))


def on_test_text(study: str, one: Mapping[str, Any]) -> dict[str, float | None] | None:
    """Return the interval of a hypothesis on the end of validation text for test text, by its own
    test; None for other hypotheses, and for the bounds of one seed.
    """
    seeds = {int(seed) for seed in one["per_seed"]}
    if one["metric"] == "val_bpb_minimum":
        per_seed = minimum_difference(study, one["arm"], "test", one["against"]).per_seed
    elif one["metric"] == "val_bpb" and one["step"] is None:
        per_seed = paired(study, one["arm"], one["against"], "test_bpb").per_seed
    else:
        return None
    values = [difference for seed, difference in per_seed.items() if seed in seeds]
    low, high = (None, None)
    if len(values) > 1:
        low, high = interval(values, one["alpha"], one["test"])
    return {"mean": float(np.mean(values)), "low": low, "high": high}


TOGETHER = 4
"""Lengths of which intervals hold together, by Bonferroni."""
EXPONENTS = ("0.4", "0.7", "1.0", "1.3", "1.6")
"""Arms of memory-dose, of kernels t^-e."""


def at_lengths() -> str:
    """Return differences at several lengths, and at the last on test text at the same level."""
    rows = load("memory-length/length.json")["rows"]
    for row in rows:
        row["test"] = at_the_end(row["arm"], row["rate"], "test_bpb")
    return table("", "start", "{arm}, {rate}", LENGTHS, rows)


def at_the_end(arm: str, rate: str, measure: str) -> dict[str, float]:
    """Return a difference of memory-length to log-spaced half-lives at the last length."""
    one = paired("memory-length", f"{arm}_{rate}", f"log-spaced_{rate}", measure)
    every = paired_difference(one.per_seed, dict.fromkeys(one.per_seed, 0.0), 1 - 0.05 / TOGETHER)
    return {"mean": every.mean, "low": every.low, "high": every.high}


def best_exponents() -> str:
    """Return the best exponent of a kernel on validation text, and at the end on test text."""
    rows = load("memory-dose/best.json")["rows"]
    for row in rows:
        row["test"] = None
        if row["step"] is None:
            row["test"] = best_exponent(row["corpus"], row["decays"], "test_bpb")._asdict()
    return table("", "best", "{corpus}, {decays}, {step}", DOSES, rows)


def best_exponent(corpus: str, decays: str, at: str) -> Lowest:
    """Return the lowest point of a parabola through the arms of memory-dose."""
    return lowest([float(one) for one in EXPONENTS], worth_of_exponents(corpus, decays, at))


def worth_of_exponents(corpus: str, decays: str, at: str) -> NDArray[np.float64]:
    """Return the losses of the arms of memory-dose minus those of the uniform one, by seed."""
    ending = f"_{corpus}_{decays}"
    arms = [paired("memory-dose", one + ending, f"uniform{ending}", at) for one in EXPONENTS]
    return np.array([list(one.per_seed.values()) for one in arms]).T


CONTRASTS = {
    "own exponent minus published 1.15": ("own", "fixed"),
    "exponent of the other kind minus own": ("other", "own"),
    "published 1.15 minus no exponent": ("fixed", "uniform"),
}
"""Columns of the sweep of exponents, and the two starts whose difference they hold."""


SPELT = {"cpp": "C++", "javascript": "JavaScript"}
"""Names of texts that are not their own capitalised."""


def exponents() -> str:
    """Return the measured exponent of every text of beta-sweep, and what exponents are worth there.

    Differences on validation text, then on test text.
    """
    lines = []
    for text in load("beta-sweep/texts.json")["texts"]:
        name = text["text"]
        measured = "{beta:.2f} ({low:.2f} to {high:.2f})".format(**text)
        lines.append([SPELT.get(name, name.capitalize()), measured, *contrasts(f"_{name}")])
    lines.append(["mean", "-", *contrasts("")])
    header = ["text", "measured exponent", *CONTRASTS]
    return f"{markdown(header, lines)}\n\n{source('beta-sweep')}"


def contrasts(ending: str) -> list[str]:
    """Return the cells of the starts whose arms have this ending."""
    cells = []
    for arm, against in CONTRASTS.values():
        both = [
            PAIRED.format(**vars(paired("beta-sweep", arm + ending, against + ending, at)))
            for at in ("final_val_bpb", "test_bpb")
        ]
        cells.append("; ".join(both))
    return cells


TIMES_TRAINED = (1, 2, 4, 8)
"""Lengths of the tests of recall, in lengths of training."""


def recall(study: str, test: str) -> str:
    """Return the accuracy in % of every arm in a test of recall, by length."""
    lines: dict[str, list[str]] = {}
    for arm, by_length in accuracies(study, test).items():
        cells = []
        for values in by_length.values():
            percent = [100 * share for share in values.values()]
            cells.append(f"{_plus_minus(percent)} ({min(percent):.1f} to {max(percent):.1f})")
        lines[arm] = cells
    header = [test, *(f"{times} times" for times in TIMES_TRAINED)]
    return f"{markdown(header, [[arm, *cells] for arm, cells in lines.items()])}\n\n{source(study)}"


def _plus_minus(values: Iterable[float], sign: str = "") -> str:
    """Return the mean and half of its 95 % t interval."""
    found = mean_interval(values)
    return f"{found.mean:{sign}.1f} ± {found.high - found.mean:.1f}"


def recall_by(study: str, test: str, groups: str) -> str:
    """Return the accuracy in % of every arm at the longest length of a test of recall.

    groups: distance, from pair to query, or order, the number of the pair
    """
    titles = {"distance": "bytes from pair to query, up to", "order": "number of the pair, up to"}
    found = {}
    for arm, by_length in recall_tests.tests_of(study, test).items():
        found[arm] = recall_tests.by_group(by_length[max(by_length)], groups)
    ends = [*next(iter(found.values()))]
    lines = []
    for arm, by_end in found.items():
        assert [*by_end] == ends, f"{arm} has other groups"
        lines.append([arm, *(_plus_minus(100 * shares) for shares in by_end.values())])
    header = [titles[groups], *(f"{end:,}" for end in ends)]
    return f"{markdown(header, lines)}\n\n{source(study)}"


def recall_leads(study: str, test: str) -> str:
    """Return the leads over the baseline by distance at the longest length of a test of recall.

    In points, with 95 % intervals over seeds.
    """
    found = study_of(study)
    lines = []
    for arm, by_length in recall_tests.tests_of(study, test).items():
        baseline = found.against(arm)
        if baseline is None:
            continue
        longest = max(by_length)
        ends = [*recall_tests.by_group(by_length[longest])]
        leads = [
            recalled_lead(study, arm, baseline, str(longest), test, distance=str(end))
            for end in ends
        ]
        lines.append([arm, *(shown(one, "+.0f") for one in leads)])
    header = ["points, by bytes from pair to query, up to", *(f"{end:,}" for end in ends)]
    return f"{markdown(header, lines)}\n\n{source(study)}"


def by_position(study: str) -> str:
    """Return the losses of every baseline by length, beyond the length of training, and those of
    the other arms minus those of their baseline, with 95 % intervals.
    """
    lines = []
    for arm, lengths in long_windows.losses(study, "positions").items():
        if long_windows.against(study, arm) is None:
            cells = [f"{np.mean([*by_seed.values()]):.3f}" for by_seed in lengths.values()]
        else:
            leads = [long_windows.lead(study, arm, times) for times in lengths]
            cells = [f"{one.mean:+.3f} ({one.low:+.3f} to {one.high:+.3f})" for one in leads]
        lines.append([arm, *cells])
    return _of_long_windows(study, "bits per byte", lengths, lines)


def reading_on(study: str) -> str:
    """Return what every arm loses by reading on by length, the mean over seeds."""
    lines = []
    for arm, lengths in long_windows.losses(study, "reading_on").items():
        means = [np.mean([*by_seed.values()]) for by_seed in lengths.values()]
        lines.append([arm, *(f"{mean:.3f}" for mean in means)])
    return _of_long_windows(study, "lost by reading on", lengths, lines)


def _of_long_windows(
    study: str, title: str, lengths: Iterable[int], lines: Sequence[Sequence[str]]
) -> str:
    """Return a table with a column for each length, and its sources."""
    header = [title, *(f"{times} times" for times in lengths)]
    sources = [source(study)]
    stopped = f"{study}/scaling-off.json"
    if (RECORDS / stopped).exists():
        sources.append(source(stopped))
    return "\n\n".join([markdown(header, lines), *sources])


def heads(study: str) -> str:
    """Return by how much what heads give grows beyond the length of training, and what it costs.

    Sizes by length over those within the length of training, mean and range over seeds; and the
    change of the loss at the longest if heads are levelled, with its 95 % interval.
    """
    sizes = long_windows.growth(study)
    changes = long_windows.levelled(study)
    times = [*next(iter(sizes.values()))]
    lines = []
    for arm in study_of(study).arms:
        cells = []
        for length in times[1:]:
            over = [*sizes[arm][length].values()]
            cells.append(f"{np.mean(over):.2f} ({min(over):.2f} to {max(over):.2f})")
        change = mean_interval(changes[arm][times[-1]].values())
        cells.append(f"{change.mean:+.3f} ({change.low:+.3f} to {change.high:+.3f})")
        lines.append([arm, *cells])
    header = ["size", *(f"{length} times" for length in times[1:]), "bits if levelled"]
    return f"{markdown(header, lines)}\n\n{source(f'{study}/heads.json')}"


def levelled_recall(study: str) -> str:
    """Return by how many points levelled heads change the right answers, by test and distance.

    At the longest length, means over seeds with 95 % intervals; the size of what heads give there
    over that within training, the geometric mean over layers and seeds.
    """
    changes = recall_tests.changes_by_levelling(study)
    columns = [*next(iter(changes.values()))]
    lines = []
    for arm, cells in changes.items():
        by_column = (cells[column] for column in columns)
        told = [f"{one.mean:+.1f} ({one.low:+.1f} to {one.high:+.1f})" for one in by_column]
        lines.append([arm, f"{recall_tests.growth(study, arm):.2f}", *told])
    table_of = markdown(["points if levelled", "size", *columns], lines)
    return f"{table_of}\n\n{source(f'{study}/levelled.json')}"


def searched(study: str) -> str:
    """Return the mean accuracy in % of the runs of a search, by arm and learning rate, at every
    length from that of training on.
    """
    path = f"{study}/search-beyond.json"
    by_cell: dict[tuple[str, float, int], list[float]] = {}
    for row in load(path)["rows"]:
        cell = (row["arm"], row["rate"], row["length"])
        by_cell.setdefault(cell, []).append(100 * row["accuracy"])
    rates = sorted({rate for _, rate, _ in by_cell})
    lengths = sorted({length for _, _, length in by_cell})
    lines = []
    for arm in study_of(study).arms:
        cells = []
        for rate in rates:
            means = [np.mean(by_cell[arm, rate, length]) for length in lengths]
            cells.append(", ".join(f"{mean:.1f}" for mean in means))
        lines.append([arm, *cells])
    return f"{markdown(['rate', *(f'{rate:g}' for rate in rates)], lines)}\n\n{source(path)}"


def scaling_stopped(study: str, far: str = "") -> str:
    """Return what stopping the scaling of decays at T changes, in points of accuracy, by length.

    far=yes: of the queries alone that are more than half of the length behind their pair.
    """
    path = f"{study}/scaling-off.json"
    lines: dict[str, dict[int, list[float]]] = {}
    for row in load(path)["rows"]:
        shares = row["far"] if far else row
        change = 100 * (shares["stops"] - shares["goes_on"])
        lines.setdefault(row["arm"], {}).setdefault(row["length"], []).append(change)
    shortest = min(min(by_length) for by_length in lines.values())
    cells = {}
    for arm, by_length in lines.items():
        cells[arm] = [
            f"{_plus_minus(changes, '+')} ({min(changes):+.1f} to {max(changes):+.1f})"
            for length, changes in by_length.items()
            if length > shortest
        ]
    header = ["change", *(f"{times} times" for times in TIMES_TRAINED[1:])]
    return f"{markdown(header, [[arm, *row] for arm, row in cells.items()])}\n\n{source(path)}"


def forest_table() -> str:
    """Return the table behind the forest."""
    header = ["group", "what", "validation", "test", "seeds", "record"]
    return markdown(header, forest.markdown_rows(forest.table()))


def minima_table() -> str:
    """Return starts against log-spaced half-lives in every study of curves."""
    return markdown(minima.HEADER, minima.table_rows())


SAME = 0.1
"""Octaves between kernels of one start that is trained in several ways; in bfloat16 it is rounded.
"""


@cache
def converging() -> str:
    """Return the spread over starts of half-lives and kernels in every record that has them."""
    lines = []
    for (name, block), starts in blocks().items():
        some = {arm: memories for arm, memories in starts.items() if not arm.startswith("quantile")}
        for of in (starts, some) if len(some) < len(starts) else (starts,):
            few = {arm: memories for arm, memories in of.items() if not arm.startswith("short")}
            spreads = [
                *convergence(of),
                *([convergence(few)[1]] if 1 < len(few) < len(of) else []),
            ]
            if spreads[1].before < SAME:
                continue
            told = [f"{one.before:.2f} to {one.after:.2f} ({one.seeds:.2f})" for one in spreads]
            where = block if of is starts else f"{block}, without quantile"
            lines.append([name, where, str(len(of)), *told, *[""] * (3 - len(told))])
    return markdown(
        ["record", "block", "starts", "half-lives", "kernel", "kernel without short"], lines
    )


def coverage() -> str:
    """Return the share of intervals that cover what is known, for two estimators."""
    rows = load("measure/coverage.json")["rows"]
    for row in rows:
        for one in row["methods"].values():
            one.update(mean=np.mean(one["covered"]), least=min(one["covered"]))
        row["length"] = ", memory as long as a block" * row["limit"]
    part = "{{methods[{0}][mean]:.0%}} ({{methods[{0}][least]:.0%}})".format
    ends = "{{methods[{1}][exponents][{0}][covered]:.0%}}".format
    cells = {f"I(d), `{name}`": part(name) for name in ("shuffle", "jackknife")}
    cells |= {
        f"beta, {lags}": f"{ends(lags, 'shuffle')} → {ends(lags, 'jackknife')}"
        for lags in ("1..100", "100..1000")
    }
    return table(
        "measure/coverage.json", "intervals of 95 % cover in", "{process}{length}", cells, rows
    )


def minimax() -> str:
    """Return the least largest relative error of some numbers of terms."""
    lags, terms = (512, 2048, 65536, 10**6), (4, 6, 8, 10, 12, 16)
    rows = [
        row
        for row in load("minimax/table.json")["rows"]
        if row["max_lag"] in lags and row["terms"] in terms
    ]
    rows = [row for row in rows if row["beta"] == 1.15]
    return table(
        "minimax/table.json", "t^-1.15 on 1..T", "{max_lag:,}", {"K = {terms}": "{error:.1e}"}, rows
    )


def operator(name: str) -> str:
    """Return an operator beside its peers: times, errors under strong decays and peak memory."""
    found = load(f"bench/{name}.json")
    strong = "memory_shape" in found
    unit, size, error = (
        ("MB", 1e6, "strong_error") if strong else ("tensors of the shape of an input", 1, "error")
    )
    cells = {"{shape}": "{ratio[median]:.1f}", "error at {shape}": f"{{{error}:.0e}}"}
    peaks = "; ".join(f"{peer} {peak / size:.0f}" for peer, peak in found["memory"].items())
    note = f"Peak memory in {unit}: {peaks}."
    return f"{table(f'bench/{name}.json', 'time over ours', '{contender}', cells)}\n\n{note}"


def host() -> str:
    """Return the CPU time of small calls, in microseconds and in times of `linear`."""
    cells = {}
    for part, title in {"forward": "forward", "both": "forward and backward"}.items():
        cells[f"{title}, us"] = f"{{microseconds[{part}]:.0f}}"
        median, low, high = (f"{{{part}[ratio][{one}]:.1f}}" for one in ("median", "low", "high"))
        cells[f"{title}, times linear (quartiles)"] = f"{median} ({low} to {high})"
    rows = load("bench/host.json")["rows"]
    for row in rows:
        row["microseconds"] = {
            part: 1e6 * row[part]["seconds"]["median"] for part in ("forward", "both")
        }
    return f"{table('', 'call', '{contender}', cells, rows)}\n\n{source('bench/host.json')}"


def waits() -> str:
    """Return the seconds that commands take, from start to end."""
    cells = {"{time}, seconds (quartiles)": "{median:.1f} ({low:.1f} to {high:.1f})"}
    return table("bench/waits.json", "command", "{command}", cells)


def threads(*names: str) -> str:
    """Return how much faster two threads are than one, from several records."""
    rows = [row for name in names for row in load(f"bench/{name}.json")["threads"]]
    for row in rows:
        row["beside"] = ", beside a busy process" * row["neighbours"]
    cells = {
        "{processor}{beside}": "{speedup[median]:.2f} ({speedup[low]:.2f} to {speedup[high]:.2f})"
    }
    return table("", "two threads, times as fast as one (quartiles)", "{work}", cells, rows)


def half_lives(study: str) -> str:
    """Return median and longest half-life of the arms of a study, at the start and at the end in
    both blocks.
    """
    lines, read = [], study_of(study)
    for arm, memories in (pair for of in groups(read).values() for pair in of.items()):
        before, after = (
            np.exp(np.log(one.half_lives[..., [3, 6]]).mean(axis=0)) for one in memories
        )
        costs = [run.result.truncation_cost(32) for run in read.finished(arm) if run.result]
        measured = [cost for cost in costs if cost is not None]
        given = None
        if len(measured) == len(costs):
            given = f"{np.mean(measured):.3f} ({targets(study, arm):,})"
        lines.append(
            {"arm": arm.replace("_", ", "), "before": before, "after": after, "lost": given}
        )
    pair = "{{{0}[{1}][0]:.1f}}, {{{0}[{1}][1]:,.0f}}".format
    cells = {
        f"{at}, block {block + 1}": pair(at, block)
        for at in ("before", "after")
        for block in (0, 1)
    }
    return table(
        "",
        "median and longest half-life",
        "{arm}",
        cells | {"lost with 32 bytes (targets)": "{lost}"},
        lines,
    )


STORAGES = {"bfloat16": "bfloat16", "float16": "float16", "stochastic": "bfloat16, stochastic"}
"""Ways to store a state, as pages name them and as the records do."""
STATE_TABLES = (
    "state-precision/table.json",
    "state-precision-gdn/table.json",
    "state-precision-gdn-own/table.json",
)
"""Records on stored states, in the order in which they were declared."""


def stored_states(storage: str) -> str:
    """Return losses with a stored state minus those in float32, by position in contexts."""
    rows = [
        row
        for file in STATE_TABLES
        for row in load(file)["rows"]
        if row["storage"] == STORAGES[storage]
    ]
    line = "{condition}, {text}"
    return table("", f"{storage} minus float32", line, {"{positions}": PAIRED}, rows)


LOSS_COLUMNS = ("validation", "dense, within", "dense, 8-16", "sparse, within", "sparse, 8-16")
"""Losses of initialisations that have a column; the figure has the others."""


def state_losses() -> str:
    """Return losses in float32 of gated delta nets minus those of the log-spaced one."""
    losses = load("state-precision-gdn-own/table.json")["losses"]
    rows = [row for row in losses if row["where"] in LOSS_COLUMNS]
    title = f"bits per byte minus {rows[0]['baseline']}"
    return table("", title, "{condition}", {"{where}": PAIRED}, rows)


def state_verdicts() -> str:
    """Return the hypotheses on stored states and what became of them."""
    hypotheses = [one for file in STATE_TABLES for one in load(file)["hypotheses"]]
    lines = []
    for one in hypotheses:
        words = one["name"].removeprefix(f"{one['family']}: ")
        verdict = f"**{one['verdict']}**"
        lines.append([one["family"], words, PAIRED.format(**one), verdict])
    tests = " or ".join(dict.fromkeys(one["test"] for one in hypotheses))
    header = ["where", "hypothesis", f"bits per byte, 90 % interval by {tests}", "verdict"]
    sources = "\n\n".join(source(file) for file in STATE_TABLES)
    return f"{markdown(header, lines)}\n\n{sources}"


def transfer() -> str:
    """Return the best learning rate of every width, under two parametrisations."""
    best = load("mup/transfer.json")["best"]
    rows = [
        {"scheme": name, "width": width} | one
        for name, of in best.items()
        for width, one in of.items()
    ]
    cells = {"width {width}": "2^{log2_rate:.2f} ({bits_per_byte:.3f})"}
    return table("mup/transfer.json", "best learning rate (bits per byte)", "{scheme}", cells, rows)


def saturation() -> str:
    """Return the logits of RWKV-6 from two starts, beside those of a published ablation."""
    found = load("saturation/table.json")
    columns = {
        f"{arm}, step {of[at]['step']}": of[at]
        for arm, of in found["arms"].items()
        for at in ("start", "end")
    }
    columns |= {f"published {arm}": found["published"][arm] for arm in ("official", "naive")}
    body = [
        [name, *(FORMAT(cell, **of) for of in columns.values())] for name, cell in LOGITS.items()
    ]
    return f"{markdown(['RWKV-6', *columns], body)}\n\n{source('saturation/table.json')}"


LOGITS = {
    "loss, nats": "{loss:.2f}",
    "smallest logit": "{logit_min:.1f}",
    "largest logit": "{logit_max:.1f}",
}
LOGITS |= {"largest probability": "{peak_probability:.3f}", "entropy, nats": "{entropy:.2f}"}
LOGITS |= {
    "saturated positions": "{saturated_share:.1%}",
    "amplification per block": "{amplification:.2f}",
}
LENGTHS = {
    f"{size} MB": PAIRED.replace(":", f"[{at}]:")
    for at, size in enumerate(("0.4", "2.0", "8.2", "16.4"))
}
LENGTHS["16.4 MB, test text"] = PAIRED.replace("{", "{test[").replace(":", "]:")
LENGTHS["falls as bytes^-p, p"] = "{exponent[at]:.2f} ({exponent[low]:.2f} to {exponent[high]:.2f})"
DOSES = {"best exponent": "{best[at]:.2f}", "95 % interval": "{best[low]:.2f} to {best[high]:.2f}"}
DOSES["on test text"] = "{test[at]:.2f} ({test[low]:.2f} to {test[high]:.2f})"
DOSES |= {
    f"of the {name}": f"{{expected[of the {name}]:.2f}}"
    for name in ("best predictor", "information")
}
RANGE = "{{fits[{0}][beta]:.2f}} ({{fits[{0}][low]:.2f}} to {{fits[{0}][high]:.2f}})".format
TEXTS = {"1..100": RANGE(1), "1..500": RANGE(0), "100..1000": RANGE(2)}
TEXTS |= {"stands out": "{verdict[first_lag]}..{verdict[last_lag]}: {verdict[kind]}"}
TEXTS |= {
    "equal weights": (
        "{equal_weights[beta]:.2f} ({equal_weights[low]:.2f} to {equal_weights[high]:.2f})"
    )
}
TEXTS |= {"published, every lag": "{fits[5][beta]:.2f}", "log-spaced": "{fits[6][beta]:.2f}"}
OBSERVED = {
    kind: f"{{{kind}[0]:.1f}}, {{{kind}[1]:.1f}}, {{{kind}[2]:,.1f}}"
    for kind in ("static", "observed")
}
GALLERY = {
    "half-lives, steps": (
        "{initialisation[half_lives][0]:.4g} to {initialisation[half_lives][1]:.4g}"
    )
}
GALLERY |= {
    "slope, lags 4..512": "{slope:.2f}",
    "rms slope": "{slope_rms:.2f}",
    "Elog": "{scores[e_log]:.2f}",
}
GALLERY |= {"layer": "{initialisation[family]}"}
STEP = {
    "parameters": "{parameters:,}",
    "bytes/s": "{bytes_per_second:,.0f}",
    "time over ours": "{ratio[median]:.2f}",
}
CHIP = "{registers}, {spilled}, {occupancy:.0%}"
TAKEN = {
    "registers": "{registers}",
    "bytes spilled": "{spilled}",
    "bytes of shared memory": "{shared:,}",
    "programs at a time": "{programs}",
}
GPU = {"{problem} time over ours": "{ratio[median]:.2f}", "{problem} per second": "{rate:.2e}"}
GPU |= {"{problem} error": "{error:.0e}"}
TIMES = {
    "variants": {"{contender}": "{forward:.0f}, {both:.0f}"},
    "peers": {"{contender}": "{forward:.0f}, {both:.0f}", "{contender}, error": "{error:.1e}"},
    "chunks": {"{contender}": "{forward:.0f}, {both:.0f}"},
    "forms": {
        "{contender}": "{forward_device:.0f}, {both_device:.0f}",
        "{contender}, host": "{forward_host:.0f}, {both_host:.0f}",
    },
}
MODES = {"{mode}": "{milliseconds:.1f}", "{mode}, of the products": "{share:.0%}"}
COUNTS = {
    "work": "{work}",
    "MB per second and lag": "{rate:,.0f}",
    "time over ours": "{ratio[median]:.1f}",
}

PARTS: dict[str, Callable[..., str]] = {
    "forest": forest_table,
    "minima": minima_table,
    "declared": declared,
    "differences": differences,
    "half-lives": half_lives,
    "source": source,
    "convergence": converging,
    "widths": transfer,
    "observed": lambda: table(
        "decays-train/observed.json",
        "5, 50 and 95 % of half-lives",
        "{model}, block {block}, {arm}",
        OBSERVED,
    ),
    "saturation": saturation,
    "coverage": coverage,
    "minimax": minimax,
    "operator": operator,
    "host": host,
    "waits": waits,
    "threads": threads,
    "step": lambda of: table(f"bench/{of}.json", "training step", "{contender}", STEP),
    "gpu": lambda of: table(f"bench/h200/{of}.json", "contender", "{contender}", GPU),
    "device": lambda of: table(f"bench/h200/{of}.json", "problem", "{problem}", TIMES[of]),
    "lost": lambda: table(
        "",
        "error",
        "{problem}",
        {"{contender}": "{error:.1e}"},
        load("bench/h200/forms.json")["errors"],
    ),
    "state": stored_states,
    "state-losses": state_losses,
    "state-verdicts": state_verdicts,
    "steps": lambda of: table(f"bench/h200/{of}.json", "model", "{model}, {size}", MODES),
    "compiled": lambda: table("bench/compiled.json", "kernel", "{kernel}", {"sm_{chip}": CHIP}),
    "chip": lambda of: table(
        "bench/chip.json", "kernel", "{kernel}", TAKEN, load("bench/chip.json")[of]
    ),
    "counts": lambda: table("bench/mi.json", "counting pairs of bytes", "{contender}", COUNTS),
    "texts": lambda: table(
        "measure/texts.json", "text", "{corpus[name]}", TEXTS, load("measure/texts.json")["texts"]
    ),
    "stability": lambda: table(
        "measure/stability.json", "beta", "{corpus}", {"{estimator}": "{beta:.2f}"}
    ),
    "gallery": lambda: table(
        "",
        "initialisation",
        "{initialisation[name]}",
        GALLERY,
        load("gallery/gallery.json")["entries"],
    ),
    "doses": best_exponents,
    "exponents": exponents,
    "recall": recall,
    "recall-by": recall_by,
    "recall-leads": recall_leads,
    "by-position": by_position,
    "reading-on": reading_on,
    "post-far": lambda: markdown(*post_parts.far_leads()),
    "post-text": lambda: markdown(*post_parts.reading_on()),
    "heads": heads,
    "levelled-recall": levelled_recall,
    "searched": searched,
    "scaling-stopped": scaling_stopped,
    "lengths": at_lengths,
    "corners": lambda: table(
        "", "at", "{what}", {"{arm}": PAIRED}, load("memory-length/length.json")["corners"]
    ),
}
"""What a marker may name: NAME and what it is called with."""


def render(text: str) -> str:
    """Return a document with its tables and the numbers in its sentences from the records."""

    def part(match: re.Match[str]) -> str:
        name, *given = match[2].split()
        return f"{match[1]}{PARTS[name](*given)}\n{match[3]}"

    return fill(PART.sub(part, text))


def dose_figure() -> Figure:
    """Draw the worth of short half-lives over their share of the channels, and, up to 8 bytes, over
    bytes read.

    Differences to half-lives up to 2,000 bytes under the same gain on the windows of the curves,
    with 95 % t intervals. The last series is the EMA baseline at the rate of memory-text, whose
    runs read the same bytes from the same start.
    """
    study, other = (study_of(f"memory-{name}") for name in ("shortness", "text"))
    series = {"EMA, own scale": "_ema", "EMA, scale of the baseline": "-matched_ema", "LRU": "_lru"}
    series["EMA baseline at 1.13e-2"] = ""
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.6))
        early, late, over = figure.subplots(1, 3, sharey=True)
        for look, (name, tail) in enumerate(series.items()):
            doses = np.array([256, 32, 8, 4] if tail else [2000])
            arms = (
                [study.curves(f"{one}{tail}") for one in doses]
                if tail
                else [other.curves("log-spaced_ema")]
            )
            base = study.curves("2000_lru" if name == "LRU" else "2000_ema")
            bands = [pointwise_band([*difference_curves(arm, base).values()]) for arm in arms]
            mean, low, _ = (
                np.array(ends) for ends in zip(*(band[1:] for band in bands), strict=True)
            )
            read, up_to_8 = bands[0].at[1:] / 1e6, min(2, len(bands) - 1)
            shares, bars = np.log(4) / np.log(doses) + 0.012 * look, mean - low  # beside each other
            kind = {"lw": 1.2, "elinewidth": 0.8, "capsize": 2, **line_style(look)}
            for axes, at in ((early, 1), (late, -1)):
                axes.errorbar(
                    shares, mean[:, at], bars[:, at], marker="" if tail else "o", ms=4, **kind
                )
                axes.set(
                    title=f"after {bands[0].at[at] / 1e6:.0f} MB",
                    xlabel="share of channels under 4 bytes",
                )
            over.errorbar(read + 0.06 * look, mean[up_to_8, 1:], bars[up_to_8, 1:], **kind)
        for axes in (early, late, over):
            axes.axhline(0.0, color=INK, lw=0.6)
        early.set_ylabel("bits per byte minus longest 2,000")
        over.set(title="half-lives up to 8 bytes", xlabel="training bytes read (MB)")
        legend_below(figure, [*series])
    return figure


EXPECTED = {
    "best for the model": "-",
    "of the best predictor": "--",
    "of the information": ":",
    "half of that": "-.",
}
"""Exponents that stand as vertical lines in a figure, and their dashes."""


def best_figure() -> Figure:
    """Draw the worth of the exponents of memory-dose at the end, and what one may expect of them.

    Points: means over seeds; thin: seeds; their parabola; vertical: exponents; shaded: the interval
    of the best one by Fieller.
    """
    levels = np.array([float(one) for one in EXPONENTS])
    between = np.linspace(levels[0], levels[-1], 100)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, 6.4))
        panels = figure.subplots(3, 2, sharex=True, sharey=True)
        at_the_end = [row for row in load("memory-dose/best.json")["rows"] if row["step"] is None]
        for axes, row in zip(panels.flat, at_the_end, strict=True):
            values = worth_of_exponents(row["corpus"], row["decays"], "final_val_bpb")
            best = lowest(levels, values)
            axes.plot(levels, values.T, color=INK, lw=0.5, alpha=0.4)
            axes.plot(levels, values.mean(axis=0), "o", ms=4, color=INK)
            parabola = np.polyfit(levels, values.mean(axis=0), 2)
            axes.plot(between, np.polyval(parabola, between), color=INK, lw=1.2)
            axes.axhline(0.0, color=INK, lw=0.6)
            ends = (-9.0 if best.low is None else best.low, 9.0 if best.high is None else best.high)
            axes.axvspan(*ends, color=INK, alpha=0.08, lw=0)
            places = {"best for the model": best.at} | row["expected"]
            lines = [
                axes.axvline(places[name], color=line_style(look)["color"], ls=dashes, lw=1.3)
                for look, (name, dashes) in enumerate(EXPECTED.items(), 1)
            ]
            axes.set(title=f"{row['corpus']}, decays {row['decays']}", xlim=(0.0, 1.7))
        for axes in panels[-1]:
            axes.set_xlabel("exponent")
        for axes in panels[:, 0]:
            axes.set_ylabel("bits per byte minus uniform")
        figure.legend(lines, [*EXPECTED], loc="outside lower center", ncols=4)
    return figure


def exponents_figure() -> Figure:
    """Draw what exponents of the projection are worth on every text of beta-sweep, and on all."""
    texts = [text["text"] for text in load("beta-sweep/texts.json")["texts"]]
    groups = {}
    for title, (arm, against) in CONTRASTS.items():
        rows = []
        for text in [*texts, "mean"]:
            ending = "" if text == "mean" else f"_{text}"
            found = paired("beta-sweep", arm + ending, against + ending)
            holds = found.low > 0 or found.high < 0
            label = SPELT.get(text, text.capitalize())
            rows.append(ForestRow(label, found, list(found.per_seed.values()), holds))
        groups[title] = rows
    return forest_of_rows(groups, "difference in bits per byte, below 0 is better")


class Reach(NamedTuple):
    """A panel of the figure of reach: a model, where copies lie, and the half-lives it began with.

    ending   what follows the longest half-life at initialisation in the names of the arms
    longest  those half-lives, in bytes
    early    step of the early differences
    """

    title: str
    study: str
    ending: str
    nearest: int
    farthest: int
    longest: tuple[int, ...]
    early: str

    def change(self, longest: int, at: str) -> PairedDifference:
        """Return the loss of an arm minus that with half-lives up to the farthest copy."""
        arm = f"{longest}{self.ending}"
        against = f"{self.farthest}{self.ending}"
        return paired(self.study, arm, against, at)


REACHES = (
    Reach("SSM", "reach", "_ssm", 64, 256, (16, 64, 1024), "200"),
    Reach("RWKV-7", "reach", "_goose", 64, 256, (16, 64, 1024), "200"),
    Reach("Mamba-2", "reach", "_mamba2", 64, 256, (16, 64, 1024), "200"),
    Reach("SSM of 256 channels, slow rate", "reach-wide", "_slow", 64, 256, (16, 64), "200"),
    Reach("SSM of 256 channels, fast rate", "reach-wide", "_fast", 64, 256, (16, 64), "200"),
    Reach("SSM, farther copies", "reach-far", "", 512, 2048, (32, 128, 512), "1000"),
    Reach("RWKV-7, farther copies", "reach-far-goose", "", 512, 2048, (32, 512), "375"),
)


def reach_figure() -> Figure:
    """Draw what the longest half-life at initialisation is worth, against the farthest copy's.

    Differences with 95 % t intervals over seeds, early and at the end; grey: where the copies lie.
    """
    with style():
        rows = math.ceil(len(REACHES) / 2)
        figure = Figure(figsize=(PAGE_WIDTH, 0.4 + 1.95 * rows))
        panels = figure.subplots(rows, 2, sharey=True)
        for surplus in panels.flat[len(REACHES) :]:
            surplus.remove()
        for axes, reach in zip(panels.flat, REACHES, strict=False):
            axes.axvspan(reach.nearest, reach.farthest, color=INK, alpha=0.08, lw=0)
            axes.axhline(0.0, color=INK, lw=0.6)
            for look, at in enumerate((reach.early, "final_val_bpb")):
                found = [reach.change(one, at) for one in reach.longest]
                beside = np.array(reach.longest) * (1.0 + 0.15 * look)
                axes.errorbar(
                    beside,
                    [one.mean for one in found],
                    [one.mean - one.low for one in found],
                    marker="o",
                    ms=4,
                    lw=0.8,
                    capsize=2,
                    **line_style(look),
                )
            axes.set_xscale("log", base=2)
            axes.set_xticks(reach.longest, [f"{one:,}" for one in reach.longest])
            axes.minorticks_off()
            axes.set(title=f"{reach.title}, minus up to {reach.farthest:,}")
        for axes in panels.flat[: len(REACHES)][-2:]:  # the lowest of each column
            axes.set_xlabel("longest initial half-life (bytes)")
        for axes in panels[:, 0]:
            axes.set_ylabel("bits per byte, difference")
        legend_below(figure, ["early", "at the end"])
    return figure


def starts_figure(name: str) -> Figure:
    """Draw the losses of the arms of a study minus that of the baseline over bytes read."""
    study, paired = study_of(name), {}
    base = study.curves(str(study.baseline))
    for arm in (arm for arm in study.arms if arm != study.baseline):
        paired[f"{arm} minus {study.baseline}"] = [
            *difference_curves(study.curves(arm), base).values()
        ]
    return difference_figure(paired)


if __name__ == "__main__":
    for document in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        document.write_text(render(document.read_text()))
    text, lags, markov = (groups(study_of(f"memory-{name}")) for name in ("text", "lags", "markov"))
    panels = {"Source code, EMA": text["ema"], "Source code, LRU": text["lru"]}
    panels |= {"Lags, 0.7": lags["lags-0.7"], "Markov chain": markov[""]}
    figures = {
        "convergence/kernels": learnt_kernels_figure(panels),
        "memory-shortness/dose": dose_figure(),
        "memory-dose/best": best_figure(),
        "beta-sweep/exponents": exponents_figure(),
    }
    figures |= {f"{one}/starts": starts_figure(one) for one in ("models-goose", "models-mamba2")}
    of_recall = ("post", "capacity", "far", "far-fast", "mamba2", "mamba2-held", "mamba2-weighted")
    for name in of_recall:
        figures[f"recall-{name}/recall"] = recall_tests.figure(f"recall-{name}")
    for one in ("post-text", "post-text-mamba2", "post-text-weighted"):
        figures[f"{one}/losses"] = long_windows.figure(one)
    figures["recall-far/parts"] = post_parts.far_figure()
    figures["recall-mamba2-weighted/trade"] = trade.figure()
    for one in (*minima.CURVES, *minima.OTHER_MODELS):
        curves = rate_figure(curve_results(study_of(one)), "bits per byte")
        assert curves is not None
        figures[f"{one}/curves"] = curves
    figures["rates/ends"] = minima.figure()
    figures["reach/reach"] = reach_figure()
    figures["forest/forest"] = forest.figure()
    save_json(RECORDS / "forest/table.json", forest.table())
    for name, figure in figures.items():
        for kind, content in rendered(figure, ("png", "svg")).items():
            (RECORDS / f"{name}.{kind}").write_bytes(content)
