"""python -m plkernel.probe: what any causal model makes of its context, from its predictions alone."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from plkernel.common import cli
from plkernel.common.files import atomic_write, check_file, save_json
from plkernel.config.study import LARGEST_SEED
from plkernel.models.words import Device

if TYPE_CHECKING:
    from plkernel.analysis.information.curve import DecayCurve

KINDS = ("pdf", "png", "svg")


def probe(
    target: tyro.conf.Positional[Path],
    text: str | None = None,
    windows: int = 64,
    context: int | None = None,
    lags: tuple[int, ...] = (),
    batch: int = 4,
    seed: int = 0,
    device: Device = "cpu",
    trust_code: bool = False,
    json: Path | None = None,
    figure: Path | None = None,
) -> None:
    """Print how far back a causal model reads: influence of a token against lag, and bits by what is given.

    Influence at lag d is how far the prediction of the next token moves, as KL divergence in bits, when the token d
    steps back is replaced by another, drawn by its frequency in the windows. Beside it stand the bits per token by
    position in the window, the bits when only the last 1, 2, 4 .. tokens are given, and, where tokens are bytes, the
    mutual information I(d) of the text itself, which counts pairs alone: influence is only what the other tokens do not
    tell already. That the model sees nothing ahead is checked first.

        python -m plkernel.probe runs/out/quick/power-law/seed-0 --figure probe.pdf

    Memory beyond the model: about four arrays of --batch x context x alphabet floats. At 4 x 1024 they are of 4 MB
    each for a byte model, of 820 MB for 50,000 tokens.

    Args:
        target: Folder of a run (STUDY/ARM/seed-0) or of plkernel.load, the checkpoint.safetensors in it, or the folder
            of a transformers causal language model with its tokenizer. Nothing is downloaded and no code in it runs.
        text: A file, or what else plkernel.corpus names, all of it; the validation text of a run if left out. A
            tokenizer reads the first 4 MiB, as UTF-8, without special tokens.
        windows: How many disjoint windows, evenly spaced over the text.
        context: Tokens in a window; those of the run, or 512, if left out.
        lags: Lags of the influence, ascending; 1, 2, 4 .. and the context if left out. More take no longer.
        batch: Windows that the model is given at once.
        seed: Of the tokens that are replaced, and of what replaces them.
        device: Where the model runs.
        trust_code: Import and run the code that a run names.
        json: Write the figures to this file too.
        figure: Draw the three curves to this file: .pdf, .png or .svg.
    """
    if figure is not None and figure.suffix[1:] not in KINDS:
        raise ValueError(f"figure must end in {', '.join(f'.{kind}' for kind in KINDS)}, got {str(figure)!r}")
    for option, value in (("windows", windows), ("batch", batch), ("context", context)):
        if value is not None and value < 1:
            raise ValueError(f"{option} must be at least 1, got {value}")
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed must lie between 0 and {LARGEST_SEED}, got {seed}")
    check_file(json, "json")
    check_file(figure, "figure")
    from plkernel.data.windows import fixed_windows
    from plkernel.probing.measures import check_lags
    from plkernel.probing.measures import probe as probe_of
    from plkernel.probing.table import render
    from plkernel.probing.targets import open_target
    from plkernel.training.task import choose_device

    model = open_target(target, choose_device(device), trust_code)
    name, data = model.text(text)
    length = context or model.context
    if model.most is not None and length > model.most:
        raise ValueError(f"context must be at most {model.most:,}, which is all that the model takes, got {length:,}")
    known = check_lags(lags, length)
    tokens = model.encode(data)
    if tokens.size < length + 1:
        raise ValueError(
            f"text {name!r} has {tokens.size:,} {model.unit}s, fewer than one window of context + 1 = {length + 1:,}: "
            "give a longer text or a smaller --context"
        )
    read = fixed_windows(tokens, length, windows)
    options: dict[str, Any] = {"batch": batch, "seed": seed, "step": model.step, "unit": model.unit}
    with cli.progress_bar(str(target)) as progress:
        found = probe_of(
            model.predict,
            read,
            known,
            bytes_per_token=min(data.size, model.reads) / tokens.size,
            progress=progress,
            **options,
        )
    if model.unit == "byte":
        found = replace(found, information=_information(data, known))
    print(f"{target} on {name}, {render(found)}")
    if json is not None:
        save_json(json, {"target": str(target), "text": name, "seed": seed, **found.to_dict()})
        print(f"\nwritten: {json}")
    if figure is not None:
        from plkernel.analysis.figures.context import probe_figure
        from plkernel.analysis.figures.style import rendered

        kind = figure.suffix[1:]
        atomic_write(figure, rendered(probe_figure(found, f"{target} on {name}"), [kind])[kind])
        print(f"\nwritten: {figure}")


def _information(data: Any, lags: list[int]) -> "DecayCurve | None":
    """I(d) of the text at `lags`; None of one that is too short for the longest."""
    from plkernel.analysis.information.curve import BLOCKS, decay_curves

    return decay_curves(data, lags)[0] if data.size >= lags[-1] + BLOCKS else None


if __name__ == "__main__":
    cli.main(probe)
