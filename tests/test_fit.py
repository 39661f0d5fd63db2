"""python -m plkernel.fit: the published figures on the screen and in JSON, fast, and clear about
mistakes.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mixtures import Mixture, power_law_copies

from plkernel.analysis import fit as fits
from plkernel.analysis import prediction
from plkernel.analysis.exponentials import ExponentialSum, array_target, power_law_target
from plkernel.analysis.information import laws as measurement
from plkernel.analysis.information.laws import ModelFit, Verdict
from plkernel.analysis.nodes import Nodes, Summation, node_scores
from plkernel.analysis.sequences import LagCorpus, PottsCorpus
from plkernel.commands.fit import command as fit
from plkernel.commands.fit import render
from plkernel.common import cli
from plkernel.config.condition import resolve
from plkernel.config.reading import parse_spec

Capture = pytest.CaptureFixture[str]

PUBLISHED = (
    ("active nodes", "6 of 256"),
    ("half-lives", "1.0, 10.0, 10.3, 81.1, 83.5, 2048.0"),
    ("share of weight", "93.64%"),
    ("optimal weights: R0", "0.9975"),
    ("linear", "0.9928"),
    ("largest relative error", "17.0% at t = 7"),
    ("uniform weights", "-18.04"),
    ("uniform over true", "250.4x"),
)


def fitted(out: Path, **options: Any) -> dict[str, Any]:
    """The content of fit.json."""
    fit(out=out, **{"figure": False, **options})
    content: dict[str, Any] = json.loads((out / "fit.json").read_text())
    return content


def given_nodes(written: dict[str, Any]) -> Nodes:
    """The nodes in fit.json."""
    return Nodes(
        *(tuple(value) if isinstance(value, list) else value for value in written["nodes"].values())
    )


def loaded(folder: Path, dim: int, gain: str) -> Nodes:
    """The nodes that an arm takes from fit.json."""
    spec = {
        "name": "loaded",
        "baseline": "fitted",
        "model": {"dim": dim, "gain": gain},
        "train": {"steps": 1},
        "arms": {"fitted": {"node_file": str(folder / "fit.json")}},
    }
    read = parse_spec(spec, "a test")
    return resolve(read.model, read.arm("fitted")).nodes


def test_prints_the_published_figures_and_writes_them(tmp_path: Path, capsys: Capture) -> None:
    values = fitted(tmp_path, figure=True, formats=("pdf", "png", "svg"))
    lines = capsys.readouterr().out.splitlines()
    for label, value in PUBLISHED:
        assert any(label in line and value in line for line in lines), (label, value)
    record = json.loads((Path(__file__).parents[1] / "runs/records/fit/fit.json").read_text())
    for key in ("active_half_lives", "fastest_share", "uniform_excess"):
        assert values[key] == pytest.approx(record[key], rel=1e-9)
    for kind in ("optimal", "uniform"):
        assert values[kind]["scores"] == pytest.approx(record[kind]["scores"], rel=1e-9)
    np.testing.assert_allclose(
        values["optimal"]["weights"], record["optimal"]["weights"], rtol=1e-9
    )
    for name, magic in (("fit.pdf", b"%PDF"), ("fit.png", b"\x89PNG"), ("fit.svg", b"<?xml")):
        assert (tmp_path / name).read_bytes().startswith(magic)


def test_minimax_says_whether_it_is_level(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fitted(tmp_path, beta=2.7, max_lag=2048, terms=6)["certificate"]["level"] is True
    assert "level, the best sum of so many terms" in capsys.readouterr().out
    monkeypatch.setattr(
        fits, "certificate", lambda *_: fits.Certificate(13, 13, 0.5, 0.25, 0.5, False)
    )
    fitted(tmp_path, beta=2.7, max_lag=2048, terms=6)
    told = capsys.readouterr().out
    assert "NOT LEVEL" in told
    assert "0.50000" in told
    assert "the least error of so many terms is at least 25.0%" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--beta 0", "beta must be a positive number"),
        ("--max-lag 1", "max_lag must be finite and at least 3, got 1"),
        ("--beta 200", "use a smaller beta or max_lag"),
        ("--max-lag 10000000", "use a smaller max_lag or fewer nodes"),
        ("--channels 1000000", "channels must be at most 97,656 on 512 lags, got 1,000,000"),
        (f"--max-lag 1{'0' * 300}", "with 256 nodes, got 1.00e+300; use a smaller max_lag"),
        ("--nodes quantile --beta 0.1 --gain lru", "half-lives must be between 0.00794 and"),
        (
            "--tempering 3",
            "tempering must be left out with placement 'log-spaced', got 3; it belongs to",
        ),
        (
            "--loss 0.1 --nodes terms",
            "loss must be left out with placement 'terms', got 0.1; it belongs to placement",
        ),
        (
            "--target curve",
            "target must be information or correlation without a corpus, got 'curve'; name",
        ),
        ("--corpus stdlib --beta 1", "give one of the two"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: str, message: str, tmp_path: Path, capsys: Capture
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(fit, args=[*arguments.split(), "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert (stop.value.code, error[:7], error.count("\n")) == (2, "error: ", 1)
    assert message in error
    assert not list(tmp_path.iterdir()), "nothing is written"


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"beta": 40.0}, "give terms, such as 6, or a smaller beta"),
        ({"beta": 2.5, "max_lag": 2048}, "give terms, such as 6, or a smaller beta"),
        ({"beta": 40.0, "terms": 4}, "give more terms, or a smaller beta or max_lag"),
    ],
)
def test_a_fit_that_does_not_follow_the_kernel_is_warned_of(
    options: dict[str, Any], remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = rf"t\*\*-{options['beta']:g} is not followed by this fit, .*: .*{remedy}"
    with pytest.warns(UserWarning, match=message):
        fitted(tmp_path, **options)
    assert max(map(len, capsys.readouterr().out.splitlines())) < 200


@pytest.mark.parametrize("placement", ["log-spaced", "quantile", "terms"])
@pytest.mark.parametrize("gain", ["none", "ema", "lru"])
def test_what_is_written_is_what_training_loads(placement: Any, gain: Any, tmp_path: Path) -> None:
    """And carries the law under its own gain: quantile channels scored under another go from 0.03
    to more than 1.
    """
    written = fitted(
        tmp_path, gain=gain, nodes=placement, terms=6, channels=24, target="correlation"
    )
    nodes = loaded(tmp_path, 24, gain)
    assert (nodes, nodes.gain) == (given_nodes(written), gain)
    assert written["nodes_aim"]["target"] == "correlation"
    assert written["exponent"] == pytest.approx(1.15 / 2)
    scores = written["nodes_aim"]["scores"]
    law = power_law_target(1.15 / 2, 512)
    assert node_scores(nodes, law).e_log == pytest.approx(scores["e_log"])
    if placement == "quantile" and gain == "ema":
        assert scores["e_log"] < 0.1
        assert node_scores(replace(nodes, gain="none"), law).e_log > 1


@pytest.mark.parametrize("kernel", ["coherent", "rms"])
def test_a_plateau_is_clipped_to_what_cannot_be_told_from_it(
    kernel: Summation, tmp_path: Path
) -> None:
    plateau = array_target(1 / np.arange(1, 129) + 0.5)
    terms = ExponentialSum((1.0, 1e-9), (0.5, 0.5))
    nodes, _ = fits.place_channels(16, "terms", plateau, None, "ema", kernel, "state", terms=terms)
    assert nodes.half_lives().max() == pytest.approx(128_000)
    if kernel == "coherent":
        first, last = nodes.kernel().kernel([1, 128])
        assert last / first == pytest.approx(1 / (1 + np.exp(-1)), rel=1e-3), (
            "as with a half-life without end"
        )
    fitted(tmp_path, beta=0.05, terms=4, nodes="terms", channels=8, kernel=kernel)
    assert loaded(tmp_path, 8, "none").half_lives().max() <= 1000 * 512 * (1 + 1e-9)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of lags, whose best predictor is the mixture: 0.5 MB."""
    path = tmp_path_factory.mktemp("copies") / "copies.bin"
    path.write_bytes(LagCorpus(1.0, 128, 0.4, size=500_000, seed=1).sequence().tobytes())
    return path


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"nodes": "terms", "terms": 3, "kernel": "rms"}, marks=pytest.mark.slow)],
    ids=str,
)
def test_predictive_weights_are_fitted_and_loaded(
    options: dict[str, Any], copies: Path, tmp_path: Path, capsys: Capture
) -> None:
    given = {
        "corpus": str(copies),
        "target": "predictive",
        "max_lag": 128,
        "gain": "ema",
        "channels": 48,
    }
    written = fitted(tmp_path, **given, **options)
    told = capsys.readouterr().out
    assert "bands of lags, the last at" in told
    assert (written["beta"], written["exponent"]) == (None, None)
    values = written["kernel"]["values"]
    lags = np.array(written["kernel"]["lags"])
    np.testing.assert_allclose(values, LagCorpus(1.0, 128, 0.4).chances[0] / lags, rtol=0.15)
    nodes = given_nodes(written)
    assert nodes == loaded(tmp_path, 48, "ema")
    kernel = options.get("kernel", "coherent")
    assert node_scores(nodes, power_law_target(1.0, 128), kernel, "state").r_star > 0.96


def test_predictive_weights_of_noise_are_refused() -> None:
    """One band in forty stands out by chance, and so few are no kernel."""
    for seed in range(3):
        data = np.random.default_rng(seed).integers(0, 4, 20_000).astype(np.uint8)
        with pytest.raises(ValueError, match=r"must stand out from noise in 4 of \d+ bands"):
            prediction.predictive(measurement.Named("noise", "made"), data, 512)


def test_a_curve_is_that_of_the_information_where_the_correlation_is_exponential() -> None:
    """The verdict is on the correlation then; the information, which is fitted, looks stretched."""
    stretched = ModelFit(
        "stretched exponential",
        {"amplitude": 1.0, "tau": 15.0, "gamma": 0.9},
        1.0,
        5,
        5.0,
        0.0,
        0.5,
        0.5,
    )
    plain = ModelFit(
        "exponential", {"amplitude": 1.0, "tau": 12.0}, 90.0, 6, 94.0, 89.0, 0.001, 0.001
    )
    verdict = Verdict("exponential", "the correlation decays so", 2, 90, (stretched, plain))
    curve: Any = None  # of which only a curve that is too short is used
    found = prediction.verdict_target(verdict, curve, 100)
    np.testing.assert_allclose(
        found.values, np.exp((1 - np.arange(1, 101.0) ** 0.9) / 15**0.9), rtol=1e-12
    )
    of_both = replace(verdict, models=(plain, stretched))
    found = prediction.verdict_target(of_both, curve, 100)
    np.testing.assert_allclose(found.values, np.exp(-np.arange(100) / 12), rtol=1e-12)


@pytest.mark.parametrize("terms", [1, 2])
def test_an_exact_fit_is_not_called_uneven(terms: int) -> None:
    """Its errors are rounding, whose extrema need not alternate."""
    lags = np.arange(1.0, 200)
    values = np.exp(-lags / 20) + (terms - 1) * 0.1 * np.exp(-lags / 100)
    found = fits.fit(values=values, terms=terms)
    assert found.certificate is not None
    assert found.certificate.level
    text = render(found)
    assert "exact but for rounding" in text
    assert "NOT LEVEL" not in text


def test_too_few_extrema_bound_nothing() -> None:
    found = fits.fit(1.15, terms=3)
    few = fits.Certificate(3, 7, 0.5, 0.0, 0.0, False)
    text = render(replace(found, certificate=few))
    assert "NOT LEVEL: too few errors alternate" in text
    assert "is at least" not in text


def test_a_kernel_that_does_not_decay_is_refused() -> None:
    with pytest.raises(ValueError, match="values must change with the lag, got 1 at all 50"):
        fits.fit(values=np.ones(50))


def test_quantiles_need_a_power_law(copies: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"nodes must be 'terms' or 'log-spaced' for .*, got 'quantile'"
    ):
        fit(
            corpus=str(copies),
            target="predictive",
            max_lag=64,
            nodes="quantile",
            out=tmp_path / "out",
            figure=False,
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_measured_power_law_is_fitted_as_one(tmp_path: Path, capsys: Capture) -> None:
    """To the same digits as the exponent that its verdict states; noise has none."""
    data = Mixture(copies=power_law_copies(1.0, 0.02, 512, 16), size=500_000, seed=2).sequence()
    (tmp_path / "law.bin").write_bytes(data.tobytes())
    found = fitted(tmp_path / "curve", corpus=str(tmp_path / "law.bin"), target="curve", terms=6)
    assert "a single power law describes the curve" in found["measured"]["verdict"]
    assert f"the kernel is t**-{found['beta']:g} on lags 1..512" in capsys.readouterr().out
    law = fitted(tmp_path / "law", beta=found["beta"], terms=6)
    assert (found["optimal"], found["nodes"]) == (law["optimal"], law["nodes"])
    (tmp_path / "noise.bin").write_bytes(
        np.random.default_rng(0).integers(0, 32, 200_000, np.uint8).tobytes()
    )
    with pytest.raises(ValueError, match="no exponent to fit, no memory"):
        fit(corpus=str(tmp_path / "noise.bin"), out=tmp_path, figure=False)


@pytest.mark.parametrize("target", ["information", "curve"])
def test_a_curve_that_is_broken_is_fitted_broken(
    target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    data = np.concatenate(list(PottsCorpus(beta=1.0, size=100_000).blocks()))
    (tmp_path / "potts.bin").write_bytes(data.tobytes())
    parameters = {"amplitude": 0.1, "beta_1": 1.4, "beta_2": 0.5, "break": 30.0}
    broken = ModelFit("broken power law", parameters, 1.0, 5, 5.0, 0.0, 0.5, 0.5)
    judged = Verdict("broken power law", "lags 1 to 100: broken", 1, 100, (broken,))
    monkeypatch.setattr(measurement, "judge", lambda _: judged)
    written = fitted(
        tmp_path, corpus=str(tmp_path / "potts.bin"), target=target, nodes="terms", terms=8
    )
    assert written["measured"]["verdict"] == "lags 1 to 100: broken"
    law = written["measured"]["law"]
    if target == "information":
        assert written["beta"] == law["beta"]
        assert (
            f"beta {law['beta']:.3f} (95 % {law['low']:.3f} to {law['high']:.3f}) on"
            in capsys.readouterr().out
        )
        return
    exact = power_law_target(1.4, 512, 0.5, 30)
    kernel = written["kernel"]
    np.testing.assert_allclose(kernel["values"], exact.values, rtol=1e-12)
    assert (kernel["lags"], kernel["exponents"]) == (
        list(exact.lags),
        pytest.approx(list(exact.exponents or ())),
    )
    assert written["nodes_aim"]["scores"]["r_star"] > 0.998
