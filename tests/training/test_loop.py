"""Parts of a run: windows that fit, what is told of it, and what a diverged one says."""

import math
from pathlib import Path
from typing import Any

import pytest

from plkernel.config.schema import CorpusSpec, TrainSpec
from plkernel.models.sampling import LARGEST_SEED
from plkernel.training.loop import (
    _check_finite,
    check_corpus_size,
    longest_window,
    open_corpus,
    open_run,
    summary,
    told_losses,
)


def a_text(folder: Path, size: int) -> CorpusSpec:
    (folder / "text").write_bytes(bytes(size))
    return CorpusSpec(name=str(folder / "text"), validation=0.25, test=0.25)


@pytest.mark.parametrize(
    ("size", "context", "farthest", "split"),
    [
        (132, 32, None, ""),
        (131, 32, None, "validation"),
        (132, 32, 32, ""),
        (260, 32, 64, ""),
        (259, 32, 64, "test"),
    ],
)
def test_every_split_holds_a_window_and_the_test_the_longest(
    size: int, context: int, farthest: int | None, split: str, tmp_path: Path
) -> None:
    """Known ahead, nothing is read; and the same once it is."""
    section = a_text(tmp_path, size)
    if not split:
        assert check_corpus_size(section, context, farthest)
        corpus, splits = open_corpus(section, context, farthest)
        assert (corpus.size, splits.validation.size) == (size, size // 4)
        return
    for check in (check_corpus_size, open_corpus):
        with pytest.raises(ValueError, match=f"the {split} split of corpus .* must hold one wind"):
            check(section, context, farthest)


def test_the_size_of_a_data_set_is_not_known_ahead() -> None:
    assert check_corpus_size(CorpusSpec(name="hf:owner/name"), 32) is False


@pytest.mark.parametrize(
    ("name", "beyond", "longest"),
    [
        ("stdlib", None, 32),
        ("stdlib", 4, 128),
        ("synthetic:recall,pairs=4,length=32", None, 32),
        ("synthetic:recall,pairs=4,length=32", 4, 32),
    ],
)
def test_the_longest_window_of_a_text_and_of_recall_which_is_drawn_anew(
    name: str, beyond: int | None, longest: int
) -> None:
    train = TrainSpec(steps=1, context=32, beyond=beyond)
    assert longest_window(CorpusSpec(name=name), train) == longest


@pytest.mark.parametrize("seed", [-1, LARGEST_SEED + 1])
def test_a_seed_beyond_its_limits_is_refused(seed: int, tmp_path: Path) -> None:
    unread: Any = None
    with pytest.raises(ValueError, match=f"seed must lie between 0 and {LARGEST_SEED}, got {seed}"):
        open_run(unread, seed, tmp_path)


def test_an_evaluation_is_told_in_one_line() -> None:
    row = {"step": 8, "train_bpb": 2.34567, "val_bpb": 3.0}
    assert told_losses(row) == "step 8: train 2.3457, validation 3.0000 bits per byte"
    told = "step 8: train 2.3457, validation 3.0000 bits per answer, 12.5 % of answers right"
    assert told_losses({**row, "val_accuracy": 0.125}) == told


def test_a_result_is_told_in_one_line() -> None:
    result = {
        "steps": 12,
        "final_val_bpb": 2.5,
        "best_val_bpb": 2.25,
        "best_step": 8,
        "test_bpb": 2.75,
        "seconds": 1.6,
        "causal": True,
    }
    told = (
        "a run: 12 steps, validation 2.5000 (best 2.2500 at step 8), test 2.7500 bits per byte, 2 s"
    )
    assert summary("a run", result) == told
    ahead = summary("a run", {**result, "causal": False, "test_accuracy": 0.5})
    assert ahead.endswith("2.7500 bits per answer, 2 s [not causal, not a likelihood]")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_ends_a_run_with_its_step(value: float) -> None:
    _check_finite(1e300, 3)
    with pytest.raises(FloatingPointError, match=f"the run diverged: {value} at step 3; lower"):
        _check_finite(value, 3)
