"""The API reference: a page for every room of the package, from its docstrings, read without importing anything."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import griffe
from docstrings import converted
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "api"
INDEX = (
    "API reference",
    "=============",
    "",
    "From the docstrings, a page for each folder. What the folders are for, and which may import which, is in",
    ":doc:`/contributing`.",
    "",
    ".. toctree::",
    "   :maxdepth: 1",
    "",
)


SHARED: set[str] = set()
"""Names that several modules give to different classes."""


def documented(thing: griffe.Object, name: str) -> Iterator[str]:
    """A function, a class with its fields and methods, or a constant that says what it is."""
    if name.startswith("_") or (thing.docstring is None and not (thing.is_class and _says_more(thing))):
        return
    if "property" in thing.labels:
        head = [f".. py:property:: {name}"]
    elif thing.is_attribute:
        kind = "attribute" if thing.parent.is_class else "data"
        head = [
            f".. py:{kind}:: {name}",
            *([f"   :type: {told(thing, str(thing.annotation))}"] if thing.annotation else []),
        ]
    else:
        kind = "class" if thing.is_class else "method" if thing.parent.is_class else "function"
        labels = [f"   :{label}:" for label in ("classmethod", "staticmethod") if label in thing.labels]
        head = [f".. py:{kind}:: {signature(thing)}", *labels]
    if thing.is_attribute and thing.parent.is_class:
        head.append("   :no-index:")
    yield from head
    yield ""
    if thing.docstring is not None:
        yield from (indent(line, "   ") for line in converted(thing.docstring.value))
    yield ""
    if thing.is_class:
        for inner, member in thing.members.items():
            if not member.is_alias:
                yield from (indent(line, "   ") for line in documented(member, inner))


def _says_more(thing: griffe.Class) -> bool:
    """Whether any member of a class says what it is."""
    return any(not member.is_alias and member.docstring is not None for member in thing.members.values())


def signature(thing: griffe.Class | griffe.Function) -> str:
    """As it is called; of a class without a constructor of its own, its name."""
    try:
        head, bracket, rest = " ".join(str(thing.signature()).split()).partition("(")
        return f"{head}{bracket}{told(thing, rest)}" or str(thing.name)
    except (AttributeError, ValueError):
        return str(thing.name)


def told(thing: griffe.Object, types: str) -> str:
    """Types as they are written, but for names that several modules give to different things: these in full."""

    def whole(found: re.Match[str]) -> str:
        try:
            return str(thing.parent.resolve(found[0])) if found[0] in SHARED else found[0]
        except griffe.NameResolutionError:
            return found[0]

    return re.sub(r"(?<![\w.'])[A-Z]\w+(?![\w.'=])", whole, types)


def underlined(title: str, character: str) -> list[str]:
    """A heading."""
    return [title, character * len(title), ""]


def module(found: griffe.Module, level: str) -> Iterator[str]:
    """A module: what it is, then what it offers."""
    yield from underlined(found.path, level)
    yield f".. py:module:: {found.path}"
    yield ""
    if found.docstring is not None:
        yield from converted(found.docstring.value)
        yield ""
    for name, member in found.members.items():
        if not (member.is_alias or member.is_module):
            yield from documented(member, name)


def rooms(found: griffe.Module) -> Iterator[griffe.Module]:
    """A package and the packages in it."""
    yield found
    for _, member in sorted(found.members.items()):
        if not member.is_alias and member.is_module and member.is_init_module:
            yield from rooms(member)


def modules(room: griffe.Module) -> Iterator[griffe.Module]:
    """A package itself and the modules in it that are no packages."""
    yield room
    for _, member in sorted(room.members.items()):
        if not member.is_alias and member.is_module and not member.is_init_module:
            yield member


def defines(module: griffe.Module, name: str) -> bool:
    """Whether this name is a class that the module makes itself."""
    return not module.members[name].is_alias and module.members[name].is_class


def page(room: griffe.Module) -> str:
    """The page of one room."""
    first, *others = (one for one in modules(room) if not one.name.startswith("_"))
    lines = [*module(first, "="), *(line for other in others for line in module(other, "-"))]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def write(app: Sphinx) -> None:
    """Write every page that has changed, and the index."""
    package = griffe.load("plkernel", search_paths=[str(ROOT)])
    names = Counter(
        name for room in rooms(package) for one in modules(room) for name in one.members if defines(one, name)
    )
    SHARED.update(name for name, times in names.items() if times > 1)
    pages = {room.path: page(room) for room in rooms(package)}
    pages["index"] = "\n".join([*INDEX, *(f"   {name}" for name in pages)]) + "\n"
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.rst"):
        if old.stem not in pages:
            old.unlink()
    for name, text in pages.items():
        path = FOLDER / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before any is read."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
