"""Models on disk: the last checkpoint of a run, or a model that plkernel.load brought in, opened by one function.

A folder holds config.json and checkpoint.safetensors. In the folder of a run the `model` section of config.json says
what the model is; plkernel.load writes a section `rwkv` instead, the fields of RWKVConfig, which can hold what a spec
has no option for (ranks, feed-forward width), and `source`, where the weights came from.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.structure import Structure
from plkernel.records.study import CONFIG
from plkernel.run.build import Model, build
from plkernel.run.checkpoint import Progress, load_checkpoint, save_checkpoint
from plkernel.run.folder import CHECKPOINT
from plkernel.spec.condition import from_config
from plkernel.tools import cli
from plkernel.tools.storage import load_json, save_json


def open_model(path: Path) -> Model:
    """The trained model of a folder, or of a checkpoint file in it, on the CPU and set to evaluation.

    Raises ValueError when there is no model or it is damaged.
    """
    cli.existing(path, "model")
    folder = path if path.is_dir() else path.parent
    checkpoint = folder / CHECKPOINT if path.is_dir() else path
    if not checkpoint.is_file():
        raise ValueError(f"{checkpoint}: no such file; give the folder of a run that has saved a checkpoint")
    config = folder / CONFIG
    if not config.is_file():
        raise ValueError(f"{config} is missing: a checkpoint needs the configuration of its run beside it")
    content = load_json(config)
    model = describe(config, content)
    load_checkpoint(checkpoint, model, config=content)
    return model.eval()


def describe(path: Path, config: Any) -> Model:
    """The model that `config`, the content of a config.json, describes, its parameters not yet set.

    Raises ValueError naming `path`.
    """
    try:
        if "rwkv" in config:
            structure = Structure(**config["rwkv"].get("structure", {}))
            return RWKV(RWKVConfig(**{**config["rwkv"], "structure": structure}))
        return build(from_config({**config, "train": None}))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} does not describe a model ({error})") from error


def check_free(folder: Path) -> None:
    """ValueError when the folder holds a model already."""
    taken = [name for name in (CONFIG, CHECKPOINT) if (folder / name).exists()]
    if taken:
        raise ValueError(f"{folder} holds a {taken[0]} already: choose another folder or remove it")


def save_model(folder: Path, model: RWKV, source: str) -> None:
    """Write `model` as a folder that `open_model` reads; ValueError when the folder holds a model already."""
    check_free(folder)
    config = {"source": source, "rwkv": {name: v for name, v in asdict(model.config).items() if name != "backend"}}
    save_checkpoint(folder / CHECKPOINT, model, None, Progress(), config)
    save_json(folder / CONFIG, config)
