"""The tutorials run as they stand: every command succeeds, and prints the same but for the numbers of this machine."""

import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
NUMBER = re.compile(r"[-+<=]*\s*[-+]?\d[\d,.:]*(e[-+]?\d+)?|±|nan|inf|[-|]{2,}")


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_it_runs_and_says_the_same(page: Path, tmp_path: Path) -> None:
    execute, before = runpy.run_path(str(FOLDER / "execute.py")), page.read_text()
    after = execute["executed"](before, tmp_path)
    block = re.compile(r"^```(console|text)\n.*?^```", re.DOTALL | re.MULTILINE)
    assert block.sub("", before) == block.sub("", after)
    assert all((tmp_path / picture).stat().st_size for picture in execute["PICTURE"].findall(after))
    shown, printed = (len(NUMBER.sub(" ", text).split()) for text in (before, after))
    assert abs(shown - printed) <= 0.2 * shown, "the outputs have changed: make tutorials"
