"""The dry run: recurrences counted number by number, times that add up, and processes that really train."""

import inspect
import math
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from plkernel.common.environment import anonymous_bytes
from plkernel.config.condition import Condition, resolve
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.schema import Arm, ModelSpec, TrainSpec
from plkernel.config.study import Spec
from plkernel.models.rwkv7 import RWKV7Config
from plkernel.models.ssm import SSMConfig
from plkernel.study import dry_run
from plkernel.study.dry_run import OPERATIONS, Price, Timing, count, estimate, measure, shape_key, text
from plkernel.training.build import Prepared

RUNS = Path(__file__).parents[2] / "runs"
TIME, MEMORY = 2.0, 1.3  # what is promised
TRAIN = TrainSpec(context=64, batch=2, steps=1)
MODELS: dict[str, dict[str, Any]] = {
    "ssm": {"kind": "ssm", "dim": 24, "layers": 2},
    "patched": {"kind": "ssm", "dim": 24, "layers": 3, "patching": {"size": 3}},
    "rwkv5": {"kind": "rwkv5", "dim": 32, "layers": 2, "head_size": 16},
    "rwkv6": {"kind": "rwkv6", "dim": 32, "layers": 2, "head_size": 8},
    "rwkv7": {"kind": "rwkv7", "dim": 32, "layers": 2, "head_size": 8},
}


def counted(name: str, device: str = "cpu", train: TrainSpec = TRAIN, **changes: Any) -> Price:
    condition = resolve(ModelSpec.model_validate(MODELS[name] | changes), Arm(), train)
    return count(Prepared.of(condition), "study", ("a",), 1, device)


def matrices(config: Any) -> int:
    """Entries of the matrices of all blocks."""
    dim, layers = config.dim, config.layers
    if isinstance(config, SSMConfig):
        return layers * (2 * dim**2 + 3 * dim * int(4 * dim / 3))
    if isinstance(config, RWKV7Config):
        return layers * (4 * dim**2 + 2 * dim * (config.hidden + sum(config.ranks))) - 2 * dim * config.ranks[2]
    low_rank = 2 * dim * (5 * config.mix_rank + config.decay_rank) if config.version == 6 else 0
    return layers * (6 * dim**2 + 2 * dim * config.hidden + low_rank)


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_of_matrices_and_of_recurrences(name: str) -> None:
    """In closed form; backward, a product is two of the same size."""
    spec = ModelSpec.model_validate(MODELS[name])
    config, price, steps = Prepared.of(resolve(spec)).config, counted(name), -(-TRAIN.context // spec.patching.size)
    kind = {"ssm": "scan", "rwkv7": "wkv7"}.get(spec.kind, "wkv")
    each = spec.layers * steps * spec.dim * (1 if kind == "scan" else spec.head_size)
    ahead, back = (operations * each for operations in OPERATIONS[kind])
    products = 2 * (steps * matrices(config) + TRAIN.context * spec.dim * 256)
    assert (price.forward, price.training) == (products + ahead, 3 * products + ahead + back)


@dataclass
class Tally:
    """Counts the operations of its numbers."""

    count: int = 0

    def numbers(self, *shape: int) -> Any:
        return [self.numbers(*shape[1:]) for _ in range(shape[0])] if shape else Number(self)


@dataclass
class Number:
    """A number without a value."""

    tally: Tally = field(repr=False)

    def __add__(self, other: "Number") -> "Number":
        self.tally.count += 1
        return self

    __mul__ = __add__


def total(numbers: list[Number]) -> Number:
    result = numbers[0]
    for number in numbers[1:]:
        result = result + number
    return result


def test_the_scan_number_by_number() -> None:
    channels, tally = 7, Tally()
    a, b, s, grad, carry, grad_a = (tally.numbers(channels) for _ in range(6))
    for d in range(channels):
        s[d] = a[d] * s[d] + b[d]
    assert tally.count == OPERATIONS["scan"][0] * channels
    tally.count = 0
    for d in range(channels):
        carry[d] = grad[d] + a[d] * carry[d]
        grad_a[d] = grad_a[d] + carry[d] * s[d]
    assert tally.count == OPERATIONS["scan"][1] * channels


@pytest.mark.parametrize("size", [8, 32])
def test_wkv_number_by_number(size: int) -> None:
    """What is left is of the size of a vector."""
    tally, n = Tally(), range(size)
    r, k, v, w, u, do = (tally.numbers(size) for _ in range(6))
    state, grad = tally.numbers(size, size), tally.numbers(size, size)
    bonus = total([r[i] * u[i] * k[i] for i in n])
    for j in n:
        total([r[i] * state[i][j] for i in n]) + bonus * v[j]
    for i in n:
        state[i] = [w[i] * state[i][j] + k[i] * v[j] for j in n]
    assert 0 <= tally.count - OPERATIONS["wkv"][0] * size**2 < 5 * size
    tally.count = 0
    for i in n:
        total([state[i][j] * do[j] for j in n])  # grad_r
        total([grad[i][j] * v[j] for j in n])  # grad_k
        total([grad[i][j] * state[i][j] for j in n])  # grad_w
        total([grad[j][i] * k[j] for j in n])  # grad_v
        grad[i] = [w[i] * grad[i][j] + r[i] * do[j] for j in n]
    assert -5 * size < tally.count - OPERATIONS["wkv"][1] * size**2 <= 0


@pytest.mark.parametrize("size", [8, 32])
def test_wkv7_number_by_number(size: int) -> None:
    tally, n = Tally(), range(size)
    r, k, v, w, a, b, do = (tally.numbers(size) for _ in range(7))
    state, grad = tally.numbers(size, size), tally.numbers(size, size)  # value by key
    read = [total([state[i][j] * a[j] for j in n]) for i in n]
    for i in n:
        state[i] = [state[i][j] * w[j] + read[i] * b[j] + v[i] * k[j] for j in n]
        total([state[i][j] * r[j] for j in n])
    assert -5 * size < tally.count - OPERATIONS["wkv7"][0] * size**2 <= 0
    tally.count = 0
    for i in n:
        total([state[j][i] * do[j] for j in n])  # grad_r
        grad[i] = [grad[i][j] + do[i] * r[j] for j in n]
        total([grad[j][i] * v[j] for j in n])  # grad_k
        total([grad[i][j] * k[j] for j in n])  # grad_v
        total([grad[j][i] * state[j][i] for j in n])  # grad_w
        total([grad[j][i] * read[j] for j in n])  # grad_b
        total([grad[i][j] * b[j] for j in n])  # grad_read
        total([read[j] * state[j][i] for j in n])  # grad_a
        grad[i] = [grad[i][j] * w[j] + read[i] * a[j] for j in n]
    assert -8 * size < tally.count - OPERATIONS["wkv7"][1] * size**2 <= 0


def test_a_model_of_any_size_is_counted_without_memory() -> None:
    train = TRAIN.model_copy(update={"context": 2048, "batch": 64, "backend": "gpu"})
    price = counted("ssm", train=train, dim=1024, layers=4)
    assert price.memory > 20e9
    half = counted("rwkv6", "cuda", dim=128, head_size=32, layers=1, train=TRAIN.model_copy(update={"batch": 64}))
    whole = counted("rwkv6", dim=128, head_size=32, layers=1, train=TRAIN.model_copy(update={"batch": 64}))
    assert 0.4 < half.memory / ((whole.memory - dry_run.BASE) / dry_run.HOLES) < 0.95, "bfloat16 on a GPU"


def test_runs_that_cost_about_the_same_have_one_key() -> None:
    def key(model: dict[str, Any], **arm: Any) -> str:
        return shape_key(Prepared.of(resolve(ModelSpec.model_validate(model), Arm(**arm), TRAIN)))

    plain, ema = MODELS["ssm"], MODELS["ssm"] | {"gain": "ema"}
    assert key(plain) == key(plain, projection="published", learning_rate=1.0) == key(ema)
    assert key(plain) != key(MODELS["patched"])
    assert key(plain) != key(plain, scheme="u_mup") == key(plain, scheme="u_mup", scheme_options={"residual_mult": 0.5})


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Condition, int]]:
    """Nothing is run: a step takes a second per 1e8 operations; gives what would have been timed, by so many."""
    asked: list[tuple[Condition, int]] = []

    def measured(condition: Condition, processes: int) -> Timing:
        asked.append((condition, processes))
        price = count(Prepared.of(condition), "study", ("a",), 1, "cpu")
        return Timing(2.0, condition.protocol.batch * price.training / 1e8, price.forward / 1e8, 0.25, 3e8)

    monkeypatch.setattr(dry_run, "measure", measured)
    return asked


def study(**changes: Any) -> Spec:
    train = {"context": 32, "batch": 4, "steps": 10, "eval_every": 4, "eval_windows": 3, "test_windows": 5}
    model = {"dim": 16, "layers": 2} | changes.pop("model", {})
    arms = changes.pop("arms", {"a": {}, "b": {"projection": "published"}})
    values = {"name": "s", "baseline": "a", "seeds": [0, 1, 2], "model": model, "arms": arms}
    return parse_spec({**values, "train": train | changes}, "s")


def test_a_run_is_its_steps_its_evaluations_and_its_test(timed: list[tuple[Condition, int]]) -> None:
    found = estimate(study(), workers=2)
    (row,) = found.rows
    windows = 4 * 3 + 5  # evaluations at steps 0, 4, 8 and 10, and the test
    assert (row.arms, row.runs, row.steps, row.memory) == (("a", "b"), 6, 10, 3e8)
    assert row.flops == 40 * row.training + windows * row.forward
    assert row.seconds == pytest.approx(2 + row.flops / 1e8 + 4 * 0.25)
    assert found.hours == pytest.approx(3 * row.seconds / 3600)  # six runs, two at a time
    assert f"all runs: {6 * row.flops:.2e} FLOPs" in text(found)
    assert "?" not in text(found)
    assert [processes for _, processes in timed] == [2]


def test_models_of_other_cost_are_rows_and_the_search_comes_first(timed: list[tuple[Condition, int]]) -> None:
    arms = {"a": {}, "ema": {"model": {"gain": "ema"}}, "deep": {"model": {"layers": 4}}}
    found = estimate(study(arms=arms), workers=2, search=study(arms={"a": {}}, steps=4))
    assert [(row.phase, row.arms) for row in found.rows] == [
        ("tuning", ("a",)),
        ("study", ("a", "ema")),
        ("study", ("deep",)),
    ]
    assert [condition.model.layers for condition, _ in timed] == [2, 4], "the model of the search is not timed again"
    assert "tuning: a" in text(found)


def test_minutes_hold_the_evaluations_too(timed: list[tuple[Condition, int]]) -> None:
    row = estimate(study(steps=None, minutes=2.0), workers=1).rows[0]
    assert row.seconds == pytest.approx(120, abs=5)


def test_a_large_run_is_timed_in_part_and_scaled_by_operations(timed: list[tuple[Condition, int]]) -> None:
    found = estimate(study(model={"dim": 256, "layers": 3}, batch=64, context=2048), workers=1)
    row = found.rows[0]
    assert timed[0][0].protocol.batch < 64
    assert row.flops is not None
    assert row.seconds == pytest.approx(2 + row.flops / 1e8 + 4 * 0.25)
    assert "a part of it (batch" in text(found)


def test_what_does_not_fit_is_said_in_words(
    timed: list[tuple[Condition, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "available_memory", lambda device: 8e9)
    assert "does not fit in the 8.0 GB of this machine" in text(
        estimate(study(model={"dim": 1024, "layers": 4}, batch=64, context=2048), workers=2)
    )
    monkeypatch.setattr(dry_run, "available_memory", lambda device: 2e9)
    assert "memory: 2 at a time fit in the 2.0 GB" in text(estimate(study(), workers=2))
    assert "use --workers 4" in text(estimate(study(arms={"a": {}, "b": {}, "c": {}}), workers=8))
    monkeypatch.setattr(dry_run, "available_memory", lambda device: 5e8)
    found = estimate(study(model={"dim": 2048}), workers=1)
    assert found.hours is None
    assert "not known" in text(found)


def test_a_gpu_that_is_not_here_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = estimate(study(device="cuda", backend="gpu"), workers=3)
    row = found.rows[0]
    assert row.flops is not None
    assert row.seconds == pytest.approx(row.flops / (0.3 * 3e14))
    assert "assumed, not measured" in text(found)
    assert found.available is None


def test_a_process_that_fails_says_why() -> None:
    condition = study().condition("a")
    broken = replace(condition, arm=condition.arm.model_copy(update={"scheme": "nobody"}))
    with pytest.raises(OSError, match="nobody"):
        measure(broken, 1)


def shaped(corpus: Path, name: str) -> Spec:
    """Four shapes, cut to some steps each."""
    cut = {"steps": 24, "eval_every": 12, "eval_windows": 8, "test_windows": 8}
    if name in ("quick", "finch"):
        values = load_spec(RUNS / f"{name}.toml").model_dump()
    else:
        patched = {"kind": "ssm", "dim": 256, "layers": 6, "patching": {"size": 2}}
        model = patched if name == "patched" else {"dim": 96, "layers": 4}
        train = {"context": 1024, "batch": 8} if name == "patched" else {"context": 512, "batch": 4}
        values = {"name": name, "baseline": "a", "model": model, "train": train, "arms": {"a": {}}}
    values |= {"corpus": {"name": str(corpus)}, "train": values["train"] | cut}
    return parse_spec(values, name)


def watched(spec: Spec, out: Path) -> tuple[float, float]:
    """Seconds and the most anonymous memory of a process that trains the baseline of `spec`."""
    path = out / "spec.json"
    path.parent.mkdir(parents=True)
    path.write_text(spec.model_dump_json())
    command = [sys.executable, "-m", "plkernel.train", str(path), "--out", str(out), "--no-progress"]
    begin, peak = time.perf_counter(), 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with (out / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid) or 0)
            time.sleep(0.005)
    assert process.returncode == 0, (out / "log").read_text()
    return time.perf_counter() - begin, peak


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quick", "small", "patched", "finch"])
def test_time_is_right_within_two_and_memory_within_a_third(tmp_path: Path, name: str) -> None:
    """Estimated before and after, since whatever else this machine does slows one and not the other."""
    corpus = tmp_path / "text.txt"
    corpus.write_text(inspect.getsource(textwrap) * 20)
    spec = shaped(corpus, name)
    before = estimate(spec, workers=1).rows[0]
    seconds, memory = watched(spec, tmp_path / "out")
    after = estimate(spec, workers=1).rows[0]
    assert before.seconds is not None
    assert after.seconds is not None
    ratios = math.sqrt(before.seconds * after.seconds) / seconds, before.memory / memory
    print(f"{name}: time {ratios[0]:.2f}, memory {ratios[1]:.2f}, of {seconds:.0f} s and {memory / 1e6:.0f} MB")
    assert 1 / TIME < ratios[0] < TIME
    assert 1 / MEMORY < ratios[1] < MEMORY
