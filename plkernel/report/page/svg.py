"""A drawing to stand inside a page."""

import re

from markupsafe import Markup, escape

from plkernel.analysis.figures.style import INK


def inline_svg(svg: bytes, name: str, description: str) -> Markup:
    """An SVG of ours in the page's own ink, its ids under `name`, described for screen readers."""
    text = svg.decode()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    opening, body = text.split(">", 1)
    box = re.search(r'viewBox="[\d. ]+"', opening)
    body = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{name}-", body.replace(INK, "currentColor"))
    namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    label = f'role="img" aria-label="{escape(description)}"'
    return Markup(f"<svg {box.group() if box else ''} {label} {namespaces}>{body}")
