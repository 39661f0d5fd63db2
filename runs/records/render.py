"""Render the marked tables of README.md and docs/ from the rows committed beside this script.

python runs/records/render.py           rewrite every part between <!-- record:NAME --> and <!-- end -->
python runs/records/render.py --check   exit 1 if a part says something else
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().parent
ROOT = RECORDS.parents[1]
BAND = ("mean", "low", "high")
FINAL = "final_val_bpb"
PART = re.compile(r"(<!-- record:([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def load(name: str) -> Any:
    """Read a committed JSON file."""
    return json.loads((RECORDS / name).read_text())


def rows(study: str) -> list[dict[str, Any]]:
    """Read the rows of a study."""
    return [json.loads(line) for line in (RECORDS / study / "rows.jsonl").read_text().splitlines()]


def arms(path: str) -> dict[str, Any]:
    """Return the measures of the arms in a table.json by name."""
    return {arm["arm"]: arm["measures"] for arm in load(path)["arms"]}


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]], *notes: str) -> str:
    """Return a Markdown table with paragraphs below it."""
    table = "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *lines])
    return "\n\n".join([table, *notes])


def source(environment: Mapping[str, Any]) -> str:
    """Return command, commit, hardware and version of torch in a line."""
    place, threads = environment["hardware"], environment["threads"]
    device = place["gpu"] or f"{place['cpu']}, {threads} thread{'s' * (threads > 1)}"
    commit = environment["commit"][:10] + (" with changes" if environment["dirty"] else "")
    return f"`{environment['command']}`, commit {commit}, {device}, torch {environment['versions']['torch']}."


def of_rows(study: str) -> str:
    """Return the source of a study."""
    return source(rows(study)[0]["environment"])


def interval(found: Mapping[str, float] | None, absent: str = "") -> str:
    """Return a mean and its interval in four digits, without -0.0000."""
    return "{} ({} to {})".format(*(f"{round(found[x], 4) + 0.0:+.4f}" for x in BAND)) if found else absent


def small_study(path: str) -> str:
    """Return the arms of a small study, one a line."""
    lines = []
    for name, one in arms(path).items():
        final, test = one[FINAL], one["test_bpb"]
        difference = interval(final.get("difference_to_baseline"), "baseline")
        lines.append([name, str(final["n"]), f"{final['mean']:.4f}", f"{test['mean']:.4f}", difference])
    return markdown(["arm", "seeds", "validation bits per byte", "test", "paired difference, 95 % interval"], lines)


def quick() -> str:
    """Return the comparison that `make demo` ends with."""
    minutes = sum(row["result"]["seconds"] for row in rows("quick")) / 60
    sentences = "\n".join(f"- {sentence}" for sentence in load("quick/table.json")["summary"])
    note = f"{len(rows('quick'))} runs, {minutes:.1f} minutes of training in all. {of_rows('quick')}"
    return f"{small_study('quick/table.json')}\n\n{sentences}\n\n{note}"


def goose() -> str:
    """Return RWKV-7 from three starts, and RWKV-6 beside it."""
    found = rows("goose")
    sizes = " to ".join(f"{size:,}" for size in sorted({row["config"]["model"]["parameters"] for row in found}))
    note = f"{sizes} parameters, {found[0]['result']['steps']} steps, {found[0]['curve']['bytes'][-1] / 1e6:.1f} MB."
    return f"{small_study('goose/report/table.json')}\n\n{note} {of_rows('goose')}"


def controls() -> str:
    """Return the worth of every start where memory matters, early and at the end, and where it cannot matter."""
    columns = [
        (f"lags, {a}, {mb} MB", "memory-lags", f"_lags-{a}", key)
        for a in (0.7, 1.3)
        for mb, key in (("0.4", "val_bpb_step_200"), ("2", "final_val_bpb"))
    ]
    columns += [("Potts, 1.2 MB", "memory-potts", "", "val_bpb_step_600"), ("Potts, 3 MB", "memory-potts", "", FINAL)]
    columns += [("Markov, 1 MB", "memory-markov", "", FINAL)]
    found = {study: arms(f"{study}/report/table.json") for _, study, _, _ in columns}
    lines = []
    for name in ("short", "short-frozen", "long", "concentrated", "law", "information", "correlation"):
        cells = []
        for _, study, end, key in columns:
            measures = found[study].get(("predictive" if (study, name) == ("memory-potts", "law") else name) + end)
            cells.append(interval(measures and measures[key]["difference_to_baseline"]))
        lines.append([name, *cells])
    return markdown(
        ["minus log-spaced, 95 % interval", *(title for title, *_ in columns)], lines, of_rows("memory-lags")
    )


def declared(*studies: str) -> Callable[[], str]:
    """Return a table of the gates and hypotheses of studies as they were registered, and what became of them."""

    def table() -> str:
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

    return table


def verdict() -> str:
    """Return the last line of `plkernel.measure stdlib`."""
    text = next(one for one in load("measure/texts.json")["texts"] if one["corpus"]["name"] == "stdlib")
    return f"```text\nverdict: {text['verdict']['sentence']}\n```"


def six() -> str:
    """Return the errors of the best six nodes and of the published six."""
    fits = load("minimax/table.json")["rows"]
    best = next(row for row in fits if (row["beta"], row["max_lag"], row["terms"]) == (1.15, 512, 6))["error"]
    published = load("fit/fit.json")["optimal"]["scores"]["max_relative_error"]
    return f"Those are off by {best:.2%} at most on t = 1..512, where the published six are by up to {published:.0%}."


PARTS: dict[str, Callable[[], str]] = {
    **{part.__name__: part for part in (verdict, six, quick, goose, controls)},
    "verdicts": declared("memory-lags", "memory-potts", "memory-markov", "memory-dose"),
    "text_verdicts": declared("memory-text"),
    "length_verdicts": declared("memory-length"),
    "prose_verdicts": lambda: f"{declared('memory-bible')()}\n\n{of_rows('memory-bible')}",
}


def render(text: str) -> str:
    """Return a document with its marked parts rendered from the records."""
    return PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}\n{match[3]}", text)


def main() -> None:
    """Rewrite the documents, or check them."""
    for document in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        text = document.read_text()
        if (rendered := render(text)) != text:
            if "--check" in sys.argv[1:]:
                sys.exit(f"{document} differs from the records: run python runs/records/render.py")
            document.write_text(rendered)


if __name__ == "__main__":
    main()
