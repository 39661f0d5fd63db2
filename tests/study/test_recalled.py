"""The answers behind what a study of recall declares are those that its runs are tested with."""

from typing import Any

import pytest
import torch

from plkernel.config.reading import parse_spec
from plkernel.config.spec import Spec
from plkernel.results.measurements import Basis, basis_of
from plkernel.study.recalled import answers_behind
from plkernel.training.recall_task import RecallTask
from plkernel.training.recall_tests import recall_results

RECALL = "synthetic:recall,pairs=4,length=32,placing=anywhere"
OF_TEST = {"metric": "persistence", "times": 4, "claim": "higher"}


def spec_of(corpus: str = RECALL, **changes: Any) -> Spec:
    """A study of two arms, tested with four sequences of each kind."""
    values = {
        "name": "s",
        "baseline": "a",
        "seeds": [0, 1],
        "corpus": {"name": corpus},
        "model": {"dim": 16},
        "train": {"context": 32, "batch": 4, "steps": 10, "test_windows": 4, "eval_windows": 5},
        "arms": {"a": {}, "b": {"longest": 64}},
    }
    return parse_spec({**values, **changes}, "s")


def hypothesis(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "arm": "b", **OF_TEST, **options}


@pytest.mark.parametrize("metric", ["capacity", "persistence", "persistence_bits"])
def test_answers_are_those_that_a_run_counts(metric: str) -> None:
    test = metric.removesuffix("_bits")
    distances = [None, 2, 4, 8, 16, 32, 64, 128]
    declared = [hypothesis(str(one), metric=metric, distance=one) for one in distances]
    spec = spec_of(hypotheses=declared)
    task = RecallTask.of(spec.condition("b"))
    assert task is not None
    tests = recall_results(lambda tokens: torch.zeros(*tokens.shape, 256), task, 4)["tests"]
    (longest,) = [one for one in tests if (one["test"], one["length"]) == (test, 128)]
    groups = longest["distance"]
    expected = {str(end): 0 for end in distances}
    expected |= {
        str(end): number for end, number in zip(groups["up_to"], groups["queries"], strict=True)
    }
    expected["None"] = 4 * longest["pairs"]
    assert answers_behind(spec, spec.hypotheses) == expected
    assert sum(groups["queries"]) == expected["None"]


def test_losses_rest_on_the_answers_of_their_sequences() -> None:
    gates = [
        {"name": "last", "arm": "a", "at_most": 1.0},
        {"name": "test", "arm": "b", "at_most": 1.0, "metric": "test_bpb"},
    ]
    spec = spec_of(gates=gates)
    assert answers_behind(spec, spec.gates) == {"last": 5 * 4, "test": 4 * 4}


def test_the_fewest_answers_of_a_mean_count() -> None:
    factors = {
        "start": {"own": {}, "long": {"longest": 64}},
        "pairs": {"many": {}, "few": {"corpus": {"name": RECALL.replace("pairs=4", "pairs=3")}}},
    }
    declared = [hypothesis("mean", arm="long")]
    spec = spec_of(arms={}, factors=factors, within=["pairs"], baseline="own", hypotheses=declared)
    assert answers_behind(spec, spec.hypotheses) == {"mean": 4 * 3}


def test_the_other_side_of_a_hypothesis_counts_too() -> None:
    """Its pairs come first here, so that none is asked for two bytes behind it."""
    first = RECALL.replace("anywhere", "first")
    spec = spec_of(
        arms={"a": {"corpus": {"name": first}}, "b": {}},
        hypotheses=[hypothesis("near", distance=2)],
    )
    alone = spec_of(hypotheses=[hypothesis("near", distance=2)])
    (number,) = answers_behind(alone, alone.hypotheses).values()
    assert number > 0
    assert answers_behind(spec, spec.hypotheses) == {"near": 0}


def test_no_more_sequences_count_than_the_corpus_holds() -> None:
    """A twentieth of 4,000 bytes is 6 sequences of 32 for validation, and as many for test."""
    gates = [
        {"name": "last", "arm": "a", "at_most": 1.0},
        {"name": "test", "arm": "b", "at_most": 1.0, "metric": "test_bpb"},
    ]
    train = {"context": 32, "batch": 4, "steps": 10, "test_windows": 7, "final_windows": 2**24}
    spec = spec_of(corpus=f"{RECALL},bytes=4000", gates=gates, train=train)
    assert answers_behind(spec, spec.gates) == {"last": 6 * 4, "test": 6 * 4}
    held_out = {"size": 4000, "validation": 0.05, "test": 0.05}
    stated = spec.model_dump(mode="json")
    assert [basis_of(stated, gate, held_out, pairs=4) for gate in spec.gates] == 2 * [
        Basis(6 * 4, "answers")
    ]


def test_minima_of_curves_rest_on_the_windows_at_the_end() -> None:
    declared = [
        {"name": name, "arm": "b", "claim": "lower", "metric": f"{name}_minimum"}
        for name in ("val_bpb", "test_bpb")
    ]
    train = {"context": 32, "batch": 4, "steps": 10, "test_windows": 6, "final_windows": 9}
    tuning = {"method": "curve", "rates": [1e-3, 2e-3, 4e-3]}
    spec = spec_of(train=train, tuning=tuning, hypotheses=declared)
    assert answers_behind(spec, spec.hypotheses) == {"val_bpb": 9 * 4, "test_bpb": 6 * 4}


def test_a_text_has_none() -> None:
    gate = {"name": "last", "arm": "a", "at_most": 1.0}
    assert (
        answers_behind(spec_of("stdlib", gates=[gate]), spec_of("stdlib", gates=[gate]).gates) == {}
    )
