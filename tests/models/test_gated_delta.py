"""The gated delta net over bytes: the layer of Qwen3-Next, its state, its decays, and training."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from test_state import CUTS, TIME, check_empty, check_parts, check_saved, check_size
from torch.nn import functional as F

import plkernel
from plkernel.config.condition import resolve
from plkernel.config.schema import Arm, ModelSpec, TrainSpec
from plkernel.models.gated_delta import GatedDelta, GatedDeltaConfig, gated_delta
from plkernel.training.build import build_optimizer, started
from plkernel.training.foreign import Foreign, check_model

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = GatedDeltaConfig(dim=16, layers=2, heads=2, head_size=8)
KIND = "plkernel.models.gated_delta:gated_delta"


def built(dtype: torch.dtype = torch.float64, config: GatedDeltaConfig = CONFIG) -> GatedDelta:
    """A model with weights so large that states matter, and slow and fast heads."""
    torch.manual_seed(0)
    model = GatedDelta(config)
    with torch.no_grad():
        for values in model.parameters():
            if values.ndim > 1:
                values.normal_(std=values.shape[-1] ** -0.5)
        for block in model.blocks:
            mixer: Any = block.mixer
            mixer.A_log.uniform_(-1.0, 1.0)
            mixer.dt_bias.uniform_(-4.0, 0.0)
            mixer.norm.uniform_(0.5, 1.5)
    return model.to(dtype)


def some_bytes(batch: int = 3, time: int = TIME) -> torch.Tensor:
    return torch.randint(0, 256, (batch, time), generator=torch.Generator().manual_seed(1))


def qwen3_next_layer(mixer: Any) -> Any:
    """The layer of transformers with the weights of `mixer`."""
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    heads = mixer.config.heads
    size = mixer.config.head_size
    config = Qwen3NextConfig(
        hidden_size=mixer.config.dim,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_value_heads=heads,
        linear_num_key_heads=heads,
        linear_key_head_dim=size,
        linear_value_head_dim=size,
        linear_conv_kernel_dim=mixer.config.taps,
    )
    layer = Qwen3NextGatedDeltaNet(config, 0)
    with torch.no_grad():
        streams = mixer.qkv_proj.weight.unflatten(0, (3, heads, size))
        gate = mixer.g_proj.weight.unflatten(0, (heads, size))
        per_head = torch.cat((streams, gate[None])).transpose(0, 1)  # q, k, v, z of each head
        layer.in_proj_qkvz.weight.copy_(per_head.flatten(0, 2))
        shares = torch.stack((mixer.b_proj.weight, mixer.a_proj.weight), dim=1)
        layer.in_proj_ba.weight.copy_(shares.flatten(0, 1))
        layer.conv1d.weight.copy_(mixer.conv[:, None])
        layer.A_log.copy_(mixer.A_log)
        layer.dt_bias.copy_(mixer.dt_bias)
        layer.norm.weight.copy_(mixer.norm)
        layer.out_proj.weight.copy_(mixer.o_proj.weight)
    return layer


def test_the_layer_is_that_of_qwen3_next() -> None:
    """Over two of its chunks of 64, in float32, in which transformers computes: within one unit of
    rounding for each of about sqrt(time * width) terms, of the largest output, ten matrices deep.
    """
    mixer: Any = built(torch.float32).blocks[0].mixer
    layer = qwen3_next_layer(mixer)
    x = torch.randn(2, 100, CONFIG.dim, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = mixer(x)
        expected = layer(x)
    bound = 10 * math.sqrt(100 * CONFIG.dim) * torch.finfo(torch.float32).eps
    largest = float(expected.abs().max())
    assert float((found - expected).abs().max()) < bound * largest
    assert largest > 0.1, "an output of zero shows nothing"


@pytest.mark.filterwarnings("ignore")  # of other people's code
def test_the_gate_with_a_lower_bound_is_that_of_flash_linear_attention() -> None:
    """Of its Kimi Delta Attention, for heads of one channel; in float32, in which it computes."""
    gate = pytest.importorskip("fla.ops.kda.gate", reason="flash-linear-attention is not installed")
    config = GatedDeltaConfig(dim=16, layers=1, heads=6, head_size=4, lower_bound=-5.0)
    mixer: Any = built(torch.float32, config).blocks[0].mixer
    x = 30 * torch.randn(2, 50, config.dim, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = mixer.log_decay(x)
        expected = gate.naive_kda_lowerbound_gate(
            mixer.a_proj(x)[..., None], mixer.A_log, mixer.dt_bias, -5.0
        )
    torch.testing.assert_close(found, expected[..., 0], rtol=1e-6, atol=0)
    assert found.min() < -4.9
    assert found.max() > -0.1


def test_a_lower_bound_is_in_the_checkpoint_and_its_half_lives_are_read_by_names() -> None:
    config = GatedDeltaConfig(dim=8, layers=1, heads=3, head_size=4, lower_bound=-2.0)
    model = built(torch.float32, config)
    assert "blocks.0.mixer.lower_bound" in model.state_dict()
    assert "blocks.0.mixer.lower_bound" not in built().state_dict()
    mixer: Any = model.blocks[0].mixer
    with torch.no_grad():
        log_decay = mixer.log_decay(torch.zeros(1, 1, config.dim))[0, 0]
    [found] = Foreign("kind", model).half_lives()
    torch.testing.assert_close(found, math.log(2) / -log_decay.double(), rtol=1e-6, atol=0)


def condition_of(config: GatedDeltaConfig) -> float:
    """The largest change of a logit for a small relative change of all weights, over that change.

    The norm of an output divides by its size: where the terms of one nearly cancel, rounding is
    thousands of times as large.
    """
    inputs = some_bytes()
    step = 1e-8
    changes = []
    with torch.no_grad():
        whole = built(config=config)(inputs)
        for seed in range(4):
            random = torch.Generator().manual_seed(seed)
            model = built(config=config)
            for values in model.parameters():
                noise = torch.randn(values.shape, generator=random, dtype=values.dtype)
                values.mul_(1.0 + step * noise)
            changes.append(float((model(inputs) - whole).abs().max()))
    return max(changes) / step


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("taps", [1, 4])
@pytest.mark.parametrize("lower_bound", [None, -5.0], ids=["free", "bounded"])
def test_parts_with_the_state_carried_are_the_whole(
    taps: int, dtype: torch.dtype, lower_bound: float | None
) -> None:
    config = GatedDeltaConfig(
        dim=16, layers=2, heads=2, head_size=8, taps=taps, lower_bound=lower_bound
    )
    model: Any = built(dtype, config)
    condition = condition_of(config)
    for sizes in CUTS.values():
        check_parts(model, some_bytes(), sizes, condition)


@pytest.mark.parametrize("taps", [1, 4])
@pytest.mark.parametrize("check", [check_size, check_saved, check_empty])
def test_its_state_and_its_logits_are_those_of_any_model(check: Any, taps: int) -> None:
    """In what they keep and how they are saved, and where there is no text."""
    check(built(config=GatedDeltaConfig(dim=16, layers=2, heads=2, head_size=8, taps=taps)))


@pytest.mark.parametrize("name", ["delta", "conv"])
def test_a_forgotten_part_of_the_state_matters(name: str) -> None:
    """So that the test above can fail."""
    model = built()
    inputs = some_bytes()
    with torch.no_grad():
        whole = model(inputs)
        _, state = model(inputs[:, :9], model.initial_state(3))
        for key, values in state.tensors.items():
            if key.endswith(name):
                values.zero_()
        rest, _ = model(inputs[:, 9:], state)
    assert float((rest - whole[:, 9:]).abs().max()) > 1e-2


def test_the_cpu_kernel_and_the_loop_in_float64_have_the_same_gradients() -> None:
    found = {}
    for backend in ("cpu", "reference"):
        config = GatedDeltaConfig(dim=16, layers=2, heads=2, head_size=8, backend=backend)
        model: Any = built(config=config)
        F.cross_entropy(model(some_bytes()).flatten(0, 1), some_bytes().flatten()).backward()
        found[backend] = {name: one.grad for name, one in model.named_parameters()}
    for name, expected in found["reference"].items():
        assert expected.abs().max() > 0, name
        torch.testing.assert_close(found["cpu"][name], expected, rtol=1e-9, atol=1e-12)


def test_its_half_lives_are_set_and_read_by_names(tmp_path: Any) -> None:
    from safetensors.torch import save_file

    model = built(torch.float32)
    nodes = plkernel.place(CONFIG.heads, shortest=3, longest=300)
    for block in model.blocks:
        mixer: Any = block.mixer
        plkernel.apply(nodes, mixer.A_log, parametrisation="a_log", dt_bias=mixer.dt_bias)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    layers = plkernel.inspect(tmp_path / "model.safetensors").layers
    assert [layer.family.name for layer in layers] == ["gated delta net"] * CONFIG.layers
    for layer in layers:
        half_lives = np.log(2) / np.sort(layer.rates.ravel())
        np.testing.assert_allclose(half_lives, sorted(nodes.half_lives())[::-1], rtol=1e-6)


def test_at_initialisation_decays_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    mixer: Any = GatedDelta(GatedDeltaConfig(dim=8, layers=1, heads=400, head_size=1)).blocks[0]
    values = mixer.mixer.A_log.detach().exp()
    steps = F.softplus(mixer.mixer.dt_bias.detach()).log()
    assert 0.01 <= float(values.min()) < 0.5
    assert 15.5 < float(values.max()) <= 16
    assert math.log(1e-3) - 1e-3 < float(steps.min()) < math.log(1.2e-3)
    assert math.log(0.08) < float(steps.max()) < math.log(0.1) + 1e-3


def test_at_initialisation_matrices_are_of_one_size_gains_one_and_taps_uniform() -> None:
    """Within five standard errors of a standard deviation, one in sqrt(2 n)."""
    torch.manual_seed(0)
    model = GatedDelta(GatedDeltaConfig(dim=32, layers=1, heads=4, head_size=8, taps=4))
    mixer: Any = model.blocks[0].mixer
    streams = [f"{name}_proj.weight" for name in ("qkv", "a", "b", "g", "o")]
    matrices = [model.embedding.weight, model.head.weight, *map(mixer.get_parameter, streams)]
    for matrix in matrices:
        deviation = float(matrix.detach().square().mean().sqrt())
        assert deviation == pytest.approx(0.02, rel=5 / math.sqrt(2 * matrix.numel()))
    assert mixer.norm.tolist() == [1.0] * 8
    taps = mixer.conv.detach()
    assert -0.5 <= float(taps.min()) < -0.48
    assert 0.48 < float(taps.max()) <= 0.5


def test_a_study_names_it_and_trains_it() -> None:
    """It passes the checks of other people's models, and learns a repeated text."""
    config = {"dim": 16, "layers": 1, "heads": 2, "head_size": 8}
    train = TrainSpec(steps=30, context=32, batch=4, learning_rate=1e-2)
    model: Any = started(
        resolve(ModelSpec(kind=KIND, config=config), Arm(), train, trusted=True), 0
    )
    assert isinstance(model, Foreign)
    assert [len(one) for one in model.half_lives()] == [2]
    text = torch.arange(33).repeat(4, 1)
    optimizer = build_optimizer(model, train)
    losses = []
    for _ in range(30):
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1
    check_model(model, "gated delta net", 32, torch.device("cpu"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 3}, "config must have options among dim, .*, got 'width'"),
        ({"heads": 0}, "heads must be a whole number, at least 1, got 0"),
        ({"lower_bound": 0.0}, "lower_bound must be a finite number below 0, got 0.0"),
        ({"lower_bound": True}, "lower_bound must be a finite number below 0, got True"),
        ({"lower_bound": -math.inf}, "lower_bound must be a finite number below 0, got -inf"),
    ],
)
def test_other_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gated_delta(options)
