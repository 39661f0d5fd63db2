"""python -m plkernel.fit: a kernel as a sum of exponentials, and the decays of channels for it."""

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from plkernel import __version__
from plkernel.analysis import fit as fits
from plkernel.analysis import prediction
from plkernel.analysis.exponentials import Scores, check_design
from plkernel.analysis.fit import fit
from plkernel.analysis.nodes import (
    BETA,
    POWERS,
    Gain,
    Lag,
    Nodes,
    Placement,
    Summation,
    check_placement_options,
    output_std,
)
from plkernel.common import cli
from plkernel.common.files import FigureFormat, check_apart, check_folder, save_figure, save_json

__all__ = ["command", "fit", "render"]

SCORES = """(R0: R² of the logarithms, as fitted; R1: with both kernels 1 at t = 1;
R*: after the best common scale; Elog: half the range of ln(kernel / target).
R near 1 and Elog near 0 are good.)"""

LARGE = 1e4
"""Ratios from here on are written as powers of ten."""

FitTarget = Literal["information", "correlation", "curve", "predictive"]


class Channels(NamedTuple):
    """The nodes of channels, how they were asked for, and how well they follow the kernel."""

    nodes: Nodes
    placement: Placement
    gain: Gain
    kernel: Summation
    lag: Lag
    scores: Scores


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
    formats: tuple[FigureFormat, ...] = ("pdf", "png"),
) -> None:
    """Fit a kernel by a sum of exponentials, and place the half-lives of channels that carry it.

    The kernel is t**-beta or is measured on a corpus. The command prints a table and writes
    fit.json and a figure; its defaults reproduce the published analysis. Half-lives and lags are in
    bytes, which are the steps of a layer without patches. R0 is the R² of the logarithms as fitted,
    R1 that with both kernels 1 at t = 1, R* that after the best common scale; Elog is half the
    range of ln(kernel / target). An arm of a training spec loads the channels with node_file =
    "OUT/fit.json".

    Args:
        beta: Exponent of the mutual information; 1.15, the published one, unless a corpus is named.
        corpus: Measure the kernel on this corpus: beta as plkernel.measure finds it on lags 1..500,
            or what target names.
        target: What the kernel is. information is t**-beta, and correlation is t**-(beta/2), as
            information is quadratic in correlation. A corpus allows two more: curve is its
            information in the shape that plkernel.measure finds, and predictive is the weights of
            its best linear predictor.
        kernel: How channels add up: coherent is their plain sum, rms the root of the sum of
            squares, which random signs of B and C give, as at initialisation.
        lag: The weight of lag t in a channel of decay a: state is a**t, distance is a**(t-1), which
            a prediction sees, and bonus is a**(t-2), which an RWKV with its bonus sees.
        max_lag: The kernel is fitted and scored on t = 1..max_lag.
        terms: Number of exponentials, which are then those with the smallest largest relative error
            over the real lags 1..max-lag (minimax; least squares where the kernel has errors). If
            left out, the published fit is made: non-negative least squares on 256 half-lives from 1
            to 2048.
        gain: The factor of the input in the recurrence: none is 1, ema is 1-a, lru is
            sqrt(1-a^2), and clamp is min(1, lambda).
        nodes: How half-lives are placed. log-spaced and concentrated are the published ones, with a
            projection that corrects the gain, or that is fitted where the kernel is no power law.
            quantile takes quantiles of the measure of the power law; terms shares the channels out
            among the fitted exponentials.
        channels: Number of channels, which is the width of the model.
        tempering: For quantile and terms: 1 puts the power law into the density of channels, 0 into
            the projection; 0.5 if left out.
        loss: For quantile: share of the kernel that is lost beyond either end; 0.05 if left out.
        out: Folder for fit.json and the figure.
        figure: Draw the figure.
        formats: Formats of the figure.
    """
    check_placement_options(nodes, tempering=tempering, loss=loss)
    check_folder(out, "out")
    check_apart({"out": out / "fit.json"}, [corpus])
    if corpus is not None:
        from plkernel.data.names import check_outside

        check_outside({"out": out}, [corpus])
    check_design(max_lag, channels, "channels")  # before any node is placed
    wanted = _kernel(beta, corpus, target, kernel, lag, max_lag)
    result = fit(values=wanted.target.raised(POWERS[kernel]), terms=terms)
    placed, scores = fits.place_channels(
        channels,
        nodes,
        wanted.target,
        wanted.law,
        gain,
        kernel,
        lag,
        terms=result.active,
        tempering=tempering,
        loss=loss,
    )
    written = Channels(placed, nodes, gain, kernel, lag, scores)
    power = "square of the rms kernel, " if kernel == "rms" else ""
    told = _told(written, wanted.target.label)
    print(f"{render(result, power)}\n{SCORES}\n\n{told}", flush=True)
    save_json(out / "fit.json", _content(wanted, target, result, written))
    print(f"\nwritten: {out / 'fit.json'}", flush=True)
    if figure:
        draw = partial(fits.fit_figure, result, placed, kernel, lag)
        save_figure(out, "fit", draw, formats)


def _told(channels: Channels, label: str) -> str:
    """The sentence on the channels; `label` names the kernel that they carry."""
    half_lives = channels.nodes.half_lives()
    projection = channels.nodes.projection
    return (
        f"Channels written: {len(half_lives)} {channels.placement}, gain '{channels.gain}',"
        f" {channels.kernel} kernel {label} seen by {channels.lag}: half-lives"
        f" {min(half_lives):.3g} to {max(half_lives):.4g}, projection range"
        f" {max(projection) / min(projection):.4g}, R1 / R* / Elog {_scores(channels.scores)}"
    )


def _content(
    wanted: prediction.Kernel, target: FitTarget, result: fits.FitResult, channels: Channels
) -> dict[str, Any]:
    """The content of fit.json: the kernel, its fit, and the nodes that an arm loads."""
    law = wanted.law
    shape = wanted.target
    aim = asdict(law) if law else {"kernel": channels.kernel, "lag": channels.lag}
    return {
        "plkernel": __version__,
        "beta": law.beta if law else None,
        "exponent": shape.beta,
        "kernel": None if law else asdict(shape),
        "target": target,
        "gain": channels.gain,
        "max_lag": int(result.target.max_lag),
        "method": result.method,
        "active_nodes": len(result.active.rates),
        "active_half_lives": result.active.half_lives().tolist(),
        "fastest_share": result.fastest_share,
        "uniform_excess": result.uniform_excess,
        "certificate": asdict(result.certificate) if result.certificate else None,
        "optimal": {**asdict(result.optimal), "scores": asdict(result.optimal_scores)},
        "uniform": {"scores": asdict(result.uniform_scores)},
        "nodes": asdict(channels.nodes),
        "nodes_aim": {
            **aim,
            "placement": channels.placement,
            "output_std": output_std(channels.nodes),
            "scores": asdict(channels.scores),
        },
        "measured": wanted.measured,
    }


def _kernel(
    beta: float | None,
    corpus: str | None,
    target: FitTarget,
    kernel: Summation,
    lag: Lag,
    max_lag: int,
) -> prediction.Kernel:
    """The kernel that `target` names, of a power law or measured; prints what was measured."""
    if corpus is None:
        if target not in ("information", "correlation"):
            raise ValueError(
                f"target must be information or correlation without a corpus, got {target!r};"
                " name one with --corpus"
            )
        return prediction.law(BETA if beta is None else beta, target, kernel, lag, max_lag)
    if beta is not None:
        raise ValueError(
            f"beta must be left out where a corpus is named, got {beta:g} and {corpus!r};"
            " give one of the two"
        )
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
    """The table that `fit` prints; `of` says what its target is, such as a square."""
    best = result.optimal_scores
    active = result.active
    target = result.target
    proof = result.certificate
    half_lives = result.optimal.half_lives()
    count = len(result.optimal.rates)
    figures = {
        "active nodes (weight > 1e-8 of the largest)": f"{len(active.rates)} of {count}",
        "their half-lives, steps": ", ".join(map(_half_life, active.half_lives())),
        f"share of weight on half-life {half_lives[0]:.3g}": f"{result.fastest_share:.2%}",
        "optimal weights: R0 (as fitted)": f"{best.r0:.4f}",
        "optimal weights: R1 / R* / Elog": _scores(best),
        "optimal weights: linear R²": f"{best.r_linear:.4f}",
        "largest relative error": (
            f"{_percent(best.max_relative_error)} at t = {best.worst_lag:.0f}"
        ),
    }
    if proof:
        figures[f"smallest of {proof.needed} alternating errors over the largest"] = _level(proof)
    figures["uniform weights: R1 / R* / Elog"] = _scores(result.uniform_scores)
    excess = result.uniform_excess
    figures[f"uniform over true kernel at t = {target.max_lag:.0f}"] = (
        f"{excess:.1f}x" if excess < LARGE else f"{excess:.3g}x"
    )
    title = (
        f"{of}{target.label} on t = {target.lags[0]:g}..{target.max_lag:.0f} by {result.method}:"
        f" {count} half-lives"
    )
    return cli.text_table([f"{title} up to {half_lives[-1]:.4g}", "value"], list(figures.items()))


def _level(proof: fits.Certificate) -> str:
    """Words on how near a sum is to the best of so many terms, and what is known of that."""
    if proof.is_exact:
        return "exact but for rounding"
    if proof.level:
        return f"{proof.ratio:.5f}, level, the best sum of so many terms"
    if not proof.smallest:
        return "NOT LEVEL: too few errors alternate to tell how near it is to the best"
    least = f"the least error of so many terms is at least {_percent(proof.smallest)}"
    return f"{proof.ratio:.5f}, NOT LEVEL: {least}"


def _half_life(steps: float) -> str:
    """A half-life with one decimal; below one step with two digits."""
    return f"{steps:.1f}" if steps >= 1 else f"{steps:.2g}"


def _scores(scores: Scores) -> str:
    """R1 / R* / Elog."""
    return f"{_r2(scores.r1)} / {_r2(scores.r_star)} / {scores.e_log:.3g}"


def _r2(value: float) -> str:
    """An R² with four decimals; of a bad fit, at -1 or below, two are enough."""
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}"


def _percent(value: float) -> str:
    """A share in percent; below a thousandth, or far above one, as a power of ten."""
    return f"{value:.1%}" if 1e-3 <= value < LARGE else f"{value:.2e}"


if __name__ == "__main__":
    cli.main(command)
