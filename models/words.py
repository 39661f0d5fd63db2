"""Words that specs and models share; nothing heavy is loaded for them."""

from typing import Literal

NOT_CAUSAL = "not causal, not a likelihood"
"""What every output of a model that sees its own target is called."""
PatchingMode = Literal["causal", "published"]
