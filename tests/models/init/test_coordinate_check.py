"""Coordinate checks: muP is flat in width, the standard parametrisations are not; signals through the blocks."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from plkernel.commands.init import condition_of, filled
from plkernel.models import ModelKind
from plkernel.models.init.coordinate_check import (
    FLAT,
    Propagation,
    changes,
    coordinate_check,
    propagation,
    slope_of,
    stream,
)
from plkernel.models.init.plan import Plan

pytestmark = pytest.mark.usefixtures("one_thread")
LICENSE = Path(__file__).parents[3] / "LICENSE"
QUICK, FAST, WHOLE = (32, 64, 128, 256), (64, 128, 256, 512), (64, 128, 256, 512, 1024)
ZERO = ("zero_readout=1",)
RATE = 2**-10


def windows(batch: int = 4, context: int = 64) -> Tensor:
    """English that stays as it is, (batch, context + 1)."""
    data = np.frombuffer(LICENSE.read_bytes(), np.uint8)
    rows = np.stack([data[2800 * i : 2800 * i + context + 1] for i in range(batch)])
    return torch.from_numpy(rows.astype(np.int64))


def model_of(kind: ModelKind, dim: int, layers: int, scheme: str, seed: int = 0) -> nn.Module:
    return filled(condition_of(scheme, kind, dim, layers, None), seed, windows()[:, :-1])[0]


def checked(
    kind: ModelKind, scheme: str, options: tuple[str, ...], widths: tuple[int, ...], rate: float = RATE, **other: Any
) -> dict[str, float]:
    """The slopes of all activations."""

    def make(width: int, seed: int) -> tuple[nn.Module, Plan]:
        return filled(condition_of(scheme, kind, width, 2, None, options), seed, windows()[:, :-1])

    done = coordinate_check(make, windows(), widths, learning_rate=rate, **other)
    return {name: slope_of(widths, values).value for name, values in done.items()}


def is_flat(slopes: dict[str, float]) -> bool:
    return max(map(abs, slopes.values())) <= FLAT


def least(slopes: dict[str, float]) -> float:
    """The least slope of branches, stream and logits."""
    return min(value for name, value in slopes.items() if name != "embedding")


# Megatron's head cannot start at zero: its random part falls in width, so its rate is one at which training outweighs.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "options", "rate"),
    [("mup_table8", ZERO, RATE), ("mup_table3", ZERO, RATE), ("megatron_mup", ("base_width=64",), 4 * RATE)],
)
def test_mup_is_flat_in_width(scheme: str, options: tuple[str, ...], rate: float) -> None:
    """Every activation of an SSM moves as far at width 1024 as at 64, slope within 0.1; so do its logits."""
    assert is_flat(done := checked("ssm", scheme, options, WHOLE, rate)), done


def test_mup_is_flat_and_the_standard_parametrisation_is_not() -> None:
    """The same on fewer widths: two schemes that differ in nothing but scales and rates.

    Eight seeds: of four, feed-forward layers as narrow as these stray to a slope of 0.17 on half of all texts.
    """
    assert is_flat(mup := checked("ssm", "mup_table8", ZERO, QUICK, seeds=8)), mup
    assert least(checked("ssm", "sp_torch_default", (), QUICK, seeds=1)) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rwkv5", "rwkv6"])
def test_mup_is_flat_in_an_rwkv(kind: ModelKind) -> None:
    """With low-rank maps at the rate of a head and GroupNorm as it is; standard and official schemes grow."""
    assert is_flat(mup := checked(kind, "mup_table8", ZERO, WHOLE, seeds=2)), mup
    assert least(checked(kind, "sp_torch_default", (), FAST, seeds=8)) > 0.35
    official = checked(kind, "rwkv_blinkdl", (), FAST, seeds=2)
    assert min(official["ffn 0"], official["ffn 1"]) > 0.6, official


@pytest.mark.slow
def test_the_spectral_rates_for_adam_are_flat_and_those_for_sgd_are_not() -> None:
    """The rule for Adam, with the paper's random head; that for SGD under Adam, as nanotron has it, grows."""
    assert is_flat(done := checked("ssm", "spectral", (), WHOLE, seeds=4)), done
    nanotron = checked("ssm", "nanotron_spectral_mup", (), FAST, seeds=1)
    assert min(value for name, value in nanotron.items() if name.startswith(("mixer", "ffn", "block"))) > 0.3, nanotron


def test_changes_are_those_of_the_model_itself() -> None:
    """Against a loop by hand: logits after two steps of plain Adam, less those before."""
    data, model, again = windows(2, 16), *(model_of("ssm", 32, 1, "sp_torch_default") for _ in range(2))
    moved = changes(model, torch.optim.Adam(model.parameters(), 1e-2), data, 2)
    assert list(moved) == ["embedding", "mixer 0", "ffn 0", "block 0", "logits"]
    optimizer = torch.optim.Adam(again.parameters(), 1e-2)
    first = again(data[:, :-1]).detach()
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(again(data[:, :-1]).flatten(0, 1), data[:, 1:].flatten()).backward()
        optimizer.step()
    last = (again(data[:, :-1]) - first).detach()
    assert moved["logits"][0] == pytest.approx(float(first.square().mean().sqrt()))
    assert moved["logits"][2] == pytest.approx(float(last.square().mean().sqrt()), rel=1e-5)
    assert not [hooks for module in model.modules() for hooks in module._forward_hooks]


@pytest.mark.parametrize("kind", ["rwkv5", "rwkv6"])
def test_blocks_that_add_nothing_pass_everything_on(kind: ModelKind) -> None:
    """Output projections of zero: the stream and its gradient are the same before every block."""
    done = propagation(lambda seed: model_of(kind, 64, 5, "rwkv_blinkdl", seed), windows(), seeds=2)
    assert done.growth == (pytest.approx(1, abs=1e-12), pytest.approx(1, abs=1e-12))
    assert done.backward[0] == pytest.approx(1, abs=0.03)


def test_post_norm_holds_the_stream_and_u_mup_its_variance() -> None:
    inputs = windows()[:, :-1]
    normed = stream(model_of("ssm", 64, 6, "deepnorm_decoder"), inputs, 0)
    assert normed.forward[1:] == pytest.approx([1.0] * 6, abs=1e-3)
    assert stream(model_of("rwkv6", 64, 6, "u_mup"), inputs, 0).forward == pytest.approx([1.0] * 7, abs=0.25)
    assert stream(model_of("ssm", 64, 6, "transformers_mamba"), inputs, 0).growth[0] > 1.2


@pytest.mark.slow
def test_backward_is_the_gradient_by_finite_differences() -> None:
    """Float64: what a small change of the embedding does to <noise, stream after the last block>."""
    model, inputs = model_of("ssm", 8, 3, "sp_torch_default").double(), torch.tensor([[3, 5, 7]])
    noise = torch.randn((1, 3, 8), generator=torch.Generator().manual_seed(1)).double()

    @torch.no_grad()
    def value(x: Tensor) -> float:
        for block in model.blocks:
            x = block(x)[0]
        return float((noise * x).sum())

    x, step = model.embedding(inputs).detach(), 1e-6
    basis = torch.eye(x.numel(), dtype=torch.float64).view(-1, *x.shape) * step
    gradient = torch.tensor([(value(x + e) - value(x - e)) / (2 * step) for e in basis])
    expected = pytest.approx(float(gradient.square().mean().sqrt()), rel=1e-6)
    assert stream(model, inputs, seed=1).backward[0] == expected


def test_slopes_of_power_laws_are_their_exponents() -> None:
    def slope(*seeds: float, sizes: tuple[float, ...] = (0.5, 2.0)) -> Any:
        """Of seeds that change exactly as size * width**exponent."""
        return slope_of(FAST, np.array([[[1.0, s * w**e] for s, e in zip(sizes, seeds, strict=True)] for w in FAST]))

    for name, exponent in (("flat", 0.09), ("grows", 0.11), ("shrinks", -0.5)):
        assert slope(exponent, exponent) == (pytest.approx(exponent), pytest.approx(0, abs=1e-12), name)
    assert slope(0.1, 0.3)[:2] == (pytest.approx(0.2), pytest.approx(0.1))
    for value, verdict in ((0.0, "does not move"), (math.nan, "diverges"), (math.inf, "diverges")):
        assert slope_of((1, 2), np.array([[[value]], [[1.0]]])).verdict == verdict


def test_growth_per_block_is_a_geometric_mean() -> None:
    done = Propagation((1.0, 5.0, 4.0), (9.0, 7.0, 1.0))
    assert done.growth == (pytest.approx(2.0), pytest.approx(3.0))
    assert all(math.isnan(value) for value in Propagation((0.0, 1.0), (1.0, 0.0)).growth)
