"""Studies of initialisations and learning rates: the demo, the schemes, the audit, muP and saturation."""

from typing import Any

from tables.records import load, markdown, rows, source, with_interval

from plkernel.results.statistics import paired_difference


def quick() -> str:
    """The comparison that `make demo` ends with."""
    table, records = load("quick/table.json"), rows("quick/rows.jsonl")
    seconds = sum(row["result"]["seconds"] for row in records)
    note = f"{len(records)} runs, {seconds / 60:.1f} minutes of training in all. {source(records[0]['environment'])}"
    sentences = "\n".join(f"- {sentence}" for sentence in table["summary"])
    return f"{arms_of(table)}\n\n{sentences}\n\n{note}"


def goose() -> str:
    """RWKV-7 from three starts, and RWKV-6 beside it."""
    records = rows("goose/rows.jsonl")
    parameters = [f"{size:,}" for size in sorted({row["config"]["model"]["parameters"] for row in records})]
    steps, read = records[0]["result"]["steps"], records[0]["curve"]["bytes"][-1] / 1e6
    note = f"{' to '.join(parameters)} parameters, {steps} steps, {read:.1f} MB. {source(records[0]['environment'])}"
    return f"{arms_of(load('goose/report/table.json'))}\n\n{note}"


def arms_of(table: dict[str, Any]) -> str:
    """The arms of a small study, one a line."""
    lines = []
    for arm in table["arms"]:
        final, test = arm["measures"]["final_val_bpb"], arm["measures"]["test_bpb"]
        paired = final.get("difference_to_baseline")
        difference = with_interval(paired) if paired else "baseline"
        lines.append([arm["arm"], str(arm["n"]), f"{final['mean']:.4f}", f"{test['mean']:.4f}", difference])
    return markdown(["arm", "seeds", "validation bits per byte", "test", "paired difference, 95 % interval"], lines)


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
        change = with_interval(changed["difference_to_baseline"])
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
                    with_interval(final["difference_to_baseline"], 3),
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
    return with_interval(vars(paired_difference(values, others)), 3)


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
