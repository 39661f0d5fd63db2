"""Functions of these tests in a process where Triton interprets kernels, which is decided when triton is imported.

Started as a script it prints, as a list in JSON, what the functions return that its arguments name as FILE:FUNCTION.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import plkernel

FOLDER = Path(__file__).parent


def run_interpreted(*functions: str) -> list[Any]:
    """What each of the functions returns in one process of their own."""
    paths = os.pathsep.join([str(Path(plkernel.__file__).parents[1]), str(FOLDER)])
    environment = os.environ | {"PYTHONPATH": paths, "TRITON_INTERPRET": "1"}
    child = subprocess.run([sys.executable, __file__, *functions], env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-4000:]
    return list(json.loads(child.stdout))


def returned(function: str) -> Any:
    file, _, name = function.partition(":")
    return getattr(import_module(file), name)()


if __name__ == "__main__":
    import rounding
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # torch.empty is filled with NaN: nothing may be left unwritten
    rounding.UNIT[torch.bfloat16] *= 2  # the interpreter cuts bfloat16 off where a GPU rounds it
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        print(json.dumps([returned(function) for function in sys.argv[1:]]))
