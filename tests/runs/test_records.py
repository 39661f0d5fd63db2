"""README.md and the pages of docs/ say what the committed records say."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "runs" / "records"
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.fixture(scope="module")
def renderer(script_of: Callable[[str], ModuleType]) -> ModuleType:
    return script_of("records/render")


def test_documents_are_rendered_from_the_records(renderer: ModuleType) -> None:
    texts = [document.read_text() for document in DOCUMENTS]
    assert {match[2] for text in texts for match in renderer.PART.finditer(text)} == set(renderer.PARTS)
    assert [renderer.render(text) for text in texts] == texts


def test_a_changed_number_is_noticed(renderer: ModuleType) -> None:
    text = (ROOT / "docs" / "evidence" / "starts.md").read_text()
    assert "-0.0691" in text
    assert renderer.render(text.replace("| -0.0691", "| -0.0692")) == text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_minus_nought(document: Path) -> None:
    assert not re.search(r"[^0-9.e]-0\.0+(?!\d)", document.read_text())


def test_the_advice_of_the_readme_has_the_figures_of_the_records() -> None:
    """Its prose holds few numbers: each is a difference in a record, as that rounds it."""
    text = (ROOT / "README.md").read_text().partition("## Which initialisation")[2]
    advice = " ".join(text.partition("\n## ")[0].split())

    def final(study: str, arm: str) -> dict[str, float]:
        arms = json.loads((RECORDS / study / "report" / "table.json").read_text())["arms"]
        (found,) = (one["measures"]["final_val_bpb"] for one in arms if one["arm"] == arm)
        return found["difference_to_baseline"]

    short = final("memory-text", "short_ema")
    assert f"ahead by {-short['mean']:.3f} ({-short['high']:.3f} to {-short['low']:.3f}," in advice
    assert f"worth about {-final('memory-lags', 'law_lags-0.7')['mean']:.3f} bits per byte" in advice
    frozen = [final("memory-lags", f"short-frozen_lags-{alpha}")["mean"] for alpha in (0.7, 1.3)]
    assert "keep costing {:.2f} and {:.2f}".format(*frozen) in advice
