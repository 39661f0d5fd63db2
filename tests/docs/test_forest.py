"""The forest and its pooled effects are what the rows say."""

import json
from pathlib import Path

import forest
import numpy as np
import pytest
import sentences
from comparisons import COMPARISONS, POOLED, Compared, random_effects
from scipy import stats
from statsmodels.stats.meta_analysis import combine_effects

from plkernel.analysis.figures.style import COLOURS

RECORDS = Path(forest.__file__).parent


def samples(deviation: float) -> list[np.ndarray]:
    """Differences of six studies of different size whose true effects spread by `deviation`."""
    rng = np.random.default_rng(3)
    effects = rng.normal(-0.01, deviation, 6)
    return [rng.normal(effect, 0.01, 3 + at) for at, effect in enumerate(effects)]


@pytest.mark.parametrize("deviation", [0.0, 0.02])
def test_pooled_effects_are_those_of_statsmodels(deviation: float) -> None:
    data = samples(deviation)
    means = np.array([one.mean() for one in data])
    variances = np.array([one.var(ddof=1) / len(one) for one in data])
    found = random_effects(data)
    expected = combine_effects(means, variances, method_re="chi2", use_t=True)
    assert found.mean == pytest.approx(expected.mean_effect_re, rel=1e-9)
    assert found.deviation**2 == pytest.approx(max(expected.tau2, 0.0), rel=1e-9, abs=1e-15)
    t = stats.t.ppf(0.975, len(data) - 1)
    half = t * expected.sd_eff_w_re_hksj
    assert [found.low, found.high] == pytest.approx([found.mean - half, found.mean + half])
    assert found.least <= found.low
    assert found.most >= found.high
    assert found.negative == (means < 0).sum()


def test_the_interval_covers_the_mean_effect() -> None:
    """Nine studies of five seeds, 2,000 times: at least 93 % of the intervals, 97 % at most."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(2_000):
        effects = rng.normal(0.0, 0.007, 9)
        found = random_effects([rng.normal(effect, 0.01, 5) for effect in effects])
        covered += found.low < 0.0 < found.high
    assert 0.93 < covered / 2_000 < 0.97


def _runs_of(one: Compared) -> list[str]:
    """The arms of a comparison; of a minimum, those of the two curves at every rate."""
    study = sentences.studies()[one.study]
    if not one.minimum:
        return [one.arm, one.against or str(study.against(one.arm))]
    curves = (f"{one.arm}_", f"{study.baseline.rpartition('_')[0]}_")
    return [arm for arm in study.arms if arm.startswith(curves)]


def test_no_run_counts_twice_in_a_pool() -> None:
    """Runs of a study repeat those of an earlier one where its first seeds are named apart."""
    for members in POOLED.values():
        runs = [
            (one.study, arm, seed)
            for one in members
            for arm in _runs_of(one)
            for seed in sentences.compared(one).per_seed
        ]
        assert len(set(runs)) == len(runs)
    repeated = {one.seeds for one in POOLED["short"] if one.study == "memory-shortness"}
    assert repeated == {"7-11"}


def test_the_figure_has_two_dots_for_every_line_of_the_table() -> None:
    axes = forest.figure().axes[0]
    table = forest.table()
    for text, colour in (("validation", COLOURS[0]), ("test", COLOURS[1])):
        dots = [
            line.get_xdata()[0]
            for line in axes.lines
            if line.get_color() == colour and line.get_linestyle() == "None"
        ]
        expected = [row[text]["mean"] for row in table["rows"]]
        expected += [effect[text]["mean"] for effect in table["pooled"].values()]
        assert dots == pytest.approx(expected)
    low, high = axes.get_xlim()
    bounds = []
    for row in table["rows"]:
        for text in forest.TEXTS:
            bounds += [row[text]["low"], row[text]["high"]]
    assert low < min(bounds)
    assert max(bounds) < high
    assert len(axes.get_yticks()) == len(COMPARISONS) + len(POOLED)


def test_the_committed_table_is_that_of_the_rows() -> None:
    committed = json.loads((RECORDS / "forest/table.json").read_text())
    fresh = forest.table()
    assert [row["label"] for row in committed["rows"]] == [row["label"] for row in fresh["rows"]]
    for before, now in zip(committed["rows"], fresh["rows"], strict=True):
        for text in forest.TEXTS:
            assert before[text] == pytest.approx(now[text], rel=1e-9, abs=1e-12)
    for name, texts in fresh["pooled"].items():
        for text, effect in texts.items():
            assert committed["pooled"][name][text] == pytest.approx(effect, rel=1e-9)


def test_freezing_hurts_and_elsewhere_little_is_at_stake() -> None:
    """The three sentences: what is frozen costs more than the band, what is learnt near less."""
    rows = forest.table()["rows"]
    for row in rows:
        for text in forest.TEXTS:
            one = row[text]
            if row["group"].startswith("Frozen"):
                assert one["low"] > 0.01
            if row["group"] == "Memory within 256 bytes":
                assert abs(one["mean"]) < 0.005
    code = [row["test"]["mean"] for row in rows if row["group"].startswith("Source code")]
    assert sum(mean < 0 for mean in code) == len(code) - 2


def test_the_largest_leads_of_short_half_lives_are_at_too_low_a_rate_and_at_best_rates() -> None:
    for text in forest.TEXTS:
        short = [
            row
            for row in forest.table()["rows"]
            if any((row["study"], row["arm"]) == (one.study, one.arm) for one in POOLED["short"])
        ]
        largest = sorted(short, key=lambda row: row[text]["mean"])[:3]
        studies = {row["study"] for row in largest}
        assert studies >= {"rates-lru", "rates-wide"}
        if text == "validation":
            assert "published-gpu" in studies
    before = [one for one in POOLED["short"] if not one.minimum]
    effects = [list(sentences.compared(one).per_seed.values()) for one in before]
    assert random_effects(effects).most > 0
