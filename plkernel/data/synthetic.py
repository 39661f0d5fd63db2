"""Sequences with exactly known mutual information, made from a seed."""

import re
from fractions import Fraction
from typing import Any

import numpy as np

from plkernel.analysis.sequences.potts import PottsCorpus
from plkernel.data.files import Blocks, Chunk
from plkernel.tools.cli import nearest

# Part of the cache key: to be raised when `PottsCorpus.blocks` gives other bytes for the same parameters.
FORMAT = 1
EXAMPLE = "synthetic:beta=1.0,symbols=16,bytes=10MB,seed=0"
FIELDS = {"beta": "beta", "symbols": "symbols", "bytes": "size", "seed": "seed"}
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def potts_corpus(rest: str) -> PottsCorpus:
    """The corpus that 'synthetic:REST' names; its `mutual_information` is the exact curve.

    `rest` is 'beta=1.0,symbols=16,bytes=10000000,seed=0' in any order, all but beta optional; bytes may end in k, M or
    G, powers of 1000, and B. Raises ValueError for anything else.

    >>> potts_corpus("beta=0.5,bytes=2MB").size
    2000000
    """
    try:
        return PottsCorpus(**_parameters(rest))
    except ValueError as error:
        raise ValueError(f"corpus {name_of(rest)!r}: {error}") from error


def spelling(corpus: PottsCorpus) -> str:
    """The name under which `potts_corpus` finds `corpus` again, every parameter spelled out."""
    return name_of(",".join(f"{name}={getattr(corpus, field)}" for name, field in FIELDS.items()))


def synthetic_blocks(corpus: PottsCorpus, separator: bytes) -> Blocks:
    """The sequence as one document."""
    yield Chunk(np.frombuffer(separator, np.uint8), np.zeros(1, np.int64))
    for data in corpus.blocks():
        yield Chunk(data, np.zeros(0, np.int64))


def name_of(rest: str) -> str:
    """'synthetic:REST', or 'synthetic' alone."""
    return f"synthetic:{rest}" if rest else "synthetic"


def _parameters(rest: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in rest.split(",") if rest else []:
        name, _, text = (part.strip() for part in item.partition("="))
        if name not in FIELDS:
            raise ValueError(f"no parameter {name!r}; {nearest(name, FIELDS)}")
        if FIELDS[name] in values:
            raise ValueError(f"{name} is given twice")
        values[FIELDS[name]] = _value(name, text)
    if "beta" not in values:
        raise ValueError(f"beta is missing; write e.g. {EXAMPLE}")
    return values


def _value(name: str, text: str) -> float:
    try:
        if name == "beta":
            return float(text)
        return _bytes(text) if name == "bytes" else int(text)
    except ValueError:
        wanted = {"beta": "a number", "bytes": "a number of bytes such as 500000, 500k, 10MB or 1G"}
        raise ValueError(f"{name} = {text!r}: must be {wanted.get(name, 'a whole number')}") from None


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)b?", text, re.IGNORECASE | re.ASCII)
    size = Fraction(match[1]) * UNITS[match[2].lower()] if match else Fraction(0)
    if size < 1 or size.denominator != 1:
        raise ValueError
    return int(size)
