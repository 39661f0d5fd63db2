"""python -m plkernel.init list | show | check: initialisation schemes by name, their plans, and what they do.

list names every scheme with its source and its free constants; show prints what one does to every parameter of a model
of any size; check trains small models for a few steps at several widths, and sends a signal through deep ones.
"""

from plkernel.tools.cli import main_of

COMMANDS = {"list": "plkernel.init.listing", "show": "plkernel.init.show", "check": "plkernel.init.check"}

if __name__ == "__main__":
    main_of(COMMANDS, str(__doc__))
