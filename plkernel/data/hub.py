"""Data sets of the Hugging Face hub; without a network, those in the cache of `datasets`."""

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from urllib.parse import urlsplit

from plkernel.data.columns import Query, column_blocks
from plkernel.data.files import Blocks
from plkernel.data.hub_errors import endpoint, offline_variable


def hub_blocks(name: str, config: str | None, split: str | None, separator: bytes, column: str) -> Blocks:
    """The text column of the data set `name`; nothing it brings along is ever executed.

    Raises OSError without a network, ValueError for an unknown name, configuration, split or column.
    """
    query = Query(":".join(filter(None, ["hf", name, config])), {"path": name, "name": config}, column, split)
    with nullcontext() if reachable() else _offline():
        yield from column_blocks(query, separator)


def reachable() -> bool:
    """Whether the hub may be asked and its name resolves: `datasets` itself would retry for 24 s before it knew."""
    if offline_variable():
        return False
    parts = urlsplit(endpoint())
    if parts.scheme in urllib.request.getproxies():  # then the proxy resolves names
        return True
    try:
        socket.getaddrinfo(parts.hostname, parts.port or 443)
    except OSError:
        return False
    return True


@contextmanager
def _offline() -> Iterator[None]:
    """Make `datasets` look at its own cache only. Both libraries read the environment once, at import."""
    import datasets
    import huggingface_hub

    flags = [datasets.config, huggingface_hub.constants]
    before = [module.HF_HUB_OFFLINE for module in flags]
    try:
        for module in flags:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, value in zip(flags, before, strict=True):
            module.HF_HUB_OFFLINE = value
