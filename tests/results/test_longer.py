"""Tests of recall and of long windows: their tables and curves hold what results hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import BASELINE, CORPUS, change, write_study

from plkernel.config.schema import Hypothesis
from plkernel.results.answer import answer
from plkernel.results.comparison import Comparison, compare
from plkernel.results.figures import drawings
from plkernel.results.measurements import Basis, values
from plkernel.results.page import Table, page, sections, text_report
from plkernel.results.record import save_record
from plkernel.results.study import read_study
from plkernel.results.verdicts import declared

RECALL = "synthetic:recall,pairs=8,length=32"
ARMS = (BASELINE, "concentrated")
LENGTHS = (32, 64)


def accuracy(arm: str, seed: int, test: str, length: int) -> float:
    return 0.9 - 0.3 * (arm != BASELINE) - 0.05 * seed - length / 1000 - 0.1 * (test == "capacity")


def recall_result(arm: str, seed: int) -> dict[str, Any]:
    tests = []
    for length in LENGTHS:
        for test, pairs in (("capacity", length // 4), ("persistence", 8)):
            mean = accuracy(arm, seed, test, length)
            groups = {"up_to": [4, 8, 64], "queries": [9, 9, 9]}
            groups |= {"accuracy": [mean, mean / 2, mean / 4], "bits": [0.5, 1.0 + seed, 3.0]}
            facts = {"test": test, "length": length, "pairs": pairs, "power": 0.0, "sequences": 6}
            facts |= {"accuracy": mean, "accuracy_error": 0.1, "bits": 3 - mean, "bits_error": None}
            tests.append({**facts, "distance": groups, "order": groups})
    return {"floor": {"accuracy": 1.0, "bits": 0.0}, "tests": tests}


def beyond_result(arm: str, seed: int) -> dict[str, Any]:
    extra = 0.1 * seed + (arm != BASELINE)
    along = {"given": [1, 2, 32, 64], "bpb": [4.0, 3.0, 2.0 + extra, 2.5 + extra]}
    return {
        "windows": 3,
        "context": 32,
        "positions": {**along, "standard_error": [0.1] * 4},
        "reading_on": {"given": [64], "bpb": [-0.2 + extra], "standard_error": [0.1]},
    }


def study(folder: Path, **corpus: Any) -> Path:
    write_study(folder, seeds=range(3), **corpus)
    return folder


def on_recall(folder: Path) -> Path:
    study(folder)
    for arm in ARMS:
        for seed in range(3):
            run = folder / arm / f"seed-{seed}"
            change(run / "config.json", corpus={**CORPUS, "name": RECALL})
            change(run / "result.json", recall=recall_result(arm, seed))
    return folder


def read_on(folder: Path) -> Path:
    study(folder)
    for arm in ARMS:
        for seed in range(3):
            change(folder / arm / f"seed-{seed}/result.json", beyond=beyond_result(arm, seed))
    return folder


def of(folder: Path) -> Comparison:
    return compare(read_study(folder))


def table_of(one: Comparison) -> Table:
    (table,) = [item for item in sections(one, {})["Worth of far context"]]
    assert isinstance(table, Table)
    return table


def train_on_32(folder: Path) -> None:
    """Have every run of the study trained on a context of 32."""
    for arm in ARMS:
        for seed in range(3):
            change(folder / arm / f"seed-{seed}/config.json", train={"context": 32})


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("recall", {"tests": 3}, "result.recall.tests: must be a list, got 3"),
        ("recall", {"tests": [{"test": "capacity"}]}, "result.recall.tests.0.length is missing"),
        ("beyond", {"positions": {"given": [1]}}, "result.beyond.context is missing"),
        ("beyond", {"context": 0}, "result.beyond.context: .* got 0"),
    ],
)
def test_damaged_figures_are_refused_by_their_place(
    part: str, value: Any, message: str, tmp_path: Path
) -> None:
    folder = study(tmp_path)
    change(folder / BASELINE / "seed-0" / "result.json", **{part: value})
    with pytest.raises(ValueError, match=f"seed-0: .*{message}"):
        read_study(folder)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("column", ["accuracy", "bits"])
def test_figures_of_recall_are_means_over_seeds(
    column: str, recorded: bool, tmp_path: Path
) -> None:
    folder = on_recall(tmp_path / "study")
    if recorded:
        save_record(read_study(folder), tmp_path / "record")
        folder = tmp_path / "record"
    shares, bits = sections(of(folder), {})["Worth of far context"]
    table = shares if column == "accuracy" else bits
    assert isinstance(table, Table)
    assert ("Bits per answer" in table.caption) == (column == "bits")
    places = [("persistence", 32), ("persistence", 64), ("capacity", 32), ("capacity", 64)]
    assert table.header == ["arm", *(f"{test}, {length}" for test, length in places)]
    for (arm, *cells), name in zip(table.groups[""], ARMS, strict=True):
        assert arm == name
        for cell, (test, length) in zip(cells, places, strict=True):
            expected = np.mean([accuracy(name, seed, test, length) for seed in range(3)])
            if column == "bits":
                expected = 3 - expected
            assert float(cell.partition(" ")[0]) == pytest.approx(expected, abs=6e-4)


def test_curves_of_recall_are_those_of_the_longest_sequences(tmp_path: Path) -> None:
    drawn = {one.name: one for one in drawings(of(on_recall(tmp_path)))}
    assert drawn["recall"].section == "context"
    assert "beyond" not in drawn
    axes = drawn["recall"].figure.axes
    for panel, test in zip(axes[:2], ("persistence", "capacity"), strict=True):
        lines = panel.lines[: len(ARMS)]
        for line, arm in zip(lines, ARMS, strict=True):
            assert list(line.get_xdata()) == list(LENGTHS)
            expected = [accuracy(arm, 1, test, length) for length in LENGTHS]
            assert list(line.get_ydata()) == pytest.approx(expected)
    for panel, test in zip(axes[2:], ("persistence", "capacity"), strict=True):
        middle = accuracy(BASELINE, 1, test, 64)
        assert list(panel.lines[0].get_xdata()) == [4, 8, 64]
        expected = [middle, middle / 2, middle / 4]
        assert list(panel.lines[0].get_ydata()) == pytest.approx(expected)
    assert axes[0].get_ylabel() == "accuracy, 8 pairs"
    assert axes[3].get_ylabel() == "accuracy, 16 pairs in 64 bytes"


def test_losses_of_recall_are_bits_per_answer(tmp_path: Path) -> None:
    one = of(on_recall(tmp_path))
    whole = answer(one) + text_report(one) + page(one, [])
    assert "bits per answer" in whole
    assert "Bits per answer: mean over seeds" in whole
    assert "bits per byte" not in whole.lower()
    assert "test sequences" in whole
    assert "test text" not in whole
    for drawing in drawings(one):
        if drawing.section in ("curves", "differences", "answer"):
            texts = [axes.get_ylabel() + axes.get_xlabel() for axes in drawing.figure.axes]
            assert "bits per byte" not in " ".join(texts), drawing.name
    assert one.unit == "bits per answer"


def test_long_windows_have_bits_from_the_context_on_and_what_reading_on_costs(
    tmp_path: Path,
) -> None:
    one = of(read_on(tmp_path))
    table = table_of(one)
    assert table.header == ["arm", "bits, to 32", "bits, to 64", "lost, to 64"]
    means = [[float(cell.partition(" ")[0]) for cell in row[1:]] for row in table.groups[""]]
    assert means == [pytest.approx([2.1, 2.6, -0.1]), pytest.approx([3.1, 3.6, 0.9])]
    (drawn,) = [drawing for drawing in drawings(one) if drawing.name == "beyond"]
    along, lost = drawn.figure.axes
    assert list(along.lines[0].get_ydata()) == pytest.approx([4.0, 3.0, 2.1, 2.6])
    assert list(lost.lines[1].get_ydata()) == pytest.approx([0.9])
    assert one.unit == "bits per byte"


def test_a_hypothesis_speaks_of_bits_beyond_the_length_of_training(tmp_path: Path) -> None:
    """The difference is that of the bytes between half and the whole of `times` contexts."""
    claim = {"arm": ARMS[1], "against": BASELINE, "claim": "higher", "times": 2}
    hypotheses = [
        {**claim, "name": "worse far out", "metric": "position_bpb"},
        {**claim, "name": "harmed by reading on", "metric": "reading_on"},
    ]
    folder = read_on(tmp_path)
    change(folder / "spec.json", hypotheses=hypotheses)
    train_on_32(folder)
    one = of(folder)
    assert one.declared is not None
    for outcome in one.declared.outcomes:
        assert outcome.per_seed == pytest.approx(dict.fromkeys(range(3), 1.0))
    assert "the share of right answers" not in page(one, [])


def test_a_hypothesis_speaks_of_recall_at_one_distance(tmp_path: Path) -> None:
    """The accuracies of the group are half of those of all queries in these results.

    Bits are those of the results too, and of results without them there are none.
    """
    folder = on_recall(tmp_path)
    for seed in range(3):
        change(folder / BASELINE / f"seed-{seed}/config.json", train={"context": 32})
    found = read_study(folder)
    shares = {}
    bits = {}
    for distance in (None, 8):
        claim = Hypothesis(
            name="near",
            arm=BASELINE,
            claim="higher",
            metric="persistence",
            times=2,
            distance=distance,
        )
        shares[distance] = values(found, BASELINE, claim, range(3))
        of_bits = claim.model_copy(update={"metric": "persistence_bits"})
        bits[distance] = values(found, BASELINE, of_bits, range(3))
    everywhere = {seed: accuracy(BASELINE, seed, "persistence", 64) for seed in range(3)}
    assert shares[None] == pytest.approx(everywhere)
    assert shares[8] == pytest.approx({seed: share / 2 for seed, share in everywhere.items()})
    assert bits[None] == pytest.approx({seed: 3 - share for seed, share in everywhere.items()})
    assert bits[8] == {0: 1.0, 1: 2.0, 2: 3.0}
    without = recall_result(BASELINE, 0)
    for test in without["tests"]:
        del test["bits"], test["distance"]["bits"]
    change(folder / BASELINE / "seed-0/result.json", recall=without)
    read = read_study(folder)
    for distance in (None, 8):
        claim = of_bits.model_copy(update={"distance": distance})
        assert values(read, BASELINE, claim, range(3)).keys() == {1, 2}


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (("persistence_bits", "capacity_bits"), "in bits per answer, each"),
        (("persistence_bits", "capacity"), "bits per answer, of capacity the share of right"),
    ],
)
def test_the_page_says_in_what_differences_of_recall_are(
    metrics: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    folder = on_recall(tmp_path)
    claim = {"claim": "lower", "arm": ARMS[1], "times": 2, "margin": 0.1}
    declared = [{"name": metric, "metric": metric, **claim} for metric in metrics]
    change(folder / "spec.json", hypotheses=declared)
    train_on_32(folder)
    one = of(folder)
    assert one.declared is not None
    bits, *_ = one.declared.outcomes
    assert bits.per_seed == pytest.approx(dict.fromkeys(range(3), 0.3))
    assert bits.answers == 48
    assert words in page(one, [])


def test_a_gate_of_recall_rests_on_answers(tmp_path: Path) -> None:
    folder = on_recall(tmp_path)
    gate = {"name": "g", "arm": BASELINE, "at_most": 9.0}
    for windows, is_enough in ((124, False), (125, True)):
        change(folder / "spec.json", train={"context": 32, "eval_windows": windows}, gates=[gate])
        found = declared(read_study(folder))
        assert found is not None
        (outcome,) = found.gates
        assert outcome.basis == Basis(8 * windows, "answers")
        assert outcome.holds == is_enough
        assert outcome.margin == f"over {8 * windows:,} answers"
        verdicts = {True: "passed", False: "not passed: 992 answers of at least 1,000"}
        assert outcome.verdict == verdicts[is_enough]


@pytest.mark.parametrize(("distance", "answers"), [(None, 48), (8, 9), (128, 9)])
def test_a_hypothesis_of_recall_says_on_how_many_answers_it_rests(
    distance: int | None, answers: int, tmp_path: Path
) -> None:
    """Its longest sequences are of 64 bytes, and so is the last group of distances."""
    folder = on_recall(tmp_path)
    claim = {"name": "c", "claim": "lower", "arm": ARMS[1], "metric": "persistence", "times": 2}
    change(folder / "spec.json", hypotheses=[{**claim, "distance": distance}])
    train_on_32(folder)
    one = of(folder)
    assert one.declared is not None
    assert one.declared.outcomes[0].answers == answers
    assert f"; over {answers} answers of a run" in page(one, [])


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "rwkv7", "position_scaling": True, "scaling_length": 32},
        {"kind": "plkernel.models.mamba2:mamba2", "config": {"scaling_length": 32}},
    ],
)
def test_figures_say_where_half_lives_that_depend_on_the_position_are_stated(
    model: dict[str, Any], tmp_path: Path
) -> None:
    kernel = {"lags": [1, 2, 4, 8], "blocks": [[1.0, 0.5, 0.2, 0.1]]}
    state = {"half_life_quantiles": [[1, 2, 3, 4, 5, 6, 7]], "kernel": kernel}
    folder = write_study(tmp_path, seeds=range(3), state=state)
    for seed in range(3):
        change(folder / ARMS[1] / f"seed-{seed}/config.json", model=model)
    captions = {one.name: one.caption for one in drawings(of(folder))}
    told = "Decays of concentrated slow down with the position: those at byte 32."
    assert {name for name, caption in captions.items() if told in caption} == {
        "kernels",
        "half-lives",
    }


def test_other_studies_have_neither(tmp_path: Path) -> None:
    one = of(study(tmp_path))
    assert sections(one, {})["Worth of far context"] == []
    assert not {"recall", "beyond"} & {drawing.name for drawing in drawings(one)}
