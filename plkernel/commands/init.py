"""python -m plkernel.init list | show | check: initialisation schemes by name, their plans, and what they do.

list names every scheme with its source and its free constants; show prints what one does to every parameter of a model
of any size; check trains small models for a few steps at several widths, and sends a signal through deep ones.
"""

import os
from pathlib import Path
from typing import Annotated

import tyro

from plkernel.common.cli import main_of
from plkernel.models.words import ModelKind


def listing(
    pattern: Annotated[str, tyro.conf.Positional] = "*",
) -> None:
    """Name the initialisation schemes, by family: what each does, its free constants and its source.

    Args:
        pattern: Those alone whose name holds this, or fits it where it has * or ?: mup, megatron*. One that is a name
            tells all about that scheme.
    """
    from plkernel.init_command.listing import run

    run(pattern)


def show(
    scheme: Annotated[str, tyro.conf.Positional],
    model: ModelKind = "ssm",
    dim: int = 256,
    layers: int = 4,
    head_size: int | None = None,
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    against: str | None = None,
    json: Path | None = None,
) -> None:
    """Print what a scheme does to every parameter of one of our models: nothing is allocated, so any size will do.

    Of an RWKV-7, which also forgets by erasing, it says what that adds to its decays, measured on a small model.

    A model of another library is planned from Python, with plan and RoleTable of plkernel.models.init: plan(model,
    "megatron_default", RoleTable.from_toml("gpt2")).apply_(model, seed=0). Roles are a TOML of a few lines; those of
    GPT-2 and Mamba in transformers come with plkernel (python -m plkernel.specs gpt2). heads=(number, size) says what a
    scheme that scales by heads asks for, structure=Structure(...) that such a model has what a scheme asks beyond
    weights.

    Args:
        scheme: Name of the scheme, see plkernel.init list.
        model: ssm: the diagonal SSM. rwkv5, rwkv6, rwkv7: Eagle, Finch and Goose.
        dim: Width.
        layers: Number of blocks.
        head_size: RWKV: channels of a head, 32 if left out.
        option: Free constants of the scheme: --option std=0.01 --option base_width=64.
        against: Another scheme; prints what differs from it, at its own constants where it lacks one of these.
        json: File for the plan.
    """
    from plkernel.init_command.show import run

    run(scheme, model, dim, layers, head_size, option, against, json)


def check(
    scheme: Annotated[str, tyro.conf.Positional],
    model: ModelKind = "ssm",
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024),
    layers: int = 2,
    depths: tuple[int, ...] = (4, 16, 64),
    dim: int = 128,
    head_size: int | None = None,
    steps: int = 4,
    seeds: int = 3,
    learning_rate: float = 2**-10,
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    corpus: str = "stdlib",
    threads: int = os.cpu_count() or 1,
    out: Path = Path("runs/out/init"),
    figure: bool = True,
) -> None:
    """Check a scheme by training small models for a few steps, and by sending a signal through deep ones.

    Coordinate check: at every width a model takes a few steps of Adam (SGD, where the scheme's rates are for that) on
    one batch, at one base learning rate times the multipliers of the scheme. With x_0 an activation at the start and
    x_t after t steps, printed is the root mean square of the coordinates of x_t - x_0 (Tensor Programs V, appendix D.1,
    which takes their deviation) and the slope of its logarithm over that of the width: 0 where learning rates carry
    over from width to width, 0.5 to 2 under standard parametrisations. mixer i and ffn i are what the branches of block
    i give, block i the residual stream after it. Under muP the logits alone may fall: the random part of a random head
    does, as width**-0.5, until the rest is left. Where that is unwanted, start the head at zero: --option
    zero_readout=1.

    Depth, at the start: the root mean square of the residual stream after each block, and of its gradient for
    independent normal gradients after the last, with the growth per block (geometric mean).

    Args:
        scheme: Name of the scheme, see plkernel.init list.
        model: ssm: the diagonal SSM, half-lives log-spaced. rwkv5, rwkv6, rwkv7: Eagle, Finch and Goose.
        widths: Widths of the coordinate check.
        layers: Blocks there.
        depths: Blocks of the models that the signal goes through.
        dim: Width there.
        head_size: RWKV: channels of a head, 32 if left out, of which every width must be a multiple.
        steps: Steps, of Adam with betas 0.9 and 0.999, no weight decay.
        seeds: Seeds of the weights; the batch is always the same.
        learning_rate: Base learning rate.
        option: Free constants of the scheme: --option std=0.01 --option base_width=64.
        corpus: Where the bytes come from, see plkernel.corpus.
        threads: Threads of torch.
        out: Folder for SCHEME-MODEL.json and the figure.
        figure: Draw the figure.
    """
    from plkernel.init_command.check import run

    run(
        scheme,
        model,
        widths,
        layers,
        depths,
        dim,
        head_size,
        steps,
        seeds,
        learning_rate,
        option,
        corpus,
        threads,
        out,
        figure,
    )


if __name__ == "__main__":
    main_of({"list": listing, "show": show, "check": check}, str(__doc__))
