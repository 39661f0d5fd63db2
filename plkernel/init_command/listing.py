"""python -m plkernel.init list: every scheme with its source, its free constants and what it does."""

import inspect
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import groupby
from textwrap import fill

from plkernel.common.cli import nearest
from plkernel.models.init import SCHEMES
from plkernel.models.init.planning import Scheme

INDENT = 4
WIDTH = 120


def run(pattern: str) -> None:
    """Name the initialisation schemes, by family: what each does, its free constants and its source."""
    found = matching(pattern)
    print(describe(found[0]) if len(found) == 1 else render(found))


def matching(pattern: str) -> list[Scheme]:
    """The schemes that a pattern means, one if it is a name; ValueError with the nearest name where there are none."""
    if pattern in SCHEMES:
        return [SCHEMES[pattern]]
    wild = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
    found = [scheme for name, scheme in SCHEMES.items() if fnmatchcase(name, wild.lower())]
    if not found:
        raise ValueError(f"no scheme is called {pattern!r}: {nearest(pattern, SCHEMES)}")
    return found


def render(schemes: Iterable[Scheme]) -> str:
    """The families, each under the first line of what its module says of itself, and two lines per scheme."""
    members = list(schemes)
    width = max(len(scheme.name) for scheme in members) + 2
    parts = []
    for family, group in groupby(sorted(members, key=family_of), key=family_of):
        parts.append("\n".join([family, *(line for scheme in group for line in entry(scheme, width))]))
    hint = "python -m plkernel.init list NAME tells more of one, show NAME what it does to a model"
    return "\n\n".join([*parts, f"{len(members)} scheme{'s'[: len(members) != 1]}; {hint}"])


def entry(scheme: Scheme, width: int) -> list[str]:
    """The name with what the scheme does, its constants and its source, within a terminal."""
    margin = " " * (width + INDENT)
    lines = [fill(scheme.summary, WIDTH, initial_indent=f"  {scheme.name:<{width}}", subsequent_indent=margin[:-2])]
    lines += [fill(text, WIDTH, initial_indent=margin, subsequent_indent=margin) for text in told(scheme)]
    return lines


def told(scheme: Scheme) -> list[str]:
    """Constants and calibration, where there are any, and source."""
    return [text for text in (constants(scheme).strip(), calibration(scheme), scheme.source) if text]


def calibration(scheme: Scheme) -> str:
    """That the scheme needs data, where it does."""
    return "calibrated on a batch, which a run does by itself" if scheme.calibrates else ""


def family_of(scheme: Scheme) -> str:
    """The first line of the docstring of the module that a scheme stands in."""
    module = sys.modules.get(scheme.rules.__module__)  # none for one that was typed in
    return (inspect.getdoc(module) or "").partition("\n")[0] if module else ""


def constants(scheme: Scheme) -> str:
    """The free constants with their defaults, as --option takes them."""
    return "".join(f"{name}={value:g}  " for name, value in scheme.options.items())


def describe(scheme: Scheme) -> str:
    """All that a scheme says of itself."""
    lines = [
        scheme.name,
        "-" * len(scheme.name),
        inspect.getdoc(scheme.rules) or "",
        "",
        f"free constants: {constants(scheme).strip() or 'none'}",
        *filter(None, [calibration(scheme)]),
        f"source: {scheme.source}",
    ]
    return "\n".join(lines)
