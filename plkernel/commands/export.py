"""python -m plkernel.export: a trained Eagle, Finch or Goose in the formats of other people's software."""

from pathlib import Path
from typing import Literal

import tyro

from plkernel.common import cli
from plkernel.common.files import check_file, check_folder

Format = Literal["official", "fla"]
NumberType = Literal["float32", "bfloat16", "float16"]


def export(
    model: tyro.conf.Positional[Path],
    out: tyro.conf.Positional[Path],
    format: Format = "official",
    dtype: NumberType = "float32",
) -> None:
    """Write a trained RWKV as a checkpoint that other software reads, and that computes the same logits there.

    official: one .pth file of the layout x052 (Eagle), x060 (Finch) or x070 (Goose), as the official code and its
    inference package `rwkv` read it. There: RWKV(model="OUT.pth", strategy="cpu fp32").forward([65, 66], None); of a
    Goose with RWKV_V7_ON=1 in the environment, and without the ".pth".

    fla: a folder with model.safetensors and config.json, as flash-linear-attention reads it into RWKV6ForCausalLM or
    RWKV7ForCausalLM. There: AutoModelForCausalLM.from_pretrained("OUT") after `import fla`. It has no class for Eagle.

    Tokens are bytes, 0 to 255, and no tokenizer is written. A tied head is written as a copy of the embedding. Refused,
    because other software would compute another function: models with K-clamp, and with RMS norms. plkernel.load is
    the way back.

    Args:
        model: Folder of a run (STUDY/ARM/seed-0) or of plkernel.load, or the checkpoint.safetensors in it.
        out: official: the file, .pth is added where it is missing. fla: the folder. An earlier export is replaced.
        format: Which layout to write.
        dtype: Type of the numbers. bfloat16 is what official checkpoints are distributed in; logits then differ in
            the third digit.
    """
    from plkernel.interop.fla import to_fla, write_fla
    from plkernel.interop.fla_goose import to_fla_goose
    from plkernel.interop.formats import cast, summary
    from plkernel.interop.official import to_official, write_official
    from plkernel.models.rwkv import RWKV
    from plkernel.models.rwkv7 import RWKV7
    from plkernel.training.checkpoint import open_model

    path = out
    if format == "official" and out.suffix != ".pth":
        path = out.with_name(f"{out.name}.pth")
    (check_file if format == "official" else check_folder)(path, "out")
    opened = open_model(model)
    if not isinstance(opened, RWKV):
        raise ValueError(
            f"{model} is a model of kind 'ssm', which no other software reads: rwkv5, rwkv6 and rwkv7 are exported"
        )
    if format == "official":
        write_official(path, cast(to_official(opened), dtype))
    else:
        config, tensors = to_fla_goose(opened) if isinstance(opened, RWKV7) else to_fla(opened)
        write_fla(path, {**config, "dtype": dtype}, cast(tensors, dtype))
    print(summary(opened, dtype))
    print(f"written: {path}")


if __name__ == "__main__":
    cli.main(export)
