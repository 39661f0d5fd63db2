"""python -m plkernel.inspect: what a model remembers, ours or anybody's, and what training did to it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from plkernel.common import cli
from plkernel.common.files import atomic_write, check_file, load_json, save_json
from plkernel.results.layout import CHECKPOINT, CONFIG

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from plkernel.checkpoints.observed import Observed
    from plkernel.training.view import View

KINDS = ("pdf", "png", "svg")
WEIGHTS = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin")
ENDINGS = (".safetensors", ".pth", ".pt", ".bin")


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
    infinite, as they were initialised, shorter than a token, or lost in bfloat16.

    Where the input moves decays, those are the ones without it. With --text a run of RWKV-6 or RWKV-7, or a folder that
    transformers opens (Mamba, Mamba-2, gated delta nets, Kimi Linear, RecurrentGemma and hybrids), also reads a text on
    the CPU, and quantiles of the half-lives that it really had, over tokens and channels, stand beside the static ones.

    Of a run or a model of plkernel.load half-lives are in bytes: shortest, median and longest channel of every block. A
    kernel is what an input still weighs t bytes later in the recurrent branch of a block, the root mean square over its
    entries; x of t**-x is fitted by least squares on log-log axes. Saturation is that of the predictions on validation
    windows: a saturated position gives one byte a probability above 0.99, and guessing uniformly has the entropy ln 256
    = 5.545 nats. Amplification (RWKV) is the root mean square of the residual stream after a block over that before it.
    Truncation says what far context is worth: bits per byte at the same bytes when only the last 1, 2, 4 .. before them
    are given. The initialisation is rebuilt from the specification and seed of the run; a model that plkernel.load
    brought in has none. Of a run whose model other people's code builds, which is not imported here, that is shown
    which the run has recorded.

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
    if figure is not None and figure.suffix[1:] not in KINDS:
        raise ValueError(f"figure must end in {', '.join(f'.{kind}' for kind in KINDS)}, got {str(figure)!r}")
    if windows < 1:
        raise ValueError(f"windows must be at least 1, got {windows}")
    if truncation < 0:
        raise ValueError(f"truncation must be at least 0, got {truncation}")
    if tokens < 2:
        raise ValueError(f"tokens must be at least 2, got {tokens}")
    check_file(json, "json")
    check_file(figure, "figure")
    if not str(model).startswith("hf:"):
        cli.existing(model, "model")
    if _foreign(model):
        if (corpus, windows, truncation) != (None, 16, 256):
            raise ValueError(f"corpus, windows and truncation are for runs of plkernel, which {model} is not")
        observed = _observed(model, text, tokens)
        return _inspect_foreign(model, json, figure, heads, compare, strict, observed)
    if heads or strict or compare is not None:
        raise ValueError(f"heads, compare and strict are for checkpoints of other software, which {model} is not")
    import torch

    from plkernel.data.windows import fixed_windows, spread_windows
    from plkernel.models.init.block_gains import scale_
    from plkernel.training.checkpoint import load_checkpoint, missing_code, open_model
    from plkernel.training.evaluate import patch_of, predictor
    from plkernel.training.evaluate import truncation as curve_of
    from plkernel.training.objective import label
    from plkernel.training.view import (
        BATCH,
        at_initialisation,
        calibrated_gains,
        render,
        truncated,
        validation_text,
        view,
    )

    folder, checkpoint = (model, model / CHECKPOINT) if model.is_dir() else (model.parent, model)
    if code := missing_code(load_json(folder / CONFIG) if (folder / CONFIG).is_file() else None):
        if (corpus, windows, text) != (None, 16, None):
            raise ValueError(
                f"corpus, windows and text need the model, and that needs the code of {code}: leave them out"
            )
        return _inspect_recorded(folder, code, json, figure)
    trained = open_model(model)
    config = load_json(folder / CONFIG)
    name, validation, context = validation_text(config, corpus)
    data = fixed_windows(validation, context, windows)
    now, start = view(trained, data), None
    untrained = at_initialisation(config)
    if untrained is not None:
        scale_(untrained, calibrated_gains(folder))
        start = view(untrained, data)
    observed = _observed(model, text, tokens)
    step = load_checkpoint(checkpoint, trained).step
    print(f"{model}: step {step:,}; {len(data)} validation windows of {data.shape[1] - 1} bytes of {name}\n")
    print(render(start, now, label(trained.config.causal)))
    if code := (config.get("arm_options") or {}).get("init"):
        print(f"\nleft out: its initialisation, which the code {code!r} had a part in; it is not imported here")
    curve = None
    if truncation and trained.config.causal:
        predict = predictor(trained, torch.device("cpu"))
        curve = curve_of(predict, spread_windows(validation, context, truncation), BATCH, step=patch_of(trained))
        print(f"\n{truncated(curve)}")
    _print(observed)
    if json is not None:
        place = {"corpus": name, "windows": len(data), "context": data.shape[1] - 1, "causal": trained.config.causal}
        views = {"initialisation": start.to_dict() if start else None, "now": now.to_dict()}
        known = {"truncation": curve.to_dict()} if curve else {}
        save_json(json, {"model": str(model), "step": step, **place, **views, **known, **_json(observed)})
        print(f"\nwritten: {json}")
    if figure is not None:
        _draw(figure, start, now, f"{model}, step {step:,}", observed)


def _foreign(model: Path) -> bool:
    """Whether a checkpoint is of other software, by the names of its files alone."""
    if model.is_dir():
        return not (model / CHECKPOINT).exists() and any((model / name).exists() for name in WEIGHTS)
    return str(model).startswith("hf:") or (model.suffix in ENDINGS and model.name != CHECKPOINT)


def _inspect_recorded(folder: Path, code: str, json: Path | None, figure: Path | None) -> None:
    """What a run has recorded of a model that other people's code builds: its rows alone are read."""
    from plkernel.training.view import recorded, render

    step, start, now = recorded(folder)
    if figure is not None and not now.memory.blocks:
        raise ValueError(f"figure {figure}: the run recorded no half-lives and kernels, which it would show")
    print(f"{folder}: step {step:,}; as the run recorded it on its validation windows\n")
    print(render(start, now))
    silent = "" if now.memory.blocks else "half-lives and kernels, which the model does not say, and "
    print(f"\nleft out: {silent}truncation, which needs the model; the code of {code} is not imported here")
    if json is not None:
        views = {"initialisation": start.to_dict(), "now": now.to_dict()}
        save_json(json, {"model": str(folder), "step": step, "code": code, **views})
        print(f"\nwritten: {json}")
    if figure is not None:
        _draw(figure, start, now, f"{folder}, step {step:,}")


def _inspect_foreign(
    model: Path,
    json: Path | None,
    figure: Path | None,
    heads: bool,
    compare: Path | None,
    strict: bool,
    observed: "Observed | None",
) -> None:
    from plkernel.checkpoints import show

    now, before = show.shown(str(model)), show.shown(str(compare)) if compare is not None else None
    if observed is not None and len(observed.layers) != len(now.layers):
        ran = f"{len(observed.layers)} of {len(now.layers)} layers with decays are known"
        raise ValueError(f"text: {ran} in {model} as transformers runs it")
    print(show.render(now, heads))
    _print(observed, heads)
    if before is not None:
        print(f"\n{show.compared(before, now)}")
    if json is not None:
        save_json(
            json,
            {**now.to_dict(heads), **({"compare": before.to_dict(heads)} if before else {}), **_json(observed, heads)},
        )
        print(f"\nwritten: {json}")
    if figure is not None:
        _write(figure, _marked(show.drawn(now, before), observed))
    if strict and now.findings:
        sys.exit(1)


def _observed(model: Path, text: str | None, tokens: int) -> "Observed | None":
    """What a text makes of the decays of a model; None where none is asked for."""
    if text is None:
        return None
    import torch

    from plkernel.checkpoints.observed import observe
    from plkernel.data.windows import fixed_windows
    from plkernel.probing.targets import open_target

    if str(model).startswith("hf:") or (model.is_file() and model.name != CHECKPOINT):
        raise ValueError(f"text needs a model that can run, as a folder with its tokenizer, which {model} is not")
    target = open_target(model, torch.device("cpu"))
    name, data = target.text(text)
    read = target.encode(data)
    length = min(target.context, tokens, read.size)
    if length < 2:
        raise ValueError(f"text {name!r} has {read.size} {target.unit}s, expected at least 2")
    windows = fixed_windows(read, length - 1, tokens // length)
    try:
        return observe(target.model, target.predict, windows, name, target.unit)
    except RuntimeError as error:  # of the model's own code
        raise ValueError(f"text: {model} does not run on this CPU: {' '.join(str(error).split())}") from error


def _print(observed: "Observed | None", heads: bool = False) -> None:
    if observed is not None:
        from plkernel.checkpoints.observed import render

        print(f"\n{render(observed, heads)}")


def _json(observed: "Observed | None", heads: bool = False) -> dict[str, Any]:
    return {} if observed is None else {"observed": observed.to_dict(heads)}


def _marked(figure: "Figure", observed: "Observed | None") -> "Figure":
    """`figure` with what was observed beside every box of half-lives."""
    if observed is not None and observed.layers:
        from plkernel.analysis.figures.memory import mark_observed

        mark_observed(figure, observed.drawn)
    return figure


def _draw(path: Path, start: "View | None", now: "View", title: str, observed: "Observed | None" = None) -> None:
    from plkernel.analysis.figures.memory import model_figure

    _write(path, _marked(model_figure(start.memory if start else None, now.memory, title), observed))


def _write(path: Path, drawn: "Figure") -> None:
    from plkernel.analysis.figures.style import rendered

    kind = path.suffix[1:]
    atomic_write(path, rendered(drawn, [kind])[kind])
    print(f"\nwritten: {path}")


if __name__ == "__main__":
    cli.main(inspect)
