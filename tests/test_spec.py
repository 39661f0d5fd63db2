"""Specs: what is read is what was written, and every mistake is one line that names the remedy."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel.spec import Spec, load_spec, parse_spec
from plkernel.storage import load_json, save_json

SPECS = sorted((Path(__file__).parent.parent / "runs").glob("*.toml"))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_every_shipped_spec_is_valid(path: Path) -> None:
    spec = load_spec(path)
    assert spec.name == path.stem
    for arm in spec.arms.values():
        if arm.places_nodes:
            assert len(arm.nodes(spec.model).rates) == spec.model.node_count


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


def test_a_missing_spec() -> None:
    with pytest.raises(ValueError, match="no such file"):
        load_spec(Path("nowhere.toml"))


def test_specs_are_immutable(tiny_spec: Callable[..., Path]) -> None:
    spec: Spec = load_spec(tiny_spec())
    with pytest.raises(ValueError, match="frozen"):
        spec.name = "other"
