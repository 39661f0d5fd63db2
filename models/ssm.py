"""A diagonal state-space language model over bytes, in one file.

Shapes: B batch, T time (bytes), P bytes per patch, D width (also the state size), 256 byte values.
Each block is

    x = x + SSM(LayerNorm(x));  x = x + SwiGLU(LayerNorm(x))
    SSM(u):  s_t = a * s_{t-1} + g(a) * (B u_t);  out_t = C s_t + c + D * u_t,
             a = exp(-exp(log_rate))

unless its `Structure` says otherwise.

Byte patching: bytes are embedded, every P embeddings are averaged into one patch, the blocks run
over patches, and each patch state goes back to bytes, where the byte's own embedding is added.
Modes differ in which patch a byte gets.

`parametrisation = "ordered"` and `scaling_length` are those of `plkernel.models.spectrum`, with
log_rate as the level p: the rate at step t is exp(p - alpha ln t). The input keeps its gain g.

State (`plkernel.models.state`): s_T of every block; with patches also the sum of the embeddings of
the bytes in the unfinished patch, and what the blocks made of the last complete one; with scaled
decays the steps that every block has taken.
"""

import math
from dataclasses import dataclass, field
from typing import cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.analysis.nodes import Gain, Nodes
from plkernel.kernels.scan import scan
from plkernel.models import NOT_CAUSAL, Order, PatchingMode
from plkernel.models.layers import (
    BYTES,
    Activation,
    Embedding,
    Head,
    Join,
    Linear,
    Refilled,
    Structure,
    last_norm,
    norm_of,
    unset,
)
from plkernel.models.power_law import decays_, projection_
from plkernel.models.spectrum import (
    ExactBuffers,
    Ordered,
    check_differ,
    check_ordered,
    check_position,
    check_scaling_length,
    exponents,
    log_length,
    log_positions,
    scaled,
)
from plkernel.models.state import (
    STEPS,
    STEPS_KIND,
    BlockMemory,
    Layout,
    State,
    blank,
    block_name,
    check_state_layout,
)

TOTAL = "patch.total"
LAST = "patch.last"
"""Names in a state of the sum over the unfinished patch and of the last complete one."""
ALIGNED = 64
"""Hidden widths are filled up to a multiple of it for the matrix units of a GPU."""


@dataclass(frozen=True)
class SSMConfig:
    """Width `dim`, `layers`, input gain and patching.

    gain              g(a), which the input of the recurrence is multiplied by
    patch             bytes per step of the recurrence; 1 is none
    mode              which patch a byte reads, see `unpool`
    backend           force one of the scan's implementations; None takes the one for the device
    structure         what an initialisation scheme asks for
    shape_multiplier  multiply the states by a fixed number per channel, the buffer `shape` of every
                      SSM branch, which takes the place of the columns of C_proj in `place_`: a
                      power law thus acts although C_proj is initialised with zeros
    parametrisation   `ordered` keeps the order of the decays in training, the fastest in channel 0
    scaling_length    T in bytes of decays that slow down with the position; None for decays that do
                      not
    """

    dim: int = 256
    layers: int = 4
    gain: Gain = "none"
    patch: int = 1
    mode: PatchingMode = "causal"
    backend: str | None = None
    structure: Structure = field(default_factory=Structure)
    shape_multiplier: bool = False
    parametrisation: Order = "free"
    scaling_length: float | None = None

    def __post_init__(self) -> None:
        for name in ("dim", "layers", "patch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        choices = {
            "gain": get_args(Gain),
            "mode": get_args(PatchingMode),
            "parametrisation": get_args(Order),
        }
        for name, valid in choices.items():
            given = getattr(self, name)
            if given not in valid:
                raise ValueError(f"{name} must be one of {', '.join(valid)}, got {given!r}")
        check_scaling_length(self.scaling_length, self.patch, channels=self.dim, name="dim")
        if self.parametrisation == "ordered":
            check_ordered(self.dim, "dim")
        if self.structure.unit_scaled and self.scaling_length is not None:
            raise ValueError(
                "scaling_length must be left out with unit_scaled, which divides states by their"
                f" deviation (it depends on the position then), got {self.scaling_length:g}"
            )
        if self.structure.unit_scaled and self.patch > 1:
            raise ValueError(
                "patch must be 1 with unit_scaled (means of patches have less variance), got"
                f" {self.patch}"
            )

    @property
    def causal(self) -> bool:
        """True if every prediction depends on earlier bytes only."""
        return self.patch == 1 or self.mode == "causal"


def pool(x: Tensor, size: int) -> Tensor:
    """Mean of every `size` consecutive embeddings: (B,T,D) -> (B,ceil(T/size),D).

    A last short patch is padded with zeros. It is never complete, so in `causal` mode no byte reads
    it.
    """
    missing = -x.shape[1] % size
    padded = F.pad(x, (0, 0, 0, missing))
    return padded.unflatten(1, (-1, size)).mean(dim=2)


def unpool(patches: Tensor, size: int, time: int, mode: PatchingMode) -> Tensor:
    """Patch states back on bytes: (B,ceil(T/size),D) -> (B,T,D).

    causal: byte t receives the last COMPLETED patch, number (t+1)//size - 1, and zeros before the
    first is complete. published: byte t receives its own patch t//size, which averages bytes up to
    size - 1 ahead of it: for size 2, position 2p predicts byte 2p+1 from the mean of bytes 2p and
    2p+1. Not causal, not a likelihood.
    """
    repeated = patches.repeat_interleave(size, dim=1)
    if mode == "causal":
        repeated = F.pad(repeated, (0, 0, size - 1, 0))
    return repeated[:, :time]


def pool_on(x: Tensor, size: int, total: Tensor, position: int) -> tuple[Tensor, Tensor]:
    """Means (B,N,D) of the patches that bytes x (B,T,D) complete; the sum (B,D) over the rest.

    total: (B,D), the sum over the `position` bytes of the unfinished patch that come before x.
    """
    count = (position + x.shape[1]) // size
    if count == 0:
        return x[:, :0], total + x.sum(dim=1)
    inside = count * size - position
    padded = F.pad(x[:, :inside], (0, 0, position, 0))
    sums = padded.unflatten(1, (count, size)).sum(dim=2)
    first = (sums[:, :1] + total[:, None]).to(x.dtype)
    means = torch.cat((first, sums[:, 1:]), dim=1) / size
    return means, x[:, inside:].sum(dim=1)


def unpool_on(patches: Tensor, size: int, time: int, last: Tensor, position: int) -> Tensor:
    """The last complete patch (B,T,D) of each of `time` bytes.

    patches: (B,N,D), what the blocks made of those that the bytes complete. last: (B,D), the one
    before them. position: bytes in the unfinished patch before the first byte. In one part, with
    zeros before it, this is `unpool` in mode `causal`.
    """
    known = torch.cat((last[:, None], patches), dim=1)
    repeated = known.repeat_interleave(size, dim=1)
    return repeated[:, position + 1 : position + 1 + time]


class DiagonalSSM(Refilled, ExactBuffers):
    """The SSM branch: (B,T,D) to (B,T,D).

    Its rates are those of steps, of `tokens_per_step` bytes each; `plkernel.watch` reads both.
    """

    def __init__(self, config: SSMConfig) -> None:
        super().__init__()
        dim = config.dim
        self.tokens_per_step = config.patch
        self.scaling_length = config.scaling_length
        self.gain = config.gain
        self.backend = config.backend
        self.unit_scaled = config.structure.unit_scaled
        self.ordered: Ordered | None = None
        if config.parametrisation == "ordered":
            self.ordered = Ordered(dim, descending=True)
        else:
            self.log_rate = nn.Parameter(torch.zeros(dim))  # until `place_`: schemes leave it alone
        self.B = Linear(config.structure, dim, dim)
        self.C_proj = Linear(config.structure, dim, dim, bias=True)
        self.D = unset(dim)
        self.shape: Tensor | None
        self.register_buffer("shape", torch.ones(dim) if config.shape_multiplier else None)
        self.log_length: Tensor | None
        self.register_buffer("log_length", log_length(config.scaling_length, config.patch))

    def refill_(self) -> None:
        """The decays until `place_`, the shape, and ln T."""
        if self.ordered is None:
            self.log_rate.zero_()
        if self.shape is not None:
            self.shape.fill_(1)
        if self.log_length is not None:
            self.log_length.fill_(math.log(cast(float, self.scaling_length) / self.tokens_per_step))

    def levels(self) -> Tensor:
        """ln of the rate per step, (D,) in float32 or wider; at step 1 where rates are scaled."""
        if self.ordered is not None:
            return self.ordered()
        return self.log_rate.to(torch.promote_types(self.log_rate.dtype, torch.float32))

    def rates(self, step: float | None = None) -> Tensor:
        """Decay rates per step, (D,) float64; where they are scaled those at `step`, None for T."""
        levels = self.levels().detach().double()
        if self.log_length is not None:
            length = self.log_length.double()
            log_t = length[0] if step is None else torch.full_like(length[0], step).log()
            levels = scaled(levels, exponents(levels, length), log_t)
        return levels.exp()

    def rates_of(self, levels: Tensor, driven: Tensor, memory: BlockMemory | None) -> Tensor:
        """Scaled decay rates of the steps of `driven` (B,T,D), (1,T,D) or (B,T,D)."""
        log_t = log_positions(driven, memory, levels.dtype)
        alpha = exponents(levels, cast(Tensor, self.log_length))
        return scaled(levels, alpha, log_t).exp()

    def forward(self, u: Tensor, memory: BlockMemory | None = None) -> Tensor:
        levels = self.levels()
        rate = levels.exp()
        driven = self.B(u)
        if self.gain != "none":
            driven = driven * input_gain(rate, self.gain).to(driven.dtype)
        before = None if memory is None else memory["ssm"]
        decays = torch.exp(-rate)
        if self.log_length is not None:
            decays = torch.exp(-self.rates_of(levels, driven, memory)).expand(driven.shape)
        states, last = scan(decays, driven, before, backend=self.backend)
        if memory is not None:
            memory["ssm"] = last
        if self.shape is not None:
            states = states * self.shape
        if self.unit_scaled:
            states = states / white_std(rate, self.gain).to(states.dtype)
            return (self.C_proj(states) + self.D * u) / math.sqrt(2)
        return self.C_proj(states) + self.D * u

    def kernel(self, steps: Tensor) -> Tensor:
        """Root mean square over the entries of C diag(g a**t) B after t steps, (T,) float64.

        It is what an input still weighs t steps later, without D and up to constants of the scheme:
        with random B and C in proportion to the rms kernel of the nodes (`analysis.nodes.moments`).
        The sum over D*D entries comes from v' [(C'C) * (BB')] v with v = g a**t. Where decays are
        scaled by the position, a is that at T throughout.
        """
        rate = self.levels().detach().double().exp()
        into = self.B.weight.detach().double()
        out = self.C_proj.weight.detach().double()
        scale = input_gain(rate, self.gain)
        if self.shape is not None:
            scale = scale * self.shape.double()
        if self.unit_scaled:
            scale = scale / white_std(rate, self.gain)
        left = scale * torch.exp(-self.rates() * steps.to(rate)[:, None])
        pairs = (out.T @ out) * (into @ into.T)
        squares = torch.einsum("ti,ij,tj->t", left, pairs, left)
        return (squares.clamp(min=0) / (into.shape[1] * out.shape[0])).sqrt()

    def place_(self, nodes: Nodes) -> None:
        """Set the decays, and the multipliers of the states.

        These go into `shape` if there is one, else into C_proj's columns. Raises ValueError for
        rates that are all the same where they are scaled by the position.
        """
        if self.log_length is not None:
            rates = torch.tensor(nodes.rates, dtype=torch.float32, device="cpu")
            check_differ("rates of nodes", rates)
        if self.shape is not None:
            self.shape.fill_(1)
        if self.ordered is not None:
            nodes = self.ordered.arranged(nodes)
        decays_(self.log_rate if self.ordered is None else self.ordered, nodes)
        projection_(self.C_proj.weight if self.shape is None else self.shape, nodes)


def input_gain(rate: Tensor, name: Gain) -> Tensor:
    """g(lambda) for rates (D,): 1, 1 - a, sqrt(1 - a**2) or min(1, lambda), with a = exp(-lambda).

    It is computed through expm1, so that slow nodes keep digits.
    """
    if name == "ema":
        return -torch.expm1(-rate)
    if name == "lru":
        return (-torch.expm1(-2 * rate)).sqrt()
    if name == "clamp":
        return rate.clamp(max=1.0)
    return torch.ones_like(rate)


def white_std(rate: Tensor, name: Gain) -> Tensor:
    """sqrt(sum_k K_k**2) = g / sqrt(1 - a**2) of rates (D,).

    It is the standard deviation of a state under white input.
    """
    return input_gain(rate, name) / input_gain(rate, "lru")


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) with hidden width int(4 D / 3), no biases.

    Source: arXiv 2002.05202, equation 6.
    """

    def __init__(self, dim: int, structure: Structure) -> None:
        super().__init__()
        hidden = int(4 * dim / 3)
        self.gate = Linear(structure, dim, hidden)
        self.up = Linear(structure, dim, hidden)
        self.down = Linear(structure, hidden, dim)
        self.silu = Activation(structure, F.silu)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and torch.is_autocast_enabled("cuda") and self._is_fillable():
            return self._filled(x)
        return self.down(self.silu(self.gate(x)) * self.up(x))

    def _is_fillable(self) -> bool:
        """True if `_filled` differs from the formula, and can: layers are their matrices alone."""
        layers = (self.gate, self.up, self.down)
        plain = all(layer.shift is None and layer.multiplier == 1 for layer in layers)
        return plain and self.down.in_features % ALIGNED > 0

    def _filled(self, x: Tensor) -> Tensor:
        """The same function with the hidden width filled up with zeros to a multiple of ALIGNED.

        In bfloat16, rows of another width do not begin where matrix units can load them at once.
        """
        extra = -self.down.in_features % ALIGNED
        rows = (0, 0, 0, extra)
        into = torch.cat((F.pad(self.gate.weight, rows), F.pad(self.up.weight, rows)))
        gated, up = F.linear(x, into).chunk(2, dim=-1)
        return F.linear(self.silu(gated) * up, F.pad(self.down.weight, (0, extra)))


class Block(nn.Module):
    """LayerNorm, SSM, residual, LayerNorm, SwiGLU, residual, or as the structure has it."""

    def __init__(self, config: SSMConfig, layer: int) -> None:
        super().__init__()
        dim = config.dim
        structure = config.structure
        self.norm1 = norm_of(structure, dim)
        self.join1 = Join(structure, dim, f"mixer.{layer}")
        self.ssm = DiagonalSSM(config)
        self.norm2 = norm_of(structure, dim)
        self.join2 = Join(structure, dim, f"ffn.{layer}")
        self.mlp = SwiGLU(dim, structure)

    def forward(self, x: Tensor, memory: BlockMemory | None = None) -> Tensor:
        branch = self.ssm(self.join1.read(x, self.norm1), memory)
        x = self.join1.add(x, branch, self.norm1)
        branch = self.mlp(self.join2.read(x, self.norm2))
        return self.join2.add(x, branch, self.norm2)


class SSM(nn.Module):
    """Next-byte logits: (B,T) bytes to (B,T,256), position t from bytes 0..t.

    Not so where `config.causal` is false. With a state as the second argument it returns logits and
    the next state. Logits are NaN until the parameters have values: fill a new model with
    `plkernel.models.init.initialise_`, or load a state dict.
    """

    def __init__(self, config: SSMConfig) -> None:
        super().__init__()
        dim = config.dim
        structure = config.structure
        self.config = config
        self.embedding = Embedding(structure, BYTES, dim, norm=structure.embedding_norm)
        self.blocks = nn.ModuleList([Block(config, layer) for layer in range(config.layers)])
        # With patches, what reaches the head is a sum that no block has normed.
        self.norm = norm_of(structure, dim) if config.patch > 1 else last_norm(structure, dim)
        self.head = Head(structure, self.embedding)

    def forward(self, inputs: Tensor, state: State | None = None) -> Tensor | tuple[Tensor, State]:
        """Logits (B,T,256) of bytes (B,T); with a `state` before them, also the next state.

        Raises ValueError for a state of another model, batch, dtype or device.
        """
        if state is None:
            return self.decode(self.embedding(inputs))
        check_state_layout(state, self.state_kind, self.state_layout(), inputs, self.config.patch)
        return self.resume(self.embedding(inputs), state)

    def decode(self, embedded: Tensor) -> Tensor:
        """Logits (B,T,256) from byte embeddings (B,T,D)."""
        size = self.config.patch
        time = embedded.shape[1]
        x = pool(embedded, size) if size > 1 else embedded
        for block in self.blocks:
            x = block(x)
        if size > 1:
            x = unpool(x, size, time, self.config.mode) + embedded
        return self.head(self.norm(x))

    def resume(self, embedded: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits (B,T,256) from embeddings (B,T,D) after a checked `state`, and the next state."""
        size = self.config.patch
        time = embedded.shape[1]
        names = ("ssm",) if self.config.scaling_length is None else ("ssm", STEPS)
        memories = state.memories(self.config.layers, names)
        x = embedded
        if size > 1:
            x, total = pool_on(embedded, size, state.tensors[TOTAL], state.position)
        if x.shape[1] > 0:
            for block, memory in zip(self.blocks, memories, strict=True):
                x = block(x, memory)
        after = state.with_memories(memories)
        if size > 1:
            last = state.tensors[LAST]
            newest = x[:, -1].to(last.dtype, copy=True) if x.shape[1] > 0 else last
            x = unpool_on(x, size, time, last, state.position) + embedded
            patches = {TOTAL: total.to(state.tensors[TOTAL].dtype), LAST: newest}
            position = (state.position + time) % size
            after = State(state.model, after.tensors | patches, position)
        return self.head(self.norm(x)), after

    def initial_state(self, batch: int) -> State:
        """The state before the first byte of `batch` texts.

        Raises ValueError for patching mode `published`, whose outputs need bytes that are not known
        yet.
        """
        return blank(self.state_kind, self.state_layout(), batch, self.head.weight.device)

    @property
    def state_kind(self) -> str:
        """The model that a state belongs to, in words."""
        patch = self.config.patch
        kind = "ssm" if patch == 1 else f"ssm with patches of {patch} bytes"
        return kind if self.config.scaling_length is None else f"{kind} and decays by position"

    def state_layout(self) -> Layout:
        """Shape and dtype of every tensor of a state."""
        if not self.config.causal:
            raise ValueError(
                f"mode must be 'causal' for a state, got 'published' ({NOT_CAUSAL}); it needs bytes"
                " that are not known yet"
            )
        dim = self.config.dim
        dtype = self.head.weight.dtype
        wide = torch.promote_types(dtype, torch.float32)
        layout: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for i in range(self.config.layers):
            layout[block_name(i, "ssm")] = ((dim,), wide)
            if self.config.scaling_length is not None:
                layout[block_name(i, STEPS)] = STEPS_KIND
        if self.config.patch > 1:
            layout |= {TOTAL: ((dim,), wide), LAST: ((dim,), dtype)}
        return layout

    def half_lives(self, position: float | None = None) -> list[Tensor]:
        """Half-lives of every block in bytes, ln 2 * P / lambda, (D,) float64 each.

        position: byte, from 1, at which decays that are scaled by it are stated; None for the
        length of training. Raises ValueError for one below 1.
        """
        check_position(position)
        scale = math.log(2) * self.config.patch
        step = None if position is None else max(1.0, position / self.config.patch)
        return [scale / recurrence.rates(step) for recurrence in self.recurrences()]

    def kernels(self, lags: Tensor) -> list[Tensor]:
        """Weight of an input `lags` (T,) bytes later in every SSM branch, (T,) float64 each."""
        return [recurrence.kernel(lags / self.config.patch) for recurrence in self.recurrences()]

    def responses(self, lags: Tensor) -> list[Tensor]:
        """Impulse responses of every block where they differ from `kernels`; none do here."""
        return []

    def place_(self, nodes: Nodes, bonus: float | None = None) -> None:
        """Write `nodes` into every block, in place; an SSM has no bonus."""
        for recurrence in self.recurrences():
            recurrence.place_(nodes)

    def recurrences(self) -> list[DiagonalSSM]:
        """The SSM branch of every block, from the first."""
        return [module for module in self.modules() if isinstance(module, DiagonalSSM)]
