"""The training benchmark: nothing wrong is timed, and the floor really leaves the scan out."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from plkernel.benchmarks import train as bench
from plkernel.commands.bench import train
from plkernel.config.reading import parse_spec

SPEC = {
    "name": "s",
    "baseline": "a",
    "seeds": [0],
    "corpus": {"name": "stdlib"},
    "arms": {"a": {}},
    "train": {"steps": 1},
}


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measure_threads", lambda *arguments: [])


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_rows_of_every_contender(tiny_spec: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is a peer of the benchmark")
    train(tiny_spec(), rounds=3, out=tmp_path)
    results = json.loads((tmp_path / "train.json").read_text())
    rows = {row["contender"]: row for row in results["rows"]}
    assert list(rows) == [bench.OURS, bench.PRODUCTS, bench.FLOOR, bench.GPT2, bench.GPT2_PLAIN]
    assert rows[bench.OURS]["ratio"]["median"] == 1.0
    assert rows[bench.FLOOR]["parameters"] == rows[bench.OURS]["parameters"]
    assert results["error"] < bench.LARGEST_ERROR


@pytest.mark.parametrize("kind", ["ssm", "rwkv6", pytest.param("rwkv7", marks=pytest.mark.slow)])
def test_a_model_that_differs_from_its_reference_is_not_timed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = parse_spec({**SPEC, "model": {"kind": kind, "dim": 32, "layers": 2}}, "here")
    device = torch.device("cpu")
    assert bench.check(spec, device) < bench.LARGEST_ERROR
    module, name = bench.OPERATORS[kind]
    exact = getattr(module, name)

    def wrong(first: torch.Tensor, *inputs: torch.Tensor, backend: str | None) -> tuple:
        return exact(first * (0.99 if backend is None else 1), *inputs, backend=backend)

    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(ValueError, match="nothing is timed"):
        bench.check(spec, device)


def test_products_are_those_of_forward_and_backward_and_have_the_same_results() -> None:
    weight, inputs = torch.randn(3, 4, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    with bench.Products() as products:
        ((inputs @ weight).exp() * 2).sum().backward()
    kinds = [call.func.overloadpacket for call in products.noted]  # type: ignore[attr-defined]
    assert kinds == [torch.ops.aten.mm] * 3
    out, *gradients = (call() for call in products.noted)
    assert torch.equal(out, inputs @ weight)
    assert {tuple(gradient.shape) for gradient in gradients} == {(3, 4), (5, 3)}
    assert any(torch.equal(gradient, weight.grad) for gradient in gradients)
    products.again()


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="threads is 0; it must be 1 or more"):
        train(threads=0)
    with pytest.raises(ValueError, match=r"nowhere\.toml: no such file"):
        train(Path("nowhere.toml"))
