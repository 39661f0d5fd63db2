"""States stored in half precision: the rule against step-by-step simulation in the types."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from plkernel.decays.rounding import (
    DTYPES,
    dtype_name,
    frozen_from,
    kept,
    significand_bits,
    stored,
)


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("float32", 24), ("fp16", 11), ("bf16", 8), ("float8_e4m3", 4), ("float8_e5m2", 3)],
)
def test_bits_are_those_of_the_formats(dtype: str, bits: int) -> None:
    assert significand_bits(dtype) == bits


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3", "float8_e5m2"])
def test_the_rule_is_the_edge_of_what_a_simulation_freezes(dtype: str) -> None:
    """A step in the type itself: beyond the half-life nothing moves, just below something does."""
    kind = DTYPES[dtype]
    bits = significand_bits(dtype)
    every = (1.0 + torch.arange(2 ** (bits - 1)) * 2.0 ** (1 - bits)).to(kind).double()
    edge = frozen_from(dtype)
    for share, moves in ((1.001, False), (0.999, True)):
        decay = 2.0 ** (-1.0 / (share * edge))
        after = (decay * every).to(kind).double()
        assert bool((after != every).any()) == moves


def test_half_lives_that_users_asked_about() -> None:
    """Figures of a pilot with one scalar state: 100 and 38 of 100 in bfloat16."""
    found = kept([177.0, 356.0, 1000.0], "bf16")
    assert found[0] == pytest.approx(0.38, abs=0.01)
    assert found[1] == 1.0
    assert found[2] == 1.0
    half = kept([1000.0, 4000.0], "fp16")
    assert half[0] == pytest.approx(0.5, abs=0.05)
    assert half[1] == 1.0


def test_float32_holds_what_models_have() -> None:
    np.testing.assert_allclose(kept([1.0, 7.5, 300.0, 20_000.0], "float32"), 0.5, atol=2e-3)


def test_short_half_lives_are_held_in_every_type_of_two_bytes() -> None:
    for dtype, longest in (("bfloat16", 16.0), ("float16", 128.0)):
        np.testing.assert_allclose(kept(np.geomspace(1.0, longest, 20), dtype), 0.5, atol=0.05)


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_lives_far_below_a_step_are_held(dtype: str) -> None:
    """Down to where 2**(-1 / half-life) is 0 in float64 too: nothing is left of the state."""
    half_lives = np.append(np.geomspace(1e-310, 1e-3, 50), np.geomspace(1e-3, 1.0, 500))
    with np.errstate(all="raise", under="ignore"):
        found = kept(half_lives, dtype)
    np.testing.assert_allclose(found, 0.5, atol=0.05)


def test_the_shortest_half_life_that_is_not_held_is_told() -> None:
    found = stored(math.log(2.0) / np.array([1e-4, 1e-3, 0.01, 1.0, 300.0, 250.0]), "bf16")
    assert "does not hold 2 of 6 half-lives, from 250 steps on" in found.sentence


def test_one_state_followed_by_hand() -> None:
    """Float8 has 1, 1.125, .. 1.875; a = 0.9 from 1.5 on: 1.375, 1.25, 1.125, 1."""
    half_life = math.log(0.5) / math.log(0.9)
    values = [1.5]
    for _ in range(math.ceil(half_life)):
        values.append(float(torch.tensor(0.9 * values[-1]).to(torch.float8_e4m3fn)))
    assert values[:5] == [1.5, 1.375, 1.25, 1.125, 1.0]
    share = kept([half_life], "float8_e4m3")[0]
    assert 0.3 < share < 0.7


def test_shares_of_heads() -> None:
    rates = math.log(2.0) / np.array([[10.0, 100.0], [400.0, 5000.0]])
    one = stored(np.append(rates, 0.0), "bf16")
    assert one.frozen.tolist() == [False, False, True, True, True]
    assert one.held[0]
    assert not one.held[2:].any()
    assert one.lost_share == np.mean(~one.held)
    assert "bfloat16 after every step does not hold" in one.sentence
    assert "3 never decay (half-lives of 355 or more)" in one.sentence
    whole = stored(rates[0, :1], "bf16")
    assert whole.sentence == "a state stored as bfloat16 after every step holds all 1 half-lives"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3"])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_constant_input_leaves_a_state_short_of_its_end(dtype: str, share: float) -> None:
    """By at most 2**-p / (1 - a), and by half of that or more at some size of the input."""
    leak = 2.0 ** -significand_bits(dtype) / share  # 1 - a
    ends = torch.from_numpy(2.0 ** (np.arange(64) / 64))
    state = torch.zeros_like(ends)
    for _ in range(math.ceil(30 / leak)):
        after = ((1.0 - leak) * state + leak * ends).to(DTYPES[dtype]).double()
        if bool((after == state).all()):
            break
        state = after
    short = (1.0 - state / ends).numpy()
    assert short.max() <= share
    assert short.max() >= share / 2
    assert short.min() >= -(2.0 ** -significand_bits(dtype))


def test_what_is_no_type_or_half_life_is_refused() -> None:
    with pytest.raises(ValueError, match="state_dtype must be one of float32, bfloat16"):
        dtype_name("int8")
    for bad in ([0.0], [-1.0], [math.nan], 3.0):
        with pytest.raises(ValueError, match="half_lives must be a vector of numbers above 0"):
            kept(bad, "bf16")
    for bad in ([-1.0], [math.nan], [math.inf]):
        with pytest.raises(ValueError, match="rates must be finite and not below 0"):
            stored(bad, "bf16")


def test_the_table_of_the_page_is_what_is_computed() -> None:
    page = (Path(__file__).parents[2] / "docs/remembering.md").read_text()
    table = page.partition("| half-life, steps")[2].partition("\n\n")[0].splitlines()
    half_lives = [float(cell.replace(",", "")) for cell in table[0].split("|")[1:-1]]
    assert len(half_lives) == 9
    for row in table[2:]:
        _, dtype, *cells, _ = (cell.strip() for cell in row.split("|"))
        assert [f"{100 * share:.0f}" for share in kept(half_lives, dtype)] == cells
    for dtype, longest in (("bfloat16", 147), ("float16", 1176)):
        assert f"{longest:,}" in page
        every = np.arange(1.0, longest + 2)
        held = np.abs(kept(every, dtype) - 0.5) <= 0.05
        assert held[:-1].all()
        assert not held[-1]
