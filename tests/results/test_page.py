"""The page of a study of many arms in blocks: what stands in which section."""

import json
import re
from dataclasses import replace

import pytest

from plkernel.records.study import read_study
from plkernel.records.tuning import Choice
from plkernel.results.cautions import warnings
from plkernel.results.comparison import compare
from plkernel.results.evidence import ALPHA
from plkernel.results.figures import drawings
from plkernel.results.page.build import page_of, render
from plkernel.results.page.charts.frames import Chart
from plkernel.results.page.charts.intervals import Forest
from plkernel.results.page.differences import reached
from plkernel.results.page.document import Folded, Prose, Table
from plkernel.results.table import table


def published_helps(levels, name):
    return -0.1 if levels.get("projection") == "published" else 0.0


@pytest.fixture
def study(blocked_study):
    return read_study(blocked_study(published_helps))


@pytest.fixture
def comparison(study):
    return compare(study)


def page(comparison):
    """The page as data."""
    return page_of(comparison)


def words(part) -> str:
    """The words of a part of a page."""
    if isinstance(part, Prose):
        return " ".join(part.texts)
    if isinstance(part, Chart | Forest):
        return part.caption
    if isinstance(part, Folded):
        return " ".join([part.summary.text, *map(words, part.content)])
    return " ".join([part.caption, *part.header, *(cell for row in cells_of(part) for cell in row)]).strip()


def cells_of(table: Table) -> list[list[str]]:
    """The header and every row of a table; the title of a group is a row of one cell."""
    rows = [list(table.header)] if any(table.header) else []
    for title, group in table.groups:
        rows += [[title.text]] if title.text else []
        rows += [[cell.text for cell in row] for row in group]
    return rows


def section(found, head: str):
    return next(section for section in found.sections if section.title.startswith(head))


def text_of(found, head: str) -> str:
    """The words of the section under one of the headings of a page."""
    return " ".join(" ".join(map(words, section(found, head).parts)).split())


def rows_of(found, head: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    return cells_of(next(part for part in section(found, head).parts if isinstance(part, Table)))


def test_sections_stand_in_the_order_of_an_argument(comparison):
    heads = [section.title for section in page(comparison).sections]
    named = [re.match(r"[A-Za-z]+", head)[0] for head in heads]
    wanted = ["Design", "Results", "Difference", "Effects", "Curves", "Costs", "Where"]
    assert [head for head in named if head in wanted] == wanted


def test_the_design_is_said_in_a_few_lines(comparison):
    text = text_of(page(comparison), "Design")
    for words in (
        "placement: log-spaced, concentrated projection: uniform, published gain: none, ema patching: bytes, published",
        "every combination of the levels, 16 arms",
        "arms beside wrong-sign, in every block",
        "20 arms x 8 seeds: 160, of which 160 finished",
        "by gain and patching: 4, of which 4 have a finished run",
        "log-spaced_uniform of the same block",
        "share their base weights and the same data in the same order",
    ):
        assert words in text


def test_arms_are_grouped_by_block_under_their_short_names(comparison):
    rows = rows_of(page(comparison), "Results")
    heads = [row[0] for row in rows if len(row) == 1]
    assert heads == [
        f"gain {gain}, patching {patching}"
        for gain in ("none", "ema")
        for patching in ("bytes", "published not causal, not a likelihood")
    ]
    assert [row[0] for row in rows[2:7]] == [
        "log-spaced_uniform",
        "log-spaced_published",
        "concentrated_uniform",
        "concentrated_published",
        "wrong-sign",
    ]


def test_the_table_of_differences_holds_the_numbers_of_the_evidence(comparison):
    rows = rows_of(page(comparison), "Difference")
    assert rows[0][1:] == ["mean", "p", "corrected p", "sign-flip p", "d_z", "baseline's end reached", "zero lies"]
    cells = dict(zip(rows[0], next(row for row in rows if row[0] == "log-spaced_published"), strict=True))
    found = comparison.evidence["log-spaced_published_none_bytes"]
    numbers = [
        float(part.replace("\N{MINUS SIGN}", "-")) for part in re.findall(r"[+\N{MINUS SIGN}][\d.]+", cells["mean"])
    ]
    assert numbers == pytest.approx([found.difference.mean, found.difference.low, found.difference.high], abs=1e-4)
    assert (cells["p"], cells["corrected p"], cells["sign-flip p"]) == ("< 0.0001", "< 0.0001", "0.0078")
    assert float(cells["d_z"].split()[0].replace("\N{MINUS SIGN}", "-")) == pytest.approx(found.effect.d_z, abs=0.01)
    assert cells["zero lies"] == "outside"
    assert cells["baseline's end reached"] == reached(found)
    assert reached(found).endswith("% earlier")


def test_the_caption_says_how_small_p_could_have_been(comparison):
    text = text_of(page(comparison), "Difference")
    assert "corrected p for all 16 of this table (Holm)" in text
    assert "exact, not corrected); the smallest it could have reached is 0.0078 with 8 seeds" in text
    assert "It describes, it tests nothing" in text
    assert "bootstrap" not in text.lower()


def test_a_bootstrap_interval_comes_with_its_coverage(blocked_study):
    text = text_of(page(compare(read_study(blocked_study(published_helps, seeds=10)))), "Difference")
    assert "covers 90 % at 10 seeds and 93 % at 20, where the t interval covers 95 %" in text


def test_the_effects_of_factors_name_their_levels(comparison):
    found = page(comparison)
    text = text_of(found, "Effects")
    assert "Over the 8 combinations of placement, projection and gain, 2 of 6 main effects and interactions" in text
    assert "Levels left out, of leaking arms or not finished everywhere: patching published" in text
    assert "Over the 16 combinations of placement, projection, gain and patching (not causal" in text
    rows = {row[0]: row[1:] for row in rows_of(found, "Effects")}
    assert float(rows["projection: published - uniform"][0].replace("\N{MINUS SIGN}", "-")) == pytest.approx(
        -0.1, abs=0.01
    )
    assert rows["placement: concentrated - log-spaced"][-1] == "inside"


def test_a_study_without_differences_claims_none(blocked_study):
    study = read_study(blocked_study(lambda levels, name: 0.0, draw=1))
    found, numbers = page(compare(study)), table(compare(study))
    assert "none can be told from none at the 5 % level" in words(
        next(part for part in section(found, "In words").parts if isinstance(part, Prose))
    )
    assert numbers["surviving_correction"] == []
    assert not any(arm["evidence"]["survives_correction"] for arm in numbers["arms"] if arm["evidence"])


def test_runs_that_were_not_started_are_counted_not_listed(blocked_study):
    folder = blocked_study(lambda levels, name: 0.0 if name.endswith("none_bytes") else None)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    rows[3] |= {"status": "diverged", "error": "FloatingPointError: nan"}
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    study = read_study(folder)
    found = page(compare(study))
    text = text_of(found, "Runs that are missing")
    assert "120 not started and 1 diverged." in text
    assert "log-spaced_uniform_none_bytes/seed-3 diverged FloatingPointError: nan" in text
    assert "log-spaced_uniform_ema_bytes not started 0, 1, 2, 3, 4, 5, 6 and 7" in text
    assert len(re.findall("not started", text)) == 1 + 15
    lists = [part for part in section(found, "Runs that are missing").parts if isinstance(part, Folded)]
    assert [(part.summary.text, part.printed) for part in lists] == [("The runs without an end", False)]


def test_learning_rates_of_many_arms_are_summed_up(comparison):
    """Under the gain none they are found inside the range of that block, under ema at its edge."""
    inside, edge = ({0.001: 2.2, 0.002: 2.1, 0.004: 2.3}, {0.008: 2.2, 0.016: 2.1, 0.032: 2.0})
    found = {
        arm.name: Choice(0.002, inside) if "_none_" in arm.name else Choice(0.032, edge) for arm in comparison.arms
    }
    study = replace(comparison.study, spec={**comparison.study.spec, "tuning": {"seeds": [100]}})
    tuned = replace(comparison, study=study, tuning=found)
    found = page(tuned)
    text = text_of(found, "Learning rates")
    assert text.startswith("Taken: 0.002 by 10 arms and 0.032 by 10 arms; 10 at the edge of the rates tried.")
    assert "3 rates, 1 seed (100, none of those compared), the steps of the study" in text
    assert "log-spaced_uniform 2.2000 2.1000 2.3000 - - - 0.002" in text
    assert "log-spaced_uniform - - - 2.2000 2.1000 2.0000 0.032, at the edge" in text
    warned = next(warning for warning in warnings(tuned) if "edge" in warning)
    assert warned.startswith("All 10 arms with gain ema: the learning rate taken, 0.032, is at the edge")


def test_costs_are_totals_and_by_arm(comparison):
    rows = rows_of(page(comparison), "Costs")
    assert rows[1] == ["study", "1,000", "160", "9.0", "9.1", "0.40", "0.80"]
    assert "Made on a processor, 2 threads." in text_of(page(comparison), "Costs")


def test_print_opens_what_is_folded_but_not_the_lists_of_runs(comparison):
    source = render(page(comparison))
    assert source.count("<details") >= 5
    assert source.count('<details class="screen">') == 1
    printed = source.partition("@media print")[2]
    assert "details:not(.screen)::details-content { content-visibility: visible; block-size: auto; }" in printed
    assert "details.screen { display: none; }" in printed


def test_figures_stand_in_their_sections(comparison):
    found = page(comparison)
    forest = section(found, "Difference").parts[0]
    assert isinstance(forest, Forest)
    assert [len(group.rows) for group in forest.groups] == [4] * 4
    assert forest.caption.endswith("Where marked: not causal, not a likelihood.")
    shown = section(found, "Curves").parts
    assert [one.summary.text for one in shown] == [
        f"gain {gain}, patching {patching}"
        for gain in ("none", "ema")
        for patching in ("bytes", "published not causal, not a likelihood")
    ]
    convergence, differences = shown[0].content
    assert [panel.title for panel in convergence.panels] == ["whole run", "second half"]
    assert len(differences.panels) == 4
    assert "lighter band is simultaneous" in differences.caption
    assert shown[1].content[1].caption.endswith("Not causal, not a likelihood.")


def test_many_arms_are_drawn_in_blocks_and_all_at_a_glance(comparison, monkeypatch):
    monkeypatch.setattr("plkernel.results.figures.PANELS", 3)
    monkeypatch.setattr("plkernel.results.figures.ROWS", 12)
    found = drawings(comparison)
    ends = [f"-{gain}-{patching}" for gain in ("none", "ema") for patching in ("bytes", "published")]
    figures = [
        f"{kind}{end}{part}"
        for end in ends
        for kind, part in (("convergence", ""), ("difference", ""), ("difference", "-part2"))
    ]
    assert list(found) == ["forest", "forest-part2", *figures]
    limits = [found[name].axes[0].get_xlim() for name in ("forest", "forest-part2")]
    assert limits[0] == limits[1]


def test_few_arms_need_no_figure_at_a_glance(blocked_study):
    folder = blocked_study(lambda levels, name: 0.0 if name.endswith("none_bytes") else None, seeds=3)
    comparison = compare(read_study(folder))
    found = drawings(comparison)
    assert list(found) == ["convergence-none-bytes", "difference-none-bytes"]
    assert "does not hold for the curve as a whole" in text_of(page(comparison), "Curves")


def test_the_table_for_machines_holds_the_same_numbers(comparison):
    numbers = table(comparison)
    arm = next(row for row in numbers["arms"] if row["arm"] == "log-spaced_published_none_bytes")
    assert arm["block"] == {"model.gain": "none", "patching": "bytes"}
    found, kept = arm["evidence"], comparison.evidence[arm["arm"]]
    assert found["sign_flip"] == {"p_value": 2 / 2**8, "smallest_p": 2 / 2**8, "exact": True}
    assert found["standardised_effect"]["d_z"] == kept.effect.d_z
    assert found["detectable_difference"] == kept.detectable
    assert found["earlier"]["mean"]["n"] == 8
    assert (arm["p_corrected"] < ALPHA) == found["survives_correction"] is True
    effects = {one["effect"]: one for one in numbers["factorial"][0]["contrasts"]}
    assert effects["projection: published - uniform"]["mean"] == pytest.approx(-0.1, abs=0.01)
    assert numbers["costs"]["study"]["runs"] == 160
    assert len(numbers["surviving_correction"]) == 8
    assert json.dumps(numbers)
