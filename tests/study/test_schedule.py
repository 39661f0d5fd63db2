"""The schedule of a study: runs given to an engine as room allows, resumable, one experiment at a
time.
"""

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.commands import experiment
from plkernel.commands.experiment import _cautions, forecast
from plkernel.common.files import LOG, REGISTERED, SPEC, TUNING, load_json, run_folder, save_json
from plkernel.config.condition import Condition
from plkernel.config.reading import load_spec, load_values, parse_spec
from plkernel.config.resolved import resolve_spec
from plkernel.config.spec import Spec
from plkernel.results.record import save_record
from plkernel.results.registration import place_of, register
from plkernel.results.study import read_study
from plkernel.results.wording import left_out
from plkernel.study import dry_run, schedule
from plkernel.study import engine as engines
from plkernel.study.engine import Job, LocalEngine, start_process
from plkernel.study.schedule import run_experiment, search_of, take_record, tuned
from plkernel.training.folder import RunFolder, locked
from plkernel.training.loop import prepare, run_training

SpecWriter = Callable[..., Path]
Start = Callable[..., subprocess.Popen[str]]
SEARCH = "[tuning]\nrates = [1e-3, 1e-2]\nseeds = [7]"
ORDER = ["uniform seed 0", "power-law seed 0", "uniform seed 1", "power-law seed 1"]
RESULT = {"status": "finished", "steps": 2, "seconds": 0.1, "causal": True}
RESULT |= dict.fromkeys(("final_val_bpb", "best_val_bpb", "test_bpb"), 1.0) | {
    "best_step": 2,
    "bytes": 256,
}


@dataclass
class Idle:
    """An engine whose runs end one by one, untrained, with `result`, one of an iterator, or not at
    all; see `broken`.

    broken: the arm whose runs end without a result. error: raised in place of ending.
    """

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
        return 2

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


def test_a_study_gives_the_engine_what_is_left_as_room_allows(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    spec, out = load_spec(tiny_spec(steps=2)), tmp_path / "out"
    first, second, third = Idle(broken="power-law"), Idle(), Idle()
    assert run_experiment(spec, out, engine=first) == ["power-law seed 0", "power-law seed 1"]
    assert (first.started, first.most) == (ORDER, 2)
    assert run_experiment(spec, out, workers=1, engine=second) == []
    assert (second.started, second.most) == (["power-law seed 0", "power-law seed 1"], 1)
    assert run_experiment(spec, out, engine=third) == []
    assert third.started == []


def test_the_folder_of_a_study_may_be_a_string(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = load_spec(tiny_spec(steps=2))
    assert run_experiment(spec, "runs/out", engine=Idle()) == []
    assert (tmp_path / "runs/out/spec.json").exists()
    bad: Any
    for bad in ("", None, 3):
        with pytest.raises(ValueError, match="out must be the path of a folder, got"):
            run_experiment(spec, bad, engine=Idle())


def test_the_bar_of_a_study_counts_the_runs_that_were_left(
    tiny_spec: SpecWriter, tmp_path: Path, bars: Callable[[str], list[Any]]
) -> None:
    """Those that failed have ended too."""
    made = bars("plkernel.study.schedule")
    spec, out = load_spec(tiny_spec(steps=2)), tmp_path / "out"
    for engine in (Idle(broken="power-law"), Idle()):
        run_experiment(spec, out, engine=engine)
    assert [(bar.n, bar.total, bar.desc) for bar in made] == [(4, 4, "tiny"), (2, 2, "tiny")]


def test_means_are_those_of_arms_whose_runs_have_all_finished(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the last one ends, and when the study is run again."""
    drawn: list[tuple[str, list[int]]] = []
    monkeypatch.setattr(
        schedule, "save_mean", lambda arm, seeds: drawn.append((arm.name, list(seeds)))
    )
    spec, out = load_spec(tiny_spec(steps=2)), tmp_path / "out"
    run_experiment(spec, out, engine=Idle(broken="power-law"))
    assert drawn == [("uniform", [0, 1])]
    run_experiment(spec, out, engine=Idle())
    assert drawn[1:] == [("uniform", [0, 1]), ("power-law", [0, 1])]


DIVERGED = {"status": "diverged", "error": "the loss is nan at step 3"}
BROKEN = {"status": "failed", "error": "Traceback ...\nRuntimeError: not enough memory"}


def test_a_search_without_a_rate_says_what_ended_it(
    tiny_spec: SpecWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Idle(results=iter([BROKEN, DIVERGED]))
    with pytest.raises(
        ValueError,
        match=r"tuning.rates must hold a learning rate for arm 'uniform', got none .*tuning; mend",
    ):
        run_experiment(
            load_spec(tiny_spec(head=SEARCH)), tmp_path / "out", only=["uniform"], engine=engine
        )
    first, second = [line for line in capsys.readouterr().out.splitlines() if "_rate-" in line]
    assert "-0.001 seed 7 failed (RuntimeError: not enough memory), see " in first
    assert "-0.01 seed 7 diverged at step 3, see " in second
    assert engine.started == ["uniform_rate-0.001 seed 7", "uniform_rate-0.01 seed 7"]
    for retry, tried in (
        (False, engine.started[:1]),
        (True, engine.started),
    ):  # what failed, and what diverged too
        again = Idle(results=iter([BROKEN, DIVERGED]))
        with pytest.raises(ValueError, match="must hold a learning rate for arm 'uniform'"):
            run_experiment(
                load_spec(tiny_spec(head=SEARCH)), tmp_path / "out", 2, ["uniform"], again, retry
            )
        assert again.started == tried


def test_an_error_stops_the_engine(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    for error, message in (
        (KeyboardInterrupt(), "the steps of every run are saved; run the same"),
        (ValueError("out: x"), "out: x"),
    ):
        engine = Idle(error=error)
        with pytest.raises(type(error), match=message):
            run_experiment(load_spec(tiny_spec()), tmp_path / "out", engine=engine)
        assert engine.stopped


def test_a_run_on_a_gpu_sees_the_idlest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third run goes beside the first; once the second has ended, the next goes to its GPU."""
    seen: list[str] = []
    polls: dict[str, int | None] = {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")

    def start(job: Job, environment: dict[str, str]) -> SimpleNamespace:
        seen.append(environment["CUDA_VISIBLE_DEVICES"])
        return SimpleNamespace(poll=lambda: polls.get(job.name))

    monkeypatch.setattr(engines, "start_process", start)
    engine, jobs = (
        LocalEngine(),
        [Job(Path("out"), "uniform", seed, "cuda", 1, {}) for seed in range(4)],
    )
    for job in jobs[:3]:
        engine.start(job)
    polls[jobs[1].name] = 0
    assert engine.ended() == [jobs[1]]
    engine.start(jobs[3])
    engine.start(Job(Path("out"), "uniform", 9, "cpu", 1, {}))
    assert seen == ["3", "5", "3", "5", "3,5"]


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


def test_a_folder_in_which_an_experiment_runs_is_refused(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    out, search = tmp_path / "out", load_spec(tiny_spec(head=SEARCH))
    (out / TUNING).mkdir(parents=True)
    for spec in (load_spec(tiny_spec()), search):
        with (
            locked(out, "out"),
            pytest.raises(ValueError, match=f"out {out} is in use by another process"),
        ):
            run_experiment(spec, out, engine=Idle())
    assert not list(out.rglob("spec.json"))

    class Watched(Idle):
        def start(self, job: Job) -> None:
            with pytest.raises(ValueError, match="is in use"), locked(out, "out"):
                pass
            assert job.study == out / TUNING
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(search, out, engine=Watched())
    with locked(out, "out"):
        pass


@pytest.mark.parametrize("name", ["spec.json", "uniform", "power-law/seed-1/log.txt"])
def test_a_study_with_links_in_it_is_refused(
    tiny_spec: SpecWriter, tmp_path: Path, name: str
) -> None:
    spec, link = load_spec(tiny_spec()), tmp_path / "out" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "elsewhere")
    engine = Idle()
    with pytest.raises(ValueError, match=rf"out/{name} .* got a symbolic link to .*elsewhere"):
        run_experiment(spec, tmp_path / "out", engine=engine)
    assert not (tmp_path / "elsewhere").exists()
    assert engine.started == []


def test_divergence_is_said_and_is_an_end(
    tiny_spec: SpecWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, out, lost = load_spec(tiny_spec()), tmp_path / "out", "uniform seed 0"
    assert run_experiment(
        spec, out, engine=Idle(results=iter([DIVERGED, RESULT, RESULT, RESULT]))
    ) == [lost]
    assert (
        f"{lost} diverged at step 3, see {out / 'uniform/seed-0/log.txt'}\n"
        in capsys.readouterr().out
    )
    again, asked = Idle(), Idle()
    assert run_experiment(spec, out, engine=again) == [lost]
    assert again.started == []
    assert (
        "tiny: 4 runs, 3 finished before, 1 diverged before, 0 at a time" in capsys.readouterr().out
    )
    assert run_experiment(spec, out, engine=asked, retry=True) == []
    assert asked.started == [lost]


def test_the_end_of_a_run_without_room_for_its_result_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor had it room for its log."""
    log = tmp_path / LOG
    assert schedule._ending(RunFolder(tmp_path)) == f" did not finish, see {log}"
    monkeypatch.setattr(schedule, "lack_of_room", lambda _: "the disk is full")
    told = schedule._ending(RunFolder(tmp_path))
    assert told == f" did not finish (the disk is full), see {log}"


def test_a_registration_is_copied_to_the_folder(
    tiny_spec: SpecWriter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = load_spec(
        tiny_spec(head="[[hypotheses]]\nname = 'a'\narm = 'power-law'\nclaim = 'lower'")
    )
    register(spec, place_of(spec), tmp_path / "out")
    run_experiment(spec.model_copy(update={"seeds": (0,)}), tmp_path / "out", engine=Idle())
    assert (tmp_path / "out" / REGISTERED).read_bytes() == place_of(spec).read_bytes()
    note = "note: the spec differs from its registration: seeds was [0, 1], is now [0]"
    assert note in capsys.readouterr().err


def test_where_a_registration_is_missed_is_told_before_the_first_run(
    tiny_spec: SpecWriter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A study that is begun in another folder than it was registered in has no registration."""
    head = "[[hypotheses]]\nname = 'a'\narm = 'power-law'\nclaim = 'lower'"
    spec = load_spec(tiny_spec(head=head))
    out = tmp_path / "out"
    for name in ("registering", "beginning"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "registering")
    register(spec, place_of(spec), out)
    capsys.readouterr()
    run_experiment(spec, out, engine=Idle())
    assert "not registered" not in capsys.readouterr().err

    monkeypatch.chdir(tmp_path / "beginning")
    out = tmp_path / "other"
    run_experiment(spec, out, engine=Idle())
    told = capsys.readouterr().err
    missed = tmp_path / "beginning/runs/registered/tiny.json"
    assert f"study 'tiny' are not registered: there is neither {missed} nor {out}/reg" in told
    save_json(out / "uniform/seed-0/config.json", {})  # a run has begun: it is too late to register
    assert schedule.noted_registration(spec, out) is None
    run_experiment(load_spec(tiny_spec()), tmp_path / "nothing declared", engine=Idle())
    assert "not registered" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, r"made by another spec .*train.learning_rate was 1.0, is"),
        ("result.json", {}, "result.json must say how the run ended"),
        (
            "result.json",
            {"status": "finished", "steps": 12},
            r"result.json must have bytes, final_val_bpb, .*got none; remove it to go on",
        ),
    ],
)
def test_a_folder_of_another_spec_and_a_damaged_result_are_refused(
    tiny_spec: SpecWriter, tmp_path: Path, name: str, content: Any, message: str
) -> None:
    """Found in the last run, before any worker starts and before spec.json changes."""
    spec, path = load_spec(tiny_spec()), tmp_path / "out" / "power-law" / "seed-1" / name
    if name == "config.json":
        content = prepare(spec, "power-law", 1, tmp_path).config
        content["train"]["learning_rate"] = 1.0
    save_json(path, content)
    engine = Idle()
    with pytest.raises(ValueError, match=message):
        run_experiment(spec, tmp_path / "out", engine=engine)
    assert engine.started == []


def spec_of(path: Path, **changes: Any) -> Spec:
    """The spec of a file with other values."""
    return parse_spec({**load_values(path), **changes}, "changed")


def ended_study(spec: Spec, out: Path) -> Path:
    """A study in `out` all of whose runs have finished, untrained."""
    for arm in spec.arms:
        for seed in spec.seeds:
            folder = RunFolder(run_folder(out, arm, seed))
            save_json(folder.path / "config.json", prepare(spec, arm, seed, out).config)
            save_json(folder.path / "environment.json", {})
            row = {"step": 0, "bytes": 0, "val_bpb": 1.0}
            (folder.path / "metrics.jsonl").write_text(f"{json.dumps(row)}\n")
            folder.finish(RESULT)
    save_json(out / SPEC, spec.model_dump(mode="json"))
    return out


OTHERS: list[tuple[dict[str, Any], str]] = [
    (
        {"name": "other"},
        "out must be a new folder or that of study 'other', got .*, which is that of 'tiny'; name"
        " another --out",
    ),
    (
        {"arms": {"new": {}, "newer": {"placement": "log-spaced"}}, "baseline": "new"},
        "whose runs are of arms that the spec does not have, such as 'power-law'; name another --o",
    ),
]


@pytest.mark.parametrize(("changes", "message"), OTHERS)
def test_the_folder_of_another_study_is_refused(
    tiny_spec: SpecWriter, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tiny_spec(steps=2)
    out = ended_study(load_spec(path), tmp_path / "out")
    before = (out / SPEC).read_bytes()
    engine = Idle()
    with pytest.raises(ValueError, match=message):
        run_experiment(spec_of(path, **changes), out, engine=engine)
    assert (out / SPEC).read_bytes() == before
    assert engine.started == []
    (out / SPEC).unlink()
    shutil.rmtree(out / "uniform")
    run_experiment(spec_of(path, name="tiny", seeds=[5]), out, engine=Idle())


def test_a_study_goes_on_with_other_seeds_arms_and_words(
    tiny_spec: SpecWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Finished runs that the spec no longer asks for are named before any run and in the report."""
    path = tiny_spec(steps=2)
    values = load_values(path)
    out = ended_study(load_spec(path), tmp_path / "out")
    arms = {**values["arms"], "more": {"placement": "log-spaced"}}
    for changes, started in (
        ({"description": "Edited."}, []),
        ({"arms": arms}, ["more seed 0", "more seed 1"]),
        ({"seeds": [1, 2]}, ["uniform seed 2", "power-law seed 2"]),
    ):
        engine = Idle()
        assert run_experiment(spec_of(path, **changes), out, engine=engine) == []
        assert engine.started == started
        said = capsys.readouterr().err
        assert ("note: The folder has" in said) == ("seeds" in changes)
    of_seeds = (
        "The folder has 2 finished runs of seed 0, left out as the spec has seed 1 and 2 alone;"
        " plkernel.experiment with --seeds 1 2 0 takes all in."
    )
    of_arms = "The folder has 2 finished runs of arm more, left out as the spec has no such arm."
    assert f"note: {of_seeds}\nnote: {of_arms}\n" in said
    assert left_out(read_study(out).beside, list(values["arms"]), [1, 2]) == [of_seeds, of_arms]


def test_a_record_is_taken_in_once_it_is_known_to_suit(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    path = tiny_spec(steps=2)
    spec = load_spec(path)
    record = tmp_path / "record"
    save_record(read_study(ended_study(spec, tmp_path / "study")), record)
    assert take_record(spec, record, tmp_path / "out") == 4
    engine = Idle()
    grown = spec_of(path, seeds=[0, 1, 2])
    assert take_record(grown, record, tmp_path / "out") == 0
    run_experiment(grown, tmp_path / "out", engine=engine)
    assert engine.started == ["uniform seed 2", "power-law seed 2"]


def test_runs_that_are_not_checked_stay_in_the_record(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    """Those of arms that are not chosen, and of arms that the spec lacks."""
    path = tiny_spec(steps=2)
    record = tmp_path / "record"
    save_record(read_study(ended_study(load_spec(path), tmp_path / "study")), record)
    out = tmp_path / "out"
    assert take_record(load_spec(path), record, out, ["power-law"]) == 2
    assert not (out / "uniform").exists()
    rows = (record / "rows.jsonl").read_text()
    (record / "rows.jsonl").write_text(rows.replace('"uniform"', '"unknown"'))
    assert take_record(load_spec(path), record, out) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"name": "other"},
            "record must be one of study 'other', got .*record, which is of 'tiny'; name its own",
        ),
        (
            {"seeds": [5]},
            "its uniform seed 0 was made by another spec .train.steps was 2, is now 3.; name anoth",
        ),
    ],
)
def test_nothing_is_taken_from_the_record_of_another_study(
    tiny_spec: SpecWriter, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    record = tmp_path / "record"
    study = ended_study(load_spec(tiny_spec(steps=2)), tmp_path / "study")
    save_record(read_study(study), record)
    spec = spec_of(tiny_spec(steps=3), **changes)
    with pytest.raises(ValueError, match=message):
        experiment.command(spec, out=tmp_path / "out", record=record)
    assert not (tmp_path / "out").exists()


def test_nothing_is_taken_from_a_record_whose_search_had_other_settings(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    def spec(steps: int) -> Spec:
        return load_spec(tiny_spec(head=f"{SEARCH}\nsteps = {steps}"))

    study = tmp_path / "study"
    ended_study(search_of(spec(2)), study / TUNING)
    ended_study(tuned(spec(2), study), study)
    record = tmp_path / "record"
    save_record(read_study(study), record)
    with pytest.raises(ValueError, match=r"uniform_rate-0.001 seed 7 was made by another spec"):
        take_record(spec(3), record, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert take_record(spec(2), record, tmp_path / "out") == 8
    without = parse_spec(load_values(record / SPEC) | {"tuning": {}}, "here")
    assert take_record(without, record, tmp_path / "alone") == 4
    assert not (tmp_path / "alone" / TUNING).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corpus": "missing.txt"}, "missing.txt"),
        ({"context": 100_000}, "the validation split of corpus .* must hold one window"),
    ],
)
def test_bad_input_writes_nothing(
    tiny_spec: SpecWriter, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    spec = load_spec(tiny_spec(**options))
    with pytest.raises(ValueError, match=message):
        run_experiment(spec, tmp_path / "out", engine=Idle())
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match=message):
        forecast(spec, (), 1)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("memory-lags", {"short": "1.60", "short-frozen": "1.60", "long": "0.20"}),
        ("memory-far", {}),
    ],
)
def test_arms_of_unequal_scale_are_named(spec: str, said: dict[str, str]) -> None:
    """Those of the second spec are matched."""
    lines = [line for line in _cautions(resolve_spec(load_spec(spec))) if "the output of" in line]
    base = "the output of log-spaced_lags-{0}; match = 'baseline' evens it"
    every = [(arm, lag) for lag in ("0.7", "1.3") for arm in said]
    wanted = {
        f"{arm}_lags-{lag}: at initialisation its output is {said[arm]} times {base.format(lag)}"
        for arm, lag in every
    }
    assert wanted <= set(lines)
    assert bool(lines) == bool(said)


def test_a_caution_is_said_once_for_a_curve_over_learning_rates(tiny_spec: SpecWriter) -> None:
    """The rates of a curve differ in nothing that the cautions are about."""
    path = tiny_spec(learning_rate=None)
    rates = "[tuning]\nmethod = 'curve'\nrates = [1e-3, 2e-3, 4e-3]\n[model]\n"
    path.write_text(path.read_text().replace("[model]\n", rates))
    assert list(_cautions(resolve_spec(load_spec(path)))) == [
        "power-law: at initialisation its output is 0.61 times the output of uniform; match ="
        " 'baseline' evens it"
    ]


def test_a_dry_run_says_what_a_study_cannot_know(
    tiny_spec: SpecWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corpus that is not here, and quantiles of a flat law beyond what is read."""
    monkeypatch.setattr(dry_run, "render", lambda _: "the table")
    monkeypatch.setattr(dry_run, "estimate", lambda *_, **options: None)
    spec = load_spec(tiny_spec(corpus="hf:some/text"))
    assert (
        forecast(spec, ("uniform",), 1)
        == "the table\ncorpus 'hf:some/text' is not read yet: nothing is known of its size"
    )
    assert (
        "power-law: at initialisation its output is 0.61 times the output of uniform"
        in forecast(spec, ("power-law",), 1)
    )
    path = tiny_spec()
    slow = "[arms.slow]\nplacement = 'quantile'\nbeta = 0.456\nlag = 'distance'\n"
    path.write_text(path.read_text().replace("[model]\n", "[model]\ngain = 'ema'\n") + slow)
    words = (
        r"half or more of its half-lives, [\d,]+ to [\d,]+ bytes, are longer than 10 windows of 32"
        r" bytes"
    )
    assert re.search(f"^slow: {words}$", forecast(load_spec(path), (), 1), re.MULTILINE)


def wait_for_rows(out: Path, rows: int, patience: float = 300.0) -> None:
    """Wait until some run of the study has written that many evaluations."""
    deadline = time.monotonic() + patience
    while not any(
        path.read_bytes().count(b"\n") >= rows for path in out.glob("*/seed-*/metrics.jsonl")
    ):
        assert time.monotonic() < deadline, f"no run reached {rows} evaluations in {patience} s"
        time.sleep(0.02)


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a command that must succeed; return what it printed."""
    output, error = process.communicate(timeout=600)
    assert process.returncode == 0, error
    return output


@pytest.mark.slow
def test_kill_and_restart_gives_the_same_bytes(
    tiny_spec: SpecWriter, tmp_path: Path, start: Start
) -> None:
    """Of the experiment alone: its workers notice and end. Run again, it reports; once more, it
    trains nothing.
    """
    spec, whole, parts = tiny_spec(steps=400, eval_every=50), tmp_path / "whole", tmp_path / "parts"
    names = [
        f"{arm}/seed-{seed}/metrics.jsonl" for arm in ("uniform", "power-law") for seed in (0, 1)
    ]
    for name in names:
        arm, seed = name.split("/")[:2]
        run_training(prepare(load_spec(spec), arm, int(seed[-1]), whole), progress_bar=False)
    killed = start(spec, parts)
    wait_for_rows(parts, 3)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not list(parts.glob("*/seed-*/result.json")), "killed before any run finished"
    assert "power-law" in finish(start(spec, parts))
    assert (parts / "report" / "report.html").exists()
    assert [(parts / name).read_bytes() for name in names] == [
        (whole / name).read_bytes() for name in names
    ]
    stamps = {path: path.stat().st_mtime_ns for path in parts.glob("*/seed-*/result.json")}
    assert "4 runs, 4 finished before" in finish(start(spec, parts))
    assert {path: path.stat().st_mtime_ns for path in parts.glob("*/seed-*/result.json")} == stamps


@pytest.mark.slow
def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(
    tiny_spec: SpecWriter, tmp_path: Path, start: Start
) -> None:
    process = start(tiny_spec(steps=20_000, eval_every=20), tmp_path / "out", "--workers", "1")
    wait_for_rows(tmp_path / "out", 3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    log = next((tmp_path / "out").glob("*/seed-*/log.txt")).read_text()
    assert process.returncode == 130
    assert "run the same command again to go on" in error
    assert "is saved" in log
    assert "Traceback" not in error + log


@pytest.mark.slow
def test_a_dry_run_writes_nothing_and_counts_the_search(
    tiny_spec: SpecWriter, tmp_path: Path, start: Start
) -> None:
    spec = tiny_spec(head=SEARCH)
    printed = finish(start(spec, tmp_path / "out", "--dry-run", "--workers", "1"))
    assert not (tmp_path / "out").exists()
    assert "tiny: 8 runs, 1 at a time" in printed
    assert "tuning: uniform_rate-0.001 and 3 more" in printed
