"""Anybody's model in a study: trained after consent, killed and resumed to the same rows, reported without it."""

import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel.commands.experiment import command
from plkernel.commands.inspect import inspect
from plkernel.commands.probe import probe
from plkernel.commands.report import report
from plkernel.common import cli
from plkernel.common.files import load_json, read_lines
from plkernel.config import command_line
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.study.engine import Job, start_process
from plkernel.study.tuning import search_of
from plkernel.training import check
from plkernel.training.loop import Training, prepare, run_training

SpecWriter = Callable[..., Path]
KIND = "somebodys.models:Recurrent"


def train(spec: Spec, out: Path, arm: str = "uniform") -> Path:
    run_training(prepare(spec, arm, 0, out), progress_bar=False)
    return out / arm / "seed-0"


def killed(spec: Spec, out: Path, step: int) -> None:
    """Train in a copy of this process that ends by SIGKILL after a step, with nothing saved since the evaluation."""
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
    assert code == {"version": "1.0", "sha256": hashlib.sha256((package / "models.py").read_bytes()).hexdigest()}


def test_without_consent_nothing_is_imported(
    foreign_spec: SpecWriter, package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = foreign_spec()
    assert load_spec(path).condition("uniform").model.kind == KIND
    for options in ([], ["--dry-run"], ["--register"]):
        with pytest.raises(SystemExit) as stop:
            command_line.main(command, [str(path), "--out", str(tmp_path / "out"), *options], check)
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert f"arms.uniform: kind '{KIND}' would be imported and run" in error
        assert error.strip().endswith("read it, then say --trust-code")
        assert error.count("\n") == 1
    with pytest.raises(ValueError, match=f"kind '{KIND}' would be imported"):
        prepare(load_spec(path), "uniform", 0, tmp_path / "out")
    ours = foreign_spec(arm='init = "somebodys.models:small_"')
    ours.write_text(ours.read_text().replace(f'kind = "{KIND}"\nconfig = {{}}', "dim = 8"))
    with pytest.raises(ValueError, match=r"arms.power-law: init 'somebodys.models:small_' would be imported"):
        load_spec(ours, check)
    assert not (package / "imported").exists()
    assert not (tmp_path / "out").exists()


def test_a_run_folder_is_read_without_importing_anything(
    foreign_spec: SpecWriter, package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report, its record, and inspect; what needs the model says that it does."""
    out = tmp_path / "out"
    spec = load_spec(foreign_spec(steps=4, eval_every=2), check, trusted=True)
    run = train(spec, out)
    (out / "spec.json").write_text(json.dumps(spec.model_dump(mode="json")))
    for name in [name for name in sys.modules if name.startswith("somebodys")]:
        del sys.modules[name]
    shutil.rmtree(package)
    report(out)
    assert "uniform" in capsys.readouterr().out
    page = (out / "report" / "report.html").read_text()
    assert KIND in page
    assert "width 96" not in page
    assert f"Left out: half-lives and kernels of {KIND}, which the model does not say" in page
    inspect(run, json=tmp_path / "found.json")
    told = capsys.readouterr().out
    assert f"{read_lines(run / 'metrics.jsonl')[-1]['val_bpb']:.4f}" in told
    assert "left out: half-lives and kernels, which the model does not say, and truncation" in told
    assert f"the code of kind '{KIND}' is not imported here" in told
    assert load_json(tmp_path / "found.json")["now"]["saturation"]["positions"] == 4 * 32
    assert not any(name.startswith("somebodys") for name in sys.modules)
    from plkernel.training.generation import open_checkpoint

    with pytest.raises(ValueError, match=f"needs other people's code, kind '{KIND}', which is not imported here"):
        open_checkpoint(run)
    with pytest.raises(ValueError, match="corpus, windows and text need the model"):
        inspect(run, corpus="stdlib")


def test_a_run_is_used_after_consent_and_never_before(
    foreign_spec: SpecWriter,
    package: Path,
    forgotten: Callable[[], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Probed on the windows of its last evaluation it has the bits per byte of its last row."""
    run = train(load_spec(foreign_spec(steps=6, eval_every=3), check, trusted=True), tmp_path / "out")
    (package / "imported").unlink()
    forgotten()
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(probe, [str(run)])
    output, error = capsys.readouterr()
    assert (stop.value.code, output, error.count("\n")) == (cli.EXIT_BAD_INPUT, "", 1)
    assert f"its model needs other people's code, kind '{KIND}'" in error
    assert error.strip().endswith("read it, then say --trust-code")
    assert not (package / "imported").exists()
    cli.main(probe, [str(run), "--trust-code", "--windows", "4", "--json", str(tmp_path / "found.json")])
    found, last = load_json(tmp_path / "found.json"), read_lines(run / "metrics.jsonl")[-1]
    assert found["bits_per_token"] == pytest.approx(last["val_bpb"], rel=1e-6)


def test_inspect_of_our_model_with_somebodys_start_leaves_out_the_start(
    foreign_spec: SpecWriter, package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = foreign_spec(arm='init = "somebodys.models:small_"\ninit_options = { std = 1e-3 }', steps=2, eval_every=2)
    path.write_text(path.read_text().replace(f'kind = "{KIND}"\nconfig = {{}}', "dim = 8\nlayers = 1"))
    spec = load_spec(path, check, trusted=True)
    runs = [train(spec, tmp_path / "out", arm) for arm in ("uniform", "power-law")]
    spread = [read_lines(run / "metrics.jsonl")[0]["saturation"]["logit_max"] for run in runs]
    assert spread[0] != spread[1]
    (package / "imported").unlink()
    for name in [name for name in sys.modules if name.startswith("somebodys")]:
        del sys.modules[name]
    inspect(runs[1], truncation=0)
    assert "left out: its initialisation, which the code 'somebodys.models:small_'" in capsys.readouterr().out
    assert not (package / "imported").exists()


def test_consent_reaches_the_search_and_is_in_no_file(foreign_spec: SpecWriter, tmp_path: Path) -> None:
    path = foreign_spec(head="[tuning]\nrates = [1e-3, 1e-2]\n")
    text = path.read_text()
    at = text.index("[tuning]")
    path.write_text(text[:at] + text[text.index("[corpus]") :] + text[at : text.index("[corpus]")])
    spec = load_spec(path, check, trusted=True)
    search = search_of(spec)
    assert all(search.condition(name).trusted for name in search.arms)
    assert all(spec.model_copy().condition(name).trusted for name in spec.arms)
    saved = tmp_path / "spec.json"
    saved.write_text(json.dumps(spec.model_dump(mode="json")))
    assert not load_spec(saved).condition("uniform").trusted
    saved.write_text(json.dumps({**spec.model_dump(mode="json"), "trusted": True}))
    with pytest.raises(ValueError, match="unknown key 'trusted'"):
        load_spec(saved)


@pytest.mark.parametrize("trusted", [False, True])
def test_an_engine_tells_its_workers_of_consent(
    trusted: bool, foreign_spec: SpecWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine and, by the same function in a task that is pickled, on a cluster."""
    asked: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda line, **_: asked.append(line))
    job = Job(tmp_path, "uniform", 0, "cpu", 1, {"arm": "uniform"}, trusted=trusted)
    start_process(pickle.loads(pickle.dumps(job)), {})
    assert (asked[0][-1] == "--trust-code") == trusted
    assert "trust" not in (job.folder / "config.json").read_text()


def test_a_cheat_is_refused_before_anything_is_written(
    foreign_spec: SpecWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = foreign_spec("somebodys.models:Plain", '{ see = "next" }')
    with pytest.raises(SystemExit):
        command_line.main(command, [str(path), "--out", str(tmp_path / "out"), "--trust-code"], check)
    error = capsys.readouterr().err
    assert "is not causal: byte 1 changes the logits at byte 0" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
    infinite = foreign_spec(arm='init = "somebodys.models:infinite_"')
    with pytest.raises(ValueError, match=r"arms.power-law: .*its logits are not finite at the start"):
        load_spec(infinite, check, trusted=True)


@pytest.mark.parametrize(
    ("kind", "config", "arm", "message"),
    [
        ("somebodys.models:", "{}", "", "model.kind: must be module:attribute"),
        ("smm", "{}", "", "model.kind: must be ssm, rwkv5, rwkv6, rwkv7 or module:attribute, got 'smm'"),
        ("ssm", "{ a = 1 }", "", "config does not belong to model kind 'ssm'"),
        (KIND, "{ a = nan }", "", "model.config.a.float: Input should be a finite number"),
        (KIND, "{}\ndim = 8", "", "dim does not belong to model kind"),
        (KIND, "{}", 'scheme = "mup_table8"', "scheme mup_table8 belongs to models of plkernel"),
        (KIND, "{}", "train = { decay_multiplier = 2.0 }", "train.decay_multiplier 2.0 belongs to models of plkernel"),
        (KIND, "{}", "init_options = { a = 1 }", "are for an init"),
        (KIND, "{}", 'init = "small_"', "init: must be module:attribute"),
        (KIND, "{}", 'init = "somebodys.models:smal_"', "did you mean 'small_'"),
    ],
)
def test_mistakes_are_one_line(
    kind: str, config: str, arm: str, message: str, foreign_spec: SpecWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    path = foreign_spec(kind, config, arm)
    with pytest.raises(SystemExit) as stop:
        command_line.main(command, [str(path), "--trust-code"], check)
    assert stop.value.code == cli.EXIT_BAD_INPUT
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
