"""Eagle (RWKV-5) and Finch (RWKV-6) over bytes: arXiv 2404.05892, section 4, and the official code.

Shapes: B batch, T time (bytes), D width, H heads of size N = D / H, F feed-forward width, 256 byte
values.

    Block:          x = x + TimeMixing(LayerNorm(x));  x = x + ChannelMixing(LayerNorm(x))
    TimeMixing:     o_t = r_t (S_{t-1} + diag(u) k_t^T v_t),  S_t = diag(w_t) S_{t-1} + k_t^T v_t,
                    w = exp(-exp(w_raw)),
                    output(silu(g) * GroupNorm(o)) with one group per head
    ChannelMixing:  sigmoid(receptance(x_r)) * value(relu(key(x_k))**2)

and a LayerNorm after the embedding (ln0) and before the head (ln_out), unless its `Structure` says
otherwise. Token shift: r, k, v, g and x_r, x_k are read from mixtures of x_t and x_{t-1}, x_{-1} =
0. In Eagle the mixtures and w_raw are learned vectors; in Finch those of the time mixing also
depend on the data, through low-rank maps. Names, shapes and order of `state_dict()` are those of
the official checkpoints, x052 and x060.

State (`plkernel.models.state`): of every block S_T (B,H,N,N), and x_T (B,D) of both mixings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.analysis.nodes import Nodes
from plkernel.kernels.wkv import wkv
from plkernel.models.layers import (
    BYTES,
    Activation,
    Embedding,
    Head,
    Join,
    Linear,
    Structure,
    last_norm,
    norm_of,
    squared_relu,
    unset,
)
from plkernel.models.power_law import decays_, projection_
from plkernel.models.spectrum import check_position
from plkernel.models.state import (
    BlockMemory,
    Layout,
    State,
    blank,
    check_state_layout,
    layout_of_blocks,
)

MEMORY = ("att_shift", "wkv", "ffn_shift")
"""State of a block: the last input of its time mixing, S, the last input of its channel
mixing.
"""
GROUP_NORM_EPS = 64e-5
"""Of the norm of every head, as in Finch; Eagle divides by 8 and takes 1e-5, which is the same."""


class RWKVSizes:
    """The sizes of every configuration; a model is always causal, and a byte is a step."""

    dim: int
    layers: int
    head_size: int
    feed_forward: int | None
    dropout: float
    structure: Structure
    hidden: Any
    causal = True
    patch = 1

    @property
    def heads(self) -> int:
        """H."""
        return self.dim // self.head_size

    def check(self, *ranks: str) -> None:
        """ValueError for sizes that no model has."""
        smallest = {"dim": 2, "layers": 1, "head_size": 1}
        # The official inference code drops dimensions of size 1, which a rank of 1 would not
        # survive.
        smallest |= dict.fromkeys(ranks, 2)
        for name, least in smallest.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        if self.dim % self.head_size:
            raise ValueError(
                f"dim must be a multiple of head_size, got dim {self.dim} and head_size"
                f" {self.head_size}"
            )
        if self.hidden < 1:
            message = f"feed_forward must be at least 1, got {self.hidden}"
            if self.feed_forward is None:
                message += (
                    f" (for dim {self.dim}; the official int(3.5 * dim // 32 * 32) needs dim of 10"
                    " or more)"
                )
            raise ValueError(message)


@dataclass(frozen=True)
class RWKVConfig(RWKVSizes):
    """Eagle (`version` 5) or Finch (6), of width `dim` with heads of `head_size` channels.

    mix_rank      rank of Finch's data-dependent token shift
    decay_rank    rank of Finch's data-dependent decay
    k_clamp       scale the key by exp(min(w_raw, 0)) = min(1, lambda), lambda the decay rate
    backend       force one of the operator's implementations
    feed_forward  width of the channel mixing; None for the official 3.5 D, rounded down to a
                  multiple of 32
    dropout       share of the residual stream set to zero in training, after the embedding and
                  after every branch
    structure     what initialisation schemes ask for and the official models never do; the norm of
                  the heads stays as it is, and an embedding multiplier acts before ln0, which
                  undoes it
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


def previous(x: Tensor, memory: BlockMemory | None = None, name: str = "") -> Tensor:
    """x_{t-1} at every t of x (B,T,D); before the first the entry `name` of `memory`, or zero.

    The entry becomes x_T.
    """
    if memory is None:
        first = torch.zeros_like(x[:, :1])
    else:
        first = memory[name][:, None]
        memory[name] = x[:, -1].clone()  # alone: a view would keep all of x
    return torch.cat((first, x), dim=1)[:, :-1]


def lerped(start: Tensor, end: Tensor, share: Tensor) -> Tensor:
    """start + share * (end - start) in the dtype of `start`.

    Weights of half a width meet norms in float32 under CUDA's autocast, and torch mixes no dtypes.
    """
    return torch.lerp(start, end, share.to(start.dtype))


def vector(dim: int) -> nn.Parameter:
    """One number per channel, in the shape of the official checkpoints."""
    return unset(1, 1, dim)


def precise(x: Tensor) -> Tensor:
    """x in float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def mixtures(
    x: Tensor, change: Tensor, base: Sequence[Tensor], shares: Tensor, at_once: bool
) -> tuple[Tensor, ...]:
    """x + change * (mu + share) (B,T,D) for every mu of `base` and its share.

    base: S of (1,1,D). shares: (S,B,T,D). at_once: launch S times less, with gradients that are
    summed in another order.
    """
    if at_once:
        return (x + change * (torch.stack(tuple(base)) + shares)).unbind()
    return tuple(x + change * (mu + share) for mu, share in zip(base, shares, strict=True))


class Mixing(nn.Module):
    """A time mixing, with what is known of its memory from its parameters alone.

    DELAY: steps of a lag in which nothing decays, 1 where o_t reads S_{t-1}. vectors: names of
    parameters of one number per channel.
    """

    DELAY = 1

    if TYPE_CHECKING:  # parameters and layers are set by name

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, config: Any, vectors: Sequence[str], linears: Sequence[str]) -> None:
        super().__init__()
        self.heads = config.heads
        self.backend = config.backend
        for name in vectors:
            setattr(self, name, vector(config.dim))
        for name in linears:
            setattr(self, name, Linear(config.structure, config.dim, config.dim))
        self.ln_x = nn.GroupNorm(config.heads, config.dim, eps=GROUP_NORM_EPS)

    def place_(self, nodes: Nodes, bonus: float | None = None) -> None:
        """Write the nodes of all heads into the decays and the receptance, in place."""
        raise NotImplementedError

    def split(self, x: Tensor) -> Tensor:
        """Heads of x: (B,T,D) to (B,T,H,N)."""
        return x.unflatten(-1, (self.heads, -1))

    def normed(self, out: Tensor) -> Tensor:
        """Every head (B,T,H,N) by its norm, as (B,T,D)."""
        joined = out.flatten(2)
        return self.ln_x(joined.flatten(0, 1)).view(joined.shape)

    def rates(self) -> Tensor:
        """Decay rates per byte of every head's channels, (H,N) float64.

        Those that the data move are taken at their bias.
        """
        raise NotImplementedError

    def writes(self) -> Tensor:
        """Matrix that makes the key of white input, (D,D) float64."""
        return self.key.weight.detach().double()

    def kernel(self, lags: Tensor) -> Tensor:
        """Root mean square over heads and entries of R' diag(w**(t - DELAY)) K, (T,) float64.

        t: the lags (T,). R and K are a head's (N,D) parts of receptance and key: it is what a byte
        still weighs t bytes later in the output of the recurrence, for white input, before value,
        group norm and gate. As a sum over channels, squared: v' [(RR') * (KK')] v with
        v = w**(t - DELAY).
        """
        rates = self.rates()
        heads = len(rates)
        reads = self.receptance.weight.detach().double().unflatten(0, (heads, -1))
        writes = self.writes().unflatten(0, (heads, -1))
        decayed = torch.exp(-rates * (lags.to(reads) - self.DELAY)[:, None, None])
        pairs = (reads @ reads.mT) * (writes @ writes.mT)
        squares = torch.einsum("thi,hij,thj->th", decayed, pairs, decayed).mean(dim=1)
        return squares.clamp(min=0).sqrt() / reads.shape[2]


class TimeMixing(Mixing):
    """Time mixing of RWKV-5 (equations 3 to 9) and RWKV-6 (14 to 19).

    Eagle: `time_mix_s` = 1 - mu_s weighs x_t, one decay per channel. Finch: `time_maa_s` = mu_s
    weighs x_{t-1}, and the data add to it: ddlerp_s(a, b) = a + (b - a) * (mu_s + tanh((a + (b - a)
    * mu_x) A_s) B_s) for s in w, k, v, r, g, and w_raw = time_decay + tanh(ddlerp_w A) B per byte
    and channel.
    """

    def __init__(self, config: RWKVConfig) -> None:
        eagle = config.version == 5
        if eagle:
            vectors = [f"time_mix_{s}" for s in "kvrg"]
        else:
            vectors = [f"time_maa_{s}" for s in "xwkvrg"]
        super().__init__(config, vectors, ("receptance", "key", "value", "output", "gate"))
        self.eagle = eagle
        self.k_clamp = config.k_clamp
        if eagle:
            self.time_decay = unset(config.heads, config.head_size)
        else:
            dim = config.dim
            mix = config.mix_rank
            decay = config.decay_rank
            self.time_maa_w1 = unset(dim, 5 * mix)
            self.time_maa_w2 = unset(5, mix, dim)
            self.time_decay = vector(dim)
            self.time_decay_w1 = unset(dim, decay)
            self.time_decay_w2 = unset(decay, dim)
        self.time_faaaa = unset(config.heads, config.head_size)
        self.silu = Activation(config.structure, F.silu)

    def streams(self, x: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        """Inputs (B,T,D) of r, k, v and g from x_t and x_{t-1}, and w_raw.

        w_raw is (B,T,H,N) or (H,N), in float32 or wider.
        """
        w_raw = precise(self.time_decay)
        if self.eagle:
            shares = (self.time_mix_r, self.time_mix_k, self.time_mix_v, self.time_mix_g)
            return *(lerped(before, x, share) for share in shares), w_raw
        change = before - x
        low = torch.tanh((x + change * self.time_maa_x) @ self.time_maa_w1).unflatten(-1, (5, -1))
        added = torch.einsum("btsr,srd->sbtd", low, self.time_maa_w2)
        base = (self.time_maa_w, self.time_maa_k, self.time_maa_v, self.time_maa_r, self.time_maa_g)
        x_w, x_k, x_v, x_r, x_g = mixtures(x, change, base, added, at_once=x.is_cuda)
        by_data = torch.tanh(x_w @ self.time_decay_w1) @ self.time_decay_w2
        return x_r, x_k, x_v, x_g, self.split(w_raw + by_data.to(w_raw.dtype))

    @torch.no_grad()
    def place_(self, nodes: Nodes, bonus: float | None = None) -> None:
        """Set the decays and the rows of the receptance, and with `bonus` u = 2**bonus."""
        projection_(self.receptance.weight, nodes, dim=0)
        decays_(self.time_decay, nodes, "exp_exp")
        if bonus is not None:
            self.time_faaaa.fill_(2.0**bonus)

    def forward(self, x: Tensor, memory: BlockMemory | None = None) -> tuple[Tensor]:
        before = previous(x, memory, "att_shift")
        x_r, x_k, x_v, x_g, w_raw = self.streams(x, before)
        r = self.split(self.receptance(x_r))
        k = self.split(self.key(x_k))
        v = self.split(self.value(x_v))
        rate = w_raw.exp()
        if self.k_clamp:
            k = k * w_raw.clamp(max=0).exp().to(k.dtype)
        state = None if memory is None else memory["wkv"]
        out, last = wkv(r, k, v, -rate, self.time_faaaa, state, backend=self.backend)
        if memory is not None:
            memory["wkv"] = last
        return (self.output(self.normed(out) * self.silu(self.gate(x_g))),)

    def rates(self) -> Tensor:
        return self.time_decay.detach().double().exp().reshape(self.heads, -1)


class ChannelMixing(nn.Module):
    """sigmoid(receptance(x_r)) * value(relu(key(x_k))**2).

    It is the same function in both versions (equations 10 to 13).
    """

    def __init__(self, config: RWKVConfig) -> None:
        super().__init__()
        self.eagle = config.version == 5
        self.names = ("time_mix_k", "time_mix_r") if self.eagle else ("time_maa_k", "time_maa_r")
        for name in self.names:
            setattr(self, name, vector(config.dim))
        linear = partial(Linear, config.structure)
        self.key = linear(config.dim, config.hidden)
        self.receptance = linear(config.dim, config.dim)
        self.value = linear(config.hidden, config.dim)
        self.sigmoid = Activation(config.structure, torch.sigmoid)
        self.squared_relu = Activation(config.structure, squared_relu)

    def forward(self, x: Tensor, memory: BlockMemory | None = None) -> Tensor:
        before = previous(x, memory, "ffn_shift")
        # Eagle's share weighs x_t, Finch's x_{t-1}.
        start, end = (before, x) if self.eagle else (x, before)
        key_share, receptance_share = (getattr(self, name) for name in self.names)
        x_k = lerped(start, end, key_share)
        x_r = lerped(start, end, receptance_share)
        return self.sigmoid(self.receptance(x_r)) * self.value(self.squared_relu(self.key(x_k)))


class Block(nn.Module):
    """Norm, time mixing, residual, norm, channel mixing, residual.

    Block 0 first norms the embedding. carried: what a time mixing hands on to the next block, such
    as Goose's values of the first. memory: what the mixings remember of the bytes before, which
    they bring up to date.
    """

    def __init__(self, config: RWKVSizes, layer: int, att: nn.Module, ffn: nn.Module) -> None:
        super().__init__()
        dim = config.dim
        structure = config.structure
        self.ln1 = norm_of(structure, dim)
        self.ln2 = norm_of(structure, dim)
        self.ln0 = norm_of(structure, dim) if layer == 0 else None
        self.join1 = Join(structure, dim, f"mixer.{layer}")
        self.join2 = Join(structure, dim, f"ffn.{layer}")
        self.att = att
        self.ffn = ffn
        self.drop = nn.Dropout(config.dropout) if config.dropout else nn.Identity()

    def forward(
        self, x: Tensor, *carried: Tensor, memory: BlockMemory | None = None
    ) -> tuple[Tensor, ...]:
        if self.ln0 is not None:
            x = self.ln0(x)
        branch, *carried = self.att(self.join1.read(x, self.ln1), *carried, memory=memory)
        x = self.drop(self.join1.add(x, branch, self.ln1))
        branch = self.ffn(self.join2.read(x, self.ln2), memory)
        x = self.drop(self.join2.add(x, branch, self.ln2))
        return x, *carried


class RWKV(nn.Module):
    """Next-byte logits: (B,T) bytes to (B,T,256), position t from bytes 0..t.

    With a state as the second argument it returns logits and the next state. Logits are NaN until
    the parameters have values: fill a new model with `plkernel.models.init.initialise_`, or load a
    state dict.
    """

    def __init__(self, config: RWKVConfig) -> None:
        super().__init__()
        self.config = config
        self.emb = Embedding(config.structure, BYTES, config.dim)
        self.blocks = nn.ModuleList([self.block(layer) for layer in range(config.layers)])
        self.ln_out = last_norm(config.structure, config.dim)
        self.head = Head(config.structure, self.emb)
        self.drop = nn.Dropout(config.dropout) if config.dropout else nn.Identity()  # draws nothing

    def block(self, layer: int) -> Block:
        """A new block, of number `layer` from 0."""
        return Block(self.config, layer, TimeMixing(self.config), ChannelMixing(self.config))

    def forward(self, inputs: Tensor, state: State | None = None) -> Tensor | tuple[Tensor, State]:
        """Logits (B,T,256) of bytes (B,T); with a `state` before them, also the next state.

        Raises ValueError for a state of another model, batch, dtype or device.
        """
        if state is None:
            return self.decode(self.emb(inputs))
        check_state_layout(state, self.state_kind, self.state_layout(), inputs)
        memories = state.memories(self.config.layers, self.memory_names)
        logits = self.decode(self.emb(inputs), memories)
        return logits, state.with_memories(memories)

    def decode(self, embedded: Tensor, memories: Sequence[BlockMemory | None] = ()) -> Tensor:
        """Logits (B,T,256) from byte embeddings (B,T,D).

        memories: of every block, of the bytes before; they are brought up to date.
        """
        x = self.drop(embedded)
        known = memories or [None] * len(self.blocks)
        carried: list[Tensor] = []  # torch.compile knows no list[Tensor]()
        if x.shape[1] > 0:
            for block, memory in zip(self.blocks, known, strict=True):
                # Goose's blocks hand on the values of the first.
                x, *carried = block(x, *carried, memory=memory)
        return self.head(self.ln_out(x))

    def initial_state(self, batch: int) -> State:
        """The state before the first byte of `batch` texts."""
        return blank(self.state_kind, self.state_layout(), batch, self.head.weight.device)

    @property
    def memory_names(self) -> tuple[str, ...]:
        """State of every block."""
        return MEMORY

    @property
    def state_kind(self) -> str:
        """The model that a state belongs to, in words."""
        return f"rwkv{self.config.version}"

    def state_layout(self) -> Layout:
        """Shape and dtype of every tensor of a state."""
        config = self.config
        dtype = self.head.weight.dtype
        matrix = (config.heads, config.head_size, config.head_size)
        wide = torch.promote_types(dtype, torch.float32)
        kinds = {
            "att_shift": ((config.dim,), dtype),
            "wkv": (matrix, wide),
            "ffn_shift": ((config.dim,), dtype),
        }
        return layout_of_blocks(config.layers, kinds)

    def half_lives(self, position: float | None = None) -> list[Tensor]:
        """Half-lives of every block in bytes, ln 2 / rate, (D,) float64.

        In Finch and Goose the data move them. position: byte, from 1; those of Eagle and Finch are
        the same at all. Raises ValueError for one below 1.
        """
        check_position(position)
        return [math.log(2) / mixing.rates().flatten() for mixing in self.mixings()]

    def kernels(self, lags: Tensor) -> list[Tensor]:
        """Weight of an input `lags` (T,) bytes later in every state, (T,) float64 each."""
        return [mixing.kernel(lags) for mixing in self.mixings()]

    def responses(self, lags: Tensor) -> list[Tensor]:
        """Impulse responses of every block where they differ from `kernels`; none do here."""
        return []

    def place_(self, nodes: Nodes, bonus: float | None = None) -> None:
        """Write `nodes` into every head of an initialised model, in place.

        time_decay = ln(lambda) of the node, in Goose w0 = logit(lambda / exp(-1/2)); each row of
        the receptance times its node's multiplier; the rest stays as the scheme has it, how the
        data move the decay included. `bonus`, where given, is the exponent in u = 2**exponent of
        Eagle and Finch, which puts d = 1 on the law: there the decays would have to give
        2**exponent times what they give at d = 2. `plkernel.models.rwkv_nodes.check_nodes` says
        which nodes fit a model.

        Row i of a head's receptance reads the state's row i, whose decay is that of channel i. The
        output matrix cannot carry the shape: its columns belong to channels of the value, which do
        not decay apart, and it is zero at initialisation. GroupNorm divides every head by its own
        size, so only the shape inside a head acts: each holds the whole law, in N nodes. A byte at
        prediction distance d >= 2 is seen through a**(d-2), and at d = 1 through the bonus u alone
        (lag `bonus` of `plkernel.analysis.nodes.Aim`). The key is not scaled by the decay (gain
        `none`) unless the K-clamp multiplies it by min(1, lambda) (gain `clamp`). Goose reads the
        state after the newest byte, through a**(d-1) (lag `distance`), and has no half-life below
        1.143 bytes; what it erases comes on top of the decays.
        """
        heads = self.config.heads
        every = replace(nodes, rates=nodes.rates * heads, projection=nodes.projection * heads)
        for mixing in self.mixings():
            mixing.place_(every, bonus)

    def mixings(self) -> list[Mixing]:
        """The time mixing of every block, from the first."""
        return [module for module in self.modules() if isinstance(module, Mixing)]
