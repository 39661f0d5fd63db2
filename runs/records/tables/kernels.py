"""What fits of a power law reach, and what published initialisations start with."""

from typing import Any

from tables.records import load, markdown, source


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


def six() -> str:
    """The best six nodes beside the published ones."""
    best = next(
        row["error"]
        for row in load("minimax/table.json")["rows"]
        if (row["beta"], row["max_lag"], row["terms"]) == (1.15, 512, 6)
    )
    published = load("fit/fit.json")["optimal"]["scores"]["max_relative_error"]
    return f"Those are off by {best:.2%} at most on t = 1..512, where the published six are by up to {published:.0%}."


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
