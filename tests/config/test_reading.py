"""Specs: what is read is what was written, and every mistake is one line that names the remedy."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plkernel.commands.experiment import forecast
from plkernel.common.files import load_json, save_json
from plkernel.config import reading, study
from plkernel.config.arm import Arm
from plkernel.config.condition import Condition, resolve
from plkernel.config.model import ModelSpec
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.study import Spec
from plkernel.study import dry_run
from plkernel.study.dry_run import Price
from plkernel.training import check

RUNS = Path(__file__).parents[2] / "runs"
SPECS = sorted(RUNS.glob("*.toml"))

FACTORS = "factors = { placement = ['log-spaced', 'concentrated'] }"


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_every_shipped_spec_is_valid(path: Path) -> None:
    spec = load_spec(path, lambda condition: None if condition.code else check(condition))
    assert spec.name == path.stem
    for name, arm in spec.arms.items():
        if arm.places_nodes:
            assert len(spec.condition(name).nodes.rates) == spec.model_of(name).node_count


def test_specs_round_trip_through_json(tiny_spec: Callable[..., Path], tmp_path: Path) -> None:
    spec = load_spec(tiny_spec())
    save_json(tmp_path / "spec.json", spec.model_dump(mode="json"))
    assert load_spec(tmp_path / "spec.json") == spec
    assert parse_spec(load_json(tmp_path / "spec.json"), "here") == spec


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("learning_rate", "learing_rate", r"unknown key 'learing_rate' in \[train\]; did you mean 'learning_rate'"),
        ("dim = 16", "dimm = 16", r"unknown key 'dimm' in \[model\]; did you mean 'dim'"),
        ("seeds", "seed", "unknown key 'seed' in the top level; did you mean 'seeds'"),
        ("projection", "proj", r"unknown key 'proj' in \[arms.power-law\]; did you mean 'projection'"),
        ("steps = 12", "steps = 0", "train.steps: .*greater than or equal to 1, got 0"),
        ("steps = 12", "steps = true", "train.steps: must be a number, not true or false, got True"),
        ("steps = 12", "steps = 12\nclip = true", "train.clip: must be a number, not true or false"),
        ("steps = 12", "", "exactly one of steps, bytes and minutes"),
        ("steps = 12", "steps = 12\nminutes = 1.0", "exactly one of steps, bytes and minutes"),
        ('baseline = "uniform"', 'baseline = "unifrom"', "baseline 'unifrom' is not an arm; did you mean 'uniform'"),
        ("seeds = [0, 1]", "seeds = [1, 1]", "seeds must be different"),
        ("dim = 16", "dim = 'big'", "model.dim: .*integer.*got 'big'"),
        ('"published"', '"published"\nshortest = 9.0\nlongest = 3.0', "0 < shortest < longest"),
        ('"published"', '"published"\nbeta = nan', "beta: .*finite"),
        ("[model]", "[model", "not valid TOML"),
        ("[arms.power-law]", "[arms.-x]", "arm name '-x' must start with a letter or digit"),
        ("[arms.power-law]", "[arms.report]", "arm name 'report' must"),
        ("seeds = [0, 1]", "seeds = [99999999999999999999]", "seeds.0: .*9223372036854775807"),
        ("seeds = [0, 1]", f"seeds = [{10**30}]", "seeds.0: .*9223372036854775807"),
        ("seeds = [0, 1]", f"seeds = [0, 1]\nfactors = {'[' * 100}{']' * 100}", "nested deeper than 64"),
        ("seeds = [0, 1]", f"seeds = [0, 1]\nfactors = {'[' * 5000}{']' * 5000}", "nested deeper than 64"),
        ("seeds = [0, 1]", f"seeds = [0, 1]\n{'a.' * 64}a = 1", "nested deeper than 64"),
        ("seeds = [0, 1]", "seeds = [0, 1]\nfactors = ['gain']", r"factors: expected a table, got \['gain'\]"),
        ("seeds = [0, 1]", "seeds = [0, 1]\nfactors = 3", "factors: expected a table, got 3"),
        (
            "seeds = [0, 1]",
            f"seeds = [0, 1]\nwithin = [5]\n{FACTORS}",
            r"within: expected a list of names .* got \[5\]",
        ),
        ("seeds = [0, 1]", f"seeds = [0, 1]\nwithin = 5\n{FACTORS}", "within: expected a list of names .* got 5"),
        ('baseline = "uniform"', f"baseline = [1]\n{FACTORS}", r"baseline: expected the name of an arm, got \[1\]"),
        ("dim = 16", "dim = 1000000000", "model.dim: .*less than or equal to 65536, got 1000000000"),
        ("layers = 2", "layers = 100000", "model.layers: .*less than or equal to 1024, got 100000"),
        ("batch = 4", "batch = 2147483648", "train.batch: .*less than or equal to 268435456, got 2147483648"),
        ("batch = 4", "batch = 268435456", r"batch \* context must be at most 268435456 bytes in a step"),
        ("context = 32", "context = 2147483648", "train.context: .*less than or equal to 16777216"),
        ("steps = 12", "steps = 12\nthreads = 100000", "train.threads: .*less than or equal to 1024, got 100000"),
        ("dim = 16", f"dim = '{'x' * 20000}'", "model.dim: .*got 'x{1,40}[.]{3}x{1,40}'"),
        ("[train]", "[trian]", "unknown key 'trian' in the top level; did you mean 'train'"),
    ],
)
def test_mistakes_are_named(tiny_spec: Callable[..., Path], old: str, new: str, message: str) -> None:
    path = tiny_spec()
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as error:
        load_spec(path)
    assert str(path) in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("content", ["null", "[]", "3", '"text"', "true"])
def test_a_saved_spec_that_is_no_object(content: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"spec.json: holds .*, expected an object"):
        load_spec(path)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({f"f{i}": list(range(10)) for i in range(10)}, "10 factors and 1 arms beside them make 10,000,000,00. arms"),
        ({f"f{i}": list(range(10)) for i in range(300)}, r"300 factors .* make more than 10\*\*15 arms"),
        ({f"f{i}": [0, 1] for i in range(13)}, "make 8,193 arms, and a study has 4,096 at most"),
    ],
)
def test_more_combinations_than_a_study_may_have_are_counted_and_not_made(factors: dict, message: str) -> None:
    values = {"name": "large", "train": {"steps": 1}, "factors": factors, "arms": {"beside": {}}}
    with pytest.raises(ValueError, match=message):
        parse_spec(values, "here")


def test_a_spec_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "spec.toml")
    with pytest.raises(ValueError, match=r"spec.toml: is a pipe or device, expected a regular file"):
        load_spec(tmp_path / "spec.toml")


def test_a_missing_spec() -> None:
    with pytest.raises(ValueError, match="no such file"):
        load_spec(Path("nowhere.toml"))


def test_specs_are_immutable(tiny_spec: Callable[..., Path]) -> None:
    spec: Spec = load_spec(tiny_spec())
    with pytest.raises(ValueError, match="frozen"):
        spec.name = "other"


@pytest.mark.slow
def test_every_arm_of_the_audit_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By reading the spec; a dry run asks for the same conditions again and again."""
    resolved: list[str] = []

    def counted(model: ModelSpec, arm: Arm, *rest: Any) -> Condition:
        resolved.append(rest[3])
        return resolve(model, arm, *rest)

    monkeypatch.setattr(reading, "resolve", counted)
    monkeypatch.setattr(study, "resolve", counted)
    monkeypatch.setattr(dry_run, "timed", lambda *_: (None, "nothing"))
    monkeypatch.setattr(
        dry_run, "count", lambda prepared, *rest: Price(*rest[:3], prepared.condition.protocol, 1, 1, 1, 1.0)
    )
    spec = load_spec(RUNS / "exp013-audit.toml")
    assert len(spec.arms) == 117
    forecast(spec, (), 2)  # with the search for learning rates, whose arms are others
    assert len(resolved) == len(set(resolved))
    assert set(spec.arms) <= set(resolved)


def test_an_arm_may_train_its_own_way(tiny_spec: Callable[..., Path]) -> None:
    path = tiny_spec()
    path.write_text(path.read_text() + "[arms.frozen]\ntrain = { decay_multiplier = 0, clip = 0.5 }\n")
    spec = load_spec(path)
    own, others = spec.condition("frozen").protocol, spec.condition("uniform").protocol
    assert (own.decay_multiplier, own.clip) == (0, 0.5)
    assert own.model_copy(update={"decay_multiplier": None, "clip": 1.0}) == others == spec.train
    assert spec.condition("frozen").config["train"]["decay_multiplier"] == 0
    assert "train" not in spec.condition("frozen").config["arm_options"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("steps = 20", r"train.steps is the same in all arms, got 20: an arm may have its own weight_decay, .*dropout"),
        ("decay_multiplyer = 0", "decay_multiplyer.*did you mean 'decay_multiplier'"),
        ("decay_multiplier = -1", "greater than or equal to 0"),
        ("warmup_from = 0.1", "warmup_from 0.1 needs steps of warm-up"),
    ],
)
def test_what_an_arm_may_not_change_is_named(tiny_spec: Callable[..., Path], option: str, message: str) -> None:
    path = tiny_spec()
    path.write_text(path.read_text() + f"[arms.frozen]\ntrain = {{ {option} }}\n")
    with pytest.raises(ValueError, match=r"frozen.*" + message):
        load_spec(path)
