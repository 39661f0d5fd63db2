"""Coordinate checks: muP is flat in width, the standard parametrisations are not; signals through the blocks."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from plkernel.analysis.trained.coordinates import Coordinates
from plkernel.init_command.options import arm_of, filled, model_of, spec_of
from plkernel.models.init.coordinate_check import changes, coordinate_check, propagation, stream
from plkernel.models.init.plan import Plan
from plkernel.models.words import ModelKind
from plkernel.training.evaluate import residual_stream

LICENSE = Path(__file__).parents[3] / "LICENSE"
FAST = (64, 128, 256, 512)
QUICK = (32, 64, 128, 256)
WHOLE = (64, 128, 256, 512, 1024)
ZERO = ("zero_readout=1",)
RATE = 2**-10


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def windows(batch: int = 4, context: int = 64) -> Tensor:
    """English that stays as it is, (batch, context + 1)."""
    data = np.frombuffer(LICENSE.read_bytes(), np.uint8)
    rows = np.stack([data[2800 * i : 2800 * i + context + 1] for i in range(batch)])
    return torch.from_numpy(rows.astype(np.int64))


def checked(
    kind: ModelKind, scheme: str, options: tuple[str, ...], widths: tuple[int, ...], rate: float = RATE, **other: Any
) -> Coordinates:
    arm = arm_of(scheme, options)
    return coordinate_check(
        lambda width, seed: filled(spec_of(kind, width, 2), arm, seed), windows(), widths, learning_rate=rate, **other
    )


def slopes(found: Coordinates) -> dict[str, float]:
    return {name: found.slope(name).value for name in found.names}


def is_flat(found: Coordinates) -> bool:
    return {found.slope(name).verdict for name in found.names} == {"flat"}


# Megatron's head cannot start at zero: its random part falls in width, so its rate is one at which training outweighs.
MUP: list[tuple[str, tuple[str, ...], float]] = [
    ("mup_table8", ZERO, RATE),
    ("mup_table3", ZERO, RATE),
    ("megatron_mup", ("base_width=64",), 4 * RATE),
]
STANDARD = ["sp_torch_default", "transformers_default"]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "options", "rate"), MUP)
def test_mup_is_flat_in_width(scheme: str, options: tuple[str, ...], rate: float) -> None:
    """Every activation of an SSM moves as far at width 1024 as at 64, slope within 0.1; so do its logits."""
    found = checked("ssm", scheme, options, WHOLE, rate)
    assert is_flat(found), slopes(found)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", STANDARD)
def test_the_standard_parametrisations_fail(scheme: str) -> None:
    """The same check: branches, stream and logits grow, by 0.4 or more."""
    found = slopes(checked("ssm", scheme, (), WHOLE))
    assert min(value for name, value in found.items() if name != "embedding") > 0.4, found


def test_mup_is_flat_and_the_standard_parametrisation_is_not() -> None:
    """The same on fewer widths: two schemes that differ in nothing but scales and rates.

    Eight seeds: of four, feed-forward layers as narrow as these stray to a slope of 0.17 on half of all texts.
    """
    assert is_flat(mup := checked("ssm", "mup_table8", ZERO, QUICK, seeds=8)), slopes(mup)
    standard = slopes(checked("ssm", "sp_torch_default", (), QUICK, seeds=1))
    assert min(value for name, value in standard.items() if name != "embedding") > 0.3, standard


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rwkv5", "rwkv6"])
def test_mup_is_flat_in_an_rwkv(kind: ModelKind) -> None:
    """With low-rank maps at the rate of a head and GroupNorm as it is; standard and official schemes grow."""
    assert is_flat(mup := checked(kind, "mup_table8", ZERO, WHOLE, seeds=2)), slopes(mup)
    standard = slopes(checked(kind, "sp_torch_default", (), FAST, seeds=8))
    assert min(value for name, value in standard.items() if name != "embedding") > 0.35, standard
    official = slopes(checked(kind, "rwkv_blinkdl", (), FAST, seeds=2))
    assert min(official["ffn 0"], official["ffn 1"]) > 0.6, official


@pytest.mark.slow
def test_the_spectral_rates_for_adam_are_flat_and_those_for_sgd_are_not() -> None:
    """The rule for Adam, with the paper's random head; that for SGD under Adam, as nanotron has it, grows."""
    assert is_flat(found := checked("ssm", "spectral", (), WHOLE, seeds=4)), slopes(found)
    nanotron = slopes(checked("ssm", "nanotron_spectral_mup", (), FAST, seeds=1))
    assert min(value for name, value in nanotron.items() if name.startswith(("mixer", "ffn", "block"))) > 0.3, nanotron


@pytest.mark.parametrize("scheme", ["mup_table8", pytest.param("mup_table3", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_mup_for_sgd_is_flat_under_sgd(scheme: str) -> None:
    """The other column of the tables; under SGD the rates for Adam leave wide models where they are."""
    found = checked("ssm", scheme, ("sgd=1", *ZERO), FAST, 0.03, seeds=2)
    assert is_flat(found), slopes(found)
    arm = arm_of(scheme, ZERO)

    def wrong(width: int, seed: int) -> tuple[nn.Module, Plan]:
        model, plan = filled(spec_of("ssm", width, 2), arm, seed)
        return model, replace(plan, optimizer="sgd")

    slowed = slopes(coordinate_check(wrong, windows(), FAST, learning_rate=0.03, seeds=1))
    assert max(value for name, value in slowed.items() if name.startswith("block")) < -0.5, slowed


def test_logits_of_a_random_head_fall_until_training_outweighs() -> None:
    """muP with a random head: x_0 as width**-0.5, and the change between that and flat; never growing."""
    found = checked("ssm", "mup_table8", (), QUICK, seeds=2)
    start = np.polyfit(np.log(QUICK), np.log(found.start("logits")), 1)[0]
    assert start == pytest.approx(-0.5, abs=0.05)
    assert -0.5 < found.slope("logits").value < 0.1
    assert all(abs(value) <= 0.1 for name, value in slopes(found).items() if name.startswith("block"))


def test_changes_are_those_of_the_model_itself() -> None:
    """Against a loop by hand: logits after two steps of plain Adam, less those before."""
    spec, arm = spec_of("ssm", 32, 1), arm_of("sp_torch_default", ())
    data = windows(2, 16)
    model = model_of(spec, arm, 0)
    found = changes(model, torch.optim.Adam(model.parameters(), 1e-2), data, 2)
    assert list(found) == ["embedding", "mixer 0", "ffn 0", "block 0", "logits"]
    again = model_of(spec, arm, 0)
    optimizer = torch.optim.Adam(again.parameters(), 1e-2)
    first = again(data[:, :-1]).detach()
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(again(data[:, :-1]).flatten(0, 1), data[:, 1:].flatten()).backward()
        optimizer.step()
    expected = (again(data[:, :-1]) - first).detach().square().mean().sqrt()
    assert found["logits"] == [
        pytest.approx(float(first.square().mean().sqrt())),
        pytest.approx(found["logits"][1]),
        pytest.approx(float(expected), rel=1e-5),
    ]
    assert not [hooks for module in model.modules() for hooks in module._forward_hooks]


@pytest.mark.parametrize("kind", ["rwkv5", "rwkv6"])
def test_blocks_that_add_nothing_pass_everything_on(kind: ModelKind) -> None:
    """Output projections of zero: the stream and its gradient are the same before every block."""
    arm = arm_of("rwkv_blinkdl", ())
    found = propagation(lambda seed: model_of(spec_of(kind, 64, 5), arm, seed), windows(), seeds=2)
    assert found.depth == 5
    assert found.growth == (pytest.approx(1, abs=1e-12), pytest.approx(1, abs=1e-12))
    assert found.backward[0] == pytest.approx(1, abs=0.03)


def test_post_norm_holds_the_stream_and_u_mup_its_variance() -> None:
    normed = stream(model_of(spec_of("ssm", 64, 6), arm_of("deepnorm_decoder", ()), 0), windows()[:, :-1], 0)
    assert normed.forward[1:] == pytest.approx([1.0] * 6, abs=1e-3)
    unit = stream(model_of(spec_of("rwkv6", 64, 6), arm_of("u_mup", ()), 0), windows()[:, :-1], 0)
    assert unit.forward == pytest.approx([1.0] * 7, abs=0.25)
    grown = stream(model_of(spec_of("ssm", 64, 6), arm_of("transformers_mamba", ()), 0), windows()[:, :-1], 0)
    assert grown.growth[0] > 1.2


def test_forward_is_what_training_reports() -> None:
    model = model_of(spec_of("rwkv6", 64, 4), arm_of("sp_torch_default", ()), 0)
    inputs = windows()[:, :-1]
    with residual_stream(model) as growth, torch.no_grad():
        model(inputs)
    assert stream(model, inputs, 0).forward == pytest.approx(growth.amplification().rms, rel=1e-6)


@pytest.mark.slow
def test_backward_is_the_gradient_by_finite_differences() -> None:
    """Float64: what a small change of the embedding does to <noise, stream after the last block>."""
    model = model_of(spec_of("ssm", 8, 3), arm_of("sp_torch_default", ()), 0).double()
    inputs = torch.tensor([[3, 5, 7]])
    found = stream(model, inputs, seed=1)
    noise = torch.randn((1, 3, 8), generator=torch.Generator().manual_seed(1)).double()

    @torch.no_grad()
    def value(x: Tensor) -> float:
        for block in model.blocks:
            x = block(x)[0]
        return float((noise * x).sum())

    x, step = model.embedding(inputs).detach(), 1e-6
    basis = torch.eye(x.numel(), dtype=torch.float64).view(-1, *x.shape) * step
    gradient = torch.tensor([(value(x + e) - value(x - e)) / (2 * step) for e in basis])
    assert found.backward[0] == pytest.approx(float(gradient.square().mean().sqrt()), rel=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"widths": (64, 64)}, "widths must be at least two, got 64, 64"),
        ({"widths": ()}, "widths must be at least two, got none"),
        ({"steps": 0}, "steps must be positive, got 0"),
        ({"seeds": -1}, "seeds must be positive, got -1"),
        ({"rate": 0.0}, "learning_rate must be positive, got 0.0"),
    ],
)
def test_refusals(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked("ssm", "gpt2", (), **{"widths": (8, 16), **changed})
