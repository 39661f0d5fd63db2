"""Render the marked tables of README.md and docs/ from the rows committed beside this script.

python runs/records/render.py rewrites every part between <!-- record:NAME --> and <!-- end -->, and draws the kernels
of several starts before training and after, convergence/kernels.png and .svg.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from plkernel.analysis.figures.style import rendered
from plkernel.results.convergence import convergence, groups, kernels_figure
from plkernel.results.study import read_study

RECORDS = Path(__file__).resolve().parent
ROOT = RECORDS.parents[1]
PART = re.compile(r"(<!-- record:([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def load(name: str) -> Any:
    """Read a committed JSON file, or the list of rows of a study."""
    text = (RECORDS / name).read_text()
    return [json.loads(line) for line in text.splitlines()] if name.endswith(".jsonl") else json.loads(text)


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *lines])


def source(study: str) -> str:
    """Return command, commit, hardware and version of torch of a study in a line."""
    environment = load(f"{study}/rows.jsonl")[0]["environment"]
    place, threads = environment["hardware"], environment["threads"]
    device = place["gpu"] or f"{place['cpu']}, {threads} thread{'s' * (threads > 1)}"
    commit = environment["commit"][:10] + (" with changes" if environment["dirty"] else "")
    return f"`{environment['command']}`, commit {commit}, {device}, torch {environment['versions']['torch']}."


def interval(one: Mapping[str, float]) -> str:
    """Return a mean and its interval in four digits, without -0.0000."""
    return "{} ({} to {})".format(*(f"{round(one[x], 4) + 0.0:+.4f}" for x in ("mean", "low", "high")))


def small_study(path: str) -> str:
    """Return the arms of a small study, one a line."""
    lines = []
    for arm in load(path)["arms"]:
        final, test = arm["measures"]["final_val_bpb"], arm["measures"]["test_bpb"]
        difference = interval(final["difference_to_baseline"]) if "difference_to_baseline" in final else "baseline"
        lines.append([arm["arm"], str(final["n"]), f"{final['mean']:.4f}", f"{test['mean']:.4f}", difference])
    return markdown(["arm", "seeds", "validation bits per byte", "test", "paired difference, 95 % interval"], lines)


def quick() -> str:
    """Return the comparison that `make demo` ends with."""
    rows = load("quick/rows.jsonl")
    minutes = sum(row["result"]["seconds"] for row in rows) / 60
    sentences = "\n".join(f"- {sentence}" for sentence in load("quick/table.json")["summary"])
    note = f"{len(rows)} runs, {minutes:.1f} minutes of training in all. {source('quick')}"
    return f"{small_study('quick/table.json')}\n\n{sentences}\n\n{note}"


def goose() -> str:
    """Return RWKV-7 from three starts, and RWKV-6 beside it."""
    rows = load("goose/rows.jsonl")
    sizes = " to ".join(f"{size:,}" for size in sorted({row["config"]["model"]["parameters"] for row in rows}))
    note = f"{sizes} parameters, {rows[0]['result']['steps']} steps, {rows[0]['curve']['bytes'][-1] / 1e6:.1f} MB."
    return f"{small_study('goose/report/table.json')}\n\n{note} {source('goose')}"


def declared(*studies: str) -> str:
    """Return a table of the gates and hypotheses of studies as they were registered, and what became of them."""
    lines = []
    for study in studies:
        registered = load(f"{study}/report/table.json")["declared"]
        for one in registered["gates"]:
            edge = "at most" if one["at_least"] is None else "at least"
            claim, passed = f"{edge} {one[edge.replace(' ', '_')]:g}", "passed" if one["passed"] else "**failed**"
            lines.append([study, one["name"], claim, f"{one['mean']:.4f}", passed])
        for one in registered["hypotheses"]:
            claim = one["claim"] + (f", margin {one['margin']:g}" if one["margin"] else "")
            lines.append([study, one["name"], claim, interval(one), f"**{one['verdict'].partition(':')[0]}**"])
    return markdown(["study", "hypothesis or gate", "claim", "bits per byte, interval", "verdict"], lines)


@cache
def converging() -> str:
    """Return the spread over starts of half-lives and kernels in every record that has them."""
    lines = []
    for path in sorted(RECORDS.glob("*/rows.jsonl")):
        for block, starts in groups(read_study(path.parent)).items():
            some = {arm: memories for arm, memories in starts.items() if not arm.startswith("quantile")}
            for of in (starts, some) if len(some) < len(starts) else (starts,):
                few = {arm: memories for arm, memories in of.items() if not arm.startswith("short")}
                spreads = [*convergence(of), *([convergence(few)[1]] if 1 < len(few) < len(of) else [])]
                told = [f"{one.before:.2f} to {one.after:.2f} ({one.seeds:.2f})" for one in spreads]
                name = block + ", without quantile" * (of is not starts)
                lines.append([path.parent.name, name, str(len(of)), *told, *[""] * (3 - len(told))])
    return markdown(["record", "block", "starts", "half-lives", "kernel", "kernel without short"], lines)


PARTS: dict[str, Callable[[], str]] = {
    "convergence": converging,
    "quick": quick,
    "goose": goose,
    "verdicts": lambda: declared("memory-lags", "memory-potts", "memory-markov", "memory-dose"),
    "text_verdicts": lambda: declared("memory-text"),
    "length_verdicts": lambda: declared("memory-length"),
    "prose_verdicts": lambda: f"{declared('memory-bible')}\n\n{source('memory-bible')}",
}


def render(text: str) -> str:
    """Return a document with its marked parts rendered from the records."""
    return PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}\n{match[3]}", text)


if __name__ == "__main__":
    for document in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        document.write_text(render(document.read_text()))
    text, lags, markov = (groups(read_study(RECORDS / f"memory-{name}")) for name in ("text", "lags", "markov"))
    panels = {"Source code, EMA": text["ema"], "Source code, LRU": text["lru"]}
    drawn = rendered(kernels_figure(panels | {"Lags, 0.7": lags["lags-0.7"], "Markov chain": markov[""]}))
    for kind in ("png", "svg"):
        (RECORDS / "convergence" / f"kernels.{kind}").write_bytes(drawn[kind])
