"""The comparison as plain values: table.json."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from plkernel.models.words import NOT_CAUSAL
from plkernel.results.comparison import ArmResult, Comparison
from plkernel.results.registration import Declared
from plkernel.results.text import overview, sentences, verdict, warnings


def table(comparison: Comparison) -> dict[str, Any]:
    """Every number of the report: per arm and measure the values by seed, n, mean and interval; NaN stays NaN."""
    study, declared = comparison.study, comparison.declared
    factorial = []
    for one in comparison.effects:
        pairs = zip(one.contrasts, one.corrected, strict=True)
        rows = [
            {"effect": one.title(of), "order": of.order, **vars(of.difference), "p_corrected": p} for of, p in pairs
        ]
        factorial.append({**{key: value for key, value in vars(one).items() if key != "corrected"}, "contrasts": rows})
    values = {
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
        "declared": declared and _declared(declared),
        "arms": [_arm(comparison, arm) for arm in comparison.arms],
        "factorial": factorial,
        "references": [one.model_dump(include=set(type(one).model_fields)) for one in study.references],
        "costs": {"study": comparison.cost(), "search": comparison.search_cost, "hardware": comparison.hardware},
        "runs": [{"arm": run.arm, "seed": run.seed, "status": run.status} for run in study.runs],
    }
    return dict(plain(values))


def plain(value: Any) -> Any:
    """Dataclasses, named tuples and models as objects; keys as texts."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    elif hasattr(value, "__dataclass_fields__"):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def _arm(comparison: Comparison, arm: ArmResult) -> dict[str, Any]:
    measures: dict[str, Any] = {}
    for key, estimate in arm.estimates.items():
        measures[key] = {"per_seed": arm.values[key], **vars(estimate)}
        if one := arm.differences.get(key):
            measures[key]["difference_to_baseline"] = {**vars(one), "verdict": verdict(one)}
    known = comparison.evidence.get(arm.name)
    evidence = known and {
        "excludes_zero": known.excludes_zero,
        "survives_correction": known.survives,
        "sign_flip": known.flips,
        "standardised_effect": known.effect,
        "detectable_difference": known.detectable,
        "earlier": known.earlier,
    }
    return {
        "arm": arm.name,
        "block": comparison.levels(arm.name),
        "levels": comparison.study.levels(arm.name),
        "p_corrected": comparison.corrected.get(arm.name),
        "label": None if arm.causal else NOT_CAUSAL,
        "n": len(arm.seeds),
        **{key: getattr(arm, key) for key in ("against", "causal", "seeds", "parameters", "steps")},
        "measures": measures,
        "evidence": evidence,
        "cost": comparison.cost(arm.name),
    }


def _declared(one: Declared) -> dict[str, Any]:
    known = one.registration
    return {
        "summary": [one.headline, *one.provenance],
        "registration": known and {"sha256": known.sha256, "intact": known.intact, "changes": one.changes},
        "gates": [{**dict(gate.gate), **vars(gate.estimate), "passed": gate.passed} for gate in one.gates],
        "hypotheses": [
            {
                **{**dict(each.hypothesis), **vars(each.judgement), "verdict": one.verdict(each)},
                **{"registered": each.registered, "per_seed": each.per_seed},
            }
            for each in one.outcomes
        ],
    }
