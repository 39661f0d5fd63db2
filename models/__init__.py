"""Sequence models over bytes, their patching and their initialisation."""
