"""Every committed study gives the numbers and verdicts of the table that is committed with it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plkernel.common.files import save_json
from plkernel.results.comparison import compare, table
from plkernel.results.study import read_study

RECORDS = Path(__file__).parents[2] / "runs" / "records"
TABLES = sorted(RECORDS.glob("*/report/table.json"))
PROSE = {"answer", "summary", "sentences", "warnings", "would_have_changed_it", "label", "interval"}
GONE = {
    "factorial",
    "cost",
    "costs",
    "earlier",
    "excludes_zero",
    "excluding_zero",
    "references",
    "runs",
    "sign_flip",
}
GONE |= {"standardised_effect"}
"""Keys of the committed tables that tables have no longer."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every number, name and verdict with its place; sentences and GONE are left out."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in PROSE | GONE and not (
                key == "verdict" and path[-1] == "difference_to_baseline"
            ):
                yield from leaves(item, (*path, key))
    else:
        yield path, value


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parts[-3])
def test_committed_table_is_reproduced(path: Path, tmp_path: Path) -> None:
    study = RECORDS / path.parts[-3]
    save_json(tmp_path / "table.json", table(compare(read_study(study))))
    now = dict(leaves(json.loads((tmp_path / "table.json").read_text())))
    committed = dict(leaves(json.loads(path.read_text())))
    assert len(committed) > 50
    assert {place: now.get(place) for place in committed} == {
        place: pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value
        for place, value in committed.items()
    }


def test_every_study_with_rows_is_compared_or_under_way() -> None:
    compared = {path.parts[-3] for path in TABLES}
    log = (RECORDS.parent / "LOG.md").read_text()
    assert compared >= {"memory-text", "memory-far", "exp013-audit"}
    for path in RECORDS.glob("*/rows.jsonl"):
        under_way = f"Under way: `{path.parent.name}.toml`" in log
        assert (path.parent.name in compared) is not under_way, path.parent.name


def test_bytes_are_those_at_which_an_arm_is_where_the_baseline_ends() -> None:
    comparison = compare(read_study(RECORDS / "memory-text"))
    for name in ("short_ema", "quantile_ema"):
        arm = comparison[name]
        for seed, share in arm.bytes_ratio.items():
            own, base = (
                next(run for run in comparison.study.finished(of) if run.seed == seed).evaluations
                for of in (name, arm.against)
            )
            below = [row.bytes for row in own[1:] if row.val_bpb <= base[-1].val_bpb]
            assert (share * base[-1].bytes <= below[0]) if below else share == float("inf")
            assert not below or share * base[-1].bytes >= max(
                [row.bytes for row in own if row.bytes < below[0]]
            )
    assert set(comparison["quantile_ema"].bytes_ratio.values()) == {float("inf")}
    assert min(comparison["short_ema"].bytes_ratio.values()) < 1
