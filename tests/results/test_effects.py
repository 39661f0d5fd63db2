"""Effects of factors, where only a part of a design is complete."""

import itertools

import pytest

from plkernel.records.study import read_study
from plkernel.results.comparison import compare
from plkernel.results.effects import complete_part, effects

LEVELS = {"a": ("1", "2"), "b": ("x", "y", "z"), "c": ("p", "q", "r")}


def test_the_complete_part_leaves_out_the_levels_that_are_missing():
    everything = set(itertools.product(*LEVELS.values()))
    assert complete_part(LEVELS, everything) == LEVELS
    without = {cell for cell in everything if cell[1] != "z" and cell[2] != "q"}
    assert complete_part(LEVELS, without) == {"a": ("1", "2"), "b": ("x", "y"), "c": ("p", "r")}
    one_missing = everything - {("2", "y", "r")}
    found = complete_part(LEVELS, one_missing)
    assert set(itertools.product(*found.values())) <= one_missing
    assert complete_part(LEVELS, set()) is None


def test_known_effects_are_found_and_others_are_not_claimed(blocked_study):
    """Published projections gain 0.1, and 0.06 more under ema; placement does nothing."""

    def effect(levels, name):
        published = levels.get("projection") == "published"
        return -0.1 * published - 0.06 * (published and levels["model.gain"] == "ema")

    likelihoods, every = effects(compare(read_study(blocked_study(effect))))
    assert (likelihoods.causal, every.causal) == (True, False)
    assert list(likelihoods.levels) == ["placement", "projection", "model.gain"]
    assert likelihoods.left_out == {"patching": ("published",)}
    assert likelihoods.fixed == {"patching": "bytes"}
    named = {likelihoods.title(one): one.difference.mean for one in likelihoods.surviving}
    assert named == {
        "gain: ema - none": pytest.approx(-0.33, abs=0.01),
        "projection: published - uniform": pytest.approx(-0.13, abs=0.01),
        "projection: published - uniform x gain: ema - none": pytest.approx(-0.06, abs=0.015),
    }
    assert every.left_out == {}
    assert every.factorial.cells == 16


def test_without_effects_none_survives(blocked_study):
    found = effects(compare(read_study(blocked_study(lambda levels, name: 0.0))))[0]
    assert [found.title(one) for one in found.surviving] == ["gain: ema - none"]  # the block's own level


def test_the_part_is_taken_that_holds_the_most_runs(blocked_study):
    def effect(levels, name):
        there = levels["patching"] == "bytes" and name != "concentrated_published_ema_bytes"
        return 0.0 if there else None

    found = effects(compare(read_study(blocked_study(effect))))
    assert len(found) == 1
    assert found[0].factorial.cells == 4
    assert found[0].whole


def test_no_effects_without_two_factors(blocked_study):
    def effect(levels, name):
        return 0.0 if name.startswith("log-spaced") and levels == {**levels, "model.gain": "none"} else None

    folder = blocked_study(lambda levels, name: effect(levels, name) if levels["patching"] == "bytes" else None)
    assert effects(compare(read_study(folder))) == []
    one_seed = blocked_study(lambda levels, name: 0.0, seeds=1)
    assert effects(compare(read_study(one_seed))) == []
