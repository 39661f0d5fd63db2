"""Studies read from folders and records: every state of a run, damage named with its file, records and restoring."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from studies import BASELINE, REFERENCE, change, save, write_study

from plkernel.common.layout import run_folder
from plkernel.results import rows
from plkernel.results.study import Choice, Study, choices, read_study, restore, save_record

RUN = f"{BASELINE}/seed-0"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    kernel = {"kernel": {"lags": [1, 2], "blocks": [[1.0, 0.5]]}, "half_life_quantiles": [[1, 2, 3, 4, 5, 6, 7.0]]}
    return write_study(tmp_path / "study", state=kernel)


def test_every_state_of_a_run_is_told(study: Path) -> None:
    assert [run.status for run in read_study(study).runs] == ["finished"] * 4
    run = read_study(study).finished("concentrated")[1]
    assert [row.step for row in run.evaluations] == [0, 10, 20, 30, 40]
    assert run.at_step(40) == run.curve()[40 * 8192] == run.result.final_val_bpb  # type: ignore[union-attr]
    assert (run.at_step(7), run.result.truncation_cost(1)) == (None, None)  # type: ignore[union-attr]
    assert set(run.first) == set(run.last) == {"kernel", "half_life_quantiles"}
    change(study / RUN / "result.json", status="failed", error="out of memory")
    change(study / BASELINE / "seed-1/result.json", status="diverged")
    (study / "concentrated/seed-0/result.json").unlink()
    (study / "concentrated/seed-1/config.json").unlink()
    read = read_study(study)
    assert [run.status for run in read.runs] == ["failed", "diverged", "unfinished", "not started"]
    assert [run.error for run in read.ended] == ["out of memory", "no reason recorded"]
    assert read.finished() == []


@pytest.mark.parametrize(
    ("change_rows", "agrees"),
    [
        (lambda lines: lines, True),
        (lambda lines: lines[:-1], False),
        (lambda lines: [lines[1], lines[0], *lines[2:]], False),
        (lambda lines: [*lines[:-1], lines[-1].replace('"val_bpb": 2', '"val_bpb": 3')], False),
    ],
)
def test_rows_that_contradict_the_result_are_noticed(study: Path, change_rows: Any, agrees: bool) -> None:
    change(study / RUN / "config.json", train={"eval_every": 10})
    path = study / RUN / "metrics.jsonl"
    path.write_text("".join(change_rows(path.read_text().splitlines(keepends=True))))
    assert read_study(study).runs[0].agrees == agrees


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("spec.json", None, "holds no spec.json"),
        ("spec.json", "[]", r"spec.json: holds \[\], expected an object"),
        ("spec.json", "{", "spec.json: not readable as JSON"),
        ("spec.json", {"baseline": "x"}, "baseline is 'x', none of the arms"),
        ("spec.json", {"seeds": []}, "seeds is "),
        ("spec.json", {"arms": {BASELINE: {"against": "x"}}}, f"arms.{BASELINE}.against is 'x', none of the arms"),
        ("spec.json", {"arms": {BASELINE: {"rates": [-1.0]}}}, "rates.0 is -1.0"),
        ("spec.json", {"tuning": {"rates": [0.1]}}, "tuning.rates need tuning.seeds"),
        ("references.json", {"references": [{**REFERENCE, "orders": [1]}]}, "references.json: .*of one length"),
        (f"{RUN}/config.json", {"seed": 7}, f"belongs to arm '{BASELINE}' and seed 7, not to this folder"),
        (f"{RUN}/config.json", {"model": 3}, "config.json: model is 3"),
        (f"{RUN}/environment.json", {"hardware": {"cpu": 1}}, "environment.json: hardware.cpu is 1"),
        (f"{RUN}/result.json", {"status": "done"}, "result.json: status is 'done', expected 'finished'"),
        (f"{RUN}/result.json", "3", "result.json: holds a number, expected an object"),
        (f"{RUN}/result.json", {"steps": "9"}, "result.json: steps is '9'"),
        (f"{RUN}/result.json", {"truncation": {"given": [1], "bpb": []}}, "of one length"),
        (f"{RUN}/metrics.jsonl", None, "no such file, although the run is recorded as finished"),
        (f"{RUN}/metrics.jsonl", "", "holds no evaluation, although the run is recorded as finished"),
        (f"{RUN}/metrics.jsonl", '{"step": 0}\n', "metrics.jsonl: bytes is missing"),
        (f"{RUN}/metrics.jsonl", '{"step": 0\n{}\n', "metrics.jsonl: line 1"),
        ("rows.jsonl", '{"arm": "a", "seed": 0}\n', "rows.jsonl: status is missing; config is missing"),
    ],
)
def test_damage_is_named_with_its_file(study: Path, file: str, content: Any, message: str) -> None:
    path = study / file
    if content is None:
        path.unlink()
    elif isinstance(content, str):
        path.write_text(content)
    else:
        save(path, {**(json.loads(path.read_text()) if path.exists() else {}), **content})
    with pytest.raises(ValueError, match=message):
        read_study(study)


def told(study: Study) -> list[str]:
    """Everything of the runs but the names in their configuration; as text, because of NaN."""
    return [
        str((run.name, run.status, run.error, run.environment, run.evaluations, run.result, run.first, run.last))
        for run in study.runs
    ]


def test_a_record_is_the_study_and_restores_it(study: Path, tmp_path: Path) -> None:
    save(study / "references.json", {"references": [REFERENCE]})
    save(study / "tuning/spec.json", json.loads((study / "spec.json").read_text()))
    change(study / RUN / "result.json", status="failed", error="no memory")
    change(study / BASELINE / "seed-1/result.json", test_bpb=None, causal=False)
    change(study / "concentrated/seed-0/result.json", truncation={"given": [1, 64], "bpb": [3.0, 2.5]})
    record, again = tmp_path / "record", tmp_path / "again"
    before = read_study(study)
    save_record(before, record)
    kept = read_study(record)
    assert told(kept) == told(before)
    assert math.isnan(kept.runs[1].result.test_bpb)  # type: ignore[union-attr]
    assert "not causal, not a likelihood" in (record / "rows.jsonl").read_text()
    assert kept.runs[2].result.truncation_cost(1) == 0.5  # type: ignore[union-attr]
    assert kept.references == before.references
    assert kept.reference(BASELINE) is kept.references[0]
    save(again / "spec.json", json.loads((study / "spec.json").read_text()))
    assert [restore(record, again), restore(record, again)] == [4, 0]
    assert told(read_study(again)) == told(kept)
    save_record(kept, tmp_path / "third")
    assert (tmp_path / "third/rows.jsonl").read_bytes() == (record / "rows.jsonl").read_bytes()
    with pytest.raises(ValueError, match="record must be another folder"):
        save_record(kept, record)


@pytest.mark.parametrize("name", ["../escape", "/tmp/escape", ".hidden", "a/b", ""])
def test_a_record_from_elsewhere_writes_nowhere_else(study: Path, tmp_path: Path, name: str) -> None:
    save_record(read_study(study), tmp_path / "record")
    path = tmp_path / "record/rows.jsonl"
    path.write_text(path.read_text().replace(f'"arm": "{BASELINE}"', f'"arm": "{name}"'))
    with pytest.raises(ValueError, match="are no arm and seed"):
        restore(tmp_path / "record", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    with pytest.raises(ValueError, match=r"holds no rows.jsonl, give a folder that plkernel.report --record wrote"):
        restore(study, tmp_path / "again")
    save_record(read_study(study), tmp_path / "other")
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / BASELINE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="symbolic link"):
        restore(tmp_path / "other", tmp_path / "again")


def test_rates_are_chosen_when_the_search_has_ended(tmp_path: Path) -> None:
    effects = {"a_rate-0.1": 0.0, "a_rate-0.2": -0.1, "b_rate-0.1": -0.2, "b_rate-0.2": 0.0}
    write_study(tmp_path / "tuning", effects=effects, spec={"baseline": "a_rate-0.1"})
    grids = {"a": [0.1, 0.2], "b": [0.1, 0.2]}
    chosen = choices(grids, tmp_path)
    assert {name: one.rate for name, one in chosen.items()} == {"a": 0.2, "b": 0.1}
    assert chosen["a"].at_edge
    assert not Choice(0.2, {0.1: 3.0, 0.2: 2.0, 0.3: 2.5}).at_edge
    change(run_folder(tmp_path / "tuning", "a_rate-0.2", 0) / "result.json", status="diverged")
    assert choices(grids, tmp_path)["a"].rate == 0.1
    (run_folder(tmp_path / "tuning", "b_rate-0.2", 0) / "result.json").unlink()
    assert set(choices(grids, tmp_path)) == {"a"}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b'{"step": 0}\n{"step": 10}\n{"step": 20}\n', None),
        (None, "it is missing"),
        (b'{"step": 0}\n', "12 of 25 bytes are there"),
        (b'{"step": 0}\r\n{"step": 10}', "line ends have been changed"),
        (b'{"step": 0}\n{"step": 11}\n', "rows are of steps 0, 11, expected 0, 10"),
        (b'{"step": 0}\n{"step"; 10}\n', "rows are of steps 0, unreadable, expected 0, 10"),
        (b'{"step":0 }\n{"step": 10}\n', "its content has been changed"),
    ],
)
def test_rows_are_added_checked_and_cut_and_others_refused(tmp_path: Path, content: bytes | None, fault: str) -> None:
    path, crc = tmp_path / "metrics.jsonl", 0
    for step in (0, 10):
        length, crc = rows.append(path, {"step": step}, crc)
    kept = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        rows.append(path, {"step": 20, "loss": math.nan}, crc)
    path.unlink() if content is None else path.write_bytes(content)
    if fault:
        with pytest.raises(ValueError, match=fault):
            rows.check(path, length, crc, [0, 10])
        return
    assert rows.check(path, length, crc, [0, 10]) == rows.check(path, length, None, [0, 10]) == crc
    rows.cut(path, length)
    assert path.read_bytes() == kept
    assert rows.expected_steps(10, 25) == [0, 10, 20, 25]
