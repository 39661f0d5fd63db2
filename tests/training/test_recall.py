"""Runs on recall: the loss is of the answers alone, stages follow one another, and the tests at the
end say what a known model recalls.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from plkernel.common.files import load_json, read_lines, save_json
from plkernel.config.condition import resolve
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.resolved import resolve_spec
from plkernel.config.schema import CorpusSpec, ModelSpec, Stage, TrainSpec
from plkernel.data.recall import KEYS, RecallCorpus, queries
from plkernel.models.init import initialise_
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.results.record import save_record
from plkernel.results.saved import RunResult
from plkernel.results.study import read_study
from plkernel.study.dry_run import timed_apart
from plkernel.study.references import save_references
from plkernel.training import check
from plkernel.training.evaluate import bits_per_byte, diagnose, next_byte_loss
from plkernel.training.loop import Training, prepare, run_training
from plkernel.training.recall_task import RecallTask, asked_in
from plkernel.training.recall_tests import by_group, recall_results, recalled

CPU = torch.device("cpu")
RUNS = Path(__file__).resolve().parents[2] / "runs"
ROUNDING = 256 * 2.0**-23
"""Of a sum of 256 numbers in float32, as in a softmax over bytes, and of means of fewer."""
NAME = "synthetic:recall,pairs=8,length=32,bytes=40k"
STAGES = (
    Stage(share=0.25, length=8, pairs=(1, 2)),
    Stage(share=0.25, length=16, pairs=(4,)),
)
TRAIN = TrainSpec(context=32, batch=4, steps=12, curriculum=STAGES, test_windows=6)
LAW = RecallCorpus(pairs=8, length=32)


def condition(name: str = NAME, **train: Any) -> Any:
    values = {"context": 32, "batch": 4, "steps": 12} | train
    return resolve(ModelSpec(dim=16), None, TrainSpec(**values), CorpusSpec(name=name))


def tiny_study(hypotheses: list[Any], corpus: str = NAME) -> Any:
    values = {
        "name": "tiny",
        "baseline": "uniform",
        "seeds": [0, 1],
        "corpus": {"name": corpus},
        "model": {"dim": 16},
        "train": {"context": 32, "batch": 4, "steps": 12, "eval_every": 6},
        "arms": {"uniform": {}, "other": {"longest": 64}},
        "hypotheses": hypotheses,
    }
    return parse_spec(values, "here")


def tiny_spec(**train: Any) -> Any:
    settings = {
        "context": 32,
        "batch": 4,
        "steps": 12,
        "eval_every": 6,
        "eval_windows": 5,
        "test_windows": 6,
        "learning_rate": 1e-2,
        "curriculum": [stage.model_dump() for stage in STAGES],
    }
    values = {
        "name": "tiny",
        "baseline": "uniform",
        "seeds": [0],
        "corpus": {"name": NAME},
        "model": {"dim": 16, "layers": 2},
        "train": settings | train,
        "arms": {"uniform": {}},
    }
    return parse_spec(values, "here", check)


def answers_of(window: Tensor) -> list[tuple[int, int]]:
    """Places of queries and the value of their pairs, by the order of the pairs."""
    bytes_ = window[:-1].tolist()
    found = []
    for place, byte in enumerate(bytes_):
        if byte < KEYS and byte not in bytes_[:place]:
            found.append((bytes_.index(byte, place + 1), bytes_[place + 1]))
    return found


def recaller(forgets: Callable[[int, int], bool] | None = None, sure: float = 50.0) -> Any:
    """Predicts the byte after the first time that the byte was there, with a lead of `sure` nats.

    forgets: whether it has forgotten the pair of that number, from 0, that many bytes ago.
    """

    def predict(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, 256)
        for row, sequence in enumerate(tokens.tolist()):
            seen: dict[int, int] = {}
            for place, byte in enumerate(sequence):
                if byte >= KEYS:
                    continue
                if byte in seen:
                    order = list(seen).index(byte)
                    gone = forgets is not None and forgets(order, place - seen[byte])
                    answer = KEYS - 1 if gone else sequence[seen[byte] + 1]
                    logits[row, place, answer] = sure
                else:
                    seen[byte] = place
        return logits

    return predict


def test_the_best_prediction_has_accuracy_one_and_no_bits_in_every_test() -> None:
    """The floor, at 1, 2, 4 and 8 times the length."""
    found = recall_results(recaller(), RecallTask(LAW, TRAIN), 4)
    assert found["floor"] == {"accuracy": 1.0, "bits": 0.0}
    assert [(test["test"], test["length"], test["pairs"]) for test in found["tests"]] == [
        (name, 32 * times, pairs)
        for times, many in ((1, 8), (2, 16), (4, 32), (8, 64))
        for name, pairs in (("capacity", many), ("persistence", 8))
    ]
    for test in found["tests"]:
        assert test["sequences"] == 6
        assert test["accuracy"] == 1.0
        assert test["bits"] < ROUNDING  # ln(1 + 255 exp(-50)) / ln 2 is 7e-20
        for columns in (test["distance"], test["order"]):
            assert sum(columns["queries"]) == 6 * test["pairs"]
            assert columns["accuracy"] == [1.0] * len(columns["queries"])


def test_lengths_end_at_train_beyond_and_pairs_at_the_keys() -> None:
    law = RecallCorpus(pairs=32, length=128)
    known = [
        (law.length, law.pairs) for _, law in RecallTask(law, TrainSpec(steps=1, beyond=16)).tests()
    ]
    capacity = [(128, 32), (256, 64), (512, 128), (1024, 128), (2048, 128)]
    assert known[0::2] == capacity
    assert known[1::2] == [(128 * 2**power, 32) for power in range(5)]
    alone = RecallTask(law, TrainSpec(steps=1, beyond=1))
    assert [law.length for _, law in alone.tests()] == [128, 128]


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_what_is_forgotten_is_counted_by_distance_and_by_order(batch: int) -> None:
    """One model forgets after 16 bytes, another all pairs behind the fourth, of eight."""
    law = replace(LAW, length=64)
    windows = torch.from_numpy(law.windows(7, np.random.default_rng(2)).astype(np.int64))
    distance = queries(windows[:, :-1].numpy()).distance

    far = recalled(recaller(lambda _, gap: gap > 16), windows, batch)
    assert far["accuracy"] == pytest.approx(np.mean(distance <= 16))
    by_distance = dict(zip(far["distance"]["up_to"], far["distance"]["accuracy"], strict=True))
    assert by_distance == {end: float(end <= 16) for end in by_distance}
    counts = dict(zip(far["distance"]["up_to"], far["distance"]["queries"], strict=True))
    for end, count in counts.items():
        assert count == np.sum((distance > end // 2) & (distance <= end))

    late = recalled(recaller(lambda order, _: order >= 4), windows, batch)
    assert late["order"]["up_to"] == list(range(1, 9))
    assert late["order"]["accuracy"] == [1.0] * 4 + [0.0] * 4
    assert late["accuracy"] == 0.5
    assert late["accuracy_error"] == 0.0
    wrong = 50 / math.log(2)  # bits of a symbol 50 nats below the one that is chosen
    assert late["bits"] == pytest.approx(wrong / 2, rel=ROUNDING)
    assert late["order"]["bits"] == pytest.approx(
        [0.0] * 4 + [wrong] * 4, rel=ROUNDING, abs=ROUNDING
    )


def test_errors_are_those_of_means_of_sequences() -> None:
    windows = torch.from_numpy(LAW.windows(9, np.random.default_rng(0)).astype(np.int64))
    found = recalled(recaller(lambda _, gap: gap > 12), windows, 4)
    each = np.mean(queries(windows[:, :-1].numpy()).distance <= 12, axis=1)
    assert found["accuracy_error"] == pytest.approx(each.std(ddof=1) / 3)
    assert recalled(recaller(), windows[:1], 4)["accuracy_error"] is None


def test_groups_end_at_their_ends_and_empty_ones_are_left_out() -> None:
    values = np.array([[1, 2, 3], [4, 5, 16]])
    right = np.array([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    bits = np.arange(6.0).reshape(2, 3)
    assert by_group(values, [1, 2, 4, 8, 16, 32], right, bits) == {
        "up_to": [1, 2, 4, 8, 16],
        "queries": [1, 1, 2, 1, 1],
        "accuracy": [1.0, 0.0, 1.0, 0.0, 0.0],
        "bits": [0.0, 1.0, 2.5, 4.0, 5.0],
    }


def test_the_loss_is_that_of_the_answers_alone() -> None:
    """In training, in bits and in figures, against the probabilities picked by hand in float64."""
    model = initialise_(SSM(SSMConfig(16, 2, backend="reference")), "transformers_default", 0)
    windows = torch.from_numpy(LAW.windows(5, np.random.default_rng(0)).astype(np.int64))
    asked = asked_in(windows)
    with torch.no_grad():
        logs = F.log_softmax(model(windows[:, :-1]).double(), dim=-1)
    nats = [
        [-logs[row, place, answer].item() for place, answer in answers_of(windows[row])]
        for row in range(5)
    ]
    expected = float(np.mean(nats))
    assert next_byte_loss(model, windows, 0.0, asked).item() == pytest.approx(
        expected, rel=ROUNDING
    )
    bits = bits_per_byte(model, windows, 2, CPU, None, asked)
    assert bits == pytest.approx(expected / math.log(2), rel=ROUNDING)
    found = diagnose(model, windows, 2, CPU, asked)
    assert found.bits_per_byte == bits
    assert found.losses == pytest.approx(np.array(nats) / math.log(2), rel=ROUNDING)
    row = found.to_row()
    assert row["window_bpb"] == pytest.approx(np.mean(nats, axis=1) / math.log(2), rel=ROUNDING)
    assert row["saturation"]["positions"] == 5 * 8
    right = [
        logs[row, place].argmax().item() == answer
        for row in range(5)
        for place, answer in answers_of(windows[row])
    ]
    assert row["val_accuracy"] == np.mean(right)
    assert "positions" not in row, "columns are pairs"


def test_no_gradient_comes_from_other_bytes() -> None:
    windows = torch.from_numpy(LAW.windows(3, np.random.default_rng(0)).astype(np.int64))
    asked = asked_in(windows)
    logits = torch.randn(3, 32, 256, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    next_byte_loss(lambda _: logits, windows, 0.1, asked).backward()
    assert logits.grad is not None
    moved = logits.grad.abs().amax(dim=2) > 0
    expected = torch.zeros(3, 32, dtype=torch.bool).scatter(1, asked.places, True)
    assert torch.equal(moved, expected)


def test_stages_follow_one_another_and_every_step_has_as_many_bytes() -> None:
    task = RecallTask(LAW, TRAIN)
    shapes = [tuple(task.training(0, step).shape) for step in range(12)]
    assert shapes == [(16, 9)] * 3 + [(8, 17)] * 3 + [(4, 33)] * 6
    numbers = [asked_in(task.training(0, step)).places.shape[1] for step in range(12)]
    assert set(numbers[:3]) <= {1, 2}
    assert numbers[3:] == [4] * 3 + [8] * 6
    drawn = {asked_in(task.training(seed, 0)).places.shape[1] for seed in range(20)}
    assert drawn == {1, 2}, "pairs are drawn anew at each step"


def test_sequences_depend_on_seed_and_step_alone_and_none_is_seen_twice() -> None:
    task = RecallTask(LAW, TRAIN)
    assert torch.equal(task.training(0, 7), RecallTask(LAW, TRAIN).training(0, 7))
    held_out = [task.held_out(split, 4) for split in ("validation", "test")]
    longer = [task.longer(law, 4)[:, :33] for _, law in task.tests()]
    drawn = [task.training(seed, step) for seed in (0, 1) for step in (7, 8)]
    rows = [tuple(row) for one in (*held_out, *longer, *drawn) for row in one.tolist()]
    assert len(set(rows)) == len(rows) == 4 * (2 + 8 + 4)
    assert torch.equal(task.held_out("test", 2), held_out[1][:2]), "fewer are the first"
    other = RecallTask(replace(LAW, seed=1), TRAIN)
    assert not torch.equal(other.held_out("test", 4), held_out[1])
    assert torch.equal(other.training(0, 7), task.training(0, 7)), "arms of a seed read the same"


@pytest.mark.parametrize("seed", [2**63, 2**64 - 1])
def test_large_seeds_have_sequences_of_their_own(seed: int) -> None:
    task = RecallTask(LAW, TRAIN)
    assert not torch.equal(task.training(seed, 7), task.training(seed - 1, 7))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_of_sequences_have_64_bits(seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed must lie between 0 and {2**64 - 1}, got {seed}"):
        RecallTask(LAW, TRAIN).training(seed, 7)


# CRC-32 of the windows of a step in either stage and behind them: of runs that were recorded.
OF_A_STEP = {0: 2302387533, 4: 4087347541, 11: 3871925825}


@pytest.mark.parametrize("step", OF_A_STEP)
def test_sequences_of_training_are_those_of_recorded_runs(step: int) -> None:
    windows = RecallTask(LAW, TRAIN).training(7, step)
    assert crc32(windows.numpy().astype(np.uint8).tobytes()) == OF_A_STEP[step]


def test_a_run_states_accuracy_and_excess_and_ends_with_its_tests(tmp_path: Path) -> None:
    task = prepare(tiny_spec(), "uniform", 0, tmp_path)
    result = run_training(task, progress_bar=False)
    rows = read_lines(task.folder.path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 6, 12]
    for row in rows:
        assert row["excess_bpb"] == row["val_bpb"], "the floor is 0 bits"
        assert 0 <= row["val_accuracy"] <= 1
        assert len(row["window_bpb"]) == 5
        assert row["bytes"] == row["step"] * 128
    assert rows[0]["val_bpb"] == pytest.approx(8, abs=0.5)
    assert 0 <= result["test_accuracy"] <= 1
    assert len(result["recall"]["tests"]) == 8
    assert load_json(task.folder.path / "result.json")["recall"] == result["recall"]
    assert "beyond" not in result
    save_json(tmp_path / "spec.json", tiny_spec().model_dump(mode="json"))
    study = read_study(tmp_path)
    assert [run.agrees for run in study.finished()] == [True]
    save_record(study, tmp_path / "record")
    assert read_lines(tmp_path / "record/rows.jsonl")[0]["result"]["recall"] == result["recall"]


def test_a_run_that_was_stopped_ends_in_the_same_numbers(
    tmp_path: Path, stopped: Callable[..., Path]
) -> None:
    """In the middle of the first stage, of the second, and behind them."""
    whole = prepare(tiny_spec(), "uniform", 0, tmp_path / "whole")
    expected = run_training(whole, progress_bar=False)
    rows = (whole.folder.path / "metrics.jsonl").read_bytes()
    for step in (2, 4, 9):
        out = tmp_path / f"at {step}"
        folder = stopped(tiny_spec(), "uniform", out, step)
        found = run_training(prepare(tiny_spec(), "uniform", 0, out), progress_bar=False)
        assert (folder / "metrics.jsonl").read_bytes() == rows
        assert found["recall"] == expected["recall"]


def test_training_lowers_the_loss_of_what_it_trains_on(tmp_path: Path) -> None:
    """From 8 bits towards the 7 of a value that is not known."""
    spec = tiny_spec(steps=60, eval_every=60, curriculum=[], beyond=1)
    training = Training(prepare(spec, "uniform", 0, tmp_path))
    training.run(lambda: False, progress_bar=False)
    first, last = training.rows[0]["val_bpb"], training.rows[-1]["val_bpb"]
    assert last < 7.5 < first


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"context": 64}, "train.context must be the length of the sequences, 32, got 64"),
        ({"carry": True}, "train.carry True belongs to windows of a text"),
        ({"truncation_windows": 3}, "train.truncation_windows 3 belongs to windows of a text"),
        ({"probe_windows": 3}, "train.probe_windows 3 belongs to windows of a text"),
        (
            {"curriculum": [{"share": 0.5, "length": 16, "pairs": [5]}]},
            "train.curriculum, length 16: pairs must be at most length / 4",
        ),
        (
            {"curriculum": [{"share": 0.5, "length": 48, "pairs": [5]}]},
            r"length must divide the bytes of a step, batch \* context = 128",
        ),
        (
            {"curriculum": [{"share": 0.7, "length": 16, "pairs": [1]}] * 2},
            "shares of the curriculum must add up to 1 at most, got 1.4",
        ),
        ({"curriculum": [{"share": 0.7, "length": 16, "pairs": []}]}, "at least 1 item"),
    ],
)
def test_options_that_do_not_fit_are_refused(train: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(condition(**train))


def test_a_curriculum_needs_a_corpus_of_recall() -> None:
    with pytest.raises(ValueError, match="belongs to a corpus synthetic:recall: leave it out"):
        check(condition("synthetic:markov", curriculum=STAGES))


def test_counts_of_bytes_are_no_reference_of_recall(tmp_path: Path) -> None:
    save_references(resolve_spec(tiny_spec()), ["uniform"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_step_is_timed_without_the_stages() -> None:
    found = timed_apart(tiny_spec().condition("uniform"), 2)
    assert min(found) > 0


def test_the_spec_of_the_documentation_has_the_stages_of_its_text() -> None:
    train = load_spec("recall", check).train
    stages = [train.stage_at(step) for step in (0, 224, 225, 359, 360, 899)]
    assert [stage.length for stage in stages if stage] == [32, 32, 64, 64, 128, 128]


def test_a_configuration_with_stages_equals_what_is_read_back_from_its_file() -> None:
    config = load_spec(RUNS / "recall.toml").condition("official").config
    assert json.loads(json.dumps(config)) == config
    without = load_spec(RUNS / "quick.toml").condition("log-spaced").config
    assert not {"curriculum", "beyond"} & without["train"].keys()


def test_hypotheses_speak_of_accuracy_in_a_test_of_recall() -> None:
    """The difference is that of the results' accuracies; times counts lengths of training."""
    claim = {"name": "holds", "arm": "other", "claim": "higher", "metric": "persistence"}
    spec = tiny_study([{**claim, "times": 4}])
    assert spec.hypotheses[0].times == 4
    assert tiny_study([{**claim, "times": 4, "distance": 32}]).hypotheses[0].distance == 32
    for change, message in (
        ({}, "times must be 1, 2, 4"),
        ({"times": 3}, "times must be 1, 2, 4"),
        ({"times": 16}, "times must be at most 8, got 16: set train.beyond = 16"),
        ({"times": 2, "step": 6}, "has no persistence, which is taken at the end only"),
        ({"times": 4, "distance": 48}, "distance must be 2, 4, 8 .., got 48"),
        ({"times": 4, "distance": 1}, "distance must be 2, 4, 8 .., got 1"),
        ({"times": 1, "distance": 1024}, "distance must be less than twice the length of the test"),
        ({"distance": 8, "metric": "val_bpb"}, "distance 8 does not belong to metric 'val_bpb'"),
        ({"times": 2, "metric": "val_bpb"}, "does not belong to metric 'val_bpb'"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            tiny_study([claim | change])
    with pytest.raises(
        ValueError, match=r"corpus must be synthetic:recall for metric .*, got 'stdlib'"
    ):
        tiny_study([{**claim, "times": 4}], "stdlib")


def test_a_measurement_of_recall_is_that_of_its_test_and_length() -> None:
    tests = [
        {
            "test": name,
            "length": length,
            "accuracy": accuracy,
            "distance": {"up_to": [2, 16], "queries": [1, 9], "accuracy": [1.0, accuracy - 0.1]},
        }
        for name, length, accuracy in (
            ("capacity", 32, 0.9),
            ("capacity", 64, 0.7),
            ("persistence", 64, 0.8),
        )
    ]
    result = RunResult.model_construct(recall={"floor": {}, "tests": tests})
    assert result.recalled("capacity", 64) == 0.7
    assert result.recalled("persistence", 64) == 0.8
    assert result.recalled("persistence", 128) is None
    assert result.recalled("capacity", 64, 16) == pytest.approx(0.6)
    assert result.recalled("capacity", 64, 8) is None
    assert RunResult.model_construct(recall=None).recalled("capacity", 32) is None


def test_the_farthest_queries_of_a_length_between_powers_of_two_have_a_distance() -> None:
    distance = {"up_to": [32, 48], "queries": [9, 3], "accuracy": [1.0, 0.5]}
    test = {"test": "persistence", "length": 48, "accuracy": 0.9, "distance": distance}
    result = RunResult.model_construct(recall={"floor": {}, "tests": [test]})
    assert result.recalled("persistence", 48, 64) == 0.5
    assert result.recalled("persistence", 48, 32) == 1.0
