"""The result of a command, printed and written: a text, values for JSON, a figure."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plkernel.analysis.figures.style import rendered
from plkernel.common.files import atomic_write, check_apart, check_file, save_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = (".pdf", ".png", ".svg")
"""Endings of the files that a figure can be written to."""


def deliver(
    text: str,
    values: dict[str, Any],
    draw: "Callable[[], Figure]",
    json: Path | None,
    to: Path | None,
) -> None:
    """Print the result of a command; write its values and the figure of `draw` to files.

    They are written also where nobody reads what is printed.
    """
    try:
        print(text, flush=True)
    finally:
        if json is not None:
            save_json(json, values)
        if to is not None:
            atomic_write(to, *rendered(draw(), [to.suffix[1:]]).values())
    for file in filter(None, (json, to)):
        print(f"\nwritten: {file}")


def check_outputs(
    json: Path | None,
    figure: Path | None,
    read: Iterable[str | Path | None] = (),
    **least: tuple[int | None, int],
) -> None:
    """Raise for files that cannot be written, and for an option (value, least) below its least.

    read: files that must stay as they are.
    """
    if figure is not None and figure.suffix not in KINDS:
        raise ValueError(f"figure must end in {', '.join(KINDS)}, got {str(figure)!r}")
    for option, (value, lowest) in least.items():
        if value is not None and value < lowest:
            raise ValueError(f"{option} must be at least {lowest}, got {value}")
    check_apart({"json": json, "figure": figure}, read)
    check_file(json, "json")
    check_file(figure, "figure")
