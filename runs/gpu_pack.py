"""What runs/gpu.py needs on a machine without network: packages that it lacks, and texts, in a folder below 64 MiB.

    python runs/gpu_pack.py [--python 3.12] [--corpora stdlib bible:pt] [--out FOLDER]

Such a machine has torch, triton, numba, scipy and tensorboard. The other packages that `gpu.py` loads are installed
into FOLDER/site-3.12, as wheels for Linux on x86-64 in the versions of this interpreter, and the texts are written to
FOLDER/stdlib.txt and FOLDER/bible-pt.txt. FOLDER, runs/out/gpu-pack, goes with the checkout, and gpu.py looks there.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from plkernel.common import cli
from plkernel.common.environment import installed
from plkernel.data import corpora
from plkernel.data.bible import PACKAGE

PACKAGES = (
    *("pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection"),
    *("tyro", "docstring-parser", "typeguard", "safetensors", "filelock", "tqdm", "jinja2", "markupsafe"),
    *("pytest", "iniconfig", "pluggy", "packaging", "pygments"),
)
"""With what they need themselves; `tests/runs/test_gpu.py` holds them to what is loaded."""
LARGEST = 64 << 20


def gpu_pack(
    python: str = "3.12",
    corpora: tuple[str, ...] = ("stdlib", *(["bible:pt"] if installed(PACKAGE) else [])),
    out: Path = Path("runs/out/gpu-pack"),
) -> None:
    """Fetch the packages and write the texts.

    Args:
        python: Version of the interpreter of that machine.
        corpora: Names of corpora; each becomes one file, NAME.txt.
        out: Folder, a new one.
    """
    if out.exists():
        raise ValueError(f"out {out} is there already: remove it, or give another")
    wanted = [f"{package}=={version(package)}" for package in PACKAGES]
    fetch(wanted, python, out / f"site-{python}")
    for name in corpora:
        write(name, out)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"written: {out}, {size / 1e6:.1f} MB, {len(wanted)} packages")
    if size > LARGEST:
        raise ValueError(
            f"corpora {' '.join(corpora)}: the folder must be below 64 MB, got {size / 1e6:.1f}: name fewer"
        )


def fetch(wanted: Sequence[str], python: str, site: Path) -> None:
    """Install wheels for another machine into a folder; subprocess.CalledProcessError where one is not to be had."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    other = ["--only-binary=:all:", "--python-version", python]
    for platform in ("manylinux2014_x86_64", "manylinux_2_28_x86_64"):
        other += ["--platform", platform]
    subprocess.run([*pip, "--no-compile", *other, "--target", str(site), *wanted], check=True)


def write(name: str, out: Path) -> None:
    """The bytes of a corpus as one file."""
    corpus = corpora.load(name)
    shutil.copyfile(corpus.path, out / f"{name.replace(':', '-')}.txt")
    print(f"{name}: {corpus.size / 1e6:.1f} MB, {corpus.source}")


if __name__ == "__main__":
    cli.main(gpu_pack, prog="python runs/gpu_pack.py")
