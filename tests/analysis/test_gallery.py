"""Kernels at the start: the committed table, closed forms and layers of deep models."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import beta as beta_function

from plkernel.analysis.gallery import gallery_figure, initialisations, profile

RECORD = Path(__file__).parents[2] / "runs/records/gallery/gallery.json"
LAGS = np.array([1.0, 2, 7, 50, 333, 2048])
ENTRIES = {item.name: item for item in initialisations()}
DT = np.geomspace(1e-3, 1e-1, 20001)


def closed_forms() -> dict[str, tuple[np.ndarray, float]]:
    """The coherent kernel of an entry at `LAGS`, up to a factor, and how close its quantiles come.

    Mamba-1: dt log-uniform and gain dt, the sum of (exp(-n t dt_min) - exp(-n t dt_max)) / (n t).
    LRU on the disc: |a| squared is uniform. Gated delta nets: A uniform, the mean of exp(-A s t) is
    (1 - exp(-16 s t)) / (16 s t) from 0 on.
    """
    n, s, x = LAGS[:, None] * np.arange(1, 17), np.log1p(np.e), 16 * np.outer(LAGS, DT)

    def drawn(integrand: np.ndarray) -> np.ndarray:
        return np.asarray(np.trapezoid(integrand, np.log(DT), axis=1))

    return {
        "mamba-1": (((np.exp(-n * 1e-3) - np.exp(-n * 1e-1)) / n).sum(axis=1), 1e-14),
        "lru": (beta_function(LAGS / 2 + 1, 1.5), 5e-4),
        "gdn-qwen3-next": ((np.exp(-0.01 * s * LAGS) - np.exp(-16 * s * LAGS)) / LAGS, 1e-3),
        "gdn-fla": (drawn(-np.expm1(-x) / x), 1e-3),
        "kda": (drawn((np.exp(-x / 16) - np.exp(-x)) / x), 1e-3),
    }


def rms_forms() -> dict[str, tuple[np.ndarray, float]]:
    """The rms kernel, likewise."""
    b = 2 * LAGS[:, None] * np.arange(1, 17)
    low, high = ((1 + b * x) * np.exp(-b * x) / b**2 for x in (1e-3, 1e-1))
    return {
        "mamba-1": (np.sqrt((low - high).sum(axis=1)), 1e-14),
        "lru": (1 / np.sqrt((LAGS + 1) * (LAGS + 2)), 2e-13),
    }


def ratio(log_kernel: np.ndarray, closed_form: np.ndarray) -> float:
    """The largest relative difference of two kernels that are 1 at their first lag."""
    return float(
        np.abs(np.expm1(log_kernel - log_kernel[0] - np.log(closed_form / closed_form[0]))).max()
    )


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """The leaves of nested dictionaries and lists by their path."""
    if not isinstance(value, dict | list | tuple):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {leaf: one for key, inner in items for leaf, one in flat(inner, f"{path}/{key}").items()}


def test_every_profile_is_that_of_the_record() -> None:
    """Names, origins, half-lives, scores, slopes and memory of the committed table."""
    recorded = json.loads(RECORD.read_text())["entries"]
    for start, expected in zip(initialisations(), recorded, strict=True):
        leaves = flat(profile(start, 1.15, 2048))
        for path, value in flat(expected).items():
            value = math.inf if value is None else value
            assert leaves[path] == (
                pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
            ), path
        assert sum(start.shares) == pytest.approx(1)
        assert start.half_lives[0] <= np.log(2) / max(start.rates) * (1 + 1e-12)
        assert start.half_lives[1] >= np.log(2) / min(start.rates) * (1 - 1e-12)


def test_kernels_by_their_closed_forms() -> None:
    for name, (kernel, error) in closed_forms().items():
        assert ratio(ENTRIES[name].log_kernel(LAGS), kernel) < error, name
    for name, (kernel, error) in rms_forms().items():
        assert ratio(ENTRIES[name].log_kernel(LAGS, "rms"), kernel) < error, name


def test_a_wrong_exponent_fails() -> None:
    """Inverse gamma, whose mean over channels is (1 + t)**-0.56 without gain, falls nearly as
    t**-1.56 with it.
    """
    right, wrong = (
        profile(ENTRIES["inverse-gamma"], beta, 512)["scores"]["r_star"] for beta in (1.56, 0.5)
    )
    assert right > 0.99
    assert wrong < 0.7


def test_layers_of_deep_models() -> None:
    """RWKV's ln(-ln a) runs from -6 to -1 and is -6 + 5 / 2**p halfway; RWKV-7 rises by 5 in each
    head about a ramp.

    Half-lives of lightning attention grow by 2**(1/8) from head to head; HGRN is halfway between
    its bound and 1.
    """
    from plkernel.decays.families import Given, lightning

    for name, share in (("first", 0.0), ("middle", 12 / 23), ("last", 1.0)):
        speeds = np.log(ENTRIES[f"rwkv-{name}"].rates)
        assert (speeds[0], speeds[-1]) == pytest.approx((-6, -1))
        assert (speeds[511] + speeds[512]) / 2 == pytest.approx(
            -6 + 5 / 2 ** (0.7 + 1.3 * share), abs=1e-5
        )
        part = np.array(ENTRIES[f"rwkv7-{name}"].rates) / np.exp(-0.5)
        level = np.log(part / (1 - part))
        assert (level[0], level[-1]) == pytest.approx((-5.5 - 2.5, 0.5 + 2.5))
        ramp = -5.5 + 6 * (np.array([543, 544]) / 1023) ** (1 + share**0.3)
        assert (level[31 + 64 * 8] + level[32 + 64 * 8]) / 2 == pytest.approx(ramp.mean(), abs=1e-9)
    config = {"num_attention_heads": 64, "num_hidden_layers": 80}
    for name, layer in (("first", 0), ("middle", 40), ("last", 78)):
        rates = ENTRIES[f"lightning-{name}"].rates
        assert rates == pytest.approx(lightning(Given({}, config, layer)), rel=1e-9)
        assert np.divide(rates[:-1], rates[1:]) == pytest.approx(2 ** (1 / 8))
    for name, bound in (("first", 0), ("middle", 12 / 24), ("last", 23 / 24)):
        hgrn = ENTRIES[f"hgrn-{name}"]
        assert np.exp(-hgrn.rates[0]) == pytest.approx((1 + bound) / 2)
        assert hgrn.gains[0] == pytest.approx(1 - np.exp(-hgrn.rates[0]))


def test_every_curve_of_the_figure_is_the_kernel_that_its_label_names() -> None:
    """1 at lag 1: coherent solid, rms dotted, over the grey power law; beside each name its slope.
    The kernels are sums over the half-lives here.
    """
    chosen = initialisations()
    slopes = [0.01 * index for index in range(len(chosen))]
    figure = gallery_figure(chosen, slopes, 1.5, 512)
    told = {f"{one.name}  {slope:.2f}": one for one, slope in zip(chosen, slopes, strict=True)}
    seen = []
    for axes in filter(lambda axes: axes.lines, figure.axes):
        law, *curves = axes.lines
        lags = law.get_xdata()
        assert (lags[0], lags[-1]) == (pytest.approx(1), pytest.approx(512))
        np.testing.assert_allclose(law.get_ydata(), lags**-1.5, rtol=1e-12)
        for dotted, solid in zip(curves[::2], curves[1::2], strict=True):
            seen.append(solid.get_label())
            start = told[seen[-1]]
            assert start.family == axes.get_title() + axes.get_title("left")
            assert dotted.get_linestyle() != "-"
            assert solid.get_linestyle() == "-"
            assert dotted.get_color() == solid.get_color()
            for at in (0, 60, 199):
                decays = np.exp(-start.rates * (lags[at] - 1))
                first = start.shares * start.gains * np.exp(-start.rates)
                squares = start.shares * start.gains**2 * np.exp(-2 * start.rates)
                coherent = (first * decays).sum() / first.sum()
                rms = np.sqrt((squares * decays**2).sum() / squares.sum())
                # a sum of positive terms, each of an exponential with a large argument
                for line, kernel in ((solid, coherent), (dotted, rms)):
                    # the legend stands below a twentieth of the law at the last lag
                    drawn = kernel if kernel >= 512**-1.5 / 20 else np.nan
                    assert line.get_ydata()[at] == pytest.approx(drawn, rel=1e-9, nan_ok=True)
    assert sorted(seen) == sorted(told)
