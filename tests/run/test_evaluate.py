"""One pass over windows: the same bits per byte, the residual stream measured where it says, both starts as known."""

import math

import pytest
import torch

from plkernel.models.init import initialise_
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.structure import Structure
from plkernel.run.evaluate import diagnose
from plkernel.run.objective import bits_per_byte

CPU = torch.device("cpu")
NAIVE = Structure(norm="rms", tied=True)


def test_one_pass_gives_the_same_bits_per_byte_and_leaves_no_hook() -> None:
    model = initialise_(RWKV(RWKVConfig(6, 16, 2, 8, dropout=0.5, structure=NAIVE)), "rwkv_naive", 0)
    windows = torch.randint(0, 256, (5, 20), generator=torch.Generator().manual_seed(0))
    found = diagnose(model.train(), windows, 2, CPU)
    assert found.bits_per_byte == bits_per_byte(model, windows, 2, CPU)
    assert found.saturation.loss == pytest.approx(found.bits_per_byte * math.log(2), rel=1e-6)
    assert not any(module._forward_hooks for module in model.modules())


def test_amplification_is_measured_where_it_says() -> None:
    """From the norm of the embedding to the output of every block, over all windows, whatever the batch."""
    model = initialise_(RWKV(RWKVConfig(5, 16, 3, 8, structure=NAIVE)), "rwkv_naive", 0)
    windows = torch.randint(0, 256, (5, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x = model.emb(windows[:, :-1])
        streams, state = [model.blocks[0].ln0(x)], model.initial_state(5)
        for block, memory in zip(model.blocks, state.layers, strict=True):
            x, _ = block(x, memory)
            streams.append(x)
    expected = [stream.double().square().mean().sqrt().item() for stream in streams]
    for batch in (2, 5):
        growth = diagnose(model, windows, batch, CPU).amplification
        assert growth is not None
        assert growth.rms == pytest.approx(expected, rel=1e-6)


def test_official_start_adds_nothing_and_predicts_openly() -> None:
    """Zero output matrices: amplification 1 exactly, entropy within 0.13 of ln 256, no saturated position."""
    model = initialise_(RWKV(RWKVConfig(6, 144, 8, 48)), "rwkv_blinkdl", 0)
    windows = torch.randint(0, 256, (4, 65), generator=torch.Generator().manual_seed(0))
    found = diagnose(model, windows, 4, CPU)
    assert found.amplification is not None
    assert set(found.amplification.per_block) == {1.0}
    assert math.log(256) - 0.13 < found.saturation.entropy < math.log(256)
    assert found.saturation.saturated_share == 0


def test_naive_start_copies_the_last_byte() -> None:
    """The tied head reads the embedding itself: logit about 144 for the byte just read, every position saturated."""
    model = initialise_(RWKV(RWKVConfig(6, 144, 8, 48, structure=NAIVE)), "rwkv_naive", 0)
    windows = torch.randint(0, 256, (4, 65), generator=torch.Generator().manual_seed(0))
    found = diagnose(model, windows, 4, CPU)
    with torch.no_grad():
        assert torch.equal(model(windows).argmax(-1), windows)
    assert found.saturation.saturated_share == 1
    assert found.saturation.loss > 15 * math.log(256)
    assert found.amplification is not None
    assert 1.005 < found.amplification.mean < 1.015
