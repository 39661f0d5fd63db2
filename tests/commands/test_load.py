"""python -m plkernel.load, export and new: where files go, and what is never replaced."""

from pathlib import Path
from typing import Any

import pytest

from plkernel.commands.export import export
from plkernel.commands.load import load
from plkernel.commands.new import new
from plkernel.config.reading import FOLDER

Shown = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("mine")
    return path


def unread(*_: Any) -> Any:
    pytest.fail("work")


def test_a_file_in_the_place_of_a_folder_is_refused_before_any_work(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plkernel.decays.official.read", unread)
    monkeypatch.setattr("plkernel.training.checkpoint.open_model", unread)
    with pytest.raises(OSError, match=r"out .*cannot be written"):
        load(file, file / "sub")
    with pytest.raises(OSError, match="cannot be written"):
        export(file, file / "sub.pth")
    with pytest.raises(OSError, match=r"folder .*cannot be written"):
        new(file)
    assert file.read_text() == "mine"


def test_an_exported_model_has_the_ending_of_its_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    from plkernel.models.rwkv import RWKV

    written: list[Path] = []
    model = RWKV.__new__(RWKV)
    monkeypatch.setattr("plkernel.training.checkpoint.open_model", lambda _: (model, {}, None))
    monkeypatch.setattr("plkernel.decays.official.to_official", lambda _: {})
    monkeypatch.setattr("plkernel.decays.official.described", lambda *_: "a model")
    monkeypatch.setattr(
        "plkernel.decays.official.write_official", lambda path, *_: written.append(path)
    )
    for name, ending in (("a", "a.pth"), ("b.pth", "b.pth"), ("c.1", "c.1.pth")):
        export(tmp_path, tmp_path / name)
        assert written[-1] == tmp_path / ending
        assert capsys.readouterr().out == f"a model\nwritten: {tmp_path / ending}\n"
    monkeypatch.setattr("plkernel.training.checkpoint.open_model", lambda _: (object(), {}, None))
    with pytest.raises(ValueError, match="model must be of kind rwkv5, rwkv6 or rwkv7"):
        export(tmp_path, tmp_path / "d")


def test_templates_are_copied_and_never_replace_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    names = sorted(path.name for path in (FOLDER / "new").iterdir() if path.is_file())
    folder = tmp_path / "mine"
    new(folder)
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(names)] == [f"written: {folder / name}" for name in names]
    assert lines[len(names) : len(names) + 3] == ["", "Now:", f"cd {folder}"]
    assert lines[-1].endswith(" study.toml --trust-code     (three minutes on two cores)")
    for name in names:
        assert (folder / name).read_bytes() == (FOLDER / "new" / name).read_bytes()
    last = names[-1]
    other = tmp_path / "other"
    other.mkdir()
    (other / last).write_text("mine")
    with pytest.raises(ValueError, match=f"folder must not hold {last}"):
        new(other)
    assert [path.name for path in other.iterdir()] == [last], "nothing is written"
    monkeypatch.chdir(tmp_path)
    new()
    assert "cd " not in capsys.readouterr().out.split("Now:")[1].replace("--trust-code", "")
