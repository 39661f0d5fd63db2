"""What is checked of a model before it is trained: shape, type, finiteness, and that no logit knows later bytes.

The model that is given is changed on the way, and is no good for anything afterwards. A byte t that is replaced must
leave every logit before t as it was: to the last bit as a rule, within ROUNDING where a convolution goes through
Fourier space. With the last bytes left out the others must have the same logits, within REORDERED, since sums of other
lengths are added in another order. All is asked twice, the second time with noise on every parameter: what starts at
zero leaks nothing yet.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.foreign.model import Foreign, one_line, seeded
from plkernel.models.ssm import BYTES

LONGEST = 512
"""Bytes of a window that causality is tried on, at most."""
ROUNDING, REORDERED = 2.0**7, 2.0**12
"""Of the largest logit, in units of the rounding of its type."""
NOISE, NOISE_OF_ZEROS = 0.1, 0.02
"""Standard deviation of the noise, as a share of a parameter's root mean square; where that is zero, itself."""
ACCEPTED = (torch.float32, torch.float64)


def check_model(model: nn.Module, name: str, context: int, device: torch.device) -> None:
    """ValueError, headed by `name`, where `model` is none that a run of `context` bytes on `device` can train."""
    for parameter, values in model.named_parameters():
        if values.dtype not in ACCEPTED:
            kind = str(values.dtype).removeprefix("torch.")
            raise ValueError(f"{name}: parameter {parameter.removeprefix('module.')} is {kind}, expected float32")
    with seeded(0, name):
        with one_line(name, f"moving it to {device.type}"):
            model.to(device)
        patch = model.config.patch if isinstance(model, Foreign) else getattr(model.config, "patch", 1)  # type: ignore[union-attr]
        length = min(context, LONGEST)
        tried = _Trial(model, name, length // patch * patch or length, patch, device)
        tried.check_output()
        tried.check_causal()
        if isinstance(model, Foreign):
            _check_memory(model, name)
            model.multipliers()
        tried.check_learns()
        _disturb_(model)
        tried.check_causal()


class _Trial:
    """A model, and windows (R + 1, T) of random bytes, all of them the same: one for every byte that is replaced."""

    def __init__(self, model: nn.Module, name: str, length: int, patch: int, device: torch.device) -> None:
        self.model, self.name, self.length, self.patch = model, name, length, patch
        self.places = sorted({place for place in _places(length) if 0 < place < length})
        window = torch.randint(BYTES, (1, length))
        self.inputs = window.repeat(1 + len(self.places), 1).to(device)

    def logits(self, inputs: Tensor, training: bool = False) -> Tensor:
        """The logits (B,T,256), and no other shape or type."""
        self.model.train(training)
        with one_line(self.name, f"{tuple(inputs.shape)} bytes"), torch.set_grad_enabled(training):
            found = self.model(inputs)
        expected = (*inputs.shape, BYTES)
        if not isinstance(found, Tensor):
            raise ValueError(f"{self.name}: gave a {type(found).__name__}, expected logits {expected}")
        if tuple(found.shape) != expected or not found.is_floating_point():
            kind = str(found.dtype).removeprefix("torch.")
            raise ValueError(f"{self.name}: gave {kind} of shape {tuple(found.shape)}, expected logits {expected}")
        return found

    def check_output(self) -> None:
        """Finite logits, the same for the same bytes."""
        first, again = self.logits(self.inputs), self.logits(self.inputs)
        if not first.isfinite().all():
            raise ValueError(f"{self.name}: its logits are not finite at the start")
        if _far(first, again, ROUNDING).any():
            raise ValueError(f"{self.name}: the same bytes give other logits each time, in evaluation mode too")

    def check_causal(self) -> None:
        """Logits that later bytes, and other windows of the batch, leave as they are."""
        before = self.logits(self.inputs)
        if not before.isfinite().all():  # with noise it need not be
            return
        changed = self.inputs.clone()
        for row, place in enumerate(self.places, start=1):
            changed[row, place] = (changed[row, place] + BYTES // 2) % BYTES
        far = _far(before, self.logits(changed), ROUNDING)
        if far[0].any():
            raise ValueError(f"{self.name}: the logits of a window change with the other windows of its batch")
        for row, place in enumerate(self.places, start=1):
            if far[row, :place].any():
                seen = int(far[row, :place].nonzero()[0])
                raise ValueError(
                    f"{self.name}: is not causal: byte {place} changes the logits at byte {seen}, which may know the "
                    f"bytes up to {seen} only"
                )
        for kept in sorted({self.patch, self.length // 2 // self.patch * self.patch}):
            if 0 < kept < self.length:
                far = _far(before[:, :kept], self.logits(self.inputs[:, :kept]), REORDERED)
                if far.any():
                    seen = int(far.any(dim=0).nonzero()[0])
                    raise ValueError(
                        f"{self.name}: is not causal: the logits at byte {seen} change when the bytes from {kept} on "
                        "are left out"
                    )

    def check_learns(self) -> None:
        """One backward pass, whose gradient reaches a parameter."""
        logits = self.logits(self.inputs, training=True)
        loss = F.cross_entropy(logits.float().reshape(-1, BYTES), self.inputs.reshape(-1))
        if loss.requires_grad:
            with one_line(self.name, "the backward pass"):
                loss.backward()
        if all(parameter.grad is None for parameter in self.model.parameters()):
            raise ValueError(f"{self.name}: its loss has no gradient in any parameter: nothing can be learnt")
        self.model.zero_grad(set_to_none=True)


def _places(length: int) -> Iterator[int]:
    """Bytes that are replaced: the first, those around the quarters, and the last."""
    yield from (1, 2, 3, length - 1)
    for quarter in (1, 2, 3):
        yield from (quarter * length // 4 - 1, quarter * length // 4)


def _far(one: Tensor, other: Tensor, units: float) -> Tensor:
    """Where logits (B,T,256) differ by more than `units` of rounding of the largest of them; (B,T)."""
    most = units * torch.finfo(one.dtype).eps * one.abs().max()
    return ~((one - other).abs().amax(dim=-1) <= most)


@torch.no_grad()
def _disturb_(model: nn.Module) -> None:
    """Noise on every parameter, in place."""
    for values in model.parameters():
        size = values.square().mean().sqrt()
        values.add_(torch.randn_like(values) * (NOISE * size if size > 0 else NOISE_OF_ZEROS))


def _check_memory(model: Foreign, name: str) -> None:
    """Half-lives and kernels as the package asks for them, where the model says any."""
    with one_line(name, "half_lives"):
        lives = model.half_lives()
    if not all(values.numel() and ((values > 0) & values.isfinite()).all() for values in lives):
        raise ValueError(f"{name}: half_lives must give positive numbers of bytes for every block")
    lags = torch.tensor([1, 2, 4])
    with one_line(name, "kernels"):
        kernels = model.kernels(lags)
    if not all(values.shape == lags.shape and values.isfinite().all() for values in kernels):
        raise ValueError(f"{name}: kernels must give as many finite numbers for every block as it is asked for lags")
