"""python -m plkernel.bench scan | wkv | wkv7 | train | mi: check a part, then time it beside its peers."""

from pathlib import Path
from typing import Literal

from plkernel.common.cli import main_of
from plkernel.models.words import Device

WkvShape = tuple[int, int, int, int]


def scan(
    threads: int = 1,
    shapes: tuple[tuple[int, int, int], ...] = (),
    rounds: int = 15,
    device: str | None = None,
    out: Path | None = None,
) -> None:
    """Check every contender against float64, then time forward plus backward with a fixed decay, taken in turns.

    The peers are a loop over time, mambapy and torch's associative_scan; on a GPU also accelerated-scan, mamba-ssm and
    flash-linear-attention. A contender that is wrong or not installed is reported and not timed.

    Args:
        threads: threads of torch and of the CPU backend.
        shapes: batch, time and channels, one triple after another; left out, three for a CPU and five for a GPU.
        rounds: how often each contender is timed; a slow one less often.
        device: cpu or cuda; left out, cuda where there is one.
        out: a folder for scan.json.
    """
    from plkernel.benchmarks.operators import run

    run("scan", threads, shapes, "float32", rounds, device, out)


def wkv(
    threads: int = 1,
    shapes: tuple[WkvShape, ...] = (),
    dtype: Literal["float32", "bfloat16"] = "float32",
    rounds: int = 15,
    device: str | None = None,
    out: Path | None = None,
) -> None:
    """Check every contender against float64, then time forward plus backward of RWKV-6's recurrence, taken in turns.

    Each step has a decay of its own, in float32, as are states; the rest has `dtype`. The peers are a loop over time
    and chunks of matrix products, both under autograd, and on a GPU flash-linear-attention. The error under strong
    decays stands beside that on the problem that is timed; a contender that is wrong on the latter is not timed.

    Args:
        threads: threads of torch and of the CPU backend.
        shapes: batch, time, heads and head size, one four after another; times are multiples of 64; left out, two.
        dtype: of r, k, v and the results.
        rounds: how often each contender is timed; a slow one less often.
        device: cpu or cuda; left out, cuda where there is one.
        out: a folder for wkv.json, or wkv-bfloat16.json.
    """
    from plkernel.benchmarks.operators import run

    run("wkv", threads, shapes, dtype, rounds, device, out)


def wkv7(
    threads: int = 1,
    shapes: tuple[WkvShape, ...] = (),
    rounds: int = 15,
    device: str | None = None,
    out: Path | None = None,
) -> None:
    """Check every contender against float64, then time forward plus backward of RWKV-7's recurrence, taken in turns.

    Inputs are as the model makes them: normalised kappa, rates from 0 to 1. Peers and checks are those of `wkv`.

    Args:
        threads: threads of torch and of the CPU backend.
        shapes: batch, time, heads and head size, one four after another; times are multiples of 64.
        rounds: how often each contender is timed; a slow one less often.
        device: cpu or cuda; left out, cuda where there is one.
        out: a folder for wkv7.json.
    """
    from plkernel.benchmarks.operators import run

    run("wkv7", threads, shapes, "float32", rounds, device, out)


def train(
    spec: Path = Path("quick"),
    threads: int = 1,
    rounds: int = 15,
    device: Device = "auto",
    out: Path | None = None,
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
