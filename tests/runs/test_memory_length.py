"""The study of length read back: differences, and the exponents that its rows hold."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from plkernel.common.files import load_json, save_json
from plkernel.config.reading import load_spec

RUNS = Path(__file__).parents[2] / "runs"
EXPONENT = {"short": 1.0, "published": 0.5, "concentrated-published": 0.0}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A record of runs/memory-length.toml whose differences are power laws."""
    spec = load_spec(RUNS / "memory-length.toml")
    rng, rows = np.random.default_rng(0), []
    steps = np.array(sorted({*spec.report_steps, 400, 1800}))  # and those of the corners
    for name in spec.arms:
        init = (spec.arms[name].levels or {})["init"]
        for seed in spec.seeds:
            effect = 0.05 * (steps / steps[0]) ** -EXPONENT[init] if init in EXPONENT else 0 * steps
            losses = (2 + seed / 10 + effect + 1e-5 * rng.standard_normal(steps.size)).tolist()
            result = {"steps": 8000, "bytes": 16_384_000, "final_val_bpb": losses[-1], "best_val_bpb": losses[-1]}
            rows.append(
                {"arm": name, "seed": seed, "status": "finished", "environment": {}}
                | {"config": {"corpus": spec.corpus_of(name).model_dump(), "model": {"parameters": 1}}}
                | {"result": {**result, "best_step": 8000, "test_bpb": losses[-1], "seconds": 1.0, "causal": True}}
                | {"curve": {"step": steps.tolist(), "bytes": (2048 * steps).tolist(), "val_bpb": losses}}
            )
    save_json(tmp_path / "spec.json", spec.model_dump(mode="json"))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.slow
def test_every_start_has_its_differences_and_its_exponent(
    script_of: Callable[[str], ModuleType], record: Path, tmp_path: Path
) -> None:
    script_of("memory_length").memory_length(record, tmp_path / "out")
    found = load_json(tmp_path / "out" / "length.json")
    rows, corners = found["rows"], {(one["arm"], one["what"]): one["mean"] for one in found["corners"]}
    assert corners["short", "low rate, 0.8 MB"] == pytest.approx(0.05 / 2, abs=1e-4)
    assert corners["short", "low rate minus good, 3.7 MB"] == pytest.approx(0.0, abs=1e-4)
    assert corners["short", "longer minus shorter, good rate"] == pytest.approx(0.05 / 9 - 0.05 / 2, abs=1e-4)
    assert len(rows) == 6
    for row in rows:
        wanted = EXPONENT[row["arm"]]
        assert row["exponent"]["at"] == pytest.approx(wanted, abs=0.01)
        assert row["exponent"]["low"] - 0.005 <= wanted <= row["exponent"]["high"] + 0.005
        assert row["bytes"][-1] == 16_384_000
        assert row["low"][0] < 0.05 < row["high"][0]
    assert (tmp_path / "out" / "length.png").stat().st_size > 10_000
