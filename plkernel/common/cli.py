"""Command lines by tyro, errors in one line, other people's code by name, text for a terminal."""

import difflib
import errno
import fnmatch
import functools
import inspect
import io
import math
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from plkernel.analysis.printing import escaped
from plkernel.common.options import (
    check_empty_paths,
    check_given_values,
    mistake,
    signature,
    unbroken,
)

USER_ERRORS = (ValueError, OSError, FloatingPointError)
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
HELP_COLUMNS = 40
"""Columns that --help takes at least: in fewer than five tyro never ends."""
MESSAGE_COLUMNS = 80
"""Columns that a message of tyro takes at least: in fewer it cuts words in two."""
MOST_NAMES = 24
"""Valid names that one message lists at most."""
MARK = ":"
"""Between module and attribute in a name of code."""
TRUST = "--trust-code"
"""The option by which a person consents to the code, `module:attribute`, that a spec names."""
CONSENT = f"review it, then pass {TRUST} (trust_code=True in Python)"
"""Advice where consent is missing."""
_IDENTIFIERS = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
NAME = re.compile(f"{_IDENTIFIERS}{MARK}{_IDENTIFIERS}", re.ASCII)
"""A name of code, `module:attribute`, either with dots."""
CURSOR_UP = re.compile(r"\n*(\x1b\[A)*")
"""Codes by which tqdm moves between its bars: down by line feeds, up by escapes."""
LONG_NUMBER = re.compile(r"(?<![\w./,])(?:\d{36,}|\d{1,3}(?:,\d{3}){11,})(?![\w./])")
"""A whole number that nobody reads in full, such as one of 300 digits; no part of a path."""
OPTION = re.compile(r"(?<![\w-])--(?P<name>[a-z]+(-[a-z]+)*)( (?=\d))?")
"""An option of a command in a sentence, with the blank before a number that it is given."""
OUT_OF_MEMORY = re.compile(
    "can't (allocate memory|start new thread)|(CUDA|HIP) (error: )?out of memory"
)
"""Words of a RuntimeError of torch or Python where memory is short, of the machine or of a GPU."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint that names the closest of the `valid` names, else MOST_NAMES of them."""
    names = sorted(valid)
    if not names:
        return "there is none"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"valid: {', '.join(names[:MOST_NAMES])}{more}"


def check_patterns(option: str, patterns: Iterable[str], arms: Iterable[str]) -> None:
    """Raise ValueError for a pattern that matches no arm."""
    for pattern in patterns:
        if not fnmatch.filter(arms, pattern):
            raise ValueError(
                f"{option} must match an arm, got {pattern!r}; {nearest(pattern, arms)}"
            )


def existing(path: Path, name: str) -> Path:
    """Return `path`; ValueError, with the most similar path there is, where it does not exist."""
    try:
        if path.exists() or path.is_symlink():
            return path
    except OSError as error:  # of a name that is too long, or a folder that may not be read
        raise ValueError(f"{name} {path}: {error.strerror}") from error
    folder = next(parent for parent in path.parents if parent.is_dir())
    missing = path.relative_to(folder).parts[0]
    try:
        there = os.listdir(folder)
    except OSError:  # a folder that may be entered and not listed, as other people's often are
        there = []
    close = difflib.get_close_matches(missing, there, n=1, cutoff=0.5)
    hint = f"; did you mean {folder / close[0]}?" if close else ""
    raise ValueError(f"{name} {path}: no such file or folder{hint}")


def main(
    command: Callable[..., Any], args: Sequence[str] | None = None, prog: str | None = None
) -> None:
    """Run `command` with arguments from the command line; exit 2 with one line on bad input.

    Options and help come from the signature and the docstring of `command`. Bad input raises
    ValueError or OSError with a message that names the parameter, what it got and what would work;
    PLKERNEL_DEBUG=1 shows the traceback instead. An interrupt exits with 130.
    """
    prog = prog or program(None if command.__module__ == "__main__" else command.__module__)
    report_errors(lambda: parse(command, args, prog)[0]())


def main_of(commands: Mapping[str, Callable[..., Any]], description: str) -> None:
    """Run the one of `commands` that the first argument names, as `main` does."""

    def run() -> None:
        from tyro.extras import subcommand_cli_from_dict

        bound = {name: _bound(command) for name, command in commands.items()}
        given = sys.argv[1:]
        if given and given[0] not in (*commands, "-h", "--help"):
            raise ValueError(
                f"subcommand must be one of the command's, got {given[0]!r};"
                f" {nearest(given[0], commands)}"
            )
        options: dict[str, Any] = {"prog": program(), "description": description, "args": given}
        chosen = commands.get(given[0]) if given else None
        if chosen:
            _check_words(chosen, given[1:])
        _in_one_line(lambda: subcommand_cli_from_dict(bound, **options), chosen, given)()

    report_errors(run)


def parse(
    command: Callable[..., Any],
    args: Sequence[str] | None,
    prog: str,
    more: str = "",
    whole: bool = True,
) -> tuple[functools.partial[Any], list[str]]:
    """Return `command` with its arguments from the command line; ValueError for a mistake in them.

    more: stands in --help after the docstring. whole: False also returns what belongs to no option
    of `command`.
    """
    import tyro

    given = sys.argv[1:] if args is None else args
    _check_words(command, given)
    about = inspect.getdoc(getattr(command, "func", command)) or ""
    text, _, _ = about.partition("\n\nArgs:")
    described = f"{text}\n\n{more}".strip()
    options: dict[str, Any] = {"args": args, "prog": prog, "return_unknown_args": not whole}
    parsed = _in_one_line(
        lambda: tyro.cli(_bound(command), description=described, **options), command, given
    )
    return (parsed, []) if whole else parsed


def _check_words(command: Callable[..., Any], given: Sequence[str]) -> None:
    """Raise ValueError for arguments that tyro takes in another sense than they were meant."""
    _check_repeats(command, given)
    check_empty_paths(command, given)
    check_given_values(command, given)


def _check_repeats(command: Callable[..., Any], given: Sequence[str]) -> None:
    """Raise ValueError for an option that is given twice: the last would win, without a word."""
    flags = [word.partition("=")[0].replace("_", "-") for word in given if word.startswith("--")]
    for name, parameter in inspect.signature(command).parameters.items():
        flag = f"--{name.replace('_', '-')}"
        times = flags.count(flag)
        if times > 1 and "Append" not in str(parameter.annotation):
            raise ValueError(
                f"{flag} must be given once, with all of its values, got it {times} times"
            )


def _bound(command: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    """Return a function with the signature of `command` that stores its arguments, to be called."""

    @functools.wraps(command)
    def bound(*places: Any, **options: Any) -> Callable[[], Any]:
        return functools.partial(command, *places, **options)

    del bound.__wrapped__  # which tyro would read instead
    shown = signature(command)
    bound.__signature__ = shown  # type: ignore[attr-defined]
    bound.__annotations__ = {name: one.annotation for name, one in shown.parameters.items()}
    bound.__doc__ = unbroken(getattr(command, "func", command).__doc__)
    return bound


def _in_one_line(
    call: Callable[[], Any], command: Callable[..., Any] | None, given: Sequence[str]
) -> Any:
    """Return what a parser of tyro returns; ValueError with the first sentence of its message.

    command: that whose arguments `given` are parsed, None where none is chosen.
    """
    terminal = getattr(sys.stdout, "plain", sys.stdout)  # --help has colours
    asks_for_help = not {"-h", "--help"}.isdisjoint(given)
    columns = HELP_COLUMNS if asks_for_help else MESSAGE_COLUMNS
    with redirect_stderr(io.StringIO()) as said, redirect_stdout(terminal), _at_least(columns):
        try:
            return call()
        except SystemExit as stop:
            if not stop.code:
                raise
    # tyro frames its message: a title, then lines between bars, with rules between its parts.
    _, *framed = said.getvalue().splitlines()
    text = "\n".join(line.strip(" │") for line in framed)
    first = re.search(r"(?:.*\w.*\n?)+", text)  # up to a rule or an empty line
    sentence = " ".join(first[0].split()) if first else "wrong arguments"
    meant = re.search(r"Perhaps you meant:\s+(-[\w.-]+(?:, -[\w.-]+)*)", text)
    hint = f"did you mean {meant[1].replace(', ', ' or ')}?" if meant else "see --help"
    ours = mistake(sentence, command) if command else None
    raise ValueError(f"{ours or sentence.removesuffix('.')}; {hint}")


@contextmanager
def _at_least(columns: int) -> Iterator[None]:
    """Have a narrower terminal taken for one of so many columns, whose lines it wraps itself."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(max(columns, shutil.get_terminal_size().columns))
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


class _Escaping:
    """A stream that shows control characters as \\x1b, and what it cannot encode as \\udc9b.

    Line feeds and tabs pass. bars: a progress bar may return to the start of its line, or go up.
    `plain` is the stream itself.
    """

    def __init__(self, stream: Any, bars: bool = False) -> None:
        self.plain = getattr(stream, "plain", stream)
        self.bars = bars

    def write(self, text: str) -> int:
        if self.bars and CURSOR_UP.fullmatch(text):
            return int(self.plain.write(text))
        words = text.strip("\r") if self.bars else text
        code = getattr(self.plain, "encoding", None) or "utf-8"
        shown = escaped(words).encode(code, "backslashreplace").decode(code)
        return int(self.plain.write(text.replace(words, shown)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


def report_errors(action: Callable[[], Any]) -> None:
    """Run `action`; bad input and interrupts become one line on standard error and an exit code.

    All that it prints, logs and warns of, and that line, show control characters as escapes, such
    as \\x1b.
    """
    _open_closed_streams()
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"  # type: ignore[assignment]
    out = cast(Any, _Escaping(sys.stdout))
    err = cast(Any, _Escaping(sys.stderr, bars=True))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            action()
    except (*USER_ERRORS, MemoryError, RuntimeError) as error:
        if os.environ.get("PLKERNEL_DEBUG"):
            raise
        if isinstance(error, BrokenPipeError):
            # The exit flushes once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(EXIT_INTERRUPTED)
        message = _user_message(error)
        if message is None:
            raise
        readable = LONG_NUMBER.sub(lambda number: f"{number[0][:8]}...{number[0][-3:]}", message)
        _print_last(f"error: {escaped(shortened(readable))}")
        sys.exit(EXIT_BAD_INPUT)
    except KeyboardInterrupt as interrupt:
        said = f": {interrupt}" if str(interrupt) else ""
        _print_last(f"\ninterrupted{escaped(said)}")
        sys.exit(EXIT_INTERRUPTED)


def _print_last(line: str) -> None:
    """Print the last line on standard error, unless its terminal has been closed."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        # The exit flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


@contextmanager
def without_terminal() -> Iterator[None]:
    """Pass over the error of writing to a terminal that has been closed, which ends no run."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def _open_closed_streams() -> None:
    """Have output that goes nowhere, as after >&- in a shell, written to nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, nowhere)


def is_out_of_memory(error: Exception) -> bool:
    """Return True where memory of the machine or of a GPU is short, for Python or for torch."""
    of_torch = isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error))
    return isinstance(error, MemoryError) or bool(of_torch)


def _user_message(error: Exception) -> str | None:
    """Return what to say of an error that the user can mend; None for a fault of the program."""
    message = str(error)
    if is_out_of_memory(error):
        return f"out of memory, {told(error)}"
    if not isinstance(error, USER_ERRORS):
        return None
    if isinstance(error, OSError) and error.strerror:
        place = error.filename
        if place is None and error.errno == errno.ENOSPC:
            place = "standard output"  # atomic files name themselves where the disk is full
        return f"{place}: {error.strerror}" if place else error.strerror
    return message


def program(module: str | None = None) -> str:
    """Return how to call the command in `module`, or this process's: python -m plkernel.fit."""
    spec = sys.modules["__main__"].__spec__
    name = module or (spec.name if spec else sys.argv[0])
    return f"python -m {name.replace('.commands.', '.')}"


def is_code(name: str | None) -> bool:
    """Return True for a name of code, which has a colon."""
    return name is not None and MARK in name


def check_consent(named: Mapping[str, str], trusted: bool) -> None:
    """Raise ValueError where an option names code (`named`) and nobody consented to run it."""
    if named and not trusted:
        names = ", ".join(f"{option} {name!r}" for option, name in named.items())
        raise ValueError(f"{names} runs third-party code; {CONSENT}")


def imported(name: str, option: str) -> Any:
    """Import the callable called `name`; ValueError headed by `option` where that fails.

    >>> imported("math:hypot", "kind")(3, 4)
    5.0
    """
    module, _, attributes = name.partition(MARK)
    try:
        result = functools.reduce(getattr, attributes.split("."), import_module(module))
    except (Exception, SystemExit) as error:  # a script ends by the latter as it is imported
        raise ValueError(f"{option} {name!r}: importing {module} raised {told(error)}") from error
    if not callable(result):
        raise ValueError(
            f"{option} {name!r} must be something to call, got {type(result).__name__}"
        )
    return result


def told(error: BaseException) -> str:
    """Return an error of other people's code in one line."""
    return shortened(f"{type(error).__name__}: {error}".removesuffix(": "), 300)


@contextmanager
def headed(head: str) -> Iterator[None]:
    """Put `head` in front of every ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{head}{error}") from None


def shortened(text: str, most: int = 1000) -> str:
    """Return one line of at most `most` characters, the middle of a longer one left out."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    end = most // 3
    return f"{line[: most - end - 5]} ... {line[-end:]}"


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[float], Any]]:
    """Show a bar on a terminal after two seconds; yield a function of shares of work."""
    from tqdm.auto import tqdm

    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    with tqdm(
        desc=name,
        total=1.0,
        bar_format=form,
        delay=2.0,
        leave=False,
        disable=no_bar(),
        file=sys.stderr,
    ) as bar:
        yield lambda share: bar.update(min(share, 1.0 - bar.n))


def no_bar() -> bool | None:
    """What tqdm takes as `disable`: None, for a bar on a terminal alone, where there is an output.

    Python has no standard error in a daemon, in pythonw, or after 2>&- in a shell, and tqdm would
    write to it all the same.
    """
    return True if sys.stderr is None else None


def note(line: str) -> None:
    """Print a line on standard error; nowhere where there is none, not in the output instead."""
    if sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


def line_beside_bars(line: str, stream: Any) -> None:
    """Print a line where a bar may be shown; nowhere without a stream, or on a closed terminal."""
    from tqdm.auto import tqdm

    if stream is not None:
        with without_terminal():
            tqdm.write(line, file=stream)


@contextmanager
def in_python(function: Callable[..., Any]) -> Iterator[None]:
    """Have every ValueError name the arguments of `function`, as `python_words` does."""
    try:
        yield
    except ValueError as error:
        if len(error.args) == 1:  # other errors of the kind, as of decoding, have a form of theirs
            error.args = (python_words(str(error), function),)
        raise


def python_words(text: str, function: Callable[..., Any]) -> str:
    """`text` with the options of a command that are arguments of `function` named as such.

    >>> def trial(text, seeds=3, dim=64): ...
    >>> python_words("give fewer --seeds, or --dim 20 and --only base", trial)
    'give fewer seeds=, or dim=20 and --only base'
    """
    arguments = inspect.signature(function).parameters

    def named(option: re.Match[str]) -> str:
        name = option["name"].replace("-", "_")
        return f"{name}=" if name in arguments else option[0]

    return OPTION.sub(named, text)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Pad columns to their widest cell, the first left-aligned and the others right-aligned.

    >>> print(text_table(["arm", "bpb"], [["uniform", "2.5"], ["power law", "2.25"]]))
    arm         bpb
    ---------------
    uniform     2.5
    power law  2.25
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    form = "  ".join([f"{{:<{widths[0]}}}", *(f"{{:>{width}}}" for width in widths[1:])])
    lines = [form.format(*row).rstrip() for row in (header, *rows)]
    return "\n".join([lines[0], "-" * len(form.format(*header)), *lines[1:]])


def counted(number: int, one: str, several: str) -> str:
    """A number and its noun.

    >>> counted(1, "run", "runs"), counted(0, "run", "runs")
    ('1 run', '0 runs')
    """
    return f"{number} {one if number == 1 else several}"


def written(value: float, form: str, *sizes: float) -> str:
    """Format a number, with more digits where one of `sizes` would read as zero; zero has no sign.

    >>> written(-0.0254, "+.4f"), written(-0.0000123, "+.4f", 0.0000123), written(-0.0, "+.4f")
    ('-0.0254', '-0.000012', '0.0000')
    """
    for size in map(abs, sizes):
        reads_as_zero = not float(f"{size:{form}}")
        if math.isfinite(size) and size and reads_as_zero:
            digits = min(9, 1 - math.floor(math.log10(size)))
            sign, _, _ = form.partition(".")
            form = f"{sign}.{digits}f"
    text = f"{value:{form}}"
    return text if float(text) else text.lstrip("+-")
