"""A page as data: sections of paragraphs, tables, figures and folded parts. `page.html` renders it.

Everything here is text as it was read or computed, or a place in a frame; escaping is the template's.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from plkernel.results.page.charts.frames import Chart
from plkernel.results.page.charts.intervals import Forest


@dataclass(frozen=True)
class Line:
    """A line of a cell; `css` is its style (interval, soft, sentence, label, value, error).

    A dagger marks what is no likelihood.
    """

    text: str
    css: str = ""
    dagger: bool = False


@dataclass(frozen=True)
class Cell:
    """Lines one below another; the column of a number is set flush right."""

    lines: tuple[Line, ...]
    number: bool = False

    @classmethod
    def of(cls, value: Any) -> "Cell":
        """A cell as it is; whole numbers and text as cells of one line."""
        return value if isinstance(value, Cell) else cls((Line(str(value)),), isinstance(value, int))

    @property
    def text(self) -> str:
        """The words of the cell."""
        return " ".join(f"{line.text}{'†' if line.dagger else ''}" for line in self.lines if line.text)


Group = tuple[Any, Sequence[Sequence[Any]]]
"""The title of a group of rows, empty for none, and the rows."""


@dataclass(frozen=True)
class Table:
    """Groups of rows, each under its title where it has one; the first column heads its rows.

    A column is aligned as its cell in the first row is.
    """

    header: tuple[str, ...]
    groups: tuple[tuple[Cell, tuple[tuple[Cell, ...], ...]], ...]
    caption: str = ""
    kind: ClassVar[str] = "table"

    @classmethod
    def of(cls, header: Sequence[str], groups: Iterable[Group], caption: str = "") -> Self:
        """A table of plain values and cells; ValueError where a row has more or fewer than the header."""
        cells = tuple((Cell.of(title), tuple(tuple(map(Cell.of, row)) for row in rows)) for title, rows in groups)
        if wrong := [row for _, rows in cells for row in rows if len(row) != len(header)]:
            raise ValueError(f"a row of {len(wrong[0])} cells in a table of {len(header)} columns: {wrong[0]}")
        return cls(tuple(header), cells, caption)

    @property
    def columns(self) -> tuple[tuple[str, bool], ...]:
        """The title of every column, and whether it holds numbers."""
        return tuple(zip(self.header, (cell.number for cell in self.groups[0][1][0]), strict=True))


@dataclass(frozen=True)
class Prose:
    """Paragraphs in one style: summary, warnings, notes, sentences, or soft."""

    texts: tuple[str, ...]
    css: str = ""
    kind: ClassVar[str] = "prose"


@dataclass(frozen=True)
class Terms:
    """Names and what each of them is, under a title; of many a reader opens the list."""

    title: str
    rows: tuple[tuple[str, str], ...]
    kind: ClassVar[str] = "terms"


@dataclass(frozen=True)
class Beside:
    """A forest, and charts beside it where the page is wide enough."""

    forest: Forest
    charts: tuple[Chart, ...]
    kind: ClassVar[str] = "beside"


@dataclass(frozen=True)
class Folded:
    """What a reader opens, and print shows too where it is worth the paper."""

    summary: Cell
    content: "tuple[Part, ...]"
    printed: bool = True
    kind: ClassVar[str] = "folded"


Part = Table | Prose | Chart | Forest | Terms | Beside | Folded


@dataclass(frozen=True)
class PageSection:
    """A heading and what stands under it."""

    title: str
    parts: tuple[Part, ...]

    @property
    def short(self) -> str:
        """The heading without what stands in brackets."""
        return self.title.partition(" (")[0]

    @property
    def anchor(self) -> str:
        """The heading as the end of an address: letters, digits and hyphens."""
        return "-".join(re.findall(r"[a-z0-9]+", self.title.lower())) or "section"


@dataclass(frozen=True)
class Page:
    """A title, what stands under it, and sections."""

    title: str
    head: tuple[Part, ...]
    sections: tuple[PageSection, ...]


def section(title: str, *parts: Part | None) -> list[PageSection]:
    """The section of the parts that there are; nothing where there is none."""
    found = tuple(part for part in parts if part is not None)
    return [PageSection(title, found)] if found else []


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> Table:
    """A table of one group without a title."""
    return Table.of(header, [("", list(rows))], caption)


def prose(css: str, texts: Iterable[str]) -> Prose | None:
    """Paragraphs in one style, None where there is no text."""
    found = tuple(texts)
    return Prose(found, css) if found else None


def folded(summary: Any, *content: Part, printed: bool = True) -> Folded:
    """Content under a line that opens it."""
    return Folded(Cell.of(summary), content, printed)


def lines(texts: Iterable[str], css: str = "") -> Cell:
    """Texts one below another."""
    return Cell(tuple(Line(text, css) for text in texts))


def number(text: str = "", *below: str, dagger: bool = False) -> Cell:
    """A number as text, and what stands small below it; each marked with a dagger where it is no likelihood."""
    first = Line(text, "", dagger and bool(text))
    return Cell((first, *(Line(one, "interval", dagger) for one in below)), number=True)
