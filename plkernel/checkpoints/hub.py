"""Checkpoints on the Hugging Face hub: config.json and .safetensors files of a repository, and nothing else of it."""

import re
from pathlib import Path

from plkernel.common.plain import shown
from plkernel.data.hub import endpoint, reachable

NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?", re.ASCII)
WANTED = ["config.json", "*.safetensors", "*.safetensors.index.json"]


def downloaded(name: str) -> Path:
    """The folder of the repository OWNER/NAME[@REVISION] in the cache of huggingface_hub, fetched where it must be.

    Raises ValueError for what is no such name, OSError where it is neither in the cache nor to be had.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"model hf:{name}: expected hf:OWNER/NAME or hf:OWNER/NAME@REVISION, got {shown(name)}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    online = reachable()
    try:
        folder = snapshot_download(
            repository, revision=revision or None, allow_patterns=WANTED, local_files_only=not online
        )
    except HFValidationError as error:
        raise ValueError(f"model hf:{name}: {' '.join(str(error).split())}") from error
    except LocalEntryNotFoundError as error:
        raise OSError(
            f"model hf:{name}: not in the cache, and {endpoint()} cannot be reached: connect to a network, "
            "or name a folder or file that holds the checkpoint"
        ) from error
    except HfHubHTTPError as error:
        raise OSError(f"model hf:{name}: {' '.join(str(error).split())}") from error
    return Path(folder)
