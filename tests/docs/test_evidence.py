"""Sentences and figures of docs/evidence/ say what the committed rows say."""

import json
import statistics
from math import log2, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plkernel.results.convergence import Spread, Starts, convergence, exponents, groups, kernels_figure, spread
from plkernel.results.study import read_study

RECORDS = Path(__file__).parents[2] / "runs" / "records"
STUDIES = {path.parent.name: read_study(path.parent) for path in sorted(RECORDS.glob("*/rows.jsonl"))}
BLOCKS = {(name, block): starts for name, study in STUDIES.items() for block, starts in groups(study).items()}


def without(starts: Starts, name: str) -> Starts:
    return {arm: memories for arm, memories in starts.items() if not arm.startswith(name)}


def by_hand(rows: list[dict[str, Any]], arms: list[str], at: str, kernel: bool) -> tuple[float, float]:
    """Spread over starts and of seeds alone, in loops over the rows as they are in the file."""
    found, alone = [], []
    for block in range(len(rows[0]["first"]["kernel"]["blocks"])):
        for place in range(1, 9) if kernel else range(7):
            seeds = []
            for arm in arms:
                own = [row[at] for row in rows if row["arm"] == arm and row["status"] == "finished"]
                values = [one["kernel"]["blocks"] if kernel else one["half_life_quantiles"] for one in own]
                curves = [one[block] for one in values]
                seeds.append([log2(one[place] / one[0]) if kernel else log2(one[place]) for one in curves])
            found.append(statistics.pstdev(statistics.fmean(one) for one in seeds))
            variance = statistics.fmean(statistics.variance(one) / len(one) for one in seeds)
            alone.append(sqrt(variance * (len(arms) - 1) / len(arms)))
    return statistics.fmean(found), statistics.fmean(alone)


@pytest.mark.parametrize(("name", "block"), BLOCKS)
def test_spreads_are_those_of_the_rows(name: str, block: str) -> None:
    rows = [json.loads(line) for line in (RECORDS / name / "rows.jsonl").read_text().splitlines()]
    starts = BLOCKS[name, block]
    for kernel, one in enumerate(convergence(starts)):
        (before, _), (after, seeds) = (by_hand(rows, list(starts), at, bool(kernel)) for at in ("first", "last"))
        assert one == pytest.approx((before, after, seeds), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "block", "half_lives", "kernel"),
    [
        ("memory-text", "ema", (1.66, 1.32), (3.04, 0.19)),
        ("memory-text", "lru", (1.66, 1.77), (3.01, 0.52)),
        ("memory-length", "good", (1.76, 1.33), (2.79, 0.15)),
        ("memory-lags", "lags-0.7", (2.20, 1.39), (3.41, 0.59)),
        ("memory-markov", "", (2.39, 2.38), (3.45, 3.29)),
    ],
)
def test_kernels_converge_where_memory_matters_and_half_lives_do_not(
    name: str, block: str, half_lives: tuple[float, float], kernel: tuple[float, float]
) -> None:
    half, shape = convergence(without(BLOCKS[name, block], "quantile"))
    assert half[:2] == pytest.approx(half_lives, abs=0.005)
    assert shape[:2] == pytest.approx(kernel, abs=0.005)


def test_the_usual_start_is_where_learning_ends() -> None:
    starts = without(BLOCKS["memory-text", "ema"], "quantile")
    ends = {arm: exponents(after) for arm, (_, after) in starts.items()}
    inside = [arm for arm, found in ends.items() if ((found > 0.915) & (found < 1.035)).all()]
    assert len(starts) == 6
    assert set(starts) - set(inside) == {"short_ema"}
    assert exponents(starts["log-spaced_ema"][0]) == pytest.approx([0.92, 0.92], abs=0.005)
    assert exponents(starts["law_ema"][0]) == pytest.approx([0.42, 0.42], abs=0.005)


def test_starts_are_grouped_by_block_and_by_whether_they_are_learnt() -> None:
    assert [block for name, block in BLOCKS if name == "memory-lags"] == ["lags-0.7", "lags-1.3"]
    assert "short-frozen_lags-0.7" not in BLOCKS["memory-lags", "lags-0.7"]
    assert len(BLOCKS["memory-dose", "lags-0.7, frozen, not learnt"]) == 6
    assert {name for name, _ in BLOCKS} == STUDIES.keys() - {"quick", "schemes", "memory-bible"}


def test_a_spread_has_the_divisor_of_the_starts_and_no_seeds_without_two() -> None:
    pair = [(np.full((1, 1, 1), value), np.full((1, 1, 1), end)) for value, end in ((0.0, 1.0), (2.0, 1.0))]
    assert spread(pair)[:2] == (1.0, 0.0)
    assert np.isnan(spread(pair).seeds)
    noisy = [(np.zeros((2, 1, 1)), np.array([-1.0, 1.0])[:, None, None] + shift) for shift in (0.0, 0.0)]
    assert spread(noisy) == pytest.approx(Spread(0.0, 0.0, sqrt(0.5 * 2 / 2)))


def test_the_figure_has_every_start_before_and_after() -> None:
    starts = BLOCKS["memory-markov", ""]
    above, below = kernels_figure({"Markov": starts}).axes
    for time, axes in enumerate((above, below)):
        for line, memories in zip(axes.get_lines(), starts.values(), strict=True):
            values = np.asarray(line.get_ydata())
            assert np.log(values) == pytest.approx(memories[time].log_kernels().mean(axis=0), abs=1e-9)
