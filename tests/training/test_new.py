"""The model and the spec that plkernel.new writes: taken by a study, causal, and trained to its
report.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import plkernel
from plkernel.commands.new import new
from plkernel.config.reading import load_spec
from plkernel.training.build import Prepared


def test_the_spec_fits_the_model_and_nothing_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new(tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    monkeypatch.syspath_prepend(tmp_path / "mine")
    spec = load_spec("study.toml", trusted=True)
    assert {Prepared.of(spec.condition(arm), checked=True).parameters for arm in spec.arms} == {
        57_600
    }
    with pytest.raises(ValueError, match=r"folder must not hold mymodel\.py"):
        new(Path())


@pytest.mark.slow
def test_the_study_runs_after_consent_from_the_command_and_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new(tmp_path)
    path = tmp_path / "study.toml"
    shorter = (
        path.read_text().replace("= 300", "= 40").replace("eval_every = 100", "eval_every = 20")
    )
    path.write_text(shorter.replace("[0, 1, 2]", "[0, 1]"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mymodel", raising=False)  # of another folder
    with pytest.raises(ValueError, match=r"kind 'mymodel:Model', init .* runs third-party code"):
        plkernel.run_study(path)
    assert "mymodel" not in sys.modules
    assert not (tmp_path / "runs").exists()
    study = plkernel.run_study(load_spec(path), trust_code=True, only=["short"])
    assert [run.arm for run in study.finished()] == ["short", "short"]
    last = [run.result.final_val_bpb for run in study.finished() if run.result]
    assert plkernel.load_study(study.folder).to_frame().loc[0, "bits_per_byte"] == pytest.approx(
        sum(last) / 2
    )
    code = [sys.executable, "-m", "plkernel.experiment", "study.toml", "--trust-code"]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "6 runs, 2 finished before" in done.stdout
    assert "arm minus spread" in done.stdout.lower()
    assert (tmp_path / "runs/out/study/report/report.html").is_file()
