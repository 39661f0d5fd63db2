"""Run the tutorials in a folder of their own, and write what they print: `make tutorials`.

A ```toml block whose first line is "# NAME.toml" is that file. The lines of a ```console block with $ are run, a
```python block is run whole, and a ```text block behind it holds what was printed. Figures are copied beside the page.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
BLOCK = re.compile(r"^```(console|python|toml)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)/]+)\)")


def run(code: list[str], folder: Path) -> str:
    """Return what a command prints, without the paths of this machine; exit with its error."""
    settings = {"PYTHONPATH": str(FOLDER.parents[1]), "PLKERNEL_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    settings["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(code, cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(code)}\n{done.stdout}{done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.replace(f"{folder}/", "").splitlines())


def executed(text: str, folder: Path) -> str:
    """Return a page with what its blocks print now."""

    def now(block: re.Match[str]) -> str:
        kind, code, _ = block.groups()
        if kind == "toml":
            (folder / code.splitlines()[0].removeprefix("# ")).write_text(code)
            return block[0]
        if kind == "python":
            printed = run([sys.executable, "-c", code], folder)
            return f"```python\n{code}```\n" + (f"\n```text\n{printed}\n```\n" if printed else "")
        commands = [line for line in code.splitlines() if line.startswith("$ ")]
        return "".join(
            ["```console\n", *(f"{line}\n{run(['sh', '-c', line[2:]], folder)}\n" for line in commands), "```\n"]
        )

    return BLOCK.sub(now, text)


if __name__ == "__main__":
    for page in sorted(FOLDER.glob("*.md")):
        with tempfile.TemporaryDirectory() as scratch:
            text = executed(page.read_text(), Path(scratch))
            for name in PICTURE.findall(text):
                shutil.copy(Path(scratch) / name, FOLDER / name)
        page.write_text(text)
