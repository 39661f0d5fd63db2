"""What was measured of texts and of sequences whose information is known."""

from typing import Any

from tables.records import load, markdown, source


def verdict() -> str:
    """What `plkernel.measure stdlib` ends with."""
    text = next(one for one in load("measure/texts.json")["texts"] if one["corpus"]["name"] == "stdlib")
    return f"```text\nverdict: {text['verdict']['sentence']}\n```"


def measure() -> str:
    """Exponents of six texts, and what the studies say about trusting such numbers."""
    texts = load("measure/texts.json")
    header = [
        "text",
        "1..100",
        "1..500",
        "100..1000",
        "stands out",
        "equal weights",
        "published, every lag",
        "log-spaced",
    ]
    lines = []
    for text in texts["texts"]:
        fits = {row["label"]: row for row in text["fits"]}
        ranges = [interval(fits[f"lags {label}"]) for label in ("1..100", "1..500", "100..1000")]
        published = [f"{fits[f'published, lags 1..500, {grid}']['beta']:.2f}" for grid in ("every lag", "log-spaced")]
        verdict = text["verdict"]
        clear = f"{verdict['first_lag']}..{verdict['last_lag']}: {verdict['kind']}"
        lines.append([text["corpus"]["name"], *ranges, clear, interval(text["equal_weights"]), *published])
    return f"{markdown(header, lines)}\n\n{source(texts['environment'])}"


def interval(law: dict[str, Any]) -> str:
    """An exponent with half its interval."""
    return f"{law['beta']:.2f} ± {(law['high'] - law['low']) / 2:.2f}"


def stability() -> str:
    """What the size of the sample does to each estimator."""
    record = load("measure/stability.json")
    names = list(dict.fromkeys(row["corpus"] for row in record["rows"]))
    estimators = list(dict.fromkeys(row["estimator"] for row in record["rows"]))

    def change(name: str, estimator: str) -> str:
        found = [row for row in record["rows"] if (row["corpus"], row["estimator"]) == (name, estimator)]
        return " → ".join(f"{row['beta']:.2f}" for row in found)

    sizes = {row["size"] for row in record["rows"] if row["corpus"] == names[0]}
    lines = [[name, *(change(name, estimator) for estimator in estimators)] for name in names]
    note = f"Means over disjoint pieces of 0.3 MB, of 1 MB and of 5 MB, or the whole text ({names[0]}: {max(sizes):,})."
    return f"{markdown(['beta on lags 1..500', *estimators], lines)}\n\n{note} {source(record['environment'])}"


def trust() -> str:
    """Accuracy of exponents, coverage of the intervals, and how often a power law is denied to be one."""
    accurate, covered = load("measure/accuracy.json"), load("measure/coverage.json")
    errors = [abs(row["estimate"] - row["exact"]) for row in accurate["rows"]]
    slopes = [row["exact"] for row in accurate["rows"]]
    worst, usual = max(errors), sum(errors) / len(errors)
    ratios = [row["correlation"]["ratio"] for row in covered["rows"] if row["correlation"] and not row["limit"]]
    denied = [f"{row['denied']:.0%} ({row['denied_before']:.0%}) of {row['process']}" for row in covered["laws"]]
    independent = next(row for row in covered["rows"] if row["process"] == "independent")
    rare = independent["methods"]["jackknife of the plug-in"]["covered"]
    bullets = [
        f"A jackknife of the plug-in without the floor taken off first covers I(d) of the independent symbols in "
        f"{sum(rare) / len(rare):.0%}: the bias of rare symbols does not fall as 1/n.",
        f"{len(errors)} sequences of {accurate['size'] / 1e6:.0f} MB with exact exponents from {min(slopes):.2f} to "
        f"{max(slopes):.2f}: the estimate is off by {worst:.4f} at most, {usual:.4f} on average.",
        f"Verdicts on sequences that do follow a power law, {covered['seeds']} seeds: denied to be one in "
        f"{', '.join(denied)}; in parentheses by a difference of 2 in AICc, as if lags were independent.",
        f"The correlation stands at {min(map(min, ratios)):.2f} to {max(map(max, ratios)):.2f} of its exact value on "
        "average over seeds, at the lags above its floor.",
    ]
    lines = "\n".join(f"- {bullet}" for bullet in bullets)
    return f"{coverage_table(covered)}\n\n{lines}\n\n{source(accurate['environment'])} {source(covered['environment'])}"


def coverage_table(record: dict[str, Any]) -> str:
    """The share of 95 % intervals that cover, by process, before and now."""
    before, now = "shuffle", "jackknife"

    def share(row: dict[str, Any], method: str) -> str:
        covered = row["methods"][method]["covered"]
        return f"{sum(covered) / len(covered):.0%} ({min(covered):.0%})"

    def exponents(row: dict[str, Any], limits: str) -> str:
        found = [row["methods"][method]["exponents"][limits] for method in (before, now)]
        return " → ".join(f"{one['covered']:.0%}" if one else "-" for one in found) if all(found) else "-"

    lines = [
        [
            f"{row['process']}, memory as long as a block" if row["limit"] else row["process"],
            *(share(row, method) for method in (before, now)),
            *(exponents(row, limits) for limits in ("1..100", "100..1000")),
        ]
        for row in record["rows"]
    ]
    title = f"{record['seeds']} seeds; intervals of 95 % cover in"
    header = [title, "I(d), `shuffle`", "I(d), `jackknife`", "beta, 1..100", "beta, 100..1000"]
    return markdown(header, lines)
