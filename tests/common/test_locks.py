"""Locks of folders whose file stays, or goes with the lock."""

import errno
import os
from pathlib import Path

import pytest
from filelock import FileLock

from plkernel.common.files import LOCK
from plkernel.common.locks import held


@pytest.mark.parametrize("keep", [True, False])
def test_a_held_folder_is_refused_and_the_file_of_its_lock_stays_if_it_is_to_be_kept(
    keep: bool, tmp_path: Path
) -> None:
    for _ in range(2):
        with held(tmp_path, "record x", keep=keep):
            with (
                pytest.raises(ValueError, match="record x is in use by another process: wait"),
                held(tmp_path, "record x", keep=keep),
            ):
                pass
            assert (tmp_path / LOCK).exists()
        assert (tmp_path / LOCK).exists() == keep


def test_the_file_of_a_lock_goes_where_what_was_done_fails(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), held(tmp_path, "record x", keep=False):
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOLCK, "record x cannot be locked .*: mount its file system with flock"),
        (errno.EIO, f"^.Errno {errno.EIO}. {os.strerror(errno.EIO)}$"),
    ],
)
def test_a_file_system_without_locks_is_told_and_other_errors_stay_as_they_are(
    number: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(FileLock, "acquire", fail)
    with pytest.raises(OSError, match=message), held(tmp_path, "record x"):
        pass
