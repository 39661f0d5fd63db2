"""Text that may hold names out of files, and whole numbers of any size, as they are shown."""

from decimal import Decimal

CONTROLS = [code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"]
ESCAPES = {code: f"\\x{code:02x}" for code in CONTROLS}
"""Control characters as they are printed: names in files may hold them, and terminals obey them."""


def escaped(text: str) -> str:
    r"""Return the text with control characters but line feeds and tabs as escapes, such as \x1b."""
    return text.translate(ESCAPES)


def whole(number: int) -> str:
    """Return a whole number for a message, one of more than 20 digits as a power of ten.

    >>> whole(1_234_567), whole(10**300)
    ('1,234,567', '1.00e+300')
    """
    return f"{number:,}" if abs(number) < 10**20 else f"{Decimal(number):.3g}"
