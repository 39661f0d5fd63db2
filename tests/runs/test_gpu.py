"""make gpu, rehearsed on a CPU: its plan, what it needs, and that nothing is lost by an end in the middle."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
THERE = {"torch", "torchgen", "triton", "numba", "llvmlite", "numpy", "scipy", "tensorboard", "plkernel"}
"""What that machine has; torch itself tries two more where they are installed."""
TRIED = {"dill", "charset_normalizer", "functorch"}

BLOCKS = [("none", "published"), ("none", "bytes"), ("ema", "bytes"), ("ema", "published")]


def rehearsal(out: Path, name: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(ROOT / "runs" / "gpu.py"), "--rehearse", "--out", str(out), "--only", name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def whole(out: Path, name: str) -> str:
    process = rehearsal(out, name)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    return printed


def rows(out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The rows of the record of a rehearsal, by arm and seed."""
    (path,) = out.glob("records/exp013*/rows.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["arm"], row["seed"]): row for row in found}


@pytest.fixture
def studies(script_of: Callable[[str], ModuleType]) -> ModuleType:
    return script_of("gpu_studies")


@pytest.mark.slow
@pytest.mark.parametrize("rehearse", [False, True])
def test_the_plan_has_whole_specs_and_the_blocks_of_the_audit(
    studies: ModuleType, tmp_path: Path, rehearse: bool
) -> None:
    found = list(studies.studies(tmp_path, tmp_path, None, tmp_path, rehearse))
    arms = {study.name: len(study.arms) for study in found}
    blocks = dict.fromkeys([f"exp013-audit-gpu {gain}_{patches}" for gain, patches in BLOCKS], 8)
    assert arms == {"exp013": 3, **blocks, "memory-lags-gpu": 14, "memory-text-gpu": 14}
    assert {study.spec.train.device for study in found} == {"cpu" if rehearse else "cuda"}
    for study in found:
        missing = study.missing()
        assert set(missing) == set(study.spec.seeds)
        assert set(missing.values()) == {len(study.arms)}


def test_packed_text_stands_for_what_is_on_the_network(
    studies: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "STUDIES", {"exp013": [("*",)], "memory-text-gpu": [("*",)]})
    (tmp_path / "stdlib.txt").write_bytes(b"text")
    packed = str(tmp_path / "stdlib.txt")
    found = {study.name: study.spec for study in studies.studies(tmp_path, tmp_path, None, tmp_path, False)}
    assert found["exp013"].corpus.name == packed
    assert found["exp013"].name == "exp013-stdlib"
    assert found["memory-text-gpu"].corpus.name == packed
    other = next(studies.studies(tmp_path, tmp_path, "bible:pt", tmp_path, False)).spec
    assert (other.name, other.corpus.name) == ("exp013-bible-pt", "bible:pt")


def test_what_is_due_is_priced_at_the_pace_and_at_seeds_that_have_not_ended(
    studies: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "STUDIES", {"memory-lags-gpu": [("*",)]})
    (study,) = studies.studies(tmp_path, tmp_path, None, tmp_path, False)
    assert not any(study.due().runs.values()), "without a pace nothing can be planned"
    study.pace = studies.Timing(10.0, 0.02, 0.001, 0.002, 0.5, 0.0, 0.0, 0.0)
    train, due = study.spec.train, study.due()
    assert due.runs == dict.fromkeys(range(8), 14)
    evaluations = (1 + train.steps / train.eval_every) * (train.eval_windows * 0.002 + 0.5)
    final = (train.test_windows + 2 * train.truncation_windows) * 0.002
    assert due.seconds == pytest.approx(10 + train.steps * 0.02 + evaluations + final)


@pytest.mark.slow
def test_what_is_packed_is_all_that_is_loaded(script_of: Callable[[str], ModuleType]) -> None:
    packages = {package.replace("-", "_") for package in script_of("gpu_pack").PACKAGES}
    code = (
        "import sys, json, sysconfig; sys.path.insert(0, 'runs'); import gpu, plkernel.commands.run\n"
        "site = sysconfig.get_path('purelib')\n"
        "files = {name: getattr(module, '__file__', None) or '' for name, module in list(sys.modules.items())}\n"
        "print(json.dumps(sorted({name.split('.')[0] for name, path in files.items() if path.startswith(site)})))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    public = {name for name in json.loads(done.stdout) if not name.startswith("_")}
    assert public - THERE - TRIED - packages == set()
    assert {"pydantic", "tyro", "safetensors"} <= public, "nothing was loaded: the test sees nothing"


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a rehearsal of the published study that nothing has ended."""
    out = tmp_path_factory.mktemp("unbroken")
    assert "measured before" not in whole(out, "exp013")
    return out


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_rehearsal_that_is_ended_in_the_middle_goes_on_to_the_rows_of_an_unbroken_one(
    unbroken: Path, tmp_path: Path, number: signal.Signals
) -> None:
    wanted = rows(unbroken)
    assert len(wanted) == 6

    broken = rehearsal(tmp_path, "exp013")
    while not list(tmp_path.glob("exp013-*/*/seed-*/metrics.jsonl")):
        assert broken.poll() is None, broken.communicate()[0]
        time.sleep(0.05)
    broken.send_signal(number)
    printed, _ = broken.communicate()
    assert ("everything is saved" in printed) == (number == signal.SIGTERM)
    assert len(list(tmp_path.glob("exp013-*/*/seed-*/result.json"))) < 6, "it had ended before it was told to"

    printed = whole(tmp_path, "exp013")
    found = rows(tmp_path)
    assert found.keys() == wanted.keys()
    for key, row in found.items():
        assert row["status"] == "finished"
        assert row["curve"]["step"] == wanted[key]["curve"]["step"]
        assert row["curve"]["val_bpb"] == pytest.approx(wanted[key]["curve"]["val_bpb"], abs=1e-4)
    assert "measured before" in whole(tmp_path, "exp013")


@pytest.mark.slow
def test_what_has_ended_and_is_not_recorded_is_recorded_next_time(unbroken: Path, tmp_path: Path) -> None:
    """As after kill -9 between the end of a run and the record of it."""
    wanted = rows(unbroken)
    out = shutil.copytree(unbroken, tmp_path / "out")
    (record,) = out.glob("records/exp013*")
    shutil.rmtree(record)
    assert "measured before" in whole(out, "exp013")
    assert rows(out) == wanted


@pytest.mark.slow
def test_a_name_that_no_row_has_is_refused(unbroken: Path) -> None:
    process = rehearsal(unbroken, "exp031")
    printed, _ = process.communicate()
    assert process.returncode != 0
    assert "only exp031: no row of the plan has such a name" in printed
