"""Size of what the heads of a Mamba-2 give, by position, in windows longer than those of training.

python runs/records/post-text-mamba2/heads.py STUDY writes heads.json beside this file, or where
--out says. Of every run of the study and of every layer it has the root mean square of what heads
give to the normalisation behind them, over test text, at positions between half of and all of so
many bytes: a state that grows for as long as it reads shows there. It has the bits per byte at
those positions, and the same for heads that are levelled: what each gives behind the length of
training is divided by its growth, which is measured on validation text and averaged over windows.
The models are those that training left; nothing is trained. STUDY is the folder with the runs, such
as runs/out/post-text-mamba2. The code that its specs name is trusted.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from plkernel.common import cli
from plkernel.common.environment import environment
from plkernel.common.files import save_json
from plkernel.data.windows import fixed_windows
from plkernel.models.mamba2 import mixers_of
from plkernel.results.study import read_study
from plkernel.training.evaluate import predictor, token_losses

sys.path.append(str(Path(__file__).parents[1]))

from mamba2_heads import levelled, powers_of_heads
from text_runs import opened

OUT = Path(__file__).resolve().parent / "heads.json"
WINDOWS = 16
"""Windows of either text; sizes of one run differ by much less than those of two starts do."""


def sizes(study: Annotated[Path, tyro.conf.Positional], out: Path = OUT) -> None:
    """Record the size of what heads give, by position, and losses with heads that are levelled.

    Args:
        study: Folder of the study with its runs.
        out: JSON file for the record.
    """
    torch.set_num_threads(1)
    rows = []
    for run in read_study(study).finished():
        folder = study / run.arm / f"seed-{run.seed}"
        rows.append({"arm": run.arm, "seed": run.seed, **read(folder)})
        print(f"{run.arm} {folder.name}", flush=True)
    save_json(out, {"environment": environment(1), "rows": rows})
    print(f"written: {out}")


def read(run: Path) -> dict[str, Any]:
    """Return lengths in bytes, and at each of them a size for every layer, and bits per byte."""
    model, train, splits = opened(run)
    context = train.context
    assert train.beyond is not None, f"{run} reads no windows longer than those of training"
    longest = context * train.beyond
    test = fixed_windows(splits.test, longest, WINDOWS)
    validation = fixed_windows(splits.validation, longest, WINDOWS)
    lengths = [context]
    while lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    layers = []
    for mixer in mixers_of(model):
        powers = powers_of_heads(model, mixer, test[:, :-1]).mean(dim=1)
        layers.append([size**0.5 for size in by_length(powers, lengths)])
    bits = by_length(bits_by_position(model, test), lengths)
    with levelled(model, validation[:, :-1], context):
        levelled_bits = by_length(bits_by_position(model, test), lengths)
    return {"lengths": lengths, "layers": layers, "bpb": bits, "levelled_bpb": levelled_bits}


def bits_by_position(model: Any, windows: Tensor) -> Tensor:
    """Return the mean bits (T,) of every byte of `windows` (B,T+1) behind the first."""
    losses = token_losses(predictor(model, torch.device("cpu")), windows, batch=2)
    return torch.as_tensor(losses).mean(dim=0)


def by_length(values: Tensor, lengths: list[int]) -> list[float]:
    """Return the means of `values` (T,) between half of and all of each length."""
    return [float(values[length // 2 : length].mean()) for length in lengths]


if __name__ == "__main__":
    cli.main(sizes, prog="python runs/records/post-text-mamba2/heads.py")
