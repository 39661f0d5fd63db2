"""Eagle, Finch and Goose byte by byte, window by window and at once; what no prediction sees; dropout and ties."""

import dataclasses

import pytest
import torch
from rwkv_loops import EAGLE_AND_FINCH, EAGLE_AND_FINCH_VARIANTS, GOOSE, GOOSE_VARIANTS, build, some_bytes

from plkernel.models.rwkv import RWKV, RWKVConfig, RWKVState
from plkernel.models.rwkv7 import RWKV7Config

pytestmark = pytest.mark.usefixtures("one_thread")
Config = RWKVConfig | RWKV7Config
ALL = [*EAGLE_AND_FINCH, *EAGLE_AND_FINCH_VARIANTS, *GOOSE, *GOOSE_VARIANTS]
ONE_EACH = [*EAGLE_AND_FINCH[:2], GOOSE[0]]


def run_recurrent(model: RWKV, inputs: torch.Tensor) -> tuple[torch.Tensor, RWKVState]:
    state, found = model.initial_state(inputs.shape[0]), []
    for t in range(inputs.shape[1]):
        logits, state = model.step(inputs[:, t], state)
        found.append(logits)
    return torch.stack(found, 1), state


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 5e-14), pytest.param(torch.float32, 1.2e-5, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("config", ALL, ids=str)
def test_recurrent_mode_agrees_with_parallel_mode(config: Config, dtype: torch.dtype, tolerance: float) -> None:
    model, inputs = build(config).to(dtype), some_bytes(3, 40)
    with torch.no_grad():
        parallel = model(inputs)
        recurrent, _ = run_recurrent(model, inputs)
    assert recurrent.dtype == dtype
    assert (parallel - recurrent).abs().max() < tolerance


@pytest.mark.parametrize("config", ONE_EACH, ids=str)
def test_windows_with_carried_state_are_one_text(config: Config) -> None:
    model, inputs = build(config), some_bytes(2, 31)
    with torch.no_grad():
        state, found = model.initial_state(2), []
        for window in inputs.split([1, 17, 13], dim=1):
            logits, state = model.resume(window, state)
            found.append(logits)
        whole, (_, end) = model(inputs), run_recurrent(model, inputs)
        assert (torch.cat(found, 1) - whole).abs().max() < 5e-14
        forgotten, _ = model.resume(inputs[:, 18:], model.initial_state(2))
    assert (forgotten - whole[:, 18:]).abs().max() > 1e-3, "the state must matter, or the test cannot fail"
    for ours, theirs in zip(state.layers, end.layers, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.shape == b.shape, "constant in the number of bytes"
            assert torch.allclose(a, b, rtol=0, atol=4e-14)


@pytest.mark.parametrize("config", ONE_EACH[1:], ids=str)
def test_gradients_flow_through_the_carried_state(config: Config) -> None:
    """The loss of a second window has the gradients of the same loss in one window."""
    model, inputs = build(config), some_bytes(2, 12)
    model(inputs)[:, 6:].square().sum().backward()
    whole = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    _, state = model.resume(inputs[:, :6], model.initial_state(2))
    model.resume(inputs[:, 6:], state)[0].square().sum().backward()
    rounding = 1e-13 if isinstance(config, RWKV7Config) else 1e-14
    for name, parameter in model.named_parameters():
        assert whole[name].abs().max() > 0, name
        assert (parameter.grad - whole[name]).abs().max() <= rounding * whole[name].abs().max(), name


@pytest.mark.parametrize("config", ALL, ids=str)
def test_no_prediction_sees_a_later_byte_by_perturbation(config: Config) -> None:
    model, inputs = build(config), some_bytes(2, 13)
    with torch.no_grad():
        before = model(inputs)
        for j in range(1, 13):
            changed = inputs.clone()
            changed[:, j] = (changed[:, j] + 128) % 256
            after = model(changed)
            assert torch.equal(after[:, :j], before[:, :j])
            assert not torch.equal(after[:, j], before[:, j])


@pytest.mark.parametrize("config", ALL, ids=str)
def test_no_prediction_sees_a_later_byte_by_gradient(config: Config) -> None:
    model = build(config)
    embedded = model.emb(some_bytes(1, 13)).detach().requires_grad_()
    logits = model.decode(embedded)
    for t in range(13):
        (gradient,) = torch.autograd.grad(logits[0, t].square().sum(), embedded, retain_graph=True)
        assert (gradient[0, : t + 1].abs().amax(1) > 0).all(), "every earlier byte acts, or the test cannot fail"
        assert gradient[0, t + 1 :].abs().sum() == 0


@pytest.mark.parametrize("config", [EAGLE_AND_FINCH_VARIANTS[1], GOOSE_VARIANTS[1]], ids=str)
def test_a_tied_head_is_the_embedding(config: Config) -> None:
    """One matrix that is counted, learned and saved once, under both official names, and stays one when it moves."""
    model = build(config).float()
    assert model.head.weight is model.emb.weight
    assert "head.weight" not in dict(model.named_parameters())
    assert torch.equal(model.state_dict()["head.weight"], model.state_dict()["emb.weight"])
    model(some_bytes(1, 5)).square().sum().backward()
    bytes_read = some_bytes(1, 5).unique()
    others = torch.ones(256, dtype=torch.bool).index_fill(0, bytes_read, False)
    assert model.emb.weight.grad[others].abs().min() > 0, "through the head, every byte's row learns"


@pytest.mark.parametrize("config", ONE_EACH, ids=str)
def test_dropout_is_on_the_embedding_and_after_every_sum(config: Config) -> None:
    """In training a share p of the stream is zero there, and the rest is scaled; in evaluation nothing happens."""
    torch.manual_seed(0)  # of the masks
    model = build(dataclasses.replace(config, dropout=0.25))
    plain = build(config)
    inputs, seen = some_bytes(4, 50), []
    hooks = [
        module.register_forward_hook(lambda _module, before, after: seen.append((before[0], after)))
        for module in model.modules()
        if isinstance(module, torch.nn.Dropout)
    ]
    with torch.no_grad():
        model.train()(inputs)
        assert len(seen) == 1 + 2 * 3
        assert torch.equal(seen[0][0], model.emb(inputs)), "before ln0"
        for before, after in seen:
            dropped = after == 0
            assert dropped.double().mean().item() == pytest.approx(0.25, abs=0.02)
            assert torch.allclose(after[~dropped], before[~dropped] / 0.75, rtol=1e-15)
        for hook in hooks:
            hook.remove()
        assert torch.equal(model.eval()(inputs), plain(inputs))


def test_no_dropout_draws_no_random_number() -> None:
    model, before = build(EAGLE_AND_FINCH[0]).train(), torch.get_rng_state()
    model(some_bytes(1, 3))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0)])
@pytest.mark.parametrize("config", [RWKVConfig(5, 16, 2, 8), RWKVConfig(6, 16, 2, 8), RWKV7Config(16, 2, 8)], ids=str)
def test_no_texts_and_no_bytes_have_logits_of_their_shape(shape: tuple[int, int], config: Config) -> None:
    model = build(config)
    inputs = torch.zeros(shape, dtype=torch.long)
    logits = model(inputs)
    assert logits.shape == (*shape, 256)
    logits.sum().backward()
    state = model.initial_state(shape[0])
    assert model.resume(inputs, state)[0].shape == (*shape, 256)


def test_no_bytes_leave_the_state_as_it_is() -> None:
    model = build(RWKVConfig(6, 16, 2, 8))
    _, state = model.resume(torch.tensor([[1, 2, 3]]), model.initial_state(1))
    assert model.resume(torch.zeros(1, 0, dtype=torch.long), state)[1] == state
