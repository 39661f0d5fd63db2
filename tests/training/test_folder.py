"""The folder of a run: its rows, its identity, its end, and the lock."""

import errno
import json
import os
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any
from zlib import crc32

import pytest

from plkernel.common.files import (
    CHECKPOINT,
    DIVERGED,
    ENVIRONMENT,
    FAILED,
    FINISHED,
    METRICS,
    REGISTERED,
    RESULT,
)
from plkernel.training.folder import FIGURES, RunFolder, RunProgress, locked, other_run

TRACE = "Traceback (most recent call last):\n  File ...\nValueError: no such luck\n"


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (None, "did not finish"),
        ({"status": DIVERGED, "error": "the loss is nan at step 6 of 40"}, "diverged at step 6"),
        ({"status": DIVERGED, "error": None}, "diverged"),
        ({"status": FAILED, "error": TRACE}, "failed (ValueError: no such luck)"),
        ({"status": FAILED}, "failed (no reason recorded)"),
        ({"status": FAILED, "error": " \n"}, "failed (no reason recorded)"),
    ],
)
def test_the_end_of_a_run_is_told_in_a_few_words(
    result: dict[str, Any] | None, told: str, tmp_path: Path
) -> None:
    if result is not None:
        (tmp_path / RESULT).write_text(json.dumps(result))
    assert RunFolder(tmp_path).failure == told


ROW = {"step": 1, "val_bpb": 2.5}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "arm" / "seed-0")


def begun(folder: RunFolder) -> RunFolder:
    folder.open({"seed": 0}, {"started": "then", "threads": 1})
    return folder


def test_a_row_is_on_the_disk_and_its_place_in_the_progress(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_size))
    begun(folder)
    flushed.clear()
    first = folder.append(ROW, RunProgress(step=1))
    second = folder.append({**ROW, "step": 2}, first)
    content = (folder.path / METRICS).read_bytes()
    assert flushed == [first.metrics_bytes, second.metrics_bytes]
    assert [json.loads(line) for line in content.splitlines()] == [ROW, {**ROW, "step": 2}]
    assert (second.metrics_bytes, second.metrics_crc) == (len(content), crc32(content))
    assert second.step == 1
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.append({"val_bpb": float("nan")}, second)


def test_a_row_that_finds_no_room_is_told_with_its_file(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system names no file where it is a write that fails."""
    begun(folder)

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=f"No space left on device: '{folder.path / METRICS}'"):
        folder.append(ROW, RunProgress())


def test_rows_behind_the_checkpoint_are_cut_and_others_are_not(folder: RunFolder) -> None:
    begun(folder)
    folder.cut(RunProgress())
    first = folder.append(ROW, RunProgress(step=4, loss_count=1))
    folder.append({**ROW, "step": 2}, first)
    folder.cut(first)
    assert json.loads((folder.path / METRICS).read_text()) == ROW
    (folder.path / METRICS).write_text('{"step": 9}\n')
    with pytest.raises(ValueError, match="not as the run left it at the step 3 of its last eval"):
        folder.cut(first)
    assert (folder.path / METRICS).read_text() == '{"step": 9}\n'
    (folder.path / METRICS).unlink()
    with pytest.raises(ValueError, match="bring it back, or remove"):
        folder.cut(first)


def test_a_folder_belongs_to_one_configuration(folder: RunFolder) -> None:
    begun(folder)
    folder.check({"seed": 0})
    with pytest.raises(ValueError, match=r"by another spec \(seed was 0, is now 1\): use another"):
        folder.open({"seed": 1}, {})
    assert other_run({"a": 1}, {"a": 1}) == ""
    five = {name: 1 for name in "abcde"}
    assert other_run({}, five).count("is now") == 4


def test_what_began_stays_and_what_failed_is_forgotten(folder: RunFolder) -> None:
    begun(folder)
    folder.finish({"status": FAILED, "error": "x"})
    assert folder.status == FAILED
    folder.open({"seed": 0}, {"started": "now", "threads": 2, "registration": "abc"})
    assert folder.status is None
    environment = json.loads((folder.path / ENVIRONMENT).read_text())
    assert environment == {"started": "then", "threads": 2, "registration": "abc"}
    folder.open({"seed": 0}, {"started": "later", "threads": 3, "registration": "other"})
    environment = json.loads((folder.path / ENVIRONMENT).read_text())
    assert environment == {"started": "then", "threads": 3, "registration": "abc"}
    folder.finish({"status": FINISHED, **dict.fromkeys(FIGURES, 1)})
    folder.open({"seed": 0}, {"threads": 4})
    assert folder.status == FINISHED
    assert json.loads((folder.path / ENVIRONMENT).read_text()) == environment


def test_versions_of_the_code_that_a_run_went_on_from_stay(folder: RunFolder) -> None:
    """From a checkpoint: without one, nothing of an earlier sitting is left."""

    def environment() -> dict[str, Any]:
        return dict(json.loads((folder.path / ENVIRONMENT).read_text()))

    first = {"commit": "a", "source": "1", "code": {"own:Model": {"sha256": "x"}}}
    second = {**first, "code": {"own:Model": {"sha256": "y"}}}
    folder.open({"seed": 0}, second)
    folder.open({"seed": 0}, first)
    assert environment() == first
    folder.checkpoint.touch()
    folder.open({"seed": 0}, {**first, "commit": "b"})
    assert "earlier" not in environment(), "the same source at another commit is the same"
    folder.open({"seed": 0}, second)
    assert environment() == {**second, "earlier": [{**first, "commit": "b"}]}
    folder.open({"seed": 0}, {**second, "source": "2"})
    assert environment()["earlier"] == [{**first, "commit": "b"}, second]


@pytest.mark.parametrize("earlier", [3, "ab", ["x"], None])
def test_an_environment_that_lists_no_versions_is_refused(earlier: Any, folder: RunFolder) -> None:
    """Nothing is changed: the file may be brought back."""
    begun(folder)
    folder.checkpoint.touch()
    folder.finish({"status": FAILED, "error": "x"})
    (folder.path / ENVIRONMENT).write_text(json.dumps({"earlier": earlier}))
    before = {path: path.read_bytes() for path in folder.path.iterdir()}
    with pytest.raises(ValueError, match=r"environment\.json: earlier must be a list of versions"):
        begun(folder)
    assert {path: path.read_bytes() for path in folder.path.iterdir()} == before


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([], "must say how the run ended, .*; remove it to go on"),
        ({"status": "else"}, "must say how the run ended, .* got {'status': 'else'}"),
        ({"status": FAILED, "error": 3}, "must say in words what went wrong, got 3; remove it to"),
        (
            {"status": FINISHED},
            "must have steps, bytes, final_val_bpb, best_val_bpb, test_bpb, sec",
        ),
        (
            {"status": FINISHED, **dict.fromkeys(FIGURES[:-1], 1)},
            "must have causal, got none; remove it to go on from the last checkpoint",
        ),
    ],
)
def test_a_result_that_says_too_little_is_refused(
    result: Any, message: str, tmp_path: Path
) -> None:
    (tmp_path / RESULT).write_text(json.dumps(result))
    with pytest.raises(ValueError, match=message):
        _ = RunFolder(tmp_path).result


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_a_registration_is_that_of_the_study_or_of_the_one_it_serves(
    levels: int, tmp_path: Path
) -> None:
    """STUDY/ARM/seed-0 and STUDY/tuning/ARM/seed-0: two and three folders above."""
    path = tmp_path / "a" / "b" / "c" / "d" / "seed-0"
    (path.parents[levels - 1]).mkdir(parents=True)
    (path.parents[levels - 1] / REGISTERED).write_text('{"sha256": "abc"}')
    assert RunFolder(path).registration == ("abc" if levels in (2, 3) else None)


def test_a_folder_is_held_by_one_process(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with folder.lock():
        assert folder.path.is_dir()
        with (
            pytest.raises(ValueError, match="run folder x is in use by another process: wait"),
            locked(folder.path, "run folder x"),
        ):
            pass
    with locked(folder.path, "again"):
        pass

    def refuse(number: int) -> Any:
        def acquire(*_: Any, **__: Any) -> None:
            raise OSError(number, os.strerror(number))

        return acquire

    for number, words in ((errno.ENOLCK, "x cannot be locked"), (errno.EOPNOTSUPP, "x cannot be")):
        monkeypatch.setattr("plkernel.common.locks.FileLock.acquire", refuse(number))
        with pytest.raises(OSError, match=words), locked(folder.path, "x"):
            pass
    monkeypatch.setattr("plkernel.common.locks.FileLock.acquire", refuse(errno.EIO))
    with pytest.raises(OSError, match="Input/output error") as caught, locked(folder.path, "x"):
        pass
    assert "mount its file system" not in str(caught.value)


def test_a_folder_that_is_let_go_soon_is_waited_for(folder: RunFolder) -> None:
    """As by the worker of a study whose parent was killed."""
    begun(folder)
    is_held = Event()

    def hold() -> None:
        with locked(folder.path, "x"):
            is_held.set()
            time.sleep(0.2)

    other = Thread(target=hold)
    other.start()
    is_held.wait(30)
    with folder.lock():
        pass
    other.join()


@pytest.mark.parametrize("name", ["arm", "arm/seed-0"])
def test_a_run_is_not_written_through_a_link(name: str, folder: RunFolder, tmp_path: Path) -> None:
    """Neither of its own folder nor of that of its arm."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(elsewhere)
    with pytest.raises(ValueError, match=r"got a symbolic link to .*elsewhere"), folder.lock():
        pass
    assert not list(elsewhere.iterdir())


def test_a_folder_that_no_checkpoint_can_be_written_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "name-\udcff"
    message = r"'out .udcff' must be a path in UTF-8"
    with pytest.raises(ValueError, match=message), locked(folder, "out \udcff"):
        pass
    assert not folder.exists()


def test_links_in_a_folder_are_not_followed(folder: RunFolder, tmp_path: Path) -> None:
    begun(folder)
    (folder.path / METRICS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="got a symbolic link to"), folder.lock():
        pass


@pytest.mark.parametrize("name", [CHECKPOINT, METRICS])
def test_a_run_whose_files_may_not_be_read_stays_as_it_is(
    name: str, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says so, and the run goes on once they may."""
    begun(folder)
    folder.finish({"status": FAILED, "error": "no memory"})
    (folder.path / name).write_text("")
    before = {path: path.read_bytes() for path in folder.path.iterdir()}
    opened = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(PermissionError, match=name):
            folder.open({"seed": 0}, {})
    assert {path: path.read_bytes() for path in folder.path.iterdir()} == before
