"""Schemes in specs: arms of an SSM by scheme, options, learning rates of their own, and what does not fit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from plkernel.commands.inspect import inspect
from plkernel.common.files import load_json, read_lines
from plkernel.config.condition import resolve
from plkernel.config.reading import load_spec
from plkernel.config.schema import ModelSpec
from plkernel.config.study import Spec
from plkernel.models.init.block_gains import calibrate_, scale_
from plkernel.models.ssm import SSM
from plkernel.training import check
from plkernel.training.build import build, initialise_
from plkernel.training.loop import Training, prepare, run_training
from plkernel.training.view import calibrated_gains


@pytest.fixture
def spec_with(tiny_spec: Callable[..., Path]) -> Callable[[str], Spec]:
    """The tiny spec (an SSM of width 16) with these lines in its second arm."""

    def make(arm: str) -> Spec:
        path = tiny_spec()
        path.write_text(path.read_text().replace('projection = "published"', arm))
        return load_spec(path, check)

    return make


def test_an_arm_of_another_scheme_trains_and_says_so(spec_with: Callable[[str], Spec], tmp_path: Path) -> None:
    """muP's rates reach the optimiser, its multiplier the model, the arm's own peak the schedule."""
    spec = spec_with('scheme = "mup_table8"\nscheme_options = { base_width = 4 }\nlearning_rate = 0.01')
    task = prepare(spec, "power-law", 0, tmp_path / "out")
    training = Training(task)
    assert training.model.config.structure.multipliers == {"logits": 0.25}
    found = {id(p): group for group in training.optimizer.param_groups for p in group["params"]}
    assert found[id(training.model.blocks[0].ssm.B.weight)]["lr"] == pytest.approx(0.0025)
    assert found[id(training.model.embedding.weight)]["lr"] == pytest.approx(0.01)
    run_training(task, progress_bar=False)
    rows = read_lines(task.folder.path / "metrics.jsonl")
    assert rows[-1]["val_bpb"] < rows[0]["val_bpb"]
    config = load_json(task.folder.path / "config.json")
    assert config["train"]["learning_rate"] == 0.01
    assert config["arm_options"]["scheme_options"] == {"base_width": 4.0}


def test_a_scheme_and_the_power_law_go_together(spec_with: Callable[[str], Spec]) -> None:
    """The scheme's draws, then the nodes' multipliers on the columns of C_proj."""
    plain, shaped = (
        spec_with(f'scheme = "megatron_default"\n{shape}') for shape in ("", 'projection = "gain-corrected"')
    )
    weights = []
    for spec in (plain, shaped):
        arm = spec.arm("power-law")
        model = initialise_(build(resolve(spec.model, arm)), resolve(spec.model, arm), 0)
        assert isinstance(model, SSM)
        weights.append(model.blocks[1].ssm.C_proj.weight.detach())
    multipliers = torch.tensor(resolve(shaped.model, shaped.arm("power-law")).nodes.projection)
    assert torch.allclose(weights[1], weights[0] * multipliers, rtol=1e-5)
    assert weights[0].std().item() == pytest.approx(0.02 / (2 * plain.model.layers) ** 0.5, rel=0.2)


def test_a_fixed_multiplier_shapes_where_the_projection_starts_at_zero(spec_with: Callable[[str], Spec]) -> None:
    zero = 'scheme = "rwkv_blinkdl"\nprojection = "gain-corrected"'
    with pytest.raises(ValueError, match=r"scheme 'rwkv_blinkdl' starts blocks\.0\.ssm\.C_proj\.weight at zero"):
        spec_with(zero)
    spec = spec_with(f'{zero}\nshape_on = "multiplier"')
    arm = spec.arm("power-law")
    model = initialise_(build(resolve(spec.model, arm)), resolve(spec.model, arm), 0)
    assert isinstance(model, SSM)
    assert model.blocks[0].ssm.shape.tolist() == pytest.approx(
        list(resolve(spec.model, arm).nodes.projection), rel=1e-6
    )
    assert model.blocks[0].ssm.C_proj.weight.abs().max() == 0


@pytest.mark.parametrize("kind", ["ssm", "rwkv6"])
def test_a_run_calibrates_what_its_scheme_leaves_to_data(
    kind: str, spec_with: Callable[[str], Spec], tmp_path: Path
) -> None:
    """Scheme, then the arm's nodes, then gains on the first step's windows, which bring every branch to the target."""
    arm = 'scheme = "auto_init"\nscheme_options = { target = 0.5 }\nplacement = "log-spaced"'
    spec = spec_with(arm if kind == "rwkv6" else f'{arm}\nprojection = "gain-corrected"')
    spec = (
        spec.model_copy(update={"model": ModelSpec(kind=kind, dim=16, layers=2, head_size=8)})
        if kind != "ssm"
        else spec
    )
    task = prepare(spec, "power-law", 0, tmp_path / "out")
    training = Training(task)
    found = training.calibration
    assert found is not None
    assert found.branches == pytest.approx([0.5, 0.5], rel=0.005)
    assert calibrate_(training.model, training.windows.at(0)[:, :-1], target=0.5).gains == (1.0, 1.0)
    model = initialise_(
        build(resolve(spec.model, spec.arm("power-law"))), resolve(spec.model, spec.arm("power-law")), 0
    )
    scale_(model, found.gains)
    for name, values in training.model.named_parameters():
        assert torch.allclose(values, model.get_parameter(name), rtol=1e-5), name
    assert Training(prepare(spec, "uniform", 0, tmp_path / "out")).calibration is None


def test_gains_are_recorded_once_and_a_resumed_run_keeps_them(
    spec_with: Callable[[str], Spec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the first row alone; a run that stopped half-way is not calibrated again, and ends in the same rows."""
    spec, step = spec_with('scheme = "auto_init"'), Training.step

    def stopping(self: Training) -> None:
        if self.progress.step == 6:
            self.settle()
            self.save()
            raise SystemExit
        step(self)

    run_training(whole := prepare(spec, "power-law", 0, tmp_path / "whole"), progress_bar=False)
    monkeypatch.setattr(Training, "step", stopping)
    cut = prepare(spec, "power-law", 0, tmp_path / "cut")
    with pytest.raises(SystemExit):
        run_training(cut, progress_bar=False)
    monkeypatch.setattr(Training, "step", step)
    assert Training(cut).calibration is None
    run_training(cut, progress_bar=False)
    files = [task.folder.path / "metrics.jsonl" for task in (whole, cut)]
    assert files[0].read_bytes() == files[1].read_bytes()
    rows = read_lines(files[0])
    assert ["calibration" in row for row in rows] == [True, *[False] * (len(rows) - 1)]
    gains = rows[0]["calibration"]["gains"]
    assert len(gains) == 2
    assert calibrated_gains(cut.folder.path) == gains
    inspect(cut.folder.path, windows=4, json=tmp_path / "views.json")
    capsys.readouterr()
    start = load_json(tmp_path / "views.json")["initialisation"]
    assert start["bits_per_byte"] == pytest.approx(rows[0]["val_bpb"], rel=1e-5)


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ('scheme = "auto_init"\nscheme_options = { target = 0 }', "target must be positive, got 0"),
        (
            'scheme = "mup_table8"\nscheme_options = { sgd = 1 }',
            "scheme 'mup_table8' has learning rates for SGD here, and a run has AdamW: leave scheme option 'sgd' out",
        ),
        ('scheme = "megatron_defualt"', "scheme 'megatron_defualt' does not exist; nearest: megatron_default"),
        ('scheme = "megatron_default"\nscheme_options = { sd = 1 }', "has no option 'sd'; valid: std"),
        ("learning_rate = 0", "learning_rate"),
    ],
)
def test_what_does_not_exist_is_answered_with_what_does(
    arm: str, message: str, spec_with: Callable[[str], Spec]
) -> None:
    with pytest.raises(ValueError, match=message):
        spec_with(arm)
