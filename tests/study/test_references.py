"""References of a study: n-grams against dictionaries."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import pytest

from plkernel.study import references
from plkernel.study.references import n_gram_losses, n_grams


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
    monkeypatch.setattr(references, "AT_ONCE", 3 * width)
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
