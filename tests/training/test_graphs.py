"""Training steps as CUDA graphs: which runs have them, how they are recorded, and their sums."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from plkernel.benchmarks.profile import _captured
from plkernel.benchmarks.step import Stepper
from plkernel.config.condition import Condition, resolve
from plkernel.config.schema import Arm, CorpusSpec, ModelSpec, Stage, TrainSpec
from plkernel.study.dry_run import random_training
from plkernel.training.build import Prepared, keep_rates_on, replays
from plkernel.training.graphs import CALLED, ReplayedStep
from plkernel.training.loop import Training, open_run

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TRAIN: dict[str, Any] = {"context": 32, "batch": 4, "steps": 12, "eval_windows": 4}


REFUSED = "operation not permitted when stream is capturing"


class FakeGpu:
    """The GPU that `ReplayedStep` needs, on a CPU: its recording fails, or is of the work.

    failing: "at its end", where torch cannot end the recording; "in the work", where it can
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: str = "") -> None:
        self.failing = failing
        self.taken_from: list[Any] = []  # pools of recordings that have not ended
        self.released: list[Any] = []
        self.replayed = 0
        self.waits: list[tuple[str, str]] = []
        self.recorded_on: list[str] = []
        self.current = self.made("outer")
        names = {
            "Stream": lambda *device: self.made("own"),
            "current_stream": lambda *device: self.current,
            "set_stream": self.set_stream,
            "stream": self.on_stream,
            "graph_pool_handle": lambda: (0, 1),
            "synchronize": lambda: None,
            "empty_cache": lambda: None,
            "CUDAGraph": lambda: SimpleNamespace(replay=self.replay),
            "graph": self.recording,
        }
        for name, value in names.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_taking, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", self.release, raising=False)
        monkeypatch.setattr(Tensor, "pin_memory", lambda values: values)

    def made(self, name: str) -> Any:
        def wait(other: Any) -> None:
            self.waits.append((name, other.name))

        return SimpleNamespace(name=name, wait_stream=wait, device=CUDA, device_index=0)

    def end_taking(self, device: int, pool: Any) -> None:
        if pool not in self.taken_from:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.taken_from.remove(pool)

    def release(self, device: int, pool: Any) -> None:
        self.released.append(pool)

    def set_stream(self, stream: Any) -> None:
        self.current = stream

    def replay(self) -> None:
        self.replayed += 1

    @contextmanager
    def on_stream(self, stream: Any) -> Iterator[None]:
        before = self.current
        self.current = stream
        yield
        self.current = before

    @contextmanager
    def recording(self, graph: Any, pool: Any, stream: Any) -> Iterator[None]:
        """As torch does, it leaves the stream and the pool of a recording only where it can be
        ended.
        """
        before = self.current
        self.current = stream
        self.recorded_on.append(stream.name)
        self.taken_from.append(pool)
        try:
            yield
            if self.failing == "in the work":
                raise RuntimeError(f"{REFUSED}\nmore")
        finally:
            if self.failing == "at its end":
                raise RuntimeError(f"{REFUSED}\nmore")
            self.taken_from.remove(pool)
            self.current = before


class Counted:
    """A step that notes its inputs, the stream that it is on, and whether a gradient was left."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.streams: list[str] = []
        self.left: list[bool] = []
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.AdamW([self.weight], fused=True)
        self.seen: list[Tensor] = []
        self.capturable: list[bool] = []

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.seen.append(inputs[0])
        self.streams.append(self.gpu.current.name)
        self.left.append(self.weight.grad is not None)
        self.capturable.append(self.optimizer.param_groups[0]["capturable"])
        self.weight.grad = torch.ones(1)
        if not self.gpu.failing or len(self.seen) != CALLED + 1:
            self.weight.grad = None  # a recording that fails leaves it
        return inputs[0].sum()


def test_a_step_is_recorded_once_for_each_set_of_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    work = Counted(gpu)
    step = ReplayedStep(work, work.optimizer, CPU)
    for size in (3, 5, 3, 5, 3):
        for value in range(CALLED + 2):
            step(torch.full((size,), float(value)))
    assert [len(one) for one in work.seen] == [3] * (CALLED + 1) + [5] * (CALLED + 1)
    assert gpu.replayed == 2 * 2 + 3 * (CALLED + 2)
    assert work.capturable == 2 * ([False] * CALLED + [True])
    assert set(work.streams) == {"own"}
    assert gpu.recorded_on == ["own", "own"]
    assert gpu.waits == 2 * CALLED * [("own", "outer"), ("outer", "own")]
    assert gpu.current.name == "outer"
    assert not work.optimizer.param_groups[0]["capturable"]


def test_a_replay_reads_the_inputs_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are copied to where the recorded step reads them; its loss is another tensor."""
    gpu = FakeGpu(monkeypatch)
    work = Counted(gpu)
    step = ReplayedStep(work, work.optimizer, CPU)
    for value in range(CALLED):
        assert float(step(torch.full((3,), float(value)))) == 3 * value
    first = step(torch.zeros(3))
    kept = work.seen[-1]
    given = torch.arange(3.0)
    second = step(given)
    assert torch.equal(kept, given)
    assert kept is not given
    assert first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize("failing", ["at its end", "in the work"])
def test_a_step_that_cannot_be_recorded_is_called_from_python(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step is taken once, no gradient of the recording is left, and one warning says why.

    Later steps take no memory from its pool, which is released once: by the graph of a recording
    that torch could end.
    """
    gpu = FakeGpu(monkeypatch, failing)
    work = Counted(gpu)
    step = ReplayedStep(work, work.optimizer, CPU)

    def losses(values: range) -> list[float]:
        return [float(step(torch.full((3,), float(value)))) for value in values]

    assert losses(range(CALLED)) == [3.0 * value for value in range(CALLED)]
    with pytest.warns(UserWarning, match=f"could not be recorded: {REFUSED}$") as told:
        later = losses(range(CALLED, CALLED + 3))
    assert later == [3.0 * value for value in range(CALLED, CALLED + 3)]
    assert len(told) == 1
    assert len(work.seen) == CALLED + 3 + 1
    assert not any(work.left)
    assert gpu.current.name == "outer"
    assert gpu.replayed == 0
    assert gpu.taken_from == []
    assert gpu.released == ([step.pool] if failing == "at its end" else [])
    assert not work.optimizer.param_groups[0]["capturable"]


@pytest.mark.parametrize(
    "record",
    [lambda: _captured([MagicMock()]), lambda: Stepper._capture(MagicMock())],
    ids=["calls", "steps"],
)
def test_after_a_benchmark_that_cannot_be_recorded_the_next_one_is_as_before(
    record: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the stream of before, with memory that is not of the recording."""
    gpu = FakeGpu(monkeypatch, "at its end")
    with suppress(RuntimeError):
        record()
    assert gpu.recorded_on == ["own"]
    assert gpu.current.name == "outer"
    assert gpu.taken_from == []
    assert len(gpu.released) == 1


@pytest.mark.parametrize(
    ("model", "train", "device", "expected"),
    [
        (ModelSpec(dim=16), {}, CUDA, True),
        (ModelSpec(kind="rwkv7", dim=16, head_size=8), {}, CUDA, True),
        (ModelSpec(dim=16), {}, CPU, False),
        (ModelSpec(dim=16), {"carry": True}, CUDA, False),
        (ModelSpec(kind="rwkv6", dim=16, head_size=8), {"dropout": 0.1}, CUDA, False),
        (ModelSpec(kind="somebody:Model"), {}, CUDA, False),
    ],
)
def test_steps_that_are_the_same_each_time_are_replayed(
    model: ModelSpec, train: dict[str, Any], device: torch.device, expected: bool
) -> None:
    condition = Condition(model, Arm(), TrainSpec(**TRAIN | train))
    assert replays(condition, device) is expected


def test_rates_are_kept_as_tensors(tmp_path: Path) -> None:
    """A group has its multiplier of the rate, and rows the rate as it is on a CPU."""
    plain, kept = (
        random_training(
            Prepared.of(resolve(ModelSpec(dim=16), None, TrainSpec(**TRAIN, decay_multiplier=0.5))),
            tmp_path / name,
        )
        for name in ("plain", "kept")
    )
    keep_rates_on(kept.optimizer, CPU)
    for training in (plain, kept):
        training.step()
        training.step()
    for one, other in zip(plain.optimizer.param_groups, kept.optimizer.param_groups, strict=True):
        assert isinstance(other["lr"], Tensor)
        assert float(other["lr"]) == pytest.approx(one["lr"], rel=1e-6)
    assert len({group["lr"] for group in plain.optimizer.param_groups}) > 1
    assert kept.rate == plain.rate == plain.optimizer.param_groups[0]["lr"]


def trained(
    condition: Condition, folder: Path, steps: int, recorded: bool
) -> tuple[Training, list[float]]:
    """A training after `steps`, and their losses; with graphs, or all called from Python."""
    training = Training(open_run(condition, 0, folder))
    assert training.replayed is not None
    training.replayed.is_recordable = recorded
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="training steps are called from Python")
        for _ in range(steps):
            training.step()
    return training, torch.cat(training.unread).tolist()


RECALL = CorpusSpec(name="synthetic:recall,pairs=8,length=32,bytes=40k")
STAGES = (Stage(share=0.5, length=16, pairs=(2, 4)),)
LEARNT = {"learning_rate": 1e-2, "decay_multiplier": 0.5, "device": "cuda"}


@NEEDS_GPU
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("model", "train", "corpus"),
    [
        (ModelSpec(dim=64, layers=2), {}, CorpusSpec(name="stdlib")),
        (ModelSpec(kind="rwkv6", dim=64, layers=2, head_size=32), {}, CorpusSpec(name="stdlib")),
        (ModelSpec(kind="rwkv7", dim=64, layers=2, head_size=32), {}, CorpusSpec(name="stdlib")),
        (
            ModelSpec(kind="rwkv7", dim=64, layers=2, head_size=32),
            {"curriculum": STAGES, "steps": 40},
            RECALL,
        ),
        (ModelSpec(dim=64, layers=2), {"average": 0.5}, CorpusSpec(name="stdlib")),
    ],
)
def test_gpu_replayed_steps_have_the_losses_of_steps_from_python(
    model: ModelSpec, train: dict[str, Any], corpus: CorpusSpec, compiled: bool, tmp_path: Path
) -> None:
    """And the weights: both are of the same kernels in the same order."""
    protocol = TrainSpec(**TRAIN | LEARNT | train | {"compile": compiled})
    condition = resolve(model, None, protocol, corpus)
    ends = []
    for name in (True, False):
        torch._dynamo.reset()
        ends.append(trained(condition, tmp_path / str(name), protocol.total_steps, name))
    (replayed, losses), (called, expected) = ends
    assert replayed.replayed is not None
    assert len(replayed.replayed.recorded) == (1 if corpus is not RECALL else 3)
    # Gradients of embeddings and of what a batch shares are summed in any order on a GPU.
    assert losses == pytest.approx(expected, rel=2e-2)
    assert losses[:CALLED] == pytest.approx(expected[:CALLED], rel=1e-4)
    state = called.model.state_dict()
    for name, one in replayed.model.state_dict().items():
        apart = torch.linalg.vector_norm(one - state[name]) / torch.linalg.vector_norm(state[name])
        assert float(apart) < 5e-2


@NEEDS_GPU
@pytest.mark.parametrize(
    ("model", "train"),
    [
        (ModelSpec(dim=64, layers=2), {"decay_multiplier": 0.0, "l2wrap": 1e-4}),
        (ModelSpec(dim=64, layers=2), {"decay_dtype": "bfloat16"}),
        (ModelSpec(dim=64, layers=2, parametrisation="ordered", position_scaling=True), {}),
        (ModelSpec(kind="rwkv5", dim=64, layers=2, head_size=32), {}),
    ],
)
def test_gpu_a_replayed_step_reads_the_learning_rate(
    model: ModelSpec, train: dict[str, Any], tmp_path: Path
) -> None:
    """A step at a rate of zero leaves the weights as they are, bit by bit; the next one does not.

    An evaluation in between changes nothing about it.
    """
    protocol = TrainSpec(**TRAIN | LEARNT | {"weight_decay": 0.0} | train)
    condition = resolve(model, None, protocol, CorpusSpec(name="stdlib"))
    training, _ = trained(condition, tmp_path, CALLED + 2, True)
    assert training.replayed is not None
    assert len(training.replayed.recorded) == 1

    def weights() -> list[Tensor]:
        return [values.detach().clone() for values in training.model.parameters()]

    before = weights()
    training.evaluate()
    windows = training.drawn(CALLED + 2)
    training.set_rate(0.0)
    training.replayed(windows)
    assert all(map(torch.equal, before, weights()))
    training.set_rate(1e-3)
    training.replayed(windows)
    assert not all(map(torch.equal, before, weights()))


@NEEDS_GPU
def test_gpu_a_step_that_waits_is_called_from_python(tmp_path: Path) -> None:
    """The run goes on, on the stream of before, and can be evaluated."""
    condition = resolve(
        ModelSpec(dim=64, layers=2),
        None,
        TrainSpec(**TRAIN | LEARNT),
        CorpusSpec(name="stdlib"),
    )
    training = Training(open_run(condition, 0, tmp_path))
    assert training.replayed is not None
    update = training.update
    training.replayed.work = lambda *inputs: update(*inputs) + 0 * float(inputs[0].sum())
    before = torch.cuda.current_stream()
    for _ in range(CALLED):
        training.step()
    with pytest.warns(UserWarning, match="could not be recorded"):
        training.step()
    training.step()
    assert torch.cuda.current_stream() == before
    assert training.evaluate()["step"] == CALLED + 2


@NEEDS_GPU
def test_gpu_a_resumed_run_goes_on(tmp_path: Path) -> None:
    """With the losses of a run that was not interrupted, up to the rounding of sums."""
    protocol = TrainSpec(**TRAIN | LEARNT)
    condition = resolve(ModelSpec(dim=64, layers=2), None, protocol, CorpusSpec(name="stdlib"))
    whole, losses = trained(condition, tmp_path / "whole", 12, True)
    part, _ = trained(condition, tmp_path / "part", 6, True)
    part.evaluate()
    again, rest = trained(condition, tmp_path / "part", 6, True)
    assert again.progress.step == whole.progress.step == 12
    assert rest == pytest.approx(losses[6:], rel=2e-2)
