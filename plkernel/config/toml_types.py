"""Types of the values in a TOML file, before pydantic reads them.

TOML tells a number from a text, and true from "yes". pydantic takes one for the other where it can,
as options of a command line need, which are all texts, and as saved specs may hold them. In a file
that somebody writes it is a mistake.
"""

from collections.abc import Collection, Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from plkernel.common.files import shown

NUMBERS = frozenset({int, float})
OPEN = frozenset({Any, object})
"""Types that hold anything."""
IN_WORDS: Mapping[Any, list[str]] = {
    bool: ["true", "false"],
    int: ["a whole number"],
    float: ["a number"],
    str: ["another text"],
}
"""Values of a type, as one of several that an option may have."""


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
    kinds = alternatives_of(kind)
    models = [one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)]
    if isinstance(value, dict) and models:
        check_types(value, models[0], sections, *place)
    elif isinstance(value, dict | list):
        numbered = value.items() if isinstance(value, dict) else enumerate(value)
        holders = [one for one in kinds if get_origin(one) in (dict, tuple, list)]
        if holders:
            item = item_type(holders[0])
            for key, held in numbered:
                _check_value(held, item, sections, (*place, str(key)))
    elif isinstance(value, str | bool | int | float) and not _fits(value, kinds):
        where = ".".join(place)
        allowed = [one for one in kinds if one is not type(None)]
        if len(allowed) > 1:
            raise ValueError(wrong_alternative(where, allowed, value))
        wanted = "true or false" if bool in kinds else "a number"
        raise ValueError(f"{where}: must be {wanted}, got {shown(value)}")


def item_type(kind: Any) -> Any:
    """The type of the items in list[X], tuple[X, ...] or dict[str, X]."""
    return [one for one in get_args(kind) if one is not Ellipsis][-1]


def wrong_alternative(where: str, alternatives: Iterable[Any], value: Any) -> str:
    """The message of a value that is of none of several types.

    >>> wrong_alternative("train.compile", [bool, "auto"], "foo")
    "train.compile must be true, false or 'auto', got 'foo'"
    """
    words: list[str] = []
    for one in alternatives:
        words += IN_WORDS.get(one, [repr(one)])
    *others, last = words
    return f"{where} must be {', '.join(others)} or {last}, got {shown(value)}"


def is_union(kind: Any) -> bool:
    """True of X | Y, and of Annotated[X | Y, ..]."""
    origin = get_origin(kind)
    if origin is Annotated:
        return is_union(get_args(kind)[0])
    return origin in (Union, UnionType)


def alternatives_of(kind: Any) -> list[Any]:
    """The types of which a value may be one: of X | Y both, Annotated[X, ..] as X."""
    origin = get_origin(kind)
    if origin is Annotated:
        return alternatives_of(get_args(kind)[0])
    if is_union(kind):
        found = []
        for one in get_args(kind):
            found += alternatives_of(one)
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
