"""A study on a Ray cluster: with a Ray that is none every decision, on a real one the folders of one machine."""

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.common.files import load_json
from plkernel.config.reading import load_spec
from plkernel.study import engine as engines
from plkernel.study.engine import Job, RayEngine, opened, work
from plkernel.study.schedule import run_experiment

SpecWriter = Callable[..., Path]
Start = Callable[..., subprocess.Popen[str]]


class RayTaskError(Exception):
    """Ray's error of a task, with what the task raised."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class RayError(Exception):
    """Ray's error of a worker that died too often."""


class Ray:
    """As much of Ray as an engine uses; every task ends at once, in `end`."""

    exceptions = SimpleNamespace(RayTaskError=RayTaskError, RayError=RayError)

    def __init__(self, end: Any = None, machines: tuple[dict[str, float], ...] = ({"CPU": 2.0},)) -> None:
        self.end, self.machines, self.options = end, machines, dict[str, Any]()

    def cluster_resources(self) -> dict[str, float]:
        return {name: sum(machine.get(name, 0) for machine in self.machines) for name in ("CPU", "GPU")}

    def nodes(self) -> list[dict[str, Any]]:
        return [*({"Alive": True, "Resources": each} for each in self.machines), {"Alive": False, "Resources": {}}]

    def remote(self, **options: Any) -> Callable[..., Any]:
        self.options = options
        return lambda function: SimpleNamespace(remote=lambda *arguments: "reference")

    def wait(self, references: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        return references, []

    def get(self, reference: str) -> Any:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "spec.json").write_bytes(b"the study")
    return Job(tmp_path, "uniform", 3, "cpu", 2, {})


@pytest.mark.parametrize("end", [None, RayError(), RayTaskError(ConnectionError("ended by signal 9"))])
def test_a_run_that_failed_or_was_lost_too_often_has_ended(end: Any, job: Job) -> None:
    engine = RayEngine(ray := Ray(end))
    engine.start(job)
    assert engine.ended() == [job]
    assert engine.ended() == []
    assert ray.options == {"num_cpus": 2, "num_gpus": 0, "max_retries": 3, "retry_exceptions": [ConnectionError]}


def test_an_error_of_a_task_ends_the_study(job: Job) -> None:
    engine = RayEngine(Ray(RayTaskError(ModuleNotFoundError("No module named 'plkernel'"))))
    engine.start(job)
    with pytest.raises(OSError, match="No module named 'plkernel'; every machine needs plkernel"):
        engine.ended()


def test_a_killed_process_is_an_error_that_ray_tries_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [0, 2, -9]
    monkeypatch.setattr(engines, "start_process", lambda *_: SimpleNamespace(poll=lambda: 0, returncode=codes.pop(0)))
    for _ in range(2):
        work(job, {}, Path.cwd())
    with pytest.raises(ConnectionError, match="uniform seed 3: its process was ended by signal 9"):
        work(job, {}, Path.cwd())
    (job.study / "spec.json").unlink()
    with pytest.raises(FileNotFoundError, match="is no study on"):
        work(job, {}, Path.cwd())


def test_room_and_devices_are_those_of_the_cluster(tiny_spec: SpecWriter) -> None:
    spec = load_spec(tiny_spec(threads=2))
    boxes = RayEngine(Ray(machines=({"CPU": 8.0, "GPU": 2.0}, {"CPU": 3.0}, {"CPU": 1.0})))
    assert boxes.device(spec.condition("uniform")) == "cuda"
    assert (boxes.room(spec, "cuda"), boxes.room(spec, "cpu")) == (2, 5)
    assert boxes.device(load_spec(tiny_spec(device="cpu")).condition("uniform")) == "cpu"
    assert RayEngine(Ray()).device(spec.condition("uniform")) == "cpu"
    with pytest.raises(ValueError, match=r"train.device 'cuda': no machine of the cluster has a GPU"):
        RayEngine(Ray()).device(load_spec(tiny_spec(device="cuda")).condition("uniform"))


def test_a_cluster_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        with pytest.raises(ValueError, match=r'pip install "plkernel\[dist\]"'), opened("ray"):
            pass
    pytest.importorskip("ray", reason="needs the extra dist")
    with pytest.raises(OSError, match=r"ray_address=127.0.0.1:2: no cluster answers"), opened("ray", "127.0.0.1:2"):
        pass


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms, two seeds, 400 steps."""
    pytest.importorskip("ray", reason="needs the extra dist")
    folder = tmp_path_factory.mktemp("spec")
    (folder / "text.txt").write_text(inspect.getsource(textwrap) + inspect.getsource(inspect))
    (folder / "spec.toml").write_text(
        f'name = "four"\nbaseline = "uniform"\nseeds = [0, 1]\n[corpus]\nname = "{folder / "text.txt"}"\n'
        "[model]\ndim = 16\nlayers = 2\n[train]\nsteps = 400\neval_every = 50\ncontext = 32\nbatch = 4\n"
        "eval_windows = 4\ntest_windows = 4\nlearning_rate = 1e-2\n"
        '[arms.uniform]\n[arms.power-law]\nprojection = "published"\n'
    )
    return folder / "spec.toml"


@pytest.fixture(scope="module")
def expected(spec: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The study on one machine, undisturbed."""
    out = tmp_path_factory.mktemp("local")
    assert run_experiment(load_spec(spec), out) == []
    return content(out)


def content(out: Path) -> dict[str, Any]:
    """All that is deterministic of a study: rows byte for byte, results without their seconds, configurations."""
    results = {path: {**load_json(path), "seconds": None} for path in out.glob("*/seed-*/result.json")}
    names = ("metrics.jsonl", "config.json")
    rows = {path: path.read_bytes() for name in names for path in out.glob(f"*/seed-*/{name}")}
    return {str(path.relative_to(out)): value for path, value in sorted({**results, **rows}.items())}


def wait_until(condition: Callable[[], Any], patience: float = 180.0) -> Any:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"not within {patience} s")


def begun(out: Path, rows: int) -> list[Path]:
    """The folders of the runs that are under way with that many rows."""
    paths = [path for path in out.glob("*/seed-*/metrics.jsonl") if path.read_bytes().count(b"\n") >= rows]
    return [path.parent for path in paths if not path.with_name("result.json").exists()]


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the worker of a run in /proc")
def test_a_killed_worker_and_ctrl_c_change_nothing(
    spec: Path, expected: dict[str, Any], tmp_path: Path, start: Start
) -> None:
    """On Ray, where a worker is killed and then the study interrupted as from a terminal; it ends on this machine."""
    out = tmp_path / "out"
    process = start(spec, out, "--workers", "2", "--engine", "ray")
    victim = wait_until(lambda: [run for run in begun(out, 4) if run in workers_of(out)])[0]
    os.kill(lost := workers_of(out)[victim], signal.SIGKILL)
    wait_until(lambda: workers_of(out).get(victim, lost) != lost)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130, error
    assert "interrupted: every run is saved; run the same command again to go on" in error
    assert "Traceback" not in error
    assert "is saved" in (victim / "log.txt").read_text()
    assert run_experiment(load_spec(spec), out) == []
    assert content(out) == expected
    assert len(expected) == 3 * 4
