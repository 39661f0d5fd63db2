"""Other people's code by name, `module:attribute`: named by a spec, imported only with the person's consent."""

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from plkernel.common.cli import nearest, shortened

MARK = ":"
TRUST = "--trust-code"
"""The option by which a person consents to the code that a spec names."""
_IDENTIFIERS = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
NAME = re.compile(f"{_IDENTIFIERS}{MARK}{_IDENTIFIERS}", re.ASCII)


def is_code(name: str | None) -> bool:
    """Return True for a name of code, which has a colon."""
    return name is not None and MARK in name


def check_consent(named: Mapping[str, str], trusted: bool) -> None:
    """Raise ValueError where code is `named`, by the option that names it, without consent to run it."""
    if named and not trusted:
        names = ", ".join(f"{option} {name!r}" for option, name in named.items())
        raise ValueError(f"{names} would be imported and run, which may do anything: read it, then say {TRUST}")


def imported(name: str, option: str) -> Any:
    """Import the callable called `name`; ValueError in one line, headed by `option`, where that fails.

    >>> imported("math:hypot", "kind")(3, 4)
    5.0
    """
    module, _, attributes = name.partition(MARK)
    head, result = f"{option} {name!r}: ", None
    try:
        result = import_module(module)
        for attribute in attributes.split("."):
            result = getattr(result, attribute)
    except ModuleNotFoundError as error:
        fault = f"{module} needs the module {error.name!r}, not here"
        if f"{module}.".startswith(f"{error.name}."):
            fault = f"there is no module {error.name!r}; install it, or start in the folder that holds it"
        raise ValueError(f"{head}{fault}") from error
    except Exception as error:
        if isinstance(error, AttributeError) and result is not None:
            hint = nearest(attribute, (one for one in dir(result) if not one.startswith("_")))
            raise ValueError(f"{head}{module} has no {attribute!r}; {hint}") from None
        raise ValueError(f"{head}importing {module} raised {told(error)}") from error
    if not callable(result):
        raise ValueError(f"{head}is a {type(result).__name__}, expected something to call")
    return result


def told(error: BaseException) -> str:
    """Return an error of other people's code in one line."""
    return shortened(f"{type(error).__name__}: {error}".removesuffix(": "), 300)
