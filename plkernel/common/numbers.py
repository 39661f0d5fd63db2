"""Numbers as text, where a format alone would mislead."""

import math

SMALLEST = 1e-7
"""What is nearer to zero stands as a power of ten."""
MOST_DIGITS = 9


def finer(form: str, low: float, high: float) -> str:
    """`form`, "+.4f", or one of more digits where half the interval from `low` to `high` would not show in it.

    >>> finer("+.4f", -0.02, 0.01), finer("+.4f", 0.0000052, 0.000031), finer(".4f", 1.5, 1.5)
    ('+.4f', '+.6f', '.4f')
    """
    half, head = (high - low) / 2, form[: form.index(".") + 1]
    if not math.isfinite(half) or half <= 0.0 or float(f"{half:{form}}"):
        return form
    return f"{head}{min(MOST_DIGITS, 1 - math.floor(math.log10(half)))}f"


def written(value: float, form: str) -> str:
    """A number by `form`; one that would read as zero and is none with two digits instead, and zero without a sign.

    >>> written(-0.0254, "+.4f"), written(-0.0000123, "+.4f"), written(3e-9, "+.4f"), written(-0.0, "+.4f")
    ('-0.0254', '-0.000012', '+3.0e-09', '0')
    """
    text = f"{value:{form}}"
    if not math.isfinite(value) or float(text):
        return text
    if value == 0.0:
        return "0"
    sign, small = "+" if "+" in form else "", abs(value) < SMALLEST
    return f"{value:{sign}.1e}" if small else f"{value:{sign}.{1 - math.floor(math.log10(abs(value)))}f}"
