import errno
import hashlib
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from plkernel.data import flat_file
from plkernel.data.files import Chunk
from plkernel.data.flat_file import locked, remove_remains, write_flat

NAME = f"corpus-{'0' * 16}.bin"
OTHER = f"corpus-{'1' * 16}.bin"


def block(data, starts=()):
    return Chunk(np.frombuffer(data, np.uint8), np.array(starts, np.int64))


def write(path, blocks, max_bytes=None):
    return write_flat(path, (item for item in blocks), max_bytes, None, "name")


BLOCKS = [block(b"|", [0]), block(b"ab"), block(b"c"), block(b"|d||ef", [0, 2, 3]), block(b""), block(b"|g", [0])]
JOINED = b"abc|d||ef|g"


def test_separators_stand_between_documents_only(tmp_path):
    flat = write(tmp_path / NAME, BLOCKS)
    assert (tmp_path / NAME).read_bytes() == JOINED
    assert (flat.size, flat.documents) == (len(JOINED), JOINED.count(b"|") + 1)
    assert flat.sha256 == hashlib.sha256(JOINED).hexdigest()


@pytest.mark.parametrize("size", range(1, len(JOINED) + 3))
def test_a_limit_cuts_at_that_byte_and_counts_what_begins_before_it(tmp_path, size):
    flat = write(tmp_path / NAME, BLOCKS, size)
    assert (tmp_path / NAME).read_bytes() == JOINED[:size]
    assert flat.documents == JOINED[:size].count(b"|") + 1


def test_a_limit_stops_the_reading():
    def endless():
        yield block(b"|", [0])
        while True:
            yield block(b"x" * 100)

    assert sum(len(data) for data, _ in flat_file._joined(endless(), 250)) == 250


@pytest.mark.parametrize("blocks", [[], [block(b"|", [0])], [block(b"|||", [0, 1, 2])]], ids=len)
def test_no_text_is_an_error_and_leaves_nothing(tmp_path, blocks):
    with pytest.raises(ValueError, match="'name' is empty"):
        write(tmp_path / NAME, blocks)
    assert not list(tmp_path.iterdir())


def test_a_failing_source_leaves_the_old_file(tmp_path):
    def failing():
        yield block(b"|new", [0])
        raise ValueError("broken")

    (tmp_path / NAME).write_bytes(b"old")
    with pytest.raises(ValueError, match="broken"):
        write(tmp_path / NAME, failing())
    assert (tmp_path / NAME).read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    class Full:
        def update(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(flat_file.hashlib, "sha256", Full)
    with pytest.raises(OSError, match=r"no room for the corpus in .*PLKERNEL_CACHE") as caught:
        write(tmp_path / NAME, BLOCKS)
    assert str(tmp_path) in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_limit_on_file_size_acts_like_a_full_disk(tmp_path):
    """The system itself refuses to write here, also while the buffer is emptied at the end."""
    program = f"""
        import resource
        from pathlib import Path
        import numpy as np
        from plkernel.data.flat_file import write_flat
        from plkernel.data.files import Chunk
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        blocks = (Chunk(np.zeros(5000, np.uint8), np.zeros(1, np.int64)) for _ in range(1))
        write_flat(Path({str(tmp_path / NAME)!r}), blocks, None, None, "name")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert "OSError: no room for the corpus" in done.stderr
    assert not list(tmp_path.iterdir())


def test_one_process_holds_the_lock_and_its_death_frees_it(tmp_path):
    program = f"""
        import time
        from pathlib import Path
        from plkernel.data.flat_file import locked
        with locked(Path({str(tmp_path / NAME)!r})) as held:
            print(held, flush=True)
            time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        with locked(tmp_path / NAME, wait=False) as held:
            assert not held
        with locked(tmp_path / OTHER, wait=False) as held:
            assert held
        process.kill()
    with locked(tmp_path / NAME) as held:
        assert held
    assert not list(tmp_path.iterdir())


def test_a_lock_removed_while_we_waited_is_taken_anew(tmp_path, monkeypatch):
    lock = tmp_path / f".{NAME.removesuffix('.bin')}.lock"
    attempts = []

    def removed_first(descriptor, wait):
        if not attempts:
            lock.unlink()
        attempts.append(descriptor)
        return True

    monkeypatch.setattr(flat_file, "_flock", removed_first)
    with locked(tmp_path / NAME) as held:
        assert held
        assert lock.exists()
    assert len(attempts) == 2


def test_without_locks_building_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(flat_file, "fcntl", None)
    with locked(tmp_path / NAME) as held:
        assert not held
    assert not list(tmp_path.iterdir())


def test_remains_of_dead_builds_go_and_those_of_living_ones_stay(tmp_path):
    stem, other = NAME.removesuffix(".bin"), OTHER.removesuffix(".bin")
    dead = [f".{stem}.bin.abcd1234", f".{stem}.json.abcd1234", f".{other}.bin.dead_xyz"]
    kept = [NAME, f"{stem}.json", ".notes-1.bin.txt", "a.bin.abcd1234"]
    for name in dead + kept:
        (tmp_path / name).write_bytes(b"x")
    living = tmp_path / f"live-{'2' * 16}.bin"
    temporary = tmp_path / f".{living.name}.abcd1234"
    temporary.write_bytes(b"x")
    with locked(living), locked(tmp_path / NAME):
        remove_remains(tmp_path / NAME)
        assert temporary.exists()
    assert {path.name for path in tmp_path.iterdir()} == {*kept, temporary.name}
