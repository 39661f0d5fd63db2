"""A study goes on from its record alone, and ends as if it had been run in one place."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel.common.files import save_json
from plkernel.config.reading import load_spec
from plkernel.records.layout import CONFIG, METRICS, ROWS, run_folder
from plkernel.records.restore import restore
from plkernel.records.study import read_study
from plkernel.results.table import save_record
from plkernel.training.folder import RunFolder
from plkernel.training.loop import prepare, run_training


@pytest.fixture
def whole(tiny_spec: Callable[..., Path], tmp_path: Path) -> Path:
    """A study of two arms at one seed, finished."""
    spec = load_spec(tiny_spec(steps=2, eval_every=1, truncation_windows=4))
    for arm in spec.arms:
        run_training(prepare(spec, arm, 0, tmp_path / "whole"), progress_bar=False)
    save_json(tmp_path / "whole" / "spec.json", spec.model_dump(mode="json"))
    return tmp_path / "whole"


def test_what_is_put_back_gives_the_same_record_and_is_not_trained_again(whole: Path, tmp_path: Path) -> None:
    save_record(read_study(whole), tmp_path / "record")
    assert restore(tmp_path / "record", tmp_path / "again") == 2
    save_json(tmp_path / "again" / "spec.json", json.loads((whole / "spec.json").read_text()))
    save_record(read_study(tmp_path / "again"), tmp_path / "second")
    assert (tmp_path / "second" / ROWS).read_text() == (tmp_path / "record" / ROWS).read_text()
    spec = load_spec(whole / "spec.json")
    task = prepare(spec, "uniform", 0, tmp_path / "again")
    task.folder.check(task.config)
    before = (task.folder.path / METRICS).read_bytes()
    assert run_training(task, progress_bar=False)["status"] == "finished"
    assert (task.folder.path / METRICS).read_bytes() == before


def test_what_is_there_stays(whole: Path, tmp_path: Path) -> None:
    save_record(read_study(whole), tmp_path / "record")
    before = {path: path.read_bytes() for path in sorted(whole.rglob("*")) if path.is_file()}
    assert restore(tmp_path / "record", whole) == 0
    assert {path: path.read_bytes() for path in sorted(whole.rglob("*")) if path.is_file()} == before


def test_a_run_of_another_spec_is_refused_as_ever(whole: Path, tiny_spec: Callable[..., Path], tmp_path: Path) -> None:
    save_record(read_study(whole), tmp_path / "record")
    restore(tmp_path / "record", tmp_path / "again")
    task = prepare(load_spec(tiny_spec("other.toml", steps=3, eval_every=1)), "uniform", 0, tmp_path / "again")
    with pytest.raises(ValueError, match="was made by another spec"):
        task.folder.check(task.config)


def test_rounding_of_another_processor_is_no_other_spec(whole: Path) -> None:
    folder = RunFolder(run_folder(whole, "power-law", 0))
    config = json.loads((folder.path / CONFIG).read_text())
    config["train"]["learning_rate"] *= 1 + 2**-52
    folder.check(config)
    config["train"]["learning_rate"] *= 1 + 1e-9
    with pytest.raises(ValueError, match=r"made by another spec \(train.learning_rate was 0.01, is now 0.0100000000"):
        folder.check(config)


def test_what_is_no_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no rows.jsonl, give a folder that plkernel.report --record wrote"):
        restore(tmp_path, tmp_path / "out")
    (tmp_path / ROWS).write_text('{"arm": "a"}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl"):
        restore(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("arm", ["../out", "/tmp/out", "..", "a/b", ""])
def test_a_record_writes_into_the_study_alone(arm: str, whole: Path, tmp_path: Path) -> None:
    save_record(read_study(whole), tmp_path / "record")
    rows = [json.loads(line) for line in (tmp_path / "record" / ROWS).read_text().splitlines()]
    (tmp_path / "record" / ROWS).write_text(json.dumps({**rows[0], "arm": arm}) + "\n")
    with pytest.raises(ValueError, match="are no arm and seed"):
        restore(tmp_path / "record", tmp_path / "again" / "deep")
    assert not (tmp_path / "again").exists()


def test_links_are_not_written_through(whole: Path, tmp_path: Path) -> None:
    save_record(read_study(whole), tmp_path / "record")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "uniform").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="link"):
        restore(tmp_path / "record", tmp_path / "again")
    assert list((tmp_path / "elsewhere").iterdir()) == []
