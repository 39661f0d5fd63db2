"""n-grams beside the arms of a report: rows, lines, a record that keeps them, and a sentence where they are better."""

import json
from pathlib import Path

import pytest

from plkernel.models.words import NOT_CAUSAL
from plkernel.records.study import read_study
from plkernel.results.cautions import warnings
from plkernel.results.comparison import Comparison, compare
from plkernel.results.page.build import page_of, render
from plkernel.results.table import save_record, table
from plkernel.results.terminal import text_report

LOSSES = [4.5, 2.6, 2.5, 2.0, 1.9]
"""The arms without a gain end at 2.796, those under EMA at 2.496."""


@pytest.fixture
def study(blocked_study):
    """Writes a study with references; `leaks` are patches that show the target."""

    def write(losses=LOSSES, leaks: bool = False, **changes) -> Path:
        folder = blocked_study(lambda levels, name: 0.0 if leaks or levels["patching"] == "bytes" else None, noise=0.0)
        entry = {"corpus": {"name": "stdlib", "sha256": "9f"}, "train": {}, "training_windows": "those of seed 0"}
        entry |= {"training_bytes": 81920, "orders": [1, 2, 3, 4, 5], "val_bpb": losses, "test_bpb": losses}
        entry |= {"val_error": [0.01] * 5, "test_error": [None] * 5}
        (folder / "references.json").write_text(json.dumps({"references": [entry | changes]}))
        return folder

    return write


def compared(folder: Path) -> Comparison:
    return compare(read_study(folder))


def beaten(folder: Path) -> list[str]:
    return [text for text in warnings(compared(folder)) if "counts of" in text]


def test_arms_that_are_worse_than_counts_are_named_with_the_fewest_bytes(study) -> None:
    assert beaten(study()) == [
        "All 5 arms with gain none are worse on the validation windows than counts of byte pairs (2.6000), which "
        "remember 1 byte: their losses say nothing about longer memory.",
        "All 5 arms with gain ema are worse on the validation windows than counts of 4 bytes in a row (2.0000), which "
        "remember 3 bytes: their losses say nothing about longer memory.",
    ]


def test_what_fewer_bytes_cost_tells_more_than_the_loss(study) -> None:
    folder = study()
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    for row in rows:
        if row["arm"].endswith("_ema_bytes"):
            row["result"]["truncation"] = {"given": [1, 2], "bpb": [2.6, 2.5], "cost": [0.1, 0.0]}
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = [text.partition(": ")[2] for text in beaten(folder)]
    loss = "their losses say nothing about longer memory"
    assert said == [f"{loss}.", f"{loss}; what they lose with fewer bytes given does."]


def test_nothing_is_said_where_arms_are_better_or_nothing_suits_them(study) -> None:
    assert beaten(study([2.8, 2.8, 2.8, 2.8, 2.8])) == []
    assert beaten(study(corpus={"name": "stdlib", "sha256": "another"})) == []
    assert beaten(study(train={"context": 64})) == []


def test_one_arm_worse_than_single_bytes(study) -> None:
    folder = study([2.7, 2.7, 2.7, 2.7, 2.7])
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    kept = [row for row in rows if row["arm"] == "log-spaced_uniform_none_bytes"]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    assert beaten(folder) == [
        "log-spaced_uniform_none_bytes (2.7963) is worse on the validation windows than counts of single bytes "
        "(2.7000), without any memory: its loss says nothing about memory."
    ]
    lines = text_report(compared(folder)).splitlines()
    assert [line.split() for line in lines if line.startswith("n-gram")][2] == [
        "n-gram,",
        "3",
        "bytes",
        *["2.7000"] * 2,
    ]


def test_what_is_no_likelihood_is_not_held_against_counts(study) -> None:
    comparison = compared(study([0.1] * 5, leaks=True))
    leaking = [arm.name for arm in comparison.arms if not arm.causal]
    assert len(leaking) == 10
    assert not any(comparison.reference(comparison[name]) for name in leaking)
    assert any(text.startswith("All 10 arms with patching bytes are worse") for text in warnings(comparison))
    curves = next(one for one in page_of(comparison).sections if one.title == "Curves")
    captions = [part.content[0].caption for part in curves.parts]
    assert len(captions) > 1
    for caption in captions:
        assert ("n-grams" in caption) != (NOT_CAUSAL in caption.lower())


def test_rows_stand_in_the_terminal_the_page_and_the_record(study, tmp_path) -> None:
    folder = study()
    comparison = compared(folder)
    text = text_report(comparison)
    assert text.count("n-gram, ") == 5
    assert "  n-gram, 3 bytes" in text
    page = render(page_of(comparison))
    assert '<th scope="row">n-gram, 3 bytes</th>' in page
    assert '2.5000<span class="interval">\N{PLUS-MINUS SIGN} 0.0100</span>' in page
    save_record(read_study(folder), tmp_path / "record")
    assert read_study(tmp_path / "record").references == comparison.study.references != ()
    assert table(comparison)["references"][0]["val_bpb"] == tuple(LOSSES)


def test_a_study_without_references_says_nothing_of_them(study) -> None:
    folder = study()
    (folder / "references.json").unlink()
    comparison = compared(folder)
    assert comparison.references == []
    assert "n-gram" not in text_report(comparison)


def test_runs_of_an_earlier_version_are_held_against_counts_too(study) -> None:
    """What their configurations do not say had its default."""
    newer = {"name": "stdlib", "sha256": "9f", "follow_links": False}
    assert beaten(study(corpus=newer)) == beaten(study())
    assert beaten(study(corpus={**newer, "sha256": "another"})) == []
