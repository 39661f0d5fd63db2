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
from plkernel.results.study import read_study
from plkernel.training.evaluate import patch_of, predictor, reach

sys.path.append(str(Path(__file__).parents[1]))

from position_scaling import stopped_at
from text_runs import opened

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
            losses = read(study / run.arm / f"seed-{run.seed}")
            rows.append({"arm": run.arm, "seed": run.seed, **losses})
            print(f"{run.arm} seed-{run.seed}", flush=True)
    save_json(out, {"environment": environment(1), "rows": rows})
    print(f"written: {out}")


def read(run: Path) -> dict[str, Any]:
    """Return the losses of a run by length, with scaling that stops."""
    model, train, splits = opened(run)
    predict = predictor(model, torch.device("cpu"))
    with stopped_at(train.context):
        found = reach(predict, splits.test, train, train.batch, patch_of(model))
    return {key: found[key] for key in KEYS}


if __name__ == "__main__":
    cli.main(evaluations, prog="python runs/records/post-text/scaling_off.py")
