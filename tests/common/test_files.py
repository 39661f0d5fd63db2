"""Files that are whole or absent, errors that name them, and what killed writers leave."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plkernel import experiment, train
from plkernel.commands import bench as bench
from plkernel.commands.corpus import corpus
from plkernel.commands.export import export
from plkernel.commands.fit import fit
from plkernel.commands.gallery import gallery
from plkernel.commands.init import check, show
from plkernel.commands.inspect import inspect
from plkernel.commands.load import load as load_model
from plkernel.commands.measure import measure
from plkernel.commands.probe import probe
from plkernel.commands.report import report
from plkernel.common import cli, files
from plkernel.config import command_line
from plkernel.config.study import Spec
from plkernel.data.corpora import load
from plkernel.study import schedule

NOWHERE = "missing.txt"  # what is looked at after the output folder
COMMANDS: list[tuple[Callable[..., None], list[str], str]] = [
    (fit, ["--corpus", NOWHERE], "--out"),
    (measure, [NOWHERE], "--out"),
    (gallery, ["--only", NOWHERE], "--out"),
    (corpus, [NOWHERE], "--out"),
    (check, ["mup_table8", "--corpus", NOWHERE], "--out"),
    (show, ["transformers_default"], "--json"),
    (bench.scan, [], "--out"),
    (bench.wkv, [], "--out"),
    (bench.wkv7, [], "--out"),
    (bench.train, ["--spec", NOWHERE], "--out"),
    (bench.mi, ["--corpus", NOWHERE], "--out"),
    (inspect, [NOWHERE], "--json"),
    (inspect, [NOWHERE], "--figure"),
    (probe, [NOWHERE], "--json"),
    (probe, [NOWHERE], "--figure"),
]


def refused(run: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        run()
    error = capsys.readouterr().err
    assert (stop.value.code, error.count("\n")) == (2, 1)
    return error


@pytest.mark.parametrize(("command", "arguments", "option"), COMMANDS)
def test_outputs_are_checked_before_the_work(
    command: Callable[..., None],
    arguments: list[str],
    option: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "out.pdf"
    error = refused(lambda: cli.main(command, [*arguments, option, str(place)]), capsys)
    assert f"{option[2:]} {place}: cannot be written (a file is in the way)" in error


@pytest.mark.parametrize("command", [train.command, experiment.command])
def test_outputs_of_training_are_checked_before_the_corpus(
    command: Callable[..., None],
    tiny_spec: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "text.txt" / "out"
    arguments = [str(tiny_spec(corpus=NOWHERE)), "--out", str(place)]
    error = refused(lambda: command_line.main(command, arguments), capsys)
    assert f"out {place}: cannot be written" in error


@pytest.mark.parametrize("command", [export, load_model])
def test_outputs_of_models_are_checked_before_they_are_read(
    command: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"no model")
    place = tmp_path / "file" / "out.pth"
    assert f"out {place}: cannot be" in refused(lambda: cli.main(command, [f"{tmp_path}/file", str(place)]), capsys)


def test_a_folder_that_is_not_there_is_said_with_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quick").mkdir()
    for command, name in ((report, "folder"), (inspect, "model"), (probe, "target")):
        error = refused(lambda command=command: cli.main(command, [str(tmp_path / "quik" / "x")]), capsys)
        assert f"error: {name} {tmp_path}/quik/x: no such file or folder; did you mean {tmp_path}/quick?" in error


def test_the_cache_is_named_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text("text")
    monkeypatch.setenv("PLKERNEL_CACHE", str(text / "cache"))
    with pytest.raises(OSError, match=r"cache folder \(PLKERNEL_CACHE\) .*/text.txt/cache: cannot be written"):
        load(str(text))


def test_a_checked_folder_is_left_as_it_was(tmp_path: Path) -> None:
    files.check_folder(tmp_path / "a" / "b", "out")
    files.check_file(tmp_path / "a" / "b" / "c.json", "out")
    assert not list(tmp_path.iterdir())
    files.check_folder(tmp_path / "a" / "b", "out", keep=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b"]
    with pytest.raises(OSError, match=r"out .*/a: is a folder; name a file"):
        files.check_file(tmp_path / "a", "out")
    with pytest.raises(OSError, match=r"out .* cannot be written \(File name too long\)"):
        files.check_file(tmp_path / ("x" * 250), "out")


@pytest.mark.parametrize(
    "save",
    [
        lambda path: files.atomic_write(path, "x"),
        lambda path: files.atomic_save(path, lambda temporary: temporary.write_bytes(b"x")),
    ],
)
def test_a_full_disk_is_said_with_the_file(save: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "fit.json"
    with pytest.raises(OSError, match="No space left on device") as found:
        save(path)
    assert found.value.filename == str(path)
    assert cli.in_words(found.value) == f"{path}: No space left on device"
    assert not list(tmp_path.iterdir())


def test_a_full_standard_output_is_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    program = (
        "from plkernel.common import cli\ndef work():\n    print('x', flush=True)\ncli.main(work, [], prog='work')"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "error: standard output: No space left on device\n")


WRITER = """
import sys, time
from pathlib import Path
from plkernel.common.files import atomic_file
with atomic_file(Path(sys.argv[1])) as out:
    out.write(b"half")
    out.flush()
    print("ready", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_writer_left_is_swept_and_a_living_one_is_not(tmp_path: Path) -> None:
    path, kept = tmp_path / "fit.json", tmp_path / ".fit.json.original"
    kept.write_text("of somebody else")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"ready\n"
    files.atomic_write(path, "whole")
    assert len(list(tmp_path.iterdir())) == 3, "the temporary file of a living writer"
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    files.atomic_write(path, "whole again")
    assert sorted(tmp_path.iterdir()) == [kept, path]
    assert path.read_text() == "whole again"


def test_the_second_interrupt_keeps_the_hint(
    tiny_spec: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Engine:
        def stop(self) -> None:
            raise KeyboardInterrupt

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(schedule, "_jobs", lambda *_: [])
    monkeypatch.setattr(schedule, "_train", interrupted)
    spec = Spec.model_validate_json(spec_of(tiny_spec()))
    with pytest.raises(KeyboardInterrupt, match=r"saves its last step .* run the same command again to go on"):
        schedule._run(spec, [], tmp_path / "out", 1, Engine(), lambda: None)  # type: ignore[arg-type]


def spec_of(path: Path) -> str:
    from plkernel.config.reading import load_spec

    return load_spec(path).model_dump_json()
