"""Files that are whole or absent, and plain values (JSON, TOML) from files that anyone may have written.

Values read here are nested at most MOST_NESTED deep and hold no whole number beyond 64 bits, so that code that walks
through them needs no further care.
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from reprlib import Repr
from typing import Any, BinaryIO

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
MOST_NESTED = 64
LARGEST_INTEGER = 2**63 - 1
DEEP_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MOST_NESTED}}}""")
"""A key of more dotted names than may be nested; the time of tomllib grows with the square of their number."""
TOO_DEEP = f"nested deeper than {MOST_NESTED} lists and tables"
ROUNDING = 1e-12  # relative; an output scale computed on another processor differs in its last digits


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; on success fsync it and rename it to `path`, else remove it.

    Temporary files that killed writers left are removed first. OSError names `path`, not the temporary file.
    """
    head = f".{path.name}.{socket.gethostname()}."
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for remains in path.parent.glob(f"{escape(head)}*"):
            with suppress(ValueError, PermissionError):
                try:
                    os.kill(int(remains.name.removeprefix(head).partition(".")[0]), 0)
                except ProcessLookupError:
                    remains.unlink(missing_ok=True)
        try:
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{head}{os.getpid()}.")
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        with naming(path, temporary):
            with os.fdopen(descriptor, "wb") as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextmanager
def naming(path: Path, temporary: str | None = None) -> Iterator[None]:
    """Make system errors that name a temporary file, or for lack of room no file, name `path`."""
    try:
        yield
    except OSError as error:
        nameless = error.filename is None and error.errno in NO_ROOM
        if not nameless and (temporary is None or error.filename != temporary):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write `data` to `path` so that a reader sees the old content or the new, never a part."""
    with atomic_file(path) as handle:
        handle.write(data.encode() if isinstance(data, str) else data)


def atomic_save(path: Path, save: Callable[[Path], Any]) -> None:
    """Let `save` write a temporary path of the same suffix, then rename it to `path`.

    The temporary name is always the same, so one that a killed process left is overwritten: one writer at a time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        with naming(path, str(temporary)):
            save(temporary)
            with temporary.open("rb+") as handle:
                os.fsync(handle.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_folder(path: Path | None, option: str, keep: bool = False) -> None:
    """OSError that names `option` unless files can be written in the folder `path`; None passes.

    keep: leave the folder there; otherwise nothing is left.
    """
    if path is not None:
        _check(path, path, "plkernel", option, keep)


def check_file(path: Path | None, option: str) -> None:
    """OSError that names `option` unless the file `path` can be written; None passes, and nothing is left there."""
    if path is not None and path.is_dir():
        raise OSError(f"{option} {path}: is a folder; name a file")
    if path is not None:
        _check(path, path.parent, path.name, option, keep=False)


def _check(path: Path, folder: Path, name: str, option: str, keep: bool) -> None:
    """Try to write a file called `name` in `folder`, on behalf of `path`."""
    made = [] if keep else [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}."):
            pass
    except OSError as error:
        taken = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a file is in the way" if taken else error.strerror
        raise OSError(f"{option} {path}: cannot be written ({reason}); choose another place") from error
    finally:
        for place in made:
            with suppress(OSError):
                place.rmdir()


def refuse_links(paths: Iterable[Path]) -> None:
    """ValueError naming the first of `paths` that exists and is neither a plain file nor a folder."""
    for path in paths:
        if path.is_symlink():
            raise ValueError(
                f"{path} is a symbolic link to {os.readlink(path)}, and nothing is written through one: "
                "remove it, or put what it points to in its place"
            )
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ValueError(f"{path} is no plain file: remove it")


def refuse_links_of_run(folder: Path) -> None:
    """ValueError where the folder of a run, that of its arm, or anything in it is a link or no plain file."""
    refuse_links([folder.parent, folder, *(sorted(folder.iterdir()) if folder.is_dir() else ())])


def open_own(path: Path, flags: int) -> int:
    """A descriptor of `path` itself; OSError for a link."""
    return os.open(path, flags | NO_FOLLOW | getattr(os, "O_CLOEXEC", 0), 0o666)


def save_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinity become null (JSON has neither)."""
    atomic_write(path, json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def load_json(path: Path) -> Any:
    """Read JSON; ValueError naming the file where it is missing, damaged or beyond the limits."""
    return parse_json(read_bytes(path), str(path))


def load_object(path: Path) -> dict[str, Any]:
    """Read JSON that must be an object; ValueError naming the file."""
    return _object(load_json(path), str(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file, none if it is missing; an unfinished last line (of a killed writer) is left out.

    Raises ValueError naming the file and the line where another line is damaged or no object.
    """
    if not path.exists():
        return []
    whole = read_bytes(path)
    lines = whole[: whole.rfind(b"\n") + 1].splitlines()
    places = (f"{path}: line {number}" for number in range(1, len(lines) + 1))
    return [_object(parse_json(line, place), place) for line, place in zip(lines, places, strict=True)]


def _object(value: Any, origin: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{origin}: holds {kind(value)}, expected an object")
    return value


def parse_json(content: bytes, origin: str) -> Any:
    """The value of JSON text; ValueError, headed by `origin`, where it is damaged or beyond the limits."""
    return _parsed(json.loads, content, origin, "not readable as JSON")


def parse_toml(content: bytes, origin: str) -> dict[str, Any]:
    """The values of TOML text; ValueError, headed by `origin`, where it is damaged or beyond the limits."""
    return dict(_parsed(_loads_toml, content, origin, "not valid TOML"))


def _loads_toml(text: str) -> dict[str, Any]:
    if DEEP_KEY.search(text):
        raise RecursionError
    return tomllib.loads(text)


def _parsed(parse: Callable[[str], Any], content: bytes, origin: str, complaint: str) -> Any:
    try:
        value = parse(content.decode())
    except RecursionError:
        raise ValueError(f"{origin}: {TOO_DEEP}") from None
    except ValueError as error:  # damaged, no UTF-8, or a number of too many digits
        raise ValueError(f"{origin}: {complaint} ({error})") from error
    _check_limits(value, origin, ())
    return value


def _check_limits(value: Any, origin: str, place: tuple[str, ...]) -> None:
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        where = f"{'.'.join(place)}: " if place else ""
        limits = f"whole numbers must lie between {-LARGEST_INTEGER} and {LARGEST_INTEGER}"
        raise ValueError(f"{origin}: {where}{limits}, got {shown(value)}")
    if isinstance(value, dict | list):
        if len(place) >= MOST_NESTED:
            raise ValueError(f"{origin}: {TOO_DEEP}")
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, int | dict | list):
                _check_limits(item, origin, (*place, str(key)))


def read_bytes(path: Path) -> bytes:
    """The content of a regular file; ValueError for a folder, a pipe or a device, and where there is none."""
    check_regular(path)
    return path.read_bytes()


def check_regular(path: Path, what: str = "") -> None:
    """ValueError unless `path` is a regular file: a pipe may never answer, and a device never end.

    what: heads the message, as in 'checkpoint '.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"{what}{path}: no such file") from error
    except ValueError as error:  # a name with a zero byte in it
        raise ValueError(f"{what}{str(path)!r}: {error}") from error
    if not stat.S_ISREG(mode):
        name = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise ValueError(f"{what}{path}: is {name}, expected a regular file")


def same(one: Any, other: Any) -> bool:
    """True where two plain values are equal, floats up to rounding.

    >>> same(0.1 + 0.2, 0.3), same(0.3, 0.3001), same([1], [1])
    (True, False, True)
    """
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=ROUNDING)
    return bool(one == other)


def shown(value: Any) -> str:
    """A value in an error message, as `repr` has it and no longer than a line."""
    return _SHORT.repr(value)


class _Short(Repr):
    """Short texts for numbers of any length too: `repr` refuses integers of more than 4300 digits."""

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1000 else f"<a number of {x.bit_length()} bits>"


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 4


def kind(value: Any) -> str:
    """The JSON type of a value, with its article."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def unescape(text: str) -> str:
    r"""A separator as typed in a shell: '\n' a line feed, '\xff' byte 255; one character is itself."""
    if len(text) < 2:
        return text
    try:
        return text.encode("latin-1").decode("unicode_escape")
    except UnicodeError:
        return text
