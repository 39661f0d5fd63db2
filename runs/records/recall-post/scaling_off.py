"""Accuracy of recall with decays that stop slowing down behind the length of training.

python runs/records/recall-post/scaling_off.py STUDY writes scaling-off.json beside this file, or
where --out says: of every run of the study whose decays depend on the position and whose checkpoint
is there, the tests with as many pairs as in training twice, with ln t as it is and with
ln min(t, T). "far" is of the queries alone that are more than half of the length behind their pair.
The models are those that training left; nothing is trained. STUDY is the folder with the runs, such
as runs/out/recall-post. The code that its specs name is trusted.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import tyro
from torch import Tensor

from plkernel.common import cli
from plkernel.common.environment import environment
from plkernel.common.files import CHECKPOINT, save_json
from plkernel.config.condition import from_config
from plkernel.results.study import read_study
from plkernel.training.checkpoint import open_model
from plkernel.training.evaluate import Predict, predictor
from plkernel.training.recall_task import RecallTask
from plkernel.training.recall_tests import recalled

sys.path.append(str(Path(__file__).parents[1]))

from position_scaling import stopped_at

OUT = Path(__file__).resolve().parent / "scaling-off.json"
CPU = torch.device("cpu")


def evaluations(study: Annotated[Path, tyro.conf.Positional], out: Path = OUT) -> None:
    """Test the runs of the study with scaling that goes on, and with scaling that stops at T.

    Args:
        study: Folder of the study with its runs.
        out: JSON file for the record.
    """
    rows = []
    for run in read_study(study).finished():
        folder = study / run.arm / f"seed-{run.seed}"
        if run.scaling_length is not None and (folder / CHECKPOINT).exists():
            rows += tested(run.arm, folder)
            print(f"{run.arm} {folder.name}", flush=True)
    save_json(out, {"environment": environment(1), "rows": rows})
    print(f"written: {out}")


def tested(arm: str, run: Path) -> list[dict[str, Any]]:
    """Return a row for every length of the tests of a run."""
    rows = []
    for test in persistence(run):
        goes_on = test.shares()
        with stopped_at(test.trained):
            stops = test.shares()
        rows.append(
            {
                "arm": arm,
                "seed": test.seed,
                "length": test.length,
                "goes_on": goes_on.everywhere,
                "stops": stops.everywhere,
                "far": {"goes_on": goes_on.far, "stops": stops.far},
            }
        )
    return rows


class Shares(NamedTuple):
    """Right answers as a share: everywhere, and more than half of the length behind their pair."""

    everywhere: float
    far: float


class Test(NamedTuple):
    """One test of recall of a run, with the pairs of training.

    trained  length of training
    at_once  windows that are read together
    """

    predict: Predict
    windows: Tensor
    seed: int
    length: int
    trained: int
    at_once: int

    def shares(self) -> Shares:
        """Shares of right answers."""
        found = recalled(self.predict, self.windows, self.at_once)
        by_distance = found["distance"]
        farthest = by_distance["up_to"].index(self.length)
        return Shares(float(found["accuracy"]), float(by_distance["accuracy"][farthest]))


def persistence(run: Path, times: int | None = None) -> Iterator[Test]:
    """Yield the tests of a run with 32 pairs, up to `times` its length, or as its spec has it."""
    model, config, _ = open_model(run, trusted=True)
    task = RecallTask.of(from_config(config))
    if task is None:
        raise ValueError(f"{run}: its corpus must be one of recall")
    if times is not None:
        task = replace(task, train=task.train.model_copy(update={"beyond": times}))
    predict = predictor(model, CPU)
    for name, law in task.tests():
        if name == "persistence":
            windows = task.longer(law, task.train.test_windows)
            at_once = max(1, task.train.batch * task.law.length // law.length)
            yield Test(predict, windows, config["seed"], law.length, task.law.length, at_once)


if __name__ == "__main__":
    cli.main(evaluations, prog="python runs/records/recall-post/scaling_off.py")
