"""Processes that end with the one that started them."""

import os
import threading
import time
from _thread import interrupt_main
from multiprocessing import connection, parent_process

PATIENCE = 5.0
"""Seconds that a process has to remove its temporary files once its parent has ended."""


def end_with_parent() -> None:
    """Have this process, which `multiprocessing` started, end soon after its parent.

    Otherwise it stays where the parent is killed: a worker of a pool, for one, holds both ends of
    the pipe of its tasks, and waits for the next one for ever. Nothing happens in a process that
    `multiprocessing` did not start.
    """
    parent = parent_process()
    if parent is None:
        return
    watch = threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True)
    watch.start()


def _end_after(sentinel: int) -> None:
    """End this process once `sentinel`, of the parent, is ready."""
    connection.wait([sentinel])
    interrupt_main()  # removes temporary folders, unless the main thread waits for something
    time.sleep(PATIENCE)
    os._exit(1)
