"""The models of specs: arms by scheme and placement, their optimiser, and refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import built

from plkernel.analysis.nodes import Aim, place
from plkernel.common.files import load_json, read_lines, save_json
from plkernel.config.condition import resolve
from plkernel.config.reading import load_spec
from plkernel.config.schema import TrainSpec
from plkernel.config.spec import Spec
from plkernel.models.ssm import SSM
from plkernel.training import check
from plkernel.training.build import Prepared, build, build_optimizer, started
from plkernel.training.foreign import Foreign
from plkernel.training.loop import Training, prepare, run_training

RUNS = Path(__file__).parents[2] / "runs"


@pytest.fixture
def spec_with(tiny_spec: Callable[..., Path]) -> Callable[..., Spec]:
    """The tiny spec (an SSM of width 16) with these lines in its second arm, and of another kind of
    model.
    """

    def make(arm: str = "", kind: str = "ssm", model: str | None = None, **train: object) -> Spec:
        path = tiny_spec(**train)
        lines = ("head_size = 8" if kind != "ssm" else "") if model is None else model
        text = path.read_text().replace("[model]", f'[model]\nkind = "{kind}"\n{lines}')
        path.write_text(text.replace('projection = "published"', arm))
        return load_spec(path, check)

    return make


def filled(spec: Spec, arm: str = "power-law") -> Any:
    """The model of an arm at its start."""
    return started(resolve(spec.model, spec.arm(arm)), 0)


def test_the_recipe_trains_the_decays_at_twice_the_rate(spec_with: Callable[..., Spec]) -> None:
    """Of RWKV-7 w0 alone, not the maps that move it."""
    train = TrainSpec(recipe="blinkdl", steps=1, learning_rate=1e-3)
    model = build(resolve(spec_with(kind="rwkv7").model))
    groups = {
        group["lr_multiplier"]: group
        for group in build_optimizer(model, train).param_groups
        if group["lr"]
    }
    twice = {id(parameter) for parameter in groups[2.0]["params"]}
    assert {name for name, p in model.named_parameters() if id(p) in twice} == {
        f"blocks.{i}.att.w0" for i in range(2)
    }
    assert (groups[2.0]["weight_decay"], groups[2.0]["eps"]) == (0.0, 1e-18)
    shrunk = build_optimizer(
        model, train.model_copy(update={"decay_weight_decay": 0.5})
    ).param_groups
    assert [group["weight_decay"] for group in shrunk if group["lr_multiplier"] == 2.0] == [0.5e-3]
    build_optimizer(model, train.model_copy(update={"decay_multiplier": 0.0}))
    assert not model.get_parameter("blocks.0.att.w0").requires_grad


@pytest.mark.parametrize(("rate", "moves"), [(1e-4, False), (1e-1, True)])
def test_decays_kept_in_bfloat16_take_no_step_below_its_spacing(
    spec_with: Callable[..., Spec], rate: float, moves: bool
) -> None:
    """AdamW's first step is the rate itself; bfloat16 values from 1 to 8 in size are 2**-7 to 2**-5
    apart.
    """
    model = build(resolve(spec_with(kind="rwkv7").model))
    decays = model.get_parameter("blocks.0.att.w0")
    torch.nn.init.uniform_(decays, -6.0, -2.0)
    optimizer = build_optimizer(
        model, TrainSpec(steps=1, learning_rate=rate, decay_dtype="bfloat16")
    )
    before = decays.detach().clone()
    assert torch.equal(before, before.bfloat16().float())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert torch.equal(decays, decays.bfloat16().float())
    assert bool((decays != before).all()) is moves
    assert moves or torch.equal(decays, before)


def test_decays_of_other_peoples_models_have_a_rate_and_weight_decay_of_their_own() -> None:
    model = Foreign("transformers:Mamba2ForCausalLM", built("Mamba2"))
    train = TrainSpec(
        steps=1, learning_rate=1e-3, weight_decay=0.1, decay_multiplier=10, decay_weight_decay=1
    )
    (group,) = (
        one for one in build_optimizer(model, train).param_groups if one["lr_multiplier"] == 10
    )
    own = {id(parameter) for parameter in group["params"]}
    names = {name.rpartition(".")[2] for name, one in model.named_parameters() if id(one) in own}
    assert (names, group["weight_decay"]) == ({"A_log", "dt_bias", "D"}, 0.1)


def test_an_arm_of_another_scheme_trains_and_says_so(
    spec_with: Callable[..., Spec], tmp_path: Path
) -> None:
    """muP's rates reach the optimiser, its multiplier the model, the arm's own peak the
    schedule.
    """
    spec = spec_with(
        'scheme = "mup_table8"\nscheme_options = { base_width = 4 }\nlearning_rate = 0.01'
    )
    task = prepare(spec, "power-law", 0, tmp_path / "out")
    training = Training(task)
    training.step()
    assert training.model.config.structure.multipliers == {"logits": 0.25}
    groups = {id(p): group for group in training.optimizer.param_groups for p in group["params"]}
    assert groups[id(training.model.blocks[0].ssm.B.weight)]["lr"] == pytest.approx(0.0025)
    assert groups[id(training.model.embedding.weight)]["lr"] == pytest.approx(0.01)
    run_training(task, progress_bar=False)
    rows, config = (
        read(task.folder.path / name)
        for read, name in ((read_lines, "metrics.jsonl"), (load_json, "config.json"))
    )
    assert rows[-1]["val_bpb"] < rows[0]["val_bpb"]
    assert config["train"]["learning_rate"] == 0.01
    assert config["arm_options"]["scheme_options"] == {"base_width": 4.0}


def test_a_scheme_and_the_power_law_go_together(spec_with: Callable[..., Spec]) -> None:
    """The scheme's draws, then the nodes' multipliers on the columns of C_proj."""
    specs = [
        spec_with(f'scheme = "megatron_default"\n{shape}')
        for shape in ("", 'projection = "gain-corrected"')
    ]
    plain, shaped = (filled(spec).state_dict()["blocks.1.ssm.C_proj.weight"] for spec in specs)
    multipliers = torch.tensor(resolve(specs[1].model, specs[1].arm("power-law")).nodes.projection)
    assert torch.allclose(shaped, plain * multipliers, rtol=1e-5)
    assert plain.std().item() == pytest.approx(0.02 / (2 * specs[0].model.layers) ** 0.5, rel=0.2)


def test_a_fixed_multiplier_shapes_where_the_projection_starts_at_zero(
    spec_with: Callable[..., Spec],
) -> None:
    zero = 'scheme = "rwkv_blinkdl"\nprojection = "gain-corrected"'
    with pytest.raises(
        ValueError,
        match=r"scheme 'rwkv_blinkdl', which sets blocks\.0\.ssm\.C_proj\.weight to zero",
    ):
        spec_with(zero)
    spec = spec_with(f'{zero}\nshape_on = "multiplier"')
    model = filled(spec)
    nodes = resolve(spec.model, spec.arm("power-law")).nodes
    assert isinstance(model, SSM)
    assert model.blocks[0].ssm.shape.tolist() == pytest.approx(list(nodes.projection), rel=1e-6)
    assert model.blocks[0].ssm.C_proj.weight.abs().max() == 0


MISFITS = [
    (
        "rwkv6",
        'projection = "gain-corrected"',
        "head_size = 8",
        "gain-corrected needs a placement in an RWKV",
    ),
    (
        "rwkv6",
        'placement = "quantile"\nshape_on = "columns"',
        "head_size = 8",
        "must be receptance in an RWKV",
    ),
    (
        "rwkv6",
        'placement = "quantile"\ntempering = 1',
        "head_size = 8",
        r"use a head_size above 8, k_clamp = true",
    ),
    (
        "rwkv7",
        'placement = "log-spaced"',
        "head_size = 8",
        r"shortest must be above 1.143 bytes, .*got 1; use 1.15",
    ),
    (
        "rwkv7",
        'placement = "concentrated"',
        "head_size = 16",
        r"shortest must be above 1.143 bytes, .*got 0.5",
    ),
    (
        "rwkv7",
        'placement = "quantile"\nbonus = "law"',
        "head_size = 16",
        "bonus law belongs to model kinds rwkv5",
    ),
    (
        "rwkv7",
        'placement = "quantile"\ntempering = 1',
        "head_size = 8",
        "use a head_size above 8 or a smaller temp",
    ),
    (
        "rwkv6",
        'scheme = "rwkv7_official"',
        "head_size = 8",
        "scheme must be rwkv_blinkdl",
    ),
    ("rwkv6", 'scheme = "rwkv_blinkd"', "head_size = 8", "rwkv_blinkd"),
    (
        "rwkv6",
        'placement = "log-spaced"\nbonus = "law"',
        "head_size = 8",
        "bonus law belongs to a power law",
    ),
    ("ssm", 'scheme = "rwkv_blinkdl"\nprojection = "published"', "", "nothing to act on"),
    ("ssm", "", "k_clamp = true", "k_clamp must be left out for model kind 'ssm'"),
    (
        "ssm",
        'scheme = "megatron_defualt"',
        "",
        "scheme must be the name of one, got 'megatron_defualt'; nearest: megatron_d",
    ),
]


@pytest.mark.parametrize(("kind", "arm", "model", "message"), MISFITS)
def test_what_does_not_fit_is_named(
    kind: str, arm: str, model: str, message: str, spec_with: Callable[..., Spec]
) -> None:
    with pytest.raises(ValueError, match=message):
        spec_with(arm, kind, model)


def test_a_power_law_arm_says_what_it_aims_at(spec_with: Callable[..., Spec]) -> None:
    """Defaults that depend on the kind of model are written out; an arm without placement stays the
    scheme's.
    """
    spec = spec_with('placement = "quantile"\ntempering = 0.25', "rwkv6", "head_size = 16")
    arm = spec.arm("power-law")
    assert (arm.target, arm.kernel, arm.lag, arm.max_lag, arm.tempering) == (
        "correlation",
        "rms",
        "bonus",
        2048,
        0.25,
    )
    assert spec.arm("uniform").placement is None
    assert not spec.arm("uniform").places_nodes
    model = filled(spec)
    rates = model.state_dict()["blocks.0.att.time_decay"].flatten().exp().double()
    assert rates.tolist() == pytest.approx(list(resolve(spec.model, arm).nodes.rates), rel=1e-6)
    asked = spec_with(
        'placement = "quantile"\ntempering = 0\ntarget = "information"\nkernel = "coherent"',
        "rwkv6",
        "head_size = 16",
    )
    assert asked.arm("power-law").law == Aim(1.15, "information", "coherent", "bonus")


@pytest.mark.parametrize("kind", ["rwkv5", "rwkv6"])
def test_the_bonus_is_on_the_law_of_an_arm_that_asks_for_it(
    kind: str, spec_with: Callable[..., Spec]
) -> None:
    """Otherwise it stays as the scheme fills it."""
    follows = 'placement = "quantile"\ntempering = 0.25'
    spec = spec_with(f'{follows}\nbonus = "law"', kind, "head_size = 16")
    law = spec.arm("power-law").law
    assert law is not None
    name = "blocks.1.att.time_faaaa"
    asked = filled(spec).get_parameter(name).flatten().tolist()
    assert asked == pytest.approx([2**law.exponent] * 16, rel=1e-6)
    usual = filled(spec_with(follows, kind, "head_size = 16")).get_parameter(name)
    assert torch.equal(usual, filled(spec, "uniform").get_parameter(name))


def test_nodes_of_a_file_are_held_to_the_law_and_to_the_gain(
    spec_with: Callable[..., Spec], tmp_path: Path
) -> None:
    nodes = place(
        16,
        placement="quantile",
        gain="none",
        target="correlation",
        kernel="rms",
        lag="bonus",
        tempering=0,
    )
    save_json(tmp_path / "fit.json", {"nodes": nodes.to_dict()})
    file = f"node_file = '{tmp_path / 'fit.json'}'"
    spec = spec_with(file, "rwkv6", "head_size = 16")
    assert resolve(spec.model, spec.arm("power-law")).nodes == nodes
    with pytest.raises(
        ValueError, match=r"gain of nodes must be 'clamp', since with k_clamp .*, got 'none'"
    ):
        spec_with(file, "rwkv6", "head_size = 16\nk_clamp = true")
    with pytest.raises(
        ValueError, match=r"must be as many as model\.head_size, 8, got 16 rates and 16 multipliers"
    ):
        spec_with(file, "rwkv6")
    save_json(tmp_path / "fit.json", {"nodes": {**nodes.to_dict(), "projection": [1.0] * 16}})
    with pytest.raises(ValueError, match=r"must follow d\*\*-0.575"):
        spec_with(file, "rwkv6", "head_size = 16")


def test_goose_reaches_no_shorter_half_life_than_it_can(spec_with: Callable[..., Spec]) -> None:
    """Quantile nodes end at the largest rate; the law then holds from distance 1, where the state
    is read.
    """
    spec = spec_with('placement = "quantile"\ntempering = 0.25', "rwkv7", "head_size = 16")
    arm = spec.arm("power-law")
    assert (arm.target, arm.kernel, arm.lag, arm.max_lag) == (
        "correlation",
        "rms",
        "distance",
        2048,
    )
    condition = resolve(spec.model, arm)
    model = filled(spec)
    rates = [mixing.rates().flatten().tolist() for mixing in model.mixings()]
    for found in rates:
        assert found == pytest.approx(list(condition.nodes.rates), rel=1e-5)
        assert max(found) < spec.model.of_kind.largest_rate
    spaced = spec_with('placement = "log-spaced"\nshortest = 1.15', "rwkv7", "head_size = 16")
    lives = filled(spaced).half_lives()
    assert (lives[0].min().item(), lives[0].max().item()) == pytest.approx((1.15, 2000), rel=1e-5)


def test_goose_and_finch_are_compared_at_equal_parameters() -> None:
    spec = load_spec(RUNS / "goose.toml", check)
    counts = [
        Prepared.of(resolve(spec.model_of(name), spec.arm(name))).parameters for name in spec.arms
    ]
    assert max(counts) / min(counts) < 1.01
