"""Contrasts of factorial designs against sums by hand, least squares, analysis of variance, and simulation."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from plkernel.analysis.statistics.factorial import factorial_effects

FACTORS = {
    "placement": ["log", "quantile"],
    "gain": ["none", "ema"],
    "projection": ["uniform", "published", "corrected"],
}
CELLS = list(product(*FACTORS.values()))


def simulated(seeds=6, noise=0.1):
    """Additive seeds, an effect of placement, one of projection, and their interaction."""
    rng = np.random.default_rng(0)
    base = rng.normal(2.3, 1.0, seeds)
    effect = {cell: -0.3 * (cell[0] == "quantile") + 0.2 * (cell[2] == "corrected") for cell in CELLS}
    effect = {cell: size + 0.4 * (cell[0] == "quantile" and cell[2] == "published") for cell, size in effect.items()}
    return {cell: dict(enumerate(base + size + rng.normal(0, noise, seeds))) for cell, size in effect.items()}


def test_a_design_of_two_by_two_by_three_by_hand():
    """One seed; cells count 0 to 11 in the order of the design, but for one that is raised by 12."""
    values = {cell: {0: float(index)} for index, cell in enumerate(CELLS)}
    values["quantile", "ema", "corrected"][0] += 12.0
    found = factorial_effects(values, FACTORS, order=3)
    by_hand = {
        "placement: quantile - log": 6 + 12 / 6,
        "gain: ema - none": 3 + 12 / 6,
        "projection: published - uniform": 1,
        "projection: corrected - uniform": 2 + 12 / 4,
        "placement: quantile - log x gain: ema - none": 12 / 3,
        "placement: quantile - log x projection: published - uniform": 0,
        "placement: quantile - log x projection: corrected - uniform": 12 / 2,
        "gain: ema - none x projection: published - uniform": 0,
        "gain: ema - none x projection: corrected - uniform": 12 / 2,
        "placement: quantile - log x gain: ema - none x projection: published - uniform": 0,
        "placement: quantile - log x gain: ema - none x projection: corrected - uniform": 12,
    }
    assert [contrast.name for contrast in found.contrasts] == list(by_hand)
    for name, value in by_hand.items():
        assert found[name].mean == pytest.approx(value, abs=1e-13)
    assert [contrast.order for contrast in found.contrasts] == [1] * 4 + [2] * 5 + [3] * 2
    assert found.cells == 12


def test_contrasts_are_paired_t_tests_of_averaged_cells():
    values = simulated()
    found = factorial_effects(values, FACTORS)
    first, other = (
        np.mean([list(values[cell].values()) for cell in CELLS if cell[0] == level], axis=0)
        for level in FACTORS["placement"]
    )
    reference = stats.ttest_rel(other, first)
    difference = found["placement: quantile - log"]
    bounds = reference.confidence_interval(0.95)
    assert (difference.p_value, difference.low, difference.high) == pytest.approx((reference.pvalue, *bounds), rel=1e-9)
    assert difference.low < -0.3 + 0.4 / 3 < difference.high
    assert found["placement: quantile - log x projection: published - uniform"].mean == pytest.approx(0.4, abs=0.1)


def test_means_are_the_coefficients_of_least_squares():
    """Effects averaged over the cells are those of treatment coding with the other factors centred."""
    values = simulated()
    columns, names = [np.ones(len(CELLS))], ["mean"]
    indicator = {
        f"{factor}: {level} - {levels[0]}": np.array([float(cell[i] == level) for cell in CELLS])
        for i, (factor, levels) in enumerate(FACTORS.items())
        for level in levels[1:]
    }
    centred = {name: column - column.mean() for name, column in indicator.items()}
    for name, column in centred.items():
        columns.append(column)
        names.append(name)
    for (a, x), (b, y) in product(centred.items(), repeat=2):
        if list(FACTORS).index(a.split(":")[0]) < list(FACTORS).index(b.split(":")[0]):
            columns.append(x * y)
            names.append(f"{a} x {b}")
    y = np.array([np.mean(list(values[cell].values())) for cell in CELLS])
    fitted = dict(zip(names, np.linalg.lstsq(np.array(columns).T, y, rcond=None)[0], strict=True))
    found = factorial_effects(values, FACTORS)
    for contrast in found.contrasts:
        assert contrast.difference.mean == pytest.approx(fitted[contrast.name], abs=1e-12)
    assert len(found.contrasts) == len(names) - 1


def test_factors_of_two_levels_give_the_f_of_repeated_measures():
    """F(1, n - 1) of AnovaRM (statsmodels) is t squared; its values for these numbers stand here too."""
    rng = np.random.default_rng(3)
    factors = {"a": ["0", "1"], "b": ["0", "1"]}
    values = {cell: dict(enumerate(np.round(rng.normal(size=5), 2))) for cell in product(*factors.values())}
    found = factorial_effects(values, factors)
    f = [float(stats.t.isf(contrast.difference.p_value / 2, 4) ** 2) for contrast in found.contrasts]
    assert f == pytest.approx([0.00247740058, 0.383001603, 0.144360773], rel=1e-6)
    pandas, anova = pytest.importorskip("pandas"), pytest.importorskip("statsmodels.stats.anova")
    rows = [(seed, *cell, y) for cell, runs in values.items() for seed, y in runs.items()]
    frame = pandas.DataFrame(rows, columns=["seed", "a", "b", "y"])
    table = anova.AnovaRM(frame, "y", "seed", within=["a", "b"]).fit().anova_table
    assert f == pytest.approx(table["F Value"].tolist(), rel=1e-9)


def test_what_a_seed_does_to_all_its_cells_cancels():
    values = simulated()
    shifted = {cell: {seed: y + 100.0 * seed for seed, y in runs.items()} for cell, runs in values.items()}
    for one, other in zip(
        factorial_effects(values, FACTORS).contrasts, factorial_effects(shifted, FACTORS).contrasts, strict=True
    ):
        assert other.difference.mean == pytest.approx(one.difference.mean, abs=1e-11)
        assert other.difference.standard_deviation == pytest.approx(one.difference.standard_deviation, abs=1e-11)


def test_intervals_cover_and_a_missing_interaction_is_claimed_one_time_in_twenty():
    rng = np.random.default_rng(5)
    factors = {"a": ["0", "1"], "b": ["0", "1", "2"]}
    cells = list(product(*factors.values()))
    p, inside = [], []
    for _ in range(1500):
        noise = rng.normal(size=(len(cells), 5)) + rng.normal(size=5)
        values = {cell: dict(enumerate(row + 0.5 * (cell[0] == "1"))) for cell, row in zip(cells, noise, strict=True)}
        found = factorial_effects(values, factors)
        main = found["a: 1 - 0"]
        inside.append(main.low <= 0.5 <= main.high)
        p.append(found["a: 1 - 0 x b: 2 - 0"].p_value)
    tolerance = 3 * math.sqrt(0.05 * 0.95 / 1500)
    assert np.mean(inside) == pytest.approx(0.95, abs=tolerance)
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.05, abs=tolerance)


def test_a_seed_that_a_cell_lacks_is_left_out_and_listed():
    values = simulated(4)
    del values[CELLS[5]][2]
    found = factorial_effects(values, FACTORS)
    assert (found.seeds, found.dropped_seeds) == ((0, 1, 3), (2,))
    assert all(contrast.difference.n == 3 for contrast in found.contrasts)


def test_wrong_designs_are_refused():
    values = simulated(2)
    missing = {cell: runs for cell, runs in values.items() if cell != ("quantile", "none", "corrected")}
    with pytest.raises(ValueError, match="1 of 12 cells are missing: quantile/none/corrected"):
        factorial_effects(missing, FACTORS)
    with pytest.raises(ValueError, match="1 of 12 cells are missing: log/none/uniform"):
        factorial_effects({**values, CELLS[0]: {}}, FACTORS)
    with pytest.raises(ValueError, match="quantile/lru/uniform not in the design"):
        factorial_effects({**values, ("quantile", "lru", "uniform"): {0: 1.0}}, FACTORS)
    with pytest.raises(ValueError, match=r"8 of 12 cells are missing: .* and 5 more"):
        factorial_effects({cell: values[cell] for cell in CELLS[:4]}, FACTORS)
    with pytest.raises(ValueError, match="cells are missing"):  # cells named in another order of the factors
        factorial_effects({cell[::-1]: runs for cell, runs in values.items()}, FACTORS)
    with pytest.raises(ValueError, match="no seed is in every cell"):
        factorial_effects({**values, CELLS[0]: {9: 1.0}}, FACTORS)
    with pytest.raises(ValueError, match="factors: gain has levels"):
        factorial_effects({("x", "none"): {0: 1.0}}, {"placement": ["x", "y"], "gain": ["none"]})
    with pytest.raises(ValueError, match="order: got 4, give 1 to 3"):
        factorial_effects(values, FACTORS, order=4)
    with pytest.raises(KeyError, match="no contrast 'gain', there are: placement: quantile - log; "):
        factorial_effects(values, FACTORS)["gain"]
