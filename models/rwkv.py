"""Eagle (RWKV-5) and Finch (RWKV-6) over bytes: arXiv 2404.05892, section 4, and the official code.

Shapes: B batch, T time (bytes), D width, H heads of size N = D / H, F feed-forward width, 256 byte values.
    Block:         x = x + TimeMixing(LayerNorm(x));  x = x + ChannelMixing(LayerNorm(x))
    TimeMixing:    o_t = r_t (S_{t-1} + diag(u) k_t^T v_t),  S_t = diag(w_t) S_{t-1} + k_t^T v_t,  w = exp(-exp(w_raw)),
                   output(silu(g) * GroupNorm(o)) with one group per head
    ChannelMixing: sigmoid(receptance(x_r)) * value(relu(key(x_k))**2)
and a LayerNorm after the embedding (ln0) and before the head (ln_out), unless its `Structure` says otherwise.
Token shift: r, k, v, g and x_r, x_k are read from mixtures of x_t and x_{t-1}, x_{-1} = 0. In Eagle the mixtures and
w_raw are learned vectors; in Finch those of the time mixing also depend on the data, through low-rank maps. Names,
shapes and order of `state_dict()` are those of the official checkpoints, x052 and x060.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.kernels.wkv import wkv
from plkernel.models.layers import BYTES, Activation, Embedding, Head, Linear, last_norm, squared_relu
from plkernel.models.rwkv_shared import GROUP_NORM_EPS, Block, LayerState, Mixing, RWKVSizes, dropout, previous, vector
from plkernel.models.structure import Structure


@dataclass(frozen=True)
class RWKVConfig(RWKVSizes):
    """Eagle (`version` 5) or Finch (6), of width `dim` with heads of `head_size` channels.

    mix_rank, decay_rank: ranks of Finch's data-dependent token shift and decay; k_clamp: scale the key by
    exp(min(w_raw, 0)) = min(1, lambda), lambda the decay rate; feed_forward: width of the channel mixing, None for the
    official 3.5 D rounded down to a multiple of 32. `backend` forces one of the operator's implementations.

    `dropout` is the share of the residual stream set to zero in training, after the embedding and after every branch.
    `structure`: what initialisation schemes ask for and the official models never do; the norm of the heads stays as
    it is, and an embedding multiplier acts before ln0, which undoes it.
    """

    version: int = 6
    dim: int = 256
    layers: int = 4
    head_size: int = 64
    mix_rank: int = 32
    decay_rank: int = 64
    k_clamp: bool = False
    backend: str | None = None
    feed_forward: int | None = None
    dropout: float = 0.0
    structure: Structure = field(default_factory=Structure)

    def __post_init__(self) -> None:
        if self.version not in (5, 6):
            raise ValueError(f"version must be 5 (Eagle) or 6 (Finch), got {self.version!r}")
        self.check("mix_rank", "decay_rank")

    @property
    def hidden(self) -> int:
        """F: `feed_forward`, or int(3.5 D // 32 * 32)."""
        return int(3.5 * self.dim // 32 * 32) if self.feed_forward is None else self.feed_forward


@dataclass(frozen=True)
class RWKVState:
    """Memory of the model, one entry per block: constant in the number of bytes seen."""

    layers: tuple[LayerState, ...]


def mixtures(x: Tensor, change: Tensor, base: Sequence[Tensor], shares: Tensor, at_once: bool) -> tuple[Tensor, ...]:
    """x + change * (mu + share) (B,T,D) for every mu (1,1,D) of `base` and its share of `shares` (S,B,T,D).

    at_once: launch S times less, with gradients that are summed in another order.
    """
    if at_once:
        return (x + change * (torch.stack(tuple(base)) + shares)).unbind()
    return tuple(x + change * (mu + share) for mu, share in zip(base, shares, strict=True))


class TimeMixing(Mixing, ABC):
    """What Eagle and Finch share: projections, the recurrence per head, gate, group norm and output."""

    time_decay: nn.Parameter

    def __init__(self, config: RWKVConfig) -> None:
        super().__init__()
        dim, linear = config.dim, partial(Linear, config.structure)
        self.heads, self.k_clamp, self.backend = config.heads, config.k_clamp, config.backend
        self.receptance, self.key, self.value = linear(dim, dim), linear(dim, dim), linear(dim, dim)
        self.output, self.gate = linear(dim, dim), linear(dim, dim)
        self.silu = Activation(config.structure, F.silu)
        self.ln_x = nn.GroupNorm(config.heads, dim, eps=GROUP_NORM_EPS)
        self.time_faaaa: nn.Parameter

    @abstractmethod
    def streams(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Inputs (B,T,D) of r, k, v and g from x_t and x_{t-1}, and w_raw (B,T,H,N) or (H,N), at least float32."""

    def forward(self, x: Tensor, last: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        x_r, x_k, x_v, x_g, w_raw = self.streams(x, previous(x, last))
        r, k, v = (
            layer(mixed).unflatten(-1, (self.heads, -1))
            for layer, mixed in ((self.receptance, x_r), (self.key, x_k), (self.value, x_v))
        )
        rate = w_raw.exp()
        if self.k_clamp:
            k = k * w_raw.clamp(max=0).exp().to(k.dtype)
        out, state = wkv(r, k, v, -rate, self.time_faaaa, state, backend=self.backend)
        normed = self.ln_x(out.flatten(2).flatten(0, 1)).view(x.shape)
        return self.output(normed * self.silu(self.gate(x_g))), state

    def rates(self) -> Tensor:
        return self.time_decay.detach().double().exp().reshape(self.heads, -1)


class EagleMixing(TimeMixing):
    """Time mixing of RWKV-5 (equations 3 to 9): `time_mix_s` = 1 - mu_s weighs x_t, one decay per channel."""

    def __init__(self, config: RWKVConfig) -> None:
        super().__init__(config)
        self.time_mix_k, self.time_mix_v = vector(config.dim), vector(config.dim)
        self.time_mix_r, self.time_mix_g = vector(config.dim), vector(config.dim)
        self.time_decay = nn.Parameter(torch.empty(config.heads, config.head_size))
        self.time_faaaa = nn.Parameter(torch.empty(config.heads, config.head_size))

    def streams(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        shares = (self.time_mix_r, self.time_mix_k, self.time_mix_v, self.time_mix_g)
        x_r, x_k, x_v, x_g = (torch.lerp(before, x, share) for share in shares)
        return x_r, x_k, x_v, x_g, self.time_decay.to(torch.promote_types(self.time_decay.dtype, torch.float32))


class FinchMixing(TimeMixing):
    """Time mixing of RWKV-6 (equations 14 to 19): `time_maa_s` = mu_s weighs x_{t-1}, and the data add to it.

    ddlerp_s(a, b) = a + (b - a) * (mu_s + tanh((a + (b - a) * mu_x) A_s) B_s) for s in w, k, v, r, g, and
    w_raw = time_decay + tanh(ddlerp_w A) B per byte and channel.
    """

    def __init__(self, config: RWKVConfig) -> None:
        super().__init__(config)
        dim, mix, decay = config.dim, config.mix_rank, config.decay_rank
        self.time_maa_x, self.time_maa_w, self.time_maa_k = vector(dim), vector(dim), vector(dim)
        self.time_maa_v, self.time_maa_r, self.time_maa_g = vector(dim), vector(dim), vector(dim)
        self.time_maa_w1 = nn.Parameter(torch.empty(dim, 5 * mix))
        self.time_maa_w2 = nn.Parameter(torch.empty(5, mix, dim))
        self.time_decay = vector(dim)
        self.time_decay_w1 = nn.Parameter(torch.empty(dim, decay))
        self.time_decay_w2 = nn.Parameter(torch.empty(decay, dim))
        self.time_faaaa = nn.Parameter(torch.empty(config.heads, config.head_size))

    def streams(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        change = before - x
        low = torch.tanh((x + change * self.time_maa_x) @ self.time_maa_w1).unflatten(-1, (5, -1))
        shares = torch.einsum("btsr,srd->sbtd", low, self.time_maa_w2)
        base = (self.time_maa_w, self.time_maa_k, self.time_maa_v, self.time_maa_r, self.time_maa_g)
        x_w, x_k, x_v, x_r, x_g = mixtures(x, change, base, shares, at_once=x.is_cuda)
        by_data = torch.tanh(x_w @ self.time_decay_w1) @ self.time_decay_w2
        precise = torch.promote_types(self.time_decay.dtype, torch.float32)
        w_raw = self.time_decay.to(precise) + by_data.to(precise)
        return x_r, x_k, x_v, x_g, w_raw.unflatten(-1, (self.heads, -1))


class ChannelMixing(nn.Module):
    """sigmoid(receptance(x_r)) * value(relu(key(x_k))**2), the same function in both versions (equations 10 to 13)."""

    def __init__(self, config: RWKVConfig) -> None:
        super().__init__()
        self.eagle = config.version == 5
        if self.eagle:
            self.time_mix_k, self.time_mix_r = vector(config.dim), vector(config.dim)
        else:
            self.time_maa_k, self.time_maa_r = vector(config.dim), vector(config.dim)
        linear = partial(Linear, config.structure)
        self.key = linear(config.dim, config.hidden)
        self.receptance = linear(config.dim, config.dim)
        self.value = linear(config.hidden, config.dim)
        self.sigmoid = Activation(config.structure, torch.sigmoid)
        self.squared_relu = Activation(config.structure, squared_relu)

    def forward(self, x: Tensor, last: Tensor) -> Tensor:
        before = previous(x, last)
        if self.eagle:
            x_k, x_r = (torch.lerp(before, x, share) for share in (self.time_mix_k, self.time_mix_r))
        else:
            x_k, x_r = (torch.lerp(x, before, mu) for mu in (self.time_maa_k, self.time_maa_r))
        return self.sigmoid(self.receptance(x_r)) * self.value(self.squared_relu(self.key(x_k)))


class RWKV(nn.Module):
    """Next-byte logits: (B,T) bytes to (B,T,256), position t from bytes 0..t.

    Its parameters are not set here: see plkernel.models.init.
    """

    def __init__(self, config: RWKVConfig) -> None:
        super().__init__()
        self.config = config
        self.emb = Embedding(config.structure, BYTES, config.dim)
        self.blocks = nn.ModuleList([self.block(layer) for layer in range(config.layers)])
        self.ln_out = last_norm(config.structure, config.dim)
        self.head = Head(config.structure, self.emb)
        self.drop = dropout(config.dropout)

    def block(self, layer: int) -> Block:
        """A new block, of number `layer` from 0."""
        mixing = EagleMixing if self.config.version == 5 else FinchMixing
        return Block(self.config, layer, mixing(self.config), ChannelMixing(self.config))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.decode(self.emb(inputs))

    def decode(self, embedded: Tensor) -> Tensor:
        """Logits (B,T,256) from byte embeddings (B,T,D), with nothing before them."""
        return self._decode(embedded, self.initial_state(embedded.shape[0]))[0]

    def resume(self, inputs: Tensor, state: RWKVState) -> tuple[Tensor, RWKVState]:
        """Logits (B,T,256) of bytes (B,T) that continue what `state` has seen, and the next state.

        Windows of one text, each with the state of the one before, give the logits of the whole. Gradients flow
        through the state: detach it to train window by window.
        """
        return self._decode(self.emb(inputs), state)

    def step(self, inputs: Tensor, state: RWKVState) -> tuple[Tensor, RWKVState]:
        """One byte (B,) and a state to logits (B,256) and the next state; equal to `forward`, byte by byte."""
        logits, state = self.resume(inputs[:, None], state)
        return logits[:, 0], state

    def half_lives(self) -> list[Tensor]:
        """Half-lives of every block in bytes, ln 2 / rate, (D,) float64; in Finch and Goose the data move them."""
        return [math.log(2) / mixing.rates().flatten() for mixing in self.mixings()]

    def kernels(self, lags: Tensor) -> list[Tensor]:
        """What an input still weighs `lags` (T,) bytes later in the state of every block, (T,) float64 each."""
        return [mixing.kernel(lags) for mixing in self.mixings()]

    def mixings(self) -> list[Mixing]:
        """The time mixing of every block, from the first."""
        return [module for module in self.modules() if isinstance(module, Mixing)]

    def initial_state(self, batch: int) -> RWKVState:
        """The state before the first byte: zero."""
        config = self.config
        shift = self.head.weight.new_zeros(batch, config.dim)
        memory = shift.new_zeros(
            (batch, config.heads, config.head_size, config.head_size),
            dtype=torch.promote_types(shift.dtype, torch.float32),
        )
        return RWKVState((LayerState(shift, memory, shift),) * config.layers)

    def _decode(self, x: Tensor, state: RWKVState) -> tuple[Tensor, RWKVState]:
        layers: list[LayerState] = []
        carried: list[Tensor] = []  # torch.compile knows no list[Tensor]()
        x = self.drop(x)
        if x.shape[1] == 0:
            return self.head(self.ln_out(x)), state
        for block, memory in zip(self.blocks, state.layers, strict=True):
            x, memory, *carried = block(x, memory, *carried)  # Goose's blocks hand on the values of the first
            layers.append(memory)
        return self.head(self.ln_out(x)), RWKVState(tuple(layers))
