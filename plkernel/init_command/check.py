"""python -m plkernel.init check: what a scheme does to activations, over widths in training and over depth at first."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plkernel import __version__
from plkernel.analysis.trained.coordinates import FLAT, Coordinates, Propagation
from plkernel.common import cli
from plkernel.common.cli import text_table
from plkernel.common.files import atomic_write, check_folder, save_json
from plkernel.config.schema import check_threads
from plkernel.data import corpora
from plkernel.data.corpora import Corpus
from plkernel.data.windows import check_length, fixed_windows
from plkernel.init_command.options import arm_of, filled, model_of, spec_of
from plkernel.init_command.show import planned
from plkernel.models.init.coordinate_check import coordinate_check, propagation
from plkernel.models.words import ModelKind

CONTEXT, BATCH = 64, 4
OPTIMIZERS = {"adam": "Adam", "sgd": "SGD"}


def run(
    scheme: str, model: ModelKind, widths: tuple[int, ...], layers: int, depths: tuple[int, ...], dim: int,
    head_size: int | None, steps: int, seeds: int, learning_rate: float, option: Sequence[str], corpus: str,
    threads: int, out: Path, figure: bool,
) -> None:  # fmt: skip
    """Check a scheme by training small models for a few steps, and by sending a signal through deep ones."""
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
