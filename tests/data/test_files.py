import bz2
import gzip
import lzma
import os

import pyarrow as pa
import pytest

from plkernel.data.files import CHUNK, file_blocks

DATA = bytes(range(256)) * 4000 + b"line\r\nline\n\n\0end without a line feed"


def zstandard(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACKERS = {".txt": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard}


def read(path):
    return b"".join(block.data.tobytes() for block in file_blocks(path, b"\xff"))


@pytest.mark.parametrize("suffix", PACKERS)
def test_bytes_come_back_byte_for_byte_behind_one_separator(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACKERS[suffix](DATA))
    blocks = list(file_blocks(path, b"\xff"))
    assert read(path) == b"\xff" + DATA
    assert [block.starts.tolist() for block in blocks] == [[0]] + [[]] * (len(blocks) - 1)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_streams_written_one_after_the_other_are_one_file(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACKERS[suffix](DATA) + PACKERS[suffix](b"more"))
    assert read(path) == b"\xff" + DATA + b"more"


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("damage", ["truncated", "not compressed", "overwritten"])
def test_damaged_data_is_one_line_that_names_the_file(tmp_path, suffix, damage):
    whole = PACKERS[suffix](os.urandom(100_000))
    path = tmp_path / f"a{suffix}"
    broken = {"truncated": whole[:-1000], "not compressed": DATA, "overwritten": b"\0" * 3000 + whole[3000:]}
    path.write_bytes(broken[damage])
    with pytest.raises(ValueError, match=rf"a{suffix}: damaged {suffix} data") as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.TGZ"])
def test_archives_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(ValueError, match="archive of several files; unpack it"):
        read(tmp_path / name)


def test_a_missing_compressed_file_is_reported_as_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a\.gz"):
        read(tmp_path / "a.gz")


def test_large_files_come_in_blocks(tmp_path):
    (tmp_path / "a").write_bytes(bytes(CHUNK + 1))
    assert [block.data.size for block in file_blocks(tmp_path / "a", b"\n")] == [1, CHUNK, 1]
