"""The committed records, and how a table of them is written."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().parents[1]


def load(name: str) -> Any:
    """One committed record."""
    return json.loads((RECORDS / name).read_text())


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a committed JSON-lines file."""
    return [json.loads(line) for line in (RECORDS / name).read_text().splitlines()]


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *lines])


def source(environment: dict[str, Any]) -> str:
    """Command, commit, hardware and versions of a record, in a line."""
    hardware, versions = environment["hardware"], environment["versions"]
    threads = f"{environment['threads']} thread{'s' * (environment['threads'] > 1)}"
    place = hardware["gpu"] or f"{hardware['cpu']}, {threads}"
    commit = (environment["commit"] or "unknown")[:10] + (" with changes" if environment["dirty"] else "")
    return f"`{environment['command']}`, commit {commit}, {place}, torch {versions['torch']}."


def with_interval(found: Mapping[str, float], digits: int = 4) -> str:
    """A mean and its interval, without -0.0000."""
    mean, low, high = (f"{round(found[name], digits) + 0.0:+.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"
