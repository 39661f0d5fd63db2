"""Files that are whole or absent: atomic writes, JSON that reads back equal, and nothing written through a link."""

import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO

from plkernel.common.plain import parse_json, parse_object, read_bytes

try:
    import fcntl
except ImportError:  # no such locks on this system: what a killed writer left stays
    fcntl = None  # type: ignore[assignment]

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; on success fsync it and rename it to `path`, else remove it.

    What writers of `path` left that were killed is removed first. OSError names `path`, not the temporary file.
    """
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        descriptor, temporary, lock = _temporary(path)
    try:
        with naming(path, temporary):
            with os.fdopen(descriptor, "wb") as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    finally:
        if lock is not None:
            os.close(lock)


def check_folder(path: Path | None, option: str, keep: bool = False) -> None:
    """OSError that names `option` unless files can be written in the folder `path`, or none is named.

    keep: leave the folder there, which otherwise is as it was.
    """
    if path is not None:
        _check(path, path, "plkernel", option, keep)


def check_file(path: Path | None, option: str) -> None:
    """OSError that names `option` unless the file `path` can be written, or none is named; nothing is left there."""
    if path is not None and path.is_dir():
        raise OSError(f"{option} {path}: is a folder; name a file")
    if path is not None:
        _check(path, path.parent, path.name, option)


def _check(path: Path, folder: Path, name: str, option: str, keep: bool = False) -> None:
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


@contextmanager
def naming(path: Path, temporary: str | None = None) -> Iterator[None]:
    """Errors of the system that name a temporary file, or none for lack of room, name `path` instead."""
    try:
        yield
    except OSError as error:
        nameless = error.filename is None and error.errno in NO_ROOM
        if not nameless and (temporary is None or error.filename != temporary):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _temporary(path: Path) -> tuple[int, str, int | None]:
    """A new file beside `path`: its descriptor and name, and one that holds its lock, by which it is known in use."""
    while True:
        try:
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        if fcntl is None:
            return descriptor, name, None
        with suppress(OSError):  # a file system without locks, where nothing is swept either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:  # else it was swept before it was locked
            return descriptor, name, os.dup(descriptor)
        os.close(descriptor)


def _sweep(path: Path) -> None:
    """Remove the temporary files of `path` that no process holds: those of killed writers, with mkstemp's mode."""
    if fcntl is None:
        return
    for remains in path.parent.glob(f".{escape(path.name)}.{'[a-z0-9_]' * 8}"):
        with suppress(OSError):
            if remains.lstat().st_mode != stat.S_IFREG | 0o600:
                continue
            descriptor = os.open(remains, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remains.unlink()
            finally:
                os.close(descriptor)


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


def save_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinity become null (JSON has neither)."""
    atomic_write(path, json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")


def load_json(path: Path) -> Any:
    """Read JSON; a missing or damaged file, or one beyond the limits of `plain`, raises ValueError naming it."""
    return parse_json(read_bytes(path), str(path))


def load_object(path: Path) -> dict[str, Any]:
    """Read JSON that must be an object; ValueError naming the file."""
    return parse_object(read_bytes(path), str(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; an unfinished last line (a killed writer) is left out.

    Raises ValueError naming the file and the line when another line is damaged or no object.
    """
    if not path.exists():
        return []
    whole = read_bytes(path)
    lines = whole[: whole.rfind(b"\n") + 1].splitlines()
    return [parse_object(line, f"{path}: line {number}") for number, line in enumerate(lines, start=1)]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
"""Makes opening a link an error, where the system has that; `refuse_links` is what says it in words."""


def refuse_links(paths: Iterable[Path]) -> None:
    """ValueError naming the first of `paths` that is neither a plain file nor a folder; what is missing may be."""
    for path in paths:
        mode = _mode(path)
        if mode is None or stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            continue
        if stat.S_ISLNK(mode):
            raise ValueError(
                f"{path} is a symbolic link to {os.readlink(path)}, and nothing is written through one: "
                "remove it, or put what it points to in its place"
            )
        raise ValueError(f"{path} is no plain file: remove it")


def refuse_links_of_run(folder: Path) -> None:
    """ValueError where the folder of a run, that of its arm, or anything in it is a link or no plain file."""
    refuse_links([folder.parent, folder])
    if folder.is_dir():
        refuse_links(sorted(folder.iterdir()))


def open_own(path: Path, flags: int) -> int:
    """A descriptor of `path` itself; OSError for a link."""
    return os.open(path, flags | NO_FOLLOW | getattr(os, "O_CLOEXEC", 0), 0o666)


def _mode(path: Path) -> int | None:
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None
