"""python -m plkernel.experiment: cautions, refusals, registrations and exits around a study."""

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.commands import experiment
from plkernel.common.files import run_folder, save_json
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.resolved import resolve_spec
from plkernel.config.spec import Spec
from plkernel.study.queue import JOB, SavedJob

Shown = pytest.CaptureFixture[str]


def condition(name: str, scale: float, has_scale: bool = True, model: str = "ssm") -> Any:
    of_kind = SimpleNamespace(has_scale=has_scale)
    model_of: Any = SimpleNamespace(of_kind=of_kind, kind=model)
    return SimpleNamespace(name=name, nodes=scale, model=model_of)


@pytest.mark.parametrize(
    ("scale", "told"), [(0.5, "0.50"), (1.0, None), (1.09, None), (0.91, None), (2.0, "2.00")]
)
def test_an_output_of_another_scale_is_told_as_a_ratio(
    scale: float, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plkernel.analysis.nodes.output_std", lambda nodes: nodes)
    base = condition("base", 4.0)
    arm = condition("arm", 4.0 * scale)
    arm.model = base.model
    words = {"base": "the first", "arm": "the second"}
    found = list(experiment._scale_caution(arm, base, words))
    if told is None:
        assert found == []
    else:
        assert found == [
            f"the second: at initialisation its output is {told} times the output of the first;"
            " match = 'baseline' evens it"
        ]
    assert list(experiment._scale_caution(arm, None, words)) == []
    assert (
        list(experiment._scale_caution(arm, condition("base", 1.0, model="rwkv6"), words)) == []
    ), "another model"
    without = condition("base", 1.0, has_scale=False)
    arm.model = without.model
    assert list(experiment._scale_caution(arm, without, words)) == []


def spec_of(**changes: Any) -> Spec:
    model = {"dim": 16, "layers": 1} | changes.pop("model", {})
    train = {"context": 64, "batch": 4, "steps": 10} | changes.pop("train", {})
    arms = changes.pop("arms", {"a": {}, "b": {"placement": "log-spaced", "longest": 4096}})
    values = {"name": "s", "baseline": "a", "seeds": [0, 1, 2], "corpus": {"name": "stdlib"}}
    return parse_spec({**values, "model": model, "train": train, "arms": arms, **changes}, "s")


def test_half_lives_that_outlast_the_context_are_told_in_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step of a model of patches is as many bytes as they have."""
    asked: list[list[float]] = []

    def outlasting(half_lives: list[float], context: int) -> str:
        assert context == 64
        asked.append(half_lives)
        return "many outlast"

    monkeypatch.setattr("plkernel.decays.memory.outlasting", outlasting)
    for size in (1, 4):
        resolved = resolve_spec(spec_of(model={"patching": {"size": size}})).conditions["b"]
        assert list(experiment._decay_caution(resolved, "this")) == ["this: many outlast"]
        rates = resolved.nodes.rates
        assert asked[-1] == pytest.approx([size * math.log(2) / rate for rate in rates])


@pytest.mark.parametrize(
    ("arm", "told"),
    [
        ({"tempering": 1.0}, "t**-1.15 up to 2048 bytes by a factor of e**161 either way"),
        ({"tempering": 0.5, "max_lag": 8192}, "t**-1.15 up to 8192 bytes by a factor of e**"),
        ({"tempering": 0.25}, None),
    ],
)
def test_quantiles_that_miss_the_law_of_their_arm_are_told(
    arm: dict[str, Any], told: str | None
) -> None:
    arms = {"a": {}, "b": {"placement": "quantile", **arm}}
    resolved = resolve_spec(spec_of(model={"gain": "none"}, arms=arms))
    assert list(experiment._law_caution(resolved.conditions["a"], "a")) == []
    found = list(experiment._law_caution(resolved.conditions["b"], "b"))
    assert len(found) == (told is not None)
    assert (told or "") in "".join(found)


GATE = "no gate asks that a model is ahead of counts of a few bytes"
CLAIM = {"name": "h", "arm": "b", "metric": "val_bpb", "claim": "lower", "margin": 0.01}


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, False),
        ({"hypotheses": [CLAIM]}, True),
        ({"hypotheses": [CLAIM], "corpus": {"name": "synthetic:markov,spread=0.3"}}, False),
        ({"hypotheses": [CLAIM], "gates": [{"name": "g", "arm": "a", "ahead_of": 5}]}, False),
        (
            {
                "hypotheses": [CLAIM],
                "arms": {
                    "a": {"corpus": {"name": "synthetic:markov,spread=0.3"}},
                    "b": {"corpus": {"name": "synthetic:markov,spread=0.3"}},
                },
            },
            False,
        ),
        (
            {
                "hypotheses": [CLAIM],
                "arms": {"a": {"corpus": {"name": "synthetic:markov,spread=0.3"}}, "b": {}},
            },
            True,
        ),
    ],
)
def test_hypotheses_on_a_text_need_a_gate(changes: dict[str, Any], is_told: bool) -> None:
    found = list(experiment._cautions(resolve_spec(spec_of(**changes))))
    assert any(line.startswith(GATE) for line in found) == is_told


@pytest.mark.parametrize(
    ("rates", "told"),
    [([1e-3, 4e-3, 16e-3], []), ([2e-2, 1e-3, 4e-3], ["tuning.rates: 0.004 and 0.02 are too far"])],
)
def test_rates_too_far_apart_for_a_curve_are_told(rates: list[float], told: list[str]) -> None:
    spec = spec_of(tuning={"method": "curve", "rates": rates})
    found = list(experiment._cautions(resolve_spec(spec)))
    assert [line[: len(start)] for line, start in zip(found, told, strict=False)] == told
    assert sum(line.startswith("tuning.rates") for line in found) == len(told)


def test_power_is_asked_for_where_hypotheses_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pilot = Path("pilot")
    rows = [{"name": "one"}, {"name": "two"}]
    monkeypatch.setattr(experiment, "powers", lambda spec, at: rows if at == pilot else [])
    monkeypatch.setattr(experiment, "power_text", lambda row: f"of {row['name']}")
    declared = spec_of(hypotheses=[CLAIM])
    (line,) = experiment._power(declared, None)
    assert line.startswith("the power is not known; --pilot FOLDER")
    assert list(experiment._power(spec_of(), None)) == []
    told = ["power of 'one': of one", "power of 'two': of two"]
    assert list(experiment._power(declared, pilot)) == told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"workers": -2}, "workers must be at least 1, got -2"),
        ({"workers": 1}, None),
        ({"workers": "auto"}, None),
        ({}, None),
        ({"only": ["c"]}, "only"),
        ({"only": ["b*"]}, None),
        ({"detach": True}, "engine must be slurm with detach"),
        ({"slurm": ["time=5"]}, "slurm.time must be left out with --engine local"),
        ({"slurm": ["time=5"], "detach": True}, "slurm.time must be left out with --engine local"),
    ],
)
def test_options_that_do_not_suit_are_refused(options: dict[str, Any], message: str | None) -> None:
    if message is None:
        experiment.check_arguments(["a", "b"], **options)
    else:
        with pytest.raises(ValueError, match=message):
            experiment.check_arguments(["a", "b"], **options)


@pytest.mark.parametrize("workers", ["auto", 2, None])
def test_workers_of_slurm_are_a_number(workers: Any) -> None:
    pytest.importorskip("submitit")
    given = {"engine": "slurm", "slurm": ["partition=gpu"], "workers": workers, "detach": True}
    if workers == "auto":
        with pytest.raises(ValueError, match="workers must be a number, or left out, with --eng"):
            experiment.check_arguments(["a"], **given)
    else:
        experiment.check_arguments(["a"], **given)


@pytest.mark.parametrize(
    ("words", "gathered"),
    [
        (["quick"], ["quick"]),
        (["quick", "--slurm.requeue"], ["quick", "--slurm", "requeue"]),
        (["--slurm.requeue", "--workers", "2"], ["--workers", "2", "--slurm", "requeue"]),
        (["--slurm.time", "60", "quick"], ["quick", "--slurm", "time=60"]),
        (["--slurm.time=60", "quick"], ["quick", "--slurm", "time=60"]),
        (["--slurmy", "--slurm.a", "b", "c"], ["--slurmy", "c", "--slurm", "a=b"]),
    ],
)
def test_parameters_of_jobs_are_one_option(words: list[str], gathered: list[str]) -> None:
    given = list(words)
    assert experiment.slurm_gathered(given) == gathered
    assert given == words


def test_a_study_is_registered_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    asked: list[Any] = []

    def registered(*given: Any) -> bool:
        asked.append(given)
        return len(asked) == 1

    spec = spec_of()
    monkeypatch.setattr(experiment, "register_study", registered)
    monkeypatch.setattr(experiment, "place_of", lambda _: Path("its/place"))
    copies = {Path("its/place"): None, Path("mine"): Path("its/copy")}
    monkeypatch.setattr(experiment, "copy_of", lambda spec, path, out: copies[path])
    monkeypatch.setattr(experiment, "_power", lambda *_: ["its power"])
    monkeypatch.setattr(experiment, "_cautions", lambda *_: ["a caution"])
    experiment.command(spec, out=tmp_path, register=(), pilot=Path("p"), underpowered=True)
    assert asked == [(spec, Path("its/place"), tmp_path, Path("p"), True, {})]
    told = ["registered: its/place; commit it before the runs", "its power", "a caution"]
    assert capsys.readouterr().out.splitlines() == told
    experiment.command(spec, register=(Path("mine"),))
    assert asked[1] == (spec, Path("mine"), Path("runs/out/s"), None, False, {})
    told = "registered before, unchanged: mine\nthe study finds its copy its/copy; the same command"
    assert capsys.readouterr().out.startswith(told)
    with pytest.raises(ValueError, match="register must be one file or none, got 2"):
        experiment.command(spec, register=(Path("a"), Path("b")))


@pytest.mark.parametrize(
    ("size", "train", "message"),
    [
        ("300B", {}, "must hold one window of context [+] 1 = "),
        ("300kB", {"beyond": 1024}, "must hold one window of context [*] beyond [+] 1 = "),
    ],
)
def test_a_corpus_without_a_window_is_refused_before_the_study_is_registered(
    size: str,
    train: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A registration stays, so that the mended study would need another name."""
    monkeypatch.setattr("plkernel.data.corpora.load", lambda *_, **__: pytest.fail("it is read"))
    path = tmp_path / "registered.json"
    spec = spec_of(corpus={"name": f"synthetic:lags,bytes={size}"}, train=train, hypotheses=[CLAIM])
    for options in ({"register": (path,)}, {"dry_run": True}):
        with pytest.raises(ValueError, match=message):
            experiment.command(spec, out=tmp_path / "out", **options)
    assert not path.exists()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """No run is trained: `failed` did not finish, `is_finished` the study; what was asked for."""
    state: dict[str, Any] = {"failed": [], "is_finished": True, "asked": [], "printed": []}

    def run(*given: Any) -> list[str]:
        state["asked"].append(given)
        if "error" in state:
            raise state["error"]
        return list(state["failed"])

    monkeypatch.setattr("plkernel.study.schedule.run_experiment", run)
    finished = SimpleNamespace(finished=lambda: state["is_finished"])
    monkeypatch.setattr(experiment, "read_study", lambda _: finished)
    monkeypatch.setattr("plkernel.commands.report.report", state["printed"].append)
    return state


def test_the_report_of_a_study_comes_at_its_end(trained: dict[str, Any], tmp_path: Path) -> None:
    spec = spec_of()
    experiment.command(spec, out=tmp_path / "out", workers=3, only=("a",), retry=True)
    assert trained["asked"] == [(spec, tmp_path / "out", 3, ("a",), None, True, None)]
    assert trained["printed"] == [tmp_path / "out"]
    experiment.command(spec, out=tmp_path / "out", report=False)
    trained["is_finished"] = False
    experiment.command(spec, out=tmp_path / "out")
    assert len(trained["printed"]) == 1
    assert trained["asked"][-1] == (spec, tmp_path / "out", None, (), None, False, None)


def test_runs_that_did_not_finish_are_named_and_the_exit_is_1(
    trained: dict[str, Any], tmp_path: Path, capsys: Shown
) -> None:
    trained["failed"] = ["a/seed-0", "b/seed-1"]
    with pytest.raises(SystemExit) as stop:
        experiment.command(spec_of(), out=tmp_path)
    assert stop.value.code == 1
    assert trained["printed"] == [tmp_path]
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("did not finish: a/seed-0, b/seed-1; log.txt says why")


def test_runs_left_to_a_queue_have_no_report(
    trained: dict[str, Any], tmp_path: Path, capsys: Shown
) -> None:
    from plkernel.study.engine import LeftToQueueError

    trained["error"] = LeftToQueueError("2 jobs submitted")
    experiment.command(spec_of(), out=tmp_path)
    assert capsys.readouterr().out == "s: 2 jobs submitted\n"
    assert trained["printed"] == []


def test_a_dry_run_trains_and_writes_nothing(
    trained: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    asked: list[Any] = []

    def forecast(*given: Any) -> str:
        asked.append(given)
        return "hours"

    monkeypatch.setattr(experiment, "forecast", forecast)
    monkeypatch.setattr("plkernel.study.together.workers", lambda _: 7)
    spec = spec_of()
    experiment.command(spec, out=tmp_path / "out", dry_run=True, workers="auto", only=("b",))
    assert capsys.readouterr().out == "hours\n"
    assert asked == [(spec, ("b",), 7)]
    assert trained["asked"] == []
    assert not (tmp_path / "out").exists()


def test_a_dry_run_refuses_places_that_the_study_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "forecast", lambda *_: pytest.fail("work"))
    spec = spec_of()
    file = tmp_path / "file"
    file.write_text("mine")
    other = tmp_path / "other"
    save_json(other / "spec.json", {"name": "other"})
    out = tmp_path / "out"
    for options, told in (
        ({"out": file}, "out .*cannot be written"),
        ({"out": other}, "out must be a new folder or that of study 's', got .*'other'"),
        ({"out": out, "record": other}, "record must be one of study 's', got .*'other'"),
        ({"out": out, "record": tmp_path / "none"}, "record must be a folder with a file rows"),
    ):
        with pytest.raises((ValueError, OSError), match=told):
            experiment.command(spec, dry_run=True, **options)
    assert not out.exists()


def test_a_forecast_names_corpora_that_are_not_read_and_a_search_for_rates(
    tiny_spec: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search only where rates are given to search and an arm has none of its own."""
    asked: list[Any] = []
    monkeypatch.setattr("plkernel.study.dry_run.estimate", lambda *a, **b: asked.append((a, b)))
    monkeypatch.setattr("plkernel.study.dry_run.render", lambda _: "hours")
    sizes: list[bool] = [True]
    monkeypatch.setattr("plkernel.training.loop.check_corpus_size", lambda *_: sizes[-1])
    spec = load_spec(tiny_spec())
    lines = experiment.forecast(spec, (), 2).splitlines()
    assert lines[0] == "hours"
    assert not any("is not read yet" in line for line in lines)
    (study, workers), more = asked[-1]
    assert (set(study.conditions), workers, more) == ({"uniform", "power-law"}, 2, {"search": None})
    sizes.append(False)
    lines = experiment.forecast(spec, ("uniform",), None).splitlines()
    assert lines[-1] == (
        f"corpus {spec.corpus.name!r} is not read yet: nothing is known of its size"
    )
    assert set(asked[-1][0][0].conditions) == {"uniform"}
    searched = load_spec(tiny_spec(head="[tuning]\nrates = [0.001, 0.01]\n"))
    experiment.forecast(searched, (), 2)
    search = asked[-1][1]["search"]
    assert search is not None
    assert len(search.conditions) >= 4
    own = tiny_spec(head="[tuning]\nrates = [0.001, 0.01]\n")
    text = own.read_text().replace("[arms.uniform]", "[arms.uniform]\nlearning_rate = 0.01")
    own.write_text(text.replace("[arms.power-law]", "[arms.power-law]\nlearning_rate = 0.01"))
    experiment.forecast(load_spec(own), (), 2)
    assert asked[-1][1]["search"] is None


def test_jobs_that_live_are_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    cancelled: list[Any] = []
    states: dict[str, str] | None = {"1": "RUNNING", "2": "COMPLETED", "3": "PENDING"}
    jobs = ["1", "2", "3", "4"]
    queue = SimpleNamespace(states=lambda: states, cancel=cancelled.append)
    monkeypatch.setattr("plkernel.study.queue.jobs_of", lambda _: jobs)
    monkeypatch.setattr(experiment, "_queue", lambda _: queue)
    experiment.command(spec_of(), out=tmp_path, cancel=True)
    assert cancelled == [["1", "3"]]
    assert capsys.readouterr().out.startswith("s: 2 jobs cancelled; the same command")
    states = {"1": "COMPLETED"}
    experiment.command(spec_of(), out=tmp_path, cancel=True)
    jobs = []
    experiment.command(spec_of(), out=tmp_path, cancel=True)
    assert cancelled == [["1", "3"]]
    assert capsys.readouterr().out.count("s: 0 jobs cancelled") == 2
    jobs = ["1"]
    states = None
    with pytest.raises(OSError, match="slurm does not answer"):
        experiment.command(spec_of(), out=tmp_path, cancel=True)


def test_a_status_without_slurm_is_that_of_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("plkernel.study.status.states_of", lambda *given: asked.append(given))
    monkeypatch.setattr("plkernel.study.status.render", lambda name, _: f"states of {name}")

    def absent(_: Path) -> Any:
        raise ValueError("no submitit")

    monkeypatch.setattr(experiment, "_queue", absent)
    spec = spec_of()
    experiment.command(spec, out=tmp_path, status=True)
    assert capsys.readouterr() == ("states of s\n", "")
    folder = run_folder(tmp_path, "a", 0)
    folder.mkdir(parents=True)
    SavedJob("1", "slurm", "x").save(folder)
    experiment.command(spec, out=tmp_path, status=True)
    assert capsys.readouterr() == ("states of s\n", "note: no submitit\n")
    assert asked == [(spec, tmp_path, None)] * 2
    monkeypatch.setattr(experiment, "_queue", lambda _: "the queue")
    experiment.command(spec, out=tmp_path, status=True)
    assert asked[-1] == (spec, tmp_path, "the queue")


def test_a_status_shows_a_damaged_job_beside_others_and_nothing_is_cancelled(
    tmp_path: Path, capsys: Shown
) -> None:
    folder = run_folder(tmp_path, "a", 0)
    folder.mkdir(parents=True)
    (folder / JOB).write_text("{")
    experiment.command(spec_of(), out=tmp_path, status=True)
    shown = capsys.readouterr().out
    assert "1 unreadable" in shown
    assert f"{JOB}: not readable as JSON" in shown
    with pytest.raises(ValueError, match=f"{JOB}: not readable as JSON"):
        experiment.command(spec_of(), out=tmp_path, cancel=True)


def test_a_model_that_keeps_the_decays_of_its_scheme_is_not_cautioned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plkernel.decays.memory.outlasting", lambda *_: "many outlast")
    kept = resolve_spec(spec_of(arms={"a": {}}, model={"kind": "rwkv6", "head_size": 8}))
    assert not kept.conditions["a"].places_nodes
    assert list(experiment._decay_caution(kept.conditions["a"], "a")) == []


def test_an_experiment_says_what_it_took_from_a_record_before_it_trains(
    pipe: Any, tiny_spec: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    spec = load_spec(tiny_spec())
    monkeypatch.setattr("plkernel.study.schedule.take_record", lambda *_: 3)
    monkeypatch.setattr(experiment, "_train", pipe.look("train"))
    record = tmp_path / "record"
    experiment.command(spec, out=tmp_path / "out", record=record)
    assert pipe.arrived["train"] == f"tiny: 3 runs taken from {record}\n"


def test_a_file_in_the_place_of_the_study_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    monkeypatch.setattr("plkernel.study.schedule.take_record", lambda *_: pytest.fail("work"))
    monkeypatch.setattr(experiment, "_train", lambda *_: pytest.fail("work"))
    with pytest.raises(OSError, match=r"out .*cannot be written"):
        experiment.command(spec_of(), out=path, record=tmp_path)


def test_a_study_of_recall_says_on_how_many_answers_it_rests(tmp_path: Path, capsys: Shown) -> None:
    """One sequence of four queries has none two bytes behind its pair."""

    def spec(tested: int, distance: int | None = None, judged: int = 256) -> Spec:
        claim = {"name": "far", "arm": "b", "metric": "persistence", "times": 1, "claim": "higher"}
        return spec_of(
            corpus={"name": "synthetic:recall,pairs=4,length=64"},
            train={"test_windows": tested, "eval_windows": judged},
            hypotheses=[{**claim, "distance": distance}],
            gates=[{"name": "learnt", "arm": "a", "at_most": 1.0}],
        )

    first, second, third = (tmp_path / f"{number}.json" for number in range(3))
    register = partial(experiment.command, out=tmp_path / "out")
    register(spec(300), register=(first,))
    assert "'far' rests on 1,200 answers of each run" in capsys.readouterr().out.splitlines()
    with pytest.raises(ValueError, match="hypothesis 'far' must rest on some answers, got none"):
        register(spec(1, distance=2), register=(second,))
    with pytest.raises(
        ValueError, match="gate 'learnt' must rest on at least 1,000 answers, got 400"
    ):
        register(spec(300, judged=100), register=(third,))
    assert not second.exists()
    assert not third.exists()
