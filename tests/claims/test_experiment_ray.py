"""A study on a Ray cluster of two workers: the folders of one machine, byte for byte, whatever is lost on the way."""

import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plkernel.common.files import load_json
from plkernel.config.reading import load_spec
from plkernel.study.schedule import run_experiment

pytestmark = pytest.mark.slow

STEPS, EVERY = 400, 50
RUNS = 6


@pytest.fixture(scope="module", autouse=True)
def no_other_cluster() -> Iterator[None]:
    pytest.importorskip("ray", reason="needs the extra dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three arms, two seeds."""
    folder = tmp_path_factory.mktemp("spec")
    (folder / "text.txt").write_text(inspect.getsource(textwrap) + inspect.getsource(inspect))
    (folder / "spec.toml").write_text(
        f'name = "six"\nbaseline = "uniform"\nseeds = [0, 1]\n[corpus]\nname = "{folder / "text.txt"}"\n'
        f"[model]\ndim = 16\nlayers = 2\n[train]\nsteps = {STEPS}\neval_every = {EVERY}\ncontext = 32\nbatch = 4\n"
        "eval_windows = 4\ntest_windows = 4\nlearning_rate = 1e-2\n"
        '[arms.uniform]\n[arms.scaled]\noutput_std = 0.5\n[arms.power-law]\nprojection = "published"\n'
    )
    return folder / "spec.toml"


@pytest.fixture(scope="module")
def expected(spec: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the study gives on one machine, undisturbed."""
    out = tmp_path_factory.mktemp("local")
    assert run_experiment(load_spec(spec), out) == []
    return found(out)


def found(out: Path) -> dict[str, Any]:
    """All that is deterministic of a study: rows byte for byte, results without their seconds, configurations."""
    results = {path: {**load_json(path), "seconds": None} for path in out.glob("*/seed-*/result.json")}
    rows = {
        path: path.read_bytes() for name in ("metrics.jsonl", "config.json") for path in out.glob(f"*/seed-*/{name}")
    }
    return {str(path.relative_to(out)): value for path, value in sorted({**results, **rows}.items())}


def start(spec: Path, out: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "plkernel.experiment", str(spec), "--out", str(out), "--workers", "2", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(condition: Callable[[], Any], patience: float = 180.0) -> Any:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"not within {patience} s")


def begun(out: Path, rows: int) -> list[Path]:
    """The folders of the runs that are under way with that many rows."""
    paths = out.glob("*/seed-*/metrics.jsonl")
    return [path.parent for path in paths if path.read_bytes().count(b"\n") >= rows and not ended(path.parent)]


def ended(folder: Path) -> bool:
    return (folder / "result.json").exists()


def at_least(number: int, folders: list[Path]) -> list[Path]:
    """The folders, or none where there are fewer."""
    return folders if len(folders) >= number else []


def workers_of(out: Path) -> dict[Path, int]:
    """The processes that the runs of a study were told to end with, by the folder of the run."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        if "plkernel.run" in arguments and any(each.startswith(str(out)) for each in arguments):
            config, parent = (arguments[arguments.index(name) + 1] for name in ("plkernel.run", "--stop-with"))
            parents[Path(config).parent] = int(parent)
    return parents


@pytest.mark.skipif(sys.platform != "linux", reason="finds the worker of a run in /proc")
def test_a_worker_killed_half_way_changes_nothing(spec: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(spec, out, "--engine", "ray")
    victim = wait_until(lambda: [run for run in begun(out, 3) if run in workers_of(out)])[0]
    os.kill(workers_of(out)[victim], signal.SIGKILL)
    printed, error = process.communicate(timeout=900)
    assert process.returncode == 0, error
    name = f"{victim.parent.name} seed {victim.name.removeprefix('seed-')}"
    assert re.findall(r"^(.*): the worker that had it was lost .*; tried again, 1 of 3$", error, re.M) == [name]
    assert "is saved" in (victim / "log.txt").read_text()  # by the run itself, when its worker was gone
    assert found(out) == expected
    assert len(expected) == 3 * RUNS
    assert (out / "report" / "report.html").exists()
    assert f"six: {RUNS} runs, 0 finished before, 2 at a time, in {out}" in printed
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("*/seed-*/*")}
    again = start(spec, out, "--engine", "ray", "--no-report")
    assert f"{RUNS} runs, {RUNS} finished before, 0 at a time" in again.communicate(timeout=300)[0]
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/seed-*/*")} == stamps


def test_ctrl_c_saves_and_either_engine_goes_on(spec: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    """Begun on this machine, gone on with by Ray, ended on this machine; interrupted as from a terminal."""
    out = tmp_path / "out"
    for engine, runs, rows in (("local", 2, 2), ("ray", 1, 5)):
        process = start(spec, out, "--engine", engine)
        running = wait_until(lambda runs=runs, rows=rows: at_least(runs, begun(out, rows)))
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=300)
        assert process.returncode == 130, error
        assert "interrupted: every run is saved; run the same command again to go on" in error
        assert "Traceback" not in error
        log = (running[0] / "log.txt").read_text()
        assert log.count("is saved") == (1 if engine == "local" else 2)
        assert "Traceback" not in log
    assert run_experiment(load_spec(spec), out) == []
    assert found(out) == expected


def test_a_failed_run_is_listed_and_not_tried_again(spec: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "out" / "scaled" / "seed-0" / "checkpoint.safetensors"
    blocked.parent.mkdir(parents=True)
    blocked.write_bytes(b"not a checkpoint")
    flags = ("--train.steps", "8", "--seeds", "0", "--no-report")
    process = start(spec, tmp_path / "out", "--engine", "ray", *flags)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "did not finish: scaled seed 0" in error
    assert "tried again" not in error
    assert blocked.with_name("log.txt").read_text().count("error: ") == 1
    assert load_json(blocked.with_name("result.json"))["status"] == "failed"
    assert load_json(tmp_path / "out" / "power-law" / "seed-0" / "result.json")["status"] == "finished"


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of Ray, about the machines that it starts in this process
def test_a_lost_machine_changes_nothing(spec: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    """A running cluster of a machine without cores and two with one each, of which one goes."""
    from ray.cluster_utils import Cluster

    cluster, out = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}), tmp_path
    try:
        machines = [cluster.add_node(num_cpus=1) for _ in range(2)]
        flags = ("--engine", "ray", "--ray-address", cluster.address, "--seeds", "0", "--no-report")
        process = start(spec, out, *flags)
        wait_until(lambda: at_least(2, begun(out, 2)))
        cluster.remove_node(machines[0], allow_graceful=False)
        _, error = process.communicate(timeout=900)
    finally:
        cluster.shutdown()
    assert process.returncode == 0, error
    assert "tried again, 1 of 3" in error
    assert found(out) == {name: value for name, value in expected.items() if "seed-0" in name}
