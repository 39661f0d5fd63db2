"""The figure of the controls, drawn from records alone."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from plkernel.results.figures import effects


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


def test_it_is_drawn_from_the_records(script_of: Callable[[str], ModuleType], tmp_path: Path) -> None:
    script_of("memory_controls").memory_controls(out=tmp_path)
    assert (tmp_path / "effect.png").stat().st_size > 10_000
