"""plkernel from Python: a dozen names that load when asked for, and that say what the commands say."""

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import plkernel
from plkernel.analysis.information.estimate import decay_curves
from plkernel.analysis.nodes import Aim, node_scores
from plkernel.api import Run
from plkernel.config.reading import load_spec
from plkernel.training.loop import prepare, run_training

ROOT = Path(__file__).parent.parent


def test_every_name_is_there_and_told_to_editors() -> None:
    stub = ast.parse((ROOT / "plkernel" / "__init__.pyi").read_text())
    told = {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == set(plkernel.__all__) <= set(dir(plkernel))
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                here = getattr(plkernel, alias.name)
                assert here is getattr(importlib.import_module(str(node.module)), alias.name)
                assert here.__doc__


def test_names_load_what_they_need_and_stay_functions_beside_commands_of_their_names() -> None:
    program = """if True:
        import importlib, sys, plkernel
        assert not {"torch", "numpy"} & set(sys.modules)
        from plkernel import fit
        import plkernel.fit, plkernel.measure
        from plkernel.commands.fit import fit as command
        assert plkernel.fit is fit and callable(plkernel.measure) and command is not fit
        import plkernel.fit as attribute
        assert attribute is fit and importlib.import_module("plkernel.fit").fit.__doc__ == command.__doc__
        assert plkernel.fit(1.15, terms=2).active.rates and plkernel.place(4).rates
        assert "torch" not in sys.modules
    """
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_measure_takes_bytes_arrays_and_names(tmp_path: Path) -> None:
    symbols = np.random.default_rng(0).integers(97, 101, 3000)
    (tmp_path / "text.txt").write_bytes(content := symbols.astype(np.uint8).tobytes())
    options = {"max_lag": 8, "lags": (1, 8)}
    forms = (content, symbols, symbols.astype(np.uint8), tmp_path / "text.txt", str(tmp_path / "text.txt"))
    found = [plkernel.measure(form, **options) for form in forms]
    direct = decay_curves(symbols.astype(np.uint8), found[0].information.lags)[0]
    assert all(one.information == direct for one in found)


def test_a_fit_is_placed_and_applied() -> None:
    found = plkernel.fit(0.9, max_lag=256, terms=5).active
    nodes = plkernel.place(32, placement="terms", terms=found, gain="ema")
    assert nodes.gain == "ema"
    assert node_scores(nodes, Aim(0.9), 256).e_log < 0.05
    decays, weight = torch.empty(32), torch.ones(3, 32)
    plkernel.apply(nodes, decays, weight)
    assert torch.allclose(decays.exp(), torch.tensor(nodes.rates), rtol=1e-5)
    assert torch.allclose(weight[0], torch.tensor(nodes.projection), rtol=1e-6)
    with pytest.raises(ValueError, match="32 channels"):
        plkernel.apply(nodes, torch.empty(31))


@pytest.fixture
def run(tiny_spec: Callable[..., Path], tmp_path: Path) -> Run:
    run_training(prepare(load_spec(str(tiny_spec())), "uniform", 0, tmp_path / "out"), progress_bar=False)
    return plkernel.load_run(str(tmp_path / "out" / "uniform" / "seed-0"))


def test_a_run_is_read_and_evaluated(run: Run) -> None:
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert run.metrics["step"].tolist() == [0, 4, 8, 12]
    assert run.metrics["val_bpb"].tolist() == [row["val_bpb"] for row in rows]
    assert run.metrics["saturation.entropy"].iloc[-1] == rows[-1]["saturation"]["entropy"]
    assert run.config["train"]["context"] == 32
    assert run.metrics["step"].dtype == np.int64
    assert "window_bpb" not in run.metrics  # a list
    found = run.evaluate(windows=4)  # those of the run itself
    assert found.bits_per_byte == pytest.approx(rows[-1]["val_bpb"], rel=1e-6)
    assert found.losses.shape == (4, 32)
    assert 0 < found.error < 1
    curve = run.truncation(windows=8)
    assert curve.given[-1] == 32
    assert curve.cost[-1] == 0
    assert list(run.influence(windows=4, lags=[1, 8]).lags) == [1, 8]


def test_any_callable_is_evaluated_on_any_text() -> None:
    """Of a model that knows nothing a byte costs 8 bits; one that copies the byte before it reads lag 1 alone."""
    uniform = lambda tokens: torch.zeros(*tokens.shape, 256)  # noqa: E731
    assert plkernel.evaluate(uniform, bytes(range(256)) * 4, context=16).bits_per_byte == pytest.approx(8.0, abs=1e-5)

    def copies(tokens: Tensor) -> Tensor:
        return 4.0 * torch.nn.functional.one_hot(tokens, 256).float()

    text = np.random.default_rng(0).integers(0, 256, 2000)
    found = plkernel.influence(copies, text, context=32, lags=[1, 2, 3], windows=8)
    assert found.bits[0] > 0.1
    assert found.bits[1:] == (0.0, 0.0)
    assert plkernel.truncation(copies, text, context=32).cost == pytest.approx([0.0] * 6, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plkernel.measure(np.zeros(9)), "got float64 of shape"),
        (lambda: plkernel.measure(np.zeros((3, 3), int)), r"got int64 of shape \(3, 3\)"),
        (lambda: plkernel.measure(np.array([0, 256])), "got 0 to 256: np.unique"),
        (lambda: plkernel.measure("no such file"), "no such file"),
        (lambda: plkernel.evaluate(torch.zeros_like), "text must be given"),
        (lambda: plkernel.evaluate(torch.zeros_like, b"short"), "text has 5 bytes, fewer than one window of context"),
        (lambda: plkernel.evaluate(torch.zeros_like, b"text" * 99, context=0), "must be at least 1, got 0, 64 and 4"),
        (lambda: plkernel.load_run("."), "holds no config.json; give the folder of a run"),
        (lambda: plkernel.read_study("docs"), "holds no spec.json"),
    ],
)
def test_mistakes_are_one_line(call: Callable[[], object], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises((ValueError, OSError), match=message):
        call()
