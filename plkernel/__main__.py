"""plkernel COMMAND [OPTIONS]: every command by its name, as python -m plkernel.COMMAND; alone it lists them."""

import re
import runpy
import sys
from pathlib import Path

from plkernel import __version__
from plkernel.common import cli

HERE = Path(__file__).parent
TOLD = re.compile(r'"""python -m plkernel\.(\w+)[^:]*: (.+?)\.?(?:"""|$)', re.MULTILINE)
"""How a command begins: its name, and what it does."""


def main() -> None:
    """Run the command that the first argument names, or list them all."""
    cli.report_errors(_run)


def commands() -> dict[str, str]:
    """What each command does, by name, as the first lines of their files say; none of them is imported.

    >>> commands()["train"]
    'one run of one condition, with TensorBoard, checkpoints and resume'
    """
    files = sorted(HERE.glob("commands/*.py"))
    found = [match for file in files if (match := TOLD.match(file.read_text(encoding="utf-8")))]
    return dict(sorted((match[1], match[2]) for match in found))


def _run() -> None:
    given, known = sys.argv[1:], commands()
    if not given or given[0] in ("-h", "--help"):
        print(_listing(known))
    elif given[0] in ("--version", "-V"):
        print(f"plkernel {__version__}")
    elif given[0] in known:
        sys.argv = [sys.argv[0], *given[1:]]
        runpy.run_module(f"plkernel.{given[0]}", run_name="__main__", alter_sys=True)
    else:
        raise ValueError(f"no command {given[0]!r}; {cli.nearest(given[0], known)}")


def _listing(known: dict[str, str]) -> str:
    program, width = cli.entry() or "plkernel", max(map(len, known)) + 2
    rows = [f"  {name:<{width}}{what}" for name, what in known.items()]
    return "\n".join([f"usage: {program} COMMAND [OPTIONS]", "", *rows, "", f"{program} COMMAND --help says more"])


if __name__ == "__main__":
    main()
