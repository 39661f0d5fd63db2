"""README.md, the pages of docs/ and the audit say what the committed records say."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from plkernel.records.study import read_study

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def renderer(script_of: Callable[[str], ModuleType]) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "runs" / "records")  # as for a script that is run
        return script_of("records/render")


def test_documents_are_rendered_from_the_records(renderer: ModuleType) -> None:
    texts = [document.read_text() for document in renderer.DOCUMENTS]
    assert {match[2] for text in texts for match in renderer.PART.finditer(text)} == set(renderer.PARTS)
    assert [renderer.written(document) for document in renderer.DOCUMENTS] == texts


def test_no_page_has_a_part_that_is_not_rendered(renderer: ModuleType) -> None:
    pages = {path for path in (ROOT / "docs").glob("**/*.md") if renderer.PART.search(path.read_text())}
    assert pages <= set(renderer.DOCUMENTS)


def test_nothing_is_minus_nought(renderer: ModuleType) -> None:
    for document in renderer.DOCUMENTS:
        assert not re.search(r"[^0-9.e]-0\.0+(?!\d)", document.read_text()), document


def test_a_changed_number_is_noticed(renderer: ModuleType) -> None:
    text = (ROOT / "docs" / "evidence" / "fits.md").read_text()
    assert "93.64%" in text
    assert renderer.render(text.replace("93.64%", "93.65%")) == text


@pytest.mark.parametrize(
    "rows", sorted((ROOT / "runs" / "records").glob("*/rows.jsonl")), ids=lambda path: path.parent.name
)
def test_a_record_with_rows_is_a_study_to_report(rows: Path) -> None:
    study = read_study(rows.parent)
    assert len(study.ended) == len(rows.read_text().splitlines())


def test_links_begin_with_the_repository_once_it_is_named(renderer: ModuleType) -> None:
    text = "![one](runs/a.png) [two](docs/b.md#c) [three](https://example.org/d) [LICENSE](LICENSE)"
    absolute = renderer.linked(text, "https://example.org/plkernel/")
    assert "![one](https://example.org/plkernel/raw/HEAD/runs/a.png)" in absolute
    assert "[two](https://example.org/plkernel/blob/HEAD/docs/b.md#c) [three](https://example.org/d)" in absolute
    assert renderer.linked(absolute, "https://elsewhere.org/x").count("https://elsewhere.org/x/") == 3
    assert renderer.linked(absolute, None) == text
