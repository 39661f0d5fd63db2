"""The command plkernel: every command by its name, named as it was called, found and listed without being loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plkernel.__main__ import commands
from plkernel.common import cli

ROOT = Path(__file__).parent.parent
SCRIPT = "import sys\nfrom plkernel.__main__ import main\nsys.exit(main())\n"
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
HEAVY = ("torch", "scipy", "numpy", "numba", "pydantic", "tyro", "matplotlib")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """What an installer writes for the entry point."""
    path = tmp_path / "bin" / "plkernel"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


def call(*words: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name not in WAITING}
    variables = {**known, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **(environment or {})}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)


def test_every_command_is_listed_by_what_its_file_says() -> None:
    files = {path.stem for path in (ROOT / "plkernel").glob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in (ROOT / "plkernel").glob("*/__main__.py")}
    assert set(commands()) == files | packages
    assert all(commands().values())


def test_the_list_loads_nothing(script: Path) -> None:
    listed = call("-X", "importtime", script)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in listed.stderr.splitlines()}
    assert listed.returncode == 0
    assert "plkernel" in loaded
    assert not loaded & set(HEAVY)
    assert listed.stdout.splitlines()[0] == "usage: plkernel COMMAND [OPTIONS]"
    assert all(f"  {name} " in listed.stdout for name in commands())
    module = call("-m", "plkernel", "--help").stdout
    assert module == listed.stdout.replace("plkernel COMMAND", "python -m plkernel COMMAND")


@pytest.mark.parametrize(
    ("words", "program"),
    [(["SCRIPT", "specs"], "plkernel specs"), (["-m", "plkernel", "specs"], "python -m plkernel specs"),
     (["-m", "plkernel.specs"], "python -m plkernel.specs")],
)  # fmt: skip
def test_a_command_is_named_as_it_was_called(words: list[str], program: str, script: Path) -> None:
    words = [str(script) if word == "SCRIPT" else word for word in words]
    assert call(*words, "--help").stdout.splitlines()[0].startswith(f"usage: {program} [-h]")


def test_examples_in_help_and_errors_are_as_one_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/plkernel", "SPEC"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "/bin/plkernel", "probe", "SPEC"])
    assert cli.as_called("python -m plkernel.probe RUN; plkernel.probe") == "plkernel probe RUN; plkernel.probe"
    assert cli.program("plkernel.commands.report") == "plkernel report"
    monkeypatch.setattr(sys, "argv", ["/x/fit.py", "--corpus", "plkernel"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "plkernel.fit", "--corpus", "plkernel"])
    assert cli.program("plkernel.fit") == "python -m plkernel.fit"


def test_unknown_commands_are_one_line(script: Path) -> None:
    wrong = call(script, "experimant")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "error: no command 'experimant'; did you mean 'experiment'?\n"
    mistake = call(script, "fit", "--betta", "1")
    assert (mistake.returncode, mistake.stderr) == (2, "error: unknown option --betta; did you mean --beta?\n")


@pytest.mark.parametrize("name", ["SCRIPT", "other"])
def test_threads_of_commands_sleep_and_those_of_other_programs_do_as_they_are_told(name: str, script: Path) -> None:
    """The policy is read by torch, and so must be set before any of it is loaded."""
    path = script.with_name("other") if name == "other" else script
    path.write_text("import os, plkernel\nprint(os.environ.get('OMP_WAIT_POLICY'))\n")
    assert call(path).stdout.strip() == {"SCRIPT": "PASSIVE", "other": "None"}[name]
    assert call(path, environment={"OMP_WAIT_POLICY": "ACTIVE"}).stdout.strip() == "ACTIVE"


def test_help_of_every_command_loads_no_torch() -> None:
    calls = [[name] for name in commands()]
    calls += [["init", name] for name in ("list", "show", "check")]
    calls += [["bench", name] for name in ("scan", "wkv", "train", "mi")]
    program = f"""if True:
        import runpy, sys
        for name, *rest in {calls!r}:
            sys.argv = ["", *rest, "--help"]
            try:
                runpy.run_module(f"plkernel.{{name}}", run_name="__main__", alter_sys=True)
            except SystemExit as stop:
                assert not stop.code, name
            assert not {{"torch", "matplotlib", "datasets"}} & set(sys.modules), name
    """
    shown = call("-c", program)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("usage: ") == len(calls)
