"""python -m plkernel.bench scan | wkv | wkv7 | train | mi: check a part, then time it beside its peers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from plkernel.common.cli import main_of
from plkernel.models import Device

HEADS = (tuple[int, int, int, int], "batch, time (a multiple of 32), heads and head size")
OPERATORS: dict[str, tuple[Any, str]] = {
    "scan": (tuple[int, int, int], "batch, time and channels"),
    "wkv": HEADS,
    "wkv7": HEADS,
}
"""The type of a shape of each operator, and its axes."""


def _operator(name: str) -> Callable[..., None]:
    shape, axes = OPERATORS[name]

    def command(
        threads: int = 1,
        shapes: tuple[shape, ...] = (),  # type: ignore[valid-type]
        dtype: Literal["float32", "bfloat16"] = "float32",
        rounds: int = 15,
        device: str | None = None,
        out: Path | None = None,
    ) -> None:
        from plkernel.benchmarks.operators import run

        run(name, threads, shapes, dtype, rounds, device, out)

    command.__doc__ = f"""Check {name} and its peers against float64, then time forward plus backward, taken in turns.

    A contender that is wrong or not installed is reported and not timed.

    Args:
        threads: threads of torch and of the CPU backend.
        shapes: {axes} of one problem after another; left out, some for a CPU and some for a GPU.
        dtype: of inputs over time and results; decays and states are float32.
        rounds: how often each contender is timed; a slow one less often.
        device: cpu or cuda; left out, cuda where there is one.
        out: a folder for {name}.json, or {name}-bfloat16.json.
    """
    return command


scan, wkv, wkv7 = map(_operator, OPERATORS)


def train(
    spec: Path = Path("quick"), threads: int = 1, rounds: int = 15, device: Device = "auto", out: Path | None = None
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
    from plkernel.benchmarks import training

    training.train(spec, threads, rounds, device, out)


def mi(
    corpus: str = "stdlib",
    lags: tuple[int, ...] = (1, 3, 8, 21, 55, 144, 377, 1000),
    rounds: int = 15,
    out: Path | None = None,
) -> None:
    """Check the tables of pairs that `measure` counts, then time them beside np.bincount, taken in turns.

    Args:
        corpus: any name that plkernel.corpus understands; its first 32 MiB are used.
        lags: distances at which pairs are counted, ascending.
        rounds: how often each contender is timed; a slow one less often.
        out: a folder for mi.json.
    """
    from plkernel.benchmarks import training

    training.mi(corpus, lags, rounds, out)


if __name__ == "__main__":
    main_of({"scan": scan, "wkv": wkv, "wkv7": wkv7, "train": train, "mi": mi}, str(__doc__))
