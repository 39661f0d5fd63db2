"""One run: a complete folder with its curves, its losses and end, clear refusals."""

import json
import math
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plkernel.commands.train import command as train_command
from plkernel.common import environment
from plkernel.common.files import load_json, read_lines, save_json
from plkernel.config.overrides import replacements
from plkernel.config.reading import load_spec, load_values, parse_spec
from plkernel.config.schema import deep_merge
from plkernel.data.names import known_sequence, predictor_of
from plkernel.data.windows import fixed_windows, spread_windows
from plkernel.results.record import save_record
from plkernel.results.study import read_study
from plkernel.training import loop
from plkernel.training.checkpoint import load_checkpoint
from plkernel.training.folder import RunFolder, RunProgress
from plkernel.training.loop import Training, prepare, run_training, stop_requests

SpecWriter = Callable[..., Path]
RUN = "uniform/seed-0"
MARKOV = "synthetic:markov,symbols=4,bytes=20k,seed=1"


def train(path: Path, out: Path, arm: str = "uniform", seed: int = 0) -> dict[str, Any]:
    return run_training(prepare(load_spec(path), arm, seed, out), progress_bar=False)


def opened(tiny_spec: SpecWriter, kind: str, out: Path, **train: object) -> Training:
    path = tiny_spec(**train)
    text = path.read_text().replace("= True", "= true").replace("= False", "= false")
    if kind == "finch":
        text = text.replace("[model]\n", '[model]\nkind = "rwkv6"\nhead_size = 8\n')
        text = text.replace('projection = "published"\n', "")
    path.write_text(text)
    return Training(prepare(load_spec(path), "uniform", 0, out / f"{kind} {train}"))


def test_a_run_leaves_a_complete_folder(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, result, identity and the optimiser; a finished run is not trained again."""
    result, folder = train(tiny_spec(), tmp_path), tmp_path / RUN
    text = (folder / "metrics.jsonl").read_text()
    rows = [
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        for line in text.splitlines()
    ]
    assert [row["step"] for row in rows] == [0, 4, 8, 12]
    assert rows[-1]["bytes"] == 12 * 4 * 32
    assert result["final_val_bpb"] == rows[-1]["val_bpb"] < rows[0]["val_bpb"]
    assert result["best_val_bpb"] == min(row["val_bpb"] for row in rows)
    assert rows[0]["val_bpb"] == pytest.approx(8.0, abs=0.2), "256 equally likely bytes are 8 bits"
    assert "seconds" not in text
    told = load_json(folder / "environment.json")
    assert told["versions"]["torch"] == version("torch")
    assert (told["started"][10:11], told["started"][19:], told["registration"]) == (
        "T",
        "+00:00",
        None,
    )
    assert load_json(folder / "config.json")["corpus"]["sha256"]
    training = Training(prepare(load_spec(tiny_spec()), "uniform", 0, tmp_path))
    assert (
        load_checkpoint(folder / "checkpoint.safetensors", training.model, training.optimizer).step
        == 12
    )
    assert all(
        training.optimizer.state[p]["exp_avg_sq"].abs().sum() > 0
        for p in training.model.parameters()
    )
    monkeypatch.setattr(Training, "step", None)
    assert train(tiny_spec(), tmp_path) == result
    assert load_json(folder / "environment.json") == told


def test_a_resumed_run_says_when_it_was_started(
    tiny_spec: SpecWriter, stopped: Callable[..., Path], tmp_path: Path
) -> None:
    """And under which registration its study is run; all of it is kept in a record."""
    out, spec = tmp_path / "out", load_spec(tiny_spec())
    place = stopped(spec, "uniform", out, 5) / "environment.json"
    save_json(place, {"started": "2026-01-01T00:00:00+00:00", "source": "of an earlier sitting"})
    save_json(out / "registered.json", {"sha256": "of the registration"})
    train(tiny_spec(), out)
    save_json(out / "spec.json", spec.model_dump(mode="json"))
    save_record(read_study(out), tmp_path / "record")
    told = read_lines(tmp_path / "record/rows.jsonl")[0]["environment"]
    assert (told["started"], told["registration"]) == (
        "2026-01-01T00:00:00+00:00",
        "of the registration",
    )
    assert told["source"] == environment.source_digest()


def test_the_end_may_be_measured_on_the_whole_split_with_averaged_weights(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    """By hand: the mean of the weights after the last half of the steps, on every disjoint window
    of the split.
    """
    path, weights = tiny_spec(average=0.5, final_windows=2**24), list[dict[str, torch.Tensor]]()
    training = Training(prepare(load_spec(path), "uniform", 0, tmp_path / "by hand"))
    for _ in range(12):
        training.step()
        weights.append({name: one.double() for name, one in training.model.state_dict().items()})
    model, split = training.model, training.task.splits.validation
    model.load_state_dict({name: sum(one[name] for one in weights[6:]) / 6 for name in weights[0]})
    windows = fixed_windows(split, 32, split.size // 33)
    assert windows.numel() > split.size - 33 > training.validation.numel()
    logits = model(windows[:, :-1])
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), windows[:, 1:], reduction="none"
    ).mean(1)
    bits = losses.detach().numpy() / math.log(2)
    result, plain = train(path, tmp_path / "averaged"), train(tiny_spec(), tmp_path / "plain")
    assert result["final_val_bpb"] == pytest.approx(bits.mean(), abs=1e-5)
    assert result["final_val_error"] == pytest.approx(
        bits.std(ddof=1) / math.sqrt(bits.size), rel=1e-4
    )
    assert result["test_bpb"] != plain["test_bpb"]
    assert result["best_val_bpb"] == plain["best_val_bpb"]
    rows = [
        (tmp_path / name / RUN / "metrics.jsonl").read_bytes() for name in ("averaged", "plain")
    ]
    assert rows[0] == rows[1]
    save_json(tmp_path / "averaged/spec.json", load_spec(path).model_dump(mode="json"))
    assert [run.agrees for run in read_study(tmp_path / "averaged").finished()] == [True]


@pytest.mark.parametrize(
    ("options", "run", "message"),
    [
        ({"device": "cuda"}, {}, "device must be 'cpu' or 'auto' where no GPU is"),
        ({}, {"arm": "powerlaw"}, "did you mean 'power-law'"),
        ({}, {"seed": 2**63}, "seed must lie between 0 and .*, got"),
    ],
)
def test_bad_input_writes_nothing(
    tiny_spec: SpecWriter,
    tmp_path: Path,
    options: dict[str, Any],
    run: dict[str, Any],
    message: str,
) -> None:
    if "device" in options and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises((ValueError, OSError), match=message):
        train(tiny_spec(**options), tmp_path / "out", **run)
    assert not (tmp_path / "out").exists()


def test_a_run_that_diverges_is_recorded_as_diverged(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Training.step

    def poisoned(self: Training) -> None:
        if self.progress.step == 5:
            self.model.head.weight.data.fill_(math.nan)
        step(self)

    monkeypatch.setattr(Training, "step", poisoned)
    with pytest.raises(
        FloatingPointError, match=r"diverged: nan at step 6; lower train\.learning_rate"
    ):
        train(tiny_spec(), tmp_path)
    result = load_json(tmp_path / RUN / "result.json")
    assert result["status"] == "diverged"
    assert "FloatingPointError" in result["error"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            "CUDA out of memory. Tried to allocate 2.00 GiB",
        ),
        (MemoryError(), "Python's memory is used up"),
    ],
)
def test_a_run_that_does_not_fit_into_memory_names_what_to_lower(
    tiny_spec: SpecWriter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    said: str,
) -> None:
    def step(_: Training) -> None:
        raise error

    monkeypatch.setattr(Training, "step", step)
    advice = "lower train.batch, got 4, or train.context, got 32, or take a smaller model"
    with pytest.raises(MemoryError, match="^" + re.escape(f"{said}; {advice}")):
        train(tiny_spec(), tmp_path)
    ended = RunFolder(tmp_path / RUN).status
    assert ended == "failed"
    assert advice in RunFolder(tmp_path / RUN).result["error"].splitlines()[-1]


def test_other_errors_of_torch_are_left_as_they_are(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(_: Training) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Training, "step", step)
    with pytest.raises(RuntimeError, match=r"^shapes do not match$"):
        train(tiny_spec(), tmp_path)


@pytest.mark.parametrize("broken", ["figures", "half-lives"])
def test_figures_and_half_lives_must_both_be_numbers(
    broken: str, tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss alone may be finite where the run has diverged."""
    training = opened(tiny_spec, "ssm", tmp_path)
    if broken == "half-lives":
        monkeypatch.setattr(training.model, "half_lives", lambda: [torch.tensor([1.0, math.inf])])
    else:
        exact = loop.diagnose
        wrong = {"entropy": math.nan}
        monkeypatch.setattr(
            loop, "diagnose", lambda *given: replace(exact(*given), saturation=wrong)
        )
    with pytest.raises(FloatingPointError, match="the run diverged: nan at step 0"):
        training.evaluate()


def test_a_folder_in_use_is_refused(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plkernel.training.folder.LOCK_PATIENCE", 0.1)
    task = prepare(load_spec(tiny_spec()), "uniform", 0, tmp_path)
    with task.folder.lock(), pytest.raises(ValueError, match="is in use by another process"):
        run_training(task, progress_bar=False)
    assert run_training(task, progress_bar=False)["status"] == "finished"


def test_a_run_ends_with_the_worth_of_its_context_where_asked(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    """Truncation and influence; on a chain of a known law also the floor, and I(d), in bits."""
    spec = load_spec(
        tiny_spec(corpus=MARKOV, steps=2, eval_every=1, truncation_windows=6, probe_windows=5)
    )
    task, law, chain = (
        prepare(spec, "uniform", 0, tmp_path / "out"),
        predictor_of(MARKOV),
        known_sequence(MARKOV),
    )
    assert law is not None
    assert chain is not None
    result = run_training(task, progress_bar=False)
    cut, near = result["truncation"], result["influence"]
    assert (cut["given"], cut["windows"]) == ([1, 2, 4, 8, 16, 32], 6)
    assert cut["cost"] == pytest.approx([bpb - cut["bpb"][-1] for bpb in cut["bpb"]])
    last = law.losses(spread_windows(task.splits.test, 32, 6).numpy())[:, -1].mean()
    assert cut["floor"] == pytest.approx([last] * 6)
    assert (near["lags"], near["windows"]) == ([1, 2, 4, 8, 16, 32], 5)
    assert all(bits > 0 for bits in near["bits"])
    assert near["information"] == pytest.approx(
        chain.mutual_information([1, 2, 4, 8, 16, 32]) / np.log(2)
    )
    floor = law.losses(fixed_windows(task.splits.validation, 32, 4).numpy()).mean()
    for row in read_lines(tmp_path / "out" / RUN / "metrics.jsonl"):
        assert row["excess_bpb"] == pytest.approx(row["val_bpb"] - floor)
    plain = train(tiny_spec(steps=2, eval_every=2, probe_windows=3), tmp_path / "other")
    assert "truncation" not in plain
    assert "information" not in plain["influence"]


def test_a_run_stops_after_a_signal_or_the_end_of_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not of its parent on Windows, where that is a launcher."""
    with stop_requests(-1) as stopped:
        assert stopped()
    for system, parent in ((os.name, os.getppid()), ("nt", -1)):
        monkeypatch.setattr("os.name", system)
        with stop_requests(parent) as stopped:
            assert not stopped()
            signal.raise_signal(signal.SIGINT)
            assert stopped()


@contextmanager
def hang_ups(handler: signal.Handlers) -> Iterator[None]:
    """Handle SIGHUP so, which nohup has ignored."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs the signals of POSIX")
@pytest.mark.parametrize("ignored", [False, True])
def test_a_run_stops_as_its_terminal_is_closed_unless_nohup_had_that_ignored(ignored: bool) -> None:
    with (
        hang_ups(signal.SIG_IGN if ignored else signal.SIG_DFL),
        stop_requests() as stopped,
    ):
        signal.raise_signal(signal.SIGHUP)
        assert stopped() is not ignored


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs terminals of POSIX")
def test_a_terminal_that_closes_before_an_evaluation_is_told_stops_the_run_and_fails_it_not(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is saved at that step."""
    far, near = os.openpty()
    terminal = open(near, "w")  # noqa: SIM115
    step = Training.step

    def step_and_close(training: Training) -> None:
        step(training)
        if training.progress.step == training.train.eval_every:
            os.close(far)
            signal.raise_signal(signal.SIGHUP)

    monkeypatch.setattr(Training, "step", step_and_close)
    monkeypatch.setattr("sys.stderr", terminal)
    with (
        hang_ups(signal.SIG_DFL),
        pytest.raises(KeyboardInterrupt, match="step 4 is saved"),
    ):
        run_training(prepare(load_spec(tiny_spec()), "uniform", 0, tmp_path), progress_bar=True)
    with suppress(OSError):  # of what was not written
        terminal.close()
    folder = RunFolder(tmp_path / RUN)
    assert folder.result is None
    assert folder.checkpoint.exists()


@pytest.mark.parametrize("ending", [signal.SIGINT, None])
def test_nothing_is_saved_to_a_folder_that_has_gone(
    ending: int | None, tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a checkpoint after Ctrl-C nor how the run failed."""
    step = Training.step

    def step_and_remove(training: Training) -> None:
        step(training)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        if ending is not None:
            signal.raise_signal(ending)

    monkeypatch.setattr(Training, "step", step_and_remove)
    expected: tuple[type[BaseException], str] = (OSError, "No such file")
    if ending is not None:
        expected = (KeyboardInterrupt, "nothing is saved, since the run folder .* has gone; run")
    error, message = expected
    with pytest.raises(error, match=message):
        train(tiny_spec(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_result_of_a_run_makes_no_folder_anew(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was moved in the last evaluation: a result alone would stand for a whole run."""
    evaluate = Training.result

    def evaluate_and_move(training: Training) -> dict[str, Any]:
        result = evaluate(training)
        (tmp_path / RUN).rename(tmp_path / "moved")
        return result

    monkeypatch.setattr(Training, "result", evaluate_and_move)
    with pytest.raises(OSError, match="the folder of the run has gone, and its result with it"):
        train(tiny_spec(), tmp_path)
    assert not (tmp_path / RUN).exists()


def test_a_signal_ends_the_evaluation_at_the_end_at_once(
    tiny_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Training, "result", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            train(tiny_spec(), tmp_path)
    assert train(tiny_spec(), tmp_path)["steps"] == 12


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["ssm", "finch"])
def test_a_compiled_run_has_the_losses_of_a_plain_one(
    tiny_spec: SpecWriter, tmp_path: Path, kind: str
) -> None:
    """Up to rounding in float32; an eps of 1e-3 keeps Adam from making whole steps of rounding."""
    torch._dynamo.reset()
    plain, fused = (
        opened(tiny_spec, kind, tmp_path, context=16, eps=1e-3, compile=on) for on in (False, True)
    )
    assert torch._dynamo.explain(plain.model)(plain.drawn(0)[:, :-1]).graph_break_count == 0
    for _ in range(4):
        plain.step()
        fused.step()
    assert torch.cat(fused.unread).tolist() == pytest.approx(
        torch.cat(plain.unread).tolist(), abs=1e-5
    )


def test_auto_changes_nothing_on_a_cpu(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    rows = []
    for compile_ in (None, "auto"):
        folder = tmp_path / str(compile_)
        train(tiny_spec(compile=compile_), folder)
        rows.append([path.read_bytes() for path in folder.rglob("metrics.jsonl")])
    assert rows[0] == rows[1] != []


@pytest.mark.parametrize(
    ("texts", "expected"), [([], True), (["false"], False), (["auto"], "auto")]
)
def test_compile_is_a_flag_or_has_a_value(
    tiny_spec: SpecWriter, texts: list[str], expected: Any
) -> None:
    values = load_values(tiny_spec())
    changes = replacements(values, ["--train.compile", *texts])
    assert parse_spec(deep_merge(values, changes), "here").train.compile == expected


def test_the_training_loss_of_a_row_is_the_mean_since_the_row_before(
    tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    """In bits per byte, each step once; the first row has none."""
    training = Training(prepare(load_spec(tiny_spec()), "uniform", 0, tmp_path))
    assert training.evaluate()["train_bpb"] is None
    for steps in (4, 3, 1):
        losses = []
        for _ in range(steps):
            training.step()
            losses.append(float(training.unread[-1]))
        found = training.evaluate()["train_bpb"]
        assert found == pytest.approx(np.mean(losses) / math.log(2), rel=1e-12)


@pytest.mark.parametrize("windows", [1, 2])
def test_one_window_has_no_standard_error(
    windows: int, tiny_spec: SpecWriter, tmp_path: Path
) -> None:
    """Two have |a - b| / 2."""
    path = tiny_spec(final_windows=windows)
    training = Training(prepare(load_spec(path), "uniform", 0, tmp_path / "by hand"))
    text = fixed_windows(training.task.splits.validation, 32, windows)
    training.run(lambda: False, progress_bar=False)
    logits = training.model(text[:, :-1])
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), text[:, 1:], reduction="none"
    ).mean(1)
    bits = losses.detach().numpy() / math.log(2)
    result = train(path, tmp_path / "run")
    assert result["final_val_bpb"] == pytest.approx(bits.mean(), abs=1e-5)
    if windows == 1:
        assert "final_val_error" not in result
    else:
        expected = abs(bits[0] - bits[1]) / 2
        assert result["final_val_error"] == pytest.approx(expected, abs=1e-5)


def test_a_row_is_in_the_file_before_the_disk_is_asked_to_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that still lie in a buffer would be lost with the power, after their checkpoint."""
    kept, sync = list[bytes](), os.fsync

    def asked(handle: int) -> None:
        sync(handle)
        kept.append((tmp_path / "metrics.jsonl").read_bytes())

    monkeypatch.setattr(os, "fsync", asked)
    folder, progress = RunFolder(tmp_path), RunProgress()
    for step in (0, 10):
        progress = folder.append({"step": step}, progress)
    assert kept == [b'{"step": 0}\n', b'{"step": 0}\n{"step": 10}\n']
    assert progress.metrics_bytes == len(kept[-1])


def test_without_a_name_the_baseline_is_trained_and_the_other_arms_are_told(
    tiny_spec: SpecWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = load_spec(tiny_spec(steps=1))
    train_command(spec, out=tmp_path / "out")
    assert (tmp_path / "out" / RUN / "result.json").exists()
    others = ", ".join(repr(name) for name in spec.arms if name != "uniform")
    told = f"arm 'uniform', the baseline, as --arm names none; others: {others}"
    assert told in capsys.readouterr().err
    train_command(spec, arm="uniform", out=tmp_path / "out")
    assert told not in capsys.readouterr().err
