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
"""Sequences of a corpus that are drawn together."""
AT_ONCE = 2**20
"""Numbers that are drawn, or looked at, at a time; a multiple of 4."""
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

    def sequences(self, count: int, rng: np.random.Generator, kept: int | None = None) -> Bytes:
        """Draw `count` sequences, and return the first `kept`, all unless given, (kept, length).

        Where some are left out, nothing more is to be drawn from `rng`.
        """
        kept = count if kept is None else min(kept, count)
        keys, values, drawn = self._contents(count, rng, kept)
        pair, query = self._places(count, rng, kept)
        np.put_along_axis(drawn, SLOT * pair, keys, axis=1)
        np.put_along_axis(drawn, SLOT * pair + 1, values, axis=1)
        np.put_along_axis(drawn, SLOT * query, keys, axis=1)
        if self.answers == "shown":
            np.put_along_axis(drawn, SLOT * query + 1, values, axis=1)
        return drawn

    def _contents(
        self, count: int, rng: np.random.Generator, kept: int
    ) -> tuple[Places, Places, Bytes]:
        """Keys and their values, (kept, K), and random values (kept, length) to stand around them.

        Those of `count` sequences are drawn.
        """
        keys = np.empty((kept, self.pairs), np.int64)
        for start, end in _pieces(count, KEYS):
            orders = rng.random((end - start, KEYS)).argsort(axis=1)
            if start < kept:
                keys[start:end] = orders[: kept - start, : self.pairs]
        values = rng.integers(KEYS, SYMBOLS, (count, self.pairs))[:kept]
        return keys, values, self._fillers(count, rng, kept)

    def _fillers(self, count: int, rng: np.random.Generator, kept: int) -> Bytes:
        """Random values (kept, length), where those of `count` sequences are drawn."""
        total = count * self.length
        wanted = kept * self.length
        # Four bytes are made of one number, and those left at the end of a call are lost.
        first = min(total, wanted + -wanted % 4)
        fillers = rng.integers(KEYS, SYMBOLS, first, np.uint8)
        for start in range(first, total, AT_ONCE):
            rng.integers(KEYS, SYMBOLS, min(AT_ONCE, total - start), np.uint8)
        return fillers[:wanted].reshape(kept, self.length)

    def _places(self, count: int, rng: np.random.Generator, kept: int) -> tuple[Places, Places]:
        """Slots of pairs and of their queries in the first `kept` of `count` sequences."""
        place = _first if self.placing == "first" else _anywhere
        return place(self, count, rng, kept)

    def distances(self, count: int, rng: np.random.Generator) -> Places:
        """Bytes from the key in its pair to the key that asks, (count, K), in `windows`.

        They are those of `count` windows drawn from the same `rng`, which are not made.
        """
        self._behind(count, rng)
        self._contents(count, rng, kept=0)
        pair, query = self._places(count, rng, count)
        return SLOT * (query - pair)

    def windows(self, count: int, rng: np.random.Generator) -> Bytes:
        """Draw `count` sequences with one more value behind each, (count, length + 1).

        A model is given `length` bytes and predicts as many, as in windows of a text.
        """
        behind = self._behind(count, rng)
        return np.concatenate([self.sequences(count, rng), behind], axis=1)

    def _behind(self, count: int, rng: np.random.Generator) -> Bytes:
        """The values that stand behind `count` sequences, (count, 1)."""
        return rng.integers(KEYS, SYMBOLS, (count, 1), np.uint8)

    def blocks(self) -> Iterator[Bytes]:
        """The corpus in pieces of TOGETHER sequences, the last one shorter.

        A shorter corpus is the beginning of a longer one. No sequence behind its end is made.
        """
        rng = np.random.default_rng(self.seed)
        left = self.size
        while left > 0:
            kept = math.ceil(left / self.length)
            block = self.sequences(TOGETHER, rng, kept).reshape(-1)[:left]
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


def _pieces(count: int, width: int) -> Iterator[tuple[int, int]]:
    """First row, and the one behind the last, of pieces of `count` rows of this width.

    A piece has at most AT_ONCE numbers, or one row.
    """
    rows = max(1, AT_ONCE // width)
    for start in range(0, count, rows):
        yield start, min(count, start + rows)


def _first(
    law: RecallCorpus, count: int, rng: np.random.Generator, kept: int
) -> tuple[Places, Places]:
    """Slots of pairs and of their queries, (kept, K) each: pairs in the first slots."""
    pair = np.broadcast_to(np.arange(law.pairs), (kept, law.pairs))
    behind = np.arange(1, law.slots - law.pairs + 1)
    nearest_first = np.empty((kept, law.pairs), np.int64)
    for start, end in _pieces(count, behind.size):
        # The largest of log weight + Gumbel noise are draws without replacement.
        noise = rng.gumbel(size=(end - start, behind.size))
        if start < kept:
            scores = noise[: kept - start] - law.power * np.log(behind)
            nearest_first[start:end] = scores.argsort(axis=1)[:, : -law.pairs - 1 : -1]
    return pair, law.pairs + rng.permuted(nearest_first, axis=1)


def _anywhere(
    law: RecallCorpus, count: int, rng: np.random.Generator, kept: int
) -> tuple[Places, Places]:
    """Slots of pairs and of their queries, (kept, K) each: pair by pair in free slots."""
    # For each pair in turn, a number of every sequence for the pair and one for its query.
    chances = rng.random((law.pairs, 2, count))
    pair = np.empty((kept, law.pairs), np.int64)
    query = np.empty_like(pair)
    for start, end in _pieces(kept, law.slots):
        rows = slice(start, end)
        pair[rows], query[rows] = _in_free_slots(law, chances[:, :, rows])
    return pair, query


def _in_free_slots(law: RecallCorpus, chances: NDArray[np.float64]) -> tuple[Places, Places]:
    """Slots of pairs and of their queries, (n, K) each, from even `chances` (K, 2, n)."""
    count = chances.shape[2]
    number = np.arange(law.slots)
    weights = np.append(0.0, number[1:] ** -float(law.power))
    is_free = np.ones((count, law.slots), bool)
    every = np.arange(count)
    pair = np.empty((count, law.pairs), np.int64)
    query = np.empty_like(pair)
    for index, (of_pair, of_query) in enumerate(chances):
        last_free = law.slots - 1 - is_free[:, ::-1].argmax(axis=1)
        has_room = is_free & (number < last_free[:, None])
        pair[:, index] = _column(has_room.astype(float), of_pair)
        is_free[every, pair[:, index]] = False
        gaps = np.maximum(number - pair[:, index, None], 0)
        query[:, index] = _column(weights[gaps] * is_free, of_query)
        is_free[every, query[:, index]] = False
    return pair, query


def _column(weights: NDArray[np.float64], chances: NDArray[np.float64]) -> Places:
    """One column of each row, with probabilities proportional to weights (n, S).

    chances: (n,), even from 0 to 1.
    """
    ends = weights.cumsum(axis=1)
    total = ends[:, -1]
    # Rounded up to the total, a draw would lie behind the last column of a weight.
    at = np.minimum(chances * total, np.nextafter(total, 0))
    return np.asarray((ends > at[:, None]).argmax(axis=1))
