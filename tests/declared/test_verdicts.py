"""Verdicts of a study: which runs, which numbers, which family, and what a registration holds fast."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plkernel.analysis.statistics.hypotheses import Claimed, judge
from plkernel.config.reading import load_spec
from plkernel.declared.registration import register
from plkernel.declared.sentences import headline, mind, registration
from plkernel.declared.verdicts import Declared, Outcome, declared
from plkernel.records.study import read_study

Writer = Callable[..., Path]
HELPS = {"name": "helps", "arm": "better", "claim": "lower", "margin": 0.01}
WORSE = {"name": "worse", "arm": "better", "claim": "higher"}
SAME = {"name": "same", "arm": "same", "claim": "equal", "margin": 0.01}


def found(folder: Path, path: Path | None = None) -> Declared:
    result = declared(read_study(folder), path)
    assert result is not None
    return result


def outcomes(result: Declared) -> dict[str, Outcome]:
    return {one.hypothesis.name: one for one in result.outcomes}


def verdicts(result: Declared) -> dict[str, str]:
    return {one.hypothesis.name: result.verdict(one) for one in result.outcomes}


def registered(folder: Path, path: Path | None = None) -> Path:
    path = path or folder / "registered.json"
    register(load_spec(folder / "spec.json"), path, folder)
    return path


def test_verdicts_are_those_of_the_family_of_paired_differences(declared_study: Writer) -> None:
    folder = declared_study([HELPS, WORSE, SAME])
    result = found(folder)
    assert verdicts(result) == {"helps": "confirmed", "worse": "refuted", "same": "confirmed"}
    study = read_study(folder)
    losses = {(run.arm, run.seed): run.result.final_val_bpb for run in study.finished() if run.result}
    values = {arm: tuple(losses[arm, seed] - losses["base", seed] for seed in range(6)) for arm in ("better", "same")}
    claims = {
        "helps": Claimed("lower", 0.01, values["better"]),
        "worse": Claimed("higher", 0.0, values["better"]),
        "same": Claimed("equal", 0.01, values["same"]),
    }
    assert {name: one.judgement for name, one in outcomes(result).items()} == judge(claims, 0.05)
    assert headline(result) == "Of 3 hypotheses declared in the spec: 2 confirmed, 1 refuted, 0 undecided."
    assert registration(result)[0].startswith("Not registered: ")


@pytest.mark.parametrize(
    ("given", "mean"),
    [
        ({}, -0.05),
        ({"step": 20}, -0.025),
        ({"metric": "test_bpb"}, -0.05),
        ({"metric": "excess_bpb", "step": 20}, -0.025),
        ({"metric": "excess_bpb"}, -0.05),
        ({"metric": "truncation_cost", "bytes": 4}, -0.5),
        ({"arm": "base", "against": "better"}, 0.05),
    ],
)
def test_every_metric_is_read_where_it_stands(declared_study: Writer, given: dict[str, Any], mean: float) -> None:
    one = outcomes(found(declared_study([{**HELPS, **given}])))["helps"]
    assert one.judgement.mean == pytest.approx(mean, abs=0.0015)
    assert one.judgement.n == 6


def test_an_excess_is_that_of_the_rows(declared_study: Writer) -> None:
    gate = {"name": "floor", "arm": "base", "metric": "excess_bpb", "at_most": 9.0}
    losses = {"name": "loss", "arm": "base", "at_most": 9.0}
    excess, loss = found(declared_study([HELPS], [gate, losses])).gates
    assert excess.estimate.mean == pytest.approx(loss.estimate.mean - 1.0)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"arm": "untried"}, "no finished seed in common"),
        ({"metric": "truncation_cost", "bytes": 32}, "its runs tell no truncation_cost"),
    ],
)
def test_what_was_not_measured_is_undecided_and_counts_in_its_family(
    declared_study: Writer, given: dict[str, Any], reason: str
) -> None:
    result = outcomes(found(declared_study([HELPS, {**SAME, **given}])))
    assert (result["same"].missing, result["same"].judgement.verdict) == (reason, "undecided")
    assert result["helps"].judgement.p_family == 2 / 64


@pytest.mark.parametrize(
    ("limits", "passed"),
    [({"at_most": 9.0}, True), ({"at_most": 2.0}, False), ({"at_least": 9.0}, False), ({"at_least": 2.0}, True)],
)
def test_a_gate_that_is_not_passed_leaves_everything_without_an_answer(
    declared_study: Writer, limits: dict[str, float], passed: bool
) -> None:
    result = found(declared_study([HELPS, WORSE], [{"name": "learnt", "arm": "base", **limits}]))
    (gate,) = result.gates
    assert gate.passed == passed
    assert gate.estimate.n == 6
    assert gate.estimate.low < gate.estimate.mean < gate.estimate.high
    assert set(verdicts(result).values()) == ({"confirmed", "refuted"} if passed else {"cannot answer: learnt"})
    if not passed:
        assert headline(result) == (
            "The study cannot answer its 2 hypotheses declared in the spec: gate 'learnt' is not passed."
        )
        assert mind(result)[0].startswith("Any answer needs base at ")


def test_a_gate_that_no_run_tells_of_is_not_passed(declared_study: Writer) -> None:
    (gate,) = found(declared_study([HELPS], [{"name": "learnt", "arm": "untried", "at_most": 9.0}])).gates
    assert not gate.passed
    assert math.isnan(gate.estimate.mean)


def test_a_study_that_declares_nothing_has_none(declared_study: Writer) -> None:
    assert declared(read_study(declared_study())) is None


def test_what_was_registered_is_what_is_judged(declared_study: Writer, tmp_path: Path) -> None:
    """Later the margin is lowered, a hypothesis left out, another added, and a seed: none of it counts."""
    before = declared_study([{**HELPS, "margin": 0.06}, WORSE], seeds=6, name="before")
    path = registered(before)
    same = found(before)
    assert registration(same)[0].endswith("; the spec is as it was registered.")
    assert same.registered
    after = declared_study([{**HELPS, "margin": 0.01}, SAME], seeds=7, name="after")
    result = found(after, path)
    assert verdicts(result) == {"helps": "refuted", "worse": "refuted", "same": "confirmed"}
    assert [one.registered for one in result.outcomes] == [True, True, False]
    assert [one.judgement.n for one in result.outcomes] == [6, 6, 7]
    assert outcomes(result)["helps"].judgement == outcomes(same)["helps"].judgement
    assert outcomes(result)["same"].judgement.p_family == 3 / 2**7, "a late one is corrected for all of its family"
    assert set(result.changes) == {
        "seeds: 6 added",
        "hypotheses: helps.margin was 0.06, is 0.01",
        "hypotheses: worse was declared and is gone",
        "hypotheses: same was not declared",
    }
    assert headline(result) == (
        "Of 2 hypotheses declared before the runs: 0 confirmed, 2 refuted, 0 undecided; 1 more was not declared before."
    )


def test_a_gate_added_later_closes_nothing(declared_study: Writer) -> None:
    path = registered(declared_study([HELPS], name="before"))
    after = declared_study([HELPS], [{"name": "late", "arm": "base", "at_most": 1.0}], name="after")
    assert verdicts(found(after, path)) == {"helps": "confirmed"}
    assert found(after, path).changes == ("gates: late was not declared",)


def test_a_registration_that_was_changed_counts_for_nothing(declared_study: Writer) -> None:
    folder = declared_study([HELPS])
    path = registered(folder)
    path.write_text(path.read_text().replace('"margin": 0.01', '"margin": 0.02'))
    result = found(folder)
    assert not result.registered
    assert "was changed after it was written" in registration(result)[0]
    assert outcomes(result)["helps"].hypothesis.margin == 0.01


def test_runs_that_had_ended_before_the_registration_are_told(declared_study: Writer) -> None:
    folder = declared_study([HELPS])
    result = folder / "base/seed-0/result.json"
    result.parent.mkdir(parents=True)
    result.write_text("{}")
    registered(folder)
    assert "1 run of it had ended by then, so results were at hand." in registration(found(folder))


def test_damage_is_named_with_its_file(declared_study: Writer) -> None:
    folder = declared_study([HELPS])
    spec = json.loads((folder / "spec.json").read_text())
    for broken, message in (
        ([{"name": "x"}], "hypotheses.0.arm is missing"),
        ([{**HELPS, "mragin": 1}], r"unknown key 'mragin' in \[hypotheses.0\]; did you mean 'margin'"),
        (3, "hypotheses: "),
    ):
        (folder / "spec.json").write_text(json.dumps({**spec, "hypotheses": broken}))
        with pytest.raises(ValueError, match=f"spec.json: {message}"):
            found(folder)


def test_while_runs_are_to_come_no_verdict_is_one(declared_study: Writer) -> None:
    """Who judges by the first seeds of a registration may stop where it pleases: that is said, with how many remain."""
    folder = declared_study([HELPS], [{"name": "learnt", "arm": "base", "at_most": 4.0}])
    registered(folder)
    rows = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    kept = [row for row in rows if not (json.loads(row)["arm"] == "better" and json.loads(row)["seed"] > 3)]
    (folder / "rows.jsonl").write_text("".join(kept))
    result = found(folder)
    assert result.waiting == 2
    assert verdicts(result)["helps"].endswith(" so far")
    assert headline(result).startswith("Preliminary, 2 runs are still to end: of 1 hypothesis declared before the runs")
    (folder / "rows.jsonl").write_text("".join(rows))
    assert found(folder).waiting == 0
