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
    """Write a trained RWKV as a checkpoint of the official software, which computes the same.

    The inference package `rwkv` reads it: RWKV(model="OUT.pth", strategy="cpu fp32").forward([65,
    66], None). A Goose needs RWKV_V7_ON=1 in the environment, and its name without the ".pth".
    Tokens are bytes; no tokenizer is written. Models with K-clamp or RMS norms are refused, since
    other software would compute another function.

    Args:
        model: Folder of a run (STUDY/ARM/seed-0) or of plkernel.load, or the checkpoint.safetensors
            in it.
        out: The file to write; .pth is added if it is missing. An earlier export is replaced.
        dtype: Type of the numbers. In bfloat16 the logits differ in the third digit.
    """
    from plkernel.decays.official import described, to_official, write_official
    from plkernel.models.rwkv import RWKV
    from plkernel.training.checkpoint import open_model

    path = out if out.suffix == ".pth" else out.with_name(f"{out.name}.pth")
    check_file(path, "out")
    opened, *_ = open_model(model)
    if not isinstance(opened, RWKV):
        raise ValueError(f"model must be of kind rwkv5, rwkv6 or rwkv7, got {model} of kind 'ssm'")
    write_official(path, to_official(opened), dtype)
    print(described(opened, dtype))
    print(f"written: {path}")


if __name__ == "__main__":
    cli.main(export)
