"""A run of plkernel as plkernel.inspect shows it: its model at its initialisation and now, or what it has recorded."""

from pathlib import Path
from typing import Any

import torch

from plkernel.common.files import load_json
from plkernel.common.layout import CHECKPOINT, CONFIG
from plkernel.data.windows import fixed_windows, spread_windows
from plkernel.memory.figures import Report, mark_observed, model_figure
from plkernel.memory.observed import observe_text
from plkernel.memory.observed import render as render_observed
from plkernel.models.init.block_gains import scale_
from plkernel.training.checkpoint import load_checkpoint, missing_code, open_model
from plkernel.training.evaluate import patch_of, predictor
from plkernel.training.evaluate import truncation as curve_of
from plkernel.training.objective import label
from plkernel.training.view import (
    BATCH,
    at_initialisation,
    calibrated_gains,
    recorded,
    render,
    truncated,
    validation_text,
    view,
)


def of_run(
    model: Path,
    corpus: str | None,
    windows: int,
    truncation: int,
    text: str | None,
    tokens: int,
    figure: Path | None,
) -> Report:
    """Half-lives, kernels, predictions and the worth of context of a trained model; options as of the command."""
    folder, checkpoint = (model, model / CHECKPOINT) if model.is_dir() else (model.parent, model)
    if code := missing_code(load_json(folder / CONFIG) if (folder / CONFIG).is_file() else None):
        if (corpus, windows, text) != (None, 16, None):
            raise ValueError(
                f"corpus, windows and text need the model, and that needs the code of {code}: leave them out"
            )
        return _of_rows(folder, code, figure)
    trained = open_model(model)
    config = load_json(folder / CONFIG)
    name, validation, context = validation_text(config, corpus)
    data = fixed_windows(validation, context, windows)
    now, start = view(trained, data), None
    untrained = at_initialisation(config)
    if untrained is not None:
        scale_(untrained, calibrated_gains(folder))
        start = view(untrained, data)
    observed = None if text is None else observe_text(model, text, tokens)
    step, causal = load_checkpoint(checkpoint, trained).step, trained.config.causal
    parts = [f"{model}: step {step:,}; {len(data)} validation windows of {data.shape[1] - 1} bytes of {name}"]
    parts.append(render(start, now, label(causal)))
    if code := (config.get("arm_options") or {}).get("init"):
        parts.append(f"left out: its initialisation, which the code {code!r} had a part in; it is not imported here")
    values: dict[str, Any] = {"model": str(model), "step": step, "corpus": name, "windows": len(data)}
    values |= {"context": data.shape[1] - 1, "causal": causal}
    values |= {"initialisation": start.to_dict() if start else None, "now": now.to_dict()}
    if truncation and causal:
        predict = predictor(trained, torch.device("cpu"))
        curve = curve_of(predict, spread_windows(validation, context, truncation), BATCH, step=patch_of(trained))
        parts.append(truncated(curve))
        values["truncation"] = curve.to_dict()
    if observed is not None:
        parts.append(render_observed(observed))
        values["observed"] = observed.to_dict(heads=False)

    def draw() -> Any:
        drawn = model_figure(start.memory if start else None, now.memory, f"{model}, step {step:,}")
        if observed is not None and observed.layers:
            mark_observed(drawn, observed.drawn)
        return drawn

    return Report("\n\n".join(parts), values, draw)


def _of_rows(folder: Path, code: str, figure: Path | None) -> Report:
    """The recorded figures of a model that other people's code builds: only the rows of the run are read."""
    step, start, now = recorded(folder)
    if figure is not None and not now.memory.blocks:
        raise ValueError(f"figure {figure}: the run recorded no half-lives and kernels, which it would show")
    silent = "" if now.memory.blocks else "half-lives and kernels, which the model does not say, and "
    parts = [
        f"{folder}: step {step:,}; as the run recorded it on its validation windows",
        render(start, now),
        f"left out: {silent}truncation, which needs the model; the code of {code} is not imported here",
    ]
    values = {"model": str(folder), "step": step, "code": code}
    values |= {"initialisation": start.to_dict(), "now": now.to_dict()}
    return Report(
        "\n\n".join(parts), values, lambda: model_figure(start.memory, now.memory, f"{folder}, step {step:,}")
    )
