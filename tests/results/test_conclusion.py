"""Sentences on a whole study: what is significant, by how many seeds, what memory is worth."""

from pathlib import Path
from typing import Any

import pytest
from studies import BASELINE, REFERENCE, save, write_study

from plkernel.results.comparison import Comparison, compare
from plkernel.results.conclusion import memory_worth, overview
from plkernel.results.study import read_study


def of(folder: Path) -> Comparison:
    return compare(read_study(folder))


def test_one_seed_in_common_makes_no_claim(tmp_path: Path) -> None:
    assert overview(of(write_study(tmp_path, seeds=[0]))) == [
        "No arm shares two seeds with the arm it is compared with: no interval, no claim."
    ]


def test_two_seeds_make_one(tmp_path: Path) -> None:
    first, second = overview(of(write_study(tmp_path, seeds=[0, 1])))
    assert first.startswith(
        "1 of 1 difference is significant (2 seeds), 1 below the baseline and 0"
    )
    assert second.startswith("With 2 seeds and this spread, one comparison on its own finds")


@pytest.mark.parametrize(
    ("effects", "begins"),
    [
        ({"a": 0.0}, "None of 1 difference is significant (6 seeds)."),
        (
            {"a": -0.1, "b": 0.0},
            "1 of 2 differences is significant (Holm-corrected, 6 seeds), 1 below the baseline and"
            " 0 above: a -0.1",
        ),
        (
            {"a": -0.1, "b": 0.2, "c": -0.3, "d": -0.4},
            "4 of 4 differences are significant (Holm-corrected, 6 seeds), 3 below the baseline and"
            " 1 above: d -0.",
        ),
        (
            {"a": -0.1, "b": 0.2, "c": -0.3, "d": -0.4, "e": 0.5},
            "5 of 5 differences are significant (Holm-corrected, 6 seeds), 3 below the baseline and"
            " 2 above; the largest: e +0.",
        ),
    ],
)
def test_the_largest_significant_differences_are_quoted(
    tmp_path: Path, effects: dict[str, float], begins: str
) -> None:
    folder = write_study(tmp_path, seeds=range(6), effects={BASELINE: 0.0, **effects})
    sentence = overview(of(folder))[0]
    assert sentence.startswith(begins)
    assert sentence.count(" to ") == min(4, sum(effect != 0 for effect in effects.values()))


@pytest.mark.parametrize(
    ("name", "loss", "begins"),
    [
        ("stdlib", 1.0, "2 of 2 arms lose to 2-grams on stdlib (1.000 against "),
        ("stdlib", 9.0, "None of 2 arms loses to 2-grams on stdlib (9.000 against "),
        ("synthetic:lags", 1.0, "2 of 2 arms lose to 2-grams on synthetic:lags (1.000 against "),
        ("synthetic:lags", 9.0, None),
    ],
)
def test_arms_are_held_against_n_grams(
    tmp_path: Path, name: str, loss: float, begins: str | None
) -> None:
    folder = write_study(tmp_path)
    corpus: dict[str, Any] = {**REFERENCE["corpus"], "name": name}  # type: ignore[dict-item]
    for path in folder.rglob("config.json"):
        path.write_text(path.read_text().replace('"stdlib"', f'"{name}"'))
    reference = {**REFERENCE, "corpus": corpus, "val_bpb": [9.5, loss]}
    save(folder / "references.json", {"references": [reference]})
    sentences = memory_worth(of(folder))
    assert [one.startswith(begins or "") for one in sentences] == [True] * (begins is not None)
