"""References of a study: n-grams against dictionaries."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plkernel.config.reading import parse_spec
from plkernel.config.schema import TrainSpec
from plkernel.data.corpora import load
from plkernel.data.windows import carried_windows, fixed_windows, training_windows
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


@pytest.mark.parametrize(
    ("options", "count"),
    [({"steps": 3}, 6), ({"steps": 3, "carry": True}, 6), ({"steps": 100}, 25)],
)
def test_windows_that_are_counted_are_those_of_training_up_to_a_size(
    options: dict[str, Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of whole steps, the last one cut."""
    monkeypatch.setattr(references, "MOST_BYTES", 25 * 8 + 7)
    train = TrainSpec(context=8, batch=2, **options)
    assert references._window_count(train) == count
    data = drawn(1, 400, 256, 0)[0]
    draw = carried_windows if train.carry else training_windows
    steps = [draw(data, 8, 2, 7, step).numpy() for step in range(train.total_steps)]
    expected = np.concatenate(steps)[:count]
    for at_once in (1, 2 * 9, 6 * 9, 10**6):
        monkeypatch.setattr(references, "AT_ONCE", at_once)
        blocks = list(references._blocks(train, data, 7, count))
        np.testing.assert_array_equal(np.concatenate(blocks), expected)
        assert [len(block) for block in blocks[:-1]] == [2 * max(1, at_once // 9 // 2)] * (
            len(blocks) - 1
        )


def test_the_share_of_every_block_is_told() -> None:
    told: list[float] = []
    blocks = [drawn(n, 4, 4, 0) for n in (2, 3)]
    passed = list(references._advancing(iter(blocks), 5, told.append))
    assert [len(block) for block in passed] == [2, 3]
    assert told == [0.4, 0.6]


def test_losses_of_windows_are_means_with_errors_over_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = drawn(1, 300, 3, 1)[0]
    tables = n_grams([drawn(20, 9, 3, 0)], 2)
    each = n_gram_losses(tables, fixed_windows(text, 8, 10).numpy().astype(np.uint8)).mean(axis=2)
    for at_once in (1, 4 * 9 * 3, 10**6):
        monkeypatch.setattr(references, "AT_ONCE", at_once)
        found = references._losses(tables, text, 8, 10, "val")
        assert list(found) == ["val_bpb", "val_error"]
        assert found["val_bpb"] == pytest.approx(each.mean(axis=1), rel=1e-12)
        error = each.std(axis=1, ddof=1) / np.sqrt(10)
        assert found["val_error"] == pytest.approx(error, rel=1e-12)


def test_tables_count_how_many_come_before() -> None:
    block = np.array([[1, 2, 1, 2]], np.uint8)
    (letters, before), (pairs, ahead) = n_grams([block], 2)
    assert (letters.tolist(), before.tolist()) == ([1, 2], [0, 1, 3])
    assert (pairs.tolist(), ahead.tolist()) == ([256 + 2, 512 + 1], [0, 2, 3])
    (empty, none), _ = n_grams([], 2)
    assert (empty.size, none.tolist()) == (0, [0])
    assert n_gram_losses(n_grams([], 2), block) == pytest.approx(np.full((2, 1, 3), 8.0))


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, set()),
        ({"final_windows": 9}, {"final_windows"}),
        ({"carry": True}, {"carry"}),
    ],
)
def test_an_entry_is_known_by_what_decides_its_numbers(
    options: dict[str, Any], keys: set[str], tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes(bytes(5000))
    train = {"steps": 3, "context": 8, "batch": 2, **options}
    corpus = {"name": str(tmp_path / "text")}
    values = {"name": "s", "baseline": "a", "seeds": [4, 5], "arms": {"a": {}}}
    spec = parse_spec({**values, "corpus": corpus, "train": train}, "here")
    key = references._key(spec, spec.corpus, load(tmp_path / "text"))
    usual = {"context", "batch", "eval_windows", "test_windows", "steps"}
    assert set(key["train"]) == usual | keys
    assert (key["seed"], key["training_bytes"], key["corpus"]["size"]) == (4, 48, 5000)
