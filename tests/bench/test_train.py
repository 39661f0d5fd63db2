"""The training benchmark: nothing wrong is timed, and the floor really leaves the scan out."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from plkernel.bench import train as bench
from plkernel.bench.__main__ import train
from plkernel.spec.reading import load_spec


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
    assert list(rows) == [bench.OURS, bench.FLOOR, bench.GPT2, bench.GPT2_PLAIN]
    assert rows[bench.OURS]["ratio"]["median"] == 1.0
    assert rows[bench.FLOOR]["parameters"] == rows[bench.OURS]["parameters"]
    assert results["error"] < bench.LARGEST_ERROR


def test_a_model_that_differs_from_its_reference_is_not_timed(
    tiny_spec: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load_spec(tiny_spec())
    device = torch.device("cpu")
    assert bench.check(spec, device) < bench.LARGEST_ERROR
    exact = bench.scan_operator

    def wrong(a: torch.Tensor, b: torch.Tensor, state: torch.Tensor | None, backend: str) -> tuple:
        return exact(a * 0.99, b, state, backend=backend)

    monkeypatch.setattr(bench, "scan_operator", wrong)
    with pytest.raises(ValueError, match="nothing is timed"):
        bench.check(spec, device)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="threads is 0; it must be 1 or more"):
        train(threads=0)
    with pytest.raises(ValueError, match=r"nowhere\.toml: no such file"):
        train(Path("nowhere.toml"))
