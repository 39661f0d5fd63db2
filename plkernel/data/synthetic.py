"""Sequences with exactly known mutual information, made from a seed, by name."""

import re
from dataclasses import asdict, fields
from fractions import Fraction
from typing import Any

from plkernel.analysis.sequences import Independent, LagCorpus, MarkovChain, PottsCorpus, Predictor
from plkernel.common.cli import nearest

Synthetic = PottsCorpus | LagCorpus | MarkovChain | Independent

LAWS: dict[str, type[Synthetic]] = {"potts": PottsCorpus, "lags": LagCorpus, "markov": MarkovChain, "iid": Independent}
GENERATOR = {"potts": 1, "lags": 1, "markov": 1, "iid": 1}
"""Part of the cache key: to be raised when a law gives other bytes for the same parameters."""
EXAMPLE = "synthetic:beta=1.0,symbols=16,bytes=10MB,seed=0"
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
    law, items = (first, others) if first in LAWS else ("potts", [first, *others] if rest else [])
    kinds, values = _parameters(law), dict[str, Any]()
    try:
        if law != first and first and "=" not in first and first not in kinds:
            raise ValueError(f"no law {first!r}; {nearest(first, LAWS)}")
        for item in items:
            name, _, text = (part.strip() for part in item.partition("="))
            if name not in kinds:
                raise ValueError(f"no parameter {name!r}; {nearest(name, kinds)}")
            values["size" if name == "bytes" else name] = _value(name, text, kinds[name])
        if "beta" in kinds and "beta" not in values:
            raise ValueError(f"beta is missing; write e.g. {EXAMPLE}, or name another law: {', '.join(LAWS)}")
        return LAWS[law](**values)
    except ValueError as error:
        raise ValueError(f"corpus 'synthetic:{rest}': {error}") from error


def _parameters(law: str) -> dict[str, Any]:
    """Parameters of a law by name, with their types."""
    named = {field.name: field.type for field in fields(LAWS[law]) if field.name not in ("base", "channels")}
    return {"bytes" if name == "size" else name: kind for name, kind in named.items()}


def _value(name: str, text: str, kind: Any) -> Any:
    if name == "bytes":
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)b?", text, re.IGNORECASE | re.ASCII)
        size = Fraction(match[1]) * UNITS[match[2].lower()] if match else Fraction(0)
        if size < 1 or size.denominator > 1:
            raise ValueError(f"bytes = {text!r}: must be a number of bytes such as 500000, 500k, 10MB or 1G")
        return int(size)
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name} = {text!r}: must be {'a number' if kind is float else 'a whole number'}") from None


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


def spelling(corpus: Synthetic) -> tuple[str, dict[str, Any]]:
    """The full name of `corpus`, every parameter spelled out, and all that determines its bytes, as JSON values."""
    law = next(law for law, kind in LAWS.items() if kind is type(corpus))
    values = asdict(corpus)
    words = [f"{name}={values['size' if name == 'bytes' else name]}" for name in _parameters(law)]
    # The keys of Potts corpora are older than the names of laws.
    key = {**values, "probabilities": None} if law == "potts" else {"law": law, **values}
    words = words if law == "potts" else [law, *words]
    return f"synthetic:{','.join(words)}", {"synthetic": key, "generator": GENERATOR[law]}
