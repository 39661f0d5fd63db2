"""A study in one picture: its panels hold what the rows and the measurement hold."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text
from studies import BASELINE, change, write_study
from test_answer import measurement

from plkernel.analysis.figures.style import rendered, style
from plkernel.common.files import MEASUREMENT, load_object, save_json
from plkernel.results.comparison import Comparison, compare
from plkernel.results.figures import Drawing, drawings
from plkernel.results.picture import MOST_ARMS, _limits, look
from plkernel.results.statistics import Estimate
from plkernel.results.study import read_study

STATE = {"kernel": {"lags": [1, 2, 4, 8], "blocks": [[1.0, 0.5, 0.25, 0.125]]}}
EFFECTS = {BASELINE: 0.0, "a": 0.05, "b": -0.02}


def of(folder: Path) -> Comparison:
    return compare(read_study(folder))


def picture(folder: Path) -> Drawing | None:
    first = next(drawings(of(folder)))
    return first if first.name == "overview" else None


@pytest.mark.parametrize(
    ("state", "is_measured", "titles"),
    [
        (STATE, True, ["information\nin the text", "kernels at\ninitialisation"]),
        (STATE, False, ["kernels at\ninitialisation"]),
        ({}, False, []),
    ],
)
def test_panels_are_those_that_have_data(
    state: dict[str, object], is_measured: bool, titles: list[str], tmp_path: Path
) -> None:
    folder = write_study(tmp_path, seeds=range(3), effects=EFFECTS, state=state)
    if is_measured:
        save_json(folder / MEASUREMENT, measurement(words={"a": "frozen half-lives"}))
    drawn = picture(folder)
    assert drawn is not None
    assert drawn.section == "answer"
    titles = [*titles, "loss against\nbytes read", "difference\nat the end"]
    titles = [title.replace("\n", "\n    ") for title in titles]
    expected = [f"{letter}  {title}" for letter, title in zip("abcd", titles, strict=False)]
    assert [axes.get_title("left") for axes in drawn.figure.axes] == expected
    names = [text.get_text() for text in drawn.figure.legends[0].get_texts()]
    assert names == [f"{BASELINE} (baseline)", "frozen half-lives" if is_measured else "a", "b"]


def test_panels_hold_the_numbers(tmp_path: Path) -> None:
    folder = write_study(tmp_path, seeds=range(3), effects=EFFECTS, state=STATE)
    save_json(folder / MEASUREMENT, measurement())
    drawn = picture(folder)
    assert drawn is not None
    text, kernels, losses, ends = drawn.figure.axes
    lags, bits = text.lines[0].get_data()
    np.testing.assert_allclose(bits, 1 / np.log(2) / lags)
    np.testing.assert_allclose(kernels.lines[0].get_ydata(), [1.0, 0.5, 0.25, 0.125])
    lags, law = kernels.lines[-1].get_data()
    np.testing.assert_allclose(law, 1 / lags)
    one = of(folder)
    final = [curve[max(curve)] for curve in one.study.curves("a").values()]
    mean = next(line for line in losses.lines if line.get_marker() == look(1)["marker"])
    assert mean.get_ydata()[-1] == pytest.approx(np.mean(final))
    validation = one["a"].differences["final_val_bpb"]
    test = one["a"].differences["test_bpb"]
    shown = [line.get_xdata() for line in ends.lines if line.get_color() == look(1)["color"]]
    expected = [[validation.low, validation.high], [validation.mean]]
    expected += [[test.low, test.high], [test.mean]]
    for values, wanted in zip(shown, expected, strict=True):
        assert list(values) == pytest.approx(wanted)


def test_kernels_that_vanish_leave_their_panel_empty(tmp_path: Path) -> None:
    vanished = {"kernel": {"lags": [1, 2], "blocks": [[0.0, 0.0]]}}
    drawn = picture(write_study(tmp_path, seeds=range(3), effects=EFFECTS, state=vanished))
    assert drawn is not None
    kernels = drawn.figure.axes[0]
    assert np.isnan([line.get_ydata() for line in kernels.lines]).all()
    assert kernels.get_ylim() == (0.6, 1.5)


def test_an_interval_that_leaves_the_panel_ends_in_an_arrow(tmp_path: Path) -> None:
    folder = write_study(tmp_path, seeds=range(3), effects=EFFECTS, state=STATE)
    for seed, shift in enumerate((-0.5, 0.0, 0.5)):
        result = load_object(folder / f"b/seed-{seed}/result.json")
        change(folder / f"b/seed-{seed}/result.json", test_bpb=result["test_bpb"] + shift)
    drawn = picture(folder)
    assert drawn is not None
    ends = drawn.figure.axes[-1]
    one = of(folder)["b"].differences["test_bpb"]
    left, right = ends.get_xlim()
    assert one.low < left
    assert right < one.high
    own = [line for line in ends.lines if line.get_color() == look(2)["color"]]
    arrows = {
        line.get_marker(): list(line.get_xdata()) for line in own if line.get_markersize() < 4
    }
    assert arrows == {"<": [left], ">": [right]}
    bars = [line.get_xdata() for line in own if len(line.get_xdata()) == 2]
    assert [left, right] in [list(bar) for bar in bars]
    assert not [line for line in ends.lines if line.get_color() == look(1)["color"]][4:]


def test_small_differences_are_written_out(tmp_path: Path) -> None:
    """A power of ten beside the axis would lie on its label."""
    folder = write_study(tmp_path, seeds=range(3), effects=dict.fromkeys(EFFECTS, 0.0))
    for arm, change_ in (("a", 1e-5), ("b", -1e-5)):
        for seed in range(3):
            base = load_object(folder / BASELINE / f"seed-{seed}/result.json")
            value = change_ * (1 + 0.1 * seed)
            ends = {key: base[key] + value for key in ("final_val_bpb", "test_bpb")}
            change(folder / arm / f"seed-{seed}/result.json", **ends)
    drawn = picture(folder)
    assert drawn is not None
    rendered(drawn.figure, ["svg"])
    assert drawn.figure.axes[-1].xaxis.get_offset_text().get_text() == ""


def test_titles_stand_apart_and_no_text_leaves_the_figure(tmp_path: Path) -> None:
    effects = {BASELINE: 0.0, "a": 0.05}
    arms = {
        **{name: {} for name in effects},
        "c_control": {},
        "d_control": {"against": "c_control"},
    }
    for name in ("c_control", "d_control"):
        arms[name] |= {"levels": {"text": "control"}}
    spec = {"arms": arms, "within": ["text"]}
    effects |= {"c_control": 0.0, "d_control": 0.06}
    folder = write_study(tmp_path, range(3), effects, spec, state=STATE)
    words = {"d_control": "frozen half-lives of 1 to 8 bytes"}
    task = "a synthetic task, bytes that copy one of the 64 before them"
    save_json(folder / MEASUREMENT, measurement(words=words, control=task))
    drawn = picture(folder)
    assert drawn is not None
    with style():
        drawn.figure.canvas.draw()
        titles = [axes._left_title.get_window_extent() for axes in drawn.figure.axes]  # type: ignore[attr-defined]
        legend = drawn.figure.legends[0]
        texts = [*legend.get_texts(), legend.get_title()]
        texts += [axes.xaxis.label for axes in drawn.figure.axes]
        boxes = [*titles, *(text.get_window_extent() for text in texts)]
    for left, right in pairwise(titles):
        assert left.x1 < right.x0
    whole = drawn.figure.bbox
    for box in boxes:
        assert whole.x0 <= box.x0
        assert box.x1 <= whole.x1
        assert box.y1 <= whole.y1


def test_no_text_is_smaller_than_seven_points(tmp_path: Path) -> None:
    folder = write_study(tmp_path, seeds=range(3), effects=EFFECTS, state=STATE)
    save_json(folder / MEASUREMENT, measurement())
    drawn = picture(folder)
    assert drawn is not None
    rendered(drawn.figure, ["svg"])
    sizes = [text.get_fontsize() for text in drawn.figure.findobj(Text) if text.get_text()]  # type: ignore[attr-defined]
    assert min(sizes) >= 7.0


def test_studies_that_one_picture_cannot_show_have_none(tmp_path: Path) -> None:
    many = {f"arm-{index}": 0.1 * index for index in range(MOST_ARMS)}
    many = {BASELINE: 0.0, **many}
    assert picture(write_study(tmp_path / "many", effects=many)) is None
    assert picture(write_study(tmp_path / "one seed", seeds=[0])) is None


def test_arms_differ_without_colours() -> None:
    markers = [look(index)["marker"] for index in range(MOST_ARMS)]
    assert len(set(markers)) == MOST_ARMS


def test_axes_say_what_they_hold(tmp_path: Path) -> None:
    folder = write_study(tmp_path, seeds=range(3), effects=EFFECTS, state=STATE)
    save_json(folder / MEASUREMENT, measurement())
    drawn = picture(folder)
    assert drawn is not None
    text, kernels, losses, ends = drawn.figure.axes
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in (text, kernels, losses, ends)]
    assert "lag" in labels[0][0]
    assert all(label for pair in labels[:3] for label in pair)
    assert labels[2][0].startswith("bytes read (")
    assert labels[2][1] == "validation bits per byte"
    assert labels[3][0].startswith("bits per byte, left is better\n")


def estimate(mean: float, half: float) -> Estimate:
    return Estimate(3, mean, mean - half, mean + half, half)


@pytest.mark.parametrize(
    ("shown", "low", "high"),
    [
        ([], -1.0, 1.0),
        ([(0.1, 0.05)], 0.0, 0.15),
        ([(-0.1, 0.05)], -0.15, 0.0),
        ([(0.1, 0.05), (-0.2, 0.1)], -0.3, 0.15),
        ([(0.1, 9.0)], -0.4, 0.4),
        ([(0.0, 0.5)], -0.5, 0.5),
    ],
)
def test_the_panel_of_differences_holds_zero_and_intervals_up_to_four_means(
    shown: list[tuple[float, float]], low: float, high: float
) -> None:
    left, right = _limits([estimate(mean, half) for mean, half in shown])
    room = 0.08 * (high - low) if shown else 0.0
    assert (left, right) == pytest.approx((low - room, high + room))
