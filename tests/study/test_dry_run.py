"""The dry run: recurrences counted number by number, prices that add up, and a process that really
trains.
"""

import inspect
import math
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from plkernel.common import environment
from plkernel.config.condition import Condition, resolve
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.resolved import ResolvedSpec, resolve_spec
from plkernel.config.schema import Arm, CorpusSpec, ModelSpec, TrainSpec
from plkernel.config.spec import Spec
from plkernel.models.rwkv7 import RWKV7Config
from plkernel.models.ssm import SSMConfig
from plkernel.study import dry_run
from plkernel.study.dry_run import (
    OPERATIONS,
    StepTimes,
    duration,
    estimate,
    operations,
    render,
)
from plkernel.training.build import Prepared
from plkernel.training.evaluate import reach, worth_of_context
from plkernel.training.graphs import CALLED
from plkernel.training.recall_task import RecallTask
from plkernel.training.recall_tests import recall_results

RUNS = Path(__file__).parents[2] / "runs"
TRAIN = TrainSpec(context=64, batch=2, steps=1)
MODELS: dict[str, dict[str, Any]] = {
    "ssm": {"kind": "ssm", "dim": 24, "layers": 1},
    "patched": {"kind": "ssm", "dim": 24, "layers": 3, "patching": {"size": 3}},
    "rwkv5": {"kind": "rwkv5", "dim": 32, "layers": 1, "head_size": 16},
    "rwkv6": {"kind": "rwkv6", "dim": 32, "layers": 1, "head_size": 8},
    "rwkv7": {"kind": "rwkv7", "dim": 32, "layers": 2, "head_size": 8},
}


def matrices(config: Any) -> int:
    """Entries of the matrices of all blocks."""
    dim, layers = config.dim, config.layers
    if isinstance(config, SSMConfig):
        return layers * (2 * dim**2 + 3 * dim * int(4 * dim / 3))
    if isinstance(config, RWKV7Config):
        return (
            layers * (4 * dim**2 + 2 * dim * (config.hidden + sum(config.ranks)))
            - 2 * dim * config.ranks[2]
        )
    low_rank = 2 * dim * (5 * config.mix_rank + config.decay_rank) if config.version == 6 else 0
    return layers * (6 * dim**2 + 2 * dim * config.hidden + low_rank)


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_of_matrices_and_of_recurrences(name: str) -> None:
    """In closed form; backward, a product is two of the same size."""
    spec = ModelSpec.model_validate(MODELS[name])
    prepared, steps = (
        Prepared.of(resolve(spec, Arm(), TRAIN)),
        -(-TRAIN.context // spec.patching.size),
    )
    kind = {"ssm": "scan", "rwkv7": "wkv7"}.get(spec.kind, "wkv")
    each = spec.layers * steps * spec.dim * (1 if kind == "scan" else spec.head_size)
    ahead, back = (count * each for count in OPERATIONS[kind])
    products = 2 * (steps * matrices(prepared.config) + TRAIN.context * spec.dim * 256)
    assert operations(prepared) == (products + ahead, 3 * products + ahead + back)


def test_a_model_of_any_size_is_counted_without_memory() -> None:
    train = TrainSpec(context=2048, batch=64, steps=1, backend="gpu")
    large = ModelSpec.model_validate(MODELS["ssm"] | {"dim": 8192})
    assert operations(Prepared.of(resolve(large, Arm(), train)))[1] > 1.5e12


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Condition, int]]:
    """Nothing is run: a step takes a second per 1e8 operations; gives the conditions and batches
    asked for.
    """
    asked: list[tuple[Condition, int]] = []

    def measured(condition: Condition, batch: int) -> StepTimes:
        asked.append((condition, batch))
        forward, training = counted(Prepared.of(condition))
        return StepTimes(2.0, batch * training / 1e8, forward / 1e8, 3e8)

    monkeypatch.setattr(dry_run, "operations", counted)
    monkeypatch.setattr(dry_run, "timed_apart", measured)
    return asked


def counted(prepared: Prepared) -> tuple[int, int]:
    """Operations of one window, as far as those of an estimate need to know."""
    each = 2 * prepared.parameters * prepared.condition.protocol.context
    return each, 3 * each


def study(**changes: Any) -> Spec:
    train = {
        "context": 32,
        "batch": 4,
        "steps": 10,
        "eval_every": 4,
        "eval_windows": 3,
        "test_windows": 5,
    }
    model = {"dim": 16, "layers": 2} | changes.pop("model", {})
    arms = changes.pop("arms", {"a": {}, "b": {"projection": "published"}})
    values = {"name": "s", "baseline": "a", "seeds": [0, 1, 2], "model": model, "arms": arms}
    return parse_spec({**values, "train": train | changes}, "s")


def resolved(**changes: Any) -> ResolvedSpec:
    return resolve_spec(study(**changes))


def test_a_run_is_its_steps_its_evaluations_and_its_test(
    timed: list[tuple[Condition, int]],
) -> None:
    forecast = estimate(resolved(), workers=2)
    (row,) = forecast["rows"]
    forward, training = counted(Prepared.of(study().condition("a")))
    windows = 4 * 3 + 5  # evaluations at steps 0, 4, 8 and 10, and the test
    assert (row["arms"], row["runs"], row["steps"], row["memory"]) == (["a", "b"], 6, 10, 3e8)
    assert row["flops"] == 40 * training + windows * forward
    assert row["seconds"] == pytest.approx(2 + row["flops"] / 1e8)
    assert forecast["seconds"] == pytest.approx(3 * row["seconds"]), "six runs, two at a time"
    assert f"all runs: {6 * row['flops']:.2e} FLOPs" in render(forecast)
    assert len(timed) == 1


class Counting:
    """Predicts all bytes alike, and counts those that it is given."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        self.bytes += tokens.numel()
        return torch.zeros(*tokens.shape, 256)


TESTS_AT_END: list[tuple[str, dict[str, int], int]] = [
    ("stdlib", {"truncation_windows": 6}, 1),
    ("stdlib", {"probe_windows": 5}, 1),
    ("stdlib", {"beyond": 4, "test_windows": 8}, 1),
    ("stdlib", {"truncation_windows": 6, "probe_windows": 5, "beyond": 8}, 3),
    ("synthetic:recall,pairs=8,length=32", {"test_windows": 6}, 0),
    ("synthetic:recall,pairs=8,length=32", {"test_windows": 6, "beyond": 4}, 0),
]


@pytest.mark.parametrize(("name", "options", "repeats"), TESTS_AT_END)
def test_tests_at_the_end_are_priced_by_what_they_read(
    name: str, options: dict[str, int], repeats: int
) -> None:
    """But for the batches that are read twice at the beginning of each of `repeats` tests."""
    train = TrainSpec(context=32, batch=2, steps=1, **options)
    one = resolve(ModelSpec(dim=16), None, train, CorpusSpec(name=name))
    text = np.random.default_rng(0).integers(0, 256, 20_000, np.uint8)
    predict = Counting()
    task = RecallTask.of(one)
    if task is None:
        worth_of_context(predict, text, train, train.batch, name)
        if train.beyond:
            reach(predict, text, train, train.batch)
    else:
        recall_results(predict, task, train.batch)
    without = one.protocol.eval_windows * 2 + one.protocol.test_windows
    priced = dry_run.evaluated_windows(one) - without
    read = predict.bytes / train.context
    assert priced > 0
    assert 0 <= read - priced <= 2 * repeats * max(train.batch, train.beyond or 1)


def test_models_of_other_cost_are_rows_and_the_search_comes_first(
    timed: list[tuple[Condition, int]],
) -> None:
    arms = {"a": {}, "ema": {"model": {"gain": "ema"}}, "deep": {"model": {"layers": 4}}}
    forecast = estimate(resolved(arms=arms), workers=2, search=resolved(arms={"a": {}}, steps=4))
    assert [row["arms"] for row in forecast["rows"]] == [["tuning: a"], ["a", "ema"], ["deep"]]
    assert "a and 1 more" in render(forecast)


@pytest.mark.parametrize(
    ("arm", "is_alike"),
    [
        ({"train": {"truncation_windows": 9}}, False),
        ({"train": {"carry": True}}, False),
        ({"corpus": {"name": "stdlib", "validation": 0.01}}, True),
        ({"learning_rate": 0.5, "train": {"warmup": 3, "decay_multiplier": 0}}, True),
        ({"model": {"kind": "rwkv6", "head_size": 16}, "train": {"dropout": 0.1}}, False),
        ({"model": {"kind": "rwkv6", "head_size": 8}}, False),
        ({"model": {"kind": "rwkv6", "head_size": 16}}, True),
    ],
)
def test_what_costs_something_makes_a_row(
    timed: list[tuple[Condition, int]], arm: dict[str, Any], is_alike: bool
) -> None:
    """Beside an SSM, and where the arm is an RWKV beside one with heads of 16."""
    first = {"model": {"kind": "rwkv6", "head_size": 16}} if "model" in arm else {}
    forecast = estimate(resolved(arms={"a": first, "b": arm}), workers=1)
    assert len(forecast["rows"]) == (1 if is_alike else 2)


@pytest.mark.parametrize(
    ("rows", "at_once", "seconds"),
    [
        ([(6, 10.0)], 4, 20.0),
        ([(1, 10.0)] * 6, 6, 10.0),
        ([(1, 10.0)] * 6, 10**12, 10.0),
        ([(3, 10.0), (1, 25.0)], 2, 35.0),
        ([], 2, 0.0),
    ],
)
def test_runs_of_all_rows_go_on_side_by_side(
    rows: list[tuple[int, float]], at_once: int, seconds: float
) -> None:
    forecasts = [{"runs": runs, "seconds": each} for runs, each in rows]
    assert dry_run._elapsed(forecasts, at_once) == seconds


def test_a_corpus_counts_by_the_windows_that_it_has(
    timed: list[tuple[Condition, int]], tmp_path: Path
) -> None:
    arms: dict[str, Any] = {}
    for name, size in (("a", 2_000), ("b", 40_000), ("c", 2_000)):
        (tmp_path / name).write_bytes(bytes(size))
        arms[name] = {"corpus": {"name": str(tmp_path / name), "validation": 0.1}}
    forecast = estimate(resolved(arms=arms, final_windows=100), workers=1)
    assert [row["arms"] for row in forecast["rows"]] == [["a", "c"], ["b"]]


def test_a_large_run_is_timed_in_part_and_scaled_by_operations(
    timed: list[tuple[Condition, int]],
) -> None:
    (row,) = estimate(resolved(model={"dim": 256, "layers": 3}, batch=64, context=2048), workers=1)[
        "rows"
    ]
    assert timed[0][1] < 64
    assert row["memory"] == pytest.approx(3e8 * 64 / timed[0][1])
    assert row["seconds"] == pytest.approx(2 + row["flops"] / 1e8)


def test_memory_is_compared(
    timed: list[tuple[Condition, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for free, words in (
        (2e9, "memory: 6 at a time fit in the 2.0 GB that are free"),
        (1e9, "memory: 3 at a time fit in the 1.0 GB that are free: use --workers 3"),
        (2e8, "memory: 0 at a time fit in the 0.2 GB that are free"),
    ):
        monkeypatch.setattr(dry_run, "available_memory", lambda device, free=free: free)
        assert words in render(estimate(resolved(), workers=8))


def test_a_gpu_that_is_not_here_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    forecast = estimate(resolved(device="cuda", backend="gpu"), workers=3)
    (row,) = forecast["rows"]
    assert row["seconds"] == pytest.approx(row["flops"] / 1e14)
    assert "assumed, not measured" in render(forecast)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quick", "finch"])
def test_time_and_memory_of_a_real_run(tmp_path: Path, name: str) -> None:
    """Within a factor of two; estimated before and after, since other work slows one and not the
    other.
    """
    corpus, out = tmp_path / "text.txt", tmp_path / "out"
    corpus.write_text(inspect.getsource(textwrap) * 20)
    values = load_spec(RUNS / f"{name}.toml").model_dump() | {"corpus": {"name": str(corpus)}}
    values["train"] |= {"steps": 24, "eval_every": 12, "eval_windows": 8, "test_windows": 8}
    spec: Spec = parse_spec(values, name)
    before = estimate(resolve_spec(spec), workers=1)["rows"][0]
    path = tmp_path / "spec.json"
    path.write_text(spec.model_dump_json())
    command = [sys.executable, "-m", "plkernel.train", str(path), "--out", str(out)]
    begin, peak = time.perf_counter(), 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as run,
    ):
        while run.poll() is None:
            status = Path(f"/proc/{run.pid}/status").read_text()
            peak = max(
                peak, *(1024 * int(size) for size in re.findall(r"RssAnon:\s+(\d+)", status)), 0
            )
            time.sleep(0.005)
    assert run.returncode == 0, (tmp_path / "log").read_text()
    seconds = time.perf_counter() - begin
    after = estimate(resolve_spec(spec), workers=1)["rows"][0]
    assert 0.5 < math.sqrt(before["seconds"] * after["seconds"]) / seconds < 2
    assert 0.7 < before["memory"] / peak < 1.4


def test_a_spec_is_checked_and_trained_without_the_compiler_of_torch(
    tiny_spec: Callable[..., Path], tmp_path: Path
) -> None:
    """Models of all kinds are built for their facts; loading the compiler would take seconds."""
    code = f"""if True:
        import sys
        from pathlib import Path
        from plkernel.config.reading import load_spec
        from plkernel.training import check
        for name in ("quick", "finch", "goose"):
            load_spec(name, check)
        from plkernel.training.loop import prepare, run_training
        spec = load_spec(Path({str(tiny_spec(steps=2, eval_every=1))!r}))
        run_training(prepare(spec, "uniform", 0, Path({str(tmp_path)!r})), progress_bar=False)
        sys.exit("torch._dynamo" in sys.modules)
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "under 1 s"),
        (0.49, "under 1 s"),
        (0.51, "0:00:01"),
        (59.6, "0:01:00"),
        (86400.0, "1 day, 0:00:00"),
        (2e20, "over 2,700,000 years"),
        (math.inf, "over 2,700,000 years"),
        (timedelta.max.total_seconds(), "over 2,700,000 years"),
        (timedelta.max.total_seconds() - 2**20, "999999987 days, 20:44:00"),
    ],
)
def test_a_duration_of_any_length_has_words(seconds: float, text: str) -> None:
    if text.startswith("9999"):
        assert re.fullmatch(r"\d{9} days, \d+:\d\d:\d\d", duration(seconds))
        return
    assert duration(seconds) == text


def a_forecast(**row: Any) -> dict[str, Any]:
    rows = [
        {
            "arms": ["a", "b", "c"],
            "runs": 4,
            "parameters": 1234,
            "steps": 5000,
            "flops_per_byte": 1500.0,
            "flops": 2e12,
            "seconds": 90.0,
            "memory": 5e8,
            **row,
        },
        {
            "arms": ["d"],
            "runs": 1,
            "parameters": 10,
            "steps": 5,
            "flops_per_byte": 2.0,
            "flops": 1e12,
            "seconds": 1.0,
            "memory": 1e8,
        },
    ]
    return {
        "name": "s",
        "device": "cpu",
        "workers": 2,
        "rows": rows,
        "seconds": 181.0,
        "available": None,
        "measured": True,
    }


def test_a_forecast_is_told_row_by_row_and_as_a_whole() -> None:
    first, header, _, one, other, total, note = render(a_forecast()).splitlines()
    assert first == "s: 5 runs, 2 at a time, on cpu; of one run:"
    assert re.split(r" {2,}", header)[-2:] == ["memory GB", "time"]
    assert re.split(r" {2,}", one.strip()) == [
        "a and 2 more",
        *("4", "1,234", "1.5e+03", "5,000", "2.00e+12", "0.50", "0:01:30"),
    ]
    assert re.split(r" {2,}", other.strip())[0] == "d"
    assert total == "all runs: 9.00e+12 FLOPs, 0:03:01"
    assert note.startswith("times are those of a run alone")


@pytest.mark.parametrize(
    ("available", "workers", "line"),
    [
        (1.0e9, 2, "memory: 2 at a time fit in the 1.0 GB that are free"),
        (0.99e9, 2, "memory: 1 at a time fit in the 1.0 GB that are free: use --workers 1"),
        (0.4e9, 2, "memory: 0 at a time fit in the 0.4 GB that are free"),
        (2.5e9, 9, "memory: 5 at a time fit in the 2.5 GB that are free"),
        (2.4e9, 9, "memory: 4 at a time fit in the 2.4 GB that are free: use --workers 4"),
    ],
)
def test_as_many_runs_are_advised_as_fit_and_as_there_are(
    available: float, workers: int, line: str
) -> None:
    said = render({**a_forecast(), "available": available, "workers": workers})
    assert line in said.splitlines()


@pytest.mark.parametrize("status", [{}, {"RssFile": 4096.0}])
def test_memory_that_the_system_does_not_tell_is_a_dash(
    timed: list[tuple[Condition, int]], status: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the table is told, but how many runs fit is not."""
    monkeypatch.setattr(environment, "_sizes", lambda _: status)
    peak = dry_run.peak_memory(SimpleNamespace(device=torch.device("cpu")))  # type: ignore[arg-type]
    assert math.isnan(peak)
    said = render({**a_forecast(memory=peak), "available": 1e9})
    assert "memory:" not in said
    first = said.splitlines()[3]
    assert re.split(r" {2,}", first.strip())[-2:] == ["-", "0:01:30"]


def test_memory_of_a_gpu_that_is_not_here_is_a_dash() -> None:
    said = render({**a_forecast(memory=math.nan), "measured": False})
    assert re.split(r" {2,}", said.splitlines()[3].strip())[6] == "-"
    assert said.endswith("at least those of 1e+14 FLOPs per second")


def test_runs_at_a_time_go_in_rounds(timed: list[tuple[Condition, int]]) -> None:
    """Of one row: 2 runs, 1, 2 or 3 at a time."""
    study = resolved(arms={"a": {}})
    runs = len(study.spec.seeds)
    one = estimate(study, workers=1)
    assert one["seconds"] == pytest.approx(runs * one["rows"][0]["seconds"])
    every = estimate(study, workers=runs + 1)
    assert every["seconds"] == pytest.approx(every["rows"][0]["seconds"])
    assert (one["workers"], one["device"], one["name"]) == (1, "cpu", study.spec.name)
    assert one["measured"]


def test_final_windows_are_those_that_the_validation_text_has(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(10_000))
    corpus = CorpusSpec(name=str(tmp_path / "text"), validation=0.1)
    options = {"context": 32, "batch": 1, "steps": 10, "eval_every": 4, "eval_windows": 3}

    def windows(**more: Any) -> int:
        train = TrainSpec(**options, test_windows=5, **more)
        return dry_run.evaluated_windows(resolve(ModelSpec(dim=16), None, train, corpus))

    plain = 4 * 3 + 5  # before the first step, at 4, at 8 and at 10
    assert windows() == plain
    assert windows(final_windows=7) == plain + 7
    assert windows(final_windows=1000) == plain + 1000 // 33
    recall = CorpusSpec(name="synthetic:recall,pairs=4,length=32,bytes=10000", validation=0.1)
    of_recall = [
        dry_run.evaluated_windows(resolve(ModelSpec(dim=16), None, train, recall))
        for train in (
            TrainSpec(**options, test_windows=5, final_windows=final) for final in (0, 1000)
        )
    ]
    assert of_recall[1] - of_recall[0] == 1000 // 32, "sequences have no byte before them"
    published = ModelSpec.model_validate({"dim": 16, "patching": {"size": 2, "mode": "published"}})
    train = TrainSpec(**options, test_windows=5, truncation_windows=9)
    assert dry_run.evaluated_windows(resolve(published, None, train, corpus)) == plain
    bytewise = ModelSpec.model_validate({"dim": 16, "patching": {"mode": "published"}})
    assert dry_run.evaluated_windows(resolve(bytewise, None, train, corpus)) > plain


def test_runs_at_a_time_are_those_that_the_engine_has_room_for(
    timed: list[tuple[Condition, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a number is given; the engine of this machine unless another is."""

    class Roomy:
        def room(self, spec: Spec, device: str) -> int:
            return 5

    roomy: Any = Roomy()
    assert estimate(resolved(), engine=roomy)["workers"] == 5
    assert estimate(resolved(), workers=2, engine=roomy)["workers"] == 2
    monkeypatch.setattr("plkernel.study.engine.available_cores", lambda: 3)
    assert estimate(resolved())["workers"] == 3


@pytest.mark.parametrize(("replayed", "first"), [(None, 1), (object(), CALLED + 1)])
def test_steps_and_windows_of_a_run_are_timed_apart(
    replayed: Any, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which an evaluation takes 6 s, the first steps 100 s, others 2 s, starting 1.

    The first steps are as many as come before the replays of a graph.
    """
    now = [0.0]
    takes = iter([100.0] * first + [2.0] * 100)

    class Timed:
        device = torch.device("cpu")

        def __init__(self, task: Any) -> None:
            self.task = task
            self.replayed = replayed
            data = task.splits.train
            assert data.size == 4 * 3 * 33
            assert task.splits.validation is task.splits.test is data
            now[0] += 1.0

        def evaluate(self) -> None:
            now[0] += 6.0

        def step(self) -> None:
            now[0] += next(takes)

        def settle(self) -> None:
            pass

    monkeypatch.setattr(dry_run, "Training", Timed)
    monkeypatch.setattr(dry_run.time, "time", lambda: now[0])
    monkeypatch.setattr(dry_run.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(dry_run, "peak_anonymous", lambda: 5e8)
    condition = study().condition("a")
    found = dry_run.time_steps(condition.config, False, 0.0)
    assert found == pytest.approx(StepTimes(1.0 + 6.0, 2.0, 6.0 / 3, 5e8))
