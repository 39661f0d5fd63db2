"""Cautions to read before any number is believed: leaks, unequal runs, damage.

Each caution is a function from a comparison to sentences, none where all is well. `CAUTIONS` lists
them in the order in which the page shows them.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from statistics import median
from typing import Any

from plkernel.common.cli import MARK
from plkernel.common.files import FINISHED
from plkernel.config.spec import with_defaults
from plkernel.decays.memory import outlasting
from plkernel.models import NOT_CAUSAL
from plkernel.results.comparison import COMMON_STEP, Comparison, differs_in_task
from plkernel.results.rate_report import curve_cautions
from plkernel.results.study import Study, StudyRun
from plkernel.results.wording import first_few, left_out, listed


def warnings(comparison: Comparison) -> list[str]:
    """All cautions on a study."""
    return [sentence for caution in CAUTIONS for sentence in caution(comparison)]


def _sentence_on(names: Sequence[str], text: str) -> list[str]:
    """A sentence on arms or runs, "a, b and c: text."; none without any."""
    if not names:
        return []
    return [f"{first_few(names)}: {text}."]


def _differ_in(values: Collection[Any], text: str) -> list[str]:
    """A sentence where runs have several values."""
    return [f"Runs differ in {text}."] if len(set(values)) > 1 else []


# Single arms and runs


def leaking(comparison: Comparison) -> list[str]:
    """Arms whose loss is not one of a likelihood."""
    names = [arm.name for arm in comparison.arms if not arm.causal]
    return _sentence_on(
        names,
        f"{NOT_CAUSAL}: a prediction sees part of its own target, so the loss says little about the"
        " model",
    )


def idle(comparison: Comparison) -> list[str]:
    """Arms that give the losses of their baseline in every seed."""
    names = []
    for name, difference in comparison.differences.items():
        if not any(difference.per_seed.values()):
            names.append(name)
    return _sentence_on(
        names,
        "the same loss as the baseline to the last digit in every seed: its options do nothing",
    )


def at_the_edge(comparison: Comparison) -> list[str]:
    """Arms whose learning rate is an end of the grid that was searched."""
    names = []
    for name, choice in comparison.tuning.items():
        if choice.at_edge:
            names.append(f"{name} at {choice.rate:g}")
    return _sentence_on(names, "the learning rate is the first or last tried")


def undecided_rate(comparison: Comparison) -> list[str]:
    """Arms for which a distant learning rate may be as good as the chosen one."""
    noise = _noise(comparison)
    names = [name for name, choice in comparison.tuning.items() if choice.rivals(noise)]
    return _sentence_on(
        names, f"the search cannot tell the best learning rate, {_more_seeds(noise)}"
    )


def another_rate(comparison: Comparison) -> list[str]:
    """Arms at another learning rate than their baseline, which may be right for both."""
    noise = _noise(comparison)
    tuned = comparison.tuning
    names = []
    for arm in comparison.others:
        base = str(arm.against)
        if arm.name in tuned and base in tuned and tuned[arm.name].apart(tuned[base], noise):
            names.append(arm.name)
    return _sentence_on(
        names,
        "not at its baseline's learning rate; the search cannot tell which is better,"
        f" {_more_seeds(noise)}",
    )


def _noise(comparison: Comparison) -> float:
    """The median standard deviation of a difference; NaN if none is known."""
    spreads = [one.standard_deviation for one in comparison.differences.values()]
    known = [spread for spread in spreads if spread > 0]
    return median(known) if known else math.nan


def _more_seeds(noise: float) -> str:
    return f"seeds differ by {noise:.2g}: add tuning.seeds to decide"


def of_curves(comparison: Comparison) -> list[str]:
    """Curves over learning rates whose minimum may lie elsewhere, or that lack runs."""
    return curve_cautions(comparison.curves)


def without_baseline(comparison: Comparison) -> list[str]:
    """Baselines without a finished run."""
    names = [base.name for base in comparison.baselines if not base.seeds]
    return _sentence_on(
        names, "no run of this baseline is finished, there is nothing to compare with"
    )


def damaged(comparison: Comparison) -> list[str]:
    """Runs whose rows are not those that their result tells of."""
    names = [run.name for run in comparison.study.finished() if not run.agrees]
    return _sentence_on(
        names,
        "the rows are not those of the result: bring metrics.jsonl back, or train the run again",
    )


def not_finite(comparison: Comparison) -> list[str]:
    """Arms with a loss of NaN or infinity."""
    names = []
    for arm in comparison.arms:
        losses = arm.values["final_val_bpb"]
        seeds = [seed for seed, loss in losses.items() if not math.isfinite(loss)]
        if seeds:
            names.append(f"{arm.name}, seed {listed(seeds)}")
    return _sentence_on(names, "the loss is not finite, so the arm has no mean")


def beyond_the_context(comparison: Comparison) -> list[str]:
    """Arms that begin with half-lives far longer than a training window."""
    sentences = []
    for arm in comparison.arms:
        runs = comparison.study.finished(arm.name)
        if not runs:
            continue
        half_lives = runs[0].first.get("half_life_quantiles")
        context = (runs[0].config.get("train") or {}).get("context")
        if half_lives and context:
            words = outlasting(half_lives, context)
            if words:
                sentences.append(f"{arm.name}: {words}.")
    return sentences


def beyond_the_tests(comparison: Comparison) -> list[str]:
    """Arms whose positions run on in training, where decays of every test are those of its start.

    Position scaling makes decays slower the later the position, and `train.carry` counts positions
    over all windows of a run; every evaluation counts from its first byte.
    """
    names = []
    for arm in comparison.arms:
        for run in comparison.study.finished(arm.name)[:1]:
            scaled = (run.config.get("model") or {}).get("position_scaling")
            carried = (run.config.get("train") or {}).get("carry")
            if scaled and carried:
                names.append(arm.name)
    return _sentence_on(
        names,
        "train.carry lets positions run on from window to window, and every test starts at position"
        " 0, where position scaling gives other decays",
    )


# Differences among runs


def other_tasks(comparison: Comparison) -> list[str]:
    """Arms on recall that were to be compared with one on text, or the reverse."""
    names = []
    for arm in comparison.others:
        if differs_in_task(comparison.study, arm.name, str(arm.against)):
            names.append(arm.name)
    return _sentence_on(
        names,
        "one of recall and text where the baseline is the other, so that there is no difference:"
        " losses are bits per answer and bits per byte",
    )


def other_texts(comparison: Comparison) -> list[str]:
    """Arms that asked for another corpus than the arm that they are compared with."""
    study = comparison.study
    names = []
    for arm in comparison.others:
        base = str(arm.against)
        own_corpora = _corpora(study, arm.name)
        base_corpora = _corpora(study, base)
        differ = bool(own_corpora and base_corpora) and own_corpora != base_corpora
        if differ and not differs_in_task(study, arm.name, base):
            names.append(arm.name)
    return _sentence_on(
        names,
        "on another corpus than the arm compared with, so that differences may be those of the"
        " texts",
    )


def _corpora(study: Study, arm: str) -> set[str]:
    """The corpora that the finished runs of an arm asked for."""
    return {str(_asked(run)) for run in study.finished(arm)}


def _asked(run: StudyRun) -> dict[str, Any]:
    """The options of a run's corpus, without the size and the digest of what it got."""
    corpus: dict[str, Any] = with_defaults({"corpus": run.config["corpus"]})["corpus"]
    return {name: value for name, value in corpus.items() if name not in ("sha256", "size")}


def unequal_steps(comparison: Comparison) -> list[str]:
    """Runs of several lengths."""
    steps = [number for arm in comparison.arms for number in arm.steps]
    common = comparison.primary == COMMON_STEP
    where = "at the last step that all reached" if common else "as they ended"
    return _differ_in(steps, f"the number of steps; they are compared {where}")


def unequal_sizes(comparison: Comparison) -> list[str]:
    """Arms of which a model has another size than those that it is compared with."""
    names = []
    for arm in comparison.arms:
        sizes = set(arm.parameters)
        if arm.against is not None:
            sizes.update(comparison[arm.against].parameters)
        if len(sizes) > 1:
            names.append(arm.name)
    return _sentence_on(names, "models that are compared differ in the number of parameters")


def unequal_seeds(comparison: Comparison) -> list[str]:
    """Arms of which other seeds have finished."""
    seeds = [arm.seeds for arm in comparison.arms if arm.seeds]
    return _differ_in(seeds, "the seeds that finished: compare paired differences, not means")


def several_commits(comparison: Comparison) -> list[str]:
    """Runs of several versions of the code."""
    commits = [run.environment.get("commit") for run in comparison.study.finished()]
    return _differ_in(commits, "the commit of the code")


def several_sources(comparison: Comparison) -> list[str]:
    """Arms compared with runs of another source of plkernel, where the commit does not tell it."""
    return _compared_over_versions(
        comparison, _sources, "the source of plkernel (source in environment.json)"
    )


def several_codes(comparison: Comparison) -> list[str]:
    """Arms compared with runs of another version of a file of other people's code."""
    return _compared_over_versions(
        comparison, _codes, "a file of other people's code (its sha256 in environment.json)"
    )


def several_sittings(comparison: Comparison) -> list[str]:
    """Runs that went on by other code than they began with."""
    names = [run.name for run in comparison.study.finished() if run.environment.get("earlier")]
    return _sentence_on(
        names, "trained by more than one version of the code (earlier in environment.json)"
    )


def _compared_over_versions(
    comparison: Comparison, versions: Callable[[StudyRun], dict[str, str]], of: str
) -> list[str]:
    """Arms whose runs, or those of the arm that they are compared with, are of several versions.

    versions: of a run, by what they are versions of. of: words for that
    """
    study = comparison.study
    names = []
    for arm in comparison.others:
        found: dict[str, set[str]] = {}
        for run in [*study.finished(arm.name), *study.finished(str(arm.against))]:
            for name, version in versions(run).items():
                found.setdefault(name, set()).add(version)
        if any(len(several) > 1 for several in found.values()):
            names.append(arm.name)
    return _sentence_on(
        names,
        f"runs that are compared differ in {of}, so that differences may be those of the code",
    )


def _sources(run: StudyRun) -> dict[str, str]:
    """The digest of plkernel's source by its commit: `several_commits` tells other commits."""
    source = run.environment.get("source")
    return {str(run.environment.get("commit")): source} if source else {}


def _codes(run: StudyRun) -> dict[str, str]:
    """The digest of every file of other people's code by the name of its module."""
    found = {}
    for name, origin in (run.environment.get("code") or {}).items():
        if origin.get("sha256"):
            found[name.partition(MARK)[0]] = origin["sha256"]
    return found


def several_texts(comparison: Comparison) -> list[str]:
    """Runs that asked for the same corpus and got other bytes."""
    digests: dict[str, set[str | None]] = {}
    for run in comparison.study.finished():
        digest = run.config["corpus"].get("sha256")
        digests.setdefault(str(_asked(run)), set()).add(digest)
    most = max(digests.values(), key=len)  # one corpus in several versions is enough
    return _differ_in(most, "the bytes of their corpus (its sha256)")


def uncommitted_code(comparison: Comparison) -> list[str]:
    """Runs of code that no commit holds."""
    if any(run.environment.get("dirty") for run in comparison.study.finished()):
        return ["Some runs come from code that differs from its commit (dirty)."]
    return []


def unfinished(comparison: Comparison) -> list[str]:
    """Runs that the report does not cover."""
    runs = comparison.study.runs
    states = Counter(run.status for run in runs if run.status != FINISHED)
    if not states:
        return []
    counts = listed(f"{count:,} {state}" for state, count in states.most_common())
    return [f"Of {len(runs)} runs {counts}: the report covers the others only."]


def beside_the_spec(comparison: Comparison) -> list[str]:
    """Finished runs in the folder that the spec does not ask for."""
    study = comparison.study
    return left_out(study.beside, study.arms, study.seeds)


CAUTIONS: tuple[Callable[[Comparison], list[str]], ...] = (
    leaking,
    idle,
    at_the_edge,
    undecided_rate,
    another_rate,
    of_curves,
    without_baseline,
    damaged,
    not_finite,
    beyond_the_context,
    beyond_the_tests,
    other_tasks,
    other_texts,
    unequal_steps,
    unequal_sizes,
    unequal_seeds,
    several_commits,
    several_sources,
    several_codes,
    several_sittings,
    several_texts,
    uncommitted_code,
    unfinished,
    beside_the_spec,
)
