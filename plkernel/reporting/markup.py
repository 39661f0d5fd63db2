"""HTML that escapes by default: whatever is not `Html` already goes out as text."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from plkernel.analysis.figures import INK


class Html(str):
    """Text that is markup already and must not be escaped again."""


class Number(Html):
    """Markup of a number: its column is set flush right."""


Group = tuple[Any, Sequence[Sequence[Any]]]
"""The title of a group of rows, empty for none, and the rows."""


def html(value: Any) -> Html:
    """`value` as markup: unchanged if it is, else escaped.

    >>> html("a < b")
    'a &lt; b'
    """
    return value if isinstance(value, Html) else Html(escape(str(value)))


def tag(name: str, content: Any, css: str = "") -> Html:
    """<name class=css>content</name>.

    >>> tag("p", "1 < 2", "soft")
    '<p class="soft">1 &lt; 2</p>'
    """
    attribute = f' class="{css}"' if css else ""
    return Html(f"<{name}{attribute}>{html(content)}</{name}>")


def paragraphs(css: str, texts: Iterable[str]) -> Html:
    """A block of paragraphs, or nothing where there is no text."""
    body = "".join(tag("p", text) for text in texts)
    return Html(f'<div class="{css}">{body}</div>' if body else "")


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> Html:
    """A table whose columns are aligned as their cells in the first row are; the first column heads its rows."""
    return grouped_table(header, [("", rows)], caption)


def grouped_table(header: Sequence[str], groups: Sequence[Group], caption: str = "") -> Html:
    """A table of groups of rows, each under its title where it has one."""
    cells = zip(header, groups[0][1][0], strict=True)
    top = "".join(_cell("th", text, like, ' scope="col"') for text, like in cells)
    title = tag("caption", caption) if caption else ""
    head = f"<thead><tr>{top}</tr></thead>" if any(header) else ""
    body = "".join(f"<tbody>{_group_head(name, len(header))}{_lines(rows)}</tbody>" for name, rows in groups)
    return Html(f'<div class="wide"><table>{title}{head}{body}</table></div>')


def details(summary: Any, *content: Html, printed: bool = True) -> Html:
    """Content that a reader opens, and that print shows too where it is worth the paper."""
    css = "" if printed else ' class="screen"'
    return Html(f"<details{css}>{tag('summary', summary)}{''.join(content)}</details>")


def figure(svg: Html, caption: str) -> Html:
    """A figure with its caption."""
    return Html(f"<figure>{svg}{tag('figcaption', caption)}</figure>")


def inline_svg(svg: bytes, name: str, description: str) -> Html:
    """An SVG to stand inside a page: in the page's own ink, its ids under `name`, described for screen readers."""
    text = svg.decode()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    opening, body = text.split(">", 1)
    box = re.search(r'viewBox="[\d. ]+"', opening)
    body = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{name}-", body.replace(INK, "currentColor"))
    namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    label = f'role="img" aria-label="{escape(description)}"'
    return Html(f"<svg {box.group() if box else ''} {label} {namespaces}>{body}")


def _group_head(name: Any, columns: int) -> str:
    return f'<tr class="group"><th scope="rowgroup" colspan="{columns}">{html(name)}</th></tr>' if name else ""


def _lines(rows: Sequence[Sequence[Any]]) -> str:
    lines = (
        _cell("th", row[0], row[0], ' scope="row"') + "".join(_cell("td", cell, cell) for cell in row[1:])
        for row in rows
    )
    return "".join(f"<tr>{line}</tr>" for line in lines)


def _cell(name: str, value: Any, like: Any, attributes: str = "") -> str:
    css = ' class="number"' if isinstance(like, Number | int) else ""
    return f"<{name}{attributes}{css}>{html(value)}</{name}>"
