"""The spread that a pilot shows for a hypothesis."""

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2
from studies import BASELINE, change, record_row, save, write_study

from plkernel.config.reading import parse_spec
from plkernel.config.spec import Spec
from plkernel.results.power import power_text, powers

ENDS = {
    BASELINE: [2.0, 2.0, 2.0],
    "steady": [2.1, 2.1, 2.1],
    "near": [2.11, 2.10, 2.09],
    "far": [2.4, 2.1, 1.8],
}


@pytest.fixture
def pilot(tmp_path: Path) -> Path:
    """Three seeds, whose differences to the baseline spread by 0, 0.01 and 0.3."""
    write_study(tmp_path, seeds=range(3), effects=dict.fromkeys(ENDS, 0.0))
    for arm, ends in ENDS.items():
        for seed, end in enumerate(ends):
            change(tmp_path / arm / f"seed-{seed}" / "result.json", final_val_bpb=end)
    return tmp_path


def spec(arm: str) -> Spec:
    names = [*ENDS, "untried"]
    values = {
        "name": "next",
        "baseline": BASELINE,
        "seeds": [0, 1, 2],
        "model": {"dim": 16, "layers": 1},
        "train": {"steps": 2, "context": 32, "batch": 2},
        "arms": {name: {} for name in names},
        "hypotheses": [{"name": "it", "arm": arm, "claim": "lower"}],
    }
    return parse_spec(json.loads(json.dumps(values)), "here")


@pytest.mark.parametrize("arm", ["near", "far"])
def test_an_arm_with_a_spread_of_its_own_keeps_it(arm: str, pilot: Path) -> None:
    [row] = powers(spec(arm), pilot)
    expected = np.std(np.subtract(ENDS[arm], ENDS[BASELINE]), ddof=1)
    assert row["sd"] == pytest.approx(expected)
    assert (row["seeds"], row["others"]) == (3, 0)


@pytest.mark.parametrize("arm", ["untried", "steady"])
def test_others_take_the_median_of_the_arms_that_have_one(arm: str, pilot: Path) -> None:
    """An arm without a run, and one whose differences are all the same."""
    [row] = powers(spec(arm), pilot)
    assert row["sd"] == pytest.approx((0.01 + 0.3) / 2)
    assert (row["seeds"], row["others"]) == (3, 2)


CURVES = """
name = "next"
baseline = "start"
seeds = [0, 1, 2]
train = { steps = 20, context = 16, batch = 2, eval_every = 20 }
tuning = { method = "curve", rates = [1e-3, 2e-3, 4e-3] }

[arms.start]

[arms.other]
longest = 8

[[hypotheses]]
name = "it"
arm = "other"
metric = "val_bpb_minimum"
claim = "lower"
"""
BLOCKS = """
name = "next"
baseline = "start"
within = ["text"]
seeds = [0, 1, 2]
train = { steps = 20, context = 16, batch = 2, eval_every = 20 }

[factors.start]
start = {}
other = { longest = 8 }

[factors.text]
code = { corpus = { name = "stdlib" } }
prose = { corpus = { name = "bible:en" } }

[[hypotheses]]
name = "it"
arm = "other"
claim = "lower"
"""
OWN_NOISE = [0.0, 0.01, 0.05]
"""Differences of the second arm, by seed."""
OF_BLOCK = {"code": 1.0, "prose": -0.5}
"""Times OWN_NOISE in that block; their mean is a quarter of it."""


def pilot_of(folder: Path, text: str) -> Path:
    """A finished study of the spec under other names of arms, as a record."""
    spec = parse_spec(tomllib.loads(text.replace("other", "short").replace("start", "long")), "x")
    rows = []
    for name, arm in spec.arms.items():
        octaves = math.log2((arm.learning_rate or 2e-3) / 2e-3)
        block = (arm.levels or {}).get("text", "")
        for seed in spec.seeds:
            own = OWN_NOISE[seed] * OF_BLOCK.get(block, 1.0) if "short" in name else 0.0
            rows.append(record_row(name, seed, 2.0 + own + octaves**2))
    save(folder / "spec.json", spec.model_dump(mode="json"))
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.mark.parametrize(("text", "share"), [(CURVES, 1.0), (BLOCKS, 0.25)])
def test_curves_and_means_of_other_names_have_the_spread_of_those_of_the_pilot(
    text: str, share: float, tmp_path: Path
) -> None:
    [row] = powers(parse_spec(tomllib.loads(text), "here"), pilot_of(tmp_path, text))
    assert row["sd"] == pytest.approx(share * np.std(OWN_NOISE, ddof=1))
    assert row["seeds"] == 3


def test_a_pilot_without_curves_says_nothing_of_minima(pilot: Path) -> None:
    with pytest.raises(ValueError, match=r"pilot must have curves over learning rates for 'it'"):
        powers(parse_spec(tomllib.loads(CURVES), "here"), pilot)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_a_power_needs_two_seeds_of_the_study(seeds: int, pilot: Path) -> None:
    of_two = spec("near").model_copy(update={"seeds": tuple(range(seeds))})
    if seeds == 1:
        with pytest.raises(ValueError, match="seeds must be two or more for the power of hyp"):
            powers(of_two, pilot)
    else:
        [row] = powers(of_two, pilot)
        assert row["needed"] < 0


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"power": 0.184, "true": 0.0, "needed": None, "least": 0.02},
            "0.18 if the difference is 0; spread 0.012 of 4 seeds, up to 0.035: then 0.02",
        ),
        (
            {"power": 0.9, "true": -0.02, "needed": -0.0456, "least": 0.4},
            "0.90 if the difference is -0.02; 0.80 if it is -0.046; spread 0.012 of 4 seeds, up to"
            " 0.035: then 0.40",
        ),
        (
            {"power": None, "true": 0.0, "needed": 0.0456, "least": None},
            "0.80 if it is +0.046; spread 0.012 of 4 seeds, up to 0.035",
        ),
    ],
)
def test_a_power_in_words(values: dict[str, float | None], text: str) -> None:
    row = {"sd": 0.0123, "seeds": 4, "up_to": 0.0347, **values}
    assert power_text({**row, "others": 0}) == text
    assert power_text({**row, "others": 5}) == (
        f"{text}; this spread is the median over other comparisons of the pilot, which shows none"
        " here"
    )


@pytest.mark.parametrize(
    ("claim", "margin", "true"),
    [
        ("lower", 0.1, -0.2),
        ("higher", 0.1, 0.2),
        ("equal", 0.1, 0.0),
        ("lower_by_less", 0.1, -0.05),
        ("higher_by_less", 0.1, 0.05),
        ("lower", 0.0, 0.0),
    ],
)
def test_a_power_is_stated_for_a_difference_in_margins(
    claim: str, margin: float, true: float, pilot: Path
) -> None:
    """And for the upper 95 % limit of the spread, by chi square."""
    stated = spec("near")
    [one] = stated.hypotheses
    changed = one.model_copy(update={"claim": claim, "margin": margin})
    [row] = powers(stated.model_copy(update={"hypotheses": (changed,)}), pilot)
    assert row["true"] == pytest.approx(true)
    assert row["up_to"] == pytest.approx(row["sd"] * np.sqrt(2 / chi2.ppf(0.05, 2)))
    is_bounded = claim in ("equal", "lower_by_less", "higher_by_less")
    assert (row["needed"] is None) == is_bounded
    assert (row["power"] is None) == (row["least"] is None) == (margin == 0)
    if margin:
        assert 0 <= row["least"] <= row["power"] <= 1
    if not is_bounded:
        assert np.sign(row["needed"]) == (-1 if claim == "lower" else 1)
        assert abs(row["needed"]) > margin
