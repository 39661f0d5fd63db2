"""Random signs: second moments of the kernel and of the output, by formula, by simulation and by table."""

import numpy as np
import pytest
from node_kernels import kernel_exponent, rms_kernel

from plkernel.analysis.nodes.moments import output_std, scaled_to
from plkernel.analysis.nodes.node_set import Nodes, gain_at
from plkernel.analysis.nodes.placement import local_spacing, place

GAINS = ("none", "ema", "lru", "clamp")
CONDITIONS = (("log-spaced", "uniform"), ("log-spaced", "published"), ("concentrated", "published"))
# rms slope over lags 4..512 and output standard deviation of conditions 1, 2, 3, as known.
TABLE = {
    (1, "none"): ("-.18", "13.9"),
    (1, "ema"): ("-.98", ".213"),
    (1, "lru"): ("-.52", "1.00"),
    (2, "none"): ("-.26", "8.86"),
    (2, "ema"): ("-1.13", ".314"),
    (2, "lru"): ("-.65", "1.05"),
    (3, "none"): ("-.28", "7.29"),
    (3, "ema"): ("-1.23", ".536"),
    (3, "lru"): ("-.77", "1.06"),
}


def condition(number: int, gain: str) -> Nodes:
    placement, projection = CONDITIONS[number - 1]
    return place(256, placement=placement, projection=projection, gain=gain)


def printed(value: float, text: str) -> bool:
    return abs(value - float(text)) <= 0.501 * 10.0 ** -len(text.partition(".")[2])


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_published_conditions_with_random_signs(case: tuple[int, str]) -> None:
    nodes = condition(*case)
    slope, std = TABLE[case]
    assert printed(-kernel_exponent(nodes, "rms", 4, 512), slope)
    assert printed(output_std(nodes), std)


def test_mean_one_does_not_keep_the_output_scale() -> None:
    """1 : .64 : .53 without gain and 1 : 1.47 : 2.5 under EMA, though every projection has mean 1."""
    for gain, known in {"none": ("1", ".64", ".53"), "ema": ("1", "1.47", "2.5")}.items():
        stds = [output_std(condition(number, gain)) for number in (1, 2, 3)]
        assert all(printed(std / stds[0], text) for std, text in zip(stds, known, strict=True)), stds


@pytest.mark.parametrize("draw", ["normal", "signs"])
@pytest.mark.parametrize("gain", GAINS)
def test_simulated_kernels_agree_with_the_formula(gain: str, draw: str) -> None:
    """The root mean square of 60,000 kernels with random B and C, at eight lags; measured within 0.6 %."""
    nodes = place(16, placement="quantile", gain=gain, tempering=0.5, max_lag=128)
    random, lags = np.random.default_rng(7), np.array([1, 2, 4, 8, 16, 32, 64, 128])
    shape = (2, 60_000, 16)
    b, z = random.standard_normal(shape) if draw == "normal" else random.choice([-1.0, 1.0], shape)
    weights = np.array(nodes.projection) * gain_at(nodes.rates, gain)
    kernels = (b * z * weights) @ np.exp(-np.outer(nodes.rates, lags))
    found = np.sqrt((kernels**2).mean(axis=0))
    assert found == pytest.approx(rms_kernel(nodes, lags), rel=0.02)
    assert np.abs(kernels.mean(axis=0)).max() < 0.05 * found.max(), "the mean over signs is nothing"
    assert nodes.kernel().kernel(lags)[2] > 1.2 * found[2], "and the coherent kernel is another"


@pytest.mark.parametrize("gain", GAINS)
def test_output_std_is_that_of_a_simulated_recurrence(gain: str) -> None:
    """White input through N states with random B and C, over sqrt(N), within 2 %."""
    nodes = place(16, placement="quantile", gain=gain, tempering=0.5, max_lag=4)
    random, steps, models = np.random.default_rng(3), 120, 16_000
    decay, weights = np.exp(-np.array(nodes.rates)), np.array(nodes.projection)
    state = np.zeros((models, 16))
    b, c = random.standard_normal((2, models, 16))
    c *= weights
    squares = []
    for _ in range(steps):
        state = decay * state + gain_at(nodes.rates, gain) * b * random.standard_normal((models, 1))
        squares.append(np.mean(np.einsum("mn,mn->m", state, c) ** 2))
    assert np.sqrt(np.mean(squares[60:]) / 16) == pytest.approx(output_std(nodes), rel=0.02)


def test_output_std_is_the_sum_of_the_squared_kernel() -> None:
    nodes = place(8, placement="quantile", max_lag=20)
    squares = rms_kernel(nodes, np.arange(0, 5000)) ** 2
    assert output_std(nodes) == pytest.approx(np.sqrt(squares.sum() / 8), rel=1e-12)


@pytest.mark.parametrize("density", [0.3, -0.2, 0.0])
@pytest.mark.parametrize("power", [0.4, 0.9])
@pytest.mark.parametrize(("gain", "gamma"), [("none", 0.0), ("ema", 1.0), ("lru", 0.5)])
def test_counts_matter_half_under_random_signs(gain: str, gamma: float, power: float, density: float) -> None:
    """Node density lambda**r dln(lambda), C ~ lambda**s: coherent gamma + s + r, rms gamma + s + r/2."""
    shares = (np.arange(4096) + 0.5) / 4096
    low, high = 1e-16, 20.0
    if density:
        rates = (low**density + shares * (high**density - low**density)) ** (1 / density)
    else:
        rates = low * (high / low) ** shares
    nodes = Nodes(tuple(rates.tolist()), tuple((rates**power).tolist()), gain)
    assert kernel_exponent(nodes, "coherent", 64, 2048) == pytest.approx(gamma + power + density, abs=0.01)
    assert kernel_exponent(nodes, "rms", 64, 2048) == pytest.approx(gamma + power + density / 2, abs=0.01)


@pytest.mark.parametrize("lag", ["state", "distance"])
def test_rms_aim_takes_the_root_of_the_spacing(lag: str) -> None:
    """On nodes of uneven spacing, gain-corrected C meets an rms aim with the root of the spacing, not with it."""
    options = {"placement": "concentrated", "gain": "lru", "kernel": "rms", "lag": lag}
    rates = np.array(place(256, placement="concentrated").rates)
    rms = np.array(place(256, projection="gain-corrected", **options).projection)
    coherent = np.array(place(256, projection="gain-corrected", **{**options, "kernel": "coherent"}).projection)
    ratio = coherent / rms / np.sqrt(local_spacing(rates))
    assert ratio == pytest.approx(ratio[0], rel=1e-12)


def test_slow_channels_keep_their_digits() -> None:
    nodes = Nodes((1e-13,), (1.0,), "lru")
    assert output_std(nodes) == pytest.approx(1, rel=1e-12)


def test_scaling_changes_the_scale_and_nothing_else() -> None:
    nodes = place(32, projection="published", gain="ema")
    scaled = scaled_to(nodes, 0.7)
    assert output_std(scaled) == pytest.approx(0.7, rel=1e-12)
    assert scaled.rates == nodes.rates
    ratio = np.array(scaled.projection) / np.array(nodes.projection)
    assert ratio == pytest.approx(ratio[0], rel=1e-14)
    with pytest.raises(ValueError, match="output std must be a positive number, got 0"):
        scaled_to(nodes, 0.0)


def test_bad_input_names_the_parameter() -> None:
    with pytest.raises(ValueError, match="lag must be one of"):
        rms_kernel(place(4), [1], lag="bytes")
