"""python -m plkernel.fit: a power law, the exponentials that carry it, and the decays and weights that follow."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from plkernel import __version__, cli
from plkernel.analysis.exponentials import (
    ExponentialSum,
    Floats,
    Scores,
    check_design,
    fit_nnls,
    integer_lags,
    power_law,
    score,
)
from plkernel.analysis.nodes import (
    Gain,
    Nodes,
    check_beta,
    check_half_lives,
    log_spaced,
    place,
    rates_from_half_lives,
)
from plkernel.storage import atomic_write, save_json
from plkernel.tables import text_table

Method = Literal["nnls"]
PUBLISHED_BETA = 1.15
GAINS: tuple[Gain, ...] = ("none", "ema", "lru")
CHANNEL_HALF_LIVES = (1.0, 2000.0)
# The least value a kernel may reach on the lags asked for: below it, float64 loses relative accuracy.
SMALLEST_TARGET = 1e-300
# The least fall of ln(target) over the lags that can be told from none.
FLATTEST_TARGET = 1e-6


@dataclass(frozen=True)
class FitResult:
    """What one fit found: `optimal` against `uniform` weights on the same decays, both scored on t = 1..max_lag."""

    beta: float
    max_lag: int
    optimal: ExponentialSum
    uniform: ExponentialSum
    optimal_scores: Scores
    uniform_scores: Scores

    @property
    def active(self) -> ExponentialSum:
        """The terms that carry more than 1e-8 of the largest weight."""
        return self.optimal.active()

    @property
    def fastest_share(self) -> float:
        """The share of the total weight on the shortest half-life, in [0, 1]."""
        return self.optimal.weights[0] / sum(self.optimal.weights)

    @property
    def uniform_excess(self) -> float:
        """Uniform kernel over true kernel at t = max_lag, both 1 at t = 1."""
        first, last = self.uniform.kernel([1, self.max_lag])
        return float(last / first * self.max_lag**self.beta)


def fit_exponentials(beta: float, max_lag: int, half_lives: Floats) -> FitResult:
    """Fit t**-beta on t = 1..max_lag by non-negative weights on `half_lives`; compare with uniform weights."""
    rates = rates_from_half_lives(half_lives)
    lags = integer_lags(max_lag)
    target = power_law(lags, beta)
    optimal = fit_nnls(rates, beta, max_lag)
    uniform = ExponentialSum(tuple(rates.tolist()), (1.0,) * rates.size)
    scores = [score(k.log_kernel(lags), target, lags) for k in (optimal, uniform)]
    return FitResult(beta, max_lag, optimal, uniform, *scores)


@dataclass(frozen=True)
class Weighting:
    """One way to weight log-spaced channels, the input gain it belongs to, and its scores under the gain in use."""

    formula: str
    belongs_to: str
    nodes: Nodes
    scores: Scores

    @property
    def projection_range(self) -> float:
        """Largest over smallest multiplier."""
        return max(self.nodes.projection) / min(self.nodes.projection)


def weightings(beta: float, max_lag: int, channels: int, gain: Gain) -> list[Weighting]:
    """Uniform, published and gain-corrected projection weights of log-spaced channels, scored under `gain`."""
    shortest, longest = CHANNEL_HALF_LIVES
    lags = integer_lags(max_lag)
    target = power_law(lags, beta)

    def entry(formula: str, belongs_to: str, weights_of: Nodes) -> Weighting:
        nodes = Nodes(weights_of.rates, weights_of.projection, gain)
        return Weighting(formula, belongs_to, nodes, score(nodes.kernel().log_kernel(lags), target, lags))

    def nodes(projection: Any, assumed: Gain) -> Nodes:
        return place(channels, projection=projection, gain_name=assumed, beta=beta, shortest=shortest, longest=longest)

    corrected = {"none": "lambda**beta", "ema": "lambda**beta/(1-a)", "lru": "lambda**beta/sqrt(1-a^2)"}
    return [
        entry("1 (uniform)", "-", nodes("uniform", gain)),
        entry("lambda**(beta-1) (published)", "ema", nodes("published", gain)),
        *(entry(corrected[name], name, nodes("gain-corrected", name)) for name in GAINS),
    ]


def fit(
    beta: float | None = None,
    corpus: str | None = None,
    max_lag: int = 512,
    nodes: int = 256,
    min_half_life: float = 1.0,
    max_half_life: float = 2048.0,
    method: Method = "nnls",
    gain: Gain = "none",
    out: Path = Path("runs/out/fit"),
    figure: bool = True,
) -> None:
    """Fit t**-beta by a non-negative sum of exponentials; print the table, write fit.json and the figure.

    The defaults reproduce the published analysis. Half-lives and lags are in steps of the layer (bytes when there
    are no patches). R0 is log-log R² as fitted, R1 with both kernels 1 at t = 1, R* after the best common scale,
    Elog half the range of ln(kernel / t**-beta).

    Args:
        beta: Exponent of the target, t**-beta; 1.15, the published one, unless a corpus is named.
        corpus: Measure beta on this corpus instead, as plkernel.measure does, on lags 1..500.
        max_lag: The target is fitted and scored on t = 1..max_lag.
        nodes: How many half-lives, log-spaced, the fit may use; also the number of channels weighted.
        min_half_life: Shortest half-life of the fit, in steps.
        max_half_life: Longest half-life of the fit, in steps.
        method: nnls: non-negative least squares on the linear scale (the published method).
        gain: What the recurrence multiplies its input by: none 1, ema 1-a, lru sqrt(1-a^2).
        out: Folder for fit.json and the figure fit.pdf, fit.png, fit.svg.
        figure: Draw the figure.
    """
    measured = _measured(beta, corpus)
    if measured:
        beta = float(measured["law"]["beta"])
    beta = PUBLISHED_BETA if beta is None else beta
    _check(beta, max_lag, nodes, min_half_life, max_half_life)
    result = fit_exponentials(beta, max_lag, log_spaced(nodes, min_half_life, max_half_life))
    table = weightings(beta, max_lag, nodes, gain)
    print(render(result, table, gain), flush=True)
    save_json(out / "fit.json", {**report(result, table, method, gain), "measured": measured})
    print(f"\nwritten: {out / 'fit.json'}", flush=True)
    if figure:
        from plkernel.analysis.figures import rendered
        from plkernel.analysis.fit_figure import fit_figure

        drawing = fit_figure(result.optimal, {w.formula: w.nodes for w in table}, beta, max_lag, gain)
        for kind, content in rendered(drawing).items():
            atomic_write(out / f"fit.{kind}", content)
        print(f"figure:  {out / 'fit.pdf'}, .png, .svg")


def _measured(beta: float | None, corpus: str | None) -> dict[str, Any] | None:
    """What `measure` finds in the corpus, told in two lines; None when no corpus is named."""
    if corpus is None:
        return None
    if beta is not None:
        raise ValueError(f"beta {beta:g} and corpus {corpus!r}: give one of the two")
    from plkernel import corpora
    from plkernel.measurement import measure_corpus

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
    return {"corpus": loaded.to_dict(), "law": law.to_dict(), "verdict": found.verdict.sentence}


def render(result: FitResult, table: list[Weighting], gain: Gain) -> str:
    """The two tables that `fit` prints."""
    optimal, uniform, active = result.optimal_scores, result.uniform_scores, result.active
    half_lives = ", ".join(f"{value:.1f}" for value in active.half_lives())
    available = len(result.optimal.rates)
    longest = result.optimal.half_lives()[-1]
    figures = [
        ["active nodes (weight > 1e-8 of the largest)", f"{len(active.rates)} of {available}"],
        ["their half-lives, steps", half_lives],
        [f"share of weight on half-life {result.optimal.half_lives()[0]:g}", f"{result.fastest_share:.2%}"],
        ["optimal weights: R0 (as fitted)", f"{optimal.r0:.4f}"],
        ["optimal weights: R1 / R* / Elog", _scores(optimal)],
        ["optimal weights: linear R²", f"{optimal.r_linear:.4f}"],
        [
            "largest relative error",
            f"{optimal.max_relative_error:.1%} at t = {optimal.worst_lag:.0f}",
        ],
        ["uniform weights: R1 / R* / Elog", _scores(uniform)],
        [f"uniform over true kernel at t = {result.max_lag}", f"{result.uniform_excess:.1f}x"],
        [
            f"lambda**(beta-1), largest over smallest, half-lives {CHANNEL_HALF_LIVES[0]:g}..{CHANNEL_HALF_LIVES[1]:g}",
            f"{table[1].projection_range:.2f}",
        ],
    ]
    title = f"t**-{result.beta:g} on t = 1..{result.max_lag}: {available} half-lives up to {longest:g}"
    heading = (
        f"Projection weights of {len(table[0].nodes.rates)} log-spaced channels "
        f"under input gain '{gain}' (a weighting is right under the gain it belongs to)"
    )
    rows = [[w.formula, w.belongs_to, f"{w.projection_range:.4g}", *_scores(w.scores).split(" / ")] for w in table]
    weights = text_table(["weight", "belongs to gain", "range", "R1", "R*", "Elog"], rows)
    return "\n".join([text_table([title, "value"], figures), "", heading, weights])


def report(result: FitResult, table: list[Weighting], method: Method, gain: Gain) -> dict[str, Any]:
    """Everything `fit` found, as JSON."""
    return {
        "plkernel": __version__,
        "beta": result.beta,
        "max_lag": result.max_lag,
        "method": method,
        "gain": gain,
        "active_nodes": len(result.active.rates),
        "active_half_lives": result.active.half_lives().tolist(),
        "fastest_share": result.fastest_share,
        "uniform_excess": result.uniform_excess,
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
    }


def _scores(scores: Scores) -> str:
    return f"{_r2(scores.r1)} / {_r2(scores.r_star)} / {scores.e_log:.3f}"


def _r2(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}"


def _check(beta: float, max_lag: int, nodes: int, min_half_life: float, max_half_life: float) -> None:
    check_beta(beta)
    check_half_lives(min_half_life, max_half_life)
    if nodes < 2:
        raise ValueError(f"nodes must be at least 2, got {nodes}")
    if max_lag < 3:
        raise ValueError(f"max_lag must be at least 3, got {max_lag}")
    check_design(max_lag, nodes)  # before any node is placed
    if beta * np.log(max_lag) < FLATTEST_TARGET:
        raise ValueError(f"beta {beta:g} leaves t**-beta flat up to max_lag {max_lag}: use a larger beta or max_lag")
    if beta * np.log(max_lag) > -np.log(SMALLEST_TARGET):
        raise ValueError(
            f"beta {beta:g} makes max_lag**-beta smaller than {SMALLEST_TARGET:g} at max_lag {max_lag}: "
            "use a smaller beta or max_lag"
        )


if __name__ == "__main__":
    cli.main(fit)
