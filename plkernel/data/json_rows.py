"""JSON lines looked at before pyarrow reads them: some end its process without a word.

pyarrow 26.0.1 dies of a segmentation fault where the first row of one of its blocks is `null`, and of nesting of some
ten thousand lists: no exception, and so no line that says which file it was.
"""

import re
from collections.abc import Iterable, Iterator

import numpy as np

MOST_NESTED = 500
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
NULL = re.compile(rb"null")
STEPS = np.zeros(256, np.int64)
STEPS[list(b"[{")], STEPS[list(b"]}")] = 1, -1


def check_rows(chunks: Iterable[bytes], label: str) -> None:
    """ValueError, headed by `label`, where a row is null or is nested deeper than MOST_NESTED lists and objects."""
    depth = 0
    for lines in _whole_lines(chunks):
        bare = STRING.sub(b'""', lines)
        depths = depth + np.cumsum(STEPS[np.frombuffer(bare, np.uint8)])
        if depths.size and depths.max() > MOST_NESTED:
            raise ValueError(f"{label}: nested deeper than {MOST_NESTED} lists and objects")
        if any(depths[found.start()] <= 0 for found in NULL.finditer(bare)):
            raise ValueError(f"{label}: a row is null, expected an object in each: remove such rows")
        depth = max(0, int(depths[-1])) if depths.size else depth


def _whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks, divided at ends of lines, where no string of JSON goes on."""
    kept: list[bytes] = []
    for chunk in chunks:
        head, end, tail = chunk.rpartition(b"\n")
        if end:
            yield b"".join([*kept, head, end])
            kept = []
        kept.append(tail)
    yield b"".join(kept)
