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
"""The number of a layer in the name of a tensor."""
NamedSizes = Iterator[tuple[str, float]]
"""Settings of config.json by name, and their numbers."""


def check_sizes(config: Mapping[str, Any]) -> None:
    """Raise ValueError for sizes of config.json, or of what is nested in it, that no model has."""
    limits = {LAYERS: DEEPEST_MODEL, COUNTED: MOST_COUNTED, SIZED: WIDEST}
    for wanted, most in limits.items():
        for name, size in _numbers(config, wanted):
            if size > most:
                raise ValueError(
                    f"config.json: {name} must be at most {most:,}, got {_written(size)}"
                )
    for name, length in _lengths(config):
        if length > DEEPEST_MODEL:
            raise ValueError(
                f"config.json: {name} must have at most {DEEPEST_MODEL:,} entries, got {length:,}"
            )


def check_against(config: Mapping[str, Any], names: Iterable[str], numbers: int) -> None:
    """Raise ValueError for sizes of config.json that the tensors of a file do not have.

    names: of the tensors; numbers: how many they hold together. A width is at most all of them.
    """
    check_sizes(config)
    of_text = {name: one for name, one in config.items() if not OTHER_INPUTS.fullmatch(name)}
    if not any(name in of_text for name in SHARED):
        held = _layers_held(names)
        for name, size in _numbers(of_text, LAYERS):
            if size > held:
                raise ValueError(
                    f"config.json: {name} must be at most the {held} layers that have tensors, got"
                    f" {_written(size)}"
                )
    for name, size in _numbers(of_text, SIZED):
        if size > numbers:
            raise ValueError(
                f"config.json: {name} must be at most the {numbers:,} numbers that all tensors"
                f" together hold, got {_written(size)}"
            )


def _layers_held(names: Iterable[str]) -> int:
    """Number of layers that the numbers in names of tensors count; 0 without any."""
    largest = -1
    for name in names:
        for number in NUMBER.findall(name):
            largest = max(largest, int(number))
    return largest + 1


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
    """A size for a message, whatever a file says."""
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
    """Settings by name, and those of tables in them, alone or in a list."""
    for name, value in config.items():
        yield str(name), value
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Mapping):
                yield from _nested(inner)
