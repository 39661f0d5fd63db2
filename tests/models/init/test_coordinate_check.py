"""Coordinate checks: under muP activations move as far at every width, under standard
parametrisations they do not.

At each width a model takes a few steps of Adam at one base learning rate. With x_0 the coordinates
of an activation at the start and x_t after t steps, the check is the slope of ln rms(x_t - x_0)
against ln width: 0 where learning rates carry over. Source: Tensor Programs V (arXiv 2203.03466),
appendix D.1 and figure 5.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.config.condition import resolve
from plkernel.config.schema import Arm, ModelSpec
from plkernel.models import ModelKind
from plkernel.training.build import plan_of, started

pytestmark = pytest.mark.usefixtures("one_thread")
LICENSE = Path(__file__).parents[3] / "LICENSE"
QUICK = (32, 256)
FAST = (64, 128, 256, 512)
WHOLE = (64, 128, 256, 512, 1024)
ZERO = (("zero_readout", 1),)
RATE = 2**-10
Options = tuple[tuple[str, float], ...]
FLAT = 0.1
# small beside every gradient: an Adam that its eps slows down at large widths would look flat
EPS = 1e-16
PLACES = (
    (r"emb(edding)?", "embedding"),
    (r"blocks\.(\d+)\.(?:ssm|att)", "mixer {}"),
    (r"blocks\.(\d+)\.(?:mlp|ffn)", "ffn {}"),
    (r"blocks\.(\d+)", "block {}"),
    (r"head", "logits"),
)


def windows(batch: int = 4, context: int = 64) -> Tensor:
    """English that stays as it is, (batch, context + 1)."""
    data = np.frombuffer(LICENSE.read_bytes(), np.uint8)
    rows = np.stack([data[2800 * i : 2800 * i + context + 1] for i in range(batch)])
    return torch.from_numpy(rows.astype(np.int64))


def filled(
    kind: ModelKind, dim: int, layers: int, scheme: str, options: Options, seed: int = 0
) -> Any:
    """A filled model and its plan."""
    arm = Arm(scheme=scheme, scheme_options=dict(options))
    condition = resolve(ModelSpec(kind=kind, dim=dim, layers=layers), arm)
    model = started(condition, seed)
    return model, plan_of(model, condition)


def changes(
    model: nn.Module, optimizer: torch.optim.Optimizer, windows: Tensor, steps: int
) -> dict[str, list[float]]:
    """By activation: rms(x_0), then rms(x_t - x_0) for t = 1..steps; the model is trained in
    place.
    """
    inputs = windows[:, :-1]
    targets = windows[:, 1:]
    seen: dict[str, Tensor] = {}
    starts: dict[str, Tensor] = {}
    sizes: dict[str, list[float]] = {}

    def keep(place: str) -> Callable[..., None]:
        return lambda _, args, out: seen.update({place: out[0] if isinstance(out, tuple) else out})

    hooks = [
        module.register_forward_hook(keep(place.format(*match.groups()[-1:])))
        for name, module in model.named_modules()
        for pattern, place in PLACES
        if (match := re.fullmatch(pattern, name))
    ]
    for step in range(steps + 1):
        optimizer.zero_grad()
        logits = model(inputs)
        for name, value in seen.items():
            start = starts.setdefault(name, value.detach())
            sizes.setdefault(name, []).append(rms(value - start if step else value))
        if step < steps:
            F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
            optimizer.step()
    for hook in hooks:
        hook.remove()
    return sizes


def rms(x: Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


def checked(
    kind: ModelKind,
    scheme: str,
    options: Options,
    widths: tuple[int, ...],
    rate: float = RATE,
    steps: int = 4,
    seeds: int = 3,
) -> dict[str, float]:
    """Slope of ln rms(x_t - x_0) over ln width after a few steps of Adam, by activation, the mean
    of the seeds.
    """
    moved: dict[str, list[float]] = {}
    for width in widths:
        for seed in range(seeds):
            model, plan = filled(kind, width, 2, scheme, options, seed)
            optimizer = torch.optim.Adam(plan.param_groups(model, rate, 0.0, EPS))
            for name, values in changes(model, optimizer, windows(), steps).items():
                moved.setdefault(name, []).append(values[-1])
    return {
        name: float(
            np.polyfit(np.log(widths), np.log(np.reshape(values, (len(widths), seeds))), 1)[
                0
            ].mean()
        )
        for name, values in moved.items()
    }


def is_flat(slopes: dict[str, float]) -> bool:
    return max(map(abs, slopes.values())) <= FLAT


def least(slopes: dict[str, float]) -> float:
    """The least slope of branches, stream and logits."""
    return min(value for name, value in slopes.items() if name != "embedding")


# Megatron's head cannot start at zero: its random part falls in width, so its rate is one at which
# training outweighs.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "options", "rate"),
    [
        ("mup_table8", ZERO, RATE),
        ("mup_table3", ZERO, RATE),
        ("megatron_mup", (("base_width", 64),), 4 * RATE),
    ],
)
def test_mup_is_flat_in_width(scheme: str, options: Options, rate: float) -> None:
    """Every activation of an SSM moves as far at width 1024 as at 64, slope within 0.1; so do its
    logits.
    """
    assert is_flat(done := checked("ssm", scheme, options, WHOLE, rate)), done


def test_mup_is_flat_and_the_standard_parametrisation_is_not() -> None:
    """The same on two widths: two schemes that differ in nothing but scales and rates.

    Eight seeds: of four, feed-forward layers as narrow as these stray to a slope of 0.17 on half of
    all texts.
    """
    assert is_flat(mup := checked("ssm", "mup_table8", ZERO, QUICK, seeds=8)), mup
    assert least(checked("ssm", "sp_torch_default", (), QUICK, seeds=1)) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rwkv5", "rwkv6"])
def test_mup_is_flat_in_an_rwkv(kind: ModelKind) -> None:
    """With low-rank maps at the rate of a head and GroupNorm as it is; standard and official
    schemes grow.
    """
    assert is_flat(mup := checked(kind, "mup_table8", ZERO, WHOLE, seeds=2)), mup
    assert least(checked(kind, "sp_torch_default", (), FAST, seeds=8)) > 0.35
    official = checked(kind, "rwkv_blinkdl", (), FAST, seeds=2)
    assert min(official["ffn 0"], official["ffn 1"]) > 0.6, official


@pytest.mark.slow
def test_the_spectral_rates_for_adam_are_flat_and_those_for_sgd_are_not() -> None:
    """The rule for Adam, with the paper's random head; that for SGD under Adam, as nanotron has it,
    grows.
    """
    assert is_flat(done := checked("ssm", "spectral", (), WHOLE, seeds=4)), done
    nanotron = checked("ssm", "nanotron_spectral_mup", (), FAST, seeds=1)
    assert (
        min(value for name, value in nanotron.items() if name.startswith(("mixer", "ffn", "block")))
        > 0.3
    ), nanotron
