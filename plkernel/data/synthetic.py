"""Sequences with exactly known mutual information, made from a seed, by name."""

import re
from dataclasses import asdict
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from plkernel.analysis.sequences import Independent, LagCorpus, MarkovChain, PottsCorpus, Predictor
from plkernel.common.cli import nearest
from plkernel.data.files import Blocks, Chunk

Synthetic = PottsCorpus | LagCorpus | MarkovChain | Independent


class Law(NamedTuple):
    """Class of a law, and its parameters by name.

    format  part of the cache key: to be raised when `blocks` gives other bytes for the same parameters
    """

    corpus: type[Synthetic]
    names: tuple[str, ...]
    format: int = 1


LAWS = {
    "potts": Law(PottsCorpus, ("beta", "symbols", "bytes", "seed")),
    "lags": Law(LagCorpus, ("alpha", "longest", "redrawn", "symbols", "bytes", "seed")),
    "markov": Law(MarkovChain, ("symbols", "spread", "bytes", "seed")),
    "iid": Law(Independent, ("symbols", "bytes", "seed")),
}
DEFAULT = "potts"
EXAMPLE = "synthetic:beta=1.0,symbols=16,bytes=10MB,seed=0"
FIELDS = {"bytes": "size"}  # where a parameter is called otherwise in the class
REAL = ("beta", "alpha", "redrawn", "spread")
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def synthetic_corpus(rest: str) -> Synthetic:
    """The corpus that 'synthetic:REST' names; its `mutual_information` is the exact curve.

    `rest` is a law of LAWS and its parameters in any order, 'lags,alpha=1.0,bytes=10MB', all optional but beta; without
    a law it is that of Potts, 'beta=1.0,symbols=16'. bytes may end in k, M or G, powers of 1000, and B. Raises
    ValueError for anything else.

    >>> synthetic_corpus("lags,longest=64,bytes=2MB").size
    2000000
    """
    first, *others = (item.strip() for item in rest.split(","))
    law, items = (first, others) if first in LAWS else (DEFAULT, [first, *others] if rest else [])
    names, values = LAWS[law].names, dict[str, Any]()
    try:
        if law != first and first and "=" not in first and first not in names:
            raise ValueError(f"no law {first!r}; {nearest(first, LAWS)}")
        for item in items:
            name, _, text = (part.strip() for part in item.partition("="))
            if name not in names:
                raise ValueError(f"no parameter {name!r}; {nearest(name, names)}")
            field = FIELDS.get(name, name)
            if field in values:
                raise ValueError(f"{name} is given twice")
            values[field] = _value(name, text)
        if "beta" in names and "beta" not in values:
            raise ValueError(f"beta is missing; write e.g. {EXAMPLE}, or name another law: {', '.join(LAWS)}")
        return LAWS[law].corpus(**values)
    except ValueError as error:
        name = f"synthetic:{rest}" if rest else "synthetic"
        raise ValueError(f"corpus {name!r}: {error}") from error


def _value(name: str, text: str) -> float:
    wanted = "a number" if name in REAL else "a whole number"
    try:
        if name != "bytes":
            return float(text) if name in REAL else int(text)
        wanted = "a number of bytes such as 500000, 500k, 10MB or 1G"
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)b?", text, re.IGNORECASE | re.ASCII)
        size = Fraction(match[1]) * UNITS[match[2].lower()] if match else Fraction(0)
        if size < 1 or size.denominator != 1:
            raise ValueError
        return int(size)
    except ValueError:
        raise ValueError(f"{name} = {text!r}: must be {wanted}") from None


def known_sequence(name: str) -> Synthetic | None:
    """The corpus called `name` where its mutual information is known exactly; nothing is generated."""
    kind, _, rest = name.partition(":")
    return synthetic_corpus(rest) if kind == "synthetic" else None


def predictor_of(name: str) -> Predictor | None:
    """The optimal predictor of the corpus called `name`; None where the law is not known, or its predictor is not.

    Nothing is generated. Raises ValueError as `synthetic_corpus` does.
    """
    corpus = known_sequence(name)
    return None if isinstance(corpus, PottsCorpus) else corpus


def spelling(corpus: Synthetic) -> str:
    """The name under which `synthetic_corpus` finds `corpus` again, every parameter spelled out."""
    law = _law_of(corpus)
    values = [f"{name}={getattr(corpus, FIELDS.get(name, name))}" for name in LAWS[law].names]
    return f"synthetic:{','.join([law, *values] if law != DEFAULT else values)}"


def key_of(corpus: Synthetic) -> dict[str, Any]:
    """All that determines the bytes of `corpus`, as JSON values."""
    law = _law_of(corpus)
    named = {"law": law} if law != DEFAULT else {}
    return {"synthetic": {**named, **asdict(corpus)}, "generator": LAWS[law].format}


def _law_of(corpus: Synthetic) -> str:
    return next(name for name, law in LAWS.items() if law.corpus is type(corpus))


def synthetic_blocks(corpus: Synthetic, separator: bytes) -> Blocks:
    """The sequence as one document."""
    yield Chunk(np.frombuffer(separator, np.uint8), np.zeros(1, np.int64))
    for data in corpus.blocks():
        yield Chunk(data, np.zeros(0, np.int64))
