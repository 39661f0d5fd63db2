"""Diagnostics against their definitions: curves over windows, memory over runs, n-grams."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import pytest

from plkernel.analysis.nodes import falling_exponent
from plkernel.context import measures
from plkernel.context.measures import (
    Memory,
    Probe,
    by_position,
    influence_of,
    is_read,
    kernel_exponents,
    lengths,
    n_gram_losses,
    n_grams,
    others,
    places,
    slope_range,
    truncation_of,
)

LAGS = 2.0 ** np.arange(10)


def test_losses_are_grouped_by_the_bytes_given_and_errors_are_those_of_windows() -> None:
    """Losses equal to the number of bytes given: the mean of 3..4 is 3.5, that of 9..12 is 10.5."""
    assert (lengths(12), lengths(12, step=4), lengths(8, step=2)) == (
        [1, 2, 4, 8, 12],
        [4, 8, 12],
        [2, 4, 8],
    )
    means = by_position(np.tile(np.arange(1.0, 13.0), (3, 1)) + np.array([[-1.0], [0.0], [1.0]]))
    assert means.given == (1, 2, 4, 8, 12)
    assert means.bpb == pytest.approx((1, 2, 3.5, 6.5, 10.5))
    assert means.standard_error == pytest.approx([1 / np.sqrt(3)] * 5)
    windows = np.random.default_rng(0).normal(size=(50, 1))
    expected = windows.std(ddof=1) / np.sqrt(50)
    assert by_position(np.repeat(windows, 64, axis=1)).standard_error == pytest.approx(
        [expected] * 7
    )
    readings = np.tile(windows[..., None], (1, 8, 3))
    readings[:, 2:, 1] = np.nan  # lags that are not read leave the mean alone
    influence = influence_of([1, 2, 4], readings)
    assert influence.bits == pytest.approx([windows.mean()] * 3)
    assert influence.standard_error == pytest.approx([expected] * 3)


def test_the_cost_of_truncation_is_paired() -> None:
    """A loss that all lengths share is no error of their difference."""
    rng = np.random.default_rng(1)
    shared, noise = rng.normal(5, 2, 400), rng.normal(0, 0.1, 400)
    curve = truncation_of(
        [1, 2], np.stack([shared + 0.5 + noise, shared]), floor=np.full((2, 400), 1.5)
    )
    assert curve.cost == (pytest.approx(0.5, abs=0.02), 0.0)
    assert curve.standard_error == (pytest.approx(noise.std(ddof=1) / 20), 0.0)
    assert (curve.floor, curve.windows) == ((1.5, 1.5), 400)


def test_another_token_comes_by_its_frequency() -> None:
    """Without the one that stands there: in AAAABBC, for B, A in 4 of 5 and C in 1."""
    text = np.array([7, 7, 7, 7, 3, 3, 9])
    drawn = others(text, np.repeat([7, 3, 9], 20_000), np.random.default_rng(0)).reshape(3, -1)
    shares = np.array([[(row == token).mean() for token in (7, 3, 9)] for row in drawn])
    assert shares == pytest.approx(
        np.array([[0, 2 / 3, 1 / 3], [4 / 5, 0, 1 / 5], [4 / 6, 2 / 6, 0]]), abs=0.015
    )
    assert np.diag(shares).tolist() == [0, 0, 0]


@pytest.mark.parametrize("length", [4, 7, 16, 37])
def test_half_of_the_window_is_given_and_every_lag_read(length: int) -> None:
    lags = np.arange(1, length + 1)
    for seed in range(50):
        chosen = places(3, length, 4, np.random.default_rng(seed))
        read = is_read(lags, chosen, length)
        given = (chosen[..., None] + lags)[read]
        assert read.any(axis=1).all()
        assert not chosen[:, 0].any()
        assert given.min() >= length / 2
        assert given.max() <= length


def test_json_has_no_nan() -> None:
    """One window has no standard error: null."""
    curves = (
        influence_of([1, 2], np.ones((1, 1, 2))),
        by_position(np.ones((1, 2))),
        truncation_of([1, 2], np.ones((2, 1))),
    )
    kept = json.loads(
        json.dumps(Probe("token", 1, 2, 4.0, 1.0, *curves).to_dict(), allow_nan=False)
    )
    assert kept["influence"] == {"lags": [1, 2], "bits": [1, 1], "standard_error": [None, None]}
    assert kept["truncation"] == {
        "given": [1, 2],
        "bits": [1, 1],
        "cost": [0, 0],
        "standard_error": [None, None],
    }
    assert "information" not in kept
    assert list(curves[2].to_dict()) == ["windows", "given", "bpb", "cost", "standard_error"]


@pytest.mark.parametrize("exponent", [0.0, 0.575, 3.0])
def test_the_slope_of_a_power_law_is_its_exponent(exponent: float) -> None:
    """At any scale, and with any kernel outside lags 4 to 128."""
    kernels = np.array([[1.0, 1e-200], [1e200, 3.0]])[..., None] * LAGS**-exponent
    kernels[..., [0, 1, 8, 9]] = 7.0
    assert kernel_exponents(LAGS, kernels) == pytest.approx(np.full((2, 2), exponent), abs=3e-13)
    y = np.random.default_rng(0).normal(size=(3, LAGS.size))
    expected = [-np.polyfit(np.log(LAGS), row, 1)[0] for row in y]
    assert falling_exponent(LAGS, y) == pytest.approx(expected, rel=1e-13)
    assert (
        kernel_exponents(LAGS, np.where(LAGS > 30, 0.0, LAGS**-1.0))
        == kernel_exponents(LAGS, 0 * LAGS)
        == np.inf
    )


@pytest.mark.parametrize(
    ("lags", "expected"), [(LAGS, (4, 128)), (LAGS[:5], (4, 16)), (LAGS[:3], None), ([], None)]
)
def test_the_range_ends_at_128_or_the_longest_lag(
    lags: np.ndarray, expected: tuple[float, float] | None
) -> None:
    assert slope_range(lags) == expected
    if expected is None:
        with pytest.raises(ValueError, match=r"lags must hold two of 4 to 128 for a slope, got \["):
            kernel_exponents(lags, lags)


def test_means_over_runs_are_geometric() -> None:
    """The slope of the mean kernel is the mean slope; of half-lives the ends are the outermost of
    all runs.
    """
    exponents, scales = np.array([[0.5, 1.0], [0.7, 2.0]]), np.array([[1.0, 1e3], [1e-3, 7.0]])
    first = np.array([1.0, 2, 3, 4, 5, 6, 7])
    both = Memory(
        np.stack([first, 4 * first])[:, None],
        LAGS,
        scales[..., None] * LAGS ** -exponents[..., None],
    )
    mean = both.log_kernels()
    assert mean[:, 0] == pytest.approx([0.0, 0.0], abs=1e-15)
    assert kernel_exponents(LAGS, np.exp(mean)) == pytest.approx(exponents.mean(axis=0), rel=1e-13)
    assert both.exponents() == pytest.approx(exponents, rel=1e-13)
    assert both.half_life_quantiles() == pytest.approx(np.array([[1.0, 4, 6, 8, 10, 12, 28]]))


def drawn(n: int, width: int, letters: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, letters, (n, width)).astype(np.uint8)


class Recursive:
    """Witten-Bell n-grams by dictionaries."""

    def __init__(self, windows: Sequence[bytes], orders: int) -> None:
        self.after: dict[bytes, Counter[int]] = defaultdict(Counter)
        for window in windows:
            for at in range(1, len(window)):
                for length in range(min(orders - 1, at) + 1):
                    self.after[window[at - length : at]][window[at]] += 1

    def probability(self, byte: int, history: bytes | None) -> float:
        if history is None:
            return 1 / 256
        lower = self.probability(byte, history[1:] if history else None)
        seen = self.after.get(history)
        return (seen[byte] + len(seen) * lower) / (seen.total() + len(seen)) if seen else lower


@pytest.mark.parametrize(
    ("letters", "width", "orders"), [(2, 9, 5), (256, 40, 3), (3, 3, 5), (3, 12, 7)]
)
def test_n_grams_are_those_of_the_formula(
    letters: int, width: int, orders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of any size; no count crosses the border of a window, and its first byte is history
    alone.
    """
    seen, judged = drawn(40, width, letters, 0), drawn(10, width, min(256, letters + 1), 1)
    expected = Recursive(list(map(bytes, seen)), orders)
    losses = n_gram_losses(n_grams([seen], orders), judged)
    monkeypatch.setattr(measures, "AT_ONCE", 3 * width)
    parts = n_grams(iter([seen[:7], seen[7:8], seen[8:8], seen[8:]]), orders)
    assert np.array_equal(n_gram_losses(parts, judged), losses)
    assert losses.shape == (orders, 10, width - 1)
    for order in range(1, orders + 1):
        for row, window in zip(losses[order - 1], map(bytes, judged), strict=True):
            histories = [window[max(0, at - order + 1) : at] for at in range(1, width)]
            wanted = [
                expected.probability(*pair) for pair in zip(window[1:], histories, strict=True)
            ]
            assert row == pytest.approx(-np.log2(wanted), rel=1e-12)
