"""recipe = "blinkdl": what it fills in, what wins over it, and runs with its options."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
import tyro

from plkernel.common.files import load_json, save_json
from plkernel.config import command_line
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.study import LARGEST_SEED, Spec
from plkernel.config.train import TrainSpec
from plkernel.training.loop import Training, prepare, run_training
from plkernel.training.objective import bits_per_byte, seed_dropout

BLINKDL = {
    "beta1": 0.9,
    "beta2": 0.99,
    "eps": 1e-18,
    "warmup": 10,
    "warmup_from": 0.01,
    "schedule": "cosine",
    "final_fraction": 0.1,
    "weight_decay": 0.001,
    "clip": 1.0,
    "l2wrap": 1e-4,
    "decay_multiplier": 2.0,
}
CPU = torch.device("cpu")


@pytest.fixture
def rwkv_spec(tiny_spec: Callable[..., Path]) -> Callable[..., Spec]:
    """The tiny spec with a Finch of one arm; keyword arguments replace values of [train]."""

    def make(**train: object) -> Spec:
        path = tiny_spec(**train)
        text = path.read_text().replace("[model]", '[model]\nkind = "rwkv6"\nhead_size = 8')
        path.write_text(text.partition("[arms.power-law]")[0])
        return load_spec(path)

    return make


def test_the_recipe_fills_what_is_not_given() -> None:
    train = TrainSpec(recipe="blinkdl", steps=100)
    assert {name: getattr(train, name) for name in BLINKDL} == BLINKDL
    plain = TrainSpec(steps=100)
    untouched = set(TrainSpec.model_fields) - set(BLINKDL) - {"recipe"}
    assert {name: getattr(train, name) for name in untouched} == {name: getattr(plain, name) for name in untouched}


def test_given_values_win_and_survive_the_file(rwkv_spec: Callable[..., Spec], tmp_path: Path) -> None:
    spec = rwkv_spec(recipe="blinkdl", beta2=0.95, weight_decay=0.01, dropout=0.1)
    assert (spec.train.beta2, spec.train.weight_decay, spec.train.eps) == (0.95, 0.01, 1e-18)
    saved = spec.model_dump(mode="json")
    assert saved["train"].items() >= (BLINKDL | {"beta2": 0.95, "weight_decay": 0.01, "recipe": "blinkdl"}).items()
    save_json(tmp_path / "spec.json", saved)
    assert load_spec(tmp_path / "spec.json") == spec
    assert prepare(spec, "uniform", 0, tmp_path / "out").config["train"].items() >= {"eps": 1e-18}.items()


def with_flags(path: Path, *flags: str) -> TrainSpec:
    taken: list[Spec] = []

    def command(spec: Annotated[Spec, tyro.conf.arg(name="")]) -> None:
        taken.append(spec)

    command_line.main(command, [str(path), *flags])
    return taken[0].train


def test_a_recipe_as_a_flag_fills_what_file_and_flags_leave_open(tiny_spec: Callable[..., Path]) -> None:
    """A value given as what happens to be the default is given all the same."""
    path = tiny_spec(eps=1e-8)
    flags = ("--train.recipe", "blinkdl", "--train.weight-decay", "0.01", "--train.beta2=0.999")
    train = with_flags(path, *flags)
    assert (train.eps, train.weight_decay, train.beta2, train.learning_rate) == (1e-8, 0.01, 0.999, 1e-2)
    assert train.l2wrap == 1e-4
    path = tiny_spec(recipe="blinkdl", beta2=0.95)
    assert with_flags(path) == load_spec(path).train
    off = with_flags(path, "--train.recipe", "None")
    assert (off.recipe, off.beta2, off.eps, off.warmup_from, off.l2wrap) == (None, 0.95, 1e-8, None, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "blinkd"}, "train.recipe: Input should be 'blinkdl', got 'blinkd'"),
        ({"recipe": "blinkdl", "beta3": 1.0}, r"unknown key 'beta3' in \[train\]"),
        ({"schedule": "exponential", "final_fraction": 0.0}, "final_fraction must be above 0 with schedule 'expon"),
        ({"dropout": 0.1}, "train.dropout belongs to model kinds rwkv5, rwkv6 and rwkv7, got 0.1 with kind 'ssm'"),
        ({"dropout": 1.0}, "train.dropout: Input should be less than 1, got 1.0"),
        ({"warmup_from": 0.1}, "train.warmup_from 0.1 needs steps of warm-up, got warmup 0: set warmup, or leave it"),
        ({"warmup_from": 0.1, "recipe": "blinkdl", "warmup": 0}, "train.warmup_from 0.1 needs steps of warm-up"),
        (
            {"schedule": "constant", "final_fraction": 0.5},
            "train.final_fraction 0.5 needs an end to reach, got schedule 'constant': name another, or leave it out",
        ),
        ({"eps": 1e-40}, "eps must be at least 1.2e-38, the least that float32 holds to all its digits, got 1e-40"),
    ],
)
def test_bad_options_are_named(tiny_spec: Callable[..., Path], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_spec(tiny_spec(**options))


@pytest.mark.parametrize("options", [{"warmup": 0}, {"schedule": "constant"}])
def test_a_recipe_may_be_left_without_what_it_says_more_about(
    tiny_spec: Callable[..., Path], options: dict[str, Any]
) -> None:
    spec = load_spec(tiny_spec(recipe="blinkdl", **options))
    assert parse_spec(spec.model_dump(mode="json"), "again") == spec


def metrics(spec: Spec, out: Path) -> bytes:
    run_training(prepare(spec, "uniform", 0, out), progress_bar=False)
    return (out / "uniform" / "seed-0" / "metrics.jsonl").read_bytes()


def die_at_step(step: int, spec: Spec, out: Path) -> None:
    """Train, and end without notice before that step."""
    go_on = Training.step

    def killed(self: Training) -> None:
        if self.progress.step == step:
            raise SystemExit
        go_on(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "step", killed)
        with pytest.raises(SystemExit):
            metrics(spec, out)


def test_a_run_with_recipe_and_dropout_resumes_to_the_same_bytes(
    rwkv_spec: Callable[..., Spec], tmp_path: Path
) -> None:
    spec = rwkv_spec(recipe="blinkdl", dropout=0.2, warmup=2)
    whole = metrics(spec, tmp_path / "whole")
    die_at_step(6, spec, tmp_path / "cut")
    torch.rand(7)  # the state of the global generator does not matter
    assert metrics(spec, tmp_path / "cut") == whole
    assert metrics(rwkv_spec(recipe="blinkdl", warmup=2), tmp_path / "without") != whole
    rows = [json.loads(line) for line in whole.splitlines()]
    assert rows[-1]["val_bpb"] < rows[0]["val_bpb"] - 0.5


def test_masks_depend_on_seed_and_step_alone() -> None:
    def draw(seed: int, step: int) -> tuple[float, ...]:
        seed_dropout(seed, step)
        return tuple(torch.rand(4).tolist())

    first = draw(3, 7)
    assert len({first, draw(4, 7), draw(3, 8), draw(7, 3), draw(LARGEST_SEED, 7)}) == 5
    assert draw(3, 7) == first


def test_evaluation_drops_nothing(rwkv_spec: Callable[..., Spec], tmp_path: Path) -> None:
    plain, dropping = (
        Training(prepare(rwkv_spec(dropout=share), "uniform", 0, tmp_path / str(share))) for share in (0.0, 0.5)
    )
    scores = [bits_per_byte(run.model.train(), run.validation, 2, CPU) for run in (plain, dropping)]
    assert scores[0] == scores[1]
    for run in (plain, dropping):
        run.step()
        run.settle()
        assert run.model.training
    assert plain.progress.loss_sum != dropping.progress.loss_sum


def test_l2wrap_keeps_the_logits_of_a_run_small(tiny_spec: Callable[..., Path], tmp_path: Path) -> None:
    def largest(strength: float) -> float:
        training = Training(prepare(load_spec(tiny_spec(l2wrap=strength)), "uniform", 0, tmp_path / str(strength)))
        while not training.done:
            training.step()
        return training.model(training.validation[:, :-1]).max().item()

    assert largest(10.0) < 0.5 * largest(0.0)


def test_a_run_of_a_version_without_an_option_goes_on_with_its_default(
    tiny_spec: Callable[..., Path], tmp_path: Path
) -> None:
    new = ("recipe", "eps", "warmup_from", "decay_multiplier", "l2wrap", "dropout")
    spec = load_spec(tiny_spec())
    die_at_step(6, spec, tmp_path / "out")
    path = tmp_path / "out" / "uniform" / "seed-0" / "config.json"
    config = load_json(path)
    config["train"] = {name: value for name, value in config["train"].items() if name not in new}
    path.unlink()
    save_json(path, config)
    with pytest.raises(ValueError, match=r"made by another spec \(train.eps was 1e-08, is now 1e-06\)"):
        metrics(load_spec(tiny_spec(eps=1e-6)), tmp_path / "out")
    assert metrics(spec, tmp_path / "out") == metrics(parse_spec(spec.model_dump(), "again"), tmp_path / "whole")
