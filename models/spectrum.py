"""Decays that keep their order, and decays that slow down with the position: PoST.

With p_k the level of channel k of N, on which its rate depends and with which it rises, k = 0 the
slowest, t = 1, 2 .. the position of a step and T the length of training,

    ordered    p_k = theta + sum_{j<k} softplus(delta_j)
    scaled     p_k - alpha_k ln t
               alpha_k = (N-1-k)/(N-1) + (c_k - k c_{N-1}/(N-1)) / ln T, within 0 and 1
               c_k = p_k - p_0

Where p is the logarithm of a rate, scaling multiplies the rate by t**-alpha_k: the slowest channels
forget as 1/t, the fastest as ever, and half-lives grow with the position. Training moves alpha with
p. Source: arXiv 2604.07658, and its code, github.com/SiLifen/PoST at a898663.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from plkernel.analysis.nodes import Nodes
from plkernel.analysis.parametrisations import (
    inverse_softplus,
    ordered_levels,
    position_exponents,
)
from plkernel.models.kinds import LONGEST_CONTEXT
from plkernel.models.layers import Refilled
from plkernel.models.state import STEPS, BlockMemory


class Ordered(Refilled):
    """p_k = theta + sum_{j<k} softplus(delta_j): N levels that rise, whatever training does.

    theta: (1,). delta: (N-1,). descending: the channels hold them from the last to the first, so
    that the fastest is channel 0. Raises ValueError for fewer than two channels.
    """

    def __init__(self, channels: int, descending: bool = False) -> None:
        super().__init__()
        _check_form(channels, descending)
        self.descending = descending
        self.theta = nn.Parameter(torch.zeros(1))
        self.delta = nn.Parameter(torch.zeros(channels - 1))

    def refill_(self) -> None:
        """The levels that it is built with."""
        self.theta.zero_()
        self.delta.zero_()

    def forward(self) -> Tensor:
        """The level of every channel (N,), in float32 or wider; the sum is taken in float64."""
        wide = torch.promote_types(self.theta.dtype, torch.float32)
        rising: Tensor = ordered_levels(self.theta.double(), self.delta.double())
        return (rising.flip(0) if self.descending else rising).to(wide)

    @torch.no_grad()
    def set_(self, levels: Tensor) -> "Ordered":
        """Take these levels (N,) of the channels; ValueError unless they have this order."""
        if not isinstance(levels, Tensor):
            raise ValueError(f"levels must be a tensor, got {type(levels).__name__}")
        rising = levels.detach().double().flatten()
        if self.descending:
            rising = rising.flip(0)
        if rising.numel() != self.delta.numel() + 1:
            raise ValueError(
                f"levels must be {self.delta.numel() + 1}, one for each channel, got"
                f" {rising.numel()}"
            )
        held = rising.to(self.theta.dtype)
        if not held.isfinite().all():
            raise ValueError(
                "levels of ordered decays must be finite, got"
                f" {float(rising[~held.isfinite()][0]):g}"
            )
        gaps = rising.diff()
        alike = int((gaps == 0).sum())
        if alike > 0:
            raise ValueError(
                f"levels of ordered decays must rise from channel to channel, got {alike} that do"
                " not but are the same; heads that all hold the same decays need a model with"
                " parametrisation 'free'"
            )
        falling = int((gaps < 0).sum())
        if falling > 0:
            raise ValueError(
                f"levels of ordered decays must rise from channel to channel, got {falling} that do"
                " not"
            )
        self.theta.copy_(rising[:1])
        self.delta.copy_(inverse_softplus(gaps))
        return self

    def arranged(self, nodes: Nodes) -> Nodes:
        """The nodes in the order of the channels, each with its multiplier."""
        order = sorted(range(len(nodes.rates)), key=nodes.rates.__getitem__)
        if self.descending:
            order.reverse()
        return replace(
            nodes,
            rates=tuple(nodes.rates[i] for i in order),
            projection=tuple(nodes.projection[i] for i in order),
        )


def _check_form(channels: Any, descending: Any) -> None:
    """ValueError for arguments that no `Ordered` has."""
    if not isinstance(channels, Integral):
        raise ValueError(f"channels must be a whole number such as 64, got {channels!r}")
    check_ordered(int(channels))
    if not isinstance(descending, bool):
        raise ValueError(f"descending must be True or False, got {descending!r}")


def check_ordered(channels: int, name: str = "channels") -> None:
    """ValueError for fewer than two channels, which the option `name` counts."""
    if channels < 2:
        raise ValueError(f"{name} must be 2 or more for ordered decays, got {channels}")


class ExactBuffers(nn.Module):
    """A layer whose buffers `EXACT` keep 32 bits when its parameters have fewer.

    `model.bfloat16()` would otherwise round ln T, and so change T: ln 64 = 4.159 to 4.156.
    """

    EXACT: ClassVar[tuple[str, ...]] = ("log_length",)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = {name: self._buffers.get(name) for name in self.EXACT}
        super()._apply(fn, recurse)
        for name, exact in before.items():
            moved = self._buffers.get(name)
            if exact is None or moved is None:
                continue
            wide = torch.promote_types(moved.dtype, torch.float32)
            if moved.dtype != wide:
                self._buffers[name] = exact.to(moved.device, wide)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *others: Any, **named: Any
    ) -> None:
        """Keep the digits of a buffer of which a `state_dict` has no more than the rounding.

        Such is one that was cast as a whole, as to ship weights in bfloat16.
        """
        before = {name: self._buffers.get(name) for name in self.EXACT}
        kept = {name: one.clone() for name, one in before.items() if one is not None}
        super()._load_from_state_dict(state_dict, prefix, *others, **named)
        for name, exact in kept.items():
            given = state_dict.get(prefix + name)
            if not isinstance(given, Tensor) or given.shape != exact.shape or exact.is_meta:
                continue
            is_narrow = given.is_floating_point() and given.dtype.itemsize < exact.dtype.itemsize
            if is_narrow and torch.equal(exact.to(given.device, given.dtype), given):
                self._buffers[name] = exact


def log_positions(x: Tensor, memory: BlockMemory | None, dtype: torch.dtype) -> Tensor:
    """ln t of the steps of x (B,T,..): (1,T) for t = 1..T, or (B,T) after those in `memory`.

    The memory then counts the steps of x too. Raises ValueError for one that has not counted.
    """
    time = x.shape[1]
    steps = torch.arange(1, time + 1, device=x.device)[None]
    if memory is not None:
        if STEPS not in memory:
            raise ValueError(
                "a state must come with its position where decays depend on it, got one without"
                f" {STEPS!r}; begin with model.initial_state(batch)"
            )
        steps = memory[STEPS][:, None] + steps
        memory[STEPS] = memory[STEPS] + time
    return steps.double().log().to(dtype)


def exponents(levels: Tensor, log_length: Tensor) -> Tensor:
    """alpha_k (N,) of levels p (N,) and ln T (1,), as `position_exponents` has the formula."""
    alpha: Tensor = position_exponents(levels, log_length.to(levels))
    return alpha


def scaled(levels: Tensor, alpha: Tensor, log_t: Tensor) -> Tensor:
    """p_k - alpha_k ln t, (..,N) for ln t (..)."""
    return levels - alpha * log_t[..., None]


def log_length(length: float | None, step: int = 1) -> Tensor | None:
    """ln T in steps, (1,), of T `length`; None without one.

    A buffer of every layer that scales: readers of a checkpoint state half-lives at T.
    """
    if length is None:
        return None
    return torch.tensor([math.log(length / step)], dtype=torch.float64)


def check_scaling_length(
    length: float | None, step: int = 1, *, channels: int | None = None, name: str = "channels"
) -> None:
    """ValueError for a length of training that scales no decays.

    Such is one of one step or less, whose logarithm divides, one above LONGEST_CONTEXT, and any of
    a layer with fewer than two `channels`, which the option `name` counts.
    """
    if length is None:
        return
    if isinstance(length, bool) or not isinstance(length, Real):
        raise ValueError(f"scaling_length must be a number of bytes, such as 512, got {length!r}")
    if not length > step:
        raise ValueError(
            f"scaling_length must be more than one step of {step} bytes, got {length!r}"
        )
    if length > LONGEST_CONTEXT:
        raise ValueError(f"scaling_length must be at most {LONGEST_CONTEXT} bytes, got {length:g}")
    if channels is not None and channels < 2:
        raise ValueError(
            f"{name} must be 2 or more with scaling_length, which scales decays by their order, got"
            f" {channels}"
        )


def check_differ(name: str, levels: Tensor) -> None:
    """ValueError for levels (N,) that are all the same: exponents follow from their order.

    The same to rounding is the same.
    """
    wide = levels.double()
    rounding = 4 * torch.finfo(levels.dtype).eps * wide.abs().max()
    if bool(wide.max() - wide.min() <= rounding):
        raise ValueError(
            f"{name} must differ from channel to channel where decays depend on the position, which"
            f" scales them by their order, got {float(levels.flatten()[0]):.4g} in all; leave"
            " scaling_length out"
        )


def check_position(position: float | None) -> None:
    """ValueError for a position of half-lives that is no byte, counted from 1."""
    if position is None:
        return
    is_number = isinstance(position, Real) and not isinstance(position, bool)
    if not is_number or not 1 <= position < math.inf:
        raise ValueError(
            f"position must be 1 or more, got {position!r}; it counts bytes, from the first"
        )


def zigzag(i: Tensor, head_size: int) -> Tensor:
    """z = x |x| of the channels i, x from -1 to 1 along every head; 0 in heads of one channel."""
    middle = (head_size - 1) / 2
    if middle == 0:
        return torch.zeros_like(i)
    x = (i % head_size - middle) / middle
    return x * x.abs()
