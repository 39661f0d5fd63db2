"""Goose (RWKV-7) over bytes: arXiv 2503.14456, section 4, and the official code, x070.

Shapes: B batch, T time (bytes), D width, H heads of size N = D / H, F feed-forward width, 256 byte
values. With c = exp(-1/2), lerp(a, b, m) = a + m (b - a), and low(x) = f(x A) B of low rank, time
mixing makes of x_t and x_{t-1}, x_{-1} = 0:

    x_s = lerp(x_t, x_{t-1}, mu_s)              static token shift of the streams r, w, k, v, a, g
    w = exp(-c sigmoid(w0 + low_tanh(x_w)))     decay, above exp(-c) = 0.545
    a = sigmoid(a0 + low(x_a))                  in-context rate
    k = x_k K;  kappa = k k_k / |k k_k|         removal key, per head
    k~ = k lerp(1, a, k_a)                      replacement key
    v = x_v V                                   in the first block; after it the value residual
    v = lerp(x_v V, v_first, sigmoid(v0 + low(x_v)))
    S_t = S_{t-1} (diag(w) - kappa^T (a kappa)) + v^T k~,  S_{-1} = 0
    o = S_t r,  r = x_r R                       per head
    output((GroupNorm(o) + (sum over the head of r r_k k~) v) low_sigmoid(x_g))

and channel mixing value(relu(key(lerp(x_t, x_{t-1}, x_k)))**2). Blocks, norms and head are those of
Finch. Names and shapes of `state_dict()` are those of the official checkpoints; the first block has
no v0, v1, v2, which do nothing. The state is that of Finch: v_first is of the same byte, and no
part of it.

w0 is the sum of two vectors, one that rises along the layer and a zigzag in every head. With
`parametrisation = "ordered"` (`plkernel.models.spectrum`) the first is `ordered`, and w0 holds the
second alone, as a bias that is free. With `scaling_length` the logit of the decay is that of above
less alpha ln t, where p = ln sigmoid of what rises; the state also counts steps.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.analysis.nodes import Nodes
from plkernel.analysis.parametrisations import RWKV7_LARGEST_RATE as LARGEST_RATE
from plkernel.kernels.wkv7 import wkv7
from plkernel.models import Order
from plkernel.models.layers import Activation, Linear, Refilled, Structure, squared_relu, unset
from plkernel.models.power_law import decays_, projection_
from plkernel.models.rwkv import (
    MEMORY,
    RWKV,
    Block,
    Mixing,
    RWKVSizes,
    lerped,
    precise,
    previous,
    vector,
)
from plkernel.models.rwkv_nodes import ZIGZAG
from plkernel.models.spectrum import (
    ExactBuffers,
    Ordered,
    check_differ,
    check_position,
    check_scaling_length,
    exponents,
    log_length,
    log_positions,
    scaled,
    zigzag,
)
from plkernel.models.state import STEPS, STEPS_KIND, BlockMemory, Layout, block_name

SEQUENCES = 4
"""Sequences of white input that a response is measured on."""
IMPULSES = 8
"""Bytes at the start of each sequence whose responses are averaged."""
SEED = 0
"""Of these sequences."""


@dataclass(frozen=True)
class RWKV7Config(RWKVSizes):
    """Goose, of width `dim` with heads of `head_size` channels.

    decay_rank, rate_rank, value_rank, gate_rank
                       ranks of the maps that move w, a, v and g; None for those of the official
                       code, max(32, 32 round(f sqrt(D) / 32)) with f 2.5, 2.5, 1.7 and 5 (the
                       published models have fewer where D is above 1024)
    backend            force one of the operator's implementations
    feed_forward       width of the channel mixing; None for 4 D
    dropout, structure as in `RWKVConfig`; unit_scaled is not for Goose, whose low-rank maps set the
                       size of its activations
    parametrisation    `ordered` keeps the order of the decays that rise along a layer, the slowest
                       in channel 0
    scaling_length     T in bytes of decays that slow down with the position; None for decays that
                       do not
    """

    version: ClassVar = 7
    k_clamp: ClassVar = False
    dim: int = 256
    layers: int = 4
    head_size: int = 64
    decay_rank: int | None = None
    rate_rank: int | None = None
    value_rank: int | None = None
    gate_rank: int | None = None
    backend: str | None = None
    feed_forward: int | None = None
    dropout: float = 0.0
    structure: Structure = field(default_factory=Structure)
    parametrisation: Order = "free"
    scaling_length: float | None = None

    def __post_init__(self) -> None:
        if self.parametrisation not in get_args(Order):
            raise ValueError(
                f"parametrisation must be one of {', '.join(get_args(Order))}, got"
                f" {self.parametrisation!r}"
            )
        check_scaling_length(self.scaling_length, channels=self.dim, name="dim")
        if self.structure.unit_scaled:
            raise ValueError(
                "unit_scaled must be false for RWKV-7, whose low-rank maps set the size of its"
                " activations, got true"
            )
        ranks = ("decay_rank", "rate_rank", "value_rank", "gate_rank")
        self.check(*(name for name in ranks if getattr(self, name) is not None))

    @property
    def hidden(self) -> int:
        """F: `feed_forward`, or 4 D."""
        return 4 * self.dim if self.feed_forward is None else self.feed_forward

    @property
    def ranks(self) -> tuple[int, int, int, int]:
        """Of decay, in-context rate, value residual and gate."""

        def rank(given: int | None, factor: float) -> int:
            if given is not None:
                return given
            return max(32, round(factor * self.dim**0.5 / 32) * 32)

        return (
            rank(self.decay_rank, 2.5),
            rank(self.rate_rank, 2.5),
            rank(self.value_rank, 1.7),
            rank(self.gate_rank, 5.0),
        )


class GooseMixing(Refilled, ExactBuffers, Mixing):
    """Time mixing of RWKV-7: x (B,T,D) and the values of the first block to output and values.

    `first` of forward: those values (B,T,D), None in the first block itself.
    """

    DELAY = 0
    EXACT = ("log_length", "zigzag")

    def __init__(self, config: RWKV7Config, layer: int) -> None:
        vectors = ["x_r", "x_w", "x_k", "x_v", "x_a", "x_g"]
        super().__init__(config, vectors, ("receptance", "key", "value", "output"))
        decay, rate, value, gate = config.ranks
        ranks = {"w": decay, "a": rate, "v": value, "g": gate}
        if layer == 0:
            del ranks["v"]
        for name, rank in ranks.items():
            if name != "g":
                setattr(self, f"{name}0", vector(config.dim))
            setattr(self, f"{name}1", unset(config.dim, rank))
            setattr(self, f"{name}2", unset(rank, config.dim))
        self.ordered = Ordered(config.dim) if config.parametrisation == "ordered" else None
        self.scaling_length = config.scaling_length
        self.log_length: Tensor | None
        self.register_buffer("log_length", log_length(config.scaling_length))
        self.zigzag: Tensor | None  # the part of w0 that alpha does not count
        beside = None
        if config.scaling_length is not None and self.ordered is None:
            channels = torch.arange(config.dim, dtype=torch.float64)
            beside = ZIGZAG * zigzag(channels, config.head_size)
        self.register_buffer("zigzag", beside)
        self.k_k = vector(config.dim)
        self.k_a = vector(config.dim)
        self.r_k = unset(config.heads, config.head_size)

    def refill_(self) -> None:
        """ln T, and the part of w0 that alpha does not count."""
        if self.log_length is not None:
            self.log_length.fill_(math.log(cast(float, self.scaling_length)))
        if self.zigzag is not None:
            channels = torch.arange(self.zigzag.numel(), dtype=torch.float64, device="cpu")
            self.zigzag.copy_(ZIGZAG * zigzag(channels, self.r_k.shape[1]))

    @torch.no_grad()
    def place_(self, nodes: Nodes, bonus: float | None = None) -> None:
        """Set the decays and the rows of the receptance; Goose has no bonus, and no zigzag here.

        Raises ValueError for rates that are all the same where they are scaled by the position.
        """
        if self.log_length is not None:
            rates = torch.tensor(nodes.rates, dtype=torch.float32, device="cpu")
            check_differ("rates of nodes", rates)
        if self.ordered is not None:
            nodes = self.ordered.arranged(nodes)
        decays_(self.w0 if self.ordered is None else self.ordered, nodes, "exp_sigmoid")
        projection_(self.receptance.weight, nodes, dim=0)
        if self.ordered is not None:
            self.w0.zero_()
        if self.zigzag is not None:
            self.zigzag.zero_()

    def level(self, log_t: Tensor | None = None) -> Tensor:
        """The logit of the decay without what the data add to it: (1,1,D), or (..,D) at ln t (..).

        In float32 or wider.
        """
        w0 = precise(self.w0)
        if self.ordered is None and self.log_length is None:
            return w0
        if self.ordered is not None:
            rising = self.ordered()
            w0 = w0 + rising
        else:
            rising = w0.flatten() - cast(Tensor, self.zigzag).to(w0)
        if self.log_length is None or log_t is None:
            return w0
        return scaled(w0, exponents(F.logsigmoid(rising), self.log_length), log_t)

    def forward(
        self, x: Tensor, first: Tensor | None = None, memory: BlockMemory | None = None
    ) -> tuple[Tensor, Tensor]:
        change = previous(x, memory, "att_shift") - x
        r, log_decay, k, a, b = self.addressed(x, change, memory)
        x_v = x + change * self.x_v
        x_g = x + change * self.x_g
        v = self.value(x_v)
        if first is None:
            first = v
        else:
            share = torch.sigmoid(self.v0 + x_v @ self.v1 @ self.v2)
            v = lerped(v, first, share)
        v = self.split(v)
        gate = torch.sigmoid(x_g @ self.g1) @ self.g2
        state = None if memory is None else memory["wkv"]
        out, last = wkv7(r, log_decay, k, v, a, b, state, backend=self.backend)
        if memory is not None:
            memory["wkv"] = last
        newest = (r * k * self.r_k).sum(-1, keepdim=True) * v
        return self.output((self.normed(out) + newest.flatten(2)) * gate), first

    def addressed(
        self, x: Tensor, change: Tensor, memory: BlockMemory | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """r, ln w, k~, -kappa and a kappa, (B,T,H,N) each, from x_t and x_{t-1} - x_t.

        ln w is in float32 or wider. memory: where decays are scaled, the steps before x.
        """
        x_r, x_w, x_k, x_a = (x + change * mu for mu in (self.x_r, self.x_w, self.x_k, self.x_a))
        log_t = None
        if self.log_length is not None:
            wide = torch.promote_types(self.w0.dtype, torch.float32)
            log_t = log_positions(x, memory, wide)
        w0 = self.level(log_t)
        by_data = torch.tanh(x_w @ self.w1) @ self.w2
        log_decay = -LARGEST_RATE * torch.sigmoid(w0 + by_data.to(w0.dtype))
        rate = torch.sigmoid(self.a0 + x_a @ self.a1 @ self.a2)
        r = self.receptance(x_r)
        k = self.key(x_k)
        removal = F.normalize(self.split(k * self.k_k), dim=-1)
        replacement = k * lerped(torch.ones_like(rate), rate, self.k_a)
        r, log_decay, rate, replacement = map(self.split, (r, log_decay, rate, replacement))
        k, a, b = (y.to(r.dtype) for y in (replacement, -removal, removal * rate))
        return r, log_decay, k, a, b

    def rates(self, position: float | None = None) -> Tensor:
        """Decay rates per byte, (H,N) float64, without what the data add.

        position: from 1, at which rates that are scaled by it are stated; None for the length of
        training.
        """
        log_t = self.log_length
        if log_t is not None and position is not None:
            log_t = torch.full_like(log_t, math.log(position))
        level = self.level(log_t).detach().double()
        return LARGEST_RATE * torch.sigmoid(level).reshape(self.heads, -1)

    def writes(self) -> Tensor:
        rate = torch.sigmoid(self.a0).detach().double().flatten()
        share = self.k_a.detach().double().flatten()
        return super().writes() * (1 + (rate - 1) * share)[:, None]

    @torch.no_grad()
    def response(self, lags: Tensor, *, erase: bool = True) -> Tensor:
        """Root mean square of k~_s A_{s+1} .. A_t r_t at the lags t - s, (T,) float64.

        lags: (T,), 1 or more. A_t = diag(w_t) - kappa^T (a kappa), or diag(w_t) alone without
        `erase`: what a byte still weighs in what a head reads t - s bytes later. Measured on white
        input of variance 1, such as a norm gives, over heads and a few s.
        """
        longest = int(lags.max())
        like = self.key.weight
        x = torch.randn(
            (SEQUENCES, longest + IMPULSES, like.shape[1]),
            generator=torch.Generator().manual_seed(SEED),
            dtype=torch.float32,
            device="cpu",
        )
        x = x.to(like)
        r, log_decay, k, a, b = self.addressed(x, previous(x) - x)
        unit = torch.eye(longest + IMPULSES, IMPULSES, dtype=r.dtype, device=r.device)
        impulses = unit[:, None].expand(*r.shape[:3], -1)
        if not erase:
            a = torch.zeros_like(a)
        out, _ = wkv7(r, log_decay, k, impulses, a, b, backend=self.backend)
        # Value channel i holds the impulse at byte i alone, so that it reads its response.
        found = [out[:, i:, :, i][:, lags.to(out.device)] for i in range(IMPULSES)]
        return torch.stack(found).double().square().mean(dim=(0, 1, 3)).sqrt().cpu()


class GooseChannelMixing(nn.Module):
    """value(relu(key(lerp(x_t, x_{t-1}, x_k)))**2)."""

    def __init__(self, config: RWKV7Config) -> None:
        super().__init__()
        self.x_k = vector(config.dim)
        self.key = Linear(config.structure, config.dim, config.hidden)
        self.value = Linear(config.structure, config.hidden, config.dim)
        self.squared_relu = Activation(config.structure, squared_relu)

    def forward(self, x: Tensor, memory: BlockMemory | None = None) -> Tensor:
        x_k = lerped(x, previous(x, memory, "ffn_shift"), self.x_k)
        return self.value(self.squared_relu(self.key(x_k)))


class RWKV7(RWKV):
    """Next-byte logits of Goose, with the methods of Eagle and Finch."""

    config: RWKV7Config  # type: ignore[assignment]  # has all that the parent reads of it

    def __init__(self, config: RWKV7Config) -> None:
        super().__init__(config)  # type: ignore[arg-type]

    def block(self, layer: int) -> Block:
        mixing = GooseMixing(self.config, layer)
        return Block(self.config, layer, mixing, GooseChannelMixing(self.config))

    @property
    def memory_names(self) -> tuple[str, ...]:
        return MEMORY if self.config.scaling_length is None else (*MEMORY, STEPS)

    @property
    def state_kind(self) -> str:
        kind = super().state_kind
        return kind if self.config.scaling_length is None else f"{kind} with decays by position"

    def state_layout(self) -> Layout:
        layout = dict(super().state_layout())
        if self.config.scaling_length is not None:
            counts = {block_name(i, STEPS): STEPS_KIND for i in range(self.config.layers)}
            layout |= counts
        return layout

    def half_lives(self, position: float | None = None) -> list[Tensor]:
        """Half-lives of every block in bytes, ln 2 / rate, (D,) float64, which the data move.

        position: byte, from 1, at which decays that are scaled by it are stated; None for the
        length of training. Raises ValueError for one below 1.
        """
        check_position(position)
        return [math.log(2) / mixing.rates(position).flatten() for mixing in self._geese()]

    def responses(self, lags: Tensor, *, erase: bool = True) -> list[Tensor]:
        """`GooseMixing.response` of every block at lags (T,), (T,) float64 each.

        They differ from `kernels` by what is erased.
        """
        return [mixing.response(lags, erase=erase) for mixing in self._geese()]

    def _geese(self) -> list[GooseMixing]:
        """The time mixings, as the class that they are here."""
        return [mixing for mixing in self.mixings() if isinstance(mixing, GooseMixing)]
