"""Files of tests as scripts in a process of their own, where Triton interprets kernels."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

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


def interpret_quickly() -> None:
    """In such a process: leave out work of the interpreter that changes no result.

    It is half of the interpreter's time.
    """
    from triton.runtime import interpreter

    _change_language_once()
    # Sums and products of integers are computed again in 64 bits, for a message of its debug mode.
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._get_np_dtype = _remembered(interpreter._get_np_dtype)
    interpreter.ScanOps.generic_scan = _scan_by_slices


def _change_language_once() -> None:
    """Change Triton's language for the functions of each module once.

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


def _remembered(numpy_type: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Look each type of numpy up once: the interpreter makes a table of all for every lookup."""
    of_numbers = cache(numpy_type)

    def found(kind: Any) -> Any:
        one = kind.scalar
        return numpy_type(one) if one.is_ptr() else of_numbers(one)

    return found


def _scan_by_slices(self: Any, inputs: Sequence[Any]) -> list[Any]:
    """Compute tl.associative_scan with one call of its function for each place along the axis.

    The interpreter calls the function for every element.
    """

    def tensors(values: Sequence[Any]) -> list[Any]:
        return [self.to_tensor(one, x.dtype) for one, x in zip(values, inputs, strict=True)]

    given = [np.moveaxis(x.handle.data, self.axis, 0) for x in inputs]
    found = [each.copy() for each in given]
    for place in range(1, given[0].shape[0]):
        before = tensors([each[place - 1] for each in found])
        here = tensors([each[place] for each in given])
        combined = self.combine_fn.fn(*before, *here)
        if not isinstance(combined, tuple):
            combined = (combined,)
        for each, one in zip(found, combined, strict=True):
            each[place] = one.handle.data
    return tensors([np.moveaxis(each, 0, self.axis) for each in found])
