"""Processes that end once their parent has been killed."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

PARENT = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from plkernel.common import children

def begin():
    children.PATIENCE = 0.1
    children.end_with_parent()

def work(seconds):
    print(os.getpid(), flush=True)
    time.sleep(seconds)

def begin_and_work(seconds):
    begin()
    work(seconds)

if __name__ == "__main__":
    context = get_context("spawn")
    if sys.argv[1] == "pool":
        with ProcessPoolExecutor(1, mp_context=context, initializer=begin) as pool:
            pool.submit(work, 0.5)
            time.sleep(600)
    else:
        context.Process(target=begin_and_work, args=(600,), daemon=True).start()
        time.sleep(600)
"""
"""A program with one process, whose number it prints."""


@pytest.mark.parametrize("kind", ["pool", "process"])
def test_a_process_ends_once_its_parent_is_killed(kind: str, tmp_path: Path) -> None:
    """Also one that waits for its next task. It holds the pipe that it prints to."""
    program = tmp_path / "parent.py"
    program.write_text(PARENT)
    command = [sys.executable, str(program), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        try:
            parent.communicate(timeout=120)
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
