"""python -m plkernel.init list | show | check: initialisation schemes by name, their plans, and what they do.

list names every scheme with its source and its free constants; show prints what one does to every parameter of a model
of any size; check trains small models for a few steps at several widths, and sends a signal through deep ones.
"""

from collections.abc import Callable
from typing import Any

from plkernel.init.check import check
from plkernel.init.listing import listing
from plkernel.init.show import show
from plkernel.tools.cli import main_of

COMMANDS: dict[str, Callable[..., Any]] = {"list": listing, "show": show, "check": check}

if __name__ == "__main__":
    main_of(COMMANDS, str(__doc__))
