"""The API reference and the reference of specs, written before a page is read, and formulas as
MathML.

The API comes from docstrings and signatures, read by griffe without importing the package, so that
the site needs no torch. In docstrings backticks mark code; what is indented or aligned in columns
is shown as it stands.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from textwrap import indent
from typing import Any

import griffe
from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
FIELDS = {"Args:": "param", "Returns:": "returns", "Yields:": "returns", "Raises:": "raises"}
INDEX = (
    "API reference\n=============\n\nFrom the docstrings, a page for each folder.\n\n.. toctree::\n"
    "   :maxdepth: 1\n\n"
)
BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "object": "table",
}


def prose(text: str) -> str:
    """Return text as reStructuredText in which backticks mark code and nothing else is markup."""
    parts = re.split(r"`([^`]+)`", text)
    parts[::2] = [re.sub(r"[\\*|`]|_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
    parts[1::2] = [rf"\ ``{part}``\ " for part in parts[1::2]]
    return re.sub(r"^([-+•]|\w+[.)])(?= |$)", r"\\\1", "".join(parts))


def fields(kind: str, lines: list[str]) -> Iterator[str]:
    """Return the lines of a section such as "Args:" as a list of fields."""
    items: list[str] = []
    for line in lines:
        if items and (kind == "returns" or line.startswith("     ")):
            items[-1] += f" {line.strip()}"
        else:
            items.append(line.strip())
    for item in items:
        name, _, meaning = ("", "", item) if kind == "returns" else item.partition(": ")
        yield f":{f'{kind} {name}'.strip()}: {prose(meaning)}"


def converted(docstring: str) -> Iterator[str]:
    """Return the lines of a docstring as reStructuredText, paragraph by paragraph."""
    for _, group in groupby(docstring.splitlines(), key=lambda line: not line.strip()):
        first, *more = paragraph = list(group)
        if first in FIELDS:
            yield from fields(FIELDS[first], more)
        elif not first.strip() or first.lstrip().startswith(">>>"):
            yield from paragraph
        elif any(line.startswith(" ") or re.search(r"\S {2,}\S", line) for line in paragraph):
            yield from ("::", "", *(f"    {line}" for line in paragraph))
        else:
            yield prose(" ".join(paragraph))


def documented(thing: Any, name: str) -> Iterator[str]:
    """Return a function, a class with its members, or a constant with a docstring as a
    directive.
    """
    members = (
        {inner: one for inner, one in thing.members.items() if not one.is_alias}
        if thing.is_class
        else {}
    )
    if name.startswith("_") or not (
        thing.docstring or any(one.docstring for one in members.values())
    ):
        return
    inside, options = thing.parent.is_class, list[str]()
    if thing.is_attribute:
        kind = "property" if "property" in thing.labels else "attribute" if inside else "data"
        options = [f"type: {thing.annotation}"] * bool(thing.annotation) + ["no-index:"] * inside
    else:
        kind = "class" if thing.is_class else "method" if inside else "function"
        options = [
            f"{label}:" for label in ("classmethod", "staticmethod") if label in thing.labels
        ]
        with suppress(AttributeError, ValueError):  # a class without a constructor of its own
            name = " ".join(str(thing.signature()).split()) or name
    yield from (f".. py:{kind}:: {name}", *(f"   :{option}" for option in options), "")
    yield from (
        indent(line, "   ") for line in converted(thing.docstring.value if thing.docstring else "")
    )
    yield ""
    for inner, member in members.items():
        yield from (indent(line, "   ") for line in documented(member, inner))


def pages(package: Any) -> Iterator[tuple[str, str]]:
    """Return name and text of the page of a package and of every package in it; its modules are
    sections.
    """
    inner = [
        one for _, one in sorted(package.members.items()) if not one.is_alias and one.is_module
    ]
    lines: list[str] = []
    for module in (
        package,
        *(one for one in inner if not (one.is_init_module or one.name.startswith("_"))),
    ):
        lines += [
            module.path,
            ("-" if lines else "=") * len(module.path),
            "",
            f".. py:module:: {module.path}",
            "",
        ]
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
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of: {kind_of(schema['items']) if 'items' in schema else 'values'}"
    limits = [
        f"{words} {schema[bound]:,.10g}" for bound, words in BOUNDS.items() if bound in schema
    ]
    return ", ".join(
        ["table" if "$ref" in schema else TYPES.get(schema.get("type", ""), "value"), *limits]
    )


def options(
    title: str, head: str, schema: dict[str, Any], sections: dict[str, Any]
) -> Iterator[str]:
    """Return a section of a spec, a definition for each option, and the sections in it that were
    not seen before.
    """
    yield from (f"## {title}", "", schema.get("description", ""), "")
    nested = []
    for name, option in schema["properties"].items():
        required, default = name in schema.get("required", []), option.get("default")
        shown = repr(default).replace("True", "true").replace("False", "false")
        says = (
            ""
            if required or default is None or isinstance(default, dict)
            else f"; default `{shown}`"
        )
        yield from (f"`{head}{name}`", f": {'*required*: ' * required}{kind_of(option)}{says}", "")
        yield from (
            (f"  {' '.join(option['description'].split())}", "") if "description" in option else ()
        )
        forms = [
            (one, f"[{head}{name}]", f"{head}{name}.") for one in (option, *option.get("anyOf", []))
        ]
        forms.append(
            (option.get("additionalProperties"), f"[{head}{name}.NAME]", f"{head}{name}.NAME.")
        )
        forms.append((option.get("items"), f"[[{head}{name}]]", ""))
        nested += [
            (one["$ref"], *place)
            for one, *place in forms
            if isinstance(one, dict) and "$ref" in one
        ]
    for reference, where, start in nested:
        if (name := reference.rpartition("/")[2]) in sections:
            yield from options(where, start, sections.pop(name), sections)


def write(app: Sphinx) -> None:
    """Write every page that has changed."""
    from plkernel.config.spec import Spec

    schema = Spec.model_json_schema()
    modules = dict(pages(griffe.load("plkernel", search_paths=[str(DOCS.parent)])))
    texts = {
        "studies/_options.md": (
            "\n".join(options("The top of the file", "", schema, schema["$defs"])) + "\n"
        )
    }
    texts |= {f"api/{name}.rst": text for name, text in modules.items()}
    texts["api/index.rst"] = INDEX + "".join(f"   {name}\n" for name in modules)
    (DOCS / "api").mkdir(exist_ok=True)
    for name, text in texts.items():
        if not (DOCS / name).exists() or (DOCS / name).read_text() != text:
            (DOCS / name).write_text(text)


def formula(block: bool) -> Callable[[Any, Any], None]:
    """Return a visitor that writes a formula as MathML, which browsers draw without script, font or
    network.
    """

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
