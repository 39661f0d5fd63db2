"""One way in and one way out for every command: a generated command line, and errors in one line."""

import difflib
import errno
import functools
import inspect
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from plkernel.common import flags

USER_ERRORS = (ValueError, OSError, FloatingPointError)
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
HELP = ("-h", "--help")
MODULES = "python -m plkernel."
SCRIPTS = ("plkernel", "plkernel-script")
"""What the command `plkernel` is called as a file, without .exe or .py."""
MOST_NAMES = 24  # in one message
MOST_CHARACTERS = 1000


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint that names the closest of the `valid` names, or all of them (a few of many) when none is close."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(names[:MOST_NAMES])}{more}"


def existing(path: Path, name: str) -> Path:
    """`path`, if there is such a file or folder; ValueError that names the argument and what was probably meant."""
    if path.exists() or path.is_symlink():
        return path
    folder = next(parent for parent in path.parents if parent.is_dir())
    wanted = path.relative_to(folder).parts[0]
    close = difflib.get_close_matches(wanted, [item.name for item in folder.iterdir()], n=1, cutoff=0.5)
    hint = f"; did you mean {folder / close[0]}?" if close else ""
    raise ValueError(f"{name} {path}: no such file or folder{hint}")


def main(command: Callable[..., Any], args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Run `command` with arguments from the command line; exit 2 with one line on bad input.

    The flags and their help come from the signature and docstring of `command`. Bad input raises ValueError or
    OSError with a message that names the parameter, what it got and what would work. PLKERNEL_DEBUG=1 shows the
    traceback instead. An interrupt exits with 130.
    """
    prog = prog or program(None if command.__module__ == "__main__" else command.__module__)
    report_errors(lambda: parsed(command, args, prog)())


def main_of(commands: Mapping[str, Callable[..., Any]], description: str, args: Sequence[str] | None = None) -> None:
    """Run the one of `commands` that the first argument names, as `main` does."""
    given, prog = list(sys.argv[1:] if args is None else args), program()

    def run() -> None:
        if given and given[0] in commands:
            return parsed(commands[given[0]], given[1:], f"{prog} {given[0]}")()
        if not given:
            raise ValueError(f"a subcommand comes first: {prog} {{{','.join(commands)}}}, got nothing")
        if given[0] in HELP:
            told = as_called(description.strip())
            print(f"usage: {prog} {{{','.join(commands)}}} [OPTIONS]\n\n{told}\n\nNAME --help says more")
            sys.exit()
        raise ValueError(f"no subcommand {given[0]!r}; {nearest(given[0], commands)}")

    report_errors(run)


def parsed(
    command: Callable[..., Any], args: Sequence[str] | None, prog: str, description: str | None = None
) -> Callable[[], Any]:
    """`command` with its arguments from the command line, to be called; ValueError in one line for a mistake in them.

    description: what --help says first; the docstring of `command` if left out.
    """
    import tyro

    @functools.wraps(command)
    def bound(*places: Any, **options: Any) -> Callable[[], Any]:
        return functools.partial(command, *places, **options)

    given = list(sys.argv[1:] if args is None else args)
    about = description or (inspect.getdoc(command) or "").partition("\n\nArgs:")[0]
    with redirect_stderr(io.StringIO()) as said:
        try:
            return tyro.cli(bound, args=given, prog=prog, description=as_called(about))
        except SystemExit as stop:
            if not stop.code:
                raise
    flags.read(given, flags.flags_of(command))  # says in words what is wrong
    raise ValueError(first_lines(said.getvalue()))


def first_lines(box: str) -> str:
    """What a message that tyro has framed says, up to its first rule."""
    lines = [line.strip(" │") for line in box.splitlines()[1:]]
    end = next((place for place, line in enumerate(lines) if line.startswith(("─", "╰"))), len(lines))
    return " ".join(lines[:end]) or box


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """One line of at most `most` characters: the middle of a longer one, where values are repeated, is left out."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    end = most // 3
    return f"{line[: most - end - 40]} [... {len(line) - most + 40:,} characters ...] {line[-end:]}"


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
        print(f"error: {shortened(as_called(in_words(error)))}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except KeyboardInterrupt as interrupt:
        print(f"\ninterrupted{': ' if str(interrupt) else ''}{interrupt}", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def in_words(error: Exception) -> str:
    """The message of an error; of the system's, the file and what is wrong with it.

    Where a file has no room its name is known (`files.atomic_file`), so that what has none is the standard output.
    """
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return f"standard output: {error.strerror}" if error.errno == errno.ENOSPC else error.strerror


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[float], Any]]:
    """A bar on a terminal's standard error, after two seconds; gives a function that takes shares of the work."""
    from tqdm import tqdm

    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    with tqdm(desc=name, total=1.0, bar_format=form, delay=2.0, leave=False, disable=None, file=sys.stderr) as bar:
        yield lambda share: bar.update(min(share, 1.0 - bar.n))


def program(module: str | None = None) -> str:
    """What one types to start the command in `module`, or in that of this process, as the person did this one.

    plkernel fit, or python -m plkernel fit; python -m plkernel.fit where nobody typed either.
    """
    return as_called(f"python -m {(module or module_name()).replace('.commands.', '.')}")


def as_called(text: str) -> str:
    """`text` with its commands, python -m plkernel.NAME, as the person started this one."""
    return text.replace(MODULES, f"{through} ") if (through := entry()) else text


def entry() -> str | None:
    """plkernel, or python -m plkernel, where the person started one of these with a command; None otherwise."""
    typed = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]  # what Python did not leave to the command
    if "-m" in typed:
        return "python -m plkernel" if "plkernel" in typed else None
    return "plkernel" if any(Path(word).stem in SCRIPTS for word in typed) else None


def module_name() -> str:
    """The module that was started with `python -m`."""
    spec = sys.modules["__main__"].__spec__
    return spec.name if spec else sys.argv[0]


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell, the first left-aligned and the others right-aligned.

    >>> print(text_table(["arm", "bpb"], [["uniform", "2.5"], ["power law", "2.25"]]))
    arm         bpb
    ---------------
    uniform     2.5
    power law  2.25
    """
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    lines = [
        "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in table)
    ]
    return "\n".join([lines[0].rstrip(), "-" * len(lines[0]), *(line.rstrip() for line in lines[1:])])
