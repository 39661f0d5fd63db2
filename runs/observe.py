"""Half-lives that parameters alone say, and those over the bytes of a text, of the models of runs/decays-train.toml.

python runs/observe.py STUDY writes runs/records/decays-train/observed.json: quantiles over channels (and 2,048 bytes),
geometric means over seeds, of RWKV-7 and Mamba-2 whose decays are trained in three ways.
"""

import subprocess
import sys
from json import loads
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors.torch import load_file
from transformers import Mamba2Config, Mamba2ForCausalLM

from plkernel.common.environment import environment
from plkernel.common.files import save_json

OUT = Path(__file__).parent / "records" / "decays-train" / "observed.json"
PREFIX = "model.module."


def observed(run: Path, text: str) -> list[Any]:
    """Return what plkernel.inspect --text says of the layers of a run."""
    with TemporaryDirectory() as scratch:
        path, found = run, Path(scratch) / "found.json"
        if run.parent.name.endswith("_mamba2"):
            state = load_file(run / "checkpoint.safetensors")
            own = {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}
            config = loads((run / "config.json").read_text())["model"]["config"]
            model, path = Mamba2ForCausalLM(Mamba2Config(vocab_size=256, **config)), Path(scratch) / "model"
            model.load_state_dict(own)
            model.save_pretrained(path)
        command = [sys.executable, "-m", "plkernel.inspect", path, "--text", text, "--json", found]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return loads(found.read_text())["observed"]["layers"]


def main(study: Path) -> None:
    """Write the record."""
    text, rows = loads((study / "spec.json").read_text())["corpus"]["name"], []
    for arm in ("matrices", "all", "bfloat16"):
        for model in ("goose", "mamba2"):
            seeds = [observed(run, text) for run in sorted((study / f"{arm}_{model}").glob("seed-*"))]
            for block, layers in enumerate(zip(*seeds, strict=True)):
                row: dict[str, Any] = {"arm": arm, "model": model, "block": block + 1, "seeds": len(layers)}
                for kind in ("static", "observed"):
                    of = [[one[kind][q] for q in ("0.05", "0.5", "0.95")] for one in layers]
                    row[kind] = np.exp(np.log(of).mean(axis=0)).tolist()
                rows.append(row)
    save_json(OUT, {"environment": environment(1) | {"command": f"python runs/observe.py {study}"}, "rows": rows})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
