"""A gated delta net over bytes: arXiv 2412.06464, with the layer of Qwen3-Next.

Specs name it as `kind = "plkernel.models.gated_delta:gated_delta"`; `[model.config]` takes what
GatedDeltaConfig does.

Shapes: B batch, T time (bytes), D width, H heads of size N, 256 byte values. Of x (B,T,D) a layer
makes

    q, k, v = silu(conv(x W)), per head     a causal convolution over `taps` bytes, per channel
    q = N**-0.5 q / |q|;  k = k / |k|       per head, |x| = sqrt(sum of x**2 + 1e-6)
    a = exp(-exp(A_log) softplus(x W_a + dt_bias))      decay, one number for each head
    or, with a lower bound g < 0 of its logarithm, a = exp(g sigmoid(exp(A_log) (x W_a + dt_bias)))
    b = sigmoid(x W_b)                      share of what the key k holds that is replaced
    S_t = a S_{t-1} (I - b k k^T) + b v k^T,  S_{-1} = 0
    o = S_t q
    out = o_proj(RMSNorm(o) silu(x W_g))    one gain for each channel of a head

and a block adds it, and then a SwiGLU, each of a LayerNorm of the stream.

State (`plkernel.models.state`): of every block S_T (B,H,N,N) as `delta`, and what the convolution
reads of the last bytes, (B,taps-1,3D'), as `conv`, with D' = H N.

The gate with a lower bound is that of Kimi Delta Attention in flash-linear-attention
(ops/kda/gate.py, `naive_kda_lowerbound_gate`), with one number for each head where that layer has
one for each channel.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.analysis.parametrisations import inverse_softplus
from plkernel.kernels.wkv7 import wkv7
from plkernel.models.layers import BYTES, Structure, unset
from plkernel.models.ssm import SwiGLU
from plkernel.models.state import (
    BlockMemory,
    Layout,
    State,
    blank,
    check_state_layout,
    layout_of_blocks,
)

MEMORY = ("delta", "conv")
"""State of every block."""
EPS = 1e-6
"""Of the norms of keys, queries and outputs, as in Qwen3-Next."""
STD = 0.02
"""Of matrices and of the embedding at initialisation."""
SMALLEST_A = 0.01
LARGEST_A = 16.0
"""Ends of A at initialisation, where it is uniform; the code of the paper begins at 0,
whose logarithm is infinite.
"""
SHORTEST_STEP = 1e-3
LONGEST_STEP = 1e-1
"""Ends of the time step at initialisation, where it is uniform in its logarithm."""


@dataclass(frozen=True)
class GatedDeltaConfig:
    """Width `dim`, `layers`, and `heads` of `head_size` channels in each; `taps` of convolutions.

    `lower_bound` of ln a in every step, below 0; None leaves it unbounded. `backend` forces one of
    the operator's implementations; None takes the one for the device.
    """

    dim: int = 64
    layers: int = 2
    heads: int = 4
    head_size: int = 16
    taps: int = 4
    lower_bound: float | None = None
    backend: str | None = None

    def __post_init__(self) -> None:
        for name in ("dim", "layers", "heads", "head_size", "taps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number, at least 1, got {value!r}")
        bound = self.lower_bound
        if bound is None:
            return
        is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
        if not is_number or not -math.inf < bound < 0:
            raise ValueError(f"lower_bound must be a finite number below 0, got {bound!r}")

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_size


def gated_delta(options: Mapping[str, Any]) -> "GatedDelta":
    """A GatedDelta with these options of GatedDeltaConfig; ValueError for any other."""
    known = [field.name for field in fields(GatedDeltaConfig)]
    for name in options:
        if name not in known:
            raise ValueError(f"config must have options among {', '.join(known)}, got {name!r}")
    return GatedDelta(GatedDeltaConfig(**options))


class GatedDeltaMixing(nn.Module):
    """The layer; names are those of flash-linear-attention, with one convolution for q, k and v."""

    def __init__(self, config: GatedDeltaConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        inner = config.inner
        self.qkv_proj = nn.Linear(dim, 3 * inner, bias=False)
        self.a_proj = nn.Linear(dim, config.heads, bias=False)
        self.b_proj = nn.Linear(dim, config.heads, bias=False)
        self.g_proj = nn.Linear(dim, inner, bias=False)
        self.o_proj = nn.Linear(inner, dim, bias=False)
        self.conv = unset(3 * inner, config.taps)
        self.A_log = unset(config.heads)
        self.dt_bias = unset(config.heads)
        self.norm = unset(config.head_size)
        # A buffer, so that whoever reads the checkpoint knows it.
        bound = None if config.lower_bound is None else torch.tensor([float(config.lower_bound)])
        self.register_buffer("lower_bound", bound)
        self.lower_bound: Tensor | None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw A uniformly and time steps log-uniformly, as in the code of the paper; matrices
        N(STD).

        The convolution is U(taps**-0.5), as torch.nn.Conv1d draws it.
        """
        for values in self.parameters():
            values.normal_(std=STD)
        bound = self.config.taps**-0.5
        self.conv.uniform_(-bound, bound)
        self.norm.fill_(1.0)
        if self.lower_bound is not None:
            self.lower_bound.fill_(cast(float, self.config.lower_bound))
        self.A_log.uniform_(SMALLEST_A, LARGEST_A).log_()
        levels = torch.empty_like(self.dt_bias)
        levels.uniform_(math.log(SHORTEST_STEP), math.log(LONGEST_STEP))
        self.dt_bias.copy_(inverse_softplus(levels.exp()))

    def forward(self, x: Tensor, memory: BlockMemory | None = None) -> Tensor:
        config = self.config
        mixed = F.silu(self.convolved(self.qkv_proj(x), memory))
        heads = mixed.unflatten(-1, (3, config.heads, config.head_size))
        q, k, v = heads.unbind(-3)
        # CUDA's autocast leaves the norms in float32.
        q = (unit(q) * config.head_size**-0.5).to(v.dtype)
        k = unit(k).to(v.dtype)
        share = torch.sigmoid(self.b_proj(x))[..., None]
        log_decay = self.log_decay(x)[..., None]
        # The operator reads S_{t-1} before it decays.
        erased = (log_decay.exp() * share).to(k.dtype) * k
        state = None if memory is None else memory["delta"]
        out, last = wkv7(
            q,
            log_decay.expand(*k.shape),
            share * k,
            v,
            -k,
            erased,
            state,
            backend=config.backend,
        )
        if memory is not None:
            memory["delta"] = last
        normed = F.rms_norm(out, (config.head_size,), self.norm, EPS)
        return self.o_proj(normed.flatten(-2) * F.silu(self.g_proj(x)))

    def log_decay(self, x: Tensor) -> Tensor:
        """ln a (B,T,H) in float32 or wider."""
        wide = torch.promote_types(self.A_log.dtype, torch.float32)
        level = self.a_proj(x).to(wide) + self.dt_bias.to(wide)
        speed = self.A_log.to(wide).exp()
        if self.lower_bound is not None:
            return self.lower_bound.to(wide) * torch.sigmoid(speed * level)
        return -speed * F.softplus(level)

    def convolved(self, streams: Tensor, memory: BlockMemory | None) -> Tensor:
        """y_t = sum over j < taps of w_j x_{t-taps+1+j}, per channel; x is 0 before the text."""
        before = self.config.taps - 1
        if memory is None:
            past = streams.new_zeros(streams.shape[0], before, streams.shape[2])
        else:
            past = memory["conv"].to(streams.dtype)
        longer = torch.cat((past, streams), dim=1)
        if memory is not None:
            # A copy: a view would keep all of the part.
            memory["conv"] = longer[:, longer.shape[1] - before :].clone()
        weight = self.conv[:, None].to(streams.dtype)
        rows = F.conv1d(longer.transpose(1, 2), weight, groups=weight.shape[0])
        return rows.transpose(1, 2)


def unit(x: Tensor) -> Tensor:
    """x / sqrt(sum of x**2 + EPS) over the last dimension."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


class GatedDeltaBlock(nn.Module):
    """LayerNorm, gated delta net, residual, LayerNorm, SwiGLU, residual."""

    def __init__(self, config: GatedDeltaConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim)
        self.mixer = GatedDeltaMixing(config)
        self.norm2 = nn.LayerNorm(config.dim)
        self.mlp = SwiGLU(config.dim, Structure())

    def forward(self, x: Tensor, memory: BlockMemory | None = None) -> Tensor:
        x = x + self.mixer(self.norm1(x), memory)
        return x + self.mlp(self.norm2(x))


class GatedDelta(nn.Module):
    """Next-byte logits: (B,T) bytes to (B,T,256), position t from bytes 0..t.

    With a state as the second argument it returns logits and the next state.
    """

    def __init__(self, config: GatedDeltaConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(BYTES, config.dim)
        self.blocks = nn.ModuleList([GatedDeltaBlock(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, BYTES, bias=False)
        nn.init.normal_(self.embedding.weight, std=STD)
        nn.init.normal_(self.head.weight, std=STD)

    def forward(self, inputs: Tensor, state: State | None = None) -> Tensor | tuple[Tensor, State]:
        """Logits (B,T,256) of bytes (B,T); with a `state` before them, also the next state.

        Raises ValueError for a state of another model, batch, dtype or device.
        """
        if state is None:
            return self._logits(inputs, [None] * self.config.layers)
        check_state_layout(state, self.state_kind, self.state_layout(), inputs)
        memories = state.memories(self.config.layers, MEMORY)
        return self._logits(inputs, memories), state.with_memories(memories)

    def _logits(self, inputs: Tensor, memories: Sequence[BlockMemory | None]) -> Tensor:
        """Logits (B,T,256) of bytes (B,T); the memory of every block is brought up to date."""
        x = self.embedding(inputs)
        if x.shape[1] > 0:
            for block, memory in zip(self.blocks, memories, strict=True):
                x = block(x, memory)
        return self.head(self.norm(x))

    def initial_state(self, batch: int) -> State:
        """The state before the first byte of `batch` texts."""
        return blank(self.state_kind, self.state_layout(), batch, self.head.weight.device)

    @property
    def state_kind(self) -> str:
        """The model that a state belongs to, in words."""
        return "gated delta net"

    def state_layout(self) -> Layout:
        """Shape and dtype of every tensor of a state."""
        config = self.config
        dtype = self.head.weight.dtype
        wide = torch.promote_types(dtype, torch.float32)
        matrix = (config.heads, config.head_size, config.head_size)
        kinds = {"delta": (matrix, wide), "conv": ((config.taps - 1, 3 * config.inner), dtype)}
        return layout_of_blocks(config.layers, kinds)
