"""Specs and tables of roles that come with plkernel are found by name, from anywhere."""

import re
from pathlib import Path

import pytest

from plkernel.commands.specs import COST, command, listing
from plkernel.config.named import find, roles, specs
from plkernel.config.reading import load_spec
from plkernel.models.init.plan import RoleTable

RUNS = Path(__file__).parents[2] / "runs"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_spec_has_a_name_a_cost_and_a_description() -> None:
    assert {path.resolve() for path in specs().values()} == set(RUNS.glob("*.toml"))
    lines = listing().splitlines()
    for name in specs():
        line = next(line for line in lines if line.startswith(f"{name} "))
        assert COST.search(line), line
        assert load_spec(name).description in line
    assert re.search("^memory-text +about three and a half hours on two cores ", listing(), re.MULTILINE)
    assert list(specs()) == sorted(specs())


def test_a_name_a_path_and_a_folder_of_that_name(tmp_path: Path) -> None:
    assert load_spec("quick") == load_spec(RUNS / "quick.toml")
    (tmp_path / "quick").mkdir()  # as a study with --out quick leaves one
    assert find("quick").resolve() == RUNS / "quick.toml"
    (tmp_path / "quick.toml").write_text("")
    assert find("quick.toml") == Path("quick.toml")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("qick", "none of that name comes with plkernel; did you mean 'quick'"),
        ("runs/quick.toml", "no such file or folder; did you mean quick, which comes with plkernel"),
        ("mine.toml", "spec mine.toml: no such file or folder$"),
    ],
)
def test_what_is_neither(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find(given)


def test_one_is_written_to_edit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("finch")
    (tmp_path / "my.toml").write_text(capsys.readouterr().out)
    assert (tmp_path / "my.toml").read_bytes() == (RUNS / "finch.toml").read_bytes()
    with pytest.raises(ValueError, match="did you mean 'finch'"):
        command("fnch")


def test_tables_of_roles() -> None:
    assert set(roles()) == {path.stem for path in (RUNS / "roles").glob("*.toml")}
    for name, path in roles().items():
        assert RoleTable.from_toml(name) == RoleTable.from_toml(path)
    with pytest.raises(ValueError, match="gpt3: no such file; by name there are gpt2, mamba"):
        RoleTable.from_toml("gpt3")
