"""Registrations: written once, verified word for word, and held against the spec of the runs."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plkernel.commands.experiment import command
from plkernel.common.files import load_json, save_json
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.study import Spec
from plkernel.declared.registration import changes, place_of, read_registration, register, registration_of

HELPS = {"name": "helps", "arm": "better", "claim": "lower", "margin": 0.01}


@pytest.fixture
def spec(declared_study: Callable[..., Path]) -> Spec:
    return load_spec(declared_study([HELPS], [{"name": "learnt", "arm": "base", "at_most": 4.0}]) / "spec.json")


def other(spec: Spec, **values: Any) -> Spec:
    return parse_spec({**spec.model_dump(mode="json"), **values}, "here")


def test_it_holds_the_settled_spec_and_a_fingerprint_that_anyone_can_compute(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "registered" / "claims.json"
    assert register(spec, path, tmp_path)
    content = load_json(path)
    sha256 = content.pop("sha256")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert sha256 == hashlib.sha256(canonical.encode()).hexdigest()
    assert Spec.model_validate(content["spec"]) == spec
    assert content["spec"]["hypotheses"][0]["against"] == "base"
    assert (content["runs_before"], "commit" in content, len(content["rules"])) == (0, True, 5)
    found = read_registration(path)
    assert (found.intact, found.hypotheses, found.gates) == (True, spec.hypotheses, spec.gates)


def test_it_is_never_overwritten_by_another(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    register(spec, path, tmp_path)
    before = path.read_bytes()
    assert not register(spec, path, tmp_path)
    with pytest.raises(ValueError, match=r"holds another registration \(seeds: 6 added\), which is never overwritten"):
        register(other(spec, seeds=list(range(7))), path, tmp_path)
    assert path.read_bytes() == before


def test_one_changed_word_is_noticed(spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = place_of(spec)
    register(spec, path, tmp_path)
    assert registration_of(spec, tmp_path / "out") == read_registration(path)
    path.write_text(path.read_text().replace('"margin": 0.01', '"margin": 0.001'))
    assert not read_registration(path).intact
    for action in (lambda: register(spec, path, tmp_path), lambda: registration_of(spec, tmp_path / "out")):
        with pytest.raises(ValueError, match="has been changed since it was written; bring it back"):
            action()


def test_ended_runs_are_counted(spec: Spec, tmp_path: Path) -> None:
    save_json(tmp_path / "out/base/seed-0/result.json", {})
    register(spec, tmp_path / "r.json", tmp_path / "out")
    assert load_json(tmp_path / "r.json")["runs_before"] == 1


def test_a_folder_of_another_registration_is_refused(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    register(other(spec, seeds=[0]), tmp_path / "out/registered.json", tmp_path)
    assert registration_of(spec, tmp_path / "out") is None
    register(spec, place_of(spec), tmp_path)
    with pytest.raises(ValueError, match=r"is not the one in .*out; bring that back, or name another out"):
        registration_of(spec, tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [("{}", "spec is missing"), ("[]", "expected an object"), ('{"spec": {}, "sha256": "", "rules": []}', "spec.name")],
)
def test_what_is_no_registration_is_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(ValueError, match=f"r.json: .*{message}"):
        read_registration(tmp_path / "r.json")


def test_a_spec_without_hypotheses_has_nothing_to_register(spec: Spec, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"spec 'claims' declares nothing to decide; give it \[\[hypotheses\]\]"):
        register(other(spec, hypotheses=[]), tmp_path / "r.json", tmp_path)


def test_changes_are_named_by_what_they_change(spec: Spec) -> None:
    before = spec.model_dump(mode="json")
    assert changes(before, before) == []
    late = {**before["hypotheses"][0], "name": "late"}
    now = json.loads(json.dumps(before))
    now["hypotheses"] = [{**now["hypotheses"][0], "margin": 0.001}, late]
    now["train"]["steps"], now["gates"], now["seeds"] = 50, [], [0, 1, 2, 3, 4, 6, 7]
    del now["arms"]["untried"]
    assert set(changes(before, now)) == {
        "hypotheses: helps.margin was 0.01, is 0.001",
        "hypotheses: late was not declared",
        "train.steps was 40, is 50",
        "gates: learnt was declared and is gone",
        "seeds: 6, 7 added and 5 gone",
        "arms.untried was declared and is gone",
    }


def test_an_option_that_is_younger_than_a_registration_changes_nothing(spec: Spec) -> None:
    now = spec.model_dump(mode="json")
    before = {**now, "train": {name: value for name, value in now["train"].items() if name != "compile"}}
    assert changes(before, now) == changes(now, before) == []
    now["train"]["compile"] = True
    assert changes(before, now) == ["train.compile was False, is True"]


def test_models_of_before_have_the_defaults_of_now_and_computed_numbers_may_end_otherwise(spec: Spec) -> None:
    now = spec.model_dump(mode="json")
    before = {**now, "model": {name: value for name, value in now["model"].items() if name != "ranks"}}
    assert changes(before, now) == []
    for factor, differing in ((1 + 2**-52, []), (2.0, ["arms.base.output_std was 0.25, is 0.5"])):
        before["arms"] = {**now["arms"], "base": {**now["arms"]["base"], "output_std": 0.25}}
        after = {**now, "arms": {**now["arms"], "base": {**now["arms"]["base"], "output_std": 0.25 * factor}}}
        assert changes(before, after) == differing


def test_a_rate_that_was_to_be_searched_may_be_found(spec: Spec) -> None:
    before = other(spec, tuning={"rates": [1e-3, 2e-3], "seeds": [100]}).model_dump(mode="json")
    found = json.loads(json.dumps(before))
    found["arms"]["base"]["learning_rate"] = 2e-3
    assert changes(before, found) == []
    assert changes({**before, "tuning": {}}, found) != []


def test_the_command_registers_and_runs_nothing(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command(spec, register=())
    said = capsys.readouterr().out
    assert "registered: runs/registered/claims.json; commit it before the runs" in said
    assert "family main: 1 hypothesis, 6 seeds: can decide by exact sign flips" in said
    command(spec, register=())
    assert "registered before, unchanged: runs/registered/claims.json" in capsys.readouterr().out
    command(spec, register=(Path("mine.json"),))
    assert read_registration(Path("mine.json")).hypotheses == spec.hypotheses
    assert not Path("runs/out").exists()
    with pytest.raises(ValueError, match="register: expected one file or none, got 2"):
        command(spec, register=(Path("a"), Path("b")))
