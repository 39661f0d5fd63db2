"""A run of plkernel as plkernel.inspect shows it: its model at its initialisation and now."""

from pathlib import Path
from typing import Any

import torch

from plkernel.common.files import load_json
from plkernel.common.layout import CHECKPOINT, CONFIG
from plkernel.data.windows import fixed_windows, spread_windows
from plkernel.memory.figures import Report, mark_observed, model_figure
from plkernel.memory.observed import observe_text
from plkernel.models.init.block_gains import scale_
from plkernel.training import view as views
from plkernel.training.checkpoint import load_checkpoint, open_model
from plkernel.training.evaluate import label, patch_of, predictor
from plkernel.training.evaluate import truncation as curve_of


def of_run(
    model: Path, corpus: str | None, windows: int, truncation: int, text: str | None, tokens: int, figure: Path | None
) -> Report:
    """Half-lives, kernels, predictions and the worth of context of a trained model; options as of the command."""
    folder, checkpoint = (model, model / CHECKPOINT) if model.is_dir() else (model.parent, model)
    trained, config = open_model(model), load_json(folder / CONFIG)
    name, validation, context = views.validation_text(config, corpus)
    data = fixed_windows(validation, context, windows)
    now, start = views.view(trained, data), None
    if (untrained := views.at_initialisation(config)) is not None:
        scale_(untrained, views.calibrated_gains(folder))
        start = views.view(untrained, data)
    observed = None if text is None else observe_text(model, text, tokens)
    step, causal = load_checkpoint(checkpoint, trained).step, trained.config.causal
    values: dict[str, Any] = {"model": str(model), "step": step, "corpus": name}
    values |= {"windows": len(data), "context": context, "causal": causal}
    parts = [
        f"{model}: step {step:,}; {len(data)} validation windows of {context} bytes of {name}",
        views.render(start, now, label(causal)),
    ]
    if part := (config.get("arm_options") or {}).get("init"):
        parts.append(f"left out: its initialisation, which the code {part!r} had a part in; it is not imported here")
    if truncation and causal:
        far = spread_windows(validation, context, truncation)
        curve = curve_of(predictor(trained, torch.device("cpu")), far, views.BATCH, step=patch_of(trained))
        parts.append(views.truncated(curve))
        values["truncation"] = curve.to_dict()
    values |= {"initialisation": start.to_dict() if start else None, "now": now.to_dict()}
    if observed is not None:
        parts.append(observed.render())
        values["observed"] = observed.to_dict()

    def draw() -> Any:
        title = f"{model}, step {step:,}"
        drawn = model_figure(start.memory if start else None, now.memory, title)
        if observed is not None and observed.layers:
            mark_observed(drawn, observed.drawn)
        return drawn

    return Report("\n\n".join(parts), values, draw)
