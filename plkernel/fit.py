"""python -m plkernel.fit: a power law, the exponentials that carry it, and the decays and weights that follow."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from plkernel import __version__
from plkernel.analysis.exponentials.fits import PUBLISHED_HALF_LIVES, Method
from plkernel.analysis.exponentials.minimax import LEVEL_RATIO
from plkernel.analysis.exponentials.sums import Floats, Scores, check_design, closed_form_error, terms_for
from plkernel.analysis.nodes.fit import (
    CHANNEL_HALF_LIVES,
    Channels,
    FitResult,
    Weighting,
    fit_exponentials,
    place_channels,
    spread_of,
    weightings,
)
from plkernel.analysis.nodes.node_set import Aim, Gain, Lag, Summation, Target
from plkernel.analysis.nodes.placement import Placement, check_half_lives, check_options, log_spaced
from plkernel.tools import cli
from plkernel.tools.cli import text_table
from plkernel.tools.files import atomic_write, check_folder, save_json

PUBLISHED_BETA = 1.15
BY_GRID: tuple[Method, ...] = ("nnls", "nnls-relative")
# The least value a kernel may reach on the lags asked for: below it, float64 loses relative accuracy.
SMALLEST_TARGET = 1e-300
# The least fall of ln(target) over the lags that can be told from none.
FLATTEST_TARGET = 1e-6


def fit(
    beta: float | None = None,
    corpus: str | None = None,
    target: Target = "information",
    kernel: Summation = "coherent",
    lag: Lag = "state",
    max_lag: int = 512,
    method: Method | None = None,
    terms: int | None = None,
    tolerance: float | None = None,
    grid: int | None = None,
    min_half_life: float | None = None,
    max_half_life: float | None = None,
    gain: Gain = "none",
    nodes: Placement = "log-spaced",
    channels: int = 256,
    tempering: float | None = None,
    loss: float | None = None,
    out: Path = Path("runs/out/fit"),
    figure: bool = True,
) -> None:
    """Fit t**-beta by a non-negative sum of exponentials, place channels that carry it; table, fit.json and figure.

    The defaults reproduce the published analysis. Half-lives and lags are in bytes, which are the steps of a layer
    without patches. R0 is log-log R² as fitted, R1 with both kernels 1 at t = 1, R* after the best common scale, Elog
    half the range of ln(kernel / t**-beta). An arm of a training spec loads the channels: node_file = "OUT/fit.json".

    Args:
        beta: Exponent of the mutual information; 1.15, the published one, unless a corpus is named.
        corpus: Measure beta on this corpus instead, as plkernel.measure does, on lags 1..500.
        target: information: the kernel is t**-beta; correlation: t**-(beta/2), as information is quadratic in it.
        kernel: coherent: the plain sum over channels; rms: for random signs of B and C, as at initialisation.
        lag: state: lag t is seen as a**t; distance: as a**(t-1), which is what a prediction sees;
            bonus: as a**(t-2), which it sees of the state of an RWKV.
        max_lag: The target is fitted and scored on t = 1..max_lag.
        method: nnls: the published fit, linear, weights on a grid of half-lives; nnls-relative: relative errors;
            minimax: K terms with the least largest relative error; least-squares, quadrature, trapezoid. Left out,
            minimax with --terms or --tolerance, nnls otherwise.
        terms: K, how many exponentials.
        tolerance: Largest relative error instead of K, which then comes from the closed form.
        grid: nnls and nnls-relative: how many half-lives, log-spaced, the fit may use; 256 if left out.
        min_half_life: nnls and nnls-relative: shortest half-life of the grid; 1 if left out.
        max_half_life: nnls and nnls-relative: longest half-life of the grid; 2048 if left out.
        gain: What the recurrence multiplies its input by: none 1, ema 1-a, lru sqrt(1-a^2), clamp min(1, lambda).
        nodes: Channels: log-spaced or concentrated (published), gain-corrected; quantile: at the quantiles of the
            law's own measure; terms: shared out among the exponentials of the fit.
        channels: How many, the width of the model.
        tempering: quantile and terms: 1 puts the law into the density of channels, 0 into the projection; 0.5 if
            left out.
        loss: quantile: share of the kernel lost beyond either end; 0.05 if left out.
        out: Folder for fit.json and the figure fit.pdf, fit.png, fit.svg.
        figure: Draw the figure.
    """
    check_options(nodes, tempering=tempering, loss=loss)
    check_folder(out, "out")
    measured = _measured(beta, corpus)
    if measured:
        beta = float(measured["law"]["beta"])
    aim = Aim(PUBLISHED_BETA if beta is None else beta, target, kernel, lag)
    method, terms = _choose(method, terms, tolerance, aim, max_lag)
    half_lives = _grid(method, grid, min_half_life, max_half_life, max_lag)
    _check(aim, max_lag, channels)
    result = fit_exponentials(aim.power * aim.exponent, max_lag, method, terms, half_lives)
    table = weightings(aim.beta, max_lag, channels, gain)
    placed = place_channels(
        channels, nodes, aim, gain, max_lag, tempering=tempering, loss=loss, terms=result.optimal.active()
    )
    print(render(result, table, placed), flush=True)
    save_json(out / "fit.json", {**report(result, table, placed), "measured": measured})
    print(f"\nwritten: {out / 'fit.json'}", flush=True)
    if figure:
        from plkernel.analysis.figures.fit import fit_figure
        from plkernel.analysis.figures.style import rendered

        shown = {weighting.formula: weighting.nodes for weighting in table}
        drawing = fit_figure(result.optimal, shown, result.exponent, max_lag, gain)
        for kind, content in rendered(drawing).items():
            atomic_write(out / f"fit.{kind}", content)
        print(f"figure:  {out / 'fit.pdf'}, .png, .svg")


def _choose(
    method: Method | None, terms: int | None, tolerance: float | None, aim: Aim, max_lag: int
) -> tuple[Method, int | None]:
    """The method and the number of its terms, from what was given of three options."""
    if terms is not None and tolerance is not None:
        raise ValueError(f"terms {terms} and tolerance {tolerance:g}: give one of the two")
    if method is None:
        method = "nnls" if terms is None and tolerance is None else "minimax"
    if method in BY_GRID:
        if terms is not None or tolerance is not None:
            raise ValueError(f"method {method!r} chooses its terms from the grid: leave out terms and tolerance")
        return method, None
    if tolerance is not None:
        terms = terms_for(aim.power * aim.exponent, max_lag, tolerance)
    if terms is None:
        raise ValueError(f"method {method!r} needs --terms or --tolerance")
    return method, terms


def _grid(
    method: Method, count: int | None, shortest: float | None, longest: float | None, max_lag: int
) -> Floats | None:
    """The half-lives that the fit may use; None where the method places its own."""
    given = {"grid": count, "min_half_life": shortest, "max_half_life": longest}
    if method not in BY_GRID:
        for name, value in given.items():
            if value is not None:
                raise ValueError(
                    f"{name} {value:g} belongs to methods {' and '.join(BY_GRID)}, got method {method!r}, which places "
                    "its own half-lives: leave it out"
                )
        return None
    default_shortest, default_longest, default_count = PUBLISHED_HALF_LIVES
    ends = default_shortest if shortest is None else shortest, default_longest if longest is None else longest
    check_half_lives(*ends)
    if (count := default_count if count is None else count) < 2:
        raise ValueError(f"grid must be at least 2, got {count}")
    check_design(max_lag, count)  # before any node is placed
    return log_spaced(count, *ends)


def _measured(beta: float | None, corpus: str | None) -> dict[str, Any] | None:
    """What `measure` finds in the corpus, told in two lines; None when no corpus is named."""
    if corpus is None:
        return None
    if beta is not None:
        raise ValueError(f"beta {beta:g} and corpus {corpus!r}: give one of the two")
    from plkernel.analysis.mutual_information.measurement import measure_corpus
    from plkernel.data import corpora

    loaded = corpora.load(corpus)
    with cli.progress_bar(corpus) as progress:
        found = measure_corpus(loaded, loaded.bytes, threads=os.cpu_count() or 1, progress=progress)
    law = found.law
    if law is None or found.verdict.kind == "none":
        raise ValueError(f"corpus {corpus!r}: no exponent to fit, {found.verdict.sentence}; give --beta")
    print(
        f"{corpus}: beta {law.beta:.3f} (95 % {law.low:.3f} to {law.high:.3f}) on lags {law.first_lag}..{law.last_lag}"
    )
    print(f"{corpus}: {found.verdict.sentence}\n", flush=True)
    shown = {"corpus": loaded.to_dict(), "law": law.to_dict(), "verdict": found.verdict.sentence}
    return {**shown, "estimator": found.estimator}


def render(result: FitResult, table: list[Weighting], placed: Channels) -> str:
    """The tables that `fit` prints."""
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
        [
            f"lambda**(beta-1), largest over smallest, half-lives {CHANNEL_HALF_LIVES[0]:g}..{CHANNEL_HALF_LIVES[1]:g}",
            f"{table[1].projection_range:.2f}",
        ],
    ]
    gain = placed.nodes.gain
    law = f"t**-{result.exponent:g} on t = 1..{result.max_lag}"
    title = f"{law} by {result.method}: {available} half-lives up to {longest:.4g}"
    heading = (
        f"Projection weights of {len(table[0].nodes.rates)} log-spaced channels "
        f"under input gain '{gain}' (a weighting is right under the gain it belongs to)"
    )
    rows = [[w.formula, w.belongs_to, f"{w.projection_range:.4g}", *_scores(w.scores).split(" / ")] for w in table]
    weights = text_table(["weight", "belongs to gain", "range", "R1", "R*", "Elog"], rows)
    return "\n".join([text_table([title, "value"], figures), "", heading, weights, "", _channels(placed)])


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
    if result.method in BY_GRID:
        return []
    count = len(result.optimal.rates)
    bound = closed_form_error(result.exponent, result.max_lag, count)
    return [[f"closed form for the best {count} terms", f"about {_percent(bound)}"]]


def _channels(placed: Channels) -> str:
    """One line on the node set that training loads."""
    nodes, aim = placed.nodes, placed.aim
    shortest, longest = spread_of(nodes)
    spread = max(nodes.projection) / min(nodes.projection)
    return (
        f"Channels written: {len(nodes.rates)} {placed.placement}, gain '{nodes.gain}', {aim.kernel} kernel "
        f"t**-{aim.exponent:g} seen by {aim.lag}: half-lives {shortest:.3g} to {longest:.4g}, projection range "
        f"{spread:.4g}, R1 / R* / Elog {_scores(placed.scores)}"
    )


def report(result: FitResult, table: list[Weighting], placed: Channels) -> dict[str, Any]:
    """Everything `fit` found, as JSON; `nodes` is what a training spec loads."""
    return {
        "plkernel": __version__,
        "beta": placed.aim.beta,
        "exponent": result.exponent,
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
    }


def _scores(scores: Scores) -> str:
    return f"{_r2(scores.r1)} / {_r2(scores.r_star)} / {scores.e_log:.3g}"


def _r2(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{value:.1%}" if value >= 1e-3 else f"{value:.2e}"


def _check(aim: Aim, max_lag: int, channels: int) -> None:
    if channels < 2:
        raise ValueError(f"channels must be at least 2, got {channels}")
    if max_lag < 3:
        raise ValueError(f"max_lag must be at least 3, got {max_lag}")
    check_design(max_lag, channels)
    fall = aim.power * aim.exponent * np.log(max_lag)
    if fall < FLATTEST_TARGET:
        raise ValueError(
            f"beta {aim.beta:g} leaves t**-beta flat up to max_lag {max_lag}: use a larger beta or max_lag"
        )
    if fall > -np.log(SMALLEST_TARGET):
        raise ValueError(
            f"beta {aim.beta:g} makes max_lag**-beta smaller than {SMALLEST_TARGET:g} at max_lag {max_lag}: "
            "use a smaller beta or max_lag"
        )


if __name__ == "__main__":
    cli.main(fit)
