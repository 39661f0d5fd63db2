"""Data sets of the Hugging Face hub, streamed in Arrow batches; without a network, those in the cache of `datasets`."""

import logging
import os
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest.mock import patch
from urllib.parse import urlsplit

from plkernel.common.cli import nearest
from plkernel.data.files import ROWS, Blocks, check_column, one_line, text_block


def hub_blocks(name: str, config: str | None, split: str | None, separator: bytes, column: str) -> Blocks:
    """Read the text column of the data set `name`; nothing it brings along is ever executed.

    Raises OSError without a network, ValueError for an unknown name, configuration, split or column, in one line.
    """
    with one_line(":".join(filter(None, ["hf", name, config])), _explain), _settings(offline=not reachable()):
        from datasets import load_dataset

        splits = load_dataset(name, config, streaming=True)
        split = split or (next(iter(splits)) if len(splits) == 1 else "train")
        if split not in splits:
            raise ValueError(f"no split {split!r}; {nearest(split, splits)}")
        rows = splits[split]
        names = rows.column_names or [name for row in rows.take(1) for name in row]  # csv has them in its rows only
        check_column(list(names), column)
        with suppress(TypeError, ValueError):  # only parquet can leave out other columns while reading
            rows = load_dataset(name, config, streaming=True, columns=[column])[split]
        for table in rows.with_format("arrow").iter(batch_size=ROWS):
            for chunk in table.column(column).chunks:
                yield text_block(chunk, separator)


def reachable() -> bool:
    """True if the hub may be asked and its name resolves: `datasets` itself would retry for 24 s before it knew."""
    if _forbidding():
        return False
    parts = urlsplit(endpoint())
    if parts.scheme in urllib.request.getproxies():  # then the proxy resolves names
        return True
    try:
        socket.getaddrinfo(parts.hostname, parts.port or 443)
    except OSError:
        return False
    return True


def endpoint() -> str:
    """The address of the hub: $HF_ENDPOINT or the public one."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _forbidding() -> str | None:
    """The environment variable that forbids the network, if one does."""
    truth = {"1", "ON", "YES", "TRUE"}
    names = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    return next((name for name in names if os.environ.get(name, "").upper() in truth), None)


def _explain(error: Exception) -> str:
    """The message of `error`, or a better one for the common failures."""
    from datasets.exceptions import DatasetNotFoundError

    if isinstance(error, DatasetNotFoundError):
        return (
            "no such data set on the hub, or a private one; check the spelling, "
            "hf:OWNER/NAME[:CONFIG[:SPLIT]], or log in with `hf auth login`"
        )
    if isinstance(error, ConnectionError):
        absent = f"{endpoint()} cannot be reached and the data set is not in the local cache: connect to a network "
        absent += "or set HF_ENDPOINT to a mirror"
        if variable := _forbidding():
            absent = f"not in the local cache, and {variable} forbids the network: unset it to download"
        return f"{absent}; a local .parquet, .jsonl or .csv file works without a network"
    if isinstance(error, RuntimeError) and "script" in str(error):
        return f"loading needs the data set's own code, which is never run ({error}); use a parquet copy of it"
    return str(error)


@contextmanager
def _settings(offline: bool) -> Iterator[None]:
    """Silence `datasets` and its count of opened files, a request for each; `offline`, let it read its cache only.

    It reads the environment once, at import.
    """
    import datasets
    import huggingface_hub

    level, shown = datasets.logging.get_verbosity(), not datasets.are_progress_bars_disabled()
    offline = offline or datasets.config.HF_HUB_OFFLINE
    with (
        patch.object(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False),
        patch.object(datasets.config, "HF_HUB_OFFLINE", offline),
        patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", offline),
    ):
        datasets.logging.set_verbosity(logging.CRITICAL + 1)
        datasets.disable_progress_bars()
        try:
            yield
        finally:
            datasets.logging.set_verbosity(level)
            if shown:
                datasets.enable_progress_bars()
