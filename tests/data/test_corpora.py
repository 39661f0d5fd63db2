"""The cache: flat files that are whole or absent, noticed when they change, built by one process at
a time.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from plkernel.common.files import load_json, save_json
from plkernel.config.schema import CorpusSpec
from plkernel.data import corpora
from plkernel.data.corpora import load
from plkernel.data.names import Source
from plkernel.data.text_files import Chunk
from plkernel.data.windows import (
    carried_windows,
    check_holds_window,
    fixed_windows,
    predicted_bytes,
    spread_windows,
    training_windows,
)

WHOLE = b"first\r\n\nsecond\n" + bytes(range(256))


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
    corpus = load(str(folder), cache=cache)
    assert corpus.path.read_bytes() == WHOLE
    assert (corpus.size, corpus.documents) == (len(WHOLE), 3)
    assert corpus.sha256 == hashlib.sha256(WHOLE).hexdigest()
    assert names(cache) == [corpus.path.name, corpus.path.with_suffix(".json").name]
    with pytest.raises(ValueError, match="read-only"):
        corpus.bytes[0] = 1
    described = load_json(corpus.path.with_suffix(".json"))
    assert {name: described[name] for name in asdict(corpus)} == {
        **asdict(corpus),
        "path": str(corpus.path),
    }


def test_each_option_has_its_own_file_and_the_second_time_nothing_is_built(
    folder, cache, monkeypatch
):
    options = ({}, {"max_bytes": 9}, {"separator": "\xff"})
    plain, short, other = (load(str(folder), cache=cache, **each) for each in options)
    assert len({corpus.path for corpus in (plain, short, other)}) == 3
    assert (short.path.read_bytes(), short.size, short.documents) == (WHOLE[:9], 9, 2)
    assert other.path.read_bytes().startswith(b"first\r\n\xffsecond")
    description = plain.path.with_suffix(".json")
    save_json(
        description, {**load_json(description), "verified": {"size": 1}}
    )  # as by an earlier version
    for name in (
        "_written",
        "_build",
        "save_json",
    ):  # nor is anything locked: the cache may be read-only
        monkeypatch.setattr(corpora, name, None)
    assert load(str(folder), cache=cache) == plain
    monkeypatch.chdir(folder.parent)
    assert load("texts", cache=cache) == replace(plain, name="texts")


def test_a_changed_source_is_read_again_and_a_moved_cache_is_not(folder, cache, tmp_path):
    before = load(str(folder), cache=cache)
    cache.rename(tmp_path / "moved")
    moved = load(str(folder), cache=tmp_path / "moved")
    assert moved == replace(before, path=tmp_path / "moved" / before.path.name)
    os.utime(folder / "b", ns=(1, 1))
    (folder / "b").write_bytes(b"SECOND")
    after = load(str(folder), cache=cache)
    assert after.size == before.size
    assert after.sha256 != before.sha256


@pytest.mark.parametrize(
    "damage",
    ["cut", "grown", "gone", "overwritten", "no description", "broken description", "fields"],
)
def test_a_cached_file_that_is_not_whole_is_built_again(folder, cache, capsys, damage):
    corpus = load(str(folder), cache=cache)
    description = corpus.path.with_suffix(".json")
    contents = {"cut": WHOLE[:-1], "grown": WHOLE + b"x", "overwritten": bytes(len(WHOLE))}
    if damage in contents:
        corpus.path.write_bytes(contents[damage])
    elif damage == "gone":
        corpus.path.unlink()
    elif damage == "no description":
        description.unlink()
    else:
        content = {**asdict(corpus), "path": "x", "more": 3}
        description.write_text("{" if damage == "broken description" else json.dumps(content))
    assert load(str(folder), cache=cache) == corpus
    assert corpus.path.read_bytes() == WHOLE
    assert len(names(cache)) == 2
    told = f"{corpus.path} is damaged, built again" in capsys.readouterr().err
    assert told == (damage not in ("gone", "no description"))


@pytest.mark.parametrize(
    ("validation", "test"), [(0.05, 0.05), (0.0, 0.0), (0.0, 0.999), (0.33, 0.33)]
)
def test_splits_are_contiguous_blocks_of_the_whole(folder, cache, validation, test):
    corpus = load(str(folder), cache=cache)
    splits = corpus.splits(validation, test)
    parts = [splits.train, splits.validation, splits.test]
    np.testing.assert_array_equal(np.concatenate(parts), corpus.bytes)
    assert [part.size for part in parts[1:]] == [
        int(corpus.size * validation),
        int(corpus.size * test),
    ]
    assert not any(part.flags.writeable or part.dtype != np.uint8 for part in parts)
    given = corpus.splits(CorpusSpec().validation, CorpusSpec().test)
    assert corpus.splits().train.size == given.train.size, (
        "the fractions left out are those of a spec"
    )
    for fractions in ((-0.1, 0.1), (float("nan"), 0.1), (0.5, 0.5)):
        with pytest.raises(ValueError, match="must be shares of the corpus, together below 1"):
            corpus.splits(*fractions)


def test_windows_are_those_of_recorded_runs():
    """Training windows depend on seed and step alone; another draw would change every run."""
    data = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8)
    drawn = [training_windows(data, 64, 8, seed, step) for seed in (0, 7) for step in (0, 1, 1000)]
    digest = hashlib.sha256(b"".join(windows.numpy().tobytes() for windows in drawn)).hexdigest()
    assert digest[:16] == "8416c8849b8f08aa"
    fixed = fixed_windows(data, 64, 8).numpy()
    starts = np.linspace(0, data.size - 65, 8).astype(int)
    np.testing.assert_array_equal(fixed, [data[start : start + 65] for start in starts])


def test_windows_of_a_carried_state_begin_where_those_of_recorded_runs_do():
    numbers = np.arange(250, dtype=np.uint8)
    assert carried_windows(numbers, 8, 3, 7, 2)[:, 0].tolist() == [56, 139, 222]


@pytest.mark.parametrize("seed", [1, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("draw", [training_windows, carried_windows])
def test_neighbouring_seeds_read_other_bytes(draw, seed):
    data = np.arange(100_000)
    assert not np.array_equal(draw(data, 3, 8, seed, 0), draw(data, 3, 8, seed - 1, 0))


@pytest.mark.parametrize("seed", [-1, 2**64])
@pytest.mark.parametrize("draw", [training_windows, carried_windows])
def test_seeds_of_windows_have_64_bits(draw, seed):
    with pytest.raises(ValueError, match=f"seed must lie between 0 and {2**64 - 1}, got {seed}"):
        draw(np.arange(100), 3, 8, seed, 0)


def test_fixed_windows_fit_to_the_last_byte_and_spread_ones_overlap():
    """As many as are disjoint, and if asked for as many as there are places to begin."""
    data = np.arange(12, dtype=np.uint8)
    assert fixed_windows(data, 3, 9).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert fixed_windows(data, 3, 2).tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert fixed_windows(data[:11], 3, 9).tolist() == [[0, 1, 2, 3], [7, 8, 9, 10]]
    assert fixed_windows(data[:4], 3, 9).tolist() == [[0, 1, 2, 3]]
    overlapping = [list(range(start, start + 4)) for start in range(9)]
    assert spread_windows(data, 3, 100).tolist() == overlapping
    assert spread_windows(data, 3, 9).tolist() == overlapping
    ends = np.cumsum(np.arange(1, 13))
    assert predicted_bytes(ends, 3, 2).tolist() == [2 + 3 + 4, 10 + 11 + 12]
    assert training_windows(data[:4], 3, 5, 0, 0).tolist() == [[0, 1, 2, 3]] * 5
    starts = training_windows(data, 3, 1000, 0, 0)[:, 0]
    assert set(starts.tolist()) == set(range(9)), "every place is drawn, the last one too"


def test_a_split_of_one_window_is_enough_and_of_a_byte_less_is_not():
    check_holds_window(33, 32, "train")
    with pytest.raises(ValueError, match=r"train must hold .* context \+ 1 = 33 bytes .*, got 32;"):
        check_holds_window(32, 32, "train")


def test_carried_windows_read_on_and_every_byte_once():
    """Rows begin where the seed says, a share of the text apart, and the text is a circle."""
    size, context, batch = 1200, 20, 4
    data = np.arange(size) % 251
    data = data.astype(np.uint8)
    starts = []
    for seed in (0, 7):
        steps = [carried_windows(data, context, batch, seed, step).numpy() for step in range(16)]
        assert steps[0].shape == (batch, context + 1)
        for before, after in pairwise(steps):
            np.testing.assert_array_equal(after[:, 0], before[:, -1])
        rows = np.concatenate([window[:, 1:] for window in steps[: size // (batch * context)]], 1)
        np.testing.assert_array_equal(
            np.bincount(rows.ravel(), minlength=251), np.bincount(data, minlength=251)
        )
        np.testing.assert_array_equal(steps[15][:, :-1], np.roll(steps[0][:, :-1], -1, axis=0))
        starts.append(steps[0][0])
    assert not np.array_equal(*starts), "another seed reads from elsewhere"


def test_a_corpus_that_cannot_be_read_leaves_nothing(folder, cache, monkeypatch):
    opened = Path.open
    for name, data, message in (
        ("empty.csv", b"text\n", "must hold text, got none"),
        ("bad.gz", b"text", "bad.gz: Not a gzipped"),
    ):
        (folder.parent / name).write_bytes(data)
        with pytest.raises((ValueError, OSError), match=message):
            load(str(folder.parent / name), cache=cache)
        assert not names(cache)

    def refuse(path, *arguments, **options):
        if path.name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError, match="texts/b"):
        load(str(folder), cache=cache)
    assert not names(cache)


def block(data, starts=()):
    return Chunk(np.frombuffer(data, np.uint8), np.array(starts, np.int64))


BLOCKS = [
    block(b"|", [0]),
    block(b"ab"),
    block(b"c"),
    block(b"|d||ef", [0, 2, 3]),
    block(b""),
    block(b"|g", [0]),
]
JOINED = b"abc|d||ef|g"


def written(path, blocks, max_bytes=None):
    return corpora._written(
        "name", Source("label", {}, lambda: (item for item in blocks)), path, max_bytes
    )


@pytest.mark.parametrize("size", [None, *range(1, len(JOINED) + 3)])
def test_separators_stand_between_documents_and_a_limit_cuts_at_that_byte(tmp_path, size):
    corpus = written(tmp_path / "x.bin", BLOCKS, size)
    assert (tmp_path / "x.bin").read_bytes() == JOINED[:size]
    assert corpus.size == len(JOINED[:size])
    assert corpus.documents == JOINED[:size].count(b"|") + 1
    assert corpus.sha256 == hashlib.sha256(JOINED[:size]).hexdigest()


def test_a_limit_stops_the_reading_and_no_text_is_an_error_that_leaves_nothing(tmp_path):
    def endless():
        yield block(b"|", [0])
        while True:
            yield block(b"x" * 100)

    for blocks in ([], [block(b"|", [0])], [block(b"|||", [0, 1, 2])]):
        with pytest.raises(ValueError, match="'name' must hold text, got none"):
            written(tmp_path / "x.bin", blocks)
        assert not list(tmp_path.iterdir())
    assert written(tmp_path / "x.bin", endless(), 250).size == 250


def test_a_killed_build_leaves_nothing_that_looks_whole_and_the_next_one_succeeds(tmp_path, cache):
    program = (
        "import sys, time, plkernel.data.corpora as corpora, plkernel.data.names as names\n"
        "blocks = names.file_blocks\n"
        "def slow(*arguments):\n"
        "    for item in blocks(*arguments):\n"
        "        yield item; print(flush=True); time.sleep(0.2)\n"
        "names.file_blocks = slow; corpora.load(sys.argv[1], cache=sys.argv[2])"
    )
    path = tmp_path / "big"
    path.write_bytes(bytes(1000) * 30_000)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path), str(cache)], stdout=subprocess.PIPE
    ) as process:
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert names(cache)
    assert not [name for name in names(cache) if not name.startswith(".")]
    corpus = load(str(path), cache=cache)
    assert corpus.path.read_bytes() == path.read_bytes()
    assert len(names(cache)) == 2, "what the dead one left is gone"


def test_of_processes_that_build_at_once_one_does(tmp_path, cache):
    data = np.random.default_rng(0).bytes(10_000_000)
    (tmp_path / "big").write_bytes(data)
    program = (
        "import sys; import plkernel.data.corpora as corpora; print('ready', flush=True);"
        " sys.stdin.readline()\nwritten = corpora._written\ncorpora._written = lambda *arguments:"
        " print('built') or written(*arguments)\nprint(corpora.load(sys.argv[1],"
        " cache=sys.argv[2]).sha256)\nprint([name for name in ('torch', 'datasets', 'pyarrow',"
        " 'pandas') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "big"), str(cache)]
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=60) for process in processes]
    assert [lines.split()[-2:] for lines, _ in ended] == [
        [hashlib.sha256(data).hexdigest(), "[]"]
    ] * 2
    assert [error for _, error in ended] == [""] * 2
    assert sum(lines.count("built") for lines, _ in ended) == 1
    assert len(names(cache)) == 2


class Bar:
    """Stands in for the bar of tqdm: what it is made with, and what it is told."""

    def __init__(self, settings):
        self.settings = settings
        self.steps = []
        self.is_closed = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_closed = True

    def update(self, step):
        self.steps.append(step)


@pytest.mark.parametrize(
    ("size", "max_bytes", "total"),
    [(11, None, 11), (11, 5, 5), (11, 100, 11), (None, 5, 5), (None, None, None)],
)
def test_a_bar_counts_the_bytes_that_are_written(tmp_path, monkeypatch, size, max_bytes, total):
    """On a terminal alone, after two seconds, and gone in the end."""
    bars = []

    def made(**settings):
        bars.append(Bar(settings))
        return bars[-1]

    monkeypatch.setattr("tqdm.auto.tqdm", made)
    source = Source("label", {}, lambda: (item for item in BLOCKS), size)
    corpus = corpora._written("name", source, tmp_path / "x.bin", max_bytes)
    [bar] = bars
    assert bar.settings.pop("total") == total
    assert bar.settings == {
        "desc": "name",
        "file": sys.stderr,
        "unit": "B",
        "unit_scale": True,
        "delay": 2.0,
        "leave": False,
        "disable": None,
    }
    assert sum(bar.steps) == corpus.size == len(JOINED[:max_bytes])
    assert bar.is_closed


@pytest.mark.parametrize(("count", "found"), [(0, "0 documents"), (1, "1 document"), (3, "3 doc")])
def test_an_empty_corpus_says_in_how_many_documents_nothing_was_found(tmp_path, count, found):
    with pytest.raises(ValueError, match=f"must hold text, got none in {found}"):
        written(tmp_path / "x.bin", [block(b"|" * count, range(count))] if count else [])


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"PLKERNEL_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"PLKERNEL_CACHE": "~/a"}, "/home/me/a"),
        ({"PLKERNEL_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/plkernel"),
        ({"XDG_CACHE_HOME": ""}, "/home/me/.cache/plkernel"),
        ({"XDG_CACHE_HOME": "rel/cache"}, "/home/me/.cache/plkernel"),
        ({}, "/home/me/.cache/plkernel"),
    ],
)
def test_the_cache_lies_where_variables_say_and_else_at_home(monkeypatch, variables, expected):
    for name in ("PLKERNEL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/me"} | variables).items():
        monkeypatch.setenv(name, value)
    assert corpora.cache_folder() == Path(expected)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("XDG_CACHE_HOME", "~nosuchuser/c", "XDG_CACHE_HOME must be the path of a folder, got '~n"),
        ("PLKERNEL_CACHE", "~nosuchuser/c", "PLKERNEL_CACHE must be the path of a folder, got '~n"),
    ],
)
def test_a_cache_in_no_known_place_is_refused(monkeypatch, name, value, message):
    monkeypatch.delenv("PLKERNEL_CACHE", raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        corpora.cache_folder()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_bytes": 0}, "max_bytes must be at least 1, got 0"),
        ({"max_bytes": True}, "max_bytes must be a whole number, got True"),
        ({"max_bytes": 2.0}, r"max_bytes must be a whole number, got 2\.0"),
        ({"separator": ""}, "separator must be one byte, a single character .* got ''"),
        ({"separator": "\u0100"}, "separator must be one byte, a single character .* got '.'"),
        ({"separator": "ab"}, "separator must be one byte, a single character .* got 'ab'"),
        ({"separator": b"a"}, "separator must be one character, got b'a'"),
        ({"column": 3}, "column must be the name of one, got 3"),
        ({"cache": ""}, "cache must be the path of a folder, got ''"),
        ({"cache": 3}, "cache must be the path of a folder, got 3"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_read(
    folder, cache, options, message
):
    with pytest.raises(ValueError, match=message):
        load(str(folder), **{"cache": cache, **options})
    assert not cache.exists()


def test_options_at_their_limits_are_taken(folder, cache):
    assert load(str(folder), cache=cache, max_bytes=1).bytes.tobytes() == b"f"
    assert load(str(folder), cache=cache, max_bytes=np.int64(2)).size == 2
    assert load(str(folder), cache=str(cache), separator="\0").bytes[7] == 0
    assert load(str(folder), cache=cache, separator="\xff").bytes[7] == 0xFF
    assert load(str(folder), cache=cache, max_bytes=len(WHOLE)).size == len(WHOLE)
    assert load(str(folder), cache=cache, max_bytes=10**9).size == len(WHOLE)


def test_the_size_is_known_ahead_where_nothing_must_be_read(folder, cache):
    assert corpora.size_ahead(str(folder), cache=cache / "other") == len(WHOLE)
    assert corpora.size_ahead(str(folder), cache=cache / "other", max_bytes=10**9) == len(WHOLE)
    assert (
        corpora.size_ahead(str(folder), cache=cache) == corpora.load(str(folder), cache=cache).size
    )
    assert corpora.size_ahead(str(folder), cache=cache / "other", max_bytes=7) == 7
    assert corpora.size_ahead("hf:some/text", cache=cache) is None
    with pytest.raises(ValueError, match=r"corpus missing\.txt: no such file or folder"):
        corpora.size_ahead("missing.txt", cache=cache)
    assert not (cache / "other").exists()


def test_a_cached_corpus_is_not_read_for_a_size_that_its_name_tells(cache, monkeypatch):
    """Gigabytes would be hashed before a study is registered."""
    name = "synthetic:lags,bytes=2kB"
    corpora.load(name, cache=cache)
    monkeypatch.setattr(corpora, "_cached", lambda path: pytest.fail(f"{path} is read"))
    assert corpora.size_ahead(name, cache=cache) == 2000


def test_a_cache_that_cannot_be_written_is_told_with_its_variable(folder, tmp_path):
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "cache"
    told = rf"cache folder \(PLKERNEL_CACHE\) {place}: cannot be written \(a file is in the way\)"
    with pytest.raises(OSError, match=told):
        load(str(folder), cache=place)
