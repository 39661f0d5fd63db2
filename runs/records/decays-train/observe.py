"""Half-lives that parameters alone say, and those over the bytes of a text, of the models of
runs/decays-train.toml.

python runs/records/decays-train/observe.py STUDY writes observed.json beside this file: quantiles
over channels (and 2,048 bytes), geometric means over seeds, of RWKV-7 and Mamba-2 whose decays are
trained in three ways. STUDY is the folder with the runs, runs/out/decays-train.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import tyro
from safetensors.torch import load_file

from plkernel.common import cli
from plkernel.common.environment import environment
from plkernel.common.files import save_json

OUT = Path(__file__).resolve().parent / "observed.json"
PREFIX = "model.module."
ARMS = ("matrices", "all", "bfloat16")
MODELS = ("goose", "mamba2")
LEVELS = ("0.05", "0.5", "0.95")


def observations(
    study: Annotated[Path, tyro.conf.Positional], tokens: int | None = None, out: Path = OUT
) -> None:
    """Inspect every run over the text of the study and write the record.

    Args:
        study: Folder of the study with its runs.
        tokens: Bytes of the text that are read, 2,048 if left out.
        out: JSON file for the record.
    """
    spec = json.loads((study / "spec.json").read_text())
    text = spec["corpus"]["name"]
    rows = []
    for arm in ARMS:
        for model in MODELS:
            runs = sorted((study / f"{arm}_{model}").glob("seed-*"))
            seeds = [observed(run, text, tokens) for run in runs]
            for block, layers in enumerate(zip(*seeds, strict=True), start=1):
                rows.append({"arm": arm, "model": model, "block": block} | means(layers))
    save_json(out, {"environment": environment(1), "rows": rows})
    print(f"written: {out}")


def means(layers: tuple[Any, ...]) -> dict[str, Any]:
    """Return the number of seeds, and quantiles of half-lives as geometric means over them."""
    row: dict[str, Any] = {"seeds": len(layers)}
    for kind in ("static", "observed"):
        quantiles = [[layer[kind][level] for level in LEVELS] for layer in layers]
        row[kind] = np.exp(np.log(quantiles).mean(axis=0)).tolist()
    return row


def observed(run: Path, text: str, tokens: int | None) -> list[Any]:
    """Return what plkernel.inspect --text says of the layers of a run."""
    with TemporaryDirectory() as scratch:
        found = Path(scratch) / "found.json"
        model = run
        if run.parent.name.endswith("_mamba2"):
            model = Path(scratch) / "model"
            save_mamba2(run, model)
        command = [sys.executable, "-m", "plkernel.inspect", model, "--text", text, "--json", found]
        if tokens is not None:
            command += ["--tokens", str(tokens)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        layers: list[Any] = json.loads(found.read_text())["observed"]["layers"]
        return layers


def save_mamba2(run: Path, folder: Path) -> None:
    """Save the Mamba-2 of a run as transformers does."""
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = json.loads((run / "config.json").read_text())["model"]["config"]
    model = Mamba2ForCausalLM(Mamba2Config(vocab_size=256, **config))
    state = load_file(run / "checkpoint.safetensors")
    own = {
        name.removeprefix(PREFIX): values
        for name, values in state.items()
        if name.startswith(PREFIX)
    }
    model.load_state_dict(own)
    model.save_pretrained(folder)


if __name__ == "__main__":
    cli.main(observations, prog="python runs/records/decays-train/observe.py")
