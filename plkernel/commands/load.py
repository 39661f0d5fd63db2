"""python -m plkernel.load: an official checkpoint of Eagle, Finch or Goose as a model folder."""

from pathlib import Path

import tyro

from plkernel.common import cli
from plkernel.common.files import check_folder, check_regular


def load(source: tyro.conf.Positional[Path], out: tyro.conf.Positional[Path]) -> None:
    """Convert an official checkpoint of RWKV-5.2, RWKV-6 or RWKV-7 to a model folder of plkernel.

    Sizes follow from the shapes of the tensors, and numbers are kept in float32. The vocabulary
    must be the 256 bytes. Nothing in the source is executed. A checkpoint does not say whether it
    was trained with K-clamp; the model is written without it.

    Args:
        source: The official checkpoint, a .pth file.
        out: Folder for the model; it must not hold one yet.
    """
    from plkernel.decays.official import described, read
    from plkernel.training.checkpoint import check_free, save_model

    check_regular(cli.existing(source, "source"), "source ")
    check_free(out, "out")
    check_folder(out, "out")
    model = read(source)
    save_model(out, model, str(source))
    print(described(model, "float32"))
    print(f"written: {out}")


if __name__ == "__main__":
    cli.main(load)
