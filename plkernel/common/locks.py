"""Locks of folders, which keep two processes out of one run, study or record."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from plkernel.common.files import LOCK

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of flock on a file system that has no locks."""


@contextmanager
def held(folder: Path, name: str, patience: float = 0.0, keep: bool = True) -> Iterator[None]:
    """Hold `folder`, called `name` in messages.

    keep: the file of the lock stays in the folder.

    Raises ValueError when another process still holds it after `patience` seconds. The system
    releases the lock with the process, however that ends.
    """
    path = folder / LOCK
    try:
        lock = FileLock(path).acquire(timeout=patience)
    except Timeout:
        raise ValueError(f"{name} is in use by another process: wait for it or stop it") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise OSError(
            f"{name} cannot be locked ({os.strerror(error.errno)}), and locks keep two processes"
            " out of one folder: mount its file system with flock, or choose another folder"
        ) from error
    with lock:
        try:
            yield
        finally:
            if not keep:
                # Another process that has opened the file sees that it has gone, and opens anew.
                with suppress(PermissionError):  # Windows removes no file that is open
                    path.unlink(missing_ok=True)
