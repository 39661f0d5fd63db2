"""Accuracy of recall beyond the length of training, of the runs that a search for rates trained.

python runs/records/recall-post/search_beyond.py STUDY writes search-beyond.json beside this file.
Rates were chosen by the loss at the length of training; here every run of the search is tested
with 32 pairs at 1, 2, 4 and 8 times that length. Nothing is trained. STUDY is the folder with the
runs, runs/out/recall-post.
"""

from pathlib import Path
from typing import Annotated

import tyro
from scaling_off import persistence

from plkernel.common import cli
from plkernel.common.environment import environment
from plkernel.common.files import save_json

OUT = Path(__file__).resolve().parent / "search-beyond.json"
TIMES = 8
"""Length of the longest test, in lengths of training."""


def evaluations(study: Annotated[Path, tyro.conf.Positional], out: Path = OUT) -> None:
    """Test every run of the search at 1, 2, 4 and 8 times the length of training.

    Args:
        study: Folder of the study with its runs.
        out: JSON file for the record.
    """
    rows = []
    for run in sorted((study / "tuning").glob("*/seed-*")):
        arm, _, rate = run.parent.name.partition("_rate-")
        for test in persistence(run, TIMES):
            facts = {"arm": arm, "rate": float(rate), "seed": test.seed, "length": test.length}
            rows.append(facts | {"accuracy": test.shares().everywhere})
        print(f"{run.parent.name} seed {test.seed}", flush=True)
    save_json(out, {"environment": environment(1), "rows": rows})
    print(f"written: {out}")


if __name__ == "__main__":
    cli.main(evaluations, prog="python runs/records/recall-post/search_beyond.py")
