"""Eagle and Finch through the commands: specs, arms by scheme, runs that resume, and clear refusals."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel.analysis.nodes.node_set import Aim
from plkernel.analysis.nodes.placement import place
from plkernel.run.build import build, check, initialise_
from plkernel.run.objective import build_optimizer
from plkernel.run.task import prepare
from plkernel.run.training import Training, run_training
from plkernel.spec.condition import resolve
from plkernel.spec.reading import load_spec, parse_spec
from plkernel.spec.study import Spec
from plkernel.tools.files import load_json, read_lines, save_json


@pytest.fixture
def rwkv_spec(tiny_spec: Callable[..., Path]) -> Callable[..., Spec]:
    """The tiny spec with an RWKV in place of the SSM, two arms by scheme."""

    def make(kind: str = "rwkv6", arm: str = "", model: str = "head_size = 8") -> Spec:
        path = tiny_spec()
        text = path.read_text().replace("[model]", f'[model]\nkind = "{kind}"\n{model}')
        path.write_text(text.replace('projection = "published"', arm))
        return load_spec(path, check)

    return make


@pytest.mark.parametrize("kind", ["rwkv5", "rwkv6"])
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


def test_weight_decay_is_on_true_matrices_only(rwkv_spec: Callable[..., Spec]) -> None:
    """Neither token-shift vectors (1,1,D) nor u (H,N) nor low-rank maps: the official rule."""
    spec = rwkv_spec()
    model = build(resolve(spec.model))
    decayed = {id(p) for p in build_optimizer(model, spec.train).param_groups[0]["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in decayed}
    assert "blocks.0.att.key.weight" in names
    assert {"emb.weight", "head.weight"} <= names
    assert not [name for name in names if "time_" in name or "ln" in name]


@pytest.mark.parametrize(
    ("kind", "arm", "model", "message"),
    [
        ("rwkv6", 'projection = "gain-corrected"', "head_size = 8", "gain-corrected needs a placement in an RWKV"),
        ("rwkv6", 'placement = "log-spaced"\nprojection = "published"', "head_size = 8", "EMA gain only"),
        ("rwkv6", 'placement = "log-spaced"\nbeta = 1.0', "head_size = 8", "beta 1.0 belongs to a power law"),
        ("rwkv6", 'placement = "log-spaced"\nmatch = "uniform"', "head_size = 8", "match uniform does nothing"),
        ("rwkv6", 'placement = "quantile"\nshape_on = "output"', "head_size = 8", "output matrix starts at zero"),
        ("rwkv6", 'placement = "quantile"\ntempering = 1', "head_size = 8", r"use a head_size above 8, k_clamp = true"),
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
    nodes = place(
        16, placement="quantile", gain_name="none", target="correlation", kernel="rms", lag="bonus", tempering=0
    )
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


def test_the_committed_spec_is_valid() -> None:
    spec = load_spec(Path(__file__).parents[2] / "runs" / "finch.toml")
    assert parse_spec(spec.model_dump(), "again") == spec
