"""What `fit` found, as tables for the screen and as JSON."""

from dataclasses import asdict
from typing import Any

from plkernel import __version__
from plkernel.analysis.exponentials.fits import BY_HALF_LIVES
from plkernel.analysis.exponentials.minimax import LEVEL_RATIO
from plkernel.analysis.exponentials.sums import Scores, closed_form_error
from plkernel.analysis.nodes.fit import CHANNEL_HALF_LIVES, Channels, FitResult, Weighting, spread_of
from plkernel.analysis.nodes.node_set import Aim
from plkernel.common.cli import text_table
from plkernel.fitting.wanted import Wanted


def render(wanted: Wanted, result: FitResult, table: list[Weighting], placed: Channels) -> str:
    """The tables that `fit` prints; `table` is empty where the kernel is no power law."""
    optimal, uniform, active = result.optimal_scores, result.uniform_scores, result.active
    half_lives = ", ".join(f"{value:.1f}" if value >= 1 else f"{value:.2g}" for value in active.half_lives())
    available = len(result.optimal.rates)
    longest = result.optimal.half_lives()[-1]
    figures = [
        ["active nodes (weight > 1e-8 of the largest)", f"{len(active.rates)} of {available}"],
        ["their half-lives, steps", half_lives],
        [f"share of weight on half-life {result.optimal.half_lives()[0]:.3g}", f"{result.fastest_share:.2%}"],
        ["optimal weights: R0 (as fitted)", f"{optimal.r0:.4f}"],
        ["optimal weights: R1 / R* / Elog", _scores(optimal)],
        ["optimal weights: linear R²", f"{optimal.r_linear:.4f}"],
        [
            "largest relative error",
            f"{_percent(optimal.max_relative_error)} at t = {optimal.worst_lag:.0f}",
        ],
        *_certificate(result),
        *_closed_form(result),
        ["uniform weights: R1 / R* / Elog", _scores(uniform)],
        [f"uniform over true kernel at t = {result.max_lag}", f"{result.uniform_excess:.1f}x"],
    ]
    span = f"t = {result.target.lags[0]:g}..{result.max_lag}"
    title = f"{result.target.label} on {span} by {result.method}: {available} half-lives up to {longest:.4g}"
    if not table:
        return "\n".join([text_table([title, "value"], figures), "", _channels(placed, wanted)])
    ends = f"half-lives {CHANNEL_HALF_LIVES[0]:g}..{CHANNEL_HALF_LIVES[1]:g}"
    figures.append([f"lambda**(beta-1), largest over smallest, {ends}", f"{table[1].projection_range:.2f}"])
    gain = placed.nodes.gain
    heading = (
        f"Projection weights of {len(table[0].nodes.rates)} log-spaced channels "
        f"under input gain '{gain}' (a weighting is right under the gain it belongs to)"
    )
    rows = [[w.formula, w.belongs_to, f"{w.projection_range:.4g}", *_scores(w.scores).split(" / ")] for w in table]
    weights = text_table(["weight", "belongs to gain", "range", "R1", "R*", "Elog"], rows)
    return "\n".join([text_table([title, "value"], figures), "", heading, weights, "", _channels(placed, wanted)])


def _certificate(result: FitResult) -> list[list[str]]:
    """Whether a minimax fit is the best, which it may not be: the exchanges are not bound to succeed."""
    found = result.certificate
    if found is None:
        return []
    told = f"smallest of {found.needed} alternating errors over the largest {found.ratio:.5f}"
    if found.level:
        return [["level, the best sum of so many terms", told]]
    least = f"the least error of so many terms lies between {_percent(found.smallest)} and {_percent(found.largest)}"
    return [[f"NOT LEVEL, perhaps not the best (level from {LEVEL_RATIO:g} on)", f"{told}: {least}"]]


def _closed_form(result: FitResult) -> list[list[str]]:
    """What the best K terms can reach, where K was asked for."""
    if result.method in BY_HALF_LIVES or result.target.beta is None:
        return []
    count = len(result.optimal.rates)
    bound = closed_form_error(result.target.beta, result.max_lag, count)
    return [[f"closed form for the best {count} terms", f"about {_percent(bound)}"]]


def _channels(placed: Channels, wanted: Wanted) -> str:
    """One line on the node set that training loads."""
    nodes, aim = placed.nodes, placed.aim
    shortest, longest = spread_of(nodes)
    spread = max(nodes.projection) / min(nodes.projection)
    clipped = f" (slower terms are clipped to {placed.clipped:.4g})" if placed.clipped else ""
    return (
        f"Channels written: {len(nodes.rates)} {placed.placement}, gain '{nodes.gain}', {aim.kernel} kernel "
        f"{wanted.kernel.label} seen by {aim.lag}: half-lives {shortest:.3g} to {longest:.4g}{clipped}, projection "
        f"range {spread:.4g}, R1 / R* / Elog {_scores(placed.scores)}"
    )


def report(wanted: Wanted, result: FitResult, table: list[Weighting], placed: Channels) -> dict[str, Any]:
    """Everything `fit` found, as JSON; `nodes` is what a training spec loads.

    beta and exponent are null and `kernel` is not where the kernel is no power law.
    """
    aim = wanted.aim
    return {
        "plkernel": __version__,
        "beta": aim.beta if isinstance(aim, Aim) else None,
        "exponent": result.target.beta,
        "kernel": None if isinstance(aim, Aim) else wanted.kernel.to_dict(),
        "max_lag": result.max_lag,
        "method": result.method,
        "gain": placed.nodes.gain,
        "active_nodes": len(result.active.rates),
        "active_half_lives": result.active.half_lives().tolist(),
        "fastest_share": result.fastest_share,
        "uniform_excess": result.uniform_excess,
        "certificate": result.certificate and result.certificate.to_dict(),
        "optimal": {**result.optimal.to_dict(), "scores": asdict(result.optimal_scores)},
        "uniform": {"scores": asdict(result.uniform_scores)},
        "weightings": [
            {
                "weight": w.formula,
                "belongs_to": w.belongs_to,
                "range": w.projection_range,
                "scores": asdict(w.scores),
                "nodes": w.nodes.to_dict(),
            }
            for w in table
        ],
        "nodes": placed.nodes.to_dict(),
        "nodes_aim": {**placed.to_dict(), "scores": asdict(placed.scores)},
        "measured": wanted.measured,
    }


def _scores(scores: Scores) -> str:
    return f"{_r2(scores.r1)} / {_r2(scores.r_star)} / {scores.e_log:.3g}"


def _r2(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{value:.1%}" if value >= 1e-3 else f"{value:.2e}"
