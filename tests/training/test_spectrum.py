"""Training with decays that are ordered or depend on the position."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import plkernel
from plkernel.config.condition import resolve
from plkernel.config.reading import load_spec
from plkernel.config.schema import MAMBA2, Arm, ModelSpec, TrainSpec
from plkernel.probing.runs import render, view
from plkernel.training.build import build_optimizer, started
from plkernel.training.foreign import Foreign, check_model
from plkernel.training.loop import prepare, run_training

TRAIN = TrainSpec(steps=4, context=32, batch=2, learning_rate=1e-2)
KINDS: dict[str, dict[str, Any]] = {
    "ssm": {"kind": "ssm", "dim": 16, "layers": 2},
    "rwkv7": {"kind": "rwkv7", "dim": 16, "layers": 2, "head_size": 8},
}
OPTIONS = {"parametrisation": "ordered", "position_scaling": True}


@pytest.mark.parametrize("kind", KINDS)
def test_the_options_of_decays_reach_the_ordered_form(kind: str) -> None:
    """Frozen they stay, and every step moves the gaps otherwise."""
    model = ModelSpec(**KINDS[kind], **OPTIONS)
    for multiplier in (0.0, 3.0):
        train = TRAIN.model_copy(update={"decay_multiplier": multiplier})
        built: Any = started(resolve(model, Arm(spectrum=1), train), 0)
        optimizer = build_optimizer(built, train)
        before = {name: one.detach().clone() for name, one in built.named_parameters()}
        for _ in range(2):  # the output of a Goose is zero before the first
            logits = built(torch.randint(0, 256, (2, 32)))
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.arange(64)).backward()
            optimizer.step()
        for name, one in built.named_parameters():
            if name.endswith((".theta", ".delta")):
                assert torch.equal(one, before[name]) == (multiplier == 0.0), name
                groups = optimizer.param_groups
                rates = [
                    group["lr_multiplier"]
                    for group in groups
                    if any(member is one for member in group["params"])
                ]
                assert rates == [multiplier]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_of_a_run_says_where_half_lives_are_stated(kind: str) -> None:
    windows = torch.randint(0, 256, (2, 33))
    for options, words in (({}, ""), (OPTIONS, "are those at byte 32: decays slow down")):
        model: Any = started(resolve(ModelSpec(**KINDS[kind], **options), Arm(), TRAIN), 0)
        text = render(None, view(model, windows))
        assert ("slow down with the position" in text) == bool(words)
        assert words in text


SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_heads": 4,
    "head_dim": 8,
    "state_size": 4,
    "n_groups": 1,
    "chunk_size": 8,
}


@pytest.mark.parametrize("multiple", [1, 32])
def test_a_mamba2_takes_the_options_of_other_kinds(multiple: int) -> None:
    """It is the model that its builder and its `init` make of the same options."""
    told = {"parametrisation": "ordered", "scaling_length": 32}
    own = ModelSpec(kind=MAMBA2, config={**SIZES, **told})
    reach = {"longest": 32 * multiple}
    init = Arm(init="plkernel.models.init.mamba2:spectrum_", init_options=reach)
    shared = ModelSpec(kind=MAMBA2, config=SIZES, **OPTIONS)
    expected, found = (
        started(resolve(model, arm, TRAIN, trusted=True), 0)
        for model, arm in ((own, init), (shared, Arm(spectrum=multiple)))
    )
    before = expected.state_dict()
    assert found.state_dict().keys() == before.keys()
    for name, values in found.state_dict().items():
        assert torch.equal(values, before[name]), name
    frozen, expected_frozen = (
        {name for name, one in model.named_parameters() if not one.requires_grad}
        for model in (found, expected)
    )
    assert frozen == expected_frozen


def test_a_mamba2_by_position_trains_and_is_causal() -> None:
    """As other people's models are checked, with noise on its gaps; half-lives by their names."""
    config = {**SIZES, "parametrisation": "ordered", "scaling_length": 32}
    arm = Arm(init="plkernel.models.init.mamba2:spectrum_", init_options={"longest": 32})
    kind = ModelSpec(kind=MAMBA2, config=config)
    model: Any = started(resolve(kind, arm, TRAIN, trusted=True), 0)
    assert isinstance(model, Foreign)
    (lives,) = model.half_lives()
    constants = lives / math.log(2)
    # 1 to 32 bytes at position 1; at T each is T**alpha times that
    expected = [32 ** (share + share) for share in (1, 2 / 3, 1 / 3, 0)]
    assert constants.tolist() == pytest.approx(expected, rel=1e-4)
    first = [1, 32 ** (1 / 3), 32 ** (2 / 3), 32]
    at_first = model.half_lives(1)[0] / math.log(2)
    assert at_first.tolist() == pytest.approx(first[::-1], rel=1e-4)
    assert model.half_lives(32)[0].tolist() == pytest.approx(lives.tolist(), rel=1e-5)
    for changes in ({}, {"decay_multiplier": 0.5}, {"decay_weight_decay": 0.5}):
        build_optimizer(model, TRAIN.model_copy(update=changes))
        assert not model.module.backbone.layers[0].mixer.dt_bias.requires_grad
        assert model.module.backbone.layers[0].mixer.ordered.delta.requires_grad
    check_model(model, "mamba2", 32, torch.device("cpu"))


def test_a_saved_run_comes_back(tmp_path: Path, tiny_spec: Any) -> None:
    """Its half-lives too, which need T."""
    path = tiny_spec(steps=2, eval_every=1)
    text = path.read_text().replace(
        "[model]\n", '[model]\nparametrisation = "ordered"\nposition_scaling = true\n'
    )
    path.write_text(text)
    run_training(prepare(load_spec(path), "uniform", 0, tmp_path / "out"), progress_bar=False)
    run = plkernel.load_run(tmp_path / "out" / "uniform" / "seed-0")
    model: Any = run.model
    assert model.config.scaling_length == run.config["train"]["context"]
    assert float(model.recurrences()[0].log_length.exp()) == pytest.approx(
        run.config["train"]["context"]
    )
    first, at_length = (model.half_lives(at)[0].max() for at in (1, None))
    assert at_length > 10 * first
    assert len(run.generate("def ", count=3)) == 3
