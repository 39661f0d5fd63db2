"""Steps of whole models: which are timed, on what, in which order, and what the tables say."""

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bigram import Bigram
from torch import nn

from plkernel.benchmarks import step
from plkernel.benchmarks.step import Size, TimedModel
from plkernel.common.files import load_json
from plkernel.models.layers import BYTES
from plkernel.study.together import Timing
from plkernel.training.evaluate import autocast, next_byte_loss

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
TINY = Size("tiny", 60_000, 32, 32, 2)


class Clock:
    """Seconds that pass when something is done, in place of the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(step, "time", made)
    return made


def entry(label: str = "bigram", on_cpu: bool = True) -> TimedModel:
    return TimedModel(label, lambda *_: Bigram(), "scan", on_cpu=on_cpu)


@pytest.mark.parametrize("label", ["ssm", "rwkv6", "rwkv7", "gpt2"])
@pytest.mark.parametrize("size", [*step.SIZES["cuda"], *step.SIZES["cpu"]], ids=str)
def test_no_other_number_of_layers_comes_nearer_to_the_parameters(label: str, size: Size) -> None:
    if label == "gpt2":
        pytest.importorskip("transformers")
    one = step.timed_models()[label]
    layers = step.layers_for(one, size)
    with torch.device("meta"):
        below, found, above = (
            abs(step.parameters_of(one.make(size, max(1, number), True)) - size.parameters)
            for number in (layers - 1, layers, layers + 1)
        )
    assert found <= below
    assert found <= above


def test_a_model_has_a_layer_at_least() -> None:
    one = step.timed_models()["ssm"]
    assert step.layers_for(one, TINY._replace(parameters=1)) == 1


def test_models_have_heads_of_64_channels_or_one_that_is_narrower() -> None:
    for width, heads in ((32, 1), (128, 2)):
        size = TINY._replace(width=width)
        model = step.ours("rwkv6", size, 1, True)
        bonus = next(x for name, x in model.named_parameters() if name.endswith("time_faaaa"))
        assert bonus.shape[0] == heads
    with torch.device("meta"):
        assert all(x.is_meta for x in step.ours("ssm", TINY, 1, True).parameters())


def test_gpt2_reads_bytes_without_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    size = TINY._replace(width=128)
    model = step.transformer(size, 3, False).train()
    config: Any = model.config
    assert (config.n_layer, config.n_head, config.n_embd) == (3, 2, 128)
    assert (config.n_positions, config.vocab_size) == (size.context, BYTES)
    assert config.resid_pdrop == config.embd_pdrop == config.attn_pdrop == 0.0
    tokens = torch.arange(size.context)[None]
    first, second = model(tokens), model(tokens)
    assert first.shape == (1, size.context, BYTES)
    assert torch.equal(first, second)
    assert step.transformer(TINY, 1, False).config.n_head == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "options"), [("RWKV6", {"expand_k": 1.0, "num_heads": 2}), ("RWKV7", {"head_dim": 64})]
)
def test_peers_are_asked_for_heads_of_64_channels(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Made(nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.config = config

        def forward(self, tokens: torch.Tensor) -> Any:
            return SimpleNamespace(logits=tokens + 1)

    models = SimpleNamespace(**{f"{name}Config": dict, f"{name}ForCausalLM": Made})
    monkeypatch.setattr(step, "import_module", {"fla.models": models}.__getitem__)
    model: Any = step.fla(name, TINY._replace(width=128), 3, False)
    sizes = {"hidden_size": 128, "num_hidden_layers": 3, "vocab_size": BYTES, "use_cache": False}
    assert model.config.items() >= (sizes | options).items()
    assert int(model(torch.tensor(4))) == 5, "the logits alone"
    narrow: Any = step.fla(name, TINY, 1, False)
    assert narrow.config.get("num_heads", 1) == 1
    assert narrow.config.get("head_dim", 32) == 32


def test_steps_read_batches_in_turns_and_change_every_weight() -> None:
    model = Bigram()
    before = model.table.weight.detach().clone()
    stepper = step.Stepper(model, step.EAGER, TINY, CPU)
    assert stepper.batches.shape == (step.BATCHES, TINY.batch, TINY.context + 1)
    assert stepper.batches.unique().numel() > BYTES / 2
    assert len(model.seen) == step.FIRST
    stepper()
    assert model.table.weight.grad is None, "gradients are not summed over steps"
    read = model.seen[: step.BATCHES]
    assert all(torch.equal(x, y[:, :-1]) for x, y in zip(read, stepper.batches, strict=True))
    assert torch.equal(model.seen[step.BATCHES], read[0])
    met = stepper.batches[:, :, :-1].unique()
    assert (model.table.weight != before)[met].any(1).all()


def test_the_loss_is_that_of_the_last_batch_and_falls() -> None:
    torch.manual_seed(0)
    model = Bigram()
    stepper = step.Stepper(model, step.EAGER, TINY, CPU)
    expected = None
    for _ in range(2):
        with torch.no_grad(), autocast(CPU):
            following = stepper.batches[0] if expected is None else stepper.batches[1]
            expected = float(next_byte_loss(model, following))
        stepper()
        assert float(stepper.loss) == pytest.approx(expected, rel=1e-6)
    first = float(stepper.loss)
    for _ in range(40):
        stepper()
    assert float(stepper.loss) < first


def test_gradients_are_clipped_to_norm_one(norms_at_updates: list[float]) -> None:
    class Steep(Bigram):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return 100 * super().forward(tokens)

    step.Stepper(Steep(), step.EAGER, TINY, CPU)
    assert norms_at_updates == pytest.approx([1.0] * step.FIRST, rel=1e-5)


def test_a_time_is_missing_for_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"reason": "needs a GPU"}
    assert step.timed_model(entry(on_cpu=False), step.EAGER, TINY, CPU) == needs
    assert step.timed_model(entry(), step.GRAPH, TINY, CPU) == needs
    assert step.timed_model(entry(), step.COMPILED, TINY, CPU) == needs

    def absent(*_: Any) -> nn.Module:
        raise ImportError("no such package")

    def broken(*_: Any) -> nn.Module:
        raise RuntimeError("a" * 200 + "\nmore")

    missing = step.timed_model(entry()._replace(make=absent), step.EAGER, TINY, CPU, 2)
    assert missing == {"reason": "not installed (no such package)"}
    failed = step.timed_model(entry()._replace(make=broken), step.EAGER, TINY, CPU, 2)
    assert failed == {"reason": ("failed: RuntimeError: " + "a" * 200)[:120]}


@pytest.mark.parametrize(("once", "calls"), [(0.04, 3), (1.0, 1), (1e-6, step.LARGEST), (0.01, 15)])
def test_steps_are_timed_together_as_long_as_a_batch_takes(
    once: float, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def wall(call: Any, count: int, device: str) -> float:
        asked.append(count)
        return once if count == 1 else 2 * once

    on_host: list[int] = []
    monkeypatch.setattr(step, "wall_seconds", wall)
    made: list[tuple[Any, ...]] = []

    def of_host(call: Any, count: int, device: str) -> float:
        on_host.append(count)
        return 3.0

    def make(*given: Any) -> nn.Module:
        made.append(given)
        return Bigram()

    monkeypatch.setattr(step, "host_seconds", of_host)
    one = entry()._replace(make=make)
    row = step.timed_model(one, step.EAGER, TINY, CPU, 5)
    assert made == [(TINY, 5, False)]
    assert asked == [1, calls]
    assert on_host == [min(calls, 10)]
    assert (row["layers"], row["parameters"], row["host"]) == (5, BYTES**2, 3.0)
    assert row["seconds"] == (once if calls == 1 else 2 * once)
    assert row["loss"] > 0
    assert row["first"] > 0
    assert "memory" not in row, "of a GPU alone"


def test_what_decides_comes_first_and_slow_peers_last() -> None:
    found = list(step.order("cuda"))
    assert len(set(found)) == len(found)
    names = [(size.name, label, mode) for size, label, mode in found]
    quick = [label for label in step.timed_models() if not label.startswith("fla")]
    count = 2 * len(quick)
    assert names[:2] == [("10 M", "ssm", "eager"), ("10 M", "ssm", "graph")]
    assert {name[0] for name in names[:count]} == {"10 M"}
    assert {name[0] for name in names[count : 2 * count]} == {"100 M"}
    assert {name[0] for name in names[2 * count : 3 * count]} == {"2 M"}
    assert [name for name in names if name[2] == "compiled"] == names[3 * count : -12]
    assert {name[1] for name in names if name[2] == "compiled"} == {"ssm", "gpt2", "rwkv6", "rwkv7"}
    assert {name[1] for name in names[-12:]} == {"fla rwkv6", "fla rwkv7"}


def test_time_may_end_before_the_last_row(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The rows so far are saved after each; a share is that of the rate of the chip."""
    rows = [(TINY, label, "eager") for label in ("ssm", "rwkv6", "rwkv7")]
    saved: list[int] = []

    def timed(*_: Any) -> dict[str, Any]:
        clock.now += 6.0
        saved.append(len(load_json(path)["rows"]) if path.exists() else 0)
        return {"seconds": 0.5, "loss": 5.0, "operations": 3e9}

    path = tmp_path / "step-cpu.json"
    monkeypatch.setattr(step, "order", lambda _: rows)
    monkeypatch.setattr(step, "chip", lambda _: SimpleNamespace(matrix=12e9))
    monkeypatch.setattr(step, "timed_model", timed)
    monkeypatch.setattr(step, "table_of_steps", str)
    step.step("cpu", 11.0, tmp_path)
    record = load_json(path)
    assert saved == [0, 1]
    assert record["matrix"] == 12e9
    assert record["environment"]["card"] == "cpu"
    assert record["environment"]["threads"] == torch.get_num_threads()
    assert [row["model"] for row in record["rows"]] == ["ssm", "rwkv6"]
    assert record["rows"][0]["share"] == 0.5
    assert set(record["rows"][0]) == {
        *("size", "model", "mode", "seconds", "loss", "operations", "share")
    }


def test_rows_without_time_are_named(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step, "order", lambda _: [(TINY, "ssm", "eager"), (TINY, "gpt2", "eager")])
    monkeypatch.setattr(step, "chip", lambda _: SimpleNamespace(matrix=2.5e12))
    clock.now = 1.0

    def timed(*_: Any) -> dict[str, Any]:
        clock.now += 7.0
        return {"reason": "not now"}

    monkeypatch.setattr(step, "timed_model", timed)
    step.step("cpu", 6.0, None)
    out, error = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "cpu: bf16 product 2.5 TFLOP/s; context and batch as in the JSON"
    assert lines[-2:] == ["tiny ssm eager: not now", "tiny gpt2 eager: no time left"]
    assert error == "tiny ssm eager\n"


@pytest.mark.parametrize(("loss", "is_wrong"), [(5.24, False), (4.76, False), (5.26, True)])
def test_a_loss_may_differ_by_a_twentieth(
    loss: float, is_wrong: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From that of the same model of the same size only."""
    large = TINY._replace(name="large")
    modes = [(TINY, "ssm", "eager"), (TINY, "ssm", "graph"), (large, "ssm", "eager")]
    found = iter([5.0, loss, 50.0])
    monkeypatch.setattr(step, "order", lambda _: modes)
    monkeypatch.setattr(step, "timed_model", lambda *_: {"loss": next(found)})
    monkeypatch.setattr(step, "table_of_steps", str)
    step.step("cpu", 100.0, tmp_path)
    rows = load_json(tmp_path / "step-cpu.json")["rows"]
    assert ["reason" in row for row in rows] == [False, is_wrong, False]


def times(model: str, mode: str, **more: Any) -> dict[str, Any]:
    return {"size": "10 M", "model": model, "mode": mode, "parameters": 9_876_543} | more


def test_the_table_of_steps_in_full() -> None:
    rows = [
        times("ssm", "eager", seconds=0.01234, host=0.0021, share=0.1234, first=1.6, memory=2.34e9),
        times("ssm", "compiled", seconds=0.00234, host=0.0021, share=0.5, first=62.6),
        times("gpt2", "eager", reason="no time left"),
        times("gpt2", "graph", reason="no time left"),
    ]
    assert step.table_of_steps(rows).splitlines() == [
        "size  model      mode  params     ms  host ms  % of bf16   GB  first s",
        "-" * 70,
        "10 M    ssm     eager   9.9 M  12.34     2.10       12.3  2.3        2",
        "10 M    ssm  compiled   9.9 M   2.34     2.10       50.0    -       63",
        "10 M ssm: compiling is repaid after 6,100 steps",
        "10 M gpt2 eager, 10 M gpt2 graph: no time left",
    ]


@pytest.mark.parametrize(
    ("eager", "compiled", "steps"),
    [((2.0, 1.0), (1.0, 11.0), [10.0]), ((2.0, 1.0), (2.0, 9.0), [math.inf]), (None, (1, 1), [])],
)
def test_compiling_is_repaid_where_it_saves_something(
    eager: Any, compiled: Any, steps: Sequence[float]
) -> None:
    rows = [times("ssm", "compiled", seconds=compiled[0], first=compiled[1])]
    if eager:
        rows.append(times("ssm", "eager", seconds=eager[0], first=eager[1]))
    else:
        rows.append(times("ssm", "eager", reason="needs a GPU"))
    assert [found for *_, found in step.repaid_after(rows)] == steps


def test_tables_of_growth_in_full() -> None:
    def row(axis: str, model: str, value: int, **more: Any) -> dict[str, Any]:
        return {"axis": axis, "model": model, "value": value} | more

    rows = [
        row("context", "ssm", 16, seconds=0.0012345),
        row("context", "rwkv6", 16, seconds=1.2345),
        row("context", "ssm", 32, reason="no time left"),
        row("context", "rwkv6", 32, reason="no time left"),
        row("runs", "ssm", 1, steps=123.45),
        row("runs", "ssm", 2, steps=2.0),
    ]
    assert step.tables_of_growth(rows).splitlines() == [
        "context        16  32",
        "---------------------",
        "ssm          1.23   -",
        "rwkv6    1.23e+03   -",
        "no time left",
        "runs    1  2",
        "------------",
        "ssm   123  2",
    ]


def test_growth_keeps_half_of_its_seconds_for_runs_at_a_time(
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three cells of 4 s begin within the first 10 of 20 s, two timings of 5 s within the rest."""
    calls: list[tuple[Any, ...]] = []

    def timed(*given: Any) -> dict[str, Any]:
        calls.append(given)
        clock.now += 4.0
        return {"seconds": 1.0}

    def together(condition: Any, runs: int, seconds: float) -> Timing | None:
        clock.now += 5.0
        protocol = condition.protocol
        assert (protocol.context, protocol.batch, protocol.device) == (16, 1, "cpu")
        assert condition.model == step.SMALL
        return Timing(runs, 3.0 * runs, 1e6) if runs == 1 else None

    monkeypatch.setattr(step, "timed_model", timed)
    monkeypatch.setattr(step, "timing", together)
    monkeypatch.setitem(step.GROWTH["cpu"], "runs", (1, 2, 4))
    step.growth("cpu", 20.0, tmp_path)
    record = load_json(tmp_path / "growth-cpu.json")
    assert (record["mode"], record["layers"]) == ("eager", step.LAYERS)
    rows = record["rows"]
    cells = [row for row in rows if row["axis"] != "runs"]
    assert ["seconds" in row for row in cells] == [True] * 3 + [False] * (len(cells) - 3)
    assert {row.get("reason") for row in cells[3:]} == {"no time left"}
    assert {given[1] for given in calls} == {"eager"}
    assert {given[4] for given in calls} == {step.LAYERS}
    one, two, four = (row for row in rows if row["axis"] == "runs")
    assert (one["steps"], one["memory"]) == (3.0, 1e6)
    assert two["reason"] == "failed: see above"
    assert four["reason"] == "no time left"
    head, _, tables = capsys.readouterr().out.partition("\n")
    assert head == "cpu: ms of a step (eager); steps/s of all runs at a time"
    assert tables == f"{step.tables_of_growth(rows)}\n"


def test_cells_vary_one_axis_at_a_time() -> None:
    for device in ("cpu", "cuda"):
        base = step.BASE[device]
        for axis, kind, value, size in step.cells(device):
            assert kind in step.OURS
            assert getattr(size, axis) == value
            others = {"context", "width", "batch"} - {axis}
            if axis == "context":
                assert size.context * size.batch == step.CONSTANT[device]
                others -= {"batch"}
            assert all(getattr(size, other) == getattr(base, other) for other in others)


def test_operations_are_of_matrices_and_of_the_recurrence_or_attention() -> None:
    """6 of each number in a matrix; 3 + 5 of a channel of the scan; 6 context of attention."""
    from plkernel.study.dry_run import OPERATIONS

    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 5), nn.LayerNorm(5))
    model.append(nn.ParameterList([torch.ones(1, 9), torch.ones(2, 3, 4)]))
    size = Size("", 0, 128, 10, 3)
    matrices = 20 + 24
    of_scan = sum(OPERATIONS["scan"]) * 128
    one = TimedModel("", lambda *_: model, "scan")
    assert step.training_operations(model, one, size, 2) == 30 * (6 * matrices + 2 * of_scan)
    of_wkv = sum(OPERATIONS["wkv"]) * 128 * 64
    one = one._replace(operator="wkv")
    assert step.training_operations(model, one, size, 2) == 30 * (6 * matrices + 2 * of_wkv)
    one = one._replace(operator=None)
    attention = 6 * 10 * 128
    assert step.training_operations(model, one, size, 2) == 30 * (6 * matrices + 2 * attention)


def test_contenders_are_ours_ours_on_tensor_cores_and_peers() -> None:
    found = step.timed_models()
    assert [*found] == [
        *("ssm", "rwkv6", "rwkv7"),
        *("rwkv6 tensor bf16", "rwkv7 tensor bf16", "gpt2", "fla rwkv6", "fla rwkv7"),
    ]
    assert {name for name, one in found.items() if one.on_cpu} == {*step.OURS, "gpt2"}
    operators = {name: one.operator for name, one in found.items()}
    assert operators["ssm"] == "scan"
    assert operators["rwkv6 tensor bf16"] == operators["fla rwkv6"] == "wkv"
    assert operators["rwkv7 tensor bf16"] == operators["fla rwkv7"] == "wkv7"
    assert operators["gpt2"] is None


def test_a_compiled_step_calls_the_compiled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []

    def compile_(model: nn.Module) -> nn.Module:
        compiled.append(model)
        return model

    monkeypatch.setattr(torch, "compile", compile_)
    step.Stepper(Bigram(), step.EAGER, TINY, CPU)
    assert compiled == []
    model = Bigram()
    step.Stepper(model, step.COMPILED, TINY, CPU)
    assert compiled == [model]


def test_the_first_steps_of_slow_peers_are_those_of_each_size_once() -> None:
    """Whatever the modes."""
    large, small = step.SIZES["cuda"][:2]
    chosen = [(large, "ssm"), (large, "fla rwkv7"), (large, "fla rwkv7"), (small, "fla rwkv6")]
    tasks: list[Any] = list(step.first_steps(chosen))
    assert [task.args for task in tasks] == [("fla rwkv7", large), ("fla rwkv6", small)]
    assert {task.func for task in tasks} == {step.step_once}
    assert step.first_steps(chosen[:1]) == []
