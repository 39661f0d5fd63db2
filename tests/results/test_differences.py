"""Differences between arms: names in their blocks, the spread of a pilot, the row of an arm without
one.
"""

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from studies import BASELINE, change, write_study

from plkernel.config.reading import parse_spec
from plkernel.results.comparison import compare
from plkernel.results.figures import drawings
from plkernel.results.page import Table, sections
from plkernel.results.power import powers
from plkernel.results.statistics import mean_interval, paired_difference
from plkernel.results.study import read_study
from plkernel.results.wording import p_text

FINALS = {
    BASELINE: [2.0, 2.1, 2.2, 2.3],
    "a": [1.90, 2.01, 2.10, 2.21],  # differences spread by 0.005 or so
    "b": [1.70, 2.21, 1.90, 2.41],  # by 0.2 or so
    "c": [1.60, 2.41, 1.80, 2.61],  # by 0.4 or so
}


def pilot(folder: Path) -> Path:
    """Four arms whose differences to the baseline spread differently."""
    seeds = range(4)
    write_study(folder, seeds=seeds, effects=dict.fromkeys(FINALS, 0.0))
    for arm, finals in FINALS.items():
        for seed in seeds:
            change(folder / arm / f"seed-{seed}" / "result.json", final_val_bpb=finals[seed])
    return folder


def spread(arm: str) -> float:
    return float(np.std(np.subtract(FINALS[arm], FINALS[BASELINE]), ddof=1))


def power_of(arm: str, folder: Path) -> dict[str, Any]:
    hypothesis = {"name": "it helps", "arm": arm, "claim": "lower", "margin": 0.01}
    arms = {BASELINE: {}, "a": {}, "b": {}, "c": {}, "untried": {}}
    values = {"name": "next", "baseline": BASELINE, "seeds": [7, 8, 9], "arms": arms}
    (row,) = powers(
        parse_spec({**values, "hypotheses": [hypothesis], "train": {"steps": 40}}, "here"), folder
    )
    return row


@pytest.mark.parametrize("arm", ["a", "b", "c"])
def test_the_spread_of_a_hypothesis_is_that_of_its_own_arms(arm: str, tmp_path: Path) -> None:
    row = power_of(arm, pilot(tmp_path))
    assert row["sd"] == pytest.approx(spread(arm), rel=1e-12)
    assert row["seeds"] == 4


def test_an_arm_without_runs_takes_the_median_spread_of_all(tmp_path: Path) -> None:
    """However small they are, and of the fewest seeds behind any."""
    folder = pilot(tmp_path)
    (folder / "c/seed-3/result.json").unlink()
    row = power_of("untried", folder)
    of_three = paired_difference(
        dict(enumerate(FINALS["c"][:3])), dict(enumerate(FINALS[BASELINE]))
    )
    spreads = [spread("a"), spread("b"), of_three.standard_deviation]
    assert row["sd"] == pytest.approx(median(spreads), rel=1e-12)
    assert row["seeds"] == 3


def test_arms_of_a_block_are_named_without_its_levels(tmp_path: Path) -> None:
    arms: dict[str, dict[str, Any]] = {
        f"{placement}_{gain}": {"levels": {"placement": placement, "gain": gain}}
        for gain in ("none", "ema")
        for placement in ("a", "b")
    }
    arms["b_ema"]["against"] = "a_ema"
    spec = {"baseline": "a_none", "within": ["gain"], "arms": arms}
    comparison = compare(
        read_study(write_study(tmp_path, effects=dict.fromkeys(arms, 0.0), spec=spec))
    )
    assert {arm: comparison.short(arm) for arm in arms} == {
        "a_none": "a",
        "b_none": "b",
        "a_ema": "a",
        "b_ema": "b",
    }


def test_an_arm_without_a_difference_has_a_row_of_dashes(tmp_path: Path) -> None:
    """None of its seeds has ended in the baseline; the table stands, with the others' numbers."""
    effects = {BASELINE: 0.0, "a": -0.05, "b": 0.1}
    folder = write_study(tmp_path, seeds=range(3), effects=effects)
    for run in (f"{BASELINE}/seed-2", "b/seed-0", "b/seed-1"):
        (folder / run / "result.json").unlink()
    tables = [
        item
        for items in sections(compare(read_study(folder)), {}).values()
        for item in items
        if isinstance(item, Table) and "paired by seed" in item.caption
    ]
    (table,) = tables
    rows = {row[0]: row[1:] for group in table.groups.values() for row in group}
    assert set(rows["b"]) == {"-"}
    assert len(rows["b"]) == len(rows["a"]) == len(table.header) - 1
    assert float(rows["a"][0].split()[0]) == pytest.approx(-0.05, abs=0.01)


def test_differences_on_test_text_have_their_interval_and_their_correction(tmp_path: Path) -> None:
    folder = pilot(tmp_path)
    shifts = {"a": (0.0, 0.02, -0.05, 0.0), "b": (0.4, 0.0, 0.1, 0.2), "c": (0.0, 0.0, 0.0, 0.3)}
    for arm, of_arm in shifts.items():
        for seed, shift in enumerate(of_arm):
            change(folder / arm / f"seed-{seed}" / "result.json", test_bpb=2.0 - 0.3 + shift)
    for seed in range(4):
        change(folder / BASELINE / f"seed-{seed}" / "result.json", test_bpb=2.0)
    one = compare(read_study(folder))
    (table,) = [item for item in sections(one, {})["Differences"] if isinstance(item, Table)]
    first = table.header.index("test mean")
    assert table.header[first : first + 3] == ["test mean", "test interval", "test corrected p"]
    found = {arm: mean_interval(np.array(of_arm) - 0.3) for arm, of_arm in shifts.items()}
    for row in table.groups[""]:
        expected = found[row[0]]
        assert float(row[first]) == pytest.approx(expected.mean, abs=1e-4)
        bounds = [float(bound) for bound in row[first + 1].split(" to ")]
        assert bounds == pytest.approx([expected.low, expected.high], rel=1e-2)
    p = {arm: one[arm].differences["test_bpb"].p_value for arm in shifts}
    assert p["a"] < p["c"] < p["b"]
    shown = {row[0]: row[first + 2] for row in table.groups[""]}
    expected_p = {"a": 3 * p["a"], "c": 2 * p["c"], "b": max(2 * p["c"], p["b"])}
    assert shown == {arm: p_text(value) for arm, value in expected_p.items()}


def test_the_picture_marks_where_no_difference_would_be(tmp_path: Path) -> None:
    comparison = compare(read_study(write_study(tmp_path, seeds=range(3))))
    first = next(drawings(comparison))
    assert first.name == "overview"
    ends = first.figure.axes[-1]
    marks = [line for line in ends.lines if list(line.get_xdata()) == [0.0, 0.0]]
    assert len(marks) == 1
