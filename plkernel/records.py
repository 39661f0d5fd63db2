"""A comparison and its runs in the forms that machines read: table.json and rows.jsonl."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plkernel.analysis.statistics import verdict
from plkernel.comparison import CONFIDENCE, Arm, Comparison
from plkernel.findings import sentences, summary, warnings
from plkernel.models import NOT_CAUSAL
from plkernel.storage import atomic_write, save_json
from plkernel.studies import ROWS, SPEC, TUNING, Run, Study, read_study


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
    """One ended run as a row to keep: configuration, environment, results, its validation curve and its state."""
    row = {
        "study": study.name,
        "arm": run.arm,
        "seed": run.seed,
        "status": run.status,
        "error": run.error,
        "config": {key: value for key, value in run.config.items() if key not in ("study", "arm", "seed")},
        "environment": dict(run.environment),
    }
    if run.result is None:
        return row
    label = {} if run.result.causal else {"label": NOT_CAUSAL}
    return {
        **row,
        **label,
        "result": {key: _or_null(value) for key, value in vars(run.result).items()},
        "curve": {
            "step": [row.step for row in run.evaluations],
            "bytes": [row.bytes for row in run.evaluations],
            "val_bpb": [_or_null(row.val_bpb) for row in run.evaluations],
        },
        "first": dict(run.first),
        "last": dict(run.last),
    }


def save_rows(study: Study, path: Path) -> None:
    """Write the ended runs of a study to `path`, one JSON object per line."""
    rows = [json.dumps(record(study, run)) for run in study.ended]
    atomic_write(path, "".join(f"{row}\n" for row in rows))


def save_record(study: Study, out: Path) -> None:
    """Write what a report needs of a study, and of its search for learning rates, to the folder `out`.

    `read_study` reads it like the study. Raises ValueError when `out` is the study itself.
    """
    if out.resolve() == study.folder.resolve():
        raise ValueError(f"record must be another folder than the study's, got {out}")
    save_json(out / SPEC, study.spec)
    save_rows(study, out / ROWS)
    if (study.folder / TUNING / SPEC).exists():
        save_record(read_study(study.folder / TUNING), out / TUNING)


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
