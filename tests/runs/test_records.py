"""README.md, the pages of docs/ and the audit say what the committed records say."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from plkernel.results.study import read_study

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


def test_the_advice_of_the_readme_has_the_figures_of_the_records() -> None:
    """Its prose holds few numbers: each is a difference in a record, as that rounds it."""
    advice = " ".join(
        (ROOT / "README.md").read_text().partition("## Which initialisation")[2].partition("\n## ")[0].split()
    )

    def final(study: str, arm: str) -> dict[str, float]:
        arms = json.loads((ROOT / "runs" / "records" / study / "report" / "table.json").read_text())["arms"]
        (found,) = (one["measures"]["final_val_bpb"] for one in arms if one["arm"] == arm)
        return found["difference_to_baseline"]

    short = final("memory-text", "short_ema")
    assert f"ahead by {-short['mean']:.3f} ({-short['high']:.3f} to {-short['low']:.3f}," in advice
    assert f"worth about {-final('memory-lags', 'law_lags-0.7')['mean']:.3f} bits per byte" in advice
    frozen = [final("memory-lags", f"short-frozen_lags-{alpha}")["mean"] for alpha in (0.7, 1.3)]
    assert "keep costing {:.2f} and {:.2f}".format(*frozen) in advice
