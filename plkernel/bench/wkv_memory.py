"""The process of its own whose memory `plkernel.bench wkv` watches: one forward plus backward pass."""

import sys

import torch

from plkernel.bench.memory import ready
from plkernel.bench.wkv_peers import CONTENDERS
from plkernel.bench.wkv_problem import Shape, problem

WARM: Shape = (1, 64, 1, 16)


def _work(name: str, *sizes: str) -> None:
    """Whatever is compiled or loaded at the first use is there before the watching begins, and so are the inputs."""
    torch.set_num_threads(1)
    batch, time, heads, size = map(int, sizes)
    CONTENDERS[name](problem(WARM))()
    step = CONTENDERS[name](problem((batch, time, heads, size)))
    ready()
    step()


if __name__ == "__main__":
    _work(*sys.argv[1:])
