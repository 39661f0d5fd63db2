"""Which runs can be trained as one, and how many are."""

from collections import Counter
from collections.abc import Hashable, Sequence

import torch

from plkernel.config.condition import Condition
from plkernel.config.schema import TrainSpec
from plkernel.models.rwkv import RWKV
from plkernel.models.ssm import SSM
from plkernel.training.build import build

MOST = 8
LARGEST = 2**24
"""batch * context * dim of all runs of a step that `auto` puts together; larger ones keep a GPU busy alone."""


def count(train: TrainSpec, dim: int, device: str) -> int:
    """How many runs of width `dim` a step is for at most: train.together, of which `auto` is 1 on a CPU.

    >>> [count(TrainSpec(steps=1, context=512, batch=8), dim, "cuda") for dim in (64, 1024, 4096)]
    [8, 4, 1]
    """
    if train.together != "auto":
        return train.together
    return 1 if device == "cpu" else max(1, min(MOST, LARGEST // (train.batch * train.context * dim)))


def shape(condition: Condition) -> Hashable | None:
    """What runs that are trained together must share; None for one that is trained alone.

    Those with dropout are, which draws its masks run by run, those with a budget in minutes, which others would spend,
    and compiled ones. Learning rate, weight decay, schedule, clipping and length may differ, and so may corpora.
    """
    train = condition.protocol
    if train.dropout or train.compile or train.total_steps is None:
        return None
    with torch.device("meta"):
        built = build(condition)
    if not isinstance(built, SSM | RWKV):  # another's operators may know nothing of torch.func.vmap
        return None
    multipliers = tuple(sorted(built.config.structure.multipliers.items()))
    sizes = (train.context, train.batch, train.l2wrap, train.device, train.threads)
    return type(built).__name__, built.config, multipliers, sizes


def describe(conditions: Sequence[Condition], seeds: int, device: str) -> str | None:
    """What `shape` and `count` make of the runs of a study, in one line; None where each is trained alone."""
    most = max(count(condition.protocol, condition.model.dim, device) for condition in conditions)
    if most == 1:
        return None
    shapes = Counter(map(shape, conditions))
    alone = seeds * shapes.pop(None, 0)
    told = " + ".join(str(seeds * arms) for arms in shapes.values()) or "none"
    rest = f", {alone} alone" if alone else ""
    return (
        f"together: up to {most} runs of equal shape in a process, trained as one (train.together); of equal shape are "
        f"{told}{rest}; time and memory above are of runs alone"
    )
