"""Before the runs of a study: a learning rate for every arm, from a grid at one budget, and n-grams
on its windows.
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plkernel.commands import report
from plkernel.common.files import (
    CONFIG,
    REFERENCES,
    ROWS,
    SPEC,
    TUNING,
    load_json,
    name_at,
    read_lines,
    save_json,
)
from plkernel.config.reading import load_spec, parse_spec
from plkernel.config.resolved import resolve_spec
from plkernel.data.corpora import Splits
from plkernel.data.windows import fixed_windows
from plkernel.results.record import restore
from plkernel.results.saved import Reference
from plkernel.results.study import read_study
from plkernel.results.tuning import Choice, choices
from plkernel.study import references
from plkernel.study.engine import Job, LocalEngine
from plkernel.study.references import Counts, lzma_bits, n_gram_losses, n_grams, save_references
from plkernel.study.schedule import run_experiment, search_of, tuned
from plkernel.training.loop import Training, open_corpus, prepare

SpecWriter = Callable[..., Path]
HEAD = "[tuning]\nrates = [1e-4, 1e-2, 1e4]\nseeds = [7]\nsteps = 8"
OWN = HEAD.replace("[tuning]", "[arms.own]\nrates = [2e-3, 2e-2, 2e-1]\n[tuning]")


@pytest.mark.slow
def test_the_best_rate_of_each_arm_is_taken(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """Of rates far too low, good and far too high; run again, nothing is searched and lost rates
    stay lost.
    """
    path, out = tiny_spec(head=f"{HEAD}\n[arms.fixed]\nlearning_rate = 3e-3"), tmp_path / "out"
    spec = load_spec(path).model_copy(update={"seeds": (0,)})
    assert run_experiment(spec, out) == []
    chosen = choices({name: spec.rates_of(name) for name in spec.arms}, out)
    assert set(chosen) == {"uniform", "power-law"}
    for name, choice in chosen.items():
        assert choice.rate == 1e-2
        assert not choice.at_edge
        assert choice.losses[1e4] > choice.losses[1e-2]
        row = read_lines(out / TUNING / name_at(name, 1e-2) / "seed-7" / "metrics.jsonl")[-1]
        assert (row["step"], row["val_bpb"]) == (8, choice.losses[1e-2])
    rates = {run.arm: run.config["train"]["learning_rate"] for run in read_study(out).finished()}
    assert rates == {"uniform": 1e-2, "power-law": 1e-2, "fixed": 3e-3}
    assert load_spec(out / SPEC) == tuned(spec, out)
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    assert run_experiment(spec, out) == []
    assert {path: path.stat().st_mtime_ns for path in out.rglob("result.json")} == stamps


@pytest.mark.parametrize(
    ("rate", "steps", "message"),
    [
        (5e-3, 12, r"run folder .*seed-1 must be of a learning rate of tuning.rates, got 0.005:"),
        (1e-2, 6, r"run folder .*seed-1 was made by another spec .*train.steps was 6, is now 12"),
    ],
)
def test_a_run_that_the_study_could_not_take_is_refused_before_the_search(
    tiny_spec: SpecWriter, tmp_path: Path, rate: float, steps: int, message: str
) -> None:
    other = tiny_spec(steps=steps, learning_rate=rate)
    run = tmp_path / "out/uniform/seed-1"
    save_json(run / CONFIG, prepare(load_spec(other), "uniform", 1, tmp_path / "out").config)
    spec = load_spec(tiny_spec(head=HEAD, steps=12))
    with pytest.raises(ValueError, match=message):
        run_experiment(spec, tmp_path / "out")
    assert not (tmp_path / "out" / TUNING).exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train": 3}, "config.json: train: must be a table, got 3"),
        ({"train": {"learning_rate": "x"}}, "config.json: train.learning_rate: .*got 'x'"),
        ([], r"config.json: must hold an object, got \[\]"),
    ],
)
def test_a_damaged_run_is_named_before_the_search(
    content: Any, message: str, tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    save_json(tmp_path / "out/uniform/seed-1" / CONFIG, content)
    spec = load_spec(tiny_spec(head=HEAD, steps=12))
    with pytest.raises(ValueError, match=message):
        run_experiment(spec, tmp_path / "out")


def test_every_arm_has_the_same_budget(tiny_spec: SpecWriter) -> None:
    spec = load_spec(tiny_spec(head=HEAD))
    search = search_of(spec)
    assert search.seeds == (7,)
    assert name_at("own", 0.01) != name_at("own", 0.01 + 1e-9)
    assert search.train.total_steps == 8
    assert list(search.arms) == [
        name_at(arm, rate) for arm in spec.arms for rate in spec.tuning.rates
    ]
    for name, arm in search.arms.items():
        twin = spec.arms[name.partition("_rate")[0]]
        assert arm.model_copy(update={"learning_rate": None}) == twin
    assert parse_spec(search.model_dump(mode="json"), "again") == search


def test_a_search_evaluates_no_contexts(tiny_spec: SpecWriter) -> None:
    """Neither of the study nor of an arm: they say nothing of a rate, and take time."""
    own = "[arms.own]\ntrain = { truncation_windows = 16, clip = 0.5 }\n"
    spec = load_spec(tiny_spec(head=own + HEAD, truncation_windows=8, probe_windows=4))
    assert spec.condition("own").protocol.truncation_windows == 16
    conditions = resolve_spec(search_of(spec)).conditions
    for name, condition in conditions.items():
        train = condition.protocol
        assert (train.truncation_windows, train.probe_windows) == (0, 0), name
        assert train.clip == (0.5 if name.startswith("own") else 1.0)


def test_a_search_that_is_no_study_is_refused_in_words(tiny_spec: SpecWriter) -> None:
    """Not in those of pydantic: a name is too long once -tuning stands behind it."""
    spec = load_spec(tiny_spec(head=HEAD)).model_copy(update={"name": "n" * 220})
    with pytest.raises(ValueError, match=r"^the search for the learning rates of n+: name: ") as no:
        search_of(spec)
    assert "pydantic" not in str(no.value)
    assert len(str(no.value).splitlines()) == 1


def test_an_arm_may_have_rates_of_its_own(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """The spec of a tuned study, which has the rates and the one that was chosen, is read back."""
    spec = load_spec(tiny_spec(head=OWN))
    rates = [
        arm.learning_rate for name, arm in search_of(spec).arms.items() if name.startswith("own_")
    ]
    assert rates == [2e-3, 2e-2, 2e-1]
    arms = {name: arm.model_copy(update={"learning_rate": 2e-2}) for name, arm in spec.arms.items()}
    chosen = spec.model_copy(update={"arms": arms})
    (tmp_path / SPEC).write_text(chosen.model_dump_json())
    assert load_spec(tmp_path / SPEC) == chosen


def ended(name: str, seed: int, loss: float | None) -> dict[str, Any]:
    """The row of a run in a record: its final loss, None where it diverged."""
    row = {"arm": name, "seed": seed, "config": {"corpus": {}, "model": {}}, "environment": {}}
    losses = dict.fromkeys(("final_val_bpb", "best_val_bpb", "test_bpb"), loss)
    result = {"steps": 8, "bytes": 1024, "best_step": 8, "seconds": 1.0, "causal": True, **losses}
    return (
        {**row, "status": "diverged"}
        if loss is None
        else {**row, "status": "finished", "result": result}
    )


def test_the_lowest_mean_wins_once_every_run_has_ended(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    spec = load_spec(tiny_spec(head=HEAD.replace("[7]", "[7, 8]")))
    grid = spec.rates_of("uniform")
    losses = dict(zip(grid, ((4.0, 4.0), (3.0, 5.5), (1.0, None)), strict=True))
    rows = [
        ended(name_at("uniform", rate), seed, loss)
        for rate, pair in losses.items()
        for seed, loss in zip((7, 8), pair, strict=True)
    ]
    assert choices({"uniform": grid}, tmp_path) == {}
    assert tuned(spec, tmp_path) == spec
    folder = tmp_path / TUNING
    folder.mkdir()
    (folder / SPEC).write_text(search_of(spec).model_dump_json())
    best = Choice(1e-4, {1e-4: 4.0, 1e-2: 4.25, 1e4: math.inf}, 2)
    for kept, expected in ((rows[:-1], {}), (rows, {"uniform": best})):
        (folder / ROWS).write_text("".join(json.dumps(row) + "\n" for row in kept))
        assert choices({"uniform": grid}, tmp_path) == expected
    assert choices({"uniform": (1e-4, 1e-3)}, tmp_path) == {}  # nothing was trained at 1e-3


def test_rivals_are_rates_far_from_the_best_that_seeds_alone_could_put_behind_it() -> None:
    losses = {0.004: 2.29, 0.008: 2.229, 0.011: 2.23, 0.016: 2.234, 0.023: 2.225, 0.032: math.inf}
    assert Choice(0.023, losses, 1).rivals(0.006) == [0.008, 0.011]
    assert Choice(0.023, losses, 4).rivals(0.006) == []
    assert Choice(0.023, losses, 4).rivals(0.008) == [0.008]
    assert Choice(0.023, losses, 1).rivals(math.nan) == []
    other = {0.016: 2.2, 0.023: 2.3}
    assert [Choice(0.023, losses, n).apart(Choice(0.016, other, n), 0.01) for n in (1, 4)] == [
        True,
        False,
    ]
    assert not Choice(0.023, losses, 1).apart(Choice(0.023, other, 1), 1.0)


class Stopped(LocalEngine):
    """Trains nothing."""

    def start(self, job: Job) -> None:
        raise KeyboardInterrupt


def test_a_study_stopped_in_its_search_can_be_kept(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out, record = load_spec(tiny_spec(head=HEAD)), tmp_path / "out", tmp_path / "record"
    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec, out, engine=Stopped())
    report.report(out, record=record)
    assert (load_spec(record / SPEC), load_spec(record / TUNING / SPEC)) == (spec, search_of(spec))
    assert restore(record, tmp_path / "elsewhere") == 0


def entry(out: Path) -> dict[str, Any]:
    (only,) = load_json(out / REFERENCES)["references"]
    return only


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[np.ndarray]]:
    """The windows of every time that n-grams are counted."""
    seen: list[np.ndarray] = []

    def counted(windows: Iterator[np.ndarray], orders: int) -> tuple[Counts, ...]:
        seen.append(np.concatenate(list(windows)))
        return n_grams([seen[-1]], orders)

    monkeypatch.setattr(references, "n_grams", counted)
    return seen


def test_counted_are_the_windows_of_the_first_seeds_runs(
    tiny_spec: SpecWriter, tmp_path: Path, counts: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "AT_ONCE", 7 * 33)
    spec, out = load_spec(tiny_spec(eval_windows=3)), tmp_path / "out"
    save_references(resolve_spec(spec), list(spec.arms), out)
    run = Training(prepare(spec, "power-law", 0, tmp_path / "other"))
    read = np.concatenate([run.drawn(step).numpy() for step in range(12)])
    assert np.array_equal(counts[0], read)
    found, tables = entry(out), n_grams([read.astype(np.uint8)])
    splits = open_corpus(spec.corpus, 32)[1]
    for name, windows in (("val", run.validation), ("test", fixed_windows(splits.test, 32, 4))):
        each = n_gram_losses(tables, windows.numpy().astype(np.uint8)).mean(axis=2)
        assert found[f"{name}_bpb"] == pytest.approx(each.mean(axis=1).tolist(), rel=1e-12)
        error = np.sqrt(
            ((each - each.mean(axis=1)[:, None]) ** 2).sum(axis=1)
            / (each.shape[1] - 1)
            / each.shape[1]
        )
        assert found[f"{name}_error"] == pytest.approx(error.tolist(), rel=1e-12)
    assert (found["training_bytes"], found["seed"], found["orders"]) == (
        12 * 4 * 32,
        0,
        [1, 2, 3, 4, 5],
    )
    assert found["training_windows"] == "those that the runs of seed 0 read in 12 steps"


def test_counts_are_kept_for_the_same_windows_and_for_other_corpora(
    tiny_spec: SpecWriter, tmp_path: Path, counts: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run with more windows than are counted at most, the first."""
    spec, other, out = (
        load_spec(tiny_spec()),
        load_spec(tiny_spec(name="other.toml", steps=8)),
        tmp_path / "out",
    )
    for _ in range(2):
        save_references(resolve_spec(spec), ["uniform"], out)
    written = (out / REFERENCES).read_bytes()
    assert len(counts) == 1
    save_references(resolve_spec(other), ["uniform"], out)
    assert entry(out)["train"]["steps"] == 8
    save_references(resolve_spec(spec), ["uniform"], out)
    assert (out / REFERENCES).read_bytes() == written
    shorter = spec.model_copy(update={"corpus": spec.corpus.model_copy(update={"max_bytes": 9000})})
    for one in (shorter, spec, shorter):
        save_references(resolve_spec(one), ["uniform"], out)
    assert len(counts) == 4
    sizes = [one["corpus"]["size"] for one in load_json(out / REFERENCES)["references"]]
    assert sorted(sizes) == [9000, open_corpus(spec.corpus, 32)[0].size]
    monkeypatch.setattr(references, "MOST_BYTES", 10 * 32 + 31)
    save_references(resolve_spec(spec), ["uniform"], tmp_path)
    assert (len(counts[-1]), entry(tmp_path)["training_bytes"]) == (10, 320)
    words = "the first 10 of 48 windows: those that the runs of seed 0 read in 12 steps"
    assert entry(tmp_path)["training_windows"] == words


def test_counts_are_those_of_the_windows_that_judge_the_last_step(
    tiny_spec: SpecWriter, tmp_path: Path, counts: list
) -> None:
    """They suit the runs of the same spec, and are counted anew for other final windows."""
    out = tmp_path / "out"
    for number, final in enumerate((None, 6, 7), 1):
        spec = load_spec(tiny_spec(final_windows=final))
        save_references(resolve_spec(spec), ["uniform"], out)
        assert len(counts) == number
        config = prepare(spec, "uniform", 0, tmp_path / f"final {final}").config
        assert Reference.model_validate(entry(out)).suits(config)


def test_an_experiment_counts_before_it_trains_and_its_search_counts_nothing(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    for name, head in (("plain", ""), ("searched", "[tuning]\nrates = [1e-3, 1e-2]\nseeds = [7]")):
        with pytest.raises(KeyboardInterrupt):
            run_experiment(load_spec(tiny_spec(head=head)), tmp_path / name, engine=Stopped())
    assert entry(tmp_path / "plain")["corpus"]["name"] == load_spec(tiny_spec()).corpus.name
    assert (tmp_path / "searched" / TUNING / SPEC).exists()
    assert not list((tmp_path / "searched").rglob(REFERENCES))


def test_a_longer_window_of_lzma_is_worth_what_repeats_within_it() -> None:
    """Random bytes come again after 16 kB: 8 bits per byte with a window of 4 kB, next to nothing
    with one of 32 kB.
    """
    noise = np.random.default_rng(0).integers(0, 256, 2**14, dtype=np.uint8)
    text = lzma_bits(Splits(np.tile(noise, 4), np.tile(noise, 2), noise))
    assert text["windows"] == [2**12, 2**15, 2**18, 2**24]
    assert text["val_bpb"] == pytest.approx([8.0, 0.0, 0.0, 0.0], abs=0.05)
