"""python -m plkernel.specs: every spec with what it is for, and their texts to edit."""

import tomllib

import pytest

from plkernel.commands.specs import command
from plkernel.config.reading import roles, specs

Shown = pytest.CaptureFixture[str]


def test_every_spec_is_listed_with_its_description_in_one_column(capsys: Shown) -> None:
    command()
    lines = capsys.readouterr().out.splitlines()
    known = specs()
    margin = max(map(len, [*known, *roles()])) + 2
    for line, (name, path) in zip(lines, known.items(), strict=False):
        described = tomllib.loads(path.read_text()).get("description", "")
        assert line.rstrip() == f"{name.ljust(margin)}{described}".rstrip()
    assert lines[len(known)] == ""
    assert lines[len(known) + 1].endswith(f": {', '.join(roles())}")
    assert lines[-1].endswith("NAME > my.toml writes one, to edit")
    assert len(lines) == len(known) + 3


@pytest.mark.parametrize("name", ["quick", next(iter(roles()))])
def test_a_name_prints_the_file_as_it_is(name: str, capsys: Shown) -> None:
    command(name)
    path = {**specs(), **roles()}[name]
    assert capsys.readouterr().out == path.read_text(encoding="utf-8")


def test_an_unknown_name_is_answered_with_the_nearest(capsys: Shown) -> None:
    with pytest.raises(ValueError, match=r"got 'quikc'; did you mean 'quick'"):
        command("quikc")
    assert capsys.readouterr().out == ""
