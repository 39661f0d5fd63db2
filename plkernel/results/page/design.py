"""The page's section on the design: what was varied, what is shared, and how much training and tuning every arm had."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plkernel.common.imports import is_code
from plkernel.records.layout import FINISHED
from plkernel.records.study import Study
from plkernel.results.comparison import Comparison, block_levels, short_factor, short_name
from plkernel.results.page.document import PageSection, lines, section, table
from plkernel.results.sentences import listed, span

MOST_NAMES = 12
NOT_OPTIONS = ("levels", "against", "node_rates", "node_multipliers", "node_gain", "output_std")
"""What a saved arm holds beside its options: its place in the study, and numbers that follow from other options."""
OF_A_BASELINE = ("placement", "projection", "shortest", "longest", "tempering", "scheme")
OF_ITS_SCHEME = ("scheme", "init", "node_file")
"""Without a placement, decays come from elsewhere and the other options of an arm do nothing."""
SEARCHED = ("learning_rate", "rates")
"""Of a study that searched for learning rates no arm chose them."""


def design(comparison: Comparison) -> list[PageSection]:
    """The design in a few lines."""
    parts = (_factors, _arms, _blocks, _seeds, _model, _budget, _rates, _corpus, _judged)
    rows = [[name, value] for part in parts for name, value in part(comparison)]
    return section("Design", table(["", ""], rows))


Row = tuple[str, Any]


def _factors(comparison: Comparison) -> Iterator[Row]:
    factors = factor_levels(comparison.study)
    if factors:
        yield "factors", lines(f"{name}: {', '.join(levels)}" for name, levels in factors.items())


def _arms(comparison: Comparison) -> Iterator[Row]:
    study, crossed = comparison.study, factor_levels(comparison.study)
    beside = [arm for arm in study.arms if len(study.levels(arm)) < len(crossed)]
    named = list(dict.fromkeys(short_name(study, arm) for arm in (beside if crossed else study.arms)))
    shown = listed(named) if len(named) <= MOST_NAMES else f"{listed(named[:MOST_NAMES])} and others"
    if crossed:
        yield "arms", f"every combination of the levels, {len(study.arms) - len(beside)} arms"
        if beside:
            yield "arms beside", f"{shown}{', in every block' if study.spec.get('within') else ''}"
    else:
        yield "arms", shown
    done = sum(run.status == FINISHED for run in study.runs)
    yield "runs", f"{len(study.arms)} arms x {len(study.seeds)} seeds: {len(study.runs)}, of which {done} finished"


def _blocks(comparison: Comparison) -> Iterator[Row]:
    study = comparison.study
    bases = list(dict.fromkeys(short_name(study, arm) for name in study.arms if (arm := study.against(name))))
    named = listed(bases) if len(bases) <= MOST_NAMES else f"{len(bases)} arms"
    if not study.spec.get("within"):
        if bases:
            yield "compared with", named
        return
    every = [tuple(block_levels(study, arm).values()) for arm in study.arms]
    shown = {tuple(block_levels(study, arm.name).values()) for arm in comparison.arms}
    factors = listed(short_factor(name, study.spec["within"]) for name in study.spec["within"])
    yield "blocks", f"by {factors}: {len(set(every))}, of which {len(shown)} have a finished run"
    yield "compared with", f"{named} of the same block"


def _seeds(comparison: Comparison) -> Iterator[Row]:
    study = comparison.study
    yield "seeds", ", ".join(map(str, study.seeds))
    corpora = {str(run.config["corpus"].get("sha256")) for run in study.finished()}
    data = "the same data in the same order" if len(corpora) == 1 else "the order of the data"
    yield "pairs share", f"runs of one seed share their base weights and {data}; the windows of evaluation are fixed"


def _model(comparison: Comparison) -> Iterator[Row]:
    model = comparison.study.spec.get("model") or {}
    ours = not is_code(str(model.get("kind", "")))  # width and blocks of another's model are not known
    sizes = [size for arm in comparison.arms for size in arm.parameters]
    facts = [
        str(model.get("kind", "")),
        f"width {model['dim']}" if "dim" in model and ours else "",
        f"{model['layers']} blocks" if "layers" in model and ours else "",
        f"{span(sizes)} parameters" if sizes else "",
    ]
    if any(facts):
        yield "model", ", ".join(filter(None, facts))


def _budget(comparison: Comparison) -> Iterator[Row]:
    train = comparison.study.spec.get("train") or {}
    results = [run.result for run in comparison.study.finished() if run.result]
    steps, size = span(one.steps for one in results), span(one.bytes for one in results)
    windows = f", {train['batch']} windows of {train['context']} bytes each" if "batch" in train else ""
    warmup = train.get("warmup", 0)
    schedule = f"; {train['schedule']} schedule, {warmup} steps of warm-up" if "schedule" in train else ""
    yield "budget", f"{steps} steps{windows}: {size} bytes of training text{schedule}"


def _rates(comparison: Comparison) -> Iterator[Row]:
    study, spec = comparison.study, comparison.study.spec
    given = {rate for arm in comparison.arms if (rate := spec["arms"][arm.name].get("learning_rate"))}
    tuning, peak = spec.get("tuning") or {}, (spec.get("train") or {}).get("learning_rate")
    if tuning.get("rates"):
        seeds, grids = tuning["seeds"], [spec["arms"][arm].get("rates") or tuning["rates"] for arm in study.arms]
        own = ", of its own where its best lies elsewhere" if len(set(map(tuple, grids))) > 1 else ""
        rates = [rate for grid in grids for rate in grid]
        steps = f"{tuning['steps']:,} steps" if tuning.get("steps") else "as many steps as a run"
        yield (
            "learning rate",
            f"searched for each arm, the same budget for all: {span(map(len, grids))} rates{own} ({span(rates, 'g')}), "
            f"{len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'} ({', '.join(map(str, seeds))}), {steps}",
        )
    elif given:
        yield "learning rate", f"given for the arm, {span(given, 'g')}"
    elif peak:
        yield "learning rate", f"{peak:g} for every arm, not searched for"


def _corpus(comparison: Comparison) -> Iterator[Row]:
    runs = comparison.study.finished()
    names = list(dict.fromkeys(str(run.config["corpus"].get("name")) for run in runs))
    sizes = [size for run in runs if (size := run.config["corpus"].get("size"))]
    held = comparison.study.spec.get("corpus") or {}
    shares = (
        f"; {100 * held['validation']:g} % held out for validation and {100 * held['test']:g} % for the test"
        if "validation" in held and "test" in held
        else ""
    )
    yield "corpus", f"{listed(names)}{f', {span(sizes)} bytes' if sizes else ''}{shares}"


def _judged(comparison: Comparison) -> Iterator[Row]:
    train = comparison.study.spec.get("train") or {}
    windows = f", on {train['eval_windows']} windows" if "eval_windows" in train else ""
    yield "arms compared by", f"{comparison.primary.title}, bits per byte{windows}"


def factor_levels(study: Study) -> dict[str, tuple[str, ...]]:
    """The levels of every factor in the order of the spec, by the last part of its name."""
    found: dict[str, dict[str, None]] = {}
    for arm in study.arms:
        for name, level in study.levels(arm).items():
            found.setdefault(name, {})[level] = None
    return {short_factor(name, found): tuple(levels) for name, levels in found.items()}


def explained(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Every arm by its name in its block, and what it has otherwise than the arm it is compared with."""
    study, found = comparison.study, dict[str, dict[str, list[str]]]()
    for arm in study.arms:
        found.setdefault(short_name(study, arm), {}).setdefault(_explained(study, arm), []).append(arm)
    for name, ways in found.items():
        if len(ways) == 1:
            yield name, next(iter(ways))
        else:
            yield name, "; ".join(f"{_where(study, arms)}: {what}" for what, arms in ways.items())


def _explained(study: Study, arm: str) -> str:
    against = study.against(arm)
    if against is None:
        own = _flat(study.spec["arms"][arm])
        names = OF_A_BASELINE if "placement" in own else OF_ITS_SCHEME
        stated = ", ".join(f"{name} {_value(study, own[name])}" for name in names if name in own)
        return f"the baseline{f': {stated}' if stated else ''}"
    return f"{short_name(study, against)} with {_changes(study, arm, against) or 'the same options'}"


def _where(study: Study, arms: Sequence[str]) -> str:
    """The blocks of arms, by their levels."""
    return listed(" ".join(block_levels(study, arm).values()) or arm for arm in arms)


def _changes(study: Study, arm: str, against: str) -> str:
    own, other = _flat(study.spec["arms"][arm]), _flat(study.spec["arms"][against])
    hidden = SEARCHED if (study.spec.get("tuning") or {}).get("rates") else ()
    names = [name for name in {**own, **other} if own.get(name) != other.get(name) and name not in hidden]
    return ", ".join(f"{name} {_value(study, own.get(name))}" for name in names)


def _flat(options: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    """Options by their full names, model.gain, without those that are not given."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if not head and name in NOT_OPTIONS:
            continue
        found |= _flat(value, f"{head}{name}.") if isinstance(value, Mapping) else {f"{head}{name}": value}
    return {name: value for name, value in found.items() if value is not None}


def _value(study: Study, value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, str) and value in study.arms:
        return short_name(study, value)
    return f"{value:g}" if isinstance(value, float) else str(value)
