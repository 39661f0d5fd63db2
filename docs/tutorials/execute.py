"""Runs the tutorials: every command and every line of Python, in a folder of their own, and writes what they print.

    python docs/tutorials/execute.py [NAME ...]    rewrite outputs and figures of the tutorials (`make tutorials`)

A ```toml block whose first line is "# NAME.toml" is that file. Of a ```console block the lines with $ are run, of a
```python block all; what a ```text block behind it holds is what was printed. Figures that a page shows are copied
beside it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
BLOCK = re.compile(r"^```(console|python|toml)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)/]+)\)")
WIDTH = 150


def run(code: list[str], folder: Path) -> str:
    """What a command prints, without the paths of this machine; its error ends everything."""
    settings = {"PYTHONPATH": str(ROOT), "PLKERNEL_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        code, cwd=folder, env={**os.environ, **settings, "PATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(code)}\n{done.stdout}{done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.replace(f"{folder}/", "").splitlines())


def executed(text: str, folder: Path) -> Iterator[str]:
    """A page with what its blocks print now."""
    place = 0
    for block in BLOCK.finditer(text):
        yield text[place : block.start()]
        place = block.end()
        kind, code, _ = block.groups()
        print(code.splitlines()[0], flush=True)
        if kind == "toml":
            (folder / code.splitlines()[0].removeprefix("# ")).write_text(code)
            yield block[0]
        elif kind == "python":
            printed = run([sys.executable, "-c", code], folder)
            yield f"```python\n{code}```\n" + (f"\n```text\n{printed}\n```\n" if printed else "")
        else:
            commands = [line for line in code.splitlines() if line.startswith("$ ")]
            shown = (f"{line}\n{run(['sh', '-c', line[2:]], folder)}\n" for line in commands)
            yield f"```console\n{''.join(shown)}```\n"
    yield text[place:]


def main() -> None:
    """Rewrite the named tutorials, or all."""
    for page in sorted(FOLDER.glob("*.md")):
        if sys.argv[1:] and page.stem not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            text = "".join(executed(page.read_text(), folder))
            for name in PICTURE.findall(text):
                shutil.copy(folder / name, FOLDER / name)
        page.write_text(text)


if __name__ == "__main__":
    main()
