"""The folder of a study: for one experiment at a time, not written through links, and with divergence as an end."""

import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plkernel import experiment
from plkernel.commands.report import write_comparison
from plkernel.common.files import load_json, read_lines
from plkernel.common.layout import REGISTERED, TUNING
from plkernel.config.condition import Condition
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.results.comparison import compare
from plkernel.results.registration import declared, place_of, register
from plkernel.results.study import read_study
from plkernel.study import schedule
from plkernel.study.engine import Job
from plkernel.study.schedule import run_experiment
from plkernel.training.folder import locked
from plkernel.training.loop import Training, prepare, run_training

SpecWriter = Callable[..., Path]
SEARCH = "[tuning]\nrates = [1e-3, 1e-2]\nseeds = [7]"


@dataclass
class Here:
    """An engine that trains in this process, one run at a time; the runs of `lost` diverge at step 6."""

    spec: Spec
    lost: tuple[str, ...] = ()
    started: list[str] = field(default_factory=list)
    active: list[Job] = field(default_factory=list)

    def device(self, condition: Condition) -> str:
        return "cpu"

    def room(self, spec: Spec, device: str) -> int:
        return 1

    def start(self, job: Job) -> None:
        self.started.append(job.name)
        self.active.append(job)
        whole = Training.step

        def poisoned(training: Training) -> None:
            if job.name in self.lost and training.progress.step == 5:
                training.model.head.weight.data.fill_(math.nan)
            whole(training)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Training, "step", poisoned)
            try:
                run_training(prepare(self.spec, job.arm, job.seed, job.study), progress_bar=False)
            except FloatingPointError:
                assert job.name in self.lost

    def ended(self) -> list[Job]:
        return [self.active.pop()]

    def stop(self) -> None:
        pass


def test_a_folder_in_which_an_experiment_runs_is_refused(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    out, spec = tmp_path / "out", load_spec(tiny_spec())
    (out / TUNING).mkdir(parents=True)
    with locked(out, "out"), pytest.raises(ValueError, match=f"out {out} is in use by another process"):
        run_experiment(spec, out, engine=Here(spec))
    search = load_spec(tiny_spec(head=SEARCH))
    for folder in (out, out / TUNING):
        with locked(folder, "out"), pytest.raises(ValueError, match=f"out {folder} is in use by another process"):
            run_experiment(search, out, engine=Here(search))
    assert not list(out.rglob("spec.json"))
    assert not list(out.rglob("metrics.jsonl"))


def test_the_lock_holds_from_the_search_to_the_end(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out, seen = load_spec(tiny_spec(head=SEARCH, steps=1, eval_every=1)), tmp_path / "out", []

    class Watched(Here):
        def start(self, job: Job) -> None:
            with pytest.raises(ValueError, match="is in use"), locked(out, "out"):
                pass
            seen.append(job.study)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec, out, engine=Watched(spec))
    with locked(out, "out"), locked(out / TUNING, "out"):
        assert seen == [out / TUNING]


@pytest.mark.slow
def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from plkernel.training.folder import locked\n"
        "with locked(Path(sys.argv[1]), 'out'):\n    print(flush=True)\n    time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder.stdout as printed:
        printed.readline()
    with pytest.raises(ValueError, match="is in use"), locked(tmp_path, "out"):
        pass
    holder.kill()
    holder.wait()
    with locked(tmp_path, "out"):
        pass


@pytest.mark.parametrize(
    "name", ["spec.json", ".lock", "tuning", "report", "references.json", "uniform", "power-law/seed-1/log.txt"]
)
def test_a_study_with_links_in_it_is_refused(tiny_spec: SpecWriter, tmp_path: Path, name: str) -> None:
    spec, link = load_spec(tiny_spec()), tmp_path / "out" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "elsewhere")
    engine = Here(spec)
    with pytest.raises(ValueError, match=rf"out/{name} is a symbolic link to .*elsewhere"):
        run_experiment(spec, tmp_path / "out", engine=engine)
    assert not (tmp_path / "elsewhere").exists()
    assert engine.started == []


def test_divergence_is_said_and_is_an_end(
    tiny_spec: SpecWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, out = load_spec(tiny_spec()), tmp_path / "out"
    lost = "uniform seed 0"
    assert run_experiment(spec, out, engine=Here(spec, (lost,))) == [lost]
    assert f"{lost} diverged at step 6, see {out / 'uniform/seed-0/log.txt'}\n" in capsys.readouterr().err
    again = Here(spec, (lost,))
    assert run_experiment(spec, out, engine=again) == [lost]
    assert again.started == []
    assert "tiny: 4 runs, 3 finished before, 1 diverged before, 0 at a time" in capsys.readouterr().out
    assert load_json(out / "uniform/seed-0/result.json")["status"] == "diverged"
    asked = Here(spec)
    assert run_experiment(spec, out, engine=asked, retry=True) == []
    assert asked.started == [lost]


def test_the_command_says_what_diverged(
    tiny_spec: SpecWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    spec = load_spec(tiny_spec())
    monkeypatch.setattr(schedule, "opened", lambda *_: nullcontext(Here(spec, ("power-law seed 1",))))
    with pytest.raises(SystemExit) as stop:
        experiment.command(spec, tmp_path / "out", report=False)
    assert stop.value.code == 1
    said = "did not finish: power-law seed 1 (diverged at step 6; lower its learning rate, or try again with --retry)"
    assert said in capsys.readouterr().err


def test_what_an_earlier_attempt_came_to_is_forgotten(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """A run that failed, was begun again and is killed has not failed a second time."""
    task = prepare(load_spec(tiny_spec()), "uniform", 0, tmp_path / "out")
    task.folder.finish({"status": "failed", "error": "ValueError: then"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "run", lambda *_: sys.exit(1))
        with pytest.raises(SystemExit):
            run_training(task, progress_bar=False)
    assert task.folder.failure == "did not finish"
    task.folder.finish({"status": "failed", "error": "Traceback\nValueError: now"})
    assert task.folder.failure == "failed (ValueError: now)"


def finished(spec: Spec, out: Path) -> Path:
    run_experiment(spec, out, engine=Here(spec), only=["uniform"])
    return out / "uniform/seed-0/metrics.jsonl"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda rows: rows[:-1], "3 of its 4 evaluations are in its rows, which are of steps 0 to 8"),
        (lambda rows: rows[2:], "2 of its 4 evaluations are in its rows, which are of steps 8 to 12"),
        (lambda rows: rows[::-1], "4 of its 4 evaluations .* 0 to 12, and out of order"),
        (lambda rows: [*rows, rows[-1]], "4 of its 4 evaluations .* 0 to 12, and out of order"),
    ],
)
def test_the_report_says_which_rows_are_missing(
    tiny_spec: SpecWriter, tmp_path: Path, change: Callable, fault: str
) -> None:
    from plkernel.results.text import warnings

    path = finished(load_spec(tiny_spec()), tmp_path / "out")
    before = warnings(compare(read_study(tmp_path / "out")))
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    new = [text for text in warnings(compare(read_study(tmp_path / "out"))) if text not in before]
    assert len(new) == 1
    assert re.match(rf"uniform, seed 0: {fault}; bring metrics.jsonl back", new[0])


def test_the_report_says_where_rows_and_result_disagree(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    path = finished(load_spec(tiny_spec()), tmp_path / "out")
    last = read_lines(path)[-1]["val_bpb"]
    path.write_text(path.read_text().replace(f'"val_bpb": {last}', '"val_bpb": 1.5'))
    faults = {run.name: run.fault for run in read_study(tmp_path / "out").runs if run.fault}
    assert faults == {"uniform/seed-0": "the last of its rows is not what its result says"}


def test_no_report_is_written_through_a_link(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    finished(load_spec(tiny_spec()), tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out/report").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="out/report is a symbolic link"):
        write_comparison(compare(read_study(tmp_path / "out")))
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(("head", "most"), [("", 255), (SEARCH, 244)])
def test_arm_names_fit_a_folder(tiny_spec: SpecWriter, tmp_path: Path, head: str, most: int) -> None:
    path = tiny_spec(head=head)
    text = path.read_text()
    for length in (most, most + 1):
        path.write_text(text.replace("[arms.power-law]", f"[arms.{'a' * length}]"))
        if length == most:
            (tmp_path / max([*load_spec(path).arms], key=len)).mkdir()
        else:
            with pytest.raises(
                ValueError, match=rf"arm name a+\.\.\. has {length} letters, .* {most} at most"
            ) as error:
                load_spec(path)
            assert len(str(error.value)) < 200 + len(str(path))


def test_a_registration_is_copied_to_the_folder(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    hypothesis = "[[hypotheses]]\nname = 'a'\narm = 'power-law'\nclaim = 'lower'"
    spec = load_spec(tiny_spec(head=hypothesis))
    place = place_of(spec)
    register(spec, place, tmp_path / "out")
    grown = spec.model_copy(update={"seeds": (0,)})
    run_experiment(grown, tmp_path / "out", engine=Here(spec), only=["power-law"])
    assert (tmp_path / "out" / REGISTERED).read_bytes() == place.read_bytes()
    assert "note: otherwise than registered: seeds: 1 gone" in capsys.readouterr().err
    found = declared(read_study(tmp_path / "out"))
    assert found is not None
    assert found.changes == ("seeds: 1 gone",)
