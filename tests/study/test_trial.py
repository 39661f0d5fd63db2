"""The whole chain on a text: what is refused before training, the spec that is written, the study
that is run from it, and its page.
"""

import dataclasses
import math
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plkernel.analysis.exponentials import power_law_target
from plkernel.analysis.information.laws import measure_corpus
from plkernel.analysis.nodes import node_scores, output_std
from plkernel.commands import report
from plkernel.commands import trial as command
from plkernel.common import cli
from plkernel.common.files import MEASUREMENT, REGISTERED, SPEC, load_json
from plkernel.config.reading import load_spec
from plkernel.data import corpora
from plkernel.results.measured import TrialOptions, read_measurement
from plkernel.study import dry_run, schedule, trial
from plkernel.study.engine import Job, LocalEngine
from plkernel.training import check
from plkernel.training.loop import open_run, run_training

TEXT = "synthetic:lags,alpha=0.7,longest=64,redrawn=0.05,symbols=8,bytes=200kB"
OPTIONS = TrialOptions(model="ssm", minutes=10.0, seeds=2, frozen=True, control=True, dim=16)


class Here(LocalEngine):
    """An engine that trains every run in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Job] = []

    def room(self, spec: Any, device: str) -> int:
        return 1

    def start(self, job: Job) -> None:
        from plkernel.config.condition import from_config

        run_training(open_run(from_config(job.config), job.seed, job.folder), progress_bar=False)
        self.waiting.append(job)

    def ended(self) -> list[Job]:
        done, self.waiting = self.waiting, []
        return done


MEASUREMENTS: dict[bytes, Any] = {}


def measured_once(corpus: Any, data: Any, **options: Any) -> Any:
    """The measurement of a text, taken once for all tests."""
    key = data.tobytes()
    if key not in MEASUREMENTS:
        MEASUREMENTS[key] = measure_corpus(corpus, data, **options)
    return MEASUREMENTS[key]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a run takes a second to start, 10 ms a step and 1 ms a window."""
    monkeypatch.setattr(trial, "measure_corpus", measured_once)
    times = dry_run.StepTimes(1.0, 0.01, 0.001, 1e6)
    monkeypatch.setattr(dry_run, "timed_apart", lambda condition, batch: times)
    monkeypatch.setattr(LocalEngine, "room", lambda self, spec, device: 2)


def planned(out: Path, text: str = TEXT, **changes: Any) -> trial.PlannedTrial:
    return trial.plan_trial(text, out, OPTIONS.model_copy(update=changes), lambda line: None)


# What is refused


def fasta(path: Path) -> Path:
    bases = random.Random(0)
    lines = ["".join(bases.choices("ACGT", k=70)) for _ in range(2000)]
    path.write_text(">random\n" + "\n".join(lines) + "\n")
    return path


def noise(path: Path) -> Path:
    path.write_bytes(bytes(random.Random(0).choices(range(64), k=100_000)))
    return path


def one_byte(path: Path) -> Path:
    path.write_bytes(b"a" * 100_000)
    return path


def pairs(path: Path) -> Path:
    """Every second byte repeats the one before it: memory of one byte."""
    symbols = np.random.default_rng(0).integers(97, 113, 100_000).astype(np.uint8)
    copied = np.random.default_rng(1).random(symbols.size) < 0.5
    symbols[1:][copied[1:]] = symbols[:-1][copied[1:]]
    path.write_bytes(symbols.tobytes())
    return path


@pytest.mark.parametrize("write", [fasta, noise, one_byte, pairs])
def test_a_text_without_memory_ends_with_a_sentence(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "text.txt")
    with pytest.raises(SystemExit) as stop:
        cli.main(command.command, [str(path), "--out", str(tmp_path / "out")])
    shown = capsys.readouterr().out
    assert stop.value.code == 1
    assert shown.count("\n") == 1
    assert "nothing is trained" in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--seeds", "1"], "seeds must be at least 2, for an interval, got 1"),
        (["--minutes", "0"], "minutes must be a finite number above 0, got 0"),
        (["--minutes", "inf"], "minutes must be a finite number above 0, got inf"),
        (["--minutes", "1e308"], "minutes must be at most 1,000,000,000, got 1e+308"),
        (["--dim", "4"], "got 4, which gives 4; give --dim 11 or more"),
        (
            ["--model", "rwkv6", "--dim", "6"],
            "got 6, which gives 6; give --dim",
        ),
    ],
)
@pytest.mark.usefixtures("timed")
def test_options_that_do_not_fit_are_refused(
    options: list[str], told: str, tmp_path: Path, refused: Any
) -> None:
    assert told in refused(command.command, TEXT, "--out", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", [".", "/", "a/.."])
def test_a_folder_without_a_name_is_refused_before_anything_is_measured(
    out: str, refused: Any
) -> None:
    told = refused(command.command, "no-such-text", "--out", out)
    assert "out must end in the name of the study, of letters, digits, '.', '_' and '-'" in told
    assert f"got '{out}'; the spec is written beside it, as NAME.toml" in told


def test_a_corpus_of_recall_is_refused_by_name(tmp_path: Path, refused: Any) -> None:
    name = "synthetic:recall,pairs=4,length=32"
    told = refused(command.command, name, "--out", tmp_path / "out")
    assert "text must be a corpus whose bytes are all predicted" in told
    assert f"got '{name}'" in told
    assert "plkernel.experiment" in told


def test_a_text_whose_name_no_spec_holds_is_refused_before_it_is_read(
    tmp_path: Path, refused: Any
) -> None:
    told = refused(command.command, "no-such-\udcff.txt", "--out", tmp_path / "out")
    assert "text must have a name in UTF-8, which the spec will hold, got" in told


def test_a_short_text_is_refused_with_the_bytes_that_it_needs(tmp_path: Path, refused: Any) -> None:
    path = tmp_path / "short.txt"
    path.write_text("a short text. " * 100)
    told = refused(command.command, path, "--out", tmp_path / "out")
    assert "must have at least 82,240 bytes" in told
    assert told.endswith("got 1,400; give a longer text")


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize(("bits", "is_noted"), [(0.004, True), (0.4, False)])
def test_pairs_of_bytes_that_tell_little_are_noted_before_training(
    bits: float, is_noted: bool, tmp_path: Path
) -> None:
    measured = planned(tmp_path / "out").measured
    most = max(measured.information.values) / math.log(2)
    values = [value * bits / most for value in measured.information.values]
    curve = dataclasses.replace(measured.information, values=tuple(values))
    told: list[str] = []
    trial._tell_law(measured.model_copy(update={"information": curve}), told.append)
    notes = [line for line in told if line.startswith(f"note: a byte tells at most {bits:g} bits")]
    assert len(notes) == is_noted


# The spec


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("model", ["ssm", "rwkv6", "rwkv7"])
def test_the_written_spec_is_what_is_run(model: str, tmp_path: Path) -> None:
    one = planned(tmp_path / "out", model=model, dim=32)
    assert one.path == tmp_path / "out.toml"
    assert load_spec(one.path, check) == one.spec
    assert next(iter(one.spec.arms)) == one.spec.baseline == "log-spaced"
    assert one.spec.hypotheses[0].arm == "short-frozen"
    assert one.spec.train_of("short-frozen").decay_multiplier == 0
    comments = [line for line in one.path.read_text().splitlines() if line.startswith("#")]
    assert f"{one.measured.law.beta:.4f}" in "".join(comments)  # type: ignore[union-attr]
    for name in one.spec.arms:
        one.spec.condition(name).check()


@pytest.mark.usefixtures("timed")
def test_the_spec_says_how_much_of_the_training_text_a_run_reads(tmp_path: Path) -> None:
    """Of 90 %, as a twentieth each is held out for validation and for test."""
    found = planned(tmp_path / "out")
    size = found.measured.information.size
    read = found.spec.train.steps * 8 * 256
    text = found.path.read_text()
    assert f"a run reads {read:,} bytes, {read / (0.9 * size):.2g} times the training text." in text


@pytest.mark.usefixtures("timed")
def test_arms_differ_as_they_say(tmp_path: Path) -> None:
    one = planned(tmp_path / "out")
    nodes = {name: one.spec.condition(name).nodes for name in one.spec.arms}
    last = one.measured.verdict.last_lag
    assert max(nodes["log-spaced"].half_lives()) == pytest.approx(last)
    assert nodes["power-law"].rates == nodes["log-spaced"].rates
    shape = np.array(nodes["power-law"].rates) ** (one.spec.arms["power-law"].beta - 1)
    np.testing.assert_allclose(nodes["power-law"].projection, shape / shape.mean(), rtol=1e-12)
    for name in ("power-law", "concentrated"):
        assert output_std(nodes[f"{name}-matched"]) == pytest.approx(
            output_std(nodes["log-spaced"])
        )
    assert max(nodes["short-frozen"].half_lives()) == pytest.approx(8)


@pytest.mark.usefixtures("timed")
def test_the_control_is_frozen_short_against_log_spaced_on_copied_bytes(tmp_path: Path) -> None:
    one = planned(tmp_path / "out").spec
    base, short = (one.condition(name) for name in ("log-spaced_control", "short-frozen_control"))
    assert base.corpus == short.corpus
    assert base.corpus.name == trial.CONTROL_CORPUS
    assert base.model == short.model
    assert base.protocol.total_steps == one.train.total_steps
    assert max(base.nodes.half_lives()) == pytest.approx(trial.COPIED)
    assert max(short.nodes.half_lives()) == pytest.approx(trial.SHORT)
    assert one.train_of("short-frozen_control").decay_multiplier == 0
    assert one.against("short-frozen_control") == "log-spaced_control"
    assert one.against("log-spaced_control") is None
    without = planned(tmp_path / "without", control=False)
    assert set(one.arms) - set(without.spec.arms) == {"log-spaced_control", "short-frozen_control"}
    assert without.measured.control == ""


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("model", ["ssm", "rwkv6", "rwkv7"])
def test_learnt_short_half_lives_differ_from_frozen_ones_in_training_alone(
    model: str, tmp_path: Path
) -> None:
    spec = planned(tmp_path / "out", model=model, dim=32, short=True).spec
    without = planned(tmp_path / "without", model=model, dim=32).spec
    assert set(spec.arms) - set(without.arms) == {"short"}
    learnt, frozen = (spec.condition(name) for name in ("short", "short-frozen"))
    assert learnt.nodes == frozen.nodes
    assert learnt.model == frozen.model
    multipliers = [spec.train_of(name).decay_multiplier for name in ("short", "short-frozen")]
    assert multipliers == [spec.train_of("log-spaced").decay_multiplier, 0]
    assert multipliers[0] != 0


def test_a_call_with_too_few_minutes_keeps_what_it_measured(
    timed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text"
    text.write_bytes(corpora.load(TEXT).bytes.tobytes())
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="minutes must be at least"):
        planned(out, str(text), minutes=0.1)
    assert not out.with_suffix(".toml").exists()
    calls: list[str] = []

    def again(corpus: Any, data: Any, **options: Any) -> Any:
        calls.append(corpus.name)
        return measured_once(corpus, data, **options)

    monkeypatch.setattr(trial, "measure_corpus", again)
    one = planned(out, str(text))
    assert calls == []
    assert one.measured.options.minutes == OPTIONS.minutes
    assert read_measurement(out) == one.measured
    other = tmp_path / "other"
    with pytest.raises(ValueError, match="minutes must be at least"):
        planned(other, str(text), minutes=0.1)
    text.write_bytes(text.read_bytes()[:-1] + b"\0")
    planned(other, str(text))
    assert len(calls) == 2, "other bytes are measured anew"


@pytest.mark.usefixtures("timed")
def test_windows_of_a_run_are_those_that_are_priced(tmp_path: Path) -> None:
    spec = planned(tmp_path / "out").spec
    assert dry_run.evaluated_windows(spec.condition("log-spaced")) == 7 * 64 + 128


@pytest.mark.usefixtures("timed")
def test_steps_are_a_multiple_of_the_evaluations(tmp_path: Path) -> None:
    """996 of 1,000 steps, so that the last evaluation is that of the last step."""
    text = trial.spec_text(planned(tmp_path / "out").measured, "given", 1000)
    train = tomllib.loads(text)["train"]
    assert (train["steps"], train["eval_every"]) == (996, 166)


@pytest.mark.usefixtures("timed")
def test_steps_follow_from_the_minutes(tmp_path: Path) -> None:
    """12 runs on the text and 4 on the control, 2 at a time, of 1 s + 576 windows of 1 ms + steps
    of 10 ms.
    """
    one = planned(tmp_path / "out")
    steps, seconds = trial.steps_for(one.spec, OPTIONS, elapsed=10.0)
    fixed = 1 + 0.001 * (7 * 64 + 128)
    most = ((600 - 10 - trial.AFTERWARDS) / 8 - fixed) / 0.01
    assert steps == 6 * math.floor(most / 6)
    assert seconds == pytest.approx(10 + trial.AFTERWARDS + 8 * (fixed + 0.01 * steps))
    told = r"minutes must be at least 12 here for 16 runs of 60 steps, 2 at a time, got 10"
    with pytest.raises(ValueError, match=f"{told}$"):  # with fewer seeds there is no interval
        trial.steps_for(one.spec, OPTIONS, elapsed=600.0)
    more_seeds = OPTIONS.model_copy(update={"seeds": 3})
    with pytest.raises(ValueError, match=f"{told}; or give fewer --seeds"):
        trial.steps_for(one.spec, more_seeds, elapsed=600.0)
    with pytest.raises(ValueError, match="minutes must be at least"):
        planned(tmp_path / "other", minutes=0.3)
    assert [path.name for path in (tmp_path / "other").iterdir()] == [MEASUREMENT]


@pytest.mark.usefixtures("timed")
def test_a_trial_goes_on_with_its_spec_as_it_was_edited(tmp_path: Path) -> None:
    one = planned(tmp_path / "out")
    one.path.write_text(one.path.read_text().replace("batch = 8", "batch = 4"))
    assert planned(tmp_path / "out").spec.train.batch == 4
    with pytest.raises(ValueError, match=r"seeds must be 2, with which .*out was begun, got 3"):
        planned(tmp_path / "out", seeds=3)
    (tmp_path / "out" / MEASUREMENT).unlink()
    with pytest.raises(
        ValueError, match=r"out must be a new folder, .*out.toml is there but no measurement.json"
    ):
        planned(tmp_path / "out")


@pytest.mark.usefixtures("timed")
def test_a_text_that_was_edited_since_it_was_measured_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(corpora.load(TEXT).bytes))
    planned(tmp_path / "out", str(text))
    planned(tmp_path / "out", str(text))
    text.write_bytes(text.read_bytes() + b"!")
    with pytest.raises(ValueError, match=r"text .* must be as it was measured, of sha256 .*, got"):
        planned(tmp_path / "out", str(text))


def test_the_name_of_a_trial_is_a_folder(tmp_path: Path) -> None:
    assert trial.trial_name(TEXT, "ssm").startswith("trial-synthetic-lags-alpha-0.7")
    assert trial.trial_name(tmp_path / "ünïcode & co.txt", "rwkv6").endswith("-co-rwkv6")
    assert trial.trial_name("/", "ssm") == "trial-text"


@pytest.mark.parametrize("text", ["plain", 'a "quoted" \\ path', "tab\there\nand ü", "\x7f", "😀"])
def test_strings_are_toml(text: str) -> None:
    import tomllib

    assert tomllib.loads(f"name = {trial._toml(text)}")["name"] == text


# What is said, and the smaller parts


@pytest.mark.usefixtures("timed")
def test_a_plan_says_what_it_has_found_and_written(tmp_path: Path) -> None:
    told: list[str] = []
    one = trial.plan_trial(TEXT, tmp_path / "out", OPTIONS, told.append)
    verdict, law, table, timing, spec = told
    assert timing == "timing a few steps here, to see how many fit into 10 min"
    assert verdict == f"{TEXT}: 200,000 bytes; {one.measured.verdict.sentence}"
    found = one.measured.law
    assert found is not None
    assert law == (
        f"information falls as d**-{found.beta:.3g} ({found.low:.3g} to {found.high:.3g}) over lags"
        f" {found.first_lag} to {found.last_lag}"
    )
    _, _, *lines, _ = table.splitlines()
    (name, *published), *rows = [re.split(r" {2,}", line.strip()) for line in lines]
    assert name == "NNLS on 1 to 2,048, published"
    assert float(published[-1]) > 1
    last = one.measured.verdict.last_lag
    expected = []
    for name, arm in (
        ("concentrated anchors, published", "concentrated"),
        ("log-spaced to the last lag, weighted", "power-law"),
        ("log-spaced to the last lag, to be learnt", "log-spaced"),
    ):
        nodes = one.spec.condition(arm).nodes
        error = math.exp(node_scores(nodes, power_law_target(found.beta, last)).e_log)
        reach = f"{max(nodes.half_lives()):,.0f}"
        expected.append([name, reach, f"{len(set(nodes.rates))}", f"{error:.3g}"])
    assert rows == expected
    steps = one.spec.train.total_steps
    size = steps * 8 * 256 / 1e6
    runs = len(one.spec.arms) * 2
    assert spec == (
        f"spec: {one.path}, {runs} runs of {steps} steps ({size:.2g} MB each), about 10 min in all"
    )
    again: list[str] = []
    trial.plan_trial(TEXT, tmp_path / "out", OPTIONS, again.append)
    assert again[:-1] == [verdict, law]
    assert again[-1] == f"goes on with {one.path}, as it is now; another --out begins anew"


@pytest.mark.usefixtures("timed")
def test_a_plan_of_seconds_is_told_as_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "steps_for", lambda *_: (60, 20.0))
    told: list[str] = []
    trial.plan_trial(TEXT, tmp_path / "out", OPTIONS, told.append)
    assert told[-1].endswith("about 1 min in all")


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"last_lag": 0}, "no half-life can help a model there, so nothing is trained"),
        ({"kind": "none"}, "no half-life can help a model there, so nothing is trained"),
        ({"last_lag": 9}, "memory stands out to lag 9 only, and half-lives matter from about 10"),
        ({"last_lag": 10}, ""),
    ],
)
def test_a_text_is_carried_from_a_memory_of_ten_bytes_on(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    measured = planned(tmp_path / "out").measured
    verdict = measured.verdict.model_copy(update=changes)
    changed = measured.model_copy(update={"verdict": verdict})
    if not message:
        trial._check_carried(changed, OPTIONS)
        return
    with pytest.raises(trial.NoMemoryError, match=message):
        trial._check_carried(changed, OPTIONS)


@pytest.mark.usefixtures("timed")
def test_a_law_that_does_not_fall_and_a_model_too_small_are_refused(tmp_path: Path) -> None:
    measured = planned(tmp_path / "out").measured
    for law in (None, dataclasses.replace(measured.law, beta=0.0)):  # type: ignore[type-var]
        with pytest.raises(trial.NoMemoryError, match="the information does not fall with the lag"):
            trial._check_carried(measured.model_copy(update={"law": law}), OPTIONS)
    needed = math.ceil(measured.octaves) + 1
    for model, what in (("ssm", "channels"), ("rwkv7", "channels in a head")):
        enough = OPTIONS.model_copy(update={"model": model, "dim": needed})
        trial._check_carried(measured, enough)
        small = OPTIONS.model_copy(update={"model": model, "dim": needed - 1})
        with pytest.raises(ValueError, match=f"dim must give {needed} {what} or more, as half"):
            trial._check_carried(measured, small)


@pytest.mark.parametrize(("seeds", "minutes", "dim"), [(2, 1e-9, 2), (9, 1e9, 4096)])
def test_options_at_their_limits_are_taken(seeds: int, minutes: float, dim: int) -> None:
    options = {"seeds": seeds, "minutes": minutes, "dim": dim}
    trial._check(OPTIONS.model_copy(update=options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"model": "mamba"},
            "model must be one of ssm, rwkv6, rwkv7, got 'mamba'; .* python -m plkernel.new FOLDER",
        ),
        (
            {"model": str(torch.nn.Sequential(torch.nn.Linear(2, 2)))},
            r"got 'Sequential\(' and more lines; for a model of your own .* \(docs/own.md\)$",
        ),
        ({"dim": 1}, "dim must be at least 2, got 1"),
        ({"minutes": -1.0}, "minutes must be a finite number above 0, got -1"),
        ({"seeds": 1}, "seeds must be at least 2, for an interval, got 1"),
    ],
)
def test_options_that_no_trial_can_have_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trial._check(OPTIONS.model_copy(update=options))


@pytest.mark.parametrize(("size", "fits"), [(82_240, True), (82_239, False)])
def test_a_text_of_sixteen_windows_is_long_enough(size: int, fits: bool, tmp_path: Path) -> None:
    """Of 257 bytes, in the twentieth that is held out."""
    (tmp_path / "text").write_bytes(bytes(size))
    corpus = corpora.load(tmp_path / "text")
    if fits:
        trial._check_size(corpus)
        return
    with pytest.raises(ValueError, match="must have at least 82,240 bytes, for 16 windows of 256"):
        trial._check_size(corpus)


@pytest.mark.parametrize(
    ("arms", "claimed"),
    [
        ([], []),
        (["log-spaced", "power-law"], ["power-law"]),
        (
            ["quantile", "concentrated", "power-law", "short-frozen", "short-frozen_control"],
            ["short-frozen", "power-law", "concentrated", "quantile", "short-frozen_control"],
        ),
    ],
)
def test_hypotheses_are_those_of_the_arms_that_are_there(
    arms: list[str], claimed: list[str]
) -> None:
    found = trial.claims_of(arms)
    assert [one.arm for one in found] == claimed
    claims = {one.arm: one.claim for one in found}
    higher = {arm for arm in claimed if arm.startswith("short")}
    assert claims == {arm: "higher" if arm in higher else "lower" for arm in claimed}


def test_values_are_written_as_toml() -> None:
    values = {"a": 1, "b": True, "c": [1, 2.5], "d": {"e": "x", "f": {"g": 0}}}
    lines = trial._section("t", values)
    assert tomllib.loads("\n".join(lines)) == {"t": values}


@pytest.mark.usefixtures("timed")
def test_a_folder_that_cannot_be_written_is_refused_before_the_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"out .*: cannot be written \(a file is in the way\)"):
        planned(tmp_path / "file" / "out", text="no such text")


# The whole chain


def test_the_chain_ends_in_a_page_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], timed: None
) -> None:
    monkeypatch.setattr(schedule, "LocalEngine", Here)
    monkeypatch.setattr(trial, "CONTEXT", 32)
    monkeypatch.setattr(trial, "EVAL_WINDOWS", 4)
    monkeypatch.setattr(trial, "TEST_WINDOWS", 4)
    monkeypatch.setattr(trial, "MODELS", {"ssm": {"layers": 1, "gain": "ema"}})
    monkeypatch.setattr(trial, "steps_for", lambda *_: (12, 60.0))
    out = tmp_path / "out"
    given = [TEXT, "--out", str(out), "--dim", "16", "--seeds", "2"]
    cli.main(command.command, [*given, "--dry-run"])
    assert "nothing was trained" in capsys.readouterr().out
    assert not (out / SPEC).exists()
    cli.main(command.command, given)
    shown = capsys.readouterr().out
    assert shown.endswith(f"page: {out / 'report' / 'report.html'}\n")
    assert "Of 4 hypotheses declared before the runs" in shown
    spec = load_spec(tmp_path / "out.toml", check)
    assert load_json(out / SPEC) == spec.model_dump(mode="json")
    assert load_json(out / REGISTERED)["spec"] == spec.model_dump(mode="json")
    page = (out / "report" / "report.html").read_text()
    sentence = load_json(out / "report" / "table.json")["answer"]
    assert sentence in shown
    assert "power-law projections" in sentence
    assert sentence.startswith("On synthetic:lags,alpha=0 ... 8,bytes=200kB, after ")
    assert (
        sentence.count("the control (a synthetic task, bytes that copy one of the 64 before") == 1
    )
    head, _, rest = page.partition("What was decided</h2>")
    assert head.count("<figure>") == 1
    assert rest.count("<figure>") > 2
    measured = read_measurement(out)
    assert measured is not None
    assert measured.law is not None
    pages: list[Path] = []

    def again(comparison: Any, out: Path) -> Path:
        pages.append(out)
        return out

    monkeypatch.setattr(report, "write_comparison", again)
    cli.main(command.command, given)  # all runs have finished: only the page is written again
    assert pages == [out / "report"]
    assert "goes on with" in capsys.readouterr().out
