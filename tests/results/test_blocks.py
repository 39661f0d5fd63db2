"""Arms in blocks: which are compared with which, and what they are called there."""

import pytest

from plkernel.records.study import read_study
from plkernel.results.comparison import block_levels, blocks, compare, full_name, short_factor, short_name


@pytest.fixture
def study(blocked_study):
    return read_study(blocked_study(lambda levels, name: 0.0 if levels["patching"] == "bytes" else None, seeds=2))


def test_a_block_is_compared_within_itself_and_its_baseline_with_nothing(study):
    first = study.against("concentrated_published_ema_bytes")
    assert first == "log-spaced_uniform_ema_bytes"
    baselines = [
        f"log-spaced_uniform_{gain}_{patching}" for gain in ("none", "ema") for patching in ("bytes", "published")
    ]
    assert [arm for arm in study.arms if study.against(arm) is None] == baselines


def test_blocks_with_finished_runs_hold_their_arms_the_baseline_first(study):
    found = blocks(compare(study))
    assert [part.title for part in found] == ["gain none, patching bytes", "gain ema, patching bytes"]
    assert [part.slug for part in found] == ["-none-bytes", "-ema-bytes"]
    assert all(part.baseline == part.arms[0].name for part in found)
    assert all(len(part.arms) == 5 and len(part.others) == 4 for part in found)
    assert {arm.against for arm in found[1].others} == {"log-spaced_uniform_ema_bytes"}


def test_arms_are_named_by_what_the_block_does_not_share(study):
    assert short_name(study, "log-spaced_published_ema_bytes") == "log-spaced_published"
    assert full_name(study, "wrong-sign_none_bytes") == "wrong-sign (gain none, patching bytes)"
    assert block_levels(study, "wrong-sign_none_bytes") == {"model.gain": "none", "patching": "bytes"}


def test_a_factor_keeps_its_full_name_where_another_ends_alike():
    assert short_factor("model.gain", ["model.gain", "patching"]) == "gain"
    assert short_factor("model.dim", ["model.dim", "other.dim"]) == "model.dim"


def test_which_blocks_leak(blocked_study):
    comparison = compare(read_study(blocked_study(lambda levels, name: 0.0, seeds=2)))
    assert [(part.leaks, part.causal) for part in blocks(comparison)] == [(False, True), (True, False)] * 2
