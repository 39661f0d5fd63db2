"""python -m plkernel.fit: a kernel, the exponentials that carry it, and the decays and weights that follow."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from plkernel import __version__
from plkernel.analysis import fit as fits
from plkernel.analysis import targets
from plkernel.analysis.exponentials import FEWEST_LAGS, Scores, Target, check_design, closed_form_error
from plkernel.analysis.nodes import (
    Aim,
    Gain,
    Lag,
    Placement,
    Reading,
    Summation,
    check_name,
    check_options,
    half_lives_of,
)
from plkernel.common import cli
from plkernel.common.files import atomic_write, check_folder, save_json

FitTarget = Literal["information", "correlation", "curve", "correlation-curve", "predictive"]


def fit(
    beta: float | None = None,
    corpus: str | None = None,
    target: FitTarget = "information",
    kernel: Summation = "coherent",
    lag: Lag = "state",
    max_lag: int = 512,
    method: fits.Method | None = None,
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
    """Fit a kernel, t**-beta or one measured, by exponentials, place channels that carry it; table, fit.json, figure.

    The defaults reproduce the published analysis. Half-lives and lags are in bytes, which are the steps of a layer
    without patches. R0 is log-log R² as fitted, R1 with both kernels 1 at t = 1, R* after the best common scale, Elog
    half the range of ln(kernel / target). An arm of a training spec loads the channels: node_file = "OUT/fit.json".

    Args:
        beta: Exponent of the mutual information; 1.15, the published one, unless a corpus is named.
        corpus: Measure this corpus instead: beta as plkernel.measure does, on lags 1..500, or what target names.
        target: information: the kernel is t**-beta; correlation: t**-(beta/2), as information is quadratic in it.
            Of a corpus also: curve: its information in the shape that plkernel.measure finds; correlation-curve: the
            root of that; predictive: the weights of its best linear predictor.
        kernel: coherent: the plain sum over channels; rms: for random signs of B and C, as at initialisation.
        lag: state: lag t is seen as a**t; distance: a**(t-1), which a prediction sees; bonus: a**(t-2), of an RWKV.
        max_lag: The target is fitted and scored on t = 1..max_lag.
        method: nnls: the published fit, weights on a grid of half-lives; minimax: K terms with the least largest
            relative error; least-squares. Left out, minimax with --terms or --tolerance (least-squares for a target
            with errors), nnls otherwise.
        terms: K, how many exponentials.
        tolerance: Largest relative error instead of K, which then comes from the closed form.
        grid: nnls: how many half-lives, log-spaced, the fit may use; 256 if left out.
        min_half_life: nnls: shortest half-life of the grid; 1 if left out.
        max_half_life: nnls: longest half-life of the grid; 2048 if left out.
        gain: What the recurrence multiplies its input by: none 1, ema 1-a, lru sqrt(1-a^2), clamp min(1, lambda).
        nodes: log-spaced or concentrated (published), gain-corrected, or fitted where the target is no power law, and
            so chrono and inverse-gamma; quantile: at the quantiles of the law's own measure; terms: shared out among
            the fitted exponentials.
        channels: How many, the width of the model.
        tempering: quantile and terms: 1 puts the law into the density of channels, 0 into the projection; 0.5 if
            left out.
        loss: quantile: share of the kernel lost beyond either end; 0.05 if left out.
        out: Folder for fit.json and the figure fit.pdf, fit.png, fit.svg.
        figure: Draw the figure.
    """
    check_options(nodes, tempering=tempering, loss=loss)
    check_folder(out, "out")
    check_name("target", target, get_args(FitTarget))
    for name, count, fewest in (("max_lag", max_lag, FEWEST_LAGS), ("channels", channels, 2), ("grid", grid, 2)):
        if count is not None and count < fewest:
            raise ValueError(f"{name} must be at least {fewest}, got {count}")
    check_design(max_lag, max(channels, grid or 0))  # before any node is placed
    given, half_lives = (min_half_life, max_half_life, grid), None
    if given != (None, None, None):
        published = zip(given, fits.PUBLISHED_HALF_LIVES, strict=True)
        first, last, number = (default if value is None else value for value, default in published)
        half_lives = half_lives_of("log-spaced", int(number), first, last)
    wanted, aim, _, measured = _kernel(beta, corpus, target, Reading(kernel, lag), max_lag)
    result = fits.fit(
        values=wanted.raised(aim.power), terms=terms, tolerance=tolerance, method=method, half_lives=half_lives
    )
    options: dict[str, Any] = {"tempering": tempering, "loss": loss, "terms": result.active}
    placed = fits.place_channels(channels, nodes, wanted, aim, gain, **options)
    print(render(wanted, result, placed), flush=True)
    content = {
        "plkernel": __version__,
        "beta": aim.beta if isinstance(aim, Aim) else None,
        "exponent": result.target.beta,
        "kernel": None if isinstance(aim, Aim) else asdict(wanted),
        "target": target,
        "gain": gain,
        **result.to_dict(),
        "nodes": asdict(placed.nodes),
        "nodes_aim": placed.to_dict(),
        "measured": measured,
    }
    save_json(out / "fit.json", content)
    print(f"\nwritten: {out / 'fit.json'}", flush=True)
    if figure:
        from plkernel.analysis.figures.fit import fit_figure
        from plkernel.analysis.figures.style import rendered

        for kind, drawn in rendered(fit_figure(result, placed.nodes)).items():
            atomic_write(out / f"fit.{kind}", drawn)
        print(f"figure:  {out / 'fit.pdf'}, .png, .svg")


def _kernel(
    beta: float | None, corpus: str | None, target: FitTarget, reading: Reading, max_lag: int
) -> targets.Kernel:
    """Return the kernel that `target` names, of a power law or measured on a corpus, and print what was measured."""
    if corpus is None:
        if target not in ("information", "correlation"):
            given = f"beta {beta:g}" if beta is not None else "no corpus"
            raise ValueError(
                f"target {target!r} is measured on a corpus, got {given}: name one with --corpus, or use target "
                "'information' or 'correlation'"
            )
        return targets.law(fits.PUBLISHED_BETA if beta is None else beta, target, reading, max_lag)
    if beta is not None:
        raise ValueError(f"beta {beta:g} and corpus {corpus!r}: give one of the two")
    from plkernel.data import corpora

    loaded = corpora.load(corpus)
    measure = targets.predictive if target == "predictive" else targets.information
    with cli.progress_bar(corpus) as progress:
        found = measure(loaded, loaded.bytes, target, reading, max_lag, threads=os.cpu_count() or 1, progress=progress)
    print("\n".join(f"{corpus}: {line}" for line in found.told), end="\n\n", flush=True)
    return found._replace(measured={"corpus": loaded.to_dict(), **(found.measured or {})})


def render(kernel: Target, result: fits.FitResult, placed: fits.Channels) -> str:
    """Return the table and the line that `fit` prints."""
    best, active, target, proof = result.optimal_scores, result.active, result.target, result.certificate
    half_lives, count = result.optimal.half_lives(), len(result.optimal.rates)
    told, bound = "", ""
    if proof:
        least, most = _percent(proof.smallest), _percent(proof.largest)
        bounds = "" if proof.level else f": the least error of so many terms lies between {least} and {most}"
        told = f"smallest of {proof.needed} alternating errors over the largest {proof.ratio:.5f}{bounds}"
    if result.method in fits.FREE_METHODS and target.beta is not None:
        bound = f"about {_percent(closed_form_error(target.beta, int(target.max_lag), count))}"
    unlevel = f"NOT LEVEL, perhaps not the best (level from {fits.LEVEL_RATIO:g} on)"
    figures = {
        "active nodes (weight > 1e-8 of the largest)": f"{len(active.rates)} of {count}",
        "their half-lives, steps": ", ".join(f"{v:.1f}" if v >= 1 else f"{v:.2g}" for v in active.half_lives()),
        f"share of weight on half-life {half_lives[0]:.3g}": f"{result.fastest_share:.2%}",
        "optimal weights: R0 (as fitted)": f"{best.r0:.4f}",
        "optimal weights: R1 / R* / Elog": " / ".join(_scores(best)),
        "optimal weights: linear R²": f"{best.r_linear:.4f}",
        "largest relative error": f"{_percent(best.max_relative_error)} at t = {best.worst_lag:.0f}",
        "level, the best sum of so many terms" if proof and proof.level else unlevel: told,
        f"closed form for the best {count} terms": bound,
        "uniform weights: R1 / R* / Elog": " / ".join(_scores(result.uniform_scores)),
        f"uniform over true kernel at t = {target.max_lag:.0f}": f"{result.uniform_excess:.1f}x",
    }
    nodes = placed.nodes
    title = f"{target.label} on t = {target.lags[0]:g}..{target.max_lag:.0f} by {result.method}"
    title += f": {count} half-lives up to {half_lives[-1]:.4g}"
    table = cli.text_table([title, "value"], [row for row in figures.items() if row[1]])
    clipped = f" (slower terms are clipped to {placed.clipped:.4g})" if placed.clipped else ""
    channels = (
        f"Channels written: {len(nodes.rates)} {placed.placement}, gain '{nodes.gain}', {placed.aim.kernel} kernel "
        f"{kernel.label} seen by {placed.aim.lag}: half-lives {min(nodes.half_lives()):.3g} to "
        f"{max(nodes.half_lives()):.4g}{clipped}, projection range "
        f"{max(nodes.projection) / min(nodes.projection):.4g}, R1 / R* / Elog {' / '.join(_scores(placed.scores))}"
    )
    return f"{table}\n\n{channels}"


def _scores(scores: Scores) -> list[str]:
    r2 = [f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}" for value in (scores.r1, scores.r_star)]
    return [*r2, f"{scores.e_log:.3g}"]


def _percent(value: float) -> str:
    return f"{value:.1%}" if value >= 1e-3 else f"{value:.2e}"


if __name__ == "__main__":
    cli.main(fit)
