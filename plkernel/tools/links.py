"""Files of a folder that may come from somebody else: nothing is written through a symbolic link in it."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
"""Makes opening a link an error, where the system has that; `refuse_links` is what says it in words."""


def refuse_links(paths: Iterable[Path]) -> None:
    """ValueError naming the first of `paths` that is neither a plain file nor a folder; what is missing may be."""
    for path in paths:
        mode = _mode(path)
        if mode is None or stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            continue
        if stat.S_ISLNK(mode):
            raise ValueError(
                f"{path} is a symbolic link to {os.readlink(path)}, and nothing is written through one: "
                "remove it, or put what it points to in its place"
            )
        raise ValueError(f"{path} is no plain file: remove it")


def refuse_links_of_run(folder: Path) -> None:
    """ValueError where the folder of a run, that of its arm, or anything in it is a link or no plain file."""
    refuse_links([folder.parent, folder])
    if folder.is_dir():
        refuse_links(sorted(folder.iterdir()))


def open_own(path: Path, flags: int) -> int:
    """A descriptor of `path` itself; OSError for a link."""
    return os.open(path, flags | NO_FOLLOW | getattr(os, "O_CLOEXEC", 0), 0o666)


def _mode(path: Path) -> int | None:
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None
