"""Text that may hold names out of files, as it is shown."""

CONTROLS = [code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"]
ESCAPES = {code: f"\\x{code:02x}" for code in CONTROLS}
"""Control characters as they are printed: names in files may hold them, and terminals obey them."""


def escaped(text: str) -> str:
    r"""Return the text with control characters but line feeds and tabs as escapes, such as \x1b."""
    return text.translate(ESCAPES)
