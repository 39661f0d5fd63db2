"""Damaged records and study folders: everything that reads one says what is wrong with it in one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="the fuzzers draw their cases with hypothesis")
import torch
from hypothesis import strategies as st

from plkernel.common.files import read_lines, save_json
from plkernel.config.reading import parse_spec
from plkernel.config.study import Spec
from plkernel.data.windows import fixed_windows
from plkernel.results.comparison import compare
from plkernel.results.figures import drawings
from plkernel.results.layout import CHECKPOINT, METRICS, run_folder
from plkernel.results.page import page, text_report
from plkernel.results.study import read_study, save_record
from plkernel.results.table import table
from plkernel.study.references import save_references
from plkernel.study.schedule import finished
from plkernel.study.tuning import search_of
from plkernel.training import view
from plkernel.training.build import build, initialise_
from plkernel.training.checkpoint import open_model, save_checkpoint
from plkernel.training.evaluate import diagnose, kernels
from plkernel.training.folder import Progress, RunFolder
from plkernel.training.task import Task, prepare

pytestmark = pytest.mark.slow
VALUES: dict[str, Any] = {
    "name": "tiny",
    "within": ["model.gain"],
    "seeds": [0, 1],
    "report_steps": [4],
    "model": {"dim": 16, "layers": 2},
    "train": {"context": 32, "batch": 4, "steps": 12, "eval_every": 4, "eval_windows": 4, "test_windows": 4},
    "tuning": {"rates": [0.01, 0.02]},
    "factors": {"projection": ["uniform", "published"], "model.gain": ["none", "ema"]},
    "arms": {"quantile": {"placement": "quantile"}},
}
FAST_STEPS = (0, 4, 8, 12)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `study`, whose runs have ended without training, its search in it, and with its `record`."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("fuzz")
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLKERNEL_CACHE", str(folder / "cache"))
        spec = parse_spec({**VALUES, "corpus": {"name": str(text)}}, "here")
        write_study(search_of(spec), folder / "study" / "tuning")
        write_study(spec, folder / "study")
        save_references(spec, list(spec.arms), folder / "study")
    save_record(read_study(folder / "study"), folder / "record")
    return folder


def write_study(spec: Spec, out: Path) -> None:
    save_json(out / "spec.json", spec.model_dump(mode="json"))
    for number, arm in enumerate(spec.arms):
        for seed in spec.seeds:
            write_run(prepare(spec, arm, seed, out), number)


def write_run(task: Task, number: int) -> None:
    built = initialise_(build(task.condition), task.condition, task.seed)
    windows = fixed_windows(task.splits.validation, 32, 4)
    state = {"kernel": kernels(built, 32), "half_life_quantiles": [[1, 2, 3, 4, 5, 6, 7]] * 2}
    state |= diagnose(built, windows, 4, torch.device("cpu")).to_row()
    facts = {"commit": "3f9a", "dirty": False, "threads": 1, "hardware": {"cpu": "a processor", "gpu": None}}
    task.folder.open(task.config, facts)
    rows = [
        {
            "step": t,
            "bytes": t * 128,
            "train_bpb": 3.0,
            "val_bpb": 2 + 6 / (1 + t) + 0.1 * task.seed + 0.01 * number,
            **state,
        }
        for t in FAST_STEPS
    ]
    for row in rows:
        task.folder.append(row, {"step": row["step"], "seconds": 0.1}, Progress())
    save_checkpoint(task.folder.checkpoint, built, None, Progress())
    final = rows[-1]["val_bpb"]
    result = {"status": "finished", "steps": 12, "bytes": 12 * 128, "final_val_bpb": final, "best_val_bpb": final}
    task.folder.finish({**result, "best_step": 12, "test_bpb": 2.4, "seconds": 1.0, "causal": True, "error": None})


@pytest.fixture
def changed(study: Path) -> Callable[[Callable[[Path], Any], str], Callable[[tuple[str, bytes], Path], None]]:
    """`changed(read, name)` reads a copy of the folder `name` in which a case has replaced one file."""

    def reader(read: Callable[[Path], Any], name: str) -> Callable[[tuple[str, bytes], Path], None]:
        def take(case: tuple[str, bytes], folder: Path) -> None:
            copy = folder / name
            shutil.copytree(study / name, copy, ignore=shutil.ignore_patterns(".lock"))
            file, content = case
            (copy / file).write_bytes(content)
            read(copy)

        return take

    return reader


def report(folder: Path) -> None:
    """What plkernel.report says, without drawing it."""
    comparison = compare(read_study(folder))
    text_report(comparison)
    json.dumps(table(comparison))
    page(comparison, {})


def contents(path: Path, mutated: Any, damaged: Any) -> st.SearchStrategy[bytes]:
    """The file with other values in it, or other bytes."""
    whole = path.read_bytes()
    if path.suffix == ".json":
        return st.one_of(mutated(json.loads(whole)).map(as_bytes), damaged(whole))
    rows = [json.loads(line) for line in whole.splitlines()]
    at = st.integers(0, len(rows) - 1)
    one = at.flatmap(lambda i: mutated(rows[i]).map(lambda row: [*rows[:i], row, *rows[i + 1 :]]))
    return st.one_of(one.map(as_lines), damaged(whole))


def as_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


def as_lines(rows: list[Any]) -> bytes:
    return b"".join(as_bytes(row) + b"\n" for row in rows)


RUN = "uniform_none/seed-0"
READ = {
    "study": [
        "spec.json",
        "references.json",
        *(f"{RUN}/{name}" for name in ("config.json", "environment.json", "metrics.jsonl", "result.json")),
    ],
    "record": ["spec.json", "rows.jsonl", "tuning/spec.json", "tuning/rows.jsonl"],
}


@pytest.mark.parametrize(("folder", "file"), [(folder, file) for folder in READ for file in READ[folder]])
def test_a_report(folder, file, study, tally, mutated, damaged, changed):
    cases = contents(study / folder / file, mutated, damaged).map(lambda content: (file, content))
    ends = tally(cases, changed(report, folder), 40)
    assert ends["refused"] > 5


def test_a_figure_of_a_report(study, tally, mutated, damaged, changed):
    cases = contents(study / "record" / "rows.jsonl", mutated, damaged).map(lambda content: ("rows.jsonl", content))

    def draw(folder: Path) -> None:
        list(drawings(compare(read_study(folder))))

    tally(cases, changed(draw, "record"), 4)


def take_up(folder: Path) -> None:
    """What the commands that go on with a run, or look at one, read of it."""
    torch.set_num_threads(1)
    run = RunFolder(run_folder(folder, "uniform_none", 0))
    finished(folder, "uniform_none", 0)
    model = open_model(run.path)
    view.calibrated_gains(run.path)
    config = json.loads((run.path / "config.json").read_text())
    run.check(config)
    view.at_initialisation(config)
    view.validation_text(config, None)
    model.eval()
    rows = read_lines(run.path / METRICS)
    assert not rows or rows[-1]


@pytest.mark.parametrize("file", ["config.json", "metrics.jsonl", "result.json", CHECKPOINT])
def test_a_run_that_is_taken_up(file, study, tally, mutated, damaged, changed, monkeypatch):
    monkeypatch.setenv("PLKERNEL_CACHE", str(study / "cache"))
    path = study / "study" / RUN / file
    found = damaged(path.read_bytes()) if file == CHECKPOINT else contents(path, mutated, damaged)
    tally(found.map(lambda content: (f"{RUN}/{file}", content)), changed(take_up, "study"), 40)
