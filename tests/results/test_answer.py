"""The answer of a study in one sentence, on made studies and on the committed records."""

import re
from pathlib import Path
from typing import Any

import pytest
from studies import BASELINE, CORPUS, change, write_study

from plkernel.common.files import MEASUREMENT, SPEC, load_json, save_json
from plkernel.results.answer import advice, answer, words_of
from plkernel.results.comparison import compare
from plkernel.results.conclusion import overview
from plkernel.results.figures import drawings
from plkernel.results.page import Table, page, sections
from plkernel.results.record import save_record
from plkernel.results.statistics import holm
from plkernel.results.study import read_study

RECORDS = Path(__file__).parents[2] / "runs" / "records"


def told(folder: Path) -> str:
    return answer(compare(read_study(folder)))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "demo",
            "after 0.61 MB and with 3 seeds (significance is corrected for 4 comparisons,"
            " intervals are not), corpus copies: short -0.002 (-0.012 to +0.008) cannot be"
            " distinguished from spread; short-frozen ended 0.048 (0.037 to 0.059) bits per byte"
            " behind spread; corpus source: short -0.039",
        ),
        (
            "models-mamba2",
            "own; unit-A ended 0.023 (0.013 to 0.034) bits per byte ahead of own.",
        ),
        (
            "memory-shortness",
            "On stdlib, after 6.1 MB and with 12 seeds (significance is corrected for 13"
            " comparisons, intervals are not), 12 of 13 differences are significant: 0 behind"
            " the baseline and 12 ahead; furthest ahead 8_ema by 0.043 (0.033 to 0.053).",
        ),
        ("memory-bible", "'the baseline uses bytes beyond the last 32, Portuguese', so no hypoth"),
        ("ladder-gpu", "intervals are not), none of 3 differences is significant."),
    ],
)
def test_records_are_answered(name: str, sentence: str) -> None:
    assert sentence in told(RECORDS / name)


@pytest.mark.parametrize(
    "path", sorted(RECORDS.glob("*/rows.jsonl")), ids=lambda path: path.parent.name
)
def test_every_record_has_one_sentence_that_agrees_with_its_table(path: Path) -> None:
    one = compare(read_study(path.parent))
    sentence = answer(one)
    assert re.match(r"(On|So far, on) .*, after [\d.]+( to [\d.]+)? [kMG]?B", sentence)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    if "cannot be distinguished" in sentence or "ended" in sentence:
        for name in one.differences:
            assert words_of(one).get(name, one.short(name)) in sentence
    elif one.curves and not any(other.n > 1 for other in one.on_text.values()):
        assert "no arm shares two seeds with its baseline" in sentence
    elif one.curves:
        for curve in one.curves:
            assert curve.curve.name in sentence
    else:
        number = f"{len(one.surviving) or 'none'} of {len(one.tested)} "
        assert number in sentence


def test_words_of_the_study_stand_for_its_arms(tmp_path: Path) -> None:
    folder = write_study(tmp_path, seeds=range(4), effects={BASELINE: 0.0, "a": 0.3, "b": -0.3})
    first = told(folder)
    assert "a ended 0.3" in first
    assert f"bits per byte behind {BASELINE}; b ended 0.3" in first
    save_json(folder / MEASUREMENT, measurement(words={"a": "frozen half-lives"}))
    assert "frozen half-lives ended 0.3" in told(folder)
    [results] = sections(compare(read_study(folder)), {})["Results"]
    assert isinstance(results, Table)
    named = [name for name, *_ in results.groups[""]]
    assert named == [BASELINE, "a\nfrozen half-lives", "b"], "in a note below the name of the arm"


def test_a_record_keeps_the_measurement(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", seeds=range(4), effects={BASELINE: 0.0, "a": 0.3})
    save_json(folder / MEASUREMENT, measurement(words={"a": "frozen half-lives"}))
    save_record(read_study(folder), tmp_path / "record")
    assert told(tmp_path / "record") == told(folder)


def test_one_seed_and_unfinished_runs_are_said(tmp_path: Path) -> None:
    assert told(write_study(tmp_path / "one", seeds=[0])) == (
        "On stdlib, after 0.33 MB and with 1 seed, no arm shares two seeds with its baseline, so"
        " nothing can be distinguished."
    )
    folder = write_study(tmp_path / "part", seeds=range(3))
    (folder / "concentrated" / "seed-2" / "result.json").unlink()
    assert told(folder).startswith("So far, on stdlib, after 0.33 MB and with 2 seeds, ")


@pytest.mark.parametrize(
    ("names", "text"),
    [(["stdlib"], "stdlib"), (["a", "b"], "a and b"), (["a", "b", "/folder/c"], "3 texts")],
)
def test_texts_are_named_or_counted(names: list[str], text: str, tmp_path: Path) -> None:
    """Arms on several texts; more than two are counted."""
    folder = write_study(tmp_path, effects=dict.fromkeys([BASELINE, "x", "y"], 0.0))
    for arm, name in zip([BASELINE, "x", "y"], names + names[-1:] * 2, strict=False):
        for seed in (0, 1):
            change(folder / f"{arm}/seed-{seed}/config.json", corpus={**CORPUS, "name": name})
    assert told(folder).startswith(f"On {text}, after 0.33 MB and with 2 seeds")


def test_an_arm_with_a_loss_that_is_not_finite_is_not_said_to_be_alike(tmp_path: Path) -> None:
    arms = {BASELINE: 0.0, **dict.fromkeys("abc", 0.0), "lost": 0.0}
    folder = write_study(tmp_path, seeds=range(3), effects=arms)
    change(folder / "lost/seed-1/result.json", final_val_bpb=None)
    answered = told(folder)
    same, lost = answered.split("; ")
    assert "a, b and c cannot be distinguished" in same
    assert "nan" not in answered
    assert "not finite" not in same
    assert lost == f"lost cannot be compared with {BASELINE}: no mean is finite."


def test_the_interval_of_several_arms_is_of_those_that_have_one(tmp_path: Path) -> None:
    """An arm that has finished at one seed so far has none, and is the first by its mean."""
    arms = {BASELINE: 0.0, "a": -1.0, "b": 0.0, "c": 0.0}
    folder = write_study(tmp_path, seeds=range(3), effects=arms)
    for seed in (1, 2):
        (folder / f"a/seed-{seed}/result.json").unlink()
    answered = told(folder)
    assert "a, b and c cannot be distinguished" in answered
    assert "nan" not in answered


def test_a_damaged_measurement_is_named(tmp_path: Path) -> None:
    folder = write_study(tmp_path, seeds=range(3))
    save_json(folder / MEASUREMENT, {"text": "stdlib"})
    with pytest.raises(ValueError, match=r"measurement.json: options is missing"):
        told(folder)


def measurement(**changes: Any) -> dict[str, Any]:
    """A measurement of d**-1 on lags 1, 2, 4 .. 256, which stands out to lag 128."""
    lags = [2**power for power in range(9)]
    law = dict.fromkeys(("standard_error", "curvature", "curvature_error", "curvature_p"), 0.1)
    law |= {"beta": 1.0, "low": 0.9, "high": 1.1, "confidence": 0.95, "amplitude": 1.0}
    law |= {"first_lag": 1, "last_lag": 128, "used": 8, "dropped": [], "r_squared": 0.99}
    curve = {
        "quantity": "information",
        "estimator": "jackknife",
        "size": 100_000,
        "symbols": 60,
        "lags": lags,
        "values": [1 / lag for lag in lags],
        "floor": [0.006] * 9,
        "drift": 1e-3,
        "replicates": [[1.01 / lag, 0.99 / lag, 1.0 / lag, 1.0 / lag] for lag in lags],
    }
    options = {"model": "ssm", "minutes": 5, "seeds": 3, "frozen": True, "dim": 64}
    verdict = {"kind": "power law", "sentence": "one", "first_lag": 1, "last_lag": 128}
    values = {"text": "stdlib", "options": options, "information": curve, "verdict": verdict}
    return {**values, "law": law, "words": {}, **changes}


CONTROLLED = ("log-spaced_control", "short-frozen_control")


def controlled(folder: Path, cost: float, trained: bool = True) -> Path:
    """A study on a text, and on a control in which frozen half-lives cost `cost`."""
    effects = {BASELINE: 0.0, "a": 0.05, "b": 0.01}
    if trained:
        effects |= dict(zip(CONTROLLED, (0.0, cost), strict=True))
    arms: dict[str, Any] = {BASELINE: {}, "a": {}, "b": {}}
    for name in CONTROLLED:
        arms[name] = {"levels": {"text": "control"}}
    arms[CONTROLLED[1]]["against"] = CONTROLLED[0]
    write_study(folder, range(3), effects, {"arms": arms, "within": ["text"]})
    words = {CONTROLLED[1]: "frozen half-lives"}
    save_json(folder / MEASUREMENT, measurement(control="copied bytes", words=words))
    return folder


@pytest.mark.parametrize(
    ("cost", "clause"),
    [
        (
            0.5,
            r"; the control \(copied bytes\) is seen: frozen half-lives cost 0\.\d+ \(",
        ),
        (
            0.0,
            r"; the control \(copied bytes\) is not seen: .*, so this trial is too small to show",
        ),
        (-0.5, r"; the control \(copied bytes\) is not seen: frozen half-lives -0\.\d+ "),
    ],
)
def test_the_control_is_told_apart_from_the_text(cost: float, clause: str, tmp_path: Path) -> None:
    sentence = told(controlled(tmp_path, cost))
    assert re.search(clause, sentence)
    assert sentence.count("control") == 1
    assert "a ended 0.0" in sentence


def test_a_control_that_was_not_trained_is_said(tmp_path: Path) -> None:
    sentence = told(controlled(tmp_path, 0.0, trained=False))
    assert sentence.endswith("; the control (copied bytes) has not been trained yet.")


def test_the_control_does_not_hide_the_picture(tmp_path: Path) -> None:
    drawn = next(drawings(compare(read_study(controlled(tmp_path, 0.5)))))
    assert drawn.name == "overview"
    legend = drawn.figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == [f"{BASELINE} (baseline)", "a", "b"]
    assert legend.get_title().get_text().startswith("the control (copied bytes) is seen")


def test_the_control_is_corrected_apart_from_the_arms_on_the_text(tmp_path: Path) -> None:
    one = compare(read_study(controlled(tmp_path, 0.5)))
    names = [name for name in one.differences if name not in CONTROLLED]
    on_text = {name: one.differences[name].p_value for name in names}
    assert list(on_text) == ["a", "b"]
    own = one.differences[CONTROLLED[1]].p_value
    assert one.corrected == {**holm(on_text), CONTROLLED[1]: own}
    on_test = one.corrected_in("test_bpb")
    assert on_test[CONTROLLED[1]] == one[CONTROLLED[1]].differences["test_bpb"].p_value
    assert "corrected for 2 comparisons" in answer(one)
    assert re.match("(None|[12]) of 2 differences (is|are) significant", overview(one)[0])
    assert "by Holm for all 2 on the text, the control apart;" in page(one, [])


def test_comparisons_are_counted_that_have_a_p(tmp_path: Path) -> None:
    """The losses of `log-skewed` are those of the baseline, and `b` shares one seed with it."""
    effects = {BASELINE: 0.0, "a": 0.3, "far": -0.3, "log-skewed": 0.0, "b": 0.1}
    folder = write_study(tmp_path, seeds=range(3), effects=effects)
    for seed in (1, 2):
        (folder / "b" / f"seed-{seed}" / "result.json").unlink()
    one = compare(read_study(folder))
    assert one.tested == ["a", "far"]
    of_two = holm({name: one.differences[name].p_value for name in one.tested})
    assert {name: one.corrected[name] for name in one.tested} == of_two
    assert "(significance is corrected for 2 comparisons," in answer(one)
    assert overview(one)[0].startswith("2 of 2 differences are significant (Holm-corrected, 3 see")
    assert "corrected by Holm for the 2 of 4 that have one;" in page(one, [])


@pytest.mark.parametrize(
    ("other", "told", "begins"),
    [
        ({}, "no difference can be tested.", "No difference can be tested: "),
        ({"a": 0.3}, "1 of 1 difference is significant: 1 ", "1 of 1 difference is significant "),
    ],
)
def test_many_differences_of_nothing_are_not_counted(
    other: dict[str, float], told: str, begins: str, tmp_path: Path
) -> None:
    """The losses of arms whose names are as long as that of the baseline are its own."""
    equal = {f"equal-{number:04d}": 0.0 for number in range(7)}
    folder = write_study(tmp_path, seeds=range(3), effects={BASELINE: 0.0, **equal, **other})
    one = compare(read_study(folder))
    assert f"with 3 seeds, {told}" in answer(one)
    assert overview(one)[0].startswith(begins)
    assert ("corrected by Holm for" in page(one, [])) == bool(one.tested)


def test_a_control_that_ended_before_the_text_is_said(tmp_path: Path) -> None:
    folder = controlled(tmp_path, 0.5)
    for name in (BASELINE, "a", "b"):
        for result in (folder / name).glob("*/result.json"):
            result.unlink()
    assert told(folder).startswith("So far, with the control alone, no arm shares two seeds")


@pytest.mark.parametrize(
    ("effect", "end"),
    [
        (0.0, "; no other initialisation can be told to do better here."),
        (-0.5, "; law did better here; try this again with more minutes and seeds"),
        (0.5, "; no other initialisation can be told to do better here."),
    ],
)
def test_a_trial_says_what_follows_for_a_model(effect: float, end: str, tmp_path: Path) -> None:
    folder = write_study(tmp_path, seeds=range(4), effects={BASELINE: 0.0, "a": effect})
    assert advice(compare(read_study(folder))) == ""
    save_json(folder / MEASUREMENT, measurement(words={"a": "law"}))
    one = compare(read_study(folder))
    assert "from 1 to 128 bytes, the last lag at which information stands out" in advice(one)
    assert end in advice(one)
    assert end.replace("; ", "") in page(one, []).replace("; ", "")


def test_a_trial_of_rwkv_advises_its_official_initialisation(tmp_path: Path) -> None:
    """In small models it ended ahead of log-spaced half-lives, which lead in an SSM."""
    folder = write_study(tmp_path, seeds=range(4), effects={BASELINE: 0.0, "a": 0.0})
    save_json(folder / MEASUREMENT, measurement(words={"a": "law"}))
    spec = load_json(folder / SPEC)
    save_json(folder / SPEC, {**spec, "model": {**(spec.get("model") or {}), "kind": "rwkv7"}})
    assert advice(compare(read_study(folder))).startswith(
        "For a model of yours: keep the official initialisation, and train its decays; no other"
    )
