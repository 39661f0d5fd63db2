"""A study and its record name damaged, missing and unusual values."""

import errno
import json
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import BASELINE, REFERENCE, change, save, write_study

from plkernel.common import files
from plkernel.common.files import (
    LOCK,
    MEASUREMENT,
    REFERENCES,
    REGISTERED,
    ROWS,
    SPEC,
    load_json,
)
from plkernel.common.locks import held
from plkernel.results import record as records
from plkernel.results.comparison import compare
from plkernel.results.figures import drawings
from plkernel.results.record import restore, save_record
from plkernel.results.saved import RunResult
from plkernel.results.study import Study, read_study
from plkernel.training.folder import RunFolder

RUN = f"{BASELINE}/seed-0"


def test_what_belongs_to_the_whole_study_is_restored_too_and_its_own_is_kept(
    tmp_path: Path,
) -> None:
    """Counts, registration and measurement of the text, as they were written."""
    study, record, again = tmp_path / "study", tmp_path / "record", tmp_path / "again"
    write_study(study)
    whole: dict[str, Any] = {
        REFERENCES: {"references": [REFERENCE]},
        REGISTERED: {"registered": "2026-01-01"},
        MEASUREMENT: {"measured": 1},
    }
    for name, content in whole.items():
        save(study / name, content)
    save_record(read_study(study), record)
    save(again / MEASUREMENT, {"measured": 2})
    restore(record, again)
    found = {name: load_json(again / name) for name in whole}
    assert found == {**whole, MEASUREMENT: {"measured": 2}}


@pytest.mark.parametrize("every", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("steps", [1, 4, 6, 7, 11])
def test_rows_as_training_writes_them_agree_and_one_more_or_less_does_not(
    steps: int, every: int, tmp_path: Path
) -> None:
    """Training evaluates before the first step, after each `every` steps, and at the end."""
    write_study(tmp_path, seeds=[0], effects={BASELINE: 0.0})
    at = [step for step in range(steps + 1) if step % every == 0 or step == steps]
    rows = [{"step": step, "bytes": step, "val_bpb": 2.0} for step in at]
    change(tmp_path / RUN / "config.json", train={"eval_every": every})
    change(tmp_path / RUN / "result.json", steps=steps, final_val_bpb=2.0)

    def agrees(kept: list[dict[str, Any]]) -> bool:
        text = "".join(json.dumps(row) + "\n" for row in kept)
        (tmp_path / RUN / "metrics.jsonl").write_text(text)
        return read_study(tmp_path).runs[0].agrees

    assert agrees(rows)
    for place in range(len(rows)):
        assert not agrees(rows[:place] + rows[place + 1 :])
        assert not agrees(rows[: place + 1] + rows[place:])


@pytest.mark.parametrize("known", [False, True])
def test_a_record_has_a_curve_of_the_excess_where_the_floor_is_known(
    known: bool, tmp_path: Path
) -> None:
    """No column of nulls in the rows of every study of natural text."""
    state = {"excess_bpb": 0.5} if known else {}
    write_study(tmp_path / "study", state=state)
    save_record(read_study(tmp_path / "study"), tmp_path / "record")
    for row in files.read_lines(tmp_path / "record" / ROWS):
        excess = [0.5, None, None, None, 0.5] if known else None
        assert row["curve"].get("excess_bpb") == excess
        assert ("excess_bpb" in row["curve"]) == known


@pytest.mark.parametrize("bpb", [[None, 2.5], [3.0, None], [None, None], [math.nan, 2.5]])
def test_the_cost_of_truncation_is_no_number_where_a_loss_is_none(bpb: list[float | None]) -> None:
    values = {"steps": 1, "bytes": 1, "best_step": 1, "causal": True, "seconds": 1.0}
    losses = dict.fromkeys(("final_val_bpb", "best_val_bpb", "test_bpb"), 2.0)
    curve = {"given": [1, 64], "bpb": bpb}
    result = RunResult.model_validate({**values, **losses, "truncation": curve})
    cost = result.truncation_cost(1)
    assert cost is not None
    assert math.isnan(cost)
    assert result.truncation_cost(2) is None


def ends(folder: Path) -> Any:
    """The panel of the differences, the last of the study in one picture."""
    drawn = next(drawings(compare(read_study(folder))))
    assert drawn.name == "overview"
    return drawn.figure.axes[-1]


@pytest.mark.parametrize("arms", [2, 4, 7])
def test_the_rows_of_arms_share_the_panel_of_differences(arms: int, tmp_path: Path) -> None:
    """Equally high, none empty, the first at the top."""
    effects = {BASELINE: 0.0} | {f"arm-{index}": 0.01 * index for index in range(1, arms)}
    axes = ends(write_study(tmp_path, seeds=range(3), effects=effects))
    bottom, top = axes.get_ylim()
    points = [line.get_ydata() for line in axes.lines if len(line.get_xdata()) == 1]
    shares = (np.ravel(points).reshape(arms - 1, 2).mean(axis=1) - top) / (bottom - top)
    np.testing.assert_allclose(shares, (np.arange(arms - 1) + 0.5) / (arms - 1))


def test_differences_that_are_no_numbers_leave_the_panel_empty(tmp_path: Path) -> None:
    write_study(tmp_path, seeds=range(3))
    for path in (tmp_path / "concentrated").rglob("result.json"):
        change(path, final_val_bpb=math.nan, test_bpb=math.nan)
    axes = ends(tmp_path)
    assert not [line for line in axes.lines if len(line.get_xdata()) == 1]
    left, right = axes.get_xlim()
    assert left < 0 < right


def test_no_difference_is_a_line_in_the_panel(tmp_path: Path) -> None:
    """From top to bottom at zero, which is seen however far the differences lie from it."""
    axes = ends(write_study(tmp_path, seeds=range(3), effects={BASELINE: 0.0, "a": 5.0}))
    zero = [line for line in axes.lines if list(line.get_xdata()) == [0.0, 0.0]]
    assert len(zero) == 1
    assert list(zero[0].get_ydata()) == [0, 1], "shares of the height"
    left, right = axes.get_xlim()
    assert left < 0 < right


def test_arms_lose_the_levels_of_their_block_and_nothing_else(tmp_path: Path) -> None:
    def of_gain(name: str, gain: str) -> dict[str, Any]:
        return {"levels": {"placement": name, "gain": gain}}

    arms = {
        f"{name}_{gain}": of_gain(name, gain) for name in ("x", "y_ema") for gain in ("ema", "lru")
    }
    spec = {"baseline": "x_ema", "arms": arms, "within": ["gain"]}
    one = compare(read_study(write_study(tmp_path, effects=dict.fromkeys(arms, 0.0), spec=spec)))
    assert {arm: one.short(arm) for arm in arms} == {
        "x_ema": "x",
        "x_lru": "x",
        "y_ema_ema": "y_ema",
        "y_ema_lru": "y_ema",
    }


def test_how_a_run_ended_is_told_in_a_few_words(tmp_path: Path) -> None:
    """The last line of an error, and of a loss that is not finite its step."""
    folder = RunFolder(tmp_path)
    assert folder.failure == "did not finish"
    for result, words in [
        (
            {"status": "diverged", "error": "Traceback\nruns: nan at step 60; lower"},
            "diverged at step 60",
        ),
        ({"status": "diverged", "error": None}, "diverged"),
        (
            {"status": "failed", "error": "Traceback\n  File\nOSError: full\n"},
            "failed (OSError: full)",
        ),
        ({"status": "failed", "error": None}, "failed (no reason recorded)"),
    ]:
        folder.finish(result)
        assert folder.failure == words


WRITES = 4
"""Files of a record with references and a registration."""


@pytest.mark.parametrize("failing", range(WRITES))
def test_a_record_that_was_cut_short_is_written_by_the_same_command(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its files has no room."""
    study, record = tmp_path / "study", tmp_path / "record"
    write_study(study)
    save(study / REFERENCES, {"references": [REFERENCE]})
    save(study / REGISTERED, {"sha256": 1})
    write = files.atomic_write
    written: list[Path] = []

    def full(path: Path, data: bytes | str) -> None:
        if len(written) == failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(files, "atomic_write", full)
        with pytest.raises(OSError, match="No space"):
            save_record(read_study(study), record)
    save_record(read_study(study), record)
    save_record(read_study(study), tmp_path / "whole")
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert len(names) == WRITES
    assert sorted(path.name for path in record.iterdir()) == names
    for name in names:
        assert (record / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_record_that_was_cut_short_before_its_rows_is_begun_anew(tmp_path: Path) -> None:
    """Earlier versions wrote the spec first. The folder of a study itself is still refused."""
    study = read_study(write_study(tmp_path / "study"))
    record = tmp_path / "record"
    record.mkdir()
    save(record / SPEC, study.spec)
    save_record(study, record)
    assert {run.name for run in read_study(record).ended} == {run.name for run in study.ended}
    other = write_study(tmp_path / "other")
    with pytest.raises(ValueError, match=rf"{other}, which has no {ROWS} and holds .* {BASELINE};"):
        save_record(study, other)


def test_rows_of_another_study_are_not_replaced(tmp_path: Path) -> None:
    """Not even where its spec is missing."""
    record = tmp_path / "record"
    save_record(read_study(write_study(tmp_path / "other", spec={"name": "other"})), record)
    (record / SPEC).unlink()
    before = (record / ROWS).read_bytes()
    with pytest.raises(ValueError, match="which holds another study"):
        save_record(read_study(write_study(tmp_path / "study")), record)
    assert (record / ROWS).read_bytes() == before


def test_the_folder_of_a_study_that_trains_is_refused_at_once(tmp_path: Path) -> None:
    """Its lock is neither waited for nor removed, and no folder is made."""
    other = tmp_path / "other"
    other.mkdir()
    save(other / SPEC, {"name": "other"})
    study = read_study(write_study(tmp_path / "study"))
    with (
        held(other, "study"),
        pytest.raises(ValueError, match="which holds another study; name another folder"),
    ):
        save_record(study, other)
    assert sorted(path.name for path in other.iterdir()) == sorted([LOCK, SPEC])


def test_a_record_that_was_cut_short_is_not_finished_by_a_study_without_its_arms(
    tmp_path: Path,
) -> None:
    record = tmp_path / "record"
    first = write_study(tmp_path / "first", effects={BASELINE: 0.0, "a": 0.1})
    save_record(read_study(first), record)
    (record / SPEC).unlink()
    before = (record / ROWS).read_bytes()
    second = read_study(write_study(tmp_path / "second", effects={BASELINE: 0.0}))
    with pytest.raises(ValueError, match=rf"record must have a {SPEC}, .* run the command that"):
        save_record(second, record)
    assert (record / ROWS).read_bytes() == before


def test_no_row_is_lost_where_two_write_a_record_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits for the first, which has read the record before the second begins."""
    record = tmp_path / "record"
    first = read_study(write_study(tmp_path / "first", seeds=[0]))
    second = read_study(write_study(tmp_path / "second", seeds=[1]))
    other = threading.Thread(target=save_record, args=(second, record))
    write = records._write_record

    def write_late(study: Study, *given: Any) -> None:
        if study is first:
            other.start()
            other.join(1.0)
        write(study, *given)

    monkeypatch.setattr(records, "_write_record", write_late)
    save_record(first, record)
    other.join()
    rows = files.read_lines(record / ROWS)
    assert {row["seed"] for row in rows} == {0, 1}
    assert not (record / LOCK).exists()


def test_a_record_that_another_process_writes_is_refused_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "PATIENCE", 0.0)
    study = read_study(write_study(tmp_path / "study"))
    record = tmp_path / "record"
    record.mkdir()
    with (
        held(record, "record"),
        pytest.raises(ValueError, match=r"record .*/record is in use by another process: wait"),
    ):
        save_record(study, record)
