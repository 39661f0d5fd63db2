"""Figures of a study, read back: curves, bands, forests and kernels hold what the rows hold."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import BASELINE, change, write_study

from plkernel.analysis.figures import style
from plkernel.analysis.figures.style import COLOURS
from plkernel.decays.memory import memory_of
from plkernel.results.comparison import Comparison, compare
from plkernel.results.figures import context_of, drawings
from plkernel.results.forest import ForestRow, forest
from plkernel.results.loss_curves import difference_figure
from plkernel.results.statistics import mean_interval, pointwise_band
from plkernel.results.study import read_study


def of(folder: Path) -> Comparison:
    return compare(read_study(folder))


def test_figures_are_drawn_from_the_rows(tmp_path: Path) -> None:
    one = of(write_study(tmp_path, seeds=range(5)))
    whole, forest, convergence, difference = (drawing.figure for drawing in drawings(one))
    assert [axes.get_title("left")[0] for axes in whole.axes] == ["a", "b"]
    again = [drawing.figure for drawing in drawings(one)][1]
    files, same = (style.rendered(one, ["pdf", "svg"]) for one in (forest, again))
    assert files == same, "the same study gives the same files"
    own, base = (one.study.curves(arm) for arm in ("concentrated", BASELINE))
    for axes, start in zip(convergence.axes, (1, 2), strict=True):
        thick = [line.get_xydata() for line in axes.lines if line.get_linewidth() == 1.5]
        for line, curves in zip(thick, (base, own), strict=True):
            mean = pointwise_band([*curves.values()])
            assert line == pytest.approx(
                np.column_stack([mean.at[start:] / 1e3, mean.mean[start:]])
            )
    assert convergence.axes[1].get_xlim() == pytest.approx((mean.at[-1] / 2e3, mean.at[-1] / 1e3))
    curves = [{at: curve[at] - base[seed][at] for at in curve} for seed, curve in own.items()]
    panel = difference.axes[0]
    assert panel.get_title("left") == f"concentrated\nminus {BASELINE}"
    band = pointwise_band(curves)
    edges = panel.collections[0].get_paths()[0].vertices
    assert (edges[:, 1].min(), edges[:, 1].max()) == pytest.approx(
        (band.low.min(), band.high.max())
    )
    low, high = panel.get_ylim()
    late = [value for curve in curves for at, value in curve.items() if at >= mean.at[-1] / 10]
    assert low < min(0.0, *late)
    assert high > max(0.0, *late)
    assert high - low <= 6.6 * max(map(abs, late))


def test_a_forest_shows_seeds_means_and_intervals() -> None:
    def row(scale: float, holds: bool = True) -> ForestRow:
        values = [scale * value for value in (0.9, 1.0, 1.1)]
        return ForestRow(f"row {scale}", mean_interval(values), values, holds)

    near = [row(0.01), row(0.012, False), row(-0.011)]
    none = ForestRow("none", None, [], False)
    assert forest({"": [none]}, "").axes[0].get_xlim() == (-1e-3, 1e-3)
    axes = forest({"block": [*near, row(-5.0), none]}, "difference").axes[0]
    widest = max(abs(edge) for one in near for edge in (one.difference.low, one.difference.high))  # type: ignore[union-attr]
    assert axes.get_xlim() == pytest.approx((-1.07 * widest, 1.07 * widest)), (
        "room for every interval"
    )
    assert (
        forest({"": [ForestRow("two", mean_interval([0.1, 0.2]), [0.1, 0.2], True)]}, "")
        .axes[0]
        .get_xlim()[1]
        < 0.65
    )
    assert [text.get_text() for text in axes.get_yticklabels()][:2] == ["", "row 0.01"]
    assert [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "<"] == [
        axes.get_xlim()[0]
    ]
    seeds = [line for line in axes.lines if line.get_marker() == "|"]
    means = [line for line in axes.lines if line.get_marker() == "o"]
    bars = [line.get_xdata() for line in axes.lines if line.get_linewidth() == 1.2]
    for one, strokes, bar in zip(near, seeds, bars, strict=False):
        assert list(strokes.get_xdata()) == list(one.per_seed)
        assert one.difference is not None
        assert list(bar) == [one.difference.low, one.difference.high]
    assert [line.get_markerfacecolor() == "none" for line in means] == [False, True, False]
    assert [COLOURS.index(line.get_color()) for line in means] == [1, 1, 0]
    assert [line.get_xdata()[0] for line in (axes.lines[0], *means)] == pytest.approx(
        [0, 0.01, 0.012, -0.011]
    )
    assert " no common seed" in [text.get_text() for text in axes.texts]


def test_the_shaded_range_is_where_the_claim_holds(declared_study: Callable[..., Path]) -> None:
    claims = [
        {"name": kind, "arm": "better", "claim": kind, "margin": 0.01}
        for kind in ("lower", "higher", "equal", "lower_by_less")
    ]
    one = of(declared_study(claims))
    axes, every = (
        drawing.figure.axes[0]
        for drawing in drawings(one)
        if drawing.name in ("verdicts", "forest")
    )
    low, high = axes.get_xlim()
    drawn = [bar.get_x() + np.array([0, bar.get_width()]) for bar in axes.patches]
    assert np.array(drawn) == pytest.approx(
        np.array([[low, -0.01], [0.01, high], [-0.01, 0.01], [-0.01, 0.0]])
    )
    for panel, holds in ((axes, [True, False, False, False]), (every, [True, False])):
        means = [line for line in panel.lines if line.get_marker() == "o"]
        assert [line.get_markerfacecolor() != "none" for line in means] == holds
    assert [line.get_xdata()[0] for line in means] == [
        each.mean for each in one.differences.values()
    ]


def test_memory_is_read_from_the_first_and_last_rows(tmp_path: Path) -> None:
    def state(exponent: float, longest: float) -> dict[str, Any]:
        lags = [1, 4, 16, 64]
        kernel = {"lags": lags, "blocks": [[lag**-exponent for lag in lags]] * 2}
        return {"half_life_quantiles": [[1, 2, 4, 8, 16, 32, longest]] * 2, "kernel": kernel}

    folder = write_study(tmp_path, state=state(0.5, 640.0))
    for path in folder.rglob("metrics.jsonl"):
        first, *rest = path.read_text().splitlines()
        path.write_text("\n".join([json.dumps(json.loads(first) | state(1.15, 64.0)), *rest, ""]))
    one = of(folder)
    runs = one.study.finished(BASELINE)
    before, after = (memory_of([getattr(run, at) for run in runs]) for at in ("first", "last"))
    assert (before.half_lives.max(), after.half_lives.max()) == (64.0, 640.0)
    kernels = next(drawing.figure for drawing in drawings(one) if drawing.name == "kernels")
    titles = [axes.get_title("left") for axes in kernels.axes]
    assert titles == [f"{arm}\nslope 1.15 to 0.50" for arm in (BASELINE, "concentrated")]


def test_an_outlier_does_not_flatten_the_other_differences() -> None:
    def arm(size: float) -> list[dict[int, float]]:
        return [{at: sign * size for at in (0, 100, 200)} for sign in (-1.0, 1.0)]

    low, high = (
        difference_figure({"a": arm(0.01), "b": arm(0.02), "c": arm(0.015), "diverged": arm(5.0)})
        .axes[0]
        .get_ylim()
    )
    assert 0.02 < high < 0.2
    assert -0.2 < low < -0.02


def test_the_grey_law_has_the_exponent_that_the_arm_aims_at(tmp_path: Path) -> None:
    """beta, or 1.15 unless given; half of it where the target is a correlation."""
    lags = [1, 4, 16, 64]
    kernel = {"lags": lags, "blocks": [[1 / lag for lag in lags]]}
    options: dict[str, dict[str, Any]] = {
        BASELINE: {},
        "steep": {"beta": 2.0},
        "half": {"target": "correlation"},
        "own half": {"beta": 0.5, "target": "correlation"},
    }
    folder = write_study(
        tmp_path,
        effects=dict.fromkeys(options, 0.0),
        spec={"arms": options},
        state={"kernel": kernel},
    )
    kernels = next(one.figure for one in drawings(of(folder)) if one.name == "kernels")
    for axes, exponent in zip(kernels.axes, (1.15, 2.0, 0.575, 0.25), strict=True):
        at, law = axes.lines[0].get_xydata().T
        assert axes.lines[0].get_linewidth() == 4, "the broad line"
        assert law == pytest.approx(at**-exponent, rel=1e-12)


def test_curves_over_the_context_are_those_of_the_results(tmp_path: Path) -> None:
    """Runs of other positions, or with a value that is not finite, are left out."""
    folder = write_study(tmp_path, seeds=(0, 1, 2, 3))
    bits = [[3.0, 2.5, 2.0], [3.2, 2.5, 2.2], [9.0, None, 9.0]]
    for seed, values in enumerate(bits):
        curve = {"given": [1, 4, 64], "bpb": values, "floor": [2.8, 2.4, 1.9 + 0.1 * seed]}
        change(folder / f"{BASELINE}/seed-{seed}/result.json", truncation=curve)
    shorter = {"given": [1, 4], "bpb": [9.0, 9.0]}
    change(folder / f"{BASELINE}/seed-3/result.json", truncation=shorter)
    comparison = of(folder)
    found = context_of(comparison, comparison[BASELINE], "truncation")
    assert found is not None
    assert tuple(found.at) == (1, 4, 64)
    assert found.bits == pytest.approx(np.array([bits[0], bits[1]], dtype=float))
    assert found.best == pytest.approx((2.8, 2.4, 1.95))
    assert context_of(comparison, comparison[BASELINE], "influence") is None
    assert context_of(comparison, comparison["concentrated"], "truncation") is None


def test_difference_curves_of_all_blocks_share_their_limits(tmp_path: Path) -> None:
    arms: dict[str, dict[str, Any]] = {
        f"{placement}_{gain}": {"levels": {"placement": placement, "gain": gain}}
        for gain in ("none", "ema")
        for placement in ("a", "b")
    }
    arms["b_ema"]["against"] = "a_ema"
    effects = {"a_none": 0.0, "b_none": -0.1, "a_ema": 0.0, "b_ema": 0.2}
    folder = write_study(
        tmp_path,
        effects=effects,
        spec={"baseline": "a_none", "within": ["gain"], "arms": arms},
    )
    by_name = {one.name: one.figure for one in drawings(of(folder))}
    limits = [by_name[f"difference-{gain}"].axes[0].get_ylim() for gain in ("none", "ema")]
    assert limits[0] == limits[1]
    assert limits[0][0] < -0.1
    assert limits[0][1] > 0.2


def test_a_title_that_would_not_fit_is_smaller() -> None:
    curves = [{0: 0.0, 100: sign, 200: sign} for sign in (-1.0, 1.0)]
    titles = {"short": curves, "x" * 40: curves, "y" * 99: curves}
    panels = difference_figure(titles).axes
    left = [axes._left_title.get_fontsize() for axes in panels]
    assert left == [8.0, 8.0 * 34 / 40, 8.0 * 0.6]
