"""Types of the values in a TOML file, before pydantic reads them.

TOML tells a number from a text, and true from "yes". pydantic takes one for the other where it can,
as options of a command line need, which are all texts, and as saved specs may hold them. In a file
that somebody writes it is a mistake.
"""

from collections.abc import Collection, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from plkernel.common.files import shown

NUMBERS = frozenset({int, float})
OPEN = frozenset({Any, object})
"""Types that hold anything."""


def check_types(
    values: Mapping[str, Any],
    model: type[BaseModel],
    sections: Mapping[str, type[BaseModel]],
    *within: str,
) -> None:
    """Raise ValueError for a text in place of a number, and what is not true or false for a bool.

    values    what a file says of a `model`, whose unknown keys are left to pydantic
    sections  models of fields that hold tables of some of their options, by the name of the field
    within    the place of the values in the file
    """
    for name, value in values.items():
        field = model.model_fields.get(name)
        if field is not None:
            kind = sections.get(name, field.annotation)
            _check_value(value, kind, sections, (*within, name))


def _check_value(
    value: Any, kind: Any, sections: Mapping[str, type[BaseModel]], place: tuple[str, ...]
) -> None:
    """`check_types` of one value at its place, and of all that it holds."""
    kinds = _alternatives(kind)
    models = [one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)]
    if isinstance(value, dict) and models:
        check_types(value, models[0], sections, *place)
    elif isinstance(value, dict | list):
        numbered = value.items() if isinstance(value, dict) else enumerate(value)
        holders = [one for one in kinds if get_origin(one) in (dict, tuple, list)]
        if holders:
            # Every item is of the last type but the dots: of X in tuple[X, ...] and dict[str, X].
            item = [one for one in get_args(holders[0]) if one is not Ellipsis][-1]
            for key, held in numbered:
                _check_value(held, item, sections, (*place, str(key)))
    elif isinstance(value, str | bool | int | float) and not _fits(value, kinds):
        words = ["true or false" if bool in kinds else "a number"]
        words += [repr(one) for one in kinds if isinstance(one, str)]
        wanted = " or ".join(words)
        raise ValueError(f"{'.'.join(place)}: must be {wanted}, got {shown(value)}")


def _alternatives(kind: Any) -> list[Any]:
    """The types of which a value may be one: of X | Y both, Annotated[X, ..] as X."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _alternatives(get_args(kind)[0])
    if origin in (Union, UnionType):
        found = []
        for one in get_args(kind):
            found += _alternatives(one)
        return found
    if origin is Literal:
        return list(get_args(kind))
    return [kind]


def _fits(value: str | bool | int | float, kinds: Collection[Any]) -> bool:
    """False for a text where only numbers or truth values are known, and for a number as a truth.

    All else is left to pydantic, which says what is allowed.
    """
    types = {one for one in kinds if isinstance(one, type)}
    if types & OPEN or not types & {*NUMBERS, bool}:
        return True
    if isinstance(value, bool):
        return bool in types
    if isinstance(value, str):
        return str in types or any(isinstance(one, str) and one == value for one in kinds)
    return bool(types & NUMBERS)
