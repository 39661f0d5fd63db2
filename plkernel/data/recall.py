"""Multi-query associative recall: keys with their values, and later each key again.

The task is that of Arora et al., "Zoology" (arXiv 2312.04927), on an alphabet of bytes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

KEYS = 128
"""Bytes 0..127 are keys, all others are values; each key occurs with one value in a sequence."""
SYMBOLS = 256
"""Values of a byte."""
SLOT = 2
"""Bytes of a slot, which holds a key and its value or two values of no meaning."""
PLACINGS = ("first", "anywhere")
ANSWERS = ("hidden", "shown")
"""Values of `placing` and `answers`, see `RecallCorpus`."""
TOGETHER = 64
"""Sequences that are made at a time."""
LIMITS: dict[str, tuple[float, float]] = {
    "pairs": (1, KEYS),
    "length": (4, 2**24),
    "power": (0, 8),
    "size": (1, math.inf),
    "seed": (0, math.inf),
}
"""Least and largest value of each parameter; a higher power has weights that float64 cannot add."""


class Queries(NamedTuple):
    """Places of the keys in sequences, pairs in the order in which they stand; each (n, K).

    pair    place of the key in its pair, from 0
    query   place of the key that asks
    answer  the value of the pair, which is to be predicted there
    """

    pair: Places
    query: Places
    answer: Places

    @property
    def distance(self) -> Places:
        """Bytes from the key in its pair to the key that asks, (n, K)."""
        return self.query - self.pair


@dataclass(frozen=True)
class RecallCorpus:
    """Sequences of K pairs of a key and a value, and K queries, each the key of a pair.

    Slots of two bytes hold a pair, a query with the byte behind it, or two random values. Keys are
    K different ones of KEYS, drawn evenly, as are values, which may be equal. Each key is asked for
    once, and the answer is its value. It follows from the sequence, so that the best prediction has
    accuracy 1 and 0 bits.

    pairs    K, 1 to 128 and at most length / 4
    length   bytes of a sequence, even
    power    a query lies x slots behind with probability ~ x**-power, 0 to 8; 0 is uniform
    placing  first: pairs fill the first slots, x counts from their end and no key is likelier to be
             asked for soon. anywhere: pair by pair, a free slot is drawn evenly and one behind it
             for its query, x counting from the pair
    answers  behind a query stands hidden: a random value; shown: the answer, as in a text
    size     bytes of the corpus, sequence after sequence
    seed     of the corpus
    """

    pairs: int = 32
    length: int = 128
    power: float = 1.0
    placing: str = "first"
    answers: str = "hidden"
    size: int = 1_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                bounds = f"at least {least}" if most == math.inf else f"from {least} to {most}"
                raise ValueError(f"{name} must be {bounds}, got {value}")
        if self.length % SLOT:
            raise ValueError(f"length must be even, got {self.length}")
        if self.pairs > most_pairs(self.length):
            raise ValueError(
                f"pairs must be at most length / 4 and {KEYS}, {most_pairs(self.length)} for"
                f" length {self.length}, got {self.pairs}"
            )
        for name, known in {"placing": PLACINGS, "answers": ANSWERS}.items():
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} must be {' or '.join(known)}, got {value!r}")

    @property
    def slots(self) -> int:
        """Slots of a sequence."""
        return self.length // SLOT

    def sequences(self, count: int, rng: np.random.Generator) -> Bytes:
        """Draw `count` sequences, (count, length)."""
        keys = rng.random((count, KEYS)).argsort(axis=1)[:, : self.pairs]
        values = rng.integers(KEYS, SYMBOLS, (count, self.pairs))
        drawn = rng.integers(KEYS, SYMBOLS, (count, self.length), np.uint8)
        place = _first if self.placing == "first" else _anywhere
        pair, query = place(self, count, rng)
        np.put_along_axis(drawn, SLOT * pair, keys, axis=1)
        np.put_along_axis(drawn, SLOT * pair + 1, values, axis=1)
        np.put_along_axis(drawn, SLOT * query, keys, axis=1)
        if self.answers == "shown":
            np.put_along_axis(drawn, SLOT * query + 1, values, axis=1)
        return drawn

    def windows(self, count: int, rng: np.random.Generator) -> Bytes:
        """Draw `count` sequences with one more value behind each, (count, length + 1).

        A model is given `length` bytes and predicts as many, as in windows of a text.
        """
        behind = rng.integers(KEYS, SYMBOLS, (count, 1), np.uint8)
        return np.concatenate([self.sequences(count, rng), behind], axis=1)

    def blocks(self) -> Iterator[Bytes]:
        """The corpus in pieces of TOGETHER sequences, the last one shorter.

        A shorter corpus is the beginning of a longer one.
        """
        rng = np.random.default_rng(self.seed)
        left = self.size
        while left > 0:
            block = self.sequences(TOGETHER, rng).reshape(-1)[:left]
            left -= block.size
            yield block


def most_pairs(length: int) -> int:
    """The most pairs that a sequence of `length` holds, with as many queries: at most KEYS."""
    return min(KEYS, length // (2 * SLOT))


def queries(windows: NDArray[np.integer]) -> Queries:
    """Find the keys and the answers in windows (n, T) of whole sequences.

    Raises ValueError where a key is not there exactly twice, or windows differ in their number of
    pairs, as those do which are cut out of a corpus anywhere.
    """
    rows, columns = np.nonzero(windows < KEYS)
    counts = np.bincount(rows, minlength=len(windows))
    is_even = counts.size > 0 and counts[0] > 0 and counts[0] % 2 == 0
    if not is_even or np.any(counts != counts[0]):
        raise ValueError(
            "windows must be whole sequences of recall, with equally many keys, got"
            f" {counts.min() if counts.size else 0} to {counts.max() if counts.size else 0}"
        )
    places = columns.reshape(len(windows), -1)
    keys = np.take_along_axis(windows, places, axis=1)
    by_key = keys.argsort(axis=1, kind="stable")
    sorted_keys = np.take_along_axis(keys, by_key, axis=1)
    is_twice = np.all(sorted_keys[:, 0::2] == sorted_keys[:, 1::2])
    if not is_twice or np.any(sorted_keys[:, 1:-1:2] == sorted_keys[:, 2::2]):
        raise ValueError(
            "windows must be whole sequences of recall, with every key in them twice, got others"
        )
    pair = np.take_along_axis(places, by_key[:, 0::2], axis=1)
    query = np.take_along_axis(places, by_key[:, 1::2], axis=1)
    order = pair.argsort(axis=1)
    pair = np.take_along_axis(pair, order, axis=1)
    query = np.take_along_axis(query, order, axis=1)
    answer = np.take_along_axis(windows, pair + 1, axis=1).astype(np.int64)
    return Queries(pair, query, answer)


def _first(law: RecallCorpus, count: int, rng: np.random.Generator) -> tuple[Places, Places]:
    """Slots of pairs and of their queries, (count, K) each: pairs in the first slots."""
    pair = np.broadcast_to(np.arange(law.pairs), (count, law.pairs))
    behind = np.arange(1, law.slots - law.pairs + 1)
    # The largest of log weight + Gumbel noise are draws without replacement.
    scores = rng.gumbel(size=(count, behind.size)) - law.power * np.log(behind)
    nearest_first = scores.argsort(axis=1)[:, : -law.pairs - 1 : -1]
    return pair, law.pairs + rng.permuted(nearest_first, axis=1)


def _anywhere(law: RecallCorpus, count: int, rng: np.random.Generator) -> tuple[Places, Places]:
    """Slots of pairs and of their queries, (count, K) each: pair by pair in free slots."""
    number = np.arange(law.slots)
    weights = np.append(0.0, number[1:] ** -law.power)
    is_free = np.ones((count, law.slots), bool)
    every = np.arange(count)
    pair = np.empty((count, law.pairs), np.int64)
    query = np.empty_like(pair)
    for index in range(law.pairs):
        last_free = law.slots - 1 - is_free[:, ::-1].argmax(axis=1)
        has_room = is_free & (number < last_free[:, None])
        pair[:, index] = _drawn(has_room.astype(float), rng)
        is_free[every, pair[:, index]] = False
        gaps = np.maximum(number - pair[:, index, None], 0)
        query[:, index] = _drawn(weights[gaps] * is_free, rng)
        is_free[every, query[:, index]] = False
    return pair, query


def _drawn(weights: NDArray[np.float64], rng: np.random.Generator) -> Places:
    """One column of each row, with probabilities proportional to weights (n, S)."""
    ends = weights.cumsum(axis=1)
    total = ends[:, -1]
    # Rounded up to the total, a draw would lie behind the last column of a weight.
    at = np.minimum(rng.random(len(weights)) * total, np.nextafter(total, 0))
    return np.asarray((ends > at[:, None]).argmax(axis=1))
