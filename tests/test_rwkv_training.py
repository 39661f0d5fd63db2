"""Eagle and Finch through the commands: specs, arms by scheme, runs that resume, and clear refusals."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel.building import build
from plkernel.objective import build_optimizer
from plkernel.spec import Spec, load_spec, parse_spec
from plkernel.storage import load_json, read_lines
from plkernel.task import prepare
from plkernel.train import Training, run_training


@pytest.fixture
def rwkv_spec(tiny_spec: Callable[..., Path]) -> Callable[..., Spec]:
    """The tiny spec with an RWKV in place of the SSM, two arms by scheme."""

    def make(kind: str = "rwkv6", arm: str = "", model: str = "head_size = 8") -> Spec:
        path = tiny_spec()
        text = path.read_text().replace("[model]", f'[model]\nkind = "{kind}"\n{model}')
        path.write_text(text.replace('projection = "published"', arm))
        return load_spec(path)

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
        parameter.numel() for parameter in build(spec.model).parameters()
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
    model = build(spec.model)
    decayed = {id(p) for p in build_optimizer(model, spec.train).param_groups[0]["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in decayed}
    assert "blocks.0.att.key.weight" in names
    assert {"emb.weight", "head.weight"} <= names
    assert not [name for name in names if "time_" in name or "ln" in name]


@pytest.mark.parametrize(
    ("kind", "arm", "model", "message"),
    [
        ("rwkv6", 'projection = "published"', "head_size = 8", "projection belongs to model kind 'ssm'"),
        ("rwkv6", 'scheme = "rwkv_eagle_paper"', "head_size = 8", "rwkv_eagle_paper"),
        ("rwkv6", 'scheme = "rwkv_blinkd"', "head_size = 8", "rwkv_blinkd"),
        ("rwkv6", "", "head_size = 7", "dim 16 must be a multiple of head_size 7"),
        ("rwkv6", "", 'head_size = 8\ngain = "ema"', "gain does not belong to model kind 'rwkv6'"),
        ("ssm", 'scheme = "rwkv_blinkdl"', "", "scheme belongs to model kinds rwkv5 and rwkv6"),
        ("ssm", "", "k_clamp = true", "k_clamp does not belong to model kind 'ssm'"),
    ],
)
def test_options_of_the_other_family_are_refused(
    kind: str, arm: str, model: str, message: str, rwkv_spec: Callable[..., Spec]
) -> None:
    with pytest.raises(ValueError, match=message):
        rwkv_spec(kind, arm, model)


def test_the_committed_spec_is_valid() -> None:
    spec = load_spec(Path(__file__).parent.parent / "runs" / "rwkv.toml")
    assert parse_spec(spec.model_dump(), "again") == spec
