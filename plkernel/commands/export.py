"""python -m plkernel.export: a trained Eagle, Finch or Goose in the official format of RWKV."""

from pathlib import Path
from typing import Literal

import tyro

from plkernel.common import cli
from plkernel.common.files import check_file

NumberType = Literal["float32", "bfloat16", "float16"]


def export(model: tyro.conf.Positional[Path], out: tyro.conf.Positional[Path], dtype: NumberType = "float32") -> None:
    """Write a trained RWKV as an official checkpoint, for which the official software computes the same logits.

    It is one .pth file of the layout x052 (Eagle), x060 (Finch) or x070 (Goose), as the official code and its inference
    package `rwkv` read it. There: RWKV(model="OUT.pth", strategy="cpu fp32").forward([65, 66], None); of a Goose with
    RWKV_V7_ON=1 in the environment, and without the ".pth".

    Tokens are bytes, 0 to 255, and no tokenizer is written. A tied head is written as a copy of the embedding. Refused,
    because other software would compute another function: models with K-clamp, and with RMS norms. plkernel.load is
    the way back.

    Args:
        model: Folder of a run (STUDY/ARM/seed-0) or of plkernel.load, or the checkpoint.safetensors in it.
        out: The file, .pth is added if missing. An earlier export is replaced.
        dtype: Type of the numbers. bfloat16 is what official checkpoints are distributed in; logits then differ in
            the third digit.
    """
    from plkernel.interop.official import cast, summary, to_official, write_official
    from plkernel.models.rwkv import RWKV
    from plkernel.training.checkpoint import open_model

    path = out if out.suffix == ".pth" else out.with_name(f"{out.name}.pth")
    check_file(path, "out")
    opened = open_model(model)
    if not isinstance(opened, RWKV):
        raise ValueError(
            f"{model} is a model of kind 'ssm', which no other software reads: rwkv5, rwkv6 and rwkv7 are exported"
        )
    write_official(path, cast(to_official(opened), dtype))
    print(summary(opened, dtype))
    print(f"written: {path}")


if __name__ == "__main__":
    cli.main(export)
