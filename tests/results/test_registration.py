"""Registrations, and verdicts: which runs, which numbers, which family, and what a registration
holds fast.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from studies import change

from plkernel.commands.experiment import command
from plkernel.common.files import load_json, save_json
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.schema import Gate
from plkernel.config.spec import Spec
from plkernel.results import registration
from plkernel.results.claims import Claimed, judge_family
from plkernel.results.measurements import Basis, basis_of
from plkernel.results.power import powers
from plkernel.results.registration import (
    changes,
    read_registration,
    register,
    registration_of,
)
from plkernel.results.study import read_study
from plkernel.results.verdicts import Declared, _error, declared

RUNS = Path(__file__).parents[2] / "runs"
Writer = Callable[..., Path]
HELPS = {"name": "helps", "arm": "better", "claim": "lower", "margin": 0.01}
WORSE = {"name": "worse", "arm": "better", "claim": "higher"}
SAME = {"name": "same", "arm": "same", "claim": "equal", "margin": 0.01}
LEARNT = {"name": "learnt", "arm": "base", "at_most": 4.0}


def of(folder: Path) -> Declared:
    one = declared(read_study(folder))
    assert one is not None
    return one


def verdicts(one: Declared) -> dict[str, str]:
    return {outcome.hypothesis.name: one.verdict(outcome) for outcome in one.outcomes}


def registered(folder: Path) -> Path:
    register(load_spec(folder / "spec.json"), folder / "registered.json", folder)
    return folder / "registered.json"


def begin(folder: Path) -> None:
    """Have the rows of a record say that their runs began under its registration."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    for row in rows:
        row["environment"]["registration"] = load_json(folder / "registered.json")["sha256"]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture
def spec(declared_study: Writer) -> Spec:
    return load_spec(declared_study([HELPS], [LEARNT]) / "spec.json")


def other(spec: Spec, **values: Any) -> Spec:
    return parse_spec({**spec.model_dump(mode="json"), **values}, "here")


# Verdicts


def test_verdicts_are_those_of_the_family_of_paired_differences(declared_study: Writer) -> None:
    folder = declared_study([HELPS, WORSE, SAME])
    one = of(folder)
    assert verdicts(one) == {"helps": "confirmed", "worse": "refuted", "same": "confirmed"}
    losses = {
        (run.arm, run.seed): run.result.final_val_bpb
        for run in read_study(folder).finished()
        if run.result
    }
    better, same = (
        [losses[arm, seed] - losses["base", seed] for seed in range(6)]
        for arm in ("better", "same")
    )
    claims = {"helps": Claimed("lower", 0.01, better), "worse": Claimed("higher", 0.0, better)}
    judged = judge_family({**claims, "same": Claimed("equal", 0.01, same)}, 0.05)
    assert {outcome.hypothesis.name: outcome.judgement for outcome in one.outcomes} == judged
    assert (
        one.headline == "Of 3 hypotheses declared in the spec: 2 confirmed, 1 refuted, 0 undecided."
    )
    assert one.provenance[0].startswith("Not registered")
    assert one.basis("main") == "family main: 3 hypotheses, alpha 0.05, by exact sign flips"


def test_every_metric_is_read_where_it_stands(declared_study: Writer) -> None:
    means: list[tuple[dict[str, Any], float]] = [
        ({}, -0.05),
        ({"step": 20}, -0.025),
        ({"metric": "test_bpb"}, -0.05),
        ({"metric": "excess_bpb", "step": 20}, -0.025),
        ({"metric": "excess_bpb"}, -0.05),
        ({"metric": "truncation_cost", "bytes": 4}, -0.5),
        ({"arm": "base", "against": "better"}, 0.05),
    ]
    given = [{**HELPS, "name": str(at), **changed} for at, (changed, _) in enumerate(means)]
    folder = declared_study(given, corpus="synthetic:lags")
    judged = [outcome.judgement for outcome in of(folder).outcomes]
    assert [one.mean for one in judged] == pytest.approx([mean for _, mean in means], abs=0.0015)
    assert {one.n for one in judged} == {6}


@pytest.mark.parametrize(
    "given", [{"arm": "untried"}, *({"metric": "truncation_cost", "bytes": n} for n in (1, 32))]
)
def test_a_missing_measurement_is_undecided_and_counts_in_its_family(
    declared_study: Writer, given: dict[str, Any]
) -> None:
    helps, same = of(declared_study([HELPS, {**SAME, **given}])).outcomes
    assert [*map(math.isnan, same.per_seed.values())] == [True] * 6 * (given.get("bytes") == 1)
    assert (same.judgement.verdict, helps.judgement.p_family) == ("undecided", 2 / 64)


@pytest.mark.parametrize(
    ("limits", "passed"),
    [
        ({"at_most": 9.0}, True),
        ({"at_most": 2.0}, False),
        ({"at_least": 9.0}, False),
        ({"at_least": 2.0}, True),
        ({"arm": "untried", "at_most": 9.0}, False),
    ],
)
def test_a_closed_gate_leaves_everything_without_an_answer(
    declared_study: Writer, limits: dict[str, Any], passed: bool
) -> None:
    one = of(declared_study([HELPS, WORSE], [{"name": "learnt", "arm": "base", **limits}]))
    (gate,) = one.gates
    assert gate.passed == passed
    assert (gate.estimate.n, math.isnan(gate.estimate.mean)) == (
        (0, True) if "arm" in limits else (6, False)
    )
    assert set(verdicts(one).values()) == (
        {"confirmed", "refuted"}
        if passed
        else {"cannot answer: learnt" + " so far" * ("arm" in limits)}
    )
    if not passed:
        assert (
            "he study cannot answer its 2 hypotheses declared in the spec: gate 'learnt'"
            in one.headline
        )


def test_a_gate_counts_no_windows_beyond_the_corpus() -> None:
    spec = {"train": {"context": 99, "final_windows": 10**6}, "arms": {}}
    found = [
        basis_of(spec, Gate(**LEARNT), {"size": 50_000, "validation": 0.1, "test": of})
        for of in (0, 1)
    ]
    assert found == 2 * [Basis(50 * 99)]


@pytest.mark.parametrize(
    ("name", "fallen"),
    [
        (
            "memory-lags",
            {
                "bytes beyond the last 32, alpha 0.7": 3.7,
                "bytes beyond the last 32, alpha 1.3": 0.8,
            },
        ),
        ("memory-potts", {"bytes beyond the last 32": 1.3}),
        ("memory-text", {"bytes beyond the last 32": 1.5}),
        ("memory-length", {"bytes beyond the last 32 are of use, good rate": 2.1}),
    ],
)
def test_gates_registered_by_their_mean_keep_their_verdict_and_are_told(
    name: str, fallen: dict[str, float]
) -> None:
    one = of(RUNS / "records" / name)
    assert one.closed == []
    (told,) = [text for text in one.provenance if "go by their means" in text]
    found = re.findall(r"'([^']*)' \(z = (\S+) over 1,024 target bytes\)", told)
    assert [(gate.removeprefix("the baseline uses "), float(z)) for gate, z in found] == list(
        fallen.items()
    )
    if name != "memory-length":
        limits = {
            gate.gate.name: gate.estimate.mean - 1.96 * gate.error > (gate.gate.at_least or 0)
            for gate in one.gates
        }
        assert not any(
            holds for gate, holds in limits.items() if gate.endswith("1.3") or "alpha" not in gate
        )


def test_the_error_of_a_gate_is_that_of_its_own_metric() -> None:
    """A run may have measured both a loss and what truncation costs."""
    truncation = SimpleNamespace(given=[1, 4], standard_error=[0.5, 0.25])
    result: Any = SimpleNamespace(truncation=truncation, final_val_error=0.02)
    gate = partial(Gate, name="g", arm="base", at_most=1.0)
    assert _error(result, gate()) == 0.02
    assert _error(result, gate(metric="truncation_cost", bytes=4)) == 0.25
    assert _error(result, gate(metric="test_bpb")) is None
    assert _error(result, gate(step=100)) is None


@pytest.mark.parametrize(
    ("gate", "error", "passed"),
    [
        ({"at_most": 2.55}, None, (False, True)),
        ({"at_most": 2.7}, None, (True, True)),
        ({"at_least": 2.3}, None, (False, True)),
        ({"ahead_of": 2}, None, (False, True)),
        ({"ahead_of": 1}, None, (True, True)),
        ({"ahead_of": 3}, None, (False, True)),  # trigrams are worse than bigrams
        ({"ahead_of": 4}, None, (False, False)),
        ({"metric": "truncation_cost", "bytes": 4, "at_least": 0.4}, 0.04, (True, True)),
        ({"metric": "truncation_cost", "bytes": 4, "at_least": 0.4}, 0.06, (False, True)),
    ],
)
@pytest.mark.parametrize("rule", ["limit", "mean"])
def test_a_gate_is_passed_by_the_rule_that_was_registered(
    declared_study: Writer,
    gate: dict[str, Any],
    error: float | None,
    passed: tuple[bool, bool],
    rule: str,
) -> None:
    """Losses of base: 2.40 over seeds, 95 % interval 2.20 to 2.59; its truncation cost is 0.5 for
    every seed.
    """
    folder = declared_study([HELPS], [{"name": "g", "arm": "base", **gate}])
    for name, words in {
        "spec.json": ('"truncation_windows": 8', '"truncation_windows": 16000'),
        "rows.jsonl": (
            '"given": [1, 4, 64]',
            f'"given": [1, 4, 64], "standard_error": [0.1, {json.dumps(error)}, 0.0]',
        ),
    }.items():
        (folder / name).write_text((folder / name).read_text().replace(*words))
    registered(folder)
    if rule == "mean":
        content = load_json(folder / "registered.json")
        del content["sha256"], content["gate_rule"]
        save_json(
            folder / "registered.json", {**content, "sha256": registration.fingerprint(content)}
        )
    rows = [json.loads(row) for row in (folder / "rows.jsonl").read_text().splitlines()]
    entry = {
        "corpus": rows[0]["config"]["corpus"],
        "train": {},
        "orders": [1, 2, 3],
        "test_bpb": [0.0] * 3,
    }
    save_json(folder / "references.json", {"references": [{**entry, "val_bpb": [2.8, 2.45, 2.6]}]})
    (one,) = of(folder).gates
    assert one.passed == passed[rule == "mean"]


def test_the_registered_hypotheses_are_judged(declared_study: Writer) -> None:
    """Later the margin is lowered, a hypothesis left out, another added, a gate and a seed: none of
    it counts.
    """
    assert declared(read_study(declared_study(name="none"))) is None
    before = declared_study([{**HELPS, "margin": 0.06}, WORSE], seeds=6, name="before")
    path = registered(before)
    begin(before)
    same = of(before)
    assert same.provenance[0].endswith("; the spec is as it was registered.")
    gates = [{"name": "late", "arm": "base", "at_most": 1.0}]
    after = declared_study([{**HELPS, "margin": 0.01}, SAME], gates, seeds=7, name="after")
    path.rename(after / "registered.json")
    begin(after)
    one = of(after)
    assert verdicts(one) == {"helps": "refuted", "worse": "refuted"}
    assert [outcome.judgement for outcome in one.outcomes] == [
        outcome.judgement for outcome in same.outcomes
    ]
    changed = [
        "gates.late",
        "hypotheses.helps.margin",
        "hypotheses.same",
        "hypotheses.worse",
        "seeds",
    ]
    assert [change.partition(" was ")[0] for change in one.changes] == changed
    assert (
        one.headline
        == "Of 2 hypotheses declared before the runs: 0 confirmed, 2 refuted, 0 undecided."
    )
    assert one.provenance[-1].startswith("Changed since, and judged as registered")


def test_runs_of_another_number_of_steps_than_registered_are_lost(declared_study: Writer) -> None:
    folder = declared_study([HELPS], [LEARNT])
    registered(folder)
    for name in ("spec.json", "rows.jsonl"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace('"steps": 40', '"steps": 50'))
    one = of(folder)
    assert [change.partition(" was ")[0] for change in one.changes] == ["train.steps"]
    assert (one.lost, one.outcomes[0].judgement.n, one.gates[0].estimate.n) == (12, 0, 0)


def test_a_changed_registration_counts_for_nothing(declared_study: Writer) -> None:
    folder = declared_study([HELPS])
    save_json(folder / "base/seed-0/result.json", {})
    path = registered(folder)
    rows = (folder / "rows.jsonl").read_text()
    (folder / "rows.jsonl").write_text(
        rows.replace('"environment": {', '"environment": {"registration": null, ', 1)
    )
    told = "18 runs had ended or begun before: results may have been known."
    assert told in of(folder).provenance
    assert of(folder).headline.startswith("Of 1 hypothesis declared in the spec")
    path.write_text(path.read_text().replace('"margin": 0.01', '"margin": 0.02'))
    one = of(folder)
    assert (one.registered, one.outcomes[0].hypothesis.margin) == (False, 0.01)
    assert "was changed after it was written" in one.provenance[0]


@pytest.mark.parametrize(("is_early", "before"), [(True, 1), (False, 18)])
def test_runs_of_versions_that_kept_no_registration_began_before_one_of_a_later_version(
    is_early: bool, before: int, declared_study: Writer
) -> None:
    """One of 18 had ended by the count of the registration, as where they come from a record."""
    folder = declared_study([HELPS])
    save_json(folder / "base/seed-0/result.json", {})
    path = registered(folder)
    content = load_json(path)
    del content["sha256"]
    if is_early:
        del content["source"]
    save_json(path, {**content, "sha256": registration.fingerprint(content)})
    assert of(folder).before == before


def test_while_runs_are_to_come_verdicts_are_preliminary(declared_study: Writer) -> None:
    folder = declared_study([HELPS], [LEARNT])
    registered(folder)
    begin(folder)
    rows = [json.loads(row) for row in (folder / "rows.jsonl").read_text().splitlines()]
    kept = [row for row in rows if row["arm"] != "better" or row["seed"] <= 3]
    kept[0]["result"]["steps"] += 1
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    one = of(folder)
    assert one.waiting == 2
    assert verdicts(one)["helps"].endswith(" so far")
    assert one.headline.startswith(
        "Preliminary, 2 runs are still to end: of 1 hypothesis declared before the runs"
    )
    assert one.headline.endswith("Without 1 run that did not end as planned.")
    assert (len(one.outcomes[0].per_seed), one.gates[0].estimate.n) == (3, 5)


# Registrations


def test_a_registration_holds_the_settled_spec_and_a_fingerprint(
    spec: Spec, tmp_path: Path
) -> None:
    path = tmp_path / "registered" / "claims.json"
    assert register(spec, path, tmp_path / "out")
    content = load_json(path)
    sha256 = content.pop("sha256")
    assert (
        sha256
        == hashlib.sha256(
            json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        ).hexdigest()
    )
    assert Spec.model_validate(content["spec"]) == spec
    assert content["spec"]["hypotheses"][0]["against"] == "base"
    assert (content["runs_before"], "commit" in content, content["rules"]) == (
        0,
        True,
        list(registration.RULES),
    )
    one = read_registration(path)
    assert one.intact
    before = path.read_bytes()
    assert not register(spec, path, tmp_path / "out")
    with pytest.raises(
        ValueError,
        match=r"without another registration, got .* \(seeds was .*\); a registration is never",
    ):
        register(other(spec, seeds=list(range(7))), path, tmp_path)
    assert path.read_bytes() == before
    few = [{"name": "few", "arm": "base", "metric": "truncation_cost", "bytes": 4, "at_least": 0.1}]
    with pytest.raises(
        ValueError, match="gate 'few' must rest on at least 16,000 target bytes, got 8;"
    ):
        register(other(spec, gates=few), tmp_path / "r.json", tmp_path)
    many = {**spec.model_dump()["arms"], "base": {"train": {"truncation_windows": 16_000}}}
    assert register(other(spec, gates=few, arms=many), tmp_path / "many.json", tmp_path / "many")
    with pytest.raises(
        ValueError, match=r"spec 'claims' must declare what to decide, got no \[\[hypotheses\]\]"
    ):
        register(other(spec, hypotheses=[]), tmp_path / "r.json", tmp_path)


def test_one_changed_word_and_another_registration_are_noticed(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="spec 'claims' must have at least two seeds, got 1"):
        register(other(spec, seeds=[0]), tmp_path / "r.json", tmp_path)
    apart = tmp_path / "other/registered.json"
    register(other(spec, seeds=[0, 1]), apart, tmp_path / "other")
    assert registration_of(spec, tmp_path / "other") == read_registration(apart)
    command(spec, register=())
    path = registration.place_of(spec)
    assert f"registered: {path}; commit it before the runs" in capsys.readouterr().out
    assert not Path("runs/out").exists()
    assert registration_of(spec, tmp_path / "out") == read_registration(path)
    with pytest.raises(
        ValueError,
        match=r"must be the one in .*other, got another; bring that back, or name another out",
    ):
        registration_of(spec, tmp_path / "other")
    path.write_text(path.read_text().replace('"margin": 0.01', '"margin": 0.001'))
    assert not read_registration(path).intact
    for action in (
        lambda: register(spec, path, tmp_path),
        lambda: registration_of(spec, tmp_path / "out"),
    ):
        with pytest.raises(
            ValueError, match="must be as it was written, got one that was changed since; bring it"
        ):
            action()


def test_a_study_finds_a_registration_in_a_file_of_another_name(
    declared_study: Writer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = declared_study([HELPS])
    spec = load_spec(folder / "spec.json")
    copy = folder / "registered.json"
    command(spec, out=folder, register=(Path("mine.json"),))
    assert f"the study finds its copy {copy}" in capsys.readouterr().out
    assert of(folder).registered
    assert registration_of(spec, folder) == read_registration(Path("mine.json"))
    copy.unlink()
    assert registration_of(spec, folder) is None
    command(spec, out=folder, register=(Path("mine.json"),))
    assert copy.read_bytes() == Path("mine.json").read_bytes()
    again = other(spec, seeds=[0, 1])
    for path in ((), (Path("second.json"),)):
        message = f"study 'claims' must have one registration, got .* beside {copy} .*never"
        with pytest.raises(ValueError, match=message):
            command(again, out=folder, register=path)
    assert not Path("second.json").exists()
    assert not registration.place_of(spec).exists()


def test_the_folder_of_another_study_takes_no_registration(
    spec: Spec, declared_study: Writer, tmp_path: Path
) -> None:
    folder = declared_study([HELPS])
    with pytest.raises(ValueError, match="out must be a new folder or that of study 'else', got"):
        register(other(spec, name="else"), tmp_path / "mine.json", folder)
    assert not (folder / "registered.json").exists()


def test_a_registration_is_found_again_for_another_file(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at a later commit, of which a new one would tell."""
    monkeypatch.chdir(tmp_path)
    place = registration.place_of(spec)
    assert register(spec, place, tmp_path / "out")
    monkeypatch.setattr(registration, "source_state", lambda: {"commit": "later"})
    assert not register(spec, Path("mine.json"), tmp_path / "out")
    assert Path("mine.json").read_bytes() == place.read_bytes()


def test_runs_that_ended_before_a_registration_count_once(declared_study: Writer) -> None:
    folder = declared_study([HELPS])
    for name in ("base", "better"):
        save_json(folder / name / "seed-0/result.json", {})
    registered(folder)
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    for at, row in enumerate(lines):
        own = of(folder).registration.sha256
        row["environment"]["registration"] = None if at < 2 else own
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    assert of(folder).before == 2


def test_registered_seeds_that_the_spec_has_dropped_are_judged(declared_study: Writer) -> None:
    folder = declared_study([HELPS])
    registered(folder)
    before = of(folder)
    change(folder / "spec.json", seeds=[0, 1])
    after = of(folder)
    assert (after.waiting, after.lost) == (before.waiting, before.lost) == (0, 0)
    assert after.outcomes[0].per_seed == before.outcomes[0].per_seed
    assert after.changes


def test_a_file_of_another_name_is_refused_beside_that_of_the_study(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = registration.place_of(spec)
    register(spec, place, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match=f"got mine.json beside {place}"):
        register(other(spec, seeds=[0, 1]), Path("mine.json"), tmp_path / "out")
    assert not Path("mine.json").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("registered", {"spec": None}, "spec: .*got None"),
        ("registered", {"rules": 3}, "rules: .*got 3"),
        ("registered", {"spec": {}}, "spec.name is missing"),
        ("spec", {"hypotheses": [{"name": "x"}]}, "hypotheses.0.arm is missing"),
        (
            "spec",
            {"hypotheses": [{**HELPS, "mragin": 1}]},
            r"unknown key 'mragin' in \[hypotheses.0\]; did you mean",
        ),
        ("spec", {"hypotheses": 3}, "hypotheses: "),
        (
            "spec",
            {"gates": [{"name": "g", "arm": "base"}]},
            "'g': a gate must have at_least or at_most",
        ),
    ],
)
def test_damage_is_named_with_its_file(
    declared_study: Writer, file: str, content: Any, message: str
) -> None:
    folder = declared_study([HELPS])
    registered(folder)
    path = folder / f"{file}.json"
    save_json(path, {**load_json(path), **content})
    with pytest.raises(ValueError, match=f"{file}.json: .*{message}"):
        of(folder)


def test_changes_are_named_but_not_younger_options_rounding_and_searched_rates(spec: Spec) -> None:
    before = spec.model_dump(mode="json")
    now = json.loads(json.dumps(before))
    now["hypotheses"][0]["margin"] = 0.001
    now["train"]["steps"] = 50
    now["gates"] = []
    del now["arms"]["untried"]
    words = [
        "arms.untried was {",
        "gates.learnt was {",
        "hypotheses.helps.margin was 0.01, is now 0.001",
        "train.steps was",
    ]
    assert all(
        text.startswith(start) for text, start in zip(changes(before, now), words, strict=True)
    )
    old = {
        **before,
        "train": {name: value for name, value in before["train"].items() if name != "compile"},
    }
    assert changes(old, before) == changes(before, old) == []
    compiled = {**before, "train": {**before["train"], "compile": True}}
    assert changes(old, compiled) == ["train.compile was False, is now True"]
    for factor, differing in (
        (1 + 2**-52, []),
        (2.0, ["arms.base.output_std was 0.25, is now 0.5"]),
    ):
        arms = [
            {**before["arms"], "base": {**before["arms"]["base"], "output_std": 0.25 * by}}
            for by in (1.0, factor)
        ]
        assert changes({**before, "arms": arms[0]}, {**before, "arms": arms[1]}) == differing
    searched = other(spec, tuning={"rates": [1e-3, 2e-3], "seeds": [100]}).model_dump(mode="json")
    settled = json.loads(json.dumps(searched))
    settled["arms"]["base"]["learning_rate"] = 2e-3
    assert changes(searched, settled) == []
    assert changes({**searched, "tuning": {}}, settled) != []
    again = json.loads(json.dumps(settled))
    again["arms"]["base"]["learning_rate"] = 1e-3
    assert changes(settled, again) == ["arms.base.learning_rate was 0.002, is now 0.001"]
    settled["tuning"] = searched["tuning"] = None
    assert changes(searched, settled) == ["arms.base.learning_rate was None, is now 0.002"]


# Power


def test_a_pilot_of_two_seeds_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"pilot must have 3 seeds or more for .*, got 2 in .*goose"
    ):
        powers(load_spec(RUNS / "models-goose.toml"), RUNS / "records/goose")


def test_a_pilot_of_three_seeds_promises_less_than_its_spread_alone() -> None:
    """The registration took the spread of its pilot as known, and stated a power of 0.96."""
    record = RUNS / "records/models-mamba2"
    row = powers(load_spec(RUNS / "models-mamba2.toml"), record / "pilot")[0]
    stated = load_json(record / "registered.json")["power"][0]
    assert row["sd"] == pytest.approx(stated["sd"], rel=1e-9)
    assert stated["power"] == pytest.approx(0.96, abs=0.005)
    assert row["power"] == pytest.approx(0.655, abs=0.015)
    assert row["up_to"] == pytest.approx(4.415 * row["sd"], rel=1e-3), (
        "chi square of two degrees exceeds 0.1026 in 95 %"
    )
    assert row["least"] < 0.01


def test_an_equivalence_nobody_could_confirm_is_not_registered(
    declared_study: Writer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seeds spread by 0.001, differences by 0.0014; the arm untried has no run and takes the spread
    of the others.
    """
    pilot = declared_study(name="pilot")
    path = tmp_path / "r.json"
    out = tmp_path / "out"
    narrow = {**SAME, "name": "narrow", "margin": 0.001}
    spec = load_spec(
        declared_study([HELPS, SAME, narrow, {**WORSE, "arm": "untried"}]) / "spec.json"
    )
    with pytest.raises(
        ValueError,
        match=r"'narrow' must be at least 0.5, got 0.\d\d if the difference is 0; spread 0.00.*--u",
    ):
        command(spec, out=out, register=(path,), pilot=pilot)
    assert not path.exists()
    command(spec, out=out, register=(path,), pilot=pilot, underpowered=True)
    told = capsys.readouterr().out
    assert re.search(
        r"power of 'helps': 1.00 if the difference is -0.02; 0.80 if it is -0.01\d; spread 0.00",
        told,
    )
    assert re.search(
        r"power of 'worse': 0.80 if it is \+0.00\d+; spread 0.00\d+ of 6 seeds, up to 0.00\d+;"
        r" this spread is the median over other comparisons of the pilot, which shows none here$",
        told,
        re.M,
    )
    assert [row["name"] for row in load_json(path)["power"]] == ["helps", "same", "narrow", "worse"]
    command(spec, out=out, register=(path,))
    assert "the power is not known; --pilot FOLDER takes" in capsys.readouterr().out
    with pytest.raises(
        ValueError,
        match=r"pilot must have 3 seeds or more for 'helps', got 1 in .*; so few hardly tell",
    ):
        powers(spec, declared_study(seeds=1, name="one"))
