"""How far initialisations end alike: spreads against loops, and which arms make a group."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import change, write_study

from plkernel.decays.memory import memory_of
from plkernel.results.convergence import convergence, groups, learnt_kernels_figure, shapes, spread
from plkernel.results.study import Study, read_study

LAGS = [1, 4, 16, 1024]


def state(scale: float, exponent: float) -> dict[str, Any]:
    kernel = {"lags": LAGS, "blocks": [[lag**-exponent for lag in LAGS]] * 2}
    return {"half_life_quantiles": [[scale * q for q in range(1, 8)]] * 2, "kernel": kernel}


def study(
    folder: Path, arms: dict[str, dict[str, Any]], models: dict[str, Any], frozen: str = ""
) -> Study:
    """Arms whose half-lives end alike, those of `frozen` where they began; model.* by arm."""
    spec = {"baseline": next(iter(arms)), "arms": arms, "within": ["reading"]}
    write_study(folder, effects=dict.fromkeys(arms, 0.0), spec=spec, state=state(2.0, 0.5))
    for at, arm in enumerate(arms):
        for path in (folder / arm).rglob("metrics.jsonl"):
            first, *rest = path.read_text().splitlines()
            before = state(2.0 if arm == frozen else 0.5 ** (at + 1), 0.5 + at)
            path.write_text("\n".join([json.dumps(json.loads(first) | before), *rest, ""]))
        for path in (folder / arm).rglob("config.json"):
            change(path, model=models.get(arm, {"gain": "ema"}))
    return read_study(folder)


def level(reading: str) -> dict[str, Any]:
    return {"levels": {"reading": reading}}


def test_arms_that_differ_in_their_initialisation_alone_make_a_group(tmp_path: Path) -> None:
    arms = {name: level("bytes") for name in ("a", "b", "c", "frozen", "d", "e", "lru")}
    arms |= {"p": level("patches"), "q": level("patches")}
    models: dict[str, Any] = {name: {"kind": "goose", "gain": "x"} for name in ("d", "e")}
    models["lru"] = {"gain": "lru"}
    found = groups(study(tmp_path, arms, models, frozen="frozen"))
    assert {name: list(of) for name, of in found.items()} == {
        "bytes, ema": ["a", "b", "c"],
        "bytes, goose": ["d", "e"],
        "patches, ema": ["p", "q"],
    }


def test_one_gain_is_not_named_and_frozen_half_lives_are_apart(tmp_path: Path) -> None:
    arms = {name: level("bytes") for name in ("a", "b", "c")}
    found = groups(study(tmp_path, arms, {}))
    assert {name: list(of) for name, of in found.items()} == {"bytes": ["a", "b", "c"]}
    for arm in "ab":
        for path in (tmp_path / arm).rglob("metrics.jsonl"):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            rows[0]["half_life_quantiles"] = rows[-1]["half_life_quantiles"]
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = groups(read_study(tmp_path))
    assert {name: list(of) for name, of in found.items()} == {"bytes, not learnt": ["a", "b"]}


def test_arms_of_which_one_time_is_unknown_do_not_count(tmp_path: Path) -> None:
    study(tmp_path, {name: level("bytes") for name in ("a", "b", "c")}, {})
    for path in (tmp_path / "c").rglob("metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        del rows[0]["kernel"]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert list(groups(read_study(tmp_path))["bytes"]) == ["a", "b"]


def test_a_spread_is_that_of_loops() -> None:
    rng = np.random.default_rng(0)
    values = [(rng.normal(size=(3, 2, 4)), rng.normal(size=(3, 2, 4))) for _ in range(5)]
    deviations, errors = [], []
    for block in range(2):
        for lag in range(4):
            means = [statistics.fmean(after[:, block, lag]) for _, after in values]
            deviations.append(statistics.pstdev(means))
            variances = [statistics.variance(after[:, block, lag]) / 3 for _, after in values]
            errors.append(math.sqrt(4 / 5 * statistics.fmean(variances)))
    found = spread(values)
    assert found.after == pytest.approx(statistics.fmean(deviations), rel=1e-12)
    assert found.seeds == pytest.approx(statistics.fmean(errors), rel=1e-12)
    assert spread([(after, before) for before, after in values]).before == found.after
    assert math.isnan(spread([(before[:1], after[:1]) for before, after in values]).seeds)


def test_kernels_are_compared_in_octaves_from_the_second_lag_to_256(tmp_path: Path) -> None:
    arms = {name: level("bytes") for name in ("a", "b")}
    one = study(tmp_path, arms, {})
    before = memory_of([run.first for run in one.finished("b")])
    assert shapes(before) == pytest.approx(np.broadcast_to([-3.0, -6.0], (2, 2, 2)))
    half_lives, kernels = convergence(groups(one)["bytes"])
    assert (half_lives.before, half_lives.after) == pytest.approx((0.5, 0.0))
    assert (kernels.before, kernels.after) == pytest.approx((1.5, 0.0), abs=1e-12)


def test_kernels_before_and_after_are_drawn_with_their_spread(tmp_path: Path) -> None:
    arms = {name: level("bytes") for name in ("a_x", "b_x")}
    figure = learnt_kernels_figure(groups(study(tmp_path, arms, {})))
    before, after = figure.axes
    assert before.get_title("left") == "bytes, before\nkernel 1.50, half-lives 0.50"
    assert after.get_title("left") == "bytes, after\nkernel 0.00, half-lives 0.00"
    drawn = [line.get_ydata() for line in before.lines]
    wanted = [[lag**-0.5 for lag in LAGS], [lag**-1.5 for lag in LAGS]]
    assert np.array(drawn) == pytest.approx(np.array(wanted), rel=1e-9)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_power_laws_are_straight_lines_from_lag_1_on(tmp_path: Path) -> None:
    """Both scales are logarithmic, the same in every panel, and the axis begins at lag 1."""
    arms = {name: level("bytes") for name in ("a_x", "b_x")}
    for axes in learnt_kernels_figure(groups(study(tmp_path, arms, {}))).axes:
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        assert left == 1
        assert right == 256
        assert bottom < 256**-1.15 < 1 < top
        line = axes.lines[-1]
        ends = axes.transData.transform(np.column_stack(line.get_data()))
        slopes = np.diff(ends[:, 1]) / np.diff(ends[:, 0])
        np.testing.assert_allclose(slopes, slopes[0], rtol=1e-6)
