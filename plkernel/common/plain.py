"""Plain values from anyone's files: JSON and TOML within limits, and one line for whatever is wrong with them.

Everything that plkernel reads as text comes through here, so that what walks through such values afterwards needs no
care: they are nested no deeper than MOST_NESTED and hold no whole number beyond 64 bits, and the file had an end.
"""

import json
import math
import re
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from reprlib import Repr
from typing import Any

MOST_NESTED = 64
LARGEST_INTEGER = 2**63 - 1
LONGEST_SHOWN = 80
DEEP_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MOST_NESTED}}}""")
"""A key of more names, joined by dots, than may be nested: tomllib takes minutes for one of a hundred thousand."""
ROUNDING = 1e-12
"""Relative: what is computed with a spec, such as an output scale, ends in other digits on another processor."""


def parse_json(content: bytes, origin: str) -> Any:
    """The value of JSON text; ValueError, headed by `origin`, where it is damaged or beyond the limits."""
    return _parsed(json.loads, content, origin, "not readable as JSON")


def parse_toml(content: bytes, origin: str) -> dict[str, Any]:
    """The values of TOML text; ValueError, headed by `origin`, where it is damaged or beyond the limits."""

    def loads(text: str) -> dict[str, Any]:
        if DEEP_KEY.search(text):
            raise RecursionError
        return tomllib.loads(text)

    return dict(_parsed(loads, content, origin, "not valid TOML"))


def _parsed(parse: Callable[[str], Any], content: bytes, origin: str, complaint: str) -> Any:
    try:
        value = parse(content.decode())
    except RecursionError:
        raise ValueError(_too_deep(origin)) from None
    except ValueError as error:  # damaged, no UTF-8, or a number of too many digits
        raise ValueError(f"{origin}: {complaint} ({error})") from error
    return checked(value, origin)


def same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal, numbers but for their rounding.

    >>> same(0.1 + 0.2, 0.3), same(0.3, 0.3001), same([1], [1])
    (True, False, True)
    """
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=ROUNDING)
    return bool(one == other)


def parse_object(content: bytes, origin: str) -> dict[str, Any]:
    """The object that JSON text holds; ValueError where it is another value."""
    value = parse_json(content, origin)
    if not isinstance(value, dict):
        raise ValueError(f"{origin}: holds {kind(value)}, expected an object")
    return value


def read_bytes(path: Path) -> bytes:
    """The content of a regular file; ValueError for a folder, a pipe or a device, and where there is none."""
    check_regular(path)
    return path.read_bytes()


def check_regular(path: Path, what: str = "") -> None:
    """ValueError unless `path` is a regular file: a pipe may never answer, and a device never end.

    `what` heads the message, as in 'spec ' or 'checkpoint '.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"{what}{path}: no such file") from error
    except ValueError as error:  # a name with a zero byte in it
        raise ValueError(f"{what}{str(path)!r}: {error}") from error
    if not stat.S_ISREG(mode):
        name = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise ValueError(f"{what}{path}: is {name}, expected a regular file")


def checked(value: Any, origin: str) -> Any:
    """`value` as it is; ValueError, naming the place, where it is nested too deep or holds too large a whole number."""
    waiting: list[tuple[Any, tuple[Any, ...]]] = [({"": value}, ())]
    while waiting:
        found, place = waiting.pop()
        if len(place) > MOST_NESTED:
            raise ValueError(_too_deep(origin))
        for key, item in found.items() if isinstance(found, dict) else enumerate(found):
            if isinstance(item, dict | list):
                waiting.append((item, (*place, key)))
            elif isinstance(item, int) and not -LARGEST_INTEGER <= item <= LARGEST_INTEGER:
                where = ".".join(map(str, [*place, key][1:]))
                limits = f"whole numbers must lie between {-LARGEST_INTEGER} and {LARGEST_INTEGER}"
                raise ValueError(f"{origin}: {where}{': ' if where else ''}{limits}, got {shown(item)}")
    return value


def shown(value: Any) -> str:
    """A value in an error message, as `repr` has it and no longer than a line."""
    return _SHORT.repr(value)


def kind(value: Any) -> str:
    """What JSON calls a value of this type, with its article."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _too_deep(origin: str) -> str:
    return f"{origin}: nested deeper than {MOST_NESTED} lists and tables"


class _Short(Repr):
    """Numbers of any length too: `repr` refuses integers of more than 4300 digits."""

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1000 else f"<a number of {x.bit_length()} bits>"


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = LONGEST_SHOWN
_SHORT.maxlong = 40
_SHORT.maxlevel = 4


def unescape(text: str) -> str:
    r"""A separator as typed in a shell: '\n' a line feed, '\xff' byte 255; one character is itself."""
    if len(text) < 2:
        return text
    try:
        return text.encode("latin-1").decode("unicode_escape")
    except UnicodeError:
        return text
