"""Studies in a queue: jobs that submitit starts on this machine, and a queue that only says what it
is told to.
"""

import ast
import errno
import fcntl
import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from plkernel.commands.experiment import check_arguments, command, slurm_gathered
from plkernel.common.files import FAILED, TUNING, load_json, save_json
from plkernel.config.condition import Condition, from_config
from plkernel.config.reading import load_spec
from plkernel.study import queue as queues
from plkernel.study import queued, slurm
from plkernel.study.engine import Engine, Job, LeftToQueueError
from plkernel.study.queue import JOB, JOBS, QueueEngine, SavedJob, job_of, jobs_of
from plkernel.study.queued import QueuedRun, report_if_last
from plkernel.study.schedule import run_experiment
from plkernel.study.slurm import SlurmQueue, minutes, parameters
from plkernel.study.status import is_locked, render, states_of
from plkernel.training.folder import RunFolder, locked
from plkernel.training.loop import open_run, prepare, run_training

SpecWriter = Callable[..., Path]
Start = Callable[..., subprocess.Popen[str]]
PAGE = Path(__file__).parents[2] / "docs" / "studies" / "cluster.md"
RESULT = {"status": "finished", "steps": 2, "seconds": 0.1, "causal": True}
RESULT |= dict.fromkeys(("final_val_bpb", "best_val_bpb", "test_bpb"), 1.0) | {
    "best_step": 2,
    "bytes": 256,
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders and queues are looked at without a pause."""
    monkeypatch.setattr(queues, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(queues, "ASK_SECONDS", 0.0)


class OnThisMachine:
    """A queue that starts all jobs at once, by submitit's local executor."""

    name = "local"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: dict[str, Any] = {}

    def device(self, condition: Condition) -> str:
        return "cpu"

    def submit(self, runs: Sequence[QueuedRun]) -> list[SavedJob]:
        submitit = pytest.importorskip("submitit", reason="submitit, of the extra slurm, is absent")
        executor = submitit.LocalExecutor(folder=self.folder / JOBS)
        executor.update_parameters(timeout_min=60)
        entries = []
        for run in runs:
            job = executor.submit(run)
            self.jobs[job.job_id] = job
            entries.append(SavedJob(job.job_id, self.name, f"{JOBS}/{job.paths.stderr.name}"))
        return entries

    def states(self) -> Mapping[str, str]:
        return {name: "COMPLETED" if job.done() else "RUNNING" for name, job in self.jobs.items()}

    def cancel(self, ids: Sequence[str]) -> None:
        for one in ids:
            self.jobs[one].cancel()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[OnThisMachine]:
    """A queue on this machine, whose jobs have ended at the end of the test."""
    queue = OnThisMachine(tmp_path / "out")
    yield queue
    for job in queue.jobs.values():
        job._process.send_signal(signal.SIGTERM)
        job._process.wait(120)


@dataclass
class Told:
    """A queue that trains nothing: `states` are what a test says, and jobs are numbered."""

    told: dict[str, str] | None = field(default_factory=dict)
    submitted: list[list[str]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    name: str = "slurm"

    def device(self, condition: Condition) -> str:
        return "cpu"

    def submit(self, runs: Sequence[QueuedRun]) -> list[SavedJob]:
        number = len(self.submitted) + 1
        self.submitted.append([run.job.name for run in runs])
        ids = [f"{number}_{index}" for index in range(len(runs))]
        assert self.told is not None
        self.told |= dict.fromkeys(ids, "PENDING")
        return [
            SavedJob(one, self.name, f"{JOBS}/{one}.err", queues.stamp_of(run.job.folder))
            for one, run in zip(ids, runs, strict=True)
        ]

    def states(self) -> Mapping[str, str] | None:
        return self.told

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled += ids


def wait_until(true: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)


def test_a_pre_empted_run_goes_on_to_the_same_bytes(
    tiny_spec: SpecWriter, tmp_path: Path, here: OnThisMachine
) -> None:
    """USR2 reaches the job amid its steps; it saves, is requeued, and ends as if nothing was."""
    spec = load_spec(tiny_spec(steps=300, eval_every=15)).model_copy(update={"seeds": (0,)})
    out, alone = tmp_path / "out", tmp_path / "alone"
    run_training(prepare(spec, "uniform", 0, alone), progress_bar=False)
    with pytest.raises(LeftToQueueError, match=r"1 run is in the queue\. It goes on without"):
        run_experiment(spec, out, only=["uniform"], engine=QueueEngine(here, detach=True))
    (job,) = here.jobs.values()
    rows = out / "uniform" / "seed-0" / "metrics.jsonl"
    wait_until(lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 2, "rows")
    (task,) = children(job._process.pid)
    os.kill(task, signal.SIGUSR2)
    for child in children(task):
        os.kill(child, signal.SIGUSR2)  # a queue signals all processes of a job
    assert run_experiment(spec, out, only=["uniform"], engine=QueueEngine(here)) == []
    log = (out / "uniform" / "seed-0" / "log.txt").read_text()
    assert "is saved; run the same command again to go on" in log
    assert rows.read_bytes() == (alone / "uniform" / "seed-0" / "metrics.jsonl").read_bytes()
    assert len(here.jobs) == 1, "it was requeued, not submitted again"


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_runs_of_one_round_are_one_array_and_are_not_submitted_twice(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    spec, out, queue = load_spec(tiny_spec()), tmp_path / "out", Told()
    for _ in range(2):
        with pytest.raises(LeftToQueueError, match="4 runs are in the queue"):
            run_experiment(spec, out, engine=QueueEngine(queue, detach=True))
    assert queue.submitted == [
        ["uniform seed 0", "power-law seed 0", "uniform seed 1", "power-law seed 1"]
    ]
    for folder in out.glob("*/seed-*"):
        RunFolder(folder).finish(RESULT)
    assert run_experiment(spec, out, engine=QueueEngine(queue)) == []
    assert len(queue.submitted) == 1


def test_runs_whose_jobs_have_gone_are_named_and_tried_again(
    tiny_spec: SpecWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others go on; a second command submits those that are left, with those that failed."""
    spec, out = load_spec(tiny_spec()), tmp_path / "out"

    class Ending(Told):
        def states(self) -> Mapping[str, str] | None:
            if len(self.submitted) == 1 and self.told:
                self.told.update({"1_1": "OUT_OF_MEMORY"})
                self.told.pop("1_2", None)
                RunFolder(out / "uniform" / "seed-0").finish(RESULT)
                error = {"status": FAILED, "error": "RuntimeError: no room"}
                RunFolder(out / "power-law" / "seed-1").finish(error)
            return self.told

    (out / JOBS).mkdir(parents=True)
    (out / JOBS / "1_1.err").write_text("slurmstepd: error: Detected 1 oom_kill event\n\n")
    queue = Ending()
    lost = run_experiment(spec, out, engine=QueueEngine(queue))
    assert lost == ["power-law seed 0", "uniform seed 1", "power-law seed 1"]
    said = capsys.readouterr().out
    assert (
        "power-law seed 0 did not finish: job out of memory (slurmstepd: error: Detected 1 oom_kill"
        f" event), see {out / 'power-law' / 'seed-0' / 'log.txt'}" in said
    )
    assert (
        "uniform seed 1 did not finish: job gone from the queue, and it printed nothing: " in said
    )
    assert "may not see" in said
    assert "power-law seed 1 failed (RuntimeError: no room)" in said
    shown = {run.name: (run.state, run.note) for run in states_of(spec, out, queue)}
    assert shown["uniform seed 0"] == ("done", "1.0000 bits per byte")
    assert shown["power-law seed 0"][0] == shown["power-law seed 1"][0] == "failed"
    assert "oom_kill" in shown["power-law seed 0"][1]
    with pytest.raises(LeftToQueueError, match="3 runs"):
        run_experiment(spec, out, engine=QueueEngine(queue, detach=True))
    assert queue.submitted[1] == lost
    assert queue.told is not None
    queue.told["2_2"] = "PENDING BeginTime"
    shown = {run.name: (run.state, run.note) for run in states_of(spec, out, queue)}
    assert shown["power-law seed 1"] == ("queued", "BeginTime"), "not as an earlier attempt ended"


def test_a_queue_that_does_not_answer_is_waited_for(
    tiny_spec: SpecWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, out = load_spec(tiny_spec()), tmp_path / "out"

    class Silent(Told):
        asked = 0

        def states(self) -> Mapping[str, str] | None:
            self.asked += 1
            if self.asked == 3:
                for folder in out.glob("*/seed-*"):
                    RunFolder(folder).finish(RESULT)
            return None if self.asked < 3 else self.told

    assert run_experiment(spec, out, engine=QueueEngine(Silent())) == []
    notes = [line for line in capsys.readouterr().err.splitlines() if "slurm" in line]
    assert notes == [
        "note: slurm does not answer; waiting for results",
        "note: slurm answers again",
    ]


def test_a_job_that_is_missing_once_is_not_lost(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """It may be on its way back into the queue, or its result on the way through the network."""
    spec, out = load_spec(tiny_spec()), tmp_path / "out"

    class Requeuing(Told):
        asked = 0

        def states(self) -> Mapping[str, str] | None:
            self.asked += 1
            if self.asked == 4:
                for folder in out.glob("*/seed-*"):
                    RunFolder(folder).finish(RESULT)
            return {} if self.asked % 2 else self.told

    assert run_experiment(spec, out, engine=QueueEngine(Requeuing())) == []


def test_a_silent_queue_gets_no_second_job(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out, queue = load_spec(tiny_spec()), tmp_path / "out", Told()
    with pytest.raises(LeftToQueueError):
        run_experiment(spec, out, engine=QueueEngine(queue, detach=True))
    queue.told = None
    with pytest.raises(OSError, match="slurm does not answer, and job 1_0 may still be in its"):
        run_experiment(spec, out, engine=QueueEngine(queue))
    assert len(queue.submitted) == 1
    assert {run.state for run in states_of(spec, out, queue)} == {"unknown"}


def test_ctrl_c_leaves_jobs_to_the_queue(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    class Interrupting(QueueEngine):
        def ended(self) -> list[Job]:
            super().ended()
            raise KeyboardInterrupt

    queue = Told()
    with pytest.raises(KeyboardInterrupt, match=r"go on without this command; .* --cancel ends"):
        run_experiment(load_spec(tiny_spec()), tmp_path / "out", engine=Interrupting(queue))
    assert queue.cancelled == []
    assert set((queue.told or {}).values()) == {"PENDING"}


def test_ctrl_c_in_a_submission_waits_until_the_jobs_are_noted(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    """Else the same command would submit the runs again, and --cancel would not know the jobs."""

    class Pressed(Told):
        def submit(self, runs: Sequence[QueuedRun]) -> list[SavedJob]:
            signal.raise_signal(signal.SIGINT)
            return super().submit(runs)

    spec, out, queue = load_spec(tiny_spec()), tmp_path / "out", Pressed()
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="They go on without this command"):
        run_experiment(spec, out, engine=QueueEngine(queue, detach=True))
    assert signal.getsignal(signal.SIGINT) is handler
    assert sorted(jobs_of(out)) == sorted(queue.told or {})
    with pytest.raises(LeftToQueueError, match="4 runs are in the queue"):
        run_experiment(spec, out, engine=QueueEngine(queue, detach=True))
    assert len(queue.submitted) == 1


def test_ctrl_c_before_a_submission_does_not_speak_of_jobs(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    class Interrupting(QueueEngine):
        def ended(self) -> list[Job]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^no run of it is in the queue; run the same"):
        run_experiment(load_spec(tiny_spec()), tmp_path / "out", engine=Interrupting(Told()))


def test_a_study_that_grows_submits_what_is_new(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out, queue = load_spec(tiny_spec()), tmp_path / "out", Told()
    for only in (["uniform"], []):
        with pytest.raises(LeftToQueueError):
            run_experiment(spec, out, only=only, engine=QueueEngine(queue, detach=True))
    assert queue.submitted == [
        ["uniform seed 0", "uniform seed 1"],
        ["power-law seed 0", "power-law seed 1"],
    ]


def test_a_search_is_submitted_first_and_then_the_study(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    """Each time the same command, which leaves what it has submitted to the queue."""

    class Keeping(Told):
        def submit(self, runs: Sequence[QueuedRun]) -> list[SavedJob]:
            jobs.extend(run.job for run in runs)
            return super().submit(runs)

    jobs: list[Job] = []
    head = "[tuning]\nrates = [1e-3, 1e-2]\nseeds = [7]"
    spec = load_spec(tiny_spec(head=head, learning_rate=None))
    out, queue = tmp_path / "out", Keeping()
    with pytest.raises(LeftToQueueError, match="2 runs are in the queue"):
        run_experiment(spec, out, only=["uniform"], engine=QueueEngine(queue, detach=True))
    for job in jobs:
        task = open_run(from_config(dict(job.config)), job.seed, job.folder)
        run_training(task, progress_bar=False)
    with pytest.raises(LeftToQueueError, match="2 runs are in the queue"):
        run_experiment(spec, out, only=["uniform"], engine=QueueEngine(queue, detach=True))
    assert queue.submitted == [
        ["uniform_rate-0.001 seed 7", "uniform_rate-0.01 seed 7"],
        ["uniform seed 0", "uniform seed 1"],
    ]
    shown = {run.name: run.state for run in states_of(spec, out, queue)}
    assert shown["tuning: uniform_rate-0.01 seed 7"] == "done"
    assert shown["uniform seed 1"] == "queued"
    assert queues.jobs_of(out) == ["2_0", "2_1"]


def queued_run(out: Path, **changes: Any) -> QueuedRun:
    """A run of a job, whose process `changes` decide."""
    job = Job(out, "uniform", 0, "cpu", 1, {"train": {"steps": 2}})
    return QueuedRun(job, {}, Path.cwd(), **changes)


def test_a_job_whose_run_is_killed_fails_and_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(job: Job, environment: Mapping[str, str], prepare: Any) -> subprocess.Popen[bytes]:
        code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        return subprocess.Popen([sys.executable, "-S", "-c", code])

    monkeypatch.setattr(queued, "start_process", start)
    with pytest.raises(queued.RunNotFinishedError, match=r"uniform seed 0 was killed \(SIGKILL"):
        queued_run(tmp_path / "out")()


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    run = queued_run(tmp_path / "out")
    run.directory = tmp_path / "absent"
    with pytest.raises(OSError, match=r"this node does not see .*absent: start the study from"):
        run()


def test_the_last_run_reports_once(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before all have ended, not while a command waits for them, and not a second time."""
    spec, out = load_spec(tiny_spec()), tmp_path / "out"
    calls = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        calls.append(command[1:])
        (out / "report").mkdir(exist_ok=True)
        (out / "report" / "report.html").write_text("the page")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    save_json(out / "spec.json", spec.model_dump(mode="json"))
    folders = [out / arm / f"seed-{seed}" for arm in spec.arms for seed in spec.seeds]
    for folder in folders[1:]:
        RunFolder(folder).finish(RESULT)
    assert not report_if_last(out)
    RunFolder(folders[0]).finish(RESULT)
    with locked(out, "out"):
        assert not report_if_last(out)
    assert report_if_last(out)
    assert not report_if_last(out)
    assert calls == [["-m", "plkernel.report", str(out)]]


def test_states_of_a_study_on_this_machine(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """From locks and files alone: a lock says that somebody trains."""
    spec, out = load_spec(tiny_spec()), tmp_path / "out"
    assert {run.state for run in states_of(spec, out, None)} == {"not started"}
    run_training(prepare(spec, "uniform", 0, out), progress_bar=False)
    begun = out / "power-law" / "seed-0"
    save_json(begun / "config.json", {"train": {"steps": 12}})
    (begun / "metrics.jsonl").write_text('{"step": 0}\n{"step": 4}\n{"st')
    (begun / "checkpoint.safetensors").touch()
    with locked(out, "out"), locked(begun, "run"):
        shown = {run.name: (run.state, run.note) for run in states_of(spec, out, None)}
        assert is_locked(out)
    assert shown["uniform seed 0"][0] == "done"
    assert shown["power-law seed 0"] == ("running", "step 4 of 12")
    assert shown["uniform seed 1"] == ("queued", "")
    after = states_of(spec, out, None)
    assert [run.state for run in after] == ["done", "stopped", "not started", "not started"]
    assert render("tiny", after).startswith("tiny: 4 runs: 1 done, 1 stopped, 2 not started\n")
    assert render("tiny", after[:1]).startswith("tiny: 1 run: 1 done\n")


def test_status_loads_no_torch(
    tiny_spec: SpecWriter, tmp_path: Path, without: Callable[..., tuple[int, str, str]]
) -> None:
    path, out = tiny_spec(), tmp_path / "out"

    def status() -> None:
        from plkernel.commands.experiment import main

        main([str(path), "--out", str(out), "--status"])

    code, printed, error = without(["torch", "submitit"], status)
    assert code == 0, error
    assert "tiny: 4 runs: 4 not started" in printed


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Two processes could else train one run. The cache of corpora lies on another one here."""
    flock, out = fcntl.flock, tmp_path / "out"

    def refuse(file: int, operation: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{file}")).is_relative_to(out):
            raise OSError(number, os.strerror(number))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)
    queue = Told()
    with pytest.raises(OSError, match=r"out .*out cannot be locked \(.*mount .* with flock"):
        run_experiment(load_spec(tiny_spec()), out, engine=QueueEngine(queue))
    assert queue.submitted == []


def test_options_of_jobs_are_gathered_and_checked() -> None:
    pytest.importorskip("submitit", reason="submitit, of the extra slurm, is absent")
    words = ["a.toml", "--slurm.partition", "gpu", "--slurm.exclusive", "--slurm.time=2:00:00"]
    words += ["--workers", "2", "--slurm.sbatch.reservation", "mine", "--slurm.mem", "4GB"]
    options = slurm_gathered(words)
    assert options[:3] == ["a.toml", "--workers", "2"]
    assert parameters(options[4:]) == {
        "partition": "gpu",
        "exclusive": True,
        "time": 120,
        "mem": "4GB",
        "additional_parameters": {"reservation": "mine"},
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["partitoin=x"], "slurm.partitoin must be a parameter of submitit; did you mean 'part"),
        (["time=soon"], "slurm.time must be minutes, hours:minutes:seconds or days-hours, got"),
        (["time=0"], "slurm.time must be above 0, got '0'"),
        (["partition"], "slurm.partition must have a value, got nothing"),
        (["gpus_per_node=all"], "slurm.gpus_per_node must be a whole number, got 'all'"),
        (
            ["nodes=2"],
            "slurm.nodes must be left out of a study: each run is one process on one node",
        ),
        (["qos=a", "qos=b"], "slurm.qos must be given once"),
    ],
)
def test_wrong_parameters_are_refused(options: list[str], message: str) -> None:
    pytest.importorskip("submitit", reason="submitit, of the extra slurm, is absent")
    with pytest.raises(ValueError, match=r"^slurm") as refusal:
        check_arguments(["a"], engine="slurm", slurm=options)
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slurm": ["partition=x"]}, "slurm.partition must be left out with --engine local"),
        ({"detach": True}, "engine must be slurm with detach"),
        (
            {"engine": "slurm", "workers": "auto"},
            "workers must be a number, or left out, with --engine slurm",
        ),
    ],
)
def test_options_that_do_not_suit_the_engine_are_refused(
    options: dict[str, Any], message: str
) -> None:
    pytest.importorskip("submitit", reason="submitit, of the extra slurm, is absent")
    with pytest.raises(ValueError, match=message):
        check_arguments(["a"], **options)


def test_time_limits_are_read_as_sbatch_reads_them() -> None:
    forms = {"5": 5, "5:00": 5, "5:01": 6, "1:00:00": 60, "2-0": 2880, "1-2:30": 1590}
    assert {form: minutes(form) for form in forms} == forms


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_spec: SpecWriter
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "submitit", None)
        with pytest.raises(ValueError, match=r'not installed; pip install "plkernel\[slurm\]"'):
            SlurmQueue(tmp_path)
    pytest.importorskip("submitit", reason="submitit, of the extra slurm, is absent")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="engine 'slurm': no sbatch on PATH; run the study where"):
        command(load_spec(tiny_spec()), tmp_path / "out", engine="slurm")
    assert not (tmp_path / "out").exists()


class Submitted:
    """Commands of Slurm in a folder, which say what a test wants them to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("sbatch", "srun", "squeue", "scancel"):
            self.say(name, "")
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def say(self, name: str, output: str, code: int = 0) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {code}\n")
        path.chmod(0o755)


def test_a_script_asks_for_what_the_spec_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_spec: SpecWriter
) -> None:
    """Cores, GPUs, the time limit, the package's path; runs at a time are a limit of the array."""
    pytest.importorskip("submitit", reason="submitit, of the extra slurm, is absent")
    commands = Submitted(tmp_path / "bin", monkeypatch)
    commands.say("sbatch", "Submitted batch job 7")
    queue = SlurmQueue(tmp_path / "out", parameters(["time=2:00:00", "partition=gpu"]), 3)
    runs = [
        QueuedRun(Job(tmp_path / "out", "uniform", seed, "cuda", 2, {}), {}, tmp_path)
        for seed in (0, 1)
    ]
    entries = queue.submit(runs)
    assert [entry.id for entry in entries] == ["7_0", "7_1"]
    assert entries[0].output == f"{JOBS}/7_0_0_log.err"
    script = (tmp_path / "out" / JOBS / "7_submission.sh").read_text()
    for line in (
        "--array=0-1%2",
        "--cpus-per-task=2",
        "--gpus-per-node=1",
        "--time=120",
        "--partition=gpu",
        "--signal=USR2@90",
    ):
        assert f"#SBATCH {line}\n" in script
    assert "export PYTHONPATH=" in script
    assert sys.executable in script
    spec = load_spec(tiny_spec(device="auto"))
    assert queue.device(spec.condition("uniform")) == "cpu"
    asking = SlurmQueue(tmp_path / "out", parameters(["gres=gpu:1"]))
    assert asking.device(spec.condition("uniform")) == "cuda"
    asking.submit(runs[:1])
    script = (tmp_path / "out" / JOBS / "7_submission.sh").read_text()
    assert "--gpus-per-node" not in script
    assert "--array" not in script, "a single run is no array"
    search = Job(tmp_path / "out" / TUNING, "uniform_rate-0.1", 0, "cpu", 1, {})
    (entry,) = queue.submit([QueuedRun(search, {}, tmp_path)])
    assert entry.printed(search.folder) == tmp_path / "out" / TUNING / JOBS / "7_0_log.err"
    assert (tmp_path / "out" / TUNING / JOBS / "7_submission.sh").exists()
    (tmp_path / "bin" / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n"
    )
    with pytest.raises(OSError, match=r"^sbatch: .*invalid partition specified: gpu"):
        queue.submit(runs)
    said = "7_0|RUNNING|None\n7_1|PENDING|(launch failed requeued held)\n7_2|PENDING|None"
    commands.say("squeue", said)
    states = {"7_0": "RUNNING", "7_1": "PENDING (launch failed requeued held)", "7_2": "PENDING"}
    assert queue.states() == states
    commands.say("squeue", "", 1)
    assert queue.states() is None
    commands.say("scancel", "", 1)
    with pytest.raises(OSError, match="scancel: no reason given"):
        queue.cancel(["7_0"])
    monkeypatch.setattr(slurm, "ANSWER_SECONDS", 0.1)
    for name in ("scancel", "squeue"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(OSError, match=r"scancel: no answer within .* s; run the same"):
        queue.cancel(["7_0"])
    assert queue.states() is None


def test_ctrl_c_does_not_end_sbatch_which_a_terminal_sends_it_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="submitit, of the extra slurm, is absent")
    Submitted(tmp_path / "bin", monkeypatch)
    interrupted = "#!/bin/sh\nkill -INT $$\necho Submitted batch job 7\n"
    (tmp_path / "bin" / "sbatch").write_text(interrupted)
    run = QueuedRun(Job(tmp_path / "out", "uniform", 0, "cpu", 1, {}), {}, tmp_path)
    assert [entry.id for entry in SlurmQueue(tmp_path / "out").submit([run])] == ["7"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_pattern_that_names_no_arm_is_refused_before_anything_is_resolved() -> None:
    check_arguments(["uniform", "power-law"], only=["uni*"])
    with pytest.raises(ValueError, match="only must match an arm, got 'unifrom'"):
        check_arguments(["uniform", "power-law"], only=["unifrom"])


def test_cancel_ends_what_is_in_the_queue(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pytest.importorskip("submitit", reason="submitit, of the extra slurm, is absent")
    spec, out, queue = load_spec(tiny_spec()), tmp_path / "out", Told()
    with pytest.raises(LeftToQueueError):
        run_experiment(spec, out, engine=QueueEngine(queue, detach=True))
    queue.told = {"1_0": "RUNNING", "1_1": "COMPLETED", "1_2": "PENDING"}
    monkeypatch.setattr(slurm, "SlurmQueue", lambda *_: queue)
    command(spec, out, cancel=True)
    assert queue.cancelled == ["1_0", "1_2"]
    assert "tiny: 2 jobs cancelled; the same command without --cancel" in capsys.readouterr().out
    entry = job_of(out / "uniform" / "seed-0")
    assert entry is not None
    assert entry.id == load_json(out / "uniform" / "seed-0" / JOB)["id"]


def test_the_engine_on_futures_trains_a_study(
    tiny_spec: SpecWriter, tmp_path: Path, shown_engine: Callable[..., Callable[..., Engine]]
) -> None:
    engine = shown_engine("FuturesEngine")(workers=2)
    spec, out = load_spec(tiny_spec(steps=4)), tmp_path / "out"
    assert run_experiment(spec, out, only=["uniform"], engine=engine) == []
    run_training(prepare(spec, "uniform", 0, tmp_path / "alone"), progress_bar=False)
    rows = [place / "uniform" / "seed-0" / "metrics.jsonl" for place in (out, tmp_path / "alone")]
    assert rows[0].read_bytes() == rows[1].read_bytes()


def test_the_engine_on_ray_has_all_methods_of_an_engine() -> None:
    """It is shown, not run: Ray is no dependency."""
    text = PAGE.read_text().partition("```py\n")[2].partition("```")[0]
    (shown,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    methods = {node.name for node in shown.body if isinstance(node, ast.FunctionDef)}
    wanted = {name for name, value in vars(Engine).items() if inspect.isfunction(value)}
    assert {name for name in wanted if not name.startswith("_")} <= methods
