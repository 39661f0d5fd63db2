"""One measurement of a corpus: its decay curve, exponents on stated ranges, and a verdict."""

import typing
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from plkernel.analysis.information.counts import Bytes
from plkernel.analysis.information.curve import BLOCKS, MAX_LAG, DecayCurve, decay_curves, log_lags
from plkernel.analysis.information.estimate import Estimator
from plkernel.analysis.information.laws import PowerLaw, Verdict, fit_power_law, judge, local_slopes, log_log_slope

Unit = Literal["byte", "word"]
Protocol = Literal["default", "published"]
Range = tuple[int, int]

STATED: Range = (1, 500)
"""The range of the published figures, and of the exponent that `fit --corpus` takes."""
OTHER_RANGES: tuple[Range, ...] = ((1, 100), (100, 1000))
CORRELATION_RANGE: Range = (1, 100)
PUBLISHED_RANGE: Range = (1, 500)


class Described(typing.Protocol):
    """Origin of the symbols: `plkernel.data.corpora.Corpus`, or anything with a name and a source."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class FittedExponent:
    """One exponent: the range and grid of lags fitted, and the law; `exact` where the corpus tells it."""

    label: str
    law: PowerLaw
    exact: float | None = None


@dataclass(frozen=True)
class Measurement:
    """Result of `measure_corpus`; `law` is the exponent on the stated range, None where nothing decays."""

    corpus: Described
    estimator: Estimator
    information: DecayCurve
    correlation: DecayCurve
    law: PowerLaw | None
    rows: tuple[FittedExponent, ...]
    verdict: Verdict
    exact: tuple[float, ...] | None

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for JSON."""
        lags, slopes, errors = local_slopes(self.information)
        return {
            "corpus": self.corpus.to_dict(),
            "law": self.law and self.law.to_dict(),
            "fits": [{"label": row.label, **row.law.to_dict(), "exact": row.exact} for row in self.rows],
            "verdict": {**asdict(self.verdict), "is_power_law": self.verdict.is_power_law},
            "local_slopes": {"lags": lags.tolist(), "slopes": slopes.tolist(), "errors": errors.tolist()},
            "information": self.information.to_dict(),
            "correlation": self.correlation.to_dict(),
            "exact_information": self.exact and list(self.exact),
        }


def measure_corpus(
    corpus: Described,
    data: Bytes,
    *,
    unit: Unit = "byte",
    estimator: Estimator = "jackknife",
    stated: Range = STATED,
    max_lag: int = MAX_LAG,
    blocks: int = BLOCKS,
    protocol: Protocol = "default",
    exact: Callable[[Any], Any] | None = None,
    threads: int = 1,
    progress: Callable[[float], Any] | None = None,
) -> Measurement:
    """Measure the symbols `data` (n,) uint8 of `corpus` on log-spaced lags up to `max_lag`.

    exact     gives the true information in nats at an array of lags, where it is known
    protocol  'published' adds the exponents as published: plug-in, least squares on logarithms, lags 1..500, on every
              lag and on log-spaced ones of the same curve: the grid alone changes beta

    Other options as of `decay_curves`, which raises ValueError.
    """
    report = progress or (lambda share: None)
    shares = (1.0, 0.0) if protocol == "default" else (0.15, 0.85)
    options: dict[str, Any] = {"unit": unit, "blocks": blocks, "threads": threads}
    ends = [end for limits in (stated, *OTHER_RANGES) for end in limits if end <= max_lag]
    lags = np.union1d(log_lags(max_lag), ends)  # so that a stated range is measured from end to end
    information, correlation = decay_curves(
        data, lags, estimator=estimator, progress=lambda share: report(share * shares[0]), **options
    )
    verdict = judge(information)
    wanted: dict[str, tuple[DecayCurve, Range]] = {}
    for limits in (stated, *OTHER_RANGES):
        if limits[1] <= max_lag:
            wanted.setdefault(_label(limits), (information, limits))
    if verdict.last_lag > verdict.first_lag:
        above = (verdict.first_lag, verdict.last_lag)
        wanted[f"{_label(above)}, what stands out"] = (information, above)
    if CORRELATION_RANGE[1] <= max_lag:
        wanted[f"correlation, {_label(CORRELATION_RANGE)}"] = (correlation, CORRELATION_RANGE)
    rows = []
    for label, (curve, limits) in wanted.items():
        try:
            law = fit_power_law(curve, limits)
        except ValueError:  # too few positive values: this range shows nothing
            continue
        slope = np.nan
        if exact and curve is information:
            used = [lag for lag in curve.lags if limits[0] <= lag <= limits[1] and lag not in law.dropped]
            slope = log_log_slope(used, exact(np.array(used)))
        rows.append(FittedExponent(label, law, slope if np.isfinite(slope) else None))
    if protocol == "published":
        last = min(PUBLISHED_RANGE[1], max_lag)
        plugin, _ = decay_curves(
            data,
            np.arange(1, last + 1),
            estimator="plugin",
            progress=lambda share: report(share * shares[1]),
            **options,
        )
        for grid, curve in (("every lag", plugin), ("log-spaced", plugin.at(log_lags(last).tolist()))):
            law = fit_power_law(curve, (1, last), weights=np.ones(len(curve.lags)))
            rows.append(FittedExponent(f"published, {_label((1, last))}, {grid}", law))
    stated_law = next((row.law for row in rows if row.label == _label(stated)), None)
    true = tuple(np.asarray(exact(lags)).tolist()) if exact else None
    return Measurement(corpus, estimator, information, correlation, stated_law, tuple(rows), verdict, true)


def _label(limits: Range) -> str:
    return f"lags {limits[0]}..{limits[1]}"
