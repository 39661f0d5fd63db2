"""Files that are whole or absent, and plain values (JSON, TOML) read from anybody's files.

Values read here are nested at most MOST_NESTED deep and hold no whole number beyond 64 bits. The
files of a study are:

STUDY/spec.json                     the spec, settled
STUDY/references.json               losses of n-grams on the windows of its runs
STUDY/registered.json               the registration of its hypotheses
STUDY/measurement.json              the memory of its text, where it was measured for it
STUDY/tuning/                       the search for learning rates, a study like any other
STUDY/report/                       written by `plkernel.report`; for a record: runs/out/NAME-record
STUDY/ARM/seed-K/config.json        the resolved configuration of one run
STUDY/ARM/seed-K/environment.json   time, commit, digest of the code, registration, versions,
                                    hardware, command
STUDY/ARM/seed-K/metrics.jsonl      one row per evaluation, deterministic
STUDY/ARM/seed-K/checkpoint.safetensors, log.txt
STUDY/ARM/seed-K/result.json        written last: a run without it is unfinished
STUDY/ARM/mean/                     curves for TensorBoard, the mean over the seeds
RECORD/spec.json, rows.jsonl        a study to keep: one line per ended run, enough for a report
RECORD/references.json, registered.json, tuning/    as in the study
"""

import errno
import json
import math
import os
import re
import socket
import stat
import tempfile
import tomllib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from plkernel.common.cli import shortened

FigureFormat = Literal["pdf", "png", "svg"]

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk and a quota."""
NO_ROOM = DISK_FULL | {errno.EFBIG, errno.EROFS}
"""Errors of a full disk, a quota, a file that is too large and a disk to read from only."""
SMALL = 4096
"""Bytes of a small file, a block on usual file systems."""
LONGEST_NAME = 255
"""Bytes of the name of a file or folder on usual file systems."""
LONGEST_STEM = 200
"""Bytes of a name that something is put around, such as an ending and a number."""
LONGEST_HEAD = 100
"""Bytes of a name in that of a temporary file, beside a host, a process and random digits."""
MOST_NESTED = 64
"""Lists and tables within each other, far below the depth at which Python stops."""
LARGEST_WHOLE = 2**63
"""No whole number may be as large, above or below 0: those of 64 bits lie between."""
MOST_BYTES = 2**26
"""Bytes of a JSON or TOML file, which takes some ten times as much once it is parsed."""
MOST_BYTES_OF_ROWS = 2**29
"""Bytes of a file of JSON lines, which are parsed one by one."""
LONG_KEY = re.compile(
    rb"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){%d}""" % MOST_NESTED
)
"""A key of TOML with more than MOST_NESTED parts."""
SPEC = "spec.json"
REFERENCES = "references.json"
REGISTERED = "registered.json"
ROWS = "rows.jsonl"
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
RESULT = "result.json"
MEASUREMENT = "measurement.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.safetensors"
MODEL_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin*",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""Files beside config.json that models of anybody are read from."""
LOG = "log.txt"
LOCK = ".lock"
TUNING = "tuning"
REPORT = "report"
MEAN = "mean"
FINISHED = "finished"
FAILED = "failed"
DIVERGED = "diverged"
UNFINISHED = "unfinished"
NOT_STARTED = "not started"


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Make system errors that name `temporary`, or for lack of room no file, name `path`."""
    try:
        yield
    except OSError as error:
        if error.filename == str(temporary) or (error.filename is None and error.errno in NO_ROOM):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Give a temporary path, and rename it to `path` once it is on the disk; remove it on failure.

    A reader of `path` thus sees the old content or the new, never a part. Temporary files that
    killed writers left are removed first. OSError names `path`, not the temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f".{end_of_name(path.name, LONGEST_HEAD)}.{socket.gethostname()}."
    _remove_remains(path.parent, head)
    temporary = path.with_name(f"{head}{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with naming(path, temporary):
            yield temporary
            with temporary.open("rb+") as handle:
                os.fsync(handle.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_remains(folder: Path, head: str) -> None:
    """Remove the files called `head` and a process id, of processes that have ended here."""
    for remains in folder.glob(f"{escape(head)}*"):
        process, _, _ = remains.name.removeprefix(head).partition(".")
        # Names that end otherwise and processes of other people stay.
        with suppress(ValueError, OverflowError, PermissionError):
            try:
                os.kill(int(process), 0)  # signal 0 does nothing to a process that is there
            except ProcessLookupError:
                remains.unlink(missing_ok=True)


def end_of_name(name: str, most: int = LONGEST_STEM) -> str:
    """Return the last `most` bytes of a longer name, without what is not UTF-8.

    >>> end_of_name("short.txt"), end_of_name("a-longer-one.txt", 7)
    ('short.txt', 'one.txt')
    """
    content = os.fsencode(name)
    return name if len(content) <= most else content[-most:].decode("utf-8", "ignore")


def is_utf8(name: str) -> bool:
    """Return False for a name that UTF-8 cannot write, as of a file whose name is in another code.

    >>> is_utf8("texte-ägyptisch.txt"), is_utf8("bad\\udcff.txt")
    (True, False)
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write `data` to `path` as a whole, see `atomic`."""
    with atomic(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def save_figure(
    folder: Path, name: str, draw: Callable[[], Any], formats: Sequence[FigureFormat]
) -> None:
    """Write the figure of matplotlib that `draw` returns in `formats`, and print where.

    Without formats nothing is drawn.
    """
    if not formats:
        return
    from plkernel.analysis.figures.style import rendered

    kinds = list(dict.fromkeys(formats))
    for kind, content in rendered(draw(), kinds).items():
        atomic_write(folder / f"{name}.{kind}", content)
    print(f"figure:  {folder / name}.{', .'.join(kinds)}", flush=True)


def check_file(path: Path | None, option: str) -> None:
    """Raise OSError that names `option` unless the file `path` can be written; None passes."""
    if path is None:
        return
    _check_names(path, option)
    if path.is_dir():
        raise OSError(f"{option} must be a file, got the folder {path}")
    _check_writable(path.parent, option, path)


def files_of(model: Path) -> list[Path]:
    """Return the files of a model, which `model` is, or whose folder it is; some may not be there.

    Of a run those of its training too.
    """
    folder = model if os.path.isdir(model) else model.parent
    names = [CONFIG]
    if os.path.exists(folder / ENVIRONMENT):
        names += [ENVIRONMENT, METRICS, RESULT]
    files = [model, *(folder / name for name in names)]
    for pattern in MODEL_FILES:
        files += folder.glob(pattern)
    return files


def check_apart(outputs: Mapping[str, Path | None], read: Iterable[str | Path | None] = ()) -> None:
    """Raise ValueError for an output that is a file of `read`, and for two that are one file.

    outputs: by option; None is none.
    """
    written = {option: path for option, path in outputs.items() if path is not None}
    inputs = [os.path.expanduser(one) for one in read if one is not None]  # as corpora are read
    for option, path in written.items():
        if any(_is_same_file(path, one) for one in inputs):
            raise ValueError(
                f"{option} must be another file than those that are read, got {path}; choose"
                " another name"
            )
    for (option, path), (other_option, other) in combinations(written.items(), 2):
        if _is_same_file(path, other):
            raise ValueError(f"{option} and {other_option} must be two files, got {path} for both")


def _is_same_file(one: str | Path, other: str | Path) -> bool:
    """True for two paths of one file, there or not; a folder, a pipe or a device is no file."""
    if os.path.exists(one) and os.path.exists(other):
        return os.path.isfile(one) and os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


def check_folder(folder: Path | None, option: str) -> None:
    """Raise OSError, naming `option`, unless files can be written in `folder`; None passes."""
    if folder is None:
        return
    _check_names(folder, option)
    _check_writable(folder, option, folder)


def _check_names(path: Path, option: str) -> None:
    """Raise OSError, naming `option`, for a name in `path` that file systems do not take."""
    for name in path.parts:
        size = len(os.fsencode(name))
        if size > LONGEST_NAME:
            raise OSError(
                f"{option} must have names of at most {LONGEST_NAME} bytes, got {shown(name)} of"
                f" {size}"
            )


def _check_writable(folder: Path, option: str, asked: Path) -> None:
    """Raise OSError, naming `option` and the path that is `asked` for, as `check_folder` does."""
    # Unlike Path.exists, which raises PermissionError inside of a folder that may not be entered.
    existing = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        reason = "a file is in the way" if isinstance(error, NotADirectoryError) else error.strerror
        raise OSError(
            f"{option} {asked}: cannot be written ({reason}); choose another place"
        ) from error


def lack_of_room(folder: Path, errors: frozenset[int] = NO_ROOM) -> str:
    """Return why not even a small file can be written in `folder`, '' unless for lack of room.

    errors: those that count as such.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(SMALL))
    except OSError as error:
        if error.errno in errors:
            return f"no file can be written in {folder}: {os.strerror(error.errno)}"
    return ""


def refuse_study(path: Path, option: str) -> None:
    """Raise ValueError for the folder of a study, where that of one of its runs is expected."""
    if (path / SPEC).is_file():
        runs = sorted(path.glob(f"*/seed-*/{CONFIG}"))
        hint = (
            f"give one of its runs, such as {runs[0].parent}"
            if runs
            else "none of its runs are here"
        )
        raise ValueError(
            f"{option} must be the folder of a run, got the study {path}, which plkernel.report"
            f" shows; {hint}"
        )


def refuse_links(*paths: Path) -> None:
    """Raise ValueError for the first of `paths` that is neither a plain file nor a folder."""
    for path in paths:
        if path.is_symlink():
            kind = f"a symbolic link to {os.readlink(path)}"
        elif path.exists() and not path.is_file() and not path.is_dir():
            kind = "a pipe or device"
        else:
            continue
        raise ValueError(
            f"{path} must be a plain file or a folder, got {kind}; remove it, nothing is written"
            " through one"
        )


def save_json(path: Path, value: Any) -> None:
    """Write `value`, which may hold paths, as JSON, atomically; NaN and infinity become null."""
    finite = json.loads(json.dumps(value, default=os.fspath), parse_constant=lambda _: None)
    atomic_write(path, json.dumps(finite, indent=2) + "\n")


def load_json(path: Path) -> Any:
    """Read JSON; ValueError naming the file where it is missing, damaged or beyond the limits."""
    return parsed(json.loads, read_bytes(path), str(path))


def load_object(path: Path) -> dict[str, Any]:
    """Read JSON as `load_json` does; it must be an object."""
    return _object(load_json(path), str(path))


def read_lines(path: Path, whole: bool = False) -> list[dict[str, Any]]:
    """Read the rows of a JSON-lines file, none if it is missing, without an unfinished last line.

    Raises ValueError naming the file and the line where another line is damaged or no object, and,
    if the file is to be `whole`, where the last line is unfinished.
    """
    if not path.exists():
        return []
    content = read_bytes(path, MOST_BYTES_OF_ROWS)
    if whole and content[-1:] not in (b"", b"\n"):
        raise ValueError(
            f"{path}: its last line must be whole, got one that is cut off; bring the file back"
        )
    lines = enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1)
    named = ((line, f"{path}: line {number}") for number, line in lines)
    return [_object(parsed(json.loads, line, place), place) for line, place in named]


def _object(value: Any, origin: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{origin} must hold an object, got {shown(value)}")
    return value


def parse_toml(content: bytes, origin: str) -> dict[str, Any]:
    """Parse TOML text; ValueError, headed by `origin`, where it is damaged or beyond the limits."""
    if LONG_KEY.search(content):  # for which the parser takes memory by the square of its parts
        raise ValueError(
            f"{origin}: a key must have at most {MOST_NESTED} parts with dots between, got one of"
            " more"
        )
    return dict(parsed(tomllib.loads, content, origin))


def parsed(parse: Callable[[str], Any], content: bytes, origin: str) -> Any:
    """Parse `content` as JSON or TOML and check the limits; ValueError headed by `origin`.

    A byte order mark of UTF-8, with which some editors begin a file, is left out.
    """

    def check(value: Any, *place: object) -> None:
        if isinstance(value, int) and abs(value) >= LARGEST_WHOLE:
            where = ".".join(map(str, place))
            raise ValueError(f"{where}: whole numbers must lie between -2**63 + 1 and 2**63 - 1")
        if isinstance(value, dict | list):
            if len(place) >= MOST_NESTED:
                raise RecursionError
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                # Numbers and texts pass without a call: a record has millions.
                kind = type(item)
                if kind is float or kind is str:
                    continue
                if kind is int and -LARGEST_WHOLE < item < LARGEST_WHOLE:
                    continue
                check(item, *place, key)

    try:
        value = parse(content.removeprefix(BOM_UTF8).decode())
        check(value)
    except RecursionError:
        raise ValueError(
            f"{origin}: must be nested at most {MOST_NESTED} lists and tables deep, got more"
        ) from None
    except ValueError as error:  # damaged, no UTF-8, or a number of too many digits
        language = "JSON" if parse is json.loads else "TOML"
        raise ValueError(f"{origin}: not readable as {language} ({error})") from error
    return value


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read a regular file; ValueError for a folder, a pipe or a device, and where there is none.

    A file of more than `most` bytes is refused before it is read.
    """
    check_regular(path)
    size = path.stat().st_size
    if size > most:
        raise ValueError(f"{path}: must have at most {most:,} bytes, got {size:,}")
    return path.read_bytes()


def check_readable(path: Path) -> None:
    """Raise OSError that says why where `path` cannot be opened.

    For files that a library opens: that of safetensors calls one that may not be read missing.
    """
    path.open("rb").close()


def check_regular(path: Path, what: str = "") -> None:
    """Raise ValueError unless `path` is a regular file: a pipe or device may never end.

    what: heads the message, as in 'checkpoint '.
    """
    try:
        mode = path.stat().st_mode
    # ValueError: a name with a zero byte in it.
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise ValueError(f"{what}{path}: no such file") from error
    if not stat.S_ISREG(mode):
        name = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise ValueError(f"{what}{path} must be a regular file, got {name}")


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """Return the differences of two plain values, as 'train.steps was 300, is now 400'.

    Floats may differ in their last digits, which depend on the processor.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted(old.keys() | new.keys())
        lines = []
        for name in names:
            lines += differences(old.get(name), new.get(name), f"{key}.{name}".strip("."))
        return lines
    floats = isinstance(old, float) and isinstance(new, float)
    equal = math.isclose(old, new, rel_tol=1e-12) if floats else old == new
    return [] if equal else [f"{key} was {shown(old)}, is now {shown(new)}"]


def shown(value: Any) -> str:
    """Return the `repr` of a value for an error message, the middle of a long one left out."""
    return shortened(repr(value), 100)


def brief(value: Any) -> str:
    """Return what an error message says of a value of the wrong type: of an object its type.

    The `repr` of a module or of a dictionary of tensors takes many lines.
    """
    is_plain = value is None or isinstance(value, str | bytes | int | float | complex)
    return shown(value) if is_plain else type(value).__name__


def unescape(text: str) -> str:
    r"""Return a separator as typed in a shell.

    '\n' is a line feed, '\xff' byte 255; one character is itself.
    """
    try:
        return text if len(text) < 2 else text.encode("latin-1").decode("unicode_escape")
    except UnicodeError as error:
        raise ValueError(
            rf"separator must be one byte such as '\n', '\0' or '\xff', got {text!r}"
        ) from error


def run_folder(study: Path, arm: str, seed: int) -> Path:
    """Return the folder of the run of `arm` at `seed`."""
    return study / arm / f"seed-{seed}"


def name_at(arm: str, rate: float) -> str:
    """Return the name of an arm at a learning rate, in the search for the best one."""
    return f"{arm}_rate-{rate if rate % 1 else int(rate)}"
