"""python -m plkernel.gallery: the memory kernel that each published layer has at initialisation."""

from functools import partial
from pathlib import Path
from typing import Any

from plkernel import __version__
from plkernel.analysis.gallery import (
    AT_MOST,
    LEFT,
    Initialisation,
    gallery_figure,
    initialisations,
    profile,
    slope_lags,
)
from plkernel.analysis.nodes import BETA
from plkernel.common import cli
from plkernel.common.files import FigureFormat, check_folder, save_figure, save_json

HEADER = [
    "initialisation",
    "half-lives",
    "slope",
    "rms",
    "R1",
    "R*",
    "Elog",
    f"{LEFT:.0%}",
    "source",
]


def gallery(
    beta: float = BETA,
    max_lag: int = 2048,
    out: Path = Path("runs/out/gallery"),
    figure: bool = True,
    formats: tuple[FigureFormat, ...] = ("png",),
) -> None:
    """Compare the memory kernels of published layers at initialisation with t**-beta.

    The command prints a table and writes gallery.json, with the formula, the assumptions and the
    source of each layer, and a figure. A channel of decay a and input gain g holds the input of t
    steps ago with weight g a**t. A kernel is the sum over channels; rms is the root of the sum of
    squares, which random signs give. Slopes are log-log, over lags 4..max_lag/4. R1, R* and Elog
    are those of plkernel.fit; the column 1 % is the lag at which the kernel has fallen to 1 % of
    its value at lag 1.

    Args:
        beta: Exponent of the power law t**-beta.
        max_lag: Kernels are drawn and scored on t = 1..max_lag, in steps of the layer.
        out: Folder for gallery.json and the figure.
        figure: Draw the figure.
        formats: Formats of the figure.
    """
    check_folder(out, "out")
    layers = initialisations()
    first, last = slope_lags(max_lag)
    entries = [profile(layer, beta, max_lag) for layer in layers]
    rows = [_row(layer, entry) for layer, entry in zip(layers, entries, strict=True)]
    title = (
        f"kernels at initialisation against t**-{beta:g} on t = 1..{max_lag}, slopes on lags"
        f" {first:g}..{last:g}; t**-{beta:g} itself falls to {LEFT:.0%} at lag"
        f" {LEFT ** (-1 / beta):.0f}"
    )
    note = (
        f"{AT_MOST}: delta rules also forget by erasing what they overwrite; half-lives are upper"
        " bounds"
    )
    print(f"{title}\n\n{cli.text_table(HEADER, rows)}\n\n{note}", flush=True)
    settings = {
        "plkernel": __version__,
        "beta": beta,
        "max_lag": max_lag,
        "slope_lags": [first, last],
    }
    save_json(out / "gallery.json", {**settings, "entries": entries})
    print(f"\nwritten: {out / 'gallery.json'}", flush=True)
    if figure:
        slopes = [entry["slope"] for entry in entries]
        draw = partial(gallery_figure, layers, slopes, beta, max_lag)
        save_figure(out, "gallery", draw, formats)


def _row(layer: Initialisation, entry: dict[str, Any]) -> list[str]:
    """The row of one layer in the table: see HEADER."""
    half_lives = dict.fromkeys(map(_half_life, layer.half_lives))
    scores = entry["scores"]
    return [
        layer.name,
        "..".join(half_lives),
        f"{entry['slope']:.2f}",
        f"{entry['slope_rms']:.2f}",
        f"{scores['r1']:.3f}",
        f"{scores['r_star']:.3f}",
        f"{scores['e_log']:.2f}",
        f"{entry['memory']:.0f}",
        layer.origin["source"].split(";")[0],
    ]


def _half_life(steps: float) -> str:
    """A half-life with three digits, and without a power of ten."""
    return f"{steps:.3g}" if steps < 1000 else f"{steps:.0f}"


if __name__ == "__main__":
    cli.main(gallery)
