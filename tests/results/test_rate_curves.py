"""Curves over learning rates: written out as arms, fitted, compared, judged and reported."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from studies import record_row

from plkernel.analysis.figures.style import rendered
from plkernel.common.files import REGISTERED
from plkernel.config.reading import load_spec, parse_spec
from plkernel.results.answer import answer
from plkernel.results.cautions import warnings
from plkernel.results.comparison import compare, table
from plkernel.results.conclusion import overview
from plkernel.results.figures import drawings
from plkernel.results.page import _verdict_table, page, text_report
from plkernel.results.rate_curves import CurveResult, RateCurve, _loss, parabola
from plkernel.results.rate_report import (
    STEEP,
    _loss_limits,
    curve_cautions,
    curve_clauses,
    curve_rows,
    curves_tested,
    rate_figure,
)
from plkernel.results.registration import register
from plkernel.results.statistics import detectable_difference, paired_difference
from plkernel.results.study import FinishedRun, StudyRun, read_study

SPEC = """
name = "curves"
baseline = "long"
seeds = [0, 1, 2, 3, 4]

[train]
steps = 20
context = 16
batch = 2
eval_every = 20

[tuning]
method = "curve"
rates = [1e-3, 2e-3, 4e-3, 8e-3, 16e-3]

[arms.long]
longest = 64

[arms.short]
longest = 8
{more}

[[hypotheses]]
name = "short leads at its best rate"
arm = "short"
metric = "val_bpb_minimum"
claim = "lower"
margin = 0.005
"""
RATES = [1e-3, 2e-3, 4e-3, 8e-3, 16e-3]


def spec_file(folder: Path, text: str = SPEC, more: str = "") -> Path:
    path = folder / "curves.toml"
    path.write_text(text.replace("{more}", more))
    return path


def loss_at(arm: str, rate: float, seed: int) -> float:
    """Parabolas: long least at 4e-3 with 2.0, short at 2 sqrt(2) e-3 with 1.98; seeds shift both
    and differ by 0.001 in their own minima."""
    best, least = {"long": (4e-3, 2.0), "short": (8e-3 / math.sqrt(8), 1.98)}[arm]
    own = 0.001 * (seed % 2) if arm == "short" else 0.0
    return least + own + 0.01 * seed + 0.02 * math.log2(rate / best) ** 2


def study_folder(
    folder: Path,
    diverged: tuple[str, ...] = (),
    left: tuple[str, ...] = (),
    text: str = SPEC,
) -> Path:
    """A study of a spec as a record: arms, or runs, named in `left` have not ended."""
    folder.mkdir(exist_ok=True)
    spec = load_spec(spec_file(folder, text))
    study = folder / "study"
    study.mkdir()
    (study / "spec.json").write_text(json.dumps(spec.model_dump(mode="json")))
    rows = []
    for curve, by_rate in spec.curves.items():
        for rate, arm in by_rate.items():
            for seed in spec.seeds:
                run = f"{arm} {seed}"
                if run not in left and arm not in left:
                    is_lost = arm in diverged or run in diverged
                    loss = None if is_lost else loss_at(curve, rate, seed)
                    rows.append(record_row(arm, seed, loss))
    (study / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return study


# Arms


def test_every_arm_becomes_a_curve_of_arms_each_beside_the_baseline_at_its_rate(tmp_path):
    more = 'match = "long"'
    spec = load_spec(spec_file(tmp_path, more=more))
    assert list(spec.curves) == ["long", "short"]
    for rate in RATES:
        arm = spec.arms[f"short_{rate:g}"]
        assert arm.learning_rate == rate
        assert spec.against(f"short_{rate:g}") == f"long_{rate:g}"
        assert spec.against(f"long_{rate:g}") is None
        assert arm.output_std is not None
    assert spec.hypotheses[0].against == "long"


def test_a_hypothesis_on_a_curve_is_about_no_mean(tmp_path):
    told = text_report(compare(read_study(study_folder(tmp_path))))
    assert "short leads at its best rate" in told
    assert "(mean over" not in told


def test_what_a_study_saves_of_its_curves_is_read_as_the_same_spec(tmp_path):
    spec = load_spec(spec_file(tmp_path))
    saved = json.loads(json.dumps(spec.model_dump(mode="json")))
    assert parse_spec(saved, "spec.json") == spec


def test_factors_are_crossed_with_the_rates(tmp_path):
    text = SPEC.replace('baseline = "long"', 'baseline = "long"\nwithin = ["model.gain"]')
    text += '\n[factors]\n"model.gain" = ["none", "ema"]\n'
    spec = load_spec(spec_file(tmp_path, text.replace('arm = "short"', 'arm = "short_ema"')))
    assert list(spec.curves) == ["long_none", "short_none", "long_ema", "short_ema"]
    assert spec.hypotheses[0].against == "long_ema"
    assert spec.against("short_ema_0.004") == "long_ema_0.004"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "longest = 8\n",
            "longest = 8\nlearning_rate = 1e-3\n",
            "arms.short: learning_rate must be left out",
        ),
        (
            "longest = 8\n",
            "longest = 8\nrates = [1e-3, 2e-3]\n",
            "arms.short: rates must be left out",
        ),
        ("8e-3, 16e-3]", "]\nseeds = [7]", "tuning.seeds (7,) is for tuning.method 'search'"),
        ("2e-3, 4e-3, 8e-3, 16e-3]", "2e-3]", "tuning.rates must be 3 or more"),
        ("rates = [1e-3, 2e-3, 4e-3, 8e-3, 16e-3]", "", "tuning.rates must be given"),
        (
            'arm = "short"',
            'arm = "shirt"',
            "arm must name a curve, got 'shirt'; did you mean 'short'",
        ),
        ('method = "curve"', 'method = "search"', "tuning.method must be 'curve' for minima"),
        ('method = "curve"', 'method = "curves"', "method"),
        ('claim = "lower"', 'claim = "lower"\nstep = 20', "step 20 has no val_bpb_minimum"),
        ('claim = "lower"', 'claim = "lower"\nagainst = "short"', "must name another curve"),
    ],
)
def test_a_spec_of_curves_that_cannot_be_is_refused_with_its_key(tmp_path, old, new, message):
    assert old in SPEC
    with pytest.raises(ValueError, match=re.escape(message)):
        load_spec(spec_file(tmp_path, SPEC.replace(old, new)))


def test_a_gate_on_a_minimum_is_refused(tmp_path):
    gate = '\n[[gates]]\nname = "g"\narm = "short"\nmetric = "val_bpb_minimum"\nat_most = 3.0\n'
    with pytest.raises(ValueError, match="metric of a gate must be a loss of a run"):
        load_spec(spec_file(tmp_path, SPEC + gate))


def test_other_rates_than_those_written_out_are_refused(tmp_path):
    saved = load_spec(spec_file(tmp_path)).model_dump(mode="json")
    saved["tuning"]["rates"] = [1e-3, 2e-3, 4e-3]
    with pytest.raises(ValueError, match=r"tuning.rates must be the rates of the arms"):
        parse_spec(saved, "spec.json")


# Minima


def test_the_minimum_of_a_parabola_is_exact_wherever_it_lies():
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, place, least = rng.uniform(0.01, 1), rng.uniform(-0.9, 0.9), rng.normal()
        rates = [1e-3, 2e-3, 4e-3]
        losses = [least + a * (math.log2(rate / 2e-3) - place) ** 2 for rate in rates]
        found = parabola(rates, losses)
        assert math.isclose(found.minimum, least, abs_tol=1e-12)
        assert math.isclose(found.rate, 2e-3 * 2**place, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("losses", "rate"), [([1.0, 2.0, 4.0], 1e-3), ([3.0, 2.5, 1.0], 4e-3), ([2.0, 3.0, 1.0], 4e-3)]
)
def test_without_a_minimum_between_the_rates_the_lower_end_is_taken(losses, rate):
    found = parabola([1e-3, 2e-3, 4e-3], losses)
    assert found.rate == rate
    assert math.isclose(found.minimum, min(losses), rel_tol=1e-12)


def test_a_parabola_needs_three_finite_losses():
    with pytest.raises(ValueError, match="three or more"):
        parabola([1e-3, 2e-3], [1.0, 2.0])
    with pytest.raises(ValueError, match="finite"):
        parabola([1e-3, 2e-3, 4e-3], [1.0, math.nan, 2.0])


def curve(losses: list[list[float]], rates: list[float]) -> RateCurve:
    """A curve from one list of losses by rate for each seed."""
    by_rate = {
        rate: {seed: own[at] for seed, own in enumerate(losses)} for at, rate in enumerate(rates)
    }
    return RateCurve("one", by_rate)


def test_rates_within_a_factor_of_two_of_the_best_are_fitted_and_at_least_its_neighbours():
    octaves = curve([[3.0, 2.1, 2.0, 2.1, 3.0]], [1e-3, 2e-3, 4e-3, 8e-3, 16e-3])
    assert octaves.fitted == (2e-3, 4e-3, 8e-3)
    halves = [1e-3 * 2 ** (0.5 * step) for step in range(6)]
    assert curve([[3.0, 2.1, 2.0, 2.1, 2.2, 3.0]], halves).fitted == tuple(halves[:5])
    wide = curve([[3.0, 2.0, 2.5]], [1e-3, 1e-2, 1e-1])
    assert wide.fitted == (1e-3, 1e-2, 1e-1)
    assert curve([[1.0, 2.0, 3.0, 4.0]], [1e-3, 2e-3, 4e-3, 8e-3]).fitted == (1e-3, 2e-3, 4e-3)
    assert curve([[4.0, 3.0, 2.0, 1.0]], [1e-3, 2e-3, 4e-3, 8e-3]).fitted == (2e-3, 4e-3, 8e-3)


def test_a_rate_at_which_most_runs_diverge_is_left_out_and_else_the_seed_is():
    most = curve([[2.0, 1.0, 2.0, math.inf]] * 2 + [[2.0, 1.0, 2.0, 9.0]], RATES[:4])
    assert most.rates == tuple(RATES[:3])
    assert most.seeds == (0, 1, 2)
    one = curve([[2.0, 1.0, 2.0, math.inf]] + [[2.0, 1.0, 2.0, 9.0]] * 2, RATES[:4])
    assert one.rates == tuple(RATES[:4])
    assert one.seeds == (1, 2)
    half = curve([[2.0, 1.0, 2.0, math.inf]] * 2 + [[2.0, 1.0, 2.0, 9.0]] * 2, RATES[:4])
    assert half.rates == tuple(RATES[:4])
    assert half.seeds == (2, 3)


def test_paired_minima_hold_the_true_difference_as_often_as_their_interval_says():
    rng = np.random.default_rng(1)
    rates = [1e-3 * 2**step for step in range(6)]
    x = np.log2(np.array(rates) / 1e-3)

    def drawn(place: float, least: float, common: Any) -> RateCurve:
        own = least + 0.02 * (x - place) ** 2 + common + rng.normal(0, 0.008, common.shape)
        return curve(own.tolist(), rates)

    held = 0
    draws = 400
    for _ in range(draws):
        common = rng.normal(0, 0.01, (5, 1)) + rng.normal(0, 0.005, (5, 6))
        first = drawn(2.1, 1.99, common).minima
        second = drawn(2.9, 2.0, common).minima
        differences = np.array([first[seed] - second[seed] for seed in first])
        half = 2.776 * differences.std(ddof=1) / math.sqrt(5)
        held += abs(differences.mean() + 0.01) < half
    # 95 of 100, within four standard errors of so many draws
    assert abs(held / draws - 0.95) < 4 * math.sqrt(0.95 * 0.05 / draws)


# Studies


def test_a_study_compares_minima_by_seed_and_judges_hypotheses_by_them(tmp_path):
    comparison = compare(read_study(study_folder(tmp_path)))
    long, short = comparison.curves
    assert (long.curve.name, long.against) == ("long", None)
    assert short.against == "long"
    assert math.isclose(long.curve.minima[3], 2.03, abs_tol=1e-9)
    assert math.isclose(short.curve.minima[3], 2.011, abs_tol=1e-9)
    assert math.isclose(short.curve.fit.rate, 8e-3 / math.sqrt(8), rel_tol=1e-6)
    expected = {seed: -0.02 + 0.001 * (seed % 2) for seed in range(5)}
    assert short.difference.per_seed == pytest.approx(expected, abs=1e-9)
    assert short.test.mean == pytest.approx(short.difference.mean, abs=1e-9)
    outcome = comparison.declared.outcomes[0]
    assert outcome.per_seed == pytest.approx(expected, abs=1e-9)
    assert outcome.judgement.verdict == "confirmed"
    assert comparison.declared.waiting == 0


def test_a_curve_waits_for_every_rate_of_a_seed(tmp_path):
    comparison = compare(read_study(study_folder(tmp_path, left=("short_0.016 4",))))
    assert sorted(comparison.curves[1].curve.minima) == [0, 1, 2, 3]
    assert comparison.declared.waiting == 1
    assert not any("fewer than half" in text for text in warnings(comparison))


@pytest.mark.parametrize(
    ("rates", "shown", "told"),
    [
        (
            RATES[3:],
            [1e-3, 2e-3, 4e-3],
            [
                "long and short: not every curve has an ended run at learning rate 0.008 and 0.016"
                " yet, so that minima are preliminary, over the other rates."
            ],
        ),
        (
            RATES[2:],
            [],
            [
                "long and short: not every curve has an ended run at learning rate 0.004, 0.008 and"
                " 0.016 yet, so that minima are preliminary, over the other rates."
            ],
        ),
    ],
)
def test_a_part_of_the_rates_makes_preliminary_curves(tmp_path, rates, shown, told):
    left = tuple(f"{name}_{rate:g}" for name in ("long", "short") for rate in rates)
    comparison = compare(read_study(study_folder(tmp_path, left=left)))
    assert curve_cautions(comparison.curves) == told
    for kept in table(comparison)["curves"]:
        assert kept["fitted"] == shown
        assert kept["rates"] == RATES
    short = comparison.curves[1]
    assert short.difference.n == (5 if shown else 0)
    assert comparison.declared.waiting == 5 * len(left)
    assert comparison.declared.outcomes[0].doubts[0].startswith("short: not every curve has an")
    assert page(comparison, [])


def test_curves_are_compared_over_the_rates_that_both_have_begun(tmp_path):
    both = tuple(f"{name}_{rate:g}" for name in ("long", "short") for rate in RATES[3:])
    alone = both[2:]  # the baseline has begun at every rate
    found = []
    for left in (both, alone):
        folder = tmp_path / str(len(left))
        comparison = compare(read_study(study_folder(folder, left=left)))
        assert [one.curve.waiting for one in comparison.curves] == [tuple(RATES[3:])] * 2
        found.append(comparison.curves[1].difference)
        found.append(comparison.declared.outcomes[0].per_seed)
    assert found[:2] == found[2:]


def test_seeds_that_wait_at_other_rates_make_no_curve_yet(tmp_path):
    left = tuple(f"short_{RATES[seed]:g} {seed}" for seed in range(5))
    comparison = compare(read_study(study_folder(tmp_path, left=left)))
    told = "short: no seed has ended yet at every learning rate"
    assert curve_cautions(comparison.curves) == [f"{told}."]
    assert comparison.declared.outcomes[0].doubts == (told,)


@pytest.mark.filterwarnings("error")
def test_a_curve_without_a_common_seed_has_no_minimum_and_no_difference(tmp_path):
    """Every seed diverges at another rate."""
    diverged = tuple(f"short_{RATES[seed]:g} {seed}" for seed in range(5))
    comparison = compare(read_study(study_folder(tmp_path, diverged=diverged)))
    told = "short: no seed finished at every usable learning rate"
    assert curve_cautions(comparison.curves) == [
        "short: without seed 0, 1, 2, 3 and 4, whose runs did not finish as planned at"
        " every learning rate.",
        f"{told}: add seeds.",
    ]
    assert comparison.declared.outcomes[0].doubts == (told,)
    rows = curve_rows(comparison.curves)
    assert rows[1] == ["short", "-", "-", "-", "", "", "-", "0"]
    assert [one["at_edge"] for one in table(comparison)["curves"]] == [False, False]
    assert "not finite" not in text_report(comparison)
    assert page(comparison, [])


def test_the_report_says_draws_and_keeps_the_minima(tmp_path):
    comparison = compare(read_study(study_folder(tmp_path, diverged=("long_0.016",))))
    assert "short is ahead of long, -0.020 (-0.020 to -0.019) bits per byte" in answer(comparison)
    assert curve_clauses(comparison.curves, "bits per answer").endswith(" bits per answer")
    text = text_report(comparison)
    assert "of the validation loss, in bits per byte: every seed's losses at the rates" in text
    assert "-0.0196" in text
    assert "0.0028" in text
    assert any("long: without learning rate 0.016" in one for one in warnings(comparison))
    figures = {drawing.name: drawing.figure for drawing in drawings(comparison)}
    assert rendered(figures["rates"], ["svg"])["svg"]
    kept = table(comparison)["curves"]
    assert kept[1]["difference"]["mean"] == pytest.approx(-0.0196, abs=1e-9)
    assert kept[0]["fitted"] == [2e-3, 4e-3, 8e-3]
    assert kept[0]["best_rate"] == pytest.approx(4e-3, rel=1e-6)


def test_a_registered_minimum_is_over_the_registered_rates_and_seeds(tmp_path):
    """A rate and a seed join the study later; at that rate the losses of short are far lower."""
    before = study_folder(tmp_path / "before")
    register(load_spec(before / "spec.json"), before / REGISTERED, before)
    planned = compare(read_study(before))
    text = SPEC.replace("[1e-3, 2e-3,", "[1e-3, 2e-3, 3e-3,")
    text = text.replace("seeds = [0, 1, 2, 3, 4]", "seeds = [0, 1, 2, 3, 4, 5]")
    after = study_folder(tmp_path / "after", text=text)
    rows = [json.loads(line) for line in (after / "rows.jsonl").read_text().splitlines()]
    for row in rows:
        if row["arm"] == "short_0.003":
            row["result"]["final_val_bpb"] -= 0.5
            row["result"]["test_bpb"] -= 0.5
    (after / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (before / REGISTERED).rename(after / REGISTERED)
    comparison = compare(read_study(after))
    assert comparison.curves[1].difference.mean < planned.curves[1].difference.mean - 0.1
    assert comparison.declared.outcomes == planned.declared.outcomes
    assert comparison.declared.waiting == 0
    [told] = [text for text in comparison.declared.provenance if text.startswith("Changed since")]
    assert "judged as registered, over the registered arms and seeds: arms.long_0.003 was" in told
    table_after = _verdict_table(comparison, comparison.declared)
    table_before = _verdict_table(planned, planned.declared)
    assert table_after.groups == table_before.groups


def test_curves_are_tested_that_share_two_seeds_with_another():
    once = paired_difference({0: 2.0}, {0: 1.0})
    twice = paired_difference({0: 2.0, 1: 2.1}, {0: 1.0, 1: 1.0})
    results = [
        CurveResult(RateCurve("base", {}), None, None, None),
        CurveResult(RateCurve("once", {}), "base", once, None),
        CurveResult(RateCurve("twice", {}), "base", twice, None),
    ]
    assert curves_tested(results) == ["twice"]


def test_a_seed_whose_run_diverged_at_one_rate_is_named(tmp_path):
    comparison = compare(read_study(study_folder(tmp_path, diverged=("short_0.001 3",))))
    assert sorted(comparison.curves[1].curve.minima) == [0, 1, 2, 4]
    assert any("short: without seed 3, whose runs" in one for one in warnings(comparison))


def test_a_minimum_at_the_edge_of_the_rates_is_said(tmp_path):
    above = ("long_0.004", "long_0.008", "long_0.016")
    comparison = compare(read_study(study_folder(tmp_path, diverged=above)))
    assert not comparison.curves[0].curve.minima
    folder = tmp_path / "edge"
    folder.mkdir()
    comparison = compare(read_study(study_folder(folder, diverged=("long_0.016", "long_0.008"))))
    assert any("long: the best learning rate is" in one for one in warnings(comparison))


def test_rates_too_far_apart_for_a_parabola_are_said(tmp_path):
    """Of 1, 2, 4 and 64 times a rate the third is best, and its fit spans a factor of 16."""
    losses = {1e-3: {0: 3.0}, 2e-3: {0: 2.0}, 4e-3: {0: 1.0}, 64e-3: {0: 2.0}}
    assert RateCurve("long", losses).gap == (4e-3, 64e-3)
    assert RateCurve("long", {rate: losses[rate] for rate in (1e-3, 2e-3, 4e-3)}).gap is None
    factors_of_four = {1e-3: {0: 2.0}, 4e-3: {0: 1.0}, 16e-3: {0: 2.0}}
    assert RateCurve("long", factors_of_four).gap is None

    comparison = compare(read_study(study_folder(tmp_path)))
    assert not any("too far" in text for text in warnings(comparison))
    far = RateCurve("short", losses)
    told = curve_cautions([CurveResult(far, None, None, None)])
    assert told == [
        "short: the parabola spans learning rates 0.004 and 0.064 with none between them, too far"
        " for its minimum to be trusted: add rates there."
    ]


@pytest.mark.parametrize(
    ("status", "error", "loss"),
    [
        ("finished", None, 2.5),
        ("unfinished", None, None),
        ("diverged", "why", math.inf),
        ("failed", "why", math.inf),
    ],
)
def test_a_loss_is_of_a_finished_run_and_infinite_of_one_that_ended_otherwise(status, error, loss):
    study = SimpleNamespace(spec={"arms": {"a": {}}})
    run = StudyRun("a", 0, status, error=error)
    if status == "finished":
        run = FinishedRun("a", 0, status, result=SimpleNamespace(final_val_bpb=2.5))
    assert _loss(study, run, "final_val_bpb") == loss


def with_other_steps(study: Path, changed) -> Path:
    """The record in which the runs that `changed` names took 10 of 20 steps, and lost less."""
    rows = []
    for line in (study / "rows.jsonl").read_text().splitlines():
        row = json.loads(line)
        if changed(row):
            row["result"] |= {"steps": 10, "final_val_bpb": 1.0}
        rows.append(json.dumps(row) + "\n")
    (study / "rows.jsonl").write_text("".join(rows))
    return study


def test_runs_of_another_number_of_steps_are_in_no_curve(tmp_path):
    study = study_folder(tmp_path)
    whole = compare(read_study(study)).curves[1].difference
    with_other_steps(study, lambda row: (row["arm"], row["seed"]) == ("short_0.004", 3))
    comparison = compare(read_study(study))
    one = comparison.curves[1].difference
    assert one.per_seed == {seed: whole.per_seed[seed] for seed in (0, 1, 2, 4)}
    assert comparison.declared.outcomes[0].per_seed == one.per_seed
    told = "short: without seed 3, whose runs did not finish as planned at every learning rate."
    assert told in curve_cautions(comparison.curves)


def test_a_study_whose_runs_all_stopped_earlier_decides_nothing(tmp_path):
    study = with_other_steps(study_folder(tmp_path), lambda row: True)
    comparison = compare(read_study(study))
    [outcome] = comparison.declared.outcomes
    assert outcome.per_seed == {}
    assert outcome.judgement.verdict == "undecided"


def test_a_curve_that_lost_a_rate_near_its_best_one_has_no_minimum(tmp_path):
    """Without the rate its parabola is another one than that of an equal curve."""
    study = study_folder(tmp_path, diverged=("long_0.004",))
    comparison = compare(read_study(study))
    curve, other = (one.curve for one in comparison.curves)
    told = (
        "long: fewer than half of the seeds finished as planned at learning rate 0.004, between"
        " others near the best one, so that it has no minimum"
    )
    assert (curve.minima, curve.doubt) == ({}, told)
    assert other.doubt is None
    assert f"{told}: run them again, or add rates near it." in curve_cautions(comparison.curves)
    assert comparison.declared.outcomes[0].judgement.verdict == "undecided"
    far = compare(read_study(study_folder(tmp_path / "far", diverged=("long_0.001",))))
    assert far.curves[0].curve.doubt is None


def test_an_edge_below_rates_that_diverge_is_told_as_such():
    told = "c: its best learning rate is the first or last at which runs finish"
    assert losses_of({1: 3.0, 2: 2.0, 4: 1.0, 8: math.inf}).doubt == told


def test_a_parabola_that_is_lowest_at_an_end_of_its_rates_is_doubted():
    losses = [2.4, 1.995, 2.01, 1.99, 2.01, 1.995, 2.4]
    curve = losses_of({2.0 ** (index / 2): loss for index, loss in enumerate(losses)})
    assert not curve.at_edge
    assert curve.fit.a < 0
    assert curve.doubt == "c: its parabola has no minimum between 1.41421 and 5.65685"
    [told] = curve_cautions([CurveResult(curve, None, None, None)])
    assert told.startswith("c: the parabola is lowest at an end of the learning rates that it is")
    clear = losses_of({1: 3.0, 2: 1.0, 4: 2.0})
    assert not clear.at_end_of_fit
    assert curve_cautions([CurveResult(clear, None, None, None)]) == []


def test_seeds_whose_own_parabola_is_lowest_at_an_end_are_counted():
    curve = RateCurve(
        "c", {1: {0: 3.0, 1: 3.0}, 2: {0: 1.0, 1: 1.5}, 4: {0: 2.0, 1: 1.0}, 8: {0: 3.0, 1: 3.0}}
    )
    assert curve.seeds_at_end_of_fit == (1,)
    [told] = curve_cautions([CurveResult(curve, None, None, None)])
    assert told == (
        "c: in 1 of 2 seeds the parabola is lowest at an end of the learning rates 1 to 4, where"
        " the minimum is then taken."
    )


def test_the_answer_of_curves_tells_doubts_and_gates_and_the_overview_their_power(tmp_path):
    edge = study_folder(tmp_path / "edge", diverged=("short_0.001", "short_0.002"))
    assert "(not to be trusted: short: its best learning rate is the first or last at" in answer(
        compare(read_study(edge))
    )
    gate = '\n[[gates]]\nname = "g"\narm = "long_0.004"\nat_most = 1.0\n'
    closed = compare(read_study(study_folder(tmp_path / "gate", text=SPEC + gate)))
    assert answer(closed).endswith("but a gate is not passed, 'g', so no hypothesis is answered.")
    one = closed.curves[1].difference
    found = detectable_difference(one.standard_deviation, one.n)
    significant, power = overview(closed)
    assert significant.startswith("At single learning rates, ")
    assert f"one comparison of minima on its own finds a difference of {found:.2g} " in power


def losses_of(curve):
    """The losses of one seed as a curve of two that are alike."""
    return RateCurve("c", {rate: {0: loss, 1: loss} for rate, loss in curve.items()})


@pytest.mark.parametrize(
    ("curve", "edge"),
    [
        ({1: 3.0, 2: 1.0, 4: 2.0}, False),
        ({1: 1.0, 2: 2.0, 4: 3.0}, True),
        ({1: 3.0, 2: 2.0, 4: 1.0}, True),
        ({1: 3.0, 2: 2.0, 4: 1.0, 8: 1.5}, False),
        ({}, False),
    ],
)
def test_the_edge_is_either_end_of_the_rates(curve, edge):
    assert losses_of(curve).at_edge == edge


@pytest.mark.parametrize(
    ("rates", "gap"), [((1, 2, 4), None), ((1, 4, 16), None), ((1, 4, 17), (4, 17)), ((1, 4), None)]
)
def test_a_gap_is_of_more_than_two_octaves(rates, gap):
    assert losses_of({rate: abs(rate - 4) + 1.0 for rate in rates}).gap == gap


@pytest.mark.parametrize(
    ("curve", "doubt"),
    [
        ({1: 3.0, 2: 1.0, 4: 2.0}, None),
        ({1: 3.0, 8: 1.0, 16: 2.0}, "c: no learning rate between 1 and 8"),
        ({1: 1.0, 8: 2.0, 16: 3.0}, "c: its best learning rate is the first or last tried"),
        ({1: 3.0, 2: 1.0}, "c: 2 usable learning rates are too few for a minimum"),
        ({1: 3.0}, "c: 1 usable learning rate is too few for a minimum"),
        ({}, None),
    ],
)
def test_a_minimum_is_doubted_for_one_reason(curve, doubt):
    assert losses_of(curve).doubt == doubt


def test_two_usable_rates_are_said_to_be_too_few():
    told = curve_cautions([CurveResult(losses_of({1: 1.0, 2: 2.0}), None, None, None)])
    assert told[-1] == "c: 2 usable learning rates are too few for a minimum: add rates."


def test_a_verdict_on_a_minimum_that_is_not_to_be_trusted_says_so(tmp_path):
    clear = compare(read_study(study_folder(tmp_path))).declared
    assert clear.outcomes[0].doubts == ()
    assert "not to be trusted" not in clear.headline
    folder = tmp_path / "edge"
    folder.mkdir()
    study = study_folder(folder, diverged=("short_0.004", "short_0.008", "short_0.016"))
    comparison = compare(read_study(study))
    told = "short: 2 usable learning rates are too few for a minimum"
    assert comparison.declared.outcomes[0].doubts == (told,)
    headline = comparison.declared.headline
    assert headline.endswith("In 1 of them the minimum of a curve is not to be trusted.")
    assert told in page(comparison, [])


@pytest.mark.parametrize(("diverged", "kept"), [(0, True), (2, True), (3, False), (4, False)])
def test_a_rate_counts_where_half_of_the_seeds_have_finished(diverged, kept):
    losses = {rate: dict.fromkeys(range(4), float(rate)) for rate in (1, 2, 4, 8)}
    for seed in range(diverged):
        losses[8][seed] = math.inf
    curve = RateCurve("c", losses)
    assert (8 in curve.rates) == kept
    assert curve.seeds == tuple(range(diverged if kept else 0, 4))
    assert curve.means == tuple(map(float, curve.rates))


def test_every_loss_and_minimum_lies_within_the_axis_but_those_far_above():
    """The axis ends no farther up than STEEP times the range of the fitted ones."""
    near = losses_of({1: 2.0, 2: 1.5, 4: 1.0, 8: 1.3, 16: 2.2})
    low, high = _loss_limits([CurveResult(near, None, None, None)])
    assert near.fit is not None
    assert low < min(near.fit.minimum, 1.0)
    assert high > 2.2
    assert high - 2.2 == pytest.approx(near.fit.minimum - low)
    far = losses_of({1: 1e3, 2: 1.5, 4: 1.0, 8: 1.3, 16: 2.2})
    low, high = _loss_limits([CurveResult(far, None, None, None)])
    top = far.fit.minimum + STEEP * (1.5 - far.fit.minimum)
    assert high == pytest.approx(top + 0.05 * (top - far.fit.minimum))


def test_a_flat_curve_has_an_axis_of_some_height() -> None:
    flat = losses_of(dict.fromkeys((1, 2, 4, 8), 0.1 + 0.2))
    low, high = _loss_limits([CurveResult(flat, None, None, None)])
    assert high - low == pytest.approx(2e-3)


def test_the_figure_of_curves_shows_losses_within_its_limits_and_differences_beside_them(tmp_path):
    comparison = compare(read_study(study_folder(tmp_path)))
    figure = rate_figure(comparison.curves, "bits per byte")
    curves, differences = figure.axes
    assert curves.get_ylim() == pytest.approx(_loss_limits(comparison.curves))
    assert curves.get_xscale() == "log"
    assert (curves.get_xlabel(), curves.get_ylabel()) == (
        "peak learning rate",
        "final validation, bits per byte",
    )
    assert [label.get_text() for label in curves.get_xticklabels()] == [f"{x:g}" for x in RATES]
    assert differences.get_xlabel() == "difference of minima,\nbits per byte; below 0 is better"
    assert [text.get_text() for text in differences.texts] == ["short\nminus long"]
    one = comparison.curves[1].difference
    drawn = [list(line.get_xdata()) for line in differences.lines[1:]]
    assert drawn[0] == list(one.per_seed.values())
    assert drawn[1:] == [[one.low, one.high], [one.mean]]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["long", "short"]
    assert len(rate_figure(comparison.curves[:1], "bits per byte").axes) == 1
    far = CurveResult(losses_of({1: 1e3, 2: 1.5, 4: 1.0, 8: 1.3, 16: 2.2}), None, None, None)
    [alone] = rate_figure([far], "bits per byte").axes
    assert alone.get_ylim() == pytest.approx(_loss_limits([far]))
    assert alone.get_ylim()[1] < 100
    without = CurveResult(losses_of({1: 1.0}), None, None, None)
    assert rate_figure([without], "bits per byte") is None
