"""README.md and the pages of docs/ say what the committed records say."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.fixture(scope="module")
def renderer(script_of: Callable[[str], ModuleType]) -> ModuleType:
    return script_of("records/render")


def test_documents_are_rendered_from_the_records(renderer: ModuleType) -> None:
    texts = [document.read_text() for document in DOCUMENTS]
    assert {match[2] for text in texts for match in renderer.PART.finditer(text)} == set(renderer.PARTS)
    assert [renderer.render(text) for text in texts] == texts


def test_a_changed_number_is_noticed(renderer: ModuleType) -> None:
    text = (ROOT / "docs" / "evidence" / "tables.md").read_text()
    assert "-0.0691" in text
    assert renderer.render(text.replace("| -0.0691", "| -0.0692")) == text
