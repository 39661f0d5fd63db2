"""Losses with a stored state, against a loop in float64 and against models in one pass."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from plkernel.analysis.nodes import place
from plkernel.decays.rounding import DTYPES
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.ssm import SSM, SSMConfig, input_gain
from plkernel.models.state import State
from plkernel.probing.stored_states import (
    StateSteps,
    Storage,
    _store,
    rounded,
    stepped,
    stored_losses,
)
from plkernel.training.evaluate import token_losses
from plkernel.training.foreign import without_gpu_code

STEPS = 40


def windows_of(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, STEPS + 1), generator=generator)


def drawn_(model: nn.Module) -> Any:
    """All parameters but the rates of an SSM at random, so that no output is zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if not name.endswith("log_rate"):
                values.copy_(0.3 * torch.randn(values.shape, generator=generator))
    return model.eval()


def an_ssm(layers: int = 1) -> Any:
    model = SSM(SSMConfig(dim=16, layers=layers, gain="ema"))
    model.place_(place(16, longest=2000.0, gain="ema"))
    return drawn_(model)


def a_goose() -> Any:
    model = RWKV7(RWKV7Config(dim=16, layers=2, head_size=8))
    return drawn_(model)


def a_mamba() -> Any:
    pytest.importorskip("transformers")
    from plkernel.models.mamba2 import mamba2

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 8}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return mamba2({**sizes, "state_size": 8, "n_groups": 1, "chunk_size": 16}).eval()


def a_bamba() -> Any:
    """Mamba-2 and attention with rotary positions, which it counts from 0 unless they are given."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 256,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "attn_layer_indices": [1],
        "pad_token_id": 0,
    }
    with without_gpu_code():
        model = transformers.BambaForCausalLM(transformers.BambaConfig(**sizes)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for values in model.parameters():
            if values.dim() > 1:
                values.copy_(0.6 * torch.randn(values.shape, generator=generator))
    return model


MODELS = {"ssm": lambda: an_ssm(2), "rwkv7": a_goose, "mamba2": a_mamba, "bamba": a_bamba}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3"])
def test_losses_are_those_of_a_loop_in_float64(dtype: str) -> None:
    """s <- round(a s + g B u), where the output of a step reads s before it is rounded."""
    model = an_ssm().double()
    windows = windows_of(3)
    found = stored_losses(model, windows, [Storage(dtype)])
    (block,) = model.blocks
    rate = torch.exp(block.ssm.log_rate)
    state = torch.zeros(3, 16, dtype=torch.float64)
    expected = []
    with torch.no_grad():
        for place_in_text in range(STEPS):
            x = model.embedding(windows[:, place_in_text])
            u = block.join1.read(x, block.norm1)
            state = torch.exp(-rate) * state + input_gain(rate, "ema") * block.ssm.B(u)
            out = block.ssm.C_proj(state) + block.ssm.D * u
            x = block.join1.add(x, out, block.norm1)
            x = block.join2.add(x, block.mlp(block.join2.read(x, block.norm2)), block.norm2)
            log_p = torch.log_softmax(model.head(model.norm(x)), -1)
            target = windows[:, place_in_text + 1, None]
            expected.append(-log_p.gather(1, target)[:, 0] / math.log(2))
            state = state.to(DTYPES[dtype]).double()
    # Rounding the loss to float32, which is at most 2**-24 of it, and ties that float64 decides.
    assert found[0] == pytest.approx(torch.stack(expected, 1).numpy(), rel=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_state_in_float32_gives_the_losses_of_one_pass(name: str) -> None:
    model = MODELS[name]()
    windows = windows_of(2)
    found = stored_losses(model, windows, [Storage("float32")])[0]

    def predict(tokens: Tensor) -> Tensor:
        output = model(tokens)
        logits: Tensor = getattr(output, "logits", output)
        return logits

    # Sums over steps in another order: some hundred roundings of 2**-24 of numbers around 10.
    assert np.abs(found - token_losses(predict, windows, 2)).max() < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_storages_do_not_touch_each_other(name: str) -> None:
    model = MODELS[name]()
    windows = windows_of(2)
    ways = [Storage("float8_e4m3"), Storage("float32"), Storage("bfloat16", stochastic=True)]
    together = stored_losses(model, windows, ways)
    for number, way in enumerate(ways[:2]):
        alone = stored_losses(model, windows, [way])[0]
        assert np.abs(together[number] - alone).max() < 1e-4
    assert np.abs(together[0] - together[1]).max() > 1e-3
    assert np.abs(together[2] - together[1]).max() > 1e-5


def test_stochastic_rounding_depends_on_the_seed_alone() -> None:
    way = [Storage("bfloat16", stochastic=True)]
    model = an_ssm()
    first, again, other = (stored_losses(model, windows_of(2), way, seed) for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


def test_only_the_recurrence_is_rounded() -> None:
    reading = stepped(a_goose(), 2)
    assert isinstance(reading, StateSteps)
    reading.step(windows_of(2)[:, 0])
    assert [tuple(state.shape) for state in reading.states()] == [(2, 2, 8, 8)] * 2
    for state in reading.states():
        state.zero_()
    tensors = reading.state.tensors
    zero = {name for name, values in tensors.items() if not values.any()}
    assert zero == {"blocks.0.wkv", "blocks.1.wkv"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e5m2"])
def test_stochastic_rounding_gives_a_neighbour_and_the_number_on_the_average(dtype: str) -> None:
    numbers = torch.tensor([1.0 + 1 / 3, -0.7, 3e-8, 6e-5, 100.3, -1.0, 0.0], dtype=torch.float64)
    many = numbers.repeat(20_000, 1)
    found = rounded(many, dtype, torch.Generator().manual_seed(0))
    kind = DTYPES[dtype]
    for number, column in zip(numbers, found.T, strict=True):
        values = column.unique()
        assert len(values) <= 2
        assert (values.to(kind).double() == values).all()
        assert values.min() <= number <= values.max()
        error = float(values.max() - values.min()) / 2 / math.sqrt(len(column))
        assert abs(float(column.mean() - number)) <= 5 * error


def test_rounding_keeps_what_a_type_has_and_what_is_not_finite() -> None:
    held = torch.tensor([1.0, -0.5, 2.0**-24, 0.0, math.inf, -math.inf])
    for generator in (None, torch.Generator().manual_seed(0)):
        assert (rounded(held, "float16", generator) == held).all()
        assert rounded(torch.tensor([math.nan]), "float16", generator).isnan().all()
        assert rounded(torch.tensor([1e6]), "float16", generator).isinf().all()


@pytest.mark.parametrize("generator", [None, torch.Generator().manual_seed(0)])
def test_a_type_without_infinity_ends_at_its_largest_number(
    generator: torch.Generator | None,
) -> None:
    """Which is 448 in float8_e4m3, whatever a cast of torch makes of larger ones."""
    numbers = torch.tensor([449.0, -500.0, 1e9, 448.0, 447.9, math.inf, -math.inf, math.nan])
    found = rounded(numbers, "fp8", generator).tolist()
    assert found[:4] == [448.0, -448.0, 448.0, 448.0]
    assert found[4] in ([448.0] if generator is None else [416.0, 448.0])
    assert found[5:7] == [math.inf, -math.inf]
    assert math.isnan(found[7])


def test_models_without_a_recurrent_state_are_refused() -> None:
    windows = windows_of(1)
    way = [Storage("bf16")]
    with pytest.raises(
        ValueError, match=r"model must take a state or a cache, got Linear.*(?<!module)$"
    ):
        stored_losses(nn.Linear(2, 2), windows, way)
    with pytest.raises(ValueError, match=r"got DataParallel, .*; give .*, model\.module$"):
        stored_losses(nn.DataParallel(an_ssm()), windows, way)
    patched = SSM(SSMConfig(dim=16, layers=1, patch=2))
    with pytest.raises(ValueError, match="model must read byte by byte, got patches of 2 bytes"):
        stored_losses(patched, windows, way)
    with pytest.raises(ValueError, match="storages must name one way to store the state or more"):
        stored_losses(an_ssm(), windows, [])
    with pytest.raises(ValueError, match="state_dtype must be one of float32, bfloat16"):
        Storage("int8")
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 256}
    attention = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    with pytest.raises(ValueError, match="model must keep recurrent states in its cache"):
        stored_losses(attention, windows, way)
    small = {"vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 3, "intermediate_size": 16}
    heads = {"num_attention_heads": 2, "lru_width": 16, "pad_token_id": 0}
    within = transformers.RecurrentGemmaForCausalLM(
        transformers.RecurrentGemmaConfig(**small, **heads)
    )
    with pytest.raises(ValueError, match="model must return its cache, got a CausalLMOutput"):
        stored_losses(within, windows, way)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (SSM, "model must be a model, got the class SSM; build one of it"),
        (len, "model must be a torch.nn.Module, got builtin_function_or_method"),
    ],
)
def test_what_is_no_model_is_refused(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stored_losses(model, windows_of(1), [Storage("bf16")])


@pytest.mark.parametrize("storages", ["bf16", ["bf16"], Storage("bf16"), None, [None]])
def test_what_is_no_list_of_storages_is_refused(storages: Any) -> None:
    with pytest.raises(ValueError, match="storages must be a list of Storage, such as"):
        stored_losses(an_ssm(), windows_of(1), storages)


def test_a_way_to_store_has_a_name_and_rounds_to_nearest_unless_asked() -> None:
    assert Storage("bf16") == Storage("bfloat16", stochastic=False)
    assert Storage("bf16").name == "bfloat16"
    assert Storage("bf16", stochastic=True).name == "bfloat16, stochastic"


def test_the_seed_is_0_and_a_model_is_in_evaluation_mode() -> None:
    way = [Storage("bfloat16", stochastic=True)]
    model = an_ssm().train()
    assert (
        stored_losses(model, windows_of(1), way) == stored_losses(model, windows_of(1), way, 0)
    ).all()
    assert not model.training


class Counting(nn.Module):
    """Its state is the sum of all tokens; two next ones are equally likely."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.read: list[list[float]] = []

    def initial_state(self, batch: int) -> State:
        return State("counting", {"blocks.0.ssm": torch.zeros(batch)})

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        before = state.tensors["blocks.0.ssm"]
        self.read.append(before.tolist())
        sums = before + tokens[:, -1]
        logits = torch.zeros(len(tokens), tokens.shape[1], 2)
        return logits, State("counting", {"blocks.0.ssm": sums})


def test_each_text_has_its_storage_and_every_step_reads_what_is_stored() -> None:
    """A bfloat16 has 8 bits: 257 becomes 256, and 256 + 1 again; a float16 loses nothing.

    Texts of the first storage come first.
    """
    windows = torch.tensor([[257, 1, 1, 0], [1, 1, 1, 0]])
    model = Counting()
    bits = stored_losses(model, torch.tensor([[1, 1, 1, 0]]).repeat(2, 1), [Storage("bf16")])
    assert bits.shape == (1, 2, 3)
    assert bits == pytest.approx(1.0, rel=1e-6), "two tokens are equally likely"
    sums = windows[:, :2].cumsum(1)
    reading = StateSteps(model, 4)
    for place_in_text in range(2):
        reading.step(windows.repeat(2, 1)[:, place_in_text])
        for state in reading.states():
            _store(state, [Storage("bf16"), Storage("fp16")], 2, torch.Generator())
    assert reading.states()[0].tolist() == [256.0, 2.0, float(sums[0, 1]), 2.0]
    assert model.read[-1] == [256.0, 1.0, 257.0, 1.0]


def test_windows_of_any_integers_are_read() -> None:
    model = an_ssm()
    way = [Storage("bf16")]
    expected = stored_losses(model, windows_of(1), way)
    for kind in (torch.uint8, torch.int32):
        assert (stored_losses(model, windows_of(1).to(kind), way) == expected).all()


def test_what_is_no_window_is_refused() -> None:
    with pytest.raises(ValueError, match=r"windows must be a tensor \(n,T\+1\) of integers"):
        stored_losses(an_ssm(), windows_of(1).float(), [Storage("bf16")])
