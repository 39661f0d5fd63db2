"""What may be given as text: bytes, arrays of byte values, and corpora by name or path."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plkernel.data import corpora

Text = bytes | bytearray | memoryview | str | Path | NDArray[Any]
"""Bytes and vectors of integers from 0 to 255 are the text; a string or path names a corpus, as for plkernel.corpus."""
SYMBOLS = 256


@dataclass(frozen=True)
class Named:
    """Where symbols are from, as a measurement tells it."""

    name: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, "source": self.source}


def load_corpus(name: str | Path, **options: Any) -> corpora.Corpus:
    """The corpus that `name` means for plkernel.corpus: 'stdlib', a file or folder, 'hf:NAME', 'synthetic:beta=1.0'.

    Options as in `plkernel.data.corpora.load`: max_bytes, separator, column, cache, follow_links. Raises ValueError or
    OSError, in one line, where there is none.
    """
    return corpora.load(str(name), **options)


def read_text(text: Text) -> tuple[Named | corpora.Corpus, NDArray[np.uint8]]:
    """Where a text is from, and its symbols (n,), uint8; ValueError that says what would work for anything else."""
    if isinstance(text, str | Path):
        corpus = load_corpus(text)
        return corpus, np.asarray(corpus.bytes)
    data = np.frombuffer(text, np.uint8) if isinstance(text, bytes | bytearray | memoryview) else np.asarray(text)
    kind = "bytes" if not isinstance(text, np.ndarray) else "array"
    if data.ndim != 1 or data.dtype.kind not in "iu":
        raise ValueError(
            f"text must be bytes, a vector of integers from 0 to 255, or the name of a corpus, got {data.dtype} of "
            f"shape {data.shape}"
        )
    if data.dtype != np.uint8 and data.size and not (data.min() >= 0 and data.max() < SYMBOLS):
        raise ValueError(
            f"text must hold integers from 0 to 255, got {data.min()} to {data.max()}: np.unique(text, "
            "return_inverse=True)[1] renumbers up to 256 different ones"
        )
    return Named(kind, "given"), data.astype(np.uint8, copy=False)
