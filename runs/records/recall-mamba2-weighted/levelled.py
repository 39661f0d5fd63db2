"""Recall of a Mamba-2 whose heads are levelled, in sequences longer than those of training.

python runs/records/recall-mamba2-weighted/levelled.py STUDY --only ARM ... writes levelled.json
beside this file, or where --out says. Of every run of the arms it has the tests of recall at the
longest length with levelled heads: what each head gives behind the length of training is divided by
its growth since, which is measured on validation sequences of that test. Beside them stands the
root mean square of what the heads of each layer give, at positions between half of and all of so
many bytes. The models are those that training left; nothing is trained. STUDY is the folder with
the runs, such as runs/out/recall-mamba2-weighted. The code that its specs name is trusted.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from plkernel.common import cli
from plkernel.common.environment import environment
from plkernel.common.files import save_json
from plkernel.config.condition import from_config
from plkernel.models.mamba2 import mixers_of
from plkernel.results.study import read_study
from plkernel.training.checkpoint import open_model
from plkernel.training.evaluate import predictor
from plkernel.training.recall_task import RecallTask, held_out
from plkernel.training.recall_tests import recalled

sys.path.append(str(Path(__file__).parents[1]))

from mamba2_heads import levelled, powers_of_heads

OUT = Path(__file__).resolve().parent / "levelled.json"
WINDOWS = 8
"""Validation sequences of each test, over which the growth of heads is a mean."""
KEYS = ("accuracy", "distance")


def evaluations(
    study: Annotated[Path, tyro.conf.Positional], only: tuple[str, ...] = (), out: Path = OUT
) -> None:
    """Test the runs of the study with heads that are levelled.

    Args:
        study: Folder of the study with its runs.
        only: Arms; left out, all.
        out: JSON file for the record.
    """
    torch.set_num_threads(1)
    rows = []
    for run in read_study(study).finished():
        if only and run.arm not in only:
            continue
        for row in tested(study / run.arm / f"seed-{run.seed}"):
            rows.append({"arm": run.arm, "seed": run.seed, **row})
        print(f"{run.arm} seed-{run.seed}", flush=True)
    save_json(out, {"environment": environment(1), "rows": rows})
    print(f"written: {out}")


def tested(run: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for every test of a run."""
    model, config, _ = open_model(run, trusted=True)
    task = RecallTask.of(from_config(config))
    assert task is not None, f"{run} is not trained on recall"
    predict = predictor(model, torch.device("cpu"))
    context = task.law.length
    laws = [*task.tests()]
    longest = max(law.length for _, law in laws)
    for name, law in laws:
        if law.length < longest:
            continue
        seen = held_out(law, "validation", WINDOWS)[:, :-1]
        windows = task.longer(law, task.train.test_windows)
        at_once = max(1, task.train.batch * context // law.length)
        lengths = [context]
        while lengths[-1] < law.length:
            lengths.append(2 * lengths[-1])
        layers = []
        for mixer in mixers_of(model):
            powers = powers_of_heads(model, mixer, seen).mean(dim=1)
            layers.append([float(powers[end // 2 : end].mean().sqrt()) for end in lengths])
        with levelled(model, seen, context):
            found = recalled(predict, windows, at_once)
        facts = {"test": name, "length": law.length, "lengths": lengths, "layers": layers}
        yield facts | {key: found[key] for key in KEYS}


if __name__ == "__main__":
    cli.main(evaluations, prog="python runs/records/recall-mamba2-weighted/levelled.py")
