"""What n-grams reach on the windows of a study: the windows of its runs, counted once, in a file of the study's own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from plkernel.common.files import load_json
from plkernel.common.layout import REFERENCES, TUNING
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.data.windows import fixed_windows
from plkernel.memory.diagnostics import NGrams
from plkernel.results.study import read_study
from plkernel.study import schedule
from plkernel.study import tuning as references
from plkernel.study.engine import Job, LocalEngine
from plkernel.study.schedule import run_experiment
from plkernel.study.tuning import save_references
from plkernel.training.loop import Training, open_corpus, prepare, run_training

SpecWriter = Callable[..., Path]


class Here(LocalEngine):
    """Trains in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Job] = []

    def start(self, job: Job) -> None:
        run_training(prepare(load_spec(job.study.parent / "tiny.toml"), job.arm, job.seed, job.study), False)
        self.done.append(job)

    def ended(self) -> list[Job]:
        return [self.done.pop()]


class Stopped(LocalEngine):
    """Trains nothing."""

    def start(self, job: Job) -> None:
        raise KeyboardInterrupt


def entry(out: Path) -> dict:
    (found,) = load_json(out / REFERENCES)["references"]
    return found


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[np.ndarray]]:
    """The windows of every time that n-grams are counted."""
    seen: list[np.ndarray] = []

    def of(windows: Iterator[np.ndarray], orders: int) -> NGrams:
        seen.append(np.concatenate(list(windows)))
        return NGrams.of(seen[-1], orders)

    monkeypatch.setattr(references, "NGrams", type("Counted", (), {"of": staticmethod(of)}))
    return seen


def test_counted_are_the_windows_of_the_first_seeds_runs(
    tiny_spec: SpecWriter, tmp_path: Path, counts: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "AT_ONCE", 7 * 33)
    spec, out = load_spec(tiny_spec(eval_windows=3)), tmp_path / "out"
    save_references(spec, list(spec.arms), out)
    run = Training(prepare(spec, "power-law", 0, tmp_path / "other"))
    read = np.concatenate([run.windows.at(step).numpy() for step in range(12)])
    assert np.array_equal(counts[0], read)
    found, model = entry(out), NGrams.of(read.astype(np.uint8))
    splits = open_corpus(spec.corpus, 32)[1]
    for name, windows in (("val", run.validation), ("test", fixed_windows(splits.test, 32, 4))):
        each = model.losses(windows.numpy().astype(np.uint8)).mean(axis=2)
        assert found[f"{name}_bpb"] == pytest.approx(each.mean(axis=1).tolist(), rel=1e-12)
        error = np.sqrt(((each - each.mean(axis=1)[:, None]) ** 2).sum(axis=1) / (each.shape[1] - 1) / each.shape[1])
        assert found[f"{name}_error"] == pytest.approx(error.tolist(), rel=1e-12)
    assert (found["training_bytes"], found["seed"], found["orders"]) == (12 * 4 * 32, 0, [1, 2, 3, 4, 5])
    assert found["training_windows"] == "those that the runs of seed 0 read in 12 steps"


def test_the_file_is_made_once_and_again_for_other_windows(
    tiny_spec: SpecWriter, tmp_path: Path, counts: list, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, other, out = load_spec(tiny_spec()), load_spec(tiny_spec(name="other.toml", steps=8)), tmp_path / "out"
    for _ in range(2):
        save_references(spec, ["uniform"], out)
    written = (out / REFERENCES).read_bytes()
    assert len(counts) == 1
    save_references(other, ["uniform"], out)
    assert entry(out)["train"]["steps"] == 8
    for damage in ("{", "[]", '{"references": [3]}', '{"something": "else"}'):
        (out / REFERENCES).write_text(damage)
        capsys.readouterr()
        save_references(spec, ["uniform"], out)
        assert f"{out / REFERENCES}: " in capsys.readouterr().err
        assert (out / REFERENCES).read_bytes() == written


def test_what_is_known_of_another_corpus_stays(tiny_spec: SpecWriter, tmp_path: Path, counts: list) -> None:
    spec, out = load_spec(tiny_spec()), tmp_path / "out"
    shorter = spec.model_copy(update={"corpus": spec.corpus.model_copy(update={"max_bytes": 9000})})
    for one in (spec, shorter, spec, shorter):
        save_references(one, ["uniform"], out)
    assert len(counts) == 2
    sizes = [found["corpus"]["size"] for found in load_json(out / REFERENCES)["references"]]
    assert sorted(sizes) == [9000, open_corpus(spec.corpus, 32)[0].size]


def test_where_the_budget_is_time_the_training_split_is_counted(
    tiny_spec: SpecWriter, tmp_path: Path, counts: list
) -> None:
    spec, out = load_spec(tiny_spec(steps=None, minutes=0.01)), tmp_path / "out"
    save_references(spec, ["uniform"], out)
    train = open_corpus(spec.corpus, 32)[1].train
    targets = counts[0][:, 1:].ravel()
    assert np.array_equal(targets, train[1 : 1 + targets.size])
    assert entry(out)["training_bytes"] == targets.size > train.size - 1 - 32
    assert (
        entry(out)["training_windows"] == "the training split from its beginning, since the budget of the runs is time"
    )


@pytest.mark.parametrize("budget", [{}, {"steps": None, "minutes": 0.01}])
def test_of_long_runs_the_beginning_is_counted(
    tiny_spec: SpecWriter, tmp_path: Path, counts: list, monkeypatch: pytest.MonkeyPatch, budget: dict
) -> None:
    monkeypatch.setattr(references, "MOST_BYTES", 10 * 32 + 31)
    spec = load_spec(tiny_spec(**budget))
    save_references(spec, ["uniform"], tmp_path / "out")
    found, whole = entry(tmp_path / "out"), (open_corpus(spec.corpus, 32)[1].train.size - 1) // 32
    assert (len(counts[0]), found["training_bytes"]) == (10, 320)
    assert found["training_windows"].startswith(f"the first 10 of {whole if budget else 48:,} ")


def test_an_experiment_counts_before_it_trains_and_trains_the_same(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec = load_spec(tiny_spec())
    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec, tmp_path / "with", engine=Stopped())
    assert entry(tmp_path / "with")["corpus"]["name"] == spec.corpus.name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "save_references", lambda *_: None)
        run_experiment(spec, tmp_path / "without", only=["uniform"], engine=Here())
    run_experiment(spec, tmp_path / "with", only=["uniform"], engine=Here())
    name = "uniform/seed-0/metrics.jsonl"
    assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()
    study = read_study(tmp_path / "with")
    assert study.reference("uniform") is study.references[0]
    assert study.reference("power-law") is None, "no run of it is finished"
    assert not read_study(tmp_path / "without").references


def test_the_search_for_learning_rates_counts_nothing(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec: Spec = load_spec(tiny_spec(head="[tuning]\nrates = [1e-3, 1e-2]\nseeds = [7]"))
    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec, tmp_path / "out", engine=Stopped())
    assert (tmp_path / "out" / TUNING / "spec.json").exists()
    assert not list((tmp_path / "out").rglob(REFERENCES))
