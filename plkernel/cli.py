"""One way in and one way out for every command: a generated command line, and errors in one line."""

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

USER_ERRORS = (ValueError, OSError, FloatingPointError)
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint that names the closest of the `valid` names, or all of them when none is close."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(names)}"


def main(command: Callable[..., Any], args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Run `command` with arguments from the command line; exit 2 with one line on bad input.

    The flags and their help come from the signature and docstring of `command`. Bad input raises ValueError or
    OSError with a message that names the parameter, what it got and what would work. PLKERNEL_DEBUG=1 shows the
    traceback instead. An interrupt exits with 130.
    """
    import tyro

    prog = prog or f"python -m {command.__module__ if command.__module__ != '__main__' else module_name()}"
    report_errors(lambda: tyro.cli(command, args=args, prog=prog))


def report_errors(action: Callable[[], Any]) -> None:
    """Run `action`; turn bad input and interrupts into one line on standard error and an exit code."""
    try:
        action()
    except USER_ERRORS as error:
        if os.environ.get("PLKERNEL_DEBUG"):
            raise
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the exit writes what is left, once more
            sys.exit(EXIT_INTERRUPTED)
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except KeyboardInterrupt as interrupt:
        print(f"\ninterrupted{': ' if str(interrupt) else ''}{interrupt}", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[float], Any]]:
    """A bar on a terminal's standard error, after two seconds; gives a function that takes shares of the work."""
    from tqdm import tqdm

    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    with tqdm(desc=name, total=1.0, bar_format=form, delay=2.0, leave=False, disable=None, file=sys.stderr) as bar:
        yield lambda share: bar.update(min(share, 1.0 - bar.n))


def module_name() -> str:
    """The module that was started with `python -m`."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec else sys.argv[0]
