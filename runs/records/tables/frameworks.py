"""What the models of two frameworks start with, and bugs that would have been seen."""

from typing import Any

from tables.records import load, markdown, source


def findings() -> str:
    """What the models of two frameworks start with."""
    record = load("findings/table.json")
    lines = []
    for one in record["models"]:
        shortest, median, longest = (duration(value) for value in one["half_lives"].values())
        bound = "at most " if one["upper_bounds"] else ""
        half_lives = f"{bound}{shortest}" if shortest == longest else f"{bound}{shortest} / {median} / {longest}"
        seen = ", ".join(one["findings"]) or "-"
        lines.append([one["framework"], one["model"], one["family"], half_lives, f"{one['exponent']:.2f}", seen])
    header = ["framework", "model", "family", "half-lives: shortest / median / longest", "x", "findings"]
    return f"{markdown(header, lines)}\n\n{frameworks(record)}"


def known_bugs() -> str:
    """What would have been seen of bugs that others reported."""
    record = load("findings/table.json")
    lines = [[one["report"], one["model"], one["says"], ", ".join(one["seen"]) or "nothing"] for one in record["bugs"]]
    caught = sum(one["caught"] for one in record["bugs"])
    note = f"{caught} of {len(lines)} are seen."
    return f"{markdown(['report', 'made again in', 'what it leaves', 'seen'], lines)}\n\n{note} {frameworks(record)}"


def frameworks(record: dict[str, Any]) -> str:
    """Versions of what was looked at, and where."""
    versions = ", ".join(f"{name} {version}" for name, version in record["frameworks"].items())
    return f"{versions}; {source(record['environment'])}"


def duration(tokens: float | None) -> str:
    """A half-life in few digits; endless ones are null."""
    if tokens is None:
        return "endless"
    return f"{tokens:,.0f}" if tokens >= 100 else f"{tokens:.3g}"
