"""Names become sources: their bytes in order, the keys of the cache, and what a wrong name says."""

import hashlib
import importlib.metadata
import os
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import filelock
import numpy as np
import pytest

from plkernel.analysis.sequences import LagCorpus, MarkovChain, PottsCorpus
from plkernel.common import corpus_names
from plkernel.common.corpus_names import has_floor, is_recall, is_synthetic
from plkernel.data.corpora import load
from plkernel.data.names import (
    GENERATOR,
    LAWS,
    byte_count,
    check_outside,
    find_source,
    known_sequence,
    predictor_of,
    spelling,
    synthetic_corpus,
)
from plkernel.data.recall import RecallCorpus


def text(source):
    return b"".join(block.data.tobytes() for block in source.blocks())


def digest(name, **request):
    return find_source(str(name), **request).digest()


def test_the_standard_library_is_all_its_sources_in_order_and_no_tests():
    source = find_source("stdlib", b"\xff")
    names = [name for name, *_ in source.key["listing"]]
    assert names == sorted(names)
    assert {"os.py", "json/decoder.py", "idlelib/pyshell.py"} <= set(names)
    assert not [
        name
        for name in names
        if {"test", "tests", "idle_test", "site-packages"} & set(name.split("/"))
    ]
    assert all(name.endswith(".py") for name in names)
    data = text(source)
    assert data.count(b"\xff" + Path(sysconfig.get_path("stdlib"), "os.py").read_bytes()) == 1
    assert len(data) - 1 == source.size


def test_the_sources_of_packages_are_all_their_modules_in_an_order_of_their_own():
    version = importlib.metadata.version("filelock")
    source = find_source(f"packages:filelock=={version}", b"\xff")
    names = [name for name, *_ in source.key["listing"]]
    folder = Path(filelock.__file__).parent
    assert set(names) == {
        path.relative_to(folder.parent).as_posix() for path in folder.rglob("*.py")
    }
    assert names != sorted(names)
    assert text(source).count(b"\xff" + Path(filelock.__file__).read_bytes()) == 1
    assert len(text(source)) - 1 == source.size
    for name, message in (
        ("filelock", f"must be the one that is installed, {version}, got none; write"),
        ("filelock==1", f"must be the one that is installed, {version}, got 1"),
        ("no-such-package==1", "package must be installed, got 'no-such-package'; write"),
    ):
        with pytest.raises(ValueError, match=message):
            find_source(f"packages:{name}")


def test_the_files_of_packages_may_have_other_endings():
    version = importlib.metadata.version("numpy")
    source = find_source(f"packages:numpy=={version}:.pyi,.pxd", b"\xff")
    names = [name for name, *_ in source.key["listing"]]
    assert {Path(name).suffix for name in names} == {".pyi", ".pxd"}
    folder = Path(np.__file__).parent
    assert set(names) == {
        path.relative_to(folder.parent).as_posix()
        for ending in ("pyi", "pxd")
        for path in folder.rglob(f"*.{ending}")
    }
    plain = find_source(f"packages:numpy=={version}")
    assert find_source(f"packages:numpy=={version}:.py").key["listing"] == plain.key["listing"]
    for endings, message in (
        ("h", r"must each begin with a dot, such as \.h, got 'h'"),
        (".h,", r"must each begin with a dot, such as \.h, got '\.h,'"),
        (".absent", r"must have files that end in \.absent, got none"),
    ):
        with pytest.raises(ValueError, match=message):
            find_source(f"packages:numpy=={version}:{endings}")


def test_copies_may_come_from_far_only():
    corpus = synthetic_corpus("lags,shortest=3,longest=5,alpha=0,redrawn=0.5,bytes=1000")
    np.testing.assert_allclose(corpus.chances, [0, 0, 1 / 6, 1 / 6, 1 / 6])
    assert "shortest=3" in spelling(corpus)[0]
    assert "shortest" not in spelling(LagCorpus())[0]
    with pytest.raises(ValueError, match="shortest must be at most longest, 2, got 3"):
        synthetic_corpus("lags,shortest=3,longest=2")


def test_a_folder_is_read_in_order_of_paths_without_hidden_files_and_the_cache(tmp_path):
    for name in [
        "b/2",
        "a",
        "b.txt",
        ".hidden",
        "b/.git/x",
        "__pycache__/x",
        "cache/flat.bin",
        "c/1",
    ]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    source = find_source(str(tmp_path), b"|", cache=tmp_path / "cache")
    assert text(source) == b"|a|b.txt|b/2|c/1"
    assert source.size == len(b"a|b.txt|b/2|c/1")


def test_links_that_lead_out_of_a_folder_are_not_followed(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "sub").mkdir(parents=True)
    outside.mkdir()
    (root / "a").write_text("inside")
    (outside / "x").write_text("secret")
    links = {"b": "a", "c": outside / "x", "sub/d": outside, "sub/loop": root, "broken": "nothing"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    source = find_source(str(root), b"|")
    assert text(source) == b"|inside|inside"
    assert source.label == f"{root}, without the symbolic links out of it (1)"
    for name in ("a", "b"):
        (root / name).unlink()
    with pytest.raises(
        ValueError, match=r"without the symbolic links out of it \(1\)' must hold files"
    ):
        find_source(str(root))


def test_the_key_changes_with_everything_that_determines_the_bytes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text\nx\n")
    os.utime(path, ns=(1, 1))
    before = digest(path)
    assert digest(path) == digest(tmp_path / "." / "a.csv") == digest(path, column="text") == before
    assert digest(path, column="other") != before
    os.utime(path, ns=(1, 2))
    touched, folder = digest(path), digest(tmp_path)
    (tmp_path / "b").write_text("")
    assert len({before, touched, folder, digest(tmp_path)}) == 4
    names = [
        "beta=1",
        "beta=2",
        "beta=1,symbols=4",
        "beta=1,bytes=5",
        "beta=1,seed=1",
        "lags",
        "lags,alpha=2",
    ]
    names += ["lags,longest=9", "lags,redrawn=0.3", "lags,seed=1", "markov", "markov,spread=1"]
    assert len({digest(f"synthetic:{name}") for name in names}) == len(names)
    spellings = ["beta=1", "beta=1.0,seed=0", "symbols=16,beta=1e0,bytes=10MB", "potts,beta=1"]
    assert len({digest(f"synthetic:{name}") for name in spellings}) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stdlb", "did you mean 'stdlib'"),
        ("wiki-tp", "did you mean 'wiki-pt'"),
        ("qqqq", "valid: bible, fineweb, hf, packages, stdlib, synthetic, wiki-pt"),
        ("nofile.txt", "corpus nofile.txt: no such file or folder"),
        ("./nofile", "corpus nofile: no such file or folder"),
        ("nofolder/x.bin", "corpus nofolder/x.bin: no such file or folder"),
        ("~no-such-user/x", "corpus ~no-such-user/x: no such file or folder"),
        ("hff:owner/name.txt", "corpus must be a file, a folder or the name of a corpus"),
        ("some words. And more/less words of a text" * 20, "corpus must be a file, a folder"),
        ("", "corpus must be a file, a folder or the name of a corpus"),
        ("hf:a:b:c:d", "corpus must be hf:NAME"),
        ("hf:.", "must be named without 'hf:'"),
        ("a\0b", "corpus must be a file"),
        ("bible:eng", r"did you mean 'en'\?"),
        ("synthetic:symbols=4", "corpus 'synthetic:symbols=4': beta must be given"),
        (
            "synthetic:beta=1,symbol=4",
            r"parameter must be one of the law potts, got 'symbol'; did you mean 'symbols'\?",
        ),
        ("synthetic:recall,pairs=4,length=32,pairs=3", "pairs must be given once, got 4 and 3"),
        ("synthetic:recall,pairs=", "pairs must be a whole number, got ''"),
        ("synthetic:beta=one", "beta must be a number, got 'one'"),
        (f"synthetic:beta=1,symbols={'9' * 5000}", "symbols must be a whole number, got '99.* 99"),
        (f"synthetic:beta=1,bytes={'9' * 5000}", "bytes must be a number of bytes such as 500000"),
        ("synthetic:beta=1,symbols=2.5", "symbols must be a whole number, got '2.5'"),
        ("synthetic:beta=1,bytes=0", "bytes must be a number of bytes such as 500000"),
        ("synthetic:beta=1,bytes=many", "bytes must be a number of bytes such as 500000"),
        ("synthetic:lag", r"law must be one of those known, got 'lag'; did you mean 'lags'\?"),
        ("synthetic:lags,alpha=-1", "alpha must be a number of at least 0"),
    ],
)
def test_bad_names_say_in_one_short_line_what_would_work(name, message):
    with pytest.raises(ValueError, match=message) as caught:
        find_source(name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("rest", "corpus", "spelled"),
    [
        ("potts,beta=1", PottsCorpus(1.0), "beta=1.0,symbols=16,bytes=10000000,seed=0"),
        (" seed = 7, bytes=1k ,beta=1.5, symbols=4", PottsCorpus(1.5, 4, 1000, 7), None),
        (
            "lags, seed=7,bytes=1.5mb, symbols=4,redrawn=.5,longest=9,alpha=2",
            LagCorpus(2, 9, 0.5, 4, 1_500_000, 7),
            None,
        ),
        (
            "markov,spread=1,seed=2",
            MarkovChain(16, 1.0, seed=2),
            "markov,symbols=16,spread=1.0,bytes=10000000,seed=2",
        ),
    ],
)
def test_the_name_of_a_law_is_its_sequence(rest, corpus, spelled):
    name = spelling(corpus)[0].removeprefix("synthetic:")
    assert synthetic_corpus(rest) == synthetic_corpus(name) == corpus
    assert spelled in (None, name)


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("beta=1", "cea600819cd8aa6b"),
        ("lags", "cc0b703ed8e9a994"),
        ("markov", "cc075ba64a944147"),
        ("recall", "2b870472dac8cc44"),
    ],
)
def test_a_change_of_the_bytes_is_a_change_of_the_format(rest, expected, tmp_path):
    """Another digest here means other bytes under the name of old ones: `GENERATOR` and this table
    have to change.
    """
    whole, part = (
        load(f"synthetic:{rest},bytes=200k", max_bytes=limit, cache=tmp_path)
        for limit in (None, 150_000)
    )
    law = rest if rest in GENERATOR else "potts"
    assert (GENERATOR[law], whole.sha256[:16], whole.size, whole.documents) == (
        1,
        expected,
        200_000,
        1,
    )
    assert (
        hashlib.sha256(b"".join(synthetic_corpus(f"{rest},bytes=200k").blocks())).hexdigest()
        == whole.sha256
    )
    np.testing.assert_array_equal(part.bytes, whole.bytes[:150_000])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("500000", 500_000),
        ("500k", 500_000),
        ("500 kB", 500_000),
        ("10MB", 10_000_000),
        ("1.5m", 1_500_000),
        ("1G", 10**9),
        ("0.001k", 1),
        ("7b", 7),
    ],
)
def test_a_number_of_bytes_is_read_in_powers_of_a_thousand(text, expected):
    assert byte_count(text) == expected


@pytest.mark.parametrize("text", ["0", "0.5", "1.5", "0.0001k", "-1", "1T", "k", "", "1 2", "1e3"])
def test_what_is_no_whole_number_of_bytes_is_refused(text):
    with pytest.raises(ValueError, match="max_bytes must be a number of bytes such as 500000"):
        byte_count(text)
    with pytest.raises(ValueError, match="size must be a number of bytes"):
        byte_count(text, "size")


def test_what_a_name_is_made_from():
    for name in ("synthetic:beta=1", "synthetic:lags", "synthetic:recall,pairs=4"):
        assert is_synthetic(name)
    for name in ("stdlib", "synthetic.txt", "hf:synthetic", ""):
        assert not is_synthetic(name)
        assert known_sequence(name) is predictor_of(name) is None
    assert is_recall("synthetic:recall")
    assert is_recall("synthetic:recall,pairs=4")
    assert not is_recall("synthetic:recalled,pairs=4")
    assert not is_recall("synthetic:lags,recall")


def test_a_floor_is_known_of_recall_and_where_there_is_an_optimal_predictor():
    assert set(corpus_names.LAWS) == set(LAWS)
    for name in ("synthetic:beta=1", "synthetic:lags", "synthetic:markov", "synthetic:recall"):
        assert has_floor(name) == (is_recall(name) or predictor_of(name) is not None)
    assert has_floor("synthetic: lags ,longest=9"), "blanks are passed over, as where it is read"
    assert not has_floor("synthetic:lagsx")
    assert not has_floor("lags")


def test_the_optimal_prediction_is_known_of_lags_and_chains_and_not_of_potts():
    assert known_sequence("synthetic:beta=1") == PottsCorpus(1.0)
    assert predictor_of("synthetic:beta=1") is None
    for name, corpus in (("lags", LagCorpus()), ("markov", MarkovChain())):
        assert known_sequence(f"synthetic:{name}") == predictor_of(f"synthetic:{name}") == corpus


def test_the_key_of_a_law_has_what_determines_its_bytes_and_no_more():
    """Keys are older than some parameters, and than the names of laws."""
    recall = spelling(RecallCorpus())
    assert recall == (
        "synthetic:recall,pairs=32,length=128,power=1.0,placing=first,answers=hidden,bytes=1000000,"
        "seed=0",
        {
            "synthetic": {
                "law": "recall",
                "pairs": 32,
                "length": 128,
                "power": 1.0,
                "placing": "first",
                "answers": "hidden",
                "size": 1_000_000,
                "seed": 0,
            },
            "generator": GENERATOR["recall"],
        },
    )
    potts = spelling(PottsCorpus(1.0))[1]["synthetic"]
    assert "law" not in potts
    assert potts["probabilities"] is None
    lags = spelling(LagCorpus())[1]["synthetic"]
    assert lags["law"] == "lags"
    assert "shortest" not in lags
    assert spelling(LagCorpus(shortest=2))[1]["synthetic"]["shortest"] == 2


@pytest.mark.parametrize(
    ("rest", "config", "split"),
    [
        ("owner/set", None, None),
        ("owner/set:plain", "plain", None),
        ("owner/set:plain:test", "plain", "test"),
        ("owner/set::test", None, "test"),
    ],
)
def test_a_data_set_of_the_hub_is_named_with_its_configuration_and_its_split(rest, config, split):
    source = find_source(f"hf:{rest}", column="body")
    expected = {"hub": "owner/set", "config": config, "split": split, "column": "body"}
    assert (source.label, source.key, source.size) == (f"hf:{rest}", expected, None)


@pytest.mark.parametrize("name", ["hf:", "hf::plain"])
def test_a_data_set_of_the_hub_has_a_name(name):
    with pytest.raises(ValueError, match="corpus must be hf:NAME"):
        find_source(name)


def test_the_local_part_of_a_version_need_not_be_named(monkeypatch, tmp_path):
    (tmp_path / "it.py").write_text("it = 1\n")

    files = [importlib.metadata.PackagePath(name) for name in ("it.py", "it.txt")]
    for file in files:
        file.dist = importlib.metadata.PathDistribution(tmp_path / "it.dist-info")
    found = {"it": [SimpleNamespace(version="2.1+cpu", files=files)]}
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: found.get(name, []))
    assert text(find_source("packages: it==2.1", b"|")) == b"|it = 1\n"
    with pytest.raises(ValueError, match=r"the one that is installed, 2\.1, got 2\.1\+cpu"):
        find_source("packages:it==2.1+cpu")
    with pytest.raises(ValueError, match="package must be installed, got ''"):
        find_source("packages:")


@pytest.mark.parametrize("law", ["potts,beta=1", "lags", "markov", "recall"])
def test_a_law_without_a_seed_has_seed_0_and_the_size_that_its_name_says(law):
    corpus = synthetic_corpus(law)
    assert corpus.seed == 0
    assert corpus.size == (1_000_000 if law == "recall" else 10_000_000)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (
            "",
            "beta must be given, as in synthetic:beta=1.0,symbols=16,bytes=10MB,seed=0, got none",
        ),
        ("symbols=4", "beta must be given, as in synthetic:beta=1.0,symbols=16,bytes=10MB,seed=0"),
        ("potts", "beta must be given, as in synthetic:beta=1.0,symbols=16,bytes=10MB,seed=0"),
        (",", "parameter must be one of the law potts, got ''"),
        ("beta=1,", "parameter must be one of the law potts, got ''"),
        ("pots", r"law must be one of those known, got 'pots'; did you mean 'potts'\?"),
        ("pots=1", "parameter must be one of the law potts, got 'pots'"),
        ("lags,beta=1", "parameter must be one of the law lags, got 'beta'"),
    ],
)
def test_what_a_law_lacks_or_does_not_have_is_named(rest, message):
    with pytest.raises(ValueError, match=message):
        synthetic_corpus(rest)


def test_a_pipe_is_no_corpus(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="corpus must be a regular file or a folder"):
        find_source(str(tmp_path / "pipe"))
    with pytest.raises(ValueError, match="must hold files that are not hidden, got none"):
        find_source(str(tmp_path))


def test_a_path_that_does_not_exist_is_said_so_with_the_nearest(tmp_path):
    (tmp_path / "text.txt").write_text("a")
    for name in ("texr.txt", "tex.txt"):
        message = f"corpus {tmp_path / name}: no such file or folder; did you mean"
        with pytest.raises(ValueError, match=rf"{message} {tmp_path}/text\.txt\?"):
            find_source(str(tmp_path / name))


def test_presets_are_data_sets_of_the_hub():
    wikipedia = find_source("wiki-pt").key
    assert (wikipedia["hub"], wikipedia["config"]) == ("wikimedia/wikipedia", "20231101.pt")
    fineweb = find_source("fineweb").key
    assert (fineweb["hub"], fineweb["config"]) == ("HuggingFaceFW/fineweb", "sample-10BT")


@pytest.mark.parametrize(
    ("name", "content", "size"),
    [
        ("a.txt", b"text", 4),
        ("a.csv", b"text\na\n", None),
        ("a.gz", b"not looked into", None),
        ("a.JSONL.GZ", b"not looked into", None),
        ("a.txt", b"\xff\xfea\0", None),
        ("a.txt", b"\xef\xbb\xbfa", None),
    ],
)
def test_a_size_is_known_ahead_where_the_bytes_are_those_of_the_file(tmp_path, name, content, size):
    (tmp_path / name).write_bytes(content)
    assert find_source(str(tmp_path)).size == size


def test_a_text_that_is_decoded_has_another_key_than_one_that_was_not(tmp_path):
    """Earlier versions read it as it is: what they left in the cache is another text."""
    for name, content in (("plain", b"a"), ("wide", "a".encode("utf-16"))):
        (tmp_path / name).write_bytes(content)
    assert find_source(str(tmp_path)).key["decoded"] == ["wide"]
    assert "decoded" not in find_source(str(tmp_path / "plain")).key


def test_a_link_that_leads_nowhere_is_said_to_be_one(tmp_path):
    (tmp_path / "broken").symlink_to("nothing")
    (tmp_path / "circle").symlink_to("circle")
    for name, target in (("broken", "nothing"), ("circle", "circle")):
        message = f"got {tmp_path / name}, a symbolic link to {target}, which is not there"
        with pytest.raises(ValueError, match=message):
            find_source(str(tmp_path / name))


def test_a_data_set_of_the_hub_may_have_any_name():
    """Also one that no folder can have; whether it is there, the hub knows."""
    assert find_source(f"hf:{'a' * 300}").key["hub"] == "a" * 300


def test_a_path_may_begin_at_home(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("a")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert text(find_source("~/a.txt", b"|")) == b"|a"


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch):
    """Not a corpus without its files."""
    (tmp_path / "a").write_text("a")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="closed"):
        find_source(str(tmp_path))


def test_lags_whose_powers_had_no_digits_are_generated_anew():
    """The cache may hold other bytes of the same name, from when their chances were wrong."""
    usual = LagCorpus(alpha=200.0, shortest=20, longest=40)
    tiny = LagCorpus(alpha=250.0, shortest=20, longest=40)
    assert [spelling(one)[1]["generator"] for one in (LagCorpus(), usual, tiny)] == [1, 1, 2]
    assert 0 < tiny.chances[20] < tiny.chances[19]


def test_an_output_may_not_lie_where_it_would_be_read_as_text(tmp_path, monkeypatch):
    """A corpus would grow by the results of the command that reads it."""
    corpus = tmp_path / "texts"
    (corpus / "deep").mkdir(parents=True)
    (corpus / "a.txt").write_text("text")
    (corpus / "link").symlink_to(tmp_path)
    (tmp_path / "way").symlink_to(corpus / "deep")
    monkeypatch.chdir(corpus)
    monkeypatch.setenv("HOME", str(tmp_path))
    inside = (corpus, corpus / "new", corpus / "deep/new", "results", tmp_path / "way/new", ".")
    for name in (corpus, str(corpus), ".", "~/texts", "../way/.."):
        for path in inside:
            with pytest.raises(ValueError, match=r"out must lie outside of the corpus .*, got"):
                check_outside({"json": None, "out": path}, ["stdlib", None, name])
    unread = (tmp_path, tmp_path / "texts2", ".results/new", "__pycache__/new", "link/new", None)
    unread += ("runs/out/new", "below/runs/out")
    for path in unread:
        check_outside({"out": path}, [corpus])
    check_outside({"out": corpus / "a.json"}, [corpus / "a.txt"])  # a file is read alone
    linked = tmp_path / "linked"
    linked.symlink_to(corpus)
    with pytest.raises(ValueError, match=r"such as .*linked/runs/out, got new"):
        check_outside({"out": "new"}, [linked])
    monkeypatch.chdir(tmp_path)
    Path("stdlib").mkdir()
    check_outside({"out": "stdlib/new"}, ["stdlib"])  # which names no folder


def test_what_commands_wrote_is_no_text(tmp_path):
    """A folder measured from within has the same text afterwards."""
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/b.txt").write_text("read too")
    (tmp_path / "below/out").mkdir(parents=True)
    (tmp_path / "below/out/c.txt").write_text("and this")
    assert text(find_source(str(tmp_path))).split() == [b"text", b"and", b"this", b"read", b"too"]
    before = digest(tmp_path)
    for place in ("runs/out", "below/runs/out/measure"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "measure.json").write_text("{}")
    assert digest(tmp_path) == before
    named_itself = find_source(str(tmp_path / "runs/out"))
    assert text(named_itself).strip() == b"{}"
