"""python -m plkernel.new: a model, an initialisation and a spec of your own, in two files."""

from pathlib import Path
from typing import Annotated

import tyro

from plkernel.common import cli
from plkernel.common.files import atomic_write, check_folder
from plkernel.config.reading import FOLDER


def new(folder: Annotated[Path, tyro.conf.Positional] = Path()) -> None:
    """Write mymodel.py, a recurrence of 40 lines with an initialisation, and study.toml, its study.

    Args:
        folder: Folder for the two files; the current one if left out. Existing files are never
            replaced.
    """
    check_folder(folder, "folder")
    templates = sorted(path for path in (FOLDER / "new").iterdir() if path.is_file())
    for file in templates:
        if (folder / file.name).exists():
            raise ValueError(f"folder must not hold {file.name}, got {folder}; name another folder")
    for file in templates:
        atomic_write(folder / file.name, file.read_bytes())
        print(f"written: {folder / file.name}")
    command = f"{cli.program('plkernel.experiment')} study.toml --trust-code"
    print("\nNow:" if folder == Path() else f"\nNow:\ncd {folder}")
    print(f"{command}     (three minutes on two cores)")


if __name__ == "__main__":
    cli.main(new)
