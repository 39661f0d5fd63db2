"""Renders the numbers of README.md, of docs/ and of two records from the rows committed beside this script.

    python runs/records/render.py           rewrite the marked parts of all
    python runs/records/render.py --check   exit 1 when one of them says something else

Links of README.md to files are relative, until pyproject.toml names a Repository under [project.urls]: then they begin
with it, so that pictures also show where the package is indexed.

fit/fit.json is written by `python -m plkernel.fit --beta 1.15 --out runs/records/fit`, gallery/* by `python -m
plkernel.gallery`, minimax/table.json by `python runs/minimax_table.py`; quick/table.json and rows.jsonl
are the report of `make demo`, schemes/* of `python -m plkernel.experiment runs/schemes.toml`; exp013-audit/* are the
record and the report of runs/exp013-audit.toml (its README.md has both commands); bench/*.json are written
by `make bench`, but for bench/threads-before.json, which keeps what an earlier commit made of threads on another
processor; measure/coverage.json by `python runs/interval_coverage.py` and the rest of measure/* by `python
runs/mutual_information.py all`; findings/table.json by `python runs/findings.py`. All but the first two name their
commit and hardware.
"""

import json
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plkernel.analysis.statistics.differences import paired_difference

RECORDS = Path(__file__).resolve().parent
ROOT = RECORDS.parent.parent
README = ROOT / "README.md"
DOCUMENTS = (
    README,
    RECORDS / "exp013-audit" / "README.md",
    RECORDS / "findings" / "README.md",
    ROOT / "docs" / "rwkv.md",
    *sorted((ROOT / "docs" / "evidence").glob("*.md")),
)
PART = re.compile(r"(<!-- record:(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?:https?://[^)\s]+/HEAD/)?((?:docs|runs)/[^)\s]*|[A-Z]+\.md|LICENSE)\)")


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


def fit() -> str:
    """The published figures, as the fit reproduces them."""
    values = load("fit/fit.json")
    optimal, uniform = values["optimal"]["scores"], values["uniform"]["scores"]
    published = next(row for row in values["weightings"] if row["belongs_to"] == "ema")
    lines = [
        ["active nodes of 256", str(values["active_nodes"])],
        ["their half-lives", ", ".join(f"{value:.1f}" for value in values["active_half_lives"])],
        ["share of weight on the shortest half-life", f"{values['fastest_share']:.2%}"],
        ["optimal weights, R0", f"{optimal['r0']:.4f}"],
        ["optimal weights, R1 / R* / Elog", f"{optimal['r1']:.4f} / {optimal['r_star']:.4f} / {optimal['e_log']:.3f}"],
        ["largest relative error", f"{optimal['max_relative_error']:.1%} at t = {optimal['worst_lag']:.0f}"],
        ["uniform weights, R1 / R* / Elog", f"{uniform['r1']:.2f} / {uniform['r_star']:.2f} / {uniform['e_log']:.2f}"],
        ["uniform over true kernel at t = 512", f"{values['uniform_excess']:.1f}x"],
        ["`lambda**(beta-1)`, largest over smallest", f"{published['range']:.2f}"],
    ]
    return markdown([f"t^-{values['beta']:g} on t = 1..{values['max_lag']}", "value"], lines)


def quick() -> str:
    """The comparison that `make demo` ends with."""
    table, records = load("quick/table.json"), rows("quick/rows.jsonl")
    lines = []
    for arm in table["arms"]:
        final, test = arm["measures"]["final_val_bpb"], arm["measures"]["test_bpb"]
        paired = final.get("difference_to_baseline")
        difference = f"{paired['mean']:+.4f} ({paired['low']:+.4f} to {paired['high']:+.4f})" if paired else "baseline"
        lines.append([arm["arm"], str(arm["n"]), f"{final['mean']:.4f}", f"{test['mean']:.4f}", difference])
    header = ["arm", "seeds", "validation bits per byte", "test", "paired difference, 95 % interval"]
    seconds = sum(row["result"]["seconds"] for row in records)
    note = f"{len(records)} runs, {seconds / 60:.1f} minutes of training in all. {source(records[0]['environment'])}"
    sentences = "\n".join(f"- {sentence}" for sentence in table["summary"])
    return f"{markdown(header, lines)}\n\n{sentences}\n\n{note}"


def schemes() -> str:
    """Initialisations as they are, and what the power law on top of each of them changes."""
    table, records = load("schemes/table.json"), rows("schemes/rows.jsonl")
    arms = {arm["arm"]: arm for arm in table["arms"]}
    rates = {row["arm"]: row["config"]["train"]["learning_rate"] for row in records}
    lines = []
    for name, arm in arms.items():
        if arm["against"] not in (None, table["baseline"]) or name.endswith("power-law"):
            continue
        law = next(other for other in arms.values() if other["arm"] == f"{name}-power-law")
        plain, changed = (one["measures"]["final_val_bpb"] for one in (arm, law))
        paired = changed["difference_to_baseline"]
        change = f"{paired['mean']:+.4f} ({paired['low']:+.4f} to {paired['high']:+.4f})"
        both = " / ".join(dict.fromkeys(f"{rates[one]:g}" for one in (name, law["arm"])))
        lines.append([name, both, f"{plain['mean']:.4f}", f"{changed['mean']:.4f}", change])
    header = ["scheme", "learning rate", "validation bits per byte", "with a power law", "difference, 95 % interval"]
    steps, seeds = records[0]["result"]["steps"], len({row["seed"] for row in records})
    note = f"{seeds} seeds, {steps} steps, rates searched on another seed. {source(records[0]['environment'])}"
    return f"{markdown(header, lines)}\n\n{note}"


def audit_blocks() -> dict[str, dict[str, dict[str, Any]]]:
    """The arms of the audit by block and, within it, by what they are called there."""
    blocks: dict[str, dict[str, dict[str, Any]]] = {}
    for arm in load("exp013-audit/report/table.json")["arms"]:
        ending = "".join(f"_{level}" for level in arm["block"].values())
        gain, patching = arm["block"]["gain"], PATCHINGS[arm["block"]["patching"]]
        blocks.setdefault(f"gain {gain}, {patching}", {})[arm["arm"].removesuffix(ending)] = arm
    return blocks


PATCHINGS = {"bytes": "no patches", "causal": "causal patches", "published": "published patches (not causal)"}


def audit() -> str:
    """Every arm of the audit beside the baseline of its block."""
    records = rows("exp013-audit/rows.jsonl")
    rates = {row["arm"]: row["config"]["train"]["learning_rate"] for row in records if row["status"] == "finished"}
    header = [
        "arm",
        "learning rate",
        "bits per byte",
        "minus the baseline, 95 % interval",
        "corrected p",
        "seen at 80 %",
    ]
    parts = []
    for title, arms in audit_blocks().items():
        lines = []
        for name, arm in arms.items():
            final = arm["measures"]["final_val_bpb"]
            line = [name, f"{rates[arm['arm']]:g}", f"{final['mean']:.4f}"]
            if "difference_to_baseline" in final:
                line += [
                    difference(final),
                    f"{arm['p_corrected']:.2g}",
                    f"{arm['evidence']['detectable_difference']:.3f}",
                ]
            lines.append(line + [""] * (len(header) - len(line)))
        parts.append(f"**{title}**\n\n{markdown(header, lines)}")
    steps, seeds = records[0]["result"]["steps"], len({row["seed"] for row in records})
    note = f"{seeds} seeds, {steps} steps, {records[0]['config']['model']['parameters']:,} parameters."
    return "\n\n".join([*parts, f"{note} {source(records[0]['environment'])}"])


def audit_short() -> str:
    """The published comparison in every block, and what equal scale leaves of it."""
    pairs = {
        "power law": ("log-spaced_published", "log-spaced_uniform"),
        "baseline at the power law's scale": ("baseline-at-power-law", "log-spaced_uniform"),
        "power law, both at its scale": ("log-spaced_published", "baseline-at-power-law"),
        "power law, both at the baseline's scale": ("power-law-at-baseline", "log-spaced_uniform"),
        "concentrated": ("concentrated_published", "log-spaced_uniform"),
        "baseline at the concentrated scale": ("baseline-at-concentrated", "log-spaced_uniform"),
        "concentrated, both at its scale": ("concentrated_published", "baseline-at-concentrated"),
        "concentrated, both at the baseline's scale": ("concentrated-at-baseline", "log-spaced_uniform"),
    }
    blocks = audit_blocks()
    lines = [[title, *(pair(arms, *names) for arms in blocks.values())] for title, names in pairs.items()]
    return markdown(["minus the baseline, bits per byte, 95 % interval", *blocks], lines)


def pair(arms: dict[str, dict[str, Any]], name: str, other: str) -> str:
    """The paired difference of two arms of a block in final validation, and its interval."""
    values, others = (arms[arm]["measures"]["final_val_bpb"]["per_seed"] for arm in (name, other))
    found = paired_difference(values, others)
    return f"{found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def difference(measure: dict[str, Any]) -> str:
    """A paired difference and its interval."""
    paired = measure["difference_to_baseline"]
    return f"{paired['mean']:+.3f} ({paired['low']:+.3f} to {paired['high']:+.3f})"


def controls() -> str:
    """What every start is worth where memory matters, early and at the end, and where it cannot matter."""
    lags, markov = load("memory-lags/report/table.json"), load("memory-markov/report/table.json")
    found = {arm["arm"]: arm["measures"] for arm in (*lags["arms"], *markov["arms"])}
    moments = {"0.4": "val_bpb_step_200", "2": "final_val_bpb"}
    columns = {f"lags, {a}, {mb} MB": (f"_lags-{a}", key) for a in (0.7, 1.3) for mb, key in moments.items()}
    columns["Markov, 1 MB"] = ("", "final_val_bpb")
    names = ["short", "short-frozen", "long", "concentrated", "law", "information"]
    lines = [[name, *(_four(found.get(f"{name}{end}"), key) for end, key in columns.values())] for name in names]
    header = ["minus log-spaced, 95 % interval", *columns]
    environment = rows("memory-lags/rows.jsonl")[0]["environment"]
    return f"{markdown(header, lines)}\n\n{source(environment)}"


def _four(measures: dict[str, Any] | None, key: str) -> str:
    """A paired difference to four digits; empty for an arm that was not run."""
    if measures is None:
        return ""
    return _with_interval(measures[key]["difference_to_baseline"])


def _with_interval(found: dict[str, Any]) -> str:
    """A mean and its interval to four digits, without -0.0000."""
    mean, low, high = (f"{round(found[name], 4) + 0.0:+.4f}" for name in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def verdicts() -> str:
    """What was registered before the runs of the controls, and what became of it."""
    lines = []
    for name in ("memory-lags", "memory-markov", "memory-dose"):
        for one in load(f"{name}/report/table.json")["declared"]["hypotheses"]:
            margin = f", margin {one['margin']:g}" if one["margin"] else ""
            lines.append([name, one["name"], f"{one['claim']}{margin}", _with_interval(one), f"**{one['verdict']}**"])
    return markdown(["study", "hypothesis", "claim", "difference, bits per byte, interval", "verdict"], lines)


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


def verdict() -> str:
    """What `plkernel.measure stdlib` ends with."""
    text = next(one for one in load("measure/texts.json")["texts"] if one["corpus"]["name"] == "stdlib")
    return f"```text\nverdict: {text['verdict']['sentence']}\n```"


def six() -> str:
    """The best six nodes beside the published ones."""
    best = next(
        row["error"]
        for row in load("minimax/table.json")["rows"]
        if (row["beta"], row["max_lag"], row["terms"]) == (1.15, 512, 6)
    )
    published = load("fit/fit.json")["optimal"]["scores"]["max_relative_error"]
    return f"Those are off by {best:.2%} at most on t = 1..512, where the published six are by up to {published:.0%}."


def bench() -> str:
    """The scan and the training step against their peers."""
    scan, train = load("bench/scan.json"), load("bench/train.json")
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in scan["rows"]))
    contenders = list(dict.fromkeys(row["contender"] for row in scan["rows"] if row["ratio"]))

    def ratio(shape: tuple[int, ...], contender: str) -> str:
        row = next(row for row in scan["rows"] if tuple(row["shape"]) == shape and row["contender"] == contender)
        return f"{row['ratio']['median']:.1f}" if row["ratio"] else "-"

    scans = markdown(
        ["forward and backward, time over ours at (B,T,D)", *("x".join(map(str, shape)) for shape in shapes)],
        [[contender, *(ratio(shape, contender) for shape in shapes)] for contender in contenders],
    )
    steps = markdown(
        [f"training step, context {train['context']}, batch {train['batch']}", "parameters", "kB/s", "time over ours"],
        [
            [
                row["contender"],
                f"{row['parameters']:,}",
                f"{row['bytes_per_second'] / 1e3:.1f}",
                f"{row['ratio']['median']:.2f}",
            ]
            for row in train["rows"]
        ],
    )
    peaks = scan["memory"]
    memory = f"Peak memory beyond the inputs: {peaks['plkernel']:.1f} tensors of (B,T,D)."
    parts = [scans, f"{memory} {source(scan['environment'])}", steps, source(train["environment"]), threads()]
    return "\n\n".join(part for part in parts if part)


def threads() -> str:
    """What a second thread brings: now, and in the records of another processor and an earlier commit."""
    now = [row for name in ("wkv", "scan", "train") for row in load(f"bench/{name}.json").get("threads", [])]
    before = load("bench/threads-before.json")
    commit = before["environment"]["commit"][:10]
    note = f"Before threads that bring nothing were left out, commit {commit}:"
    return f"{speedups(now)}\n\n{note}\n\n{speedups(before['threads'])}"


def speedups(found: Sequence[dict[str, Any]]) -> str:
    """Two threads against one: a line for each work, a column for each setting."""
    works = list(dict.fromkeys(row["work"] for row in found))
    settings = list(dict.fromkeys((row["processor"], row["neighbours"]) for row in found))
    cells = {(row["work"], row["processor"], row["neighbours"]): row["speedup"] for row in found}

    def cell(work: str, setting: tuple[str, int]) -> str:
        value = cells[work, *setting]
        return f"{value['median']:.2f} ({value['low']:.2f} to {value['high']:.2f})"

    columns = [f"{name}{', beside a busy process' if beside else ''}" for name, beside in settings]
    lines = [[work, *(cell(work, setting) for setting in settings)] for work in works]
    return markdown(["two threads, times as fast as one (quartiles)", *columns], lines)


def recurrence() -> str:
    """The recurrence of RWKV-6 against its peers, its memory and its threads."""
    record = load("bench/wkv.json")
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in record["rows"]))
    contenders = list(dict.fromkeys(row["contender"] for row in record["rows"] if row["ratio"]))
    found = {(tuple(row["shape"]), row["contender"]): row for row in record["rows"]}

    def line(contender: str) -> list[str]:
        ratios = [found[shape, contender]["ratio"] for shape in shapes]
        strong = found[shapes[0], contender]["strong_error"]
        error = "overflows" if strong is None or strong == float("inf") else f"{strong:.0e}"
        peak = record["memory"].get(contender)
        memory = f"{peak / 1e6:.0f}" if peak else ""
        return [contender, *(f"{ratio['median']:.1f}" if ratio else "-" for ratio in ratios), error, memory]

    first, *others = ("x".join(map(str, shape)) for shape in shapes)
    header = [f"forward and backward, time over ours at (B,T,H,N) {first}", *others, "error, strong decays", "MB"]
    seconds = found[shapes[0], "plkernel"]["seconds"]["median"]
    note = f"Ours takes {seconds * 1e3:.0f} ms at {first}. MB: forward and backward, beyond the inputs."
    return f"{markdown(header, [line(name) for name in contenders])}\n\n{note} {source(record['environment'])}"


def transfer() -> str:
    """The best learning rate by width, standard parametrisation against muP."""
    record = load("mup/transfer.json")
    widths = list(next(iter(record["best"].values())))
    lines = []
    for name, best in record["best"].items():
        found = [best[width] for width in widths]
        shift = found[-1]["log2_rate"] - found[0]["log2_rate"]
        cells = (f"2^{entry['log2_rate']:.2f} ({entry['bits_per_byte']:.3f})" for entry in found)
        lines.append([name, *cells, f"{2**shift:.2f}"])
    header = ["best learning rate (bits per byte)", *(f"width {width}" for width in widths), "ratio"]
    budget = f"{record['layers']} blocks, {record['steps']} steps of {record['batch']} x {record['context']} bytes, "
    seeds = len({row["seed"] for row in record["rows"]})
    note = f"The SSM on {record['corpus']}, {budget}{seeds} seeds; five rates a factor of 2 apart, a parabola."
    return f"{markdown(header, lines)}\n\n{note} {source(record['environment'])}"


def saturation() -> str:
    """A naive and the official start of RWKV-6, beside the published ablation."""
    record = load("saturation/table.json")
    arms, published = record["arms"], record["published"]
    columns = [(f"{arm}, step {arms[arm][time]['step']}", arms[arm][time]) for arm in arms for time in ("start", "end")]
    columns += [(f"published {arm}", published[arm]) for arm in arms]
    figures = {
        "loss, nats": ("loss", ".2f"),
        "smallest logit": ("logit_min", ".1f"),
        "largest logit": ("logit_max", ".1f"),
        "largest probability": ("peak_probability", ".3f"),
        "entropy, nats": ("entropy", ".2f"),
        "saturated positions": ("saturated_share", ".1%"),
        "amplification per block": ("amplification", ".2f"),
    }
    lines = [
        [name, *(format(found[key], form) if key in found else "-" for _, found in columns)]
        for name, (key, form) in figures.items()
    ]
    guess = f"Guessing scores {record['uniform']:.3f} nats here and {published['uniform']['loss']} there."
    table = markdown(["RWKV-6", *(name for name, _ in columns)], lines)
    return f"{table}\n\n{guess} Published amplification: {published['amplification']}. {source(record['environment'])}"


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


def gallery() -> str:
    """What some published initialisations start with."""
    record = load("gallery/gallery.json")
    chosen = [entry for entry in record["entries"] if entry["initialisation"]["name"] in SHOWN_STARTS]
    first, last = record["slope_lags"]

    def line(entry: dict[str, Any]) -> list[str]:
        start = entry["initialisation"]
        shortest, longest = start["half_lives"]
        half_lives = f"{shortest:.3g} to {longest:.4g}" if longest is not None else "all"
        figures = [f"{entry['slope']:.2f}", f"{entry['slope_rms']:.2f}", f"{entry['scores']['e_log']:.2f}"]
        return [start["name"], half_lives, *figures, start["origin"]["paper"]]

    header = ["initialisation", "half-lives, steps", f"slope, lags {first:g}..{last:g}", "rms slope", "Elog", "source"]
    note = f"Against t^-{record['beta']:g} on t = 1..{record['max_lag']}: {len(record['entries'])} kernels in all."
    return f"{markdown(header, [line(entry) for entry in chosen])}\n\n{note}"


SHOWN_STARTS = (
    "s4d-real",
    "s4d-lin",
    "mamba-1",
    "mamba-2",
    "lru",
    "rg-lru-paper",
    "retnet",
    "rwkv-first",
    "rwkv-last",
    "exp013-1-none",
    "exp013-2-none",
    "exp013-2-ema",
    "ours-none",
    "ours-ema",
)


def minimax() -> str:
    """The least largest relative error of K terms."""
    record = load("minimax/table.json")
    rows = [row for row in record["rows"] if row["beta"] == 1.15]
    lags, terms = (512, 2048, 65536, 1_000_000), (4, 6, 8, 10, 12, 16)
    found = {(row["max_lag"], row["terms"]): row for row in rows}
    lines = [[f"{lag:,}", *(f"{found[lag, count]['error']:.1e}" for count in terms)] for lag in lags]
    times = ", ".join(f"{found[512, count]['milliseconds']:.0f} ms at K = {count}" for count in (6, 10))
    table = markdown(["t^-1.15 on 1..T", *(f"K = {count}" for count in terms)], lines)
    return f"{table}\n\nFound in {times}. {source(record['environment'])}"


def counts() -> str:
    """Counting pairs against other people's software."""
    record = load("bench/mi.json")
    lines = [
        [row["contender"], row["work"], f"{row['rate']:,.0f}", f"{row['ratio']['median']:.1f}"]
        for row in record["rows"]
        if row["ratio"]
    ]
    table = markdown(["counting pairs of bytes", "work", "MB per second and lag", "time over ours"], lines)
    return f"{table}\n\n{source(record['environment'])}"


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


PARTS: dict[str, Callable[[], str]] = {
    "recurrence": recurrence,
    "saturation": saturation,
    "transfer": transfer,
    "schemes": schemes,
    "controls": controls,
    "doses": doses,
    "verdicts": verdicts,
    "verdict": verdict,
    "six": six,
    "audit": audit,
    "audit_short": audit_short,
    "fit": fit,
    "quick": quick,
    "bench": bench,
    "measure": measure,
    "stability": stability,
    "trust": trust,
    "counts": counts,
    "gallery": gallery,
    "minimax": minimax,
    "findings": findings,
    "known_bugs": known_bugs,
}


def render(text: str) -> str:
    """A document with its marked parts rendered from the records."""
    return PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}\n{match[3]}", text)


def repository() -> str | None:
    """Where the project says that its files are."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    return urls.get("Repository")


def linked(text: str, base: str | None) -> str:
    """A document of the root with its links to files below `base`; relative without one."""

    def link(match: re.Match[str]) -> str:
        picture, name, path = match.groups()
        head = f"{base.rstrip('/')}/{'raw' if picture else 'blob'}/HEAD/" if base else ""
        return f"{picture}[{name}]({head}{path})"

    return LINK.sub(link, text)


def written(document: Path) -> str:
    """What a document should say."""
    text = render(document.read_text())
    return linked(text, repository()) if document == README else text


def main() -> None:
    """Rewrite the documents, or check them."""
    for document in DOCUMENTS:
        text = document.read_text()
        rendered = written(document)
        if "--check" in sys.argv[1:] and rendered != text:
            sys.exit(f"{document} differs from the records: run python runs/records/render.py")
        if rendered != text:
            document.write_text(rendered)


if __name__ == "__main__":
    main()
