"""What a study asks of an engine, with one that trains nothing; and the engine of Ray, with a Ray that is none."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.common.files import load_json
from plkernel.config.condition import Condition
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.study import local_engine, ray_engine, ray_task
from plkernel.study.engine import Job, start_process
from plkernel.study.local_engine import LocalEngine, Worker
from plkernel.study.ray_engine import RETRIES, RayEngine
from plkernel.study.ray_task import End, work
from plkernel.study.schedule import opened, run_experiment
from plkernel.training.folder import RunFolder
from plkernel.training.loop import prepare
from plkernel.training.loop import run_training

SpecWriter = Callable[..., Path]


RESULT = {"status": "finished", "final_val_bpb": 2.0, "steps": 2, "seconds": 0.1, "causal": True}


@dataclass
class Idle:
    """An engine whose runs end, one each time that it is asked, without having been trained; those of one arm fail."""

    places: int = 2
    company: int = 1
    broken: str | None = None
    active: list[Job] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    most: int = 0
    stopped: bool = False
    interrupt: bool = False

    def device(self, condition: Condition) -> str:
        return "cpu"

    def room(self, spec: Spec, device: str) -> int:
        return self.places

    def together(self, condition: Condition, device: str) -> int:
        return self.company

    def start(self, *jobs: Job) -> None:
        self.active += jobs
        self.started += [" + ".join(job.name for job in jobs)]
        self.most = max(self.most, len(self.active))

    def ended(self) -> list[Job]:
        if self.interrupt:
            raise KeyboardInterrupt
        job = self.active.pop(0)
        if job.arm != self.broken:
            RunFolder(job.folder).finish(RESULT)
        return [job]

    def stop(self) -> None:
        self.stopped = True


ORDER = ["uniform seed 0", "power-law seed 0", "uniform seed 1", "power-law seed 1"]


def test_a_study_gives_the_engine_what_is_left_as_room_allows(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out = load_spec(tiny_spec(steps=2)), tmp_path / "out"
    first = Idle(broken="power-law")
    assert run_experiment(spec, out, engine=first) == ["power-law seed 0", "power-law seed 1"]
    assert (first.started, first.most) == (ORDER, 2)
    second = Idle()
    assert run_experiment(spec, out, workers=1, engine=second) == []
    assert (second.started, second.most) == (["power-law seed 0", "power-law seed 1"], 1)
    third = Idle()
    assert run_experiment(spec, out, engine=third) == []
    assert third.started == []


WIDE = ["wide seed 0", "wide seed 1"]
ONE_PLACE = pytest.param(1, [ORDER[:3], WIDE, ORDER[3:]], marks=pytest.mark.slow)


@pytest.mark.parametrize(("places", "started"), [(2, [ORDER[:2], WIDE, ORDER[2:]]), ONE_PLACE])
def test_runs_of_equal_shape_share_a_process_as_places_allow(
    tiny_spec: SpecWriter, tmp_path: Path, places: int, started: list[list[str]]
) -> None:
    """Four alike in two places are two and two, in one place three and one; two have another shape."""
    path = tiny_spec(steps=2)
    path.write_text(path.read_text() + "[arms.wide]\nmodel = { dim = 32 }\n")
    engine = Idle(places=places, company=3)
    assert run_experiment(load_spec(path), tmp_path / "out", engine=engine) == []
    assert engine.started[: len(started)] == [" + ".join(names) for names in started]


def test_the_search_runs_on_the_same_engine(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec, engine = load_spec(tiny_spec(head="[tuning]\nrates = [1e-3, 1e-2]\nseeds = [7]")), EndsNothing()
    with pytest.raises(ValueError, match=r"tuning.rates: no learning rate for arm 'uniform'"):
        run_experiment(spec, tmp_path / "out", only=["uniform"], engine=engine)
    assert engine.started == ["uniform_rate-0.001 seed 7", "uniform_rate-0.01 seed 7"]


class EndsNothing(Idle):
    """Every run ends without a result."""

    def ended(self) -> list[Job]:
        return [self.active.pop(0)]


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
            r"uniform_rate-0.001 seed 7 failed \(.*\), see .*log.txt and 1 more; mend the cause",
        ),
        ([None, RESULT], "uniform_rate-0.001 seed 7 did not finish, see .*log.txt; mend the cause"),
    ],
)
def test_a_search_without_a_rate_says_what_ended_it(
    tiny_spec: SpecWriter, tmp_path: Path, results: list[dict[str, Any] | None], message: str
) -> None:
    """Lower rates are no remedy where memory or a file is missing."""
    left = list(results)

    class Ends(Idle):
        def ended(self) -> list[Job]:
            job, result = self.active.pop(0), left.pop(0)
            if result:
                RunFolder(job.folder).finish(result)
            return [job]

    spec = load_spec(tiny_spec(head="[tuning]\nrates = [1e-3, 1e-2]\nseeds = [7]"))
    with pytest.raises(ValueError, match=message):
        run_experiment(spec, tmp_path / "out", only=["uniform"], engine=Ends())


def test_an_interrupt_stops_the_engine_before_it_is_told(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    engine = Idle(interrupt=True)
    with pytest.raises(KeyboardInterrupt, match="every run is saved; run the same command again to go on"):
        run_experiment(load_spec(tiny_spec()), tmp_path / "out", engine=engine)
    assert engine.stopped


def test_an_error_of_the_engine_leaves_no_run_behind(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    class Fails(Idle):
        def ended(self) -> list[Job]:
            raise ValueError("out: not shared")

    engine = Fails()
    with pytest.raises(ValueError, match="not shared"):
        run_experiment(load_spec(tiny_spec()), tmp_path / "out", engine=engine)
    assert engine.stopped


def test_no_room_is_bad_input_and_writes_nothing(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec = load_spec(tiny_spec(threads=64))
    with pytest.raises(ValueError, match=r"train.threads 64: no machine has so many cores"):
        run_experiment(spec, tmp_path / "out", engine=Idle(places=0))
    assert not (tmp_path / "out").exists()


def test_a_free_gpu_is_taken_before_a_busy_one() -> None:
    """The first of two workers has ended: the next run goes to its GPU, not beside the other."""
    engine, job, process = LocalEngine(), Job(Path("out"), "uniform", 0, "cuda", 1, {}), SimpleNamespace()
    assert engine.idlest(["0", "1"]) == "0"
    engine.active = [Worker(job, "1", process)]
    assert engine.idlest(["0", "1"]) == "0"
    engine.active = [Worker(job, "0", process)]
    assert engine.idlest(["0", "1"]) == "1"


def test_a_run_on_a_gpu_sees_that_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(local_engine, "start_process", lambda jobs, environment: seen.append(environment))
    engine = LocalEngine()
    for device in ("cuda", "cuda", "cpu"):
        engine.start(Job(Path("out"), "uniform", 0, device, 1, {}))
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment in seen] == ["3", "5", "3,5"]


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


@pytest.mark.parametrize("loss", [LOST, End(-9, None)])
def test_a_lost_run_is_given_to_the_cluster_again(loss: Any, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    ray = Ray(loss, loss, End(0, None))
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
    ray = Ray(End(2, None))
    engine = RayEngine(ray)
    engine.start(job)
    assert drain(engine) == [job]
    assert len(ray.sent) == 1


def test_a_run_has_ended_when_its_result_is_seen_here(job: Job) -> None:
    engine = RayEngine(Ray(End(0, b"{}")))
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
    monkeypatch.setattr(ray_task, "SEEN_SECONDS", 0.0)
    if content:
        job.study.mkdir()
        (job.study / "spec.json").write_text(content)
    with pytest.raises(ValueError, match=r"out: .*out on .* is not the folder of this study; give --out a folder on"):
        work(job, "the digest of another", {}, Path.cwd(), job.folder / ".lock", 0.0)


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
        start_process([job], {})
    assert load_json(job.folder / "config.json") == config
    with pytest.raises(ValueError, match=r"corpus.sha256 was '000"):
        run_training(prepare(spec, "uniform", 0, out), progress_bar=False)


def test_the_worker_that_waits_for_a_run_loads_no_torch() -> None:
    """It would take a few hundred megabytes beside every run."""
    code = "import sys, plkernel.study.ray_task; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
