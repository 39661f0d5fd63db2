"""Eagle, Finch and Goose through the commands: specs, arms by scheme, runs that resume, and clear refusals."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel.analysis.nodes import Aim, place
from plkernel.common.files import load_json, read_lines, save_json
from plkernel.config.condition import resolve
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.schema import TrainSpec
from plkernel.config.study import Spec
from plkernel.training import check
from plkernel.training.build import Prepared, build, initialise_
from plkernel.training.loop import Training, prepare, run_training
from plkernel.training.objective import build_optimizer


@pytest.fixture
def rwkv_spec(tiny_spec: Callable[..., Path]) -> Callable[..., Spec]:
    """The tiny spec with an RWKV in place of the SSM, two arms by scheme."""

    def make(kind: str = "rwkv6", arm: str = "", model: str = "head_size = 8") -> Spec:
        path = tiny_spec()
        text = path.read_text().replace("[model]", f'[model]\nkind = "{kind}"\n{model}')
        path.write_text(text.replace('projection = "published"', arm))
        return load_spec(path, check)

    return make


@pytest.mark.parametrize("kind", [pytest.param("rwkv5", marks=pytest.mark.slow), "rwkv6", "rwkv7"])
def test_a_run_learns_and_resumes_to_the_same_rows(
    kind: str, rwkv_spec: Callable[..., Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = rwkv_spec(kind)
    result = run_training(prepare(spec, "uniform", 0, tmp_path / "whole"), progress_bar=False)
    rows = read_lines(tmp_path / "whole" / "uniform" / "seed-0" / "metrics.jsonl")
    assert rows[-1]["val_bpb"] < 7.0 < 8.0 < rows[0]["val_bpb"]
    assert result["causal"]
    assert load_json(tmp_path / "whole" / "uniform" / "seed-0" / "config.json")["model"]["parameters"] == sum(
        parameter.numel() for parameter in build(resolve(spec.model)).parameters()
    )
    step = Training.step

    def killed(self: Training) -> None:
        if self.progress.step == 6:
            raise SystemExit
        step(self)

    monkeypatch.setattr(Training, "step", killed)
    with pytest.raises(SystemExit):
        run_training(prepare(spec, "uniform", 0, tmp_path / "cut"), progress_bar=False)
    monkeypatch.setattr(Training, "step", step)
    run_training(prepare(spec, "uniform", 0, tmp_path / "cut"), progress_bar=False)
    whole, cut = (tmp_path / name / "uniform" / "seed-0" / "metrics.jsonl" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()


@pytest.mark.parametrize("kind", ["rwkv6", "rwkv7"])
def test_weight_decay_is_on_true_matrices_only(kind: str, rwkv_spec: Callable[..., Spec]) -> None:
    """Neither token-shift vectors (1,1,D) nor u and r_k (H,N) nor low-rank maps: the official rule."""
    spec = rwkv_spec(kind)
    model = build(resolve(spec.model))
    decayed = {id(p) for p in build_optimizer(model, spec.train).param_groups[0]["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in decayed}
    assert "blocks.0.att.key.weight" in names
    assert {"emb.weight", "head.weight"} <= names
    assert all(name.endswith(".weight") and "ln" not in name for name in names)


def test_the_recipe_trains_the_decays_at_twice_the_rate(rwkv_spec: Callable[..., Spec]) -> None:
    """Of RWKV-7 w0 alone, not the maps that move it."""
    spec = rwkv_spec("rwkv7")
    train = TrainSpec(recipe="blinkdl", steps=1, learning_rate=1e-3)
    model = build(resolve(spec.model))
    groups = {group["lr_multiplier"]: group for group in build_optimizer(model, train).param_groups if group["lr"]}
    twice = {id(parameter) for parameter in groups[2.0]["params"]}
    assert {name for name, p in model.named_parameters() if id(p) in twice} == {f"blocks.{i}.att.w0" for i in range(2)}
    assert (groups[2.0]["weight_decay"], groups[2.0]["eps"]) == (0.0, 1e-18)
    frozen = train.model_copy(update={"decay_multiplier": 0.0})
    build_optimizer(model, frozen)
    assert not model.get_parameter("blocks.0.att.w0").requires_grad


@pytest.mark.parametrize(
    ("kind", "arm", "model", "message"),
    [
        ("rwkv6", 'projection = "gain-corrected"', "head_size = 8", "gain-corrected needs a placement in an RWKV"),
        ("rwkv6", 'placement = "log-spaced"\nprojection = "published"', "head_size = 8", "EMA gain only"),
        ("rwkv6", 'placement = "log-spaced"\nbeta = 1.0', "head_size = 8", "beta 1.0 belongs to a power law"),
        ("rwkv6", 'placement = "log-spaced"\nmatch = "uniform"', "head_size = 8", "match uniform does nothing"),
        ("rwkv6", 'placement = "quantile"\nshape_on = "output"', "head_size = 8", "output matrix starts at zero"),
        ("rwkv6", 'placement = "quantile"\ntempering = 1', "head_size = 8", r"use a head_size above 8, k_clamp = true"),
        (
            "rwkv7",
            'placement = "log-spaced"',
            "head_size = 8",
            r"shortest 1 bytes, but a decay of RWKV-7 is above .*1.15",
        ),
        ("rwkv7", 'placement = "concentrated"', "head_size = 16", r"half-life 0.5 bytes, but .* no half-life is 1.143"),
        ("rwkv7", 'placement = "quantile"\nbonus = "law"', "head_size = 16", "bonus law belongs to model kinds rwkv5"),
        (
            "rwkv7",
            'placement = "quantile"\ntempering = 1',
            "head_size = 8",
            "use a head_size above 8 or a smaller temp",
        ),
        ("rwkv7", "", "head_size = 8\nk_clamp = true", "k_clamp does not belong to model kind 'rwkv7'"),
        ("rwkv7", 'scheme = "rwkv_blinkdl"', "head_size = 8", "rwkv_blinkdl"),
        ("rwkv7", 'scheme = "u_mup"', "head_size = 8", "unit_scaled is not for RWKV-7"),
        ("rwkv7", "", "head_size = 8\nranks = { decay = 1 }", "ranks.decay"),
        ("rwkv6", "", "head_size = 8\nranks = { decay = 8 }", "ranks does not belong to model kind 'rwkv6'"),
        ("rwkv6", 'scheme = "rwkv7_official"', "head_size = 8", "rwkv7_official"),
        ("ssm", 'bonus = "law"', "", "bonus law belongs to model kinds rwkv5 and rwkv6"),
        ("rwkv6", 'scheme = "rwkv_eagle_paper"', "head_size = 8", "rwkv_eagle_paper"),
        ("rwkv6", 'scheme = "rwkv_blinkd"', "head_size = 8", "rwkv_blinkd"),
        ("rwkv6", "", "head_size = 7", "dim 16 must be a multiple of head_size 7"),
        ("rwkv6", "", 'head_size = 8\ngain = "ema"', "gain does not belong to model kind 'rwkv6'"),
        ("ssm", 'shape_on = "receptance"', "", "shape_on must be columns or multiplier in an SSM"),
        ("ssm", 'scheme = "fixup"\nprojection = "published"', "", "nothing to act on"),
        ("ssm", "", "k_clamp = true", "k_clamp does not belong to model kind 'ssm'"),
    ],
)
def test_options_of_the_other_family_are_refused(
    kind: str, arm: str, model: str, message: str, rwkv_spec: Callable[..., Spec]
) -> None:
    with pytest.raises(ValueError, match=message):
        rwkv_spec(kind, arm, model)


def test_a_power_law_arm_says_what_it_aims_at(rwkv_spec: Callable[..., Spec]) -> None:
    """Defaults that depend on the kind of model are written out; an arm without placement stays the scheme's."""
    spec = rwkv_spec(arm='placement = "quantile"\ntempering = 0.25', model="head_size = 16")
    arm = spec.arm("power-law")
    assert (arm.target, arm.kernel, arm.lag, arm.max_lag, arm.tempering) == ("correlation", "rms", "bonus", 2048, 0.25)
    assert spec.arm("uniform").placement is None
    assert not spec.arm("uniform").places_nodes
    model = initialise_(build(resolve(spec.model)), resolve(spec.model, arm), 0)
    rates = model.state_dict()["blocks.0.att.time_decay"].flatten().exp().double()
    assert rates.tolist() == pytest.approx(list(resolve(spec.model, arm).nodes.rates), rel=1e-6)
    asked = rwkv_spec(
        arm='placement = "quantile"\ntempering = 0\ntarget = "information"\nkernel = "coherent"', model="head_size = 16"
    )
    assert asked.arm("power-law").law == Aim(1.15, "information", "coherent", "bonus")


def test_nodes_of_a_file_are_held_to_the_law_and_to_the_gain(rwkv_spec: Callable[..., Spec], tmp_path: Path) -> None:
    nodes = place(16, placement="quantile", gain="none", target="correlation", kernel="rms", lag="bonus", tempering=0)
    save_json(tmp_path / "fit.json", {"nodes": nodes.to_dict()})
    file = f"node_file = '{tmp_path / 'fit.json'}'"
    spec = rwkv_spec(arm=file, model="head_size = 16")
    assert resolve(spec.model, spec.arm("power-law")).nodes == nodes
    with pytest.raises(ValueError, match="shape is that of gain 'none', but the key has another"):
        rwkv_spec(arm=file, model="head_size = 16\nk_clamp = true")
    with pytest.raises(ValueError, match="16 rates and 16 multipliers, but"):
        rwkv_spec(arm=file)
    save_json(tmp_path / "fit.json", {"nodes": {**nodes.to_dict(), "projection": [1.0] * 16}})
    with pytest.raises(ValueError, match=r"miss d\*\*-0.575"):
        rwkv_spec(arm=file, model="head_size = 16")


def test_goose_reaches_no_shorter_half_life_than_it_can(rwkv_spec: Callable[..., Spec]) -> None:
    """Quantile nodes end at the largest rate; the law then holds from distance 1, where the state is read."""
    spec = rwkv_spec("rwkv7", 'placement = "quantile"\ntempering = 0.25', "head_size = 16")
    arm = spec.arm("power-law")
    assert (arm.target, arm.kernel, arm.lag, arm.max_lag) == ("correlation", "rms", "distance", 2048)
    condition = resolve(spec.model, arm)
    model = initialise_(build(condition), condition, 0)
    rates = [mixing.rates().flatten().tolist() for mixing in model.mixings()]
    for found in rates:
        assert found == pytest.approx(list(condition.nodes.rates), rel=1e-5)
        assert max(found) < spec.model.largest_rate
    spaced = rwkv_spec("rwkv7", 'placement = "log-spaced"\nshortest = 1.15', "head_size = 16")
    lives = initialise_(build(resolve(spaced.model)), resolve(spaced.model, spaced.arm("power-law")), 0).half_lives()
    assert (lives[0].min().item(), lives[0].max().item()) == pytest.approx((1.15, 2000), rel=1e-5)


@pytest.mark.parametrize("name", ["finch", "goose"])
def test_the_committed_spec_is_valid(name: str) -> None:
    spec = load_spec(Path(__file__).parents[2] / "runs" / f"{name}.toml", check)
    assert parse_spec(spec.model_dump(), "again") == spec


def test_goose_and_finch_are_compared_at_equal_parameters() -> None:
    spec = load_spec(Path(__file__).parents[2] / "runs" / "goose.toml")
    counts = {name: Prepared.of(resolve(spec.model_of(name), spec.arm(name))).parameters for name in spec.arms}
    assert max(counts.values()) / min(counts.values()) < 1.01
