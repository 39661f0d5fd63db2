"""Mistakes in a spec, in words: where it is, what it got, what would work."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from plkernel.common import cli
from plkernel.common.plain import shown

MOST_ERRORS = 8


@contextmanager
def blaming(arm: str, root: type[BaseModel]) -> Iterator[None]:
    """Head every ValueError by the name of the arm."""
    try:
        yield
    except ValidationError as error:
        raise ValueError(f"arms.{arm}: {explained(error, root)}") from None
    except ValueError as error:
        raise ValueError(f"arms.{arm}: {error}") from None


def explained(error: ValidationError, root: type[BaseModel], *within: str) -> str:
    """The first few of pydantic's errors as words; `within` is where in the spec, a `root`, it looked."""
    return "; ".join(_explain(one, root, within) for one in error.errors()[:MOST_ERRORS])


def _explain(error: Any, root: type[BaseModel], within: Sequence[str]) -> str:
    """One pydantic error as words: the key, what it got, what would work."""
    location = [*within, *(str(part) for part in error["loc"])]
    where = ".".join(location)
    if error["type"] == "extra_forbidden":
        section = "".join(f"[{'.'.join(location[:-1])}]") if location[:-1] else "the top level"
        return (
            f"unknown key {shown(location[-1])} in {section}; {cli.nearest(location[-1], _keys(root, location[:-1]))}"
        )
    if error["type"] == "missing":
        return f"{where} is missing"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {message}, got {shown(error['input'])}" if where and error["type"] != "value_error" else message


def _keys(section: type[BaseModel], location: Iterable[str]) -> list[str]:
    """The valid keys of the section at `location` below `section`."""
    parts = list(location)
    while parts:
        part = parts.pop(0)
        annotation: Any = section.model_fields[part].annotation
        if inner := [one for one in get_args(annotation) if isinstance(one, type)]:
            annotation = inner[-1]  # of dict[str, Arm] or tuple[Gate, ...]: the next part is a name or a number
            parts = parts[1:]
        section = annotation
    return list(section.model_fields)
