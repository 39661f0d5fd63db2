"""What the page and the terminal say first of a study of many arms."""

import re
from dataclasses import replace

import pytest

from plkernel.records.study import read_study
from plkernel.results.cautions import warnings
from plkernel.results.comparison import compare
from plkernel.results.evidence import ALPHA
from plkernel.results.sentences import excluding, is_large, overview, surviving
from plkernel.results.terminal import text_report


def published_helps(levels, name):
    return -0.1 if levels.get("projection") == "published" else 0.0


@pytest.fixture
def known(blocked_study):
    """Eight of sixteen arms are 0.1 better, in leaking blocks too; the wrong sign does nothing."""
    return compare(read_study(blocked_study(published_helps)))


@pytest.fixture
def nothing(blocked_study):
    """No arm differs; nor is this one of the few draws in which one seems to."""
    return compare(read_study(blocked_study(lambda levels, name: 0.0, draw=1)))


def test_the_summary_counts_what_is_there(known):
    texts = overview(known)
    assert is_large(known)
    assert len(texts) <= 6
    assert texts[0].startswith(
        "audit compares 16 arms with log-spaced_uniform, in 4 blocks by gain and patching: 8 seeds"
    )
    assert (
        "Of 16 differences (final validation) 8 have a 95 % interval that excludes zero (8 below, 0 above)" in texts[1]
    )
    assert "were there no difference anywhere, 0.8 would on average" in texts[1]
    assert "(Holm) 8 can be told from none at the 5 % level (8 below, 0 above)" in texts[1]
    assert len(surviving(known)) == len(excluding(known)) == 8


def test_likelihoods_are_named_first(known):
    kept = surviving(known)
    assert [known[name].causal for name in kept] == [True] * 4 + [False] * 4
    named = overview(known)[2]
    assert named.startswith("The largest 3 of these: ")
    assert "not causal" not in named
    assert named.count("corrected p < 0.0001") == 3


def test_where_only_leaking_arms_differ_it_says_so(blocked_study):
    def effect(levels, name):
        return published_helps(levels, name) if levels["patching"] == "published" else 0.0

    texts = overview(compare(read_study(blocked_study(effect, draw=1))))
    assert "all of them not causal, not a likelihood: " in texts[2]


def test_nothing_is_claimed_where_nothing_is(nothing):
    texts = overview(nothing)
    assert surviving(nothing) == []
    assert "(Holm) none can be told from none at the 5 % level." in texts[1]
    assert not re.search("largest .* of these|They are", " ".join(texts))
    assert text_report(nothing).count("excludes zero") == 1  # the sentence that counts


def test_claims_about_nothing_are_as_rare_as_the_level_says(blocked_study):
    """Of 30 studies without a difference 1.5 are expected in which one survives; of single tests 5 in 100 reject."""
    studies = [compare(read_study(blocked_study(lambda levels, name: 0.0, seeds=4, draw=draw))) for draw in range(30)]
    false = sum(any(p < ALPHA for p in study.corrected.values()) for study in studies)
    assert false <= 6
    single = sum(
        p < ALPHA for study in studies for p in (arm.differences["final_val_bpb"].p_value for arm in study.others)
    )
    assert 0.03 < single / (16 * 30) < 0.08


def test_the_smallest_detectable_difference_is_that_of_the_noise(nothing):
    """Differences of two arms spread by 0.014: at n = 8 the t test finds 0.0164 8 times in 10 (1.16 sd)."""
    sentence = next(text for text in overview(nothing) if "8 times in 10" in text)
    alone, strict = (float(found) for found in re.findall(r"(0\.\d+)(?: bits per byte)? or more", sentence))
    assert alone == pytest.approx(0.0164, rel=0.35)
    assert 1.5 * alone < strict < 3 * alone


def test_few_arms_have_a_sentence_each(blocked_study):
    folder = blocked_study(
        lambda levels, name: 0.0 if levels == {**levels, "model.gain": "ema", "patching": "bytes"} else None
    )
    comparison = compare(read_study(folder))
    assert not is_large(comparison)
    assert len(overview(comparison)) == 1 + 4


def test_one_seed_of_many_arms_makes_no_claim(blocked_study):
    texts = overview(compare(read_study(blocked_study(published_helps, seeds=1))))
    assert texts[1].endswith("no interval, no claim.")
    assert len(texts) == 2


def test_what_many_arms_share_is_said_once(known):
    leak = warnings(known)[0]
    assert leak.startswith("All 10 arms with patching published: not causal")
    assert len(warnings(known)) == 1


def test_unequal_steps_of_many_arms_are_said_by_what_they_share(known):
    arms = tuple(replace(arm, steps=(30,)) if "_none_" in arm.name else arm for arm in known.arms)
    warned = next(text for text in warnings(replace(known, arms=arms)) if "unequal" in text)
    assert "(All 10 arms with gain none 30; All 10 arms with gain ema 40)" in warned
    arms = tuple(replace(arm, steps=(30,)) if "wrong" in arm.name or "log" in arm.name else arm for arm in known.arms)
    assert "(12 of 20 arms 30; 8 of 20 arms 40)" in " ".join(warnings(replace(known, arms=arms)))


def test_the_terminal_groups_arms_by_block(known):
    lines = text_report(known).splitlines()
    heading = lines.index("gain none, patching published, minus log-spaced_uniform [not causal, not a likelihood]")
    assert [line.split()[0] for line in lines[heading + 1 : heading + 5]] == [
        "log-spaced_published",
        "concentrated_uniform",
        "concentrated_published",
        "wrong-sign",
    ]
    row = re.fullmatch(r"  log-spaced_published +8 +\S+ +(\S+) +\S+ to \S+ +\S.*", lines[heading + 1])
    assert float(row[1]) == pytest.approx(-0.1, abs=0.015)
    assert max(map(len, lines[7:-2])) < 120


def test_the_terminal_shows_few_of_very_many_arms(known, monkeypatch):
    monkeypatch.setattr("plkernel.results.terminal.MOST_ROWS", 10)
    monkeypatch.setattr("plkernel.results.terminal.SHOWN", 6)
    text = text_report(known)
    assert "(6 of 16 arms, those with the smallest p; the page has all)" in text
    assert len(re.findall(r"^  (?:log|conc|wrong)", text, re.MULTILINE)) == 6
