"""python -m plkernel.inspect: options that do not suit a model, and exits."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.commands import inspect

WRONG = {"severity": "wrong", "tensor": "A_log", "seen": "zeros"}
NOTABLE = {"severity": "notable", "tensor": "A_log", "seen": "high"}


@pytest.mark.parametrize(
    ("findings", "notable", "fails"),
    [
        ([], True, False),
        ([NOTABLE], False, False),
        ([NOTABLE], True, True),
        ([NOTABLE, WRONG], False, True),
    ],
)
def test_what_is_wrong_fails_and_what_is_notable_where_asked(
    findings: list[dict[str, Any]], notable: bool, fails: bool
) -> None:
    assert inspect._fails(findings, notable) == fails


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A model of `is_other` software with `findings`; what was asked and delivered."""
    state: dict[str, Any] = {"is_other": True, "findings": [], "asked": []}
    memories = (None, SimpleNamespace(blocks=3))

    def checkpoint(*given: Any) -> Any:
        state["asked"].append(given)
        return ["one", "two"], {"findings": state["findings"]}, memories, "title"

    def deliver(report: str, values: Any, draw: Any, json: Any, figure: Any) -> None:
        state.update(report=report, values=values, drawn=draw())

    figure = lambda *given: given  # noqa: E731
    monkeypatch.setattr(inspect, "_of_checkpoint", checkpoint)
    monkeypatch.setattr("plkernel.probing.runs.of_run", checkpoint)
    monkeypatch.setattr("plkernel.decays.inspection.is_other_software", lambda _: state["is_other"])
    monkeypatch.setattr("plkernel.common.delivery.deliver", deliver)
    monkeypatch.setattr("plkernel.decays.memory_figures.model_figure", figure)
    monkeypatch.setattr(
        "plkernel.probing.observation.observe_text",
        lambda *given: ("observed", {"layers": [1, 2, 3], "given": given[1:]}),
    )
    return state


@pytest.mark.parametrize(
    ("is_other", "options", "message"),
    [
        (True, {"notable": True}, "strict must be given with notable"),
        (False, {"notable": True}, "strict must be given with notable"),
        (False, {"trust_code": True}, "text must be given with trust_code"),
        (True, {"corpus": "stdlib"}, "corpus and windows must be left out"),
        (True, {"windows": 15}, "corpus and windows must be left out"),
        (False, {"strict": True}, "compare, strict, state_dtype and decays must be left out"),
        (False, {"compare": Path("a")}, "compare, strict, state_dtype and decays must be left"),
        (False, {"state_dtype": "bf16"}, "compare, strict, state_dtype and decays must be left"),
        (False, {"decays": Path("a")}, "compare, strict, state_dtype and decays must be left"),
        (True, {"decays": Path("a"), "text": "b"}, "text must be left out where decays are given"),
        (True, {"tokens": 1}, "tokens must be at least 2, got 1"),
        (False, {"windows": 0}, "windows must be at least 1, got 0"),
        (True, {"windows": 16}, None),
        (True, {"decays": Path("a")}, None),
        (True, {"text": "b", "tokens": 2}, None),
        (True, {"compare": Path("a"), "state_dtype": "bf16", "strict": True}, None),
        (False, {"corpus": "stdlib", "windows": 1, "text": "b"}, None),
    ],
)
def test_options_are_for_checkpoints_or_for_runs(
    is_other: bool,
    options: dict[str, Any],
    message: str | None,
    model: dict[str, Any],
    tmp_path: Path,
) -> None:
    model["is_other"] = is_other
    if message is None:
        inspect.command(tmp_path, **options)
        assert len(model["asked"]) == 1
    else:
        with pytest.raises(ValueError, match=message):
            inspect.command(tmp_path, **options)
        assert model["asked"] == []


@pytest.mark.parametrize("option", ["corpus", "text", "compare", "decays"])
def test_what_is_read_is_not_written(option: str, model: dict[str, Any], tmp_path: Path) -> None:
    given = tmp_path / "given"
    path = given if option in ("compare", "decays") else str(given)
    with pytest.raises(ValueError, match="json must be another file than those that are read"):
        inspect.command(tmp_path, json=given, **{option: path})
    with pytest.raises(ValueError, match="json must be another file than those that are read"):
        inspect.command(tmp_path, json=tmp_path / "config.json")
    assert model["asked"] == []


@pytest.mark.parametrize(
    ("options", "code"), [({}, None), ({"strict": True}, None), ({"notable": True}, 1)]
)
def test_strict_exits_with_1_after_the_report(
    options: dict[str, Any], code: int | None, model: dict[str, Any], tmp_path: Path
) -> None:
    model["findings"] = [NOTABLE]
    strict = bool(options)
    if code is None:
        inspect.command(tmp_path, **options)
    else:
        with pytest.raises(SystemExit) as stop:
            inspect.command(tmp_path, strict=strict, **options)
        assert stop.value.code == code
    assert model["report"] == "one\n\ntwo"
    model["findings"] = [WRONG]
    inspect.command(tmp_path)
    with pytest.raises(SystemExit):
        inspect.command(tmp_path, strict=True)


def test_half_lives_of_checkpoints_are_in_tokens_and_of_runs_in_bytes(
    model: dict[str, Any], tmp_path: Path
) -> None:
    for is_other, unit in ((True, "tokens"), (False, "bytes")):
        model["is_other"] = is_other
        inspect.command(tmp_path)
        assert model["drawn"][2:] == ("title", unit)
    assert "observed" not in model["values"]


def test_a_text_adds_a_table_where_all_layers_were_met(
    model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of plkernel may have blocks that are not observed."""
    inspect.command(tmp_path, text="text", tokens=5)
    assert model["report"] == "one\n\ntwo\n\nobserved"
    assert model["values"]["observed"]["given"] == ("text", 5, False)
    inspect.command(tmp_path, text="text", trust_code=True)
    assert model["values"]["observed"]["given"] == ("text", 2048, True)
    monkeypatch.setattr(
        "plkernel.probing.observation.observe_text", lambda *_: ("observed", {"layers": [1, 2]})
    )
    with pytest.raises(ValueError, match="got 2 of the 3 layers with decays"):
        inspect.command(tmp_path, text="text")
    model["is_other"] = False
    inspect.command(tmp_path, text="text")
    assert model["report"].endswith("observed")


def test_a_config_that_transformers_would_not_run_is_refused_before_it(
    model: dict[str, Any], tmp_path: Path
) -> None:
    model["findings"] = [WRONG, {**NOTABLE, "tensor": "config.json", "seen": "5 heads"}]
    inspect.command(tmp_path)
    with pytest.raises(ValueError, match="must describe the model, got one that says 5 heads"):
        inspect.command(tmp_path, text="text")
    model["is_other"] = False
    inspect.command(tmp_path, text="text")
    model["findings"] = [WRONG]
    model["is_other"] = True
    inspect.command(tmp_path, text="text")
