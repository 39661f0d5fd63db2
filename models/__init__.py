"""Sequence models over bytes, their patching and their initialisation."""

NOT_CAUSAL = "not causal, not a likelihood"
"""What every output of a model that sees its own target is called."""
