"""Natural text: what a start is worth as training goes on, and at the best rate of every start."""

from collections.abc import Iterable
from statistics import geometric_mean, mean
from typing import Any

from tables.controls import declared
from tables.records import load, markdown, rows, source, with_interval

GIVEN = 32
"""Bytes that are left to a model where the worth of far context is counted."""


def lengths() -> str:
    """What every start is worth after 0.4, 2, 8 and 16 MB of source code, and the exponent at which that vanishes."""
    found = load("memory-length/length.json")["rows"]
    lines = []
    for row in found:
        bands = (
            dict(zip(("mean", "low", "high"), at, strict=True))
            for at in zip(row["mean"], row["low"], row["high"], strict=True)
        )
        law = row["exponent"]
        ends = [law["low"], law["high"]]
        power = "sign changes" if law["at"] is None else f"{law['at']:.2f}"
        interval = "not bounded" if None in ends else "{:.2f} to {:.2f}".format(*ends)
        lines.append([row["rate"], row["arm"], *map(with_interval, bands), f"{power} ({interval})"])
    read = [f"{count / 1e6:.1f} MB" for count in found[0]["bytes"]]
    header = ["rate", "minus log-spaced, 95 % band of the four", *read, "falls as bytes^-p, p"]
    return f"{markdown(header, lines)}\n\n{source(rows('memory-length/rows.jsonl')[0]['environment'])}"


def length_verdicts() -> str:
    """What was registered before the runs of memory-length, and what became of it."""
    return declared("memory-length")


def corners() -> str:
    """Two starts at two rates and two lengths, and which of both makes the difference."""
    found = load("memory-length/length.json")["corners"]
    arms = list(dict.fromkeys(one["arm"] for one in found))
    cells = {(one["what"], one["arm"]): with_interval(one) for one in found}
    lines = [[what, *(cells[what, arm] for arm in arms)] for what in dict.fromkeys(one["what"] for one in found)]
    return markdown(["minus log-spaced, 95 % interval", *arms], lines)


def length_memory() -> str:
    """Where 16 MB take the half-lives of every start, and what each then loses with few bytes given."""
    arms: dict[str, list[dict[str, Any]]] = {}
    for row in rows("memory-length/rows.jsonl"):
        arms.setdefault(row["arm"], []).append(row)
    lines = []
    for name, runs in arms.items():
        start, _, rate = name.rpartition("_")
        first, last = ([run[when]["half_life_quantiles"] for run in runs] for when in ("first", "last"))
        medians = [_median(first, 0), *(_median(last, block) for block in range(len(last[0])))]
        lines.append([rate, start, *(f"{median:.1f}" for median in medians), f"{mean(_lost(runs)):.3f}"])
    blocks = [f"after 16 MB, block {block}" for block in range(1, len(lines[0]) - 3)]
    return markdown(["rate", "start", "median half-life", *blocks, f"lost with {GIVEN} bytes"], lines)


def _median(quantiles: list[list[list[float]]], block: int) -> float:
    """The median half-life of a block, its geometric mean over runs."""
    return geometric_mean(run[block][len(run[block]) // 2] for run in quantiles)


def texts() -> str:
    """Starts at their best rates: what each is worth after 1 MB and at the end, and what it loses with 32 bytes."""
    found = {arm["arm"]: arm["measures"] for arm in load("memory-text/report/table.json")["arms"]}
    records = rows("memory-text/rows.jsonl")
    lines = []
    for name, measures in found.items():
        runs = [row for row in records if row["arm"] == name]
        start, _, gain = name.rpartition("_")
        differences = (measures[key].get("difference_to_baseline") for key in ("val_bpb_step_500", "final_val_bpb"))
        cells = ["baseline" if one is None else with_interval(one) for one in differences]
        rate = f"{runs[0]['config']['train']['learning_rate']:g}"
        lines.append(
            [gain, start, rate, f"{measures['final_val_bpb']['mean']:.4f}", *cells, f"{mean(_lost(runs)):.3f}"]
        )
    read = f"{records[0]['result']['bytes'] / 1e6:.1f} MB"
    header = [
        "gain",
        "start",
        "rate",
        read,
        "difference, 1 MB, 95 % interval",
        f"difference, {read}",
        "lost with 32 bytes",
    ]
    return f"{markdown(header, lines)}\n\n{source(records[0]['environment'])}"


def _lost(runs: Iterable[dict[str, Any]]) -> list[float]:
    """Bits per byte that the runs lose where only the last GIVEN bytes are given."""
    curves = [run["result"]["truncation"] for run in runs]
    return [curve["cost"][curve["given"].index(GIVEN)] for curve in curves]


def text_verdicts() -> str:
    """What was registered before the runs of memory-text, and what became of it."""
    return declared("memory-text")


def prose_verdicts() -> str:
    """What was registered before the runs of memory-bible, and what became of it."""
    return f"{declared('memory-bible')}\n\n{source(rows('memory-bible/rows.jsonl')[0]['environment'])}"
