"""Studies read from folders and records: every state of a run, damage named with its file, records,
rows.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from studies import BASELINE, REFERENCE, change, save, write_study

from plkernel.results.record import restore, save_record
from plkernel.results.saved import Reference
from plkernel.results.study import read_study
from plkernel.training.folder import RunFolder, RunProgress

RUN = f"{BASELINE}/seed-0"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    kernel = {
        "kernel": {"lags": [1, 2], "blocks": [[1.0, 0.5]]},
        "half_life_quantiles": [[1, 2, 3, 4, 5, 6, 7.0]],
    }
    return write_study(tmp_path / "study", state=kernel)


def test_every_state_of_a_run_is_told(study: Path) -> None:
    assert [run.status for run in read_study(study).runs] == ["finished"] * 4
    run = read_study(study).finished("concentrated")[1]
    assert [row.step for row in run.evaluations] == [0, 10, 20, 30, 40]
    assert run.result is not None
    assert read_study(study).curves("concentrated")[1][40 * 8192] == run.result.final_val_bpb
    assert run.result.truncation_cost(1) is None
    assert set(run.first) == set(run.last) == {"kernel", "half_life_quantiles"}
    change(study / RUN / "result.json", status="failed", error="out of memory")
    change(study / BASELINE / "seed-1/result.json", status="diverged")
    (study / "concentrated/seed-0/result.json").unlink()
    (study / "concentrated/seed-1/config.json").unlink()
    read = read_study(study)
    assert [run.status for run in read.runs] == ["failed", "diverged", "unfinished", "not started"]
    assert [run.error for run in read.ended] == ["out of memory", "no reason recorded"]
    assert read.finished() == []


def test_rows_that_contradict_the_result_are_noticed(study: Path) -> None:
    change(study / RUN / "config.json", train={"eval_every": 10})
    path = study / RUN / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert read_study(study).runs[0].agrees
    other = lines[-1].replace('"val_bpb": 2', '"val_bpb": 3')
    for wrong in (lines[:-1], [lines[1], lines[0], *lines[2:]], [*lines[:-1], other]):
        path.write_text("".join(wrong))
        assert not read_study(study).runs[0].agrees


ROW = {
    "arm": BASELINE,
    "seed": 0,
    "status": "finished",
    "config": {"corpus": {}, "model": {}},
    "environment": {},
}
LOSSES = {"step": 0, "bytes": 0, "val_bpb": 8.0}
GROUPS = {"up_to": [64], "queries": [4], "accuracy": [0.5]}
RECALL = {
    "test": "persistence",
    "length": 64,
    "pairs": 4,
    "sequences": 1,
    "accuracy": 0.5,
    "distance": GROUPS,
    "order": GROUPS,
}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("spec.json", None, "holds no spec.json"),
        ("spec.json", "[]", r"spec.json: must hold an object, got \[\]"),
        ("spec.json", "{", "spec.json: not readable as JSON"),
        ("spec.json", {"baseline": "x"}, "baseline must be one of the arms, got 'x'"),
        ("spec.json", {"seeds": []}, r"seeds: .*got \[\]"),
        (
            "spec.json",
            {"arms": {BASELINE: {"against": "x"}}},
            f"arms.{BASELINE}.against must be one of the arms, got 'x'",
        ),
        ("spec.json", {"arms": {BASELINE: {"rates": [-1.0]}}}, "rates.0: .*got -1.0"),
        ("spec.json", {"arms": {BASELINE: {"train": 3}}}, f"arms.{BASELINE}.train: .*got 3"),
        ("spec.json", {"train": {"batch": "x"}}, "train.batch: .*got 'x'"),
        (
            "spec.json",
            {
                "tuning": {"method": "curve"},
                "arms": {BASELINE: {"levels": {"learning_rate": "0.1"}}},
            },
            f"arms.{BASELINE}.learning_rate must be one of tuning.rates in a study of curves",
        ),
        (
            "references.json",
            {"references": [{**REFERENCE, "orders": [1]}]},
            "references.json: .*of one length",
        ),
        (
            f"{RUN}/config.json",
            {"seed": 7},
            f"must belong to arm '{BASELINE}' and seed 0, got '{BASELINE}' and 7",
        ),
        (f"{RUN}/config.json", {"model": 3}, "seed-0: config.model: .*got 3"),
        (f"{RUN}/config.json", {"model": {"config": 3}}, "seed-0: config.model.config: .*got 3"),
        (
            f"{RUN}/config.json",
            {"model": {"position_scaling": True, "scaling_length": "x"}},
            "seed-0: config.model.scaling_length: .*got 'x'",
        ),
        (f"{RUN}/config.json", {"corpus": {"size": "x"}}, "config.corpus.size: .*got 'x'"),
        (f"{RUN}/environment.json", {"commit": 1}, "seed-0: environment.commit: .*got 1"),
        (f"{RUN}/result.json", {"status": "done"}, "seed-0: status: .*'finished', .*got 'done'"),
        (f"{RUN}/result.json", "3", "result.json must hold an object, got 3"),
        (f"{RUN}/result.json", {"steps": "9"}, "seed-0: result.steps: .*got '9'"),
        (f"{RUN}/result.json", {"truncation": {"given": [1], "bpb": []}}, "of one length"),
        (
            f"{RUN}/result.json",
            {"final_val_bpb": 1e308},
            r"result.final_val_bpb: must lie between -1e\+39 and 1e\+39, got 1e\+308",
        ),
        (
            f"{RUN}/result.json",
            {"truncation": {"given": [1], "bpb": [2.0], "standard_error": 0.1}},
            "truncation.standard_error: .*got 0.1",
        ),
        (
            f"{RUN}/result.json",
            {"recall": {"tests": [{**RECALL, "test": "memory"}]}},
            "result.recall.tests.0.test: .*'capacity' or 'persistence', got 'memory'",
        ),
        (
            f"{RUN}/result.json",
            {"recall": {"tests": [RECALL]}},
            "result.recall.tests: must hold capacity and persistence, got no capacity",
        ),
        (
            f"{RUN}/metrics.jsonl",
            {**LOSSES, "val_bpb": -1e300},
            r"evaluations.0.val_bpb: must lie between -1e\+39 and 1e\+39, got -1e\+300",
        ),
        (
            f"{RUN}/metrics.jsonl",
            {**LOSSES, "half_life_quantiles": [[]]},
            "first.half_life_quantiles.0: .*at least 1 item",
        ),
        (
            f"{RUN}/metrics.jsonl",
            {**LOSSES, "half_life_quantiles": [[1.0], [1.0, 2.0]]},
            "first.half_life_quantiles: must hold rows of one length, got 1 and 2",
        ),
        (
            f"{RUN}/metrics.jsonl",
            {**LOSSES, "kernel": {"lags": [1], "blocks": [[1.0], [1.0, 2.0]]}},
            "first.kernel.blocks: must hold rows of one length, got 1 and 2",
        ),
        (
            f"{RUN}/metrics.jsonl",
            None,
            "metrics.jsonl: must hold the evaluations of a finished run, got none",
        ),
        (
            f"{RUN}/metrics.jsonl",
            "",
            "metrics.jsonl: must hold the evaluations of a finished run, got none",
        ),
        (f"{RUN}/metrics.jsonl", '{"step": 0}\n', "seed-0: evaluations.0.bytes is missing"),
        (f"{RUN}/metrics.jsonl", '{"step": 0\n{}\n', "metrics.jsonl: line 1"),
        (
            "rows.jsonl",
            '{"arm": "a", "seed": 0}\n',
            "rows.jsonl: status is missing; config is missing",
        ),
        (
            "rows.jsonl",
            json.dumps(ROW) + "\n",
            "rows.jsonl: must hold the result of a finished run, got none",
        ),
        ("rows.jsonl", json.dumps(ROW), "its last line must be whole, got one that is cut off"),
        (
            "rows.jsonl",
            2 * (json.dumps({**ROW, "status": "failed"}) + "\n"),
            "must hold one row for each run, got two rows of one run",
        ),
        (
            "rows.jsonl",
            json.dumps({**ROW, "curve": {"step": [1, 2], "bytes": [1]}}) + "\n",
            "must be of one length",
        ),
    ],
)
def test_damage_is_named_with_its_file(study: Path, file: str, content: Any, message: str) -> None:
    path = study / file
    if content is None:
        path.unlink()
    elif isinstance(content, str):
        path.write_text(content)
    elif path.suffix == ".jsonl":
        path.write_text(f"{json.dumps(content)}\n")
    else:
        save(path, {**(json.loads(path.read_text()) if path.exists() else {}), **content})
    with pytest.raises(ValueError, match=message):
        read_study(study)


def test_a_record_is_the_study_and_restores_it(study: Path, tmp_path: Path) -> None:
    save(study / "references.json", {"references": [REFERENCE]})
    save(study / "tuning/spec.json", json.loads((study / "spec.json").read_text()))
    change(study / RUN / "result.json", status="failed", error="no memory")
    change(study / BASELINE / "seed-1/result.json", test_bpb=None, causal=False)
    change(
        study / "concentrated/seed-0/result.json", truncation={"given": [1, 64], "bpb": [3.0, 2.5]}
    )
    before = read_study(study)
    record = tmp_path / "record"
    save_record(before, record)
    kept = read_study(record)
    assert list(map(str, kept.runs)) == list(map(str, before.runs)), "as text, because of NaN"
    assert math.isnan(kept.runs[1].result.test_bpb)  # type: ignore[union-attr]
    assert kept.runs[2].result.truncation_cost(1) == 0.5  # type: ignore[union-attr]
    assert kept.references == before.references
    assert kept.reference(BASELINE) is kept.references[0]
    save_record(kept, tmp_path / "third")
    for name in ("rows.jsonl", "tuning/spec.json"):
        assert (tmp_path / "third" / name).read_bytes() == (record / name).read_bytes()
    with pytest.raises(ValueError, match="record must be another folder"):
        save_record(kept, record)
    with pytest.raises(
        ValueError,
        match=r"record must be an empty folder or a record of the same study, got .*; name",
    ):
        save_record(kept, study)
    again = tmp_path / "again"
    assert restore(record, again) == 4
    (again / RUN / "result.json").unlink()  # killed while it was written
    assert [restore(record, again), restore(record, again)] == [1, 0]
    for name in ("spec.json", "tuning/spec.json"):
        save(again / name, json.loads((record / name).read_text()))
    save_record(read_study(again), tmp_path / "fourth")
    assert (tmp_path / "fourth/rows.jsonl").read_bytes() == (record / "rows.jsonl").read_bytes()


def test_a_record_keeps_what_the_study_lacks(study: Path, tmp_path: Path) -> None:
    """Runs of other seeds, and those that go on; in the search for learning rates too."""
    record = tmp_path / "record"
    for folder in (study, study / "tuning"):
        write_study(folder, seeds=(0, 1, 2))
    assert save_record(read_study(study), record) == []
    whole = read_study(record)
    for folder in (study, study / "tuning"):
        change(folder / "spec.json", seeds=[0, 1])
    (study / "concentrated/seed-0/result.json").unlink()
    change(study / RUN / "result.json", test_bpb=1.5)
    named = [f"{BASELINE}/seed-2", "concentrated/seed-0", "concentrated/seed-2"]
    assert save_record(read_study(study), record) == [*named, named[0], named[2]]
    kept = read_study(record)
    assert kept.seeds == (0, 1)
    assert kept.beside == (("concentrated", 2), (BASELINE, 2))
    assert kept.finished(BASELINE)[0].result.test_bpb == 1.5  # type: ignore[union-attr]
    assert kept.finished("concentrated") == whole.finished("concentrated")[:2]
    for part in (record, record / "tuning"):
        change(part / "spec.json", seeds=[0, 1, 2])
        assert len(read_study(part).finished()) == 6


@pytest.mark.parametrize("part", [".", "tuning"])
def test_a_record_takes_no_runs_of_other_settings(part: str, study: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    write_study(study / "tuning")
    save_record(read_study(study), record)
    before = {path: path.read_bytes() for path in record.rglob("*.*")}
    (study / part / RUN / "result.json").unlink()
    change(study / part / BASELINE / "seed-1/config.json", train={"steps": 80})
    change(study / "concentrated/seed-0/result.json", test_bpb=1.5)
    with pytest.raises(
        ValueError,
        match=rf"record must hold runs of the study's settings, got .* whose {RUN} is missing in"
        r" the study and was made by another spec \(train.* name another folder",
    ):
        save_record(read_study(study), record)
    assert {path: path.read_bytes() for path in record.rglob("*.*")} == before


def test_an_arm_that_the_study_has_not_run_is_held_against_its_spec(
    study: Path, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    change(study / "spec.json", train={"steps": 60})
    save_record(read_study(study), record)
    shutil.rmtree(study / BASELINE)
    assert save_record(read_study(study), record) == [f"{BASELINE}/seed-0", f"{BASELINE}/seed-1"]
    change(study / "spec.json", train={"steps": 80})
    with pytest.raises(
        ValueError, match=rf"whose {RUN} is missing .* \(train.steps was 60, is now"
    ):
        save_record(read_study(study), record)


@pytest.mark.parametrize(
    ("rates", "of_arm", "of_all", "asked"),
    [
        ([0.001, 0.002], None, 0.002, None),  # a new folder, in which no search has ended
        ([0.001, 0.002], 0.001, 0.002, None),
        ([0.001, 0.002], 0.002, 0.001, 0.002),
        ([], 0.001, 0.002, None),
        ([], 0.002, 0.001, 0.002),
        ([], None, 0.001, None),
        ([], None, 0.002, 0.002),
    ],
)
def test_an_arm_that_the_study_has_not_run_is_held_against_its_learning_rate(
    rates: list[float],
    of_arm: float | None,
    of_all: float,
    asked: float | None,
    study: Path,
    tmp_path: Path,
) -> None:
    """At 0.001 it was trained, whether its spec said so or a search found it later."""
    record = tmp_path / "record"
    train = {"steps": 60, "learning_rate": 0.001}
    for folder in study.glob(f"{BASELINE}/seed-*"):
        change(folder / "config.json", train=train)
    arms: dict[str, Any] = {BASELINE: {"learning_rate": None}, "concentrated": {}}
    of_spec = {"tuning": {"rates": rates}, "train": {"learning_rate": of_all}}
    change(study / "spec.json", arms=arms, **of_spec)
    save_record(read_study(study), record)
    shutil.rmtree(study / BASELINE)
    arms[BASELINE]["learning_rate"] = of_arm
    change(study / "spec.json", arms=arms)
    if asked is not None:
        told = rf"{RUN} is missing .*learning_rate was 0.001, is now {asked}"
        with pytest.raises(ValueError, match=told):
            save_record(read_study(study), record)
    else:
        assert len(save_record(read_study(study), record)) == 2


def test_a_record_keeps_references_of_other_corpora_and_one_registration(
    study: Path, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    other = {**REFERENCE, "corpus": {**REFERENCE["corpus"], "name": "another"}}
    for entry in (REFERENCE, other):
        save(study / "references.json", {"references": [entry]})
        save_record(read_study(study), record)
    assert read_study(record).references == tuple(
        Reference.model_validate(entry) for entry in (other, REFERENCE)
    )
    for number in (1, 1):
        save(study / "registered.json", {"sha256": number})
        save_record(read_study(study), record)
    save(study / "registered.json", {"sha256": 2})
    with pytest.raises(ValueError, match="record must have the registration of the study, got ano"):
        save_record(read_study(study), record)


def test_a_damaged_record_is_refused_with_the_way_out(study: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    save_record(read_study(study), record)
    rows = (record / "rows.jsonl").read_text()
    for damaged in (rows[:-9], rows + rows.splitlines(keepends=True)[0]):
        (record / "rows.jsonl").write_text(damaged)
        with pytest.raises(ValueError, match=r"^record: .*; or remove .*/record, to write it anew"):
            save_record(read_study(study), record)


def test_a_damaged_result_that_the_spec_leaves_out_is_passed_over(study: Path) -> None:
    write_study(study, seeds=(0, 1, 2))
    change(study / "spec.json", seeds=[0, 1])
    (study / BASELINE / "seed-2/result.json").write_text("{")
    assert read_study(study).beside == (("concentrated", 2),)


def test_nothing_is_restored_of_a_record_with_a_damaged_search(study: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    write_study(study / "tuning")
    save_record(read_study(study), record)
    (record / "tuning/rows.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"tuning/rows.jsonl: arm is missing"):
        restore(record, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_finished_runs_that_the_spec_leaves_out_are_known(study: Path, tmp_path: Path) -> None:
    """Of a folder and of its record; runs that have not finished are no loss."""
    write_study(study, seeds=(0, 1, 2), effects={BASELINE: 0.0, "concentrated": 0.1, "other": 0.2})
    change(study / "other/seed-0/result.json", status="failed")
    record = tmp_path / "record"
    save_record(read_study(study), record)
    for folder in (study, record):
        arms = {arm: {} for arm in (BASELINE, "concentrated")}
        change(folder / "spec.json", seeds=[1, 2], arms=arms)
        assert read_study(folder).beside == (
            ("concentrated", 0),
            (BASELINE, 0),
            ("other", 1),
            ("other", 2),
        )


@pytest.mark.parametrize("name", ["../escape", "/tmp/escape", ".hidden", "a/b", ""])
def test_a_record_from_elsewhere_writes_nowhere_else(
    study: Path, tmp_path: Path, name: str
) -> None:
    record, again = tmp_path / "record", tmp_path / "again"
    save_record(read_study(study), record)
    (again / BASELINE).mkdir(parents=True)
    (again / RUN).symlink_to(tmp_path)
    with pytest.raises(ValueError, match="symbolic link"):
        restore(record, again)
    path = record / "rows.jsonl"
    path.write_text(path.read_text().replace(f'"arm": "{BASELINE}"', f'"arm": "{name}"'))
    with pytest.raises(ValueError, match="arm must be a plain name and seed 0 or more, got"):
        restore(record, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(
        ValueError,
        match=r"with a file rows.jsonl, got .*/study; plkernel.report --record writes one",
    ):
        restore(study, tmp_path / "other")


def test_rows_are_added_checked_and_cut_and_others_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    path = tmp_path / "metrics.jsonl"
    progress = RunProgress(step=10)
    for step in (0, 10):
        progress = folder.append({"step": step}, progress)
    kept = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        folder.append({"step": 20, "loss": math.nan}, progress)
    for content in (
        None,
        kept[:12],
        kept.replace(b"\n", b"\r\n"),
        kept.replace(b"10", b"11"),
        kept[:-1],
    ):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"as the run left it at the step 10 .*its content has been changed"
        ):
            folder.cut(progress)
    path.write_bytes(kept + b'{"step": 20}\n')
    folder.cut(progress)
    assert path.read_bytes() == kept


def test_n_grams_suit_runs_that_read_and_are_judged_by_the_same_windows() -> None:
    train = {"context": 8, "batch": 2, "eval_windows": 4, "test_windows": 4}
    counts = Reference.model_validate({**REFERENCE, "train": train})
    config: dict[str, Any] = {"corpus": REFERENCE["corpus"], "train": {**train, "steps": 9}}
    assert counts.suits(config)
    digest = {"sha256": config["corpus"]["sha256"]}
    assert counts.suits({**config, "corpus": digest})
    assert not counts.suits({**config, "corpus": {"name": "stdlib"}}), "the bytes are not known"
    assert not counts.suits({**config, "corpus": {**digest, "sha256": "0"}})
    for name in ("context", "batch", "eval_windows", "test_windows", "final_windows"):
        assert not counts.suits({**config, "train": {**train, name: 5}}), name


@pytest.mark.parametrize(
    ("counted", "read", "suits"),
    [
        (9, {"steps": 9}, True),
        (9, {"steps": 8}, False),
        (9, {"bytes": 9 * 2 * 8 + 3}, True),
        (9, {"bytes": 8 * 2 * 8}, False),
        (None, {"steps": 8}, True),
    ],
)
def test_n_grams_suit_runs_that_read_as_many_windows(
    counted: int | None, read: dict[str, int], suits: bool
) -> None:
    """With --only some arms of a study may train for longer; its n-grams are counted anew then."""
    train = {"context": 8, "batch": 2}
    counts = Reference.model_validate({**REFERENCE, "train": {**train, "steps": counted}})
    assert counts.suits({"corpus": REFERENCE["corpus"], "train": {**train, **read}}) is suits


@pytest.mark.parametrize(
    ("counted", "read", "suits"),
    [
        ({}, {"carry": False}, True),
        ({}, {"carry": True}, False),
        ({"carry": True}, {"carry": True}, True),
        ({"carry": True}, {"carry": False}, False),
    ],
)
def test_n_grams_suit_runs_that_read_windows_in_the_same_order(
    counted: dict[str, Any], read: dict[str, Any], suits: bool
) -> None:
    counts = Reference.model_validate({**REFERENCE, "train": {"context": 8, **counted}})
    config = {"corpus": REFERENCE["corpus"], "train": {"context": 8, **read}}
    assert counts.suits(config) is suits
