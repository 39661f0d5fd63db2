"""plkernel: the memory of a state-space model, held against the memory in its data.

From Python: what is in `__all__`, loaded when it is first asked for.

The way of the data: data -> analysis -> spec -> models -> run -> records -> report. The modules of this folder are the
commands; what they call stands in the packages beside them, whose docstrings say where on the way they are.
"""

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_COMMANDS = ("-m", "plkernel", "plkernel.exe", "plkernel-script.py")
if os.path.basename("".join(sys.argv[:1])) in _COMMANDS and not any(name in os.environ for name in _WAITING):
    # A command, whose torch is still to be loaded: between operators its threads sleep. As they come they spin for some
    # milliseconds after each, on cores that the compiled kernels and other processes could use.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

_PUBLIC = {
    "apply": "plkernel.api.models",
    "evaluate": "plkernel.api.models",
    "fit": "plkernel.api.memory",
    "influence": "plkernel.api.models",
    "load_corpus": "plkernel.api.text",
    "load_run": "plkernel.api.models",
    "load_spec": "plkernel.spec.reading",
    "measure": "plkernel.api.memory",
    "place": "plkernel.analysis.nodes",
    "read_checkpoint": "plkernel.api.models",
    "read_study": "plkernel.records.study",
    "truncation": "plkernel.api.models",
}
"""What is offered here, and where it is (`__init__.pyi` says it to editors)."""
__all__ = list(_PUBLIC)


class _Package(ModuleType):
    """plkernel.fit and plkernel.measure are functions, though the commands are modules of these names, in whatever
    order the two are imported. `python -m plkernel.fit` and `from plkernel.fit import ...` find the module; `import
    plkernel.fit as name` is an attribute of this package, and so the function; import_module gives the module."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
