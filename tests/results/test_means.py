"""Hypotheses on the mean over the levels of `within`: read, measured, judged and reported."""

import json
import statistics
from pathlib import Path

import pytest
from studies import record_row

from plkernel.common.files import REGISTERED
from plkernel.config.factors import means_of
from plkernel.config.reading import load_spec
from plkernel.results.comparison import compare
from plkernel.results.measurements import values
from plkernel.results.page import text_report
from plkernel.results.power import powers
from plkernel.results.registration import register
from plkernel.results.study import read_study
from plkernel.results.verdicts import declared

SPEC = """
name = "means"
baseline = "plain"
within = ["text"]
seeds = [0, 1, 2, 3, 4, 5]

[train]
steps = 20
context = 16
batch = 2
eval_every = 20

[factors.start]
plain = {}
law = { beta = 1.15, projection = "gain-corrected" }
own = { beta = 0.7, projection = "gain-corrected" }

[factors.text]
code = { corpus = { name = "stdlib" } }
prose = { corpus = { name = "bible:en" } }
"""
CLAIM = """
[[hypotheses]]
name = "own leads law"
arm = "own"
against = "law"
claim = "lower"
"""
SHIFTS = {"plain": 0.0, "law": 0.01, "own": -0.01}
TEXTS = ("code", "prose", "news")
NOISE = [0.03, -0.02, 0.01, -0.01, 0.02, -0.03, 0.04]


def spec_file(folder: Path, text: str) -> Path:
    path = folder / "means.toml"
    path.write_text(text)
    return path


def loss_of(arm: str, seed: int) -> float:
    """The effect of a text on a difference has the other sign in the other text, up to 0.002."""
    start, text = arm.split("_")
    base = {"code": 1.0, "prose": 2.0, "news": 3.0}[text]
    if start != "own":
        return base + SHIFTS[start]
    if text == "news":
        return base - 0.5
    sign = {"code": 1.0, "prose": -0.9}[text]
    return base + SHIFTS[start] + sign * NOISE[seed]


def study_folder(folder: Path, left: tuple[str, ...] = (), text: str = SPEC + CLAIM) -> Path:
    """A study as a record; runs named in `left` have not ended."""
    folder.mkdir(exist_ok=True)
    spec = load_spec(spec_file(folder, text))
    study = folder / "study"
    study.mkdir()
    (study / "spec.json").write_text(json.dumps(spec.model_dump(mode="json")))
    rows = [
        record_row(arm, seed, loss_of(arm, seed))
        for arm in spec.arms
        for seed in spec.seeds
        if f"{arm} {seed}" not in left
    ]
    (study / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return study


def test_a_mean_has_the_arms_of_one_name_in_every_block():
    arms = {
        f"{start}_{text}": {"levels": {"start": start, "text": text}}
        for start in ("plain", "own")
        for text in ("code", "prose")
    }
    alone = {"alone": {}}
    assert means_of(arms | alone, ["text"]) == {
        "plain": {"code": "plain_code", "prose": "plain_prose"},
        "own": {"code": "own_code", "prose": "own_prose"},
    }
    assert means_of(arms, []) == {}
    assert means_of({"plain_code": arms["plain_code"]}, ["text"]) == {}
    taken = means_of(arms | {"own": {}}, ["text"])
    assert list(taken) == ["plain"], "an arm of the name is meant before a mean"


def test_a_hypothesis_on_a_mean_is_about_the_mean_of_its_differences_over_the_blocks(tmp_path):
    outcome = declared(read_study(study_folder(tmp_path))).outcomes[0]
    for seed, difference in outcome.per_seed.items():
        blocks = [
            loss_of(f"own_{text}", seed) - loss_of(f"law_{text}", seed)
            for text in ("code", "prose")
        ]
        assert difference == pytest.approx(statistics.fmean(blocks), abs=1e-12)
    assert set(outcome.per_seed) == set(range(6))
    # -0.02 with a spread of 0.001 over seeds, where that of one text is above 0.02
    assert outcome.judgement.verdict == "confirmed"


def test_a_seed_that_misses_one_block_counts_in_no_mean(tmp_path):
    study = read_study(study_folder(tmp_path, left=("law_prose 2", "plain_code 3")))
    outcome = declared(study).outcomes[0]
    assert set(outcome.per_seed) == {0, 1, 3, 4, 5}


def test_a_registered_mean_is_over_the_registered_blocks(tmp_path):
    """A text and a seed join the study later, in which own is far ahead."""
    before = study_folder(tmp_path / "before")
    register(load_spec(before / "spec.json"), before / REGISTERED, before)
    text = (SPEC + CLAIM).replace("3, 4, 5]", "3, 4, 5, 6]")
    text = text.replace("[[hyp", 'news = { corpus = { name = "bible:de" } }\n\n[[hyp')
    after = study_folder(tmp_path / "after", text=text)
    planned = declared(read_study(before))
    hypothesis = planned.outcomes[0].hypothesis
    of_all = values(read_study(after), "own", hypothesis, [0])[0]
    assert of_all == pytest.approx(statistics.fmean(loss_of(f"own_{text}", 0) for text in TEXTS))
    (before / REGISTERED).rename(after / REGISTERED)
    comparison = compare(read_study(after))
    assert comparison.declared.outcomes == planned.outcomes
    assert comparison.declared.waiting == 0
    assert "own leads law (mean over text)" in text_report(comparison)


def test_left_out_against_is_the_mean_of_the_baselines(tmp_path):
    claim = CLAIM.replace('against = "law"\n', "")
    spec = load_spec(spec_file(tmp_path, SPEC + claim))
    assert spec.hypotheses[0].against == "plain"
    study = read_study(study_folder(tmp_path, text=SPEC + claim))
    first = declared(study).outcomes[0].per_seed[0]
    assert first == pytest.approx(SHIFTS["own"] + 0.05 * NOISE[0], abs=1e-12)


def test_the_power_of_a_mean_is_that_of_the_spread_of_means(tmp_path):
    folder = study_folder(tmp_path)
    spec = load_spec(tmp_path / "means.toml")
    means = [0.05 * NOISE[seed] for seed in spec.seeds]
    assert powers(spec, folder)[0]["sd"] == pytest.approx(statistics.stdev(means), rel=1e-9)


def test_the_page_tells_the_verdict_on_a_mean(tmp_path):
    told = text_report(compare(read_study(study_folder(tmp_path))))
    assert "own leads law (mean over text)" in told
    assert "-0.0200" in told


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('arm = "own"', 'arm = "owns"', "arm must name an arm, got 'owns'"),
        (
            'against = "law"',
            'against = "law_code"',
            "against must name another mean over the levels of text, as 'own' does, got 'law_code'",
        ),
        ('against = "law"', 'against = "own"', "against must name another mean"),
        ('arm = "own"', 'arm = "own_code"', "against must name another arm, got 'law'"),
        ('arm = "own"\nagainst = "law"', 'arm = "plain"', "is a baseline"),
        ('claim = "lower"', 'claim = "lower"\nstep = 7', "step must be one with an evaluation"),
    ],
)
def test_a_claim_on_a_mean_that_cannot_be_is_refused(tmp_path, old, new, message):
    with pytest.raises(ValueError, match=message):
        load_spec(spec_file(tmp_path, SPEC + CLAIM.replace(old, new)))


def test_a_gate_is_about_one_arm(tmp_path):
    gate = '\n[[gates]]\nname = "learnt"\narm = "plain"\nat_most = 4.0\n'
    with pytest.raises(ValueError, match="arm must name an arm, got 'plain'"):
        load_spec(spec_file(tmp_path, SPEC + gate))
