"""Runs of other people's models: trained after consent, killed and resumed, never imported without
it.
"""

import hashlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from plkernel.analysis.figures import style
from plkernel.commands.experiment import command
from plkernel.commands.inspect import command as inspect
from plkernel.commands.probe import probe
from plkernel.commands.report import report
from plkernel.commands.run import run as train_one
from plkernel.common import cli
from plkernel.common.files import load_json, read_lines, save_json
from plkernel.config import reading
from plkernel.config.reading import load_spec
from plkernel.config.spec import Spec
from plkernel.study.engine import Job, start_process
from plkernel.study.schedule import run_experiment, search_of
from plkernel.training import check
from plkernel.training.loop import Training, open_run, prepare, run_training

KIND = "somebodys.models:Recurrent"
SpecWriter = Callable[..., Path]


def train(spec: Spec, out: Path, arm: str = "uniform") -> Path:
    run_training(prepare(spec, arm, 0, out), progress_bar=False)
    return out / arm / "seed-0"


def killed(spec: Spec, out: Path, step: int) -> None:
    """Train in a copy of this process that ends by SIGKILL after a step, with nothing saved since
    the evaluation.
    """
    child = os.fork()
    if not child:
        try:
            whole = Training.step

            def last(self: Training) -> None:
                whole(self)
                if self.progress.step == step:
                    os.kill(os.getpid(), signal.SIGKILL)

            Training.step = last  # type: ignore[method-assign]
            train(spec, out)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a copy of this process")
def test_killed_and_resumed_its_rows_are_those_of_an_unbroken_run(
    foreign_spec: SpecWriter, package: Path, tmp_path: Path
) -> None:
    """With dropout, running means, and a parameter that no loss reaches."""
    spec = load_spec(foreign_spec(steps=12, eval_every=4), check, trusted=True)
    whole = train(spec, tmp_path / "whole")
    killed(spec, tmp_path / "parts", 6)
    assert len(read_lines(tmp_path / "parts/uniform/seed-0/metrics.jsonl")) == 2
    parts = train(spec, tmp_path / "parts")
    assert (parts / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    results = [{**load_json(folder / "result.json"), "seconds": None} for folder in (whole, parts)]
    assert results[0] == results[1]
    assert results[0]["final_val_bpb"] < 8.1  # of a model that guesses, 8
    config = load_json(whole / "config.json")
    assert config["model"]["kind"] == KIND
    assert "trust" not in json.dumps(config)
    code = load_json(whole / "environment.json")["code"][KIND]
    assert code == {
        "version": "1.0",
        "sha256": hashlib.sha256((package / "models.py").read_bytes()).hexdigest(),
    }


@pytest.mark.parametrize("by", ["random", "numpy", "torch"])
def test_steps_draw_the_same_whatever_was_drawn_before(
    foreign_spec: SpecWriter, tmp_path: Path, by: str
) -> None:
    """Nor do the caller's generators move."""
    path = foreign_spec("somebodys.models:Depth", f'{{ by = "{by}" }}', steps=8, eval_every=8)
    spec = load_spec(path, check, trusted=True)
    rows = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        before = random.getstate(), np.random.get_state()[2], torch.get_rng_state()  # noqa: NPY002
        folder = train(spec, tmp_path / f"{seed}")
        after = random.getstate(), np.random.get_state()[2], torch.get_rng_state()  # noqa: NPY002
        assert after[:2] == before[:2]
        assert torch.equal(after[2], before[2])
        rows.append((folder / "metrics.jsonl").read_bytes())
    assert rows[0] == rows[1]


def test_without_consent_nothing_is_imported(
    foreign_spec: SpecWriter, package: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    path = foreign_spec()
    checked = partial(reading.main, check=check)
    assert load_spec(path).condition("uniform").model.kind == KIND
    for options in ([], ["--dry-run"], ["--register"]):
        error = refused(command, path, "--out", tmp_path / "out", *options, main=checked)
        assert f"arms.uniform: kind '{KIND}' runs third-party code" in error
        assert error.endswith("then pass --trust-code (trust_code=True in Python)")
    with pytest.raises(ValueError, match=f"kind '{KIND}' runs third-party code"):
        prepare(load_spec(path), "uniform", 0, tmp_path / "out")
    ours = foreign_spec(arm='init = "somebodys.models:small_"')
    ours.write_text(ours.read_text().replace(f'kind = "{KIND}"\nconfig = {{}}', "dim = 8"))
    with pytest.raises(
        ValueError, match=r"arms.power-law: init 'somebodys.models:small_' runs third-party code"
    ):
        load_spec(ours, check)
    assert not (package / "imported").exists()
    assert not (tmp_path / "out").exists()


def test_a_run_is_used_after_consent_and_never_before(
    foreign_spec: SpecWriter,
    package: Path,
    forgotten: Callable[[], None],
    tmp_path: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The report reads it without; probed on the windows of its last evaluation it has the bits of
    its last row.
    """
    out = tmp_path / "out"
    spec = load_spec(foreign_spec(steps=6, eval_every=3), check, trusted=True)
    run = train(spec, out)
    (out / "spec.json").write_text(json.dumps(spec.model_dump(mode="json")))
    (package / "imported").unlink()
    forgotten()
    monkeypatch.setattr(style, "rendered", partial(style.rendered, kinds=("svg",)))
    report(out)
    page = (out / "report" / "report.html").read_text()
    assert KIND in page
    assert f"got '{KIND}', which is other people's code" in refused(inspect, run)
    error = refused(probe, run)
    assert f"got '{KIND}', which is other people's code" in error
    assert error.endswith("then pass --trust-code (trust_code=True in Python)")
    assert not (package / "imported").exists()
    cli.main(
        probe, [str(run), "--trust-code", "--windows", "4", "--json", str(tmp_path / "found.json")]
    )
    found = load_json(tmp_path / "found.json")
    last = read_lines(run / "metrics.jsonl")[-1]
    assert found["bits_per_token"] == pytest.approx(last["val_bpb"], rel=1e-6)


@pytest.mark.parametrize("trusted", [False, True])
def test_consent_reaches_search_and_workers_and_is_in_no_file(
    trusted: bool, foreign_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker on this machine and, by the same function in a task that is pickled, on a
    cluster.
    """
    path = foreign_spec(head="[tuning]\nrates = [1e-3, 1e-2]\n")
    text = path.read_text()
    at = text.index("[tuning]")
    path.write_text(text[:at] + text[text.index("[corpus]") :] + text[at : text.index("[corpus]")])
    spec = load_spec(path, check if trusted else None, trusted=trusted)
    search = search_of(spec)
    assert {search.condition(name).trusted for name in search.arms} == {trusted}
    saved = tmp_path / "spec.json"
    saved.write_text(json.dumps(spec.model_dump(mode="json")))
    assert not load_spec(saved).condition("uniform").trusted
    saved.write_text(json.dumps({**spec.model_dump(mode="json"), "trusted": True}))
    with pytest.raises(ValueError, match="unknown key 'trusted'"):
        load_spec(saved)
    asked: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda line, **_: asked.append(line))
    job = Job(tmp_path, "uniform", 0, "cpu", 1, {"arm": "uniform"}, trusted=trusted)
    start_process(pickle.loads(pickle.dumps(job)), {})
    assert (asked[0][-1] == "--trust-code") == trusted
    assert "--code-tried" in asked[0], "the study has tried it"
    assert "trust" not in (job.folder / "config.json").read_text()


@pytest.mark.parametrize("where", ["program", "folder"])
def test_code_that_no_other_process_finds_is_refused_before_anything_is_written(
    where: str, foreign_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the program itself, and of a folder that only this process looks into."""
    kind = "somebodys.models:Plain"
    if where == "program":
        kind = "__main__:Plain"
        models = import_module("somebodys.models")
        monkeypatch.setattr(sys.modules["__main__"], "Plain", models.Plain, raising=False)
    else:
        monkeypatch.delenv("PYTHONPATH")
    spec = load_spec(foreign_spec(kind, steps=3, eval_every=3), check, trusted=True)
    message = f"kind must name code that a process of its own finds, .* got '{kind}'; have its mod"
    with pytest.raises(ValueError, match=message):
        run_experiment(spec, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_process_with_a_parent_tries_the_code_unless_it_is_said_to_be_tried(
    foreign_spec: SpecWriter, tmp_path: Path
) -> None:
    """A model that sees ahead: refused with and without a parent, and trained only when the parent
    has vouched for it.
    """
    path = foreign_spec("somebodys.models:Plain", '{ see = "next" }', steps=3, eval_every=3)
    condition = load_spec(path, trusted=True).condition("uniform")
    folder = tmp_path / "out" / "uniform" / "seed-0"
    folder.mkdir(parents=True)
    save_json(folder / "config.json", open_run(condition, 0, folder, checked=True).config)
    for parent in (None, os.getppid()):
        with pytest.raises(ValueError, match="is not causal: byte 1 changes the logits at byte 0"):
            train_one(folder / "config.json", stop_with=parent, trust_code=True)
    train_one(folder / "config.json", stop_with=os.getppid(), code_tried=True, trust_code=True)
    assert load_json(folder / "result.json")["status"] == "finished"


@pytest.mark.parametrize(
    ("kind", "config", "arm", "message"),
    [
        (
            "somebodys.models:Plain",
            '{ see = "next" }',
            "",
            "is not causal: byte 1 changes the logits at byte 0",
        ),
        (
            KIND,
            "{}",
            'init = "somebodys.models:infinite_"',
            "its logits must be finite at initialisation",
        ),
        (KIND, "{}", 'scheme = "mup_table8"', "scheme mup_table8 belongs to models of plkernel"),
        (KIND, "{}", "train = { decay_multiplier = 2.0 }", "must have a layer with known decays"),
        (KIND, "{}", 'init = "somebodys.models:smal_"', "has no attribute 'smal_'"),
        (
            KIND,
            "{}",
            'init = "somebodys.models:small_"\ninit_options = { sdt = 1 }',
            "init_options must be options of init 'somebodys.models:small_', got 'sdt'",
        ),
    ],
)
def test_a_study_is_refused_before_anything_is_written(
    kind: str,
    config: str,
    arm: str,
    message: str,
    foreign_spec: SpecWriter,
    tmp_path: Path,
    refused: Callable[..., str],
) -> None:
    asked = (command, foreign_spec(kind, config, arm), "--out", tmp_path / "out", "--trust-code")
    assert message in refused(*asked, main=partial(reading.main, check=check))
    assert not (tmp_path / "out").exists()
