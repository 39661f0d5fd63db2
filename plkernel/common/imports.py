"""Objects by name, `module:attribute`: what a spec may name of other people's code, and how it is imported.

To name is free, to import is to run: nobody calls `imported` before the person has said that this code may run.
"""

import importlib
import re
from collections.abc import Mapping
from typing import Any

from plkernel.common.cli import nearest, shortened

MARK = ":"
TRUST = "--trust-code"
"""The option of the commands, and of the workers that they start, by which a person says that a spec's code may run."""
_IDENTIFIERS = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
NAME = re.compile(f"{_IDENTIFIERS}{MARK}{_IDENTIFIERS}", re.ASCII)


def is_code(name: str | None) -> bool:
    """Whether a name is meant as one of code: it has a colon."""
    return name is not None and MARK in name


def check_consent(named: Mapping[str, str], trusted: bool) -> None:
    """ValueError where code is named, by the option that names it, and the person has not said that it may run."""
    if named and not trusted:
        told = ", ".join(f"{option} {name!r}" for option, name in named.items())
        raise ValueError(f"{told} would be imported and run, which may do anything: read it, then say {TRUST}")


def imported(name: str, option: str) -> Any:
    """The object called `name`, its module imported; ValueError in one line, headed by `option`, where there is none.

    >>> imported("math:hypot", "kind")(3, 4)
    5.0
    """
    module_name, _, attributes = name.partition(MARK)
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f"{option} {name!r}: {module_name} needs the module {error.name!r}, not here") from error
        raise ValueError(
            f"{option} {name!r}: there is no module {error.name!r}; install it, or start in the folder that holds it"
        ) from error
    except Exception as error:  # of whatever kind the module raises
        raise ValueError(f"{option} {name!r}: importing {module_name} raised {told(error)}") from error
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            known = [one for one in dir(found) if not one.startswith("_")]
            raise ValueError(
                f"{option} {name!r}: {module_name} has no {attribute!r}; {nearest(attribute, known)}"
            ) from None
        except Exception as error:  # of a module that imports on demand
            raise ValueError(f"{option} {name!r}: {attribute} raised {told(error)}") from error
    if not callable(found):
        raise ValueError(f"{option} {name!r}: is a {type(found).__name__}, expected something to call")
    return found


def told(error: BaseException) -> str:
    """An error of other people's code, in one line."""
    return shortened(f"{type(error).__name__}: {error}".removesuffix(": "), 300)
