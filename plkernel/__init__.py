"""plkernel: compare the memory of a sequence model with the memory in its data.

The public functions are those in `__all__`; each is loaded when it is first used. The commands are
the modules of `plkernel/commands`; `python -m plkernel.fit` runs `plkernel/commands/fit.py`.
"""

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from plkernel.kernels.waiting import is_chosen

__version__ = "0.1.0"

_COMMANDS = ("-m", "plkernel", "plkernel.exe", "plkernel-script.py")


def _interrupted(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """End a command that Ctrl-C stops while its modules are loaded, as `cli.report_errors` does."""
    if issubclass(kind, KeyboardInterrupt):
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
    sys.__excepthook__(kind, error, trace)


if os.path.basename("".join(sys.argv[:1])) in _COMMANDS:
    # A command, whose torch and numpy are still to be loaded: between operators their threads
    # sleep. As they come they spin for some milliseconds after each, on cores that the compiled
    # kernels and other processes could use.
    if not is_chosen():
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2**4 cycles, the least
    sys.excepthook = _interrupted

_PUBLIC = {
    "apply": "plkernel.api.layers",
    **dict.fromkeys(("load_corpus", "measure"), "plkernel.api.texts"),
    **dict.fromkeys(
        ("evaluate", "generate", "influence", "inspect", "load_run", "truncation"),
        "plkernel.api.models",
    ),
    **dict.fromkeys(("load_study", "run_study", "trial"), "plkernel.api.studies"),
    **dict.fromkeys(("watch", "decay_param_groups"), "plkernel.decays.watch"),
    "fit": "plkernel.analysis.fit",
    "load_spec": "plkernel.config.reading",
    "place": "plkernel.analysis.nodes",
}
"""Public names and the modules that define them; `__init__.pyi` repeats them for editors."""
__all__ = list(_PUBLIC)
_FUNCTIONS = {
    "corpus": "plkernel.load_corpus",
    "experiment": "plkernel.run_study",
    "probe": "plkernel.probing.predictions.probe",
    "report": "plkernel.load_study",
}
"""What to use in Python in the place of commands that are no public name."""

_COMMANDS_FOLDER = os.path.join(__path__[0], "commands")
__path__.append(_COMMANDS_FOLDER)  # where `python -m plkernel.fit` finds the command


class _Package(ModuleType):
    """Keep `plkernel.fit` the function when the module of the command, `plkernel.fit`, is imported.

    An import binds the module in its package, after all that the module itself could do about it:
    also where `fit` is a folder with a `__main__`, and where the package has a `__getattr__`, which
    is asked for missing names only. What is left without a class is that the module puts the
    function into `sys.modules` in its own place. Then `import plkernel.fit as module` gives a
    function, and nothing else can be imported from it, such as `render`.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_as_command(name)}")
    found = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return found


def _as_command(name: str) -> str:
    """What to say of `name` where it is that of a command: how it runs, and the function for it."""
    if not os.path.isfile(os.path.join(_COMMANDS_FOLDER, f"{name}.py")):
        return ""
    told = f", which is a command: python -m {__name__}.{name}"
    if name in _FUNCTIONS:
        told += f"; in Python use {_FUNCTIONS[name]}"
    return told


def __dir__() -> list[str]:
    return sorted(["__version__", *__all__])
