"""Sizes that a config.json names, held against sane ones and the tensors of the file.

A model is built as large as its configuration says, and a file of a few bytes can say anything:
what is too large is refused, with its number, before anything is built.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from plkernel.common.files import shown

DEEPEST_MODEL = 10_000
"""Layers of a model, and entries of a list with one for each."""
MOST_COUNTED = 2**16
"""Heads, experts or groups of a layer."""
WIDEST = 2**24
"""Channels, states or tokens of a vocabulary; the largest published are 2**18."""
COUNTED = re.compile(r"(?:\w+_)?(?:heads?|experts?|groups?|count)(?:_count)?", re.IGNORECASE)
"""Names of config.json for how many parts a layer has."""
LAYERS = re.compile(r"(?:\w+_)?(?:layers?|blocks?|block_count|depths?)", re.IGNORECASE)
"""Names of config.json for how many layers a model has."""
SIZED = re.compile(
    r"(?:\w+_)?(?:size|dims?|width|rank|channels|embd|embed|model|state|inner|conv|expand|kernel"
    r"|vocab|features|units|hidden|ffn?)(?:_(?:size|dim|length|factor|ratio))?",
    re.IGNORECASE,
)
"""Names of config.json for the sizes of tensors."""
NO_SIZE = re.compile(r".*(?:window|chunk|block_size|batch|step|page|cache|buffer).*", re.IGNORECASE)
"""Names among them for what makes no tensor larger."""
OTHER_INPUTS = re.compile(r".*(?:vision|visual|image|video|audio|speech).*", re.IGNORECASE)
"""Names of tables for parts that a model of text may have left out of its file."""
LISTED = re.compile(r".*(?:layer|block|pattern).*", re.IGNORECASE)
"""Names of config.json for lists and texts with an entry for each layer."""
SHARED = ("num_hidden_groups", "num_unique_layers", "mean_recurrence", "total_ut_steps")
"""Names of config.json of models that use a layer more than once."""
NUMBER = re.compile(r"(?:^|\.)(\d{1,9})(?=\.)", re.ASCII)
NamedSizes = Iterator[tuple[str, float]]


def check_sizes(config: Mapping[str, Any]) -> None:
    """Raise ValueError for sizes of config.json that no model has.

    In tables and lists within it, too.
    """
    for wanted, most in ((LAYERS, DEEPEST_MODEL), (COUNTED, MOST_COUNTED), (SIZED, WIDEST)):
        for name, size in _numbers(config, wanted):
            if size > most:
                words = f"{name} must be at most {most:,}, got {_written(size)}"
                raise ValueError(f"config.json: {words}")
    for name, length in _lengths(config):
        if length > DEEPEST_MODEL:
            words = f"{name} must have at most {DEEPEST_MODEL:,} entries, got {length:,}"
            raise ValueError(f"config.json: {words}")


def check_against(config: Mapping[str, Any], names: Iterable[str], numbers: int) -> None:
    """Raise ValueError for sizes of config.json that the tensors of a file do not have.

    names: of the tensors; numbers: how many they hold together. A width is at most all of them.
    """
    check_sizes(config)
    config = {name: one for name, one in config.items() if not OTHER_INPUTS.fullmatch(name)}
    held = 1 + max((int(one) for name in names for one in NUMBER.findall(name)), default=-1)
    if not any(name in config for name in SHARED):
        for name, size in _numbers(config, LAYERS):
            if size > held:
                words = f"{name} must be at most the {held} layers that have tensors"
                words += f", got {_written(size)}"
                raise ValueError(f"config.json: {words}")
    for name, size in _numbers(config, SIZED):
        if size > numbers:
            words = f"{name} must be at most the {numbers:,} numbers that all tensors together hold"
            words += f", got {_written(size)}"
            raise ValueError(f"config.json: {words}")


def check_parameters(parameters: int, numbers: int) -> None:
    """Raise ValueError for a model of more parameters than the file has numbers for.

    A byte may hold two of them, and an embedding may be the head too.
    """
    if parameters > 2 * numbers:
        raise ValueError(
            f"config.json must describe a model of the {numbers:,} numbers that all tensors"
            f" together hold, got one of {parameters:,} parameters"
        )


def _written(size: float) -> str:
    return shown(int(size)) if size < 2**63 else f"{size:.3g}"


def _numbers(config: Mapping[str, Any], wanted: re.Pattern[str]) -> NamedSizes:
    """Numbers, by name, of a configuration and what is nested in it."""
    for name, value in _nested(config):
        if not wanted.fullmatch(name) or NO_SIZE.fullmatch(name):
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int | float) and not isinstance(one, bool):
                yield name, one


def _lengths(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Lengths, by name, of the lists and texts with an entry for each layer."""
    for name, value in _nested(config):
        if isinstance(value, list | str) and LISTED.fullmatch(name):
            yield name, len(value)


def _nested(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        yield str(name), value
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Mapping):
                yield from _nested(inner)
