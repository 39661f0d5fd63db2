"""The notebooks run as they stand, and print the same but for the numbers of this machine."""

import os
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
NUMBER = re.compile(r"[-+<=]*\s*[-+]?\d[\d,.:]*(e[-+]?\d+)?|±|nan|inf|[-|]{2,}")


def words(notebook: object) -> list[int]:
    """How many words each cell prints, without numbers and progress."""
    counts = []
    for cell in notebook.cells:  # type: ignore[attr-defined]
        texts = [
            one.get("text", "") or one.get("data", {}).get("text/plain", "")
            for one in cell.get("outputs", [])
        ]
        counts.append(len(NUMBER.sub(" ", "".join(texts)).split()))
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.ipynb")), ids=lambda page: page.stem)
def test_it_runs_and_says_the_same(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:IProgress")  # of tqdm, where ipywidgets is missing
    notebook = nbformat.read(page, as_version=4)
    shown = words(notebook)
    nbclient.NotebookClient(notebook, timeout=1200).execute()
    assert words(notebook) == pytest.approx(shown, rel=0.2, abs=5), (
        "the outputs have changed: make tutorials"
    )
