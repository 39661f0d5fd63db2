"""Correlations and Yule-Walker weights, exact where known and measured within their intervals;
shapes of verdicts.
"""

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.linalg import toeplitz

from plkernel.analysis import prediction
from plkernel.analysis.exponentials import Floats, Target, power_law_target
from plkernel.analysis.information.counts import block_edges
from plkernel.analysis.information.estimate import DecayCurve, jackknife_error
from plkernel.analysis.information.laws import ModelFit, Named, Verdict, fit_power_law
from plkernel.analysis.prediction import (
    REACH,
    noise_ridge,
    predictive_weights,
    repeat_correlations,
    verdict_target,
    yule_walker,
)
from plkernel.analysis.sequences import LagCorpus, PottsCorpus


def test_it_is_the_autocorrelation_of_indicator_vectors() -> None:
    """The jackknife's correction spelled out, on the vectors themselves, in 5 blocks."""
    data = np.random.default_rng(1).choice(5, 3000, p=(0.4, 0.3, 0.15, 0.1, 0.05)).astype(np.uint8)
    data[1000:] = np.where(data[1000:] > 2, data[997:-3], data[1000:])
    edges = block_edges(data.size, 7, 5)
    vectors = np.eye(5)[data]

    def plain(kept: np.ndarray, lag: int) -> float:
        at = np.flatnonzero(kept[: data.size - lag])
        pairs = np.sum(vectors[at] * vectors[at + lag], axis=1).mean()
        chance = np.sum(vectors[kept].mean(axis=0) ** 2)
        return float((pairs - chance) / (1 - chance))

    positions = np.arange(data.size)
    masks = [
        np.ones(data.size, bool),
        *(~((a <= positions) & (positions < b)) for a, b in pairwise(edges)),
    ]
    for lag, row in zip(range(1, 8), repeat_correlations(data, 7, blocks=5), strict=True):
        value, *left = (plain(mask, lag) for mask in masks)
        sizes = np.diff(np.minimum(edges, data.size - lag))
        assert row[0] == pytest.approx(
            5 * value - np.sum((1 - sizes / sizes.sum()) * left), abs=1e-12
        )


@pytest.mark.parametrize("symbols", [2, 16])
def test_a_mixture_of_lags_has_its_exact_correlations(symbols: int) -> None:
    corpus = LagCorpus(1.0, 64, 0.4, symbols, 400_000, seed=2)
    shares = list[float]()
    found = repeat_correlations(corpus.sequence(), 128, progress=shares.append)
    away = (found[:, 0] - corpus.correlation(np.arange(1, 129))) / jackknife_error(found[:, 1:])
    assert np.abs(away).max() < 5
    assert 0.5 < away.std() < 1.5
    assert sum(shares) == pytest.approx(1)
    np.testing.assert_array_equal(found, repeat_correlations(corpus.sequence(), 128, threads=3))


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.7])
def test_of_a_mixture_of_lags_the_weights_are_its_own(alpha: float) -> None:
    corpus = LagCorpus(alpha, 200, 0.3)
    weights = yule_walker(corpus.correlation(np.arange(1, 501)))
    np.testing.assert_allclose(weights[:200], corpus.chances, atol=1e-10, rtol=0)
    np.testing.assert_allclose(weights[200:], 0, atol=1e-10)


def exact(corpus: PottsCorpus | LagCorpus, lags: int = 256) -> Floats:
    """The weights of the exact correlations, and replicates without error."""
    return np.stack(
        [yule_walker(corpus.correlation(np.arange(1, REACH * lags + 1)))[:lags]] * 3, axis=1
    )


@pytest.mark.parametrize(
    "corpus",
    [
        pytest.param(PottsCorpus(beta=0.6, size=500_000, seed=3), marks=pytest.mark.slow),
        PottsCorpus(beta=1.4, size=500_000, seed=3),
        LagCorpus(0.8, 256, 0.3, 16, 500_000, seed=5),
        pytest.param(LagCorpus(1.2, 256, 0.3, 16, 500_000, seed=6), marks=pytest.mark.slow),
    ],
    ids=["potts-0.6", "potts-1.4", "lags-0.8", "lags-1.2"],
)
def test_measured_weights_agree_with_exact_ones(corpus: PottsCorpus | LagCorpus) -> None:
    found, ridge = predictive_weights(corpus.sequence(), 256)
    true = exact(corpus)
    assert ridge == 0
    away = (found - true[:, :1])[:, 0] / jackknife_error(found[:, 1:])
    assert np.abs(away).max() < 5.5
    assert away.std() == pytest.approx(1, abs=0.25)


def test_a_ridge_only_where_the_spectrum_is_below_its_noise() -> None:
    lags = np.arange(1, 65)
    assert noise_ridge(0.5**lags, np.full(64, 1e-3)) == 0
    periodic = 0.999 * np.cos(0.3 * lags)
    ridge = noise_ridge(periodic, np.full(64, 1e-2))
    noise = np.sqrt(2 * 64) * 1e-2
    measured = periodic + 1e-2 * np.random.default_rng(0).standard_normal(64)
    assert np.linalg.eigvalsh(toeplitz(np.append(1 + ridge, measured[:-1])))[0] > noise / 2
    shrunk = yule_walker(0.5**lags, ridge=0.1)
    np.testing.assert_allclose(
        toeplitz(np.append(1.1, 0.5 ** lags[:-1])) @ shrunk, 0.5**lags, atol=1e-12
    )
    certain = np.tile(
        np.random.default_rng(0).integers(0, 8, 50, np.uint8), 400
    )  # singular, beyond what noise shows
    found, ridge = predictive_weights(certain, 64)
    assert ridge > 0
    assert np.abs(found[:, 0]).max() < 2


def curve() -> DecayCurve:
    """t**-1 with a floor that hides the last lag, and replicates of a known jackknife error."""
    values = 0.5 / 2.0 ** np.arange(6)
    return DecayCurve(
        quantity="information",
        estimator="shuffle",
        size=1000,
        symbols=4,
        lags=(1, 2, 4, 8, 16, 32),
        values=tuple(values.tolist()),
        floor=(0.02,) * 6,
        drift=0.0,
        replicates=tuple(
            map(tuple, np.outer(values, 1 + 0.02 * np.array([-1.0, 1.0, -1.0, 1.0])).tolist())
        ),
    )


def test_a_verdict_becomes_the_shape_it_names() -> None:
    """A curve without a shape ends where it meets its floor, and brings its relative errors."""
    lags = np.arange(1.0, 301)

    def shaped(kind: Any, **parameters: float) -> Target:
        model = ModelFit(kind, {"amplitude": 0.3, **parameters}, 1.0, 5, 5.0, 0.0, 0.5, 0.5)
        return verdict_target(Verdict(kind, "as it is", 1, 100, (model,)), curve(), 300)

    broken = shaped("broken power law", beta_1=0.5, beta_2=1.5, **{"break": 30.0})
    assert broken == power_law_target(0.5, 300, 1.5, 30)
    assert shaped("broken power law", beta_1=0.5, beta_2=1.5, **{"break": 300.0}).beta == 0.5
    np.testing.assert_allclose(
        shaped("exponential", tau=20.0).value(lags), np.exp(-(lags - 1) / 20)
    )
    stretched = shaped("stretched exponential", tau=20.0, gamma=0.5).value(lags)
    np.testing.assert_allclose(stretched, np.exp(-np.sqrt(lags / 20)) / np.exp(-np.sqrt(1 / 20)))
    assert shaped("exponential", tau=0.2).max_lag == 139, "where it vanishes in float64"
    law = fit_power_law(curve(), (1, 100)).beta
    assert shaped("power law", beta=9.0).beta == law, "the exponent that the sentence states"
    short = shaped("too short")
    assert short.lags == (1, 2, 4, 8, 16)
    np.testing.assert_allclose(short.values, 0.5 / np.array(short.lags), rtol=1e-12)
    np.testing.assert_allclose(short.errors, 0.02 * np.sqrt(3), rtol=1e-12)
    with pytest.raises(ValueError, match="its exponential must fall, got tau"):
        shaped("exponential", tau=-3.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beta_1": -0.2, "beta_2": 1.5, "break": 30.0}, "must fall, got beta 1 -0.2"),
        ({"beta_1": -0.2, "beta_2": 1.5, "break": 300.0}, "must fall, got beta 1 -0.2"),
        ({"beta_1": 0.5, "beta_2": -0.1, "break": 30.0}, "must fall, got beta 2 -0.1"),
    ],
)
def test_a_broken_law_that_rises_is_told_as_measured(given: dict[str, float], message: str) -> None:
    """Nobody gave a beta: the curve is at fault, and no parameter."""
    model = ModelFit("broken power law", {"amplitude": 0.3, **given}, 1.0, 5, 5.0, 0.0, 0.5, 0.5)
    verdict = Verdict("broken power law", "as it is", 1, 100, (model,))
    with pytest.raises(ValueError, match=f"curve of information: its broken power law {message}"):
        verdict_target(verdict, curve(), 300)


def test_an_exponent_that_does_not_fall_is_told_as_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stated range may rise where the lags that stand out fall."""
    fitted = replace(fit_power_law(curve(), (1, 100)), beta=-0.1, low=-0.3, high=0.1)
    verdict = Verdict("too short", "only lags 1 to 7 stand out", 1, 7, ())
    found = SimpleNamespace(law=fitted, verdict=verdict, information=curve(), estimator="jackknife")
    monkeypatch.setattr(prediction, "measure_corpus", lambda *_, **__: found)

    def of(target: str) -> prediction.Kernel:
        data = np.zeros(9, np.uint8)
        return prediction.information(Named("x", "made"), data, target, "coherent", "state", 64)

    with pytest.raises(ValueError, match=r"corpus 'x': its information must fall .* beta -0\.1"):
        of("information")
    assert of("curve").target.lags == (1, 2, 4, 8, 16)


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (np.arange(500) % 7, "give its exponent as --beta"),
        (np.zeros(5_000), "got one symbol only, which tells nothing of any other"),
    ],
)
def test_fewer_lags_are_advised_where_they_would_help(data: np.ndarray, ends: str) -> None:
    with pytest.raises(ValueError, match=f"corpus 'x': .*{ends}$"):
        prediction.information(
            Named("x", "made"), data.astype(np.uint8), "information", "coherent", "state", 64
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: repeat_correlations(np.arange(120, dtype=np.uint8), 100),
            "at least 140 symbols for lag 100 in 40 blocks, got 120",
        ),
        (
            lambda: repeat_correlations(np.full(1000, 7, np.uint8), 10),
            "two different symbols or more, got one symbol only",
        ),
        (
            lambda: yule_walker([1.0, 1.0, 1.0]),
            "must have a Yule-Walker solution, got none for 3 lags",
        ),
    ],
)
def test_bad_input_is_refused(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def weights_in_bands(used: list[int], lags: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Weights 1/d in the bands that are `used`, and -1/d in others, known to a millionth; the
    edges of all bands.
    """
    plain = np.outer(1 / np.arange(1, lags + 1), np.ones(11))
    edges = prediction.bands(plain)[0]
    band = np.searchsorted(edges, np.arange(1, lags + 1), side="right") - 1
    signs = np.where(np.isin(band, used), 1.0, -1.0)
    spread = 1 + 1e-6 * np.linspace(-1, 1, 11)
    return plain * signs[:, None] * spread, edges


@pytest.mark.parametrize(("lost", "reach"), [([], 0), ([1, 3, 4], 0), ([2], 2)])
def test_bands_that_stand_out_are_fitted_and_the_others_told(
    lost: list[int], reach: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lags between 1 and the last band that stands out; those beyond it are not left out."""
    count = weights_in_bands([])[1].size - 1
    used = [band for band in range(count - reach) if band not in lost]
    weights, edges = weights_in_bands(used)
    monkeypatch.setattr(prediction, "predictive_weights", lambda *_, **__: (weights, 0.125))
    found = prediction.predictive(Named("made", "made"), np.zeros(9, np.uint8), 64)
    last = used[-1]
    told = [
        f"predictive weights stand out from noise in {len(used)} of {count} bands of lags, the last"
        f" at {edges[last]}..{edges[last + 1] - 1}; one band in forty does by chance. At lag 1 the"
        f" weight is {weights[0, 0]:.4g}"
    ]
    if lost:
        ranges = ", ".join(f"{edges[band]}..{edges[band + 1] - 1}" for band in lost)
        told.append(
            f"left out are lags {ranges}, where they are negative or cannot be distinguished from"
            " zero"
        )
    assert found.told == told
    _, lags, values, replicates = prediction.bands(weights)
    assert found.target.lags == tuple(lags[used])
    assert found.target.values == tuple(values[used])
    np.testing.assert_allclose(
        found.target.errors or (), (jackknife_error(replicates) / values)[used], rtol=1e-12
    )
    assert found.measured is not None
    assert found.measured["ridge"] == 0.125
    assert found.measured["bands"]["edges"] == edges.tolist()


def test_fewer_bands_than_noise_may_give_are_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    count = weights_in_bands([])[1].size - 1
    least = max(prediction.FEWEST_LAGS, math.ceil(prediction.BY_CHANCE * count))
    for number in (least, least - 1):
        weights, _ = weights_in_bands(list(range(number)))
        monkeypatch.setattr(
            prediction, "predictive_weights", lambda *_, found=weights, **__: (found, 0.0)
        )
        given = (Named("made", "made"), np.zeros(9, np.uint8), 64)
        if number == least:
            assert len(prediction.predictive(*given).target.lags) == least
        else:
            with pytest.raises(
                ValueError, match=f"in {least} of {count} bands of lags, got {number}"
            ):
                prediction.predictive(*given)


def test_bands_are_means_over_lags_and_their_harmonic_mean() -> None:
    lags = np.arange(1, 41)
    weights = np.stack([1 / lags, 2 / lags, 3 / lags], axis=1)
    edges, means, values, replicates = prediction.bands(weights)
    assert (edges[0], edges[-1]) == (1, 41)
    for band, (low, high) in enumerate(pairwise(edges)):
        inside = np.arange(low, high)
        assert means[band] == pytest.approx(inside.size / np.sum(1 / inside))
        assert values[band] == pytest.approx(np.mean(1 / inside))
        np.testing.assert_allclose(replicates[band], [2 * values[band], 3 * values[band]])
