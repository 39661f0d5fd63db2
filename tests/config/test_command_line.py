"""Flags override the file, and the whole is checked again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel import experiment, train
from plkernel.config import command_line
from plkernel.config.study import Spec


def parse(*args: str) -> tuple[Spec, Path | None]:
    taken: list[tuple[Spec, Path | None]] = []

    def command(spec: Spec, out: Path | None = None) -> None:
        taken.append((spec, out))

    command_line.main(command, args)
    return taken[0]


def test_any_field_can_be_overridden(tiny_spec: Callable[..., Path]) -> None:
    spec, out = parse(str(tiny_spec()), "--spec.train.steps", "7", "--spec.arms.power-law.beta", "0.9", "--out", "here")
    assert spec.train.steps == 7
    assert spec.arms["power-law"].beta == 0.9
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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--train.stepps", "5"], "unknown option --train.stepps; did you mean --train.steps?"),
        (["--steps", "5"], "unknown option --steps; did you mean --train.steps or --tuning.steps?"),
        (["--arms.powerlaw.beta", "1"], "unknown option --arms.powerlaw.beta; did you mean --arms.power-law.beta?"),
        (["--factors.gain", "1"], "unknown option --factors.gain"),
        (["--train.steps"], "--train.steps: expected a whole number, got nothing"),
        (["--train.steps", "ten"], "--train.steps: expected a whole number, got 'ten'"),
        (["--train.steps", "5", "6"], "'6' belongs to no option"),
        (["--seeds", "0", "x"], "--seeds: expected a whole number, got 'x'"),
        (["--arms.uniform.kernel", "rsm"], "expected one of coherent, rms, got 'rsm'; did you mean 'rms'?"),
        (["--outt", "here"], "unknown option --outt; did you mean --out?"),
        (["--out"], "--out: expected a path, got nothing"),
    ],
)
def test_misspelt_options_say_what_was_meant(
    tiny_spec: Callable[..., Path], flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(str(tiny_spec()), *flags)
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in error
    assert len(error.splitlines()) == 1


def test_every_form_of_an_option(tiny_spec: Callable[..., Path]) -> None:
    """Underscores for hyphens, =, several values, None, switches, tables, and options of an arm's model."""
    spec, out = parse(
        *(str(tiny_spec()), "--train.learning_rate=0.5", "--train.steps", "None", "--train.minutes", "2"),
        *("--seeds", "3", "4", "5", "--out", "here", "--arms.power_law.beta", "0.9", "--report-steps"),
        *("--arms.uniform.scheme-options", "std", "0.1", "--arms.power-law.model.gain", "ema", "--model.no-k-clamp"),
    )
    assert (spec.train.learning_rate, spec.train.steps, spec.train.minutes) == (0.5, None, 2.0)
    assert (spec.seeds, spec.report_steps, out) == ((3, 4, 5), (), Path("here"))
    assert (spec.arms["power-law"].beta, spec.arms["uniform"].scheme_options) == (0.9, {"std": 0.1})
    assert (spec.model_of("power-law").gain, spec.model_of("uniform").gain) == ("ema", "none")
    assert not spec.model.k_clamp


def test_a_spec_that_is_not_there(tiny_spec: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_spec()
    with pytest.raises(SystemExit):
        parse(str(path.with_name("tinny.toml")))
    assert capsys.readouterr().err.endswith(f"tinny.toml: no such file or folder; did you mean {path}?\n")


def test_help_needs_no_spec(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--help-all")
    assert stop.value.code == 0
    assert "Peak learning rate of AdamW" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        parse("--out", "here")
    assert stop.value.code == 2
    assert "the spec comes first" in capsys.readouterr().err


@pytest.mark.parametrize("command", [experiment.command, train.command])
def test_help_is_one_screen(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stop:
        command_line.main(command, ["--help"])
    text = capsys.readouterr().out
    lines = sum(-(-max(1, len(line)) // 100) for line in text.splitlines())
    assert (stop.value.code, lines <= 40) == (0, True), f"{lines} lines"
    assert "dict" not in text
    assert "Example: python -m" in text
    assert "--help-all" in text


def test_help_of_a_file_shows_its_values(tiny_spec: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(str(tiny_spec()), "--help-all")
    text = capsys.readouterr().out
    assert "--train.steps INT (now 12)" in text
    assert "--arms.NAME.beta FLOAT" in text
    assert "--model.patching.mode {causal,published} (now 'causal')" in text


def test_a_folder_is_no_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(str(tmp_path))
    assert capsys.readouterr().err == (
        f"error: spec {tmp_path}: is a folder; name a TOML file, or the spec.json of a study\n"
    )
