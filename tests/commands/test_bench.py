"""python -m plkernel.bench: every part is handed its options."""

import sys
from pathlib import Path
from typing import Any

import pytest

from plkernel.commands import bench
from plkernel.common import cli


@pytest.mark.parametrize(
    ("part", "place", "options", "given"),
    [
        ("scan", "operators.run", {"rounds": 2}, ("scan", 1, (), 2, "auto", None)),
        (
            "wkv",
            "operators.run",
            {"shapes": ((1, 2, 3, 4),), "threads": 3, "device": "cpu"},
            ("wkv", 3, ((1, 2, 3, 4),), 15, "cpu", None),
        ),
        ("wkv7", "operators.run", {"out": Path("o")}, ("wkv7", 1, (), 15, "auto", Path("o"))),
        ("train", "training.train", {"rounds": 2}, (Path("quick"), 1, 2, "auto", None)),
        ("host", "host.run", {"rounds": 2, "device": "cpu"}, (2, "cpu", None)),
        (
            "profile",
            "profile.run",
            {"skip": ("a",), "seconds": 1.0},
            ("auto", 1.0, None, ("a",), 10_700),
        ),
        ("step", "step.step", {"only": ("a",)}, ("auto", 150.0, None, ("a",))),
        ("growth", "step.growth", {"out": Path("o")}, ("auto", 150.0, Path("o"))),
    ],
)
def test_options_reach_the_benchmark(
    part: str,
    place: str,
    options: dict[str, Any],
    given: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(f"plkernel.benchmarks.{place}", lambda *values: asked.append(values))
    getattr(bench, part)(**options)
    assert asked == [given]


@pytest.mark.parametrize(
    ("part", "axes"),
    [
        ("scan", "batch, time and channels"),
        ("wkv", "batch, time, heads and head size"),
        ("wkv7", "batch, time, heads and head size"),
    ],
)
def test_the_help_of_an_operator_names_its_axes(part: str, axes: str) -> None:
    text = getattr(bench, part).__doc__
    assert f"Check {part} and its peers" in text
    assert f"shapes: {axes} of one problem" in text


@pytest.mark.parametrize(("part", "option"), [("step", "--only"), ("profile", "--skip")])
def test_an_option_of_a_part_has_a_value(
    part: str, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", part, option])
    with pytest.raises(SystemExit) as stop:
        cli.main_of({part: getattr(bench, part)}, "Benchmarks.")
    assert stop.value.code == cli.EXIT_BAD_INPUT
    assert (
        capsys.readouterr().err
        == f"error: {option} must be a text, got nothing; leave it out instead\n"
    )
