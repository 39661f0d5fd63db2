"""Each caution speaks where its fault is, names what it is about, and is silent elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from studies import BASELINE, CORPUS, change, save, write_study

from plkernel.models import NOT_CAUSAL
from plkernel.results import cautions
from plkernel.results.comparison import Comparison, compare
from plkernel.results.page import page, text_report
from plkernel.results.study import read_study

OTHER = "concentrated"
LONG = {"half_life_quantiles": [[900, 910, 920, 930, 940, 950, 960]]}
RATES = [0.1, 0.2, 0.4]


def of(folder: Path) -> Comparison:
    return compare(read_study(folder))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two arms of two seeds in which nothing is wrong."""
    folder = write_study(tmp_path / "study", state=LONG)
    assert cautions.warnings(of(folder)) == []
    return folder


def leak(folder: Path) -> None:
    change(folder / OTHER / "seed-0/result.json", causal=False)


def do_nothing(folder: Path) -> None:
    for seed in (0, 1):
        for name in ("metrics.jsonl", "result.json"):
            own = folder / OTHER / f"seed-{seed}" / name
            own.write_bytes((folder / BASELINE / f"seed-{seed}" / name).read_bytes())


def lose_the_baseline(folder: Path) -> None:
    for seed in (0, 1):
        (folder / BASELINE / f"seed-{seed}" / "result.json").unlink()


def damage(folder: Path) -> None:
    change(folder / BASELINE / "seed-0/result.json", final_val_bpb=9.0)


def overflow(folder: Path) -> None:
    change(folder / OTHER / "seed-1/result.json", final_val_bpb=None)


def read_short_windows(folder: Path) -> None:
    for seed in (0, 1):
        change(folder / OTHER / f"seed-{seed}" / "config.json", train={"context": 64})


def carry_positions(folder: Path) -> None:
    change(folder / OTHER / "seed-0/config.json", model={"position_scaling": True})
    for name in (BASELINE, OTHER):  # of the baseline, positions do not matter
        change(folder / name / "seed-0/config.json", train={"carry": True})


def stop_early(folder: Path) -> None:
    write_study(folder, effects={BASELINE: 0.0, OTHER: -0.05}, state=LONG, steps=40)
    path = folder / OTHER / "seed-0"
    rows = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(rows[:-1]))
    loss = of(folder).study.curves(OTHER)[0][30 * 8192]
    change(path / "result.json", steps=30, final_val_bpb=loss)


def shrink(folder: Path) -> None:
    change(folder / BASELINE / "seed-0/config.json", model={"parameters": 1})


def lose_a_seed(folder: Path) -> None:
    (folder / OTHER / "seed-0/result.json").unlink()


def commit(folder: Path) -> None:
    change(folder / BASELINE / "seed-0/environment.json", commit="other")


def change_the_text(folder: Path) -> None:
    change(folder / BASELINE / "seed-0/config.json", corpus={**CORPUS, "sha256": "0"})


def ask_for_answers(folder: Path) -> None:
    recall = {**CORPUS, "name": "synthetic:recall,pairs=4,length=32"}
    for seed in (0, 1):
        change(folder / OTHER / f"seed-{seed}/config.json", corpus=recall)


def read_another_text(folder: Path) -> None:
    for seed in (0, 1):
        other = {**CORPUS, "name": "bible:en", "sha256": "1"}
        change(folder / OTHER / f"seed-{seed}/config.json", corpus=other)


def edit_the_code(folder: Path) -> None:
    change(folder / BASELINE / "seed-0/environment.json", dirty=True)


def edit_the_source(folder: Path) -> None:
    for name, source in ((BASELINE, "0a"), (OTHER, "1b")):
        for seed in (0, 1):
            change(folder / name / f"seed-{seed}/environment.json", source=source)


def edit_the_model(folder: Path) -> None:
    """Arms may name other things of one file."""
    for name, kind, digest in ((BASELINE, "own:Model", "0a"), (OTHER, "own:Larger", "1b")):
        code = {kind: {"version": None, "sha256": digest}}
        for seed in (0, 1):
            change(folder / name / f"seed-{seed}/environment.json", code=code)


def go_on_by_other_code(folder: Path) -> None:
    change(folder / OTHER / "seed-1/environment.json", earlier=[{"source": "0a"}])


def ask_for_other_seeds(folder: Path) -> None:
    change(folder / "spec.json", seeds=[1])


CASES: list[tuple[Callable[[Comparison], list[str]], Callable[[Path], None], str]] = [
    (
        cautions.leaking,
        leak,
        f"{OTHER}: {NOT_CAUSAL}: a prediction sees part of its own target, so the loss says little"
        " about the model.",
    ),
    (
        cautions.idle,
        do_nothing,
        f"{OTHER}: the same loss as the baseline to the last digit in every seed: its options do"
        " nothing.",
    ),
    (
        cautions.without_baseline,
        lose_the_baseline,
        f"{BASELINE}: no run of this baseline is finished, there is nothing to compare with.",
    ),
    (
        cautions.damaged,
        damage,
        f"{BASELINE}/seed-0: the rows are not those of the result: bring metrics.jsonl back, or"
        " train the run again.",
    ),
    (
        cautions.not_finite,
        overflow,
        f"{OTHER}, seed 1: the loss is not finite, so the arm has no mean.",
    ),
    (
        cautions.beyond_the_tests,
        carry_positions,
        f"{OTHER}: train.carry lets positions run on from window to window, and every test starts"
        " at position 0, where position scaling gives other decays.",
    ),
    (
        cautions.other_tasks,
        ask_for_answers,
        f"{OTHER}: one of recall and text where the baseline is the other, so that there is no"
        " difference: losses are bits per answer and bits per byte.",
    ),
    (
        cautions.other_texts,
        read_another_text,
        f"{OTHER}: on another corpus than the arm compared with, so that differences may be those"
        " of the texts.",
    ),
    (
        cautions.unequal_steps,
        stop_early,
        "Runs differ in the number of steps; they are compared at the last step that all reached.",
    ),
    (
        cautions.unequal_sizes,
        shrink,
        f"{BASELINE} and {OTHER}: models that are compared differ in the number of parameters.",
    ),
    (
        cautions.unequal_seeds,
        lose_a_seed,
        "Runs differ in the seeds that finished: compare paired differences, not means.",
    ),
    (cautions.several_commits, commit, "Runs differ in the commit of the code."),
    (
        cautions.several_sources,
        edit_the_source,
        f"{OTHER}: runs that are compared differ in the source of plkernel (source in"
        " environment.json), so that differences may be those of the code.",
    ),
    (
        cautions.several_codes,
        edit_the_model,
        f"{OTHER}: runs that are compared differ in a file of other people's code (its sha256 in"
        " environment.json), so that differences may be those of the code.",
    ),
    (
        cautions.several_sittings,
        go_on_by_other_code,
        f"{OTHER}/seed-1: trained by more than one version of the code (earlier in"
        " environment.json).",
    ),
    (
        cautions.several_texts,
        change_the_text,
        "Runs differ in the bytes of their corpus (its sha256).",
    ),
    (
        cautions.uncommitted_code,
        edit_the_code,
        "Some runs come from code that differs from its commit (dirty).",
    ),
    (
        cautions.unfinished,
        lose_a_seed,
        "Of 4 runs 1 unfinished: the report covers the others only.",
    ),
    (
        cautions.beside_the_spec,
        ask_for_other_seeds,
        "The folder has 2 finished runs of seed 0, left out as the spec has seed 1 alone;"
        " plkernel.experiment with --seeds 1 0 takes all in.",
    ),
]


@pytest.mark.parametrize(
    ("caution", "fault", "sentence"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_a_caution_names_its_fault(
    study: Path,
    caution: Callable[[Comparison], list[str]],
    fault: Callable[[Path], None],
    sentence: str,
) -> None:
    fault(study)
    assert caution(of(study)) == [sentence]
    assert sentence in cautions.warnings(of(study))


def test_an_arm_on_recall_has_no_difference_to_one_on_text(study: Path) -> None:
    """A study of before such specs were refused; its report has the means of both."""
    assert of(study).differences.keys() == {OTHER}
    ask_for_answers(study)
    one = of(study)
    assert one.differences == {}
    assert one[OTHER].bytes_ratio == {}
    assert one[OTHER].estimates.keys() == one[BASELINE].estimates.keys()
    assert text_report(one)
    assert page(one, [])


def test_blocks_of_other_sizes_and_texts_are_no_fault(tmp_path: Path) -> None:
    """A control of a smaller model, on another text, is compared within itself."""
    arms: dict[str, Any] = {name: {} for name in (BASELINE, OTHER, "c_control", "d_control")}
    arms["c_control"] = {"levels": {"text": "control"}}
    arms["d_control"] = {"levels": {"text": "control"}, "against": "c_control"}
    effects = dict.fromkeys(arms, 0.0)
    spec = {"arms": arms, "within": ["text"]}
    folder = write_study(tmp_path, effects=effects, spec=spec, state=LONG)
    for name in ("c_control", "d_control"):
        for seed in (0, 1):
            path = folder / name / f"seed-{seed}/config.json"
            change(path, model={"parameters": 1}, corpus={**CORPUS, "name": "shuffled"})
    assert cautions.unequal_sizes(of(folder)) == []
    assert cautions.other_texts(of(folder)) == []
    change(folder / "d_control/seed-0/config.json", model={"parameters": 2})
    assert cautions.unequal_sizes(of(folder)) == [
        "d_control: models that are compared differ in the number of parameters."
    ]


def test_sources_of_several_commits_and_codes_of_several_files_are_no_fault(study: Path) -> None:
    """The caution on commits tells the one; the other is a comparison of models."""
    edit_the_source(study)
    commit(study)
    change(study / BASELINE / "seed-1/environment.json", commit="other")
    assert cautions.several_sources(of(study)) == []
    for name, digest in ((BASELINE, "0a"), (OTHER, "1b")):
        code = {f"{name}:Model": {"version": None, "sha256": digest}}
        for seed in (0, 1):
            change(study / name / f"seed-{seed}/environment.json", code=code)
    assert cautions.several_codes(of(study)) == []


def test_half_lives_beyond_the_context_are_told(study: Path) -> None:
    read_short_windows(study)
    (sentence,) = cautions.beyond_the_context(of(study))
    assert sentence.startswith(f"{OTHER}: half or more of its half-l")


def test_every_caution_is_listed_and_has_a_test() -> None:
    found = {
        value
        for name, value in vars(cautions).items()
        if callable(value)
        and getattr(value, "__module__", "") == cautions.__name__
        and not name.startswith("_")
        and name != "warnings"
    }
    assert found == set(cautions.CAUTIONS)
    searched = {cautions.at_the_edge, cautions.undecided_rate, cautions.another_rate}
    elsewhere = {cautions.beyond_the_context, cautions.of_curves}  # the second: test_rate_curves
    assert found == {case[0] for case in CASES} | searched | elsewhere


@pytest.fixture
def tuned(tmp_path: Path) -> Callable[..., Comparison]:
    """Writes a study whose rates were searched for, by their losses by arm and rate.

    Differences to the baseline are 0 at the first seed and `spread` at the second.
    """

    def write(losses: dict[str, dict[float, float]], spread: float) -> Comparison:
        folder = write_study(
            tmp_path / "study",
            effects=dict.fromkeys(losses, 0.0),
            spec={"tuning": {"rates": RATES}},
        )
        for arm in losses:
            for seed in (0, 1):
                path = folder / arm / f"seed-{seed}" / "result.json"
                change(path, final_val_bpb=2.0 + spread * seed * (arm != BASELINE))
        arms = {f"{arm}_rate-{rate}": loss for arm in losses for rate, loss in losses[arm].items()}
        search = write_study(
            folder / "tuning", seeds=(0,), effects=arms, spec={"baseline": next(iter(arms))}
        )
        for arm, loss in arms.items():
            change(search / arm / "seed-0/result.json", final_val_bpb=loss)
        return of(folder)

    return write


def test_a_rate_at_the_edge_of_the_search_is_told(tuned: Callable[..., Comparison]) -> None:
    inside = {0.1: 2.2, 0.2: 2.0, 0.4: 2.2}
    assert cautions.at_the_edge(tuned({BASELINE: inside, OTHER: inside}, 0.0)) == []
    above = {0.1: 2.4, 0.2: 2.2, 0.4: 2.0}
    assert cautions.at_the_edge(tuned({BASELINE: above, OTHER: inside}, 0.0)) == [
        f"{BASELINE} at 0.4: the learning rate is the first or last tried."
    ]
    below = {0.1: 2.0, 0.2: 2.2, 0.4: 2.4}
    assert cautions.at_the_edge(tuned({BASELINE: above, OTHER: below}, 0.0)) == [
        f"{BASELINE} at 0.4 and {OTHER} at 0.1: the learning rate is the first or last tried."
    ]


def test_distant_rates_that_are_as_good_are_told(tuned: Callable[..., Comparison]) -> None:
    """The differences are 0 and `spread`: their standard deviation is spread / sqrt(2)."""
    torn = {0.1: 2.01, 0.2: 2.2, 0.4: 2.0}
    assert cautions.undecided_rate(tuned({BASELINE: torn, OTHER: torn}, 0.01)) == []
    assert cautions.undecided_rate(tuned({BASELINE: torn, OTHER: torn}, 0.02)) == [
        f"{BASELINE} and {OTHER}: the search cannot tell the best learning rate, seeds differ by"
        " 0.014: add tuning.seeds to decide."
    ]


def test_a_rate_that_is_not_the_baselines_is_told(tuned: Callable[..., Comparison]) -> None:
    low, high = {0.1: 2.0, 0.2: 2.01, 0.4: 2.5}, {0.1: 2.01, 0.2: 2.0, 0.4: 2.5}
    assert cautions.another_rate(tuned({BASELINE: low, OTHER: high}, 0.01)) == []
    assert cautions.another_rate(tuned({BASELINE: low, OTHER: low}, 0.02)) == []
    assert cautions.another_rate(tuned({BASELINE: low, OTHER: high}, 0.02)) == [
        f"{OTHER}: not at its baseline's learning rate; the search cannot tell which is better,"
        " seeds differ by 0.014: add tuning.seeds to decide."
    ]


def test_many_names_are_counted(tmp_path: Path) -> None:
    effects = {BASELINE: 0.0, **{name: -0.1 for name in "abcdef"}}
    folder = write_study(tmp_path, effects=effects, causal=False)
    assert cautions.leaking(of(folder))[0].startswith(f"{BASELINE}, a, b, c and 3 more: not causal")


def test_steps_without_one_in_common_are_compared_as_they_ended(tmp_path: Path) -> None:
    folder = write_study(tmp_path, steps=10)
    path = folder / OTHER / "seed-0"
    loss = 5.0
    (path / "metrics.jsonl").write_text(
        f'{{"step": 0, "bytes": 0, "val_bpb": 8.0}}\n'
        f'{{"step": 7, "bytes": 57344, "val_bpb": {loss}}}\n'
    )
    change(path / "result.json", steps=7, final_val_bpb=loss)
    (sentence,) = cautions.unequal_steps(of(folder))
    assert sentence == "Runs differ in the number of steps; they are compared as they ended."


def test_saved_specs_without_the_search_have_no_rates(study: Path) -> None:
    save(
        study / "tuning/spec.json", {"name": "x", "baseline": "x", "arms": {"x": {}}, "seeds": [0]}
    )
    assert of(study).tuning == {}


def test_another_baseline_without_runs_is_told(tmp_path: Path) -> None:
    effects = {BASELINE: 0.0, "own base": 0.0, OTHER: -0.05}
    arms = {BASELINE: {}, "own base": {}, OTHER: {"against": "own base"}}
    folder = write_study(tmp_path, effects=effects, spec={"arms": arms})
    for path in (folder / "own base").rglob("result.json"):
        path.unlink()
    comparison = of(folder)
    assert [arm.name for arm in comparison.arms] == [BASELINE, "own base", OTHER]
    assert comparison[OTHER].differences == {}
    assert cautions.without_baseline(comparison) == [
        "own base: no run of this baseline is finished, there is nothing to compare with."
    ]
