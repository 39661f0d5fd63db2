"""What a study asks of an engine, with one that trains nothing; and the engine of Ray, with a Ray that is none."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plkernel.common.files import load_json
from plkernel.config.condition import Condition
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.models.ssm import SSM
from plkernel.study import engine as engines
from plkernel.study import ray_engine
from plkernel.study.engine import Job, LocalEngine, start_process
from plkernel.study.ray_engine import RETRIES, End, RayEngine, work
from plkernel.study.schedule import opened, run_experiment
from plkernel.training import build, check
from plkernel.training.folder import RunFolder
from plkernel.training.loop import prepare, run_training

SpecWriter = Callable[..., Path]


RESULT = {"status": "finished", "final_val_bpb": 2.0, "steps": 2, "seconds": 0.1, "causal": True}


ORDER = ["uniform seed 0", "power-law seed 0", "uniform seed 1", "power-law seed 1"]
SEARCH = "[tuning]\nrates = [1e-3, 1e-2]\nseeds = [7]"


@dataclass
class Idle:
    """An engine whose runs end one by one, untrained, with `result`, one of an iterator, or not at all; see `broken`.

    broken: the arm whose runs end without a result. error: raised in place of ending.
    """

    places: int = 2
    results: Any = None
    broken: str | None = None
    error: BaseException | None = None
    active: list[Job] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    most: int = 0
    stopped: bool = False

    def device(self, condition: Condition) -> str:
        return "cpu"

    def room(self, spec: Spec, device: str) -> int:
        return self.places

    def start(self, job: Job) -> None:
        self.active.append(job)
        self.started.append(job.name)
        self.most = max(self.most, len(self.active))

    def ended(self) -> list[Job]:
        if self.error:
            raise self.error
        job = self.active.pop(0)
        result = next(self.results) if self.results else RESULT
        if result and job.arm != self.broken:
            RunFolder(job.folder).finish(result)
        return [job]

    def stop(self) -> None:
        self.stopped = True


def test_a_study_gives_the_engine_what_is_left_as_room_allows(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out = load_spec(tiny_spec(steps=2)), tmp_path / "out"
    first, second, third = Idle(broken="power-law"), Idle(), Idle()
    assert run_experiment(spec, out, engine=first) == ["power-law seed 0", "power-law seed 1"]
    assert (first.started, first.most) == (ORDER, 2)
    assert run_experiment(spec, out, workers=1, engine=second) == []
    assert (second.started, second.most) == (["power-law seed 0", "power-law seed 1"], 1)
    assert run_experiment(spec, out, engine=third) == []
    assert third.started == []


def test_a_condition_is_built_once_whatever_the_seeds(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two arms of one model at two seeds: one model on the meta device, and none of numbers."""
    built: list[str] = []
    original = SSM.__init__

    def counted(self: SSM, config: Any) -> None:
        built.append(torch.get_default_device().type)
        original(self, config)

    monkeypatch.setattr(SSM, "__init__", counted)
    build._facts.cache_clear()
    spec = load_spec(tiny_spec(steps=2), check)
    assert run_experiment(spec, tmp_path / "out", engine=Idle()) == []
    assert built == ["meta"]


DIVERGED = {"status": "diverged", "error": "the loss is nan at step 3"}
BROKEN = {"status": "failed", "error": "Traceback ...\nRuntimeError: not enough memory"}


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([DIVERGED, DIVERGED], "'uniform': a run diverged at every rate, see .*tuning; try lower rates$"),
        (
            [DIVERGED, BROKEN],
            r"'uniform': uniform_rate-0.01 seed 7 failed \(RuntimeError: not enough memory\), see .*log.txt; mend the",
        ),
        (
            [BROKEN, None],
            r"'uniform': uniform_rate-0.001 seed 7 failed \(.*\), see .*log.txt and 1 more; mend the cause",
        ),
        ([None, RESULT], "'uniform': uniform_rate-0.001 seed 7 did not finish, see .*log.txt; mend the cause"),
    ],
)
def test_a_search_without_a_rate_says_what_ended_it(
    tiny_spec: SpecWriter, tmp_path: Path, results: list[dict[str, Any] | None], message: str
) -> None:
    """Lower rates are no remedy where memory or a file is missing."""
    engine = Idle(results=iter(results))
    with pytest.raises(ValueError, match=r"tuning.rates: no learning rate for arm " + message):
        run_experiment(load_spec(tiny_spec(head=SEARCH)), tmp_path / "out", only=["uniform"], engine=engine)
    assert engine.started == ["uniform_rate-0.001 seed 7", "uniform_rate-0.01 seed 7"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyboardInterrupt(), "every run is saved; run the same command again to go on"),
        (ValueError("out: not shared"), "out: not shared"),
    ],
)
def test_an_error_stops_the_engine(tiny_spec: SpecWriter, tmp_path: Path, error: BaseException, message: str) -> None:
    engine = Idle(error=error)
    with pytest.raises(type(error), match=message):
        run_experiment(load_spec(tiny_spec()), tmp_path / "out", engine=engine)
    assert engine.stopped


def test_no_room_is_bad_input_and_writes_nothing(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec = load_spec(tiny_spec(threads=64))
    with pytest.raises(ValueError, match=r"train.threads 64: no machine has so many cores"):
        run_experiment(spec, tmp_path / "out", engine=Idle(places=0))
    assert not (tmp_path / "out").exists()


def test_a_run_on_a_gpu_sees_the_idlest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third run goes beside the first; once the second has ended, the next goes to its GPU."""
    seen: list[str] = []
    polls: dict[str, int | None] = {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")

    def start(job: Job, environment: dict[str, str]) -> SimpleNamespace:
        seen.append(environment["CUDA_VISIBLE_DEVICES"])
        return SimpleNamespace(poll=lambda: polls.get(job.name))

    monkeypatch.setattr(engines, "start_process", start)
    engine, jobs = LocalEngine(), [Job(Path("out"), "uniform", seed, "cuda", 1, {}) for seed in range(4)]
    for job in jobs[:3]:
        engine.start(job)
    polls[jobs[1].name] = 0
    assert engine.ended() == [jobs[1]]
    engine.start(jobs[3])
    engine.start(Job(Path("out"), "uniform", 9, "cpu", 1, {}))
    assert seen == ["3", "5", "3", "5", "3,5"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("slurm",), "engine 'slurm': must be 'local' or 'ray'"),
        (("local", "here:6379"), "ray_address belongs to engine 'ray', got 'here:6379'"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message), opened(*arguments):
        pass


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r'pip install "plkernel\[dist\]"'), opened("ray"):
        pass


def test_an_address_where_nothing_answers_is_named() -> None:
    pytest.importorskip("ray", reason="needs the extra dist")
    with pytest.raises(OSError, match=r"ray_address=127.0.0.1:1: no cluster answers"), opened("ray", "127.0.0.1:1"):
        pass


class TaskError(Exception):
    """Ray's error of a task, with what the task raised."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class WorkerCrashedError(Exception):
    """Ray's error of a worker that died."""


class Ray:
    """As much of Ray as an engine uses; every task ends at once, as `ends` says in turn."""

    exceptions = SimpleNamespace(RayTaskError=TaskError, RayError=WorkerCrashedError)

    def __init__(self, *ends: End | Exception, machines: tuple[dict[str, float], ...] = ({"CPU": 2.0},)) -> None:
        self.ends, self.machines, self.sent, self.options = list(ends), machines, list[tuple[Any, ...]](), None

    def cluster_resources(self) -> dict[str, float]:
        return {name: sum(machine.get(name, 0) for machine in self.machines) for name in ("CPU", "GPU")}

    def nodes(self) -> list[dict[str, Any]]:
        return [*({"Alive": True, "Resources": each} for each in self.machines), {"Alive": False, "Resources": {}}]

    def remote(self, **options: Any) -> Callable[..., Any]:
        self.options = options
        return lambda function: SimpleNamespace(remote=lambda *arguments: self.sent.append(arguments) or len(self.sent))

    def wait(self, references: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        return references, []

    def get(self, reference: int) -> End:
        end = self.ends[reference - 1]
        if isinstance(end, Exception):
            raise end
        return end


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "out", "uniform", 3, "cpu", 2, {})


def drain(engine: RayEngine, most: int = 10) -> list[Job]:
    return [job for _ in range(most) for job in engine.ended()]


LOST = WorkerCrashedError()


@pytest.mark.parametrize("loss", [LOST, (-9, None)])
def test_a_lost_run_is_given_to_the_cluster_again(loss: Any, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    ray = Ray(loss, loss, (0, None))
    engine = RayEngine(ray)
    engine.start(job)
    assert drain(engine) == [job]
    assert len(ray.sent) == 3
    assert [sent[-1] for sent in ray.sent] == [0.0, ray_engine.LOCK_SECONDS, ray_engine.LOCK_SECONDS]
    assert ray.options == {"num_cpus": 2, "num_gpus": 0, "max_retries": 0}
    assert "uniform seed 3: " in (error := capsys.readouterr().err)
    assert "tried again, 2 of 3" in error


def test_a_run_that_is_lost_every_time_is_given_up(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    ray = Ray(*[LOST] * 10)
    engine = RayEngine(ray)
    engine.start(job)
    assert drain(engine) == [job]
    assert len(ray.sent) == 1 + RETRIES
    assert "WorkerCrashedError); not tried again" in capsys.readouterr().err


def test_a_run_that_fails_by_itself_is_not_tried_again(job: Job) -> None:
    ray = Ray((2, None))
    engine = RayEngine(ray)
    engine.start(job)
    assert drain(engine) == [job]
    assert len(ray.sent) == 1


def test_a_run_has_ended_when_its_result_is_seen_here(job: Job) -> None:
    engine = RayEngine(Ray((0, b"{}")))
    engine.start(job)
    assert drain(engine) == []
    RunFolder(job.folder).path.mkdir(parents=True)
    (job.folder / "result.json").write_bytes(b"{}")
    assert drain(engine) == [job]


@pytest.mark.parametrize(
    ("cause", "kind", "message"),
    [
        (ValueError("out: somewhere else"), ValueError, "^out: somewhere else$"),
        (ModuleNotFoundError("No module named 'plkernel'"), OSError, "every machine needs plkernel"),
    ],
)
def test_an_error_of_a_task_ends_the_study(cause: Exception, kind: type, message: str, job: Job) -> None:
    engine = RayEngine(Ray(TaskError(cause)))
    engine.start(job)
    with pytest.raises(kind, match=message):
        engine.ended()


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_folder_that_is_not_shared_is_named(content: str | None, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such folder on the other machine, or one of the same name."""
    monkeypatch.setattr(ray_engine, "SEEN_SECONDS", 0.0)
    if content:
        job.study.mkdir()
        (job.study / "spec.json").write_text(content)
    with pytest.raises(ValueError, match=r"out: .*out on .* is not the folder of this study; give --out a folder on"):
        work(job, "the digest of another", {}, Path.cwd(), 0.0)


def test_room_and_devices_are_those_of_the_cluster(tiny_spec: SpecWriter) -> None:
    spec = load_spec(tiny_spec(threads=2))
    boxes = RayEngine(Ray(machines=({"CPU": 8.0, "GPU": 2.0}, {"CPU": 3.0}, {"CPU": 1.0})))
    assert (boxes.device(spec.condition("uniform")), boxes.room(spec, "cuda"), boxes.room(spec, "cpu")) == (
        "cuda",
        2,
        5,
    )
    assert boxes.device(load_spec(tiny_spec(device="cpu")).condition("uniform")) == "cpu"
    assert RayEngine(Ray()).device(spec.condition("uniform")) == "cpu"
    with pytest.raises(ValueError, match=r"train.device 'cuda': no machine of the cluster has a GPU"):
        RayEngine(Ray()).device(load_spec(tiny_spec(device="cuda")).condition("uniform"))


def test_a_process_that_resolves_to_another_configuration_refuses(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine that has a run may have other bytes under the name of the corpus."""
    spec, out = load_spec(tiny_spec()), tmp_path / "out"
    config = prepare(spec, "uniform", 0, out).config
    config["corpus"]["sha256"] = "0" * 64
    job = Job(out, "uniform", 0, "cpu", 1, config)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", lambda *args, **kwargs: None)
        start_process(job, {})
    assert load_json(job.folder / "config.json") == config
    with pytest.raises(ValueError, match=r"corpus.sha256 was '000"):
        run_training(prepare(spec, "uniform", 0, out), progress_bar=False)


def test_the_worker_that_waits_for_a_run_loads_no_torch() -> None:
    """It would take a few hundred megabytes beside every run."""
    code = "import sys, plkernel.study.ray_engine; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
