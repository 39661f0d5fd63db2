"""The word as the unit of lag: a text becomes one code per word, which the pair counts of bytes then serve."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nsmallest
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

VOCABULARY = 256
CHUNK = 1 << 20
"""Bytes that are read at a time."""
FOLD = bytes(byte if byte >= 0x80 or chr(byte).isalnum() else 0x20 for byte in range(256)).lower()
"""What each byte becomes: letters lower case, what stands between words a space."""


@dataclass(frozen=True, eq=False)
class WordSymbols:
    """A text as one code per word.

    codes  (m,) uint8, the words in their order: a word's place in `words`, len(words) when it is not there
    words  the most frequent words, most frequent first
    """

    codes: Bytes
    words: tuple[bytes, ...]


def word_symbols(data: Bytes, vocabulary: int = VOCABULARY) -> WordSymbols:
    """The words of `data` (n,) uint8, which may be mapped from a file, as `vocabulary` symbols at most.

    A word is a longest run of letters, digits and bytes from 0x80 on, with A-Z in lower case. Everything else parts
    words, apostrophe, hyphen and underscore too: l'homme, well-known and max_lag are two words each. Letters beyond
    ASCII stay whole in UTF-8 and keep their case; but so does punctuation beyond ASCII stick to its word, and what is
    written without spaces, such as Chinese, is cut at ASCII bytes only.

    The `vocabulary - 1` most frequent words, of equally frequent ones those first in byte order, have the codes from 0
    on; all others share the next one. Codes are a function of the word, so they can only lower the mutual information
    between two words, never raise it (data-processing inequality; Cover & Thomas 2006, theorem 2.8.1).

    Reads the data twice. Memory: the different words, one byte per word, and the words of 1 MiB of text. Raises
    ValueError when there is no word, and for a vocabulary outside 2..256.

    >>> text = "To be, or not to be: that is the question."
    >>> symbols = word_symbols(np.frombuffer(text.encode(), np.uint8), vocabulary=4)
    >>> symbols.words
    (b'be', b'to', b'is')
    >>> symbols.codes.tolist()
    [1, 0, 3, 3, 1, 0, 3, 2, 3, 3]
    """
    if not isinstance(data, np.ndarray) or data.ndim != 1 or data.dtype != np.uint8:
        raise ValueError("data must be a vector of uint8; np.frombuffer(text, np.uint8) makes one of bytes")
    if not 2 <= vocabulary <= VOCABULARY:
        raise ValueError(f"vocabulary = {vocabulary}: must be from 2 to {VOCABULARY}, so that a code is one byte")
    counts = Counter[bytes]()
    for words in _chunks(data):
        counts.update(words)
    if not counts:
        raise ValueError(f"data holds no word in {data.size:,} bytes: give text, or measure bytes")
    ranked = nsmallest(vocabulary - 1, counts, key=lambda word: (-counts[word], word))
    return WordSymbols(_encode(data, ranked, counts.total()), tuple(ranked))


def _encode(data: Bytes, ranked: list[bytes], size: int) -> Bytes:
    """The codes (size,) of all words of `data`."""
    code, codes, filled = {word: rank for rank, word in enumerate(ranked)}, np.empty(size, np.uint8), 0
    for words in _chunks(data):
        codes[filled : filled + len(words)] = np.frombuffer(bytes(map(code.get, words, repeat(len(ranked)))), np.uint8)
        filled += len(words)
    return codes


def _chunks(data: Bytes) -> Iterator[list[bytes]]:
    """All words of `data` in order, in lists; a word that a chunk cuts is carried into the next one."""
    carry: list[bytes] = []
    for start in range(0, data.size, CHUNK):
        folded = data[start : start + CHUNK].tobytes().translate(FOLD)
        end = folded.rfind(b" ") + 1
        if end:
            carry.append(folded[:end])
            yield b"".join(carry).split()
            carry = []
        carry.append(folded[end:])
    yield b"".join(carry).split()
