"""python -m plkernel.bench scan | wkv | train | mi: check and time one part of the project against its peers."""

from collections.abc import Callable
from typing import Any

from plkernel.bench.mi import mi
from plkernel.bench.scan import scan
from plkernel.bench.train import train
from plkernel.bench.wkv import wkv
from plkernel.tools.cli import main_of

COMMANDS: dict[str, Callable[..., Any]] = {"scan": scan, "wkv": wkv, "train": train, "mi": mi}

if __name__ == "__main__":
    main_of(COMMANDS, str(__doc__))
