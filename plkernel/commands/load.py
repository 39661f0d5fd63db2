"""python -m plkernel.load: an Eagle, Finch or Goose made by other people's software, as a model that plkernel reads."""

from pathlib import Path

import tyro

from plkernel.common import cli
from plkernel.common.files import check_folder


def load(source: tyro.conf.Positional[Path], out: tyro.conf.Positional[Path]) -> None:
    """Read an RWKV-5.2, RWKV-6 or RWKV-7 checkpoint of other software and write it as a model folder of plkernel.

    A file is read as an official .pth checkpoint, x052 (Eagle), x060 (Finch) or x070 (Goose); a folder as
    flash-linear-attention's RWKV6ForCausalLM or RWKV7ForCausalLM (config.json, model.safetensors). Width, depth, heads,
    ranks and feed-forward width follow from the shapes of the tensors; numbers are kept in float32. The vocabulary must
    be the 256 bytes.

    The folder holds config.json and checkpoint.safetensors, as that of a run does, and every command that takes a
    checkpoint takes it. Nothing in the source is executed: a pickle that holds anything but tensors is refused.
    A checkpoint cannot say whether it was trained with K-clamp; it is taken to be without.

    Args:
        source: A .pth file, or a folder with config.json and model.safetensors.
        out: Folder to write; it must not hold a model yet.
    """
    from plkernel.interop.formats import read, summary
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
