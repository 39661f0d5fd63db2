"""Parts of the page on their own: tables, their text, and facts of runs in words."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.results import page
from plkernel.results.comparison import compare
from plkernel.results.measurements import Basis
from plkernel.results.page import Table
from plkernel.results.study import read_study


def test_columns_without_content_are_left_out_but_for_the_first() -> None:
    groups = {"": [["", "1", "-", "", "x"]], "none": [], "b": [["", "-2", "-", "-", "3"]]}
    found = page._table("words", ["name", "number", "lines", "empty", "cells"], groups)
    assert found.header == ["name", "number", "cells"]
    assert found.groups == {"": [["", "1", "x"]], "b": [["", "-2", "3"]]}
    assert list(found.numeric) == [True, True, False]
    assert found.caption == "words"


def test_a_table_as_text_names_groups_and_breaks_long_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "NAME_WIDTH", 8)
    groups = {"": [["short\nits note", "1"]], "block": [["long long name", "22"], ["b", "3"]]}
    table = Table("", ["arm", "n"], groups, [False, True])
    assert page._plain_table(table).splitlines() == [
        "arm      n",
        "----------",
        "short    1",
        "block",
        "long    22",
        "  long",
        "  name",
        "b        3",
    ]


@pytest.mark.parametrize(
    ("width", "parts"),
    [
        (12, [["abc", "b", "c"]]),
        (11, [["abc", "b"], ["abc", "c"]]),
        (7, [["abc", "b"], ["abc", "c"]]),
        (2, [["abc", "b"], ["abc", "c"]]),
    ],
)
def test_columns_that_do_not_fit_follow_below(
    width: int, parts: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three columns of 3, 2 and 3 characters with two spaces between take 7 and 12."""
    monkeypatch.setattr(page, "WIDTH", width)
    groups = {"block": [["x", "22", "333"]]}
    table = Table("", ["abc", "b", "c"], groups, [False, True, True])
    cells = dict(zip(table.header, groups["block"][0], strict=True))
    expected = []
    for columns in parts:
        expected += [columns, ["block"], [cells[name] for name in columns], []]
    lines = [line.split() for line in page._plain_table(table).splitlines()]
    assert [line for line in lines if "".join(line).strip("-") or not line] == expected[:-1]


def test_later_parts_have_rows_with_content_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "WIDTH", 8)
    groups = {"arms": [["x", "22", "3"], ["y", "1", ""]], "for reference": [["z", "4", ""]]}
    table = Table("", ["abc", "b", "cell"], groups, [False, True, True])
    first, second = page._plain_table(table).split("\n\n")
    assert "for reference" in first
    assert second.split() == ["abc", "cell", "-" * 9, "arms", "x", "3"]


def test_minus_signs_stand_before_numbers_alone() -> None:
    text = page._with_minus_signs("-1 to -0.5 (-2), a-1, 3-4, - 5, x")
    assert text == "\N{MINUS SIGN}1 to \N{MINUS SIGN}0.5 (\N{MINUS SIGN}2), a-1, 3-4, - 5, x"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("mean", "means"),
        ("limit", "95 % intervals over seeds and over target bytes"),
        ("limit", "95 % intervals over seeds and over answers"),
    ],
)
def test_gates_are_told_by_their_rule(
    rule: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_gate_row", lambda gate: ["g", "passed", "1", "1 to 2", "3"])
    basis = Basis(1, "answers" if words.endswith("answers") else "target bytes")
    declared: Any = SimpleNamespace(gates=[SimpleNamespace(rule=rule, basis=basis)])
    found = page._gate_table(declared)
    assert found.caption.startswith(f"Gates, by their {words}: if one is not passed")
    assert found.groups == {"": [["g", "passed", "1", "1 to 2", "3"]]}


def test_gates_that_passed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memory_worth", "warnings"):
        monkeypatch.setattr(page, name, lambda comparison: [])
    monkeypatch.setattr(page, "_gate_table", lambda declared: "table")
    gates = [SimpleNamespace(passed=True), SimpleNamespace(passed=False)]
    declared: Any = SimpleNamespace(gates=gates)
    comparison: Any = SimpleNamespace(declared=declared)
    told, table = page._context(comparison)
    assert isinstance(told, page.Paragraphs)
    assert told.texts == ["1 of 2 gates passed."]
    assert table == "table"
    declared.gates = gates[:1]
    told, _ = page._context(comparison)
    assert isinstance(told, page.Paragraphs)
    assert told.texts == ["1 of 1 gate passed."]
    declared.gates = []
    assert list(page._context(comparison)) == []


@pytest.mark.parametrize(
    ("ahead", "registered", "words"),
    [
        (True, True, "Pre-registered hypotheses"),
        (False, True, "Hypotheses registered after runs had begun"),
        (False, False, "Hypotheses of the spec, not registered"),
    ],
)
def test_hypotheses_are_called_by_their_registration(
    ahead: bool, registered: bool, words: str
) -> None:
    declared: Any = SimpleNamespace(ahead=ahead, registered=registered)
    assert page._kind_of_hypotheses(declared) == words


def test_a_hypothesis_and_a_gate_that_no_seed_tells_say_so(
    declared_study: Callable[..., Path],
) -> None:
    """In place of numbers: which metric no seed tells, of recall at which distance."""
    claim = {"name": "c", "arm": "untried", "claim": "lower"}
    gate = {"name": "g", "arm": "untried", "at_most": 9.0}
    declared = compare(read_study(declared_study([claim], [gate]))).declared
    assert declared is not None
    (outcome,) = declared.outcomes
    stated = "metric val_bpb, arm untried, against base, claim lower"
    told = "no seed that both arms finished tells"
    name, verdict, *numbers = page._verdict_row(declared, outcome)
    assert name == f"c\n{stated}\n{told} val_bpb"
    assert verdict == "cannot answer so far"
    assert numbers == ["-", "", "-", "0", "-", "-"]
    changes = {"metric": "persistence", "times": 2, "distance": 8}
    of_recall = outcome._replace(hypothesis=outcome.hypothesis.model_copy(update=changes))
    name, *_ = page._verdict_row(declared, of_recall)
    assert name.endswith(f"\n{told} persistence of queries at distance 8")
    [[name, passed, *numbers]] = page._gate_table(declared).groups[""]
    assert name.startswith("g\nmetric val_bpb, arm untried, at_most 9.0; ")
    assert passed.startswith("not passed")
    assert numbers == ["0"], "columns of mean and interval hold nothing"


def of_runs(*environments: dict[str, Any], **study: Any) -> Any:
    runs = [SimpleNamespace(environment=one) for one in environments]
    return SimpleNamespace(study=SimpleNamespace(finished=lambda: runs, **study))


@pytest.mark.parametrize(
    ("environments", "text"),
    [
        ([{"commit": "0123456789abcdef"}], "commit 0123456789ab"),
        ([{"commit": "01", "dirty": True}], "commit 01 with changes"),
        ([{}], "code of no known commit"),
        (
            [
                {"commit": "01", "started": "2026-01-03T10:00"},
                {"commit": "01", "started": "2026-01-01T10:00"},
                {"commit": "02", "started": "2026-01-01T10:00"},
                {"commit": "02", "started": "2026-01-01T12:00"},
            ],
            "commit 01 of 2026-01-01 to 2026-01-03 and commit 02 of 2026-01-01",
        ),
    ],
)
def test_rows_are_of_commits_and_days(environments: list[dict[str, Any]], text: str) -> None:
    assert page._origin(of_runs(*environments)) == text


def test_facts_of_runs_are_told_where_they_are_few() -> None:
    facts = [{"model": {"gain": "none"}, "threads": n, "none": None} for n in range(page.FEW)]
    assert page._fact_text(facts, "model.gain") == "gain none"
    told = " or ".join(map(str, range(page.FEW)))
    assert page._fact_text(facts, "threads") == f"threads {told}"
    more = [*facts, {"threads": page.FEW}]
    assert page._fact_text(more, "threads") == ""
    assert page._fact_text(facts, "none") == page._fact_text(facts, "model.gain.deep") == ""


SAVED = {"dim": 96, "layers": 4, "gain": "none", "head_size": 32, "k_clamp": False}
"""What the file of every run has of [model], of whatever kind."""


@pytest.mark.parametrize(
    ("kind", "used"),
    [
        ("ssm", {"dim", "layers", "gain"}),
        ("rwkv6", {"dim", "layers", "head_size", "k_clamp"}),
        ("mymodel:build", {"config"}),
    ],
)
def test_options_that_a_kind_does_not_have_are_not_told(kind: str, used: set[str]) -> None:
    config = {"dim": 32}
    model = {"kind": kind, **SAVED, "config": config, "parameters": 9}
    told = page.used_config({"seed": 0, "model": model})
    assert told["seed"] == 0
    assert told["model"] == {name: model[name] for name in ("kind", *used, "parameters")}
    assert page.used_config({"model": SAVED}) == {"model": SAVED}, "of no known kind"


def test_the_design_says_what_a_model_of_ones_own_is_built_from(
    declared_study: Callable[..., Path],
) -> None:
    comparison = compare(read_study(declared_study()))
    for run in comparison.study.runs:
        config = {"dim": 32, "layers": 2 + run.seed % 2, "decay": "softplus"}
        run.config["model"] = {"kind": "mymodel:build", **SAVED, "config": config}
    [rows] = page._design(comparison).groups.values()
    words = "kind mymodel:build, config.dim 32, config.layers 2 or 3, config.decay softplus"
    assert [text for title, text in rows if title == "model"] == [words]


def test_n_grams_and_lzma_have_losses_and_no_seeds() -> None:
    lzma = SimpleNamespace(windows=[2**20], val_bpb=[2.25])
    reference: Any = SimpleNamespace(
        orders=[1, 2], val_bpb=[5.0, 4.0], test_bpb=[5.5, 4.5], lzma=lzma
    )
    rows = page._reference_rows(reference, ["final_val_bpb", "excess_bpb", "test_bpb"])
    assert rows == [
        ["n-gram, 1 byte", "5.0000", "", "5.5000", "", "", ""],
        ["n-gram, 2 bytes", "4.0000", "", "4.5000", "", "", ""],
        [
            "LZMA, window of 1 MB\nall of the validation text",
            *("2.2500", "", "", "", "", ""),
        ],
    ]
    reference.lzma = None
    assert len(page._reference_rows(reference, ["test_bpb"])) == 2


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        # ln 2 either way: half of the interval is t ln 2, with t = 12.7062 of one degree
        ({0: 0.5, 1: 2.0}, "1.00 (0.00015 to 6682.65)"),
        ({0: 0.5}, "0.50"),
        ({0: 0.5, 1: float("inf"), 2: float("inf")}, "> 1 in 2 of 3"),
    ],
)
def test_bytes_are_a_geometric_mean_or_a_count_of_those_that_never_arrive(
    shares: dict[int, float], text: str
) -> None:
    arm: Any = SimpleNamespace(bytes_ratio=shares)
    assert page._bytes_text(arm) == text


def test_the_n_of_a_mean_is_told_where_it_is_not_that_of_the_arm() -> None:
    one: Any = SimpleNamespace(mean=0.5, low=0.4, high=0.6, n=3)
    assert page._counted_mean(one, 3) == "+0.5000"
    assert page._counted_mean(one, 4) == "+0.5000 (n = 3)"
    arm: Any = SimpleNamespace(seeds=(0, 1))
    assert page._mean_cell(None, ".3f", arm) == page._mean_cell({}, ".3f", arm) == "-"
    assert page._mean_cell({0: 0.5}, ".3f", arm) == "0.500 (n = 1)"


def test_runs_that_failed_are_listed() -> None:
    runs = [
        SimpleNamespace(name="a/seed-0", status="failed", error="no memory"),
        SimpleNamespace(name="a/seed-1", status="finished", error=None),
    ]
    comparison: Any = SimpleNamespace(study=SimpleNamespace(runs=runs))
    [table] = page._failures(comparison)
    assert isinstance(table, Table)
    assert table.groups == {"": [["a/seed-0", "failed", "no memory"]]}
    comparison.study.runs = runs[1:]
    assert page._failures(comparison) == []
