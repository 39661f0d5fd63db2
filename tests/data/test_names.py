import os
import sysconfig
from pathlib import Path

import pytest

from plkernel.data.names import PRESETS, Request, resolve


def text(source):
    return b"".join(block.data.tobytes() for block in source.blocks())


def digest(path, **request):
    return resolve(str(path), Request(**request)).digest()


def test_the_standard_library_is_all_its_sources_in_order_and_no_tests():
    root = Path(sysconfig.get_path("stdlib"))
    source = resolve("stdlib", Request(b"\xff"))
    names = [name for name, *_ in source.key["listing"]]
    assert names == sorted(names)
    assert {"os.py", "json/decoder.py", "idlelib/pyshell.py"} <= set(names)
    assert not [name for name in names if {"test", "tests", "idle_test", "site-packages"} & set(name.split("/"))]
    assert all(name.endswith(".py") for name in names)
    assert 8e6 < source.size < 20e6
    data = text(source)
    assert data.count(b"\xff" + (root / "os.py").read_bytes()) == 1
    assert len(data) - 1 == source.size


def test_a_folder_is_read_in_order_of_paths_without_hidden_files_and_the_cache(tmp_path):
    files = ["b/2", "a", "b.txt", ".hidden", "b/.git/x", "__pycache__/x", "cache/flat.bin", "c/1"]
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    source = resolve(str(tmp_path), Request(b"|", cache=tmp_path / "cache"))
    assert text(source) == b"|a|b.txt|b/2|c/1"
    assert source.size == len(b"a|b.txt|b/2|c/1")


@pytest.fixture
def linked(tmp_path):
    """A folder with links to a file inside, to a file and a folder outside, and to itself."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "sub").mkdir(parents=True)
    outside.mkdir()
    (root / "a").write_text("inside")
    (outside / "x").write_text("secret")
    (root / "b").symlink_to("a")
    (root / "c").symlink_to(outside / "x")
    (root / "sub" / "d").symlink_to(outside)
    (root / "sub" / "loop").symlink_to(root)
    (root / "broken").symlink_to("nothing")
    return root


def test_links_that_lead_out_of_a_folder_are_not_followed(linked):
    source = resolve(str(linked), Request(b"|"))
    assert text(source) == b"|inside|inside"
    assert source.label == f"{linked}, without the symbolic links out of it (1)"


def test_links_are_followed_on_request_and_loops_end(linked):
    source = resolve(str(linked), Request(b"|", follow_links=True))
    assert text(source) == b"|inside|inside|secret|secret"
    assert source.label == str(linked)


def test_a_folder_of_links_alone_says_how_to_read_them(linked):
    for name in ("a", "b"):
        (linked / name).unlink()
    with pytest.raises(ValueError, match=r"holds no files but the symbolic links out of it \(1\): --follow-links"):
        resolve(str(linked), Request())


def test_the_key_changes_with_everything_that_determines_the_bytes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text\nx\n")
    os.utime(path, ns=(1, 1))
    before = digest(path)
    assert digest(path) == before
    assert digest(tmp_path / "." / "a.csv") == before
    assert digest(path, column="text") == before
    assert digest(path, column="other") != before
    os.utime(path, ns=(1, 2))
    touched = digest(path)
    assert touched != before
    folder = digest(tmp_path)
    (tmp_path / "b").write_text("")
    assert digest(tmp_path) not in (folder, touched, before)


def test_presets_are_the_data_sets_they_stand_for():
    for name, target in PRESETS.items():
        assert resolve(name, Request()).key == resolve(target, Request()).key
    assert resolve("wiki-pt", Request()).key == {
        "hub": "wikimedia/wikipedia",
        "config": "20231101.pt",
        "split": None,
        "column": "text",
    }
    key = resolve("hf:a/b::test", Request(column="body")).key
    assert (key["config"], key["split"], key["column"]) == (None, "test", "body")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stdlb", "did you mean 'stdlib'"),
        ("wiki-tp", "did you mean 'wiki-pt'"),
        ("qqq", "valid: bible, fineweb, hf, stdlib, synthetic, wiki-pt"),
        ("no/such/file", "no such file or folder"),
        ("nofile.txt", "no such file or folder"),
        ("", "name a corpus, a file or a folder"),
        ("stdlib:x", "nothing may follow"),
        ("hf:", "write hf:NAME"),
        ("hf:a:b:c:d", "write hf:NAME"),
        ("hf:.", "name it without 'hf:'"),
        (os.devnull, "neither a regular file nor a folder"),
    ],
)
def test_bad_names_say_what_would_work(name, message):
    with pytest.raises(ValueError, match=message) as caught:
        resolve(name, Request())
    assert repr(name) in str(caught.value)


def test_a_column_is_refused_where_there_are_none(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    for name in ("stdlib", str(tmp_path), str(tmp_path / "a.txt")):
        with pytest.raises(ValueError, match=r"column 'text': .* has no columns"):
            resolve(name, Request(column="text"))


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no files"):
        resolve(str(tmp_path), Request())
