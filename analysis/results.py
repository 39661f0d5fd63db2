"""Results in Python and in notebooks: a short repr, a table, a figure."""

import sys
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from plkernel.analysis.figures.style import rendered
from plkernel.analysis.printing import escaped

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

ROWS = 5
"""Rows of a table in a repr; in a notebook twice as many."""
COLUMNS = 9
"""Columns of a table in a repr."""
DIGITS = "{:.4g}".format
"""Format of the numbers of a table."""


class Result:
    """Base of results: text, table and figure.

    Texts show control characters in names as escapes, such as \\x1b.

    `_title` is a line of text, `_table` the columns or rows of a table, `_draw` the figure.
    _figure: the function that draws it, module:function, in place of `_draw`.
    """

    _figure: ClassVar[str]

    def _title(self) -> str:
        raise NotImplementedError

    def _table(self) -> Any:
        raise NotImplementedError

    def _draw(self) -> "Figure":
        module, _, name = self._figure.partition(":")
        figure: Figure = getattr(import_module(module), name)(self)
        return figure

    def to_frame(self) -> "DataFrame":
        """Return a row for every lag, half-life, layer or arm; information and losses in bits."""
        from pandas import DataFrame

        return DataFrame(self._table())

    def plot(self) -> "Figure":
        """Draw the figure that the command of the same purpose writes."""
        return self._shown_in_notebooks(self._draw())

    @staticmethod
    def _shown_in_notebooks(figure: "Figure") -> "Figure":
        """The figure, with what IPython shows of it."""
        if "IPython" in sys.modules:  # which knows the figures of pyplot alone
            figure._repr_png_ = lambda: rendered(figure, ("png",))["png"]  # type: ignore[attr-defined]
        return figure

    def __repr__(self) -> str:
        table = self.to_frame().to_string(
            max_rows=ROWS, max_cols=COLUMNS, show_dimensions=False, float_format=DIGITS
        )
        return escaped(f"{self._title()}\n{table}")

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(
            index=False, max_rows=2 * ROWS, float_format=DIGITS, border=0
        )
        return escaped(f"<p>{escape(self._title())}</p>{table}")
