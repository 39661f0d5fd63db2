"""Witten-Bell n-grams against plain dictionaries written from the formula, and against sources of known entropy."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import pytest

from plkernel.memory import diagnostics as ngrams
from plkernel.memory.diagnostics import NGrams


def drawn(n: int, width: int, letters: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, letters, (n, width)).astype(np.uint8)


class Recursive:
    """The formula, by dictionaries."""

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


@pytest.mark.parametrize(("letters", "width", "orders"), [(2, 9, 5), (4, 30, 5), (256, 40, 3), (3, 3, 5), (3, 12, 7)])
def test_losses_are_those_of_the_formula(letters: int, width: int, orders: int) -> None:
    seen, judged = drawn(40, width, letters, 0), drawn(10, width, min(256, letters + 1), 1)
    expected = Recursive(list(map(bytes, seen)), orders)
    losses = NGrams.of(seen, orders).losses(judged)
    assert losses.shape == (orders, 10, width - 1)
    for order in range(1, orders + 1):
        for row, window in zip(losses[order - 1], map(bytes, judged), strict=True):
            wanted = [
                -np.log2(expected.probability(window[at], window[max(0, at - order + 1) : at]))
                for at in range(1, width)
            ]
            assert row == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("history", [b"abab", b"bbab", b"zzzz", b"azzz", b"zzza"])
def test_probabilities_of_all_bytes_sum_to_one(history: bytes) -> None:
    """After histories that were seen, that were not, and of which only the end was."""
    model = NGrams.of(np.frombuffer(b"abababbab" * 20, np.uint8).reshape(-1, 18))
    windows = np.array([[*history, byte] for byte in range(256)], np.uint8)
    assert (2.0 ** -model.losses(windows)[:, :, -1]).sum(axis=1) == pytest.approx(np.ones(5), rel=1e-12)


def test_no_count_crosses_the_border_of_a_window() -> None:
    """b ends a window and c begins the next: c was never counted, and nothing after b."""
    model = NGrams.of(np.frombuffer(b"abca" * 50, np.uint8).reshape(-1, 2), 2)
    losses = model.losses(np.frombuffer(b"bc", np.uint8).reshape(1, 2))
    assert losses.ravel() == pytest.approx(2 * [-np.log2(2 / (100 + 2) / 256)])


def test_the_first_byte_of_a_window_is_history_alone() -> None:
    """Every order counts T targets: single bytes are those at 1..T."""
    model = NGrams.of(np.frombuffer(b"zaaa", np.uint8).reshape(1, 4), 1)
    z, a = model.losses(np.frombuffer(b"zza", np.uint8).reshape(1, 3))[0, 0]
    assert 2.0**-z == pytest.approx(1 / 4 / 256)
    assert 2.0**-a == pytest.approx((3 + 1 / 256) / 4)


def test_blocks_of_any_size_and_repetitions_give_the_same_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    windows, judged = drawn(60, 20, 3, 2), drawn(5, 20, 3, 3)
    whole = NGrams.of(windows).losses(judged)
    monkeypatch.setattr(ngrams, "AT_ONCE", 70)
    assert np.array_equal(NGrams.of(iter([windows[:7], windows[7:8], windows[8:8], windows[8:]])).losses(judged), whole)
    assert not np.array_equal(NGrams.of(np.concatenate([windows, windows])).losses(judged), whole)


def test_pairs_reach_the_entropy_of_a_markov_chain_and_single_bytes_do_not() -> None:
    """Stay with 0.9 or move to one of three others: H2(0.1) + 0.1 log2 3 a byte; single bytes are uniform, 2 bits."""
    rng = np.random.default_rng(0)

    def chain(n: int) -> np.ndarray:
        moves = np.where(rng.random((n, 257)) < 0.1, rng.integers(1, 4, (n, 257)), 0)
        return (np.cumsum(moves, axis=1) % 4).astype(np.uint8)

    single, pairs, triples = NGrams.of(chain(2000), 3).losses(chain(1000)).mean(axis=(1, 2))
    rate = -0.9 * np.log2(0.9) - 0.1 * np.log2(0.1) + 0.1 * np.log2(3)
    assert pairs == pytest.approx(rate, abs=0.01)
    assert triples == pytest.approx(rate, abs=0.01)
    assert single == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("windows", [np.zeros((2, 5), np.int64), np.zeros(5, np.uint8), np.zeros((2, 1), np.uint8)])
def test_what_are_no_windows_of_bytes_is_refused(windows: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"windows must be bytes \(n, T \+ 1\)"):
        NGrams.of(windows)
    with pytest.raises(ValueError, match="orders must lie between 1 and 7, got 8"):
        NGrams.of(drawn(2, 5, 2, 0), 8)
