"""Other people's code by name, `module:attribute`: named by a spec, imported only with the person's consent."""

import importlib
import re
from collections.abc import Mapping
from typing import Any

from plkernel.common.cli import nearest, shortened

MARK = ":"
TRUST = "--trust-code"
"""The option by which a person consents to the code that a spec names."""
_IDENTIFIERS = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
NAME = re.compile(f"{_IDENTIFIERS}{MARK}{_IDENTIFIERS}", re.ASCII)


def is_code(name: str | None) -> bool:
    """True for a name of code, which has a colon."""
    return name is not None and MARK in name


def check_consent(named: Mapping[str, str], trusted: bool) -> None:
    """ValueError where code is `named`, by the option that names it, without consent to run it."""
    if named and not trusted:
        told = ", ".join(f"{option} {name!r}" for option, name in named.items())
        raise ValueError(f"{told} would be imported and run, which may do anything: read it, then say {TRUST}")


def imported(name: str, option: str) -> Any:
    """The callable called `name`, its module imported; ValueError in one line, headed by `option`, otherwise.

    >>> imported("math:hypot", "kind")(3, 4)
    5.0
    """
    module, _, attributes = name.partition(MARK)
    where = f"{option} {name!r}"
    try:
        result = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"{where}: {module} needs the module {error.name!r}, not here") from error
        remedy = "install it, or start in the folder that holds it"
        raise ValueError(f"{where}: there is no module {error.name!r}; {remedy}") from error
    except Exception as error:
        raise ValueError(f"{where}: importing {module} raised {told(error)}") from error
    for attribute in attributes.split("."):
        try:
            result = getattr(result, attribute)
        except AttributeError:
            public = [one for one in dir(result) if not one.startswith("_")]
            raise ValueError(f"{where}: {module} has no {attribute!r}; {nearest(attribute, public)}") from None
        except Exception as error:  # of a module that imports on demand
            raise ValueError(f"{where}: {attribute} raised {told(error)}") from error
    if not callable(result):
        raise ValueError(f"{where}: is a {type(result).__name__}, expected something to call")
    return result


def told(error: BaseException) -> str:
    """An error of other people's code, in one line."""
    return shortened(f"{type(error).__name__}: {error}".removesuffix(": "), 300)
