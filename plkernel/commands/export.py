"""python -m plkernel.export: a trained Eagle, Finch or Goose in the official format of RWKV."""

from pathlib import Path
from typing import Literal

import tyro

from plkernel.common import cli
from plkernel.common.files import check_file

NumberType = Literal["float32", "bfloat16", "float16"]


def export(
    model: tyro.conf.Positional[Path],
    out: tyro.conf.Positional[Path],
    dtype: NumberType = "float32",
) -> None:
    """Write a trained RWKV as an official checkpoint (a .pth file), for which the official software
    computes the same.

    With its inference package `rwkv`: RWKV(model="OUT.pth", strategy="cpu fp32").forward([65, 66],
    None); of a Goose with RWKV_V7_ON=1 in the environment, and without the ".pth". Tokens are
    bytes; no tokenizer is written. Refused are models with K-clamp and with RMS norms, of which
    other software would compute another function.

    Args:
        model: Folder of a run (STUDY/ARM/seed-0) or of plkernel.load, or the checkpoint.safetensors
            in it.
        out: The file, .pth is added if missing. An earlier export is replaced.
        dtype: Type of the numbers. In bfloat16 logits differ in the third digit.
    """
    from plkernel.decays.official import summary, to_official, write_official
    from plkernel.models.rwkv import RWKV
    from plkernel.training.checkpoint import open_model

    path = out if out.suffix == ".pth" else out.with_name(f"{out.name}.pth")
    check_file(path, "out")
    opened, *_ = open_model(model)
    if not isinstance(opened, RWKV):
        raise ValueError(f"{model} is a model of kind 'ssm': rwkv5, rwkv6 and rwkv7 are exported")
    write_official(path, to_official(opened), dtype)
    print(summary(opened, dtype))
    print(f"written: {path}")


if __name__ == "__main__":
    cli.main(export)
