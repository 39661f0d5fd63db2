"""Losses on text with decays that stop slowing down behind the length of training.

python runs/records/post-text/scaling_off.py STUDY writes scaling-off.json beside this file, or
where --out says: of every run of the study whose decays depend on the position, bits per byte by
position and what is lost by reading on with ln min(t, T) in place of ln t. The models are those
that training left; nothing is trained. STUDY is the folder with the runs, such as
runs/out/post-text. The code that its specs name is trusted.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from plkernel.common import cli
from plkernel.common.environment import environment
from plkernel.common.files import save_json
from plkernel.config.condition import from_config
from plkernel.results.study import read_study
from plkernel.training.checkpoint import open_model
from plkernel.training.evaluate import patch_of, predictor, reach
from plkernel.training.loop import longest_window, open_corpus

sys.path.append(str(Path(__file__).parents[1]))

from position_scaling import stopped_at

OUT = Path(__file__).resolve().parent / "scaling-off.json"
KEYS = ("positions", "reading_on")


def evaluations(study: Annotated[Path, tyro.conf.Positional], out: Path = OUT) -> None:
    """Read the test text with scaling that stops at T.

    Args:
        study: Folder of the study with its runs.
        out: JSON file for the record.
    """
    torch.set_num_threads(1)
    rows = []
    for run in read_study(study).finished():
        if run.scaling_length is not None:
            rows.append(read(run.arm, study / run.arm / f"seed-{run.seed}"))
            print(f"{run.arm} seed-{run.seed}", flush=True)
    save_json(out, {"environment": environment(1), "rows": rows})
    print(f"written: {out}")


def read(arm: str, run: Path) -> dict[str, Any]:
    """Return the losses of a run by length, with scaling that stops."""
    model, config, _ = open_model(run, trusted=True)
    condition = from_config(config)
    train = condition.train
    farthest = longest_window(condition.corpus, train)
    _, splits = open_corpus(condition.corpus, train.context, farthest)
    predict = predictor(model, torch.device("cpu"))
    with stopped_at(train.context):
        found = reach(predict, splits.test, train, train.batch, patch_of(model))
    return {"arm": arm, "seed": config["seed"], **{key: found[key] for key in KEYS}}


if __name__ == "__main__":
    cli.main(evaluations, prog="python runs/records/post-text/scaling_off.py")
