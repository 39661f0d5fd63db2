"""python -m plkernel.bench scan | wkv | wkv7 | train: check a part, then time it beside its
peers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from plkernel.common.cli import main_of
from plkernel.models import Device

HEADS = (tuple[int, int, int, int], "batch, time, heads and head size")


def _operator(name: str, shape: Any, axes: str) -> Callable[..., None]:
    """The command of an operator, whose shapes have these axes."""

    def command(
        threads: int = 1,
        shapes: tuple[shape, ...] = (),  # type: ignore[valid-type]
        rounds: int = 15,
        device: Device = "auto",
        out: Path | None = None,
    ) -> None:
        from plkernel.benchmarks.operators import run

        run(name, threads, shapes, rounds, device, out)

    command.__doc__ = f"""Check {name} and its peers against float64, then time them in turns.

    A time is that of the forward and the backward pass.

    A contender that is wrong or not installed is reported and not timed.

    Args:
        threads: threads of torch and of the CPU backend.
        shapes: {axes} of one problem after another; left out, some for a CPU and some for a GPU.
        rounds: how often each contender is timed; a slow one less often.
        device: auto (a GPU if there is one), cpu or cuda.
        out: a folder for {name}.json.
    """
    return command


scan = _operator("scan", tuple[int, int, int], "batch, time and channels")
wkv, wkv7 = (_operator(name, *HEADS) for name in ("wkv", "wkv7"))


def train(
    spec: Path = Path("quick"),
    threads: int = 1,
    rounds: int = 15,
    device: Device = "auto",
    out: Path | None = None,
) -> None:
    """Time a training step of a spec's model beside that of a GPT-2 of the same size.

    Loss and gradients are held against a float64 reference first.

    Args:
        spec: experiment whose model (an SSM or an RWKV), context and batch are timed.
        threads: threads of torch and of the CPU backend.
        rounds: how often each contender is timed.
        device: auto, cpu or cuda.
        out: a folder for train.json, or train-rwkv6.json and the like.
    """
    from plkernel.benchmarks.training import train as run

    run(spec, threads, rounds, device, out)


if __name__ == "__main__":
    main_of({"scan": scan, "wkv": wkv, "wkv7": wkv7, "train": train}, str(__doc__))
