"""python -m plkernel.fit: a kernel, the exponentials that carry it, and the decays and weights that follow."""

from pathlib import Path

from plkernel.analysis.exponentials.fits import BY_HALF_LIVES, PUBLISHED_HALF_LIVES, Method
from plkernel.analysis.exponentials.sums import Floats, check_design, terms_for
from plkernel.analysis.exponentials.targets import Target
from plkernel.analysis.nodes.fit import fit_exponentials, follow_target, place_channels, weightings
from plkernel.analysis.nodes.node_set import Aim, Gain, Lag, Summation
from plkernel.analysis.nodes.placement import Placement, check_half_lives, check_options, log_spaced
from plkernel.common import cli
from plkernel.common.files import atomic_write, check_folder, save_json
from plkernel.fitting.table import render, report
from plkernel.fitting.wanted import FitTarget, wanted


def fit(
    beta: float | None = None,
    corpus: str | None = None,
    target: FitTarget = "information",
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
    """Fit a kernel, t**-beta or one measured, by exponentials, place channels that carry it; table, fit.json, figure.

    The defaults reproduce the published analysis. Half-lives and lags are in bytes, which are the steps of a layer
    without patches. R0 is log-log R² as fitted, R1 with both kernels 1 at t = 1, R* after the best common scale, Elog
    half the range of ln(kernel / target). An arm of a training spec loads the channels: node_file = "OUT/fit.json".

    Args:
        beta: Exponent of the mutual information; 1.15, the published one, unless a corpus is named.
        corpus: Measure this corpus instead: beta as plkernel.measure does, on lags 1..500, or what target names.
        target: information: the kernel is t**-beta; correlation: t**-(beta/2), as information is quadratic in it.
            Of a corpus also: curve: its information in the shape that plkernel.measure finds, a broken power law for
            one; correlation-curve: the root of that; predictive: the weights of its best linear predictor.
        kernel: coherent: the plain sum over channels; rms: for random signs of B and C, as at initialisation.
        lag: state: lag t is seen as a**t; distance: as a**(t-1), which is what a prediction sees;
            bonus: as a**(t-2), which it sees of the state of an RWKV.
        max_lag: The target is fitted and scored on t = 1..max_lag.
        method: nnls: the published fit, linear, weights on a grid of half-lives; nnls-relative: relative errors;
            minimax: K terms with the least largest relative error; least-squares, quadrature, trapezoid. Left out,
            minimax with --terms or --tolerance (least-squares for a target with errors), nnls otherwise.
        terms: K, how many exponentials.
        tolerance: Largest relative error instead of K, which then comes from the closed form.
        grid: nnls and nnls-relative: how many half-lives, log-spaced, the fit may use; 256 if left out.
        min_half_life: nnls and nnls-relative: shortest half-life of the grid; 1 if left out.
        max_half_life: nnls and nnls-relative: longest half-life of the grid; 2048 if left out.
        gain: What the recurrence multiplies its input by: none 1, ema 1-a, lru sqrt(1-a^2), clamp min(1, lambda).
        nodes: Channels: log-spaced or concentrated (published), gain-corrected, or fitted where the target is no power
            law, and so chrono (forget gates up to max_lag) and inverse-gamma (time scales of an LSTM); quantile: at the
            quantiles of the law's own measure; terms: shared out among the fitted exponentials.
        channels: How many, the width of the model.
        tempering: quantile and terms: 1 puts the law into the density of channels, 0 into the projection; 0.5 if
            left out.
        loss: quantile: share of the kernel lost beyond either end; 0.05 if left out.
        out: Folder for fit.json and the figure fit.pdf, fit.png, fit.svg.
        figure: Draw the figure.
    """
    check_options(nodes, tempering=tempering, loss=loss)
    check_folder(out, "out")
    chosen = wanted(beta, corpus, target, kernel, lag, max_lag)
    aim, added = chosen.aim, chosen.kernel.raised(chosen.aim.power)
    method, terms = _choose(method, terms, tolerance, added)
    half_lives = _grid(method, grid, min_half_life, max_half_life, max_lag)
    if channels < 2:
        raise ValueError(f"channels must be at least 2, got {channels}")
    check_design(max_lag, channels)
    if chosen.told:
        print("\n".join(chosen.told), end="\n\n", flush=True)
    result = fit_exponentials(added, method, terms, half_lives)
    found = result.optimal.active()
    if isinstance(aim, Aim):
        table = weightings(aim.beta, max_lag, channels, gain)
        placed = place_channels(channels, nodes, aim, gain, max_lag, tempering=tempering, loss=loss, terms=found)
    else:
        table = []
        placed = follow_target(channels, nodes, chosen.kernel, aim, gain, tempering=tempering, terms=found)
    print(render(chosen, result, table, placed), flush=True)
    save_json(out / "fit.json", {**report(chosen, result, table, placed), "target": target})
    print(f"\nwritten: {out / 'fit.json'}", flush=True)
    if figure:
        from plkernel.analysis.figures.fit import fit_figure
        from plkernel.analysis.figures.style import rendered

        shown = {weighting.formula: weighting.nodes for weighting in table} or {"channels written": placed.nodes}
        drawing = fit_figure(result.optimal, shown, result.target, gain, result.method)
        for kind, content in rendered(drawing).items():
            atomic_write(out / f"fit.{kind}", content)
        print(f"figure:  {out / 'fit.pdf'}, .png, .svg")


def _choose(
    method: Method | None, terms: int | None, tolerance: float | None, target: Target
) -> tuple[Method, int | None]:
    """The method and the number of its terms, from what was given of three options."""
    if terms is not None and tolerance is not None:
        raise ValueError(f"terms {terms} and tolerance {tolerance:g}: give one of the two")
    if method is None:
        free: Method = "minimax" if target.errors is None else "least-squares"
        method = "nnls" if terms is None and tolerance is None else free
    if method in BY_HALF_LIVES:
        if terms is not None or tolerance is not None:
            raise ValueError(f"method {method!r} chooses its terms from the grid: leave out terms and tolerance")
        return method, None
    if tolerance is not None:
        if target.beta is None:
            raise ValueError(f"tolerance {tolerance:g} needs a power law, and {target.label} is none: give --terms")
        terms = terms_for(target.beta, target.max_lag, tolerance)
    if terms is None:
        raise ValueError(f"method {method!r} needs --terms or --tolerance")
    return method, terms


def _grid(
    method: Method, count: int | None, shortest: float | None, longest: float | None, max_lag: int
) -> Floats | None:
    """The half-lives that the fit may use; None where the method places its own."""
    given = {"grid": count, "min_half_life": shortest, "max_half_life": longest}
    if method not in BY_HALF_LIVES:
        for name, value in given.items():
            if value is not None:
                raise ValueError(
                    f"{name} {value:g} belongs to methods {' and '.join(BY_HALF_LIVES)}, got method {method!r}, which "
                    "places its own half-lives: leave it out"
                )
        return None
    default_shortest, default_longest, default_count = PUBLISHED_HALF_LIVES
    ends = default_shortest if shortest is None else shortest, default_longest if longest is None else longest
    check_half_lives(*ends)
    if (count := default_count if count is None else count) < 2:
        raise ValueError(f"grid must be at least 2, got {count}")
    check_design(max_lag, count)  # before any node is placed
    return log_spaced(count, *ends)


if __name__ == "__main__":
    cli.main(fit)
