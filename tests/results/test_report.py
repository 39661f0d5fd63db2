"""The comparison, its words and its page: what is said first, what is warned of, and what never becomes markup."""

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
from plkernel.commands.report import report, write_comparison
from plkernel.common import cli
from plkernel.common.layout import run_folder
from plkernel.models.words import NOT_CAUSAL
from plkernel.results import figures
from plkernel.results.comparison import Comparison, compare, complete_part, short_factor
from plkernel.results.figures import Drawing, ForestRow, change_of, difference_limits, drawings, forest_limits
from plkernel.results.page import text_report
from plkernel.results.statistics import (
    detectable_difference,
    holm,
    mean_interval,
    paired_difference,
    pointwise_band,
    simultaneous_band,
)
from plkernel.results.study import read_study
from plkernel.results.text import gram, overview, p_text, sentences, verdict, warnings

MINUS = "\N{MINUS SIGN}"
HOSTILE = "<script>alert('&')</script>$x$ \u202e"


def of(folder: Path) -> Comparison:
    return compare(read_study(folder))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take most of the time of a report; where words and tables are read, each section has an empty one."""
    empty = [Drawing(name, name, f"figure of {name}", "caption", None) for name in ("decided", "curves")]  # type: ignore[arg-type]
    monkeypatch.setattr(figures, "drawings", lambda comparison: empty)
    monkeypatch.setattr(style, "rendered", lambda figure: {"svg": b"<svg></svg>", "png": b"", "pdf": b""})


class Page(HTMLParser):
    """Tags, text, and the text of every heading and cell of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.headings: list[tuple[int, str]] = []
        self.text, self.source = "", path.read_text()
        self.feed(self.source)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append((int(tag[1]), ""))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += f" {data}"
        if self.open and re.fullmatch("h[1-6]", self.open[-1]):
            self.headings[-1] = (self.headings[-1][0], self.headings[-1][1] + data)


# The comparison


def test_arms_are_compared_seed_by_seed_in_every_measure(tmp_path: Path) -> None:
    one = of(write_study(tmp_path, seeds=(0, 1, 2)))
    assert [measure.key for measure in one.measures] == ["final_val_bpb", "best_val_bpb", "test_bpb", "val_bpb_step_20"]
    base, arm = one.arms
    assert (base.against, arm.against, base.differences) == (None, BASELINE, {})
    for measure in one.measures:
        values = arm.values[measure.key], base.values[measure.key]
        assert arm.differences[measure.key] == paired_difference(*values)
        assert arm.estimates[measure.key] == mean_interval(values[0].values())
    assert arm.differences["final_val_bpb"].mean == pytest.approx(-0.05, abs=0.01)


def test_unequal_steps_are_compared_at_the_last_step_in_common(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "long", steps=60)
    write_study(tmp_path / "short", steps=40)
    (tmp_path / "short" / "concentrated").rename(tmp_path / "moved")
    for path in sorted((folder / "concentrated").rglob("*.json*")):
        path.write_bytes((tmp_path / "moved" / path.relative_to(folder / "concentrated")).read_bytes())
    one = of(folder)
    assert one.primary.key == "val_bpb_common_step"
    assert one["concentrated"].differences[one.primary.key].mean == pytest.approx(-0.05, abs=0.01)
    words = "Runs took unequal numbers of steps (log-spaced 60; concentrated 40): final values favour whoever trained"
    assert any(text.startswith(words) for text in warnings(one))


def test_an_arm_may_name_another_than_the_baseline_and_p_counts_all(tmp_path: Path) -> None:
    effects = {BASELINE: 0.0, "a": -0.05, "b": -0.06, "c": 0.002}
    spec = {"arms": {arm: {"against": "a"} if arm == "b" else {} for arm in effects}}
    one = of(write_study(tmp_path, seeds=range(4), effects=effects, spec=spec))
    assert [arm.name for arm in one.baselines] == [BASELINE, "a"]
    assert one["b"].differences["test_bpb"].mean == pytest.approx(-0.01, abs=0.01)
    alone = {arm.name: arm.differences["final_val_bpb"].p_value for arm in one.others}
    assert one.corrected == holm(alone)
    evidence = one.evidence["a"]
    assert evidence.survives
    assert evidence.excludes_zero
    assert evidence.detectable == detectable_difference(evidence.difference.standard_deviation, 4)
    assert evidence.flips is not None
    assert evidence.flips.smallest_p == 1 / 8
    assert one.surviving[0] in ("a", "b")


def test_blocks_are_compared_within_themselves(blocked_study: Callable[..., Path]) -> None:
    one = of(blocked_study(lambda levels, name: 0.0, seeds=2))
    assert [part.title for part in one.blocks][:2] == ["gain none, patching bytes", "gain none, patching published"]
    assert [part.slug for part in one.blocks][:2] == ["-none-bytes", "-none-published"]
    assert [part.leaks for part in one.blocks] == [False, True] * 2
    assert all(part.baseline == part.arms[0].name and len(part.others) == 4 for part in one.blocks)
    assert {arm.against for arm in one.blocks[2].others} == {"log-spaced_uniform_ema_bytes"}
    assert one.short("log-spaced_published_ema_bytes") == "log-spaced_published"
    assert short_factor("model.gain", ["model.gain", "patching"]) == "gain"
    assert short_factor("model.dim", ["model.dim", "other.dim"]) == "model.dim"


LEVELS = {"a": ("1", "2"), "b": ("x", "y", "z"), "c": ("p", "q", "r")}


def test_the_complete_part_leaves_out_the_levels_that_are_missing() -> None:
    everything = set(itertools.product(*LEVELS.values()))
    assert complete_part(LEVELS, everything) == LEVELS
    without = {cell for cell in everything if cell[1] != "z" and cell[2] != "q"}
    assert complete_part(LEVELS, without) == {"a": ("1", "2"), "b": ("x", "y"), "c": ("p", "r")}
    assert complete_part(LEVELS, set()) is None


def test_known_effects_of_factors_are_found_and_others_are_not_claimed(blocked_study: Callable[..., Path]) -> None:
    """Published projections gain 0.1, and 0.06 more under ema; placement does nothing."""

    def effect(levels: Any, name: str) -> float:
        published = levels.get("projection") == "published"
        return -0.1 * published - 0.06 * (published and levels["model.gain"] == "ema")

    one = of(blocked_study(effect))
    likelihoods, every = one.effects
    assert (likelihoods.causal, every.causal) == (True, False)
    assert (likelihoods.left_out, likelihoods.fixed) == ({"patching": ("published",)}, {"patching": "bytes"})
    assert (likelihoods.cells, every.cells, every.left_out) == (8, 16, {})
    assert {likelihoods.title(each): each.difference.mean for each in likelihoods.surviving} == {
        "gain: ema - none": pytest.approx(-0.33, abs=0.01),
        "projection: published - uniform": pytest.approx(-0.13, abs=0.01),
        "projection: published - uniform x gain: ema - none": pytest.approx(-0.06, abs=0.015),
    }
    assert any(text.startswith("Over the 8 combinations of placement, projection and gain") for text in overview(one))
    assert any("3 of 6 main effects and interactions are significant" in text for text in overview(one))
    assert of(blocked_study(lambda levels, name: 0.0, seeds=1)).effects == []


def test_claims_about_nothing_are_as_rare_as_the_level_says(blocked_study: Callable[..., Path]) -> None:
    """Twelve studies of sixteen differences each, none of them real: some intervals exclude zero, no p survives."""
    studies = [of(blocked_study(lambda levels, name: 0.0, draw=draw)) for draw in range(12)]
    assert 2 <= sum(len(one.excluding) for one in studies) <= 20
    assert sum(len(one.surviving) for one in studies) <= 3


def test_costs_are_those_of_the_finished_runs(tmp_path: Path) -> None:
    folder = write_study(tmp_path)
    one = of(folder).cost()
    assert one is not None
    assert (one.runs, one.seconds, one.hours) == (4, 12.5, 50 / 3600)
    assert (one.core_hours, one.bytes_per_second) == (100 / 3600, 40 * 8192 / 12.5)
    assert of(folder).hardware == {"a processor, 2 threads": 4}
    change(run_folder(folder, BASELINE, 0) / "environment.json", hardware={"gpu": "a card"}, threads=None)
    assert of(folder).cost(BASELINE).core_hours is None  # type: ignore[union-attr]


def test_no_finished_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_study(tmp_path)
    for path in folder.rglob("result.json"):
        path.unlink()
    with pytest.raises(SystemExit) as exit_info:
        cli.main(report, [str(folder)])
    assert exit_info.value.code == 2
    assert "holds no finished run (only unfinished), finish one first" in capsys.readouterr().err
    assert not (folder / "report").exists()


# Words


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.1], "one seed: no interval, no claim"),
        ([0.1, math.nan], "a run has no finite value: no interval, no claim"),
        ([0.0, 0.0], "no difference at all in any of 2 seeds: the runs are identical"),
        ([0.1, -0.1], "the interval contains zero: no difference is shown with 2 seeds"),
        ([-0.1, -0.11, -0.1], "the interval excludes zero: lower than the baseline over 3 seeds"),
        ([0.1, 0.11, 0.1], "the interval excludes zero: higher than the baseline over 3 seeds"),
    ],
)
def test_verdicts_say_what_the_interval_allows(values: list[float], words: str) -> None:
    assert verdict(paired_difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))) == words


def test_sentences_have_the_numbers_of_the_difference(tmp_path: Path) -> None:
    one = of(write_study(tmp_path, seeds=range(4), effects={BASELINE: 0.0, "a": -0.05, "none": 0.0}))
    difference = one["a"].differences["final_val_bpb"]
    told, untold = sentences(one)
    assert told.startswith(f"a: {difference.mean:+.4f} bits per byte against log-spaced (final validation), 95 %")
    assert f"{difference.low:+.4f} to {difference.high:+.4f}, n = 4, p " in told
    corrected = p_text(one.corrected["a"])
    assert f"corrected p {corrected if corrected[0] == '<' else f'= {corrected}'}" in told
    assert told.endswith("the interval excludes zero: lower than the baseline over 4 seeds.")
    smallest = one.evidence["none"].detectable
    assert f"with 4 seeds and this spread a difference of {smallest:.2g} or more is found 8 times in 10" in untold
    assert overview(one)[0].startswith("quick compares log-spaced (the baseline) with a and none: 4 seeds each of a")
    assert "327.7 kB read of stdlib" in overview(one)[0]


def test_many_arms_are_counted_and_the_largest_named(blocked_study: Callable[..., Path]) -> None:
    def effect(levels: Any, name: str) -> float:
        leaks = -0.5 if levels["patching"] == "published" and name.startswith("wrong") else 0.0
        return -0.2 * (name == "concentrated_uniform_ema_bytes") + 0.1 * (name == "wrong-sign_none_bytes") + leaks

    one = of(blocked_study(effect))
    compared, counts, largest, detectable = overview(one)[:4]
    assert compared.startswith("audit compares 16 arms with log-spaced_uniform, in 4 blocks by gain and patching: 8 ")
    kept = [one.evidence[name].difference.mean < 0 for name in one.surviving]
    signs = f" are significant at the 5 % level ({sum(kept)} below, {len(kept) - sum(kept)} above)."
    assert counts.startswith("Of 16 differences (final validation) ")
    assert counts.endswith(f"After Holm's correction {len(kept)}{signs}")
    assert "by chance 0.8 would on average" in counts
    assert largest.startswith("The largest 3 of these: concentrated_uniform (gain ema, patching bytes) -0.")
    assert "wrong-sign (gain none, patching bytes) +0." in largest
    leaks = [one.leaks(one[name]) for name in one.surviving]
    assert leaks == sorted(leaks)
    assert sum(leaks) >= 2, "likelihoods come first although the leaking differences are larger"
    alone = [each.detectable for each in one.evidence.values()]
    assert f"a difference of {np.median(alone):.2g} bits per byte or more" in detectable
    spreads = [each.difference.standard_deviation for each in one.evidence.values()]
    strict = [detectable_difference(sd, 8, alpha=0.05 / 16) for sd in spreads]
    assert f"of {np.median(strict):.2g} or more ({min(strict):.2g} to {max(strict):.2g}) at the level" in detectable


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "leak": (
        lambda folder: change(run_folder(folder, "concentrated", 0) / "result.json", causal=False),
        f"concentrated: {NOT_CAUSAL}; a prediction sees part of its own target",
    ),
    "n-grams": (
        lambda folder: save(folder / "references.json", {"references": [REFERENCE]}),
        "are worse on the validation windows than counts of byte pairs (1.0000), which remember 1 byte: their losses",
    ),
    "diverged": (
        lambda folder: change(run_folder(folder, "concentrated", 1) / "result.json", final_val_bpb=None),
        "concentrated, seed 1: the loss is not finite, so the arm has no mean.",
    ),
    "sizes": (
        lambda folder: change(run_folder(folder, BASELINE, 0) / "config.json", model={"parameters": 1}),
        "Arms differ in their number of parameters.",
    ),
    "seeds": (
        lambda folder: (run_folder(folder, "concentrated", 0) / "result.json").unlink(),
        "Arms finished different seeds: their means are not comparable, their paired differences are.",
    ),
    "missing": (
        lambda folder: (run_folder(folder, "concentrated", 0) / "result.json").unlink(),
        "1 of 4 runs are not finished; every figure covers the others only.",
    ),
    "baseline": (
        lambda folder: [(run_folder(folder, BASELINE, seed) / "result.json").unlink() for seed in (0, 1)],
        "No run of the baseline log-spaced is finished: there is nothing to compare with.",
    ),
    "commits": (
        lambda folder: change(run_folder(folder, BASELINE, 0) / "environment.json", commit="other"),
        "Runs come from different commits of the code.",
    ),
    "dirty": (
        lambda folder: change(run_folder(folder, BASELINE, 0) / "environment.json", dirty=True),
        "Some runs come from code that differs from its commit (dirty).",
    ),
    "bytes": (
        lambda folder: change(run_folder(folder, BASELINE, 0) / "config.json", corpus={**CORPUS, "sha256": "0"}),
        "Runs were trained on different bytes (the sha256 of their corpora differ).",
    ),
    "rows": (
        lambda folder: change(run_folder(folder, BASELINE, 0) / "result.json", final_val_bpb=9.0),
        "log-spaced, seed 0: the last of its rows is not what its result says; bring metrics.jsonl back",
    ),
    "half-lives": (
        lambda folder: [
            change(run_folder(folder, "concentrated", seed) / "config.json", train={"context": 64}) for seed in (0, 1)
        ],
        "concentrated: half or more of its half-lives, 900 to 960 bytes, are longer than 10 windows of 64 bytes.",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_warned_of_and_only_it(tmp_path: Path, fault: str) -> None:
    state = {"half_life_quantiles": [[900, 910, 920, 930, 940, 950, 960]]}
    folder = write_study(tmp_path, state=state)
    assert warnings(of(folder)) == []
    make, words = FAULTS[fault]
    make(folder)
    told = warnings(of(folder))
    assert [text for text in told if words in text], told
    assert len(told) <= 2


def test_rates_at_the_edge_of_their_search_are_warned_of(tmp_path: Path) -> None:
    rates = {f"{arm}_rate-{rate}": rate for arm in (BASELINE, "concentrated") for rate in (0.1, 0.2)}
    spec = {"tuning": {"rates": [0.1, 0.2], "seeds": [0, 1]}}
    folder = write_study(tmp_path, spec=spec)
    write_study(tmp_path / "tuning", effects=rates, spec={"baseline": next(iter(rates))})
    beyond = "at the edge of the rates that were tried, so a better one may lie beyond."
    assert warnings(of(folder)) == [f"{arm}: its learning rate 0.1 is {beyond}" for arm in (BASELINE, "concentrated")]


def test_n_grams_are_held_against_likelihoods_of_their_windows_only(tmp_path: Path) -> None:
    save(tmp_path / "references.json", {"references": [REFERENCE, {**REFERENCE, "corpus": {**CORPUS, "sha256": "0"}}]})
    one = of(write_study(tmp_path, causal=False))
    assert one.references == []
    assert "worse on the validation windows" not in " ".join(warnings(one))
    assert gram(1) == "n-gram, 1 byte"
    assert len(of(write_study(tmp_path)).references) == 1


# The page


CLAIMS = [
    {"name": "helps", "arm": "better", "claim": "lower", "margin": 0.01},
    {"name": "worse", "arm": "better", "claim": "higher"},
    {"name": f"hostile {HOSTILE.strip()}", "arm": "same", "claim": "equal", "margin": 1e-6},
]


@pytest.fixture
def declared_page(declared_study: Callable[..., Path], undrawn: None) -> Page:
    folder = declared_study(CLAIMS, [{"name": "learnt", "arm": "base", "at_most": 9.0}])
    return Page(write_comparison(of(folder)))


def test_the_first_screen_says_what_was_decided(declared_page: Page) -> None:
    first = declared_page.text[: declared_page.text.index("Results", declared_page.text.index("Of 3 hypotheses"))]
    assert first.index("Of 3 hypotheses declared in the spec: 1 confirmed, 1 refuted, 1 undecided.") < 400
    claim = "helps better is lower than base by more than 0.01 bits per byte (validation at the end) confirmed"
    assert f"{claim} {MINUS}0.04" in first
    assert f"worse better is higher than base (validation at the end) refuted {MINUS}0.04" in first
    assert "n = 6 0.047 1 worse better" in first, "confirming before refuting"
    assert "n = 6 1 0.047 hostile" in first
    assert re.search(
        r"learnt base at most 9 bits per byte \(validation at the end\), mean over seeds passed 2\.\d+", first
    )
    assert "Not registered: nothing shows that the hypotheses came before the results." in first
    assert declared_page.headings[:2] == [(1, "claims"), (2, "What was decided")]


def test_a_study_without_hypotheses_says_so_first(tmp_path: Path, undrawn: None) -> None:
    page = Page(write_comparison(of(write_study(tmp_path, seeds=range(4)))))
    assert "No hypothesis was declared before the runs. The one difference is significant." in page.text
    none = Page(write_comparison(of(write_study(tmp_path, effects={BASELINE: 0.0, "a": 0.0, "b": 1e-5}))))
    assert "Of 2 differences none are significant (Holm-corrected)." in none.text
    one = Page(write_comparison(of(write_study(tmp_path, seeds=[0]))))
    assert "no interval, no claim." in one.text


def test_the_structure_can_be_read_aloud(declared_page: Page) -> None:
    levels = [level for level, _ in declared_page.headings]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    cells = [attributes.get("scope") for tag, attributes in declared_page.tags if tag == "th"]
    assert set(cells) == {"col", "row", "rowgroup"} - ({"rowgroup"} - set(cells))
    tables = [tag for tag, _ in declared_page.tags if tag in ("table", "caption")]
    assert tables == ["table", "caption"] * (len(tables) // 2)
    pictures = [attributes for _, attributes in declared_page.tags if attributes.get("role") == "img"]
    assert pictures
    assert all(picture["aria-label"] for picture in pictures)
    ids = [attributes["id"] for _, attributes in declared_page.tags if "id" in attributes]
    links = [attributes["href"] for tag, attributes in declared_page.tags if tag == "a"]
    assert len(ids) == len(set(ids))
    assert {f"#{one}" for one in ids} == set(links)


def test_the_page_needs_nothing_from_outside_and_nothing_in_it_is_markup(declared_page: Page) -> None:
    assert "script" not in {tag for tag, _ in declared_page.tags}
    assert not re.search(r'(src|href)="(?!#)', declared_page.source)
    assert "<script>alert('&')</script>$x$" in declared_page.text
    assert "&lt;script&gt;" in declared_page.source


def test_hostile_names_of_arms_and_corpora_stay_text_in_tables_and_figures(tmp_path: Path) -> None:
    arm = "<script>alert(1)<%2fscript>$x$"
    spec = {"name": HOSTILE, "description": HOSTILE, "arms": {BASELINE: {}, arm: {"placement": HOSTILE}}}
    folder = write_study(tmp_path, effects={BASELINE: 0.0, arm: -0.05}, spec=spec)
    for path in folder.rglob("config.json"):
        change(path, corpus={**CORPUS, "name": HOSTILE})
    page = Page(write_comparison(of(folder)))
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count(arm) > 5
    svg = [tag for tag, _ in page.tags].count("svg")
    assert svg == 2
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids)), "two figures share an id"
    used = set(re.findall(r"(?:url\(#|href=\"#)([^\")]+)", page.source))
    assert used <= set(ids)
    assert "#1a1a1b" not in page.source.partition("<body>")[2], "the ink of a figure is that of the page"


def test_every_number_of_a_leaking_arm_is_in_a_row_that_says_so(tmp_path: Path, undrawn: None) -> None:
    folder = write_study(tmp_path, effects={BASELINE: 0.0, "leaks": -0.05})
    for seed in (0, 1):
        change(run_folder(folder, "leaks", seed) / "result.json", causal=False)
    page = Page(write_comparison(of(folder)))
    rows = re.findall(r'<th scope="row">leaks(.*?)</th>', page.source)
    assert len(rows) >= 4
    labelled = [NOT_CAUSAL in row for row in rows]
    assert labelled.count(False) <= 1, "the list of options has no number"
    assert NOT_CAUSAL not in page.headings[0][1]
    assert NOT_CAUSAL in Page(write_comparison(of(write_study(tmp_path, causal=False)))).headings[0][1]


def test_the_tables_hold_the_numbers_of_the_comparison(tmp_path: Path, undrawn: None) -> None:
    folder = write_study(tmp_path, seeds=range(6))
    one, page = of(folder), Page(write_comparison(of(folder)))
    difference = one["concentrated"].differences["final_val_bpb"]
    shown = f"{difference.mean:+.4f} {difference.low:+.4f} to {difference.high:+.4f}".replace("-", MINUS)
    assert f"concentrated {shown} {p_text(difference.p_value)}" in page.text
    for seed, value in difference.per_seed.items():
        assert f"{value:+.4f}".replace("-", MINUS) in page.text, seed
    estimate = one[BASELINE].estimates["test_bpb"]
    assert f"{estimate.mean:.4f} {estimate.low:.4f} to {estimate.high:.4f}" in page.text
    assert [title for _, title in page.headings[1:]] == [
        "What was decided",
        "Results",
        "Differences",
        "Curves",
        "Design",
        "Runs",
    ]
    printed = text_report(one)
    assert f"{difference.mean:+.4f}  {difference.low:+.4f} to {difference.high:+.4f}" in printed
    assert printed.startswith("No hypothesis was declared before the runs.\nThe one difference is significant.")


def test_missing_runs_are_listed_with_their_errors(tmp_path: Path, undrawn: None) -> None:
    folder = write_study(tmp_path)
    change(run_folder(folder, "concentrated", 0) / "result.json", status="failed", error="<b>no memory</b>")
    (run_folder(folder, "concentrated", 1) / "result.json").unlink()
    page = Page(write_comparison(of(folder)))
    assert "Missing: 1 failed and 1 unfinished." in page.text
    assert "concentrated/seed-0 failed <b>no memory</b>" in page.text


# Figures and files


def test_the_page_shows_the_figures_of_the_files(tmp_path: Path) -> None:
    state = {
        "half_life_quantiles": [[1, 2, 3, 4, 5, 6, 7.0]],
        "kernel": {"lags": [1, 2, 4, 8], "blocks": [[1, 0.5, 0.2, 0.1]]},
    }
    folder = write_study(tmp_path, effects={BASELINE: 0.0, **{f"arm{i}": -0.01 * i for i in range(7)}}, state=state)
    for path in folder.rglob("result.json"):
        curve = {"given": [1, 2, 4], "bpb": [3.0, 2.5, 2.2]}
        change(path, truncation=curve, influence={"lags": [1, 2], "bits": [0.5, 0.1]})
    path = write_comparison(of(folder))
    names = ["forest", "convergence", "difference", "truncation", "influence", "kernels", "half-lives"]
    files = {f"{name}.{kind}" for name in names for kind in ("pdf", "png")}
    assert {one.name for one in path.parent.iterdir()} == files | {"report.html", "table.json", "rows.jsonl"}
    page = Page(path)
    assert [tag for tag, _ in page.tags].count("svg") == len(names)
    assert len({attributes["aria-label"] for _, attributes in page.tags if attributes.get("role") == "img"}) == len(
        names
    )
    again = {drawing.name: style.rendered(drawing.figure, ("pdf",))["pdf"] for drawing in drawings(of(folder))}
    assert again["forest"] == (path.parent / "forest.pdf").read_bytes(), "the same study gives the same files"


def test_figures_are_drawn_from_the_rows(tmp_path: Path) -> None:
    one = of(write_study(tmp_path, seeds=range(5)))
    convergence, difference = (drawing.figure for drawing in drawings(one))
    study, unit = one.study, 1e3
    mean = pointwise_band([*study.curves(BASELINE).values()])
    drawn = [line.get_xydata() for line in convergence.axes[0].lines]
    assert any(
        np.allclose(line, np.column_stack([mean.at[1:] / unit, mean.mean[1:]])) for line in drawn if len(line) == 4
    )
    curves = [
        {at: curve[at] - study.curves(BASELINE)[seed][at] for at in curve}
        for seed, curve in study.curves("concentrated").items()
    ]
    for band, shape in zip(
        (pointwise_band(curves), simultaneous_band(curves)), difference.axes[0].collections, strict=True
    ):
        edges = shape.get_paths()[0].vertices
        assert edges[:, 1].min() == pytest.approx(band.low.min())
        assert edges[:, 1].max() == pytest.approx(band.high.max())
    low, high = difference_limits({"a": curves}, {"a": [pointwise_band(curves)]})
    assert (low, high) == (-high, pytest.approx(difference.axes[0].get_ylim()[1], rel=0.5))


def test_a_far_row_does_not_squeeze_the_others() -> None:
    def row(scale: float) -> ForestRow:
        values = [scale * value for value in (0.9, 1.0, 1.1)]
        return ForestRow("", mean_interval(values), values, True)

    near = forest_limits({"": [row(0.01), row(0.012), row(-0.011)]})
    assert forest_limits({"": [row(0.01), row(0.012), row(-0.011), row(5.0)]}) == near
    assert near[1] >= 0.0132
    assert forest_limits({"": [row(0.01), row(5.0)]})[1] > 5.0
    assert forest_limits({"": [ForestRow("", None, [], False)]}) == (-1e-3, 1e-3)


def test_memory_is_read_from_the_first_and_last_rows(tmp_path: Path, undrawn: None) -> None:
    state = {"half_life_quantiles": [[1, 2, 4, 8, 16, 32, 640.0]] * 2, "saturation": {"saturated_share": 0.25}}
    state["saturation"] |= {"logit_min": -3.0, "logit_max": 5.0, "entropy": 1.5}
    state["kernel"] = {"lags": [1, 4, 16, 64], "blocks": [[1.0, 4**-1.15, 16**-1.15, 64**-1.15]] * 2}
    folder = write_study(tmp_path, state=state)
    one = of(folder)
    memory = change_of(one, one[BASELINE])
    assert memory.before.exponents() == pytest.approx(np.full((2, 2), 1.15))
    text = Page(write_comparison(one)).text
    assert "log-spaced 1.15 ± 0.000 1.15 ± 0.000 8 1 to 640 8 1 to 640 25.0% 25.0% 1.50 1.50" in text


def test_the_three_published_conditions_are_known_by_what_they_are(tmp_path: Path) -> None:
    quick = Path(__file__).parents[2] / "runs/records/quick"
    assert "published-figures" in [drawing.name for drawing in drawings(of(quick))]
    spec = json.loads((quick / "spec.json").read_text())
    spec["arms"]["log-spaced"] |= {"tempering": 0.5}
    save(
        tmp_path / "spec.json",
        {**spec, "arms": {name: {**arm, "tempering": 0.5} for name, arm in spec["arms"].items()}},
    )
    (tmp_path / "rows.jsonl").write_bytes((quick / "rows.jsonl").read_bytes())
    assert "published-figures" not in [drawing.name for drawing in drawings(of(tmp_path))]


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
    assert (record / "page/report.html").read_bytes() == (folder / "report/report.html").read_bytes()
    assert (record / "page/table.json").read_bytes() == (folder / "report/table.json").read_bytes()
    with pytest.raises(ValueError, match=r"folder .*nowhere: no such file or folder"):
        report(tmp_path / "nowhere")
