"""The package and its commands: found, listed and named without loading them, and light where they
can be.
"""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel.__main__ import commands

ROOT = Path(__file__).parent.parent
SCRIPT = "import sys\nfrom plkernel.__main__ import main\nsys.exit(main())\n"
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OPENBLAS_THREAD_TIMEOUT")
HEAVY = ("torch", "scipy", "numpy", "numba", "pydantic", "tyro", "matplotlib")
LARGE = ("torch", "triton", "tensorboard", "datasets", "pandas", "pyarrow", "transformers")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The file that an installer writes for the entry point."""
    path = tmp_path / "bin" / "plkernel"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


def call(
    *words: str | Path, environment: dict[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name not in WAITING}
    variables = {**known, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **(environment or {})}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=variables, cwd=folder, check=False
    )


def test_the_list_names_every_command_and_loads_nothing(script: Path) -> None:
    assert set(commands()) == {
        path.stem for path in (ROOT / "plkernel" / "commands").glob("*.py")
    } - {"__init__"}
    listed = call("-X", "importtime", script)
    loaded = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in listed.stderr.splitlines()
    }
    assert listed.returncode == 0
    assert "plkernel" in loaded
    assert not loaded & set(HEAVY)
    assert listed.stdout.splitlines()[0] == "usage: plkernel COMMAND [OPTIONS]"
    words = " ".join(listed.stdout.split())
    assert all(f"{name} {description}" in words for name, description in commands().items())
    assert commands()["train"] == "one run of one arm, with TensorBoard, checkpoints and resume"
    assert max(map(len, listed.stdout.splitlines())) <= 80
    assert call("-m", "plkernel", "--help").stdout == listed.stdout
    assert call(script, "specs", "--help").stdout.startswith("usage: python -m plkernel.specs [-h]")


@pytest.mark.parametrize("words", [["-m", "plkernel.judge"], ["-m", "plkernel", "judge"]])
def test_ctrl_c_while_modules_are_loaded_is_one_line(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "tyro.py").write_text("raise KeyboardInterrupt")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    stopped = call(*words, environment={"PYTHONPATH": path})
    assert (stopped.returncode, stopped.stderr) == (130, "\ninterrupted\n")


def test_unknown_commands_are_one_line(script: Path) -> None:
    wrong = call(script, "experimant")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert (
        wrong.stderr == "error: command must be one of plkernel's, got 'experimant';"
        " did you mean 'experiment'?\n"
    )


def test_modules_of_the_working_folder_are_found_as_by_python_m(
    script: Path, tmp_path: Path
) -> None:
    """First, whatever else has their name; Python's own wish to find none there is heeded too."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "tyro.py").write_text("raise RuntimeError('found')")
    for words in ((script, "specs"), ("-m", "plkernel", "specs")):
        started = call(*words, folder=folder)
        assert "RuntimeError: found" in started.stderr
    safe = call(script, "specs", folder=folder, environment={"PYTHONSAFEPATH": "1"})
    assert (safe.returncode, safe.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
@pytest.mark.parametrize(
    ("words", "status"),
    [("specs", 0), ("specs --help", 0), ("init list", 0), ("fit --terms 0", 2), ("none", 2)],
)
def test_a_closed_stream_is_no_fault(script: Path, words: str, status: int, closed: str) -> None:
    number = {"stdout": 1, "stderr": 2}[closed]
    command = f"{sys.executable} {script} {words} {number}>&-"
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=variables, check=False
    )
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_threads_of_commands_sleep_and_those_of_other_programs_do_as_they_are_told(
    script: Path,
) -> None:
    """torch and numpy read the policy as they load, so it must be set before."""
    other = script.with_name("other")
    names = ("OMP_WAIT_POLICY", "OPENBLAS_THREAD_TIMEOUT")
    code = f"import os, plkernel\nprint(*map(os.environ.get, {names}))\n"
    for path in (script, other):
        path.write_text(code)
    told = [call(script), call("-c", f"import sys; sys.argv = ['-m']\n{code}"), call(other)]
    for own in ({"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "77"}, {names[1]: "20"}):
        told.append(call(script, environment=own))
    assert [one.stdout.strip() for one in told] == [
        "PASSIVE 4",
        "PASSIVE 4",
        "None None",
        "ACTIVE 4",
        "None 4",
        "PASSIVE 20",
    ]


def test_help_and_light_commands_need_no_large_package(
    without: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help shows without matplotlib; fit and measure run on numpy, scipy, matplotlib, tyro,
    pydantic and numba.
    """
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 500)
    helps = [[name, "--help"] for name in commands()] + [
        ["init", name, "--help"] for name in ("list", "show")
    ]
    calls = (
        "specs",
        "gallery --max-lag 64 --no-figure --out gallery",
        "fit --terms 4 --max-lag 64 --channels 16 --formats svg --out fit",
        "measure text.txt --max-lag 16 --lags 1 16 --formats svg --out measure",
    )

    def run(words: list[str]) -> None:
        sys.argv = words
        runpy.run_module("plkernel." + words[0], run_name="__main__", alter_sys=True)

    def act() -> None:
        hidden = {
            name: sys.modules.pop(name)
            for name in [*sys.modules]
            if name.partition(".")[0] == "matplotlib"
        }
        for words in helps:
            with pytest.raises(SystemExit) as stop:
                run(words)
            assert not stop.value.code, words
            assert "matplotlib" not in sys.modules, words
        sys.modules.update(hidden)
        for line in calls:
            run(line.split())

    monkeypatch.chdir(tmp_path)
    status, printed, errors = without(LARGE, act)
    assert status == 0, errors
    assert printed.count("usage: ") == len(helps)
    assert all(
        (tmp_path / name / f"{name}.json").is_file() for name in ("fit", "gallery", "measure")
    )
    assert {path.parent.name for path in tmp_path.glob("*/*.svg")} == {"fit", "measure"}
