"""The model and the spec that plkernel.new writes: taken by a study, causal, and trained to its report."""

import subprocess
import sys
from pathlib import Path

import pytest

import plkernel
from plkernel.commands.new import new
from plkernel.config.reading import load_spec
from plkernel.training.build import Prepared


def test_the_spec_fits_the_model_and_nothing_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new(tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    monkeypatch.syspath_prepend(tmp_path / "mine")
    spec = load_spec("study.toml", trusted=True)
    assert {Prepared.of(spec.condition(arm)).parameters for arm in spec.arms} == {57_600}
    with pytest.raises(ValueError, match=r"mymodel\.py is there and is not replaced"):
        new(Path())


@pytest.mark.slow
def test_the_study_ends_in_its_report(tmp_path: Path) -> None:
    new(tmp_path)
    options = ["--trust-code", "--train.steps", "100", "--train.eval-every", "50", "--seeds", "0", "1"]
    code = [sys.executable, "-m", "plkernel.experiment", "study.toml", *options]
    done = subprocess.run(code, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "arm minus spread" in done.stdout.lower()
    assert (tmp_path / "runs/out/study/report/report.html").is_file()


@pytest.mark.slow
def test_it_runs_from_python_after_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new(tmp_path)
    path = tmp_path / "study.toml"
    shorter = path.read_text().replace("= 300", "= 20").replace("eval_every = 100", "eval_every = 10")
    path.write_text(shorter.replace('"stdlib"', '"synthetic:lags,alpha=0.7,longest=64,bytes=200kB"'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mymodel", raising=False)  # of another folder
    with pytest.raises(ValueError, match="kind 'mymodel:Model' would be imported"):
        plkernel.run_study(path)
    assert "mymodel" not in sys.modules
    study = plkernel.run_study(plkernel.load_spec(path), only=["short"], trust_code=True)
    assert [run.arm for run in study.finished()] == ["short"] * 3
