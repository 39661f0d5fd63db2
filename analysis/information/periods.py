"""Periodic structure of a sequence: lines and records of a fixed length, code units of two bytes.

A text whose composition depends on the phase t mod P shares information at every multiple of P,
however far. That is layout, not memory, so it is measured on its own: at lag d it is the mutual
information of a sequence whose symbols depend on their phase alone,

    Q_d(i, j) = 1/P sum_r p_r(i) p_{r+d}(j)   with p_r the composition at phase r.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd, log
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammainccinv, gammaincinv

from plkernel.analysis.information.counts import LINE_BREAK, Bytes
from plkernel.analysis.information.estimate import mutual_information

LONGEST_PERIOD = 2048
"""The longest period that is looked for."""
STRETCHES = ((1 << 16, 8), (1 << 13, 32))
"""Lengths of the stretches in which a period must keep its phase, and how many are looked at.

Long ones show a weak period, short ones a period whose phase changes with every record.
"""
COMMON = 64
"""The most frequent symbols, whose spectra are looked at."""
BACKGROUND = 64
"""Half the number of neighbouring frequencies that a spectral line is compared with."""
CHANCE = 1e-12
"""The chance with which noise at one frequency is taken for a line."""
WIDTH = 2.5
"""Frequencies k / size on either side of a line that belong to it, by the window."""
EXPLAINED = 0.5
"""The least share of the power of all lines at the multiples of 1 / P, beyond what chance gives."""
NEARLY = 0.9
"""Part of the best share that a shorter period must reach to be taken instead."""
SPLIT = 1e-3
"""The least information, in nats at lag P, that makes a period worth naming."""
BESIDE = (-7, -5, -3, -2, -1, 1, 2, 3, 5, 7)
"""Offsets of the lengths beside P that it is compared with."""
TIMES_BESIDE = 5.0
"""Least ratio of the information at P over that at those."""
UNITS = 8
"""Periods up to this one may be those of one symbol: of such only multiples are measured."""
WIDE = {2: "UTF-16 or numbers of 16 bits", 4: "UTF-32 or numbers of 32 bits"}
"""Kinds of text of which one byte in so many is mostly 0."""
MOSTLY = 0.8
"""The share of one byte at one phase from which it is said to be mostly that byte."""
MOST = 0.5
"""The share of a text in lines of one length from which they are said to be most lines."""


@dataclass(frozen=True)
class Period:
    """A period, and the information that it alone shares.

    length       P, in symbols
    strength     nats at lag P and its multiples
    information  (L,) nats at the lags asked for
    blank        the largest share that the byte 0 has at one phase: near 1 for code units of
                 several bytes whose upper byte is mostly empty. Of half of the stretches at least
    lines        the share of the text that stands in lines of this length, the line break included
    """

    length: int
    strength: float
    information: tuple[float, ...]
    blank: float
    lines: float = 0.0

    def brief(self, unit: str) -> str:
        """The period in a few words; unit: what a symbol is."""
        return f"period of {self.length} {unit}s, which is not part of I"

    def sentence(self, unit: str, lags: Sequence[int]) -> str:
        """The period of the text, what is seen of its cause, and what to do about it.

        Streams that are interleaved, numbers of several bytes and fields of a record look alike, so
        none of them is named.

        unit  what a symbol is
        lags  that are measured
        """
        is_text = unit == "byte"
        length = self.length
        found = f"period: the composition of the text repeats every {length} {unit}s"
        explains = (
            f"it explains {self.strength / log(2):.2g} bits at lag {length}, and what it"
            " explains is not part of I above"
        )
        if all(lag % length == 0 for lag in lags):
            explains = f"{explains}; only multiples of {length} are measured"
        if is_text and self.lines >= MOST:
            return f"{found}, the length of most lines; {explains}"
        if not is_text or length > UNITS or self.blank <= MOSTLY:
            return f"{found}; {explains}"
        told = f"{found}, and one of them is mostly 0"
        if length not in WIDE:
            return f"{told}; {explains}"
        coding = f"UTF-{8 * length}"
        return (
            f"{told}, as in {WIDE[length]}; {explains}. Convert text to UTF-8 (iconv -f {coding} -t"
            " UTF-8)"
        )


def find_period(data: Bytes, lags: ArrayLike) -> Period | None:
    """The period of `data` (n,) uint8, and its information at `lags` (L,); None without one.

    A period shows as lines in the spectra of where the symbols stand, at multiples of 1 / P and
    nowhere else. Stretches of the data are looked at, evenly spread over it, and the phase may
    differ between them.
    """
    for size, most in STRETCHES:
        stretches = _stretches(data, size, most)
        length = _fundamental(_line_powers(stretches)) if stretches else None
        if length is None:
            continue
        if _stands_out(stretches, length):
            strength, *shared = _shared_information(stretches, length, np.append(length, lags))
            blank = _share_of_zero(stretches, length)
            lines = _share_in_lines(data, length)
            return Period(length, float(strength), tuple(map(float, shared)), blank, lines)
    return None


def _stands_out(stretches: list[Bytes], length: int) -> bool:
    """True where phases of this length share more than those of lengths beside it.

    Those show what the compositions of phases share by chance, in a text with memory.
    """
    others = [length + offset for offset in BESIDE if length + offset >= 2]
    others = [other for other in others if gcd(other, length) == 1]  # which share no phase
    found, *beside = (
        _shared_information(stretches, one, np.array([one]))[0] for one in (length, *others)
    )
    return bool(found >= max(SPLIT, TIMES_BESIDE * max(beside)))


def _stretches(data: Bytes, size: int, most: int) -> list[Bytes]:
    """Pieces of the data of equal length, evenly spread; none where it is too short."""
    if data.size < 4 * BACKGROUND:
        return []
    size = min(size, 1 << (int(data.size).bit_length() - 1))
    count = min(most, data.size // size)
    starts = np.linspace(0, data.size - size, count).astype(np.int64)
    return [np.asarray(data[start : start + size]) for start in starts]


def _line_powers(stretches: list[Bytes]) -> NDArray[np.float64]:
    """Power of each frequency k / size at which a symbol has a line, summed over symbols.

    The spectrum of a symbol is that of where it stands; a line break has a line at 1 / P although
    it is rare beside the letters.
    """
    pieces = np.stack(stretches)
    size = pieces.shape[1]
    window = np.hanning(size)
    # The power of noise, averaged over n stretches, has a gamma distribution of shape n.
    shape = len(stretches)
    least = gammainccinv(shape, CHANCE) / gammaincinv(shape, 0.5)
    lines = np.zeros(size // 2 + 1)
    common = np.argsort(np.bincount(pieces.ravel(), minlength=256))[::-1][:COMMON]
    for symbol in common:
        stands = (pieces == symbol) - np.mean(pieces == symbol, axis=1, keepdims=True)
        power = np.mean(np.abs(np.fft.rfft(window * stands)) ** 2, axis=0)
        median = _background(power)
        lines += np.where(power > least * median, power, 0.0)
    lines[: size // LONGEST_PERIOD] = 0.0  # slower than any period that is looked for
    return lines


def _background(power: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of each run of 2 BACKGROUND frequencies, at each of them; the last run is longer.

    Lines are few in a run, so that they do not move it.
    """
    width = 2 * BACKGROUND
    runs = max(power.size // width, 1)
    last = width * (runs - 1)
    medians = np.median(power[:last].reshape(runs - 1, width), axis=1)
    medians = np.append(medians, np.median(power[last:]))
    lengths = np.full(runs, width)
    lengths[-1] = power.size - last
    return np.repeat(medians, lengths)


def _fundamental(lines: NDArray[np.float64]) -> int | None:
    """The shortest period whose multiples of 1 / P hold most of the power of the lines."""
    at = np.flatnonzero(lines)
    if not at.size:
        return None
    size = 2 * (lines.size - 1)
    periods = np.arange(2, min(LONGEST_PERIOD, size // 32) + 1)
    shares = np.zeros(periods.size)
    for place, length in enumerate(periods):
        harmonic = at * length / size
        away = np.abs(harmonic - np.round(harmonic)) * size / length
        share = lines[at[away <= WIDTH]].sum() / lines.sum()
        by_chance = 2 * WIDTH * length / size
        shares[place] = share - by_chance
    if shares.max() < EXPLAINED:
        return None
    return int(periods[np.argmax(shares >= NEARLY * shares.max())])


def _shared_information(
    stretches: list[Bytes], length: int, lags: NDArray[Any]
) -> NDArray[np.float64]:
    """Information (L,) in nats that phases alone share at `lags`.

    p_r comes from one half of a stretch and p_{r+d} from the other, so that noise in the
    compositions, which would correlate with itself, does not count.
    """
    symbols = np.flatnonzero(reduce(np.add, (np.bincount(x, minlength=256) for x in stretches)))
    tables = np.zeros((lags.size, symbols.size, symbols.size))
    for piece in stretches:
        half = piece.size // 2 // length * length
        first = _compositions(piece[:half], length, symbols)
        second = _compositions(piece[half : 2 * half], length, symbols)
        for row, lag in enumerate(lags):
            tables[row] += first.T @ np.roll(second, -int(lag), axis=0)
            tables[row] += second.T @ np.roll(first, -int(lag), axis=0)
    return mutual_information(tables)


def _compositions(piece: Bytes, length: int, symbols: NDArray[Any]) -> NDArray[np.float64]:
    """Share of each symbol at each phase, (P, S)."""
    phases = np.arange(piece.size) % length
    counts = np.bincount(phases * 256 + piece, minlength=length * 256).reshape(length, 256)
    return counts[:, symbols] / (piece.size // length)


def _share_of_zero(stretches: list[Bytes], length: int) -> float:
    """The largest share of the byte 0 at one phase; the median over stretches.

    Stretches that are mostly zeros at every phase say nothing of the phases, and do not count.
    """
    largest = []
    for piece in stretches:
        shares = [float(np.mean(piece[phase::length] == 0)) for phase in range(length)]
        if min(shares) < 0.5:
            largest.append(max(shares))
    return float(np.median(largest)) if largest else 0.0


def _share_in_lines(data: Bytes, length: int) -> float:
    """The share of `data` (n,) in lines of `length` bytes, the line break included."""
    breaks = np.flatnonzero(data == LINE_BREAK)
    lines = np.count_nonzero(np.diff(breaks) == length)
    return float(lines * length / data.size)
