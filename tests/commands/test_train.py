"""python -m plkernel.train and run: which arm and seed, and what is said of them."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from studies import record_row

from plkernel.commands import run, train
from plkernel.common.files import REGISTERED, ROWS, SPEC, TUNING, name_at, save_json
from plkernel.config.reading import load_spec
from plkernel.config.spec import Spec
from plkernel.results.registration import place_of, register, registration_of
from plkernel.study.schedule import search_of
from plkernel.training.folder import RunFolder

Shown = pytest.CaptureFixture[str]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Nothing is trained: what was to be."""
    found: list[Any] = []
    task = SimpleNamespace(name="the run", folder=SimpleNamespace(path=tmp_path / "place"))

    def prepare(*given: Any, **more: Any) -> Any:
        found.append((*given, *more.values()))
        return task

    monkeypatch.setattr("plkernel.training.loop.prepare", prepare)
    monkeypatch.setattr("plkernel.training.loop.open_run", prepare)
    monkeypatch.setattr(
        "plkernel.training.loop.run_training", lambda _, *given, **more: (given, more)
    )
    monkeypatch.setattr("plkernel.training.loop.summary", lambda name, _: f"{name} ended")
    return found


@pytest.fixture
def spec(tiny_spec: Callable[..., Path]) -> Spec:
    return load_spec(tiny_spec())


def test_left_out_are_the_baseline_the_first_seed_and_a_folder_of_the_name(
    asked: list[Any], spec: Spec, tmp_path: Path, capsys: Shown
) -> None:
    train.command(spec)
    out, error = capsys.readouterr()
    assert asked == [(spec, "uniform", 0, Path("runs/out/tiny"))]
    assert out == "the run ended\n"
    assert error == (
        "arm 'uniform', the baseline, as --arm names none; others: 'power-law'\n"
        f"written: {tmp_path / 'place'}\n"
    )
    train.command(spec, arm="power-law", seed=1, out=tmp_path)
    assert asked[1] == (spec, "power-law", 1, tmp_path)
    assert "the baseline" not in capsys.readouterr().err


def test_no_others_are_told_of_a_single_arm(
    asked: list[Any], spec: Spec, tmp_path: Path, capsys: Shown
) -> None:
    single = spec.model_copy(update={"arms": {"uniform": spec.arms["uniform"]}})
    train.command(single, out=tmp_path)
    assert "the baseline, as --arm names none\n" in capsys.readouterr().err


def test_a_seed_is_one_of_the_spec(asked: list[Any], spec: Spec) -> None:
    with pytest.raises(ValueError, match=r"seed must be one of the spec's seeds, 0, 1, got 2"):
        train.command(spec, seed=2)
    assert asked == []


def test_a_learning_rate_that_is_searched_for_is_the_one_found(
    asked: list[Any], tiny_spec: Callable[..., Path], tmp_path: Path
) -> None:
    spec = load_spec(tiny_spec(head="[tuning]\nrates = [1e-3, 1e-2]\nseeds = [7]"))
    with pytest.raises(ValueError, match=r"arm 'uniform' must have a learning rate, got none: .*"):
        train.command(spec, out=tmp_path)
    assert asked == []
    losses = {0.001: 2.5, 0.01: 2.25}
    rows = [record_row(name_at("uniform", rate), 7, loss) for rate, loss in losses.items()]
    search = search_of(spec)
    save_json(tmp_path / TUNING / SPEC, search.model_dump(mode="json"))
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / TUNING / ROWS).write_text(text)
    train.command(spec, out=tmp_path)
    assert asked[0][0].arms["uniform"].learning_rate == 0.01
    with pytest.raises(ValueError, match=r"arm 'power-law' must .* or give --arms.power-law.lear"):
        train.command(spec, arm="power-law", out=tmp_path)


def test_a_registration_is_copied_to_the_folder_where_the_run_finds_it(
    asked: list[Any],
    tiny_spec: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: Any,
    capsys: Shown,
) -> None:
    """From another working folder the study finds the copy. No other study gets one."""
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    spec = load_spec(
        tiny_spec(head="[[hypotheses]]\nname = 'a'\narm = 'power-law'\nclaim = 'lower'")
    )
    train.command(spec, out=out)
    assert not out.exists()
    register(spec, place_of(spec), out)
    train.command(spec.model_copy(update={"seeds": (0,)}), out=out)
    note = "note: the spec differs from its registration: seeds was [0, 1], is now [0]"
    assert note in capsys.readouterr().err
    registration = registration_of(spec, out)
    assert registration is not None
    assert RunFolder(out / "uniform/seed-0").registration == registration.sha256
    other = tmp_path / "other"
    save_json(other / SPEC, {"name": "other"})
    with pytest.raises(ValueError, match="out must be a new folder or that of study 'tiny'"):
        train.command(spec, out=other)
    assert not (other / REGISTERED).exists()
    text = place_of(spec).read_text()
    place_of(spec).write_text(text.replace("'lower'", "'higher'").replace('"lower"', '"higher"'))
    with pytest.raises(ValueError, match="must be as it was written, got one that was changed"):
        train.command(spec, out=out)
    monkeypatch.chdir(other)
    assert registration_of(spec, out) == registration


def test_a_file_in_the_place_of_the_study_is_refused_before_any_work(
    asked: list[Any], spec: Spec, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(OSError, match=r"out .*cannot be written"):
        train.command(spec, out=path)
    assert asked == []


def test_a_run_is_that_of_its_configuration(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"seed": "3"}))
    monkeypatch.setattr(
        "plkernel.config.condition.from_config", lambda values, trusted: (values, trusted)
    )
    run.run(config, trust_code=True, code_tried=True)
    assert asked == [(({"seed": "3"}, True), 3, tmp_path, True)]
    out, error = capsys.readouterr()
    assert (out, error) == ("the run ended\n", f"written: {tmp_path / 'place'}\n")
    config.write_text("{}")
    with pytest.raises(ValueError, match=r"must describe a run, as a config\.json does"):
        run.run(config)
    assert len(asked) == 1
