"""The figure of the controls, drawn from records alone."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from plkernel.analysis.figures.curves import effects

RUNS = Path(__file__).parents[2] / "runs"


def test_the_figure_is_that_of_the_rows() -> None:
    """Means of the seeds' differences, by arm and corpus; what was before the first byte is not on a log axis."""
    rng = np.random.default_rng(0)
    curves = [{0: 0.0, 100: 0.5 + e, 200: 0.05 + e} for e in rng.normal(0, 0.01, 5)]
    figure = effects({"one": {"a": curves}, "two": {"a": curves}}, {"a": "first"}, 0.01)
    for axes in figure.axes:
        mean = axes.lines[0].get_xydata().T
        assert mean[0].tolist() == [100, 200]
        assert mean[1] == pytest.approx([np.mean([curve[at] for curve in curves]) for at in (100, 200)])
    assert [axes.get_title("left") for axes in figure.axes] == ["one", "two"]


def test_it_is_drawn_from_the_records(tmp_path: Path) -> None:
    specification = importlib.util.spec_from_file_location("memory_controls", RUNS / "memory_controls.py")
    assert specification is not None
    assert specification.loader is not None
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    script.memory_controls(out=tmp_path)
    assert (tmp_path / "effect.png").stat().st_size > 10_000
