"""Docstrings of this project as reStructuredText: prose with `code` in backticks, formulas, aligned tables, doctests.

What is indented or aligned in columns is shown as it stands; in prose only backticks mean anything.
"""

import re
from collections.abc import Iterator
from itertools import groupby

ALIGNED = re.compile(r"\S {2,}\S")
FIELDS = {"Args:": "param", "Returns:": "returns", "Yields:": "returns", "Raises:": "raises"}


def prose(text: str) -> str:
    """One piece of text: backticks mark code, nothing else is markup.

    >>> prose("The kernel `t**-beta`, sum_i w_i a**t.")
    'The kernel ``t**-beta``, sum_i w_i a\\\\*\\\\*t.'
    """
    parts = re.split(r"`([^`]+)`", text)
    for place, part in enumerate(parts):
        if not place % 2:
            parts[place] = re.sub(r"[\\*|`]|_(?!\w)", r"\\\g<0>", part)
            continue
        before = r"\ " if re.search(r"[^\s(\[]$", parts[place - 1]) else ""
        after = r"\ " if re.match(r"[^\s)\].,;:!?'-]", parts[place + 1]) else ""
        parts[place] = f"{before}``{part}``{after}"
    return re.sub(r"^([-+•]|\w+[.)])(?= |$)", r"\\\1", "".join(parts))


def section(lines: list[str]) -> Iterator[str]:
    """ "Args:" and its like as a list of fields."""
    kind = FIELDS[lines[0]]
    items: list[str] = []
    for line in lines[1:]:
        if (kind == "returns" and items) or line.startswith("     "):
            items[-1] += f" {line.strip()}"
        else:
            items.append(line.strip())
    for item in items:
        name, _, meaning = item.partition(": ")
        yield f":returns: {prose(item)}" if kind == "returns" else f":{kind} {name}: {prose(meaning)}"


def converted(docstring: str) -> Iterator[str]:
    """The lines of a docstring as reStructuredText, paragraph by paragraph."""
    for blank, group in groupby(docstring.splitlines(), key=lambda line: not line.strip()):
        paragraph = list(group)
        if blank:
            yield ""
        elif paragraph[0] in FIELDS:
            yield from section(paragraph)
        elif paragraph[0].lstrip().startswith(">>>"):
            yield from paragraph
        elif any(line.startswith(" ") or ALIGNED.search(line) for line in paragraph):
            yield from ("::", "", *(f"    {line}" for line in paragraph))
        else:
            yield prose(" ".join(paragraph))
