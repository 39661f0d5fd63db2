"""runs/interval_coverage.py: what it calls the jackknife is the package's, and its summaries count what they say."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from plkernel.analysis.information.curve import decay_curves

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def study() -> ModuleType:
    specification = importlib.util.spec_from_file_location("study", ROOT / "runs" / "interval_coverage.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["study"] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


def test_the_jackknife_of_the_study_is_that_of_the_package(study: ModuleType) -> None:
    data = study.mixture((0.5, 0.2), 8, 30_000)(0).sequence()
    curves, _ = study.measured(data)
    package, _ = decay_curves(data, study.LAGS)
    np.testing.assert_allclose(curves["jackknife"].values, package.values, rtol=1e-12)
    np.testing.assert_allclose(curves["jackknife"].replicates, package.replicates, rtol=1e-12)
    assert np.all(np.asarray(curves["shuffle"].values) != package.values)


def test_coverage_counts_the_intervals_that_hold_the_truth(study: ModuleType) -> None:
    """Errors of 0 and 3 standard errors at alternate seeds: half of them covered at every lag and range."""
    ones = [1.0] * len(study.LAGS)

    def row(off: float) -> dict:
        values = {"off": [off] * len(ones), "error": ones, "exponents": [[off, 1.0], None]}
        return {
            "size": 9,
            "exact_over_floor": ones,
            "methods": dict.fromkeys(study.METHODS, values),
            "correlation": None,
        }

    found = study.summary([row(0.0), row(3.0), row(0.0), row(-3.0)])["methods"]["jackknife"]
    assert set(found["covered"]) == {0.5}
    assert found["exponents"]["1..100"]["covered"] == 0.5
    assert found["exponents"]["100..1000"] is None


def test_a_power_law_is_denied_by_verdict_or_formerly_by_the_criterion_or_the_bend(study: ModuleType) -> None:
    rows = [
        {"kind": "power law", "excess": 5.0, "curvature_p": 0.5},
        {"kind": "power law", "excess": 1.0, "curvature_p": 0.5},
        {"kind": "broken power law", "excess": 0.0, "curvature_p": 0.001},
        {"kind": "power law", "excess": 0.0, "curvature_p": 0.5},
    ]
    found = study.law_summary(rows)
    assert (found["denied"], found["denied_before"]) == (0.25, 0.5)


def test_every_process_makes_bytes_and_knows_their_information(study: ModuleType) -> None:
    for name, make in {**study.PROCESSES, **study.LIMITS}.items():
        exact = make(0).mutual_information(study.LAGS)
        assert exact.shape == study.LAGS.shape, name
        assert np.all(exact >= 0), name
