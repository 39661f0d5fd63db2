"""The API reference and the reference of specs, written before a page is read, and formulas as MathML.

The API comes from docstrings and signatures, read by griffe without importing the package, so that the site needs no
torch. Docstrings are prose with `code` in backticks, formulas, aligned tables and doctests: in prose only backticks
mean anything, and what is indented or aligned in columns is shown as it stands.
"""

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from textwrap import indent
from typing import Any

import griffe
from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
ALIGNED = re.compile(r"\S {2,}\S")
FIELDS = {"Args:": "param", "Returns:": "returns", "Yields:": "returns", "Raises:": "raises"}
INDEX = """\
API reference
=============

From the docstrings, a page for each folder. What the folders are for, and which may import which, is in
:doc:`/contributing`.

.. toctree::
   :maxdepth: 1

"""
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "object": "table"}


def prose(text: str) -> str:
    """Return text as reStructuredText in which backticks mark code and nothing else is markup.

    >>> prose("The kernel `t**-beta`, sum_i w_i a**t.")
    'The kernel ``t**-beta``, sum_i w_i a\\\\*\\\\*t.'
    """
    parts = re.split(r"`([^`]+)`", text)
    for place, part in enumerate(parts):
        if place % 2:
            before = r"\ " if re.search(r"[^\s(\[]$", parts[place - 1]) else ""
            after = r"\ " if re.match(r"[^\s)\].,;:!?'-]", parts[place + 1]) else ""
            parts[place] = f"{before}``{part}``{after}"
        else:
            parts[place] = re.sub(r"[\\*|`]|_(?!\w)", r"\\\g<0>", part)
    return re.sub(r"^([-+•]|\w+[.)])(?= |$)", r"\\\1", "".join(parts))


def fields(lines: list[str]) -> Iterator[str]:
    """Return a section such as "Args:" as a list of fields."""
    kind = FIELDS[lines[0]]
    items: list[str] = []
    for line in lines[1:]:
        if (kind == "returns" and items) or line.startswith("     "):
            items[-1] += f" {line.strip()}"
        else:
            items.append(line.strip())
    for item in items:
        name, _, meaning = item.partition(": ")
        yield f":returns: {prose(item)}" if kind == "returns" else f":{kind} {name}: {prose(meaning)}"


def converted(docstring: str) -> Iterator[str]:
    """Return the lines of a docstring as reStructuredText, paragraph by paragraph."""
    for blank, group in groupby(docstring.splitlines(), key=lambda line: not line.strip()):
        paragraph = list(group)
        if blank:
            yield ""
        elif paragraph[0] in FIELDS:
            yield from fields(paragraph)
        elif paragraph[0].lstrip().startswith(">>>"):
            yield from paragraph
        elif any(line.startswith(" ") or ALIGNED.search(line) for line in paragraph):
            yield from ("::", "", *(f"    {line}" for line in paragraph))
        else:
            yield prose(" ".join(paragraph))


def documented(thing: Any, name: str) -> Iterator[str]:
    """Return a function, a class with its members, or a constant with a docstring as a directive."""
    members = [(inner, one) for inner, one in thing.members.items() if not one.is_alias] if thing.is_class else []
    if name.startswith("_") or (thing.docstring is None and not any(one.docstring for _, one in members)):
        return
    inside = thing.parent.is_class
    if thing.is_attribute:
        kind = "property" if "property" in thing.labels else "attribute" if inside else "data"
        yield f".. py:{kind}:: {name}"
        yield from ([f"   :type: {thing.annotation}"] if thing.annotation else [])
        yield from (["   :no-index:"] if inside else [])
    else:
        kind = "class" if thing.is_class else "method" if inside else "function"
        try:
            called = " ".join(str(thing.signature()).split()) or name
        except (AttributeError, ValueError):  # a class without a constructor of its own
            called = name
        yield f".. py:{kind}:: {called}"
        yield from (f"   :{label}:" for label in ("classmethod", "staticmethod") if label in thing.labels)
    yield ""
    if thing.docstring is not None:
        yield from (indent(line, "   ") for line in converted(thing.docstring.value))
    yield ""
    for inner, member in members:
        yield from (indent(line, "   ") for line in documented(member, inner))


def pages(package: Any) -> Iterator[tuple[str, str]]:
    """Return name and text of the page of a package and of every package in it; its modules are sections."""
    inner = [one for _, one in sorted(package.members.items()) if not one.is_alias and one.is_module]
    lines: list[str] = []
    for module in (package, *(one for one in inner if not (one.is_init_module or one.name.startswith("_")))):
        lines += [module.path, ("-" if lines else "=") * len(module.path), "", f".. py:module:: {module.path}", ""]
        lines += [*(converted(module.docstring.value) if module.docstring else []), ""]
        for name, member in module.members.items():
            if not (member.is_alias or member.is_module):
                lines += documented(member, name)
    yield package.path, "\n".join(line.rstrip() for line in lines) + "\n"
    for one in inner:
        if one.is_init_module:
            yield from pages(one)


def kind_of(schema: dict[str, Any]) -> str:
    """Return a type and its limits in words."""
    if "anyOf" in schema:
        return " or ".join(kind_of(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return ", ".join(f"``{value}``" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of: {kind_of(schema['items']) if 'items' in schema else 'values'}"
    found = [(words, schema[bound]) for bound, words in BOUNDS.items() if bound in schema]
    limits = [f"{words} {int(limit):,}" if limit == int(limit) else f"{words} {limit:g}" for words, limit in found]
    return ", ".join(["table" if "$ref" in schema else TYPES.get(schema.get("type", ""), "value"), *limits])


def options(title: str, head: str, schema: dict[str, Any], sections: dict[str, Any]) -> Iterator[str]:
    """Return a section of a spec, a definition for each option, and the sections in it that were not seen before."""
    yield from (f"## {title}", "", prose(" ".join(schema.get("description", "").split())), "")
    nested = []
    for name, option in schema["properties"].items():
        required, default = name in schema.get("required", []), option.get("default")
        shown = repr(default).replace("True", "true").replace("False", "false")
        says = "" if required or default is None or isinstance(default, dict) else f"; default ``{shown}``"
        yield from (f"`{head}{name}`", f": {'*required*: ' * required}{kind_of(option)}{says}", "")
        if "description" in option:
            yield from (f"  {prose(' '.join(option['description'].split()))}", "")
        forms = [(one, f"[{head}{name}]", f"{head}{name}.") for one in (option, *option.get("anyOf", []))]
        forms.append((option.get("additionalProperties"), f"[{head}{name}.NAME]", f"{head}{name}.NAME."))
        forms.append((option.get("items"), f"[[{head}{name}]]", ""))
        nested += [
            (one["$ref"], where, start) for one, where, start in forms if isinstance(one, dict) and "$ref" in one
        ]
    for reference, where, start in nested:
        if (name := reference.rpartition("/")[2]) in sections:
            yield from options(where, start, sections.pop(name), sections)


def write(app: Sphinx) -> None:
    """Write every page that has changed."""
    from plkernel.config.study import Spec

    schema = Spec.model_json_schema()
    texts = {"studies/_options.md": "\n".join(options("The top of the file", "", schema, schema["$defs"])) + "\n"}
    found = dict(pages(griffe.load("plkernel", search_paths=[str(ROOT)])))
    texts |= {f"api/{name}.rst": text for name, text in found.items()}
    texts["api/index.rst"] = INDEX + "".join(f"   {name}\n" for name in found)
    for name, text in texts.items():
        path = ROOT / "docs" / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for old in set((ROOT / "docs" / "api").glob("*.rst")) - {ROOT / "docs" / name for name in texts}:
        old.unlink()


def formula(block: bool) -> Callable[[Any, Any], None]:
    """Return a visitor that writes a formula as MathML, which browsers draw without script, font or network."""

    def visit(translator: Any, node: Any) -> None:
        drawn = tex2mathml(node.astext(), as_block=block)
        translator.body.append(f'<div class="math">{drawn}</div>\n' if block else drawn)
        raise SkipNode

    return visit


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before any is read, and take the renderer of formulas."""
    app.connect("builder-inited", write)
    app.add_html_math_renderer("mathml", (formula(False), None), (formula(True), None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
