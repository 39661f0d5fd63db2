"""Whole commands on what has once ended one of them without a word, with a traceback, or never."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SPEC = 'name = "a"\nbaseline = "a"\n[train]\nsteps = 1\n[arms.a]\n'
FACTORS = "factors = { f0 = [0, 1], f1 = [0, 1] }\n"
COMMANDS: dict[str, tuple[str, str, list[str]]] = {
    "null rows": ("text.jsonl", "null\n", ["corpus", "text.jsonl"]),
    "deep rows": ("text.jsonl", '{"text": ' + "[" * 50_000 + "]" * 50_000 + "}\n", ["corpus", "text.jsonl"]),
    "spec null": ("spec.json", "null", ["experiment", "spec.json", "--dry-run"]),
    "spec list": ("spec.json", "[]", ["train", "spec.json"]),
    "deep spec": ("spec.toml", f"{SPEC}x = {'[' * 5000}{']' * 5000}", ["experiment", "spec.toml"]),
    "factors": ("spec.toml", f"factors = [1]\n{SPEC}", ["experiment", "spec.toml"]),
    "within": ("spec.toml", f"within = [5]\n{FACTORS}{SPEC}", ["experiment", "spec.toml"]),
    "dim": ("spec.toml", f"{SPEC}[model]\ndim = 1000000000\n", ["experiment", "spec.toml", "--dry-run"]),
    "batch flag": ("spec.toml", SPEC, ["experiment", "spec.toml", "--dry-run", "--train.batch", str(2**31)]),
    "threads": ("text.txt", "text " * 5000, ["measure", "text.txt", "--threads", "100000"]),
    "no user": ("text.txt", "text", ["corpus", "text.txt"]),
    "null record": ("spec.json", "null", ["report", "."]),
    "pipe as checkpoint": ("", "", ["load", "pipe", "out"]),
    "pipe as model": ("", "", ["inspect", "pipe"]),
    "pipe as target": ("", "", ["probe", "pipe"]),
    "null as target": ("config.json", "null", ["probe", "."]),
    "pipe as corpus": ("", "", ["corpus", "pipe"]),
    "pipe as spec": ("", "", ["experiment", "pipe"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends_with_one_line(name: str, tmp_path: Path) -> None:
    file, content, (command, *arguments) = COMMANDS[name]
    os.mkfifo(tmp_path / "pipe")
    if file:
        (tmp_path / file).write_text(content)
    cache = "~nouser/cache" if name == "no user" else str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "-m", f"plkernel.{command}", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PLKERNEL_CACHE": cache, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 1000
    assert not [path for path in tmp_path.rglob(".*")]
