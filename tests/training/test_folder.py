"""How the end of a run that has not finished is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from plkernel.common.files import DIVERGED, FAILED, RESULT
from plkernel.training.folder import RunFolder

TRACE = "Traceback (most recent call last):\n  File ...\nValueError: no such luck\n"


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (None, "did not finish"),
        ({"status": DIVERGED, "error": "the loss is nan at step 6 of 40"}, "diverged at step 6"),
        ({"status": DIVERGED, "error": None}, "diverged"),
        ({"status": FAILED, "error": TRACE}, "failed (ValueError: no such luck)"),
        ({"status": FAILED}, "failed (no reason recorded)"),
    ],
)
def test_the_end_of_a_run_is_told_in_a_few_words(
    result: dict[str, Any] | None, told: str, tmp_path: Path
) -> None:
    if result is not None:
        (tmp_path / RESULT).write_text(json.dumps(result))
    assert RunFolder(tmp_path).failure == told
