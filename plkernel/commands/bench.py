"""python -m plkernel.bench scan | wkv | wkv7 | train | mi: check a part, then time it beside its peers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from plkernel.common.cli import main_of
from plkernel.models.words import Device


def _operator(name: str, shape: Any, example: str) -> Callable[..., None]:
    def command(
        threads: int = 1,
        shapes: tuple[shape, ...] = (),
        dtype: Literal["float32", "bfloat16"] = "float32",
        rounds: int = 15,
        device: str | None = None,
        out: Path | None = None,
    ) -> None:
        from plkernel.benchmarks.operators import run

        run(name, threads, shapes, dtype, rounds, device, out)

    command.__name__ = name
    command.__doc__ = f"""Check every contender against float64, then time forward plus backward, taken in turns.

    {example} A contender that is wrong or not installed is reported and not timed.

    Args:
        threads: threads of torch and of the CPU backend.
        shapes: sizes of one problem after another; left out, some for a CPU and some for a GPU.
        dtype: of inputs over time and results; decays and states are float32.
        rounds: how often each contender is timed; a slow one less often.
        device: cpu or cuda; left out, cuda where there is one.
        out: a folder for {name}.json, or {name}-bfloat16.json.
    """
    return command


_HEADS = (
    "Shapes are batch, time (a multiple of 64), heads and head size. Peers are a loop over time and chunks of matrix "
)
_HEADS += "products under autograd; on a GPU also flash-linear-attention."
_SCAN = (
    "Shapes are batch, time and channels. Peers are a loop over time, mambapy and torch's associative_scan; on a GPU "
)
_SCAN += "also accelerated-scan, mamba-ssm and flash-linear-attention."
scan = _operator("scan", tuple[int, int, int], f"The decay is fixed. {_SCAN}")
wkv = _operator("wkv", tuple[int, int, int, int], f"Each step has a decay of its own. {_HEADS}")
wkv7 = _operator("wkv7", tuple[int, int, int, int], f"Inputs are as RWKV-7 makes them. {_HEADS}")


def train(
    spec: Path = Path("quick"), threads: int = 1, rounds: int = 15, device: Device = "auto", out: Path | None = None
) -> None:
    """Time forward, backward and optimiser step of a spec's model beside its matrix products and a transformer.

    No step can be faster than its matrix products alone; an SSM is also timed with its scan replaced by the identity.
    The transformer is GPT-2 of `transformers`, of the same width and context and with nearly as many parameters.
    Nothing is timed before loss and gradients agree with the float64 reference.

    Args:
        spec: experiment whose model (an SSM or an RWKV), context and batch are timed.
        threads: threads of torch and of the CPU backend.
        rounds: how often each contender is timed.
        device: auto, cpu or cuda.
        out: a folder for train.json, or train-rwkv6.json and the like.
    """
    from plkernel.benchmarks.training import train

    train(spec, threads, rounds, device, out)


def mi(
    corpus: str = "stdlib",
    lags: tuple[int, ...] = (1, 3, 8, 21, 55, 144, 377, 1000),
    rounds: int = 15,
    out: Path | None = None,
) -> None:
    """Check every contender's pair tables or mutual information, then time those that are right, taken in turns.

    Peers are np.bincount for the tables; pyinform, scikit-learn and infomeasure for the information. A slow one gets
    the start of the corpus only, which favours it if anything; ratios compare the time of equal work.

    Args:
        corpus: any name that plkernel.corpus understands; its first 32 MiB are used.
        lags: distances at which pairs are counted, ascending.
        rounds: how often each contender is timed; a slow one less often.
        out: a folder for mi.json.
    """
    from plkernel.benchmarks.training import mi

    mi(corpus, lags, rounds, out)


if __name__ == "__main__":
    main_of({"scan": scan, "wkv": wkv, "wkv7": wkv7, "train": train, "mi": mi}, str(__doc__))
