"""python -m plkernel.bench scan | wkv | wkv7 | train | mi: check and time one part of the project against its peers."""

from plkernel.tools.cli import main_of

COMMANDS = {name: f"plkernel.bench.{name}" for name in ("scan", "wkv", "wkv7", "train", "mi")}

if __name__ == "__main__":
    main_of(COMMANDS, str(__doc__))
