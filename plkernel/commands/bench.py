"""python -m plkernel.bench PART: check a part, then time it beside its peers.

Parts: scan, wkv, wkv7, train, host, profile, step, growth.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from plkernel.common.cli import main_of
from plkernel.models import Device

HEADS = (tuple[int, int, int, int], "batch, time, heads and head size")
"""The type of a shape of wkv and wkv7, and its axes in words."""


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


def host(rounds: int = 15, device: Device = "auto", out: Path | None = None) -> None:
    """Time the path around the kernels: CPU time of a call too small to compute, beside linear.

    Args:
        rounds: how often each contender is timed, a hundred calls together.
        device: auto, cpu or cuda.
        out: a folder for host.json.
    """
    from plkernel.benchmarks.host import run

    run(rounds, device, out)


def profile(
    device: Device = "auto",
    seconds: float = 220.0,
    out: Path | None = None,
    skip: tuple[str, ...] = (),
    characters: int = 10_700,
) -> None:
    """Time every variant of the kernels and every peer on a GPU: wall, device and host time.

    Each is checked against float64 first; times stand beside what the chip could do at best.

    Args:
        device: auto, cpu (small, to see that it runs) or cuda.
        seconds: when these are over, what is left is skipped and named.
        out: a folder for profile-CARD.json.
        skip: contenders to leave out, such as 'scan look_back*'.
        characters: the most that the table may have.
    """
    from plkernel.benchmarks.profile import run

    run(device, seconds, out, skip, characters)


def step(
    device: Device = "auto",
    seconds: float = 150.0,
    out: Path | None = None,
    only: tuple[str, ...] = (),
) -> None:
    """Time training steps of 2, 10 and 100 million parameters beside peers of equal size.

    Each is called from Python, as one CUDA graph, and as the graph of a compiled model; beside the
    chip's own bf16 rate.

    Args:
        device: auto, cpu (small, to see that it runs) or cuda.
        seconds: when these are over, what is left is skipped and named.
        out: a folder for step-CARD.json.
        only: rows to time, such as '10 M fla*' or '* compiled'; saved as step-only-CARD.json.
    """
    from plkernel.benchmarks.step import step as run

    run(device, seconds, out, only)


def growth(device: Device = "auto", seconds: float = 150.0, out: Path | None = None) -> None:
    """Time training steps over context, width, batch, and several runs at a time.

    Args:
        device: auto, cpu (small, to see that it runs) or cuda.
        seconds: when these are over, what is left is skipped and named.
        out: a folder for growth-CARD.json.
    """
    from plkernel.benchmarks.step import growth as run

    run(device, seconds, out)


if __name__ == "__main__":
    commands: dict[str, Any] = {
        "scan": scan,
        "wkv": wkv,
        "wkv7": wkv7,
        "train": train,
        "host": host,
        "profile": profile,
        "step": step,
        "growth": growth,
    }
    main_of(commands, str(__doc__))
