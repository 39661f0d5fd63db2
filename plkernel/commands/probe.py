"""python -m plkernel.probe: what any causal model makes of its context.

It is read off its predictions alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from plkernel.common import cli
from plkernel.common.files import files_of, refuse_study
from plkernel.context.measures import BATCH
from plkernel.models import Device

if TYPE_CHECKING:
    from plkernel.context.measures import Influence
    from plkernel.probing.text_models import TextModel


def probe(
    target: tyro.conf.Positional[Path],
    text: str | None = None,
    windows: int = 64,
    context: int | None = None,
    lengths: int = 1,
    lags: tuple[int, ...] = (),
    batch: int = BATCH,
    seed: int = 0,
    device: Device = "cpu",
    trust_code: bool = False,
    json: Path | None = None,
    figure: Path | None = None,
) -> None:
    """Print how far back a causal model reads.

    Influence of a token against lag, and bits by what is given. Influence at lag d is the KL
    divergence in bits of the next token's prediction from what it is when the token d steps back is
    replaced by another, drawn by its frequency. Beside it stand the bits per token by position in
    the window, the bits when only the last 1, 2, 4 .. tokens are given, and, for bytes, the mutual
    information I(d) of the text: influence is only what the other tokens do not tell already. A
    model that sees ahead is refused. Memory beyond the model: about four arrays of --batch x
    context x alphabet floats.

    Args:
        target: Folder of a run (STUDY/ARM/seed-0) or of plkernel.load, the checkpoint.safetensors
            in it, or the folder of a transformers causal language model with its tokenizer. Nothing
            is downloaded and no code in it runs.
        text: A file, or what else plkernel.corpus names, all of it; the validation text of a run if
            left out. A tokenizer reads the first 4 MiB, as UTF-8, without special tokens.
        windows: How many disjoint windows, evenly spaced over the text.
        context: Tokens in a window; those of the run, or 512, if left out.
        lengths: How many contexts a window has. With 16, bits beyond the context of training, and
            what it costs, or is worth, to give all before instead of the last `context` alone.
        lags: Lags of the influence, ascending; 1, 2, 4 .. and the context if left out. More take no
            longer.
        batch: Windows that the model is given at once.
        seed: Of the tokens that are replaced, and of what replaces them.
        device: Where the model runs.
        trust_code: Import and run the code that a run names.
        json: Write the figures to this file too.
        figure: Draw the three curves to this file: .pdf, .png or .svg.
    """
    from dataclasses import replace

    from plkernel.common.delivery import check_outputs, deliver
    from plkernel.context.curve_figures import probe_figure
    from plkernel.data.names import check_outside
    from plkernel.data.windows import fixed_windows, predicted_bytes
    from plkernel.models.sampling import check_seed

    check_outputs(
        json,
        figure,
        [*files_of(target), text],
        windows=(windows, 1),
        batch=(batch, 1),
        context=(context, 1),
        lengths=(lengths, 1),
    )
    check_outside({"json": json, "figure": figure}, [text])
    check_seed(seed)
    from plkernel.probing import predictions as probing
    from plkernel.probing.text_models import open_text_model
    from plkernel.training.build import choose_device
    from plkernel.training.evaluate import beyond, lags_within

    refuse_study(cli.existing(target, "target"), "target")
    opened = open_text_model(target, choose_device(device), trust_code)
    name, data = opened.text(text)
    trained = context or opened.context
    length = trained * lengths
    _check_context(opened, length)
    known = lags_within(lags, length)
    read, ends = opened.encode(data)
    _check_text(opened, name, read.size, length)
    cut = fixed_windows(read, length, windows)
    result = probing.probe(
        opened.predict,
        cut,
        known,
        batch=batch,
        seed=seed,
        step=opened.step,
        unit=opened.unit,
        window_bytes=None if ends is None else predicted_bytes(ends, length, windows),
    )
    if lengths > 1:
        cost, apart = beyond(opened.predict, cut, trained, batch, opened.step)
        result = replace(result, trained=trained, cost=cost, divergence=apart)
    if opened.unit == "byte":
        result = replace(result, information=_information(data, known))
    title = f"{target} on {name}"
    values = {"target": str(target), "text": name, "seed": seed, **result.to_dict()}
    deliver(
        f"{title}, {probing.render(result)}",
        values,
        lambda: probe_figure(result, title),
        json,
        figure,
    )


def _check_context(opened: "TextModel", length: int) -> None:
    """Raise ValueError for windows that are longer than the model takes."""
    if length > opened.most:
        raise ValueError(
            f"context must be at most {opened.most:,}, which is all that the model takes, got"
            f" {length:,}"
        )


def _check_text(opened: "TextModel", name: str, size: int, length: int) -> None:
    """Raise ValueError for a text that is shorter than one window."""
    if size < length + 1:
        raise ValueError(
            f"text must be one window of context + 1 = {length + 1:,} {opened.unit}s or more, got"
            f" {size:,} in {name!r}; give a longer one or a smaller --context"
        )


def _information(data: Any, lags: Sequence[int]) -> "Influence | None":
    """I(d) of a text in bits at the lags of the influence; None where it is too short for it."""
    import numpy as np

    from plkernel.analysis.information.estimate import decay_curves
    from plkernel.context.measures import INFORMED, Influence

    if data.size < lags[-1] + INFORMED:
        return None
    curve = decay_curves(data, lags, blocks=INFORMED)[0]
    bits = np.asarray(curve.values) / np.log(2)
    errors = curve.standard_errors() / np.log(2)
    return Influence(tuple(lags), tuple(bits.tolist()), tuple(errors.tolist()))


if __name__ == "__main__":
    cli.main(probe)
