"""A comparison and its runs in the forms that machines read: table.json and rows.jsonl."""

import math
from collections.abc import Mapping
from typing import Any

from plkernel.analysis.statistics import verdict
from plkernel.comparison import CONFIDENCE, Arm, Comparison
from plkernel.findings import sentences, summary, warnings
from plkernel.models import NOT_CAUSAL
from plkernel.studies import Run, Study


def table(comparison: Comparison) -> dict[str, Any]:
    """Every number of the report, for machines: per arm and measure the values by seed, n, mean and interval."""
    study = comparison.study
    return {
        "study": study.name,
        "baseline": study.baseline,
        "confidence": CONFIDENCE,
        "interval": "t, per comparison, not corrected for the number of arms; p_corrected (Holm) is",
        "unit": "bits per byte",
        "primary": comparison.primary.key,
        "summary": [summary(comparison), *sentences(comparison)],
        "warnings": warnings(comparison),
        "arms": [_arm_row(comparison, arm) for arm in comparison.arms],
        "runs": [{"arm": run.arm, "seed": run.seed, "status": run.status} for run in study.runs],
    }


def record(study: Study, run: Run) -> dict[str, Any]:
    """One finished run as a row to keep: configuration, environment, results and its validation curve."""
    assert run.result is not None, "only finished runs have results"
    label = {} if run.result.causal else {"label": NOT_CAUSAL}
    return {
        "study": study.name,
        "arm": run.arm,
        "seed": run.seed,
        **label,
        "result": {key: _or_null(value) for key, value in vars(run.result).items()},
        "config": {key: value for key, value in run.config.items() if key not in ("study", "arm", "seed")},
        "environment": dict(run.environment),
        "curve": {
            "step": [row.step for row in run.evaluations],
            "bytes": [row.bytes for row in run.evaluations],
            "val_bpb": [_or_null(row.val_bpb) for row in run.evaluations],
        },
    }


def _or_null(value: Any) -> Any:
    """NaN and infinity have no place in JSON."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _arm_row(comparison: Comparison, arm: Arm) -> dict[str, Any]:
    return {
        "arm": arm.name,
        "against": arm.against,
        "p_corrected": _or_null(comparison.corrected.get(arm.name, math.nan)),
        "causal": arm.causal,
        "label": None if arm.causal else NOT_CAUSAL,
        "n": len(arm.seeds),
        "seeds": list(arm.seeds),
        "parameters": list(arm.parameters),
        "steps": list(arm.steps),
        "measures": {key: _measure_row(arm, key) for key in arm.estimates},
    }


def _measure_row(arm: Arm, key: str) -> dict[str, Any]:
    row = {"per_seed": _by_seed(arm.values[key]), **vars(arm.estimates[key])}
    if key in arm.differences:
        difference = arm.differences[key]
        paired = {**vars(difference), "per_seed": _by_seed(difference.per_seed)}
        row["difference_to_baseline"] = {**paired, "verdict": verdict(difference)}
    return row


def _by_seed(values: Mapping[int, float]) -> dict[str, float]:
    return {str(seed): value for seed, value in values.items()}
