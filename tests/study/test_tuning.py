"""A learning rate for every arm: the best of a grid on seeds of its own, at the same budget, before the study."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plkernel.common.files import load_json, read_lines
from plkernel.common.layout import ROWS, SPEC, TUNING, name_at
from plkernel.config.reading import load_spec, parse_spec
from plkernel.results.study import Choice, choices, read_study
from plkernel.study.schedule import chosen_arms, run_experiment
from plkernel.study.tuning import search_of, tuned

SpecWriter = Callable[..., Path]
HEAD = "[tuning]\nrates = [1e-4, 1e-2, 1e4]\nseeds = [7]\nsteps = 8"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuned study that has been run: rates far too low, good and far too high for both arms."""
    folder = tmp_path_factory.mktemp("tuned")
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    (folder / "spec.toml").write_text(
        f'name = "tuned"\nbaseline = "uniform"\nseeds = [0]\n{HEAD}\n[corpus]\nname = "{text}"\n'
        "[model]\ndim = 16\nlayers = 2\n"
        "[train]\nsteps = 12\ncontext = 32\nbatch = 4\neval_every = 4\neval_windows = 4\ntest_windows = 4\n"
        '[arms.uniform]\n[arms.law]\nprojection = "published"\nmatch = "uniform"\n[arms.fixed]\nlearning_rate = 3e-3\n'
    )
    assert run_experiment(load_spec(folder / "spec.toml"), folder / "out") == []
    return folder


@pytest.mark.slow
def test_the_best_rate_of_each_arm_is_taken(study: Path) -> None:
    spec, out = load_spec(study / "spec.toml"), study / "out"
    found = choices({name: spec.rates_of(name) for name in spec.arms}, out)
    assert set(found) == {"uniform", "law"}
    for name, choice in found.items():
        assert choice.rate == 1e-2
        assert not choice.at_edge
        assert choice.losses[1e4] == float("inf") or choice.losses[1e4] > choice.losses[1e-2]
        row = read_lines(out / "tuning" / name_at(name, 1e-2) / "seed-7" / "metrics.jsonl")[-1]
        assert (row["step"], row["val_bpb"]) == (8, choice.losses[1e-2])
    rates = {run.arm: run.config["train"]["learning_rate"] for run in read_study(out).finished()}
    assert rates == {"uniform": 1e-2, "law": 1e-2, "fixed": 3e-3}
    saved = load_spec(out / "spec.json")
    assert saved == tuned(spec, out)
    assert load_json(out / "spec.json")["arms"]["law"]["learning_rate"] == 1e-2


@pytest.mark.slow
def test_running_again_searches_no_more_and_diverged_rates_stay_lost(study: Path) -> None:
    stamps = {path: path.stat().st_mtime_ns for path in (study / "out").rglob("result.json")}
    assert run_experiment(load_spec(study / "spec.toml"), study / "out") == []
    assert {path: path.stat().st_mtime_ns for path in (study / "out").rglob("result.json")} == stamps


def test_every_arm_has_the_same_budget(tiny_spec: SpecWriter) -> None:
    spec = load_spec(tiny_spec(head=HEAD))
    search = search_of(spec)
    assert search.seeds == (7,)
    assert search.train.total_steps == 8
    assert list(search.arms) == [name_at(arm, rate) for arm in spec.arms for rate in spec.tuning.rates]
    for name, arm in search.arms.items():
        twin = spec.arms[name.partition("_rate")[0]]
        assert arm.model_copy(update={"learning_rate": None}) == twin
    assert parse_spec(search.model_dump(mode="json"), "again") == search


def test_an_arm_may_have_rates_of_its_own_but_not_more_of_them(tiny_spec: SpecWriter) -> None:
    head = HEAD.replace("[tuning]", "[arms.own]\nrates = [2e-3, 2e-2, 2e-1]\n[tuning]")
    search = search_of(load_spec(tiny_spec(head=head)))
    assert [arm.learning_rate for name, arm in search.arms.items() if name.startswith("own_")] == [2e-3, 2e-2, 2e-1]
    for wrong in ("[2e-3, 2e-2]", "[2e-3, 2e-2, 2e-2]"):
        with pytest.raises(ValueError, match=r"arms.own: rates must be as many as tuning.rates, 3 different ones"):
            load_spec(tiny_spec(head=head.replace("[2e-3, 2e-2, 2e-1]", wrong)))


def test_the_spec_of_a_tuned_study_has_the_rates_and_the_one_that_was_found(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    head = HEAD.replace("[tuning]", "[arms.own]\nrates = [2e-3, 2e-2, 2e-1]\n[tuning]")
    spec = load_spec(tiny_spec(head=head))
    found = spec.model_copy(
        update={"arms": {name: arm.model_copy(update={"learning_rate": 2e-2}) for name, arm in spec.arms.items()}}
    )
    (tmp_path / SPEC).write_text(found.model_dump_json())
    assert load_spec(tmp_path / SPEC) == found


def test_without_results_nothing_is_chosen(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec = load_spec(tiny_spec(head=HEAD))
    assert choices({name: spec.rates_of(name) for name in spec.arms}, tmp_path) == {}
    assert tuned(spec, tmp_path) == spec


def ended(name: str, seed: int, loss: float | None) -> dict[str, Any]:
    """The row of a run in a record: its final loss, None where it diverged."""
    row = {"arm": name, "seed": seed, "config": {"corpus": {}, "model": {}}, "environment": {}}
    losses = dict.fromkeys(("final_val_bpb", "best_val_bpb", "test_bpb"), loss)
    result = {"steps": 8, "bytes": 1024, "best_step": 8, "seconds": 1.0, "causal": True, **losses}
    return {**row, "status": "diverged"} if loss is None else {**row, "status": "finished", "result": result}


def test_the_lowest_mean_wins_once_every_run_has_ended(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec = load_spec(tiny_spec(head=HEAD.replace("[7]", "[7, 8]")))
    grid = spec.rates_of("uniform")
    losses = dict(zip(grid, ((4.0, 4.0), (3.0, 5.5), (1.0, None)), strict=True))
    rows = [
        ended(name_at("uniform", rate), seed, loss)
        for rate, pair in losses.items()
        for seed, loss in zip((7, 8), pair, strict=True)
    ]
    folder = tmp_path / TUNING
    folder.mkdir()
    (folder / SPEC).write_text(search_of(spec).model_dump_json())
    best = Choice(1e-4, {1e-4: 4.0, 1e-2: 4.25, 1e4: math.inf})
    for kept, expected in ((rows[:-1], {}), (rows, {"uniform": best})):
        (folder / ROWS).write_text("".join(json.dumps(row) + "\n" for row in kept))
        assert choices({"uniform": grid}, tmp_path) == expected
    assert choices({"uniform": (1e-4, 1e-3)}, tmp_path) == {}  # nothing was trained at 1e-3


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("[tuning]\nrates = [1e-3]", "tuning.rates must be two or more"),
        ("[tuning]\nrates = [1e-3, 1e-3]", "tuning.rates must be two or more, all different"),
        ("[tuning]\nrates = [1e-3, 1e-2]\nseeds = [1, 5]", r"tuning.seeds must be none .*, got \[1\] in both"),
        ("[tuning]\nrates = [1e-3, -1.0]", "tuning.rates.1: .*greater than 0"),
        ("[tuning]\nseeds = [7]", r"tuning.seeds \(7,\) needs a search: give tuning.rates, or leave it out"),
        ("[tuning]\nsteps = 8", "tuning.steps 8 needs a search: give tuning.rates, or leave it out"),
        (
            HEAD.replace("[tuning]", "[arms.own]\nlearning_rate = 2e-3\nrates = [2e-3, 2e-2, 2e-1]\n[tuning]"),
            r"arms.own: rates \[0.002, 0.02, 0.2\] are not tried beside a learning_rate, got 0.002: leave out one",
        ),
    ],
)
def test_mistakes_are_named(tiny_spec: SpecWriter, head: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_spec(tiny_spec(head=head))


def test_only_some_arms(tiny_spec: SpecWriter) -> None:
    spec = load_spec(tiny_spec())
    assert chosen_arms(spec, []) == ["uniform", "power-law"]
    assert chosen_arms(spec, ["power*"]) == ["power-law"]
    with pytest.raises(ValueError, match="only: no arm matches 'powr-law'; did you mean 'power-law'"):
        chosen_arms(spec, ["powr-law"])
