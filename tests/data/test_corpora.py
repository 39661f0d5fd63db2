import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plkernel.common.files import load_json, save_json
from plkernel.config.schema import CorpusSpec
from plkernel.data import corpora
from plkernel.data.corpora import Corpus, cache_folder, load


@pytest.fixture
def folder(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for name, text in {"a": b"first\r\n", "b": b"second", "c": bytes(range(256))}.items():
        (texts / name).write_bytes(text)
    return texts


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_corpus_is_a_flat_file_and_a_description(folder, cache):
    corpus = load(str(folder), separator="\0", cache=cache)
    expected = b"first\r\n\0second\0" + bytes(range(256))
    assert corpus.path.read_bytes() == expected
    assert (corpus.size, corpus.documents) == (len(expected), 3)
    assert corpus.sha256 == hashlib.sha256(expected).hexdigest()
    assert names(cache) == [corpus.path.name, corpus.path.with_suffix(".json").name]


def test_bytes_are_mapped_and_cannot_be_written(folder, cache):
    data = load(str(folder), cache=cache).bytes
    assert isinstance(data, np.memmap)
    assert (data.dtype, data.ndim) == (np.uint8, 1)
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1


def test_the_description_reads_back_equal(folder, cache, tmp_path):
    corpus = load(str(folder), cache=cache)
    assert Corpus.from_dict(load_json(corpus.path.with_suffix(".json"))) == corpus
    save_json(tmp_path / "copy.json", corpus.to_dict())
    assert Corpus.from_dict(load_json(tmp_path / "copy.json")) == corpus
    with pytest.raises(ValueError, match="needs exactly name, source, path"):
        Corpus.from_dict({"name": "x"})


def test_the_second_time_nothing_is_read(folder, cache, monkeypatch):
    first = load(str(folder), cache=cache)
    monkeypatch.setattr(corpora, "write_flat", None)
    assert load(str(folder), cache=cache) == first
    monkeypatch.chdir(folder.parent)
    assert load("texts", cache=cache) == replace(first, name="texts")


def test_each_option_has_its_own_file(folder, cache):
    plain, short, other = (
        load(str(folder), cache=cache, **options) for options in ({}, {"max_bytes": 9}, {"separator": "\xff"})
    )
    assert len({corpus.path for corpus in (plain, short, other)}) == 3
    assert short.path.read_bytes() == b"first\r\n\ns"
    assert (short.size, short.documents) == (9, 2)
    assert other.path.read_bytes().startswith(b"first\r\n\xffsecond")


def test_a_changed_file_is_read_again(folder, cache):
    before = load(str(folder), cache=cache)
    os.utime(folder / "b", ns=(1, 1))
    (folder / "b").write_bytes(b"SECOND")
    after = load(str(folder), cache=cache)
    assert after.size == before.size
    assert after.sha256 != before.sha256


@pytest.mark.parametrize("damage", ["cut", "grown", "gone", "no description", "broken description", "other fields"])
def test_a_cached_file_that_is_not_whole_is_built_again(folder, cache, damage):
    corpus = load(str(folder), cache=cache)
    whole, description = corpus.path.read_bytes(), corpus.path.with_suffix(".json")
    if damage == "cut":
        corpus.path.write_bytes(whole[:-1])
    elif damage == "grown":
        corpus.path.write_bytes(whole + b"x")
    elif damage == "gone":
        corpus.path.unlink()
    elif damage == "no description":
        description.unlink()
    else:
        broken = "{" if damage == "broken description" else json.dumps({**corpus.to_dict(), "path": 3})
        description.write_text(broken)
    assert load(str(folder), cache=cache) == corpus
    assert corpus.path.read_bytes() == whole
    assert len(names(cache)) == 2


@pytest.mark.parametrize("keep_mtime", [False, True])
def test_a_cached_file_that_was_overwritten_is_built_again(folder, cache, capsys, keep_mtime):
    """Of the same size, and even of the same time of change: that of the inode is moved by every write."""
    corpus = load(str(folder), cache=cache)
    whole, stat = corpus.path.read_bytes(), corpus.path.stat()
    with corpus.path.open("rb+") as handle:
        handle.write(bytes(len(whole)))
    if keep_mtime:
        os.utime(corpus.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert corpus.path.stat().st_mtime_ns == stat.st_mtime_ns
    assert load(str(folder), cache=cache) == corpus
    assert corpus.path.read_bytes() == whole
    assert f"{corpus.path} is damaged, built again" in capsys.readouterr().err


def test_a_damaged_file_that_cannot_be_built_again_is_named(folder, cache, monkeypatch):
    corpus = load(str(folder), cache=cache)
    corpus.path.write_bytes(bytes(corpus.size))

    def offline(*arguments):
        raise OSError("no network")

    monkeypatch.setattr(corpora, "write_flat", offline)
    with pytest.raises(OSError, match=r"\.bin is damaged, and could not be built again: no network"):
        load(str(folder), cache=cache)


@pytest.mark.parametrize("change", ["touched", "copied", "of an earlier version"])
def test_a_file_that_may_have_changed_is_read_once(folder, cache, monkeypatch, change):
    corpus = load(str(folder), cache=cache)
    description = corpus.path.with_suffix(".json")
    if change == "touched":
        os.utime(corpus.path, ns=(1, 1))
    elif change == "copied":
        whole = corpus.path.read_bytes()
        corpus.path.unlink()
        corpus.path.write_bytes(whole)
    else:
        save_json(description, corpus.to_dict())
    read, digest = [], corpora._sha256
    monkeypatch.setattr(corpora, "_sha256", lambda path: read.append(path) or digest(path))
    monkeypatch.setattr(corpora, "write_flat", None)
    assert [load(str(folder), cache=cache) for _ in range(3)] == [corpus] * 3
    assert read == [corpus.path]


def test_a_file_that_has_not_changed_is_not_read(folder, cache, monkeypatch):
    corpus = load(str(folder), cache=cache)
    monkeypatch.setattr(corpora, "_sha256", None)
    assert load(str(folder), cache=cache) == corpus


def test_a_cache_that_may_not_be_written_is_read_each_time(folder, cache, monkeypatch):
    corpus = load(str(folder), cache=cache)
    os.utime(corpus.path, ns=(1, 1))

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(corpora, "save_json", refuse)
    assert [load(str(folder), cache=cache) for _ in range(2)] == [corpus] * 2


@pytest.mark.parametrize(
    ("field", "value"), [("size", True), ("size", "9"), ("sha256", None), ("path", 3), ("name", ["a"])]
)
def test_a_description_of_other_types_is_none(folder, cache, field, value):
    with pytest.raises(ValueError, match=f"{field} is a {type(value).__name__}"):
        Corpus.from_dict({**load(str(folder), cache=cache).to_dict(), field: value})


def test_a_cache_that_moved_is_still_one(folder, cache, tmp_path):
    before = load(str(folder), cache=cache)
    cache.rename(tmp_path / "moved")
    after = load(str(folder), cache=tmp_path / "moved")
    assert after == replace(before, path=tmp_path / "moved" / before.path.name)


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("PLKERNEL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "plkernel"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "plkernel"
    monkeypatch.setenv("PLKERNEL_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PLKERNEL_CACHE", "~nouser/x", "PLKERNEL_CACHE=~nouser/x: .*; set PLKERNEL_CACHE to a folder"),
        ("PLKERNEL_CACHE", "", "no folder for corpora: .*; set PLKERNEL_CACHE to a folder"),
    ],
)
def test_a_home_that_is_not_there_is_one_line(monkeypatch, variable, value, message):
    """As for a user without an entry and without HOME, in a container."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=message):
        cache_folder()


def test_names_that_no_file_can_have_are_one_line(tmp_path, cache):
    (tmp_path / "circle").symlink_to("circle")
    for name, message in {
        "~nouser/x": "write the path without '~'",
        "a\0b": "neither a file|null byte",
        "x/" * 5000: "too long",
    }.items():
        with pytest.raises(ValueError, match=message) as caught:
            load(name, cache=cache)
        assert len(str(caught.value)) < 300
    with pytest.raises(ValueError, match="no such file or folder"):
        load(str(tmp_path / "circle"), cache=cache)


@pytest.mark.parametrize(("validation", "test"), [(0.05, 0.05), (0.0, 0.0), (0.3, 0.0), (0.0, 0.999), (0.33, 0.33)])
def test_splits_are_contiguous_blocks_of_the_whole(folder, cache, validation, test):
    corpus = load(str(folder), cache=cache)
    splits = corpus.splits(validation, test)
    parts = [splits.train, splits.validation, splits.test]
    np.testing.assert_array_equal(np.concatenate(parts), corpus.bytes)
    assert [part.size for part in parts[1:]] == [int(corpus.size * validation), int(corpus.size * test)]
    assert not any(part.flags.writeable or part.dtype != np.uint8 for part in parts)


def test_the_fractions_left_out_are_those_of_a_spec(folder, cache):
    corpus, section = load(str(folder), cache=cache), CorpusSpec()
    left_out, given = corpus.splits(), corpus.splits(section.validation, section.test)
    for part in ("train", "validation", "test"):
        np.testing.assert_array_equal(getattr(left_out, part), getattr(given, part))


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ((-0.1, 0.1), "validation = -0.1"),
        ((0.1, 1.0), "test = 1.0"),
        ((float("nan"), 0.1), "validation = nan"),
        ((0.5, 0.5), "nothing to train on"),
    ],
)
def test_bad_fractions_are_named(folder, cache, fractions, message):
    with pytest.raises(ValueError, match=message):
        load(str(folder), cache=cache).splits(*fractions)


@pytest.mark.parametrize("separator", ["", "ab", "\u0100", "\r\n"])
def test_a_separator_is_one_byte(cache, separator):
    with pytest.raises(ValueError, match=r"separator .* must be one byte"):
        load("stdlib", separator=separator, cache=cache)
    assert not cache.exists()


@pytest.mark.parametrize("max_bytes", [0, -5])
def test_a_limit_below_one_is_refused(cache, max_bytes):
    with pytest.raises(ValueError, match=f"max_bytes = {max_bytes}: must be at least 1"):
        load("stdlib", max_bytes=max_bytes, cache=cache)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.txt", b"", "is empty"),
        ("bad.gz", b"not compressed", "damaged .gz data"),
        ("bad.parquet", b"not a table", "bad.parquet: "),
        ("none.csv", b"text\n", "empty"),
        ("none.jsonl", b"", "none.jsonl"),
    ],
)
def test_a_corpus_that_cannot_be_read_leaves_nothing(tmp_path, cache, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises((ValueError, OSError), match=message) as caught:
        load(str(tmp_path / name), cache=cache)
    assert "\n" not in str(caught.value)
    assert not names(cache)


def test_a_file_without_permission_is_one_line(folder, cache, monkeypatch):
    opened = Path.open

    def refuse(path, *arguments, **options):
        if path.name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError, match="texts/b"):
        load(str(folder), cache=cache)
    assert not names(cache)


@pytest.mark.slow
def test_processes_that_build_at_once_all_end_well(tmp_path, cache):
    data = np.random.default_rng(0).bytes(30_000_000)
    (tmp_path / "big").write_bytes(data)
    program = (
        "import sys; from plkernel.data.corpora import load; print('ready', flush=True); sys.stdin.readline();"
        "print(load(sys.argv[1], cache=sys.argv[2]).sha256)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "big"), str(cache)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(4)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 4
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    expected = hashlib.sha256(data).hexdigest() + "\n"
    assert [process.communicate(timeout=60) for process in processes] == [(expected, "")] * 4
    assert len(names(cache)) == 2


def test_a_killed_build_leaves_nothing_that_looks_whole_and_the_next_cleans_up(tmp_path, cache):
    program = (
        "import sys, time, plkernel.data.flat_file as flat; from plkernel.data.corpora import load\n"
        "joined = flat._joined\n"
        "def slow(*arguments):\n"
        "    for item in joined(*arguments):\n"
        "        yield item; print(flush=True); time.sleep(0.2)\n"
        "flat._joined = slow; load(sys.argv[1], cache=sys.argv[2])"
    )
    path = tmp_path / "big"
    path.write_bytes(bytes(1000) * 30_000)
    command = [sys.executable, "-c", program, str(path), str(cache)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert names(cache)
    assert not [name for name in names(cache) if not name.startswith(".")]
    corpus = load(str(path), cache=cache)
    assert corpus.path.read_bytes() == path.read_bytes()
    assert len(names(cache)) == 2


def test_the_cache_may_be_read_only_once_it_is_filled(folder, cache, monkeypatch):
    corpus = load(str(folder), cache=cache)
    monkeypatch.setattr(corpora, "locked", None)
    assert load(str(folder), cache=cache) == corpus


def test_the_standard_library_is_fast_and_needs_neither_torch_nor_datasets(cache):
    program = (
        "import sys; from plkernel.data.corpora import load; load('stdlib', cache=sys.argv[1]);"
        "print([name for name in ('torch', 'datasets', 'pyarrow', 'pandas') if name in sys.modules])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program, str(cache)], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout == "[]\n"
    assert done.stderr == ""
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 20  # of this machine, busy or not


def test_the_size_is_known_ahead_where_nothing_must_be_read(folder, cache):
    assert corpora.size_ahead(str(folder), cache=cache) == corpora.load(str(folder), cache=cache).size
    assert corpora.size_ahead(str(folder), cache=cache / "other", max_bytes=7) == 7
    assert corpora.size_ahead("hf:some/text", cache=cache) is None
    with pytest.raises(ValueError, match="no such file or folder"):
        corpora.size_ahead("missing.txt", cache=cache)
    assert not (cache / "other").exists()
