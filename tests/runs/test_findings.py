"""runs/findings.py: its record is of all that it lists, and a part of it is made again."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from plkernel.common.environment import installed

RECORD = Path(__file__).parents[2] / "runs" / "records" / "findings" / "table.json"


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RECORD.read_text())
    return content


@pytest.fixture(scope="module")
def script(script_of: Callable[[str], ModuleType]) -> ModuleType:
    return script_of("findings")


def test_the_record_has_every_model_and_every_bug(script: ModuleType, record: dict[str, Any]) -> None:
    assert [(one["framework"], one["model"]) for one in record["models"]] == list(script.MODELS)
    assert [(one["report"], one["says"]) for one in record["bugs"]] == [(bug.report, bug.says) for bug in script.BUGS]
    assert all(one["caught"] == bool(one["seen"]) for one in record["bugs"])
    assert all(record["frameworks"].values())


def test_what_a_delta_rule_remembers_is_marked(record: dict[str, Any]) -> None:
    marked = {one["model"] for one in record["models"] if one["upper_bounds"]}
    assert marked == {"Qwen3Next", "OlmoHybrid", "KimiLinear", "GatedDeltaNet", "KDA", "RWKV7"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers
def test_it_is_found_again(script: ModuleType, record: dict[str, Any]) -> None:
    if (found := installed("transformers")) != (version := record["frameworks"]["transformers"]):
        pytest.skip(f"the record is of transformers {version}, and {found} is installed")
    rows = {(one["framework"], one["model"]): one for one in record["models"]}
    for key in (("transformers", "Mamba2"), ("transformers", "xLSTM")):
        again = script.row(*key, script.inspected(script.built(*key)))
        assert again["findings"] == rows[key]["findings"]
        assert again["half_lives"] == pytest.approx(rows[key]["half_lives"], rel=1e-5)
    for bug, kept in zip(script.BUGS, record["bugs"], strict=True):
        if bug.model[0] == "transformers":
            assert script.bug_row(bug) == kept
