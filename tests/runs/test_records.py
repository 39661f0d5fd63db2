"""README.md and the pages of docs/ say what the committed records say."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from plkernel.results.comparison import compare
from plkernel.results.study import read_study

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.fixture(scope="module")
def renderer(script_of: Callable[[str], ModuleType]) -> ModuleType:
    return script_of("records/render")


def test_documents_are_rendered_from_the_records(renderer: ModuleType) -> None:
    texts = [document.read_text() for document in DOCUMENTS]
    assert {match[2].split()[0] for text in texts for match in renderer.PART.finditer(text)} == set(
        renderer.PARTS
    )
    assert [renderer.render(text) for text in texts] == texts


def test_a_changed_number_is_noticed(renderer: ModuleType) -> None:
    text = (ROOT / "docs" / "evidence" / "tables.md").read_text()
    assert "-0.0168" in text
    assert renderer.render(text.replace("(-0.0168", "(-0.0169")) == text


def test_the_demo_decides_and_no_arm_of_it_is_worse_than_counts_of_two_bytes() -> None:
    one = compare(read_study(ROOT / "runs/records/demo"))
    assert one.declared
    assert [outcome.judgement.verdict for outcome in one.declared.outcomes] == [
        "confirmed",
        "confirmed",
        "undecided",
    ]
    assert one.declared.registered
    assert not one.declared.changes
    for corpus, bits in (
        ("copies", 2.4582),
        ("source", 3.466),
    ):  # counts of two bytes in references.json
        assert f"{bits}" in (ROOT / "runs/records/demo/references.json").read_text()
        ends = [
            run.result.final_val_bpb
            for arm in one.arms
            if corpus in arm.name
            for run in one.study.finished(arm.name)
        ]
        assert len(ends) == 9
        assert max(ends) < bits
