"""Sequence models over bytes and their initialisation.

Here are the words that they share with specs, without torch.
"""

from typing import Literal

NOT_CAUSAL = "not causal, not a likelihood"
"""Label of every output of a model that sees its own target."""
ModelKind = Literal["ssm", "rwkv5", "rwkv6", "rwkv7"]
"""The models of this package; a spec names any other as `module:attribute`."""
Device = Literal["auto", "cpu", "cuda"]
"""Where a model runs; `auto` is a GPU where there is one."""
PatchingMode = Literal["causal", "published"]
"""Which patch a byte reads: the last complete one, or its own, which holds bytes after it."""
Order = Literal["free", "ordered"]
"""Forms of the decays of a model: one number for each channel, or an order that training keeps."""
