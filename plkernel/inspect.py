"""python -m plkernel.inspect: what training did to a model's decays, its logits and the growth of its layers."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor

from plkernel import cli, corpora
from plkernel.arm import Arm
from plkernel.building import Model, build, initialise_
from plkernel.checkpoint import load_checkpoint
from plkernel.data import check_length, fixed_windows
from plkernel.diagnostics import Diagnosis, diagnose
from plkernel.model_folder import open_model
from plkernel.model_spec import ModelSpec
from plkernel.models.init.calibration import scale_
from plkernel.objective import label
from plkernel.protocol import TrainSpec
from plkernel.run import CHECKPOINT
from plkernel.spec import CorpusSpec
from plkernel.storage import load_json, read_lines, save_json
from plkernel.studies import CONFIG, METRICS
from plkernel.tables import text_table

BATCH = 4
CONTEXT = 512  # of a model that was not trained here
QUANTILES = (0.0, 0.5, 1.0)
ABSENT = "-"


@dataclass(frozen=True)
class View:
    """A model at one time: the shortest, median and longest half-life of every block in bytes, and one evaluation."""

    half_lives: tuple[tuple[float, ...], ...]
    found: Diagnosis

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        quantiles = [dict(zip(("shortest", "median", "longest"), block, strict=True)) for block in self.half_lives]
        return {"half_lives": quantiles, "bits_per_byte": self.found.bits_per_byte, **self.found.to_row()}


def inspect(
    model: tyro.conf.Positional[Path],
    corpus: str | None = None,
    windows: int = 16,
    json: Path | None = None,
) -> None:
    """Print half-lives, saturation and amplification of a model, at its initialisation and now.

    Half-lives are in bytes: shortest, median and longest channel of every block. Saturation is that of the predictions
    on validation windows: a saturated position gives one byte a probability above 0.99, and guessing uniformly has the
    entropy ln 256 = 5.545 nats. Amplification (RWKV) is the root mean square of the residual stream after a block over
    that before it. The initialisation is rebuilt from the specification and seed of the run; a model that plkernel.load
    brought in has none.

    Args:
        model: Folder of a run (STUDY/ARM/seed-0) or of plkernel.load, or the checkpoint.safetensors in it.
        corpus: Validation text, as plkernel.corpus names it; if left out that of the run.
        windows: How many windows of the run's context to evaluate.
        json: Write the figures to this file too.
    """
    if windows < 1:
        raise ValueError(f"windows must be at least 1, got {windows}")
    trained = open_model(model)
    folder, checkpoint = (model, model / CHECKPOINT) if model.is_dir() else (model.parent, model)
    config = load_json(folder / CONFIG)
    name, data = validation_windows(config, corpus, windows)
    now, start = view(trained, data), None
    untrained = at_initialisation(config)
    if untrained is not None:
        scale_(untrained, calibrated_gains(folder))
    if untrained is not None:
        start = view(untrained, data)
    step = load_checkpoint(checkpoint, trained).step
    print(f"{model}: step {step:,}; {len(data)} validation windows of {data.shape[1] - 1} bytes of {name}\n")
    print(render(start, now, label(trained.config.causal)))
    if json is not None:
        place = {"corpus": name, "windows": len(data), "context": data.shape[1] - 1, "causal": trained.config.causal}
        views = {"initialisation": start.to_dict() if start else None, "now": now.to_dict()}
        save_json(json, {"model": str(model), "step": step, **place, **views})
        print(f"\nwritten: {json}")


def at_initialisation(config: dict[str, Any]) -> Model | None:
    """The model of a run as it was before its first step, from its config.json; None if it was not trained here."""
    if "seed" not in config:
        return None
    spec = ModelSpec.model_validate({key: value for key, value in config["model"].items() if key != "parameters"})
    arm = Arm.model_validate(config["arm_options"])
    train = TrainSpec.model_validate(config["train"])
    return initialise_(build(spec, arm, train), spec, arm, config["seed"], train)


def calibrated_gains(folder: Path) -> list[float]:
    """What a run's calibration multiplied the blocks by, from its first row; none where its scheme asks for none."""
    rows = read_lines(folder / METRICS)
    gains: list[float] = rows[0].get("calibration", {}).get("gains", []) if rows else []
    return gains


def validation_windows(config: dict[str, Any], corpus: str | None, count: int) -> tuple[str, Tensor]:
    """The name of the corpus and up to `count` windows (n, context + 1) of its validation split.

    Raises ValueError when the run's corpus is another here than it was there, or none is named for a model that was
    not trained here.
    """
    known = config.get("corpus", {})
    if corpus is None and not known:
        raise ValueError("corpus must be given for a model that was not trained here, as in --corpus stdlib")
    options = {key: value for key, value in known.items() if key in CorpusSpec.model_fields}
    section = CorpusSpec.model_validate(options) if corpus is None else CorpusSpec(name=corpus)
    text = corpora.load(section.name, max_bytes=section.max_bytes, separator=section.separator, column=section.column)
    if corpus is None and text.sha256 != known["sha256"]:
        raise ValueError(
            f"corpus {section.name!r} is not what the run was trained on (other sha256): name one with --corpus"
        )
    data = text.splits(section.validation, section.test).validation
    context = config.get("train", {}).get("context", CONTEXT)
    check_length(data, context, f"the validation split of corpus {section.name!r}")
    return section.name, fixed_windows(data, context, count)


def view(model: Model, windows: Tensor) -> View:
    """Half-lives of `model`, and one evaluation on `windows`."""
    quantiles = tuple(tuple(np.quantile(values.numpy(), QUANTILES).tolist()) for values in model.half_lives())
    return View(quantiles, diagnose(model, windows, BATCH, torch.device("cpu")))


def render(start: View | None, now: View, note: str = "") -> str:
    """Both tables as text; `note` follows the bits per byte."""
    views = [start, now]
    header = ["block", "half-lives at initialisation", "now", "amplification at initialisation", "now"]
    rows = [
        [str(block), *(_half_lives(view, block) for view in views), *(_growth(view, block) for view in views)]
        for block in range(len(now.half_lives))
    ]
    columns = [_figures(view) if view else {} for view in views]
    figures = [
        [name + (note if name == "bits per byte" else ""), *(column.get(name, ABSENT) for column in columns)]
        for name in columns[1]
    ]
    return f"{text_table(header, rows)}\n\n{text_table(['', 'at initialisation', 'now'], figures)}"


def _half_lives(view: View | None, block: int) -> str:
    return " / ".join(f"{value:.3g}" for value in view.half_lives[block]) if view else ABSENT


def _growth(view: View | None, block: int) -> str:
    growth = view.found.amplification if view else None
    return f"{growth.per_block[block]:.3f}" if growth else ABSENT


def _figures(view: View) -> dict[str, str]:
    """The second table's column."""
    found, growth = view.found.saturation, view.found.amplification
    return {
        "bits per byte": f"{view.found.bits_per_byte:.4f}",
        f"loss in nats (uniform: {math.log(256):.3f})": f"{found.loss:.3f}",
        "logits": f"{found.logit_min:+.1f} .. {found.logit_max:+.1f}",
        "largest probability, mean": f"{found.largest_probability:.3f}",
        "largest probability, maximum": f"{found.peak_probability:.3f}",
        f"entropy in nats (uniform: {math.log(256):.3f})": f"{found.entropy:.3f}",
        "saturated positions": f"{found.saturated_share:.1%}",
        "amplification per block, geometric mean": f"{growth.mean:.3f}" if growth else ABSENT,
    }


if __name__ == "__main__":
    cli.main(inspect)
