"""python -m plkernel.load: an official checkpoint of Eagle, Finch or Goose, as a model that
plkernel reads.
"""

from pathlib import Path

import tyro

from plkernel.common import cli
from plkernel.common.files import check_folder


def load(source: tyro.conf.Positional[Path], out: tyro.conf.Positional[Path]) -> None:
    """Read an official RWKV-5.2, RWKV-6 or RWKV-7 checkpoint and write it as a model folder of
    plkernel.

    Sizes follow from the shapes of the tensors; numbers are kept in float32. The vocabulary must be
    the 256 bytes. Nothing in the source is executed. A checkpoint cannot say whether it was trained
    with K-clamp; it is taken to be without.

    Args:
        source: A .pth file.
        out: Folder to write; it must not hold a model yet.
    """
    from plkernel.decays.official import read, summary
    from plkernel.training.checkpoint import check_free, save_model

    cli.existing(source, "source")
    check_free(out)
    check_folder(out, "out")
    model = read(source)
    save_model(out, model, str(source))
    print(summary(model, "float32"))
    print(f"written: {out}")


if __name__ == "__main__":
    cli.main(load)
