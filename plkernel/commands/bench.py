"""python -m plkernel.bench scan | wkv | wkv7 | train | mi | compiled: check and time a part, against its peers."""

from pathlib import Path
from typing import Literal

from plkernel.common.cli import main_of
from plkernel.models.words import Device

ScanShape = tuple[int, int, int]
WkvShape = tuple[int, int, int, int]


def scan(
    threads: int = 1,
    shapes: tuple[ScanShape, ...] = (),
    rounds: int = 15,
    device: str | None = None,
    compiled: bool = False,
    out: Path | None = None,
) -> None:
    """Check every contender against float64, then time forward plus backward with a fixed decay, taken in turns.

    A contender that is wrong or not installed is reported and not timed. On a GPU the same command also times a copy on
    the device: the scan moves five tensors, two forward and three backward, a copy two.

    Args:
        threads: threads of torch and of the CPU backend.
        shapes: batch, time and channels, one triple after another; left out, three for a CPU and five for a GPU.
        rounds: how often each contender is timed; a slow one less often.
        device: cpu or cuda; left out, cuda where there is one.
        compiled: also time associative_scan compiled, which first compiles for minutes.
        out: a folder for scan.json.
    """
    from plkernel.benchmarks.scan import run

    run(threads, shapes, rounds, device, compiled, out)


def wkv(
    shapes: tuple[WkvShape, ...] = (),
    dtype: Literal["float32", "bfloat16"] = "float32",
    rounds: int = 15,
    device: str | None = None,
    out: Path | None = None,
) -> None:
    """Check every contender against float64, then time forward plus backward through all inputs, taken in turns.

    Each step has a decay of its own (Finch), in float32, as are states; the rest has `dtype`. The peers are the loop
    over time under autograd, as it is written and with as few operations as possible, and chunks of matrix products
    with both passes written by hand, in three sizes and two forms: factored around the middle of the chunk, which
    overflows under strong decays, and with no exponent above 0. The error under strong decays is shown beside that on
    the problem that is timed; who is wrong on the latter or not installed is reported and not timed. All use one
    thread; ours is also timed with two against one, at the first shape. Memory is that of a fresh process. On a GPU a
    copy on the device is timed too, and the share of the roofline shown: 14 tensors over time must be moved at least,
    5 forward and 9 backward, and a copy moves two.

    Args:
        shapes: batch, time, heads and head size, one four after another; times are multiples of 64; left out,
            two.
        dtype: of r, k, v and the results; bfloat16 leaves out strong decays, memory, and time by length.
        rounds: how often each contender is timed; a slow one less often.
        device: cpu or cuda; left out, cuda where there is one.
        out: a folder for wkv.json, or wkv-bfloat16.json.
    """
    from plkernel.benchmarks.wkv import run

    run(shapes, dtype, rounds, device, out)


def wkv7(
    shapes: tuple[WkvShape, ...] = (),
    rounds: int = 15,
    device: str | None = None,
    out: Path | None = None,
) -> None:
    """Check every contender against float64, then time forward plus backward through all inputs, taken in turns.

    Inputs are float32 as the model makes them: normalised kappa, rates from 0 to 1. The peers are the loop over time
    under autograd, chunks of matrix products with no exponent above 0 in three sizes, and flash-linear-attention's
    references in torch. The error under strong decays is shown beside that on the problem that is timed; who is wrong
    on the latter or not installed is reported and not timed. All use one thread. Memory is that of a fresh process.

    Args:
        shapes: batch, time, heads and head size, one four after another; times are multiples of 64; left out,
            one.
        rounds: how often each contender is timed; a slow one less often.
        device: cpu or cuda; left out, cuda where there is one.
        out: a folder for wkv7.json.
    """
    from plkernel.benchmarks.wkv7.command import run

    run(shapes, rounds, device, out)


def train(
    spec: Path = Path("quick"),
    threads: int = 1,
    rounds: int = 15,
    device: Device = "auto",
    out: Path | None = None,
) -> None:
    """Time forward, backward and optimiser step of a spec's model, taken in turns with its floors and a transformer.

    Its matrix products alone, done again with the same operands, are what no step can be faster than; an SSM is also
    timed with its scan replaced by the identity. The transformer is GPT-2 as `transformers` has it, of the same width,
    context and nearly as many parameters. Nothing is timed before loss and gradients agree with the float64 reference.

    Args:
        spec: experiment whose model, an SSM or an RWKV, context and batch are timed.
        threads: threads of torch and of the CPU backend.
        rounds: how often each contender is timed.
        device: auto, cpu or cuda.
        out: a folder for train.json, or train-rwkv6.json and the like.
    """
    from plkernel.benchmarks.train import run

    run(spec, threads, rounds, device, out)


def mi(
    corpus: str = "stdlib",
    lags: tuple[int, ...] = (1, 3, 8, 21, 55, 144, 377, 1000),
    threads: tuple[int, ...] = (1, 2),
    rounds: int = 15,
    sizes: tuple[int, ...] = (10, 100),
    out: Path | None = None,
) -> None:
    """Check every contender's pair tables or mutual information, then time those that are right, taken in turns.

    Peers that return the information itself are compared with our tables and information together. A slow one gets the
    start of the corpus only, which favours it if anything; rates are per MB and lag. A contender that is wrong or not
    installed is reported and not timed. Memory is that of a process of its own that reads a mapped file.

    Args:
        corpus: any name that plkernel.corpus understands; its first 32 MB are used.
        lags: distances at which pairs are counted, ascending.
        threads: thread counts of ours; 1 is always among them.
        rounds: how often each contender is timed; a slow one less often.
        sizes: MB of the files whose counting is watched for time and memory; none to leave that out.
        out: a folder for mi.json.
    """
    from plkernel.benchmarks.mi import run

    run(corpus, lags, threads, rounds, sizes, out)


def compiled(out: Path | None = None) -> None:
    """Compile every Triton kernel for three chips, and tell what it takes of each; needs no GPU.

    Registers and bytes of a thread that are spilled to memory, how many instructions of inner loops touch those, shared
    memory of a block, and the estimated occupancy: the share of a multiprocessor's warps that can be there at once.
    Heads of 64, bfloat16.

    Args:
        out: a folder for compiled.json.
    """
    from plkernel.benchmarks.compiled.command import run

    run(out)


if __name__ == "__main__":
    main_of(
        {"scan": scan, "wkv": wkv, "wkv7": wkv7, "train": train, "mi": mi, "compiled": compiled},
        str(__doc__),
    )
