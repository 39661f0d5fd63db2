"""Results in Python and in notebooks: a short repr, a table, a figure."""

import sys
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from plkernel.analysis.figures.style import rendered

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

ROWS = 5
DIGITS = "{:.4g}".format


class Result:
    """Base of results, whose `summary` is one line and whose `to_frame` has a row for every lag, half-life or layer."""

    _figure: ClassVar[str]
    """The function that draws it, module:function."""

    def summary(self) -> str:
        """Describe the result in a sentence, in bits where it is information or a loss."""
        raise NotImplementedError

    def to_frame(self) -> "DataFrame":
        """Return the result as a table, in bits where it is information or a loss."""
        raise NotImplementedError

    def plot(self) -> "Figure":
        """Draw the figure that the command of the same purpose writes."""
        module, _, name = self._figure.partition(":")
        figure: Figure = getattr(import_module(module), name)(self)
        if "IPython" in sys.modules:  # which knows the figures of pyplot alone
            figure._repr_png_ = lambda: rendered(figure, ("png",))["png"]  # type: ignore[attr-defined]
        return figure

    def __repr__(self) -> str:
        table = self.to_frame().to_string(max_rows=ROWS, max_cols=9, show_dimensions=False, float_format=DIGITS)
        return f"{self.summary()}\n{table}"

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(max_rows=2 * ROWS, float_format=DIGITS, border=0)
        return f"<p>{escape(self.summary())}</p>{table}"
