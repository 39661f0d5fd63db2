"""Flags override the file, and the whole is checked again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel import spec_cli
from plkernel.spec import Spec


def parse(*args: str) -> tuple[Spec, Path | None]:
    taken: list[tuple[Spec, Path | None]] = []

    def command(spec: Spec, out: Path | None = None) -> None:
        taken.append((spec, out))

    spec_cli.main(command, args)
    return taken[0]


def test_any_field_can_be_overridden(tiny_spec: Callable[..., Path]) -> None:
    spec, out = parse(str(tiny_spec()), "--spec.train.steps", "7", "--spec.arms.uniform.beta", "0.9", "--out", "here")
    assert spec.train.steps == 7
    assert spec.arms["uniform"].beta == 0.9
    assert spec.arms["power-law"].beta == 1.15
    assert spec.train.batch == 4
    assert out == Path("here")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--spec.train.steps", "-3"], "train.steps: Input should be greater than or equal to 1, got -3"),
        (["--spec.arms.uniform.beta", "nan"], "arms.uniform.beta: Input should be a finite number, got nan"),
        (["--spec.train.minutes", "1"], "give exactly one of steps, bytes and minutes"),
        (["--spec.baseline", "powerlaw"], "did you mean 'power-law'"),
    ],
)
def test_bad_flags_are_one_line_and_exit_2(
    tiny_spec: Callable[..., Path], flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(str(tiny_spec()), *flags)
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in error
    assert len(error.splitlines()) == 1


def test_help_needs_no_spec(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--help")
    assert stop.value.code == 0
    assert "Peak learning rate of AdamW" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        parse("--out", "here")
    assert stop.value.code == 2
    assert "the spec comes first" in capsys.readouterr().err
