"""README.md and the pages of docs/ say what the committed records say."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from plkernel.analysis.nodes import falling_exponent
from plkernel.memory.diagnostics import memory_of
from plkernel.results.comparison import compare
from plkernel.results.study import read_study

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.fixture(scope="module")
def renderer(script_of: Callable[[str], ModuleType]) -> ModuleType:
    return script_of("records/render")


def test_documents_are_rendered_from_the_records(renderer: ModuleType) -> None:
    texts = [document.read_text() for document in DOCUMENTS]
    assert {match[2] for text in texts for match in renderer.PART.finditer(text)} == set(renderer.PARTS)
    assert [renderer.render(text) for text in texts] == texts


def test_a_changed_number_is_noticed(renderer: ModuleType) -> None:
    text = (ROOT / "docs" / "evidence" / "tables.md").read_text()
    assert "-0.0691" in text
    assert renderer.render(text.replace("| -0.0691", "| -0.0692")) == text


def exponents(records: list[Any]) -> Any:
    """x of the law t**-x that each block's kernel follows on 1 <= t <= 256, mean over runs."""
    memory = memory_of(records)
    inside = memory.lags <= 256
    return falling_exponent(memory.lags[inside], np.log(memory.kernels[..., inside])).mean(axis=0)


def test_the_evidence_in_the_readme_follows_from_rows() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    lags = read_study(ROOT / "runs/records/memory-lags")
    best, learnt, frozen = (
        np.mean([run.result.final_val_bpb for run in lags.finished(f"{arm}_lags-0.7")])
        for arm in ("log-spaced", "short", "short-frozen")
    )
    assert (
        f"cost {frozen - best:.3f} bits per byte if they are frozen, and {learnt - best:.3f} if they are learnt" in text
    )
    source = read_study(ROOT / "runs/records/memory-text")
    runs = {arm: source.finished(arm) for arm in source.spec["arms"] if arm.endswith("_ema")}
    first, last = (
        {arm: exponents([getattr(run, name) for run in of]) for arm, of in runs.items()} for name in ("first", "last")
    )
    near = [value for value in last.values() if (abs(value - 0.97) < 0.06).all()]
    assert (len(near), len(last)) == (5, 7)
    assert f"between t^-{np.min(near):.2f} and t^-{np.max(near):.2f}" in text
    assert f"begin (t^-{first['log-spaced_ema'].mean():.2f}; 7 seeds" in text


def test_the_demo_decides_and_no_arm_of_it_is_worse_than_counts_of_two_bytes() -> None:
    one = compare(read_study(ROOT / "runs/records/demo"))
    assert one.declared
    assert [outcome.judgement.verdict for outcome in one.declared.outcomes] == ["confirmed", "confirmed", "undecided"]
    assert one.declared.registered
    assert not one.declared.changes
    for corpus, bits in (("copies", 2.4582), ("source", 3.466)):  # counts of two bytes in references.json
        assert f"{bits}" in (ROOT / "runs/records/demo/references.json").read_text()
        ends = [
            run.result.final_val_bpb for arm in one.arms if corpus in arm.name for run in one.study.finished(arm.name)
        ]
        assert len(ends) == 9
        assert max(ends) < bits
