"""Errors that `datasets` raises, as one line that says what to do."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST = 400


@contextmanager
def one_line(label: str) -> Iterator[None]:
    """Turn whatever goes wrong inside into ValueError or OSError with one line that starts with `label`.

    `datasets` sits on several readers and network stacks, each with exceptions of its own. All that they say
    concerns the data asked for, so none is worth a traceback (which stays available as the cause).
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(f"{label}: {explain(error)}") from error


def explain(error: Exception) -> str:
    """The message of `error`, or a better one for the failures that everybody meets."""
    from datasets.exceptions import DatasetNotFoundError

    if isinstance(error, DatasetNotFoundError):
        return (
            "no such data set on the hub, or a private one; check the spelling, "
            "hf:OWNER/NAME[:CONFIG[:SPLIT]], or log in with `hf auth login`"
        )
    if isinstance(error, ConnectionError):
        return f"{_why_offline()}; a local .parquet, .jsonl or .csv file works without a network"
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, RuntimeError) and "script" in text:
        return f"loading needs the data set's own code, which is never run ({text}); use a parquet copy of it"
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def endpoint() -> str:
    """The address of the hub: $HF_ENDPOINT or the public one."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def offline_variable() -> str | None:
    """The environment variable that forbids the network, if one does."""
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        if os.environ.get(variable, "").upper() in {"1", "ON", "YES", "TRUE"}:
            return variable
    return None


def _why_offline() -> str:
    if variable := offline_variable():
        return f"not in the local cache, and {variable} forbids the network: unset it to download"
    return (
        f"{endpoint()} cannot be reached and the data set is not in the local cache: connect to a network "
        "or set HF_ENDPOINT to a mirror"
    )
