"""The sweep over beta finds the optimum that its rows hold, beside the exponent of the text, from a record alone."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from plkernel.common.files import load_json, save_json
from plkernel.config.reading import load_spec
from plkernel.data import corpora
from plkernel.results.study import read_study

RUNS = Path(__file__).parents[2] / "runs"
BEST = {"stdlib": 1.0, "english": 1.3, "portuguese": 2.5}


@pytest.fixture(scope="module")
def script(script_of: Callable[[str], ModuleType]) -> ModuleType:
    return script_of("beta_sweep")


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A record of runs/beta-sweep.toml on a short text, whose losses are parabolas in beta with little noise."""
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog; " * 4000)
    corpus = {**corpora.load(str(text)).to_dict(), "name": str(text), "max_bytes": None}
    spec = load_spec(RUNS / "beta-sweep.toml")
    rng, rows = np.random.default_rng(0), []
    for name, arm in spec.arms.items():
        assert arm.levels is not None
        beta, best = arm.levels.get("beta"), BEST[arm.levels["corpus"]]
        for seed in spec.seeds:
            loss = 3 + seed + (0.1 * (float(beta) - best) ** 2 + 1e-3 * rng.standard_normal() if beta else 0.05)
            result = {"steps": 300, "bytes": 614400, "final_val_bpb": loss, "best_val_bpb": loss, "best_step": 300}
            rows.append(
                {"arm": name, "seed": seed, "status": "finished", "environment": {}}
                | {"config": {"corpus": corpus, "model": {"parameters": 1}}}
                | {"result": {**result, "test_bpb": loss, "seconds": 1.0, "causal": True}}
                | {"curve": {"step": [300], "bytes": [614400], "val_bpb": [loss]}}
            )
    save_json(tmp_path / "record" / "spec.json", spec.model_dump(mode="json"))
    (tmp_path / "record" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "record"


@pytest.mark.slow
def test_the_optimum_of_every_text_is_found(
    script: ModuleType, record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.beta_sweep(record, tmp_path / "out")
    texts = load_json(tmp_path / "out" / "best.json")["texts"]
    for found, best in zip(texts, BEST.values(), strict=True):
        assert found["best"]["at"] == pytest.approx(best, abs=0.1)
        assert found["best"]["low"] <= best <= found["best"]["high"]
        assert found["measured"] is not None
    printed = capsys.readouterr().out
    assert printed.count("beyond what was tried") == 1
    assert (tmp_path / "out" / "best.png").stat().st_size > 10_000
    assert read_study(tmp_path / "out").runs == read_study(record).runs


def test_another_text_than_the_runs_had_is_refused(script: ModuleType, record: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("something else entirely " * 4000)
    with pytest.raises(ValueError, match="not what the runs were trained on"):
        script.beta_sweep(record, tmp_path / "out")
