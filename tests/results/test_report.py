"""The comparison, its words, page and figures: what is said first, what is warned of, what is drawn."""

import itertools
import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import BASELINE, CORPUS, REFERENCE, change, save, write_study

from plkernel.analysis.figures import style
from plkernel.analysis.figures.style import COLOURS
from plkernel.commands.report import report, write_comparison
from plkernel.common import cli
from plkernel.models import NOT_CAUSAL
from plkernel.results import figures
from plkernel.results.comparison import Comparison, compare
from plkernel.results.figures import Drawing, ForestRow, difference_limits, drawings, forest, forest_limits, memories
from plkernel.results.page import WIDTH, text_report
from plkernel.results.statistics import (
    detectable_difference,
    holm,
    mean_interval,
    paired_difference,
    pointwise_band,
    simultaneous_band,
)
from plkernel.results.study import read_study
from plkernel.results.text import overview, p_text, verdict, warnings

MINUS = "\N{MINUS SIGN}"
HOSTILE = "<script>alert('&')</script>$x$ \u202e"
RECORDS = Path(__file__).parents[2] / "runs/records"
NONE: dict[str, float] = {BASELINE: 0.0, "a": 0.0, "b": 1e-5}


def of(folder: Path) -> Comparison:
    return compare(read_study(folder))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take most of the time of a report; where words and tables are read, sections have empty ones."""
    empty = [Drawing(name, name, "", f"figure of {name}.", None) for name in ("decided", "curves")]  # type: ignore[arg-type]
    monkeypatch.setattr(figures, "drawings", lambda comparison: empty)
    monkeypatch.setattr(style, "rendered", lambda figure: {"svg": b"<svg></svg>", "png": b"", "pdf": b""})


class Page(HTMLParser):
    """Tags, text and headings of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.source = "", path.read_text()
        self.feed(self.source.partition("<body>")[2])
        self.text = " ".join(self.text.split()).replace(MINUS, "-")
        self.headings = re.findall(r"<h(\d)[^>]*>\s*(.*?)</h", self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"

    def values(self, name: str) -> list[str]:
        return [str(attributes[name]) for _, attributes in self.tags if name in attributes]


# The comparison


def test_unequal_steps_are_compared_at_the_last_step_in_common(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "long", steps=60)
    other = write_study(tmp_path / "short", steps=40) / "concentrated"
    for path in other.rglob("*.json*"):
        (folder / "concentrated" / path.relative_to(other)).write_bytes(path.read_bytes())
    one = of(folder)
    assert one.primary.key == "val_bpb_common_step"
    assert one["concentrated"].differences[one.primary.key].mean == pytest.approx(-0.05, abs=0.01)
    words = "Runs took unequal numbers of steps: final values favour whoever trained longer."
    assert any(text.startswith(words) and "the last step that all reached" in text for text in warnings(one))


def test_an_arm_may_name_another_than_the_baseline_and_p_counts_all(tmp_path: Path, undrawn: None) -> None:
    effects = {BASELINE: 0.0, "a": -0.05, "b": -0.06, "c": 0.002}
    spec = {"arms": {arm: {"against": "a"} if arm == "b" else {} for arm in effects}}
    one = of(write_study(tmp_path, seeds=range(4), effects=effects, spec=spec))
    assert [arm.name for arm in one.baselines] == [BASELINE, "a"]
    assert one["b"].differences["test_bpb"].mean == pytest.approx(-0.01, abs=0.01)
    assert one.corrected == holm({arm.name: arm.differences["final_val_bpb"].p_value for arm in one.others})
    assert f"b minus a {one.evidence['b'].difference.mean:+.4f}" in Page(write_comparison(one)).text


def test_known_effects_of_factors_are_found_and_others_are_not_claimed(blocked_study: Callable[..., Path]) -> None:
    """Published projections gain 0.1, and 0.06 more under ema; placement does nothing."""

    def effect(levels: Any, name: str) -> float:
        published = levels.get("projection") == "published"
        return -0.1 * published - 0.06 * (published and levels["model.gain"] == "ema")

    one = of(blocked_study(effect))
    likelihoods, every = one.effects
    assert (likelihoods.causal, every.causal, likelihoods.cells, every.cells) == (True, False, 8, 16)
    assert (likelihoods.left_out, likelihoods.fixed) == ({"patching": ("published",)}, {"patching": "bytes"})
    assert {likelihoods.title(each): each.difference.mean for each in likelihoods.surviving} == {
        "gain: ema - none": pytest.approx(-0.33, abs=0.01),
        "projection: published - uniform": pytest.approx(-0.13, abs=0.01),
        "projection: published - uniform x gain: ema - none": pytest.approx(-0.06, abs=0.015),
    }
    words = "Over the 8 combinations of placement, projection and gain, 3 of 6 main effects and interactions are"
    assert any(text.startswith(words) for text in overview(one))


def test_claims_about_nothing_are_as_rare_as_the_level_says(blocked_study: Callable[..., Path]) -> None:
    """Twelve studies of sixteen differences each, none of them real: some intervals exclude zero, no p survives."""
    studies = [of(blocked_study(lambda levels, name: 0.0, draw=draw)) for draw in range(12)]
    assert 2 <= sum(each.excludes_zero for one in studies for each in one.evidence.values()) <= 20
    assert sum(len(one.surviving) for one in studies) <= 3


# Words


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.1], "one seed: no interval, no claim"),
        ([0.1, math.nan], "a run has no finite value: no interval, no claim"),
        ([0.0, 0.0], "no difference in any of 2 seeds: the runs are identical"),
        ([0.1, -0.1], "the interval contains zero: no difference is shown with 2 seeds"),
        ([-0.1, -0.11, -0.1], "the interval excludes zero: lower than the baseline over 3 seeds"),
        ([0.1, 0.11, 0.1], "the interval excludes zero: higher than the baseline over 3 seeds"),
    ],
)
def test_verdicts_say_what_the_interval_allows(values: list[float], words: str) -> None:
    assert verdict(paired_difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))) == words


@pytest.mark.parametrize(
    ("study", "words"),
    [
        ({"seeds": range(4)}, "The difference is significant (4 seeds)."),
        ({"effects": {BASELINE: 0.0, "a": 0.0}}, "The difference is not significant (2 seeds)."),
        ({"effects": NONE}, "Neither difference is significant (Holm-corrected, 2 seeds)."),
        ({"effects": {**NONE, "c": 0.0}}, "None of 3 differences is significant (Holm-corrected, 2 seeds)."),
        ({"seeds": [0]}, "No arm shares two seeds with the arm it is compared with: no interval, no claim."),
        (
            {"seeds": range(6), "effects": {BASELINE: 0.0, "a": -0.05, "b": 0.05, "c": -0.08}},
            "3 of 3 differences are significant (Holm-corrected, 6 seeds), 2 below the baseline and 1 above.",
        ),
    ],
)
def test_the_conclusion_comes_first(tmp_path: Path, study: dict[str, Any], words: str) -> None:
    one = of(write_study(tmp_path, **study))
    assert overview(one)[0] == words
    assert text_report(one).startswith(f"No hypothesis was declared before the runs.\n{words}\n")


def test_sentences_have_the_numbers_of_the_difference(tmp_path: Path) -> None:
    one = of(write_study(tmp_path, seeds=range(4), effects={BASELINE: 0.0, "a": -0.05, "none": 0.0}))
    difference, told = one["a"].differences["final_val_bpb"], overview(one)
    facts = "quick compares a and none with log-spaced: 4 seeds each, 312,345 parameters, 40 steps, 327.7 kB read of"
    assert told[1].startswith(facts)
    assert told[2].startswith(f"a: {difference.mean:+.4f} bits per byte against log-spaced (final validation), 95 %")
    assert f"{difference.low:+.4f} to {difference.high:+.4f}, n = 4, p " in told[2]
    assert f"corrected p {p_text(one.corrected['a'])}" in told[2].replace("p = ", "p ")
    assert told[2].endswith("the interval excludes zero: lower than the baseline over 4 seeds.")
    spreads = [each.difference.standard_deviation for each in one.evidence.values()]
    power = np.median([detectable_difference(sd, 4) for sd in spreads])
    assert f"finds a difference of {power:.2g} bits per byte 8 times in 10" in told[4]


def test_many_arms_are_counted_and_the_largest_named(blocked_study: Callable[..., Path]) -> None:
    def effect(levels: Any, name: str) -> float:
        leaks = -0.5 if levels["patching"] == "published" and name.startswith("wrong") else 0.0
        return -0.2 * (name == "concentrated_uniform_ema_bytes") + 0.1 * (name == "wrong-sign_none_bytes") + leaks

    one = of(blocked_study(effect))
    counts, compared, *named = overview(one)[:5]
    below = [one.evidence[name].difference.mean < 0 for name in one.surviving]
    leaks = [one.leaks(one[name]) for name in one.surviving]
    assert sum(leaks) >= 2
    assert leaks == sorted(leaks), "likelihoods come first although the leaking differences are larger"
    assert counts == (
        f"{len(below)} of 16 differences are significant (Holm-corrected, 8 seeds), {sum(below)} below the baseline "
        f"and {len(below) - sum(below)} above."
    )
    assert compared.startswith("audit compares 16 arms with log-spaced_uniform: 8 seeds each")
    assert [text.partition(":")[0] for text in named] == one.surviving[:3]
    assert named[0].startswith("concentrated_uniform_ema_bytes: -0.")


ARM, OTHER = "concentrated/seed-{}/{}.json", f"{BASELINE}/seed-0/{{}}.json"
FAULTS: list[tuple[list[str], dict[str, Any] | None, str]] = [
    ([ARM.format(0, "result")], {"causal": False}, f"concentrated: {NOT_CAUSAL}; a prediction sees part of its own"),
    (["references.json"], {"references": [REFERENCE]}, "worse on the validation windows than n-grams of order 2 (1."),
    (
        [ARM.format(1, "result")],
        {"final_val_bpb": None},
        "concentrated, seed 1: the loss is not finite, so the arm has",
    ),
    ([OTHER.format("config")], {"model": {"parameters": 1}}, "Arms differ in their number of parameters."),
    ([ARM.format(0, "result")], None, "Arms finished different seeds: their means are not comparable, their paired"),
    ([ARM.format(0, "result")], None, "1 of 4 runs are not finished; every figure covers the others only."),
    (
        [f"{BASELINE}/seed-{n}/result.json" for n in (0, 1)],
        None,
        "No run of the baseline log-spaced is finished: there",
    ),
    ([OTHER.format("environment")], {"commit": "other"}, "Runs come from different commits of the code."),
    ([OTHER.format("environment")], {"dirty": True}, "Some runs come from code that differs from its commit (dirty)."),
    ([OTHER.format("config")], {"corpus": {**CORPUS, "sha256": "0"}}, "Runs were trained on different bytes"),
    ([OTHER.format("result")], {"final_val_bpb": 9.0}, "The rows of log-spaced/seed-0 are not those of its result"),
    ([ARM.format(n, "config") for n in (0, 1)], {"train": {"context": 64}}, "concentrated: half or more of its half-l"),
]


@pytest.mark.parametrize(("names", "values", "words"), FAULTS)
def test_every_fault_is_warned_of_and_only_it(tmp_path: Path, names: list[str], values: Any, words: str) -> None:
    folder = write_study(tmp_path, state={"half_life_quantiles": [[900, 910, 920, 930, 940, 950, 960]]})
    assert warnings(of(folder)) == []
    for path in (folder / name for name in names):
        if values is None:
            path.unlink()
        elif path.exists():
            change(path, **values)
        else:
            save(path, values)
    told = warnings(of(folder))
    assert [text for text in told if words in text], told
    assert len(told) <= 2
    assert f"note: {told[0]}" in text_report(of(folder))


def test_rates_at_the_edge_and_n_grams_of_other_windows(tmp_path: Path) -> None:
    rates = {f"{arm}_rate-{rate}": rate for arm in (BASELINE, "concentrated") for rate in (0.1, 0.2)}
    folder = write_study(tmp_path, spec={"tuning": {"rates": [0.1, 0.2], "seeds": [0, 1]}}, causal=False)
    write_study(tmp_path / "tuning", effects=rates, spec={"baseline": next(iter(rates))})
    save(tmp_path / "references.json", {"references": [REFERENCE, {**REFERENCE, "corpus": {**CORPUS, "sha256": "0"}}]})
    edge = "learning rate 0.1 is at the edge of those tried, a better one may lie beyond."
    assert warnings(of(folder))[1:] == [f"log-spaced and concentrated: {edge}"]
    assert of(folder).references == []
    assert len(of(write_study(tmp_path)).references) == 1


# The page


CLAIMS = [
    {"name": "helps", "arm": "better", "claim": "lower", "margin": 0.01},
    {"name": "worse", "arm": "better", "claim": "higher"},
    {"name": f"hostile {HOSTILE.strip()}", "arm": "same", "claim": "equal", "margin": 1e-6},
]


@pytest.fixture
def declared_page(declared_study: Callable[..., Path], undrawn: None) -> Page:
    return Page(write_comparison(of(declared_study(CLAIMS, [{"name": "learnt", "arm": "base", "at_most": 9.0}]))))


def test_the_first_screen_says_what_was_decided(declared_page: Page) -> None:
    first = declared_page.text.partition("Design and runs")[2].partition("All comparisons in words")[0]
    assert first.index("Of 3 hypotheses declared in the spec: 1 confirmed, 1 refuted, 1 undecided.") < 100
    assert "1 of 1 gates passed. Not registered: nothing shows that the hypotheses came before the results (" in first
    claim = "helps better is lower than base by more than 0.01 bits per byte (validation at the end) confirmed -0.04"
    assert claim in first
    assert "worse better is higher than base (validation at the end) refuted -0.04" in first
    assert re.search(r"confirmed -0.04\d+ -0.\d+ to -0.\d+ 6 0.047 1 worse", first), "confirming before refuting"
    assert "6 1 0.047 hostile <script>alert('&')</script>$x$" in first
    assert re.search(
        r"learnt base at most 9 bits per byte \(validation at the end\), mean over seeds passed 2\.\d+ .* 6", first
    )
    assert '<td class="text confirmed">' in declared_page.source


def test_a_gate_that_is_not_passed_closes_the_study(declared_study: Callable[..., Path]) -> None:
    one = of(declared_study(CLAIMS, [{"name": "perfect", "arm": "base", "at_most": 0.1}]))
    printed = text_report(one)
    assert printed.startswith("The study cannot answer its 3 hypotheses declared in the spec: gate 'perfect' is not")
    assert "0 of 1 gates passed." in printed
    assert re.search(r"^perfect +not passed", printed, re.MULTILINE)


def test_every_number_of_a_leaking_arm_is_in_a_row_that_says_so(tmp_path: Path, undrawn: None) -> None:
    folder = write_study(tmp_path, effects={BASELINE: 0.0, "leaks": -0.05})
    for seed in (0, 1):
        change(folder / f"leaks/seed-{seed}/result.json", causal=False)
    page = Page(write_comparison(of(folder)))
    labelled = [NOT_CAUSAL in row for row in re.findall(r'<th scope="row">leaks(.*?)</th>', page.source)]
    assert len(labelled) >= 4
    assert labelled.count(False) == 1, "the list of options has no number"
    assert NOT_CAUSAL not in page.headings[0][1]
    printed = text_report(of(folder))
    assert f"significant (2 seeds), {NOT_CAUSAL}." in printed
    assert len(re.findall(r"^leaks \(not causal, ", printed, re.MULTILINE)) == 2
    assert NOT_CAUSAL in Page(write_comparison(of(write_study(tmp_path, causal=False)))).headings[0][1]


def test_the_tables_hold_the_numbers_of_the_comparison(tmp_path: Path, undrawn: None) -> None:
    folder = write_study(tmp_path, seeds=range(6))
    one, page = of(folder), Page(write_comparison(of(folder)))
    difference, estimate = one["concentrated"].differences["final_val_bpb"], one[BASELINE].estimates["test_bpb"]
    shown = f"{difference.mean:+.4f} {difference.low:+.4f} to {difference.high:+.4f}"
    assert f"concentrated {shown} {p_text(difference.p_value)}" in page.text
    assert " ".join(f"{value:+.4f}" for value in difference.per_seed.values()) in page.text
    assert f"{estimate.mean:.4f} ± {estimate.high - estimate.mean:.4f}" in page.text
    sections = ["What was decided", "Results", "Differences", "Curves", "Design and runs"]
    assert [title for _, title in page.headings[1:]] == sections
    assert re.search(re.escape(shown).replace(r"\ ", " +"), text_report(one))


def test_missing_runs_are_listed_with_their_errors(tmp_path: Path, undrawn: None) -> None:
    folder = write_study(tmp_path)
    change(folder / ARM.format(0, "result"), status="failed", error="<b>no memory</b>")
    (folder / ARM.format(1, "result")).unlink()
    page = Page(write_comparison(of(folder)))
    assert "Missing: 1 failed and 1 unfinished." in page.text
    assert "concentrated/seed-0 failed <b>no memory</b>" in page.text


def test_wide_tables_fit_a_terminal() -> None:
    printed = text_report(of(RECORDS / "memory-length"))
    tables = [part.splitlines() for part in printed.split("\n\n") if re.search("^-{20,}$", part, re.MULTILINE)]
    assert len(tables) >= 2
    assert max(len(line) for lines in tables for line in lines if line[:1] != "(") <= WIDTH
    assert "On the page only: " in printed


# Figures and files


def test_the_page_holds_every_figure_is_readable_aloud_and_hostile_names_stay_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = style.rendered
    monkeypatch.setattr(figures, "FOREST_FROM", 1)
    monkeypatch.setattr(style, "rendered", lambda figure: {**drawn(figure, ["svg"]), "pdf": b"pdf", "png": b"png"})
    arm, kernel = "<script>alert(1)<%2fscript>$x$", {"lags": [1, 2, 4, 8], "blocks": [[1, 0.5, 0.2, 0.1]]}
    spec = {"name": HOSTILE, "description": HOSTILE, "arms": {BASELINE: {}, arm: {"placement": HOSTILE}}}
    state = {"half_life_quantiles": [[1, 2, 3, 4, 5, 6, 7.0]], "kernel": kernel}
    folder = write_study(tmp_path, effects={BASELINE: 0.0, arm: -0.05}, spec=spec, state=state)
    for path in folder.rglob("config.json"):
        change(path, corpus={**CORPUS, "name": HOSTILE})
    for path in folder.rglob("result.json"):
        curve = {"given": [1, 2, 4], "bpb": [3.0, 2.5, 2.2]}
        change(path, truncation=curve, influence={"lags": [1, 2], "bits": [0.5, 0.1]})
    path = write_comparison(of(folder))
    names = ["forest", "convergence", "difference", "truncation", "influence", "kernels", "half-lives"]
    files = {f"{name}.{kind}" for name in names for kind in ("pdf", "png")}
    assert {one.name for one in path.parent.iterdir()} == files | {"report.html", "table.json", "rows.jsonl"}
    page, tags = Page(path), [tag for tag, _ in Page(path).tags]
    assert tags.count("svg") == len(names)
    assert len({attributes["aria-label"] for _, attributes in page.tags if attributes.get("role") == "img"}) == 7
    assert "script" not in tags
    assert page.text.count(arm) > 5
    assert len(page.values("id")) == len(set(page.values("id"))), "two figures share an id"
    assert set(re.findall(r"(?:url\(#|href=\"#)([^\")]+)", page.source)) <= set(page.values("id"))
    assert not re.search(r'(src|href)="(?!#)', page.source), "nothing comes from outside"
    assert "#1a1a1b" not in page.source.partition("<body>")[2], "the ink of a figure is that of the page"
    levels = [int(level) for level, _ in page.headings]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    tables = [tag for tag in tags if tag in ("table", "caption")]
    assert tables == ["table", "caption"] * (len(tables) // 2)
    assert all(page.values("aria-label"))


def test_figures_are_drawn_from_the_rows(tmp_path: Path) -> None:
    one = of(write_study(tmp_path, seeds=range(5)))
    convergence, difference = (drawing.figure for drawing in drawings(one))
    again = next(drawings(one)).figure
    assert style.rendered(convergence, ["pdf"]) == style.rendered(again, ["pdf"]), "the same study gives the same files"
    own, base = (one.study.curves(arm) for arm in ("concentrated", BASELINE))
    for axes, start in zip(convergence.axes, (1, 2), strict=True):
        thick = [line.get_xydata() for line in axes.lines if line.get_linewidth() == 1.5]
        for line, curves in zip(thick, (base, own), strict=True):
            mean = pointwise_band([*curves.values()])
            assert line == pytest.approx(np.column_stack([mean.at[start:] / 1e3, mean.mean[start:]]))
    assert convergence.axes[1].get_xlim() == pytest.approx((mean.at[-1] / 2e3, mean.at[-1] / 1e3))
    curves = [{at: curve[at] - base[seed][at] for at in curve} for seed, curve in own.items()]
    panel = difference.axes[0]
    assert panel.get_title("left") == f"concentrated\nminus {BASELINE}"
    for band, shape in zip((pointwise_band(curves), simultaneous_band(curves)), panel.collections, strict=True):
        edges = shape.get_paths()[0].vertices
        assert (edges[:, 1].min(), edges[:, 1].max()) == pytest.approx((band.low.min(), band.high.max()))
    low, high = difference_limits({"a": curves}, [pointwise_band(curves)])
    assert (low, high) == (-high, pytest.approx(panel.get_ylim()[1], rel=0.5))


def row(scale: float, holds: bool = True) -> ForestRow:
    values = [scale * value for value in (0.9, 1.0, 1.1)]
    return ForestRow(f"row {scale}", mean_interval(values), values, holds)


def test_a_forest_shows_seeds_means_and_intervals() -> None:
    near, none = [row(0.01), row(0.012, False), row(-0.011)], ForestRow("none", None, [], False)
    limits = forest_limits({"": near})
    assert forest_limits({"": [*near, row(5.0)]}) == limits, "a far row does not squeeze the others"
    assert limits[1] >= 0.0132
    assert forest_limits({"": [row(0.01), row(5.0)]})[1] > 5.0
    assert forest_limits({"": [none]}) == (-1e-3, 1e-3)
    axes = forest({"block": [*near, row(5.0), row(-5.0), none]}).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == ["", "row 0.01"]
    means = [line for line in axes.lines if line.get_marker() in "o<>"]
    assert [line.get_marker() for line in means] == ["o", "o", "o", ">", "<"]
    assert [line.get_markerfacecolor() == "none" for line in means] == [False, True, False, False, False]
    assert [COLOURS.index(line.get_color()) for line in means] == [1, 1, 0, 1, 0]
    assert [line.get_xdata()[0] for line in means][:3] == pytest.approx([0.01, 0.012, -0.011])
    assert " no common seed" in [text.get_text() for text in axes.texts]


def test_the_shaded_range_is_where_the_claim_holds(declared_study: Callable[..., Path]) -> None:
    claims = [{"name": kind, "arm": "better", "claim": kind, "margin": 0.01} for kind in ("lower", "higher", "equal")]
    axes = next(drawings(of(declared_study(claims)))).figure.axes[0]
    low, high = axes.get_xlim()
    drawn = [bar.get_x() + np.array([0, bar.get_width()]) for bar in axes.patches]
    assert np.array(drawn) == pytest.approx(np.array([[low, -0.01], [0.01, high], [-0.01, 0.01]]))


def test_memory_is_read_from_the_first_and_last_rows(tmp_path: Path, undrawn: None) -> None:
    state: dict[str, Any] = {"half_life_quantiles": [[1, 2, 4, 8, 16, 32, 640.0]] * 2}
    state["kernel"] = {"lags": [1, 4, 16, 64], "blocks": [[1.0, 4**-1.15, 16**-1.15, 64**-1.15]] * 2}
    folder = write_study(tmp_path, state=state)
    for path in folder.rglob("metrics.jsonl"):
        first, *rest = path.read_text().splitlines()
        earlier = json.loads(first) | {"half_life_quantiles": [[1, 2, 4, 5, 16, 32, 64.0]] * 2}
        path.write_text("\n".join([json.dumps(earlier), *rest, ""]))
    one = of(folder)
    assert memories(one, one[BASELINE])[0].exponents() == pytest.approx(np.full((2, 2), 1.15))
    text = Page(write_comparison(one)).text
    both = "1.15 ± 0.000 1.15 ± 0.000 5 (1 to 64) 8 (1 to 640)"
    assert f"log-spaced {both} concentrated {both}" in text


def test_the_command_keeps_a_record_and_leaves_records_as_they_are(
    tmp_path: Path, undrawn: None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, record = write_study(tmp_path / "study"), tmp_path / "record"
    report(folder, record)
    assert f"report: {folder / 'report/report.html'}" in capsys.readouterr().out
    kept = {path: path.read_bytes() for path in record.rglob("*") if path.is_file()}
    report(record)
    assert {path: path.read_bytes() for path in kept} == kept
    assert {path.name for path in record.iterdir()} == {"spec.json", "rows.jsonl", "page"}
    for name in ("report.html", "table.json"):
        assert (record / "page" / name).read_bytes() == (folder / "report" / name).read_bytes()
    with pytest.raises(ValueError, match=r"folder .*nowhere: no such file or folder"):
        report(tmp_path / "nowhere")


def test_no_finished_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_study(tmp_path)
    for path in list(folder.rglob("result.json")):
        path.unlink()
    with pytest.raises(SystemExit) as exit_info:
        cli.main(report, [str(folder)])
    assert exit_info.value.code == 2
    assert "holds no finished run (only unfinished), finish one first" in capsys.readouterr().err
    assert not (folder / "report").exists()
