"""The next byte: frequencies are the probabilities, and nothing outside the nucleus is ever drawn."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from plkernel.models.sampling import Sampling, nucleus

LOGITS = np.array([1.0, -2.0, 0.5, 0.5, 3.0, -0.7, 2.2, -40.0])
DRAWS = 10_000


def counts(sampling: Sampling, seed: int = 0) -> np.ndarray:
    uniform = np.random.default_rng(seed).random(DRAWS)
    return np.bincount([sampling.choose(LOGITS, u) for u in uniform], minlength=LOGITS.size)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_frequencies_are_those_of_the_softmax(temperature: float) -> None:
    """Chi-square against softmax by torch, the byte of probability e-43 left out; at another temperature it fails."""
    found = counts(Sampling(temperature))
    assert found[-1] == 0
    for claimed, holds in ((temperature, True), (temperature * 1.1, False)):
        expected = torch.tensor(LOGITS[:-1] / claimed).softmax(0).numpy() * DRAWS
        assert (chisquare(found[:-1], expected).pvalue > 0.01) == holds


def test_frequencies_in_a_nucleus() -> None:
    """The three likeliest bytes, with their shares of what they have together."""
    found = counts(Sampling(1.0, 0.85))
    p = np.exp(LOGITS[[4, 6, 0]])
    assert set(np.flatnonzero(found)) == {0, 4, 6}
    assert chisquare(found[[4, 6, 0]], p / p.sum() * DRAWS).pvalue > 0.01


def test_the_nucleus_is_the_smallest_set_and_changes_at_its_boundaries() -> None:
    p = np.array([0.2, 0.5, 0.3])
    for top_p, kept in ((1e-9, {1}), (0.5 - 1e-9, {1}), (0.5, {1}), (0.5 + 1e-9, {1, 2}), (0.8 + 1e-9, {0, 1, 2})):
        inside = nucleus(p, top_p)
        assert set(np.flatnonzero(inside)) == kept
        assert inside.sum() == pytest.approx(1, abs=1e-15)
        assert inside[list(kept)] == pytest.approx(p[list(kept)] / p[list(kept)].sum(), abs=1e-15)


def test_sets_below_the_nucleus_do_not_reach_top_p() -> None:
    """For random distributions: the kept bytes reach top_p, without the least likely of them they do not."""
    random = np.random.default_rng(1)
    for _ in range(200):
        p, top_p = random.dirichlet(np.full(256, 0.05)), random.uniform(0.01, 0.999)
        kept = np.flatnonzero(nucleus(p, top_p))
        assert p[kept].sum() >= top_p - 1e-12
        assert p[kept].sum() - p[kept].min() < top_p
        assert p[kept].min() >= np.delete(p, kept).max(initial=0)


def test_bytes_of_one_probability_are_kept_in_their_order() -> None:
    """Uniform over 256 bytes, exactly in binary: top_p k / 256 keeps the first k, and no more."""
    uniform = np.full(256, 1 / 256)
    for k in (1, 2, 77, 255):
        assert np.flatnonzero(nucleus(uniform, k / 256)).tolist() == list(range(k))
        assert np.flatnonzero(nucleus(uniform, (k + 0.5) / 256)).tolist() == list(range(k + 1))
    assert nucleus(uniform, 1.0) is uniform


def test_the_nucleus_of_another_package() -> None:
    warpers = pytest.importorskip("transformers.generation.logits_process", reason="transformers is not installed")
    random = np.random.default_rng(2)
    for _ in range(20):
        logits, temperature, top_p = random.normal(0, 3, 256), random.uniform(0.3, 2), random.uniform(0.05, 0.99)
        scores = torch.tensor(logits)[None]
        for warp in (warpers.TemperatureLogitsWarper(temperature), warpers.TopPLogitsWarper(top_p)):
            scores = warp(None, scores)
        found = Sampling(temperature, top_p).probabilities(logits)
        np.testing.assert_allclose(found, scores[0].softmax(0).numpy(), rtol=0, atol=1e-15)


def test_temperature_zero_is_the_limit_and_takes_the_first_of_equals() -> None:
    for u in (0.0, 0.5, 1 - 2**-53):
        assert Sampling(0.0).choose(LOGITS, u) == 4
        assert Sampling(1e-310).choose(LOGITS, u) == 4
        assert Sampling(0.0).choose([1.0, 5.0, 5.0], u) == 1


def test_the_ends_of_the_unit_interval_draw_possible_bytes() -> None:
    """Also where the cumulative sum misses 1 by rounding, and where the ends have probability 0."""
    random = np.random.default_rng(3)
    for _ in range(200):
        logits = random.normal(0, 2, 256)
        logits[[0, 255]] = -2000.0
        p = Sampling().probabilities(logits)
        assert p[0] == p[255] == 0
        assert p[Sampling().choose(logits, 0.0)] > 0
        assert p[Sampling().choose(logits, 1 - 2**-53)] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, r"temperature must be at least 0 and finite .*, got -0.1"),
        ({"temperature": float("nan")}, "temperature must be .*, got nan"),
        ({"temperature": float("inf")}, "temperature must be .*, got inf"),
        ({"top_p": 0.0}, r"top_p must be above 0 and at most 1 .*, got 0.0"),
        ({"top_p": 1.01}, "top_p must be .*, got 1.01"),
        ({"top_p": float("nan")}, "top_p must be .*, got nan"),
    ],
)
def test_refusals(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_of_a_diverged_model_are_refused(temperature: float) -> None:
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(FloatingPointError, match="has diverged"):
            Sampling(temperature).choose([0.0, wrong], 0.5)
