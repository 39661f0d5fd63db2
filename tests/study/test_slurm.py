"""A study on a real Slurm of one node, wherever its daemons can be started."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from one_node import OneNode, cluster, missing, variables

from plkernel.common.files import load_json
from plkernel.config.reading import load_spec
from plkernel.study.queue import JOB, JOBS
from plkernel.training.loop import prepare, run_training

pytest.importorskip("submitit", reason="submitit, of the extra slurm, is absent")
why = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why is not None, reason=why or ""),
]

SpecWriter = Callable[..., Path]
Start = Callable[..., subprocess.Popen[str]]
ARMS = ("uniform", "power-law")
RUNS = [f"{arm}/seed-{seed}" for seed in (0, 1) for arm in ARMS]
PATIENCE = 500.0
SAVED_WITHIN = 10.0
"""Seconds after which the controller has saved its state: it forgets a later launch of a job."""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[OneNode]:
    """A cluster of its own, in a folder whose name is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="plk-"))
    with cluster(folder / "n") as one:
        for name, value in variables(one).items():
            monkeypatch.setenv(name, value)
        yield one
    shutil.rmtree(folder)


def wait_until(true: Callable[[], bool], node: OneNode) -> None:
    """Wait until a condition holds, and show the logs of the cluster where it does not."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, node.logs()
        time.sleep(0.1)


def said(process: subprocess.Popen[str], node: OneNode, code: int = 0) -> str:
    """Wait for a command and return what it printed."""
    output, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, f"{output}{error}{node.logs()}"
    return output


def running(node: OneNode) -> list[str]:
    """The ids of the jobs that run."""
    return node.ask("squeue", "--noheader", "--array", "--states=R", "--format=%i").split()


def rows_of(folder: Path) -> int:
    """The evaluations that a run has written."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def trained_alone(spec: Path, folder: Path) -> dict[str, bytes]:
    """The rows of every run, as this process trains it."""
    rows = {}
    for run in RUNS:
        arm, seed = run.split("/seed-")
        run_training(prepare(load_spec(spec), arm, int(seed), folder), progress_bar=False)
        rows[run] = (folder / run / "metrics.jsonl").read_bytes()
    return rows


def rows_in(out: Path) -> dict[str, bytes]:
    return {run: (out / run / "metrics.jsonl").read_bytes() for run in RUNS}


def pre_empt(job: str, node: OneNode) -> None:
    """Send USR2 to all processes of a job, and wait until it has left the node."""
    # which would send it again, while the job is requeued
    sending = subprocess.Popen(["scancel", "--signal=USR2", job])
    try:
        wait_until(lambda: job not in running(node), node)
    finally:
        sending.kill()
        sending.wait()
    wait_until(lambda: "PD" in node.ask("squeue", "-h", "-r", f"--job={job}", "-o%t"), node)
    node.ask("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm waits two minutes


def test_a_study_goes_on_through_all_that_happens_to_a_cluster(
    tiny_spec: SpecWriter, tmp_path: Path, start: Start, node: OneNode
) -> None:
    """Queued, pre-empted, without a controller for a while: the rows are those of plain runs."""
    spec, out = tiny_spec(steps=600, eval_every=100), tmp_path / "out"
    on_slurm = ("--engine", "slurm", "--slurm.partition", "main", "--slurm.time", "30")
    printed = said(start(spec, out, *on_slurm, "--detach"), node)
    assert "4 runs are in the queue" in printed
    first = out / RUNS[0]
    wait_until(lambda: rows_of(first) >= 2, node)
    assert load_json(first / JOB)["id"] in running(node)
    pre_empt(load_json(first / JOB)["id"], node)
    time.sleep(SAVED_WITHIN)
    node.kill("slurmctld")
    node.start("slurmctld")
    assert "uniform seed 0" in said(start(spec, out, "--status"), node)
    said(start(spec, out, *on_slurm), node)
    assert "is saved; run the same command again" in (first / "log.txt").read_text()
    assert rows_in(out) == trained_alone(spec, tmp_path / "alone")
    assert "4 runs: 4 done" in said(start(spec, out, "--status"), node)
    assert len(list((out / JOBS).glob("*_submitted.pkl"))) == len(RUNS), "each submitted once"


def test_two_machines_share_a_study(
    tiny_spec: SpecWriter,
    tmp_path: Path,
    start: Start,
    node: OneNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two commands at once, each with scratch of its own: no run twice, none lost, one report."""
    spec, out = tiny_spec(steps=40), tmp_path / "out"
    commands = []
    for machine in ("a", "b"):
        for name in ("TMPDIR", "PLKERNEL_CACHE"):
            scratch = tmp_path / machine / name
            scratch.mkdir(parents=True)
            monkeypatch.setenv(name, str(scratch))
        commands.append(start(spec, out, "--engine", "slurm", "--detach"))
    for one in commands:
        assert "in the queue" in said(one, node)
    wait_until(lambda: (out / "report" / "report.html").exists(), node)
    wait_until(lambda: not node.ask("squeue", "--noheader").strip(), node)
    assert len(list((out / JOBS).glob("*_submitted.pkl"))) == len(RUNS)
    reports = [path for path in (out / JOBS).glob("*.out") if "report: " in path.read_text()]
    assert len(reports) == 1, "by the run that came last"
    assert rows_in(out) == trained_alone(spec, tmp_path / "alone")


def test_a_job_that_cannot_run_is_explained_and_the_others_go_on(
    tiny_spec: SpecWriter, tmp_path: Path, start: Start, node: OneNode
) -> None:
    """One is cancelled as it runs, one diverges; the same command then trains the first."""
    spec, out = tiny_spec(steps=20_000, eval_every=20), tmp_path / "out"
    process = start(spec, out, "--engine", "slurm", "--only", "uniform", "--no-report")
    wait_until(lambda: rows_of(out / RUNS[0]) >= 2, node)
    assert "cancelled" in said(start(spec, out, "--cancel"), node)
    output, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, error
    assert "uniform seed 0 did not finish: job cancelled" in output
    assert "did not finish: uniform seed 0, uniform seed 1" in error
    assert "is saved" in (out / RUNS[0] / "log.txt").read_text()
    assert "failed" in said(start(spec, out, "--status"), node)


def test_sbatch_says_why_it_refuses(
    tiny_spec: SpecWriter, tmp_path: Path, start: Start, node: OneNode
) -> None:
    process = start(tiny_spec(), tmp_path / "out", "--engine", "slurm", "--slurm.partition", "gone")
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "error: sbatch: " in error
    assert "invalid partition" in error.lower()
    assert sys.executable not in error
