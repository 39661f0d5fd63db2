"""Files of tests as scripts in a process of their own, where Triton interprets kernels."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import plkernel


def run_interpreted(*arguments: str) -> Any:
    """Call Python with these arguments; return what it prints as JSON.

    Triton decides to interpret when it is imported, so that this process cannot.
    """
    folders = [Path(plkernel.__file__).parents[1], Path(__file__).parent]
    paths = os.pathsep.join(map(str, folders))
    child = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": paths, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    return json.loads(child.stdout)


def change_language_once() -> None:
    """In such a process: change Triton's language for the functions of each module once.

    The interpreter changes it for a launch, and again for each function that the kernel calls,
    where nothing is left to change: a fifth of its time.
    """
    from triton.runtime import interpreter

    changed = set()

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        module = function.fn.__module__
        if module not in changed:
            changed.add(module)
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
