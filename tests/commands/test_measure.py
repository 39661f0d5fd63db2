"""python -m plkernel.measure: what is shown before the next work, and where files go."""

import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plkernel.analysis.information.laws import Named, local_slopes, measure_corpus
from plkernel.commands import measure


def test_measure_shows_each_corpus_before_the_next_and_all_before_figures(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    names = []
    for name in ("one", "two"):
        path = tmp_path / name
        path.write_bytes(bytes(range(97, 123)) * 400 + name.encode())
        names.append(str(path))
    arrived: list[str] = []
    monkeypatch.setattr(
        measure, "save_json", lambda *_: arrived.append(pipe.bytes.getvalue().decode())
    )
    monkeypatch.setattr(measure, "comparison_table", lambda _: "all of them")
    monkeypatch.setattr(measure, "save_figures", pipe.look("figures"))
    measure.command(tuple(names), max_lag=8, lags=(1, 8), blocks=4, out=tmp_path / "out")
    assert [text.count("verdict: ") for text in arrived] == [1, 2]
    written = f"\nwritten: {tmp_path / 'out' / 'measure.json'}\n"
    assert pipe.arrived["figures"].endswith(f"all of them\n{written}")


def test_tables_say_in_bits_what_was_measured_in_nats() -> None:
    """With the errors, the floor and the slope of the same lag, and what an exponent rests on."""
    rng = np.random.default_rng(0)
    runs = np.repeat(rng.integers(0, 4, 10_000), rng.geometric(0.2, 10_000))
    symbols = runs[:40_000].astype(np.uint8)
    found = measure_corpus(Named("made", "made"), symbols, max_lag=20, blocks=4)
    curve = found.information
    title, noise, *lines = measure.render(found).splitlines()
    assert title == "made: 40,000 bytes, 4 different (made)"
    assert f"floor {curve.floor[0] / math.log(2):.2e} bits, " in noise
    assert f"; drift {curve.drift / math.log(2):.2e} bits, " in noise
    bits = np.asarray(curve.values) / math.log(2)
    errors = curve.standard_errors() / math.log(2)
    slopes = {lag: values for lag, *values in zip(*local_slopes(curve), strict=True)}
    rows = [re.split(r" {2,}", line.strip()) for line in lines]
    header = rows.index(["lag", "I, bits", "error", "I / floor", "correlation", "local slope"])
    expected = []
    for lag in (1, 2, 5, 10, 20):
        at = curve.lags.index(lag)
        slope = "-"
        if lag in slopes:
            value, error = slopes[lag]
            slope = f"{value:.2f} +- {error:.2f}"
        numbers = [
            f"{bits[at]:.3e}",
            f"{errors[at]:.1e}",
            f"{curve.values[at] / curve.floor[at]:.2f}",
            f"{found.correlation.values[at]:.4f}",
        ]
        expected.append([f"{lag}", *numbers, slope])
    assert rows[header + 2 : header + 7] == expected
    [(label, law, _)] = found.rows
    [row] = [row for row in rows if row[0] == label]
    assert row[1:4] == [
        f"{law.beta:.3f}",
        f"{law.low:.3f} to {law.high:.3f}",
        f"{law.r_squared:.3f}",
    ]
    assert row[4] == f"{law.curvature:+.3f} ({law.curvature_p:.1g})"
    assert row[5:] == [f"{law.used}", f"{len(law.dropped)}"]


def test_several_corpora_are_compared_by_their_exponents() -> None:
    """A dash stands where nothing decays."""
    law = SimpleNamespace(beta=1.15, low=1.05, high=1.25)
    results: Any = [
        SimpleNamespace(
            corpus=SimpleNamespace(name=name), law=one, verdict=SimpleNamespace(kind=kind)
        )
        for name, one, kind in (("a", law, "power law"), ("b", None, "none"))
    ]
    _, _, *rows = measure.comparison_table(results).splitlines()
    cells = [re.split(r" {2,}", row.strip()) for row in rows]
    assert cells == [["a", "1.150", "1.050 to 1.250", "power law"], ["b", "-", "-", "none"]]


def test_a_file_in_the_place_of_the_folder_is_refused_before_any_work(
    blocked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_read", lambda *_, **__: pytest.fail("work"))
    with pytest.raises(OSError, match=r"out .*cannot be written"):
        measure.command(("stdlib",), out=blocked)


def test_figures_of_long_names_are_named_by_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where these are equal, by a number behind them."""
    names: list[str] = []
    monkeypatch.setattr(measure, "save_figure", lambda _, name, *__: names.append(name))
    paths = [f"{folder}/{'n' * 251}.txt" for folder in ("one", "two")]
    results = [
        SimpleNamespace(corpus=SimpleNamespace(name=name), plot=None)
        for name in (*paths, "ä\udcff")
    ]
    measure.save_figures(results, tmp_path, ("png",))  # type: ignore[arg-type]
    end = f"{'n' * 196}.txt"
    assert names == [end, f"{end}-2", "ä", "comparison"]


def test_a_file_that_is_read_is_not_written(tmp_path: Path) -> None:
    text = tmp_path / "measure.json"
    text.write_text("mine")
    with pytest.raises(ValueError, match="out must be another file than those that are read"):
        measure.command((str(text),), out=tmp_path)
    assert text.read_text() == "mine"
