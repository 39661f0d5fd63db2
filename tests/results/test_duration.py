"""The duration of a run: what training took, from the clock of the run to the page."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from studies import write_study

from plkernel.config.reading import load_spec
from plkernel.results.comparison import compare
from plkernel.results.page import Table, sections
from plkernel.results.study import read_study
from plkernel.training.loop import Training, prepare, run_training


def test_seconds_are_those_that_training_took(
    tiny_spec: Callable[..., Path], tmp_path: Path, one_thread: None
) -> None:
    spec = load_spec(tiny_spec())
    out = tmp_path / "out"
    (out / "spec.json").parent.mkdir()
    (out / "spec.json").write_text(spec.model_dump_json())
    began = time.perf_counter()
    run_training(prepare(spec, "uniform", 0, out), progress_bar=False)
    elapsed = time.perf_counter() - began
    (run,) = read_study(out).finished()
    assert run.result is not None
    assert 0 < run.result.seconds <= elapsed


def test_the_page_has_the_mean_and_the_sum_of_the_durations(tmp_path: Path) -> None:
    comparison = compare(read_study(write_study(tmp_path, seeds=range(288))))
    (design,) = sections(comparison, {})["Design and runs"]
    assert isinstance(design, Table)
    assert design.groups[""][0] == [
        "runs",
        "2 arms x 288 seeds, 576 finished; 12.5 s a run, 2.00 hours in all",
    ]


def test_a_resumed_run_adds_the_seconds_of_earlier_sittings(
    tiny_spec: Callable[..., Path], tmp_path: Path, one_thread: None
) -> None:
    spec = load_spec(tiny_spec())
    first = Training(prepare(spec, "uniform", 0, tmp_path))
    first.step()
    first.progress = replace(first.progress, seconds=1000.0)
    first.save()
    assert 1000 < first.seconds < 1500
    began = time.perf_counter()
    second = Training(prepare(spec, "uniform", 0, tmp_path))
    second.step()
    second.save()
    assert first.progress.seconds <= second.progress.seconds
    elapsed = time.perf_counter() - began
    assert second.progress.seconds <= first.progress.seconds + elapsed
