"""The comparison as plain values: table.json."""

from dataclasses import asdict
from typing import Any

from plkernel.models.words import NOT_CAUSAL
from plkernel.results.comparison import ArmResult, Comparison, Effects, Evidence
from plkernel.results.registration import Declared
from plkernel.results.text import overview, sentences, verdict, warnings


def table(comparison: Comparison) -> dict[str, Any]:
    """Every number of the report: per arm and measure the values by seed, n, mean and interval; NaN stays NaN."""
    study = comparison.study
    return {
        "study": study.name,
        "baseline": study.baseline,
        "confidence": 0.95,
        "interval": "t, per comparison, not corrected for the number of arms; p_corrected (Holm) is",
        "unit": "bits per byte",
        "primary": comparison.primary.key,
        "summary": overview(comparison),
        "sentences": sentences(comparison),
        "warnings": warnings(comparison),
        "excluding_zero": comparison.excluding,
        "surviving_correction": comparison.surviving,
        "declared": comparison.declared and _declared(comparison.declared),
        "arms": [_arm(comparison, arm) for arm in comparison.arms],
        "factorial": [_effects(one) for one in comparison.effects],
        "references": [one.model_dump(include=set(type(one).model_fields)) for one in study.references],
        "costs": {
            "study": _fields(comparison.cost()),
            "search": _fields(comparison.search_cost),
            "hardware": comparison.hardware,
        },
        "runs": [{"arm": run.arm, "seed": run.seed, "status": run.status} for run in study.runs],
    }


def _fields(one: Any) -> dict[str, Any] | None:
    """A dataclass as an object, its seeds as texts."""
    if one is None:
        return None
    values = asdict(one)
    if "per_seed" in values:
        values["per_seed"] = {str(seed): value for seed, value in values["per_seed"].items()}
    return values


def _arm(comparison: Comparison, arm: ArmResult) -> dict[str, Any]:
    measures: dict[str, Any] = {}
    for key, estimate in arm.estimates.items():
        per_seed = {str(seed): value for seed, value in arm.values[key].items()}
        measures[key] = {"per_seed": per_seed, **vars(estimate)}
        if key in arm.differences:
            one = arm.differences[key]
            measures[key]["difference_to_baseline"] = {**(_fields(one) or {}), "verdict": verdict(one)}
    return {
        "arm": arm.name,
        "against": arm.against,
        "block": comparison.levels(arm.name),
        "levels": comparison.study.levels(arm.name),
        "p_corrected": comparison.corrected.get(arm.name),
        "causal": arm.causal,
        "label": None if arm.causal else NOT_CAUSAL,
        "n": len(arm.seeds),
        "seeds": list(arm.seeds),
        "parameters": list(arm.parameters),
        "steps": list(arm.steps),
        "measures": measures,
        "evidence": _evidence(comparison.evidence[arm.name]) if arm.name in comparison.evidence else None,
        "cost": _fields(comparison.cost(arm.name)),
    }


def _evidence(one: Evidence) -> dict[str, Any]:
    return {
        "excludes_zero": one.excludes_zero,
        "survives_correction": one.survives,
        "sign_flip": one.flips and one.flips._asdict(),
        "standardised_effect": vars(one.effect),
        "detectable_difference": one.detectable,
        "earlier": _fields(one.earlier),
    }


def _declared(one: Declared) -> dict[str, Any]:
    known = one.registration
    return {
        "summary": [one.headline, *one.provenance],
        "registration": known and {"sha256": known.sha256, "intact": known.intact, "changes": list(one.changes)},
        "gates": [{**gate.gate.model_dump(), **vars(gate.estimate), "passed": gate.passed} for gate in one.gates],
        "hypotheses": [
            {
                **outcome.hypothesis.model_dump(),
                **vars(outcome.judgement),
                "verdict": one.verdict(outcome),
                "registered": outcome.registered,
                "per_seed": {str(seed): value for seed, value in outcome.per_seed.items()},
            }
            for outcome in one.outcomes
        ],
        "would_have_changed_it": one.mind,
    }


def _effects(one: Effects) -> dict[str, Any]:
    keys = ("levels", "fixed", "left_out", "causal", "cells", "seeds", "dropped_seeds")
    contrasts = [
        {"effect": one.title(each), "order": each.order, **(_fields(each.difference) or {}), "p_corrected": p}
        for each, p in zip(one.contrasts, one.corrected, strict=True)
    ]
    return {**{key: getattr(one, key) for key in keys}, "contrasts": contrasts}
