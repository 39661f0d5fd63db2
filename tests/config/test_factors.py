"""Groups of arms: curves over learning rates, means over blocks, and what each is compared with."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from plkernel.config.factors import (
    Design,
    _label,
    curves_of,
    expanded,
    means_of,
    nested,
    opposite,
)
from plkernel.config.spec import compared_with

ARMS: dict[str, dict[str, Any]] = {
    "law_none": {"levels": {"gain": "none"}},
    "plain_none": {"levels": {"gain": "none"}},
    "law_ema": {"levels": {"gain": "ema"}},
    "plain_ema": {"levels": {"gain": "ema"}},
    "alone_none": {"levels": {"gain": "none"}},
    "free": {},
}
CURVE_OF_THREE: dict[str, Any] = {"tuning": {"method": "curve", "rates": [0.001, 0.002, 0.004]}}


def test_means_are_of_arms_in_more_than_one_block() -> None:
    expected = {
        "law": {"none": "law_none", "ema": "law_ema"},
        "plain": {"none": "plain_none", "ema": "plain_ema"},
    }
    assert means_of(ARMS, ["gain"]) == expected
    assert means_of(ARMS, []) == {}
    assert means_of(ARMS, ["gain", "learning_rate"]) == {}
    named = {**ARMS, "law": {}}
    assert means_of(named, ["gain"]) == {"plain": expected["plain"]}, "an arm has that name"


def test_curves_are_of_arms_with_a_level_of_the_rate() -> None:
    arms = {
        f"{name}_{rate:g}": {"learning_rate": rate, "levels": {"learning_rate": f"{rate:g}"}}
        for name in ("a", "b")
        for rate in (0.001, 0.002)
    }
    assert curves_of({**arms, "c": {"levels": None}, "d": {"levels": {"gain": "x"}}}) == {
        "a": {0.001: "a_0.001", 0.002: "a_0.002"},
        "b": {0.001: "b_0.001", 0.002: "b_0.002"},
    }


@pytest.mark.parametrize("order", [("law", "other", "plain"), ("plain", "law", "other")])
def test_a_group_is_compared_with_the_one_of_its_baselines(order: tuple[str, ...]) -> None:
    """Wherever that stands; the group of the baselines with none."""
    groups: Mapping[str, Mapping[Any, str]] = {
        name: {block: f"{name}_{block}" for block in ("none", "ema")} for name in order
    }

    def against(arm: str) -> str | None:
        name, _, block = arm.partition("_")
        return None if name == "plain" else f"plain_{block}"

    assert opposite(groups, "law", against) == "plain"
    assert opposite(groups, "other", against) == "plain"
    assert opposite(groups, "plain", against) is None


@pytest.mark.parametrize(
    ("arm", "given", "expected"),
    [
        ("a", None, "base"),
        ("base", None, None),
        ("a", "b", "b"),
        ("base", "b", "b"),
        ("far", None, None),
    ],
)
def test_arms_are_compared_within_their_block(
    arm: str, given: str | None, expected: str | None
) -> None:
    levels = {"a": {"gain": "x", "beta": "1"}, "base": {"gain": "x"}, "far": {"gain": "y"}}
    found = compared_with(arm, given, lambda name: levels.get(name, {}), "base", ["gain"])
    assert found == expected


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (0.5, "0.5"),
        (1e-5, "1e-05"),
        (1e5, "100000"),
        (1e6, "1e06"),
        (-2e22, "-2e22"),
        (1234567.0, "1234567.0"),
        (0.0010000001, "0.0010000001"),
        (3, "3"),
        (True, "True"),
        ("a b/c", "a-b-c"),
        (-1.5, "-1.5"),
    ],
)
def test_a_level_is_a_part_of_a_name(value: Any, label: str) -> None:
    assert _label(value) == label
    if isinstance(value, float):
        assert float(label) == value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"factors": {"model.gain": ["a+b", "a-b"]}},
            "factors.model.gain must have levels of different names, got 'a+b' and 'a-b', which are"
            " both 'a-b' in names of arms",
        ),
        (
            {"factors": {"beta": [1, 2], "p": [3, 4]}, "within": ["beta", "beta"]},
            "within must name every factor once, got ['beta', 'beta']",
        ),
        (
            {**CURVE_OF_THREE, "within": ["learning_rate"]},
            "within must leave out 'learning_rate' with tuning.method 'curve', which compares arms"
            " at every rate anyway, got ['learning_rate']",
        ),
        (
            {**CURVE_OF_THREE, "within": ["gain"]},
            "within must be left out without [factors], got ['gain']",
        ),
        (
            {"tuning": {"method": "curve", "rates": [0.001]}},
            "tuning.rates must be 3 or more with tuning.method 'curve', got [0.001]",
        ),
        (
            {**CURVE_OF_THREE, "factors": {"size": {"small": {"learning_rate": 0.1}, "big": {}}}},
            "factors.size.small: learning_rate must be left out with tuning.method 'curve', as all"
            " arms have tuning.rates, got 0.1",
        ),
        (
            {"tuning": {"method": "curve", "rates": [0.001 * at for at in range(1, 5000)]}},
            "factors and tuning.rates must make at most 4,096 arms, got more",
        ),
        (
            {"factors": {"a": {"x": {}, "x_y": {}}, "b": {"y_z": {}, "z": {}}}},
            "factors must make arms of different names, got 'x_y_z' of two combinations",
        ),
        (
            {"factors": {"a": {"x": {}, "x_y": {}}, "b": {"y_z": {}, "z": {}}}, "within": ["b"]},
            "factors must make arms of different names, got 'x_y_z' of two combinations",
        ),
        (
            {"factors": {"a": {"": {}, "x": {}}}},
            "factors.a must have levels with names, got ''",
        ),
        (
            {"factors": {"corpus.column": ["", "text"]}},
            "factors.corpus.column must have levels with names, got ''",
        ),
    ],
)
def test_a_design_is_refused_by_the_keys_that_were_written(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        expanded({"arms": {"a": {}}, "baseline": "a", **values})


def test_a_value_is_nested_in_its_tables() -> None:
    assert nested(["model", "gain"], "ema") == {"model": {"gain": "ema"}}
    assert nested([], 3) == 3


def test_what_has_no_factors_or_is_expanded_comes_back_as_it_is() -> None:
    plain = {"name": "s", "arms": {"a": {}}}
    assert expanded(plain) is plain
    done = {"factors": {"beta": [1, 2]}, "arms": {"a": {"levels": {"beta": "1"}}}}
    assert expanded(done) is done
    search = {"tuning": {"method": "search", "rates": [1, 2]}, "arms": {"a": {}}}
    assert expanded(search) is search


def test_rates_of_curves_are_the_last_factor_of_the_blocks() -> None:
    values = {
        "tuning": {"method": "curve", "rates": [0.001, 0.002, 0.004]},
        "arms": {"a": {}, "b": {"beta": 0.5}},
        "baseline": "a",
    }
    found = expanded(values)
    assert found["within"] == ["learning_rate"]
    assert found["baseline"] == "a_0.001"
    names = ["a_0.001", "b_0.001", "a_0.002", "b_0.002", "a_0.004", "b_0.004"]
    assert list(found["arms"]) == names
    second = found["arms"]["b_0.002"]
    assert second == {
        "learning_rate": 0.002,
        "beta": 0.5,
        "against": "a_0.002",
        "levels": {"learning_rate": "0.002"},
    }
    assert "against" not in found["arms"]["a_0.002"]


def test_rates_of_curves_stand_behind_other_levels_in_names() -> None:
    found = expanded(
        {
            **CURVE_OF_THREE,
            "factors": {"model.gain": ["none", "ema"]},
            "within": ["model.gain"],
            "arms": {"a": {}},
            "baseline": "a",
        }
    )
    assert (found["within"], found["baseline"]) == (["model.gain", "learning_rate"], "a_none_0.001")
    assert list(found["arms"])[::3] == ["a_none_0.001", "a_ema_0.001"]


def test_a_design_names_its_first_baseline() -> None:
    factors = {"p": {"x": {}, "y": {}}, "g": {"n": {}, "e": {}}}
    plain = Design(factors, ["g"], {}, None)
    assert (plain.baseline, plain.first_baseline) == ("x", "x_n")
    assert plain.short_names == ["x", "y"]
    given = Design(factors, ["g"], {"z": {}}, "z")
    assert (given.baseline, given.first_baseline) == ("z", "z_n")
    assert Design(factors, ["g"], {"z": {}}, "z_e").first_baseline == "z_e"
    in_a_block = Design(factors, ["g"], {"z": {}, "z_e": {}, "x_e": {}}, None)
    assert in_a_block.short_names == ["x", "y", "z"], "z_e adds to z"
    alone = Design({"g": factors["g"]}, ["g"], {"z": {}}, None)
    assert (alone.cells, alone.baseline, list(alone.blocks)) == ({}, "", ["n", "e"])
