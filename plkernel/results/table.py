"""A comparison and its runs in the forms that machines read: table.json and rows.jsonl."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plkernel.analysis.statistics.differences import verdict
from plkernel.common.files import atomic_write, load_json, save_json
from plkernel.declared.sentences import headline, mind, registration
from plkernel.declared.verdicts import Declared
from plkernel.models.words import NOT_CAUSAL
from plkernel.records.layout import REFERENCES, ROWS, SPEC, TUNING
from plkernel.records.study import Run, Study, read_study
from plkernel.results.cautions import warnings
from plkernel.results.comparison import CONFIDENCE, ArmResult, Comparison, block_levels
from plkernel.results.costs import ArmCost, cost_of, hardware, search_cost
from plkernel.results.effects import Effects, effects
from plkernel.results.evidence import Evidence
from plkernel.results.sentences import excluding, overview, sentences, surviving


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
        "summary": overview(comparison),
        "sentences": sentences(comparison),
        "warnings": warnings(comparison),
        "excluding_zero": excluding(comparison),
        "surviving_correction": surviving(comparison),
        "declared": _declared_row(comparison.declared) if comparison.declared else None,
        "arms": [_arm_row(comparison, arm) for arm in comparison.arms],
        "factorial": [_effects_row(found) for found in effects(comparison)],
        "references": [vars(one) for one in study.references],
        "costs": _costs(study),
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
            **_excess(run),
        },
        "first": dict(run.first),
        "last": dict(run.last),
    }


def _excess(run: Run) -> dict[str, list[float | None]]:
    """The excess over the floor of a known corpus, where rows have it."""
    found = [row.excess_bpb for row in run.evaluations]
    return {} if found.count(None) == len(found) else {"excess_bpb": found}


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
    if study.references:
        save_json(out / REFERENCES, load_json(study.folder / REFERENCES))
    if (study.folder / TUNING / SPEC).exists():
        save_record(read_study(study.folder / TUNING), out / TUNING)


def _or_null(value: Any) -> Any:
    """NaN and infinity have no place in JSON."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _arm_row(comparison: Comparison, arm: ArmResult) -> dict[str, Any]:
    return {
        "arm": arm.name,
        "against": arm.against,
        "block": block_levels(comparison.study, arm.name),
        "levels": comparison.study.levels(arm.name),
        "p_corrected": _or_null(comparison.corrected.get(arm.name, math.nan)),
        "causal": arm.causal,
        "label": None if arm.causal else NOT_CAUSAL,
        "n": len(arm.seeds),
        "seeds": list(arm.seeds),
        "parameters": list(arm.parameters),
        "steps": list(arm.steps),
        "measures": {key: _measure_row(arm, key) for key in arm.estimates},
        "evidence": _evidence_row(found) if (found := comparison.evidence.get(arm.name)) else None,
        "cost": _cost_row(cost_of(comparison.study.finished(arm.name))),
    }


def _declared_row(found: Declared) -> dict[str, Any]:
    """What was declared, what came of it, and whether it was registered."""
    one = found.registration
    return {
        "summary": [headline(found), *registration(found)],
        "registration": one and {"sha256": one.sha256, "intact": one.intact, "changes": list(found.changes)},
        "gates": [{**gate.gate.model_dump(), **vars(gate.estimate), "passed": gate.passed} for gate in found.gates],
        "hypotheses": [
            {
                **outcome.hypothesis.model_dump(),
                **vars(outcome.judgement),
                "verdict": found.verdict(outcome),
                "registered": outcome.registered,
                "per_seed": _by_seed(outcome.per_seed),
            }
            for outcome in found.outcomes
        ],
        "would_have_changed_it": mind(found),
    }


def _evidence_row(found: Evidence) -> dict[str, Any]:
    """What speaks for the difference in the primary measure, beside its interval and p."""
    earlier = found.earlier
    return {
        "excludes_zero": found.excludes_zero,
        "survives_correction": found.survives,
        "sign_flip": found.flips._asdict() if found.flips else None,
        "standardised_effect": vars(found.effect),
        "bootstrap": vars(found.bootstrap) if found.bootstrap else None,
        "detectable_difference": found.detectable,
        "earlier": {"per_seed": _by_seed(earlier.per_seed), "mean": earlier.mean and vars(earlier.mean)}
        if earlier
        else None,
    }


def _effects_row(found: Effects) -> dict[str, Any]:
    """One complete part of a factorial design: its levels, and every contrast."""
    contrasts = [
        {
            "effect": found.title(one),
            "order": one.order,
            **{**vars(one.difference), "per_seed": _by_seed(one.difference.per_seed)},
            "p_corrected": found.corrected[one.name],
        }
        for one in found.factorial.contrasts
    ]
    return {
        "levels": dict(found.levels),
        "fixed": dict(found.fixed),
        "left_out": dict(found.left_out),
        "causal": found.causal,
        "cells": found.factorial.cells,
        "seeds": found.factorial.seeds,
        "dropped_seeds": found.factorial.dropped_seeds,
        "contrasts": contrasts,
    }


def _costs(study: Study) -> dict[str, Any]:
    return {
        "study": _cost_row(cost_of(study.runs)),
        "search": _cost_row(search_cost(study)),
        "hardware": hardware(study.runs),
    }


def _cost_row(cost: ArmCost | None) -> dict[str, Any] | None:
    return vars(cost) if cost else None


def _measure_row(arm: ArmResult, key: str) -> dict[str, Any]:
    row = {"per_seed": _by_seed(arm.values[key]), **vars(arm.estimates[key])}
    if key in arm.differences:
        difference = arm.differences[key]
        paired = {**vars(difference), "per_seed": _by_seed(difference.per_seed)}
        row["difference_to_baseline"] = {**paired, "verdict": verdict(difference)}
    return row


def _by_seed(values: Mapping[int, float | None]) -> dict[str, float | None]:
    return {str(seed): value for seed, value in values.items()}
