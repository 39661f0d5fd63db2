"""The diagonal SSM: its size, its causality, its two modes, and initialisations that share their base weights."""

import dataclasses

import pytest
import torch
from node_kernels import rms_kernel

from plkernel.analysis.nodes import gain_at, place
from plkernel.models.init.plan import initialise_
from plkernel.models.ssm import SSM, SSMConfig, input_gain

CAUSAL = [SSMConfig(16, 2), SSMConfig(16, 2, "ema"), SSMConfig(16, 2, "lru", patch=2), SSMConfig(16, 1, patch=3)]
LEAKING = [SSMConfig(16, 2, patch=2, mode="published"), SSMConfig(16, 1, patch=3, mode="published")]


def build(config: SSMConfig, seed: int = 0, std_scale: float = 10.0) -> SSM:
    """An initialised model with weights large enough for a leak to show."""
    nodes = place(config.dim, gain=config.gain, step=config.patch)
    model = SSM(config).initialise_(seed, nodes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(std_scale)
    return model


def leaks_by_perturbation(model: SSM, time: int = 13) -> bool:
    """Whether changing byte j moves any logit before j."""
    inputs = torch.randint(0, 256, (2, time), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before = model(inputs)
        for j in range(1, time):
            changed = inputs.clone()
            changed[:, j] = (changed[:, j] + 128) % 256
            if not torch.equal(model(changed)[:, :j], before[:, :j]):
                return True
    return False


def leaks_by_gradient(model: SSM, time: int = 13) -> bool:
    """Whether the logits at position t have a gradient with respect to the embedding of a later byte."""
    inputs = torch.randint(0, 256, (1, time), generator=torch.Generator().manual_seed(2))
    embedded = model.embedding(inputs).detach().requires_grad_()
    logits = model.decode(embedded)
    for t in range(time):
        (gradient,) = torch.autograd.grad(logits[0, t].pow(2).sum(), embedded, retain_graph=True)
        assert gradient[0, t].abs().max() > 0, "a byte must see itself, or the test cannot fail"
        if t + 1 < time and gradient[0, t + 1 :].abs().max() > 0:
            return True
    return False


def test_a_scheme_alone_leaves_nothing_as_the_memory_was() -> None:
    """Deterministic algorithms fill with NaN what is left empty; decays are no scheme's."""
    torch.use_deterministic_algorithms(True)
    try:
        model = initialise_(SSM(SSMConfig(16, 2)), "transformers_default", 0)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


@pytest.mark.parametrize("config", CAUSAL, ids=str)
def test_no_prediction_sees_a_later_byte(config: SSMConfig) -> None:
    model = build(config)
    assert config.causal
    assert not leaks_by_perturbation(model)
    assert not leaks_by_gradient(model)


@pytest.mark.parametrize("config", LEAKING, ids=str)
def test_published_patching_sees_its_own_target(config: SSMConfig) -> None:
    model = build(config)
    assert not config.causal
    assert leaks_by_perturbation(model)
    assert leaks_by_gradient(model)


@pytest.mark.parametrize(
    ("dim", "layers", "expected"), [(256, 4, 1_710_592), (512, 6, 9_715_712), (1024, 16, 101_287_936)]
)
def test_parameter_counts_of_the_published_family(dim: int, layers: int, expected: int) -> None:
    with torch.device("meta"):
        model = SSM(SSMConfig(dim, layers))
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.parametrize("config", CAUSAL, ids=str)
def test_recurrent_mode_agrees_with_parallel_mode(config: SSMConfig) -> None:
    model = build(config, std_scale=5.0).double()
    inputs = torch.randint(0, 256, (3, 17), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        parallel = model(inputs)
        state = model.initial_state(3)
        for t in range(inputs.shape[1]):
            logits, state = model.step(inputs[:, t], state)
            assert torch.allclose(logits, parallel[:, t], rtol=1e-11, atol=1e-11)


WINDOWED = [dataclasses.replace(config, patch=patch) for config in CAUSAL[:3] for patch in (1, 2, 4)]


@pytest.mark.parametrize("config", WINDOWED, ids=str)
@pytest.mark.parametrize("sizes", [[1, 11, 5], [4, 4, 9], [3, 1, 1, 1, 1, 1, 9], [17]], ids=str)
def test_windows_with_carried_state_are_one_text(config: SSMConfig, sizes: list[int]) -> None:
    """Wherever a window cuts a patch."""
    model = build(config, std_scale=5.0).double()
    inputs = torch.randint(0, 256, (3, 17), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        state, found = model.initial_state(3), []
        for window in inputs.split(sizes, dim=1):
            logits, state = model.resume(window, state)
            found.append(logits)
        whole = model(inputs)
        forgotten, _ = model.resume(inputs[:, 8:], model.initial_state(3))
    assert torch.allclose(torch.cat(found, 1), whole, rtol=1e-11, atol=1e-11)
    assert (forgotten - whole[:, 8:]).abs().max() > 1e-3, "the state must matter, or the test cannot fail"


def test_gradients_flow_through_the_carried_state() -> None:
    """The loss of a second window has the gradients of the same loss in one window."""
    model = build(CAUSAL[3], std_scale=5.0).double()
    inputs = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(4))
    model(inputs)[:, 5:].square().sum().backward()
    whole = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    _, state = model.resume(inputs[:, :5], model.initial_state(2))
    model.resume(inputs[:, 5:], state)[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, whole[name], rtol=1e-10, atol=1e-10), name


def test_recurrent_memory_is_constant() -> None:
    model = build(SSMConfig(16, 2, patch=2))

    def numbers(state) -> int:
        return sum(t.numel() for t in (*state.layers, state.patches.total, state.patches.last))

    state = model.initial_state(1)
    start = numbers(state)
    with torch.no_grad():
        for byte in range(9):
            _, state = model.step(torch.tensor([byte]), state)
    assert numbers(state) == start


def test_published_patching_has_no_recurrent_form() -> None:
    model = build(LEAKING[0])
    with pytest.raises(ValueError, match="not causal, not a likelihood"):
        model.step(torch.tensor([1]), model.initial_state(1))


def test_arms_of_one_seed_share_every_other_weight() -> None:
    """Two node sets differ in log_rate and in the scale of C's columns, and in nothing else."""
    config = SSMConfig(16, 2)
    uniform = SSM(config).initialise_(5, place(16))
    shaped_nodes = place(16, placement="concentrated", projection="published")
    shaped = SSM(config).initialise_(5, shaped_nodes)
    for (name, a), (_, b) in zip(uniform.named_parameters(), shaped.named_parameters(), strict=True):
        if name.endswith("C_proj.weight"):
            assert torch.allclose(b, a * torch.tensor(shaped_nodes.projection), rtol=1e-6)
        else:
            assert torch.equal(a, b) != name.endswith("log_rate")


def test_base_weights_do_not_depend_on_the_other_parameters() -> None:
    """A deeper model has the same first block: one generator per (seed, parameter name)."""
    shallow, deep = (SSM(SSMConfig(16, layers)).initialise_(7, place(16)) for layers in (1, 3))
    assert torch.equal(shallow.blocks[0].mlp.up.weight, deep.blocks[0].mlp.up.weight)
    assert not torch.equal(deep.blocks[0].mlp.up.weight, deep.blocks[1].mlp.up.weight)
    other = SSM(SSMConfig(16, 1)).initialise_(8, place(16))
    assert not torch.equal(shallow.head.weight, other.head.weight)


def test_base_initialisation() -> None:
    model = SSM(SSMConfig(128, 2)).initialise_(0, place(128))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.03)
        elif name.endswith((".D", "norm.weight", "norm1.weight", "norm2.weight")):
            assert torch.equal(parameter, torch.ones_like(parameter))
        elif not name.endswith("log_rate"):
            assert torch.equal(parameter, torch.zeros_like(parameter))


@pytest.mark.parametrize("patch", [1, 2])
def test_half_lives_are_in_bytes(patch: int) -> None:
    """An impulse on the slowest channel falls to half after 2000 bytes, that is 2000 / P steps."""
    model = SSM(SSMConfig(8, 1, patch=patch)).initialise_(0, place(8, step=patch))
    rate = model.blocks[0].ssm.log_rate.detach().double().exp()
    assert torch.exp(-rate[-1] * 2000 / patch).item() == pytest.approx(0.5, rel=1e-5)
    assert torch.exp(-rate[0] * 1 / patch).item() == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize(("name", "patch", "multiplier"), [("none", 1, False), ("ema", 2, False), ("lru", 1, True)])
def test_kernel_is_the_rms_response_of_a_branch_to_an_impulse(name: str, patch: int, multiplier: bool) -> None:
    """One impulse per input channel, t steps before, without the skip D."""
    model = build(SSMConfig(8, 1, name, patch=patch, shape_multiplier=multiplier)).double()
    ssm = model.blocks[0].ssm
    with torch.no_grad():
        ssm.D.zero_()
        if multiplier:
            ssm.shape.copy_(torch.linspace(0.5, 2, 8))
    impulses = torch.zeros(8, 33, 8, dtype=torch.float64)
    impulses[torch.arange(8), 0, torch.arange(8)] = 1
    found = ssm(impulses)[0][:, [0, 1, 5, 32]].square().mean(dim=(0, 2)).sqrt()
    [kernel] = model.kernels(patch * torch.tensor([0, 1, 5, 32]))
    torch.testing.assert_close(kernel, found, rtol=1e-6, atol=0)


def test_kernel_at_initialisation_is_the_rms_kernel_of_the_nodes() -> None:
    """For N(0, 0.02) weights, up to the sampling error of 256 * 256 entries."""
    nodes = place(256, gain="ema", projection="published")
    [kernel] = SSM(SSMConfig(256, 1, "ema")).initialise_(0, nodes).kernels(torch.tensor([1, 8, 64, 512]))
    assert kernel.numpy() / 0.02**2 == pytest.approx(rms_kernel(nodes, [1, 8, 64, 512]), rel=0.02)


@pytest.mark.parametrize("name", ["none", "ema", "lru", "clamp"])
def test_branch_is_the_recurrence_it_says(name: str) -> None:
    """SSM(u) against the recurrence written as a loop in float64."""
    config = SSMConfig(8, 1, name)
    ssm = build(config).blocks[0].ssm.double()
    u = torch.randn(2, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    a = torch.exp(-ssm.log_rate.exp())
    clamp = (-a.log()).clamp(max=1)
    factor = {"none": torch.ones_like(a), "ema": 1 - a, "lru": (1 - a * a).sqrt(), "clamp": clamp}[name]
    state, outputs = torch.zeros(2, 8, dtype=torch.float64), []
    for t in range(9):
        state = a * state + factor * (u[:, t] @ ssm.B.weight.T)
        outputs.append(state @ ssm.C_proj.weight.T + ssm.C_proj.bias + ssm.D * u[:, t])
    assert torch.allclose(ssm(u)[0], torch.stack(outputs, 1), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["none", "ema", "lru", "clamp"])
def test_gain_of_the_model_is_the_gain_of_the_nodes(name: str) -> None:
    rates = torch.logspace(-6, 1, 50, dtype=torch.float64)
    assert torch.allclose(input_gain(rates, name), torch.from_numpy(gain_at(rates.numpy(), name)), rtol=1e-14)


def test_nodes_of_another_gain_are_refused() -> None:
    with pytest.raises(ValueError, match="nodes assume gain 'ema'"):
        SSM(SSMConfig(8, 1)).initialise_(0, place(8, gain="ema"))
    with pytest.raises(ValueError, match="nodes has 4 channels"):
        SSM(SSMConfig(8, 1)).initialise_(0, place(4))


@pytest.mark.parametrize("field", ["dim", "layers", "patch", "gain", "mode"])
def test_bad_configuration_names_the_field(field: str) -> None:
    bad = "other" if field in ("gain", "mode") else 0
    with pytest.raises(ValueError, match=f"{field} must be"):
        dataclasses.replace(SSMConfig(), **{field: bad})


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0)])
@pytest.mark.parametrize("mode", ["causal", "published"])
@pytest.mark.parametrize("patch", [1, 3])
def test_no_texts_and_no_bytes_have_logits_of_their_shape(shape: tuple[int, int], mode: str, patch: int) -> None:
    model = build(SSMConfig(16, 2, patch=patch, mode=mode))
    inputs = torch.zeros(shape, dtype=torch.long)
    logits = model(inputs)
    assert logits.shape == (*shape, 256)
    logits.sum().backward()
    if model.config.causal:
        assert model.resume(inputs, model.initial_state(shape[0]))[0].shape == (*shape, 256)
