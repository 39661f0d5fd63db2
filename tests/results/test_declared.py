"""What stands first in a report: what was declared, what came out, and how it was registered."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel.analysis.figures import style as figures
from plkernel.commands.report import report
from plkernel.config.reading import load_spec
from plkernel.declared.registration import register
from plkernel.records.study import read_study
from plkernel.results.comparison import compare
from plkernel.results.page.build import page_of, render
from plkernel.results.page.document import Beside, Prose, Table
from plkernel.results.terminal import text_report

HELPS = {"name": "<b>it</b> helps", "arm": "better", "claim": "lower", "margin": 0.005}
SAME = {"name": "same", "arm": "same", "claim": "equal", "margin": 0.01, "family": "side"}
LEARNT = {"name": "learnt", "arm": "base", "at_most": 4.0}


@pytest.fixture
def folder(declared_study: Callable[..., Path]) -> Path:
    """A study that was registered."""
    folder = declared_study([HELPS, SAME], [LEARNT])
    register(load_spec(folder / "spec.json"), folder / "registered.json", folder)
    return folder


def test_the_page_begins_with_it(folder: Path) -> None:
    page = page_of(compare(read_study(folder)))
    answer = page.head[0]
    assert isinstance(answer, Prose)
    assert answer.texts == ("Of 2 hypotheses declared before the runs: 2 confirmed, 0 refuted, 0 undecided.",)
    words, declared = page.sections[:2]
    assert declared.title == "Declared before the runs"
    said, table, gates, changed = declared.parts
    assert isinstance(said, Prose)
    assert said.texts[0].startswith("Registered: sha256 ")
    assert isinstance(table, Table)
    assert table.header[0] == "hypothesis"
    assert [title.text for title, _ in table.groups] == [
        f"family {name}: 1 hypothesis, alpha 0.05, by exact sign flips" for name in ("main", "side")
    ]
    name, difference, confirming, refuting, verdict = (cell.text for cell in table.groups[0][1][0])
    claim = "better is lower than base by more than 0.005 bits per byte (validation at the end)"
    assert name == f"<b>it</b> helps {claim}"
    assert difference.startswith("\N{MINUS SIGN}0.0493 \N{MINUS SIGN}0.05")
    assert difference.endswith("n = 6")
    assert (confirming, refuting, verdict) == ("0.016", "1", "confirmed")
    assert isinstance(gates, Table)
    assert gates.groups[0][1][0][2].text == "passed"
    assert isinstance(changed, Prose)
    assert "refuted if the 90 % interval had lain wholly above \N{MINUS SIGN}0.005." in changed.texts[0]
    [summary] = words.parts
    assert isinstance(summary, Prose)
    assert summary.texts[0].startswith("claims compares base")


def test_every_hypothesis_has_a_line_and_a_picture(folder: Path) -> None:
    [beside] = [part for part in page_of(compare(read_study(folder))).head if isinstance(part, Beside)]
    [group] = beside.forest.groups
    helps, same = group.rows
    assert (helps.name, helps.verdict, helps.tone) == ("<b>it</b> helps", "confirmed", "yes")
    assert helps.said == "better is lower than base by more than 0.005 bits per byte (validation at the end)"
    assert helps.mark is not None
    left, width = helps.mark.claim or (math.nan, math.nan)
    assert left == 0.0
    assert width < group.zero, "the claim holds below the margin, which lies below zero"
    assert helps.mark.low + helps.mark.width < width, "the whole interval lies where the claim is right"
    assert helps.mark.side == "lower"
    assert same.mark is not None
    left, width = same.mark.claim or (math.nan, math.nan)
    assert left < same.mark.low
    assert same.mark.low + same.mark.width < left + width
    assert left + width / 2 == pytest.approx(group.zero, abs=0.02)
    assert "90 % interval" in beside.forest.caption
    [chart] = beside.charts
    assert [name for _, name in chart.names] == ["base", "better", "same"]


def test_names_are_escaped(folder: Path) -> None:
    shown = render(page_of(compare(read_study(folder))))
    assert "&lt;b&gt;it&lt;/b&gt; helps" in shown
    assert "<b>it" not in shown


def test_the_terminal_begins_with_it(folder: Path) -> None:
    lines = text_report(compare(read_study(folder))).splitlines()
    assert lines[0] == "Of 2 hypotheses declared before the runs: 2 confirmed, 0 refuted, 0 undecided."
    assert any(line.startswith("<b>it</b> helps") and line.endswith("confirmed") for line in lines)
    assert any(line.startswith("gate learnt: base at most 4 ") and line.endswith("passed") for line in lines)


def test_a_study_without_is_reported_as_before(declared_study: Callable[..., Path]) -> None:
    comparison = compare(read_study(declared_study()))
    assert text_report(comparison).startswith("claims compares base")
    page = page_of(comparison)
    [beside] = [part for part in page.head if isinstance(part, Beside)]
    assert [(row.name, row.verdict) for row in beside.forest.groups[0].rows] == [
        ("better against base", "lower, better"),
        ("same against base", "cannot be told from no difference"),
    ]
    assert not any("eclared" in section.title for section in page.sections)


def test_a_record_carries_it_and_says_the_same(
    declared_study: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(figures, "rendered", lambda figure, kinds: dict.fromkeys(kinds, b""))
    excess = {"name": "excess", "arm": "better", "claim": "lower", "metric": "excess_bpb", "step": 20}
    cost = {"name": "cost", "arm": "better", "claim": "lower", "metric": "truncation_cost", "bytes": 4}
    folder = declared_study([HELPS, SAME, excess, cost], [LEARNT])
    elsewhere = tmp_path / "elsewhere.json"
    register(load_spec(folder / "spec.json"), elsewhere, folder)
    report(folder, tmp_path / "record", elsewhere)
    first = capsys.readouterr().out
    report(tmp_path / "record")
    assert capsys.readouterr().out.split("\nreport: ")[0] == first.split("\nreport: ")[0]
    assert "verified" in first
    tables = [
        json.loads((place / "report/table.json").read_text())["declared"] for place in (folder, tmp_path / "record")
    ]
    assert tables[0] == tables[1]
    assert tables[0]["registration"]["intact"]
    assert [one["verdict"] for one in tables[0]["hypotheses"]] == ["confirmed"] * 4
    assert tables[0]["gates"][0]["passed"]
    with pytest.raises(ValueError, match=r"registered .*elsewher.json: no such file or folder; did you mean"):
        report(folder, None, tmp_path / "elsewher.json")
