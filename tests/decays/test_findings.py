"""Findings in decays, each at its limit: one step before it and one behind."""

import math
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from plkernel.decays import findings
from plkernel.decays.checkpoints import Checkpoint, Stored
from plkernel.decays.families import FAMILIES, Given, full_of, log_indices, rwkv_from
from plkernel.decays.findings import LONGEST, Finding, grouped
from plkernel.decays.inspection import inspected
from plkernel.decays.rates import half_lives, kernel, known_layers, quantiles
from plkernel.decays.structure import (
    _otherwise,
    _setting,
    _size,
    layers_of,
    number_in,
    too_many,
    unread,
)
from plkernel.decays.tensors import open_checkpoint

LN2 = float(np.log(2.0))


def a_layer(
    rates: Any = (1.0,),
    tensors: dict[str, Any] | None = None,
    dtype: str = "float32",
    config: dict[str, Any] | None = None,
    **family: Any,
) -> Any:
    """A layer with these rates; a role without a formula has rates equal to its numbers."""
    stored = {role: Stored(np.asarray(x, float), dtype) for role, x in (tensors or {}).items()}
    kind = SimpleNamespace(
        **{
            "name": "family",
            "own": False,
            "fixed": None,
            "starts": {},
            "equal": (),
            "rate": None,
            **family,
        }
    )

    def rates_of(**others: Any) -> Any:
        return next(iter(others.values())) if others else np.asarray(rates, float)

    return SimpleNamespace(
        module="m",
        number=0,
        family=kind,
        names={role: f"m.{role}" for role in stored},
        tensors=stored,
        config=config or {},
        given=Given({}, config or {}, 0),
        rates=np.asarray(rates, float),
        rates_of=rates_of,
    )


def out_of_range(*tokens: float, started: tuple[str, ...] = ()) -> list[Finding]:
    layer = a_layer(LN2 / np.array(tokens), {"w": [1.0, 2.0]})
    return list(findings._out_of_range(layer, started, "m.w"))


def test_a_half_life_of_one_token_is_none_below() -> None:
    assert half_lives(np.array([LN2])) == 1.0
    assert not out_of_range(1.0, 2.0)
    assert not out_of_range(0.999, 0.981, 2.0), "a token that was rounded"
    [one] = out_of_range(0.979, 0.999, 2.0)
    assert one[1:] == ("m.w", "half-lives of 1 of 3, the shortest 0.979", "notable")
    assert one.name == "below one token"


def test_a_half_life_of_the_longest_is_none_above(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LONGEST == 1e6
    [one] = out_of_range(2 * LONGEST, 2.0)
    assert one[1:] == ("m.w", "half-lives of 1 of 2, up to 2e+06", "notable")
    longest = 2.0**20  # by which ln 2 is divided without rounding
    monkeypatch.setattr(findings, "LONGEST", longest)
    assert half_lives(LN2 / np.array([longest])).tolist() == [longest]
    assert not out_of_range(longest, 2.0)
    assert out_of_range(longest * (1 + 1e-12), 2.0)


@pytest.mark.parametrize(
    ("tokens", "started", "severity"),
    [
        ((2e6, 2.0), ("w",), "notable"),
        ((2e6, 3e6, 2.0), ("w",), "wrong"),
        ((2e6, 3e6, 2.0), (), "notable"),
    ],
    ids=["half of them", "more than half", "trained"],
)
def test_a_fresh_layer_most_of_which_never_forgets_is_wrong(
    tokens: tuple[float, ...], started: tuple[str, ...], severity: str
) -> None:
    [one] = out_of_range(*tokens, started=started)
    assert one.severity == severity
    assert ("so that the state never forgets" in one.seen) == (severity == "wrong")


def test_a_decay_of_one_does_not_grow_and_one_above_does() -> None:
    still = a_layer([0.0, 1.0], {"w": [1.0]})
    assert "grows" not in [one.name for one in findings._out_of_range(still, (), "m.w")]
    [one] = findings._out_of_range(a_layer([-0.1, 0.5], {"w": [1.0]}), (), "m.w")
    assert (one.name, one.severity) == ("grows", "wrong")
    assert one.seen == "1 of 2 grow with time: their decay is above 1"


@pytest.mark.parametrize(
    ("tokens", "numbers", "level"),
    [
        ([10.0, 10.0], [0.1, 0.2], True),
        ([10.0, 10.0009], [0.1, 0.2], True),
        ([10.0, 10.002], [0.1, 0.2], False),
        ([10.0, 10.0], [0.1, 0.1], False),
        ([10.0], [0.1], False),
        ([np.inf, np.inf], [0.1, 0.2], False),
    ],
)
def test_half_lives_that_are_all_but_equal_are_level(
    tokens: list[float], numbers: list[float], level: bool
) -> None:
    layer = a_layer(LN2 / np.array(tokens), {"w": numbers})
    assert findings._are_level(layer) is level


@pytest.mark.parametrize(
    ("numbers", "dtype", "found"),
    [
        ([0.0, 0.0], "float32", "zeros"),
        ([0.5, 0.5], "float32", "all equal"),
        ([0.5, 0.5], "bfloat16", ""),
        ([0.5, 0.5, 0.5], "bfloat16", "all equal"),
        ([0.5], "float32", ""),
        ([0.0], "float32", "zeros"),
        ([0.5] * 4 + [0.1, 0.2, 0.3, 0.4], "float32", "reset"),
        ([0.5] * 3 + [0.1, 0.2, 0.3, 0.4], "float32", ""),
        ([0.5] * 4 + [0.01 * place for place in range(12)], "float32", "reset"),
        ([0.5] * 4 + [0.01 * place for place in range(13)], "float32", ""),
        ([0.5] * 4 + [0.1] * 2 + [0.2, 0.3], "float32", "reset"),
        ([0.5] * 4 + [0.1] * 3 + [0.2, 0.3], "float32", ""),
        ([0.1, 0.1, 0.2, 0.2], "float32", ""),
        ([0.5] * 4 + [0.1, 0.2, 0.3, 0.4], "bfloat16", ""),
        ([0.5, 0.5, 0.1], "float32", ""),
        ([math.nan, math.nan, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7], "float32", ""),
        ([math.nan] * 5 + [0.5] * 4 + [0.1, 0.2, 0.3], "float32", "reset"),
        ([math.nan, math.nan, math.nan, math.inf], "float32", ""),
        ([math.inf, math.inf, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7], "float32", ""),
    ],
)
def test_numbers_that_are_equal_are_no_chance_from_a_quarter_on(
    numbers: list[float], dtype: str, found: str
) -> None:
    layer = a_layer([1.0], {"w": numbers}, dtype)
    assert [one.name for one in findings._hardly_trained(layer, "w", 1)] == (
        [found] if found else []
    )


def counted(shape: tuple[int, ...], number: int, count: int) -> Any:
    return np.arange(1.0, shape[0] + 1)


@pytest.mark.parametrize(
    ("numbers", "found", "seen"),
    [
        ([-1.0, -2.0, -3.0, -4.0], "sign", "is -1 times counted"),
        ([1.0, 2.0, 3.0, 4.0, 5.5], "reset", "4 of 5 numbers still are counted"),
        ([1.0, 2.0, 3.0, 4.5, 5.5], "", ""),
        ([*range(1, 5), *range(20, 32)], "reset", "4 of 16 numbers still are counted"),
        ([*range(1, 5), *range(20, 33)], "", ""),
    ],
)
def test_a_part_that_is_as_it_began_is_told(numbers: list[float], found: str, seen: str) -> None:
    layer = a_layer([1.0], {"w": numbers}, starts={"w": [("counted", counted)]})
    told = [(one.name, one.seen) for one in findings._partly(layer, "w", 1)]
    assert told == ([(found, seen)] if found else [])


MEETING = {
    "geometric": np.geomspace(1, 8, 8),
    "powers of 2": 2.0 ** np.arange(4),
    "8 powers of 2": 2.0 ** np.arange(8),
    "repeated": np.repeat([1.5, 3.0, 6.0, 12.0], 2),
    "from 1 to 4": np.exp(np.linspace(0, np.log(4), 4)),
    "from 1": np.exp(np.linspace(0, 2, 4)),
    "rounded": np.round(np.geomspace(1, 16, 8)),
    "on both sides": np.abs(np.linspace(-4, 4, 8)) + 1.0,
    "in every row": np.tile(2.0 ** np.arange(4), (8, 1)),
}
"""Decays of formulas that meet 1, 2, 3 .. in one number or two of a row."""


@pytest.mark.parametrize("kind", MEETING)
def test_a_formula_that_meets_another_in_two_numbers_was_not_reset(kind: str) -> None:
    values = np.log(MEETING[kind])
    layer = a_layer([1.0], {"A_log": values}, starts={"A_log": [("counted", log_indices)]})
    assert not list(findings._partly(layer, "A_log", 1))
    # The half that a shard begins with is as the official code has it.
    reset = np.log(np.arange(1.0, 17.0) + 0.3)
    reset[:8] = np.log(np.arange(1.0, 9.0))
    layer = a_layer([1.0], {"A_log": reset}, starts={"A_log": [("counted", log_indices)]})
    [told] = findings._partly(layer, "A_log", 1)
    assert (told.name, told.seen) == ("reset", "8 of 16 numbers still are counted")


@pytest.mark.parametrize(("ones", "found"), [(4, ["reset"]), (3, [])])
def test_a_part_of_one_number_is_as_it_began_from_four_on(ones: int, found: list[str]) -> None:
    values = np.linspace(2.0, 3.0, 8)
    values[:ones] = 1.0
    layer = a_layer([1.0], {"w": values}, starts={"w": [("ones", full_of(1.0))]})
    assert [one.name for one in findings._partly(layer, "w", 1)] == found


def test_rows_of_a_line_that_ends_as_rwkv_does_were_not_reset() -> None:
    values = np.linspace(-6.0, -1.0, 8)
    layer = a_layer([1.0], {"w": values}, starts={"w": [("RWKV", rwkv_from(-6.0, -1.0))]})
    layer.number = 1
    assert not list(findings._partly(layer, "w", 3))


@pytest.mark.parametrize(
    ("roots", "told"),
    [
        (("model.backbone.layers.0", "ema_model.backbone.layers.0"), []),
        (("model.mixer", "ema_model.mixer"), []),
        (("model.layers.0", "model.layers.1", "ema.layers.0", "ema.layers.1"), ["ema", "model"]),
        (("model.layers.0", "model.layers.1", "ema.layers.0"), ["model"]),
    ],
)
def test_copies_of_one_layer_are_not_called_identical_layers(
    roots: tuple[str, ...], told: list[str], tmp_path: Path
) -> None:
    numbers = torch.tensor([0.3, 1.7, 0.9, 1.2, 0.1, 2.2, 1.9, 0.4])
    state = {}
    for root in roots:
        state[f"{root}.A_log"] = numbers.clone()
        state[f"{root}.dt_bias"] = numbers - 3
    torch.save(state, tmp_path / "x.pt")
    found = inspected(str(tmp_path / "x.pt")).findings
    alike = [one for one in found if one.name == "identical layers"]
    assert sorted(one.tensor.partition(".")[0] for one in alike) == told


def test_of_a_model_and_its_average_the_one_that_is_not_read_is_notable(tmp_path: Path) -> None:
    state = {"layers.0.A_log": torch.rand(8), "layers.0.dt_bias": torch.rand(8) - 3}
    torch.save({"ema": state, "raw": state}, tmp_path / "x.pt")
    [one] = [one for one in inspected(str(tmp_path / "x.pt")).findings if one.name == "not read"]
    words = "holds weights of the same names, and those of ema were read"
    assert one[1:] == ("raw", words, "notable")


@pytest.mark.parametrize(
    ("rates", "severity"),
    [([1.0, 2.0, 4.0], "notable"), ([1.0, 2.0, 5.0], "wrong"), ([1.0, 2.0], "wrong")],
)
def test_equal_layers_are_wrong_unless_evenly_spaced(rates: list[float], severity: str) -> None:
    alike = [a_layer(rates) for _ in range(3)]
    [one] = findings._identical(alike)
    assert (one.seen, one.severity) == ("all 3 layers have the same decays", severity)
    assert not list(findings._identical(alike[:1]))
    assert not list(findings._identical([*alike, a_layer([1.0, 2.0, 4.1])]))


def test_findings_of_one_name_are_one_line() -> None:
    seen = [Finding("zeros", f"layers.{i}.A_log", "all zero") for i in range(3)]
    seen += [Finding("zeros", "layers.0.dt_bias", "all zero"), Finding("a", "b", "c", "notable")]
    assert grouped(seen, "wrong") == [
        "zeros: layers.0.A_log: all zero (and 2 more like it)",
        "zeros: layers.0.dt_bias: all zero",
    ]
    assert grouped(seen, "notable") == ["a: b: c"]


def test_what_an_initialisation_may_give_is_notable_of_an_own_layer() -> None:
    seen = [Finding("zeros", "m", ""), Finding("NaN", "m", "")]
    own = SimpleNamespace(own=True)
    other = SimpleNamespace(own=False)
    assert [one.severity for one in findings._as_owned(own, seen)] == ["notable", "wrong"]  # type: ignore[arg-type]
    assert [one.severity for one in findings._as_owned(other, seen)] == ["wrong", "wrong"]  # type: ignore[arg-type]


STEP = 0.05
BIAS = STEP + np.log(-np.expm1(-STEP))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"time_step_min": STEP, "time_step_max": STEP}, True),
        ({"time_step_min": STEP, "time_step_max": STEP, "time_step_floor": 0.01}, True),
        ({"time_step_min": 0.01, "time_step_max": 0.01, "time_step_floor": STEP}, True),
        ({"time_step_min": STEP, "time_step_max": 0.1}, False),
        ({"time_step_min": STEP}, False),
        ({"time_step_min": 0.0, "time_step_max": 0.0}, False),
        ({}, False),
    ],
)
def test_one_step_of_all_heads_is_that_of_config_json(config: dict[str, Any], told: bool) -> None:
    layer = a_layer([1.0], {"dt_bias": [BIAS, BIAS]}, config=config)
    assert findings._one_step(layer) == ("the one step of config.json, 0.05" if told else "")
    moved = a_layer([1.0], {"dt_bias": [BIAS, BIAS + 0.01]}, config=config)
    assert findings._one_step(moved) == ""


def test_a_largest_step_that_config_json_leaves_out_is_a_tenth() -> None:
    bias = 0.1 + np.log(-np.expm1(-0.1))
    layer = a_layer([1.0], {"dt_bias": [bias, bias]}, config={"time_step_min": 0.1})
    assert findings._one_step(layer) == "the one step of config.json, 0.1"


@pytest.mark.parametrize(
    ("heads", "config", "wrong"),
    [(4, {"num_heads": 4}, False), (4, {"num_heads": 5}, True), (4, {}, False)],
)
def test_heads_are_those_of_config_json(heads: int, config: dict[str, Any], wrong: bool) -> None:
    layer = a_layer([1.0], {"A_log": np.ones(heads)}, config=config, heads=("num_heads",))
    told = [one.seen for one in findings._other_heads(layer)]
    assert told == (["has 4 heads, and config.json says 5"] if wrong else [])


@pytest.mark.parametrize(
    ("values", "dtype", "was"),
    [
        ([1.0 + 2.0**-7, 1.0 + 3 * 2.0**-7], "bfloat16", True),
        ([1.0 + 2.0**-7, 1.0 + 2.0**-6], "bfloat16", False),
        ([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-7], "bfloat16", False),
        ([1.0 + 2.0**-10, 1.0 + 3 * 2.0**-10], "float16", True),
    ],
    ids=["two need the last digit", "one does", "it does not hold them", "float16"],
)
def test_numbers_were_rounded_that_need_the_last_digit(
    values: list[float], dtype: str, was: bool
) -> None:
    assert findings._was_rounded(np.array(values), dtype) is was


@pytest.mark.parametrize(("count", "short"), [(1, False), (2, True)])
def test_numbers_with_ten_digits_to_spare_are_short(count: int, short: bool) -> None:
    """In bfloat16 1.0 has seven digits that it does not need: two such numbers have 14 together."""
    assert findings._is_short(np.array([1.0, 2.0])[:count], "bfloat16") is short
    assert findings._is_short(np.array([0.0]), "bfloat16")


def test_a_shift_of_two_per_cent_by_rounding_is_none() -> None:
    """In a role whose rates are its numbers, half a spacing of bfloat16 is 2**-8 of 1 at most."""

    def shifted(rates: list[float], numbers: list[float]) -> list[str]:
        layer = a_layer(rates, {"w": numbers}, "bfloat16")
        return [one.seen for one in findings._of_dtype(layer, ())]

    numbers = [1.0078125, 1.0234375, 1.0390625]
    assert not shifted(numbers, numbers)
    # Rates a hundredth as large as the numbers by which they are moved.
    layer = a_layer([0.1, 0.1, 0.1], {"w": numbers}, "bfloat16")
    layer.rates_of = lambda **others: 0.1 + (next(iter(others.values())) - np.array(numbers))
    [told] = findings._of_dtype(layer, ())
    assert told.seen == "bfloat16 leaves half-lives uncertain by up to 4.1%"
    assert told.severity == "wrong"
    [told] = findings._of_dtype(layer, ("w",))
    assert told.severity == "notable"
    layer.rates_of = lambda **others: 0.25 + (next(iter(others.values())) - np.array(numbers))
    layer.rates = np.full(3, 0.25)
    assert not list(findings._of_dtype(layer, ())), "by 1.6 %"


# Names and sizes
# ------------------------------------------------------------------------------------------------


def given(config: dict[str, Any]) -> Given:
    return Given({}, config, 0)


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({"num_hidden_layers": 3}, 3),
        ({"n_layer": 4}, 4),
        ({"num_hidden_layers": True}, 0),
        ({"num_hidden_layers": "3"}, 0),
        ({"layer_types": ["a", "b"]}, 2),
        ({"layer_types": []}, 0),
        ({"hybrid_override_pattern": "M*M"}, 3),
        ({"num_hidden_layers": 3, "layer_types": ["a", "b"]}, 3),
        ({}, 0),
    ],
)
def test_layers_are_counted_by_a_number_or_by_their_kinds(
    config: dict[str, Any], count: int
) -> None:
    assert layers_of(config) == count


@pytest.mark.parametrize(
    ("held", "config", "told"),
    [
        (3, {}, False),
        (4, {}, True),
        (4, {"num_nextn_predict_layers": 1}, False),
        (5, {"num_nextn_predict_layers": 1}, True),
        (5, {"mtp_num_hidden_layers": 2, "num_nextn_predict_layers": 1}, False),
    ],
)
def test_layers_beyond_those_of_config_json_are_told(
    held: int, config: dict[str, Any], told: bool
) -> None:
    words = f"3 layers, and there are tensors of {held}" if told else ""
    assert too_many(held, config, 3) == words
    assert too_many(held, config, 0) == ""


@pytest.mark.parametrize(
    ("value", "size"),
    [
        *((3, 3.0), (0.5, 0.5), (2**31 - 1, 2.0**31 - 1)),
        *((0, 0.0), (-1, 0.0), (2**31, 0.0), (True, 0.0), ("3", 0.0), (None, 0.0)),
    ],
)
def test_a_size_of_config_json_is_a_positive_number(value: Any, size: float) -> None:
    assert _setting(given({"a": value}), "a") == size
    assert _setting(given({"t": {"a": value}}), "t.a") == size
    assert _setting(given({}), "12") == 12.0


def test_sizes_are_products_quotients_and_alternatives() -> None:
    config = {"a": 6, "b": 4, "ssm_cfg": {"d_state": 8}}
    for stated, size in (
        ("a b", 24.0),
        ("a b / 3", 8.0),
        ("a / c", 0.0),
        ("c else a", 6.0),
        ("c else d", 0.0),
        ("a c", 0.0),
        ("ssm_cfg.d_state", 8.0),
        ("ssm_cfg.expand", 2.0),
        ("ssm_cfg.headdim", 64.0),
        ("ssm_cfg.other", 0.0),
        ("a.b", 0.0),
    ):
        assert _size(given(config), stated) == size, stated


@pytest.mark.parametrize(
    ("held", "told"),
    [(6, []), (4, []), (5, ["6 or 4 units"]), (7, ["6 or 4 units"])],
)
def test_a_size_may_be_any_that_config_json_says(held: int, told: list[str]) -> None:
    assert list(_otherwise(given({"a": 6, "b": 4}), ["a", "b", "c"], held, "units")) == told
    assert list(_otherwise(given({}), ["a"], held, "units")) == []


@pytest.mark.parametrize(("held", "is_told"), [(2, False), (3, False), (4, True), (1, True)])
def test_a_size_that_is_no_integer_may_be_rounded_either_way(held: int, is_told: bool) -> None:
    assert bool(list(_otherwise(given({"a": 5}), ["a / 2"], held, "units"))) == is_told


@pytest.mark.parametrize(
    ("module", "number"),
    [
        ("m.layers.3.mixer", "3"),
        ("blocks.0", "0"),
        ("m.h.12.att:back", "12"),
        ("m.mixer", None),
        ("players.3.m", "3"),
        ("m.s4_layers.10.kernel", "10"),
        ("stack.2.layers.7.m", "7"),
        ("down_blocks.1.layers.3.m", "3"),
        ("enc_layers.2.blocks.5.m", "5"),
        ("layers.1234567.m", None),
    ],
)
def test_the_number_of_a_layer_is_in_the_name_of_its_module(
    module: str, number: str | None
) -> None:
    assert number_in(module) == number


def test_a_lone_half_says_what_is_missing_unless_its_module_has_half_lives_already() -> None:
    """Of a module whose half-lives are read by another formula, nothing is missing."""
    ones = Stored(np.ones(4), "float32")
    names = ("m.A_log", "n.slope_rate")
    checkpoint = Checkpoint(names, {}, lambda name: 4, lambda name: ones, lambda: 8)
    family = next(one for one in FAMILIES if [*one.tensors.values()] == ["{at}.slope_rate"])

    def words(module: str) -> str:
        layer = SimpleNamespace(module=module, names={"slope_rate": "n.slope_rate"}, family=family)
        [(_, tensor, said, severity)] = unread(checkpoint, [layer])
        assert (tensor, severity) == ("m.A_log", "wrong")
        return said

    assert words("n").endswith(" is missing beside it, so that no half-life is known")
    assert words("m") == "is named like a decay, but no formula is known for it"


def test_what_is_named_like_a_decay_is_read_for_nan_up_to_a_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.array([1.0, np.nan, -np.inf, np.inf])
    checkpoint = Checkpoint(
        ("m.A_log",), {}, lambda name: 4, lambda name: Stored(values, "float32"), lambda: 4
    )
    found = {(name, words) for name, _, words, _ in unread(checkpoint, [])}
    assert {("NaN", "1 of 4"), ("-inf", "1 of 4"), ("+inf", "1 of 4")} <= found
    monkeypatch.setattr("plkernel.decays.structure.MOST_READ", 4)
    assert len(list(unread(checkpoint, []))) == 4
    monkeypatch.setattr("plkernel.decays.structure.MOST_READ", 3)
    assert [name for name, *_ in unread(checkpoint, [])] == ["unread"]


# Rates
# ------------------------------------------------------------------------------------------------


def test_half_lives_quantiles_and_kernels_of_rates_at_the_ends() -> None:
    tokens = half_lives(np.array([0.0, np.inf, -1.0, np.nan, LN2]))
    assert tokens[[0, 1, 4]].tolist() == [np.inf, 0.0, 1.0]
    assert np.isnan(tokens[[2, 3]]).all()
    assert quantiles(LN2 / np.array([1.0, 2.0, 3.0]), (0.0, 0.5, 1.0)) == pytest.approx([1, 2, 3])
    assert quantiles(LN2 / np.array([1.0, 2.0]), (0.5,)) == pytest.approx([1.5])
    some = np.array([0.0, LN2, LN2 / 2])
    assert quantiles(some, (0.0, 0.5, 1.0)) == pytest.approx([1.0, 2.0, np.inf])
    assert np.isnan(quantiles(np.array([-1.0]), (0.5, 1.0))).all()
    lags = np.array([0.0, 1.0, 2.0])
    rates = np.array([0.1, 0.5, np.nan])
    expected = np.sqrt((np.exp(-0.2 * lags) + np.exp(-1.0 * lags)) / 2)
    assert kernel(rates, lags) == pytest.approx(expected, rel=1e-14)
    assert kernel(np.array([1000.0, 1001.0]), np.array([1.0])) == pytest.approx([0.0])
    assert np.isnan(kernel(np.array([np.nan]), lags)).all()
    assert kernel(np.array([np.inf]), lags).tolist() == [0.0] * 3
    assert np.isinf(kernel(np.array([-np.inf, 1.0]), lags)).all()


# Decays as a whole
# ------------------------------------------------------------------------------------------------


def found_in(tensors: dict[str, Any]) -> list[Finding]:
    """What is found in a file with these tensors."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(save({name: torch.tensor(x) for name, x in tensors.items()}))
        checkpoint = open_checkpoint(str(path))
        return findings.findings(checkpoint, known_layers(checkpoint))


def stated(tensors: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and severities of what is found in a file with these tensors."""
    return [(one.name, one.severity) for one in found_in(tensors)]


GAPS = np.full(15, 0.3)
ORDERED: dict[str, dict[str, Any]] = {
    "SSM": {},
    "Mamba-2": {"dt_bias": np.full(16, -2.97)},
    "RWKV-7": {"w0": np.zeros(16), "r_k": np.zeros((1, 16))},
}


@pytest.mark.parametrize("kind", ORDERED)
def test_ordered_decays_that_have_collapsed_are_wrong(kind: str) -> None:
    """Where softplus is flat too; a layer whose gaps are equal and open is fine."""
    for delta, found in ((np.full(15, -100.0), True), (np.full(15, -13.0), True), (GAPS, False)):
        tensors = {"ordered.theta": np.array([-3.0]), "ordered.delta": delta, **ORDERED[kind]}
        seen = stated({f"m.0.{name}": x for name, x in tensors.items()})
        assert (("all equal", "wrong") in seen) is found, (kind, delta[0])


def test_a_saturated_form_does_not_hide_that_half_lives_are_equal() -> None:
    """sigmoid(60 .. 90) is 1 to rounding: all rates of RWKV-7 are 0.6065."""
    tensors = {"blocks.0.att.w0": np.linspace(60, 90, 16), "blocks.0.att.r_k": np.zeros((1, 16))}
    assert ("all equal", "wrong") in stated(tensors)


def mixers(**tensors: Any) -> dict[str, Any]:
    """Tensors of two equal layers of Mamba-2."""
    return {f"layers.{i}.mixer.{name}": x for i in range(2) for name, x in tensors.items()}


HEADS = 16
RANDOM = np.random.default_rng(0)
STEPS = np.sort(RANDOM.uniform(-6, -2, HEADS))
EVEN = np.linspace(-3.0, 3.0, HEADS)
LOG_SPACED = np.log(np.expm1(np.geomspace(0.7, 0.0004, HEADS)))


@pytest.mark.parametrize(
    ("a_log", "dt_bias", "wrong"),
    [
        (EVEN, np.full(HEADS, -2.97), set()),
        (RANDOM.normal(size=HEADS), np.full(HEADS, -2.97), {"identical layers"}),
        (RANDOM.normal(size=HEADS), np.full(HEADS, 0.7), {"all equal", "identical layers"}),
        (np.zeros(HEADS), LOG_SPACED, set()),
        (np.zeros(HEADS), RANDOM.permutation(STEPS), {"zeros", "identical layers"}),
        (np.full(HEADS, 0.7), RANDOM.permutation(STEPS), {"all equal", "identical layers"}),
        (np.zeros(HEADS), np.full(HEADS, -2.97), {"zeros", "all equal", "identical layers"}),
        (np.full(HEADS, 0.7), np.full(HEADS, -2.97), {"all equal", "identical layers"}),
        (EVEN, np.zeros(HEADS), {"zeros"}),
    ],
    ids=[
        "the spectrum of PoST",
        "the spectrum of PoST, trained beside a frozen step",
        "a step that was never drawn",
        "A = 1 and log-spaced steps",
        "A lost",
        "A of one number",
        "A lost and one step",
        "one number each",
        "steps lost",
    ],
)
def test_a_constant_tensor_is_no_fault_where_a_design_has_the_others_tell_heads_apart(
    a_log: Any, dt_bias: Any, wrong: set[str]
) -> None:
    seen = stated(mixers(A_log=a_log, dt_bias=dt_bias))
    assert {name for name, severity in seen if severity == "wrong"} == wrong


def test_a_design_holds_in_all_layers() -> None:
    one_step = mixers(A_log=EVEN, dt_bias=np.full(HEADS, -2.97))
    assert ("all equal", "notable") in stated(one_step)
    one_step["layers.0.mixer.dt_bias"] = STEPS
    assert ("all equal", "wrong") in stated(one_step)


@pytest.mark.parametrize(
    ("closed", "seen_in_words"),
    [
        ((), None),
        ((3,), "1 of 7 gaps have closed, to 0.0001: 8 channels hold 7 different decays"),
        ((0, 3, 4), "3 of 7 gaps have closed, to 0.0001: 8 channels hold 5 different decays"),
    ],
)
def test_channels_of_ordered_decays_that_share_one_are_told(
    closed: tuple[int, ...], seen_in_words: str | None
) -> None:
    """A few neighbours have collapsed; all of them is another finding, which is wrong."""
    gaps = np.full(7, 0.5)
    gaps[list(closed)] = -12.0
    tensors = {"m.0.ordered.theta": np.array([-3.0]), "m.0.ordered.delta": gaps}
    seen = [one for one in found_in(tensors) if one.name == "some equal"]
    expected = [seen_in_words] if seen_in_words else []
    assert [one.seen for one in seen] == expected
    assert all(one.severity == "notable" for one in seen)


def test_one_step_beside_ordered_levels_is_no_fault_after_training_either() -> None:
    ordered = {"m.0.ordered.theta": np.array([-1.0]), "m.0.ordered.delta": RANDOM.normal(size=15)}
    seen = stated({**ordered, "m.0.dt_bias": np.full(16, -2.97)})
    assert "wrong" not in {severity for _, severity in seen}


def test_a_level_of_zero_is_no_tensor_of_zeros() -> None:
    """theta of ordered Mamba-2 is ln 1 at the start."""
    beside = {"m.0.ordered.delta": np.linspace(-2, 0, 15), "m.0.dt_bias": STEPS}
    seen = stated({"m.0.ordered.theta": np.zeros(1), **beside})
    assert "zeros" not in {name for name, _ in seen}
    assert ("zeros", "wrong") in stated({"m.0.log_rate": np.zeros(1)})


HEAD = np.linspace(-1.0, 1.0, 16)
ZIGZAG = 2.5 * HEAD * np.abs(HEAD)
PLACED = {
    "evenly": np.linspace(-5, 0, 16),
    "evenly, in another order": np.random.default_rng(1).permutation(np.linspace(-5, 0, 16)),
    "at quantiles of a law": np.log(np.linspace(0.001, 1.0, 16) ** 1.15),
    "in every head anew": np.tile(np.linspace(-5, 0, 16), 4),
    "in every head anew, by rows": np.tile(np.linspace(-5, 0, 16), (4, 1)),
    "with a zigzag": np.linspace(-6, -0.5, 64) + np.tile(ZIGZAG, 4),
}


@pytest.mark.parametrize("place", PLACED)
def test_equal_layers_are_notable_where_a_formula_placed_the_decays(place: str) -> None:
    levels = PLACED[place]
    [one] = findings._identical([a_layer(np.exp(levels)) for _ in range(2)])
    assert one.severity == "notable"
    trained = levels + 0.1 * np.random.default_rng(0).normal(size=levels.shape)
    [one] = findings._identical([a_layer(np.exp(trained)) for _ in range(2)])
    assert one.severity == "wrong"


def test_layers_of_one_draw_are_wrong_though_their_rows_are_a_formula() -> None:
    """A of Mamba is 1, 2 .. in every row, and rows differ by their step alone."""
    steps = np.exp(np.random.default_rng(0).normal(size=(64, 1)))
    [one] = findings._identical([a_layer(steps * np.arange(1.0, 17.0)) for _ in range(2)])
    assert one.severity == "wrong"


@pytest.mark.parametrize("channels", [7, 8])
def test_seven_channels_may_be_in_order_by_chance(channels: int) -> None:
    rates = np.arange(1.0, channels + 1) ** 2
    assert findings._are_placed(rates) is (channels == 8)


# Numbers that cannot be
# ------------------------------------------------------------------------------------------------


def test_decays_that_are_nan_though_the_numbers_are_finite_are_wrong() -> None:
    told = {}
    for last in (2.0, np.nan):
        layer = a_layer([np.nan, 1.0], {"w": [1.0, last]})
        told[last] = [one.name for one in findings._out_of_range(layer, (), "m.w")]
    assert "NaN" in told[2.0]
    assert "NaN" not in told[np.nan], "that the tensor is NaN is said of it"


def test_one_channel_whose_decay_depends_on_the_position_is_refused() -> None:
    tensors = {"blocks.0.ssm.log_rate": np.ones(1), "blocks.0.ssm.log_length": np.array([4.16])}
    with pytest.raises(ValueError, match="levels must be 2 or more for decays by position, got 1"):
        stated(tensors)


@pytest.mark.parametrize(
    ("log_length", "found"), [(-1.0, "length"), (0.0, "length"), (np.inf, "+inf"), (4.16, "")]
)
def test_a_length_of_one_step_or_less_is_wrong(log_length: float, found: str) -> None:
    rates = np.random.default_rng(0).normal(-3.0, 1.0, 9)
    tensors = {"m.0.log_rate": rates, "m.0.log_length": np.array([log_length])}
    with warnings.catch_warnings(action="error"):
        wrong = {name for name, severity in stated(tensors) if severity == "wrong"}
    assert wrong == ({found} if found else set())


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"ordered.theta": np.zeros(3), "ordered.delta": GAPS},
            "theta must hold one number, got 3",
        ),
        ({"log_rate": EVEN, "log_length": EVEN}, "log_length must hold one number, got 16"),
        (
            {"ordered.theta": np.zeros(1), "ordered.delta": GAPS, "w0": np.zeros(1)},
            "must have the shapes of RWKV-7 in order",
        ),
    ],
)
def test_shapes_of_ordered_and_of_scaled_decays_are_held(
    tensors: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        stated({f"m.0.{name}": x for name, x in tensors.items()})
