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
