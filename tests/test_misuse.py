"""Mistakes on the command line: one line that names what was wrong and what would work, before
anything slow.
"""

from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from plkernel.common import cli
from plkernel.config import reading
from plkernel.training import build, check, loop

Shown = pytest.CaptureFixture[str]


def refused(name: str, *words: str, shown: Shown) -> str:
    """What a command says on standard error."""
    module = import_module(f"plkernel.commands.{name}")
    if name in ("experiment", "train"):
        call = partial(
            reading.main, module.command, words, check, getattr(module, "check_ahead", None)
        )
    elif name == "init":
        call = partial(cli.main, getattr(module, words[0]), words[1:])
    else:
        command = getattr(module, "command", None) or getattr(module, name)
        call = partial(cli.main, command, words)
    with pytest.raises(SystemExit) as stop:
        call()
    assert stop.value.code == cli.EXIT_BAD_INPUT
    return shown.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "experiment quick --only nothing",
            "only: no arm matches 'nothing'; valid: concentrated, log-spaced",
        ),
        ("experiment quick --workers 0", "workers must be at least 1, got 0"),
        (
            "train quick",
            "arm 'log-spaced', the baseline, as --arm names none; others: 'published-weight', ",
        ),
        (
            "measure nofile",
            "corpus 'nofile': no such file or folder, nor the name of a corpus; valid: bible",
        ),
        ("measure short.txt", "short.txt: "),
        (
            "measure stdlib --max-bytes 1XB",
            "max_bytes must be a number of bytes such as 500000, 500k, 10MB",
        ),
        (
            "inspect study",
            (
                "which plkernel.report shows; give one of its runs, such as"
                f" {Path('study/arm/seed-0')}"
            ),
        ),
        ("probe study", "target study: is a study, which plkernel.report shows"),
        (
            "report study/arm/seed-0",
            "holds no spec.json: it is a run, which plkernel.inspect shows; give the folder",
        ),
        (
            "init show nope",
            "scheme 'nope' does not exist; plkernel.init list names all, such as mup",
        ),
    ],
)
def test_mistakes_are_told_at_once(
    words: str, message: str, tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with a study, a run in it and a short text."""
    monkeypatch.chdir(tmp_path)
    Path("study/arm/seed-0").mkdir(parents=True)
    for name in ("study/spec.json", "study/arm/seed-0/config.json", "short.txt"):
        Path(name).write_text("{}")
    if words.startswith("experiment"):  # no arm may have been resolved

        def fail(*_: object) -> None:
            raise AssertionError("an arm was resolved")

        monkeypatch.setattr(build.Prepared, "of", fail)

    def stop(*_: object) -> None:
        raise ValueError("trained")

    monkeypatch.setattr(loop, "prepare", stop)
    said = refused(*words.split(), shown=capsys)
    assert message in said
    assert len(said.splitlines()) == 1 + words.startswith("train")
