"""The reference of specs: every option of every section, with its type, limits, default and meaning, from the types."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docstrings import prose
from sphinx.application import Sphinx

PAGE = Path(__file__).resolve().parents[1] / "studies" / "_options.md"
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "object": "table"}


def kind(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """A type and its limits in words."""
    if "anyOf" in schema:
        return " or ".join(kind(one, definitions) for one in schema["anyOf"] if one.get("type") != "null")
    if "$ref" in schema:
        return "table"
    if "enum" in schema:
        return ", ".join(f"``{value}``" for value in schema["enum"])
    if "const" in schema:
        return f"``{schema['const']}``"
    if schema.get("type") == "array":
        inner = kind(schema["items"], definitions) if "items" in schema else "values"
        return f"list of: {inner}"
    limits = [f"{words} {_number(schema[bound])}" for bound, words in BOUNDS.items() if bound in schema]
    return ", ".join([TYPES.get(schema.get("type", ""), "value"), *limits])


def options(title: str, head: str, section: Any) -> Iterator[str]:
    """One section: its heading, what it is, and a definition for each option."""
    schema = section.model_json_schema()
    yield from (f"## {title}", "", prose(" ".join((section.__doc__ or "").split())), "")
    for name, field in section.model_fields.items():
        found = schema["properties"][name]
        words = kind(found, schema.get("$defs", {}))
        default = "" if field.is_required() else _default(found.get("default"))
        yield f"`{head}{name}`"
        yield f": {'*required*: ' if field.is_required() else ''}{words}{default}"
        yield ""
        if field.description:
            yield f"  {prose(' '.join(field.description.split()))}"
            yield ""


def _number(value: float) -> str:
    """With commas, if it is whole."""
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _default(value: Any) -> str:
    """What holds where the option is left out; nothing for what says so itself."""
    if value is None or isinstance(value, dict):
        return ""
    shown = repr(value).replace("True", "true").replace("False", "false")
    return f"; default ``{shown}``"


def text() -> str:
    """The whole page."""
    from plkernel.config.schema import Arm, CorpusSpec, Gate, Hypothesis, ModelSpec, PatchingSpec, TrainSpec
    from plkernel.config.study import Spec, TuningSpec

    sections = [
        ("The top of the file", "", Spec),
        ("[corpus]", "corpus.", CorpusSpec),
        ("[model]", "model.", ModelSpec),
        ("[model.patching]", "model.patching.", PatchingSpec),
        ("[train]", "train.", TrainSpec),
        ("[tuning]", "tuning.", TuningSpec),
        ("[arms.NAME]", "arms.NAME.", Arm),
        ("[[hypotheses]]", "", Hypothesis),
        ("[[gates]]", "", Gate),
    ]
    lines = [line for section in sections for line in options(*section)]
    return "\n".join(lines) + "\n"


def write(app: Sphinx) -> None:
    """Write the page if it has changed."""
    new = text()
    if not PAGE.exists() or PAGE.read_text() != new:
        PAGE.write_text(new)


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the page before any is read."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
