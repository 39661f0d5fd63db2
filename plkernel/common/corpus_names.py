"""Names of corpora before anything is read: which are synthetic, and by which law."""

from plkernel.common.cli import nearest

SYNTHETIC = "synthetic"
RECALL = "recall"
LAWS = ("potts", "lags", "markov", RECALL)
"""Laws of sequences by the names that synthetic: takes."""
WITH_FLOOR = (RECALL, "lags", "markov")
"""Laws whose best possible loss is known."""


def is_synthetic(name: str) -> bool:
    """True if the corpus called `name` is made from a seed, and so is no text."""
    return name.partition(":")[0] == SYNTHETIC


def is_recall(name: str) -> bool:
    """True for the name of a corpus of recall, whatever its parameters.

    >>> is_recall("synthetic:recall,pairs=32,length=128"), is_recall("synthetic:recalled")
    (True, False)
    """
    return _first_word(name) == RECALL


def has_floor(name: str) -> bool:
    """True for the name of a corpus whose best possible loss is known.

    >>> has_floor("synthetic:lags,longest=64"), has_floor("stdlib")
    (True, False)
    """
    return _first_word(name) in WITH_FLOOR


def check_law(name: str) -> None:
    """Raise ValueError where the first word after 'synthetic:' is neither a law nor NAME=VALUE."""
    word = _first_word(name)
    if word and "=" not in word and word not in LAWS:
        raise ValueError(
            f"corpus {name!r}: law must be one of those known, got {word!r}; {nearest(word, LAWS)}"
        )


def _first_word(name: str) -> str | None:
    """The first word after 'synthetic:', which a law may be; None for other corpora."""
    kind, _, rest = name.partition(":")
    return rest.partition(",")[0].strip() if kind == SYNTHETIC else None
