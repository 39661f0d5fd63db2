"""The tutorials run as they stand: every command succeeds, and prints the same but for the numbers of this machine."""

import importlib.util
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
NUMBER = re.compile(r"[-+<=]*\s*[-+]?\d[\d,.:]*(e[-+]?\d+)?|±|nan|inf")


def words(text: str) -> list[str]:
    """The words of a page, without numbers and without what only frames a table."""
    return [word for word in NUMBER.sub(" ", text).split() if word.strip("-| ")]


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_it_runs_and_says_the_same(page: Path, tmp_path: Path) -> None:
    specification = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    assert specification is not None
    assert specification.loader is not None
    execute = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(execute)
    before = page.read_text()
    after = "".join(execute.executed(before, tmp_path))
    prose = [
        re.sub(r"^```(console|text)\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE) for text in (before, after)
    ]
    assert prose[0] == prose[1]
    for picture in execute.PICTURE.findall(after):
        assert (tmp_path / picture).stat().st_size > 0
    shown, printed = words(before), words(after)
    assert abs(len(shown) - len(printed)) <= 0.2 * len(shown), "the outputs have changed: make tutorials"
