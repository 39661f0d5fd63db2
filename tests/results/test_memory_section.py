"""What training did to the memory of a study's arms: figures and tables carry the numbers of the rows."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plkernel.analysis.nodes import place
from plkernel.analysis.trained.memory import QUANTILES, memory_of
from plkernel.config.reading import parse_spec
from plkernel.models.words import NOT_CAUSAL
from plkernel.records.layout import run_folder
from plkernel.records.study import STATE, read_study
from plkernel.results.cautions import warnings
from plkernel.results.comparison import Comparison, compare
from plkernel.results.figures import memory_drawings
from plkernel.results.memory import exponent_of
from plkernel.results.page.charts.frames import Chart
from plkernel.results.page.context import context_sections, influence_sections
from plkernel.results.page.document import Folded, PageSection, Table
from plkernel.results.page.memory import memory_sections, published_sections
from plkernel.results.published import reading

LAGS = [2**power for power in range(8)]
SEEDS, BLOCKS, DIM = (0, 1, 2), 2, 16
THREE = {
    "a": {},
    "b": {"projection": "published"},
    "c": {"placement": "concentrated", "projection": "published"},
}


def spec_of(arms: dict[str, Any], **values: Any) -> dict[str, Any]:
    whole = {"name": "memory", "seeds": list(SEEDS), "arms": arms, "model": {"dim": DIM, "layers": BLOCKS}}
    whole |= {"train": {"context": LAGS[-1], "steps": 10, "learning_rate": 1e-3}, **values}
    if arms and "factors" not in values:
        whole["baseline"] = next(iter(arms))
    return whole


def state(exponent: float, seed: int) -> dict[str, Any]:
    """What a row says of a model whose blocks fall as t**-exponent and somewhat faster, in a unit of its own."""
    kernels = [[(3 + seed) * lag ** -(exponent + 0.1 * block + 0.01 * seed) for lag in LAGS] for block in range(BLOCKS)]
    half_lives = [[(1 + block) * (1 + exponent) * 2.0**at for at in range(len(QUANTILES))] for block in range(BLOCKS)]
    saturation = {"saturated_share": exponent / 10, "logit_min": -exponent, "logit_max": 1.0 + seed, "entropy": 2.5}
    kernel = {"lags": LAGS, "blocks": kernels}
    return {"half_life_quantiles": half_lives, "kernel": kernel, "saturation": saturation}


def comparison_of(folder: Path, values: dict[str, Any], without: tuple[str, ...] = ()) -> Comparison:
    """A study whose arms begin at t**-1 and end at t**-2, t**-2.1, ..., with rows that lack what is `without`."""
    spec = parse_spec(values, "test")
    write(folder / "spec.json", spec.model_dump(mode="json"))
    for number, name in enumerate(spec.arms):
        model = spec.model_of(name).model_dump(mode="json")
        for seed in SEEDS:
            rows = [
                {"step": step, "bytes": 512 * step, "val_bpb": 8.0 - step / 10 + 0.01 * seed, **said}
                for step, said in ((0, state(1.0, seed)), (10, state(2.0 + number / 10, seed)))
            ]
            rows = [{name: value for name, value in row.items() if name not in without} for row in rows]
            at = run_folder(folder, name, seed)
            config = {"arm": name, "seed": seed, "corpus": {"name": "c"}, "model": {**model, "parameters": 9}}
            config |= {"train": spec.train.model_dump(mode="json")}
            write(at / "config.json", {**config, "arm_options": spec.arms[name].model_dump(mode="json")})
            (at / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            result = {"status": "finished", "steps": 10, "bytes": 5120, "best_step": 10, "seconds": 1.0}
            result |= {f"{kind}_bpb": 7.0 for kind in ("final_val", "best_val", "test")}
            published = model["patching"]["mode"] == "published" and model["patching"]["size"] > 1
            write(at / "result.json", {**result, "causal": not published})
    return compare(read_study(folder))


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def tables(sections: Sequence[PageSection]) -> list[Table]:
    """Every table, the folded ones too."""
    parts = [part for section in sections for part in section.parts]
    inside = [one for part in parts for one in (part.content if isinstance(part, Folded) else [part])]
    return [part for part in inside if isinstance(part, Table)]


def lines(sections: Sequence[PageSection]) -> list[list[str]]:
    """The cells of every row of every table."""
    return [[cell.text for cell in row] for table in tables(sections) for _, rows in table.groups for row in rows]


def test_lines_and_tables_carry_the_numbers_of_the_rows(tmp_path: Path) -> None:
    comparison = comparison_of(tmp_path, spec_of(THREE))
    found = memory_drawings(comparison)
    assert list(found) == ["kernels", "half-lives", "published-figures"]
    kernels = [line for line in found["kernels"].axes[1].lines if line.get_linewidth() == 1.5]
    for line, exponent in zip(kernels, (1.0, 2.1), strict=True):
        mean = exponent + 0.05 + 0.01  # over blocks and seeds
        assert np.log(line.get_ydata()) == pytest.approx(-mean * np.log(LAGS))
    cells = lines(memory_sections(comparison))
    assert ["b", "1.06 ± 0.010", "2.16 ± 0.010", "+1.10 ± 0.000", "2.11, 2.21"] in cells
    median = math.sqrt(2) * 3.1 * 2**3
    assert ["b", "2.83", "4.38", "22.6", f"{median:.3g}", "181", "281"] in cells
    assert ["b", "10.0%", "21.0%", "3.0", "4.1", "2.50", "2.50"] in cells


def test_starts_that_outlast_their_windows_are_named(tmp_path: Path) -> None:
    train = {"steps": 10, "learning_rate": 1e-3}
    short, long = (
        comparison_of(tmp_path / str(context), spec_of(THREE, train={**train, "context": context}))
        for context in (2, 4)
    )
    words = "half or more of its half-lives, 2 to 256 bytes, are longer than 10 windows of 2 bytes."
    assert [text for text in warnings(short) if "windows of" in text] == [f"{name}: {words}" for name in "abc"]
    assert not any("windows of" in text for text in warnings(long))


@pytest.mark.parametrize("without", [STATE, ("kernel", "saturation"), ("half_life_quantiles", "saturation")])
def test_rows_that_lack_something_leave_it_out(without: tuple[str, ...], tmp_path: Path) -> None:
    comparison = comparison_of(tmp_path, spec_of({"a": {}, "q": {"placement": "quantile"}}), without)
    found = memory_drawings(comparison)
    kinds = {"kernels": "kernel", "half-lives": "half_life_quantiles"}
    assert set(found) == {name for name, key in kinds.items() if key not in without}
    sections = memory_sections(comparison)
    assert bool(sections) == (set(without) != set(STATE))
    said = any(table.caption.startswith("Predictions") for table in tables(sections))
    assert said == ("saturation" not in without)


def test_runs_that_know_different_lags_have_no_kernel() -> None:
    known, other = state(1.0, 0), state(1.0, 1)
    other["kernel"] = {"lags": LAGS[:-1], "blocks": [row[:-1] for row in other["kernel"]["blocks"]]}
    assert memory_of([known, known]).kernels.shape == (2, BLOCKS, len(LAGS))
    assert not memory_of([known, other]).has_kernels
    assert not memory_of([known, {}]).has_half_lives
    assert not memory_of([]).has_kernels


FACTORS = {
    "placement": ["log-spaced", "concentrated"],
    "projection": ["uniform", "published", "gain-corrected"],
    "model.gain": ["ema", "none"],
    "patching": {"bytes": {}, "published": {"model": {"patching": {"mode": "published", "size": 2}}}},
}
BESIDE = {
    "wrong-sign": {"projection": "published", "beta": 0.85},
    "quantile": {"placement": "quantile"},
    "twin": {"placement": "concentrated", "projection": "published", "match": "baseline"},
}
WITHIN = ["model.gain", "patching"]


@pytest.mark.slow
def test_many_arms_are_shown_block_by_block(tmp_path: Path) -> None:
    comparison = comparison_of(tmp_path, spec_of(dict(BESIDE), factors=FACTORS, within=WITHIN))
    found = memory_drawings(comparison)
    ends = ["ema-bytes", "ema-published", "none-bytes", "none-published"]
    assert set(found) == {"published-figures", *(f"{kind}-{end}" for kind in ("kernels", "half-lives") for end in ends)}
    drawn = found["kernels-none-published"]
    titles = [axes.get_title("left") for axes in drawn.axes]
    assert len(titles) == 8
    assert titles[0] == "log-spaced_uniform"
    sections = memory_sections(comparison)
    first, *others = sections[0].parts
    assert isinstance(first, Chart)
    assert first.description.startswith("gain ema, patching bytes: Kernels")
    assert "the first 8 of 9 arms" in first.caption
    assert [panel.title for panel in first.panels] == titles
    opened = [part for part in others if isinstance(part, Folded)]
    assert len(opened) == 3 + 1 + 3 + 1 + 1, "figures of three more blocks, and three tables"
    shown = [row for row in lines(sections) if row[0].startswith("wrong-sign")]
    assert len(shown) == 3 * 4, "arms that no figure shows stand in every table"
    read = reading(comparison)
    assert read is not None
    names = [arm.name for arm in read.arms]
    conditions = "log-spaced_uniform", "log-spaced_published", "concentrated_published"
    assert names == [f"{name}_none_published" for name in conditions]
    [published] = published_sections(comparison)[0].parts
    assert isinstance(published, Chart)
    assert "(gain none, patches of 2 bytes, as published)" in published.caption
    assert published.caption.endswith(f"{NOT_CAUSAL.capitalize()}.")
    assert NOT_CAUSAL in found["published-figures"].get_suptitle()


def test_conditions_are_known_by_what_they_are(tmp_path: Path) -> None:
    """By any name, and drawn with the kernel of their nodes; twins and the wrong sign take no condition's place."""
    arms = {"z": {}, "twin": {**THREE["c"], "match": "baseline"}, "wrong": {"projection": "published", "beta": 0.85}}
    arms |= {"y": THREE["b"], "x": THREE["c"]}
    comparison = comparison_of(tmp_path, spec_of(arms))
    found = reading(comparison)
    assert found is not None
    assert [arm.name for arm in found.arms] == ["z", "y", "x"]
    [published] = published_sections(comparison)[0].parts
    assert isinstance(published, Chart)
    assert NOT_CAUSAL not in published.caption.lower()
    left, middle, _ = memory_drawings(comparison)["published-figures"].axes
    nodes = place(DIM, placement="concentrated", projection="published", gain="none").kernel()
    dotted = [line for line in middle.lines if line.get_linewidth() == 1][-1]
    lags = dotted.get_xdata()
    assert dotted.get_ydata() == pytest.approx(nodes.kernel(lags) / nodes.kernel([1]))
    means = [line.get_ydata() for line in left.lines if line.get_linewidth() == 1.5]
    assert means == [pytest.approx([7.01])] * 3


@pytest.mark.parametrize(
    "arms",
    [
        {"a": THREE["a"], "b": THREE["b"]},
        {**THREE, "c": {**THREE["c"], "match": "baseline"}},
        {**THREE, "b": {"projection": "published", "beta": 0.85}},
        {**THREE, "c": {**THREE["c"], "model": {"gain": "ema"}}},
    ],
    ids=["missing", "matched", "wrong sign", "other gain"],
)
def test_without_the_three_conditions_nothing_is_redrawn(arms: dict[str, Any], tmp_path: Path) -> None:
    comparison = comparison_of(tmp_path, spec_of(arms))
    assert reading(comparison) is None
    assert "published-figures" not in memory_drawings(comparison)
    assert not published_sections(comparison)


def test_the_exponent_is_that_of_the_arm() -> None:
    assert exponent_of({}) == 1.15
    assert exponent_of({"beta": 0.8, "target": "information"}) == 0.8
    assert exponent_of({"beta": 0.8, "target": "correlation"}) == 0.4


def test_how_far_back_arms_read(tmp_path: Path) -> None:
    """A figure of the arms that have measured it at lags they share, beside the text's own information."""
    comparison = comparison_of(tmp_path, spec_of(THREE))
    assert influence_sections(comparison) == []
    for seed in SEEDS:
        path = run_folder(tmp_path, "a", seed) / "result.json"
        curve = {"lags": [1, 2, 4], "bits": [0.5, 0.1 + 0.01 * seed, 1e-9], "information": [0.4, 0.2, 0.1]}
        path.write_text(json.dumps({**json.loads(path.read_text()), "influence": curve}))
    comparison = compare(read_study(tmp_path))
    drawings = memory_drawings(comparison)
    (axes,) = drawings["influence"].axes
    arm, text, edge, _ = axes.lines
    assert arm.get_ydata()[:2] == pytest.approx([0.5, 0.1 + 0.01 * np.mean(SEEDS)])
    assert text.get_ydata() == pytest.approx([0.4, 0.2, 0.1])
    assert edge.get_xdata() == pytest.approx([4])
    [part] = influence_sections(comparison)
    [chart] = part.parts
    assert isinstance(chart, Chart)
    assert chart.names == ((0, "a"),)
    (panel,) = chart.panels
    assert [trace.name for trace in panel.traces] == ["I(d) of the text", "a"]
    said = [shape.text for shape in panel.traces[1].shapes if shape.kind == "dot"]
    assert said[:2] == ["a: 0.5 bits at lag 1", "a: 0.11 bits at lag 2"]


def test_what_far_context_is_worth(tmp_path: Path) -> None:
    """The table has the cost of every arm at the longest lengths; arms that have not measured it are left out."""
    comparison = comparison_of(tmp_path, spec_of(THREE))
    assert context_sections(comparison) == []
    for seed in SEEDS:
        path = run_folder(tmp_path, "a", seed) / "result.json"
        curve = {"given": [1, 2, 4], "bpb": [4.0, 3.5 + 0.1 * seed, 3.0], "floor": [3.0, 2.5, 2.0]}
        path.write_text(json.dumps({**json.loads(path.read_text()), "truncation": curve}))
    comparison = compare(read_study(tmp_path))
    [part] = context_sections(comparison)
    chart, table = part.parts
    assert isinstance(chart, Chart)
    assert [name for _, name in chart.names] == ["a"]
    assert isinstance(table, Table)
    assert table.header == ("arm", "1 given", "2 given")
    [(_, [row])] = table.groups
    assert [cell.text for cell in row][1].startswith("+1.0000")
    assert [cell.text for cell in row][2].startswith("+0.6000 +0.35")
    assert {"truncation"} == {name for name in memory_drawings(comparison) if name.startswith("truncation")}
