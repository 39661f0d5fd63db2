"""Where the bytes of a corpus come from."""

from plkernel.sources.files import Block, Blocks
from plkernel.sources.names import PRESETS, Request, Source, resolve

__all__ = ["PRESETS", "Block", "Blocks", "Request", "Source", "resolve"]
