"""One word in an arm: the scheme brings the model and the optimiser that it needs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel.config.condition import resolve
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.models.rwkv import RWKV
from plkernel.models.structure import Structure
from plkernel.training.build import Prepared, build
from plkernel.training.loop import Training, prepare

COMMITTED = Path(__file__).parents[2] / "runs" / "saturation.toml"


@pytest.fixture
def tiny_ablation(tiny_spec: Callable[..., Path]) -> Spec:
    """The tiny spec with Finch and the naive scheme in its first arm."""
    path = tiny_spec(weight_decay=0.5)
    text = path.read_text().replace("[model]\n", '[model]\nkind = "rwkv6"\nhead_size = 8\n')
    text = text.replace("[arms.uniform]\n", '[arms.uniform]\nscheme = "rwkv_naive"\n')
    path.write_text(text.replace('projection = "published"', ""))
    return load_spec(path)


def test_the_published_ablation_by_one_word() -> None:
    """The committed spec: 8 layers of width 144 as published; the naive arm is tied, with RMSNorm."""
    spec = load_spec(COMMITTED)
    official, naive = (build(resolve(spec.model, spec.arm(name), spec.train)) for name in ("official", "naive"))
    assert isinstance(official, RWKV)
    assert isinstance(naive, RWKV)
    assert (official.config.layers, official.config.dim) == (8, 144)
    assert official.config.structure == Structure()
    assert naive.config.structure == Structure(norm="rms", tied=True)
    biases = (2 + 2 * 8) * 144
    counts = [Prepared.of(resolve(spec.model, spec.arm(name))).parameters for name in ("official", "naive")]
    assert counts == [sum(p.numel() for p in model.parameters()) for model in (official, naive)]
    assert counts[0] - counts[1] == 256 * 144 + biases


def test_weight_decay_on_everything_in_the_naive_arm_alone(tiny_ablation: Spec, tmp_path: Path) -> None:
    for arm in ("uniform", "power-law"):
        training = Training(prepare(tiny_ablation, arm, 0, tmp_path / arm))
        decayed = {id(p) for g in training.optimizer.param_groups if g["weight_decay"] == 0.5 for p in g["params"]}
        names = {name for name, p in training.model.named_parameters() if id(p) in decayed}
        everything = {name for name, _ in training.model.named_parameters()}
        assert (names == everything) == (arm == "uniform")
        assert prepare(tiny_ablation, arm, 0, tmp_path / arm).config["model"]["parameters"] == sum(
            p.numel() for p in training.model.parameters()
        )


def test_dropout_of_the_protocol_reaches_the_model(tiny_ablation: Spec) -> None:
    train = tiny_ablation.train.model_copy(update={"dropout": 0.125})
    model = build(resolve(tiny_ablation.model, tiny_ablation.arm("power-law"), train))
    assert isinstance(model, RWKV)
    assert model.config.dropout == 0.125
