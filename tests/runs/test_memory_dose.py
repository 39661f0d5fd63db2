"""The dose-response study read back: the optimum that its rows hold, beside what may be expected."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from plkernel.analysis.sequences import LagCorpus
from plkernel.common.files import load_json, save_json
from plkernel.config.reading import load_spec

RUNS = Path(__file__).parents[2] / "runs"
BEST = {"lags-0.7": 0.8, "lags-1.0": 1.0, "lags-1.4": 1.3}


@pytest.fixture(scope="module")
def script(script_of: Callable[[str], ModuleType]) -> ModuleType:
    return script_of("memory_dose")


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A record of runs/memory-dose.toml whose losses are parabolas; half as deep at step 200, and flat where learnt."""
    spec = load_spec(RUNS / "memory-dose.toml")
    rng, rows = np.random.default_rng(0), []
    for name in spec.arms:
        levels = spec.arms[name].levels or {}
        for seed in spec.seeds:
            depth = 0.1 if levels["decays"] == "frozen" else 0.0
            effect = depth * (
                (float(levels["exponent"]) - BEST[levels["corpus"]]) ** 2 if "exponent" in levels else 0.5
            )
            loss = 2 + seed / 10 + effect + 1e-4 * rng.standard_normal()
            early = 3 + seed / 10 + effect / 2 + 1e-4 * rng.standard_normal()
            result = {"steps": 500, "bytes": 1024000, "final_val_bpb": loss, "best_val_bpb": loss, "best_step": 500}
            rows.append(
                {"arm": name, "seed": seed, "status": "finished", "environment": {}}
                | {"config": {"corpus": spec.corpus_of(name).model_dump(), "model": {"parameters": 1}}}
                | {"result": {**result, "test_bpb": loss, "seconds": 1.0, "causal": True}}
                | {"curve": {"step": [200, 500], "bytes": [409600, 1024000], "val_bpb": [early, loss]}}
            )
    save_json(tmp_path / "spec.json", spec.model_dump(mode="json"))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.slow
def test_the_best_exponent_of_every_block(script: ModuleType, record: Path, tmp_path: Path) -> None:
    script.memory_dose(record, tmp_path / "out")
    rows = load_json(tmp_path / "out" / "best.json")["rows"]
    assert len(rows) == 12
    for row in rows:
        if row["decays"] == "frozen":
            assert row["best"]["low"] <= BEST[row["corpus"]] <= row["best"]["high"]
            assert row["best"]["high"] - row["best"]["low"] < 0.1
    assert (tmp_path / "out" / "best.png").stat().st_size > 10_000


def test_what_may_be_expected(script: ModuleType) -> None:
    """The predictor's exponent is that of the mixture; information falls more slowly, as copies are copied."""
    found = {name: at for name, (at, _, _) in script.expected(LagCorpus(1.0, redrawn=0.05, symbols=8)).items()}
    assert found["of the best predictor"] == 1.0
    assert found["of the information"] == pytest.approx(0.22, abs=0.01)
    assert found["half of that"] == found["of the information"] / 2
