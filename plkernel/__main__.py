"""plkernel COMMAND [OPTIONS]: every command by its name; without one, a list of them."""

import os
import re
import runpy
import sys
import textwrap
from pathlib import Path

from plkernel import __version__
from plkernel.common import cli

WIDTH = 80
"""Columns of the list of commands."""
TOLD = re.compile(r'"""python -m plkernel\.(\w+)[^:]*: (.+?)\.?\s*(?:"""|\n\n)', re.DOTALL)
"""Start of a command: its name, and a description, which may run over several lines."""


def commands() -> dict[str, str]:
    """Descriptions of all commands by name, read from their files, of which none is imported.

    >>> commands()["train"]
    'one run of one arm, with TensorBoard, checkpoints and resume'
    """
    files = sorted(Path(__file__).parent.glob("commands/*.py"))
    heads = (TOLD.match(file.read_text(encoding="utf-8")) for file in files)
    return {head[1]: " ".join(head[2].split()) for head in heads if head}


def main() -> None:
    """Run the command that the first argument names, or list them all."""
    cli.report_errors(_run)


def _run() -> None:
    given = sys.argv[1:]
    known = commands()
    if not given or given[0] in ("-h", "--help"):
        rows = [
            textwrap.fill(
                description,
                WIDTH,
                initial_indent=f"  {name:<12}",
                subsequent_indent=" " * 14,
            )
            for name, description in known.items()
        ]
        print(
            "\n".join(
                [
                    "usage: plkernel COMMAND [OPTIONS]",
                    "",
                    *rows,
                    "",
                    "plkernel COMMAND --help says more",
                ]
            )
        )
    elif given[0] in ("--version", "-V"):
        print(f"plkernel {__version__}")
    elif given[0] in known:
        _find_modules_here()
        sys.argv = given
        runpy.run_module(f"plkernel.{given[0]}", run_name="__main__", alter_sys=True)
    else:
        raise ValueError(
            f"command must be one of plkernel's, got {given[0]!r}; {cli.nearest(given[0], known)}"
        )


def _find_modules_here() -> None:
    """Have modules of the working folder found, as `python -m` does, but for Python's option -P.

    The script that an installer writes looks for them in its own folder instead.
    """
    here = os.getcwd()
    if not sys.flags.safe_path and here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


if __name__ == "__main__":
    main()
