"""python -m plkernel.corpus: what is said of a text."""

from pathlib import Path

import pytest

from plkernel.commands.corpus import corpus
from plkernel.data.names import LAWS

Shown = pytest.CaptureFixture[str]


def told(capsys: Shown) -> dict[str, str]:
    """The values by name, which begin in one column."""
    lines = capsys.readouterr().out.splitlines()
    assert all(line[:29].strip() and line[29:31] == "  " for line in lines)
    assert all(line[31] != " " for line in lines)
    return {line[:29].strip(): line[31:] for line in lines}


@pytest.mark.parametrize(
    ("text", "bits"), [(b"abcd" * 100, 2.0), (b"aaab" * 64, 0.8112781244591328), (b"xyz", 1.584962)]
)
def test_entropy_is_that_of_single_bytes(
    text: bytes, bits: float, tmp_path: Path, capsys: Shown
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(text)
    corpus(str(path))
    values = told(capsys)
    assert float(values["unigram entropy bits per byte"]) == pytest.approx(bits, rel=1e-6)
    assert values["size"] == str(len(text))
    assert values["name"] == str(path)


def test_texts_are_cut_and_joined_as_asked(tmp_path: Path, capsys: Shown) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_bytes(name.encode() * 4)
    corpus(str(folder), separator=r"\0")
    assert told(capsys)["size"] == "9"
    corpus(str(folder), max_bytes="4")
    values = told(capsys)
    assert values["size"] == "4"
    assert float(values["unigram entropy bits per byte"]) == 0.0


def test_the_help_has_every_law() -> None:
    assert corpus.__doc__ is not None
    for law in LAWS.keys() - {"potts"}:  # which is meant where none is named
        assert f"synthetic:{law}," in corpus.__doc__
