"""The spread that a pilot shows for a hypothesis."""

import json
from pathlib import Path

import numpy as np
import pytest
from studies import BASELINE, change, write_study

from plkernel.config.reading import parse_spec
from plkernel.config.spec import Spec
from plkernel.results.power import powers

ENDS = {
    BASELINE: [2.0, 2.0, 2.0],
    "steady": [2.1, 2.1, 2.1],
    "near": [2.11, 2.10, 2.09],
    "far": [2.4, 2.1, 1.8],
}


@pytest.fixture
def pilot(tmp_path: Path) -> Path:
    """Three seeds, whose differences to the baseline spread by 0, 0.01 and 0.3."""
    write_study(tmp_path, seeds=range(3), effects=dict.fromkeys(ENDS, 0.0))
    for arm, ends in ENDS.items():
        for seed, end in enumerate(ends):
            change(tmp_path / arm / f"seed-{seed}" / "result.json", final_val_bpb=end)
    return tmp_path


def spec(arm: str) -> Spec:
    names = [*ENDS, "untried"]
    values = {
        "name": "next",
        "baseline": BASELINE,
        "seeds": [0, 1, 2],
        "model": {"dim": 16, "layers": 1},
        "train": {"steps": 2, "context": 32, "batch": 2},
        "arms": {name: {} for name in names},
        "hypotheses": [{"name": "it", "arm": arm, "claim": "lower"}],
    }
    return parse_spec(json.loads(json.dumps(values)), "here")


@pytest.mark.parametrize("arm", ["near", "far"])
def test_an_arm_with_a_spread_of_its_own_keeps_it(arm: str, pilot: Path) -> None:
    [row] = powers(spec(arm), pilot)
    expected = np.std(np.subtract(ENDS[arm], ENDS[BASELINE]), ddof=1)
    assert row["sd"] == pytest.approx(expected)
    assert row["seeds"] == 3


@pytest.mark.parametrize("arm", ["untried", "steady"])
def test_others_take_the_median_of_the_arms_that_have_one(arm: str, pilot: Path) -> None:
    """An arm without a run, and one whose differences are all the same."""
    [row] = powers(spec(arm), pilot)
    assert row["sd"] == pytest.approx((0.01 + 0.3) / 2)
    assert row["seeds"] == 3
