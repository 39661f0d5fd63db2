"""Size of what the heads of a Mamba-2 give, by position, in windows longer than those of training.

python runs/records/post-text-mamba2/heads.py STUDY writes heads.json beside this file: of every run
of the study and of every layer, the root mean square of what heads give to the normalisation behind
them, over test text, at positions between half of and all of so many bytes. A state that grows for
as long as it reads shows there. The models are those that training left; nothing is trained. STUDY
is the folder with the runs, runs/out/post-text-mamba2. The code that its specs name is trusted.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor, nn

from plkernel.common import cli
from plkernel.common.environment import environment
from plkernel.common.files import save_json
from plkernel.config.condition import from_config
from plkernel.data.windows import fixed_windows
from plkernel.models.mamba2 import mixers_of
from plkernel.results.study import read_study
from plkernel.training.checkpoint import open_model
from plkernel.training.loop import longest_window, open_corpus

OUT = Path(__file__).resolve().parent / "heads.json"
WINDOWS = 16
"""Windows of test text; the sizes of one run differ by much less than those of one start do."""


def sizes(study: Annotated[Path, tyro.conf.Positional], out: Path = OUT) -> None:
    """Record the size of what heads give, by position.

    Args:
        study: Folder of the study with its runs.
        out: JSON file for the record.
    """
    torch.set_num_threads(1)
    rows = []
    for run in read_study(study).finished():
        folder = study / run.arm / f"seed-{run.seed}"
        rows.append({"arm": run.arm, "seed": run.seed, **sizes_of(folder)})
        print(f"{run.arm} {folder.name}", flush=True)
    save_json(out, {"environment": environment(1), "rows": rows})
    print(f"written: {out}")


def sizes_of(run: Path) -> dict[str, Any]:
    """Return the lengths in bytes, and for each layer a size at each of them."""
    model, config, _ = open_model(run, trusted=True)
    condition = from_config(config)
    context = condition.train.context
    longest = context * (condition.train.beyond or 1)
    farthest = longest_window(condition.corpus, condition.train)
    _, splits = open_corpus(condition.corpus, context, farthest)
    windows = fixed_windows(splits.test, longest, WINDOWS)
    powers = mean_squares(model, windows[:, :-1])
    lengths = [context]
    while lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    layers = [
        [float(power[length // 2 : length].mean().sqrt()) for length in lengths] for power in powers
    ]
    return {"lengths": lengths, "layers": layers}


@torch.no_grad()
def mean_squares(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Return mean squares (T,) of what heads give for `inputs` (B,T), for each layer.

    They are taken where they enter the gated normalisation of a layer, the skip D x among them.
    """
    found: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        heads, *_gate = given
        found.append(heads.square().mean(dim=(0, 2)))

    hooks = [mixer.norm.register_forward_pre_hook(keep) for mixer in mixers_of(model)]
    try:
        model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


if __name__ == "__main__":
    cli.main(sizes, prog="python runs/records/post-text-mamba2/heads.py")
