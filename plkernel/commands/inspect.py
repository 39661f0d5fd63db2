"""python -m plkernel.inspect: what a model remembers, ours or anybody's, and what training did to it."""

import sys
from pathlib import Path

import tyro

from plkernel.common import cli
from plkernel.common.files import check_file, save_json


def inspect(
    model: tyro.conf.Positional[Path],
    corpus: str | None = None,
    windows: int = 16,
    truncation: int = 256,
    json: Path | None = None,
    figure: Path | None = None,
    heads: bool = False,
    compare: Path | None = None,
    strict: bool = False,
    text: str | None = None,
    tokens: int = 2048,
) -> None:
    """Print half-lives, kernels, saturation and amplification of a model, at its initialisation and now.

    Of other people's checkpoints (Mamba, gated delta nets, RWKV, RetNet, xLSTM and more) only the decays are read, by
    name: half-lives in tokens and kernels of every layer, and what is wrong with them, such as decays that are zero,
    infinite, as they were initialised, shorter than a token, or lost in bfloat16. If the input moves decays, those
    without an input are shown. With --text a run of RWKV-6 or RWKV-7, or a folder that transformers opens (Mamba,
    Mamba-2, gated delta nets, Kimi Linear, RecurrentGemma and hybrids), also reads a text on the CPU, and quantiles of
    the half-lives on that text, over tokens and channels, stand beside the static ones.

    Of a run or a model of plkernel.load half-lives are in bytes: shortest, median and longest channel of every block. A
    kernel is what an input still weighs t bytes later in the recurrent branch of a block, the root mean square over its
    entries; x of t**-x is fitted by least squares on log-log axes. Saturation is that of the predictions on validation
    windows: a saturated position gives one byte a probability above 0.99, and guessing uniformly has the entropy ln 256
    = 5.545 nats. Amplification (RWKV) is the root mean square of the residual stream after a block over that before it.
    Truncation is the worth of far context: bits per byte at the same bytes when only the last 1, 2, 4 .. before them
    are given. The initialisation is rebuilt from the specification and seed of the run; a model of plkernel.load has
    none. Of a run whose model other people's code builds, which is not imported here, the recorded figures are shown.

    Args:
        model: Folder of a run (STUDY/ARM/seed-0) or of plkernel.load, or the checkpoint.safetensors in it. Or a folder
            as on the Hugging Face hub, a .safetensors or .pth file, or hf:OWNER/NAME.
        corpus: Validation text, as plkernel.corpus names it; if left out that of the run.
        windows: How many windows of the run's context to evaluate.
        truncation: At how many bytes to predict with less and less context; 0 leaves it out.
        json: Write the figures to this file too, kernels at every power of two up to the context.
        figure: Draw kernels and half-lives to this file: .pdf, .png or .svg.
        heads: Of other people's checkpoints, also print every head.
        compare: Another such checkpoint of the same model, which came before this one.
        strict: Exit with 1 if anything is wrong with such a checkpoint.
        text: A file, or what else plkernel.corpus names: also run the model on it. Nothing is downloaded for that, and
            no code in the folder runs.
        tokens: How much of the text to run it on, in windows of the run's context, or of up to 512 tokens.
    """
    from plkernel.memory import inspection
    from plkernel.memory.figures import check_options

    check_options(figure, [("windows", windows, 1), ("truncation", truncation, 0), ("tokens", tokens, 2)])
    check_file(json, "json")
    check_file(figure, "figure")
    if inspection.is_other_software(model):
        if (corpus, windows, truncation) != (None, 16, 256):
            raise ValueError(f"corpus, windows and truncation are for runs of plkernel, which {model} is not")
        report = inspection.of_checkpoint(model, heads, compare, text, tokens)
    elif heads or strict or compare is not None:
        raise ValueError(f"heads, compare and strict are for checkpoints of other software, which {model} is not")
    else:
        from plkernel.memory.runs import of_run

        report = of_run(model, corpus, windows, truncation, text, tokens, figure)
    print(report.text)
    if json is not None:
        save_json(json, report.values)
        print(f"\nwritten: {json}")
    if figure is not None:
        report.write(figure)
        print(f"\nwritten: {figure}")
    if strict and report.wrong:
        sys.exit(1)


if __name__ == "__main__":
    cli.main(inspect)
