"""What Eagle, Finch and Goose have in common: sizes, token shift, what is known of a memory, and the block around it.

Shapes: B batch, T time (bytes), D width, H heads of size N = D / H, F feed-forward width.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plkernel.models.layers import Join, norm_of
from plkernel.models.structure import Structure

GROUP_NORM_EPS = 64e-5  # Eagle's code divides by 8 and takes 1e-5, which is the same


class RWKVSizes(ABC):
    """What every configuration says of itself."""

    dim: int
    layers: int
    head_size: int
    feed_forward: int | None
    dropout: float
    structure: Structure

    @property
    @abstractmethod
    def hidden(self) -> int:
        """F."""

    @property
    def causal(self) -> bool:
        """Whether every prediction depends on earlier bytes only: always."""
        return True

    @property
    def heads(self) -> int:
        """H."""
        return self.dim // self.head_size

    def check(self, *ranks: str) -> None:
        """ValueError for sizes that no model has."""
        # The official inference code drops dimensions of size 1, which a rank of 1 would not survive.
        for name, least in (("dim", 2), ("layers", 1), ("head_size", 1), *((name, 2) for name in ranks)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        if self.dim % self.head_size:
            raise ValueError(f"dim must be a multiple of head_size, got dim {self.dim} and head_size {self.head_size}")
        if self.hidden < 1:
            official = f" (for dim {self.dim}; the official int(3.5 * dim // 32 * 32) needs dim of 10 or more)"
            raise ValueError(
                f"feed_forward must be at least 1, got {self.hidden}{official * (self.feed_forward is None)}"
            )
        self.structure.check(self.layers)


class LayerState(NamedTuple):
    """Memory of one block: the last inputs (B,D) of its two branches, and the WKV state (B,H,N,N), at least float32."""

    att_shift: Tensor
    wkv: Tensor
    ffn_shift: Tensor


def previous(x: Tensor, last: Tensor) -> Tensor:
    """x_{t-1} at every t, from x (B,T,D) and the input `last` (B,D) before the first."""
    return torch.cat((last[:, None], x[:, :-1]), dim=1)


def vector(dim: int) -> nn.Parameter:
    """One number per channel, in the shape of the official checkpoints."""
    return nn.Parameter(torch.empty(1, 1, dim))


def dropout(share: float) -> nn.Module:
    """Dropout of the residual stream; at 0 the identity, which draws no random number."""
    return nn.Dropout(share) if share else nn.Identity()


class Mixing(nn.Module, ABC):
    """What is known of the memory of a time mixing from its parameters alone.

    DELAY: steps of a lag in which nothing decays, 1 where o_t reads S_{t-1}.
    """

    DELAY = 1
    receptance: nn.Linear
    key: nn.Linear

    @abstractmethod
    def rates(self) -> Tensor:
        """Decay rates per byte of every head's channels, (H,N) float64; those that the data move, at their bias."""

    def writes(self) -> Tensor:
        """What makes the key of white input, (D,D) float64."""
        return self.key.weight.detach().double()

    def kernel(self, lags: Tensor) -> Tensor:
        """Root mean square over heads and entries of R' diag(w**(t - DELAY)) K at lags t (T,), (T,) float64.

        R and K are a head's (N,D) parts of receptance and key: it is what a byte still weighs t bytes later in the
        output of the recurrence, for white input, before value, group norm and gate. As a sum over channels, squared:
        v' [(RR') * (KK')] v with v = w**(t - DELAY).
        """
        rates = self.rates()
        reads, writes = (
            weight.view(len(rates), -1, weight.shape[1])
            for weight in (self.receptance.weight.detach().double(), self.writes())
        )
        decayed = torch.exp(-rates * (lags.to(reads) - self.DELAY)[:, None, None])
        pairs = (reads @ reads.mT) * (writes @ writes.mT)
        squares = torch.einsum("thi,hij,thj->th", decayed, pairs, decayed).mean(dim=1)
        return squares.clamp(min=0).sqrt() / reads.shape[2]


class Block(nn.Module):
    """Norm, time mixing, residual, norm, channel mixing, residual; block 0 first norms the embedding.

    carried: what a time mixing hands on to the next block, such as Goose's values of the first.
    """

    def __init__(self, config: RWKVSizes, layer: int, att: nn.Module, ffn: nn.Module) -> None:
        super().__init__()
        dim, structure = config.dim, config.structure
        self.ln1, self.ln2 = norm_of(structure, dim), norm_of(structure, dim)
        self.ln0 = norm_of(structure, dim) if layer == 0 else None
        self.join1, self.join2 = Join(structure, dim, f"mixer.{layer}"), Join(structure, dim, f"ffn.{layer}")
        self.att, self.ffn = att, ffn
        self.drop = dropout(config.dropout)

    def forward(self, x: Tensor, state: LayerState, *carried: Tensor) -> tuple[Any, ...]:
        if self.ln0 is not None:
            x = self.ln0(x)
        att_in = self.join1.read(x, self.ln1)
        branch, memory, *carried = self.att(att_in, state.att_shift, state.wkv, *carried)
        x = self.drop(self.join1.add(x, branch, self.ln1))
        ffn_in = self.join2.read(x, self.ln2)
        x = self.drop(self.join2.add(x, self.ffn(ffn_in, state.ffn_shift), self.ln2))
        return x, LayerState(att_in[:, -1], memory, ffn_in[:, -1]), *carried
