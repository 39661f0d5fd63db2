"""python -m plkernel.fit: a kernel, the exponentials that carry it, and the decays and weights that
follow.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from plkernel import __version__
from plkernel.analysis import fit as fits
from plkernel.analysis import prediction
from plkernel.analysis.exponentials import Scores, check_design
from plkernel.analysis.fit import fit
from plkernel.analysis.nodes import (
    POWERS,
    Gain,
    Lag,
    Placement,
    Summation,
    check_options,
    output_std,
)
from plkernel.common import cli
from plkernel.common.files import check_folder, save_figure, save_json

__all__ = ["command", "fit", "render"]

SCORES = """(R0: R² of the logarithms, as fitted; R1: with both kernels 1 at t = 1;
R*: after the best common scale; Elog: half the range of ln(kernel / target).
R near 1 and Elog near 0 are good.)"""

FitTarget = Literal["information", "correlation", "curve", "predictive"]


def command(
    beta: float | None = None,
    corpus: str | None = None,
    target: FitTarget = "information",
    kernel: Summation = "coherent",
    lag: Lag = "state",
    max_lag: int = 512,
    terms: int | None = None,
    gain: Gain = "none",
    nodes: Placement = "log-spaced",
    channels: int = 256,
    tempering: float | None = None,
    loss: float | None = None,
    out: Path = Path("runs/out/fit"),
    figure: bool = True,
) -> None:
    """Fit a kernel, t**-beta or one measured, by exponentials, place channels that carry it; table,
    fit.json, figure.

    The defaults reproduce the published analysis. Half-lives and lags are in bytes, which are the
    steps of a layer without patches. R0 is log-log R² as fitted, R1 with both kernels 1 at t = 1,
    R* after the best common scale, Elog half the range of ln(kernel / target). An arm of a training
    spec loads the channels: node_file = "OUT/fit.json".

    Args:
        beta: Exponent of the mutual information; 1.15, the published one, unless a corpus is named.
        corpus: Measure this corpus instead: beta as plkernel.measure does, on lags 1..500, or what
            target names.
        target: information: the kernel is t**-beta; correlation: t**-(beta/2), as information is
            quadratic in it. Of a corpus also: curve: its information in the shape that
            plkernel.measure finds; predictive: the weights of its best linear predictor.
        kernel: coherent: the plain sum over channels; rms: for random signs of B and C, as at
            initialisation.
        lag: state: lag t is seen as a**t; distance: a**(t-1), which a prediction sees; bonus:
            a**(t-2), of an RWKV.
        max_lag: The target is fitted and scored on t = 1..max_lag.
        terms: K exponentials with the least largest relative error over the real lags 1..max-lag,
            not the integers alone (minimax; least squares where the target has errors); without,
            the published fit, by non-negative least squares on 256 half-lives from 1 to 2048.
        gain: What the recurrence multiplies its input by: none 1, ema 1-a, lru sqrt(1-a^2), clamp
            min(1, lambda).
        nodes: log-spaced or concentrated, as published, with a projection that is gain-corrected,
            or fitted where the target is no power law; quantile: at the quantiles of the law's own
            measure; terms: shared out among the fitted exponentials.
        channels: How many, the width of the model.
        tempering: quantile and terms: 1 puts the law into the density of channels, 0 into the
            projection; 0.5 if left out.
        loss: quantile: share of the kernel lost beyond either end; 0.05 if left out.
        out: Folder for fit.json and the figure fit.pdf, fit.png, fit.svg.
        figure: Draw the figure.
    """
    check_options(nodes, tempering=tempering, loss=loss)
    check_folder(out, "out")
    check_design(max_lag, channels)  # before any node is placed
    wanted = _kernel(beta, corpus, target, kernel, lag, max_lag)
    law, shape = wanted.law, wanted.target
    result = fit(values=shape.raised(POWERS[kernel]), terms=terms)
    placed, scores = fits.place_channels(
        channels,
        nodes,
        shape,
        law,
        gain,
        kernel,
        lag,
        terms=result.active,
        tempering=tempering,
        loss=loss,
    )
    text = (
        f"Channels written: {channels} {nodes}, gain '{gain}', {kernel} kernel {shape.label} seen"
        f" by {lag}: half-lives {min(placed.half_lives()):.3g} to {max(placed.half_lives()):.4g},"
        f" projection range {max(placed.projection) / min(placed.projection):.4g}, R1 / R* / Elog"
        f" {_scores(scores)}"
    )
    print(
        f"{render(result, 'square of the rms kernel, ' * (kernel == 'rms'))}\n{SCORES}\n\n{text}",
        flush=True,
    )
    content = {
        "plkernel": __version__,
        "beta": law and law.beta,
        "exponent": shape.beta,
        "kernel": None if law else asdict(shape),
        "target": target,
        "gain": gain,
        "max_lag": int(result.target.max_lag),
        "method": result.method,
        "active_nodes": len(result.active.rates),
        "active_half_lives": result.active.half_lives().tolist(),
        "fastest_share": result.fastest_share,
        "uniform_excess": result.uniform_excess,
        "certificate": result.certificate and asdict(result.certificate),
        "optimal": {**asdict(result.optimal), "scores": asdict(result.optimal_scores)},
        "uniform": {"scores": asdict(result.uniform_scores)},
        "nodes": asdict(placed),
        "nodes_aim": {
            **(asdict(law) if law else {"kernel": kernel, "lag": lag}),
            "placement": nodes,
            "output_std": output_std(placed),
            "scores": asdict(scores),
        },
        "measured": wanted.measured,
    }
    save_json(out / "fit.json", content)
    print(f"\nwritten: {out / 'fit.json'}", flush=True)
    if figure:
        save_figure(out, "fit", fits.fit_figure(result, placed, kernel, lag))


def _kernel(
    beta: float | None,
    corpus: str | None,
    target: FitTarget,
    kernel: Summation,
    lag: Lag,
    max_lag: int,
) -> prediction.Kernel:
    """The kernel that `target` names, of a power law or measured on a corpus; prints what was
    measured.
    """
    if corpus is None:
        if target not in ("information", "correlation"):
            raise ValueError(
                f"target {target!r} is measured on a corpus, got no corpus: name one with --corpus"
            )
        return prediction.law(
            fits.PUBLISHED_BETA if beta is None else beta, target, kernel, lag, max_lag
        )
    if beta is not None:
        raise ValueError(f"beta {beta:g} and corpus {corpus!r}: give one of the two")
    from plkernel.data import corpora

    loaded = corpora.load(corpus)
    with cli.progress_bar(corpus) as progress:
        options: dict[str, Any] = {"threads": os.cpu_count() or 1, "progress": progress}
        if target == "predictive":
            found = prediction.predictive(loaded, loaded.bytes, max_lag, **options)
        else:
            found = prediction.information(
                loaded, loaded.bytes, target, kernel, lag, max_lag, **options
            )
    print("\n".join(f"{corpus}: {line}" for line in found.told), end="\n\n", flush=True)
    return found._replace(measured={"corpus": asdict(loaded), **(found.measured or {})})


def render(result: fits.FitResult, of: str = "") -> str:
    """The table that `fit` prints; `of` what its target is."""
    best, active, target, proof = (
        result.optimal_scores,
        result.active,
        result.target,
        result.certificate,
    )
    half_lives, count = result.optimal.half_lives(), len(result.optimal.rates)
    figures = {
        "active nodes (weight > 1e-8 of the largest)": f"{len(active.rates)} of {count}",
        "their half-lives, steps": ", ".join(
            f"{v:.1f}" if v >= 1 else f"{v:.2g}" for v in active.half_lives()
        ),
        f"share of weight on half-life {half_lives[0]:.3g}": f"{result.fastest_share:.2%}",
        "optimal weights: R0 (as fitted)": f"{best.r0:.4f}",
        "optimal weights: R1 / R* / Elog": _scores(best),
        "optimal weights: linear R²": f"{best.r_linear:.4f}",
        "largest relative error": (
            f"{_percent(best.max_relative_error)} at t = {best.worst_lag:.0f}"
        ),
    }
    if proof:
        least = f"the least error of so many terms is at least {_percent(proof.smallest)}"
        level = "level, the best sum of so many terms" if proof.level else f"NOT LEVEL: {least}"
        figures[f"smallest of {proof.needed} alternating errors over the largest"] = (
            f"{proof.ratio:.5f}, {level}"
        )
    figures["uniform weights: R1 / R* / Elog"] = _scores(result.uniform_scores)
    figures[f"uniform over true kernel at t = {target.max_lag:.0f}"] = (
        f"{result.uniform_excess:.1f}x"
    )
    title = (
        f"{of}{target.label} on t = {target.lags[0]:g}..{target.max_lag:.0f} by {result.method}:"
        f" {count} half-lives"
    )
    return cli.text_table([f"{title} up to {half_lives[-1]:.4g}", "value"], list(figures.items()))


def _scores(scores: Scores) -> str:
    r2 = [
        f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}" for value in (scores.r1, scores.r_star)
    ]
    return f"{' / '.join(r2)} / {scores.e_log:.3g}"


def _percent(value: float) -> str:
    return f"{value:.1%}" if value >= 1e-3 else f"{value:.2e}"


if __name__ == "__main__":
    cli.main(command)
