"""python -m plkernel.init check: what a scheme does to activations, over widths in training and over depth at first."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from plkernel import __version__
from plkernel.analysis.trained.coordinates import FLAT, Coordinates, Propagation
from plkernel.data import corpora
from plkernel.data.corpora import Corpus
from plkernel.data.windows import check_length, fixed_windows
from plkernel.init.options import ModelKind, arm_of, filled, model_of, spec_of
from plkernel.init.show import planned
from plkernel.models.init.coordinate_check import coordinate_check, propagation
from plkernel.spec.train import check_threads
from plkernel.tools import cli
from plkernel.tools.cli import text_table
from plkernel.tools.files import atomic_write, check_folder, save_json

CONTEXT, BATCH = 64, 4
OPTIMIZERS = {"adam": "Adam", "sgd": "SGD"}


def check(
    scheme: Annotated[str, tyro.conf.Positional],
    model: ModelKind = "ssm",
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024),
    layers: int = 2,
    depths: tuple[int, ...] = (4, 16, 64),
    dim: int = 128,
    head_size: int | None = None,
    steps: int = 4,
    seeds: int = 3,
    learning_rate: float = 2**-10,
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    corpus: str = "stdlib",
    threads: int = os.cpu_count() or 1,
    out: Path = Path("runs/out/init"),
    figure: bool = True,
) -> None:
    """Check a scheme by training small models for a few steps, and by sending a signal through deep ones.

    Coordinate check: at every width a model takes a few steps of Adam (SGD, where the scheme's rates are for that) on
    one batch, at one base learning rate times the multipliers of the scheme. With x_0 an activation at the start and
    x_t after t steps, printed is the root mean square of the coordinates of x_t - x_0 (Tensor Programs V, appendix D.1,
    which takes their deviation) and the slope of its logarithm over that of the width: 0 where learning rates carry
    over from width to width, 0.5 to 2 under standard parametrisations. mixer i and ffn i are what the branches of block
    i give, block i the residual stream after it. Under muP the logits alone may fall: the random part of a random head
    does, as width**-0.5, until the rest is left. Where that is unwanted, start the head at zero: --option
    zero_readout=1.

    Depth, at the start: the root mean square of the residual stream after each block, and of its gradient for
    independent normal gradients after the last, with the growth per block (geometric mean).

    Args:
        scheme: Name of the scheme, see plkernel.init list.
        model: ssm: the diagonal SSM, half-lives log-spaced. rwkv5, rwkv6, rwkv7: Eagle, Finch and Goose.
        widths: Widths of the coordinate check.
        layers: Blocks there.
        depths: Blocks of the models that the signal goes through.
        dim: Width there.
        head_size: RWKV: channels of a head, 32 if left out, of which every width must be a multiple.
        steps: Steps, of Adam with betas 0.9 and 0.999, no weight decay.
        seeds: Seeds of the weights; the batch is always the same.
        learning_rate: Base learning rate.
        option: Free constants of the scheme: --option std=0.01 --option base_width=64.
        corpus: Where the bytes come from, see plkernel.corpus.
        threads: Threads of torch.
        out: Folder for SCHEME-MODEL.json and the figure.
        figure: Draw the figure.
    """
    check_threads(threads)
    if not depths or min(depths) < 1:
        raise ValueError(f"depths must be at least 1, got {depths}")
    arm = arm_of(scheme, option)
    wide = {width: spec_of(model, width, layers, head_size) for width in widths}
    deep = {depth: spec_of(model, dim, depth, head_size) for depth in sorted(set(depths))}
    check_folder(out, "out")
    torch.set_num_threads(threads)
    data, windows = batch(corpus)
    with cli.progress_bar("widths") as progress:
        coordinates = coordinate_check(
            lambda width, seed: filled(wide[width], arm, seed, windows[:, :-1]),
            windows,
            widths,
            steps=steps,
            seeds=seeds,
            learning_rate=learning_rate,
            progress=progress,
        )
    optimizer = planned(wide[min(wide)], arm).optimizer
    print(render(coordinates, f"{scheme} on {model}", optimizer), end="\n\n", flush=True)
    found = []
    with cli.progress_bar("depths") as progress:
        for depth, spec in deep.items():
            found.append(propagation(partial(model_of, spec, arm, inputs=windows[:, :-1]), windows, seeds))
            progress(depth / sum(deep))
    print(render_depth(found, dim), end="\n\n", flush=True)
    settings = {"scheme": scheme, "model": model, "options": arm.scheme_options, "layers": layers, "dim": dim}
    settings |= {"optimizer": optimizer}
    settings |= {"corpus": data.name, "sha256": data.sha256, "context": CONTEXT, "batch": BATCH, "seeds": seeds}
    path = out / f"{scheme}-{model}"
    save(path, settings, coordinates, found)
    if figure:
        draw(path, f"{scheme} on {model}", coordinates, found)


def batch(corpus: str) -> tuple[Corpus, Tensor]:
    """The windows that every model sees, evenly spaced over a corpus."""
    data = corpora.load(corpus)
    check_length(data.bytes, CONTEXT, f"corpus {corpus!r}")
    return data, fixed_windows(data.bytes, CONTEXT, BATCH)


def render(found: Coordinates, title: str, optimizer: str = "adam") -> str:
    """The table of the coordinate check, and the verdict."""
    rows = []
    for name in found.names:
        slope = found.slope(name)
        moved = [f"{value:.3g}" for value in found.change(name)]
        rows.append(
            [
                name,
                *moved,
                f"{slope.value:+.2f}",
                f"{slope.error:.2f}" if slope.error == slope.error else "-",
                verdict_of(slope.verdict),
            ]
        )
    header = ["activation", *(f"width {width}" for width in found.widths), "slope", "error", "verdict"]
    steps = f"{found.steps} steps of {OPTIMIZERS[optimizer]} at {found.learning_rate:.3g}"
    title = f"{title}: rms of x_t - x_0 after {steps}"
    return f"{title}\n\n{text_table(header, rows)}\n\nverdict: {verdict(found)}"


def verdict_of(name: str) -> str:
    """A verdict, with what flat means."""
    return f"flat within {FLAT:g}" if name == "flat" else name


def verdict(found: Coordinates) -> str:
    """One sentence on all activations."""
    slopes = {name: found.slope(name) for name in found.names}
    told = []
    for kind in dict.fromkeys(slope.verdict for slope in slopes.values() if slope.verdict != "flat"):
        names = [f"{name} ({s.value:+.2f})" for name, s in slopes.items() if s.verdict == kind]
        told.append(f"{kind}: {', '.join(names)}".replace(" (+nan)", ""))
    return f"not flat in width; {'; '.join(told)}" if told else f"flat in width within {FLAT:g}, all {len(slopes)}"


def render_depth(found: Sequence[Propagation], dim: int) -> str:
    """The table of the residual stream over depth."""
    rows = []
    for item in found:
        (forward, backward), places = item.growth, (0, item.depth)
        ends = [f"{values[place]:.4g}" for values in (item.forward, item.backward) for place in places]
        rows.append([str(item.depth), *ends[:2], f"{forward:.4f}", *ends[:1:-1], f"{backward:.4f}"])
    header = ["blocks", "stream before", "after", "growth per block", "gradient after", "before", "growth per block"]
    title = f"residual stream at initialisation, width {dim}: rms before the first block and after the last"
    return f"{title}\n\n{text_table(header, rows)}"


def save(path: Path, settings: Mapping[str, Any], coordinates: Coordinates, found: Sequence[Propagation]) -> None:
    """Write everything as JSON."""
    values = {
        "plkernel": __version__,
        **settings,
        "coordinates": coordinates.to_dict(),
        "slopes": {name: vars(coordinates.slope(name)) for name in coordinates.names},
        "verdict": verdict(coordinates),
        "depths": [{**vars(item), "depth": item.depth, "growth": item.growth} for item in found],
    }
    save_json(path.with_name(f"{path.name}.json"), values)
    print(f"written: {path}.json", flush=True)


def draw(path: Path, title: str, coordinates: Coordinates, found: Sequence[Propagation]) -> None:
    """Write the figure."""
    from plkernel.analysis.figures.coordinates import coordinates_figure
    from plkernel.analysis.figures.style import rendered

    for kind, content in rendered(coordinates_figure(coordinates, found, title)).items():
        atomic_write(path.with_name(f"{path.name}.{kind}"), content)
    print(f"figure:  {path}.pdf, .png, .svg", flush=True)
