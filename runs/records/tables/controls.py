"""Where memory must matter and where it cannot: what every start was worth, and what was registered before."""

from typing import Any

from tables.records import load, markdown, rows, source, with_interval


def controls() -> str:
    """What every start is worth where memory matters, early and at the end, and where it cannot matter."""
    studies = ("memory-lags", "memory-markov", "memory-potts")
    found = {
        study: {arm["arm"]: arm["measures"] for arm in load(f"{study}/report/table.json")["arms"]} for study in studies
    }
    lags = {"0.4": "val_bpb_step_200", "2": "final_val_bpb"}
    potts = {"1.2": "val_bpb_step_600", "3": "final_val_bpb"}
    columns = {
        **{f"lags, {a}, {mb} MB": ("memory-lags", f"_lags-{a}", key) for a in (0.7, 1.3) for mb, key in lags.items()},
        **{f"Potts, {mb} MB": ("memory-potts", "", key) for mb, key in potts.items()},
        "Markov, 1 MB": ("memory-markov", "", "final_val_bpb"),
    }
    names = ["short", "short-frozen", "long", "concentrated", "law", "information", "correlation"]
    lines = []
    for name in names:
        cells = []
        for study, end, key in columns.values():
            arm = "predictive" if (study, name) == ("memory-potts", "law") else name
            cells.append(_four(found[study].get(f"{arm}{end}"), key))
        lines.append([name, *cells])
    header = ["minus log-spaced, 95 % interval", *columns]
    environment = rows("memory-lags/rows.jsonl")[0]["environment"]
    return f"{markdown(header, lines)}\n\n{source(environment)}"


def _four(measures: dict[str, Any] | None, key: str) -> str:
    """A paired difference to four digits; empty for an arm that was not run."""
    if measures is None:
        return ""
    return with_interval(measures[key]["difference_to_baseline"])


def verdicts() -> str:
    """What was registered before the runs of the controls, and what became of it."""
    return declared("memory-lags", "memory-potts", "memory-markov", "memory-dose")


def declared(*studies: str) -> str:
    """Gates and hypotheses of studies as they were registered, and what became of them."""
    lines = []
    for study in studies:
        declared = load(f"{study}/report/table.json")["declared"]
        for one in declared["gates"]:
            edge = f"at least {one['at_least']:g}" if one["at_most"] is None else f"at most {one['at_most']:g}"
            lines.append([study, one["name"], edge, f"{one['mean']:.4f}", "passed" if one["passed"] else "**failed**"])
        for one in declared["hypotheses"]:
            margin = f", margin {one['margin']:g}" if one["margin"] else ""
            verdict = one["verdict"].partition(":")[0]
            lines.append([study, one["name"], f"{one['claim']}{margin}", with_interval(one), f"**{verdict}**"])
    return markdown(["study", "hypothesis or gate", "claim", "bits per byte, interval", "verdict"], lines)


def doses() -> str:
    """The exponent that is best on mixtures of lags, beside those that one may expect."""
    record = load("memory-dose/best.json")
    lines = []
    for row in record["rows"]:
        best = row["best"]
        bounded = best["low"] is not None and best["high"] is not None
        found = f"{best['low']:.2f} to {best['high']:.2f}" if bounded else "not bounded"
        beyond = bounded and not min(best["levels"]) <= best["low"] <= best["high"] <= max(best["levels"])
        at = "none" if best["at"] is None else f"{best['at']:.2f}"
        step = "the end" if row["step"] is None else f"step {row['step']}"
        cells = [f"{value:.2f}" for value in row["expected"].values()]
        lines.append([row["corpus"], row["decays"], step, at, found + ", beyond what was tried" * beyond, *cells])
    expected = record["rows"][0]["expected"]
    header = ["corpus", "decays", "at", "best exponent", "95 % interval", *expected]
    environment = rows("memory-dose/rows.jsonl")[0]["environment"]
    return f"{markdown(header, lines)}\n\n{source(environment)}"
