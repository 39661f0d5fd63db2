"""python -m plkernel.bench wkv7: the recurrence of RWKV-7 against its peers, forward plus backward, with its memory."""

from plkernel.bench.wkv7.command import wkv7

__all__ = ["wkv7"]
