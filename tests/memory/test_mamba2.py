"""Mamba-2 of transformers by name: over bytes, its memory known, and started with the decays of a law."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from plkernel.analysis.nodes import place
from plkernel.common.files import load_json
from plkernel.config.reading import load_spec
from plkernel.memory.foreign import Foreign, build
from plkernel.memory.mamba2 import log_spaced_, power_law_
from plkernel.models.init.power_law import decays_
from plkernel.training import check
from plkernel.training.build import started

pytest.importorskip("transformers", reason="transformers is not installed")

KIND = "transformers:Mamba2ForCausalLM"
SIZES = {"hidden_size": 16, "num_heads": 32, "head_dim": 1, "state_size": 4, "num_hidden_layers": 1, "n_groups": 1}
COMMITTED = Path(__file__).parents[2] / "runs" / "mamba2.toml"


@pytest.fixture(scope="module")
def model() -> Foreign:
    return build(KIND, {**SIZES, "chunk_size": 16}, 0)


def test_it_is_over_bytes_none_of_which_is_special(model: Foreign) -> None:
    assert model(torch.randint(256, (2, 20))).shape == (2, 20, 256)
    embedding = model.module.get_input_embeddings()
    assert embedding.weight.shape[0] == 256
    assert embedding.padding_idx is None
    assert (embedding.weight != 0).any(dim=1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_sizes": 16}, "config has 'hidden_sizes'; did you mean 'hidden_size'"),
        ({"vocab_size": 300}, "vocab_size must be 256, one for every byte, got 300"),
        ({"num_heads": 5}, "building it raised .*num_heads"),
    ],
)
def test_options_that_it_does_not_have_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        build(KIND, options, 0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("start", [power_law_, log_spaced_])
def test_the_heads_carry_the_kernel_of_the_nodes(model: Foreign, start: Callable[..., None]) -> None:
    """Of a step of the input: dt a**t summed over heads, a and dt as the layer computes them."""
    start(model.module)
    mixer = model.module.backbone.layers[0].mixer
    dt = F.softplus(mixer.dt_bias.double())
    a = torch.exp(-dt * mixer.A_log.double().exp())
    lags = torch.tensor([4.0, 16.0, 64.0, 256.0], dtype=torch.float64)
    found = (dt * a ** lags[:, None]).sum(dim=1).log()
    slopes = (found.diff() / lags.log().diff()).tolist()
    exponent = 1.15 if start is power_law_ else 1.0
    # 32 heads with 5 % of the kernel beyond either end: within 0.1 of the law in the middle of its range
    assert slopes == pytest.approx([-exponent] * 3, abs=0.1)
    torch.testing.assert_close(model.half_lives()[0], math.log(2) / (dt * mixer.A_log.double().exp()))


def test_a_bias_for_any_a_log_gives_the_rates(model: Foreign) -> None:
    """decays_ of dt_bias is the other way round of that of A_log."""
    nodes = place(5, shortest=0.5, longest=1e5)
    bias, a_log = torch.empty(5), torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5])
    decays_(bias, nodes, "dt_bias", a_log=a_log)
    rates = F.softplus(bias.double()) * a_log.double().exp()
    np.testing.assert_allclose(rates.numpy(), nodes.rates, rtol=2e-6)  # 16 units of float32, for a bias near -12
    with pytest.raises(ValueError, match="a_log goes with parametrisation 'dt_bias'"):
        decays_(bias, nodes, "dt_bias")
    with pytest.raises(ValueError, match="a_log goes with parametrisation 'dt_bias'"):
        decays_(bias, nodes, a_log=a_log)
    with pytest.raises(ValueError, match=r"a_log of shape \(4,\) does not broadcast"):
        decays_(bias, nodes, "dt_bias", a_log=a_log[1:])


def test_the_committed_study_names_three_starts_of_one_model() -> None:
    spec = load_spec(COMMITTED, trusted=True)
    models = {name: started(spec.condition(name), 0) for name in spec.arms}
    own, law, spaced = (dict(models[name].named_parameters()) for name in ("own", "power-law", "log-spaced"))
    differing = {name.rpartition(".")[2] for name in own if not torch.equal(own[name], law[name])}
    assert differing == {"A_log", "dt_bias"}
    assert all(torch.equal(law[name], spaced[name]) for name in own if not name.endswith("dt_bias"))
    half_lives = [values.sort().values for values in models["log-spaced"].half_lives()]
    assert [round(float(values[place]), 3) for values in half_lives for place in (0, -1)] == [1.0, 2000.0] * 2


@pytest.mark.slow
def test_the_committed_study_trains_a_few_steps(tmp_path: Path) -> None:
    from plkernel.training.loop import prepare, run_training

    spec = load_spec(COMMITTED, trusted=True)
    changes = {"steps": 3, "eval_every": 3, "eval_windows": 2, "test_windows": 2, "batch": 2, "context": 64}
    spec = spec.model_copy(update={"train": spec.train.model_copy(update=changes)})
    for name in spec.arms:
        check(spec.condition(name))
        run_training(prepare(spec, name, 0, tmp_path), progress_bar=False)
        assert load_json(tmp_path / name / "seed-0" / "result.json")["causal"]
