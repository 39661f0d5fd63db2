import json

import numpy as np
import pytest

from plkernel.analysis.mutual_information.curve import DecayCurve, decay_curves, log_lags
from plkernel.analysis.mutual_information.power_law_fit import PowerLaw, fit_power_law, local_slopes, log_log_slope
from plkernel.analysis.sequences.potts import PottsCorpus

LAGS = log_lags(500)


def curve(values, lags=LAGS, noise=0.0, floor=1e-9, seed=0, blocks=40):
    """A curve of `values` with relative errors `noise` at each lag, and jackknife replicates to match."""
    rng = np.random.default_rng(seed)
    relative = noise * rng.standard_normal((len(lags), blocks))
    measured = np.asarray(values) * (1 + relative.mean(axis=1) * np.sqrt(blocks))
    left = measured[:, None] * (1 - (relative - relative.mean(axis=1, keepdims=True)) * np.sqrt(blocks) / (blocks - 1))
    columns = (tuple(np.asarray(lags).tolist()), tuple(measured.tolist()), (floor,) * len(lags))
    return DecayCurve("information", "shuffle", "byte", 10**6, 64, *columns, 0.0, tuple(map(tuple, left.tolist())))


def potts(beta, size, seed=0, lags=LAGS):
    corpus = PottsCorpus(beta=beta, size=size, seed=seed)
    return corpus, decay_curves(np.concatenate(list(corpus.blocks())), lags)[0]


def test_an_exact_power_law_is_recovered():
    law = fit_power_law(curve(0.3 * LAGS**-1.15))
    assert law.beta == pytest.approx(1.15, abs=1e-12)
    assert law.amplitude == pytest.approx(0.3, rel=1e-12)
    assert law.r_squared == pytest.approx(1)
    assert law.curvature == pytest.approx(0, abs=1e-12)
    assert (law.first_lag, law.last_lag, law.used, law.dropped) == (1, 500, LAGS.size, ())
    np.testing.assert_allclose(law.values(LAGS), 0.3 * LAGS**-1.15)


def test_the_exponent_does_not_depend_on_which_lags_were_measured():
    """ln I = -1.2 ln d - 0.1 (ln d)^2: half-octave, fine and every lag agree; equal weights do not."""
    grids = [np.arange(1, 501), log_lags(500, 24), log_lags(500, 200)]
    curves = [curve(np.exp(-1.2 * np.log(lags) - 0.1 * np.log(lags) ** 2), lags) for lags in grids]
    betas = [fit_power_law(c).beta for c in curves]
    assert np.ptp(betas) < 0.02
    equal = [fit_power_law(c, weights=np.ones(len(c.lags))).beta for c in curves]
    assert np.ptp(equal) > 0.2
    assert log_log_slope(grids[0], curves[0].values) == pytest.approx(betas[0], rel=1e-12)


def test_the_interval_covers_and_the_error_is_the_spread():
    laws = [fit_power_law(curve(LAGS**-1.15, noise=0.2, seed=seed)) for seed in range(400)]
    covered = np.mean([law.low <= 1.15 <= law.high for law in laws])
    assert 0.92 < covered < 0.98
    assert np.mean([law.standard_error for law in laws]) == pytest.approx(np.std([law.beta for law in laws]), rel=0.1)


def test_curvature_is_found_where_it_is_and_only_there():
    bent = np.exp(-1.2 * np.log(LAGS) + 0.05 * np.log(LAGS) ** 2)
    law = fit_power_law(curve(bent, noise=0.05))
    assert law.curvature == pytest.approx(0.05, abs=3 * law.curvature_error)
    assert law.curvature_p < 1e-6
    straight = [fit_power_law(curve(LAGS**-1.2, noise=0.05, seed=seed)).curvature_p for seed in range(200)]
    assert np.mean(np.array(straight) < 0.05) == pytest.approx(0.05, abs=0.04)
    assert law.r_squared > 0.99  # which says nothing


def test_local_slopes_are_the_derivative():
    lags, slopes, errors = local_slopes(curve(np.exp(-1.2 * np.log(LAGS) - 0.1 * np.log(LAGS) ** 2), noise=1e-3))
    inside = (lags >= 8) & (lags <= 250)  # closer to the ends the window is one-sided
    np.testing.assert_allclose(slopes[inside], 1.2 + 0.2 * np.log(lags[inside]), atol=0.05)
    assert np.all((errors > 1e-4) & (errors < 1e-2))


def test_lags_at_or_below_zero_are_dropped_and_told():
    values = LAGS**-1.0
    values[[10, 20]] = 0.0, -1e-6
    law = fit_power_law(curve(values), (1, 500))
    assert law.dropped == (LAGS[10], LAGS[20])
    assert law.used == LAGS.size - 2
    assert law.beta == pytest.approx(1.0)


def test_the_range_ends_where_the_floor_begins():
    values = LAGS**-1.0
    law = fit_power_law(curve(values, floor=0.01))
    assert law.last_lag == LAGS[LAGS <= 100][-1]
    assert fit_power_law(curve(values, floor=0.01), (1, 500)).last_lag == 500


def test_a_law_reads_back_equal_from_json():
    for lags in (LAGS, np.array([1, 2, 3])):
        law = fit_power_law(curve(lags**-1.0, lags, noise=0.01))
        text = json.dumps(law.to_dict()).replace("NaN", "null")
        again = PowerLaw.from_dict(json.loads(text))
        np.testing.assert_equal(again.to_dict(), law.to_dict())
    with pytest.raises(ValueError, match="not a power law: needs exactly beta"):
        PowerLaw.from_dict({"beta": 1.0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": np.full(LAGS.size, np.nan)}, "finite and positive, got nan"),
        ({"weights": np.zeros(LAGS.size)}, "finite and positive, got 0.0"),
        ({"weights": np.ones(3)}, "one for each of the"),
        ({"lags": (9, 9)}, "ascend from 1 or more, got 9 to 9"),
        ({"lags": (0, 9)}, "got 0 to 9"),
        ({"lags": (600, 900)}, "lags 600 to 900: 0 usable values, a fit needs 3"),
    ],
)
def test_bad_requests_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        fit_power_law(curve(LAGS**-1.0), **options)


@pytest.mark.parametrize("beta", [0.4, *(pytest.param(beta, marks=pytest.mark.slow) for beta in (1.0, 1.9))])
def test_the_exponent_of_a_known_corpus_is_found(beta):
    """10 MB of 16 symbols, on the lags whose exact information exceeds eight floors."""
    check_known(beta, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("beta", [0.45, 0.7, 1.0, 1.3, 1.6, 1.95])
def test_the_exponents_of_known_corpora_are_found(beta, seed):
    check_known(beta, seed)


def check_known(beta, seed):
    corpus, measured = potts(beta, 10_000_000, seed)
    exact = corpus.mutual_information(LAGS)
    clear = exact > 8 * np.array(measured.floor)
    law = fit_power_law(measured, (1, int(LAGS[clear][-1])))
    assert not law.dropped
    assert abs(law.beta - log_log_slope(LAGS[clear], exact[clear])) < 0.015


def test_values_that_vanish_have_no_slope():
    assert np.isnan(log_log_slope([1, 2, 4], [0.5, 0.25, 0.0]))
