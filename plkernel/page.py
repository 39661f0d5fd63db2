"""A comparison as one self-contained HTML page: no scripts, no requests, light and dark, fit to print."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from plkernel.analysis.statistics import Estimate, PairedDifference, critical_value
from plkernel.comparison import Arm, Comparison, Measure
from plkernel.findings import interval_text, p_text, sentences, summary, warnings
from plkernel.markup import Html, Number, html, paragraphs, table, tag
from plkernel.models import NOT_CAUSAL
from plkernel.page_style import STYLE
from plkernel.studies import FINISHED, Result, Run

DAGGER = Html(f'<abbr class="label" title="{NOT_CAUSAL}">†</abbr>')
ENOUGH_SEEDS = 5
FEW_VALUES = 3


def render(comparison: Comparison, figures: Mapping[str, Html]) -> str:
    """The page; `figures` maps "convergence" and "difference" to inline SVG (a missing one is left out)."""
    study = comparison.study
    title = f"{study.name}{_mark(comparison)}"
    body = [
        tag("h1", title),
        tag("p", study.description, "soft") if study.description else "",
        paragraphs("summary", map(_minus, [summary(comparison), *sentences(comparison)])),
        paragraphs("warnings", warnings(comparison)),
        *_results(comparison),
        *_differences(comparison),
        *_figures(comparison, figures),
        *_tuning(comparison),
        *_missing(study.runs),
        *_provenance(study.finished()),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f"<title>{escape(title)}</title>\n<style>{STYLE}</style>"
    content = "\n".join(body)
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{content}\n</body>\n</html>\n'


def provenance(run: Run) -> dict[str, str]:
    """What made the numbers of a run: its corpus and environment as readable text by name."""
    corpus = {f"corpus {key}": value for key, value in run.config["corpus"].items()}
    return {name: _fact(value) for name, value in {**corpus, **run.environment}.items()}


def _results(comparison: Comparison) -> list[Html]:
    mark = _mark(comparison)
    named = [measure for measure in comparison.measures if measure.key.startswith("val_bpb_")]
    whole = [measure for measure in comparison.measures if measure not in named]
    caption = f"Bits per byte{mark}: mean over seeds, under it the 95 % t interval of the mean (none for one seed)."
    header = ["arm", "seeds", "parameters", "steps", *_titles(whole, mark)]
    rows = [
        [_arm_name(arm), len(arm.seeds), _several(arm.parameters), _several(arm.steps), *_estimates(arm, whole)]
        for arm in comparison.arms
    ]
    parts = [tag("h2", f"Results{mark}"), table(header, rows, caption)]
    if named:
        rows = [[_arm_name(arm), *_estimates(arm, named)] for arm in comparison.arms]
        parts.append(table(["arm", *_titles(named, mark)], rows, f"The same along the way{mark}."))
    return parts


def _differences(comparison: Comparison) -> list[Html]:
    arms = [arm for arm in comparison.others if arm.differences]
    if not arms:
        return []
    key, mark = comparison.primary.key, _mark(comparison)
    named = _compared_with(comparison)
    shown = [arm.differences[key] for arm in arms if key in arm.differences]
    seeds = sorted({seed for difference in shown for seed in difference.per_seed})
    caption = (
        f"Arm minus {named}{mark}, {comparison.primary.title}, in bits per byte: below zero is better. Runs "
        "are paired by seed (same data order, same base weights). Interval and p (paired t test, two-sided) hold "
        "for one comparison; corrected p for all of this table (Holm)."
    )
    header = ["arm", *(f"seed {seed}" for seed in seeds), "mean", "95 % interval", "p", "corrected p", "zero lies"]
    rows = [_difference_row(comparison, arm, seeds) for arm in arms]
    others = [measure for measure in comparison.measures if measure.key != key]
    more = [[_contrast(comparison, arm), *_others(comparison, arm, others)] for arm in arms]
    return [
        tag("h2", f"Difference to {named}{mark}"),
        table(header, rows, caption),
        _few_seeds(min((difference.n for difference in shown), default=0)),
        table(["arm", *_titles(others, mark)], more, f"The same difference in the other measures{mark}."),
    ]


def _compared_with(comparison: Comparison) -> str:
    return comparison.study.baseline if len(comparison.baselines) == 1 else "the arm it is compared with"


def _contrast(comparison: Comparison, arm: Arm) -> Html:
    """The arm, and where arms are compared with different ones which it is compared with."""
    several = len(comparison.baselines) > 1
    return Html(f"{_arm_name(arm)}<br>{tag('span', f'minus {arm.against}', 'soft')}") if several else _arm_name(arm)


def _others(comparison: Comparison, arm: Arm, measures: Iterable[Measure]) -> list[Number]:
    baseline = comparison[str(arm.against)]
    return [_stacked(arm.differences.get(measure.key), "+.4f", arm, baseline) for measure in measures]


def _difference_row(comparison: Comparison, arm: Arm, seeds: Sequence[int]) -> list[Any]:
    baseline = comparison[str(arm.against)]
    difference = arm.differences.get(comparison.primary.key)
    if difference is None:
        return [_contrast(comparison, arm), *[Number()] * (len(seeds) + 4), "no common seed"]
    each = difference.per_seed
    return [
        _contrast(comparison, arm),
        *(_number(each[seed], "+.4f", arm, baseline) if seed in each else Number() for seed in seeds),
        _number(difference.mean, "+.4f", arm, baseline),
        _marked(interval_text(difference, "+.4f"), arm, baseline),
        *(_marked(p_text(p), arm, baseline) for p in (difference.p_value, comparison.corrected[arm.name])),
        _zero(difference),
    ]


def _zero(difference: PairedDifference) -> str:
    if math.isnan(difference.low):
        return "no interval"
    return "inside" if difference.contains_zero else "outside"


def _few_seeds(n: int) -> Html:
    """What so few seeds can show at all; nothing where there are enough, or only one."""
    if not 2 <= n < ENOUGH_SEEDS:
        return Html()
    reach, enough = critical_value(n), critical_value(ENOUGH_SEEDS)
    text = f"With {n} seeds a 95 % interval reaches {reach:.1f} standard errors to either side of the mean"
    return tag("p", f"{text}, with {ENOUGH_SEEDS} seeds {enough:.1f}: only large effects can show here.", "soft")


def _figures(comparison: Comparison, figures: Mapping[str, Html]) -> list[Html]:
    mark = "" if comparison.causal else f" {NOT_CAUSAL.capitalize()}."
    captions = {
        "convergence": "Convergence: validation bits per byte against the training bytes read (below) and steps "
        f"(above). Thin lines are seeds, thick lines their mean.{mark}",
        "difference": f"Difference to {_compared_with(comparison)} during training, paired by seed. Thin lines are "
        "seeds, the thick line is their mean, the band its 95 % t interval. The band is pointwise: it holds at each "
        "position on its own, not for the curve as a whole. It is cut where it leaves the frame; one seed has none."
        f"{mark}",
    }
    parts = [
        Html(f"<figure>{figures[name]}{tag('figcaption', caption)}</figure>")
        for name, caption in captions.items()
        if name in figures
    ]
    return [tag("h2", "Curves"), *parts]


def _tuning(comparison: Comparison) -> list[Html]:
    """The search for learning rates: what every arm reached at every rate, and which it was given."""
    if not comparison.tuning:
        return []
    section = comparison.study.spec["tuning"]
    rates, seeds = section["rates"], section["seeds"]
    steps = f"{section['steps']:,} steps" if section.get("steps") else "the steps of the study"
    caption = (
        f"Validation bits per byte at the end of a search that had the same budget for every arm: {len(rates)} rates, "
        f"{len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'} ({', '.join(map(str, seeds))}, none of those "
        f"compared), {steps}."
    )
    rows = [
        [name, *(_loss(choice.losses[rate]) for rate in rates), Number(f"{choice.rate:g}")]
        for name, choice in comparison.tuning.items()
    ]
    return [tag("h2", "Learning rates"), table(["arm", *(f"{rate:g}" for rate in rates), "taken"], rows, caption)]


def _loss(value: float) -> Number:
    return Number(f"{value:.4f}" if math.isfinite(value) else "diverged")


def _missing(runs: Iterable[Run]) -> list[Html]:
    rows = [
        [run.name, run.status, tag("pre", run.error) if run.error else ""] for run in runs if run.status != FINISHED
    ]
    return [tag("h2", "Runs that are missing here"), table(["run", "state", "error"], rows)] if rows else []


def _provenance(runs: Sequence[Run]) -> list[Html]:
    facts = dict.fromkeys(name for run in runs for name in provenance(run))
    header = ["run", "steps", "bytes", "seconds", "kB per second"]
    return [
        tag("h2", "Where these numbers come from"),
        table(["", ""], [[name, _values(name, runs)] for name in facts]) if facts else Html(),
        table(header, [[run.name, *_cost(run.result)] for run in runs if run.result]),
    ]


def _cost(result: Result) -> list[Number]:
    speed = result.bytes / 1e3 / result.seconds if result.seconds > 0 else math.nan
    return [Number(f"{value:,.0f}") for value in (result.steps, result.bytes, result.seconds, speed)]


def _values(name: str, runs: Sequence[Run]) -> Html:
    """The value all runs share, or each value with the number of runs that have it; of many the first."""
    found = [provenance(run).get(name, "-") for run in runs]
    values = list(dict.fromkeys(found))
    if len(values) == 1:
        return tag("span", values[0], "value")
    if len(values) > FEW_VALUES:
        return tag("span", f"{values[0]} (the first of {len(values)}; rows.jsonl has them all)", "value")
    counted = (f"{value} ({found.count(value)} of {len(runs)} runs)" for value in values)
    return Html("<br>".join(tag("span", text, "value") for text in counted))


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_fact(item)}" for key, item in value.items())
    if isinstance(value, str):
        return value if value.strip() else repr(value)
    return {"None": "none", "True": "yes", "False": "no"}.get(str(value), str(value))


def _titles(measures: Iterable[Measure], mark: str) -> list[str]:
    return [f"{measure.title}{mark}" for measure in measures]


def _mark(comparison: Comparison) -> str:
    """What every title and header says where an arm is not causal."""
    if comparison.causal:
        return ""
    mixed = any(arm.causal for arm in comparison.arms if arm.seeds)
    return f" ({'† ' if mixed else ''}{NOT_CAUSAL})"


def _arm_name(arm: Arm) -> Html:
    return Html(html(arm.name) + ("" if arm.causal else f"<br>{tag('span', NOT_CAUSAL, 'label')}"))


def _estimates(arm: Arm, measures: Iterable[Measure]) -> list[Number]:
    return [_stacked(arm.estimates.get(measure.key), ".4f", arm) for measure in measures]


def _stacked(estimate: Estimate | PairedDifference | None, form: str, *arms: Arm) -> Number:
    """A mean with its interval below; its n too where that differs from the arm's."""
    if estimate is None:
        return Number("-")
    few = f"n = {estimate.n}" if estimate.n != len(arms[0].seeds) else ""
    below = Html(_marked(interval_text(estimate, form), *arms) + (f" {few}" if few else ""))
    return Number(_number(estimate.mean, form, *arms) + tag("span", below, "interval"))


def _number(value: float, form: str, *arms: Arm) -> Number:
    return _marked(f"{value:{form}}" if math.isfinite(value) else "not finite", *arms)


def _marked(text: str, *arms: Arm) -> Number:
    """The text of a number, with a dagger where an arm behind it is not causal."""
    dagger = "" if not text or all(arm.causal for arm in arms) else DAGGER
    return Number(escape(_minus(text)) + dagger)


def _several(values: Sequence[int]) -> Number:
    return Number(", ".join(f"{value:,}" for value in values) or "-")


def _minus(text: str) -> str:
    """The same text with a true minus sign before numbers."""
    return re.sub(r"(?<![^\s(])-(?=\d)", "\N{MINUS SIGN}", text)
